"""`RescaleTransformation`: map bounded boxes linearly to other bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import deserialize_backend, dtypes
from ..backends.array_serialization import deserialize_scalar_or_array_value, serialize_scalar_or_array_value
from ..backends.base import ComputeBackend
from ..space.space import Space
from ..space.spaces import BoxSpace
from ._operands import (
    ClipFloats,
    Constant,
    RoundToIntegers,
    as_exact,
    as_operand,
    can_be_anchored,
    check_order,
    clamp,
    constants_device,
    parse_constant,
    require_box,
    signed_dtype,
    signed_name,
)
from ._space_cache import SpaceCache
from .serialization_utils import register_transformation
from .transformation import DataTransformation, need_source_space

# Integers of a wider range are mapped in float64, if the backend has it.
_WIDEST_RANGE_FOR_FLOAT32 = 2**16


@register_transformation("rescale")
class RescaleTransformation(DataTransformation):
    """Maps each entry of a bounded box linearly from its bounds to the bounds `new_low` and `new_high`.

    An entry whose bounds are equal becomes `new_low`. Results are clipped to the new bounds.

    Parameters
    ----------
    new_low, new_high
        Numbers, or arrays that broadcast to the shape of the box.
    new_dtype
        The dtype of the results; by default the dtype of the source if it is a float, else the backend's default float.
        Integers are rounded to the nearest.
    nan_to
        The value that replaces NaN after the mapping; by default NaN stays.

    Raises
    ------
    ValueError
        An end of the new bounds is not finite, `new_low` is above `new_high`, or `new_dtype` is none of real numbers.
    TypeError
        A constant is no number and no array.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(2,))
    >>> rescale = RescaleTransformation(0.0, 1.0, "float32")
    >>> rescale.transform(space, np.array([0, 255], np.uint8))
    array([0., 1.], dtype=float32)
    """

    has_inverse = True

    def __init__(self, new_low: Any = -1.0, new_high: Any = 1.0, new_dtype: Any = None, nan_to: Any = None) -> None:
        self._new_low = _finite("new_low", new_low)
        self._new_high = _finite("new_high", new_high)
        check_order("new_low", self._new_low, "new_high", self._new_high)
        self._new_dtype = None if new_dtype is None else _dtype_name(new_dtype)
        self._nan_to = None if nan_to is None else _finite("nan_to", nan_to)
        if self._nan_to is not None:
            check_order("new_low", self._new_low, "nan_to", self._nan_to)
            check_order("nan_to", self._nan_to, "new_high", self._new_high)
        self._plans: SpaceCache[_Plan] = SpaceCache()

    @property
    def new_low(self) -> Constant:
        """The lower bound of the results: a number, or a NumPy array."""
        return self._new_low

    @property
    def new_high(self) -> Constant:
        """The upper bound of the results: a number, or a NumPy array."""
        return self._new_high

    @property
    def new_dtype(self) -> str | None:
        """The name of the results' dtype, or None if it follows from the source."""
        return self._new_dtype

    @property
    def nan_to(self) -> Constant | None:
        """The value that replaces NaN, or None."""
        return self._nan_to

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        box = require_box(source_space, type(self).__name__)
        _check_bounded(box)
        backend = box.backend
        if self._new_dtype is not None:
            dtype = backend.dtype_from_name(self._new_dtype)
        else:
            dtype = box.dtype if box.dtype_name in dtypes.FLOATING else backend.default_floating_dtype
        try:
            return BoxSpace(backend, self._new_low, self._new_high, dtype, box.device, box.shape)
        except ValueError as error:
            raise ValueError(f"new_low and new_high do not suit {box}: {error}") from None

    def transform(self, source_space: Space, data: Any) -> Any:
        backend = source_space.backend
        plan = self._plans.get(source_space, constants_device(backend, data), self._make_plan)
        result = plan(data)
        return result if result.shape else backend.asarray(result)  # NumPy turns 0-d arrays into scalars

    def direction_inverse(self, source_space: Space | None = None) -> RescaleTransformation:
        box = require_box(need_source_space(self, source_space), type(self).__name__)
        _check_bounded(box)
        low, high = (_without_leading_ones(bound) for bound in box.bounds)
        return RescaleTransformation(low, high, box.dtype_name)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {
            "new_low": serialize_scalar_or_array_value(self._new_low),
            "new_high": serialize_scalar_or_array_value(self._new_high),
            "new_dtype": self._new_dtype,
            "nan_to": None if self._nan_to is None else serialize_scalar_or_array_value(self._nan_to),
        }

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> RescaleTransformation:
        constants = {
            name: deserialize_scalar_or_array_value(json_data[name])
            for name in ("new_low", "new_high", "nan_to")
            if json_data.get(name) is not None
        }
        return cls(**constants, new_dtype=json_data.get("new_dtype"))

    def _make_plan(self, source: Space, device: Any) -> _Plan:
        target = self.get_target_space_from_source(source)
        return _Plan.between(require_box(source, type(self).__name__), target, self._nan_to, device)


def _finite(name: str, value: Any) -> Constant:
    constant = parse_constant(name, value)
    if not np.all(np.isfinite(constant)):
        raise ValueError(f"{name} is {constant}, an end of the new bounds must be finite")
    return constant


def _dtype_name(dtype: Any) -> str:
    """The name of a dtype of any library."""
    if isinstance(dtype, str):
        name = dtype
    elif type(dtype).__module__ == "torch":
        name = deserialize_backend("pytorch").dtype_name(dtype)
    else:
        name = np.dtype(dtype).name
    if name not in dtypes.INTEGER | dtypes.FLOATING:
        raise ValueError(f"new_dtype is {name!r}, a box of real numbers wants one of integers or floats")
    return name


def _check_bounded(box: BoxSpace) -> None:
    for side, bound in zip(("low", "high"), box.bounds, strict=True):
        unbounded = np.argwhere(~np.isfinite(bound))
        if len(unbounded):
            index = tuple(unbounded[0].tolist())
            at = f" at {index}" if bound.size > 1 else ""
            raise ValueError(
                f"{side} is {bound[index]}{at}, rescaling wants finite bounds on both sides: crop the space first"
            )


def _without_leading_ones(bound: np.ndarray) -> np.ndarray | int | float:
    """Strip leading axes along which a bound does not vary, so that it fits single values and batches."""
    while bound.ndim and bound.shape[0] == 1:
        bound = bound[0]
    return bound if bound.ndim else bound.item()


# -- arithmetic --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """The constants and steps for arrays of one space on one device."""

    backend: ComputeBackend
    counted_from: Any  # the lower bound, subtracted first from integers that floats cannot represent; else None
    compute_dtype: Any
    body: _Linear | _Blend
    nan_to: Any
    finish: ClipFloats | RoundToIntegers

    @classmethod
    def between(cls, source: BoxSpace, target: BoxSpace, nan_to: Constant | None, device: Any) -> _Plan:
        backend = source.backend
        compute_dtype = backend.dtype_from_name("float64" if _wants_double(source, target) else "float32")
        compute = backend.dtype_name(compute_dtype)
        low, high = (as_exact(bound) for bound in source.bounds)
        new_low, new_high = (as_exact(bound) for bound in target.bounds)
        counted, anchored = (_exceeds_floats(box, compute) for box in (source, target))
        finish: ClipFloats | RoundToIntegers
        if target.dtype_name in dtypes.INTEGER:
            finish = RoundToIntegers.into(target, compute, device, anchored)
        else:
            finish = ClipFloats.into(target, compute, device)
        anchor = new_low if anchored else as_exact(np.zeros(1))
        ends = (low - low, high - low) if counted else (low, high)
        return cls(
            backend,
            as_operand(backend, low, signed_name(backend), device) if counted else None,
            compute_dtype,
            _body(backend, ends, (new_low - anchor, new_high - anchor), compute, device),
            _replacement(backend, nan_to, anchor, source, compute, device),
            finish,
        )

    def __call__(self, data: Any) -> Any:
        backend = self.backend
        if self.counted_from is not None:
            data = backend.astype(data, signed_dtype(backend), copy=False) - self.counted_from
        values = self.body(backend.astype(data, self.compute_dtype, copy=False))
        if self.nan_to is not None:
            values = backend.where(backend.isnan(values), self.nan_to, values)
        return self.finish(values)


@dataclass(frozen=True)
class _Linear:
    """Computes (x - shift) * scale + offset; skips steps with a shift or offset of 0."""

    shift: Any
    scale: Any
    offset: Any

    def __call__(self, x: Any) -> Any:
        # never write to x, the caller's array; the result of the first operation may be written to
        if _is_zero(self.shift):
            y = x * self.scale
        else:
            y = x - self.shift
            y *= self.scale
        if not _is_zero(self.offset):
            y += self.offset
        return y


@dataclass(frozen=True)
class _Blend:
    """The map for bounds whose distance or scale exceeds the range of floats."""

    shrink: Any
    shift: Any
    width: Any
    start: Any
    stop: Any

    def __call__(self, x: Any) -> Any:
        share = (x * self.shrink - self.shift) / self.width
        share = clamp(share, 0.0, 1.0)
        return self.start * (1.0 - share) + self.stop * share


def _is_zero(operand: Any) -> bool:
    return isinstance(operand, float) and operand == 0.0


def _body(
    backend: ComputeBackend,
    ends: tuple[np.ndarray, np.ndarray],
    new_ends: tuple[np.ndarray, np.ndarray],
    compute: str,
    device: Any,
) -> _Linear | _Blend:
    low, high, start, stop = (np.asarray(end, dtype=np.float64) for end in (*ends, *new_ends))
    largest, smallest = float(np.finfo(compute).max) / 4, float(np.finfo(compute).smallest_normal) * 4
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        width, new_width = high - low, stop - start
        flat = width < smallest  # treat as equal bounds: in `compute` precision the width may be 0
        scale = np.where(flat, 0.0, new_width / width)

    def operand(values: np.ndarray) -> Any:
        return as_operand(backend, values, compute, device)

    usual = (scale == 0.0) | ((scale >= smallest) & (scale <= largest))
    if np.all(usual) and np.all(width <= largest) and np.all(new_width <= largest):
        return _Linear(operand(low), operand(_enlarged_scale(scale, low, high, start, stop, compute)), operand(start))
    # Compilers replace a division by a product with the inverse, which is subnormal for a huge width.
    shrink = np.where(width <= largest, 1.0, 2.0 ** -(np.finfo(compute).maxexp // 2))
    # x / inf is 0: entries with equal bounds become the start
    width = np.where(flat, np.inf, high * shrink - low * shrink)
    return _Blend(operand(shrink), operand(low * shrink), operand(width), operand(start), operand(stop))


def _enlarged_scale(
    scale: np.ndarray, low: np.ndarray, high: np.ndarray, start: np.ndarray, stop: np.ndarray, compute: str
) -> np.ndarray:
    """Enlarge the scale by a few ulps so that the upper bound is reached despite rounding; the excess is clipped."""
    low, high, start, stop, scale = (values.astype(compute) for values in (low, high, start, stop, scale))
    width = high - low
    while np.any(short := (scale > 0) & (width * scale + start < stop)):
        scale = np.where(short, np.nextafter(scale, np.asarray(np.inf, compute)), scale)
    return scale.astype(np.float64)


def _wants_double(*boxes: BoxSpace) -> bool:
    return any(
        box.dtype_name == "float64"
        or (
            box.dtype_name in dtypes.INTEGER
            and np.any(as_exact(box.bounds.high) - as_exact(box.bounds.low) > _WIDEST_RANGE_FOR_FLOAT32)
        )
        for box in boxes
    )


def _exceeds_floats(box: BoxSpace, compute: str) -> bool:
    """Whether a box has integers that floats cannot represent, but whose distances from a bound fit an integer."""
    if box.dtype_name not in dtypes.INTEGER:
        return False
    low, high = (as_exact(bound) for bound in box.bounds)
    largest_exact = 2 ** (np.finfo(compute).nmant + 1)
    if np.all(low >= -largest_exact) and np.all(high <= largest_exact):
        return False
    return can_be_anchored(box.backend, low, high)


def _replacement(
    backend: ComputeBackend, nan_to: Constant | None, anchor: np.ndarray, source: BoxSpace, compute: str, device: Any
) -> Any:
    if nan_to is None or source.dtype_name in dtypes.INTEGER:  # integers are never NaN
        return None
    values = np.asarray(as_exact(np.asarray(nan_to)) - anchor, dtype=np.float64)
    return as_operand(backend, values, compute, device)
