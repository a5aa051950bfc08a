"""What faults get: each is a real one, in a real process, and nothing may be left behind."""

from __future__ import annotations

import gc
import os
import pty
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vec_envs import (
    METHODS,
    CounterEnv,
    FaultyEnv,
    OwnConstructorError,
    SamplingEnv,
    Script,
    Stopwatch,
    UnpicklableError,
    context,
    counters,
    faulty,
    frozen,
    is_alive,
    leaving_nothing,
    named_memory,
    rich_space,
    rows,
    wait_until,
)

from unienv_interface import AsyncVecEnv, SyncVecEnv, WorkerDied
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base._worker_errors import ErrorReport
from unienv_interface.space.spaces import BoxSpace

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    # This process may have threads of other tests' libraries; the workers use none of them.
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

HANG_TIMEOUT = 0.5
PATIENCE = 20.0  # for what is no fault: as long as a loaded machine may take
ACTIONS = np.full((3, 2), 0.5, np.float32)
VICTIM = 1


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


def make(factories: Any, method: str = "fork", **kwargs: Any) -> AsyncVecEnv:
    kwargs = {"num_workers": 2, "timeout": PATIENCE, **kwargs}
    return AsyncVecEnv(factories, ctx=context(method), **kwargs)


def close_in_time(env: AsyncVecEnv) -> None:
    processes = env.processes
    with Stopwatch() as watch:
        env.close()
    assert watch.seconds < 2.0
    assert not any(process.is_alive() for process in processes)
    env.close()


# -- the matrix --------------------------------------------------------------------------------------------

# fault: what is raised for it, and what its text says
RAISED: dict[str, tuple[type[BaseException], str]] = {
    "raise": (KeyError, "KeyError: 'boom'"),
    "unpicklable": (UnpicklableError, "unpicklable"),
    "own_constructor": (OwnConstructorError, "code 5"),
    "system_exit": (SystemExit, "leaving"),
    "memory": (MemoryError, "Unable to allocate"),
    "kill": (WorkerDied, "exit code -9, SIGKILL (killed, or out of memory)"),
    "segfault": (WorkerDied, "exit code -11, SIGSEGV"),
    "exit": (WorkerDied, "exit code 7"),
    "hang": (TimeoutError, "it hangs, or `timeout` is too short"),
    "stubborn_hang": (TimeoutError, "it hangs, or `timeout` is too short"),
}
FAULTS = (*RAISED, "slow")
PHASES = ("construction", "reset", "step", "render", "close")


COMMANDS: dict[str, Callable[[AsyncVecEnv], Any]] = {
    "reset": lambda env: env.reset(seed=0),
    "step": lambda env: env.step(ACTIONS),
    "render": lambda env: env.render(),
}
QUICK = [
    *(("fork", phase, fault) for phase in PHASES for fault in FAULTS if not fault.endswith("hang")),
    *(("fork", phase, fault) for phase in ("construction", "step", "close") for fault in ("hang", "stubborn_hang")),
    # the other ways to start a worker: every fault and every phase, though not each with each
    *(("forkserver", PHASES[place % 5], fault) for place, fault in enumerate(FAULTS)),
    *(("spawn", PHASES[(place + 3) % 5], fault) for place, fault in enumerate(FAULTS)),
]


def check_fault(method: str, phase: str, fault: str) -> None:
    """One cell of the matrix: the right error in time, and a close in time."""
    factories = faulty(3, VICTIM, phase, fault)
    kind, text = RAISED.get(fault, (None, ""))
    if phase == "construction" and kind is not None:
        # a spawned worker may need seconds to begin with
        timeout = PATIENCE if kind is not TimeoutError else 8.0 if method == "spawn" else 1.0
        check_error(lambda: make(factories, method, timeout=timeout), phase, kind, text, timeout)
        return
    env = make(factories, method)
    for name, command in COMMANDS.items():
        if name != phase or kind is None:
            command(env)
            continue
        env.timeout = HANG_TIMEOUT
        check_error(lambda: COMMANDS[phase](env), phase, kind, text, HANG_TIMEOUT)
        env.timeout = PATIENCE
        if kind in (WorkerDied, TimeoutError):
            break
        assert env.error_queue.get_nowait().env_index == VICTIM
        env.reset(seed=0)  # it goes on
    if phase == "close" and kind not in (None, WorkerDied, TimeoutError):
        with pytest.warns(RuntimeWarning, match=f"(?s)environment 1, close: .*{kind.__name__}"):
            close_in_time(env)
    else:
        close_in_time(env)


def check_error(command: Callable[[], Any], phase: str, kind: type[BaseException], text: str, timeout: float) -> None:
    """The error of a command is of this kind, comes in time, and tells all there is to tell."""
    with Stopwatch() as watch, pytest.raises(kind) as caught:
        command()
    told = str(caught.value)
    assert text in told
    if kind is WorkerDied:
        assert watch.seconds < 1.0 or phase == "construction"  # which includes starting the workers
        assert "environments 1 to 2 (at environment 1, worker 1, pid " in told
        assert f"died at {phase}: " in told
    elif kind is TimeoutError:
        assert timeout <= watch.elapsed
        assert watch.seconds < timeout + 1.0
        assert told.startswith(f"{phase}: no answer from environments 1 to 2 (at environment 1, worker 1, pid ")
    else:
        assert told.startswith(f"environment 1, {phase}: in its worker process\n\nTraceback (most recent call last)")
        assert "in strike" in told


@pytest.mark.parametrize(("method", "phase", "fault"), QUICK)
def test_fault(method: str, phase: str, fault: str) -> None:
    check_fault(method, phase, fault)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("method", METHODS)
def test_fault_200_times(method: str, phase: str, fault: str) -> None:
    for _ in range(200):
        with leaving_nothing():
            check_fault(method, phase, fault)


# -- hangs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_late_answer_is_thrown_away_and_the_next_reset_works(shared_memory: bool, tmp_path: Path) -> None:
    release = tmp_path / "release"
    env = make(faulty(3, VICTIM, "step", "hang", at=2, release=str(release)), shared_memory=shared_memory)
    env.reset(seed=1)
    env.step(ACTIONS)
    env.timeout = HANG_TIMEOUT
    for command in ("step", "reset"):  # a reset does not end the hang, but may be asked for in vain
        with pytest.raises(TimeoutError, match="at environment 1"):
            COMMANDS[command](env)
    release.touch()
    env.timeout = PATIENCE
    twin = SyncVecEnv(counters(3))
    for seed in (2, 3):
        assert env.reset(seed=seed)[1][:, 2:].tolist() == twin.reset(seed=seed)[1][:, 2:].tolist()
        assert env.step(ACTIONS)[0][:, 2:].tolist() == twin.step(ACTIONS)[0][:, 2:].tolist()
    env.close()


def test_a_command_that_a_hung_worker_does_not_read_is_given_up_and_the_next_one_works(tmp_path: Path) -> None:
    release = tmp_path / "release"
    env = make(faulty(3, VICTIM, "step", "hang", release=str(release)))
    env.reset(seed=0)
    env.timeout = HANG_TIMEOUT
    with pytest.raises(TimeoutError):
        env.step(ACTIONS)
    for _ in range(2):  # too much for the pipe: a part of it is sent, and the rest must go before all else
        with pytest.raises(TimeoutError, match=r"reset: environments 1 to 2 \(.*\) takes no commands"):
            env.reset(seed=0, ballast=bytes(4_000_000))
    release.touch()
    env.timeout = PATIENCE
    assert env.reset(seed=0, start=7)[1][:, 2].tolist() == [7.0, 7.0, 7.0]
    assert env.step(ACTIONS)[0][:, 2].tolist() == [8.0, 8.0, 8.0]
    env.close()


def test_a_stopped_worker_is_a_hang_and_does_not_hold_up_close() -> None:
    env = make(counters(3))
    env.reset(seed=0)
    os.kill(env.processes[1].pid, signal.SIGSTOP)
    env.timeout = HANG_TIMEOUT
    with pytest.raises(TimeoutError, match="environments 1 to 2"):
        env.step(ACTIONS)
    close_in_time(env)


class EchoEnv(CounterEnv):
    def echo(self, value: bytes) -> bytes:
        return value


def test_both_sides_may_have_much_to_say_at_once() -> None:
    env = make([EchoEnv] * 4, num_workers=1)
    much = bytes(3_000_000)
    assert env.call("echo", much) == [much] * 4
    for _ in range(3):
        env.send_command(0, "echo", much)  # type: ignore[arg-type]
    assert [env.get_command_result(0) == much for _ in range(3)] == [True] * 3
    env.close()


# -- deaths ------------------------------------------------------------------------------------------------


def kill(env: AsyncVecEnv, worker: int) -> None:
    os.kill(env.processes[worker].pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(env.processes[worker].pid))


def test_a_worker_that_dies_between_two_commands_is_found_dead_by_every_command() -> None:
    env = make(counters(3))
    env.reset(seed=0)
    kill(env, 1)
    for command in (*COMMANDS.values(), lambda env: env.get_attr("pid"), lambda env: env.send_command(2, "render")):
        with Stopwatch() as watch, pytest.raises(WorkerDied, match=r"environments 1 to 2 .*exit code -9, SIGKILL"):
            command(env)
        assert watch.seconds < 1.0
    assert env.call("scaled", 2.0, index=[0]) == [0.0]  # the other one is well
    close_in_time(env)


def test_a_worker_that_dies_between_asking_and_waiting() -> None:
    env = make(counters(3))
    env.reset(seed=0)
    os.kill(env.processes[1].pid, signal.SIGSTOP)  # so that it cannot answer first
    env.step_async(ACTIONS)
    kill(env, 1)
    with pytest.raises(WorkerDied, match="died at step"):
        env.step_wait()
    close_in_time(env)


def test_an_answer_that_came_before_the_death_counts() -> None:
    env = make(counters(3))
    env.reset(seed=0)
    env.step_async(ACTIONS)
    assert wait_until(lambda: env.command_pipes[1].poll())
    kill(env, 1)
    assert env.step_wait()[0][:, 2].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(WorkerDied):
        env.step(ACTIONS)
    close_in_time(env)


class ParentalEnv(CounterEnv):
    """Has a process of its own that holds all that was open when it was made."""

    def __init__(self, index: int, child: str) -> None:
        super().__init__(index)
        pid = os.fork()
        if pid == 0:
            signal.pause()
        Path(child).write_text(str(pid))


@pytest.mark.parametrize("ballast", [0, 4_000_000])
def test_a_death_is_seen_though_another_process_holds_the_pipe(ballast: int, tmp_path: Path) -> None:
    child = tmp_path / "child"
    env = make([lambda: ParentalEnv(0, str(child)), lambda: CounterEnv(1)])
    try:
        env.reset(seed=0)
        kill(env, 0)
        told = r"environment 0 \(worker 0, pid .*died at reset: exit code -9"
        with Stopwatch() as watch, pytest.raises(WorkerDied, match=told):
            env.reset(seed=0, ballast=bytes(ballast))
        assert watch.seconds < 1.0
        close_in_time(env)
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


class SeveringEnv(CounterEnv):
    def step(self, action: Any) -> Any:
        os.closerange(3, 1000)
        return super().step(action)


def test_a_worker_that_closes_its_connection_is_as_good_as_dead() -> None:
    env = make([SeveringEnv])
    env.reset(seed=0)
    with pytest.raises(WorkerDied, match=r"died at step: (exit code 1|it has closed its connection but still runs)"):
        env.step(ACTIONS[:1])
    close_in_time(env)


# -- errors ------------------------------------------------------------------------------------------------


class _OddNewError(RuntimeError):
    def __new__(cls, *, text: str) -> Any:
        return super().__new__(cls)

    def __init__(self, *, text: str) -> None:
        super().__init__(text, len(text))


class _HiddenError(Exception):
    def __reduce__(self) -> Any:
        return _missing, ()


def _missing() -> None:
    raise ImportError("not in this process")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom", 3),
        KeyError("boom"),
        FileNotFoundError(2, "boom", "file"),
        OSError("boom"),
        StopIteration("boom"),
        ZeroDivisionError(),
        UnicodeDecodeError("utf8", b"boom", 0, 1, "reason"),
        OwnConstructorError(code=5),
        UnpicklableError(),
        _OddNewError(text="boom"),
        _HiddenError("boom"),
        SystemExit(3),
        KeyboardInterrupt("boom"),
        type("LocalError", (LookupError,), {})("boom"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_type_and_gets_our_text(error: BaseException) -> None:
    kind = type(error)
    error.extra = "more"  # type: ignore[attr-defined]
    rebuilt = ErrorReport.of(error, 4, "step").rebuild()
    assert isinstance(rebuilt, kind)
    assert type(rebuilt).__name__ == kind.__name__
    assert str(rebuilt).startswith("environment 4, step: in its worker process\n\n")
    assert kind.__name__ in str(rebuilt)
    if kind is not UnpicklableError:
        assert rebuilt.extra == "more"  # type: ignore[attr-defined]
    if isinstance(error, OSError):
        assert rebuilt.errno == error.errno  # type: ignore[attr-defined]


def test_an_error_whose_type_cannot_be_had_is_a_runtime_error() -> None:
    report = ErrorReport.of(ValueError("boom"), 0, "step")._replace(error=b"not a pickle")
    rebuilt = report.rebuild()
    assert type(rebuilt) is RuntimeError
    assert "ValueError: boom" in str(rebuilt)


def test_an_error_of_a_type_that_only_the_caller_knows_can_be_caught_by_it() -> None:
    class OursError(Exception):
        pass

    def fail() -> Any:
        raise OursError("boom")

    for method in METHODS:
        with pytest.raises(OursError, match="environment 0, construction"):
            make([fail], method)


class SecretiveEnv(CounterEnv):
    def step(self, action: Any) -> Any:
        observation, *signals, _ = super().step(action)
        return observation, *signals, {"lock": threading.Lock() if self.index == 1 else 0}


def test_an_info_that_cannot_be_sent_is_an_error_of_its_environment() -> None:
    env = make([lambda index=index: SecretiveEnv(index) for index in range(3)], num_workers=1)
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"(?s)environment 1, step.*cannot pickle '_thread.lock' object"):
        env.step(ACTIONS)
    env.reset(seed=0)
    env.close()


def test_the_first_thing_that_goes_wrong_is_raised_without_waiting_for_the_rest(tmp_path: Path) -> None:
    factories = faulty(2, 0, "construction", "hang")
    factories[1] = faulty(2, 1, "construction", "raise")[1]
    with Stopwatch() as watch, pytest.raises(KeyError, match="environment 1, construction"):
        make(factories)
    assert watch.seconds < PATIENCE / 2


# -- shared memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_shared_memory_has_no_name_that_could_be_left_behind(method: str) -> None:
    before = named_memory(os.getpid())
    with make(counters(3), method) as env:
        env.reset(seed=0)
        for worker in env.processes:
            maps = Path(f"/proc/{worker.pid}/maps").read_text()
            assert "/memfd:unienv (deleted)" in maps
            assert named_memory(worker.pid) == (before if method == "fork" else [])
        assert named_memory(os.getpid()) == before


# -- restart -----------------------------------------------------------------------------------------------


def restarting(factories: Any, method: str = "fork", **kwargs: Any) -> AsyncVecEnv:
    return make(factories, method, on_worker_error="restart", **kwargs)


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


class RecordingEnv(FaultyEnv):
    """Leaves a file when it is closed."""

    def __init__(self, index: int, folder: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(index, *args, **kwargs)
        self.folder = folder

    def close(self) -> None:
        super().close()
        (self.folder / f"{self.pid}-{self.index}").touch()


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


def test_a_worker_may_be_restarted_again_and_again() -> None:
    env = restarting(counters(3))
    env.reset(seed=0)
    for _ in range(5):
        kill(env, 1)
        assert env.step(ACTIONS)[4]["restarted"].tolist() == [False, True, True]
        assert not env.step(ACTIONS)[3].any()
    assert env.step(ACTIONS)[0][0, 2] == 11
    close_in_time(env)


# -- close and Ctrl-C --------------------------------------------------------------------------------------


def test_close_lets_the_environments_close_themselves_whatever_is_under_way(tmp_path: Path) -> None:
    env = make([lambda i=i: RecordingEnv(i, tmp_path, "never", "kill") for i in range(3)])
    env.reset(seed=0)
    env.step_async(ACTIONS)
    close_in_time(env)
    assert len(list(tmp_path.iterdir())) == 3
    for command in (*COMMANDS.values(), lambda env: env.send_command(0, "render"), lambda env: env.get_attr("pid")):
        with pytest.raises(RuntimeError, match="after close: the environments are gone"):
            command(env)
    with pytest.raises(RuntimeError, match="step_wait without step_async"):
        env.step_wait()


def test_close_takes_in_an_answer_that_nobody_wanted(tmp_path: Path) -> None:
    class WordyEnv(RecordingEnv):
        def words(self) -> bytes:
            return bytes(8_000_000)

    env = make([lambda: WordyEnv(0, tmp_path, "never", "kill")])
    env.send_command(0, "words")  # type: ignore[arg-type]
    close_in_time(env)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("fault", ["slow", "hang"])
def test_an_environment_that_is_forgotten_is_closed(fault: str) -> None:
    env = make(faulty(3, VICTIM, "step", fault))
    env.reset(seed=0)
    env.step_async(ACTIONS)
    processes = env.processes
    with Stopwatch() as watch:
        del env
        gc.collect()
    assert watch.seconds < 2.0
    assert not any(process.is_alive() for process in processes)


def interrupt_when(there: Callable[[], bool]) -> threading.Thread:
    """Press Ctrl-C once something is the case."""

    def press() -> None:
        assert wait_until(there)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


class AnnouncingEnv(CounterEnv):
    """Says that it is in a step by a file, and stays there until another one appears."""

    def __init__(self, index: int, folder: Path) -> None:
        super().__init__(index)
        self.folder = folder

    def step(self, action: Any) -> Any:
        (self.folder / f"in step {self.index}").touch()
        if not wait_until(lambda: (self.folder / "go").exists()):
            raise AssertionError("nobody let it go")
        return super().step(action)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_ctrl_c_in_a_step_leaves_a_vector_environment_that_can_be_reset(shared_memory: bool, tmp_path: Path) -> None:
    env = make([lambda i=i: AnnouncingEnv(i, tmp_path) for i in range(3)], shared_memory=shared_memory)
    env.reset(seed=0)
    thread = interrupt_when(lambda: (tmp_path / "in step 0").exists() and (tmp_path / "in step 1").exists())
    with pytest.raises(KeyboardInterrupt):
        env.step(ACTIONS)
    thread.join()
    (tmp_path / "go").touch()
    assert env.reset(seed=1, start=5)[1][:, 2].tolist() == [5.0, 5.0, 5.0]
    assert env.step(ACTIONS)[0][:, 2].tolist() == [6.0, 6.0, 6.0]
    close_in_time(env)


def test_ctrl_c_in_close_does_not_leave_anything_either() -> None:
    env = make(faulty(3, VICTIM, "step", "stubborn_hang"))
    env.reset(seed=0)
    env.step_async(ACTIONS)
    thread = interrupt_when(lambda: env._closed)
    with pytest.raises(KeyboardInterrupt):
        env.close()
    thread.join()
    env.close()


# -- the end of the program --------------------------------------------------------------------------------

STEP = "env.step(np.zeros((3, 2), np.float32))"
EXITS = {  # how a program ends, and what its environment does meanwhile
    "forgotten": ("pass", "slow"),
    "closed": ("env.close()", "slow"),
    "under way": ("env.step_async(np.zeros((3, 2), np.float32))", "slow"),
    "hung": ("env.step_async(np.zeros((3, 2), np.float32))", "stubborn_hang"),
}


def program(method: str, body: str, fault: str = "slow", **kwargs: Any) -> str:
    options = "".join(f", {name}={value!r}" for name, value in kwargs.items())
    return f"""
def make():
    global env
    env = AsyncVecEnv(faulty(3, 1, "step", {fault!r}), ctx=context({method!r}), num_workers=2{options})
    env.reset(seed=0)

def main():
    global env
{textwrap.indent(textwrap.dedent(body).strip(), "    ")}

if __name__ == "__main__":
    make()
    print("ready", flush=True)
    main()
"""


def all_are_gone_in_time(script: Script) -> None:
    with Stopwatch() as watch:
        assert wait_until(script.is_alone)
    assert watch.seconds < 2.0


@pytest.mark.parametrize(
    ("how", "method"),
    [*((how, "fork") for how in EXITS), ("hung", "forkserver"), ("hung", "spawn"), ("forgotten", "spawn")],
)
def test_nothing_is_left_at_the_end_of_the_interpreter(how: str, method: str, tmp_path: Path) -> None:
    with Script(tmp_path / "script.py", program(method, *EXITS[how])) as script:
        script.says("ready")
        with Stopwatch() as watch:
            assert script.ends(PATIENCE) == 0
        assert watch.seconds < 3.0  # Python itself takes a part of that
        all_are_gone_in_time(script)
        assert script.stderr == ""


def test_the_interpreter_ends_our_workers_before_it_waits_for_its_children(tmp_path: Path) -> None:
    # weakref's finalizers come late where there was one before multiprocessing was imported
    early = "import weakref\nclass Early: pass\nearly = Early()\nweakref.finalize(early, int)\n"
    code = program("fork", *EXITS["hung"], daemon=False)
    with Script(tmp_path / "script.py", code, before=early) as script:
        script.says("ready")
        assert script.ends(PATIENCE) == 0
        assert script.is_alone()


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_is_one_traceback_and_no_orphan(method: str, tmp_path: Path) -> None:
    with Script(tmp_path / "script.py", program(method, STEP, "hang")) as script:
        script.says("struck")
        os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does
        with Stopwatch() as watch:
            assert script.ends(PATIENCE) == -signal.SIGINT
        assert watch.seconds < 3.0
        all_are_gone_in_time(script)
        assert script.stderr.count("Traceback (most recent call last)") == 1
        assert script.stderr.strip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(("is_hung", "method"), [*((True, method) for method in METHODS), (False, "fork")])
def test_workers_end_with_a_parent_that_is_killed(is_hung: bool, method: str, tmp_path: Path) -> None:
    body, fault = (STEP, "stubborn_hang") if is_hung else ("signal.pause()", "slow")
    with Script(tmp_path / "script.py", program(method, body, fault)) as script:
        script.says("struck" if is_hung else "ready")
        script.process.kill()
        assert script.ends(PATIENCE) == -signal.SIGKILL
        all_are_gone_in_time(script)
        assert "resource_tracker" not in script.stderr


def test_workers_end_with_their_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    body = f"import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{STEP}"
    with Script(tmp_path / "script.py", program("fork", body, "hang"), stdin=theirs) as script:
        os.close(theirs)
        script.says("struck")
        os.close(ours)
        assert script.ends(PATIENCE) == -signal.SIGHUP
        all_are_gone_in_time(script)


def test_workers_outlive_the_thread_that_made_them_but_not_the_process(tmp_path: Path) -> None:
    body = f"""
        env.close()
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        for _ in range(3):
            {STEP}
        print("stepped", flush=True)
        signal.pause()
        """
    with Script(tmp_path / "script.py", program("fork", body)) as script:
        script.says("stepped")
        script.process.kill()
        all_are_gone_in_time(script)


def test_parents_with_habits_of_their_own(tmp_path: Path) -> None:
    body = f"""
        # a copy of the parent may come and go
        for leave in (env.close, lambda: globals().pop("env"), lambda: None):
            pid = os.fork()
            if pid == 0:
                leave()
                gc.collect()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            {STEP}
        env.close()

        # what the parent does at a SIGTERM is not for its workers to do
        signal.signal(signal.SIGTERM, lambda *args: print("handled", flush=True))
        env = AsyncVecEnv(faulty(3, 1, "step", "hang"), ctx=context("fork"), timeout=0.2)
        try:
            {STEP}
        except TimeoutError:
            with Stopwatch() as watch:
                env.close()
            print("closed", watch.seconds, flush=True)

        # children that nobody can wait for
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        make()
        os.kill(env.processes[0].pid, signal.SIGKILL)
        with Stopwatch() as watch:
            try:
                {STEP}
            except RuntimeError as error:
                told = type(error).__name__
        print("told", watch.seconds, told, flush=True)
        with Stopwatch() as watch:
            env.close()
        print("closed", watch.seconds, flush=True)

        # the start method is still the caller's to choose
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        AsyncVecEnv(counters(1)).close()
        multiprocessing.set_start_method("spawn")
        print("chosen", flush=True)
        """
    with Script(tmp_path / "script.py", program("fork", body)) as script:
        assert float(script.says("closed")[0]) < 1.3  # or it has needed a SIGKILL
        seconds, kind = script.says("told")
        assert (float(seconds) < 1.0, kind) == (True, "WorkerDied")
        assert float(script.says("closed")[0]) < 2.0
        script.says("chosen")
        assert script.ends(PATIENCE) == 0
        assert script.is_alone()
        assert script.stderr == ""
