"""Codecs: the fixed format of a leaf in a row, and the conversion of its values.

A codec owns no memory. `encode` and `store` run before `write`: a value that does not fit, or for which the heap has
no space, raises an error before the rows change. `write` only copies.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from ..backends import dtypes
from ..backends.numpy import NumpyComputeBackend
from .mismatch import at_path, join_path
from .space import Space
from .spaces import ArraySpace, BatchedSpace, GraphInstance, GraphSpace, TextSpace
from .spaces.array import array_mismatch
from .spaces.batched import object_array
from .spaces.graph import fields_of, stack_graphs, trim_graphs
from .value_bytes import raw_array, value_from_bytes, value_to_bytes


class Heap(Protocol):
    """Append-only bytes for values without a fixed size, which rows refer to."""

    def write(self, data: bytes) -> int:
        """Append bytes and return their offset."""

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
            raise IndexError(f"bytes {offset} to {offset + length} are beyond the {len(self._data)} bytes of the heap")
        return memoryview(bytes(self._data[offset : offset + length]))  # a bytearray cannot grow while viewed


class LeafCodec(abc.ABC):
    """The format of one leaf, for rows of any leading shape."""

    dtype: np.dtype  # of one value in a row; a subarray dtype for arrays
    shape: tuple[int, ...]  # of one value
    alignment: int  # in bytes; makes every column a valid strided array in every library
    in_heap = False
    plain_dtype: np.dtype | None = None  # of the elements, if a column is the value itself
    number_type: type | None = None  # Python numbers of this type and range go into a column without conversion
    number_range: tuple[float, float] = (0, 0)

    @abc.abstractmethod
    def encode(self, value: Any, lead: tuple[int, ...], path: str = "") -> Any:
        """Convert a value for `write` to a column of leading shape `lead`; raises a ValueError if it does not fit."""

    def check(self, value: Any, lead: tuple[int, ...]) -> None:
        """Raise a ValueError if `encode` would reject the value."""
        self.encode(value, lead)

    def store(self, encoded: Any, heap: Heap | None) -> Any:
        """Write values without a fixed size to the heap and return their references; other codecs do nothing."""
        return encoded

    def write(self, column: np.ndarray, index: Any, encoded: Any) -> None:
        """Assign an encoded and stored value to a column."""
        column[index] = encoded

    @abc.abstractmethod
    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        """Convert a column to a value of the space."""

    def gathered_decoder(self) -> Callable[[np.ndarray], Any]:
        """Make a faster `decode` for columns just gathered: writable, contiguous, without a heap."""
        return functools.partial(self.decode, heap=None)


# -- arrays ------------------------------------------------------------------------------------------------


class ArrayCodec(LeafCodec):
    """The codec of arrays of one shape and dtype, stored bit by bit.

    Parameters
    ----------
    space
        The space of the leaf.
    """

    def __init__(self, space: ArraySpace) -> None:
        self.space = space
        self.shape = space.shape
        self.raw = dtypes.raw_dtype(space.dtype_name)
        self.dtype = np.dtype((self.raw, space.shape))
        self.alignment = self.raw.itemsize
        self._name = space.dtype_name
        self._is_foreign = space.dtype_name in dtypes.FOREIGN_FLOATING
        if space.backend is NumpyComputeBackend and not self._is_foreign:
            self.plain_dtype = self.raw
        self._numbers, self._largest, self._smallest = _python_numbers(self._name)
        if not self.shape and self.plain_dtype is not None and self._numbers:
            self.number_type, self.number_range = self._numbers[-1], (self._smallest, self._largest)

    def encode(self, value: Any, lead: tuple[int, ...], path: str = "") -> Any:
        shape = lead + self.shape
        if type(value) in (int, float, bool) and not shape:
            return self._encode_number(value, path)
        finding = array_mismatch(self.space.backend, self._name, value, path, shape)
        if finding is not None:
            raise ValueError(finding)
        return raw_array(self.space.backend, self._name, value)

    def check(self, value: Any, lead: tuple[int, ...]) -> None:
        if type(value) in (int, float, bool) and not lead + self.shape:
            self._encode_number(value, "")
        elif (finding := array_mismatch(self.space.backend, self._name, value, "", lead + self.shape)) is not None:
            raise ValueError(finding)

    def _encode_number(self, value: Any, path: str) -> Any:
        """Convert a Python number for a scalar leaf; floats are rounded to the dtype, integers take no fractions."""
        if type(value) not in self._numbers:
            raise ValueError(at_path(path, f"a Python {type(value).__name__}, the space wants {self._name}"))
        if not self._smallest <= value <= self._largest and (type(value) is int or math.isfinite(value)):
            raise ValueError(at_path(path, f"value {value} does not fit {self._name}"))
        if self._is_foreign:
            return self.space.backend.to_raw(self.space.backend.from_host(np.asarray(value), self.space.dtype))
        return value

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        from_raw, device = self.space.backend.from_raw, self.space.device
        try:
            return from_raw(column, self._name, device=device)
        except ValueError:  # rows in reverse order: PyTorch has no negative strides
            return from_raw(column.copy(), self._name, device=device)

    def gathered_decoder(self) -> Callable[[np.ndarray], Any]:
        return self.space.backend.raw_decoder(self._name, device=self.space.device)


def _python_numbers(dtype_name: str) -> tuple[tuple[type, ...], float, float]:
    """The types of Python numbers that a dtype takes, and its largest and smallest finite numbers."""
    if dtype_name in dtypes.INTEGER:
        limits = np.iinfo(dtype_name)
        return (int,), int(limits.max), int(limits.min)
    if dtype_name in dtypes.FLOATING:
        most = _LARGEST_BFLOAT16 if dtype_name == "bfloat16" else float(np.finfo(dtype_name).max)
        return (int, float), most, -most
    return (bool,) if dtype_name in dtypes.BOOLEAN else (), 1, 0


_LARGEST_BFLOAT16 = float.fromhex("0x1.fep127")


# -- texts -------------------------------------------------------------------------------------------------


class TextCodec(LeafCodec):
    """The codec of texts: a fixed number of characters, of one byte for ASCII charsets, of four bytes otherwise."""

    def __init__(self, space: TextSpace, shape: tuple[int, ...]) -> None:
        self.space = space
        self.shape = shape
        charset = space.charset
        self.is_ascii = charset is not None and all(char.isascii() for char in charset)
        slot = max(space.max_length, 1)
        characters = np.dtype(f"S{slot}" if self.is_ascii else f"<U{slot}")
        # NumPy drops NULs at the end of a text: if the charset has NUL, the length is stored, too.
        self.keeps_length = charset is None or "\0" in charset
        self.alignment = 4 if self.keeps_length or not self.is_ascii else 1
        names, formats, offsets = ["characters"], [characters], [0]
        if self.keeps_length:
            names, formats, offsets = ["length", "characters"], [np.dtype("<u4"), characters], [0, 4]
        end = offsets[-1] + characters.itemsize
        itemsize = -(-end // self.alignment) * self.alignment
        record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})
        self.dtype = np.dtype((record, shape))

    def encode(self, value: Any, lead: tuple[int, ...], path: str = "") -> np.ndarray:
        shape = lead + self.shape
        if isinstance(value, str):
            value = object_array((), [value])
        if not isinstance(value, np.ndarray) or value.dtype != object:
            expected = "a string" if not shape else "a NumPy array of strings as objects"
            raise ValueError(at_path(path, f"{type(value).__name__}, the space wants {expected}"))
        if value.shape != shape:
            raise ValueError(at_path(path, f"shape {value.shape}, the space wants {shape}"))
        for text in value.flat:
            self._check(text, path)
        return value

    def _check(self, text: Any, path: str) -> None:
        if not isinstance(text, str):
            raise ValueError(at_path(path, f"{type(text).__name__}, the space wants a string"))
        if len(text) > self.space.max_length:
            finding = f"{len(text)} characters, the space wants at most {self.space.max_length}"
            raise ValueError(at_path(path, finding))
        if (self.is_ascii and not text.isascii()) or (not self.keeps_length and text.endswith("\0")):
            raise ValueError(at_path(path, f"text {text!r} has characters outside the charset"))

    def write(self, column: np.ndarray, index: Any, encoded: np.ndarray) -> None:
        column["characters"][index] = encoded
        if self.keeps_length:
            column["length"][index] = object_array(encoded.shape, map(len, encoded.flat))

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        characters = column["characters"]
        texts = characters.astype(f"U{characters.dtype.itemsize}" if self.is_ascii else characters.dtype).astype(object)
        if self.keeps_length:
            lengths = column["length"]
            if lengths.size and lengths.max() > self.space.max_length:
                raise ValueError(
                    f"a text of {lengths.max()} characters in a slot of {self.space.max_length}: "
                    "the row was never written, or is damaged"
                )
            for index in np.ndindex(texts.shape):
                texts[index] = texts[index].ljust(int(lengths[index]), "\0")
        return texts if texts.shape else texts.item()


# -- values without a fixed size ---------------------------------------------------------------------------


class HeapCodec(LeafCodec):
    """The codec of values without a fixed size, or arrays of them: offset and length in the row, bytes in the heap.

    Parameters
    ----------
    space
        The space of a single value.
    shape
        The shape of the array of values; () for one value.
    """

    in_heap = True
    alignment = 8
    reference = np.dtype([("offset", "<u8"), ("length", "<u8")])

    def __init__(self, space: Space, shape: tuple[int, ...] = ()) -> None:
        self.space = space
        self.shape = shape
        self.dtype = np.dtype((self.reference, shape))

    def encode(self, value: Any, lead: tuple[int, ...], path: str = "") -> np.ndarray:
        shape = lead + self.shape
        if not shape:
            return object_array((), [value_to_bytes(self.space, value, path)])
        indexed = zip(self.split(value, shape, path), np.ndindex(shape), strict=True)
        return object_array(
            shape, (value_to_bytes(self.space, item, join_path(path, list(index))) for item, index in indexed)
        )

    def split(self, value: Any, shape: tuple[int, ...], path: str) -> Iterable[Any]:
        """Split a batch into single values, in C order."""
        if not isinstance(value, np.ndarray) or value.dtype != object:
            finding = f"{type(value).__name__}, a batch of this space is a NumPy array of objects"
            raise ValueError(at_path(path, finding))
        if value.shape != shape:
            raise ValueError(at_path(path, f"shape {value.shape}, the space wants {shape}"))
        return value.flat

    def join(self, values: np.ndarray) -> Any:
        """Join single values, in an object array of the batch's shape, to a batch."""
        return values

    def store(self, encoded: np.ndarray, heap: Heap | None) -> np.ndarray:
        write = need_heap(heap).write
        references = np.empty(encoded.shape, self.reference)
        for index in np.ndindex(encoded.shape):
            references[index] = (write(encoded[index]), len(encoded[index]))
        return references

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        read = need_heap(heap).read
        offsets, lengths = column["offset"], column["length"]
        values = object_array(
            column.shape,
            (
                value_from_bytes(self.space, read(int(offsets[index]), int(lengths[index])))
                for index in np.ndindex(column.shape)
            ),
        )
        return self.join(values) if values.shape else values.item()


def need_heap(heap: Heap | None) -> Heap:
    """The heap of rows that need one.

    Parameters
    ----------
    heap
        The heap, or None.

    Returns
    -------
    Heap
        The heap.

    Raises
    ------
    TypeError
        The heap is None.
    """
    if heap is None:
        raise TypeError("the layout has leaves in a heap, but the rows have no heap: pass one")
    return heap


class GraphCodec(HeapCodec):
    """The codec of graphs, whose batches are graphs with leading axes."""

    space: GraphSpace

    def split(self, value: Any, shape: tuple[int, ...], path: str) -> Iterable[Any]:
        if not isinstance(value, GraphInstance):
            raise ValueError(at_path(path, f"{type(value).__name__}, the space wants a GraphInstance"))
        arrays = [array for array in fields_of(value) if array is not None]
        for array in arrays:
            leading = tuple(getattr(array, "shape", ()))[: len(shape)]
            if leading != shape:
                raise ValueError(at_path(path, f"a batch of {leading}, the rows want {shape}"))
        for index in np.ndindex(shape):
            graph = GraphInstance(*(None if array is None else array[index] for array in fields_of(value)))
            yield trim_graphs(self.space.backend, graph)

    def join(self, values: np.ndarray) -> Any:
        batched = self.space.replace(batch_shape=(*values.shape, *self.space.batch_shape))
        return stack_graphs(batched, list(values.flat), values.shape) if values.size else batched.create_empty()


def leaf_codec(space: Space) -> LeafCodec:
    """The codec of a space that is not composite; values without a fixed size go to the heap."""
    if isinstance(space, ArraySpace):
        return ArrayCodec(space)
    if isinstance(space, TextSpace):
        return TextCodec(space, ())
    if isinstance(space, BatchedSpace) and space.batch_shape and None not in space.batch_shape:
        shape: Any = space.batch_shape
        if isinstance(space.single_space, TextSpace):
            return TextCodec(space.single_space, shape)
        return HeapCodec(space.single_space, shape)
    return GraphCodec(space) if isinstance(space, GraphSpace) else HeapCodec(space)
