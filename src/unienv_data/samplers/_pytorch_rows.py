"""Moving batches of PyTorch tensors to a device, with one copy for all columns in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, RowLeaf, Rows
from unienv_interface.utils.optional import need

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="torch")


class RowMover:
    """Copies rows to a device as one block and hands out columns as views of the copy.

    A copy of a few bytes to a device takes as long as one of many kilobytes, so the number of copies matters. Leaves
    outside the rows (images) take one copy each. Without a device the rows stay in page-locked memory.
    """

    def __init__(self, layout: RowLayout, space: Space, device: Any, *, pinned: bool) -> None:
        self._layout, self._space, self._device, self._pinned = layout, space, device, pinned
        dtypes = [leaf.space.dtype for leaf in RowLayout(space).leaves]
        self._columns = [_Column(leaf, layout, dtype) for leaf, dtype in zip(layout.leaves, dtypes, strict=True)]

    @classmethod
    def for_space(cls, space: Space, device: Any, *, pinned: bool) -> RowMover | None:
        """Make a mover for batches of this space; None if a leaf is not a plain array of fixed shape."""
        try:
            layout = RowLayout(space.to(NumpyComputeBackend))
        except (ImportError, TypeError):  # bfloat16: NumPy needs the package ml_dtypes
            return None
        is_plain = all(leaf.codec.plain_dtype is not None for leaf in layout.leaves)
        return cls(layout, space, device, pinned=pinned) if is_plain and layout.leaves else None

    def move(self, batch: Any, count: int) -> Any:
        """Move a batch of `count` samples."""
        rows = self._layout.empty(count)
        self._layout.pack(rows, slice(0, count), self._space.data_to(batch, NumpyComputeBackend))
        return self.move_rows(rows)

    def move_rows(self, rows: Rows) -> Any:
        """Move a batch of rows."""
        moved: dict[tuple[str | None, torch.dtype], torch.Tensor] = {}
        for name, array in ((None, rows.records), *rows.blocks.items()):
            moved[name, torch.uint8] = self._to_device(array)
        columns: Any = [column.of(moved, len(rows)) for column in self._columns]
        return self._layout.assemble(columns)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array.reshape(-1).view(np.uint8))
        if self._pinned:
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device, non_blocking=self._pinned)


class _Column:
    """The offset, shape and strides of a leaf in its block, counted in items as PyTorch does."""

    def __init__(self, leaf: RowLeaf, layout: RowLayout, dtype: torch.dtype) -> None:
        self._block = leaf.name if leaf.placement == "block" else None
        self._dtype = dtype
        self._shape = leaf.codec.shape
        item = leaf.codec.dtype.base.itemsize
        fields: Any = layout.dtype.fields
        start, step = (0, leaf.codec.dtype.itemsize) if self._block else (fields[leaf.name][1], layout.itemsize)
        inner = [stride // item for stride in np.empty(self._shape, leaf.codec.dtype.base).strides]
        self._strides, self._offset = (step // item, *inner), start // item

    def of(self, blocks: dict[tuple[str | None, torch.dtype], torch.Tensor], count: int) -> torch.Tensor:
        """Return the column as a view of its block; `blocks` caches a view of each block by dtype."""
        typed = blocks.get((self._block, self._dtype))
        if typed is None:
            typed = blocks[self._block, self._dtype] = blocks[self._block, torch.uint8].view(self._dtype)
        return typed.as_strided((count, *self._shape), self._strides, self._offset)
