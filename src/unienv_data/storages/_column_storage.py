"""The base of storages that keep every leaf of a sample by itself, as a column of host arrays."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.backends.dtypes import raw_dtype
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, RowLeaf
from unienv_interface.space.spaces import ArraySpace, CompositeSpace

from ..base.common import BatchT
from ..base.files import remove
from ..base.index import resolve_index
from ..base.nested import nested_item
from ..base.row_storage import RowStorage
from ._column_view import ColumnView, leaf_indices

DEFAULT_KEY = "data"
_COPY_BYTES = 2**22


class ColumnStorage(RowStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A storage over columns, one per leaf of the space.

    A column is an array of the leaf's dtype in a row (see `RowLayout`), with the samples along its first axis. A
    subclass reads and writes columns at slots that are in order and without duplicates; all other kinds of index, the
    checks of values and the way to the backend's arrays, once per batch, are done here.
    """

    has_column_access = True
    takes_columns = True

    #: Characters of texts that the format cannot hold.
    _unfit_characters: ClassVar[re.Pattern[str] | None] = None

    def __init__(
        self, single_instance_space: Space, *, capacity: int | None, length: int, path: Path | None, mutable: bool
    ) -> None:
        super().__init__(single_instance_space)
        self.capacity = capacity
        self.cache_filename = path
        self.is_mutable = mutable
        self.layout = fixed_layout(single_instance_space, type(self).__name__)
        self._leaf_indices = range(len(self.layout.leaves))
        self._length = length
        self._views: dict[tuple[Any, ...], StorageColumn] = {}

    # -- what a subclass implements --------------------------------------------------------------------------

    @abc.abstractmethod
    def _read(self, slots: np.ndarray, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        """The columns of these leaves, in memory of their own. There is at least one slot."""

    @abc.abstractmethod
    def _write(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        """Write all columns. There is at least one slot, and the storage is mutable."""

    @abc.abstractmethod
    def _resize(self, length: int) -> None:
        """Set the number of slots; called on growing storages."""

    @abc.abstractmethod
    def _create_like(self, path: str | os.PathLike[str]) -> ColumnStorage:
        """A new storage with the same space, capacity and options at another path."""

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    def get(self, index: Any) -> Any:
        return self.gather(resolve_index(self.backend, index, self._length), self._length)

    def gather(self, slots: Any, length: int) -> Any:
        return self.layout.assemble(self._gather_columns(slots, self._leaf_indices))

    def _gather_columns(self, slots: Any, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        """The columns of these leaves for one slot, without the first axis, or for an array of slots."""
        if self.capacity is not None:
            slots = slots % self.capacity
        if isinstance(slots, int):
            return [column[0, ...] for column in self._read(np.array([slots]), leaf_indices)]
        if not len(slots):
            return [new_column(self.layout.leaves[leaf_index], (0,)) for leaf_index in leaf_indices]
        if is_increasing(slots):
            return self._read(slots, leaf_indices)
        distinct, inverse = np.unique(slots, return_inverse=True)
        return [column.take(inverse, 0) for column in self._read(distinct, leaf_indices)]

    def set(self, index: Any, value: Any) -> None:
        self._check_mutable()
        slots = resolve_index(self.backend, index, self._length)
        if isinstance(slots, int):
            self.write(slots, self.encode(value, None), slots)
        else:
            self._write_in_order(slots, self.encode(value, len(slots)))

    def _write_in_order(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        """Write columns at any slots; where a slot comes more than once, the last one counts."""
        if not len(slots):
            return
        if not is_increasing(slots):
            slots, kept = last_of_each(slots)
            columns = [column.take(kept, 0) for column in columns]
        self._write(slots, columns)

    def extend_length(self, length: int) -> None:
        self._check_mutable()
        if self.capacity is None:
            self._resize(self._length + length)
            self._length += length

    def shrink_length(self, length: int) -> None:
        self._check_mutable()
        if self.capacity is not None:
            return
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot shrink by {length}, there are {self._length} slots")
        self._resize(self._length - length)
        self._length -= length

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self.cache_filename} was opened read-only: open it with read_only=False to write")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    # -- how a replay buffer reads and writes ----------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> list[np.ndarray]:
        lead = () if count is None else (count,)
        encoded = self.layout.encode(value, lead)
        return [self._column(leaf, part, lead) for leaf, part in zip(self.layout.leaves, encoded, strict=True)]

    def _column(self, leaf: RowLeaf, encoded: Any, lead: tuple[int, ...]) -> np.ndarray:
        if isinstance(leaf.space, ArraySpace):
            return np.asarray(encoded, element_dtype(leaf))
        if self._unfit_characters is not None:
            self._check_texts(leaf, encoded)
        return text_column(leaf, encoded, lead)

    def _check_texts(self, leaf: RowLeaf, texts: np.ndarray) -> None:
        for text in texts.flat:
            unfit = self._unfit_characters.search(text) if self._unfit_characters is not None else None
            if unfit is not None:
                raise ValueError(
                    f"{leaf.name}: text {text!r:.80} has the character {unfit[0]!r}, which {type(self).__name__} "
                    f"cannot keep; PackedStorage can"
                )

    def part(self, encoded: list[np.ndarray], count: int, start: int, stop: int) -> list[np.ndarray]:
        return [column[start:stop] for column in encoded]

    def write(self, slots: int | slice, encoded: list[np.ndarray], number: int) -> None:
        if isinstance(slots, int):
            self._write(np.array([slots]), [column[None] for column in encoded])
        elif slots.start < slots.stop:
            self._write(np.arange(slots.start, slots.stop), encoded)

    @property
    def row_nbytes(self) -> int:
        return sum(leaf.codec.dtype.itemsize for leaf in self.layout.leaves)

    def raw_rows(self, slots: np.ndarray) -> Any:
        if not self.has_raw_rows:
            return super().raw_rows(slots)
        return b"".join(column.tobytes() for column in self._gather_columns(slots, self._leaf_indices))

    def encoded_as_raw_rows(self, encoded: list[np.ndarray], count: int | None) -> bytes:
        return b"".join(column.tobytes() for column in encoded)

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        if not self.has_raw_rows:
            super().write_raw_rows(slots, raw, numbers)
            return
        self._write_in_order(slots, columns_from_raw(self.layout, raw, len(slots)))

    # -- copies and columns ----------------------------------------------------------------------------------

    def dumps(self, path: str | os.PathLike[str]) -> None:
        if self._is_own(path):
            self.flush()
        else:
            self.snapshot(path, [(0, self._length)])

    def _is_own(self, path: str | os.PathLike[str]) -> bool:
        own = self.cache_filename
        return own is not None and os.path.exists(path) and os.path.samefile(path, own)

    def snapshot(self, path: str | os.PathLike[str], slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        copy = self._create_like(path)
        try:
            if self.capacity is None:
                copy.extend_length(max((stop for _, stop in slots), default=0))
            size = max(1, _COPY_BYTES // max(self.row_nbytes, 1))
            for first, last in slots:
                for start in range(first, last, size):
                    part = np.arange(start, min(start + size, last))
                    copy._write(part, self._read(part, self._leaf_indices))
            copy.flush()
        except BaseException:
            copy.close()
            remove(Path(path))
            raise
        copy.close()

    def get_column(self, nested_keys: Sequence[Any]) -> StorageColumn:
        keys = tuple(nested_keys)
        if keys not in self._views:
            self._views[keys] = StorageColumn(self, keys)
        return self._views[keys]


class StorageColumn(ColumnView):
    """One field of the samples of a storage over columns: only its own columns are read."""

    def __init__(self, storage: ColumnStorage, keys: tuple[Any, ...]) -> None:
        super().__init__(nested_item(storage.single_instance_space, keys))
        self.capacity = storage.capacity
        self._storage = storage
        self.layout = RowLayout(self.single_instance_space)
        self._leaf_indices = leaf_indices(storage.layout, keys, self.layout)

    def __len__(self) -> int:
        return len(self._storage)

    def gather(self, slots: Any, length: int) -> Any:
        return self.layout.assemble(self._storage._gather_columns(slots, self._leaf_indices))


def fixed_layout(space: Space, who: str) -> RowLayout:
    """The row layout of a space whose leaves have a fixed size; a ValueError that names one which has not."""
    layout = RowLayout(space)
    for leaf in layout.leaves:
        if leaf.placement == "heap":
            raise ValueError(
                f"{leaf.name}: {who} keeps arrays of fixed shape and texts, not {leaf.space}; PackedStorage keeps it"
            )
    return layout


def leaf_names(layout: RowLayout) -> list[str]:
    """The names of the leaves in files: their path ("obs/rgb"), or DEFAULT_KEY if the space is one leaf."""
    if not isinstance(layout.space, CompositeSpace):
        return [DEFAULT_KEY]
    for name in layout.names:
        if "\0" in name:
            raise ValueError(f"{name!r}: no file has such a name in it, rename the key or use PackedStorage")
    return list(layout.names)


def stored_names(names: list[str], is_there: Callable[[str], bool]) -> list[str]:
    """The names that a file has for leaves: these, or in one of the reference's the keys joined as they are."""
    plain = [name.replace("~1", "/").replace("~0", "~") for name in names]
    is_of_reference = len(set(plain)) == len(plain) and not all(map(is_there, names)) and all(map(is_there, plain))
    return plain if is_of_reference else names


def check_capacity(capacity: int | None) -> None:
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity is {capacity}, it must be at least 1, or None to grow")


def new_column(leaf: RowLeaf, lead: tuple[int, ...]) -> np.ndarray:
    """Zeros for the values of a leaf. Not by its dtype: NumPy loses that of values without elements."""
    return np.zeros(lead + leaf.codec.shape, element_dtype(leaf))


def columns_from_raw(layout: RowLayout, raw: Any, count: int) -> list[np.ndarray]:
    """The columns of `count` samples from their bytes, column after column."""
    columns, start = [], 0
    for leaf in layout.leaves:
        column = new_column(leaf, (count,))
        column.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8, column.nbytes, start)
        columns.append(column)
        start += column.nbytes
    return columns


def element_dtype(leaf: RowLeaf) -> np.dtype:
    """The dtype of the elements of a leaf's column."""
    return raw_dtype(leaf.space.dtype_name) if isinstance(leaf.space, ArraySpace) else leaf.codec.dtype.base


def text_column(leaf: RowLeaf, texts: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
    """The column of a text leaf for an object array of texts that fit it."""
    column = new_column(leaf, lead)
    leaf.codec.write(column, ..., texts)
    return column


def is_increasing(slots: np.ndarray) -> bool:
    """Whether slots are in order and without duplicates."""
    return len(slots) < 2 or bool((slots[1:] > slots[:-1]).all())


def last_of_each(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots in order and without duplicates, and the index where each came last."""
    distinct, from_the_end = np.unique(slots[::-1], return_index=True)
    return distinct, len(slots) - 1 - from_the_end
