"""The memory of rows and their heaps: private to this process, or mapped files.

Memory that processes share without a folder is a file without a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space.row_layout import Heap, RowLayout, RowLeaf, Rows

from ..base.files import check_disk, check_memory, reserve
from ..base.mapped import RESERVE_CHUNK, MappedFile, populate_pages, unmap_pages

# Reading makes the pages of blocks resident; they are unmapped after so many bytes.
_MOST_READ = 128 * 2**20


class RowMemory:
    """Rows of one layout. Growing replaces `rows`; arrays read before stay valid."""

    rows: Rows
    #: Whether rows can be written without `reserve`, by this process alone.
    is_private = False
    #: How many of the rows are slots of the storage.
    used: int

    def __init__(self, layout: RowLayout, heap: Heap | None, used: int = 0) -> None:
        self.layout, self.heap, self.used = layout, heap, used

    def grow(self, length: int, *, exactly: bool = False) -> None:
        """Grow to at least `length` rows and keep the present ones; `exactly` makes no room for more."""
        raise NotImplementedError

    def adopt_length(self, length: int) -> None:
        """Use `length` slots, after another process has made the storage grow or shrink."""
        self.grow(length)
        self.used = length

    def adopt_all(self) -> None:
        """Map all rows of the files, also rows that another process has added."""

    def records_with_holes(self, count: int) -> np.ndarray:
        """The first `count` records, read without mapping holes of a file, which would take room on a tmpfs."""
        return self.rows.records[:count]

    def check_room(self, length: int) -> None:
        """Raise a StorageCorruptedError if the files have fewer than `length` rows."""

    def reserve(self, start: int, stop: int) -> tuple[int, int]:
        """Allocate rows [start, stop), and return the range around them that can be written."""
        return 0, len(self.rows)

    def reserve_at(self, slots: np.ndarray) -> None:
        """Allocate the rows of any slots."""

    def populate(self, start: int, stop: int) -> None:
        """Have the pages of rows [start, stop), which are reserved, in memory."""

    def prefetch(self, leaves: Sequence[RowLeaf], slots: np.ndarray, count: int = 1) -> None:
        """Start reading blocks ahead: `count` rows from each slot on, modulo the number of rows."""

    def sync(self) -> None:
        """Make all written rows durable."""

    def close(self) -> None:
        """Release the memory."""

    def _generously(self, length: int) -> int:
        """The number of rows to allocate for `length`: half as many more, so that growing is rare."""
        present = len(self.rows)
        return max(length, present + present // 2, 1024)


class PrivateMemory(RowMemory):
    """Rows in this process's memory."""

    is_private = True

    def __init__(self, layout: RowLayout, heap: Heap | None, length: int) -> None:
        super().__init__(layout, heap)
        check_memory(length * layout.nbytes, f"{length} rows of {layout.nbytes} bytes")
        self.rows = self._zeroed(length)

    def __getstate__(self) -> tuple[RowLayout, Heap | None, int, np.ndarray, dict[str, np.ndarray]]:
        return self.layout, self.heap, self.used, self.rows.records, dict(self.rows.blocks)

    def __setstate__(self, state: tuple[RowLayout, Heap | None, int, np.ndarray, dict[str, np.ndarray]]) -> None:
        self.layout, self.heap, self.used, records, blocks = state
        self.rows = Rows(self.layout, records, blocks, self.heap)

    def _zeroed(self, length: int) -> Rows:
        # the system allocates pages of zeros when they are first written
        blocks = {leaf.name: np.zeros(length, leaf.codec.dtype) for leaf in self.layout.block_leaves}
        return Rows(self.layout, np.zeros(length, self.layout.dtype), blocks, self.heap)

    def grow(self, length: int, *, exactly: bool = False) -> None:
        old = self.rows
        if length <= len(old):
            return
        wanted = length if exactly else self._generously(length)
        check_memory(wanted * self.layout.nbytes, f"{wanted} rows of {self.layout.nbytes} bytes")
        new = self._zeroed(wanted)
        new.records[: len(old)] = old.records
        for name, block in old.blocks.items():
            new.blocks[name][: len(old)] = block
        self.rows = new


class MappedMemory(RowMemory):
    """Rows in mapped files: `rows.bin`, and `block-N.bin` for the N-th leaf with a block of its own."""

    def __init__(
        self, layout: RowLayout, heap: Heap | None, files: list[MappedFile], length: int, used: int = 0
    ) -> None:
        super().__init__(layout, heap, used)
        self.files, self._bytes_read = files, 0
        self._map(length)

    @classmethod
    def create(cls, layout: RowLayout, heap: Heap | None, folder: Path | None, length: int) -> MappedMemory:
        """New files, in the folder or without names."""
        if folder is None:
            check_memory(length * layout.nbytes, f"{length} rows of {layout.nbytes} bytes of shared memory")
        else:
            check_disk(folder, length * layout.nbytes)
        files = [
            MappedFile.create(None if folder is None else folder / name, dtype, length)
            for name, dtype in file_parts(layout)
        ]
        return cls(layout, heap, files, length)

    @classmethod
    def open(
        cls, layout: RowLayout, heap: Heap | None, folder: Path, length: int | None, *, writable: bool
    ) -> MappedMemory:
        """Open existing files with exactly `length` rows, or for None with the rows that all files have."""
        files: list[MappedFile] = []
        try:
            for name, dtype in file_parts(layout):
                files.append(MappedFile.open(folder / name, dtype, writable=writable))
            for file in files:
                if length is not None:
                    file.check_length(length, exactly=True)
            return cls(layout, heap, files, min(file.length for file in files) if length is None else length)
        except BaseException:
            for file in files:
                file.close()
            raise

    def __reduce__(self) -> tuple[type[MappedMemory], tuple[Any, ...]]:
        return MappedMemory, (self.layout, self.heap, self.files, len(self.rows), self.used)

    def _map(self, length: int) -> None:
        records, *blocks = (file.map(length) for file in self.files)
        names = (leaf.name for leaf in self.layout.block_leaves)
        self.rows = Rows(self.layout, records, dict(zip(names, blocks, strict=True)), self.heap)

    def grow(self, length: int, *, exactly: bool = False) -> None:
        if length <= len(self.rows):
            return
        present = min(file.length for file in self.files)
        if present < length and self.files[0].writable:
            present = length if exactly else self._generously(length)
            try:
                self._extend(present)
            except OSError:
                present = length  # the size of files may be limited
                self._extend(present)
        self._map(max(length, present))  # another process may have made the files longer

    def adopt_all(self) -> None:
        self.grow(min(file.length for file in self.files))

    def _extend(self, length: int) -> None:
        for file in self.files:
            file.extend(length)

    def records_with_holes(self, count: int) -> np.ndarray:
        file = self.files[0]
        if file.path is None:
            return super().records_with_holes(count)
        return np.frombuffer(file.read_bytes(count * file.dtype.itemsize, 0), file.dtype)

    def check_room(self, length: int) -> None:
        for file in self.files:
            file.check_length(length, exactly=False)

    def check_lengths(self, length: int) -> None:
        """A StorageCorruptedError unless every file has exactly `length` rows."""
        for file in self.files:
            file.check_length(length, exactly=True)

    def reserve(self, start: int, stop: int) -> tuple[int, int]:
        bounds = [file.reserve(start, stop) for file in self.files]
        return max(low for low, _ in bounds), min(high for _, high in bounds)

    def reserve_at(self, slots: np.ndarray) -> None:
        near = np.sort(slots)
        apart = np.flatnonzero(np.diff(near) > max(1, RESERVE_CHUNK // self.layout.nbytes)) + 1
        for group in np.split(near, apart):  # not the holes between distant rows
            self.reserve(int(group[0]), int(group[-1]) + 1)

    def populate(self, start: int, stop: int) -> None:
        for file, column in zip(self.files, (self.rows.records, *self.rows.blocks.values()), strict=True):
            populate_pages(column, start, stop, file.path)

    def prefetch(self, leaves: Sequence[RowLeaf], slots: np.ndarray, count: int = 1) -> None:
        blocks = [file for leaf, file in zip(self.layout.block_leaves, self.files[1:], strict=True) if leaf in leaves]
        if not blocks or not len(self.rows):
            return
        slots = slots % len(self.rows)
        for file in blocks:
            file.prefetch(slots, count)
            self._bytes_read += slots.size * count * file.dtype.itemsize
        if self._bytes_read > _MOST_READ and self.files[0].path is not None:
            self._bytes_read = 0
            for column in self.rows.blocks.values():
                unmap_pages(column)

    def trim(self, length: int) -> None:
        """Cut the files to their first `length` rows."""
        for file in self.files:
            file.trim(length)
        self._map(length)

    def sync(self) -> None:
        for file in self.files:
            file.sync()

    def close(self) -> None:
        for file in self.files:
            file.close()


def file_parts(layout: RowLayout) -> list[tuple[str, np.dtype]]:
    """The names of the files of rows, each with the dtype of its items."""
    blocks = [(f"block-{number}.bin", leaf.codec.dtype) for number, leaf in enumerate(layout.block_leaves)]
    return [("rows.bin", layout.dtype), *blocks]


# -- heaps -------------------------------------------------------------------------------------------------


class PrivateHeap:
    """A heap in this process's memory that frees values without references.

    An "offset" is a number of the value; 0 means no value, as in a row that was never written.
    """

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}
        self._last = 0

    def write(self, data: bytes) -> int:
        self._last += 1
        self._values[self._last] = bytes(data)
        return self._last

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(self._values[offset])

    def free(self, references: np.ndarray, kept: np.ndarray | None = None) -> None:
        """Free the values of `references`, except for the values of `kept` references."""
        offsets = set(references["offset"].ravel().tolist())
        for offset in offsets if kept is None else offsets.difference(kept["offset"].ravel().tolist()):
            self._values.pop(offset, None)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._values.values()))


class FileHeap:
    """An append-only file of values.

    A value is written before the row that refers to it, so no row points past the end of the file. The values of
    overwritten rows stay in the file.
    """

    def __init__(self, file: MappedFile) -> None:
        self.file = file

    @classmethod
    def create(cls, path: Path | None) -> FileHeap:
        return cls(MappedFile.create(path, np.uint8))

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> FileHeap:
        return cls(MappedFile.open(path, np.uint8, writable=writable))

    @property
    def nbytes(self) -> int:
        return self.file.nbytes

    def write(self, data: bytes) -> int:
        start = self.file.nbytes
        reserve(self.file.fd, start, start + len(data), self.file.path)
        self.file.write_bytes(data, start)
        return start

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(self.file.read_bytes(length, offset))


def check_references(rows: Rows, slots: Any) -> None:
    """A ValueError if rows refer to more bytes than their heap has, as a hostile file does to fill the memory."""
    heap = rows.heap
    if isinstance(heap, FileHeap):
        distinct = np.unique(slots) % max(1, len(rows.records))
        lengths = [rows.records[leaf.name][distinct]["length"] for leaf in rows.layout.heap_leaves]
        total = sum(float(length.sum(dtype=np.float64)) for length in lengths)
        if total > heap.nbytes:
            raise ValueError(f"{len(distinct)} rows refer to {total:.0f} bytes, the heap has {heap.nbytes}")


def copy_references(references: np.ndarray, source: Any, target: Any) -> np.ndarray:
    """Copy the values of references to another heap, and return references to the copies."""
    copied = np.zeros_like(references)
    for index in np.ndindex(references.shape):
        offset, length = (int(number) for number in references[index])
        if length:
            copied[index] = (target.write(bytes(source.read(offset, length))), length)
    return copied
