"""Checksums of blocks of rows.

The writer seals a block with a CRC32 when it leaves the block, and unseals it before it writes there again. So at any
instant, also after a kill, a sealed block has the checksum it claims unless its bytes were damaged.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..base.mapped import MappedFile
from ._row_memory import FileHeap, RowMemory

# A seal is the CRC32 and its inverse side by side, written at once; 0 while the block is open.
_SEAL = np.dtype("<u8")
_OPEN = 0
_BLOCK_BYTES = 64 * 1024


class RowChecks:
    """The seals of a file storage's rows, in `checks.bin` beside them.

    With `alone` this is the only writer, so that a block it has open is known to be unsealed.
    """

    def __init__(self, memory: RowMemory, file: MappedFile, *, alone: bool) -> None:
        self._memory, self.file, self._alone, self._pid = memory, file, alone, os.getpid()
        self.rows_per_block = max(1, _BLOCK_BYTES // memory.layout.nbytes)
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
        """Have a seal for every block of the rows that there are.

        A reader has those that there are: a writer makes the rows longer first, and may be killed before it gets here.
        """
        count = self._blocks
        if count > len(self._seals):
            if self.file.writable:
                self.file.extend(count)
                self.file.reserve(0, count)
            self._seals = self.file.map(min(count, self.file.length))

    @property
    def _blocks(self) -> int:
        return -(-len(self._memory.rows) // self.rows_per_block)

    def check_length(self) -> None:
        """A StorageCorruptedError unless the file has just as many seals as there are blocks."""
        self.file.check_length(self._blocks, exactly=True)

    def block_bounds(self, start: int, stop: int) -> tuple[int, int]:
        """The range of rows of all blocks that rows [start, stop) have a part in, for which there are seals then."""
        size = self.rows_per_block
        if stop > len(self._seals) * size:
            self.fit()
        return start // size * size, min(-(-stop // size) * size, len(self._memory.rows))

    def unseal(self, start: int, stop: int) -> tuple[int, int]:
        """Unseal the blocks of rows [start, stop), which are about to be written, and seal those left behind.

        Returns the rows that can be written without asking again, as long as no others are and nothing is sealed. They
        are among those of `block_bounds`.
        """
        size = self.rows_per_block
        first, last = start // size, (stop - 1) // size
        self._enter(range(first, last + 1))
        if first != last or not self._alone:  # the first is still to be sealed; somebody else may seal it
            return 0, 0
        return first * size, min((first + 1) * size, len(self._memory.rows))

    def unseal_at(self, rows: np.ndarray) -> None:
        """Unseal the blocks of any rows."""
        self.fit()
        self._enter(np.unique(rows // self.rows_per_block).tolist())

    def _enter(self, blocks: Iterable[int]) -> None:
        entered = set(blocks)
        left = self._open - entered
        self._open |= entered  # first: what is open is known, wherever this is interrupted
        for block in entered:
            self._seals[block] = _OPEN
        self._seal(left)

    def seal_all(self) -> None:
        """Seal what is still open; what is written next breaks it again."""
        if not self._alone or self._pid == os.getpid():  # else this is a fork of the process that writes to it
            self._seal(set(self._open))

    def seal_unsealed(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Seal what is open of the blocks that rows in these ranges [start, stop) have a part in."""
        size = self.rows_per_block
        for start, stop in ranges:
            if start < stop:
                first, last = start // size, min(-(-stop // size), len(self._seals))
                for place in np.flatnonzero(self._seals[first:last] == _OPEN).tolist():
                    with contextlib.suppress(ValueError):  # of a row that refers to what the heap does not have
                        self._seal({first + place})

    def _seal(self, blocks: set[int]) -> None:
        for block in blocks:
            self._seals[block] = _seal_of(self._crc(block))
            self._open.discard(block)

    def _crc(self, block: int) -> int:
        rows = self._memory.rows
        part = slice(block * self.rows_per_block, (block + 1) * self.rows_per_block)
        crc = 0
        for column in (rows.records, *rows.blocks.values()):
            present = column[part]
            missing = (self.rows_per_block - len(present)) * column.strides[0]
            # as if the file did not end within the block: it may grow
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
        """The ranges [start, stop) of rows whose block is sealed and not what it was."""
        self._memory.see_all()
        self.fit()
        size, length = self.rows_per_block, len(self._memory.rows)
        return [
            (block * size, min((block + 1) * size, length))
            for block, seal in enumerate(self._seals.tolist())
            # a writer elsewhere may have broken the seal meanwhile
            if seal != _OPEN and not self._matches(block, seal) and self._seals[block] == seal
        ]

    def unsealed(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) of rows whose block is not sealed."""
        self._memory.see_all()
        self.fit()
        size, length = self.rows_per_block, len(self._memory.rows)
        is_open = np.ones(self._blocks, bool)
        is_open[: len(self._seals)] = self._seals[: len(is_open)] == _OPEN
        return [(block * size, min((block + 1) * size, length)) for block in np.flatnonzero(is_open).tolist()]

    def count_sealed(self) -> int:
        """How many blocks are sealed."""
        return int(np.count_nonzero(self._seals))

    def _matches(self, block: int, seal: int) -> bool:
        try:
            return _seal_of(self._crc(block)) == seal
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
