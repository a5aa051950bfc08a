"""Checksums of stretches of rows.

A stretch is sealed with a CRC32 when the writer leaves it, and its seal is broken before it is written to again. So
at any instant, also after a kill, a sealed stretch has the checksum it claims unless the bytes were damaged.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..base.mapped import MappedFile
from ._heap import FileHeap
from ._row_memory import RowMemory

# A seal is the CRC32 and its inverse side by side, written at once; 0 while the stretch is open.
_SEAL = np.dtype("<u8")
_OPEN = 0
_STRETCH_BYTES = 64 * 1024


class RowChecks:
    """The seals of a file storage's rows, in `checks.bin` beside them.

    With `alone` this is the only writer, so that a stretch it has open is known to be unsealed.
    """

    def __init__(self, memory: RowMemory, file: MappedFile, *, alone: bool) -> None:
        self._memory, self.file, self._alone, self._pid = memory, file, alone, os.getpid()
        self.rows_per_stretch = max(1, _STRETCH_BYTES // memory.layout.nbytes)
        self._open: set[int] = set()
        self._seals = np.zeros(0, _SEAL)
        self.fit()

    @classmethod
    def create(cls, memory: RowMemory, path: Path, *, alone: bool) -> RowChecks:
        return cls(memory, MappedFile.create(path, _SEAL), alone=alone)

    @classmethod
    def open(cls, memory: RowMemory, path: Path, *, writable: bool, alone: bool) -> RowChecks:
        return cls(memory, MappedFile.open(path, _SEAL, writable=writable), alone=alone)

    def __reduce__(self) -> tuple[object, tuple[RowMemory, MappedFile, bool]]:
        return _received, (self._memory, self.file, self._alone)

    def fit(self) -> None:
        """Have a seal for every stretch of the rows that there are.

        A reader has those that there are: a writer makes the rows longer first, and may be killed before it gets here.
        """
        count = self._stretches
        if count > len(self._seals):
            if self.file.writable:
                self.file.extend(count)
                self.file.reserve(0, count)
            self._seals = self.file.map(min(count, self.file.length))

    @property
    def _stretches(self) -> int:
        return -(-len(self._memory.rows) // self.rows_per_stretch)

    def check_length(self) -> None:
        """A StorageCorruptedError unless the file has just as many seals as there are stretches."""
        self.file.check_length(self._stretches, exactly=True)

    def prepare(self, start: int, stop: int) -> tuple[int, int]:
        """Have seals for rows [start, stop); the range of rows of all stretches that these have a part in."""
        size = self.rows_per_stretch
        if stop > len(self._seals) * size:
            self.fit()
        return start // size * size, min(-(-stop // size) * size, len(self._memory.rows))

    def writing(self, start: int, stop: int) -> tuple[int, int]:
        """Rows [start, stop) are about to be written: break their seals, and seal what is left behind.

        Returns which rows can be written without asking again, as long as no others are, and nothing is sealed. They
        are among those that `prepare` has named.
        """
        size = self.rows_per_stretch
        first, last = start // size, (stop - 1) // size
        self._enter(range(first, last + 1))
        if first != last or not self._alone:  # what is left behind is still to be sealed; somebody else may seal it
            return 0, 0
        return first * size, min((first + 1) * size, len(self._memory.rows))

    def writing_at(self, slots: np.ndarray) -> None:
        """The same for any rows."""
        self.fit()
        self._enter(np.unique(slots // self.rows_per_stretch).tolist())

    def _enter(self, stretches: Iterable[int]) -> None:
        entered = set(stretches)
        left = self._open - entered
        self._open |= entered  # first: what is open is known, wherever this is interrupted
        for stretch in entered:
            self._seals[stretch] = _OPEN
        self._seal(left)

    def seal_all(self) -> None:
        """Seal what is still open; what is written next breaks it again."""
        if not self._alone or self._pid == os.getpid():  # else this is a fork of the process that writes to it
            self._seal(set(self._open))

    def seal_unsealed(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Seal what is open of the stretches that rows in these ranges [start, stop) have a part in."""
        size = self.rows_per_stretch
        for start, stop in ranges:
            if start < stop:
                first, last = start // size, min(-(-stop // size), len(self._seals))
                for place in np.flatnonzero(self._seals[first:last] == _OPEN).tolist():
                    with contextlib.suppress(ValueError):  # of a row that refers to what the heap does not have
                        self._seal({first + place})

    def _seal(self, stretches: set[int]) -> None:
        for stretch in stretches:
            self._seals[stretch] = _seal_of(self._crc(stretch))
            self._open.discard(stretch)

    def _crc(self, stretch: int) -> int:
        rows = self._memory.rows
        part = slice(stretch * self.rows_per_stretch, (stretch + 1) * self.rows_per_stretch)
        crc = 0
        for column in (rows.records, *rows.blocks.values()):
            present = column[part]
            missing = (self.rows_per_stretch - len(present)) * column.strides[0]
            # as if the file did not end within the stretch: it may grow
            crc = zlib.crc32(present.reshape(-1).view(np.uint8), crc)  # type: ignore[arg-type]
            crc = zlib.crc32(bytes(missing), crc)
        heap = self._memory.heap
        if isinstance(heap, FileHeap):
            for leaf in self._memory.layout.leaves:
                if leaf.placement == "heap":
                    for offset, length in rows.records[leaf.name][part].ravel().tolist():
                        crc = zlib.crc32(heap.read(offset, length), crc) if length else crc
        return crc

    def damaged(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) of rows whose stretch is sealed and not what it was."""
        self._memory.see_all()
        self.fit()
        size, length = self.rows_per_stretch, len(self._memory.rows)
        return [
            (stretch * size, min((stretch + 1) * size, length))
            for stretch, seal in enumerate(self._seals.tolist())
            # a writer elsewhere may have broken the seal meanwhile
            if seal != _OPEN and not self._matches(stretch, seal) and self._seals[stretch] == seal
        ]

    def unsealed(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) of rows whose stretch is not sealed."""
        self._memory.see_all()
        self.fit()
        size, length = self.rows_per_stretch, len(self._memory.rows)
        is_open = np.ones(self._stretches, bool)
        is_open[: len(self._seals)] = self._seals[: len(is_open)] == _OPEN
        return [(stretch * size, min((stretch + 1) * size, length)) for stretch in np.flatnonzero(is_open).tolist()]

    def count_sealed(self) -> int:
        """How many stretches are sealed."""
        return int(np.count_nonzero(self._seals))

    def _matches(self, stretch: int, seal: int) -> bool:
        try:
            return _seal_of(self._crc(stretch)) == seal
        except ValueError:  # a row refers to what the heap does not have
            return False

    def sync(self) -> None:
        self.file.sync()

    def close(self) -> None:
        self.file.close()


def _seal_of(crc: int) -> int:
    return crc << 32 | crc ^ 0xFFFFFFFF


def _received(memory: RowMemory, file: MappedFile, alone: bool) -> RowChecks:
    return RowChecks(memory, file, alone=alone)
