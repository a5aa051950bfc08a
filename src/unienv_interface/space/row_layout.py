"""Rows: one fixed, aligned record per value, for many values in one block of memory.

A `RowLayout` turns a space into a NumPy structured dtype whose fields are the leaves of the space. `Rows` are memory
(RAM, a mapped file, shared memory) in this layout. Reading a batch is one gather, and its columns are views.

The placement of a leaf is

- the row, if the leaf takes less than a page (4 KiB);
- a separate block, if it takes more, since storing an image beside other leaves gains nothing;
- a heap, if its size is not fixed (arrays whose shape varies, graphs, unions), with offset and length in the row.

The layout depends on the space alone, is little-endian, and is the same on every platform. Fields are ordered by
alignment, then by path. Each field is aligned to the size of its elements, so every column is a valid strided tensor.

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

Patch = tuple[int, int, int, int]  # span, begin, end, row: see `RowLayout.gather_spans`

PAGE_SIZE = 4096
# The values that a column takes without conversion: arrays of a dtype and shape, NumPy scalars of a type, Python
# numbers of a type from low to high.
_LeafCheck = tuple[np.dtype | None, tuple[int, ...], type, type, float, float]


@dataclass(frozen=True)
class RowLeaf:
    """One leaf of a space and its placement.

    Attributes
    ----------
    name
        The name of the field or the block: the path, such as "obs/rgb".
    path
        The keys from the root of the space to the leaf.
    space
        The space of the leaf.
    placement
        "row", "block" or "heap".
    codec
        The format of the leaf in its column.

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
    """Values of one space in memory, in its layout. The caller owns the arrays.

    Parameters
    ----------
    layout
        The layout of the values.
    records
        A structured array of any shape.
    blocks
        The arrays of the leaves in blocks, by name, each with the leading shape of `records`.
    heap
        The bytes of leaves without a fixed size; None without such leaves.

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
        # A view with the fields in the order of the leaves: one assignment of a tuple writes a value.
        has_fields = layout.has_plain_records and records.ndim == 1
        self.fields = records.view(layout.field_dtype) if has_fields else None

    def __reduce__(self) -> tuple[type[Rows], tuple[Any, ...]]:
        return Rows, (self.layout, self.records, self.blocks, self.heap)  # `columns` must be views of the copy

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `records`."""
        return self.records.shape

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Rows:
        """Select rows: views for ints and slices, copies for index arrays and masks. An int gives shape ()."""
        # with an ellipsis at the end, ints give an array of shape (), a view; without, they give a copied scalar
        if isinstance(index, tuple):
            index = (*_without_ellipsis(index, self.records.ndim), ...)
        elif index is not Ellipsis:
            index = (index, ...)
        blocks = {name: block[index] for name, block in self.blocks.items()}
        return Rows(self.layout, self.records[index], blocks, self.heap)

    def take(self, indices: Any, mode: Literal["raise", "wrap"] = "raise") -> Rows:
        """Copy the rows at indices along the first axis; mode as of `numpy.take`."""
        records = self.records.take(indices, 0, None, mode)
        if type(records) is np.void:  # one int gives a scalar
            return self[indices].copy()
        blocks = {name: block.take(indices, 0, None, mode) for name, block in self.blocks.items()}
        return Rows(self.layout, records, blocks, self.heap)

    def rearrange(self, windows: np.ndarray, positions: np.ndarray) -> None:
        """Reorder windows in contiguous rows (B, T): window `windows[i]` becomes its rows at `positions[i]` (T,)."""
        records = self.records.view(_opaque(self.records.itemsize))  # NumPy copies structured dtypes by field
        for array in (records, *self.blocks.values()):
            array[windows] = array[windows[:, None], positions]

    def copy(self) -> Rows:
        """Copy the rows; the copy shares the heap."""
        blocks = {name: block.copy() for name, block in self.blocks.items()}
        return Rows(self.layout, self.records.copy(), blocks, self.heap)


class RowLayout:
    """The fixed record of a space; see the module's docstring.

    Parameters
    ----------
    space
        The space of one value. It must not change afterwards (a `DictSpace` can).
    codecs
        Custom codecs of leaves, by path.

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
        self.space, self._custom_codecs = space, codecs or {}
        leaf_codecs = [
            (path, leaf, self._custom_codecs.get(path) or leaf_codec(leaf)) for path, leaf in walk(space, ())
        ]
        self.leaves: tuple[RowLeaf, ...] = tuple(
            RowLeaf(_field_name(path), path, leaf, _placement(codec), codec) for path, leaf, codec in leaf_codecs
        )
        self.names = [leaf.name for leaf in self.leaves]
        self.row_leaves = tuple(leaf for leaf in self.leaves if leaf.placement != "block")
        self.heap_leaves = tuple(leaf for leaf in self.leaves if leaf.placement == "heap")
        self.block_leaves = tuple(leaf for leaf in self.leaves if leaf.placement == "block")
        self.has_heap = any(leaf.placement == "heap" for leaf in self.leaves)
        self.dtype = _record_dtype(self.row_leaves)
        self.itemsize = self.dtype.itemsize
        self._codecs = [leaf.codec for leaf in self.leaves]
        self._checks = [_leaf_check(codec) for codec in self._codecs]
        self._last_batch_checks: tuple[tuple[int, ...], list[_LeafCheck]] = ((), self._checks)
        self._heap_codecs = [(i, codec) for i, codec in enumerate(self._codecs) if codec.in_heap]
        # Writing the widest column first brings whole rows into the cache.
        self._widest_first = sorted(range(len(self._codecs)), key=lambda i: -self._codecs[i].dtype.itemsize)
        self._fetch = leaf_fetcher(space)
        # A flat dict, the usual sample, is fetched by one itemgetter.
        keys = [leaf.path[0] for leaf in self.leaves if len(leaf.path) == 1]
        is_flat = isinstance(space, DictSpace) and len(keys) == len(self.leaves) > 1
        self._flat_count = len(keys) if is_flat else -1
        self._fetch_flat: Callable[[Any], Sequence[Any]] = operator.itemgetter(*keys) if is_flat else self._fetch
        self._build = builder(space)
        # A plain column is the value itself; the other columns need their codec.
        self._coded = [(i, codec) for i, codec in enumerate(self._codecs) if codec.plain_dtype is None]
        self._gathered_decoders = [(i, codec.gathered_decoder()) for i, codec in self._coded]
        self._is_in_records = not self.block_leaves and not self.has_heap  # so one `take` gathers all leaves
        # Whether a record holds all leaves of a value, all without a codec.
        self.has_plain_records = not self.block_leaves and not self._coded
        self.field_dtype = _in_order(self.dtype, [leaf.name for leaf in self.row_leaves])
        # Dtype and shape, if the space is one plain array, else (None, ()). Loops that write many small values assign
        # arrays of this dtype and shape directly to the column.
        self.plain_value: tuple[np.dtype | None, tuple[int, ...]] = (None, ())
        if not isinstance(space, CompositeSpace) and not self._coded:
            self.plain_value = self._checks[0][:2]

    @classmethod
    def from_json(cls, json_data: Any, backend: BackendLike, device: Any = None) -> RowLayout:
        """Make the layout of a space given as JSON."""
        from .space_utils.serialization_utils import json_to_space

        return cls(json_to_space(json_data, backend, device))

    @property
    def nbytes(self) -> int:
        """Bytes per value in the record and the blocks, without the heap."""
        return self.itemsize + sum(leaf.codec.dtype.itemsize for leaf in self.block_leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowLayout) and self.space == other.space

    def __hash__(self) -> int:
        return hash(self.space)

    def __reduce__(self) -> tuple[type[RowLayout], tuple[Any, ...]]:
        return RowLayout, (self.space, self._custom_codecs)

    def __repr__(self) -> str:
        blocks = f", blocks={[leaf.name for leaf in self.block_leaves]}" if self.block_leaves else ""
        heap = f", heap={[leaf.name for leaf in self.leaves if leaf.placement == 'heap']}" if self.has_heap else ""
        return f"RowLayout({self.space}, itemsize={self.itemsize}{blocks}{heap})"

    # -- memory --------------------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], heap: Heap | None = None) -> Rows:
        """Allocate rows with arbitrary contents (heap references are zero) in this process's memory."""
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
        """Make rows over memory of the caller.

        Raises
        ------
        TypeError
            The records or a block are of another dtype or shape than the layout wants.
        """
        if not isinstance(records, np.ndarray):
            raise TypeError(f"records are {type(records).__name__}, the layout wants an array of dtype {self.dtype}")
        if records.dtype != self.dtype:
            raise TypeError(f"records of dtype {records.dtype}, the layout wants {self.dtype}")
        blocks = {} if blocks is None else blocks
        for leaf in self.block_leaves:
            if leaf.name not in blocks:
                raise TypeError(f"block {leaf.name!r} is missing: this leaf is not part of the records")
            block, dtype = blocks[leaf.name], leaf.codec.dtype
            expected = (dtype.base, records.shape + dtype.shape)
            if (block.dtype, block.shape) != expected:
                raise TypeError(
                    f"block {leaf.name!r} of dtype {block.dtype} and shape {block.shape}, the layout and the records "
                    f"want {expected[0]} and {expected[1]}"
                )
        if self.has_heap:
            need_heap(heap)
        return Rows(self, records, blocks, heap)

    # -- values --------------------------------------------------------------------------------------------

    def pack(self, rows: Rows | np.ndarray, index: Any, data: Any) -> None:
        """Write a value, or a batch of values, to `rows[index]`.

        Checks structure, shapes and dtypes, but not bounds (see `validate`). Raises a ValueError with the path of a
        value that does not fit, before anything is written. The index is an int, a slice, an array of indices or a
        mask; the data must have the leading shape of `rows[index]`, without broadcasting.
        """
        if type(rows) is not Rows:
            rows = self.wrap(rows)  # type: ignore[arg-type]
        if type(index) is int and type(data) is np.ndarray and rows.records.ndim == 1:
            dtype, shape = self.plain_value
            if data.dtype is dtype and data.shape == shape:
                rows.columns[0][index] = data
                return
        if type(index) is tuple:
            index = _without_ellipsis(index, rows.records.ndim)
        encoded = self.encode(data, _selected_shape(rows.records.shape, index))
        self.write(rows, index, self.store(encoded, rows.heap))

    # The three steps of `pack`, for callers that act between the steps. `write` may be repeated.

    def encode(self, data: Any, lead: tuple[int, ...]) -> Sequence[Any]:
        """Convert a value, or a batch of leading shape `lead`, to encoded leaves for `store` and `write`.

        Raises a ValueError with the path of a value that does not fit. Encoded leaves of a batch can be sliced.
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
            return values  # nearly always, no leaf needs conversion
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(self._explain(data, lead, error)) from None

    def _convert(self, values: Sequence[Any], checks: Sequence[_LeafCheck], lead: tuple[int, ...]) -> list[Any]:
        """Encode the leaves that need conversion with their codec."""
        return [
            value
            if isinstance(value, np.ndarray) and (value.dtype, value.shape) == (dtype, shape)
            else codec.encode(value, lead)
            for value, (dtype, shape, *_), codec in zip(values, checks, self._codecs, strict=True)
        ]

    def check(self, data: Any, lead: tuple[int, ...]) -> None:
        """Raise a ValueError with the path if `encode` would reject the data. Arrays stay on their device."""
        try:
            for value, codec in zip(self._fetch(data), self._codecs, strict=True):
                codec.check(value, lead)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(self._explain(data, lead, error)) from None

    def merge_lead(self, data: Any, lead: tuple[int, int]) -> Any:
        """Merge the two leading axes, of lengths `lead`, of a batch; raises a ValueError for other lengths."""
        self.check(data, lead)
        return self._build([value.reshape((lead[0] * lead[1], *value.shape[2:])) for value in self._fetch(data)])

    def store(self, encoded: Sequence[Any], heap: Heap | None) -> Sequence[Any]:
        """Write leaves without a fixed size to the heap; returns the encoded leaves with their references."""
        if not self._heap_codecs:
            return encoded
        stored = list(encoded)
        for position, codec in self._heap_codecs:
            stored[position] = codec.store(stored[position], heap)
        return stored

    def write(self, rows: Rows, index: Any, encoded: Sequence[Any]) -> None:
        """Copy encoded and stored leaves to `rows[index]`, which must have their leading shape."""
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
        """The checks of the leaves of a batch; cached, since most batches have the same size."""
        checks: list[_LeafCheck] = [(dtype, lead + shape, Rows, Rows, 0, 0) for dtype, shape, *_ in self._checks]
        self._last_batch_checks = (lead, checks)
        return checks

    def gather(self, rows: Rows, indices: Any, mode: Literal["raise", "wrap"] = "raise") -> Any:
        """Copy the values at indices of the rows.

        Parameters
        ----------
        rows
            Rows of this layout, along one axis.
        indices
            An int, or an integer array of any shape, the leading shape of the result.
        mode
            The treatment of indices out of range, as in `numpy.take`.

        Returns
        -------
        value
            One value for an int, else a batch.
        """
        if not self._is_in_records or not getattr(indices, "ndim", 0):
            return self.unpack(rows.take(indices, mode))
        records = rows.records.take(indices, 0, None, mode)
        columns: list[Any] = list(map(records.__getitem__, self.names))
        for position, decode in self._gathered_decoders:
            columns[position] = decode(columns[position])
        return self._build(columns)

    def gather_spans(self, rows: Rows, first: np.ndarray, count: int, patches: Sequence[Patch]) -> Any:
        """Copy spans of `count` rows, one from each index in `first`; the batch has two leading axes.

        The spans must lie within the rows: this is not checked. A patch (span, begin, end, row) sets the values
        [begin, end) of a span to one row; there are few patches.
        """
        records = _take_spans(rows.records, first, count, patches)
        blocks = {name: _take_spans(block, first, count, patches) for name, block in rows.blocks.items()}
        spans = Rows(self, records, blocks, rows.heap)
        return self.unpack(spans) if self.has_heap else self.unpack_gathered(spans)

    def unpack_gathered(self, rows: Rows) -> Any:
        """`unpack` for rows just gathered by `Rows.take`, without a heap; faster than `unpack`."""
        return self.assemble_gathered(list(rows.columns))

    def assemble_gathered(self, columns: list[Any]) -> Any:
        """`assemble` for columns just gathered, each writable and contiguous; changes the list `columns`."""
        for position, decode in self._gathered_decoders:
            columns[position] = decode(columns[position])
        return self._build(columns)

    def unpack(self, rows: Rows | np.ndarray) -> Any:
        """Read the value of the rows: one value for shape (), else a batch.

        NumPy and PyTorch arrays are views of the rows (PyTorch copies read-only memory); JAX arrays, texts and values
        from the heap are copies.
        """
        if type(rows) is not Rows:
            rows = self.wrap(rows)  # type: ignore[arg-type]
        return self.assemble(rows.columns, rows.heap)

    def copy_out(self, rows: Rows) -> Any:
        """Copy the value of the rows: a faster `unpack(rows.copy())`."""
        if self.plain_value[0] is not None:
            return rows.columns[0].copy()
        if self.has_plain_records:
            return self._build([column.copy() for column in rows.columns])
        return self.unpack(rows.copy())

    def assemble(self, columns: Sequence[np.ndarray], heap: Heap | None = None) -> Any:
        """Build a value from its columns, in the order of `leaves`."""
        if self._coded:
            columns = list(columns)
            for position, codec in self._coded:
                columns[position] = codec.decode(columns[position], heap)
        return self._build(columns)

    def _explain(self, data: Any, lead: tuple[int, ...], error: Exception) -> str:
        """Walk the value again to find the first leaf that does not fit, and say why."""
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
    """`RowLayout.gather_spans` for a contiguous array."""
    step, shape = array.strides[0], (len(first), count)
    spans: np.ndarray = np.ndarray(len(array) - count + 1, _opaque(step * count), array, 0, (step,))
    selected = spans[first]
    if patches:
        elements: np.ndarray = np.ndarray(len(array), _opaque(step), array)
        patched = selected.view(elements.dtype).reshape(shape)
        for span, begin, end, row in patches:
            patched[span, begin:end] = elements[row : row + 1]
    return selected.view(array.dtype).reshape(shape + array.shape[1:])


@functools.lru_cache(maxsize=64)
def _opaque(size: int) -> np.dtype:
    """The dtype of `size` raw bytes."""
    return np.dtype((np.void, size))


def _leaf_check(codec: LeafCodec) -> _LeafCheck:
    dtype, shape = codec.plain_dtype, codec.shape
    scalar = Rows if dtype is None or shape else dtype.type  # Rows: a type that no leaf has
    return dtype, shape, scalar, codec.number_type or Rows, *codec.number_range


def _field_name(path: tuple[Any, ...]) -> str:
    """A unique name of a path: keys joined by "/", with "/" and "~" in keys escaped as in JSON pointers."""
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
    itemsize = max(-(-end // widest) * widest, widest)  # at least one byte, also for an empty space
    return np.dtype(
        {
            "names": [leaf.name for leaf in ordered],
            "formats": [leaf.codec.dtype for leaf in ordered],
            "offsets": offsets,
            "itemsize": itemsize,
        }
    )


def _in_order(dtype: np.dtype, names: Sequence[str]) -> np.dtype:
    """The same record dtype with its fields in another order."""
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
    """The leading shape of `rows[index]`, without reading rows."""
    if len(shape) == 1:  # the common indices, without building an array
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
    """Replace "..." in an index of rows of `ndim` axes, since it would also cover the axes of the leaves."""
    positions = [axis for axis, item in enumerate(index) if item is Ellipsis]
    if not positions:
        return index
    used = sum(np.ndim(item) if np.asarray(item).dtype == bool else item is not None for item in index) - len(positions)
    return (*index[: positions[0]], *(slice(None),) * (ndim - used), *index[positions[0] + 1 :])
