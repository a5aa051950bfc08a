"""`CropTransformation`: clip boxes to tighter bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends import dtypes
from ..backends.array_serialization import deserialize_scalar_or_array_value, serialize_scalar_or_array_value
from ..space.space import Space
from ..space.spaces import BoxSpace
from ._operands import (
    Constant,
    as_operands,
    check_order,
    clamp,
    constants_device,
    lacks_arithmetic,
    parse_constant,
    require_box,
)
from ._space_cache import SpaceCache
from .identity import IdentityTransformation
from .serialization_utils import read_setting, register_transformation
from .transformation import DataTransformation


@register_transformation("crop")
class CropTransformation(DataTransformation):
    """Clips each entry of a box to the range from `crop_low` to `crop_high`, both inclusive.

    NaN stays NaN. Clipped values cannot be restored, so the inverse is the identity.

    Parameters
    ----------
    crop_low, crop_high
        Numbers, or arrays that broadcast to the shape of the box; infinity means no limit. For integer dtypes, limits
        are rounded inward to integers.

    Raises
    ------
    ValueError
        `crop_low` is above `crop_high`, they do not broadcast, or one is NaN.
    TypeError
        `crop_low` or `crop_high` is no number and no array.

    Examples
    --------
    >>> space = BoxSpace("numpy", -9.0, 9.0, "float32", shape=(2,))
    >>> CropTransformation(-1.0, 1.0).transform(space, np.array([5.0, 0.5], np.float32))
    array([1. , 0.5], dtype=float32)
    """

    has_inverse = True

    def __init__(self, crop_low: Any, crop_high: Any) -> None:
        self._crop_low = parse_constant("crop_low", crop_low)
        self._crop_high = parse_constant("crop_high", crop_high)
        check_order("crop_low", self._crop_low, "crop_high", self._crop_high)
        if np.any(np.equal(self._crop_low, np.inf)) or np.any(np.equal(self._crop_high, -np.inf)):
            raise ValueError("crop_low is +inf or crop_high -inf somewhere, which leaves no number between them")
        self._ranges: SpaceCache[tuple[Any, Any]] = SpaceCache()

    @property
    def crop_low(self) -> Constant:
        """The lower end: a number, or a NumPy array."""
        return self._crop_low

    @property
    def crop_high(self) -> Constant:
        """The upper end: a number, or a NumPy array."""
        return self._crop_high

    def validate_source_space(self, source_space: Space) -> None:
        """Raise a TypeError or ValueError that says why values of this space cannot be cropped."""
        self._range_space(source_space)

    def get_crop_range(self, source_space: Space) -> tuple[Any, Any]:
        """The two limits for a space, as arrays of its shape, dtype and device."""
        limits = self._range_space(source_space)
        return limits.low, limits.high

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        limits = self._range_space(source_space)
        box = require_box(source_space, type(self).__name__)
        low, high = (np.clip(bound, *limits.bounds) for bound in box.bounds)
        return BoxSpace(box.backend, low, high, box.dtype, box.device, box.shape)

    def transform(self, source_space: Space, data: Any) -> Any:
        box = require_box(source_space, type(self).__name__)
        backend = box.backend
        on_host = lacks_arithmetic(backend, box.dtype_name)
        low, high = self._ranges.get(box, None if on_host else constants_device(backend, data), self._make_plan)
        if on_host:
            return backend.from_host(clamp(backend.to_host(data), low, high), box.dtype, device=backend.device(data))
        clamped = clamp(backend.astype(data, box.dtype, copy=False), low, high)
        clamped = backend.astype(clamped, box.dtype, copy=False)  # the ends of bfloat16 are float32
        return clamped if clamped.shape else backend.asarray(clamped)

    def direction_inverse(self, source_space: Space | None = None) -> IdentityTransformation:
        return IdentityTransformation()

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {
            "crop_low": serialize_scalar_or_array_value(self._crop_low),
            "crop_high": serialize_scalar_or_array_value(self._crop_high),
        }

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> CropTransformation:
        low, high = (
            deserialize_scalar_or_array_value(read_setting(json_data, name, cls)) for name in ("crop_low", "crop_high")
        )
        return cls(low, high)

    def _make_plan(self, source: BoxSpace, device: Any) -> tuple[Any, Any]:
        host_name = dtypes.host_dtype(source.dtype_name).name
        low, high = self._range_space(source).bounds
        return as_operands(source.backend, low, high, host_name, device)

    def _range_space(self, source_space: Space) -> BoxSpace:
        """The box of all values between the two limits, with the shape and dtype of the source."""
        box = require_box(source_space, type(self).__name__)
        low, high = np.asarray(self._crop_low), np.asarray(self._crop_high)
        within = _integers_within if box.dtype_name in dtypes.INTEGER else _floats_within
        try:
            return BoxSpace(box.backend, *within(low, high, box.dtype_name), box.dtype, box.device, box.shape)
        except ValueError as error:
            raise ValueError(f"crop_low and crop_high do not suit {box}: {error}") from None


def _integers_within(low: np.ndarray, high: np.ndarray, dtype_name: str) -> tuple[np.ndarray, np.ndarray]:
    limits = np.iinfo(dtype_name)
    # with Python numbers, which compare exactly; a limit beyond the dtype has no effect
    lows = [math.ceil(end) if end > limits.min else limits.min for end in low.reshape(-1).tolist()]
    highs = [math.floor(end) if end < limits.max else limits.max for end in high.reshape(-1).tolist()]
    try:
        return np.array(lows, dtype_name).reshape(low.shape), np.array(highs, dtype_name).reshape(high.shape)
    except OverflowError:
        raise ValueError(f"no value of {dtype_name} lies between them") from None


def _floats_within(low: np.ndarray, high: np.ndarray, dtype_name: str) -> tuple[np.ndarray, np.ndarray]:
    largest = np.finfo(dtypes.host_dtype(dtype_name)).max
    return np.where(low < -largest, -np.inf, low), np.where(high > largest, np.inf, high)
