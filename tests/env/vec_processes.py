"""What the tests of vector environments need of the system: its processes, its clock, and programs of their own."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
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

import pytest

import unienv_interface

METHODS = ("fork", "forkserver", "spawn")
SOURCES = Path(unienv_interface.__file__).parents[1]

# A fork server that has the library loaded starts a worker in a few milliseconds. It must not be running yet.
multiprocessing.get_context("forkserver").set_forkserver_preload(["unienv_interface.env_base.vec_env"])


def context(method: str) -> Any:
    return multiprocessing.get_context(method)


# This process may have threads of other tests' libraries; the workers use none of them.
forks_with_threads = [
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
only_on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


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
    """Check that no process and no open file is left, in the moment the block ends; on Linux, where one can see it.

    What others have in /dev/shm comes and goes, so that nothing of ours is there is a test of its own.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
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


_PRELUDE = """
from vec_envs import *
from vec_faults import *
from vec_processes import *
from unienv_interface import AsyncVecEnv
"""


class Script:
    """A Python program in a process and a session of its own, which says how far it is by lines on its output."""

    def __init__(self, path: Path, code: str, before: str = "", **popen: Any) -> None:
        path.write_text(f"{before}{_PRELUDE}{code}")
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
