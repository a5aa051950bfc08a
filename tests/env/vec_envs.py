"""The environments that the tests of vector environments run on, and what these tests need of the system."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

import unienv_interface
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import (
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    Space,
    TextSpace,
    TupleSpace,
    UnionSpace,
)

METHODS = ("fork", "forkserver", "spawn")
SOURCES = Path(unienv_interface.__file__).parents[1]

# A fork server that has the library loaded starts a worker in a few milliseconds. It must not be running yet.
multiprocessing.get_context("forkserver").set_forkserver_preload(["unienv_interface.env_base.vec_env"])


def context(method: str) -> Any:
    return multiprocessing.get_context(method)


# -- environments ------------------------------------------------------------------------------------------


class CounterEnv(Env):
    """Counts its steps. The observation is [index, episodes, steps, a number drawn at the reset].

    The reward is the sum of the action, and the info tells the seed of the reset and, now and then, more.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    render_fps = 20

    def __init__(
        self, index: int = 0, *, backend: ComputeBackend = NumpyComputeBackend, bound: float = 1.0, length: int = 10**9
    ) -> None:
        self.backend, self.index, self.length = backend, index, length
        self.action_space = BoxSpace(backend, -bound, bound, "float32", shape=(2,))
        self.observation_space = BoxSpace(backend, -np.inf, np.inf, "float32", shape=(4,))
        self.pid = os.getpid()
        self.episodes = self.steps = 0
        self.drawn = 0.0
        self.seeds: list[int | None] = []

    def observation(self) -> Any:
        values = np.array([self.index, self.episodes, self.steps, self.drawn], np.float32)
        return self.backend.from_numpy(values, copy=True)

    def reset(self, *, mask: Any = None, seed: int | None = None, start: int = 0, **kwargs: Any) -> tuple[Any, ...]:
        self.seeds.append(seed)
        self.episodes += 1
        self.steps = start
        self.drawn = np.random.default_rng(seed).random()
        return None, self.observation(), {"seed": seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info = {"odd": {"index": self.index}} if self.index % 2 else {}
        return self.observation(), float(action.sum()), self.steps >= self.length, False, info

    def render(self) -> Any:
        return np.full((2, 2, 3), self.index, np.uint8) if self.index != 1 else None

    def scaled(self, factor: float, *, offset: float = 0.0) -> float:
        return self.index * factor + offset


def counters(count: int, **kwargs: Any) -> list[Callable[[], CounterEnv]]:
    return [lambda index=index: CounterEnv(index, **kwargs) for index in range(count)]


class SamplingEnv(Env):
    """Observations and contexts are samples of their spaces, drawn from the seed of the reset.

    The reward is a number that hangs on the action, so that an action that is lost on the way is seen.
    """

    def __init__(self, observation_space: Space, action_space: Space, context_space: Space | None = None) -> None:
        self.backend = observation_space.backend
        self.observation_space, self.action_space, self.context_space = observation_space, action_space, context_space
        self.steps = 0

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        self.rng = self.backend.random.random_number_generator(seed)
        self.steps = 0
        return self.sample_context(), self.sample_observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.sample_observation(), weight(action), self.steps % 3 == 0, self.steps % 4 == 0, {}

    def render(self) -> None:
        return None


def weight(value: Any) -> float:
    """A number that hangs on all parts of a value."""
    if isinstance(value, dict):
        return sum((place + 1) * weight(value[key]) for place, key in enumerate(sorted(value)))
    if isinstance(value, (tuple, list)):
        return sum((place + 1) * weight(part) for place, part in enumerate(value))
    if isinstance(value, str):
        return float(sum(map(ord, value)))
    return float(np.asarray(value, dtype=np.float64).sum())


def rich_space(backend: ComputeBackend) -> DictSpace:
    """A leaf of every kind: in the row, in a block of its own (an image of more than a page), in the heap."""
    box = BoxSpace(backend, -1.0, 1.0, "float32", shape=(3,))
    return DictSpace(
        backend,
        {
            "pose": box,
            "camera": {"rgb": BoxSpace(backend, 0, 255, "uint8", shape=(40, 40, 3))},
            "task": TextSpace(backend, 8),
            "points": DynamicBoxSpace(backend, -1.0, 1.0, (0, 2), (5, 2), "float32"),
            "scene": GraphSpace(backend, box, None, min_nodes=1, max_nodes=4, min_edges=0, max_edges=5),
            "either": UnionSpace(backend, [box, TextSpace(backend, 3)]),
            "pair": TupleSpace(backend, [BinarySpace(backend, ()), box]),
        },
    )


# -- values ------------------------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """A value as plain Python data that nobody can change, to be compared."""
    if isinstance(value, dict):
        return {key: frozen(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [frozen(part) for part in value]
    if hasattr(value, "__dataclass_fields__"):  # a graph
        return {name: frozen(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [frozen(part) for part in value.tolist()]
    return value.tolist() if hasattr(value, "tolist") else value


def rows(space: Space, batch: Any) -> list[Any]:
    """The single values of a batch as plain Python data."""
    return [frozen(value) for value in batch_utils.iterate(space, batch)]


# -- faults ------------------------------------------------------------------------------------------------


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


def faulty(count: int, victim: int, phase: str, fault: str, **kwargs: Any) -> list[Callable[[], CounterEnv]]:
    """Factories of which one makes an environment with a fault."""
    made = counters(count)
    made[victim] = lambda: FaultyEnv(victim, phase, fault, **kwargs)
    return made


# -- processes ---------------------------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """The processes below one, zombies included, without the helpers of multiprocessing."""
    parents = {int(entry): _stat(int(entry))[1] for entry in os.listdir("/proc") if entry.isdigit()}
    found, frontier = set(), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return {pid for pid in found if b"multiprocessing.resource_tracker" not in _read(f"/proc/{pid}/cmdline")}


def _stat(pid: int) -> tuple[str, int]:
    """The state of a process, "gone" if there is none, and its parent."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if fields else ("gone", 0)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone meanwhile
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return _stat(pid)[0] not in ("gone", "Z")


def named_memory(pid: int) -> list[str]:
    """The files in /dev/shm that a process has mapped."""
    return [line for line in _read(f"/proc/{pid}/maps").decode().splitlines() if "/dev/shm" in line]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for something that another process does; False if it has not happened by then."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Stopwatch:
    """The seconds that something takes, less those in which the machine did not let this process run at all."""

    def __enter__(self) -> Stopwatch:
        self._stalled = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch_the_machine, daemon=True)
        self._thread.start()
        self._start = time.monotonic()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.elapsed = time.monotonic() - self._start
        self._over.set()
        self._thread.join()
        self.seconds = self.elapsed - self._stalled

    def _watch_the_machine(self) -> None:
        nap, before = 0.01, time.monotonic()
        while not self._over.wait(nap):
            now = time.monotonic()
            late = now - before - nap
            if late > 2 * nap:
                self._stalled += late
            before = now


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Check that no process and no open file is left, in the moment the block ends.

    What others have in /dev/shm comes and goes, so that nothing of ours is there is a test of its own.
    """
    forkserver.ensure_running()
    resource_tracker.ensure_running()
    before = _traces()
    yield
    if _traces() - before:
        gc.collect()  # what hangs on a traceback, say; done only then, since it is slow in a large process
    left = _traces() - before
    assert not left, left


def _traces() -> Counter[str]:
    """What a program may leave behind, with what it is and not the number of its file, which may be used again."""
    traces = [f"process {pid}" for pid in descendants(os.getpid())]
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            traces.append(f"file {os.readlink(f'/proc/self/fd/{fd}').partition(':[')[0]}")
    return Counter(traces)


class Script:
    """A Python program in a process and a session of its own, which says how far it is by lines on its output."""

    def __init__(self, path: Path, code: str, before: str = "", **popen: Any) -> None:
        path.write_text(f"{before}from vec_envs import *\nfrom unienv_interface import AsyncVecEnv\n{code}")
        places = [str(Path(__file__).parent), str(SOURCES), os.environ.get("PYTHONPATH", "")]
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "VEC_ENVS_ANNOUNCE": "1"}
        self.errors = path.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", str(path)],
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=settings,
                text=True,
                **popen,
            )
        self.family: set[int] = set()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for pid in (self.process.pid, *self.family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def says(self, word: str) -> Sequence[str]:
        """Wait for a line that begins with this word; returns the others of that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.split()[:1] == [word]:
                self.family |= descendants(self.process.pid)
                return line.split()[1:]
        raise AssertionError(f"the script ended before it said {word}: {self.stderr}")

    def ends(self, seconds: float) -> int:
        return self.process.wait(seconds)

    @property
    def stderr(self) -> str:
        return self.errors.read_text()

    def is_alone(self) -> bool:
        """Whether no process that the script has started is left."""
        return not any(map(is_alive, self.family | descendants(self.process.pid)))
