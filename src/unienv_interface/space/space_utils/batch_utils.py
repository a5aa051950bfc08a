"""Batches of values: functions of their spaces and their data.

A batch adds a leading axis to every array of a value. Texts, unions and arrays whose shape varies are batched by a
`BatchedSpace`, whose values are NumPy object arrays. Functions of data never write to their arguments. The space
argument of these functions may be the space of one value or of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends.base import ComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ..dispatch import rule_per_space
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
from ._batch_spaces import batch_differing_spaces, batch_size, batch_space, need_batch_size, unbatch_spaces

__all__ = [
    "batch_differing_spaces",
    "batch_size",
    "batch_space",
    "concatenate",
    "get_at",
    "iterate",
    "merge_slots",
    "reshape_batch_size",
    "reshape_batch_size_in_data",
    "set_at",
    "swap_batch_dims",
    "swap_batch_dims_in_data",
    "take_slots",
    "unbatch_spaces",
]


def batch_size_data(data: Any) -> int | None:
    """The size of the first axis of the first array in `data`.

    Parameters
    ----------
    data
        An array, or dicts, tuples, lists and graphs of arrays.

    Returns
    -------
    int or None
        The size; None if no array has an axis.

    Examples
    --------
    >>> batch_size_data({"obs": np.zeros((8, 3))})
    8
    """
    if isinstance(data, GraphInstance):
        return batch_size_data(data.n_nodes)
    if isinstance(data, Mapping):
        data = tuple(data.values())
    if isinstance(data, (tuple, list)):
        return next((size for size in map(batch_size_data, data) if size is not None), None)
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else None


def iterate(space: Space, items: Any) -> Iterator[Any]:
    """Iterate over the single values of a batch.

    Parameters
    ----------
    space
        The space of the batch.
    items
        The batch.

    Returns
    -------
    iterator
        The values, in order.

    Raises
    ------
    ValueError
        The space has no batch axis that all its leaves share.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 3))
    >>> [row.shape for row in iterate(space, np.zeros((2, 3), np.float32))]
    [(3,), (3,)]
    """
    return (get_at(space, items, index) for index in range(need_batch_size(space)))


def split(space: Space, items: Any) -> Sequence[Any]:
    """Split a batch into a list of its values; faster than `iterate` for many small values."""
    if isinstance(space, ArraySpace):
        return list(items)
    size = batch_size_data(items) or 0
    if isinstance(space, CompositeSpace) and size:
        children = zip(space.children, space.child_values(items), strict=True)
        columns = [split(child, value) or [value] * size for child, value in children]  # for an empty dict
        return [space.build_value(values) for values in zip(*columns, strict=True)]
    return [get_at(space, items, index) for index in range(size)]


# -- indexing ----------------------------------------------------------------------------------------------


@rule_per_space
def get_at(space: Space, items: Any, index: Any) -> Any:
    """Index a batch.

    Parameters
    ----------
    space
        The space of one value, or of the batch.
    items
        The batch.
    index
        An int, a slice, an array of indices or a boolean mask; negative indices count from the end.

    Returns
    -------
    value
        One value for an int, else a batch. For ints and slices, arrays of NumPy and PyTorch are views.

    Raises
    ------
    IndexError
        An int is out of range. In an array of indices, JAX clamps indices out of range instead.

    Examples
    --------
    >>> space = DictSpace("numpy", {"obs": BoxSpace("numpy", -1.0, 1.0, "float32", shape=(8, 3))})
    >>> get_at(space, {"obs": np.zeros((8, 3), np.float32)}, 0)["obs"].shape
    (3,)
    """


@get_at.register(ArraySpace)
def _(space: ArraySpace, items: Any, index: Any) -> Any:
    _check_int(index, items.shape[0])
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
    _check_int(index, items.n_nodes.shape[0])
    graph = GraphInstance(*(None if array is None else array[index] for array in fields_of(items)))
    return trim_graphs(space.backend, graph)


@rule_per_space
def set_at(space: Space, items: Any, index: Any, value: Any) -> Any:
    """Return a batch with some of its values replaced.

    Parameters
    ----------
    space
        The space of one value, or of the batch.
    items
        The batch.
    index
        The index of the values to replace, as for `get_at`.
    value
        One value for an int, else a batch.

    Returns
    -------
    batch
        The new batch; `items` does not change.

    Raises
    ------
    IndexError
        An int is out of range.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2,))
    >>> set_at(space, np.zeros(2, np.float32), 1, np.float32(0.5))
    array([0. , 0.5], dtype=float32)
    """


@set_at.register
def _(space: ArraySpace, items: Any, index: Any, value: Any) -> Any:
    _check_int(index, items.shape[0])
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
    children = zip(space.children, space.child_values(items), space.child_values(value), strict=True)
    return space.build_value(set_at(child, old, index, new) for child, old, new in children)


@set_at.register
def _(space: GraphSpace, items: GraphInstance, index: Any, value: GraphInstance) -> GraphInstance:
    backend, batch_ndim = space.backend, items.n_nodes.ndim
    _check_int(index, items.n_nodes.shape[0])
    merged: list[Any] = []
    for position, (old, new) in enumerate(zip(fields_of(items), fields_of(value), strict=True)):
        if old is None:
            merged.append(None)
            continue
        if position >= 2:  # features and edges: pad both to the larger number of entries
            new_axis = value.n_nodes.ndim
            most = max(old.shape[batch_ndim], new.shape[new_axis])
            old, new = backend.pad_dim(old, batch_ndim, most), backend.pad_dim(new, new_axis, most)
        merged.append(backend.replaced_at(old, index, new))
    return GraphInstance(*merged)


# -- slots of a batch --------------------------------------------------------------------------------------


def take_slots(space: Space, items: Any, slots: np.ndarray) -> Any:
    """Take the slots of a batch that a mask selects, without a compilation by JAX.

    Parameters
    ----------
    space
        The space of one value, or of the batch.
    items
        The batch.
    slots
        The mask, a NumPy array of booleans.

    Returns
    -------
    batch
        The selected slots, in order.

    Examples
    --------
    >>> observations = np.arange(8.0).reshape(4, 2)
    >>> space = BoxSpace("numpy", 0, 9, np.float64, shape=(4, 2))
    >>> batch_utils.take_slots(space, observations, np.array([False, True, False, True]))
    array([[2., 3.],
           [6., 7.]])
    """
    if isinstance(space, CompositeSpace):
        pairs = zip(space.children, space.child_values(items), strict=True)
        return space.build_value(take_slots(child, value, slots) for child, value in pairs)
    if isinstance(space, ArraySpace):
        return space.backend.take_slots(items, slots)
    return get_at(space, items, space.backend.from_numpy(slots))


def merge_slots(space: Space, items: Any, mask: Any, value: Any) -> Any:
    """Return a batch with the slots of a mask replaced.

    JAX compiles once for all masks. If `value` has every slot, JAX may trace the arrays and the mask.

    Parameters
    ----------
    space
        The space of one value, or of the batch.
    items
        The batch.
    mask
        The slots to replace, an array of booleans.
    value
        The new values: of every slot, or only of the slots in the mask, in order.

    Returns
    -------
    batch
        The new batch; `items` does not change.

    Examples
    --------
    >>> observations = np.zeros((3, 2))
    >>> space = BoxSpace("numpy", 0, 9, np.float64, shape=(3, 2))
    >>> batch_utils.merge_slots(space, observations, np.array([False, True, False]), np.ones((1, 2)))
    array([[0., 0.],
           [1., 1.],
           [0., 0.]])
    """
    if isinstance(space, CompositeSpace):
        children = zip(space.children, space.child_values(items), space.child_values(value), strict=True)
        return space.build_value(merge_slots(child, old, mask, new) for child, old, new in children)
    if isinstance(space, ArraySpace):
        return space.backend.merge_slots(items, mask, value)
    if batch_size_data(value) == batch_size_data(items):
        value = get_at(space, value, mask)
    return set_at(space, items, mask, value)


def _check_int(index: Any, size: int) -> None:
    """Raise an IndexError for an int out of range: JAX would read the nearest value, or write nothing."""
    if isinstance(index, (int, np.integer)) and not -size <= index < size:
        raise IndexError(f"index {index} is out of range for a batch of {size}")


def host_index(backend: ComputeBackend, index: Any) -> Any:
    """Convert an index to NumPy, if it is an array of the backend."""
    return backend.to_numpy(index) if backend.is_backendarray(index) else index


# -- stacking ----------------------------------------------------------------------------------------------


@rule_per_space
def concatenate(space: Space, items: Iterable[Any], axis: int = 0) -> Any:
    """Stack values along a new axis.

    Parameters
    ----------
    space
        The space of one value, or of the resulting batch.
    items
        The values, at least one.
    axis
        The new axis; texts, unions, graphs and arrays whose shape varies are stacked along axis 0 only.

    Returns
    -------
    batch
        The values as one batch.

    Raises
    ------
    ValueError
        `items` is empty, or its values cannot be stacked along this axis.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,))
    >>> concatenate(space, [np.zeros(3, np.float32), np.ones(3, np.float32)]).shape
    (2, 3)
    """


@concatenate.register
def _(space: ArraySpace, items: Iterable[Any], axis: int = 0) -> Any:
    return space.backend.stack(_non_empty(items), axis=axis)


@concatenate.register(TextSpace)
@concatenate.register(UnionSpace)
@concatenate.register(DynamicBoxSpace)
@concatenate.register(BatchedSpace)
def _(space: Space, items: Iterable[Any], axis: int = 0) -> np.ndarray:
    values = _non_empty(items)
    if all(_is_stackable_batch(space, value) for value in values):
        return np.stack(values, axis=axis)
    _check_first_axis(space, axis)
    return object_array((len(values),), values)


def _is_stackable_batch(space: Space, item: Any) -> bool:
    """Whether an object array is a batch of fixed shape, not a single value that is an object array."""
    if not isinstance(item, np.ndarray) or item.dtype != object or not isinstance(space, BatchedSpace):
        return False
    if not space.batch_shape or None in space.batch_shape:
        return False
    return not (isinstance(space.single_space, BatchedSpace) and item in space.single_space)


@concatenate.register
def _(space: CompositeSpace, items: Iterable[Any], axis: int = 0) -> Any:
    columns = zip(*(space.child_values(item) for item in _non_empty(items)), strict=True)
    pairs = zip(space.children, columns, strict=True)
    return space.build_value(concatenate(child, column, axis) for child, column in pairs)


@concatenate.register
def _(space: GraphSpace, items: Iterable[GraphInstance], axis: int = 0) -> GraphInstance:
    graphs = _non_empty(items)
    _check_first_axis(space, axis)
    single_ndim = graphs[0].n_nodes.ndim
    return stack_graphs(space.replace(batch_shape=(len(graphs),) + (1,) * single_ndim), graphs, (len(graphs),))


def _non_empty(items: Iterable[Any]) -> list[Any]:
    values = list(items)
    if not values:
        raise ValueError("there are no values to stack")
    return values


def _check_first_axis(space: Space, axis: int) -> None:
    if axis != 0:
        raise ValueError(f"axis is {axis}, values of {space} can only be stacked along axis 0")


# -- reshaping leading axes --------------------------------------------------------------------------------


@rule_per_space
def reshape_batch_size(space: Space, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> Any:
    """Reshape the leading axes of a space.

    Parameters
    ----------
    space
        The space of a batch.
    old_batch_shape
        The leading axes of the space.
    new_batch_shape
        The new leading axes, for the same number of values.

    Returns
    -------
    Space
        The space of the same values in a batch of the new shape.

    Raises
    ------
    ValueError
        The space has other leading axes, the numbers of values differ, or the space is no batch.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(8, 3))
    >>> reshape_batch_size(space, (8,), (2, 4)).shape
    (2, 4, 3)
    """


def _reshaped(shape: Sequence[Any], old: Sequence[int], new: Sequence[int]) -> tuple[Any, ...]:
    """Replace the leading axes `old` of a shape by `new`; raises a ValueError if they do not fit."""
    if tuple(shape[: len(old)]) != tuple(old):
        raise ValueError(f"the leading axes are {tuple(shape)}, they do not start with {tuple(old)}")
    if math.prod(old) != math.prod(new):
        raise ValueError(f"{tuple(old)} and {tuple(new)} hold different numbers of values")
    return (*new, *shape[len(old) :])


@reshape_batch_size.register
def _(space: BoxSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BoxSpace:
    shape = _reshaped(space.shape, old_batch_shape, new_batch_shape)

    def reshape(bound: np.ndarray) -> np.ndarray:
        leading, inner = bound.shape[: len(old_batch_shape)], bound.shape[len(old_batch_shape) :]
        if all(size == 1 for size in leading):
            return bound.reshape((1,) * len(new_batch_shape) + inner)
        return np.broadcast_to(bound, (*old_batch_shape, *inner)).reshape((*new_batch_shape, *inner))

    low, high = (reshape(bound) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, shape)


@reshape_batch_size.register
def _(space: BinarySpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BinarySpace:
    shape = _reshaped(space.shape, old_batch_shape, new_batch_shape)
    return BinarySpace(space.backend, shape, device=space.device)


@reshape_batch_size.register
def _(space: CompositeSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> Any:
    return space.with_children(reshape_batch_size(child, old_batch_shape, new_batch_shape) for child in space.children)


@reshape_batch_size.register
def _(space: GraphSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> GraphSpace:
    return space.replace(batch_shape=_reshaped(space.batch_shape, old_batch_shape, new_batch_shape))


@reshape_batch_size.register
def _(space: BatchedSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BatchedSpace:
    return BatchedSpace(space.single_space, _reshaped(space.batch_shape, old_batch_shape, new_batch_shape))


@reshape_batch_size.register(TextSpace)
@reshape_batch_size.register(UnionSpace)
@reshape_batch_size.register(DynamicBoxSpace)
def _(space: Space, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> Any:
    raise ValueError(f"{space} has no batch axes to reshape")


def reshape_batch_size_in_data(
    backend: BackendLike, data: Any, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]
) -> Any:
    """Reshape the leading axes of batched data, as `reshape_batch_size` does for its space.

    Parameters
    ----------
    backend
        The library of the arrays.
    data
        Dicts, tuples, graphs and arrays with the leading axes `old_batch_shape`.
    old_batch_shape, new_batch_shape
        As for `reshape_batch_size`.

    Returns
    -------
    data
        The same structure with reshaped arrays.

    Raises
    ------
    ValueError
        An array has other leading axes, or the numbers of values differ.
    TypeError
        A leaf is no array.

    Examples
    --------
    >>> reshape_batch_size_in_data("numpy", {"obs": np.zeros((8, 3))}, (8,), (2, 4))["obs"].shape
    (2, 4, 3)
    """
    backend = parse_backend(backend)

    def reshape(array: Any) -> Any:
        shape = _reshaped(array.shape, old_batch_shape, new_batch_shape)
        return array.reshape(shape) if isinstance(array, np.ndarray) else backend.reshape(array, shape)

    return _map_batches(backend, data, reshape)


# -- swapping leading axes ---------------------------------------------------------------------------------


@rule_per_space
def swap_batch_dims(space: Space, dim1: int, dim2: int) -> Any:
    """Swap two leading axes of a space.

    Parameters
    ----------
    space
        The space of a batch.
    dim1, dim2
        The axes, counted from the front.

    Returns
    -------
    Space
        The space with swapped axes.

    Raises
    ------
    ValueError
        The space does not have both axes, or is no batch.

    Examples
    --------
    >>> swap_batch_dims(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(2, 4, 3)), 0, 1).shape
    (4, 2, 3)
    """


def _swapped(shape: Sequence[Any], dim1: int, dim2: int) -> list[Any]:
    # no negative axes: leaves have different numbers of axes
    if not (0 <= dim1 < len(shape) and 0 <= dim2 < len(shape)):
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


@swap_batch_dims.register(TextSpace)
@swap_batch_dims.register(UnionSpace)
@swap_batch_dims.register(DynamicBoxSpace)
def _(space: Space, dim1: int, dim2: int) -> Any:
    raise ValueError(f"{space} has no batch axes to exchange")


def swap_batch_dims_in_data(backend: BackendLike, data: Any, dim1: int, dim2: int) -> Any:
    """Swap two leading axes of batched data, as `swap_batch_dims` does for its space.

    Parameters
    ----------
    backend
        The library of the arrays.
    data
        Dicts, tuples, graphs and arrays.
    dim1, dim2
        The axes, counted from the front.

    Returns
    -------
    data
        The same structure with swapped axes in all arrays.

    Raises
    ------
    ValueError
        An array does not have both axes.
    TypeError
        A leaf is no array.

    Examples
    --------
    >>> swap_batch_dims_in_data("numpy", {"obs": np.zeros((2, 4, 3))}, 0, 1)["obs"].shape
    (4, 2, 3)
    """
    backend = parse_backend(backend)

    def swap(array: Any) -> Any:
        order = tuple(_swapped(range(array.ndim), dim1, dim2))
        return array.transpose(order) if isinstance(array, np.ndarray) else backend.permute_dims(array, order)

    return _map_batches(backend, data, swap)


def _map_batches(backend: ComputeBackend, data: Any, fn: Callable[[Any], Any]) -> Any:
    """Apply `fn` to every array of the backend and every object array in nested data."""
    if isinstance(data, Mapping):
        return {key: _map_batches(backend, value, fn) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_map_batches(backend, value, fn) for value in data)
    if isinstance(data, GraphInstance):
        return GraphInstance(*(None if array is None else fn(array) for array in fields_of(data)))
    if isinstance(data, np.ndarray) or backend.is_backendarray(data):
        return fn(data)
    raise TypeError(f"{type(data).__name__} is not batched data: it must be a dict, tuple, graph or array")
