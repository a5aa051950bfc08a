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

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..backends.serialization import BackendLike
from ._row_codecs import ArrayCodec, Heap, HeapCodec, LeafCodec, MemoryHeap, leaf_codec, need_heap
from .mismatch import at_path
from .row_structure import builder, leaf_fetcher, structure_finding, walk
from .space import Space
from .spaces import CompositeSpace, DictSpace

__all__ = [
    "PAGE_SIZE",
    "ArrayCodec",
    "Heap",
    "HeapCodec",
    "LeafCodec",
    "MemoryHeap",
    "Patch",
    "RowLayout",
    "RowLeaf",
    "Rows",
    "need_heap",
]

Patch = tuple[int, int, int, int]  # of a span, from where to where, which row: see `RowLayout.gather_spans`

PAGE_SIZE = 4096
# What goes into a column as it is: an array of this dtype and shape, a scalar of NumPy of this type, or a Python number
# of this type, from low to high.
_LeafCheck = tuple[np.dtype | None, tuple[int, ...], type, type, float, float]


@dataclass(frozen=True)
class RowLeaf:
    """One leaf of a space and where it lies.

    Attributes
    ----------
    name
        The field of the record or the name of the block: the path, such as "obs/rgb".
    path
        The keys that lead to the leaf.
    space
        The space of the leaf.
    placement
        Where the leaf lies: "row", "block" or "heap".
    codec
        Its format.

    Examples
    --------
    >>> from unienv_interface.space.row_layout import RowLayout
    >>> camera = BoxSpace("numpy", 0, 255, np.uint8, shape=(96, 96))
    >>> state = BoxSpace("numpy", -1, 1, np.float32, shape=(3,))
    >>> layout = RowLayout(DictSpace("numpy", {"camera": camera, "state": state}))
    >>> [(leaf.name, leaf.placement) for leaf in layout.leaves]
    [('camera', 'block'), ('state', 'row')]
    """

    name: str
    path: tuple[Any, ...]
    space: Space
    placement: Literal["row", "block", "heap"]
    codec: LeafCodec


class Rows:
    """Values side by side in memory, in the layout of one space.

    The arrays belong to whoever made them.

    Parameters
    ----------
    layout
        The layout of the values.
    records
        A structured array of any shape.
    blocks
        The leaves with memory of their own by name, each with the shape of `records` in front.
    heap
        The bytes of leaves without a fixed size; None if there are no such leaves.

    Examples
    --------
    >>> from unienv_interface.space.row_layout import RowLayout
    >>> rows = RowLayout(BoxSpace("numpy", -1, 1, np.float32, shape=(3,))).empty(100)
    >>> len(rows), len(rows[10:20])
    (100, 10)
    """

    __slots__ = ("blocks", "columns", "fields", "heap", "layout", "records")

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
        # With fields in the order of the leaves, one assignment writes all leaves of one value.
        is_writable_whole = layout.has_plain_records and records.ndim == 1
        self.fields = records.view(layout.field_dtype) if is_writable_whole else None

    def __reduce__(self) -> tuple[type[Rows], tuple[Any, ...]]:
        return Rows, (self.layout, self.records, self.blocks, self.heap)  # so that columns are views of the copy, too

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `records`."""
        return self.records.shape

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Rows:
        """Part of the rows: views for ints and slices, copies for index arrays and masks. An int gives shape ()."""
        # with an ellipsis at the end, ints give an array of shape (), not a scalar that is cut off from the memory
        if isinstance(index, tuple):
            index = (*_without_ellipsis(index, self.records.ndim), ...)
        elif index is not Ellipsis:
            index = (index, ...)
        blocks = {name: block[index] for name, block in self.blocks.items()}
        return Rows(self.layout, self.records[index], blocks, self.heap)

    def take(self, indices: Any, mode: Literal["raise", "wrap"] = "raise") -> Rows:
        """The rows at these indices along the first axis, in memory of their own; mode as of `numpy.take`."""
        records = self.records.take(indices, 0, None, mode)
        if type(records) is np.void:  # one int gives a scalar
            return self[indices].copy()
        blocks = {name: block.take(indices, 0, None, mode) for name, block in self.blocks.items()}
        return Rows(self.layout, records, blocks, self.heap)

    def rearrange(self, windows: np.ndarray, places: np.ndarray) -> None:
        """Replace, in rows (B, T) that lie side by side, window `windows[i]` by its rows at `places[i]` (T,)."""
        records = self.records.view(_opaque(self.records.itemsize))  # copied whole, not field by field
        for array in (records, *self.blocks.values()):
            array[windows] = array[windows[:, None], places]

    def copy(self) -> Rows:
        """The same rows in memory of their own, but for the heap."""
        blocks = {name: block.copy() for name, block in self.blocks.items()}
        return Rows(self.layout, self.records.copy(), blocks, self.heap)


class RowLayout:
    """The fixed record of a space; see the module's docstring.

    Parameters
    ----------
    space
        The space of one value. It must not change afterwards (a `DictSpace` can).
    codecs
        How leaves lie in rows, by their paths, where they are not to lie as usual.

    Examples
    --------
    >>> from unienv_interface.space.row_layout import RowLayout
    >>> box = BoxSpace("numpy", -1, 1, np.float32, shape=(3,))
    >>> layout = RowLayout(DictSpace("numpy", {"pose": box, "speed": box}))
    >>> rows = layout.empty(100)
    >>> layout.pack(rows, 7, {"pose": np.zeros(3, np.float32), "speed": np.ones(3, np.float32)})
    >>> layout.gather(rows, np.array([7, 7]))["speed"].shape
    (2, 3)
    """

    def __init__(self, space: Space, codecs: Mapping[tuple[Any, ...], LeafCodec] | None = None) -> None:
        self.space, self._own_codecs = space, codecs or {}
        with_codecs = [(path, leaf, self._own_codecs.get(path) or leaf_codec(leaf)) for path, leaf in walk(space, ())]
        self.leaves: tuple[RowLeaf, ...] = tuple(
            RowLeaf(_field_name(path), path, leaf, _placement(codec), codec) for path, leaf, codec in with_codecs
        )
        self.names = [leaf.name for leaf in self.leaves]
        self.row_leaves = tuple(leaf for leaf in self.leaves if leaf.placement != "block")
        self.heap_leaves = tuple(leaf for leaf in self.leaves if leaf.placement == "heap")
        self.block_leaves = tuple(leaf for leaf in self.leaves if leaf.placement == "block")
        self.has_heap = any(leaf.placement == "heap" for leaf in self.leaves)
        self.dtype = _record_dtype(self.row_leaves)
        self.itemsize = self.dtype.itemsize
        self._codecs = [leaf.codec for leaf in self.leaves]
        # What each leaf has to be to go into its column as it is.
        self._checks = [_leaf_check(codec) for codec in self._codecs]
        self._last_batch_checks: tuple[tuple[int, ...], list[_LeafCheck]] = ((), self._checks)
        self._heap_codecs = [(i, codec) for i, codec in enumerate(self._codecs) if codec.in_heap]
        # The widest column of a batch is written first: it brings whole rows into the cache, one after the other.
        self._widest_first = sorted(range(len(self._codecs)), key=lambda i: -self._codecs[i].dtype.itemsize)
        self._fetch = leaf_fetcher(space)
        # For a dict of leaves, which is the usual sample, without the calls that lead to each of them.
        keys = [leaf.path[0] for leaf in self.leaves if len(leaf.path) == 1]
        is_flat = isinstance(space, DictSpace) and len(keys) == len(self.leaves) > 1
        self._flat_count = len(keys) if is_flat else -1
        self._fetch_flat: Callable[[Any], Sequence[Any]] = operator.itemgetter(*keys) if is_flat else self._fetch
        self._build = builder(space)
        # A plain column is the value itself; only the others need their codec.
        self._coded = [(i, codec) for i, codec in enumerate(self._codecs) if codec.plain_dtype is None]
        self._gathered_decoders = [(i, codec.gathered_decoder()) for i, codec in self._coded]
        self._is_gathered_whole = not self.block_leaves and not self.has_heap  # by one `take` of the records
        # Whether all of a value lies in its record, as it is.
        self.has_plain_records = not self.block_leaves and not self._coded
        self.field_dtype = _in_order(self.dtype, [leaf.name for leaf in self.row_leaves])
        # Of a space that is one plain array: what has just this dtype and shape may be assigned to its column, which
        # is for loops that write many small values. Else (None, ()).
        self.plain_value: tuple[np.dtype | None, tuple[int, ...]] = (None, ())
        if not isinstance(space, CompositeSpace) and not self._coded:
            self.plain_value = self._checks[0][:2]

    @classmethod
    def from_json(cls, json_data: Any, backend: BackendLike, device: Any = None) -> RowLayout:
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

    def __reduce__(self) -> tuple[type[RowLayout], tuple[Any, ...]]:
        return RowLayout, (self.space, self._own_codecs)

    def __repr__(self) -> str:
        blocks = f", blocks={[leaf.name for leaf in self.block_leaves]}" if self.block_leaves else ""
        heap = f", heap={[leaf.name for leaf in self.leaves if leaf.placement == 'heap']}" if self.has_heap else ""
        return f"RowLayout({self.space}, itemsize={self.itemsize}{blocks}{heap})"

    # -- memory --------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], heap: Heap | None = None) -> Rows:
        """Rows in this process's memory, their contents arbitrary (heap references are zero)."""
        if not isinstance(shape, int):
            shape = int(shape) if isinstance(shape, np.integer) else tuple(shape)
        blocks = (
            {leaf.name: np.empty(shape, leaf.codec.dtype) for leaf in self.block_leaves} if self.block_leaves else {}
        )
        records = np.zeros(shape, self.dtype) if self.has_heap else np.empty(shape, self.dtype)
        if heap is None and self.has_heap:
            heap = MemoryHeap()
        return Rows(self, records, blocks, heap)

    def wrap(
        self, records: np.ndarray, blocks: Mapping[str, np.ndarray] | None = None, heap: Heap | None = None
    ) -> Rows:
        """Rows over memory of the caller's."""
        if not isinstance(records, np.ndarray):
            raise TypeError(f"records are {type(records).__name__}, the layout wants an array of dtype {self.dtype}")
        if records.dtype != self.dtype:
            raise TypeError(f"records of dtype {records.dtype}, the layout wants {self.dtype}")
        blocks = {} if blocks is None else blocks
        for leaf in self.block_leaves:
            if leaf.name not in blocks:
                raise TypeError(f"block {leaf.name!r} is missing: this leaf has memory of its own")
            block, dtype = blocks[leaf.name], leaf.codec.dtype
            wanted = (dtype.base, records.shape + dtype.shape)
            if (block.dtype, block.shape) != wanted:
                raise TypeError(
                    f"block {leaf.name!r} of dtype {block.dtype} and shape {block.shape}, the layout and the records "
                    f"want {wanted[0]} and {wanted[1]}"
                )
        if self.has_heap:
            need_heap(heap)
        return Rows(self, records, blocks, heap)

    # -- values --------------------------------------------------------------------------------------------

    def pack(self, rows: Rows | np.ndarray, index: Any, data: Any) -> None:
        """Write a value, or a batch of values, to `rows[index]`.

        Structure, shapes and dtypes are checked, bounds are not (see `validate`). A value that does not fit is a
        ValueError with its path, and then nothing has been written. An index may be an int, a slice, an array of
        indices or a mask; the data's leading shape must be that of `rows[index]`, nothing is broadcast.
        """
        if type(rows) is not Rows:
            rows = self.wrap(rows)  # type: ignore[arg-type]
        if type(index) is int and type(data) is np.ndarray and rows.records.ndim == 1:
            dtype, shape = self.plain_value
            if data.dtype is dtype and data.shape == shape:  # all there is to it, without ceremony
                rows.columns[0][index] = data
                return
        if type(index) is tuple:
            index = _without_ellipsis(index, rows.records.ndim)
        encoded = self.encode(data, _selected_shape(rows.records.shape, index))
        self.write(rows, index, self.store(encoded, rows.heap))

    # The three steps of `pack`, for a caller that has something to do between them. Writing may be repeated.

    def encode(self, data: Any, lead: tuple[int, ...]) -> Sequence[Any]:
        """The leaves of a value, or of a batch of leading shape `lead`, as `store` and `write` take them.

        A value that does not fit is a ValueError with its path. Leaves of a batch can be sliced along its axes.
        """
        checks = self._checks
        if lead:
            known, checks = self._last_batch_checks
            if known != lead:
                checks = self._batch_checks(lead)
        try:
            if type(data) is dict and len(data) == self._flat_count:
                values = self._fetch_flat(data)
            else:
                values = self._fetch(data)
            for value, (dtype, shape, scalar, number, low, high) in zip(values, checks):  # noqa: B905 - of one length
                kind = type(value)
                if kind is np.ndarray:
                    if value.dtype is dtype and value.shape == shape:
                        continue
                elif kind is scalar or (kind is number and low <= value <= high):
                    continue
                return self._convert(values, checks, lead)
            return values  # all are right as they are, as nearly always
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(self._explain(data, lead, error)) from None

    def _convert(self, values: Sequence[Any], checks: Sequence[_LeafCheck], lead: tuple[int, ...]) -> list[Any]:
        """The leaves of a value, those that are not right as they are by way of their codec."""
        return [
            value
            if isinstance(value, np.ndarray) and (value.dtype, value.shape) == (dtype, shape)
            else codec.encode(value, lead)
            for value, (dtype, shape, *_), codec in zip(values, checks, self._codecs, strict=True)
        ]

    def check(self, data: Any, lead: tuple[int, ...]) -> None:
        """A ValueError with the path unless `encode` would take the data. Arrays stay on their device."""
        try:
            for value, codec in zip(self._fetch(data), self._codecs, strict=True):
                codec.check(value, lead)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(self._explain(data, lead, error)) from None

    def merge_lead(self, data: Any, lead: tuple[int, int]) -> Any:
        """A batch with two leading axes of these lengths as one with a single axis; a ValueError if it has others."""
        self.check(data, lead)
        return self._build([value.reshape((lead[0] * lead[1], *value.shape[2:])) for value in self._fetch(data)])

    def store(self, encoded: Sequence[Any], heap: Heap | None) -> Sequence[Any]:
        """The same leaves with what does not lie in the rows taken to the heap. If that is full, nothing is written."""
        if not self._heap_codecs:
            return encoded
        stored = list(encoded)
        for position, codec in self._heap_codecs:
            stored[position] = codec.store(stored[position], heap)
        return stored

    def write(self, rows: Rows, index: Any, encoded: Sequence[Any]) -> None:
        """Copy encoded and stored leaves to `rows[index]`, whose shape must be theirs."""
        if type(index) is int and rows.fields is not None:
            rows.fields[index] = tuple(encoded)
            return
        columns = rows.columns
        if not self._coded:
            for leaf in self._widest_first:
                columns[leaf][index] = encoded[leaf]
            return
        for leaf in self._widest_first:
            self._codecs[leaf].write(columns[leaf], index, encoded[leaf])

    def _batch_checks(self, lead: tuple[int, ...]) -> list[_LeafCheck]:
        """What the leaves of a batch have to be; remembered, since batches tend to be of one size."""
        checks: list[_LeafCheck] = [(dtype, lead + shape, Rows, Rows, 0, 0) for dtype, shape, *_ in self._checks]
        self._last_batch_checks = (lead, checks)
        return checks

    def gather(self, rows: Rows, indices: Any, mode: Literal["raise", "wrap"] = "raise") -> Any:
        """Read the values at these indices of the rows, in memory of their own.

        Parameters
        ----------
        rows
            Rows of this layout, along one axis.
        indices
            An int, or an integer array of any shape, whose axes the values then have in front.
        mode
            What an index out of range does, as of `numpy.take`.

        Returns
        -------
        value
            One value for an int, else a batch.
        """
        if not self._is_gathered_whole or not getattr(indices, "ndim", 0):
            return self.unpack(rows.take(indices, mode))
        records = rows.records.take(indices, 0, None, mode)
        columns: list[Any] = list(map(records.__getitem__, self.names))
        for position, decode in self._gathered_decoders:
            columns[position] = decode(columns[position])
        return self._build(columns)

    def gather_spans(self, rows: Rows, first: np.ndarray, count: int, patches: Sequence[Patch]) -> Any:
        """The values of `count` rows from each of these indices on, with two leading axes, copied span by span.

        All of them must be there: this is not looked at. Of each patch, a few at most, the values [begin, end) of a
        span are those of one row.
        """
        records = _take_spans(rows.records, first, count, patches)
        blocks = {name: _take_spans(block, first, count, patches) for name, block in rows.blocks.items()}
        spans = Rows(self, records, blocks, rows.heap)
        return self.unpack(spans) if self.has_heap else self.unpack_gathered(spans)

    def unpack_gathered(self, rows: Rows) -> Any:
        """`unpack` of rows that `Rows.take` has gathered, without a heap: decoders were bound to the layout."""
        return self.assemble_gathered(list(rows.columns))

    def assemble_gathered(self, columns: list[Any]) -> Any:
        """`assemble` of columns that were just gathered, each writable and in memory order; the list is used up."""
        for position, decode in self._gathered_decoders:
            columns[position] = decode(columns[position])
        return self._build(columns)

    def unpack(self, rows: Rows | np.ndarray) -> Any:
        """The value of the rows: one value for shape (), else a batch.

        NumPy and PyTorch arrays are views of the rows (of a copy, for PyTorch on read-only memory); JAX arrays,
        texts and values from the heap are new.
        """
        if type(rows) is not Rows:
            rows = self.wrap(rows)  # type: ignore[arg-type]
        return self.assemble(rows.columns, rows.heap)

    def copy_out(self, rows: Rows) -> Any:
        """The value of the rows, in memory of its own: `unpack(rows.copy())` at less cost."""
        if self.plain_value[0] is not None:
            return rows.columns[0].copy()
        if self.has_plain_records:
            return self._build([column.copy() for column in rows.columns])
        return self.unpack(rows.copy())

    def assemble(self, columns: Sequence[np.ndarray], heap: Heap | None = None) -> Any:
        """The value whose columns, in the order of `leaves`, these are."""
        if self._coded:
            columns = list(columns)
            for position, codec in self._coded:
                columns[position] = codec.decode(columns[position], heap)
        return self._build(columns)

    def _explain(self, data: Any, lead: tuple[int, ...], error: Exception) -> str:
        """Which leaf does not fit and why, found by walking the value again."""
        finding = structure_finding(self.space, data, "")
        if finding is not None:
            return finding
        for leaf, value in zip(self.leaves, self._fetch(data), strict=True):
            path = "/".join(map(str, leaf.path))
            try:
                leaf.codec.encode(value, lead, path)
            except ValueError as cause:
                return str(cause)
            except Exception as cause:
                return at_path(path, f"a value that cannot be looked at ({type(cause).__name__}: {cause})")
        return str(error)


def _take_spans(array: np.ndarray, first: np.ndarray, count: int, patches: Sequence[Patch]) -> np.ndarray:
    """See `RowLayout.gather_spans`; the elements of `array` lie side by side."""
    step, shape = array.strides[0], (len(first), count)
    spans: np.ndarray = np.ndarray(len(array) - count + 1, _opaque(step * count), array, 0, (step,))
    taken = spans[first]
    if patches:
        elements: np.ndarray = np.ndarray(len(array), _opaque(step), array)
        patched = taken.view(elements.dtype).reshape(shape)
        for span, begin, end, row in patches:
            patched[span, begin:end] = elements[row : row + 1]
    return taken.view(array.dtype).reshape(shape + array.shape[1:])


@functools.lru_cache(maxsize=64)
def _opaque(size: int) -> np.dtype:
    """The dtype of this many bytes as they are."""
    return np.dtype((np.void, size))


def _leaf_check(codec: LeafCodec) -> _LeafCheck:
    dtype, shape = codec.plain_dtype, codec.shape
    scalar = Rows if dtype is None or shape else dtype.type  # Rows stands for none
    return dtype, shape, scalar, codec.number_type or Rows, *codec.number_range


def _field_name(path: tuple[Any, ...]) -> str:
    """A name that no two paths share: keys joined by "/", with "/" and "~" in a key written as in JSON pointers."""
    if not path:
        return "value"
    return "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in path) or "~"  # NumPy renames ""


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


def _in_order(dtype: np.dtype, names: Sequence[str]) -> np.dtype:
    """The same record with its fields in another order."""
    fields: Mapping[str, Any] = dtype.fields or {}
    return np.dtype(
        {
            "names": list(names),
            "formats": [fields[name][0] for name in names],
            "offsets": [fields[name][1] for name in names],
            "itemsize": dtype.itemsize,
        }
    )


def _selected_shape(shape: tuple[int, ...], index: Any) -> tuple[int, ...]:
    """The leading shape of `rows[index]`, without touching the rows."""
    if len(shape) == 1:  # the common indices, without building an array to ask
        if type(index) is int:
            return ()
        if type(index) is slice:
            start, stop = index.start, index.stop
            if index.step is None and type(start) is int and type(stop) is int and 0 <= start <= stop <= shape[0]:
                return (stop - start,)
            return (len(range(*index.indices(shape[0]))),)
        if type(index) is np.ndarray and index.dtype.kind in "iu":
            return index.shape
    return np.broadcast_to(np.False_, shape)[index].shape


def _without_ellipsis(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """The same index of rows of `ndim` axes without "...", which would take in the axes of the leaves too."""
    places = [place for place, part in enumerate(index) if part is Ellipsis]
    if not places:
        return index
    used = sum(np.ndim(part) if np.asarray(part).dtype == bool else part is not None for part in index) - len(places)
    return (*index[: places[0]], *(slice(None),) * (ndim - used), *index[places[0] + 1 :])
