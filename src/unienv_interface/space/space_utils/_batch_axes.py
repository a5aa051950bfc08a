"""The leading axes of batches in another layout: reshaped or exchanged, in spaces and in data alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends.base import ComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ..dispatch import rule_per_space
from ..space import Space
from ..spaces import (
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
from ..spaces.graph import fields_of

# -- reshape -----------------------------------------------------------------------------------------------


@rule_per_space
def reshape_batch_size(space: Space, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> Any:
    """The space with its leading axes `old_batch_shape` laid out as `new_batch_shape`."""


def _reshaped(found: Sequence[Any], old: Sequence[int], new: Sequence[int]) -> tuple[Any, ...]:
    """The shape with its first axes laid out anew; a ValueError if they are not `old`, or `new` holds not as many."""
    if tuple(found[: len(old)]) != tuple(old):
        raise ValueError(f"the leading axes are {tuple(found)}, they do not start with {tuple(old)}")
    if math.prod(old) != math.prod(new):
        raise ValueError(f"{tuple(old)} and {tuple(new)} hold different numbers of values")
    return (*new, *found[len(old) :])


@reshape_batch_size.register
def _(space: BoxSpace, old_batch_shape: Sequence[int], new_batch_shape: Sequence[int]) -> BoxSpace:
    shape = _reshaped(space.shape, old_batch_shape, new_batch_shape)

    def reshape(bound: np.ndarray) -> np.ndarray:
        leading, rest = bound.shape[: len(old_batch_shape)], bound.shape[len(old_batch_shape) :]
        if all(size == 1 for size in leading):
            return bound.reshape((1,) * len(new_batch_shape) + rest)
        return np.broadcast_to(bound, (*old_batch_shape, *rest)).reshape((*new_batch_shape, *rest))

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
    """Batched data with its leading axes `old_batch_shape` laid out as `new_batch_shape`."""
    backend = parse_backend(backend)

    def reshape(array: Any) -> Any:
        shape = _reshaped(array.shape, old_batch_shape, new_batch_shape)
        return array.reshape(shape) if isinstance(array, np.ndarray) else backend.reshape(array, shape)

    return _map_batches(backend, data, reshape)


# -- exchange ----------------------------------------------------------------------------------------------


@rule_per_space
def swap_batch_dims(space: Space, dim1: int, dim2: int) -> Any:
    """The space with two of its leading axes exchanged, counted from the front."""


def _swapped(shape: Sequence[Any], dim1: int, dim2: int) -> list[Any]:
    # none from the back: what is last differs from part to part
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
    """Batched data with two of its leading axes exchanged, counted from the front."""
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
    raise TypeError(f"{type(data).__name__} is not batched data: dicts, tuples, graphs and arrays are")
