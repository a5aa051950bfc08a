"""`on_worker_error="restart"`: a worker is replaced, and the others go on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from vec_envs import (
    SamplingEnv,
    counters,
    frozen,
    rich_space,
    rows,
)
from vec_faults import (
    ACTIONS,
    HANG_TIMEOUT,
    PATIENCE,
    RAISED,
    VICTIM,
    RecordingEnv,
    close_in_time,
    faulty,
    kill,
    restarting,
)
from vec_processes import (
    METHODS,
    forks_with_threads,
    leaving_nothing,
    only_on_linux,
)

from unienv_interface import AsyncVecEnv, SyncVecEnv, WorkerDied
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace

pytestmark = [only_on_linux, *forks_with_threads]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


def pids(env: AsyncVecEnv) -> list[int]:
    return [process.pid for process in env.processes]


@pytest.mark.parametrize(
    ("method", "fault"),
    [*(("fork", fault) for fault in RAISED), ("forkserver", "kill"), ("spawn", "raise"), ("spawn", "segfault")],
)
def test_restart_replaces_the_environments_of_one_worker(method: str, fault: str) -> None:
    env = restarting(faulty(4, 2, "step", fault, at=3), method)  # environments 2 and 3 share worker 1
    actions, before = np.zeros((4, 2), np.float32), pids(env)
    env.reset(seed=0)
    env.step(actions)
    last = env.step(actions)[0]
    env.timeout = HANG_TIMEOUT if RAISED[fault][0] is TimeoutError and method == "fork" else PATIENCE
    observation, reward, terminated, truncated, info = env.step(actions + 1)
    assert observation[:2, 2].tolist() == [3.0, 3.0]
    assert observation[2:].tolist() == last[2:].tolist()
    assert reward.tolist() == [2.0, 2.0, 0.0, 0.0]
    assert terminated.tolist() == [False] * 4
    assert truncated.tolist() == info["restarted"].tolist() == [False, False, True, True]
    env.timeout = PATIENCE
    assert pids(env)[0] == before[0]
    assert pids(env)[1] != before[1]
    # they are reset already; the others never noticed
    observation, _, _, truncated, info = env.step(actions)
    assert observation[:, 1:3].tolist() == [[1.0, 4.0], [1.0, 4.0], [1.0, 1.0], [1.0, 1.0]]
    assert not truncated.any()
    assert "restarted" not in info
    close_in_time(env)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_environments_that_were_restarted_with_another_say_so_at_their_next_step(
    shared_memory: bool, tmp_path: Path
) -> None:
    spared = tmp_path / "spared"
    env = restarting(faulty(4, 2, "step", "kill", at=2, spared=str(spared)), shared_memory=shared_memory)
    first = env.reset(seed=0)[1]
    action = np.zeros((1, 2), np.float32)
    for _ in range(2):
        env.step_async(action, index=[2])
        observation, _, _, truncated, info = env.step_wait()
    assert (observation[0, 2], truncated.tolist(), info["restarted"].tolist()) == (1.0, [True], [True])
    spared.touch()
    observation, _, _, truncated, info = env.step(np.zeros((4, 2), np.float32))
    assert info["restarted"].tolist() == truncated.tolist() == [False, False, False, True]
    assert observation[:, 2].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert observation[3].tolist() == first[3].tolist()
    assert env.step(np.zeros((4, 2), np.float32))[0][:, 2].tolist() == [2.0, 2.0, 2.0, 1.0]
    close_in_time(env)


def test_a_reset_ends_the_matter_for_environments_that_were_restarted_with_another(tmp_path: Path) -> None:
    spared = tmp_path / "spared"
    env = restarting(faulty(4, 2, "step", "kill", spared=str(spared)))
    env.reset(seed=0)
    env.step_async(np.zeros((1, 2), np.float32), index=[2])
    env.step_wait()
    spared.touch()
    env.reset(mask=np.array([False, False, False, True]))
    assert not env.step(np.zeros((4, 2), np.float32))[3].any()
    close_in_time(env)


@pytest.mark.parametrize("fault", ["raise", "kill", "hang"])
def test_a_reset_that_fails_is_asked_again_of_the_new_worker_with_the_same_seeds(fault: str, tmp_path: Path) -> None:
    spared = tmp_path / "spared"
    env = restarting(faulty(4, 2, "reset", fault, at=2, spared=str(spared)))
    env.reset(seed=0)
    env.timeout = HANG_TIMEOUT if fault == "hang" else PATIENCE
    observation, info = env.reset(seed=5, start=3, mask=np.array([True, False, True, False]))[1:]
    twin = SyncVecEnv(counters(4))
    assert observation[:, 2:].tolist() == twin.reset(seed=5, start=3)[1][[0, 2], 2:].tolist()
    assert info["restarted"].tolist() == [False, True]
    env.timeout = PATIENCE
    truncated = env.step(np.zeros((4, 2), np.float32))[3]
    assert truncated.tolist() == [False, False, False, True]  # restarted with 2, but not reset by the caller
    close_in_time(env)


def test_what_fails_again_after_a_restart_is_raised_and_the_next_command_tries_once_more(tmp_path: Path) -> None:
    spared = tmp_path / "spared"
    spared.touch()
    factories = faulty(3, VICTIM, "construction", "raise", spared=str(spared))
    env = restarting(factories)
    env.reset(seed=0)
    spared.unlink()
    kill(env, 1)
    for _ in range(2):
        with pytest.raises(KeyError, match="environment 1, construction") as caught:
            env.step(ACTIONS)
        assert isinstance(caught.value.__cause__, WorkerDied)
    spared.touch()
    assert env.step(ACTIONS)[4]["restarted"].tolist() == [False, True, True]
    close_in_time(env)


def test_a_reset_that_always_fails_is_raised_though_workers_are_restarted() -> None:
    env = restarting(counters(3))
    with pytest.raises(ValueError, match=r"(?s)environment [01], reset.*could not convert string to float: 'one'"):
        env.reset(start="one")
    assert env.step(ACTIONS)[4]["restarted"].any()  # none is left in the middle: the next command starts once more
    assert env.reset(start=1)[1][:, 2].tolist() == [1.0, 1.0, 1.0]
    close_in_time(env)


def test_a_restart_is_told_later_if_the_command_fails_for_another_reason(tmp_path: Path) -> None:
    spared = tmp_path / "spared"
    spared.touch()
    env = restarting(faulty(2, 1, "construction", "raise", spared=str(spared)))
    env.reset(seed=0)
    spared.unlink()
    kill(env, 0)
    kill(env, 1)
    with pytest.raises(KeyError, match="environment 1, construction"):
        env.step(ACTIONS[:2])
    spared.touch()
    _, _, _, truncated, info = env.step(ACTIONS[:2])
    assert truncated.tolist() == info["restarted"].tolist() == [True, True]
    assert env.step(ACTIONS[:2])[0][:, 2].tolist() == [1.0, 1.0]
    close_in_time(env)


def test_restart_repeats_observations_without_a_fixed_size() -> None:
    space = rich_space(NumpyComputeBackend)

    class MortalEnv(SamplingEnv):
        def step(self, action: Any) -> Any:
            if action[0] < 0:
                os._exit(1)
            return super().step(action)

    box = BoxSpace(NumpyComputeBackend, -1.0, 1.0, "float32", shape=(1,))
    env = restarting([lambda: MortalEnv(space, box)] * 4)
    first = rows(env.observation_space, env.reset(seed=0)[1])
    env.step_async(np.ones((1, 1), np.float32), index=[2])
    second = frozen(env.step_wait()[0]["points"])  # so that 2 and 3 of one worker have theirs of different answers
    observation, _, _, truncated, _ = env.step(np.array([[1], [1], [-1], [1]], np.float32))
    assert truncated.tolist() == [False, False, True, True]
    assert frozen(observation["points"])[2:3] == second
    assert rows(env.observation_space, observation)[3] == first[3]
    close_in_time(env)


def test_a_worker_that_can_still_hear_closes_its_environments_before_a_restart(tmp_path: Path) -> None:
    env = restarting([lambda i=i: RecordingEnv(i, tmp_path, "step", "raise" if i == 2 else "slow") for i in range(4)])
    env.reset(seed=0)
    (gone,) = env.get_attr("pid", [2])
    env.step(np.zeros((4, 2), np.float32))
    assert {path.name for path in tmp_path.iterdir()} == {f"{gone}-2", f"{gone}-3"}
    close_in_time(env)
    assert len(list(tmp_path.iterdir())) == 6


def test_commands_that_were_sent_to_a_worker_before_its_restart_have_no_result() -> None:
    env = restarting(counters(3))
    env.reset(seed=0)
    os.kill(env.processes[1].pid, signal.SIGSTOP)
    env.send_command(2, "render")
    kill(env, 1)
    env.step(ACTIONS)
    with pytest.raises(RuntimeError, match="no command was sent to environment 2"):
        env.get_command_result(2)
    close_in_time(env)


def test_results_that_wait_to_be_handed_out_survive_a_restart_of_their_worker() -> None:
    env = restarting(faulty(2, 0, "step", "kill"), num_workers=1)
    first, action = env.reset(seed=0)[1], np.ones((1, 2), np.float32)
    env.step_async(action, index=[1])
    env.step_async(action, index=[0])  # dies after the other one has answered
    observation, reward, _, truncated, info = env.step_wait()
    assert info["env_index"].tolist() == [1, 0]
    assert observation.tolist() == [[1.0, 1.0, 1.0, first[1, 3]], first[0].tolist()]
    assert reward.tolist() == [2.0, 0.0]
    assert truncated.tolist() == info["restarted"].tolist() == [False, True]
    last = observation[0].tolist()
    # both are reported now, 1 for that restart; and 0 dies once more
    observation, _, _, truncated, _ = env.step(np.ones((2, 2), np.float32))
    assert truncated.tolist() == [True, True]
    assert observation[1].tolist() == last
    env.step_async(action, index=[1])  # that it was restarted twice is told once
    assert not env.step_wait()[3].any()
    close_in_time(env)


class Slot(NamedTuple):
    """What the caller knows of an environment."""

    observation: list[float]
    steps: int = 0


def live_with_deaths(env: AsyncVecEnv, deaths: int, partly: bool) -> int:
    """Step while workers are killed, each at any moment after a step; returns how many slots were restarted."""
    random, stepped = Random(0), threading.Event()

    def kill_some() -> None:
        for _ in range(deaths):
            assert stepped.wait(PATIENCE)
            stepped.clear()
            time.sleep(random.random() / 50)
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(env.processes).pid, random.choice([signal.SIGKILL, signal.SIGTERM]))

    def begin() -> list[Slot]:
        while True:
            with contextlib.suppress(WorkerDied):
                return [Slot(row) for row in env.reset(seed=0)[1].tolist()]

    killer = threading.Thread(target=kill_some)
    killer.start()
    slots, restarts = begin(), 0
    while killer.is_alive():
        asked = random.sample(range(6), random.randint(1, 6)) if partly else list(range(6))
        try:
            env.step_async(np.zeros((len(asked), 2), np.float32), index=asked)
            observation, _, _, truncated, info = env.step_wait()
        except WorkerDied:  # also the new worker was killed
            slots = begin()
            continue
        restarted = info.get("restarted", np.zeros(len(asked), bool)).tolist()
        assert truncated.tolist() == restarted
        for index, row, again in zip(info["env_index"].tolist(), observation.tolist(), restarted, strict=True):
            known = slots[index]
            slots[index] = Slot(row, 0 if again else known.steps + 1)
            assert row == known.observation if again else row[::2] == [index, known.steps + 1]
        restarts += sum(restarted)
        stepped.set()
    killer.join()
    return restarts


@pytest.mark.parametrize(
    ("method", "deaths"),
    [("fork", 15), *(pytest.param(method, 2000, marks=pytest.mark.soak) for method in METHODS)],
)
@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_deaths_at_any_moment_never_confuse_the_slots(
    shared_memory: bool, partly: bool, method: str, deaths: int
) -> None:
    env = restarting(counters(6), method, num_workers=3, shared_memory=shared_memory)
    assert live_with_deaths(env, deaths, partly) > 0
    close_in_time(env)


def test_a_worker_may_be_restarted_again_and_again() -> None:
    env = restarting(counters(3))
    env.reset(seed=0)
    for _ in range(5):
        kill(env, 1)
        assert env.step(ACTIONS)[4]["restarted"].tolist() == [False, True, True]
        assert not env.step(ACTIONS)[3].any()
    assert env.step(ACTIONS)[0][0, 2] == 11
    close_in_time(env)
