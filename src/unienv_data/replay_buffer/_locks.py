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
from typing import Any

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
        self._take_over(path, os.open(path, flags, 0o600), shared, os.getpid())
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

    def _take_over(self, path: Path, fd: int, shared: bool, pid: int) -> None:
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
    lock._take_over(path, descriptor.detach(), True, pid)
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


# Closing waits so long, in seconds, for another thread to write what it is writing.
_LONGEST_WRITE = 5.0


class ProcessMutex:
    """Keeps writers apart that are threads or processes; used like a `threading.Lock`.

    A record lock on a file without a name: such locks belong to a process, and a fork does not inherit them.
    """

    def __init__(self, file: MappedFile | None = None) -> None:
        self._file = MappedFile.create(None, "u1") if file is None else file
        self._pid, self._threads = os.getpid(), threading.Lock()

    def __enter__(self) -> None:
        self._forget_threads()
        self._threads.acquire()
        try:
            if self._file.fd < 0:
                raise RuntimeError("the buffer is closed")
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *exc_info: object) -> None:
        try:
            if self._file.fd >= 0:  # else a handler has closed it, on top of who held it
                fcntl.lockf(self._file.fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _forget_threads(self) -> None:
        if self._pid != os.getpid():  # a fork: the parent's threads, which may have held the lock, are not here
            self._pid, self._threads = os.getpid(), threading.Lock()

    def __reduce__(self) -> tuple[type[ProcessMutex], tuple[MappedFile]]:
        return ProcessMutex, (self._file,)

    def close(self) -> None:
        """Have nobody hold it any more; threads that wait for it are told."""
        self._forget_threads()
        is_ours = self._threads.acquire(timeout=_LONGEST_WRITE)  # unless this is a handler on top of who holds it
        self._file.close()
        if is_ours:
            self._threads.release()
