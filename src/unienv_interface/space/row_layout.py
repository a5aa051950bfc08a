"""The row: one fixed, aligned record per value, wherever values lie side by side in memory.

A `RowLayout` turns a space into a NumPy structured dtype whose fields are the space's leaves. Memory in that layout
(RAM, a mapped file, shared memory) is held by `Rows`. A batch is then one gather, and its columns are views.

Where a leaf lies:

- in the row, if it takes less than a page (4 KiB);
- in a block of its own if it takes more, since packing an image beside other leaves gains nothing;
- in a heap if its size is not fixed (arrays whose shape varies, graphs, unions), with offset and length in the row.

The layout depends on the space alone, is little-endian, and is the same on every platform. Fields are ordered by
alignment, then by path, and each is aligned to the size of its elements, which makes every column a legal strided
tensor.

Costs: `pack` of one value copies each leaf once; `Rows.take` is one gather per memory area; `unpack` copies nothing
for NumPy and PyTorch, and each column once for JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..backends.base import ComputeBackend
from ._mismatch import at_path, join_path
from ._row_codecs import Heap, LeafCodec, MemoryHeap, leaf_codec
from .space import Space
from .spaces import CompositeSpace, DictSpace

__all__ = ["PAGE_SIZE", "Heap", "MemoryHeap", "RowLayout", "RowLeaf", "Rows"]

PAGE_SIZE = 4096
NOT_PLAIN = object()  # the dtype of no value


@dataclass(frozen=True)
class RowLeaf:
    """One leaf of a space and where it lies."""

    name: str  # the field of the record or the name of the block: the path, such as "obs/rgb"
    path: tuple[Any, ...]  # the keys that lead to it
    space: Space
    placement: Literal["row", "block", "heap"]
    codec: LeafCodec


class Rows:
    """Values side by side in memory, in the layout of one space.

    `records` is a structured array of any shape; `blocks` holds the leaves with memory of their own, each with the
    same leading shape; `heap` the bytes of leaves without a fixed size. The arrays belong to whoever made them.
    """

    __slots__ = ("blocks", "columns", "heap", "layout", "records")

    def __init__(
        self, layout: RowLayout, records: np.ndarray, blocks: Mapping[str, np.ndarray], heap: Heap | None
    ) -> None:
        self.layout = layout
        self.records = records
        self.blocks = blocks
        self.heap = heap
        if blocks:
            leaves = layout.leaves
            self.columns = [blocks[leaf.name] if leaf.placement == "block" else records[leaf.name] for leaf in leaves]
        else:
            self.columns = [records[name] for name in layout.names]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.records.shape

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Rows:
        """Part of the rows: views for ints and slices, copies for index arrays and masks. An int gives shape ()."""
        if isinstance(index, (int, np.integer)):
            index = (index, ...)  # an array of shape (), not a scalar that is cut off from the memory
        blocks = {name: block[index] for name, block in self.blocks.items()}
        return Rows(self.layout, self.records[index], blocks, self.heap)

    def take(self, indices: Any) -> Rows:
        """The rows at these indices along the first axis, in memory of their own."""
        blocks = {name: block.take(indices, axis=0) for name, block in self.blocks.items()} if self.blocks else {}
        return Rows(self.layout, self.records.take(indices, axis=0), blocks, self.heap)


class RowLayout:
    """The fixed record of a space; see the module's docstring.

    The space must not change afterwards (a `DictSpace` can).
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        found = [(path, leaf, leaf_codec(leaf)) for path, leaf in _walk(space, ())]
        self.leaves: tuple[RowLeaf, ...] = tuple(
            RowLeaf(_field_name(path), path, leaf, _placement(codec), codec) for path, leaf, codec in found
        )
        self.names = [leaf.name for leaf in self.leaves]
        self.row_leaves = tuple(leaf for leaf in self.leaves if leaf.placement != "block")
        self.block_leaves = tuple(leaf for leaf in self.leaves if leaf.placement == "block")
        self.has_heap = any(leaf.placement == "heap" for leaf in self.leaves)
        self.dtype = _record_dtype(self.row_leaves)
        self.itemsize = self.dtype.itemsize
        self._codecs = [leaf.codec for leaf in self.leaves]
        self._shapes = [leaf.codec.shape for leaf in self.leaves]
        self._plain_dtypes = [leaf.codec.plain_dtype or NOT_PLAIN for leaf in self.leaves]
        self._last_batch_shapes: tuple[tuple[int, ...], list[tuple[int, ...]]] = ((), self._shapes)
        self._collect = _collector(space)
        self._build = _builder(space)
        # A plain column is the value itself; only the others need their codec.
        self._coded = [(i, codec) for i, codec in enumerate(self._codecs) if codec.plain_dtype is None]

    @classmethod
    def from_json(cls, json_data: Any, backend: ComputeBackend, device: Any = None) -> RowLayout:
        """The layout of the space whose JSON this is."""
        from .space_utils.serialization_utils import json_to_space

        return cls(json_to_space(json_data, backend, device))

    @property
    def nbytes(self) -> int:
        """Bytes per value: the record and the blocks; what lies in a heap comes on top."""
        return self.itemsize + sum(leaf.codec.dtype.itemsize for leaf in self.block_leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowLayout) and self.space == other.space

    def __hash__(self) -> int:
        return hash(self.space)

    def __repr__(self) -> str:
        blocks = f", blocks={[leaf.name for leaf in self.block_leaves]}" if self.block_leaves else ""
        heap = f", heap={[leaf.name for leaf in self.leaves if leaf.placement == 'heap']}" if self.has_heap else ""
        return f"RowLayout({self.space}, itemsize={self.itemsize}{blocks}{heap})"

    # -- memory --------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], heap: Heap | None = None) -> Rows:
        """Rows in this process's memory, their contents arbitrary (heap references are zero)."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        blocks = {leaf.name: np.empty(shape, leaf.codec.dtype) for leaf in self.block_leaves}
        records = np.zeros(shape, self.dtype) if self.has_heap else np.empty(shape, self.dtype)
        if heap is None and self.has_heap:
            heap = MemoryHeap()
        return Rows(self, records, blocks, heap)

    def wrap(
        self, records: np.ndarray, blocks: Mapping[str, np.ndarray] | None = None, heap: Heap | None = None
    ) -> Rows:
        """Rows over memory of the caller's."""
        if records.dtype != self.dtype:
            raise TypeError(f"records of dtype {records.dtype}, the layout wants {self.dtype}")
        missing = [leaf.name for leaf in self.block_leaves if leaf.name not in (blocks or {})]
        if missing:
            raise TypeError(f"block {missing[0]!r} is missing: this leaf has memory of its own")
        return Rows(self, records, blocks or {}, heap)

    # -- values --------------------------------------------------------------------------------------------

    def pack(self, rows: Rows | np.ndarray, index: Any, data: Any) -> None:
        """Write a value, or a batch of values, to `rows[index]`.

        Structure, shapes and dtypes are checked, bounds are not (see `validate`). A value that does not fit is a
        ValueError with its path, and then nothing has been written. An index may be an int, a slice, an array of
        indices or a mask; the data's leading shape must be that of `rows[index]`, nothing is broadcast.
        """
        if type(rows) is not Rows:
            rows = self.wrap(rows)  # type: ignore[arg-type]
        lead = _selected_shape(rows.records.shape, index)
        shapes = self._shapes if not lead else self._batch_shapes(lead)
        values: list[Any] = []
        try:
            self._collect(data, values)
            encoded = [
                # an array that is right as it is goes in as it is; all else is the codec's affair
                value
                if getattr(value, "dtype", None) is dtype and value.shape == shape
                else codec.encode(value, lead)
                for value, dtype, shape, codec in zip(values, self._plain_dtypes, shapes, self._codecs)  # noqa: B905
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(self._explain(data, lead, error)) from None
        if not self._coded:
            for column, value in zip(rows.columns, encoded):  # noqa: B905 - as long as each other by construction
                column[index] = value
            return
        for codec, column, value in zip(self._codecs, rows.columns, encoded, strict=True):
            codec.write(column, index, value, rows.heap)

    def writer(self, rows: Rows) -> Callable[[int, Any], None]:
        """A function that packs one value at an int index: `pack` with all that hangs on the rows done in advance."""
        if isinstance(self.space, CompositeSpace) or self._coded or rows.records.ndim != 1:
            return lambda index, data: self.pack(rows, index, data)
        column, dtype, shape = rows.columns[0], self._plain_dtypes[0], self._shapes[0]

        def write(index: int, data: Any) -> None:
            if getattr(data, "dtype", None) is dtype and data.shape == shape:
                column[index] = data
            else:
                self.pack(rows, index, data)

        return write

    def _batch_shapes(self, lead: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shapes of a batch's leaves; remembered, since batches tend to be of one size."""
        if self._last_batch_shapes[0] != lead:
            self._last_batch_shapes = (lead, [lead + shape for shape in self._shapes])
        return self._last_batch_shapes[1]

    def gather(self, rows: Rows, indices: Any) -> Any:
        """The values at these indices along the first axis: `unpack(rows.take(indices))` at less cost."""
        if self.block_leaves or self._coded:
            return self.unpack(rows.take(indices))
        records = rows.records.take(indices, 0)
        return self._build([records[name] for name in self.names])

    def unpack(self, rows: Rows | np.ndarray) -> Any:
        """The value of the rows: one value for shape (), else a batch.

        NumPy and PyTorch arrays are views of the rows (of a copy, for PyTorch on read-only memory); JAX arrays,
        texts and values from the heap are new.
        """
        if type(rows) is not Rows:
            rows = self.wrap(rows)  # type: ignore[arg-type]
        if not self._coded:
            return self._build(rows.columns)
        columns = list(rows.columns)
        for position, codec in self._coded:
            columns[position] = codec.decode(columns[position], rows.heap)
        return self._build(columns)

    def _explain(self, data: Any, lead: tuple[int, ...], error: Exception) -> str:
        """Which leaf does not fit and why, found by walking the value again."""
        finding = _structure_finding(self.space, data, "")
        if finding is not None:
            return finding
        values: list[Any] = []
        self._collect(data, values)
        for leaf, value in zip(self.leaves, values, strict=True):
            try:
                leaf.codec.encode(value, lead)
            except Exception as cause:
                return at_path("/".join(map(str, leaf.path)), str(cause))
        return str(error)


def _walk(space: Space, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Space]]:
    """The leaves in canonical order with the keys that lead to them."""
    if not isinstance(space, CompositeSpace):
        return [(path, space)]
    return [found for key, child in space.child_items() for found in _walk(child, (*path, key))]


def _field_name(path: tuple[Any, ...]) -> str:
    """A name that no two paths share: keys joined by "/", with "/" and "~" in a key written as in JSON pointers."""
    return "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in path) or "value"


def _placement(codec: LeafCodec) -> Literal["row", "block", "heap"]:
    if codec.in_heap:
        return "heap"
    return "row" if codec.dtype.itemsize < PAGE_SIZE else "block"


def _record_dtype(leaves: Sequence[RowLeaf]) -> np.dtype:
    ordered = sorted(leaves, key=lambda leaf: -leaf.codec.alignment)
    offsets, end = [], 0
    for leaf in ordered:
        end = -(-end // leaf.codec.alignment) * leaf.codec.alignment
        offsets.append(end)
        end += leaf.codec.dtype.itemsize
    widest = max((leaf.codec.alignment for leaf in leaves), default=1)
    itemsize = max(-(-end // widest) * widest, widest)  # never nothing, even for an empty space
    return np.dtype(
        {
            "names": [leaf.name for leaf in ordered],
            "formats": [leaf.codec.dtype for leaf in ordered],
            "offsets": offsets,
            "itemsize": itemsize,
        }
    )


def _collector(space: Space) -> Callable[[Any, list[Any]], None]:
    """A function that appends the leaves of a value to a list, in canonical order."""
    if not isinstance(space, CompositeSpace):
        return lambda data, values: values.append(data)
    items = space.child_items()
    keys = [key for key, _ in items]
    if not any(isinstance(child, CompositeSpace) for _, child in items):

        def collect_flat(data: Any, values: list[Any]) -> None:
            if len(data) != len(keys):
                raise ValueError("the keys are not those of the space")
            values.extend([data[key] for key in keys])

        return collect_flat
    collectors = [(key, _collector(child)) for key, child in items]

    def collect(data: Any, values: list[Any]) -> None:
        if len(data) != len(collectors):
            raise ValueError("the keys are not those of the space")
        for key, collect_child in collectors:
            collect_child(data[key], values)

    return collect


def _builder(space: Space) -> Callable[[Sequence[Any]], Any]:
    """A function that makes a value of its leaves, given in canonical order."""
    if not isinstance(space, CompositeSpace):
        return lambda leaves: leaves[0]
    children = space.children
    if not any(isinstance(child, CompositeSpace) for child in children):
        if isinstance(space, DictSpace):
            keys = sorted(space.keys())
            if keys == list(space.keys()):
                return lambda leaves: dict(zip(keys, leaves))  # noqa: B905 - as long as each other by construction
        return space.build_value
    builders, start = [], 0
    for child in children:
        count = len(_walk(child, ()))
        builders.append((start, start + count, _builder(child)))
        start += count
    return lambda leaves: space.build_value(build(leaves[first:last]) for first, last, build in builders)


def _structure_finding(space: Space, data: Any, path: str) -> str | None:
    """Where the dicts and tuples of a value are not those of its space."""
    if not isinstance(space, CompositeSpace):
        return None
    finding = space.structure_mismatch(data, path)
    if finding is not None:
        return finding
    for (key, child), value in zip(space.child_items(), space.child_values(data), strict=True):
        finding = _structure_finding(child, value, join_path(path, key))
        if finding is not None:
            return finding
    return None


def _selected_shape(shape: tuple[int, ...], index: Any) -> tuple[int, ...]:
    """The leading shape of `rows[index]`, without touching the rows."""
    if len(shape) == 1:  # the common indices, without building an array to ask
        if type(index) is int:
            return ()
        if type(index) is slice:
            return (len(range(*index.indices(shape[0]))),)
        if type(index) is np.ndarray and index.dtype.kind in "iu":
            return index.shape
    return np.broadcast_to(np.False_, shape)[index].shape
