"""The memory that rows lie in: this process's own, or files that processes map (with names or without)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space.row_layout import Heap, RowLayout, Rows

from ..base.files import check_disk, check_memory
from ..base.mapped import STRETCH, MappedFile, have_in_memory


class RowMemory:
    """Rows of one layout. `rows` is replaced when the memory grows; what was read before stays valid."""

    rows: Rows
    #: Whether all of it is there, to be written by this process alone, without more ado.
    is_private = False
    #: How many of the rows are slots of the storage.
    used: int

    _raw: memoryview | None = None  # the bytes of the records, once they were asked for

    def __init__(self, layout: RowLayout, heap: Heap | None, used: int = 0) -> None:
        self.layout, self.heap, self.used = layout, heap, used

    def write_record(self, slot: int, record: bytes | memoryview) -> None:
        """Overwrite one record; this is much quicker than by way of its fields."""
        start = slot * len(record)
        self.raw[start : start + len(record)] = record

    @property
    def raw(self) -> memoryview:
        """The bytes of the records."""
        if self._raw is None:
            self._raw = memoryview(self.rows.records.view(np.uint8))  # type: ignore[arg-type]
        return self._raw

    def _hold(self, rows: Rows) -> None:
        """Take these rows in the place of those that were there."""
        self.rows, self._raw = rows, None

    def grow(self, length: int, *, exactly: bool = False) -> None:
        """Have at least `length` rows, keeping those that are there; `exactly` makes no room for more."""
        raise NotImplementedError

    def see(self, length: int) -> None:
        """Have so many slots, as another process has made it grow or shrink."""
        self.grow(length)
        self.used = length

    def see_all(self) -> None:
        """Have all rows that there are, those that another process has added too."""

    def check_room(self, length: int) -> None:
        """A StorageCorruptedError unless there are at least so many rows."""

    def reserve(self, start: int, stop: int) -> None:
        """Make sure that rows [start, stop) can be written."""

    def reserve_at(self, slots: np.ndarray) -> None:
        """The same for any rows."""

    def touch(self, start: int, stop: int) -> None:
        """Have rows [start, stop), which can be written, at hand."""

    def sync(self) -> None:
        """Make what was written durable."""

    def close(self) -> None:
        """Release the memory."""

    def _generously(self, length: int) -> int:
        """How many rows to have when `length` are wanted: half as many more, so that growing is rare."""
        present = len(self.rows)
        return max(length, present + present // 2, 1024)


class PrivateMemory(RowMemory):
    """Rows in this process's memory."""

    is_private = True

    def __init__(self, layout: RowLayout, heap: Heap | None, length: int) -> None:
        super().__init__(layout, heap)
        check_memory(length * layout.nbytes, f"{length} rows of {layout.nbytes} bytes")
        self._hold(self._zeroed(length))

    def __getstate__(self) -> tuple[RowLayout, Heap | None, int, np.ndarray, dict[str, np.ndarray]]:
        return self.layout, self.heap, self.used, self.rows.records, dict(self.rows.blocks)

    def __setstate__(self, state: tuple[RowLayout, Heap | None, int, np.ndarray, dict[str, np.ndarray]]) -> None:
        self.layout, self.heap, self.used, records, blocks = state
        self._hold(Rows(self.layout, records, blocks, self.heap))

    def _zeroed(self, length: int) -> Rows:
        # zeros cost nothing before a page is touched
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
        self._hold(new)


class MappedMemory(RowMemory):
    """Rows in mapped files: `rows.bin`, and `block-N.bin` for the N-th leaf with a block of its own."""

    def __init__(
        self, layout: RowLayout, heap: Heap | None, files: list[MappedFile], length: int, used: int = 0
    ) -> None:
        super().__init__(layout, heap, used)
        self.files = files
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
        """The files that are there: with just so many rows, or with None as many as all of them have."""
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
        self._hold(Rows(self.layout, records, dict(zip(names, blocks, strict=True)), self.heap))

    def grow(self, length: int, *, exactly: bool = False) -> None:
        if length <= len(self.rows):
            return
        present = min(file.length for file in self.files)
        if present < length and self.files[0].writable:
            present = length if exactly else self._generously(length)
            try:
                self._extend(present)
            except OSError:
                present = length  # there may be a limit to the size of files
                self._extend(present)
        self._map(max(length, present))  # another process may have made the files longer

    def see_all(self) -> None:
        self.grow(min(file.length for file in self.files))

    def _extend(self, length: int) -> None:
        for file in self.files:
            file.extend(length)

    def check_room(self, length: int) -> None:
        for file in self.files:
            file.check_length(length, exactly=False)

    def check_lengths(self, length: int) -> None:
        """A StorageCorruptedError unless every file has just so many rows."""
        for file in self.files:
            file.check_length(length, exactly=True)

    def reserve(self, start: int, stop: int) -> None:
        for file in self.files:
            file.reserve(start, stop)

    def reserve_at(self, slots: np.ndarray) -> None:
        near = np.sort(slots)
        apart = np.flatnonzero(np.diff(near) > max(1, STRETCH // self.layout.nbytes)) + 1
        for group in np.split(near, apart):  # holes between rows that lie far apart stay holes
            self.reserve(int(group[0]), int(group[-1]) + 1)

    def touch(self, start: int, stop: int) -> None:
        for column in (self.rows.records, *self.rows.blocks.values()):
            have_in_memory(column, start, stop)

    def sync(self) -> None:
        for file in self.files:
            file.sync()

    def close(self) -> None:
        for file in self.files:
            file.close()


def file_parts(layout: RowLayout) -> list[tuple[str, np.dtype]]:
    """The files that rows lie in, each with the dtype of its items."""
    blocks = [(f"block-{number}.bin", leaf.codec.dtype) for number, leaf in enumerate(layout.block_leaves)]
    return [("rows.bin", layout.dtype), *blocks]
