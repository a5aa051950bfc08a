"""Unnamed shared memory, and unnamed events that wake another process.

Named shared memory outlives a killed process and must be found and removed. A `SharedBlock` is an open file without a
directory entry: the kernel frees it when the last process that holds it ends, also by a signal. A `SharedEvent` is a
descriptor for the same reason: semaphores of `multiprocessing` have names under spawn and forkserver.
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

    Pass a block to another process as an argument when the process starts, with any start method. Arrays over the
    block keep its memory mapped; `close` closes only the descriptor.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map the first `size` bytes of a file; the block owns the descriptor."""
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, max(size, 1))

    @classmethod
    def create(cls, size: int) -> SharedBlock:
        """Make a block and reserve its memory, since running out of memory at first access would be a SIGBUS."""
        fd = _unnamed_file()
        try:
            _reserve(fd, size)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def grow(self, size: int) -> None:
        """Reserve and map at least `size` bytes. Arrays over the block stay valid; other processes call `map`."""
        if size > self.size:
            _reserve(self.fd, size)
            self.map(size)

    def map(self, size: int) -> None:
        """Map the first `size` bytes, after another process has called `grow`."""
        self._map = mmap.mmap(self.fd, max(size, 1))
        self.size = size

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """An array over part of the block."""
        return np.ndarray(shape, dtype, self._map, offset)

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last array over it in any process."""
        fd, self.fd = self.fd, -1  # before closing: the next open file may get the same descriptor
        if fd >= 0:
            os.close(fd)

    def __reduce__(self) -> tuple[Callable[[Any, int], SharedBlock], tuple[Any, int]]:
        return _received, (reduction.DupFd(self.fd), self.size)


def _received(descriptor: Any, size: int) -> SharedBlock:
    return SharedBlock(descriptor.detach(), size)


class SharedEvent:
    """An event that wakes the process that blocks on it.

    The event carries no data: the woken process reads shared memory to see what has changed. Pass an event to another
    process as an argument when the process starts, with any start method.
    """

    def __init__(self, fd: int, write_fd: int) -> None:
        """Own the descriptors to read from and to write to, which may be the same."""
        self.fd, self._write_fd = fd, write_fd

    @classmethod
    def create(cls) -> SharedEvent:
        """Make an event that is not set."""
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_CLOEXEC)
            return cls(fd, fd)
        fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        return cls(fd, write_fd)

    def set(self) -> None:
        """Wake the process that blocks in `wait`, or let its next `wait` return at once."""
        try:  # noqa: SIM105 - `suppress` takes as long as the write
            os.write(self._write_fd, _ONE)
        except BlockingIOError:  # the pipe is full, so the event is set
            pass

    def wait(self) -> None:
        """Block until the event is set, and clear it. To wait for other descriptors too, poll `fd` first."""
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


_ONE = (1).to_bytes(8, sys.byteorder)  # an eventfd takes 8 bytes


def _received_event(read: Any, write: Any) -> SharedEvent:
    fd = read.detach()
    return SharedEvent(fd, fd if write is None else write.detach())


def _reserve(fd: int, size: int) -> None:
    try:
        # reserving more than the machine has would get this process killed for memory
        if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
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
