"""Decoded frames on disk, cropped and resized, which processes share.

A file has as many slots as the budget has room for; the frame of a sample has one slot, which it may take from
another frame. An entry for each slot says whose frame is there, with a checksum of it. So a frame that does not match
counts as missing, whatever several processes write at once, and wherever they are killed. Frames are read into the
caller's memory, not mapped, so that no more of them is resident than is asked for.

Whoever uses a cache has a lock on it. A cache of another form or budget that nobody uses is deleted, so that the budget
bounds what the folder takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path

import numpy as np

from ..base.files import check_in_place, open_regular
from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError
from ._checks import _constants, _word_dtype

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?\s*\Z", re.IGNORECASE)
_HALF = np.uint64(32)


def bytes_of(size: int | str) -> int:
    """A number of bytes, given as such or as "20GB"; a ValueError if it is neither."""
    if isinstance(size, int):
        return size
    match = _SIZE.match(size)
    if match is None:
        raise ValueError(f"{size!r} is no number of bytes, such as 2000000000 or '2GB'")
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))


class FrameCache:
    """The frames of one form in a folder of their own in `parent`."""

    def __init__(self, parent: Path, form: str, shape: tuple[int, ...], dtype: np.dtype, budget: int) -> None:
        self._nbytes = int(np.prod(shape)) * dtype.itemsize
        self._count = budget // (self._nbytes + 8)
        if self._count < 1:
            raise ValueError(f"frame_cache of {budget} bytes, a frame takes {self._nbytes + 8}")
        folder = parent / f"cache-{form}-{self._count}"
        for other in parent.glob("cache-*"):
            if other != folder:
                _delete_unused(other)
        entries = _open_locked(folder / "entries.bin", "<u8", self._count)
        self._frames = _open(folder / "frames.bin", np.uint8, self._count * self._nbytes)
        entries.reserve(0, self._count)
        self._entries, self._file = entries.map(self._count), entries
        self._word = _word_dtype(self._nbytes)
        self._constants = _constants(self._nbytes // self._word.itemsize)

    def _sums(self, frames: np.ndarray) -> np.ndarray:
        words = frames.reshape(-1).view(self._word).reshape(len(frames), len(self._constants))
        sums: np.ndarray = words.dot(self._constants).astype(np.uint64) >> _HALF
        return sums

    def get(self, numbers: np.ndarray, marks: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Read the frames of samples into `out`, as far as they are there; which ones are.

        `marks` tell the frame of a sample from that of another which had its number.
        """
        slots, keys = numbers % self._count, _keys(numbers, marks)
        entries = self._entries[slots]
        is_there = entries >> _HALF == keys >> _HALF
        there = np.flatnonzero(is_there)
        for index in there.tolist():
            os.preadv(self._frames.fd, [out[index].data.cast("B")], int(slots[index]) * self._nbytes)
        is_there[there] = entries[there] == keys[there] ^ self._sums(out[there])
        return is_there

    def put(self, numbers: np.ndarray, marks: np.ndarray, frames: np.ndarray) -> None:
        """Keep frames, as long as there is room on the disk."""
        slots, entries = numbers % self._count, _keys(numbers, marks) ^ self._sums(frames)
        try:
            for index, slot in enumerate(slots.tolist()):
                self._frames.write_bytes(frames[index], slot * self._nbytes)
                self._entries[slot] = entries[index]
        except OSError:
            return  # a full disk only makes the next read slower

    def close(self) -> None:
        self._entries = np.zeros(0, np.uint64)  # the mapping holds the lock too
        self._frames.close()
        self._file.close()


def _keys(numbers: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """What stands for the frame of a sample in an entry, whose lower half has the checksum as well; never 0."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ marks.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(31)) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ mixed >> _HALF) | np.uint64(2**32)


def _open_locked(path: Path, dtype: object, length: int) -> MappedFile:
    """`_open` of a file in a folder that nobody deletes until the file is closed."""
    while True:
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError, StorageCorruptedError):  # deleted meanwhile
            file = _open(path, dtype, length)
            fcntl.flock(file.fd, fcntl.LOCK_SH)
            with contextlib.suppress(OSError):
                check_in_place(file.fd, path)
                return file
            file.close()


def _delete_unused(folder: Path) -> None:
    """Delete a cache that nobody has open."""
    try:
        fd = os.open(folder / "entries.bin", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # it is in use, or the file system has no locks
        pass
    finally:
        os.close(fd)


def _open(path: Path, dtype: object, length: int) -> MappedFile:
    """A file of so many items, which other processes may open too."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    file = MappedFile(open_regular(path, writable=True), dtype, path, writable=True)
    file.extend(length)
    return file
