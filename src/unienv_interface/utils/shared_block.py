"""Memory that several processes see and that has no name.

A named block outlives a process that is killed, and somebody has to find and remove it. A block here is an open file
without a directory entry: when the last process that holds it is gone, however it went, so is the memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np


class SharedBlock:
    """Zeroed bytes shared between processes.

    The file descriptor is handed to another process by inheritance or over a Unix socket; `attach` maps it there.
    Arrays over the block keep its mapping alive: `close` gives the descriptor back and leaves the mapping to them.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, max(size, 1))

    @classmethod
    def create(cls, size: int) -> SharedBlock:
        """A new block. The memory is reserved now: later there may be none, and touching it would be a SIGBUS."""
        fd = _unnamed_file()
        try:
            os.ftruncate(fd, max(size, 1))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, max(size, 1))
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, f"cannot reserve {size} bytes of shared memory: {error.strerror}") from error
        return cls(fd, size)

    @classmethod
    def attach(cls, fd: int, size: int) -> SharedBlock:
        """The block of a descriptor received from the process that made it; takes over the descriptor."""
        return cls(fd, size)

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """An array over part of the block."""
        return np.ndarray(shape, dtype, self._map, offset)

    def close(self) -> None:
        """Give the descriptor back. The memory goes when the last array over it does, in every process."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("unienv", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="unienv-")
    os.unlink(path)
    return fd
