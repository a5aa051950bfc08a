"""Flatten structured values to vectors, and back.

A value becomes one array whose last axis holds all its numbers, in canonical order (sorted keys of a dict). The
leading `start_dim` axes stay, so a batch flattened with `start_dim=1` is still a batch. `unflatten_data` returns
exactly the value that was flattened:

- leaves of different dtypes take the smallest common dtype; an integer that does not fit it is an OverflowError;
- booleans become 0 and 1; a text becomes the indices of its characters, padded with the length of the charset;
- an array whose shape varies becomes the sizes of its varying axes, then its values, padded to the largest shape (with
  0 if `fill_value` is NaN, which no box contains);
- a union becomes the index of the alternative, then its value, padded to the longest alternative.

Graphs, batches of objects, texts without a charset and arrays without a largest shape have no flat form: `flat_dim` is
None. Dicts and tuples without leaves have a flat form only for `start_dim=0`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backends import dtypes
from ...backends.base import ComputeBackend
from ..dispatch import rule_per_space
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
    """Whether values of the space have a flat form that keeps the first `start_dim` axes.

    Parameters
    ----------
    space
        The space of the values.
    start_dim
        The number of leading axes to keep: 0 for one value, 1 for a batch.

    Returns
    -------
    bool
        Whether the values have a flat form.

    Examples
    --------
    >>> is_flattenable(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 3)))
    True
    """
    return flat_dim(space, start_dim) is not None


@rule_per_space
def flat_dim(space: Space, start_dim: int = 0) -> int | None:
    """The length of the last axis of flat values.

    Parameters
    ----------
    space
        The space of the values.
    start_dim
        The number of leading axes to keep: 0 for one value, 1 for a batch.

    Returns
    -------
    int or None
        The length; None if the values have no flat form.

    Examples
    --------
    >>> flat_dim(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 3)))
    6
    """


@rule_per_space
def flatten_space(space: Space, start_dim: int = 0) -> BoxSpace:  # type: ignore[empty-body]
    """The box of the flat values of a space.

    Parameters
    ----------
    space
        The space of the values.
    start_dim
        The number of leading axes to keep: 0 for one value, 1 for a batch.

    Returns
    -------
    BoxSpace
        The `start_dim` leading axes, and one of length `flat_dim(space, start_dim)`.

    Raises
    ------
    ValueError
        The values have no flat form.

    Examples
    --------
    >>> flatten_space(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 3))).shape
    (6,)
    """


@rule_per_space
def flatten_data(space: Space, data: Any, start_dim: int = 0) -> Any:
    """Flatten a value to one array of `flatten_space(space, start_dim)`.

    Parameters
    ----------
    space
        The space of the value.
    data
        The value.
    start_dim
        The number of leading axes to keep: 0 for one value, 1 for a batch.

    Returns
    -------
    array
        The array, on the backend and device of the space.

    Raises
    ------
    ValueError
        The values have no flat form.
    OverflowError
        An integer has no exact value in the common dtype.

    Examples
    --------
    >>> flatten_data(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 3)), np.zeros((2, 3), np.float32)).shape
    (6,)
    """


@rule_per_space
def unflatten_data(space: Space, data: Any, start_dim: int = 0) -> Any:
    """Invert `flatten_data`.

    Parameters
    ----------
    space
        The space of the value.
    data
        An array of `flatten_space(space, start_dim)`.
    start_dim
        The number of leading axes that were kept.

    Returns
    -------
    value
        The value, of `space`.

    Raises
    ------
    ValueError
        The values have no flat form, or `data` has another length.

    Examples
    --------
    >>> unflatten_data(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 3)), np.zeros(6, np.float32)).shape
    (2, 3)
    """


# -- arrays ------------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: ArraySpace, start_dim: int = 0) -> int | None:
    return math.prod(space.shape[start_dim:]) if 0 <= start_dim <= len(space.shape) else None


@flatten_space.register
def _(space: BoxSpace, start_dim: int = 0) -> BoxSpace:
    size = _check(space, start_dim)
    leading, inner = space.shape[:start_dim], space.shape[start_dim:]

    def flatten(bound: np.ndarray) -> np.ndarray:
        if all(axis == 1 for axis in bound.shape[start_dim:]):
            return bound.reshape((*bound.shape[:start_dim], 1))
        return np.broadcast_to(bound, (*bound.shape[:start_dim], *inner)).reshape((*bound.shape[:start_dim], size))

    low, high = (flatten(bound) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, (*leading, size))


@flatten_data.register
def _(space: BoxSpace, data: Any, start_dim: int = 0) -> Any:
    flat = space.backend.reshape(data, (*data.shape[:start_dim], _check(space, start_dim)))
    return cast(space.backend, flat, space.dtype_name)


@unflatten_data.register
def _(space: BoxSpace, data: Any, start_dim: int = 0) -> Any:
    _check_flat(space, data, start_dim)
    shaped = space.backend.reshape(data, (*data.shape[:start_dim], *space.shape[start_dim:]))
    return cast(space.backend, shaped, space.dtype_name)


@flatten_space.register
def _(space: BinarySpace, start_dim: int = 0) -> BoxSpace:
    shape = (*space.shape[:start_dim], _check(space, start_dim))
    return BoxSpace(space.backend, 0, 1, "uint8", space.device, shape)


@flatten_data.register
def _(space: BinarySpace, data: Any, start_dim: int = 0) -> Any:
    flat = space.backend.reshape(data, (*data.shape[:start_dim], _check(space, start_dim)))
    return cast(space.backend, flat, "uint8")


@unflatten_data.register
def _(space: BinarySpace, data: Any, start_dim: int = 0) -> Any:
    _check_flat(space, data, start_dim)
    return space.backend.reshape(data, (*data.shape[:start_dim], *space.shape[start_dim:])) != 0


# -- composite ---------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: CompositeSpace, start_dim: int = 0) -> int | None:
    children = [child for child in space.children if _has_leaves(child)]
    sizes = [flat_dim(child, start_dim) for child in children]
    if None in sizes or len(_leading_shapes(space, start_dim)) > 1:
        return None
    return sum(sizes) if sizes or start_dim == 0 else None


def _has_leaves(space: Space) -> bool:
    """Whether a space is more than empty dicts and tuples."""
    return not isinstance(space, CompositeSpace) or any(map(_has_leaves, space.children))


def _leading_shapes(space: Space, start_dim: int) -> set[tuple[int, ...]]:
    """The distinct leading shapes, of `start_dim` axes, of the arrays in a value."""
    if isinstance(space, CompositeSpace):
        return set().union(*(_leading_shapes(child, start_dim) for child in space.children))
    return {space.shape[:start_dim]} if isinstance(space, ArraySpace) else {()}


@flatten_space.register
def _(space: CompositeSpace, start_dim: int = 0) -> BoxSpace:
    size = _check(space, start_dim)
    boxes = [flatten_space(child, start_dim) for child in space.children if _has_leaves(child)]
    if not boxes:
        return BoxSpace(space.backend, 0, 0, space.backend.default_floating_dtype, space.device, (0,))
    dtype = common_dtype(space.backend, *(box.dtype_name for box in boxes))
    low, high = (
        np.concatenate([np.broadcast_to(bound, box.shape) for box, bound in zip(boxes, bounds, strict=True)], axis=-1)
        for bounds in zip(*(box.bounds for box in boxes), strict=True)
    )
    return _box(space, low, high, dtype, (*boxes[0].shape[:start_dim], size))


def _box(space: Space, low: np.ndarray, high: np.ndarray, dtype: str, shape: tuple[int, ...]) -> BoxSpace:
    """Make the box of flat values; complex numbers have no bounds."""
    bounds: tuple[Any, Any] = (-np.inf, np.inf) if dtype in dtypes.COMPLEX else (low, high)
    return BoxSpace(space.backend, bounds[0], bounds[1], dtype, space.device, shape)


@flatten_data.register
def _(space: CompositeSpace, data: Any, start_dim: int = 0) -> Any:
    pairs = zip(space.children, space.child_values(data), strict=True)
    flat = [flatten_data(child, value, start_dim) for child, value in pairs if _has_leaves(child)]
    return _join(space.backend, flat) if flat else flatten_space(space, start_dim).create_empty()


def _join(backend: ComputeBackend, arrays: list[Any]) -> Any:
    """Concatenate flat arrays in their common dtype."""
    common = common_dtype(backend, *(backend.dtype_name(array.dtype) for array in arrays))
    return backend.concat([cast(backend, array, common) for array in arrays], axis=-1)


@unflatten_data.register
def _(space: CompositeSpace, data: Any, start_dim: int = 0) -> Any:
    _check_flat(space, data, start_dim)
    values: list[Any] = []
    start = 0
    for child in space.children:
        if not _has_leaves(child):
            values.append(child.create_empty())
            continue
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
    _check_flat(space, data, start_dim)
    characters = space.charset_list or ()
    indices = real(space.backend.to_host(data)).astype(np.int64).tolist()
    return "".join(characters[i] for i in indices if 0 <= i < len(characters))


# -- arrays whose shape varies -----------------------------------------------------------------------------


def _varying(space: DynamicBoxSpace) -> list[int]:
    sizes = zip(space.shape_low, space.shape_high, strict=True)
    return [axis for axis, (least, most) in enumerate(sizes) if least != most]


def _dynamic_dtype(space: DynamicBoxSpace) -> str:
    """The common dtype of the values and the sizes."""
    return common_dtype(space.backend, space.dtype_name, counting_dtype(max(size or 0 for size in space.shape_high)))


def _filling(space: DynamicBoxSpace) -> int | float:
    return 0 if math.isnan(space.fill_value) else space.fill_value


@flat_dim.register
def _(space: DynamicBoxSpace, start_dim: int = 0) -> int | None:
    sizes = [size for size in space.shape_high if size is not None]
    if start_dim != 0 or len(sizes) < len(space.shape_high):
        return None
    return len(_varying(space)) + math.prod(sizes)


@flatten_space.register
def _(space: DynamicBoxSpace, start_dim: int = 0) -> BoxSpace:
    size, dtype = _check(space, start_dim), _dynamic_dtype(space)
    axes, most = _varying(space), [size or 0 for size in space.shape_high]
    low, high = (
        np.concatenate(
            [
                np.array([sizes[axis] for axis in axes], dtypes.host_dtype(dtype)),
                np.broadcast_to(pick(bound, _filling(space)), most).ravel(),
            ]
        )
        for sizes, bound, pick in zip((space.shape_low, most), space.bounds, (np.minimum, np.maximum), strict=True)
    )
    return BoxSpace(space.backend, low, high, dtype, space.device, (size,))


@flatten_data.register
def _(space: DynamicBoxSpace, data: Any, start_dim: int = 0) -> Any:
    backend, size, dtype = space.backend, _check(space, start_dim), _dynamic_dtype(space)
    axes = _varying(space)
    sizes = np.array([data.shape[axis] for axis in axes])
    for axis in axes:
        data = backend.pad_dim(data, axis, space.shape_high[axis] or 0, _filling(space))
    values = cast(backend, backend.reshape(data, (size - len(axes),)), dtype)
    head = backend.from_host(sizes, backend.dtype_from_name(dtype), device=backend.device(data))
    return backend.concat([head, values])


@unflatten_data.register
def _(space: DynamicBoxSpace, data: Any, start_dim: int = 0) -> Any:
    _check_flat(space, data, start_dim)
    axes = _varying(space)
    most = [size or 0 for size in space.shape_high]
    shape = list(most)
    for axis, size in zip(axes, real(space.backend.to_host(data[: len(axes)])), strict=True):
        shape[axis] = int(size)
    full = space.backend.reshape(data[len(axes) :], tuple(most))
    return cast(space.backend, space.unpad_data(full, shape=shape), space.dtype_name)


# -- unions ------------------------------------------------------------------------------------------------


@flat_dim.register
def _(space: UnionSpace, start_dim: int = 0) -> int | None:
    sizes = [flat_dim(child) for child in space.spaces]
    return None if start_dim != 0 or None in sizes else 1 + max(sizes)


@flatten_space.register
def _(space: UnionSpace, start_dim: int = 0) -> BoxSpace:
    size, dtype = _check(space, start_dim), _union_dtype(space)
    low: list[Any] = [0] * size  # Python numbers are exact for all dtypes
    high: list[Any] = [len(space.spaces) - 1] + [0] * (size - 1)
    for box in map(flatten_space, space.spaces):
        for merged, bound, pick in ((low, box.bounds.low, min), (high, box.bounds.high, max)):
            entries = np.broadcast_to(bound, box.shape).tolist()
            merged[1 : 1 + len(entries)] = map(pick, merged[1:], entries)
    host_dtype = np.float64 if dtype in dtypes.COMPLEX else dtypes.host_dtype(dtype)
    return _box(space, np.array(low, host_dtype), np.array(high, host_dtype), dtype, (size,))


def _union_dtype(space: UnionSpace) -> str:
    """The common dtype of the index and all alternatives."""
    alternatives = (flatten_space(child).dtype_name for child in space.spaces)
    return common_dtype(space.backend, counting_dtype(len(space.spaces) - 1), *alternatives)


@flatten_data.register
def _(space: UnionSpace, data: tuple[int, Any], start_dim: int = 0) -> Any:
    size = _check(space, start_dim)
    index, value = data
    flat = cast(space.backend, flatten_data(space.spaces[index], value), _union_dtype(space))
    head = space.backend.full((1,), int(index), dtype=flat.dtype, device=space.backend.device(flat))
    return space.backend.pad_dim(space.backend.concat([head, flat]), 0, size)


@unflatten_data.register
def _(space: UnionSpace, data: Any, start_dim: int = 0) -> tuple[int, Any]:
    _check_flat(space, data, start_dim)
    index = int(real(space.backend.to_host(data[:1]))[0])
    if not 0 <= index < len(space.spaces):
        raise ValueError(f"alternative {index}, the space has 0 to {len(space.spaces) - 1}")
    child = space.spaces[index]
    flat = cast(space.backend, data[1 : 1 + flat_dim(child)], flatten_space(child).dtype_name)
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


# -- checks ------------------------------------------------------------------------------------------------


def _check(space: Space, start_dim: int) -> int:
    """Return `flat_dim`, or raise a ValueError if the space has no flat form."""
    size = flat_dim(space, start_dim)
    if size is None:
        raise ValueError(f"{space} has no flat form that keeps the first {start_dim} axes")
    return size


def _check_flat(space: Space, data: Any, start_dim: int) -> None:
    """Raise a ValueError if the data does not have the shape of flat values of the space."""
    size = _check(space, start_dim)
    if tuple(data.shape[start_dim:]) != (size,):
        raise ValueError(
            f"shape {tuple(data.shape)}, flat values of {space} want {size} along axis {start_dim}, the last"
        )


# -- dtypes of flat values ---------------------------------------------------------------------------------


def counting_dtype(most: int) -> str:
    """The smallest dtype for numbers from 0 to `most`."""
    return np.min_scalar_type(most).name


def common_dtype(backend: ComputeBackend, *names: str) -> str:
    """The common dtype by NumPy's rules, or the dtype that the backend has instead."""
    if len(set(names)) == 1:
        return names[0]
    common = np.result_type(*(dtypes.host_dtype(name) for name in names)).name
    return backend.dtype_name(backend.dtype_from_name(common))


def real(values: np.ndarray) -> np.ndarray:
    """The real parts of complex values; a real leaf becomes complex beside a complex one."""
    return values.real if values.dtype.kind == "c" else values


def cast(backend: ComputeBackend, array: Any, name: str) -> Any:
    """Cast an array to another dtype; raises an OverflowError if an integer changes."""
    old_name = backend.dtype_name(array.dtype)
    if old_name == name:
        return array
    if old_name in dtypes.COMPLEX and name not in dtypes.COMPLEX:
        array = backend.real(array)
    result = backend.astype(array, backend.dtype_from_name(name))
    if old_name in dtypes.INTEGER and not dtypes.can_cast_safely(old_name, name):
        before = backend.to_host(array)
        changed = _changed_integers(before, real(backend.to_host(result)))
        if np.any(changed):
            raise OverflowError(f"integer {before[changed].flat[0]} of {old_name} has no exact value in {name}")
    return result


def _changed_integers(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The mask of integers that a cast to integers or floats has changed."""
    if after.dtype.kind in "iu":
        return (after.astype(before.dtype) != before) | ((after < 0) != (before < 0))
    floats = after.astype(np.float64)
    bits = 8 * before.dtype.itemsize - (before.dtype.kind == "i")
    in_range = floats < 2.0**bits  # casting larger floats back is undefined
    return ~in_range | (np.where(in_range, floats, 0).astype(before.dtype) != before)
