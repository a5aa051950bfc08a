"""A checksum for every row, bound to the number of the sample in it.

An entry of `sums.bin` holds a checksum of 32 bits and the sample's number plus one; 0 if the row was never written. A
writer stores the entry after the row, in one aligned store. Pages reach the disk in any order, so after a power cut a
row and its entry may be of different writes: the entry then does not match, or has the number of another sample. Other
rows are not affected, and no checksum is ever computed again.

The checksum is the upper half of a sum modulo 2^64 of the row's words, each multiplied by an odd constant of its own.
NumPy computes the sums of one row or of many rows in one call. The checksum detects every flip of a single bit, as no
constant has 31 equal bits in a row, and misses other damage in one case of 2^32.

Folders of earlier versions have a CRC32 for each block of rows instead (`checks.bin`), which is read, and replaced when
the folder is opened for writing.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..base.mapped import MappedFile, populate_pages
from ..base.row_storage import ROW_UNKNOWN, ROW_WHOLE, ROW_WRONG
from .row_memory import FileHeap, RowMemory

SUMS_FILE, BLOCKS_FILE = "sums.bin", "checks.bin"
_ENTRY = np.dtype("<u8")
_LOW, _ALL = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_HALF = np.uint64(32)
_PIECE = 4096  # rows checked at a time
_SCAN = 2**20


class RowSums:
    """The checksums of a file storage's rows."""

    def __init__(self, memory: RowMemory, file: MappedFile) -> None:
        self._memory, self.file = memory, file
        layout = memory.layout
        self._is_simple = not layout.block_leaves and not layout.has_heap
        self._word = _word_dtype(layout.itemsize)
        self._constants = _constants(layout.itemsize // self._word.itemsize)
        if file.writable:  # the first row that is written need not wait for them
            for leaf in layout.block_leaves:
                _constants(leaf.codec.dtype.itemsize // _word_dtype(leaf.codec.dtype.itemsize).itemsize)
        self._records: Any = None  # which `_words` are the words of
        self._hold(np.zeros(0, _ENTRY))
        self._map()

    @classmethod
    def create(cls, memory: RowMemory, folder: Path) -> RowSums:
        sums = cls(memory, MappedFile.create(folder / SUMS_FILE, _ENTRY))
        sums.fit()
        return sums

    @classmethod
    def open(cls, memory: RowMemory, folder: Path, *, writable: bool) -> RowSums:
        sums = cls(memory, MappedFile.open(folder / SUMS_FILE, _ENTRY, writable=writable))
        with contextlib.suppress(OSError):  # on a full disk, where nothing is written before there is room
            sums.fit()
        return sums

    def __reduce__(self) -> tuple[type[RowSums], tuple[RowMemory, MappedFile]]:
        return RowSums, (self._memory, self.file)

    def _hold(self, entries: np.ndarray) -> None:
        # a memoryview stores one entry much faster
        self._array, self._entries = entries, memoryview(entries)  # type: ignore[arg-type]

    def fit(self) -> None:
        """Have an entry for every row, with room for it."""
        count = len(self._memory.rows)
        if count > len(self._entries) and self.file.writable:
            self.file.extend_reserved(count)
        self._map()

    def _map(self) -> None:
        """Map the entries in the file, at most one for each row."""
        records, count = self._memory.rows.records, len(self._memory.rows)
        if records is not self._records:  # the memory has grown or was trimmed
            as_bytes = records.view(np.uint8).reshape(count, records.itemsize)
            self._records, self._words = records, as_bytes.view(self._word)
        if count > len(self._entries):
            self._hold(self.file.map(min(count, self.file.length)))

    def trim(self, length: int) -> None:
        """Cut the file to its first `length` entries."""
        self.file.trim(length)
        self._hold(self.file.map(length))
        self._map()

    def reserve(self, start: int, stop: int) -> tuple[int, int]:
        """Allocate the entries of rows [start, stop), and return the range around them that can be written."""
        self.fit()
        return self.file.reserve(start, stop)

    def populate(self, start: int, stop: int) -> None:
        """Have the pages of the entries of rows [start, stop), which are reserved, in memory."""
        populate_pages(self._array, start, stop, self.file.path)

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, slots: int | slice, number: int) -> None:
        """Store the checksums of rows just written, for samples with consecutive numbers."""
        if type(slots) is int:
            total = int(self._words[slots].dot(self._constants))
            if not self._is_simple:
                total += self._sum_of_blocks(slots) + self._sum_of_heap(self._memory.rows.records[slots : slots + 1])
                total &= _ALL
            self._entries[slots] = (number + 1 & _LOW) << 32 | total >> 32
        else:
            count = slots.stop - slots.start  # type: ignore[union-attr]
            self._put(slots, np.arange(number + 1, number + 1 + count, dtype=np.uint64), None)

    def put_at(self, slots: np.ndarray, numbers: np.ndarray, heap_sums: np.ndarray | None = None) -> None:
        """Store the checksums of any rows, each with its sample's number.

        `heap_sums` are the known sums of the rows' values in the heap, which may be damaged by now.
        """
        self._put(slots, (numbers + 1).astype(np.uint64), heap_sums)

    def _put(self, slots: Any, seeds: np.ndarray, heap_sums: np.ndarray | None) -> None:
        entries = self._sums(slots, heap_sums)
        seeds <<= _HALF
        entries |= seeds
        self._array[slots] = entries

    def forget(self, head: int) -> bool:
        """Remove the checksums of samples from number `head` on; return whether one was found."""
        self._map()
        had_any = False
        for start in range(0, len(self._array), _SCAN):
            entries = self._array[start : start + _SCAN]
            ahead = ((entries >> _HALF) - np.uint64(head + 1 & _LOW)) & np.uint64(_LOW)  # numbers go around at 2^32
            is_ahead = (entries != 0) & (entries >> _HALF != 0) & (ahead < np.uint64(2**31))
            if is_ahead.any():
                entries[is_ahead] = 0
                had_any = True
        return had_any

    def adopt(self, slots: np.ndarray, numbers: np.ndarray, is_wrong: np.ndarray) -> None:
        """Store the checksums of rows of an earlier version; wrong rows get a checksum that does not match.

        `numbers` and `is_wrong` are indexed by slot.
        """
        try:
            self.put_at(slots, numbers[slots])
            self.call_wrong(slots[is_wrong[slots]])
        except ValueError:  # one row has an invalid reference to the heap: find it
            if len(slots) > 1:
                for slot in slots:
                    self.adopt(np.array([slot]), numbers, is_wrong)
            else:
                self._array[slots] = (numbers[slots] + 1).astype(np.uint64) << _HALF

    def call_wrong(self, slots: np.ndarray) -> None:
        """Store checksums that do not match these rows: they are copies of damaged rows."""
        self._array[slots] ^= np.uint64(1)

    def heap_sums(self, records: np.ndarray) -> np.ndarray:
        """For each record, the share of its values in the heap in the row's checksum."""
        ones = [records[row : row + 1] for row in range(len(records))]
        return np.array([self._sum_of_heap(one) & _ALL for one in ones], np.uint64)

    def _sums(self, slots: Any, heap_sums: np.ndarray | None = None) -> np.ndarray:
        """The checksums of rows."""
        totals: np.ndarray = self._words[slots].dot(self._constants)
        if not self._is_simple:
            chosen = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
            if heap_sums is None:
                heap_sums = self.heap_sums(self._memory.rows.records[slots])
            of_blocks = np.array([self._sum_of_blocks(slot) & _ALL for slot in chosen.tolist()], np.uint64)
            totals += of_blocks
            totals += heap_sums
        totals >>= _HALF
        return totals

    def _sum_of_blocks(self, slot: int) -> int:
        """The share of a row's blocks in its checksum."""
        total = 0
        for block in self._memory.rows.blocks.values():
            raw = block[slot].reshape(-1).view(np.uint8)
            words = raw.view(_word_dtype(raw.nbytes))
            total += int(words.dot(_constants(len(words))))
        return total

    def _sum_of_heap(self, record: np.ndarray) -> int:
        """The share of one record's values in the heap in its row's checksum."""
        heap, total = self._memory.heap, 0
        if isinstance(heap, FileHeap):
            for index, leaf in enumerate(self._memory.layout.heap_leaves):
                for offset, length in record[leaf.name].ravel().tolist():
                    crc = zlib.crc32(heap.read(offset, length)) if length else 0
                    total += crc * int(_constants(index + 1)[-1])
        return total

    # -- checking --------------------------------------------------------------------------------------------

    def check(self, slots: np.ndarray, numbers: np.ndarray | None = None, *, numbers_only: bool = False) -> np.ndarray:
        """For each row whether it is whole, wrong, or unknown for lack of a checksum.

        With `numbers`, a row with another sample or without any is wrong; `numbers_only` compares nothing else. Rows
        that a writer changes meanwhile are checked again.
        """
        self._memory.adopt_all()
        self._map()
        states = np.full(len(slots), ROW_UNKNOWN, np.int8)
        for start in range(0, len(slots), _PIECE):
            part = slice(start, start + _PIECE)
            states[part] = self._check(slots[part], None if numbers is None else numbers[part], numbers_only)
        return states

    def _check(self, slots: np.ndarray, numbers: np.ndarray | None, numbers_only: bool) -> np.ndarray:
        states = np.full(len(slots), ROW_UNKNOWN, np.int8)
        pending = np.flatnonzero(slots < min(len(self._entries), len(self._memory.rows)))
        while len(pending):
            entries = self._array[slots[pending]]
            seeds = entries >> _HALF
            wanted = seeds if numbers is None else (numbers[pending].astype(np.uint64) + np.uint64(1)) & np.uint64(_LOW)
            is_whole = (seeds == wanted) & (entries != 0)  # a row never written may be a hole
            if not numbers_only:
                is_whole[is_whole] = self._matches(slots[pending[is_whole]], entries[is_whole])
            never_written = ROW_UNKNOWN if numbers is None else ROW_WRONG
            states[pending] = np.where(entries == 0, never_written, np.where(is_whole, ROW_WHOLE, ROW_WRONG))
            pending = pending[self._array[slots[pending]] != entries]
        return states

    def _matches(self, slots: np.ndarray, entries: np.ndarray) -> np.ndarray:
        try:
            matches: np.ndarray = self._sums(slots) == entries & np.uint64(_LOW)
            return matches
        except ValueError:  # one row has an invalid reference to the heap: find it
            if len(slots) == 1:
                return np.zeros(1, bool)
            ones = [slice(index, index + 1) for index in range(len(slots))]
            return np.concatenate([self._matches(slots[one], entries[one]) for one in ones])

    def count(self, length: int) -> int:
        """How many of the first rows have a checksum."""
        return int(np.count_nonzero(self._array[:length]))

    def sync(self) -> None:
        """Make the checksums durable."""
        self.file.sync()

    def close(self) -> None:
        self.file.close()


def _word_dtype(nbytes: int) -> np.dtype:
    """The widest words whose size divides `nbytes`."""
    return next(np.dtype(f"<u{size}") for size in (8, 4, 2, 1) if nbytes % size == 0)


@functools.lru_cache(maxsize=16)
def _constants(count: int) -> np.ndarray:
    """Odd constants that are the same everywhere: the splitmix64 sequence, without those that have 31 equal bits."""
    numbers = np.arange(1, count + 1 + count // 64 + 64, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    numbers = (numbers ^ (numbers >> np.uint64(31))) | np.uint64(1)
    has_run = np.zeros(len(numbers), bool)
    for first in range(34):
        window = (numbers >> np.uint64(first)) & np.uint64(2**31 - 1)
        has_run |= (window == 0) | (window == np.uint64(2**31 - 1))
    return numbers[~has_run][:count]


class BlockSums:
    """The checksums of an earlier version, of blocks of 64 KiB of rows; read-only."""

    def __init__(self, memory: RowMemory, file: MappedFile) -> None:
        self._memory, self.file = memory, file
        self._rows_per_block = max(1, 64 * 1024 // memory.layout.nbytes)
        self._sums = file.map(min(file.length, -(-len(memory.rows) // self._rows_per_block)))

    @classmethod
    def open(cls, memory: RowMemory, folder: Path) -> BlockSums:
        return cls(memory, MappedFile.open(folder / BLOCKS_FILE, _ENTRY, writable=False))

    def __reduce__(self) -> tuple[type[BlockSums], tuple[RowMemory, MappedFile]]:
        return BlockSums, (self._memory, self.file)

    def check(self, slots: np.ndarray, numbers: np.ndarray | None = None, *, numbers_only: bool = False) -> np.ndarray:
        """For each row whether its block is whole, wrong, or unknown since it was being written."""
        blocks = slots // self._rows_per_block
        states = {block: self._state_of(block) for block in np.unique(blocks).tolist()}
        return np.array([states[block] for block in blocks.tolist()], np.int8)

    def _state_of(self, block: int) -> int:
        if block >= len(self._sums) or self._sums[block] == 0:
            return ROW_UNKNOWN
        try:
            crc = self._crc(block)
        except ValueError:  # an invalid reference to the heap
            return ROW_WRONG
        return ROW_WHOLE if crc << 32 | crc ^ 0xFFFFFFFF == int(self._sums[block]) else ROW_WRONG

    def _crc(self, block: int) -> int:
        rows = self._memory.rows
        part = slice(block * self._rows_per_block, (block + 1) * self._rows_per_block)
        crc = 0
        for column in (rows.records, *rows.blocks.values()):
            present = column[part]
            missing = (self._rows_per_block - len(present)) * column.strides[0]
            crc = zlib.crc32(present.reshape(-1).view(np.uint8), crc)  # type: ignore[arg-type]
            crc = zlib.crc32(bytes(missing), crc)  # as if the file were longer than the block
        heap = self._memory.heap
        if isinstance(heap, FileHeap):
            for leaf in self._memory.layout.heap_leaves:
                for offset, length in rows.records[leaf.name][part].ravel().tolist():
                    crc = zlib.crc32(heap.read(offset, length), crc) if length else crc
        return crc

    def count(self, length: int) -> int:
        """How many of the first rows are in a block that has a checksum."""
        return min(length, int(np.count_nonzero(self._sums)) * self._rows_per_block)

    def replace(self, folder: Path, numbers: np.ndarray) -> RowSums:
        """Replace the checksums of blocks by one for each row, which does not match in wrong blocks.

        Rows with the number -1 hold no sample, and get no checksum.
        """
        states = self.check(np.arange(len(numbers)))
        (folder / SUMS_FILE).unlink(missing_ok=True)  # left by a killed attempt
        sums = RowSums.create(self._memory, folder)
        present = np.flatnonzero(numbers >= 0)
        for start in range(0, len(present), _PIECE):
            sums.adopt(present[start : start + _PIECE], numbers, states == ROW_WRONG)
        sums.sync()
        self.close()
        (folder / BLOCKS_FILE).unlink()
        return sums

    def close(self) -> None:
        self.file.close()
