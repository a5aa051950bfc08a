"""Decoded frames on disk, cropped and resized, which processes share.

A file of so many places as the budget has room for; the frame of a sample has one place, which it may take from
another frame. An entry for each place says whose frame is there, with a checksum of it: so whatever several processes
write at once, and wherever they are killed, what does not match is not there. Frames are read into the caller's memory,
not mapped, so that no more of them is resident than is asked for.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np

from ..base.files import open_regular
from ..base.mapped import MappedFile
from ._checks import _constants, _word_dtype

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?\s*\Z", re.IGNORECASE)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def bytes_of(size: int | str) -> int:
    """A number of bytes, given as such or as "20GB"; a ValueError if it is neither."""
    if isinstance(size, int):
        return size
    found = _SIZE.match(size)
    if found is None:
        raise ValueError(f"{size!r} is no number of bytes, such as 2000000000 or '2GB'")
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " "))


class FrameCache:
    """The frames of one form in a folder of their own in `parent`."""

    def __init__(self, parent: Path, form: str, shape: tuple[int, ...], dtype: np.dtype, budget: int) -> None:
        self._nbytes = int(np.prod(shape)) * dtype.itemsize
        self._count = budget // (self._nbytes + 8)
        if self._count < 1:
            raise ValueError(f"frame_cache of {budget} bytes, a frame takes {self._nbytes + 8}")
        folder = parent / f"cache-{form}-{self._count}"
        for other in parent.glob(f"cache-{form}-*"):  # of another budget; who has it open goes on with it
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        self._frames = _open(folder / "frames.bin", np.uint8, self._count * self._nbytes)
        entries = _open(folder / "entries.bin", "<u8", self._count)
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
        places = numbers % self._count
        entries = self._entries[places]
        is_there = (entries >> _HALF) == _tags(numbers, marks)
        for index in np.flatnonzero(is_there).tolist():
            os.preadv(self._frames.fd, [out[index].data.cast("B")], int(places[index]) * self._nbytes)
        found = np.flatnonzero(is_there)
        is_there[found] = self._sums(out[found]) == entries[found] & _LOW
        return is_there

    def put(self, numbers: np.ndarray, marks: np.ndarray, frames: np.ndarray) -> None:
        """Keep frames, as long as there is room on the disk."""
        places = numbers % self._count
        entries = _tags(numbers, marks) << _HALF | self._sums(frames)
        try:
            for index, place in enumerate(places.tolist()):
                self._frames.write_bytes(frames[index], place * self._nbytes)
                self._entries[place] = entries[index]
        except OSError:
            return  # a full disk only makes the next read slower

    def close(self) -> None:
        self._frames.close()
        self._file.close()


def _tags(numbers: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """What stands for the frame of a sample in an entry, in 32 bits and never 0."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ marks.astype(np.uint64)
    return (mixed ^ mixed >> _HALF) & _LOW | np.uint64(1)


def _open(path: Path, dtype: object, length: int) -> MappedFile:
    """A file of so many items, which other processes may open too."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    file = MappedFile(open_regular(path, writable=True), dtype, path, writable=True)
    file.extend(length)
    return file
