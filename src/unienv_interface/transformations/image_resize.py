"""`ImageResizeTransformation`: resize images by bilinear interpolation."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import dtypes
from ..backends.base import ComputeBackend
from ..space.space import Space
from ..space.spaces import BoxSpace
from ._operands import (
    ClipFloats,
    RoundToIntegers,
    as_array,
    constants_device,
    lacks_arithmetic,
    require_box,
    signed_name,
)
from ._space_cache import SpaceCache
from .serialization_utils import read_setting, register_transformation
from .transformation import DataTransformation, need_source_space

_HEIGHT, _WIDTH = -3, -2


@register_transformation("image_resize")
class ImageResizeTransformation(DataTransformation):
    """Resizes arrays of shape (..., height, width, channels).

    The result equals `torch.nn.functional.interpolate` with `mode="bilinear", align_corners=False`: no smoothing
    before shrinking. The dtype does not change; integers are rounded to the nearest. The bounds do not change either;
    bounds that vary over the pixels of a channel become the widest ones. The inverse resizes back, but does not
    restore lost detail.

    Parameters
    ----------
    new_height, new_width
        The size of the new images, in pixels.

    Raises
    ------
    ValueError
        A size is below 1.
    TypeError
        A size is no integer.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(96, 96, 3))
    >>> ImageResizeTransformation(48, 64).transform(space, np.zeros((96, 96, 3), np.uint8)).shape
    (48, 64, 3)
    """

    has_inverse = True

    def __init__(self, new_height: int, new_width: int) -> None:
        self._new_height = _size("new_height", new_height)
        self._new_width = _size("new_width", new_width)
        self._plans: SpaceCache[_Plan] = SpaceCache()

    @property
    def new_height(self) -> int:
        """The height of the images that `transform` returns."""
        return self._new_height

    @property
    def new_width(self) -> int:
        """The width of the images that `transform` returns."""
        return self._new_width

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        box = _require_images(source_space, type(self).__name__)
        low, high = box.bounds
        shape = (*box.shape[:_HEIGHT], self._new_height, self._new_width, box.shape[-1])
        return BoxSpace(
            box.backend,
            low.min(axis=(_HEIGHT, _WIDTH), keepdims=True),
            high.max(axis=(_HEIGHT, _WIDTH), keepdims=True),
            box.dtype,
            box.device,
            shape,
        )

    def transform(self, source_space: Space, data: Any) -> Any:
        return self._plans.get(source_space, constants_device(source_space.backend, data), self._make_plan)(data)

    def direction_inverse(self, source_space: Space | None = None) -> ImageResizeTransformation:
        box = _require_images(need_source_space(self, source_space), type(self).__name__)
        return ImageResizeTransformation(box.shape[_HEIGHT], box.shape[_WIDTH])

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {"new_height": self._new_height, "new_width": self._new_width}

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> ImageResizeTransformation:
        return cls(read_setting(json_data, "new_height", cls), read_setting(json_data, "new_width", cls))

    def _make_plan(self, source: Space, device: Any) -> _Plan:
        target = self.get_target_space_from_source(source)
        return _Plan.between(_require_images(source, type(self).__name__), target, device)


def _size(name: str, value: Any) -> int:
    size = operator.index(value)
    if size < 1:
        raise ValueError(f"{name} is {size}, it must be at least 1")
    return size


def _require_images(space: Space, owner: str) -> BoxSpace:
    box = require_box(space, owner)
    if len(box.shape) < 3:
        raise ValueError(f"{owner} wants at least three axes, the last being height, width and channels: {box}")
    if 0 in box.shape[_HEIGHT:-1]:
        raise ValueError(f"{owner} wants images of at least one pixel: {box}")
    return box


# -- arithmetic --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """The constants and steps for arrays of one space on one device."""

    backend: ComputeBackend
    dtype: Any
    compute_dtype: Any
    cast_first: bool
    axes: tuple[_AxisBlend, ...]
    finish: ClipFloats | RoundToIntegers

    @classmethod
    def between(cls, source: BoxSpace, target: BoxSpace, device: Any) -> _Plan:
        backend, name = source.backend, source.dtype_name
        wide = name == "float64" or (name in dtypes.INTEGER and np.dtype(name).itemsize > 2)
        compute_dtype = backend.dtype_from_name("float64" if wide else "float32")
        compute = backend.dtype_name(compute_dtype)
        # first the axis that shrinks most: this leaves less work for the other axis
        by_ratio = sorted((_HEIGHT, _WIDTH), key=lambda axis: target.shape[axis] / source.shape[axis])
        axes = tuple(
            _AxisBlend.along(axis, source, target, compute, device)
            for axis in by_ratio
            if source.shape[axis] != target.shape[axis]
        )
        finish = (RoundToIntegers if name in dtypes.INTEGER else ClipFloats).into(target, compute, device)
        return cls(backend, source.dtype, compute_dtype, lacks_arithmetic(backend, name), axes, finish)

    def __call__(self, data: Any) -> Any:
        backend = self.backend
        if not self.axes:
            return backend.astype(data, self.dtype, copy=False)
        if self.cast_first:
            data = backend.astype(data, self.compute_dtype)
        for axis in self.axes:
            data = axis(backend, data, self.compute_dtype)
        return self.finish(data)


@dataclass(frozen=True)
class _AxisBlend:
    """The interpolation along one axis: each new entry is a blend of two old neighbours."""

    axis: int
    lower: Any
    upper: Any
    share: Any

    @classmethod
    def along(cls, axis: int, source: BoxSpace, target: BoxSpace, compute_name: str, device: Any) -> _AxisBlend:
        backend, old, new = source.backend, source.shape[axis], target.shape[axis]
        centres = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
        lower = np.floor(centres).astype(np.int64)
        upper = np.minimum(lower + 1, old - 1)
        # for the width, repeat the share per channel: else NumPy's inner loop has only the channels
        shape = (new, 1, 1) if axis == _HEIGHT else (new, source.shape[-1])
        share = np.broadcast_to((centres - lower).reshape((new,) + (1,) * (len(shape) - 1)), shape)
        index_name = signed_name(backend)
        return cls(
            axis,
            as_array(backend, lower, index_name, device),
            as_array(backend, upper, index_name, device),
            as_array(backend, share, compute_name, device),
        )

    def __call__(self, backend: ComputeBackend, data: Any, compute_dtype: Any) -> Any:
        # gather before casting: images have a quarter of the bytes; both arrays are copies and may be written to
        near = backend.astype(backend.take(data, self.lower, axis=self.axis), compute_dtype, copy=False)
        far = backend.astype(backend.take(data, self.upper, axis=self.axis), compute_dtype, copy=False)
        far -= near
        far *= self.share
        near += far
        return near
