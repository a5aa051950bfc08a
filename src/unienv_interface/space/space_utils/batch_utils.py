"""Batches: the space of n values, and the values in it.

A batch adds a leading axis to every array of a value. What no array can hold as it is (texts, unions, arrays whose
shape varies) becomes a `BatchedSpace`, whose values are NumPy object arrays. Functions on data never write into the
data they are given. Data may be described by the space of one value or of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends.base import ComputeBackend
from .._dispatch import rule_per_space
from .._mismatch import join_path
from ..space import Space
from ..spaces import (
    ArraySpace,
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    CompositeSpace,
    DynamicBoxSpace,
    GraphInstance,
    GraphSpace,
    TextSpace,
    UnionSpace,
)
from ..spaces.batched import object_array
from ..spaces.graph import fields_of, stack_graphs, trim_graphs

__all__ = [
    "batch_differing_spaces",
    "batch_size",
    "batch_space",
    "concatenate",
    "get_at",
    "iterate",
    "reshape_batch_size",
    "reshape_batch_size_in_data",
    "set_at",
    "swap_batch_dims",
    "swap_batch_dims_in_data",
    "unbatch_spaces",
]


# -- spaces ------------------------------------------------------------------------------------------------


@rule_per_space
def batch_space(space: Space, n: int = 1) -> Any:
    """The space of n values of `space`."""


@batch_space.register
def _(space: BoxSpace, n: int = 1) -> BoxSpace:
    low, high = (bound[None] for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, (n, *space.shape))


@batch_space.register
def _(space: BinarySpace, n: int = 1) -> BinarySpace:
    return BinarySpace(space.backend, (n, *space.shape), device=space.device)


@batch_space.register
def _(space: CompositeSpace, n: int = 1) -> Any:
    return space.with_children(batch_space(child, n) for child in space.children)


@batch_space.register
def _(space: GraphSpace, n: int = 1) -> GraphSpace:
    return space.replace(batch_shape=(n, *space.batch_shape))


@batch_space.register
def _(space: BatchedSpace, n: int = 1) -> BatchedSpace:
    if None in space.batch_shape:
        return BatchedSpace(space, (n,))
    return BatchedSpace(space.single_space, (n, *space.batch_shape))


@batch_space.register(TextSpace)
@batch_space.register(UnionSpace)
@batch_space.register(DynamicBoxSpace)
def _(space: Space, n: int = 1) -> BatchedSpace:
    return BatchedSpace(space, (n,))


@rule_per_space
def batch_size(space: Space) -> int | None:
    """The number of values in the batch that a space describes; None if it has no batch axis."""


@batch_size.register
def _(space: ArraySpace) -> int | None:
    return space.shape[0] if space.shape else None


@batch_size.register(GraphSpace)
@batch_size.register(BatchedSpace)
def _(space: Any) -> int | None:
    return space.batch_shape[0] if space.batch_shape else None


@batch_size.register
def _(space: CompositeSpace) -> int | None:
    sizes = {batch_size(child) for child in space.children}
    return sizes.pop() if len(sizes) == 1 else None


@batch_size.register(TextSpace)
@batch_size.register(UnionSpace)
@batch_size.register(DynamicBoxSpace)
def _(space: Space) -> None:
    return None


def _need_batch_size(space: Space) -> int:
    size = batch_size(space)
    if size is None:
        raise ValueError(f"{space} has no batch axis that all its parts share")
    return size


@rule_per_space
def unbatch_spaces(space: Space) -> Iterable[Any]:
    """The spaces of the single values of a batch, in order; each has the bounds of its own place."""


@unbatch_spaces.register
def _(space: BoxSpace) -> Iterator[BoxSpace]:
    for i in range(_need_batch_size(space)):
        low, high = (bound[i if bound.shape[0] > 1 else 0] for bound in space.bounds)
        yield BoxSpace(space.backend, low, high, space.dtype, space.device, space.shape[1:])


@unbatch_spaces.register
def _(space: BinarySpace) -> Iterator[BinarySpace]:
    for _ in range(_need_batch_size(space)):
        yield BinarySpace(space.backend, space.shape[1:], device=space.device)


@unbatch_spaces.register
def _(space: CompositeSpace) -> Iterator[Any]:
    _need_batch_size(space)
    for children in zip(*(unbatch_spaces(child) for child in space.children), strict=True):
        yield space.with_children(children)


@unbatch_spaces.register
def _(space: GraphSpace) -> Iterator[GraphSpace]:
    for _ in range(_need_batch_size(space)):
        yield space.replace(batch_shape=space.batch_shape[1:])


@unbatch_spaces.register
def _(space: BatchedSpace) -> Iterator[Space]:
    rest = space.batch_shape[1:]
    for _ in range(_need_batch_size(space)):
        yield BatchedSpace(space.single_space, rest) if rest else space.single_space


def batch_differing_spaces(spaces: Iterable[Space], device: Any = None) -> Any:
    """The space of a batch whose i-th value comes from the i-th space.

    The spaces must be of one kind, shape and dtype; bounds may differ and are kept apart. Spaces of the other
    kinds must be equal, but for dynamic boxes, whose batch admits the sizes and bounds of all of them.
    """
    spaces = list(spaces)
    if not spaces:
        raise ValueError("there are no spaces to batch")
    joined = _join(spaces[0], spaces, "")
    return joined if device is None else joined.to(device=device)


@rule_per_space
def _join(first: Space, spaces: Sequence[Space], path: str) -> Any:
    """The rules of `batch_differing_spaces`."""


def _check_alike(spaces: Sequence[Any], path: str, *attributes: str) -> None:
    first = spaces[0]
    for position, space in enumerate(spaces):
        place = f"{path}: " if path else ""
        if type(space) is not type(first) or space.backend is not first.backend:
            raise ValueError(f"{place}space {position} is {space}, space 0 is {first}: they differ in kind")
        for name in attributes:
            mine, theirs = getattr(space, name), getattr(first, name)
            if mine != theirs:
                raise ValueError(
                    f"{place}space {position} has {name} {mine}, space 0 has {theirs}: they must agree"
                )


@_join.register
def _(first: BoxSpace, spaces: Sequence[BoxSpace], path: str) -> BoxSpace:
    _check_alike(spaces, path, "dtype_name", "shape")
    low, high = (
        np.stack([np.broadcast_to(bound, first.shape) for bound in bounds])
        for bounds in zip(*(space.bounds for space in spaces), strict=True)
    )
    return BoxSpace(first.backend, low, high, first.dtype, first.device, (len(spaces), *first.shape))


@_join.register
def _(first: CompositeSpace, spaces: Sequence[CompositeSpace], path: str) -> Any:
    _check_alike(spaces, path)
    keys = [key for key, _ in first.child_items()]
    for position, space in enumerate(spaces):
        found = [key for key, _ in space.child_items()]
        if found != keys:
            place = f"{path}: " if path else ""
            raise ValueError(
                f"{place}space {position} has the keys {found}, space 0 has {keys}: they must agree"
            )
    columns = zip(*(space.children for space in spaces), strict=True)
    joined = [
        _join(column[0], column, join_path(path, key)) for key, column in zip(keys, columns, strict=True)
    ]
    return first.with_children(joined)


@_join.register
def _(first: DynamicBoxSpace, spaces: Sequence[DynamicBoxSpace], path: str) -> BatchedSpace:
    _check_alike(spaces, path, "dtype_name", "fill_value")
    if len({len(space.shape_low) for space in spaces}) > 1:
        raise ValueError(f"{path or 'spaces'}: dynamic boxes of different numbers of axes cannot be batched")
    least = [min(sizes) for sizes in zip(*(space.shape_low for space in spaces), strict=True)]
    most = [
        None if None in sizes else max(sizes)  # type: ignore[type-var]
        for sizes in zip(*(space.shape_high for space in spaces), strict=True)
    ]
    varies = tuple(a != b for a, b in zip(least, most, strict=True))
    low = np.minimum.reduce(np.broadcast_arrays(*(space.bounds.low for space in spaces)))
    high = np.maximum.reduce(np.broadcast_arrays(*(space.bounds.high for space in spaces)))
    for axis in np.flatnonzero(varies):
        low, high = low.min(axis=axis, keepdims=True), high.max(axis=axis, keepdims=True)
    hull = DynamicBoxSpace(first.backend, low, high, least, most, first.dtype, first.device, first.fill_value)
    return BatchedSpace(hull, (len(spaces),))


@_join.register
def _(first: Space, spaces: Sequence[Space], path: str) -> Any:
    differing = [position for position, space in enumerate(spaces) if space != first]
    if differing:
        place = f"{path}: " if path else ""
        raise ValueError(
            f"{place}space {differing[0]} is {spaces[differing[0]]}, space 0 is {first}: they must be equal"
        )
    return batch_space(first, len(spaces))


# -- values ------------------------------------------------------------------------------------------------


def batch_size_data(data: Any) -> int | None:
    """The size of the first axis of the first array found in `data`; None if there is none."""
    if isinstance(data, GraphInstance):
        return batch_size_data(data.n_nodes)
    if isinstance(data, Mapping):
        data = tuple(data.values())
    if isinstance(data, (tuple, list)):
        return next((size for size in map(batch_size_data, data) if size is not None), None)
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else None


def iterate(space: Space, items: Any) -> Iterator[Any]:
    """The single values of a batch one by one; `space` describes the batch."""
    for index in range(_need_batch_size(space)):
        yield get_at(space, items, index)


@rule_per_space
def get_at(space: Space, items: Any, index: Any) -> Any:
    """Part of a batch: one value for an int, a batch for a slice, an array of indices or a boolean mask.

    NumPy and PyTorch give views for ints and slices, as their indexing does.
    """


@get_at.register(ArraySpace)
def _(space: ArraySpace, items: Any, index: Any) -> Any:
    return items[index]


@get_at.register(TextSpace)
@get_at.register(UnionSpace)
@get_at.register(DynamicBoxSpace)
@get_at.register(BatchedSpace)
def _(space: Space, items: Any, index: Any) -> Any:
    return items[host_index(space.backend, index)]


@get_at.register
def _(space: CompositeSpace, items: Any, index: Any) -> Any:
    pairs = zip(space.children, space.child_values(items), strict=True)
    return space.build_value(get_at(child, value, index) for child, value in pairs)


@get_at.register
def _(space: GraphSpace, items: GraphInstance, index: Any) -> GraphInstance:
    part = GraphInstance(*(None if array is None else array[index] for array in fields_of(items)))
    return trim_graphs(space.backend, part)


@rule_per_space
def set_at(space: Space, items: Any, index: Any, value: Any) -> Any:
    """A batch with part of it replaced; `items` itself stays as it is. Index as in `get_at`."""


@set_at.register
def _(space: ArraySpace, items: Any, index: Any, value: Any) -> Any:
    return space.backend.replaced_at(items, index, value)


@set_at.register(TextSpace)
@set_at.register(UnionSpace)
@set_at.register(DynamicBoxSpace)
@set_at.register(BatchedSpace)
def _(space: Space, items: np.ndarray, index: Any, value: Any) -> np.ndarray:
    merged = items.copy()
    merged[host_index(space.backend, index)] = value
    return merged


@set_at.register
def _(space: CompositeSpace, items: Any, index: Any, value: Any) -> Any:
    parts = zip(space.children, space.child_values(items), space.child_values(value), strict=True)
    return space.build_value(set_at(child, old, index, new) for child, old, new in parts)


@set_at.register
def _(space: GraphSpace, items: GraphInstance, index: Any, value: GraphInstance) -> GraphInstance:
    backend, batch_ndim = space.backend, items.n_nodes.ndim
    merged: list[Any] = []
    for position, (old, new) in enumerate(zip(fields_of(items), fields_of(value), strict=True)):
        if old is None:
            merged.append(None)
            continue
        if position >= 2:  # features and edges: fill both up to the larger number of entries
            new_axis = batch_ndim - (items.n_nodes.ndim - items.n_nodes[index].ndim)
            most = max(old.shape[batch_ndim], new.shape[new_axis])
            old, new = backend.pad_dim(old, batch_ndim, most), backend.pad_dim(new, new_axis, most)
        merged.append(backend.replaced_at(old, index, new))
    return GraphInstance(*merged)


@rule_per_space
def concatenate(space: Space, items: Iterable[Any], axis: int = 0) -> Any:
    """Values stacked along a new axis; `space` describes one of them, or the resulting batch."""


@concatenate.register
def _(space: ArraySpace, items: Iterable[Any], axis: int = 0) -> Any:
    return space.backend.stack(list(items), axis=axis)


@concatenate.register(TextSpace)
@concatenate.register(UnionSpace)
@concatenate.register(DynamicBoxSpace)
@concatenate.register(BatchedSpace)
def _(space: Space, items: Iterable[Any], axis: int = 0) -> np.ndarray:
    items = list(items)
    are_batches = bool(items) and all(_is_stackable_batch(space, item) for item in items)
    return np.stack(items, axis=axis) if are_batches else object_array((len(items),), items)


def _is_stackable_batch(space: Space, item: Any) -> bool:
    """Whether an object array is a batch of fixed shape, rather than one value that happens to be such an array."""
    if not isinstance(item, np.ndarray) or item.dtype != object or not isinstance(space, BatchedSpace):
        return False
    if None in space.batch_shape:
        return False
    return not (isinstance(space.single_space, BatchedSpace) and item in space.single_space)


@concatenate.register
def _(space: CompositeSpace, items: Iterable[Any], axis: int = 0) -> Any:
    columns = zip(*(space.child_values(item) for item in items), strict=True)
    pairs = zip(space.children, columns, strict=True)
    return space.build_value(concatenate(child, column, axis) for child, column in pairs)


@concatenate.register
def _(space: GraphSpace, items: Iterable[GraphInstance], axis: int = 0) -> GraphInstance:
    if axis != 0:
        raise ValueError(f"graphs are stacked along axis 0, not {axis}")
    graphs = list(items)
    single_ndim = graphs[0].n_nodes.ndim
    return stack_graphs(
        space.replace(batch_shape=(len(graphs),) + (1,) * single_ndim), graphs, (len(graphs),)
    )


def host_index(backend: ComputeBackend, index: Any) -> Any:
    """An index as NumPy takes it: an array of the backend becomes a NumPy array."""
    return backend.to_numpy(index) if backend.is_backendarray(index) else index


# -- the batch axes ----------------------------------------------------------------------------------------


@rule_per_space
def reshape_batch_size(space: Space, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> Any:
    """The space with its leading axes `old_batch_shape` laid out as `new_batch_shape`."""


def _check_batch_shape(found: Sequence[int | None], old: Sequence[int], new: Sequence[int]) -> None:
    if tuple(found[: len(old)]) != tuple(old):
        raise ValueError(f"the leading axes are {tuple(found)}, they do not start with {tuple(old)}")
    if np.prod(old, dtype=np.int64) != np.prod(new, dtype=np.int64):
        raise ValueError(f"{tuple(old)} and {tuple(new)} hold different numbers of values")


@reshape_batch_size.register
def _(space: BoxSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BoxSpace:
    _check_batch_shape(space.shape, old_batch_shape, new_batch_shape)
    old_ndim = len(old_batch_shape)
    shape = (*new_batch_shape, *space.shape[old_ndim:])

    def reshape(bound: np.ndarray) -> np.ndarray:
        leading, rest = bound.shape[:old_ndim], bound.shape[old_ndim:]
        if all(size == 1 for size in leading):
            return bound.reshape((1,) * len(new_batch_shape) + rest)
        return np.broadcast_to(bound, (*old_batch_shape, *rest)).reshape((*new_batch_shape, *rest))

    low, high = (reshape(bound) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, shape)


@reshape_batch_size.register
def _(space: BinarySpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BinarySpace:
    _check_batch_shape(space.shape, old_batch_shape, new_batch_shape)
    return BinarySpace(
        space.backend, (*new_batch_shape, *space.shape[len(old_batch_shape) :]), device=space.device
    )


@reshape_batch_size.register
def _(space: CompositeSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> Any:
    return space.with_children(
        reshape_batch_size(child, old_batch_shape, new_batch_shape) for child in space.children
    )


@reshape_batch_size.register
def _(space: GraphSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> GraphSpace:
    _check_batch_shape(space.batch_shape, old_batch_shape, new_batch_shape)
    return space.replace(batch_shape=(*new_batch_shape, *space.batch_shape[len(old_batch_shape) :]))


@reshape_batch_size.register
def _(space: BatchedSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BatchedSpace:
    _check_batch_shape(space.batch_shape, old_batch_shape, new_batch_shape)
    return BatchedSpace(space.single_space, (*new_batch_shape, *space.batch_shape[len(old_batch_shape) :]))


def reshape_batch_size_in_data(
    backend: ComputeBackend, data: Any, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]
) -> Any:
    """Batched data with its leading axes `old_batch_shape` laid out as `new_batch_shape`."""

    def reshape(array: Any) -> Any:
        _check_batch_shape(array.shape, old_batch_shape, new_batch_shape)
        shape = (*new_batch_shape, *array.shape[len(old_batch_shape) :])
        return array.reshape(shape) if isinstance(array, np.ndarray) else backend.reshape(array, shape)

    return _map_batches(backend, data, reshape)


@rule_per_space
def swap_batch_dims(space: Space, dim1: int, dim2: int) -> Any:
    """The space with two of its leading axes exchanged."""


def _swapped(shape: Sequence[Any], dim1: int, dim2: int) -> list[Any]:
    if not (-len(shape) <= dim1 < len(shape) and -len(shape) <= dim2 < len(shape)):
        raise ValueError(f"axes {dim1} and {dim2} are not both among the {len(shape)} axes of {tuple(shape)}")
    swapped = list(shape)
    swapped[dim1], swapped[dim2] = swapped[dim2], swapped[dim1]
    return swapped


@swap_batch_dims.register
def _(space: BoxSpace, dim1: int, dim2: int) -> BoxSpace:
    shape = _swapped(space.shape, dim1, dim2)
    low, high = (np.swapaxes(bound, dim1, dim2) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, shape)


@swap_batch_dims.register
def _(space: BinarySpace, dim1: int, dim2: int) -> BinarySpace:
    return BinarySpace(space.backend, _swapped(space.shape, dim1, dim2), device=space.device)


@swap_batch_dims.register
def _(space: CompositeSpace, dim1: int, dim2: int) -> Any:
    return space.with_children(swap_batch_dims(child, dim1, dim2) for child in space.children)


@swap_batch_dims.register
def _(space: GraphSpace, dim1: int, dim2: int) -> GraphSpace:
    return space.replace(batch_shape=_swapped(space.batch_shape, dim1, dim2))


@swap_batch_dims.register
def _(space: BatchedSpace, dim1: int, dim2: int) -> BatchedSpace:
    return BatchedSpace(space.single_space, _swapped(space.batch_shape, dim1, dim2))


def swap_batch_dims_in_data(backend: ComputeBackend, data: Any, dim1: int, dim2: int) -> Any:
    """Batched data with two of its leading axes exchanged."""

    def swap(array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return np.swapaxes(array, dim1, dim2)
        return backend.permute_dims(array, tuple(_swapped(range(array.ndim), dim1, dim2)))

    return _map_batches(backend, data, swap)


def _map_batches(backend: ComputeBackend, data: Any, fn: Any) -> Any:
    """Apply `fn` to every array of the backend and every object array in nested data."""
    if isinstance(data, Mapping):
        return {key: _map_batches(backend, value, fn) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_map_batches(backend, value, fn) for value in data)
    if isinstance(data, GraphInstance):
        return GraphInstance(*(None if array is None else fn(array) for array in fields_of(data)))
    if isinstance(data, np.ndarray) or backend.is_backendarray(data):
        return fn(data)
    raise TypeError(f"{type(data).__name__} is not batched data: dicts, tuples, graphs and arrays are")
