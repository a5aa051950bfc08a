"""Who may write. The locks are the operating system's, so a dead process cannot keep one."""

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

from ..base.mapped import MappedFile

# A reader that looks whether anybody writes holds the lock for an instant: try again before giving up.
_ATTEMPTS, _PAUSE = 5, 0.02


class BeingWrittenError(PermissionError):
    """A buffer's folder is being written by somebody: the process `pid`, as far as that is known."""

    pid = "unknown"


class FolderLock:
    """The right to write to a buffer's folder, until `release` or the end of the process.

    With `shared` it is that of all processes that this one hands the lock on to, until the last of them ends. Otherwise
    a fork does not have it: what is left of the parent there must not keep others out when the parent is gone.
    """

    def __init__(self, path: Path, *, shared: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._adopt(path, os.open(path, flags, 0o600), shared, os.getpid())
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        else:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            who = "this process" if holder == str(os.getpid()) else "another process"
            error = BeingWrittenError(
                f"{path.parent} is being written by {who} (pid {holder}) already: open it with read_only=True"
            )
            error.pid = holder
            raise error
        with contextlib.suppress(OSError):  # the disk may be full; the note is for people, the lock is what counts
            os.pwrite(self._fd, f"{os.getpid():<31}\n".encode("ascii"), 0)

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
        """Let go. May be called more than once."""
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
        lock.release()  # of the child's descriptor; the parent's keeps the lock


os.register_at_fork(after_in_child=_let_go_after_fork)


def is_locked(path: Path) -> bool:
    """Whether anybody has the right to write to the folder of this lock file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


ResultT = TypeVar("ResultT")


class WriteLock:
    """Keeps the threads that write to a buffer apart, one write at a time.

    The lock knows its owner. A write that begins on top of another write of the same thread, in a signal handler or in
    a callback, is a RuntimeError: to wait there would be to wait for ever.
    """

    def __init__(self) -> None:
        self._threads: Any = threading.RLock()

    def run(self, write: Callable[..., ResultT], *args: Any) -> ResultT:
        """Call `write(*args)` while no one else writes."""
        if self._threads._is_owned():
            raise self._reentered()
        with self._threads:
            return write(*args)

    def is_held_here(self) -> bool:
        """Whether the calling thread is in the middle of a write."""
        held: bool = self._threads._is_owned()
        return held

    def renew(self) -> None:
        """In a forked process, whose threads do not include the one that may have held the lock: be free."""
        self._threads = threading.RLock()

    def close(self) -> None:
        """Release what the lock holds."""

    @staticmethod
    def _reentered() -> RuntimeError:
        return RuntimeError(
            "this thread is in the middle of another write to the buffer: a signal handler or a callback cannot write "
            "on top of it. Set a flag there, and write when the first write has returned"
        )


class SharedWriteLock(WriteLock):
    """Keeps writers apart that are threads of several processes.

    A record lock on a file without a name: such locks belong to a process, die with it, and a fork does not inherit
    them. The `owner` is told of every write: `begin_shared_write` in front of it, and `end_shared_write` behind it
    unless it has failed.
    """

    def __init__(self, file: MappedFile | None = None) -> None:
        super().__init__()
        self._file = MappedFile.create(None, "u1") if file is None else file
        self.owner: Any = None  # a weak proxy: a buffer that nobody refers to gives back its files at once

    def run(self, write: Callable[..., ResultT], *args: Any) -> ResultT:
        if self._threads._is_owned():
            raise self._reentered()
        with self._threads:
            fd = self._file.fd
            if fd < 0:
                raise RuntimeError("the buffer is closed")
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX)
                self.owner.begin_shared_write()
                result = write(*args)
                self.owner.end_shared_write()
                return result
            finally:  # an interrupt may come before the lock is taken; to release one that is not held does no harm
                fcntl.lockf(fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[type[SharedWriteLock], tuple[MappedFile]]:
        return SharedWriteLock, (self._file,)

    def close(self) -> None:
        self._file.close()
