"""Inclusive bounds of arrays, for `BoxSpace`, `DynamicBoxSpace` and `GraphSpace`.

Bounds are NumPy arrays, with one entry along every axis on which they do not vary. Comparing, hashing, printing and
checking therefore need no device and no compiler, and the bounds of an image take little memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import dtypes
from ..backends.base import ComputeBackend, abbreviate
from .space import BoundedManner, parse_shape


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lower and upper bounds, both inclusive, that broadcast to the shape of a value."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def parse(
        cls, backend: ComputeBackend, low: Any, high: Any, dtype_name: str, shape: Sequence[int] | None
    ) -> tuple[Bounds, tuple[int, ...]]:
        """Parse bounds (numbers, lists or arrays); returns the bounds and the shape of a value.

        The default of `shape` is the shape that the two bounds broadcast to.
        """
        bounds = {"low": _as_host(backend, low), "high": _as_host(backend, high)}
        if shape is None:
            try:
                shape = np.broadcast_shapes(bounds["low"].shape, bounds["high"].shape)
            except ValueError:
                raise ValueError(
                    f"low has shape {bounds['low'].shape} and high {bounds['high'].shape}, which do not broadcast"
                ) from None
        shape = parse_shape(shape)
        for name, values in bounds.items():
            if not _broadcasts_to(values.shape, shape):
                raise ValueError(f"{name} has shape {values.shape}, which does not broadcast to {shape}")
        return cls(*(_canonical(name, values, dtype_name, shape) for name, values in bounds.items()))._checked(), shape

    def _checked(self) -> Bounds:
        if np.any(self.low > self.high):
            where = np.argwhere(np.greater(self.low, self.high))[0]
            low, high = (np.broadcast_to(x, np.broadcast_shapes(self.low.shape, self.high.shape)) for x in self)
            index = tuple(where.tolist())
            raise ValueError(f"low {low[index]} is above high {high[index]} at {index}, low must not exceed high")
        return self

    def __iter__(self) -> Any:
        return iter((self.low, self.high))

    # -- queries -------------------------------------------------------------------------------------------

    def key(self) -> tuple[Any, ...]:
        """A hashable key that is equal for equal bounds."""
        return (self.low.shape, self.low.tobytes(), self.high.shape, self.high.tobytes())

    def violation(self, values: np.ndarray) -> str | None:
        """Describe the first value out of bounds; None if all are inside. NaN is outside of all bounds."""
        if values.dtype.kind == "c" or (values.dtype.kind == "f" and not self._limits_anything()):
            good = ~np.isnan(values)
        else:
            good = (values >= self.low) & (values <= self.high)
        if good.all():
            return None
        index = tuple(np.argwhere(~np.asarray(good))[0].tolist())
        low, high = (np.broadcast_to(bound, values.shape)[index] for bound in self)
        at = f" at {index}" if index else ""
        return f"value {values[index]}{at} is outside [{low}, {high}]"

    def _limits_anything(self) -> bool:
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def is_bounded(self, manner: BoundedManner) -> bool:
        below, above = bool(np.isfinite(self.low).all()), bool(np.isfinite(self.high).all())
        if manner == "both":
            return below and above
        if manner == "below":
            return below
        if manner == "above":
            return above
        raise ValueError(f"manner is {manner!r}, it must be 'both', 'below' or 'above'")

    def inside(self, other: Bounds) -> bool:
        return bool(np.all(other.low <= self.low) and np.all(self.high <= other.high))

    def admits(self, value: float) -> bool:
        """Whether the bounds of any entry include a value."""
        return bool(np.any((self.low <= value) & (value <= self.high)))

    def in_words(self) -> tuple[str, str]:
        """The two bounds as text: all entries if they are few, else the smallest and the largest."""

        def words(bound: np.ndarray) -> str:
            if bound.size == 1:
                return str(bound.item())
            return str(bound.tolist()) if bound.size <= 8 else f"{bound.min()}..{bound.max()}"

        return words(self.low), words(self.high)

    # -- arrays and dtypes ---------------------------------------------------------------------------------

    def native(self, bound: np.ndarray, backend: ComputeBackend, dtype: Any, device: Any, shape: Sequence[int]) -> Any:
        """Convert one of the two bounds to a new backend array of the full shape."""
        return backend.from_host(np.broadcast_to(bound, tuple(shape)), dtype, device=device)

    def clip(self, backend: ComputeBackend, x: Any, dtype: Any, device: Any) -> Any:
        """Clip every entry of `x` to the bounds."""
        if not self._limits_anything():
            return x
        low, high = (backend.from_host(bound, dtype, device=device) for bound in self)
        try:
            return backend.minimum(backend.maximum(x, low), high)  # NumPy's clip does not support bfloat16
        except NotImplementedError:  # PyTorch cannot compare uint16, uint32 and uint64
            clipped = np.clip(backend.to_host(x), self.low, self.high)
            return backend.from_host(clipped, dtype, device=backend.device(x))

    def narrowed(self, source: str, target: str) -> Bounds:
        """Round the bounds inward to a dtype with fewer bits.

        Integer bounds at the end of the wide dtype mean "no bound" and become the end of the narrow dtype.
        """
        if source == target:
            return self
        wide, narrow = dtypes.host_dtype(source), dtypes.host_dtype(target)
        if wide.kind in "iu":
            return Bounds(*(_narrow_integers(bound, np.iinfo(wide), np.iinfo(narrow)) for bound in self))
        if target in dtypes.COMPLEX:
            return self  # complex numbers have no bounds
        limit = np.finfo(narrow).max
        if np.any(self.low > limit) or np.any(self.high < -limit):
            raise OverflowError(f"no {target} lies between the bounds {self.low.max()} and {self.high.min()}")
        with np.errstate(over="ignore"):
            low, high = (bound.astype(narrow) for bound in self)
        low = np.where(np.isfinite(self.low), np.maximum(low, -limit), low)
        high = np.where(np.isfinite(self.high), np.minimum(high, limit), high)
        inward_low = np.where(low < self.low, np.nextafter(low, narrow.type(np.inf)), low).astype(narrow)
        inward_high = np.where(high > self.high, np.nextafter(high, narrow.type(-np.inf)), high).astype(narrow)
        crossed = inward_low > inward_high  # no narrow value lies between the bounds: take the nearest one
        return Bounds(np.where(crossed, low, inward_low), np.where(crossed, high, inward_high))

    # -- sampling ------------------------------------------------------------------------------------------

    def sample(
        self, backend: ComputeBackend, rng: Any, shape: tuple[int, ...], dtype: Any, device: Any
    ) -> tuple[Any, Any]:
        """Draw values: uniform between two bounds, exponential from one bound, normal without bounds."""
        name = backend.dtype_name(dtype)
        if name in dtypes.INTEGER:
            low, high = (bound.item() if bound.size == 1 else np.broadcast_to(bound, shape) for bound in self)
            return backend.random.random_discrete_uniform(
                shape, low, high, rng=rng, dtype=dtype, device=device, endpoint=True
            )
        if name in dtypes.COMPLEX:
            part_dtype = backend.dtype_from_name("float32" if name == "complex64" else "float64")
            rng, real = backend.random.random_normal(shape, rng=rng, dtype=part_dtype, device=device)
            rng, imaginary = backend.random.random_normal(shape, rng=rng, dtype=part_dtype, device=device)
            values = backend.astype(real, dtype) + 1j * backend.astype(imaginary, dtype)
            return rng, backend.asarray(values, dtype=dtype)
        return self._sample_floats(backend, rng, shape, dtype, device)

    def _sample_floats(
        self, backend: ComputeBackend, rng: Any, shape: tuple[int, ...], dtype: Any, device: Any
    ) -> tuple[Any, Any]:
        name = backend.dtype_name(dtype)
        drawn = dtype if name in {"float32", "float64"} else backend.dtype_from_name("float32")
        options = {"dtype": drawn, "device": device}

        def operand(values: np.ndarray) -> Any:
            if values.size == 1:
                return values.item()
            return backend.from_numpy(np.ascontiguousarray(values, backend.dtype_name(drawn)), device=device, copy=True)

        low, high = np.broadcast_arrays(self.low, self.high)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        # Replace infinite bounds by 0; each entry takes the draw that fits its pair of bounds.
        safe_low, safe_high = operand(np.where(has_low, low, 0)), operand(np.where(has_high, high, 0))
        draws: list[tuple[np.ndarray, Any]] = []
        if (has_low & has_high).any():
            rng, unit = backend.random.random_uniform(shape, rng=rng, **options)
            # not low + unit * (high - low): the difference may overflow
            draws.append((has_low & has_high, safe_low * (1 - unit) + safe_high * unit))
        if (has_low ^ has_high).any():
            rng, distance = backend.random.random_exponential(shape, rng=rng, **options)
            draws.append((has_low & ~has_high, safe_low + distance))
            draws.append((has_high & ~has_low, safe_high - distance))
        if not (has_low | has_high).all():
            rng, free = backend.random.random_normal(shape, rng=rng, **options)
            draws.append((~has_low & ~has_high, free))
        _, values = draws[0]
        for where, draw in draws[1:]:
            if where.all():
                values = draw
            elif where.any():
                mask = backend.from_numpy(np.ascontiguousarray(np.broadcast_to(where, low.shape)), device=device)
                values = backend.where(mask, draw, values)
        # Rounding may exceed the bounds by one step, or the finite range of a narrow dtype.
        limit = 65504.0 if name == "float16" else np.finfo(np.float32).max if name != "float64" else np.inf
        floor, ceiling = operand(np.maximum(low, -limit)), operand(np.minimum(high, limit))
        values = backend.minimum(
            backend.maximum(values, _array(backend, floor, values)), _array(backend, ceiling, values)
        )
        return rng, backend.asarray(values, dtype=dtype)  # NumPy has turned 0-d arrays into scalars, without `astype`


def representable(value: int | float, dtype_name: str) -> int | float:
    """Round a number to a dtype; raises a ValueError if the number is out of range."""
    if dtype_name in dtypes.INTEGER:
        limits = np.iinfo(dtype_name)
        if not limits.min <= value <= limits.max or value != int(value):
            raise ValueError(f"{value} is not an integer from {limits.min} to {limits.max}, the range of {dtype_name}")
        return int(value)
    with np.errstate(over="ignore"):
        rounded = np.asarray(value, np.float64).astype(dtypes.host_dtype(dtype_name))
    rounded = _round_to_bfloat16(rounded) if dtype_name == "bfloat16" else rounded
    if np.isinf(rounded) and not np.isinf(value):
        raise ValueError(f"{value} is beyond the range of {dtype_name}")
    return value if np.isnan(value) or rounded.item() == value else rounded.item()


def _array(backend: ComputeBackend, operand: Any, like: Any) -> Any:
    """Convert a number to an array: minimum and maximum of the array API take no Python numbers."""
    return backend.full_like(like, operand) if isinstance(operand, float) else operand


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _as_host(backend: ComputeBackend, value: Any) -> np.ndarray:
    if backend.is_backendarray(value):
        return backend.to_host(value)
    try:
        if isinstance(value, (int, list, tuple)):
            exact = np.asarray(value, dtype=object)
            if all(type(entry) is int for entry in exact.flat):
                return exact  # NumPy would convert integers beyond 64 bits to floats
        array = np.asarray(value)
    except Exception as error:
        raise TypeError(f"bound of type {type(value).__name__} is not a number or an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"bound {value!r} is not a number or an array of real numbers")
    return array


def _canonical(name: str, values: np.ndarray, dtype_name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Convert a bound to its NumPy dtype, with one axis per axis of the shape, and abbreviate it."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError(f"{name} holds NaN, a bound is a number or infinity")
    if values.dtype == object and dtype_name not in dtypes.INTEGER:
        try:
            values = values.astype(np.float64)
        except OverflowError:
            raise ValueError(f"{name} is beyond the range of {dtype_name}; use infinity for no bound") from None
    if name == "low" and np.any(values == np.inf):
        raise ValueError("low is +inf, which leaves no value between the bounds")
    if name == "high" and np.any(values == -np.inf):
        raise ValueError("high is -inf, which leaves no value between the bounds")
    if dtype_name in dtypes.COMPLEX:
        if not np.isinf(values).all():
            raise ValueError(f"{name} is finite, but complex numbers have no order: use -inf and inf")
        cast = values.astype(np.float64)
    elif dtype_name in dtypes.INTEGER:
        cast = _integer_bound(name, values, np.dtype(dtype_name))
    else:
        cast = _floating_bound(name, values, dtype_name)
    if 0 in shape:  # empty arrays: all bounds are equal
        return np.zeros((1,) * len(shape), cast.dtype)
    return abbreviate(cast.reshape((1,) * (len(shape) - cast.ndim) + cast.shape))


def _integer_bound(name: str, values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    limits = np.iinfo(dtype)
    if values.dtype.kind != "f":
        outside = (values < limits.min) | (values > limits.max) if values.size else np.zeros(0, bool)
        if np.any(outside):
            raise ValueError(
                f"{name} {values[outside].flat[0]} does not fit {dtype.name}: {limits.min} to {limits.max}"
            )
        return values.astype(dtype)
    finite = np.isfinite(values)
    numbers = np.where(finite, values, 0)
    if np.any(numbers != np.floor(numbers)):
        raise ValueError(
            f"{name} {numbers[numbers != np.floor(numbers)].flat[0]} is not a whole number, the dtype is {dtype.name}"
        )
    exact = np.array([int(x) for x in numbers.flat], dtype=object).reshape(numbers.shape)
    if np.any((exact < limits.min) | (exact > limits.max)):
        raise ValueError(f"{name} holds a value that does not fit {dtype.name}: {limits.min} to {limits.max}")
    # as objects: NumPy would convert 2**64 - 1 to -1
    ends = np.where(values < 0, np.array(limits.min, object), np.array(limits.max, object))
    return np.where(finite, exact, ends).astype(dtype)


def _floating_bound(name: str, values: np.ndarray, dtype_name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = values.astype(dtypes.host_dtype(dtype_name))
        if dtype_name == "bfloat16":
            cast = _round_to_bfloat16(cast)
    if np.any(np.isinf(cast) & np.isfinite(values)):
        worst = values[np.isinf(cast) & np.isfinite(values)].flat[0]
        raise ValueError(f"{name} {worst} is beyond the range of {dtype_name}; use infinity for no bound")
    return cast + 0  # -0.0 becomes 0.0, so that equal bounds have equal bytes


def _round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to the nearest bfloat16, ties to even; returns float32."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), rounded, values).astype(np.float32)


def _narrow_integers(bound: np.ndarray, wide: Any, narrow: Any) -> np.ndarray:
    ends = np.where(bound == wide.max, narrow.max, np.where((bound == wide.min) & (wide.min < 0), narrow.min, bound))
    if ends.size and (ends.min() < narrow.min or ends.max() > narrow.max):
        raise OverflowError(f"bounds {bound.min()} to {bound.max()} do not fit {narrow.dtype}")
    return ends.astype(narrow.dtype)
