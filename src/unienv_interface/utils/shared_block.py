"""Memory that several processes share, and events that wake one of them, both without names.

A named block outlives a process that is killed, and somebody has to find and remove it. A block here is an open file
without a directory entry: when the last process that holds it is gone, however it went, so is the memory. The
semaphores of `multiprocessing` are named while the workers of a fork server or of spawn live, which is why an event
here is a descriptor, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np


class SharedBlock:
    """Zeroed bytes shared between processes.

    A block is given to another process as an argument when that process is started, with any start method. What one
    of them writes, all others see. Arrays over the block keep its mapping alive: `close` gives the descriptor back
    and leaves the mapping to them.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map the first `size` bytes of a file; takes over the descriptor."""
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, max(size, 1))

    @classmethod
    def create(cls, size: int) -> SharedBlock:
        """A new block. The memory is reserved now: later there may be none, and touching it would be a SIGBUS."""
        fd = _unnamed_file()
        try:
            _reserve(fd, size)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def grow(self, size: int) -> None:
        """Reserve and map more. Arrays over the block stay valid; other processes call `map` to use more."""
        if size > self.size:
            _reserve(self.fd, size)
            self.map(size)

    def map(self, size: int) -> None:
        """Map the first `size` bytes, after another process has made the block grow."""
        self._map = mmap.mmap(self.fd, max(size, 1))
        self.size = size

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """An array over part of the block."""
        return np.ndarray(shape, dtype, self._map, offset)

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last array over it in any process."""
        fd, self.fd = self.fd, -1  # first: the number may soon be another file's
        if fd >= 0:
            os.close(fd)

    def __reduce__(self) -> tuple[Callable[[Any, int], SharedBlock], tuple[Any, int]]:
        return _received, (reduction.DupFd(self.fd), self.size)


def _received(descriptor: Any, size: int) -> SharedBlock:
    return SharedBlock(descriptor.detach(), size)


class SharedEvent:
    """Wakes a process that blocks on it.

    The event says no more than "look again": what has happened stands in memory that both processes share. It is given
    to another process as an argument when that process is started, with any start method.
    """

    def __init__(self, fd: int, write_fd: int) -> None:
        """Take over the descriptors to read from and to write to, which may be one."""
        self.fd, self._write_fd = fd, write_fd

    @classmethod
    def create(cls) -> SharedEvent:
        """A new event, not set."""
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_CLOEXEC)
            return cls(fd, fd)
        fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        return cls(fd, write_fd)

    def set(self) -> None:
        """Wake the process that waits, now or later."""
        try:  # noqa: SIM105 - `suppress` takes as long as the write
            os.write(self._write_fd, _ONE)
        except BlockingIOError:  # a full pipe wakes, too
            pass

    def wait(self) -> None:
        """Block until the event was set since the last wait. To wait for something else, too, poll `fd` first."""
        os.read(self.fd, 4096)

    def close(self) -> None:
        """Close the descriptors in this process."""
        open_fds = {self.fd, self._write_fd} - {-1}
        self.fd = self._write_fd = -1
        for fd in open_fds:
            os.close(fd)

    def __reduce__(self) -> tuple[Callable[[Any, Any], SharedEvent], tuple[Any, Any]]:
        write = None if self._write_fd == self.fd else reduction.DupFd(self._write_fd)
        return _received_event, (reduction.DupFd(self.fd), write)


_ONE = (1).to_bytes(8, sys.byteorder)  # as an eventfd wants it


def _received_event(read: Any, write: Any) -> SharedEvent:
    fd = read.detach()
    return SharedEvent(fd, fd if write is None else write.detach())


def _reserve(fd: int, size: int) -> None:
    try:
        if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):  # or the kernel ends us while it tries
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.ftruncate(fd, max(size, 1))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, max(size, 1))
    except OSError as error:
        raise OSError(error.errno, f"cannot reserve {size} bytes of shared memory: {error.strerror}") from error


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("unienv", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="unienv-")
    os.unlink(path)
    return fd
