"""The default storage: packed rows in memory, in shared memory, or in mapped files.

A batch is one gather of rows, and its columns are views of the gathered rows. On disk a random sample touches one page.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, Rows

from ..base.files import new_folder, sync_folder
from ..base.index import resolve_index
from ..base.row_storage import ROW_UNKNOWN, ROW_WRONG, RowStorage
from ..base.storage import StorageCorruptedError
from ..base.windows import Spans
from ._checks import BLOCKS_FILE as BLOCKS_FILE
from ._checks import SUMS_FILE as SUMS_FILE
from ._checks import BlockSums, RowSums
from ._options import checks_options
from ._packed_column import PackedColumn
from .registry import register_storage
from .row_memory import (
    FileHeap,
    MappedMemory,
    PrivateHeap,
    PrivateMemory,
    RowMemory,
    check_references,
    copy_references,
)

_COPY_BYTES = 2**20
_POPULATE_BYTES = 2**18
# Windows of fewer samples, or of more bytes, are not read faster in one piece.
_SHORT_SPAN, _SPAN_BYTES = 8, 2**20


@register_storage("packed")
class PackedStorage(RowStorage):
    """Samples as packed rows (see `RowLayout`).

    The rows lie in memory by default; with `cache_path` in a folder of mapped files; with `multiprocessing=True` in
    memory that forked and spawned processes share. With a capacity of None the storage grows. Rows written to files
    survive the death of the process, and after `flush` a power cut.

    Values without a fixed size (see `RowLayout`) go to a heap. In files and shared memory the heap only grows: the
    bytes of overwritten values are not reused, and only `dumps` to another path leaves them behind.

    Examples
    --------
    >>> space = transition_space(env, episode_id=True)
    >>> buffer = ReplayBuffer.create("packed", space, capacity=100_000, cache_path="packed")
    >>> buffer.append(transition)
    >>> buffer.close()
    """

    has_column_access = True
    takes_columns = True

    def __init__(
        self,
        single_instance_space: Space,
        memory: RowMemory,
        *,
        capacity: int | None,
        path: Path | None = None,
        mutable: bool = True,
        sums: RowSums | BlockSums | None = None,
    ) -> None:
        super().__init__(single_instance_space)
        self.layout = memory.layout
        self.capacity = capacity
        self.cache_filename = path
        self.is_mutable = mutable
        self.is_multiprocessing_safe = isinstance(memory, MappedMemory)
        self.survives_kill = path is not None
        self.has_raw_rows = not isinstance(memory.heap, PrivateHeap)  # whose values have one owner
        self._memory = memory
        self._sums = sums
        self.has_row_sums = isinstance(sums, RowSums)
        memory.used = capacity or 0
        if memory.is_private:
            self.reserved = (0, len(memory.rows))
        self._columns: dict[tuple[Any, ...], PackedColumn] = {}

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        multiprocessing: bool = False,
    ) -> PackedStorage:
        """Create a new storage.

        Parameters
        ----------
        single_instance_space, capacity
            As for every storage.
        cache_path
            The folder of its files, new or empty; by default it is in memory.
        multiprocessing
            Whether the memory is shared with processes that are forked or spawned.

        Raises
        ------
        ValueError
            `capacity` is below 1.
        """
        return cls._create(RowLayout(single_instance_space), capacity, cache_path, multiprocessing)

    @classmethod
    def _create(
        cls, layout: RowLayout, capacity: int | None, cache_path: str | os.PathLike[str] | None, multiprocessing: bool
    ) -> Self:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1, or None to grow")
        if cache_path is not None:
            return cls._create_files(layout, capacity, Path(cache_path))
        if multiprocessing:
            shared_heap = FileHeap.create(None) if layout.has_heap else None
            memory: RowMemory = MappedMemory.create(layout, shared_heap, None, capacity or 0)
        else:
            memory = PrivateMemory(layout, PrivateHeap() if layout.has_heap else None, capacity or 0)
        return cls(layout.space, memory, capacity=capacity)

    @classmethod
    def _create_files(cls, layout: RowLayout, capacity: int | None, path: Path) -> Self:
        with new_folder(path):
            heap = FileHeap.create(path / "heap.bin") if layout.has_heap else None
            memory = MappedMemory.create(layout, heap, path, capacity or 0)
            sums = RowSums.create(memory, path)
            sync_folder(path)
        return cls(layout.space, memory, capacity=capacity, path=path, sums=sums)

    @classmethod
    def load_from(
        cls,
        path: str | os.PathLike[str],
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        accept_damaged: bool = False,
        **kwargs: Any,
    ) -> PackedStorage:
        """Load the storage in a folder.

        Parameters
        ----------
        path, single_instance_space, read_only, multiprocessing
            As for every storage.
        capacity
            The capacity that it was created with; without one, all rows of the files are in use.
        accept_damaged
            To read only: files may be too short or too long, or the checksums missing; the storage has the rows that
            all files have.
        **kwargs
            Arguments of other storages; ignored.

        Returns
        -------
        PackedStorage
            The storage.
        """
        return cls._load(RowLayout(single_instance_space), Path(path), capacity, read_only, accept_damaged)

    @classmethod
    def _load(
        cls, layout: RowLayout, folder: Path, capacity: int | None, read_only: bool, accept_damaged: bool
    ) -> Self:
        writable = not read_only
        heap = FileHeap.open(folder / "heap.bin", writable=writable) if layout.has_heap else None
        if accept_damaged and read_only:
            return cls._open_rest(layout, heap, folder, capacity)
        memory = MappedMemory.open(layout, heap, folder, capacity, writable=writable)
        sums: RowSums | BlockSums
        if not (folder / SUMS_FILE).exists() and (folder / BLOCKS_FILE).exists():  # of an earlier version
            sums = BlockSums.open(memory, folder)
        else:
            sums = RowSums.open(memory, folder, writable=writable)
        storage = cls(layout.space, memory, capacity=capacity, path=folder, mutable=writable, sums=sums)
        memory.used = len(memory.rows)
        return storage

    @classmethod
    def _open_rest(cls, layout: RowLayout, heap: FileHeap | None, folder: Path, capacity: int | None) -> Self:
        memory = MappedMemory.open(layout, heap, folder, None, writable=False)
        sums: RowSums | BlockSums | None
        try:
            sums = RowSums.open(memory, folder, writable=False)
        except StorageCorruptedError:
            sums = BlockSums.open(memory, folder) if (folder / BLOCKS_FILE).exists() else None
        storage = cls(layout.space, memory, capacity=capacity, path=folder, mutable=False, sums=sums)
        memory.used = len(memory.rows) if capacity is None else min(len(memory.rows), capacity)
        return storage

    def replace_block_sums(self, numbers: np.ndarray) -> None:
        """Replace the checksums of an earlier version by one for each row; `numbers` are the samples of all rows."""
        if isinstance(self._sums, BlockSums) and isinstance(self.cache_filename, Path):
            self._sums = self._sums.replace(self.cache_filename, numbers)
            self.has_row_sums = True

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._memory.used

    @property
    def nbytes(self) -> int:
        heap = self._memory.heap
        in_heap = heap.nbytes if isinstance(heap, (FileHeap, PrivateHeap)) else 0
        return self._memory.used * self.layout.nbytes + in_heap

    def get(self, index: Any) -> Any:
        return self.gather(resolve_index(self.backend, index, self._memory.used), self._memory.used)

    def gather(self, slots: Any, length: int) -> Any:
        memory = self._memory
        if length != memory.used:
            memory.adopt_length(length)
        if self.layout.block_leaves:
            memory.prefetch(self.layout.block_leaves, np.atleast_1d(slots))
        try:
            if self.layout.has_heap:
                check_references(memory.rows, slots)
            if type(slots) is int:
                return self.layout.unpack(memory.rows.take(np.array([slots]), "wrap")[0])
            return self.layout.gather(memory.rows, slots, "wrap")
        except StorageCorruptedError:
            raise
        except ValueError as error:  # invalid text, or an invalid reference to the heap
            if self.cache_filename is None:
                raise
            raise StorageCorruptedError(f"{self.cache_filename}: {error}") from error

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self.gather(slots, length)

    def can_gather_spans(self, count: int) -> bool:
        return not self.layout.has_heap and _SHORT_SPAN <= count <= _SPAN_BYTES // self.layout.nbytes

    def gather_spans(self, spans: Spans, shift: int, length: int) -> Any:
        if length != self._memory.used:
            self._memory.adopt_length(length)
        rows, (first, valid, patches) = self._memory.rows, spans
        count = valid.shape[1]
        if shift:
            first = (first + shift) % len(rows)
            patches = [(window, begin, end, (slot + shift) % len(rows)) for window, begin, end, slot in patches]
            if first.item(first.argmax()) > len(rows) - count:  # one lies over the end of the ring
                slots = first[:, None] + np.arange(count)
                for window, begin, end, slot in patches:
                    slots[window, begin:end] = slot
                return self.gather_windows(slots, length)
        if self.layout.block_leaves:
            self._memory.prefetch(self.layout.block_leaves, first, count)
        return self.layout.gather_spans(rows, first, count, patches)

    def gather_rows(self, slots: np.ndarray, length: int) -> Rows | None:
        if self.layout.has_heap:
            return None
        if length != self._memory.used:
            self._memory.adopt_length(length)
        if self.layout.block_leaves:
            self._memory.prefetch(self.layout.block_leaves, slots)
        return self._memory.rows.take(slots, "wrap")

    def set(self, index: Any, value: Any) -> None:
        self._check_mutable()
        slots = resolve_index(self.backend, index, self._memory.used)
        if isinstance(slots, int):
            leaves = self.encode(value, None)
            self.reserve(slots, slots + 1)
            self.write(slots, leaves, slots)
            return
        leaves = self.encode(value, len(slots))
        if len(slots):
            self.reserve_at(slots)
            self.write_at(slots, leaves, slots)

    def extend_length(self, length: int) -> None:
        if self.capacity is None:
            self._check_mutable()
            self._grow(self._memory.used + length)

    def _grow(self, length: int, *, exactly: bool = False) -> None:
        self._make_rows(length, exactly=exactly)
        self._memory.used = length

    def _make_rows(self, length: int, *, exactly: bool = False) -> None:
        """Grow to at least `length` rows, some of which may not be slots yet."""
        self._memory.grow(length, exactly=exactly)
        if isinstance(self._sums, RowSums):
            self._sums.fit()

    def shrink_length(self, length: int) -> None:
        if self.capacity is not None:
            return
        self._check_mutable()
        if not 0 <= length <= self._memory.used:
            raise ValueError(f"cannot shrink by {length}, there are {self._memory.used} slots")
        self._memory.used -= length

    def clear(self) -> None:
        super().clear()
        if isinstance(self._memory.heap, PrivateHeap):
            for leaf in self.layout.heap_leaves:
                references = self._memory.rows.records[leaf.name]
                self._memory.heap.free(references)
                references[...] = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self.cache_filename} was opened read-only: open it with read_only=False to write")

    # -- how a replay buffer writes --------------------------------------------------------------------------

    @property
    def rows(self) -> Rows:
        """The rows of all slots. Replaced when the memory grows; what was read before stays valid."""
        return self._memory.rows

    def column_with_holes(self, place: int) -> np.ndarray:
        """The column of a leaf in the rows, read-only, with zeros in rows that were never written."""
        return self._memory.records_with_holes(len(self))[self.layout.names[place]]

    def encode(self, value: Any, count: int | None) -> Sequence[Any]:
        leaves = self.layout.encode(value, () if count is None else (count,))
        return leaves if self._memory.heap is None else self.layout.store(leaves, self._memory.heap)

    def part(self, encoded: Sequence[Any], count: int, start: int, stop: int) -> list[Any]:
        return [leaf[start:stop] for leaf in encoded]

    def reserve(self, start: int, stop: int) -> None:
        memory = self._memory
        if stop > len(memory.rows):
            self._make_rows(stop)
        if memory.is_private:
            self.reserved = (0, len(memory.rows))
            return
        piece = max(1, _POPULATE_BYTES // self.layout.nbytes)  # rows whose pages are allocated ahead
        first, last = start // piece * piece, min(-(-stop // piece) * piece, len(memory.rows))
        bounds = [memory.reserve(first, last)]
        if isinstance(self._sums, RowSums):
            bounds.append(self._sums.reserve(first, last))
        reserved = (max(first, *(low for low, _ in bounds)), min(last, *(high for _, high in bounds)))
        if piece > 1:
            memory.populate(*reserved)
        self.reserved = reserved

    def write(self, slots: int | slice, encoded: Sequence[Any], number: int) -> None:
        memory = self._memory
        stop = slots + 1 if type(slots) is int else slots.stop  # type: ignore[union-attr]
        if stop > memory.used:
            memory.used = stop
        if self.layout.has_heap:
            self._assign(slots, encoded)
        else:
            self.layout.write(memory.rows, slots, encoded)
        if self._sums is not None:
            self._sums.put(slots, number)  # type: ignore[union-attr] # those of blocks are replaced before

    def write_at(self, slots: np.ndarray, encoded: Sequence[Any], numbers: np.ndarray) -> None:
        """`write` to any slots, each with the number of its sample."""
        self._assign(slots, encoded)
        if isinstance(self._sums, RowSums):
            self._sums.put_at(slots, numbers)

    def _assign(self, slots: Any, leaves: Sequence[Any]) -> None:
        """Write leaves, and free the heap's values of the overwritten rows if the heap can."""
        memory, layout = self._memory, self.layout
        heap = memory.heap
        if not isinstance(heap, PrivateHeap):
            layout.write(memory.rows, slots, leaves)
            return
        before = {leaf.name: memory.rows.records[leaf.name][slots].copy() for leaf in layout.heap_leaves}
        layout.write(memory.rows, slots, leaves)
        for name, references in before.items():
            heap.free(references, kept=memory.rows.records[name][slots])

    def adopt_length(self, length: int) -> None:
        """Use `length` slots, after another process has made the storage grow or shrink."""
        self._memory.adopt_length(length)

    def adopt_all(self) -> None:
        """Use all slots of the files, also slots that another process has added."""
        self._memory.adopt_all()
        self._memory.used = len(self._memory.rows)

    def reserve_at(self, slots: np.ndarray) -> None:
        """Allocate the rows of any present slots."""
        if self._memory.used > len(self._memory.rows):
            self._grow(self._memory.used)  # another process has made it grow
        if not len(slots):
            return
        self._memory.reserve_at(slots)
        if isinstance(self._sums, RowSums):
            self._sums.reserve(int(slots.min()), int(slots.max()) + 1)

    def raw_rows(self, slots: np.ndarray) -> Any:
        if not self.has_raw_rows:
            return super().raw_rows(slots)
        return self._to_bytes(self._memory.rows.take(slots))

    def encoded_as_raw_rows(self, encoded: Sequence[Any], count: int | None) -> bytes:
        rows = self.layout.empty(1 if count is None else count, self._memory.heap)
        self.layout.write(rows, 0 if count is None else slice(None), encoded)
        return self._to_bytes(rows)

    def _to_bytes(self, rows: Rows) -> bytes:
        parts = [column.tobytes() for column in (rows.records, *rows.blocks.values())]
        if self._has_heap_sums:
            parts.append(self._sums.heap_sums(rows.records).tobytes())  # type: ignore[union-attr]
        return b"".join(parts)

    @property
    def _has_heap_sums(self) -> bool:
        """Whether a raw row includes a checksum of its values in the heap, which a power cut may damage."""
        return self.layout.has_heap and isinstance(self._sums, RowSums)

    @property
    def row_nbytes(self) -> int:
        return self.layout.nbytes + (8 if self._has_heap_sums else 0)

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        if not self.has_raw_rows:
            super().write_raw_rows(slots, raw, numbers)
            return
        self.reserve_at(slots)
        rows, start = self._memory.rows, 0
        for column in (rows.records, *rows.blocks.values()):
            part = np.empty((len(slots), *column.shape[1:]), column.dtype)
            part.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8, part.nbytes, start)
            column[slots] = part
            start += part.nbytes
        if isinstance(self._sums, RowSums):
            heap_sums = np.frombuffer(raw, np.uint64, len(slots), start) if self._has_heap_sums else None
            self._sums.put_at(slots, numbers, heap_sums)

    # -- durability ------------------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        heap = self._memory.heap
        return len(self._memory.rows), heap.nbytes if isinstance(heap, FileHeap) else 0

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        if self.capacity is None:
            self._memory.check_room(length)
            if length > len(self._memory.rows):
                self._make_rows(length)  # another process has made it grow
            self._memory.used = length
        if sizes is None or not isinstance(self._memory, MappedMemory):
            return
        rows, in_heap = sizes
        self._memory.check_lengths(rows)
        if isinstance(self._sums, RowSums):
            self._sums.file.check_length(rows, exactly=True)
        heap = self._memory.heap
        if isinstance(heap, FileHeap):
            heap.file.check_length(in_heap, exactly=True)

    def trim(self) -> None:
        """Cut the files to the slots in use, where the storage grows."""
        if self.capacity is None and isinstance(self._memory, MappedMemory) and self.cache_filename is not None:
            self.reserved = (0, 0)
            self._memory.trim(self._memory.used)
            if isinstance(self._sums, RowSums):
                self._sums.trim(self._memory.used)

    def flush(self) -> None:
        if not isinstance(self._sums, RowSums) or not self.is_mutable:
            return
        self._memory.sync()
        if isinstance(self._memory.heap, FileHeap):
            self._memory.heap.file.sync()
        self._sums.sync()

    def forget_rows(self, head: int) -> bool:
        return isinstance(self._sums, RowSums) and self._sums.forget(head)

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        if self._sums is None:
            return np.full(len(slots), ROW_UNKNOWN, np.int8)
        return self._sums.check(slots, numbers, numbers_only=numbers_only)

    def call_wrong(self, slots: np.ndarray) -> None:
        """Store checksums that do not match these rows: they are copies of damaged rows."""
        if isinstance(self._sums, RowSums):
            self._sums.call_wrong(slots)

    def count_checked(self) -> int:
        """How many rows have a checksum."""
        return 0 if self._sums is None else self._sums.count(self._memory.used)

    def find_wrong(self) -> list[tuple[int, int]]:
        """The ranges [start, stop) of rows that do not match their checksums."""
        if self._sums is None:
            return []
        is_wrong = self._sums.check(np.arange(self._memory.used)) == ROW_WRONG
        edges = np.flatnonzero(np.diff(is_wrong, prepend=False, append=False)).reshape(-1, 2)
        return [(int(start), int(stop)) for start, stop in edges]

    def verify(self) -> list[str]:
        return [
            f"{self.cache_filename}: rows {start} to {stop - 1} do not match their checksum"
            for start, stop in self.find_wrong()
        ]

    def dumps(self, path: str | os.PathLike[str]) -> None:
        if self.cache_filename is not None and os.path.exists(path) and os.path.samefile(path, self.cache_filename):
            self.flush()
        else:
            self.snapshot(path, [(0, self._memory.used)])

    def snapshot(self, path: str | os.PathLike[str], slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        copy = self._create_files(self.layout, self.capacity, Path(path))
        try:
            if self.capacity is None:
                copy._grow(max((stop for _, stop in slots), default=0), exactly=True)
            size = max(1, _COPY_BYTES // self.layout.nbytes)
            for first, last in slots:
                for start in range(first, last, size):
                    stop = min(start + size, last)
                    copy._copy_rows(self._memory.rows, start, stop, number)
                    if isinstance(self._sums, RowSums):
                        states = self._sums.check(np.arange(start, stop))
                        copy.call_wrong(start + np.flatnonzero(states == ROW_WRONG))
                    number += stop - start
            copy.flush()
        finally:
            copy.close()

    def _copy_rows(self, source: Rows, start: int, stop: int, number: int) -> None:
        """Copy rows [start, stop) of another storage of this space; `number` is that of the first sample."""
        self.reserve(start, stop)
        for leaf, ours, theirs in zip(self.layout.leaves, self._memory.rows.columns, source.columns, strict=True):
            column = theirs[start:stop]
            if leaf.placement == "heap":
                column = copy_references(column, source.heap, self._memory.heap)
            ours[start:stop] = column
        if isinstance(self._sums, RowSums):
            self._sums.put(slice(start, stop), number)

    # -- columns ---------------------------------------------------------------------------------------------

    def get_column(self, nested_keys: Sequence[Any]) -> PackedColumn:
        keys = tuple(nested_keys)
        if keys not in self._columns:
            column = PackedColumn(self.single_instance_space, self.capacity, self._memory, keys)
            column.cache_filename = self.cache_filename
            self._columns[keys] = column
        return self._columns[keys]

    def close(self) -> None:
        if self._sums is not None:
            self._sums.close()
        if isinstance(self._memory.heap, FileHeap):
            self._memory.heap.file.close()
        self._memory.close()
