"""Any value as bytes and back, given its space: how values without a fixed size lie in a heap.

The bytes are little-endian, the same on every platform and for every backend. They carry no description of
themselves: the space that wrote them must read them.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ..backends import _dtypes
from ..backends.base import ComputeBackend
from ._dispatch import rule_per_space
from .space import Space
from .spaces import (
    ArraySpace,
    BatchedSpace,
    CompositeSpace,
    DynamicBoxSpace,
    GraphInstance,
    GraphSpace,
    TextSpace,
    UnionSpace,
)
from .spaces.batched import object_array
from .spaces.graph import fields_of

_LENGTH = struct.Struct("<Q")
_INDEX = struct.Struct("<I")


@rule_per_space
def value_to_bytes(space: Space, value: Any) -> bytes:
    """The bytes of a value of `space`."""


@rule_per_space
def value_from_bytes(space: Space, data: memoryview) -> Any:
    """The value whose bytes these are, in memory of its own."""


def _array_to_bytes(backend: ComputeBackend, dtype_name: str, array: Any) -> bytes:
    raw = backend.to_raw(array)
    return np.ascontiguousarray(raw, dtype=_dtypes.raw_dtype(dtype_name)).tobytes()


def _array_from_bytes(space: Space, dtype_name: str, shape: tuple[int, ...], data: memoryview) -> Any:
    raw = np.frombuffer(data, dtype=_dtypes.raw_dtype(dtype_name)).reshape(shape).copy()
    return space.backend.from_raw(raw, dtype_name, device=space.device)


def _shape_to_bytes(shape: Any) -> bytes:
    return np.asarray(tuple(shape), "<u4").tobytes()


def _split_shape(data: memoryview, ndim: int) -> tuple[tuple[int, ...], memoryview]:
    return tuple(np.frombuffer(data[: 4 * ndim], "<u4").tolist()), data[4 * ndim :]


def _join(parts: list[bytes]) -> bytes:
    """Parts one after the other, each behind its length."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def _split(data: memoryview) -> list[memoryview]:
    parts = []
    while len(data):
        (length,) = _LENGTH.unpack_from(data)
        parts.append(data[_LENGTH.size : _LENGTH.size + length])
        data = data[_LENGTH.size + length :]
    return parts


@value_to_bytes.register
def _(space: ArraySpace, value: Any) -> bytes:
    return _array_to_bytes(space.backend, space.dtype_name, value)


@value_from_bytes.register
def _(space: ArraySpace, data: memoryview) -> Any:
    return _array_from_bytes(space, space.dtype_name, space.shape, data)


@value_to_bytes.register
def _(space: DynamicBoxSpace, value: Any) -> bytes:
    return _shape_to_bytes(value.shape) + _array_to_bytes(space.backend, space.dtype_name, value)


@value_from_bytes.register
def _(space: DynamicBoxSpace, data: memoryview) -> Any:
    shape, rest = _split_shape(data, len(space.shape_low))
    return _array_from_bytes(space, space.dtype_name, shape, rest)


@value_to_bytes.register
def _(space: TextSpace, value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


@value_from_bytes.register
def _(space: TextSpace, data: memoryview) -> str:
    return bytes(data).decode("utf-8", "surrogatepass")


@value_to_bytes.register
def _(space: UnionSpace, value: tuple[int, Any]) -> bytes:
    index, chosen = value
    return _INDEX.pack(index) + value_to_bytes(space.spaces[index], chosen)


@value_from_bytes.register
def _(space: UnionSpace, data: memoryview) -> tuple[int, Any]:
    (index,) = _INDEX.unpack_from(data)
    return index, value_from_bytes(space.spaces[index], data[_INDEX.size :])


@value_to_bytes.register
def _(space: CompositeSpace, value: Any) -> bytes:
    pairs = zip(space.children, space.child_values(value), strict=True)
    return _join([value_to_bytes(child, part) for child, part in pairs])


@value_from_bytes.register
def _(space: CompositeSpace, data: memoryview) -> Any:
    pairs = zip(space.children, _split(data), strict=True)
    return space.build_value(value_from_bytes(child, part) for child, part in pairs)


@value_to_bytes.register
def _(space: BatchedSpace, value: np.ndarray) -> bytes:
    return _shape_to_bytes(value.shape) + _join([value_to_bytes(space.single_space, item) for item in value.flat])


@value_from_bytes.register
def _(space: BatchedSpace, data: memoryview) -> np.ndarray:
    shape, rest = _split_shape(data, len(space.batch_shape))
    return object_array(shape, (value_from_bytes(space.single_space, part) for part in _split(rest)))


def _graph_dtypes(space: GraphSpace) -> tuple[str, ...]:
    """The dtypes of a graph's arrays, in the order of their fields; counts and ends are 64-bit in bytes."""
    features = (space.node_feature_space, space.edge_feature_space)
    node, edge = ("uint8" if feature is None else feature.dtype_name for feature in features)
    return ("int64", "int64", node, edge, "int64")


@value_to_bytes.register
def _(space: GraphSpace, value: GraphInstance) -> bytes:
    parts = []
    for array, dtype in zip(fields_of(value), _graph_dtypes(space), strict=True):
        if array is None:
            parts.append(b"")
            continue
        shape = tuple(array.shape)
        head = bytes([len(shape) + 1]) + _shape_to_bytes(shape)
        parts.append(head + _array_to_bytes(space.backend, dtype, array))
    return _join(parts)


@value_from_bytes.register
def _(space: GraphSpace, data: memoryview) -> GraphInstance:
    arrays: list[Any] = []
    for part, dtype in zip(_split(data), _graph_dtypes(space), strict=True):
        if not len(part):
            arrays.append(None)
            continue
        shape, rest = _split_shape(part[1:], part[0] - 1)
        arrays.append(_array_from_bytes(space, dtype, shape, rest))
    return GraphInstance(*arrays)
