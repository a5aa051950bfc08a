"""One column of packed rows, or several: only their own bytes are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, RowLeaf, Rows

from ..base.nested import nested_item
from ..base.storage import StorageCorruptedError
from ._column_view import ColumnView, leaf_indices
from .row_memory import RowMemory, check_references


class PackedColumn(ColumnView):
    """One field of the samples in packed rows, or some columns of it, over the same memory."""

    def __init__(self, space: Space, capacity: int | None, memory: RowMemory, keys: tuple[Any, ...]) -> None:
        super().__init__(nested_item(space, keys))
        self.capacity = capacity
        self._memory = memory
        self.layout = RowLayout(self.single_instance_space)
        self._leaf_indices = leaf_indices(memory.layout, keys, self.layout)
        leaves = [memory.layout.leaves[leaf_index] for leaf_index in self._leaf_indices]
        self._blocks = [leaf for leaf in leaves if leaf.placement == "block"]

    def __len__(self) -> int:
        return self._memory.used

    def gather(self, slots: Any, length: int) -> Any:
        memory = self._memory
        if length > len(memory.rows):
            memory.grow(length)
        rows, leaves = memory.rows, memory.layout.leaves
        index = np.array([slots]) if type(slots) is int else slots
        if self._blocks:
            memory.prefetch(self._blocks, index)
        taken = [take_column(rows, leaves[leaf_index], index) for leaf_index in self._leaf_indices]
        if type(slots) is int:
            taken = [column[0, ...] for column in taken]
        if not self.layout.has_heap:
            return self.layout.assemble(taken)
        try:
            check_references(memory.rows, slots)
            return self.layout.assemble(taken, memory.heap)
        except StorageCorruptedError:
            raise
        except ValueError as error:  # bytes that are no value of the heap's
            if self.cache_filename is None:
                raise
            raise StorageCorruptedError(f"{self.cache_filename}: {error}") from error

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self.gather(slots, length)


def take_column(rows: Rows, leaf: RowLeaf, slots: np.ndarray) -> np.ndarray:
    """One leaf of the rows in these slots, counted on beyond the end once around, in memory of its own."""
    if leaf.placement == "block":
        return rows.blocks[leaf.name].take(slots, 0, None, "wrap")
    records, field = rows.records, leaf.codec.dtype
    slots = slots % max(1, len(records))
    if not (len(records) and field.itemsize):
        return records[leaf.name][slots]
    # As plain bytes one after the other: `take` would first copy the column, for it has gaps, and indexing it as it is
    # goes by elements.
    offset = records.dtype.fields[leaf.name][1]  # type: ignore[index]
    items: np.ndarray = np.ndarray(records.shape, np.dtype((np.void, field.itemsize)), records, offset, records.strides)
    return items[slots].view(field.base).reshape((*slots.shape, *field.shape))
