"""Locks of writers, held by the operating system: the death of a process releases its locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import Any, TypeVar

from ..base.files import open_regular
from ..base.mapped import MappedFile

# A reader that looks for a writer holds the lock for an instant: try again before giving up.
_ATTEMPTS, _PAUSE = 5, 0.02


class BeingWrittenError(PermissionError):
    """Another process, `pid` if known, writes to the folder of the buffer.

    Examples
    --------
    >>> with ReplayBuffer.load_from("data", backend="numpy", read_only=False):
    ...     ReplayBuffer.load_from("data", backend="numpy", read_only=False)
    Traceback (most recent call last):
        ...
    unienv_data.replay_buffer._locks.BeingWrittenError: ...
    """

    pid = "unknown"


class FolderLock:
    """The right to write to a buffer's folder, until `release` or the end of the process.

    With `shared` any number of processes hold it and take turns (see `SharedWriteLock`). Otherwise one process holds
    it, and its forks do not: a fork must not keep other writers out after its parent's death.
    """

    def __init__(self, path: Path, *, shared: bool) -> None:
        self._adopt(path, open_regular(path, writable=True, create=True), shared, os.getpid())
        self._take(fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        with contextlib.suppress(OSError):  # the disk may be full; the pid is for people only
            os.pwrite(self._fd, f"{os.getpid():<31}\n".encode("ascii"), 0)

    def _take(self, operation: int) -> None:
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._fd, operation | fcntl.LOCK_NB)
                return
        holder = holder_of(self.path)
        self.release()
        who = "this process" if holder == str(os.getpid()) else "another process"
        way_out = "" if self.shared else ", or all of its writers with multiprocessing=True"
        error = BeingWrittenError(
            f"{self.path.parent} is being written by {who} (pid {holder}) already: open it with read_only=True{way_out}"
        )
        error.pid = holder
        raise error

    def refuse_others(self) -> None:
        """Make the lock exclusive; a BeingWrittenError if another process holds it, too."""
        self._take(fcntl.LOCK_EX)

    def _adopt(self, path: Path, fd: int, shared: bool, pid: int) -> None:
        self.path, self._fd, self.shared, self.pid = path, fd, shared, pid
        self._closer = weakref.finalize(self, os.close, fd)
        self._closer.atexit = False
        if not shared:
            _not_for_forks.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process may write."""
        return self.shared or self.pid == os.getpid()

    def release(self) -> None:
        """Release the lock. May be called more than once."""
        self._closer()

    def __reduce__(self) -> tuple[Callable[..., FolderLock], tuple[Any, ...]]:
        return _received, (self.path, reduction.DupFd(self._fd), self.pid)


def _received(path: Path, descriptor: Any, pid: int) -> FolderLock:
    lock = FolderLock.__new__(FolderLock)
    lock._adopt(path, descriptor.detach(), True, pid)
    return lock


_not_for_forks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    for lock in list(_not_for_forks):
        lock.release()  # closes the child's descriptor; the parent's keeps the lock


os.register_at_fork(after_in_child=_let_go_after_fork)


def holder_of(path: Path) -> str:
    """The pid of the process that last took the lock of this file, as text."""
    try:
        with open(path, "rb") as file:
            return file.read(32).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return "unknown"


def is_locked(path: Path) -> bool:
    """Whether any process holds the lock of this file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


ResultT = TypeVar("ResultT")


class WriteLock:
    """Keeps the threads that write to a buffer apart, one write at a time.

    The lock knows its owner. A write inside another write of the same thread, from a signal handler or a callback, is
    a RuntimeError: blocking would be a deadlock.
    """

    def __init__(self) -> None:
        self._threads: Any = threading.RLock()

    def run(self, write: Callable[..., ResultT], *args: Any) -> ResultT:
        """Call `write(*args)` while no other thread or process writes."""
        if self._threads._is_owned():
            raise self._reentered()
        with self._threads:
            result = write(*args)
        return result  # noqa: RET504 - inside `with`, an interrupt could come before the lock is released

    def is_held_here(self) -> bool:
        """Whether the calling thread is in the middle of a write."""
        held: bool = self._threads._is_owned()
        return held

    def renew(self) -> None:
        """Make the lock anew in a forked process, where the owner's thread does not exist."""
        self._threads = threading.RLock()

    def close(self) -> None:
        """Release what the lock holds."""

    @staticmethod
    def _reentered() -> RuntimeError:
        return RuntimeError(
            "this thread is in the middle of another write to the buffer: a signal handler or a callback cannot write "
            "meanwhile. Set a flag there, and write after the first write has returned"
        )


class SharedWriteLock(WriteLock):
    """Keeps writers in the threads of several processes apart.

    A record lock on a file, with a name or without: record locks belong to a process, end with it, and are not
    inherited by forks. Threads of one process that opened the same file share one lock object. The lock calls
    `owner.begin_shared_write` before every write, and `owner.end_shared_write` after every write that succeeds.
    """

    def __init__(self, file: MappedFile | None = None) -> None:
        self._file = MappedFile.create(None, "u1") if file is None else file
        self._path = self._file.path
        self._threads = _thread_lock_for(self._file.fd)
        self.owner: Any = None  # a weak proxy: a strong reference would keep the files of a dropped buffer open

    @classmethod
    def open(cls, path: Path) -> SharedWriteLock:
        """The lock of the writers to a folder, by the name of its file."""
        return cls(MappedFile(open_regular(path, writable=True, create=True), "u1", path, writable=True))

    def run(self, write: Callable[..., ResultT], *args: Any) -> ResultT:
        threads: Any = self._threads.lock
        if threads._is_owned():
            raise self._reentered()
        with threads:
            fd = self._file.fd
            if fd < 0:
                raise RuntimeError("the buffer is closed")
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX)
                self.owner.begin_shared_write()
                result = write(*args)
                self.owner.end_shared_write()
            finally:  # also if an interrupt comes before the lock is taken: releasing it then does nothing
                fcntl.lockf(fd, fcntl.LOCK_UN)
        return result

    def is_free(self) -> bool:
        """Whether no other process writes at this moment."""
        threads: Any = self._threads.lock
        if not threads.acquire(blocking=False):
            return False
        try:
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            fcntl.lockf(self._file.fd, fcntl.LOCK_UN)
            return True
        finally:
            threads.release()

    def is_held_here(self) -> bool:
        held: bool = self._threads.lock._is_owned()
        return held

    def renew(self) -> None:
        self._threads.lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:  # a process must not open the file twice: closing one would release both
            return SharedWriteLock.open, (self._path,)
        return SharedWriteLock, (self._file,)

    def close(self) -> None:
        with self._threads.lock:  # not while another thread is between taking the lock and releasing it
            self._file.close()


class _ThreadLock:
    """The lock shared by the threads of this process that write to one file."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()


_THREAD_LOCKS: weakref.WeakValueDictionary[tuple[int, int], _ThreadLock] = weakref.WeakValueDictionary()


def _thread_lock_for(fd: int) -> _ThreadLock:
    status = os.fstat(fd)
    return _THREAD_LOCKS.setdefault((status.st_dev, status.st_ino), _ThreadLock())


def _renew_thread_locks() -> None:
    """Make the locks anew in a forked process: the threads that held them do not exist there."""
    for lock in list(_THREAD_LOCKS.values()):
        lock.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_thread_locks)
