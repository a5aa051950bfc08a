"""Structured values as flat vectors, and back.

A value becomes one array whose last axis holds all its numbers, in canonical order (a dict's keys sorted). The
leading `start_dim` axes stay, so a batch flattened with `start_dim=1` is still a batch. The way back gives exactly
the value that was flattened:

- parts of different dtypes go into the smallest common dtype; an integer that this cannot hold is an error;
- booleans become 0 and 1; a text its characters' indices, filled up with the length of the charset;
- an array whose shape varies is filled up to its largest, with the sizes of the varying axes in front;
- a union is the index of the alternative, then its value, filled up to the longest.

Graphs and batches of objects have no flat form; neither has a text without a charset nor an array without a largest
shape. `flat_dim` is None for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backends import _dtypes
from ...backends.base import ComputeBackend
from .._dispatch import rule_per_space
from ..space import Space
from ..spaces import (
    ArraySpace,
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    CompositeSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    UnionSpace,
)

__all__ = ["flat_dim", "flatten_data", "flatten_space", "is_flattenable", "unflatten_data"]


def is_flattenable(space: Space, start_dim: int = 0) -> bool:
    """Whether values of the space have a flat form that keeps the first `start_dim` axes."""
    return flat_dim(space, start_dim) is not None


@rule_per_space
def flat_dim(space: Space, start_dim: int = 0) -> int | None:
    """The length of the last axis of flat values; None if the space has no flat form."""


@rule_per_space
def flatten_space(space: Space, start_dim: int = 0) -> BoxSpace:
    """The box of the flat values."""


@rule_per_space
def flatten_data(space: Space, data: Any, start_dim: int = 0) -> Any:
    """A value as one array of `flatten_space(space, start_dim)`."""


@rule_per_space
def unflatten_data(space: Space, data: Any, start_dim: int = 0) -> Any:
    """The value that was flattened to `data`."""


# -- arrays ------------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: ArraySpace, start_dim: int = 0) -> int | None:
    if start_dim > len(space.shape):
        return None
    return int(np.prod(space.shape[start_dim:], dtype=np.int64))


@flatten_space.register
def _(space: BoxSpace, start_dim: int = 0) -> BoxSpace:
    _check(space, start_dim)
    leading, rest = space.shape[:start_dim], space.shape[start_dim:]
    size = int(np.prod(rest, dtype=np.int64))

    def flatten(bound: np.ndarray) -> np.ndarray:
        if all(axis == 1 for axis in bound.shape[start_dim:]):
            return bound.reshape((*bound.shape[:start_dim], 1))
        return np.broadcast_to(bound, (*bound.shape[:start_dim], *rest)).reshape(
            (*bound.shape[:start_dim], size)
        )

    low, high = (flatten(bound) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, (*leading, size))


@flatten_data.register
def _(space: BoxSpace, data: Any, start_dim: int = 0) -> Any:
    _check(space, start_dim)
    return space.backend.reshape(data, (*data.shape[:start_dim], flat_dim(space, start_dim)))


@unflatten_data.register
def _(space: BoxSpace, data: Any, start_dim: int = 0) -> Any:
    _check(space, start_dim)
    shaped = space.backend.reshape(data, (*data.shape[:start_dim], *space.shape[start_dim:]))
    return _cast(space.backend, shaped, space.dtype_name)


@flatten_space.register
def _(space: BinarySpace, start_dim: int = 0) -> BoxSpace:
    shape = (*space.shape[:start_dim], _check(space, start_dim))
    return BoxSpace(space.backend, 0, 1, "uint8", space.device, shape)


@flatten_data.register
def _(space: BinarySpace, data: Any, start_dim: int = 0) -> Any:
    flat = space.backend.reshape(data, (*data.shape[:start_dim], _check(space, start_dim)))
    return _cast(space.backend, flat, "uint8")


@unflatten_data.register
def _(space: BinarySpace, data: Any, start_dim: int = 0) -> Any:
    _check(space, start_dim)
    return space.backend.reshape(data, (*data.shape[:start_dim], *space.shape[start_dim:])) != 0


# -- composite ---------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: CompositeSpace, start_dim: int = 0) -> int | None:
    sizes = [flat_dim(child, start_dim) for child in space.children]
    if any(size is None for size in sizes) or len(_leading_shapes(space, start_dim)) > 1:
        return None
    return sum(sizes)  # type: ignore[arg-type]


def _leading_shapes(space: Space, start_dim: int) -> set[tuple[int, ...]]:
    """The different first `start_dim` axes of the arrays in a value."""
    if isinstance(space, CompositeSpace):
        return set().union(*(_leading_shapes(child, start_dim) for child in space.children))
    return {space.shape[:start_dim]} if isinstance(space, ArraySpace) else {()}


@flatten_space.register
def _(space: CompositeSpace, start_dim: int = 0) -> BoxSpace:
    size = _check(space, start_dim)
    parts = [flatten_space(child, start_dim) for child in space.children]
    if not parts:
        return BoxSpace(space.backend, 0, 0, space.backend.default_floating_dtype, space.device, (0,))
    leading = parts[0].shape[:start_dim]
    low, high = (
        np.concatenate(
            [np.broadcast_to(bound, part.shape) for part, bound in zip(parts, bounds, strict=True)], axis=-1
        )
        for bounds in zip(*(part.bounds for part in parts), strict=True)
    )
    dtype = _common_dtype(space.backend, *(part.dtype_name for part in parts))
    return BoxSpace(space.backend, low, high, dtype, space.device, (*leading, size))


@flatten_data.register
def _(space: CompositeSpace, data: Any, start_dim: int = 0) -> Any:
    pairs = zip(space.children, space.child_values(data), strict=True)
    flat = [flatten_data(child, value, start_dim) for child, value in pairs]
    if not flat:
        return flatten_space(space, start_dim).create_empty()
    return _join(space.backend, flat)


def _join(backend: ComputeBackend, parts: list[Any]) -> Any:
    """Flat parts one after the other, in their common dtype."""
    common = _common_dtype(backend, *(backend.dtype_name(part.dtype) for part in parts))
    return backend.concat([_cast(backend, part, common) for part in parts], axis=-1)


@unflatten_data.register
def _(space: CompositeSpace, data: Any, start_dim: int = 0) -> Any:
    _check(space, start_dim)
    values, start = [], 0
    for child in space.children:
        size: int = flat_dim(child, start_dim)
        values.append(unflatten_data(child, data[..., start : start + size], start_dim))
        start += size
    return space.build_value(values)


# -- text --------------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: TextSpace, start_dim: int = 0) -> int | None:
    return space.max_length if start_dim == 0 and space.charset is not None else None


@flatten_space.register
def _(space: TextSpace, start_dim: int = 0) -> BoxSpace:
    size = _check(space, start_dim)
    return BoxSpace(space.backend, 0, len(space.charset_index or ()), "int32", space.device, (size,))


@flatten_data.register
def _(space: TextSpace, data: str, start_dim: int = 0) -> Any:
    size = _check(space, start_dim)
    if len(data) > size:
        raise ValueError(f"{len(data)} characters, the space wants at most {size}")
    indices = np.full(size, len(space.charset_index or ()), np.int32)
    indices[: len(data)] = [space.character_index(char) for char in data]
    return space.backend.from_numpy(indices, device=space.device)


@unflatten_data.register
def _(space: TextSpace, data: Any, start_dim: int = 0) -> str:
    _check(space, start_dim)
    characters = space.charset_list or ()
    indices = space.backend.to_host(data).astype(np.int64).tolist()
    return "".join(characters[i] for i in indices if i < len(characters))


# -- arrays whose shape varies -----------------------------------------------------------------------------


def _sizes_dtype(space: DynamicBoxSpace) -> str:
    return np.min_scalar_type(max(size or 0 for size in space.shape_high)).name


def _varying(space: DynamicBoxSpace) -> list[int]:
    sizes = zip(space.shape_low, space.shape_high, strict=True)
    return [axis for axis, (least, most) in enumerate(sizes) if least != most]


@flat_dim.register
def _(space: DynamicBoxSpace, start_dim: int = 0) -> int | None:
    if start_dim != 0 or None in space.shape_high:
        return None
    return len(_varying(space)) + int(np.prod(space.shape_high, dtype=np.int64))  # type: ignore[arg-type]


@flatten_space.register
def _(space: DynamicBoxSpace, start_dim: int = 0) -> BoxSpace:
    size = _check(space, start_dim)
    axes = _varying(space)
    sizes = [np.array([shape[axis] for axis in axes]) for shape in (space.shape_low, space.shape_high)]
    low, high = (
        np.concatenate([counts, np.broadcast_to(pick(bound, space.fill_value), space.shape_high).ravel()])
        for counts, bound, pick in zip(sizes, space.bounds, (np.minimum, np.maximum), strict=True)
    )
    dtype = _common_dtype(space.backend, space.dtype_name, _sizes_dtype(space))
    return BoxSpace(space.backend, low, high, dtype, space.device, (size,))


@flatten_data.register
def _(space: DynamicBoxSpace, data: Any, start_dim: int = 0) -> Any:
    size = _check(space, start_dim)
    axes = _varying(space)
    sizes = np.array([data.shape[axis] for axis in axes], _sizes_dtype(space))
    values = space.backend.reshape(space.pad_data(data), (size - len(axes),))
    device = space.backend.device(data)
    return _join(space.backend, [space.backend.from_numpy(sizes, device=device), values])


@unflatten_data.register
def _(space: DynamicBoxSpace, data: Any, start_dim: int = 0) -> Any:
    _check(space, start_dim)
    axes = _varying(space)
    shape = list(space.shape_high)
    for axis, size in zip(axes, space.backend.to_host(data[: len(axes)]), strict=True):
        shape[axis] = int(size)
    full = space.backend.reshape(data[len(axes) :], space.shape_high)
    return _cast(space.backend, space.unpad_data(full, shape=shape), space.dtype_name)  # type: ignore[arg-type]


# -- unions ------------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: UnionSpace, start_dim: int = 0) -> int | None:
    sizes = [flat_dim(child) for child in space.spaces]
    if start_dim != 0 or any(size is None for size in sizes):
        return None
    return 1 + max(sizes)  # type: ignore[type-var, operator]


@flatten_space.register
def _(space: UnionSpace, start_dim: int = 0) -> BoxSpace:
    size = _check(space, start_dim)
    low, high = np.zeros(size), np.zeros(size)
    parts = [flatten_space(child) for child in space.spaces]
    high[0] = len(parts) - 1
    bounds: list[Any] = [low.astype(object), high.astype(object)]  # Python numbers: exact for every dtype
    for part in parts:
        for merged, bound, pick in zip(bounds, part.bounds, (min, max), strict=True):
            full = np.broadcast_to(bound, part.shape).tolist()
            merged[1 : 1 + len(full)] = [pick(a, b) for a, b in zip(merged[1:], full, strict=False)]
    dtype = _union_dtype(space)
    low, high = (np.array(bound.tolist(), _dtypes.host_dtype(dtype)) for bound in bounds)
    return BoxSpace(space.backend, low, high, dtype, space.device, (size,))


def _union_dtype(space: UnionSpace) -> str:
    return _common_dtype(space.backend, "uint8", *(flatten_space(child).dtype_name for child in space.spaces))


@flatten_data.register
def _(space: UnionSpace, data: tuple[int, Any], start_dim: int = 0) -> Any:
    size = _check(space, start_dim)
    index, value = data
    flat = _cast(space.backend, flatten_data(space.spaces[index], value), _union_dtype(space))
    head = space.backend.full((1,), int(index), dtype=flat.dtype, device=space.backend.device(flat))
    return space.backend.pad_dim(space.backend.concat([head, flat]), 0, size)


@unflatten_data.register
def _(space: UnionSpace, data: Any, start_dim: int = 0) -> tuple[int, Any]:
    _check(space, start_dim)
    index = int(data[0])
    child = space.spaces[index]
    child_dtype = flatten_space(child).dtype_name
    flat = _cast(space.backend, data[1 : 1 + flat_dim(child)], child_dtype)
    return (index, unflatten_data(child, flat))


# -- kinds without a flat form -----------------------------------------------------------------------------


@flat_dim.register(GraphSpace)
@flat_dim.register(BatchedSpace)
def _(space: Space, start_dim: int = 0) -> None:
    return None


@flatten_space.register(GraphSpace)
@flatten_space.register(BatchedSpace)
def _(space: Space, start_dim: int = 0) -> Any:
    _check(space, start_dim)


@flatten_data.register(GraphSpace)
@flatten_data.register(BatchedSpace)
@unflatten_data.register(GraphSpace)
@unflatten_data.register(BatchedSpace)
def _(space: Space, data: Any, start_dim: int = 0) -> Any:
    _check(space, start_dim)


# -- shared ------------------------------------------------------------------------------------------------


def _check(space: Space, start_dim: int) -> int:
    """The flat length, or a ValueError if there is none."""
    size = flat_dim(space, start_dim)
    if size is None:
        raise ValueError(f"{space} has no flat form that keeps the first {start_dim} axes")
    return size


def _common_dtype(backend: ComputeBackend, *names: str) -> str:
    """The smallest dtype that NumPy finds for all of them together, as this backend has it."""
    if len(set(names)) == 1:
        return names[0]
    common = np.result_type(*(_dtypes.host_dtype(name) for name in names)).name
    return backend.dtype_name(backend.dtype_from_name(common))


def _cast(backend: ComputeBackend, array: Any, name: str) -> Any:
    """An array in another dtype, or an OverflowError where an integer would change by that."""
    found = backend.dtype_name(array.dtype)
    if found == name:
        return array
    cast = backend.astype(array, backend.dtype_from_name(name))
    if found in _dtypes.INTEGER and not _dtypes.can_cast_safely(found, name):
        before, after = backend.to_host(array), backend.to_host(cast)
        with np.errstate(invalid="ignore"):
            changed = after.astype(before.dtype) != before
        if np.any(changed):
            raise OverflowError(f"integer {before[changed].flat[0]} of {found} has no exact value in {name}")
    return cast
