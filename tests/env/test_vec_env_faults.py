"""What faults get: each is a real one, in a real process, and nothing may be left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vec_envs import (
    CounterEnv,
    counters,
)
from vec_faults import (
    ACTIONS,
    COMMANDS,
    FAULTS,
    HANG_TIMEOUT,
    PATIENCE,
    PHASES,
    RAISED,
    VICTIM,
    OwnConstructorError,
    UnpicklableError,
    close_in_time,
    faulty,
    kill,
    make,
)
from vec_processes import (
    METHODS,
    Stopwatch,
    forks_with_threads,
    leaving_nothing,
    named_memory,
    only_on_linux,
    wait_until,
)

from unienv_interface import SyncVecEnv, WorkerDied
from unienv_interface.utils.worker_processes import ErrorReport

pytestmark = [only_on_linux, *forks_with_threads]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


# -- the matrix ------------------------------------------------------------------------------------------


QUICK = [
    *(("fork", phase, fault) for phase in PHASES for fault in FAULTS if not fault.endswith("hang")),
    *(("fork", phase, fault) for phase in ("construction", "step", "close") for fault in ("hang", "stubborn_hang")),
    # the other ways to start a worker: not each fault with each phase
    *(("forkserver", PHASES[place % 5], fault) for place, fault in enumerate(FAULTS)),
    ("spawn", "construction", "own_constructor"),
    ("spawn", "reset", "exit"),
    ("spawn", "step", "kill"),
    ("spawn", "render", "hang"),
    ("spawn", "close", "unpicklable"),
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


# -- hangs -----------------------------------------------------------------------------------------------


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


# -- deaths ----------------------------------------------------------------------------------------------


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

    def steps() -> None:
        env.step(ACTIONS[:1])  # whose result may come through shared memory, while it is awake
        env.processes[0].join(10)  # then it ends when it next listens to its connection
        env.step(ACTIONS[:1])

    with pytest.raises(WorkerDied, match=r"died at step: (exit code [01]|it has closed its connection but still runs)"):
        steps()
    close_in_time(env)


# -- errors ----------------------------------------------------------------------------------------------


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


# -- shared memory ---------------------------------------------------------------------------------------


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
