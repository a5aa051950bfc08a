"""Insert an axis of size 1 into every array, or remove it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import Self

from ..space.dispatch import rule_per_space
from ..space.space import Space
from ..space.spaces import (
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
from ..space.spaces.array import ArraySpace
from ..space.spaces.batched import object_array
from ..space.spaces.graph import fields_of
from ._nested import call_at, with_children
from .serialization_utils import register_transformation
from .transformation import DataTransformation

# An axis counts from the front, or from the back if negative, as in NumPy. Data of arrays may have more leading axes
# than the space, so the axis in data counts from the back.


@rule_per_space
def insert_axis(space: Space, axis: int) -> Any:
    """The space with an axis of size 1 inserted."""


@rule_per_space
def insert_axis_in_data(space: Space, data: Any, axis: int) -> Any:
    """Insert an axis of size 1 into a value of `space`."""


@rule_per_space
def remove_axis(space: Space, axis: int) -> Any:
    """The space with an axis of size 1 removed; raises a ValueError if the axis has another size."""


@rule_per_space
def remove_axis_in_data(space: Space, data: Any, axis: int) -> Any:
    """Remove an axis of size 1 from a value of `space`."""


def _position(axis: int, ndim: int) -> int:
    """The axis counted from the front."""
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} is out of range for {ndim} axes")
    return axis % ndim


def _inserted(sizes: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    position = _position(axis, len(sizes) + 1)
    return (*sizes[:position], 1, *sizes[position:])


def _removed(sizes: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    position = _position(axis, len(sizes))
    if sizes[position] != 1:
        raise ValueError(f"axis {axis} of shape {sizes} has size {sizes[position]}, only one of size 1 can be removed")
    return (*sizes[:position], *sizes[position + 1 :])


# -- arrays ------------------------------------------------------------------------------------------------


@insert_axis.register
def _(space: BoxSpace, axis: int) -> BoxSpace:
    position = _position(axis, len(space.shape) + 1)
    low, high = (np.expand_dims(bound, position) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, _inserted(space.shape, axis))


@remove_axis.register
def _(space: BoxSpace, axis: int) -> BoxSpace:
    shape = _removed(space.shape, axis)
    low, high = (np.squeeze(bound, _position(axis, len(space.shape))) for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, shape)


@insert_axis.register
def _(space: BinarySpace, axis: int) -> BinarySpace:
    return BinarySpace(space.backend, _inserted(space.shape, axis), device=space.device)


@remove_axis.register
def _(space: BinarySpace, axis: int) -> BinarySpace:
    return BinarySpace(space.backend, _removed(space.shape, axis), device=space.device)


@insert_axis_in_data.register
def _(space: ArraySpace, data: Any, axis: int) -> Any:
    ndim = len(space.shape) + 1
    return space.backend.expand_dims(data, axis=_position(axis, ndim) - ndim)


@remove_axis_in_data.register
def _(space: ArraySpace, data: Any, axis: int) -> Any:
    ndim = len(space.shape)
    return space.backend.squeeze(data, axis=_position(axis, ndim) - ndim)


# -- dicts and tuples --------------------------------------------------------------------------------------


@insert_axis.register
def _(space: CompositeSpace, axis: int) -> Any:
    return with_children(space, [call_at(key, insert_axis, child, axis) for key, child in space.child_items()])


@remove_axis.register
def _(space: CompositeSpace, axis: int) -> Any:
    return with_children(space, [call_at(key, remove_axis, child, axis) for key, child in space.child_items()])


@insert_axis_in_data.register
def _(space: CompositeSpace, data: Any, axis: int) -> Any:
    pairs = zip(space.children, space.child_values(data), strict=True)
    return space.build_value(insert_axis_in_data(child, value, axis) for child, value in pairs)


@remove_axis_in_data.register
def _(space: CompositeSpace, data: Any, axis: int) -> Any:
    pairs = zip(space.children, space.child_values(data), strict=True)
    return space.build_value(remove_axis_in_data(child, value, axis) for child, value in pairs)


# -- graphs ------------------------------------------------------------------------------------------------


@insert_axis.register
def _(space: GraphSpace, axis: int) -> GraphSpace:
    return space.replace(batch_shape=_inserted(space.batch_shape, axis))


@remove_axis.register
def _(space: GraphSpace, axis: int) -> GraphSpace:
    return space.replace(batch_shape=_removed(space.batch_shape, axis))


@insert_axis_in_data.register
def _(space: GraphSpace, data: GraphInstance, axis: int) -> GraphInstance:
    position = _position(axis, len(space.batch_shape) + 1)
    expand = space.backend.expand_dims
    return GraphInstance(*(None if array is None else expand(array, axis=position) for array in fields_of(data)))


@remove_axis_in_data.register
def _(space: GraphSpace, data: GraphInstance, axis: int) -> GraphInstance:
    position = _position(axis, len(space.batch_shape))
    squeeze = space.backend.squeeze
    return GraphInstance(*(None if array is None else squeeze(array, axis=position) for array in fields_of(data)))


# -- texts, unions, dynamic boxes and batches of objects ---------------------------------------------------


@insert_axis.register(TextSpace)
@insert_axis.register(UnionSpace)
@insert_axis.register(DynamicBoxSpace)
def _(space: Space, axis: int) -> BatchedSpace:
    return BatchedSpace(space, _inserted((), axis))


@insert_axis_in_data.register(TextSpace)
@insert_axis_in_data.register(UnionSpace)
@insert_axis_in_data.register(DynamicBoxSpace)
def _(space: Space, data: Any, axis: int) -> np.ndarray:
    return object_array((1,), [data])


@insert_axis.register
def _(space: BatchedSpace, axis: int) -> BatchedSpace:
    return BatchedSpace(space.single_space, _inserted(space.batch_shape, axis))


@remove_axis.register
def _(space: BatchedSpace, axis: int) -> Space:
    batch_shape = _removed(space.batch_shape, axis)
    return BatchedSpace(space.single_space, batch_shape) if batch_shape else space.single_space


@insert_axis_in_data.register
def _(space: BatchedSpace, data: np.ndarray, axis: int) -> np.ndarray:
    return np.expand_dims(data, _position(axis, len(space.batch_shape) + 1))


@remove_axis_in_data.register
def _(space: BatchedSpace, data: np.ndarray, axis: int) -> Any:
    return data[0] if len(space.batch_shape) == 1 else np.squeeze(data, _position(axis, len(space.batch_shape)))


@remove_axis.register(TextSpace)
@remove_axis.register(UnionSpace)
@remove_axis.register(DynamicBoxSpace)
def _(space: Space, axis: int) -> Any:
    raise ValueError(f"{space} has no batch axis to remove")


# -- the transformations -----------------------------------------------------------------------------------


class _AxisTransformation(DataTransformation):
    """The base class of `BatchifyTransformation` and `UnBatchifyTransformation`."""

    has_inverse = True

    def __init__(self, axis: int = 0) -> None:
        self.axis = operator.index(axis)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {"axis": self.axis}

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> Self:
        return cls(json_data.get("axis", 0))


@register_transformation("batchify")
class BatchifyTransformation(_AxisTransformation):
    """Inserts an axis of size 1 into every array of a value.

    A text, a union or an array whose shape varies becomes a batch of one. Your own kind of space registers its rules
    with `insert_axis`, `insert_axis_in_data`, `remove_axis` and `remove_axis_in_data` of this module.

    Parameters
    ----------
    axis
        The position of the new axis; negative counts from the end.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,))
    >>> BatchifyTransformation().transform(space, np.zeros(3, np.float32)).shape
    (1, 3)
    """

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return insert_axis(source_space, self.axis)

    def transform(self, source_space: Space, data: Any) -> Any:
        return insert_axis_in_data(source_space, data, self.axis)

    def direction_inverse(self, source_space: Space | None = None) -> UnBatchifyTransformation:
        return UnBatchifyTransformation(self.axis)


@register_transformation("unbatchify")
class UnBatchifyTransformation(_AxisTransformation):
    """Removes an axis of size 1 from every array of a value.

    Parameters
    ----------
    axis
        The axis; negative counts from the end.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(1, 3))
    >>> UnBatchifyTransformation().transform(space, np.zeros((1, 3), np.float32)).shape
    (3,)
    """

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return remove_axis(source_space, self.axis)

    def transform(self, source_space: Space, data: Any) -> Any:
        return remove_axis_in_data(source_space, data, self.axis)

    def direction_inverse(self, source_space: Space | None = None) -> BatchifyTransformation:
        return BatchifyTransformation(self.axis)
