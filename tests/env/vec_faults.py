"""The faults that workers are struck with, what is due for each, and the vector environments that meet them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from vec_envs import CounterEnv, counters
from vec_processes import Stopwatch, context, is_alive, wait_until

from unienv_interface import AsyncVecEnv, WorkerDied

HANG_TIMEOUT = 0.5
PATIENCE = 20.0  # for what is no fault: as long as a loaded machine may take
ACTIONS = np.full((3, 2), 0.5, np.float32)
VICTIM = 1  # the environment of three that is struck, where nothing else is said


class UnpicklableError(Exception):
    """Has arguments and attributes that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("unpicklable", threading.Lock())
        self.lock = threading.Lock()


class OwnConstructorError(ValueError):
    """Cannot be made the way exceptions are, and has a text of its own."""

    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


def strike(fault: str, release: str | None = None) -> None:
    """Do something bad. A `release` is a file that ends a hang when it appears."""
    if "VEC_ENVS_ANNOUNCE" in os.environ:
        print("struck", flush=True)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "segfault":
        faulthandler.disable()  # its report is not what is tested
        ctypes.string_at(0)
    elif fault == "exit":
        os._exit(7)
    elif fault == "raise":
        raise KeyError("boom")
    elif fault == "unpicklable":
        raise UnpicklableError
    elif fault == "own_constructor":
        raise OwnConstructorError(code=5)
    elif fault == "system_exit":
        sys.exit("leaving")
    elif fault == "memory":
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))
        np.ones(2**35, np.uint8)
    elif fault == "slow":
        time.sleep(0.3)  # many times what a step takes, but not for ever
    elif fault in ("hang", "stubborn_hang"):
        if fault == "stubborn_hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while release is None or not os.path.exists(release):
            time.sleep(0.01)
    else:
        raise AssertionError(fault)


class FaultyEnv(CounterEnv):
    """Strikes in one phase, at the `at`-th time it comes to it, unless the file `spared` is there."""

    def __init__(
        self,
        index: int,
        phase: str,
        fault: str,
        *,
        at: int = 1,
        release: str | None = None,
        spared: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(index, **kwargs)
        self.phase, self.fault, self.at, self.release, self.spared = phase, fault, at, release, spared
        self._meet("construction")

    def _meet(self, phase: str) -> None:
        if phase != self.phase:
            return
        self.at -= 1
        if self.at == 0 and not (self.spared and os.path.exists(self.spared)):
            strike(self.fault, self.release)

    def reset(self, **kwargs: Any) -> tuple[Any, ...]:  # type: ignore[override]
        self._meet("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._meet("step")
        return super().step(action)

    def render(self) -> Any:
        self._meet("render")
        return super().render()

    def close(self) -> None:
        self._meet("close")


class RecordingEnv(FaultyEnv):
    """Leaves a file when it is closed."""

    def __init__(self, index: int, folder: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(index, *args, **kwargs)
        self.folder = folder

    def close(self) -> None:
        super().close()
        (self.folder / f"{self.pid}-{self.index}").touch()


def faulty(count: int, victim: int, phase: str, fault: str, **kwargs: Any) -> list[Callable[[], CounterEnv]]:
    """Factories of which one makes an environment with a fault."""
    made = counters(count)
    made[victim] = lambda: FaultyEnv(victim, phase, fault, **kwargs)
    return made


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


# -- vector environments ---------------------------------------------------------------------------------


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


def restarting(factories: Any, method: str = "fork", **kwargs: Any) -> AsyncVecEnv:
    return make(factories, method, on_worker_error="restart", **kwargs)


COMMANDS: dict[str, Callable[[AsyncVecEnv], Any]] = {
    "reset": lambda env: env.reset(seed=0),
    "step": lambda env: env.step(ACTIONS),
    "render": lambda env: env.render(),
}


def kill(env: AsyncVecEnv, worker: int) -> None:
    os.kill(env.processes[worker].pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(env.processes[worker].pid))
