"""AsyncVecEnv and its workers: where environments live, how they are called, and stepping some of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vec_envs import (
    CounterEnv,
    both,
    counters,
    make_async,
    zeros,
)
from vec_processes import (
    METHODS,
    context,
    forks_with_threads,
    leaving_nothing,
    only_on_linux,
    wait_until,
)

from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.env_base.vector import pool
from unienv_interface.env_base.vector.memory import DEPTH, CommandRing
from unienv_interface.wrapper import TimeLimitWrapper

pytestmark = forks_with_threads
Maker = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


# -- the workers of AsyncVecEnv --------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_start_method_runs_closures_and_builds_nothing_here(method: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    class LocalEnv(CounterEnv):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            Path(folder, f"{os.getpid()}-{index}").touch()

    with make_async([lambda i=i: LocalEnv(i) for i in range(3)], ctx=context(method)) as env:
        env.reset(seed=0)
        assert env.step(zeros(3))[0][:, 0].tolist() == [0.0, 1.0, 2.0]
        first, second = (process.pid for process in env.processes)
        assert env.get_attr("pid") == [first, second, second]
        assert os.getpid() not in (first, second)
        assert {path.name for path in tmp_path.iterdir()} == {f"{first}-0", f"{second}-1", f"{second}-2"}


def test_a_fork_takes_factories_that_cannot_be_pickled_and_the_others_say_so() -> None:
    lock = threading.Lock()
    factories = [lambda: CounterEnv(0 if lock.acquire(blocking=False) else 1)] * 2
    with make_async(factories) as env:
        assert env.get_attr("index") == [0, 0]
    with pytest.raises(TypeError, match=r"the factories of environments 0 to 0 cannot be pickled.*cannot pickle"):
        make_async(factories, ctx=context("spawn"))


def test_the_documented_attributes() -> None:
    with make_async(counters(3), seed=1) as env:
        assert all(isinstance(pipe, multiprocessing.connection.Connection) for pipe in env.command_pipes)
        assert all(isinstance(process, multiprocessing.process.BaseProcess) for process in env.processes)
        assert all(process.daemon for process in env.processes)
        assert len(env.command_pipes) == len(env.processes) == env.num_workers == 2
        assert env.error_queue.empty()
        with pytest.raises(AttributeError):
            env.get_attr("missing")
        report = env.error_queue.get_nowait()
        assert (report.env_index, report.command) in {(0, "get_attr missing"), (1, "get_attr missing")}
    with make_async(counters(1), daemon=False) as env:
        assert not env.processes[0].daemon


def test_as_many_workers_as_cores_by_default_but_no_more_than_environments() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with AsyncVecEnv(counters(3), ctx=context("fork")) as env:
        assert env.num_workers == min(cores or 1, 3)
    with make_async(counters(2), num_workers=64) as env:
        assert env.num_workers == 2


def test_commands_go_to_one_environment_and_results_come_in_order() -> None:
    with make_async(counters(3)) as env:
        for index in (2, 0):
            env.send_command(index, "reset", seed=5, start=index)
        env.send_command(2, "step", np.ones(2, np.float32))
        env.send_command(2, "render")
        assert env.get_command_result(2)[1][2] == 2.0
        observation, reward, terminated, _, _ = env.get_command_result(2)
        assert (observation[2], reward, terminated) == (3.0, 2.0, False)
        assert env.get_command_result(2).shape == (2, 2, 3)
        assert env.get_command_result(0)[2] == {"seed": 5}
        env.send_command(1, "step", "not an action")  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="environment 1, step"):
            env.get_command_result(1)
        env.send_command(1, "close")
        assert env.get_command_result(1) is None
        with pytest.raises(RuntimeError, match="no command was sent to environment 1"):
            env.get_command_result(1)
        for wrong in (3, -1):
            with pytest.raises(IndexError, match=f"index {wrong} is out of range: there are 3 environments"):
                env.send_command(wrong, "render")
        # a command may wait for its result while others go on
        env.reset(seed=0)
        env.send_command(0, "render")
        assert env.step(zeros(3))[0][:, 2].tolist() == [1.0, 1.0, 1.0]
        assert env.get_command_result(0).max() == 0


def test_commands_go_between_steps_and_their_results_are_asked_for_later() -> None:
    with make_async(counters(3)) as env:
        env.reset(seed=0)
        for count in range(1, 6):
            env.send_command(2, "render")
            assert env.step(zeros(3))[0][:, 2].tolist() == [count] * 3
            assert env.get_command_result(2).tolist() == np.full((2, 2, 3), 2).tolist()


def test_any_number_of_commands_may_be_without_a_result() -> None:
    with make_async(counters(3)) as env:
        for step in range(200):
            env.send_command(2, "scaled", step)  # type: ignore[arg-type]
        assert [env.get_command_result(2) for _ in range(200)] == [2.0 * step for step in range(200)]


@both
def test_call_get_and_set_over_all_or_some(make: Maker) -> None:
    with make([lambda i=i: TimeLimitWrapper(CounterEnv(i), 9) for i in range(3)]) as env:
        assert env.call("scaled", 2.0, offset=1.0) == [1.0, 3.0, 5.0]
        assert env.call("scaled", 2.0, index=[2, 0]) == [4.0, 0.0]
        assert env.get_attr("index", index=[1]) == [1]
        env.set_attr("index", 7)
        env.set_attr("index", [8, 9], index=(0, 2))
        assert env.get_attr("index") == [8, 7, 9]
        frames = env.render()
        assert frames is not None
        assert [frame[0, 0, 0] for frame in frames] == [8, 7, 9]
        with pytest.raises(ValueError, match="2 values for 3 environments"):
            env.set_attr("index", [1, 2])
        with pytest.raises(IndexError, match="index 3 is out of range: there are 3 environments"):
            env.call("scaled", 1.0, index=[3])
        with pytest.raises(AttributeError, match="missing"):
            env.call("missing")


@both
def test_render_has_the_frames_of_those_that_give_one(make: Maker) -> None:
    with make(counters(3)) as env:
        assert [frame[0, 0, 0] for frame in env.render()] == [0, 2]
    with make([lambda: CounterEnv(1)]) as env:
        assert env.render() is None


# -- pace ------------------------------------------------------------------------------------------------

PAUSES = (0.0, 0.0, 0.0, 0.0002, 0.0005, 0.001)


class PausingEnv(CounterEnv):
    """Takes a time of its own for every step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(PAUSES[(7 * self.index + 3 * self.steps) % len(PAUSES)])
        return super().step(action)


def test_workers_of_uneven_pace_give_what_one_process_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # so that a worker which answers without waking its parent is a TimeoutError, not a little slow
    monkeypatch.setattr(pool, "_SLICE", 60.0)
    factories = [lambda index=index: PausingEnv(index, length=9) for index in range(5)]
    twin = SyncVecEnv(counters(5, length=9))
    actions = np.random.default_rng(0).uniform(-1, 1, (150, 5, 2)).astype(np.float32)
    with make_async(factories, num_workers=3, timeout=20.0) as env:
        assert env.reset(seed=0)[1].tolist() == twin.reset(seed=0)[1].tolist()
        for action in actions:
            (seen, *signals, _), (wanted, *others, _) = env.step(action), twin.step(action)
            assert seen.tolist() == wanted.tolist()
            assert [part.tolist() for part in signals] == [part.tolist() for part in others]
            ended = signals[1] | signals[2]
            if ended.any():
                assert env.reset(mask=ended)[1].tolist() == twin.reset(mask=ended)[1].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_where_there_is_no_eventfd_pipes_wake_workers(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    with make_async(counters(3), ctx=context(method)) as env:
        env.reset(seed=0)
        for step in range(1, 20):
            assert env.step(zeros(3))[0][:, 2].tolist() == [step] * 3


@only_on_linux
def test_a_step_that_a_stopped_worker_took_up_late_is_not_taken_for_the_next() -> None:
    twin = SyncVecEnv(counters(3))
    with make_async(counters(3), timeout=0.3) as env:
        env.reset(seed=1)
        env.step(zeros(3))
        os.kill(env.processes[1].pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="environments 1 to 2"):
            env.step(zeros(3))
        for _ in range(2):
            with pytest.raises(TimeoutError):
                env.reset(seed=5)
        os.kill(env.processes[1].pid, signal.SIGCONT)
        env.timeout = 30.0
        for seed in (2, 3):
            assert env.reset(seed=seed)[1][:, 2:].tolist() == twin.reset(seed=seed)[1][:, 2:].tolist()
            for _ in range(3):
                assert env.step(zeros(3))[0][:, 2:].tolist() == twin.step(zeros(3))[0][:, 2:].tolist()


@only_on_linux
def test_a_worker_that_was_stopped_for_more_commands_than_it_takes_goes_on() -> None:
    with make_async(counters(2), timeout=30.0) as env:
        env.timeout = 0.02
        os.kill(env.processes[1].pid, signal.SIGSTOP)
        for _ in range(DEPTH + 8):
            with pytest.raises(
                TimeoutError, match=r"reset: (no answer from )?environment"
            ):  # on a busy machine the other may be late as well
                env.reset()
        os.kill(env.processes[1].pid, signal.SIGCONT)
        env.timeout = 30.0
        assert env.reset(seed=0)[1][:, 2].tolist() == [0.0, 0.0]
        assert env.step(zeros(2))[0][:, 2].tolist() == [1.0, 1.0]


def test_commands_that_an_interrupt_has_left_out_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(ring: CommandRing, number: int, code: int) -> None:
        raise KeyboardInterrupt

    with make_async(counters(2), timeout=30.0) as env:
        with monkeypatch.context() as patch:
            patch.setattr(CommandRing, "post", interrupted)
            for _ in range(DEPTH + 8):
                with pytest.raises(KeyboardInterrupt):
                    env.reset()
        assert env.reset(seed=0)[1][:, 2].tolist() == [0.0, 0.0]
        assert env.step(zeros(2))[0][:, 2].tolist() == [1.0, 1.0]


# -- stepping some of them -------------------------------------------------------------------------------


class GatedEnv(CounterEnv):
    """Steps when a file is there."""

    def __init__(self, index: int, gate: Path) -> None:
        super().__init__(index)
        self.gate = gate

    def step(self, action: Any) -> Any:
        if not wait_until(lambda: Path(f"{self.gate}-{self.index}").exists()):
            raise AssertionError("the gate stayed shut")
        return super().step(action)


def test_a_learner_may_go_on_with_those_that_are_ready(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with make_async([lambda i=i: GatedEnv(i, gate) for i in range(4)], num_workers=4) as env:
        env.reset(seed=0)
        for index in (1, 3):
            Path(f"{gate}-{index}").touch()
        env.step_async(np.arange(8, dtype=np.float32).reshape(4, 2))
        observation, reward, _, _, info = env.step_wait(min_envs=2)
        assert info["env_index"].tolist() == [1, 3]
        assert observation[:, 0].tolist() == [1.0, 3.0]
        assert reward.tolist() == [5.0, 13.0]
        # these go on, in an order of the caller's, while the others are still at their first step
        env.step_async(np.array([[3, 3], [1, 1]], np.float32), index=[3, 1])
        seen = []
        for _ in range(2):
            observation, reward, _, _, info = env.step_wait(min_envs=1)
            seen += zip(info["env_index"].tolist(), observation[:, 2].tolist(), reward.tolist(), strict=True)
            if len(seen) == 2:
                break
        assert sorted(seen) == [(1, 2.0, 2.0), (3, 2.0, 6.0)]
        for index in (0, 2):
            Path(f"{gate}-{index}").touch()
        observation, _, _, _, info = env.step_wait()
        assert info["env_index"].tolist() == [0, 2]
        assert observation[:, 2].tolist() == [1.0, 1.0]
        assert env.step(zeros(4))[0][:, 2].tolist() == [2.0, 3.0, 2.0, 3.0]


def test_environments_of_one_worker_may_be_asked_one_after_the_other(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with make_async([lambda i=i: GatedEnv(i, gate) for i in range(3)], num_workers=1) as env:
        env.reset(seed=0)
        env.step_async(zeros(1), index=[2])
        env.step_async(np.ones((2, 2), np.float32), index=[1, 0])
        for index in range(3):
            Path(f"{gate}-{index}").touch()
        observation, reward, _, _, info = env.step_wait()
        assert dict(zip(info["env_index"].tolist(), reward.tolist(), strict=True)) == {2: 0.0, 1: 2.0, 0: 2.0}
        assert observation[:, 0].tolist() == info["env_index"].tolist()


@both
def test_all_of_them_in_another_order(make: Maker) -> None:
    with make(counters(4)) as env:
        env.reset(seed=0)
        order = [0, 2, 1, 3]
        env.step_async(np.repeat(np.array(order, np.float32), 2).reshape(4, 2), index=order)
        observation, reward, _, _, info = env.step_wait()
        assert info["env_index"].tolist() == observation[:, 0].tolist() == order
        assert reward.tolist() == [0.0, 4.0, 2.0, 6.0]


@both
def test_wrong_uses_of_asking_and_waiting(make: Maker) -> None:
    with make(counters(4)) as env:
        for wait in (env.step_wait, env.reset_wait):
            with pytest.raises(RuntimeError, match=r"(step|reset)_wait without (step|reset)_async"):
                wait()
        env.reset_async(seed=0)
        for command in (lambda: env.step_async(zeros(4)), lambda: env.step_async(zeros(1), index=[0])):
            with pytest.raises(RuntimeError, match="step while a reset is under way: call reset_wait first"):
                command()
        with pytest.raises(RuntimeError, match="reset while a reset is under way"):
            env.reset()
        env.reset_wait()
        env.step_async(zeros(2), index=[0, 1])
        for command in (env.reset, env.render, lambda: env.step(zeros(4)), lambda: env.get_attr("pid")):
            with pytest.raises(RuntimeError, match="while a step is under way: call step_wait first"):
                command()
        with pytest.raises(RuntimeError, match=r"environments \[1\] are stepping already"):
            env.step_async(zeros(2), index=[2, 1])
        for least in (0, 3):
            with pytest.raises(ValueError, match=f"min_envs is {least}, it must be from 1 to 2, the stepping"):
                env.step_wait(min_envs=least)
        assert env.step_wait()[0].shape == (2, 4)
        for wrong in ([], 0, [0.0], [True], [[0]], "a"):
            with pytest.raises(ValueError, match="is not a list or an array of environment indices"):
                env.step_async(zeros(1), index=wrong)
        with pytest.raises(ValueError, match="names an environment twice"):
            env.step_async(zeros(2), index=[1, 1])
        for beyond in (-1, 4):
            with pytest.raises(IndexError, match="there are 4 environments"):
                env.step_async(zeros(1), index=[beyond])
        assert env.get_attr("steps") == [1, 1, 0, 0]
