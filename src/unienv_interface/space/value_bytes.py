"""Convert values to bytes and back: the format of values without a fixed size in a heap.

The bytes are little-endian, and the same on every platform and backend. They do not describe themselves: reading needs
the space that wrote them. Writing checks structure, shapes and dtypes, but not bounds. Reading checks the bytes:
truncated, surplus or invalid bytes raise a ValueError, and a value that was read gives the same bytes when written.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from ..backends import dtypes
from ..backends.base import ComputeBackend
from .dispatch import rule_per_space
from .mismatch import at_path, join_path
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
from .spaces.array import array_mismatch
from .spaces.batched import object_array
from .spaces.graph import fields_of

Buffer = bytes | memoryview

_LENGTH = struct.Struct("<Q")


@rule_per_space
def value_to_bytes(space: Space, value: Any, path: str = "") -> bytes:  # type: ignore[empty-body]
    """Convert a value of `space` to bytes; raises a ValueError with the path if the value does not fit."""


@rule_per_space
def value_from_bytes(space: Space, data: Buffer, path: str = "") -> Any:
    """Convert bytes to a new value of `space`; raises a ValueError with the path if the bytes are invalid."""


def raw_array(backend: ComputeBackend, dtype_name: str, array: Any) -> np.ndarray:
    """The bits of an array of the named dtype, or of a dtype that can be cast to it safely."""
    if dtype_name in dtypes.FOREIGN_FLOATING and backend.dtype_name(array.dtype) != dtype_name:
        array = backend.astype(array, backend.dtype_from_name(dtype_name))  # NumPy cannot cast to bfloat16
    return backend.to_raw(array)


# -- arrays, numbers and chunks ----------------------------------------------------------------------------


def _array_to_bytes(
    space: Space, dtype_name: str, array: Any, path: str, shape: tuple[int, ...] | None = None
) -> bytes:
    finding = array_mismatch(space.backend, dtype_name, array, path, shape)
    if finding is not None:
        raise ValueError(finding)
    raw = raw_array(space.backend, dtype_name, array)
    return np.ascontiguousarray(raw, dtype=dtypes.raw_dtype(dtype_name)).tobytes()


def _raw_from_bytes(dtype_name: str, shape: tuple[int, ...], data: Buffer, path: str) -> np.ndarray:
    dtype = dtypes.raw_dtype(dtype_name)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(at_path(path, f"{len(data)} bytes, an array of {dtype_name} and shape {shape} has {expected}"))
    raw: np.ndarray = np.ndarray(shape, dtype, data).copy()
    if dtype_name in dtypes.BOOLEAN and raw.size and raw.view(np.uint8).max() > 1:
        raise ValueError(at_path(path, f"byte {raw.view(np.uint8).max()} in an array of booleans"))
    return raw


def _array_from_bytes(space: Space, dtype_name: str, shape: tuple[int, ...], data: Buffer, path: str) -> Any:
    raw = _raw_from_bytes(dtype_name, shape, data, path)
    return space.backend.from_raw(raw, dtype_name, device=space.device)


def _numbers_to_bytes(*numbers: int) -> bytes:
    """The header of a value: its shape, its length or its alternative."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _split_numbers(data: Buffer, count: int, path: str) -> tuple[tuple[int, ...], Buffer]:
    """Split bytes into the numbers of the header and the remaining bytes."""
    head = struct.Struct(f"<{count}I")
    if len(data) < head.size:
        raise ValueError(at_path(path, f"{len(data)} bytes, the {count} numbers in front alone have {head.size}"))
    return head.unpack_from(data), data[head.size :]


def _join(chunks: list[bytes]) -> bytes:
    """Join chunks, each after its length."""
    return b"".join(piece for chunk in chunks for piece in (_LENGTH.pack(len(chunk)), chunk))


def _split(data: Buffer, count: int, path: str) -> list[Buffer]:
    """The inverse of `_join` for `count` chunks."""
    chunks: list[Buffer] = []
    while len(data):
        if len(data) < _LENGTH.size:
            raise ValueError(at_path(path, f"{len(data)} bytes left over"))
        (length,) = _LENGTH.unpack_from(data)
        data = data[_LENGTH.size :]
        if length > len(data):
            raise ValueError(at_path(path, f"a chunk of {length} bytes, but only {len(data)} are left"))
        chunks.append(data[:length])
        data = data[length:]
    if len(chunks) != count:
        raise ValueError(at_path(path, f"{len(chunks)} chunks, the space wants {count}"))
    return chunks


# -- arrays and texts --------------------------------------------------------------------------------------


@value_to_bytes.register
def _(space: ArraySpace, value: Any, path: str = "") -> bytes:
    return _array_to_bytes(space, space.dtype_name, value, path, space.shape)


@value_from_bytes.register
def _(space: ArraySpace, data: Buffer, path: str = "") -> Any:
    return _array_from_bytes(space, space.dtype_name, space.shape, data, path)


def _check_size(space: DynamicBoxSpace, shape: tuple[int, ...], path: str) -> None:
    if not space.shape_contains(shape):
        raise ValueError(at_path(path, f"shape {shape}, the space wants {space.shape_low} to {space.shape_high}"))


@value_to_bytes.register
def _(space: DynamicBoxSpace, value: Any, path: str = "") -> bytes:
    encoded = _array_to_bytes(space, space.dtype_name, value, path)
    _check_size(space, tuple(value.shape), path)
    return _numbers_to_bytes(*value.shape) + encoded


@value_from_bytes.register
def _(space: DynamicBoxSpace, data: Buffer, path: str = "") -> Any:
    shape, remaining = _split_numbers(data, len(space.shape_low), path)
    _check_size(space, shape, path)
    return _array_from_bytes(space, space.dtype_name, shape, remaining, path)


def _check_text(space: TextSpace, text: Any, path: str) -> str:
    if not isinstance(text, str):
        raise ValueError(at_path(path, f"{type(text).__name__}, the space wants a string"))
    if len(text) > space.max_length:
        raise ValueError(at_path(path, f"{len(text)} characters, the space wants at most {space.max_length}"))
    return text


@value_to_bytes.register
def _(space: TextSpace, value: str, path: str = "") -> bytes:
    text = _check_text(space, value, path)
    return _numbers_to_bytes(len(text)) + text.encode("utf-8", "surrogatepass")


@value_from_bytes.register
def _(space: TextSpace, data: Buffer, path: str = "") -> str:
    (length,), remaining = _split_numbers(data, 1, path)
    try:
        text = bytes(remaining).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError(at_path(path, f"not the bytes of a text: {error}")) from None
    if len(text) != length:
        raise ValueError(at_path(path, f"{len(text)} characters, not {length} as was written"))
    return _check_text(space, text, path)


# -- unions, composite spaces and batches ------------------------------------------------------------------


def _alternative(space: UnionSpace, index: Any, path: str) -> Space:
    is_integer = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
    if not is_integer or not 0 <= index < len(space.spaces):
        raise ValueError(at_path(path, f"alternative {index!r}, the space has 0 to {len(space.spaces) - 1}"))
    return space.spaces[index]


@value_to_bytes.register
def _(space: UnionSpace, value: tuple[int, Any], path: str = "") -> bytes:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(at_path(path, f"{type(value).__name__}, the space wants a pair of an index and a value"))
    index, chosen = value
    alternative = _alternative(space, index, path)
    return _numbers_to_bytes(index) + value_to_bytes(alternative, chosen, join_path(path, index))


@value_from_bytes.register
def _(space: UnionSpace, data: Buffer, path: str = "") -> tuple[int, Any]:
    (index,), remaining = _split_numbers(data, 1, path)
    alternative = _alternative(space, index, path)
    return index, value_from_bytes(alternative, remaining, join_path(path, index))


@value_to_bytes.register
def _(space: CompositeSpace, value: Any, path: str = "") -> bytes:
    finding = space.structure_mismatch(value, path)
    if finding is not None:
        raise ValueError(finding)
    pairs = zip(space.child_items(), space.child_values(value), strict=True)
    return _join([value_to_bytes(child, leaf, join_path(path, key)) for (key, child), leaf in pairs])


@value_from_bytes.register
def _(space: CompositeSpace, data: Buffer, path: str = "") -> Any:
    items = space.child_items()
    pairs = zip(items, _split(data, len(items), path), strict=True)
    return space.build_value(value_from_bytes(child, chunk, join_path(path, key)) for (key, child), chunk in pairs)


def _check_batch(space: BatchedSpace, shape: tuple[int, ...], path: str) -> None:
    limits = zip(space.batch_shape, shape, strict=False)
    if len(shape) != len(space.batch_shape) or not all(size in (None, length) for size, length in limits):
        raise ValueError(at_path(path, f"shape {shape}, the space wants a batch of {space.batch_shape}"))


@value_to_bytes.register
def _(space: BatchedSpace, value: np.ndarray, path: str = "") -> bytes:
    if not isinstance(value, np.ndarray) or value.dtype != object:
        raise ValueError(at_path(path, f"{type(value).__name__}, the space wants a NumPy array of objects"))
    _check_batch(space, value.shape, path)
    chunks = [
        value_to_bytes(space.single_space, value[index], join_path(path, list(index)))
        for index in np.ndindex(value.shape)
    ]
    return _numbers_to_bytes(*value.shape) + _join(chunks)


@value_from_bytes.register
def _(space: BatchedSpace, data: Buffer, path: str = "") -> np.ndarray:
    shape, remaining = _split_numbers(data, len(space.batch_shape), path)
    _check_batch(space, shape, path)
    chunks = _split(remaining, math.prod(shape), path)  # first: a damaged shape must not allocate
    indexed = zip(np.ndindex(shape), chunks, strict=True)
    return object_array(
        shape,
        (value_from_bytes(space.single_space, chunk, join_path(path, list(index))) for index, chunk in indexed),
    )


# -- graphs ------------------------------------------------------------------------------------------------


def _graph_fields(space: GraphSpace) -> list[tuple[str, str, tuple[int, ...] | None] | None]:
    """Name, dtype and entry shape of each array of a graph; None for an array that the space does not have.

    Counts have the batch shape and no entries. Counts and edges are stored as 64-bit integers on every backend.
    """
    node, edge = space.node_feature_space, space.edge_feature_space
    return [
        ("n_nodes", "int64", None),
        ("n_edges", "int64", None) if space.is_edge else None,
        None if node is None else ("nodes_features", node.dtype_name, node.shape),
        None if edge is None else ("edges_features", edge.dtype_name, edge.shape),
        ("edges", "int64", (2,)) if space.is_edge else None,
    ]


def _check_entries(space: GraphSpace, shape: tuple[int, ...], entry: tuple[int, ...] | None, path: str) -> None:
    batch = space.batch_shape
    expected = batch if entry is None else (*batch, *shape[len(batch) : len(batch) + 1], *entry)
    if shape != expected or (entry is not None and len(shape) == len(batch)):
        raise ValueError(at_path(path, f"shape {shape}, the space wants {expected}"))


def _check_counts(arrays: list[Any], path: str) -> None:
    """Raise a ValueError if a count exceeds the number of nodes or edges; surplus entries are padding."""
    nodes, edges, *entries = arrays
    for counts, array in zip((nodes, edges, edges), entries, strict=True):
        if array is None or not counts.size:
            continue
        limit = array.shape[counts.ndim]
        if not 0 <= counts.min() <= counts.max() <= limit:
            raise ValueError(at_path(path, f"counts from {counts.min()} to {counts.max()} of {limit} nodes or edges"))


@value_to_bytes.register
def _(space: GraphSpace, value: GraphInstance, path: str = "") -> bytes:
    if not isinstance(value, GraphInstance):
        raise ValueError(at_path(path, f"{type(value).__name__}, the space wants a GraphInstance"))
    chunks: list[bytes] = []
    hosts: list[Any] = []
    for array, field in zip(fields_of(value), _graph_fields(space), strict=True):
        if field is None:
            if array is not None:
                raise ValueError(at_path(path, "an array is given that the space has not"))
            chunks.append(b"")
            hosts.append(None)
            continue
        name, dtype, entry = field
        encoded = _array_to_bytes(space, dtype, array, join_path(path, name))
        _check_entries(space, tuple(array.shape), entry, join_path(path, name))
        chunks.append(_numbers_to_bytes(*array.shape) + encoded)
        hosts.append(space.backend.to_host(array))
    _check_counts(hosts, path)
    return _join(chunks)


@value_from_bytes.register
def _(space: GraphSpace, data: Buffer, path: str = "") -> GraphInstance:
    fields = _graph_fields(space)
    raws: list[Any] = []
    for chunk, field in zip(_split(data, len(fields), path), fields, strict=True):
        if field is None:
            if len(chunk):
                raise ValueError(at_path(path, f"{len(chunk)} bytes of an array that the space has not"))
            raws.append(None)
            continue
        name, dtype, entry = field
        ndim = len(space.batch_shape) + (0 if entry is None else 1 + len(entry))
        shape, remaining = _split_numbers(chunk, ndim, join_path(path, name))
        _check_entries(space, shape, entry, join_path(path, name))
        raws.append(_raw_from_bytes(dtype, shape, remaining, join_path(path, name)))
    _check_counts(raws, path)
    try:
        return GraphInstance(
            *(
                None if field is None else space.backend.from_raw(raw, field[1], device=space.device)
                for raw, field in zip(raws, fields, strict=True)
            )
        )
    except OverflowError as error:  # JAX without 64-bit integers
        raise ValueError(at_path(path, f"an edge ends at a node that no graph has: {error}")) from None
