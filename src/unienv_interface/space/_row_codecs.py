"""How one leaf of a space lies in a row: its fixed format, and the way of its values in and out.

A codec owns no memory. Encoding happens before anything is written, so that a value that does not fit is refused
while the rows are still as they were; writing then only copies.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ..backends import _dtypes
from ..backends.numpy import NumpyComputeBackend
from .space import Space
from .spaces import ArraySpace, BatchedSpace, GraphInstance, GraphSpace, TextSpace
from .spaces.batched import object_array
from .spaces.graph import fields_of, stack_graphs, trim_graphs
from .value_bytes import value_from_bytes, value_to_bytes


class Heap(Protocol):
    """Append-only bytes beside the rows, for values without a fixed size."""

    def write(self, data: bytes) -> int:
        """Append the bytes and return the offset they begin at."""

    def read(self, offset: int, length: int) -> memoryview:
        """The bytes [offset, offset + length)."""


class MemoryHeap:
    """A heap in this process's memory."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        offset = len(self._data)
        self._data += data
        return offset

    def read(self, offset: int, length: int) -> memoryview:
        if offset + length > len(self._data):
            raise IndexError(f"bytes {offset} to {offset + length} of a heap of {len(self._data)}")
        return memoryview(bytes(self._data[offset : offset + length]))  # a view would forbid the heap to grow


class LeafCodec(abc.ABC):
    """The format of one leaf, for rows of any leading shape."""

    dtype: np.dtype  # of one value in a row, a subarray dtype where the value is an array
    shape: tuple[int, ...]  # of one value
    alignment: int  # in bytes; every column is then a legal strided view of every library
    in_heap = False
    plain_dtype: np.dtype | None = None  # of the elements, where a column of the rows is the value itself

    @abc.abstractmethod
    def encode(self, value: Any, lead: tuple[int, ...]) -> Any:
        """What can be assigned to a column of leading shape `lead`; a ValueError if the value does not fit."""

    def write(self, column: np.ndarray, index: Any, encoded: Any, heap: Heap | None) -> None:
        """Assign an encoded value."""
        column[index] = encoded

    @abc.abstractmethod
    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        """The values in a column."""


class ArrayCodec(LeafCodec):
    """Arrays of one shape and dtype: their bits."""

    def __init__(self, space: ArraySpace) -> None:
        self.space = space
        self.shape = space.shape
        self.raw = _dtypes.raw_dtype(space.dtype_name)
        self.dtype = np.dtype((self.raw, space.shape))
        self.alignment = self.raw.itemsize
        self._name = space.dtype_name
        self._is_foreign = space.dtype_name in _dtypes.FOREIGN_FLOATING
        if space.backend is NumpyComputeBackend and not self._is_foreign:
            self.plain_dtype = self.raw

    def encode(self, value: Any, lead: tuple[int, ...]) -> Any:
        shape = lead + self.shape
        if type(value) in (int, float, bool) and not shape:
            return self._encode_number(value)
        backend = self.space.backend
        if not backend.is_backendarray(value):
            raise ValueError(f"{type(value).__name__}, the space wants an array of {backend}")
        array = value if self.plain_dtype is not None else backend.to_raw(value)
        if array.dtype != self.raw or self._is_foreign:
            found = backend.dtype_name(value.dtype)
            if not _dtypes.can_cast_safely(found, self._name):
                raise ValueError(f"dtype {found}, the space wants {self._name}")
            if self._is_foreign and found != self._name:  # NumPy cannot cast to bits it knows nothing of
                array = backend.to_raw(backend.astype(value, self.space.dtype))
        if array.shape != shape:
            raise ValueError(f"shape {array.shape}, the space wants {shape}")
        return array

    def _encode_number(self, value: Any) -> Any:
        """A Python number for a scalar leaf: as wide as need be, but no fraction for integers."""
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        takes = {"bool": _dtypes.BOOLEAN, "int": _dtypes.INTEGER | _dtypes.FLOATING, "float": _dtypes.FLOATING}[kind]
        if self._name not in takes:
            raise ValueError(f"a Python {kind}, the space wants {self._name}")
        if kind == "int" and self._name in _dtypes.INTEGER:
            limits = np.iinfo(self._name)
            if not limits.min <= value <= limits.max:
                raise ValueError(f"value {value} does not fit {self._name}")
        if self._is_foreign:
            return self.space.backend.to_raw(self.space.backend.from_host(np.asarray(value), self.space.dtype))
        return value

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        return self.space.backend.from_raw(column, self._name, device=self.space.device)


class TextCodec(LeafCodec):
    """Texts of bounded length in a slot of that length: one byte a character for ASCII charsets, four otherwise."""

    def __init__(self, space: TextSpace, shape: tuple[int, ...]) -> None:
        self.space = space
        self.shape = shape
        charset = space.charset
        self.is_ascii = charset is not None and all(char.isascii() for char in charset)
        slot = max(space.max_length, 1)
        characters = np.dtype(f"S{slot}" if self.is_ascii else f"<U{slot}")
        # NumPy drops NULs at the end of a text, so where there may be any the length is kept too.
        self.keeps_length = charset is None or "\0" in charset
        self.alignment = 4 if self.keeps_length or not self.is_ascii else 1
        head = 4 if self.keeps_length else 0
        record = {"names": ["characters"], "formats": [characters], "offsets": [head]}
        if self.keeps_length:
            record = {"names": ["length", "characters"], "formats": ["<u4", characters], "offsets": [0, head]}
        itemsize = -(-(head + characters.itemsize) // self.alignment) * self.alignment
        self.dtype = np.dtype((np.dtype({**record, "itemsize": itemsize}), shape))

    def encode(self, value: Any, lead: tuple[int, ...]) -> np.ndarray:
        shape = lead + self.shape
        if isinstance(value, str):
            value = object_array((), [value])
        if not isinstance(value, np.ndarray) or value.dtype != object:
            raise ValueError(f"{type(value).__name__}, the space wants {'a string' if not shape else 'an array of strings'}")
        if value.shape != shape:
            raise ValueError(f"shape {value.shape}, the space wants {shape}")
        for text in value.flat:
            if not isinstance(text, str):
                raise ValueError(f"{type(text).__name__}, the space wants a string")
            if len(text) > self.space.max_length:
                raise ValueError(f"{len(text)} characters, the space wants at most {self.space.max_length}")
            if self.is_ascii and not text.isascii():
                raise ValueError(f"text {text!r} has characters outside the charset")
        return value

    def write(self, column: np.ndarray, index: Any, encoded: np.ndarray, heap: Heap | None) -> None:
        column["characters"][index] = encoded
        if self.keeps_length:
            column["length"][index] = object_array(encoded.shape, map(len, encoded.flat))

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        characters = column["characters"]
        texts = characters.astype(f"U{characters.dtype.itemsize}" if self.is_ascii else characters.dtype).astype(object)
        if self.keeps_length:
            lengths = column["length"]
            for place in np.ndindex(texts.shape):
                texts[place] = texts[place].ljust(int(lengths[place]), "\0")
        return texts if texts.shape else texts.item()


class HeapCodec(LeafCodec):
    """Values without a fixed size: offset and length in the row, their bytes in the heap."""

    in_heap = True
    dtype = np.dtype([("offset", "<u8"), ("length", "<u8")])
    shape = ()
    alignment = 8

    def __init__(self, space: Space) -> None:
        self.space = space

    def encode(self, value: Any, lead: tuple[int, ...]) -> np.ndarray:
        items = self.split(value, lead) if lead else [value]
        return object_array(lead, (value_to_bytes(self.space, item) for item in items))

    def split(self, value: Any, lead: tuple[int, ...]) -> Iterable[Any]:
        """The single values of a batch, in C order."""
        if not isinstance(value, np.ndarray) or value.dtype != object:
            raise ValueError(f"{type(value).__name__}, a batch of this space is a NumPy array of objects")
        if value.shape != lead:
            raise ValueError(f"shape {value.shape}, the rows want {lead}")
        return value.flat

    def join(self, values: np.ndarray) -> Any:
        """The batch of single values, given as an object array of its shape."""
        return values

    def write(self, column: np.ndarray, index: Any, encoded: np.ndarray, heap: Heap | None) -> None:
        if heap is None:
            raise TypeError("the layout has leaves in a heap, but the rows have none")
        places = np.empty(encoded.shape, self.dtype)
        for place in np.ndindex(encoded.shape):
            places[place] = (heap.write(encoded[place]), len(encoded[place]))
        column[index] = places

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        if heap is None:
            raise TypeError("the layout has leaves in a heap, but the rows have none")
        offsets, lengths = column["offset"], column["length"]
        values = object_array(
            column.shape,
            (
                value_from_bytes(self.space, heap.read(int(offsets[place]), int(lengths[place])))
                for place in np.ndindex(column.shape)
            ),
        )
        return self.join(values) if values.shape else values.item()


class GraphCodec(HeapCodec):
    """Graphs, whose batches are graphs with leading axes."""

    space: GraphSpace

    def split(self, value: Any, lead: tuple[int, ...]) -> Iterable[Any]:
        if not isinstance(value, GraphInstance):
            raise ValueError(f"{type(value).__name__}, the space wants a GraphInstance")
        found = tuple(value.n_nodes.shape[: len(lead)])
        if found != lead:
            raise ValueError(f"a batch of {found}, the rows want {lead}")
        for place in np.ndindex(lead):
            part = GraphInstance(*(None if array is None else array[place] for array in fields_of(value)))
            yield trim_graphs(self.space.backend, part)

    def join(self, values: np.ndarray) -> Any:
        batched = self.space.replace(batch_shape=(*values.shape, *self.space.batch_shape))
        return stack_graphs(batched, list(values.flat), values.shape) if values.size else batched.create_empty()


def leaf_codec(space: Space) -> LeafCodec:
    """The codec of a space that is not composite; what has no fixed size goes to the heap."""
    if isinstance(space, ArraySpace):
        return ArrayCodec(space)
    if isinstance(space, TextSpace):
        return TextCodec(space, ())
    if isinstance(space, BatchedSpace) and isinstance(space.single_space, TextSpace) and None not in space.batch_shape:
        return TextCodec(space.single_space, space.batch_shape)  # type: ignore[arg-type]
    return GraphCodec(space) if isinstance(space, GraphSpace) else HeapCodec(space)
