"""How vector environments end: by close, by Ctrl-C, with the program, with their parent."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pty
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from interrupter import Interrupter, press
from vec_envs import (
    CounterEnv,
    counters,
)
from vec_faults import (
    ACTIONS,
    COMMANDS,
    PATIENCE,
    VICTIM,
    RecordingEnv,
    close_in_time,
    faulty,
    make,
)
from vec_processes import (
    METHODS,
    Script,
    Stopwatch,
    forks_with_threads,
    leaving_nothing,
    only_on_linux,
    wait_until,
)

import unienv_interface
from unienv_interface import SyncVecEnv

pytestmark = [only_on_linux, *forks_with_threads]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


# -- close and Ctrl-C ------------------------------------------------------------------------------------


def test_close_lets_the_environments_close_themselves_whatever_is_under_way(tmp_path: Path) -> None:
    env = make([lambda i=i: RecordingEnv(i, tmp_path, "never", "kill") for i in range(3)])
    env.reset(seed=0)
    env.step_async(ACTIONS)
    close_in_time(env)
    assert len(list(tmp_path.iterdir())) == 3
    for command in (*COMMANDS.values(), lambda env: env.send_command(0, "render"), lambda env: env.get_attr("pid")):
        with pytest.raises(RuntimeError, match="after close: the environments are closed"):
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


class Keyboard:
    """Presses Ctrl-C once, at any moment within some milliseconds."""

    def __init__(self) -> None:
        self.is_armed = False
        self._random = Random(0)
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *args: object) -> None:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt

    def press_soon(self) -> None:
        self.timer = threading.Timer(self._random.random() / 200, lambda: os.kill(os.getpid(), signal.SIGINT))
        self.is_armed = True
        self.timer.start()

    def put_away(self) -> None:
        signal.signal(signal.SIGINT, self._before)


@pytest.mark.parametrize("presses", [40, pytest.param(5000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_ctrl_c_at_any_moment_never_confuses_what_comes_after_it(shared_memory: bool, presses: int) -> None:
    env, keyboard = make(counters(3), shared_memory=shared_memory), Keyboard()
    try:
        for start in range(presses):
            with contextlib.suppress(KeyboardInterrupt):
                keyboard.press_soon()
                while True:
                    env.reset(seed=0)
                    env.step(ACTIONS)
                    env.get_attr("pid")
            keyboard.timer.join()
            observation = env.reset(seed=1, start=start)[1]
            assert observation[:, ::2].tolist() == [[index, start] for index in range(3)]
            assert env.step(ACTIONS)[0][:, ::2].tolist() == [[index, start + 1] for index in range(3)]
    finally:
        keyboard.put_away()
    close_in_time(env)


class TellingEnv(CounterEnv):
    """Its infos are numbers, which go into rows."""

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        return *result, {"steps": self.steps}


def _step_some(env: Any) -> None:
    env.step_async(ACTIONS[:2], index=[0, 2])
    env.step_wait(min_envs=1)


KINDS: dict[str, Callable[[list[Callable[[], CounterEnv]]], Any]] = {
    "in this process": SyncVecEnv,
    "workers": make,
    "workers through pipes": functools.partial(make, shared_memory=False),
}
COMMANDS_TO_INTERRUPT: dict[str, Callable[[Any], Any]] = {
    "step": lambda env: env.step(ACTIONS),
    "reset": lambda env: env.reset(seed=0),
    "reset of some": lambda env: env.reset(mask=[True, False, True], start=3),
    "steps of some": _step_some,
    "attributes": lambda env: env.get_attr("pid", [1]),
}


@pytest.mark.parametrize("most", [25, pytest.param(10**9, marks=pytest.mark.soak)])
@pytest.mark.parametrize("infos", [TellingEnv, CounterEnv])
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_every_point_of_a_command(kind: str, infos: type[CounterEnv], most: int) -> None:
    """What comes next gives its own results; at most the step that was interrupted was made before it."""
    env: Any = KINDS[kind]([lambda i=i: infos(i) for i in range(3)])
    env.reset(seed=0)
    for name, command in COMMANDS_TO_INTERRUPT.items():
        with Interrupter((unienv_interface,), 0, press) as counter:
            command(env)
        if env._stepping is not None:
            env.step_wait()
        step = max(1, counter.count // most)
        for at in range(1 + len(kind) % step, counter.count + 1, step):  # how often it waits differs from time to time
            env.reset(seed=1, start=at)
            with contextlib.suppress(KeyboardInterrupt), Interrupter((unienv_interface,), at, press):
                command(env)
            if env._stepping is not None:  # it was not interrupted, and others are still under way
                env.step_wait()
            actions = np.arange(6, dtype=np.float32).reshape(3, 2) / 16 + at % 2 / 4
            found = [env.step(actions)[:2] for _ in range(2)]
            what = f"{name}, point {at}: {found}"
            for observation, reward in found:
                assert reward.tolist() == actions.sum(axis=1).tolist(), what
                assert observation[:, 0].tolist() == [0, 1, 2], what
            made = found[0][0][:, 2]
            assert set(made.tolist()) <= {at + 1, at + 2, 1, 4}, what
            assert found[1][0][:, 2].tolist() == (made + 1).tolist(), what
            assert env.reset(seed=1, start=at)[1][:, ::2].tolist() == [[index, at] for index in range(3)]
    if kind == "in this process":
        env.close()
    else:
        close_in_time(env)


def test_a_step_that_is_refused_leaves_the_one_under_way_alone() -> None:
    env = SyncVecEnv(counters(3))
    env.reset(seed=0)
    env.step_async(ACTIONS)
    for refused in (lambda: env.step(ACTIONS), env.reset):
        with pytest.raises(RuntimeError, match="while a step is under way"):
            refused()
    assert env.step_wait()[0][:, 2].tolist() == [1.0, 1.0, 1.0]
    env.close()


def test_ctrl_c_in_close_does_not_leave_anything_either() -> None:
    env = make(faulty(3, VICTIM, "step", "stubborn_hang"))
    env.reset(seed=0)
    env.step_async(ACTIONS)
    thread = interrupt_when(lambda: env._closed)
    with pytest.raises(KeyboardInterrupt):
        env.close()
    thread.join()
    env.close()


# -- the end of the program ------------------------------------------------------------------------------


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
    [*((how, "fork") for how in EXITS), ("hung", "forkserver"), ("hung", "spawn")],
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
    # whoever runs the tests under nohup has SIGHUP ignored in all that they start
    ends_with_it = "signal.signal(signal.SIGHUP, signal.SIG_DFL)\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    body = f"import fcntl, termios\n{ends_with_it}\n{STEP}"
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
