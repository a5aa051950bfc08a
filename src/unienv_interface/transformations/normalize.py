"""`NormalizeTransformation`: normalise boxes by the statistics of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..backends import dtypes
from ..backends.array_serialization import deserialize_scalar_or_array_value, serialize_scalar_or_array_value
from ..backends.base import ComputeBackend
from ..space.space import Space
from ..space.spaces import BoxSpace
from ._operands import (
    ClipFloats,
    Constant,
    RoundToIntegers,
    as_operand,
    constants_device,
    parse_constant,
    require_box,
)
from ._space_cache import SpaceCache
from .serialization_utils import read_setting, register_transformation
from .transformation import DataTransformation, need_source_space

Mode = Literal["mean_std", "min_max", "quantile"]


@register_transformation("normalize")
class NormalizeTransformation(DataTransformation):
    """Maps each entry of a box to `(x - offset) / scale`.

    `from_stats` takes both from the statistics of a dataset, such as the result of `unienv_data.column_stats`.

    Parameters
    ----------
    offset, scale
        Numbers, or arrays that broadcast to the shape of the box.
    new_dtype
        The dtype of the results; by default the dtype of the source if it is a float, else the backend's default float.
        Integers are rounded to the nearest.
    low, high
        The bounds of the results; by default the mapped bounds of the source.

    Raises
    ------
    ValueError
        `offset` is not finite, `scale` is not finite and above 0, only one of `low` and `high` is given, or `new_dtype`
        is none of real numbers.
    TypeError
        A constant is no number and no array.

    Examples
    --------
    >>> from unienv_interface.backends import NumpyComputeBackend
    >>> from unienv_interface.space.spaces import BoxSpace
    >>> space = BoxSpace(NumpyComputeBackend, -np.inf, np.inf, "float32", shape=(2,))
    >>> normalize = NormalizeTransformation.from_stats({"mean": [1.0, 2.0], "std": [2.0, 0.0]})
    >>> normalize.transform(space, np.array([3.0, 2.0], "float32"))
    array([1., 0.], dtype=float32)
    """

    has_inverse = True

    def __init__(
        self, offset: Any = 0.0, scale: Any = 1.0, new_dtype: str | None = None, low: Any = None, high: Any = None
    ) -> None:
        self._offset, self._scale = parse_constant("offset", offset), parse_constant("scale", scale)
        if not np.all(np.isfinite(self._offset)):
            raise ValueError(f"offset is {self._offset}, it must be finite")
        if not (np.all(np.isfinite(self._scale)) and np.all(np.greater(self._scale, 0))):
            raise ValueError(f"scale is {self._scale}, it must be finite and above 0")
        if new_dtype is not None and new_dtype not in dtypes.INTEGER | dtypes.FLOATING:
            raise ValueError(f"new_dtype is {new_dtype!r}, a box of real numbers wants one of integers or floats")
        if (low is None) != (high is None):
            raise ValueError("only one of low and high is given: give both or neither")
        self._new_dtype = new_dtype
        self._low = None if low is None else parse_constant("low", low)
        self._high = None if high is None else parse_constant("high", high)
        self._plans: SpaceCache[_Plan] = SpaceCache()

    @classmethod
    def from_stats(cls, stats: Any, mode: Mode = "mean_std", new_dtype: str | None = None) -> NormalizeTransformation:
        """Make the transformation that normalises a column with these statistics.

        Parameters
        ----------
        stats
            Statistics of one column: an object with attributes, or a mapping with keys, `mean` and `std`, `min` and
            `max`, or `q01` and `q99`.
        mode
            `mean_std` gives mean 0 and standard deviation 1; `min_max` maps the extremes to -1 and 1, and `quantile`
            the quantiles 0.01 and 0.99. An entry that does not vary becomes 0.
        new_dtype
            The dtype of the results, such as "float32" for images of uint8.

        Raises
        ------
        ValueError
            The mode is unknown, or a statistic that it needs is missing or not finite.
        """
        names = {"mean_std": ("mean", "std"), "min_max": ("min", "max"), "quantile": ("q01", "q99")}.get(mode)
        if names is None:
            raise ValueError(f"mode is {mode!r}, it must be 'mean_std', 'min_max' or 'quantile'")
        first, second = (_statistic(stats, name, mode) for name in names)
        offset, scale = (first, second) if mode == "mean_std" else ((first + second) / 2, (second - first) / 2)
        smallest = np.finfo(np.float32).smallest_normal
        return cls(offset, np.where(scale > smallest, scale, 1.0), new_dtype)

    @property
    def offset(self) -> Constant:
        """The value that becomes 0: a number, or a NumPy array."""
        return self._offset

    @property
    def scale(self) -> Constant:
        """The distance from `offset` that becomes 1: a number, or a NumPy array."""
        return self._scale

    @property
    def new_dtype(self) -> str | None:
        """The name of the results' dtype, or None if it follows from the source."""
        return self._new_dtype

    @property
    def low(self) -> Constant | None:
        """The lower bound of the results, or None if it follows from the source."""
        return self._low

    @property
    def high(self) -> Constant | None:
        """The upper bound of the results, or None if it follows from the source."""
        return self._high

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        box = require_box(source_space, type(self).__name__)
        backend = box.backend
        if self._new_dtype is not None:
            dtype = backend.dtype_from_name(self._new_dtype)
        else:
            dtype = box.dtype if box.dtype_name in dtypes.FLOATING else backend.default_floating_dtype
        low, high = self._low, self._high
        if low is None or high is None:
            low, high = ((bound.astype(np.float64) - self._offset) / self._scale for bound in box.bounds)
            name = backend.dtype_name(dtype)
            largest = np.finfo(dtypes.host_dtype(name)).max if name in dtypes.FLOATING else np.inf
            low, high = np.where(low < -largest, -np.inf, low), np.where(high > largest, np.inf, high)
        try:
            return BoxSpace(backend, low, high, dtype, box.device, box.shape)
        except ValueError as error:
            raise ValueError(f"offset and scale do not suit {box}: {error}") from None

    def transform(self, source_space: Space, data: Any) -> Any:
        backend = source_space.backend
        plan = self._plans.get(source_space, constants_device(backend, data), self._make_plan)
        result = plan(data)
        return result if result.shape else backend.asarray(result)  # NumPy turns 0-d arrays into scalars

    def direction_inverse(self, source_space: Space | None = None) -> NormalizeTransformation:
        box = require_box(need_source_space(self, source_space), type(self).__name__)
        scale = 1.0 / np.asarray(self._scale, np.float64)
        low, high = (_without_leading_ones(bound) for bound in box.bounds)
        return NormalizeTransformation(-np.asarray(self._offset) * scale, scale, box.dtype_name, low, high)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {
            "offset": serialize_scalar_or_array_value(self._offset),
            "scale": serialize_scalar_or_array_value(self._scale),
            "new_dtype": self._new_dtype,
            "low": None if self._low is None else serialize_scalar_or_array_value(self._low),
            "high": None if self._high is None else serialize_scalar_or_array_value(self._high),
        }

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> NormalizeTransformation:
        offset, scale = (
            deserialize_scalar_or_array_value(read_setting(json_data, name, cls)) for name in ("offset", "scale")
        )
        bounds = {
            name: deserialize_scalar_or_array_value(json_data[name])
            for name in ("low", "high")
            if json_data.get(name) is not None
        }
        return cls(offset, scale, json_data.get("new_dtype"), **bounds)

    def _make_plan(self, source: Space, device: Any) -> _Plan:
        box, target = require_box(source, type(self).__name__), self.get_target_space_from_source(source)
        backend = box.backend
        is_wide = any(_wants_double(space.dtype_name) for space in (box, target))
        compute_dtype = backend.dtype_from_name("float64" if is_wide else "float32")
        compute = backend.dtype_name(compute_dtype)
        into = RoundToIntegers if target.dtype_name in dtypes.INTEGER else ClipFloats
        offset, scale = (np.atleast_1d(np.asarray(value, np.float64)) for value in (self._offset, self._scale))
        return _Plan(
            backend,
            compute_dtype,
            as_operand(backend, offset, compute, device),
            as_operand(backend, scale, compute, device),
            into.into(target, compute, device),
        )


@dataclass(frozen=True)
class _Plan:
    """The constants and steps for arrays of one space on one device."""

    backend: ComputeBackend
    compute_dtype: Any
    offset: Any
    scale: Any
    finish: ClipFloats | RoundToIntegers

    def __call__(self, data: Any) -> Any:
        values = self.backend.astype(data, self.compute_dtype, copy=False)
        return self.finish((values - self.offset) / self.scale)


def _wants_double(dtype_name: str) -> bool:
    """Whether single precision cannot represent all values of a dtype."""
    dtype = np.dtype(dtypes.host_dtype(dtype_name))
    return dtype_name == "float64" or (dtype.kind in "iu" and dtype.itemsize > 2)


def _statistic(stats: Any, name: str, mode: str) -> np.ndarray:
    value = stats.get(name) if isinstance(stats, Mapping) else getattr(stats, name, None)
    if value is None:
        raise ValueError(f"the statistics have no {name!r}, which mode {mode!r} needs")
    statistic = np.asarray(value, np.float64)
    if not np.isfinite(statistic).all():
        raise ValueError(f"{name} is {statistic}, every entry must be finite")
    return statistic


def _without_leading_ones(bound: np.ndarray) -> np.ndarray:
    """Strip leading axes along which a bound does not vary, so that it fits single values and batches."""
    while bound.ndim and bound.shape[0] == 1:
        bound = bound[0]
    return bound
