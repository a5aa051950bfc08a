"""Files of equal items that processes map into their memory.

A file has a name, or it is anonymous memory, which processes share by sending the descriptor. The system frees
anonymous memory when the last process that holds it ends, even if that process was killed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.shared_block import SharedBlock

from .files import check_in_place, check_memory, no_room, open_regular, reserve, resize
from .storage import StorageCorruptedError

# MADV_POPULATE_WRITE, since Linux 5.14
_POPULATE = 23 if sys.platform == "linux" else None
_POPULATED_AT_ONCE = 2 * 2**20  # during a call no thread of the process can map memory
_MADVISE = ctypes.CDLL(None, use_errno=True).madvise
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
# Not on every system. No effect on pages that are in memory.
_ADVISE: Callable[[int, int, int, int], None] | None = getattr(os, "posix_fadvise", None)
# The bytes of one reservation: large, so that the system call costs nothing per sample.
RESERVE_CHUNK = 16 * 2**20


class MappedFile:
    """A file of items of one dtype. Offsets and lengths are in items.

    A file may be longer than its reserved bytes: holes take no room, but writing into a hole through a mapping is a
    SIGBUS when the disk is full. So `reserve` comes before every write.
    """

    def __init__(self, fd: int, dtype: Any, path: Path | None, *, writable: bool) -> None:
        """Take ownership of a descriptor."""
        self.fd, self.dtype, self.path, self.writable = fd, np.dtype(dtype), path, writable
        self._reserved = (0, 0)  # the bytes of the last reservation
        self._absolute = None if path is None else path.absolute()
        self._closer = weakref.finalize(self, os.close, fd)  # users may drop buffers without `close`
        self._closer.atexit = False

    @classmethod
    def create(cls, path: Path | None, dtype: Any, length: int = 0) -> MappedFile:
        """Create a file that is one hole; without a path, anonymous memory."""
        if path is None:
            block = SharedBlock.create(0)
            fd = os.dup(block.fd)
            block.close()
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        file = cls(fd, dtype, path, writable=True)
        resize(fd, length * file.dtype.itemsize, path)
        return file

    @classmethod
    def open(cls, path: Path, dtype: Any, *, writable: bool) -> MappedFile:
        """Open an existing file; a StorageCorruptedError if it is missing."""
        return cls(open_regular(path, writable=writable), dtype, path, writable=writable)

    def __reduce__(self) -> tuple[Callable[..., MappedFile], tuple[Any, ...]]:
        return _received, (reduction.DupFd(self.fd), self.dtype, self.path, self.writable)

    def __repr__(self) -> str:
        return "shared memory" if self.path is None else str(self.path)

    @property
    def nbytes(self) -> int:
        return os.fstat(self.fd).st_size

    @property
    def length(self) -> int:
        """The number of complete items in the file."""
        return self.nbytes // self.dtype.itemsize

    def check_length(self, length: int, *, exactly: bool) -> None:
        """Raise a StorageCorruptedError unless the file has `length` items, or at least that many."""
        nbytes, wanted = self.nbytes, length * self.dtype.itemsize
        if nbytes < wanted or (exactly and nbytes != wanted):
            raise StorageCorruptedError(f"{self}: {nbytes} bytes, it must have {wanted} ({length} items)")

    def map(self, length: int) -> np.ndarray:
        """An array over the first `length` items."""
        if length == 0:
            return np.zeros(0, self.dtype)
        self.check_length(length, exactly=False)  # reading behind the end of the file would be a SIGBUS
        access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
        return np.ndarray((length,), self.dtype, mmap.mmap(self.fd, length * self.dtype.itemsize, access=access))

    def extend(self, length: int) -> None:
        """Make the file at least `length` items long; new ones are a hole of zeros."""
        if length > self.length:
            resize(self.fd, length * self.dtype.itemsize, self.path)

    def extend_reserved(self, length: int) -> None:
        """Make the file at least `length` items long without holes: on some file systems reading a hole takes room."""
        present, wanted = self.nbytes, length * self.dtype.itemsize
        try:
            reserve(self.fd, present, wanted, self.path)
        except OSError:
            os.ftruncate(self.fd, present)  # a failed reservation may have made the file longer
            raise

    def trim(self, length: int) -> None:
        """Cut the file to at most `length` items. No process may use the items that are cut off."""
        if length < self.length:
            self._reserved = (0, 0)
            os.ftruncate(self.fd, length * self.dtype.itemsize)

    def reserve(self, start: int, stop: int) -> tuple[int, int]:
        """Make sure that the items [start, stop) can be written; an OSError or MemoryError if there is no room.

        Returns the range of all reserved items around them.
        """
        size = self.dtype.itemsize
        begin, end = self._reserve_bytes(start * size, stop * size)
        return -(-begin // size), end // size

    def _reserve_bytes(self, first: int, last: int) -> tuple[int, int]:
        begin, end = self._reserved
        if begin <= first and last <= end:
            return self._reserved
        begin = first // RESERVE_CHUNK * RESERVE_CHUNK
        end = max(last, min(-(-last // RESERVE_CHUNK) * RESERVE_CHUNK, self.nbytes))
        try:
            self._check_room(end - begin)
            self._reserve(begin, end)
        except OSError:
            # No room for a whole chunk: reserve only the pages that the write touches.
            begin = first // mmap.PAGESIZE * mmap.PAGESIZE
            end = max(last, min(-(-last // mmap.PAGESIZE) * mmap.PAGESIZE, self.nbytes))
            self._reserve(begin, end)
        self._reserved = (begin, end)
        return self._reserved

    def _check_room(self, nbytes: int) -> None:
        """Raise an OSError if the file system lacks room: a failed reservation may keep the bytes it got so far."""
        if self.path is not None:
            disk = os.fstatvfs(self.fd)
            if disk.f_bavail * disk.f_frsize < nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _reserve(self, begin: int, end: int) -> None:
        if self.path is None:
            check_memory(end - begin, "shared memory")
        reserve(self.fd, begin, end, self.path)

    def prefetch(self, first: np.ndarray, count: int = 1) -> None:
        """Have the disk read `count` items from each index in `first` on, all at the same time.

        A page fault reads only a few pages and blocks, so that a large item would block many times.
        """
        if _ADVISE is not None and self._absolute is not None:
            size = self.dtype.itemsize
            for offset in (first.reshape(-1) * size).tolist():
                _ADVISE(self.fd, offset, count * size, os.POSIX_FADV_WILLNEED)

    def write_bytes(self, data: Any, offset: int) -> int:
        """Write bytes at an offset in bytes, without a mapping, and return the offset behind them."""
        view = memoryview(data).cast("B")
        while len(view):
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written
        return offset

    def read_bytes(self, length: int, offset: int) -> bytes:
        """Read `length` bytes from an offset in bytes; a StorageCorruptedError if the file ends before."""
        chunks, start, stop = [], offset, offset + length
        if stop <= self.nbytes:
            while start < stop and (chunk := os.pread(self.fd, stop - start, start)):  # one call reads 2 GiB at most
                chunks.append(chunk)
                start += len(chunk)
        if start != stop:
            raise StorageCorruptedError(f"{self}: {self.nbytes} bytes, it must have at least {stop}")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def sync(self) -> None:
        """Make all writes durable; an OSError if the file was deleted or replaced."""
        if self.writable and self._absolute is not None:
            check_in_place(self.fd, self._absolute)
            os.fsync(self.fd)

    def close(self) -> None:
        """Close the descriptor. Arrays over the file stay valid."""
        self.fd = -1  # first: another file may soon get the same number
        self._closer()


def populate_pages(items: np.ndarray, start: int, stop: int, path: Path | None) -> None:
    """Fault in the pages of items [start, stop) of a mapped array, which must be reserved.

    Faulting in page by page takes three times as long. If a file system lacks the room that it has reserved, this
    function raises an OSError, where a write would be a SIGBUS.
    """
    mapping: Any = items.base
    if _POPULATE is None or not isinstance(mapping, mmap.mmap):
        return
    size, begin = items.strides[0], items.ctypes.data
    last = begin + stop * size
    for address in range((begin + start * size) // mmap.PAGESIZE * mmap.PAGESIZE, last, _POPULATED_AT_ONCE):
        # mmap.madvise would keep the GIL, and block all other threads while the disk works
        if _MADVISE(address, min(_POPULATED_AT_ONCE, last - address), _POPULATE) and ctypes.get_errno() == errno.EFAULT:
            raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), (stop - start) * size, path)
        # other errors: the kernel is older than 5.14


def unmap_pages(items: np.ndarray) -> None:
    """Drop the pages of a mapped array from this process's memory. Reading maps them again."""
    mapping: Any = items.base
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)


def _received(descriptor: Any, dtype: np.dtype, path: Path | None, writable: bool) -> MappedFile:
    return MappedFile(descriptor.detach(), dtype, path, writable=writable)
