"""Where the frame of each slot is: a number for each in a file that processes map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError

FILE = "places.bin"
# What stands for a slot: nothing was ever written there, its frame is in a piece, or in the video of sample n (n + 2).
NOTHING, RAW, ENCODED = 0, 1, 2


class FramePlaces:
    """The places of the frames in slots. `array` has them, and more than there are slots in a storage that grows."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.array = file.map(file.length)

    @classmethod
    def create(cls, folder: Path, length: int) -> FramePlaces:
        return cls(MappedFile.create(folder / FILE, "<u8", length))

    @classmethod
    def open(cls, folder: Path, *, writable: bool) -> FramePlaces:
        return cls(MappedFile.open(folder / FILE, "<u8", writable=writable))

    @classmethod
    def rebuilt(
        cls,
        folder: Path,
        capacity: int | None,
        videos: Sequence[tuple[int, int]],
        pieces: Sequence[tuple[int, int]],
    ) -> FramePlaces:
        """The places that a damaged file has, with those that it lacks by the files that there are; in memory.

        `videos` are ranges [first, stop) of samples, `pieces` of slots. This takes sample n to be in slot n, so the
        number of the sample in a slot has to be compared before its frame is taken for that.
        """
        try:
            file = MappedFile.open(folder / FILE, "<u8", writable=False)
            known = file.map(file.length)
            file.close()
        except StorageCorruptedError:
            known = np.zeros(0, np.uint64)
        length = capacity
        if length is None:
            length = max([len(known), *(stop for _, stop in (*videos, *pieces))])
        places = cls(MappedFile.create(None, "<u8", length))
        array = places.array
        array[: len(known)] = known[:length]
        is_lost = array == NOTHING
        for first, stop in videos:
            numbers = np.arange(first, stop)
            slots = numbers if capacity is None else numbers % capacity
            array[slots[is_lost[slots]]] = (numbers[is_lost[slots]] + ENCODED).astype(np.uint64)
        for start, stop in pieces:
            piece = array[start:stop]
            piece[piece == NOTHING] = RAW
        return places

    def grow(self, length: int) -> None:
        """Have places for so many slots."""
        if length <= len(self.array):
            return
        if self.file.writable and self.file.length < length:
            self.file.extend(max(length, 2 * len(self.array), 4096))
        present = self.file.length
        if present < length:
            raise StorageCorruptedError(f"{self.file}: {present} slots, {length} are wanted")
        self.array = self.file.map(present)

    def trim(self, length: int) -> None:
        self.file.trim(length)
        self.array = self.file.map(length)

    def forget(self, start: int) -> None:
        """Have nothing in the slots from `start` on."""
        self.file.reserve(start, len(self.array))
        self.array[start:] = NOTHING
