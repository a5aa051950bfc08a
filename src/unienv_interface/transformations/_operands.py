"""Constants for arithmetic with arrays of any backend.

Constants are computed in NumPy, once per space. A constant with a single value becomes a Python number, which every
library takes without a transfer and without widening the dtype of the data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import dtypes, get_backend_from_tensor
from ..backends.base import ComputeBackend
from ..space.space import Space
from ..space.spaces import BoxSpace

Constant = int | float | np.ndarray

# PyTorch stores these dtypes, but cannot compare, add or gather them.
_ONLY_HELD_BY_PYTORCH = frozenset({"uint16", "uint32", "uint64"})


def parse_constant(name: str, value: Any) -> Constant:
    """Convert a setting (a number, a list or an array of any backend) to a number or a copied NumPy array."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, (bool, np.generic))
    if is_number or isinstance(value, (list, tuple)):
        array = np.array(value)
    else:
        try:
            array = np.array(get_backend_from_tensor(value).to_host(value))
        except TypeError:
            raise TypeError(f"{name} is {type(value).__name__}, it must be a number or an array") from None
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {value!r}, it must be a real number or an array of them")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"{name} holds NaN, which is not between any bounds")
    array.flags.writeable = False
    return value if is_number else array


def check_order(low_name: str, low: Constant, high_name: str, high: Constant) -> None:
    """Raise a ValueError if an entry of `low` is above `high`."""
    try:
        lows, highs = np.broadcast_arrays(low, high)
    except ValueError:
        raise ValueError(
            f"{low_name} has shape {np.shape(low)} and {high_name} {np.shape(high)}, which do not broadcast"
        ) from None
    wrong = np.argwhere(lows > highs)
    if len(wrong):
        index = tuple(wrong[0].tolist())
        at = f" at {index}" if index else ""
        raise ValueError(f"{low_name} {lows[index]} is above {high_name} {highs[index]}{at}")


def require_box(space: Space, owner: str) -> BoxSpace:
    """Return the space, or raise a TypeError if it is not a box of real numbers."""
    if not isinstance(space, BoxSpace):
        raise TypeError(
            f"{owner} wants a BoxSpace, not {space}; DictTransformation and IterativeTransformation reach the boxes "
            "inside other spaces"
        )
    if space.dtype_name in dtypes.COMPLEX:
        raise TypeError(f"{owner} wants real numbers, the dtype of {space} is {space.dtype_name}")
    return space


def constants_device(backend: ComputeBackend, data: Any) -> Any:
    """The device for constants in arithmetic with `data`: a device of PyTorch, or None for NumPy arrays.

    For JAX, constants must be NumPy arrays: an array made during a trace of JAX cannot be cached for the next one.
    """
    return data.device if backend.simplified_name == "pytorch" else None


def as_operand(backend: ComputeBackend, values: np.ndarray, dtype_name: str, device: Any) -> Any:
    """Convert NumPy values to an operand for the last axes of arrays: a number if there is one value, else an array."""
    return values.item() if values.size == 1 else _trailing_array(backend, values, dtype_name, device)


def as_operands(
    backend: ComputeBackend, low: np.ndarray, high: np.ndarray, dtype_name: str, device: Any
) -> tuple[Any, Any]:
    """Convert two bounds for `clip` to two numbers or two arrays: PyTorch does not mix both."""
    if low.size == high.size == 1:
        return low.item(), high.item()
    shape = np.broadcast_shapes(low.shape, high.shape)
    lows, highs = (_trailing_array(backend, np.broadcast_to(bound, shape), dtype_name, device) for bound in (low, high))
    return lows, highs


def as_array(backend: ComputeBackend, values: np.ndarray, dtype_name: str, device: Any) -> Any:
    """Convert NumPy values to an array of the same shape."""
    array = np.ascontiguousarray(values, dtype=dtype_name).reshape(values.shape)
    return array if device is None else backend.from_numpy(array, device=device, copy=True)


def _trailing_array(backend: ComputeBackend, values: np.ndarray, dtype_name: str, device: Any) -> Any:
    """Convert NumPy values to an array without leading axes of size 1, which would add axes to the data."""
    first = next((axis for axis, size in enumerate(values.shape) if size != 1), values.ndim)
    return as_array(backend, values.reshape(values.shape[first:]), dtype_name, device)


def clamp(values: Any, low: Any, high: Any) -> Any:
    """Clip values to bounds."""
    # the method: array-api-compat's function takes five times as long on NumPy
    return values.clip(low, high)


def lacks_arithmetic(backend: ComputeBackend, dtype_name: str) -> bool:
    """Whether the backend can store a dtype but not compute with it."""
    return backend.simplified_name == "pytorch" and dtype_name in _ONLY_HELD_BY_PYTORCH


def as_exact(values: np.ndarray) -> np.ndarray:
    """Convert bounds to numbers whose differences do not overflow: Python ints for integers, float64 for floats."""
    values = np.atleast_1d(values)  # NumPy returns bare objects from 0-d arrays of objects
    if values.dtype.kind in "iu":
        return np.array([int(value) for value in values.flat], dtype=object).reshape(values.shape)
    return values.astype(np.float64)


@dataclass(frozen=True)
class ClipFloats:
    """The last step to floats: clip to the bounds, then cast. Rounding is monotonic, so values stay inside."""

    backend: ComputeBackend
    low: Any
    high: Any
    dtype: Any

    @classmethod
    def into(cls, space: BoxSpace, compute_name: str, device: Any) -> ClipFloats:
        low, high = (bound.astype(np.float64) for bound in space.bounds)
        return cls(space.backend, *as_operands(space.backend, low, high, compute_name, device), space.dtype)

    def __call__(self, values: Any) -> Any:
        return self.backend.astype(clamp(values, self.low, self.high), self.dtype, copy=False)


@dataclass(frozen=True)
class RoundToIntegers:
    """The last step to integers: clip to the bounds, round to the nearest integer, cast.

    With an `anchor`, values are distances from the anchor, which is added as an integer, since floats do not represent
    all large integers. Bounds that no float equals can still be reached, and no cast overflows.
    """

    backend: ComputeBackend
    low: Any
    high: Any
    anchor: Any
    dtype: Any
    # (comparison, last float inside, bound): values beyond the last float become the bound
    ends: tuple[tuple[Callable[[Any, Any], Any], Any, Any], ...]

    @classmethod
    def into(cls, space: BoxSpace, compute_name: str, device: Any, anchored: bool = False) -> RoundToIntegers:
        backend = space.backend
        low, high = (as_exact(bound) for bound in space.bounds)
        anchor = low if anchored else as_exact(np.zeros(1, np.int64))
        first, last = _floats_inside(low - anchor, high - anchor, compute_name)
        ends = tuple(
            (
                beyond,
                _trailing_array(backend, inside, compute_name, device),
                _trailing_array(backend, bound, space.dtype_name, device),
            )
            for beyond, inside, bound in ((operator.lt, first, low), (operator.gt, last, high))
            if np.any(inside.astype(object) != bound - anchor)
        )
        return cls(
            backend,
            *as_operands(backend, first, last, compute_name, device),
            as_operand(backend, anchor, signed_name(backend), device) if anchored else None,
            space.dtype,
            ends,
        )

    def __call__(self, values: Any) -> Any:
        backend = self.backend
        rounded = backend.round(clamp(values, self.low, self.high))
        if self.anchor is not None:
            rounded = backend.astype(rounded, signed_dtype(backend)) + self.anchor
        result = backend.astype(rounded, self.dtype, copy=False)
        for beyond, inside, bound in self.ends:
            result = backend.where(beyond(values, inside), bound, result)
        return result


def _floats_inside(low: np.ndarray, high: np.ndarray, compute_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Round exact bounds inward to floats."""
    first, last = low.astype(compute_name), high.astype(compute_name)
    # as objects: Python compares ints with floats exactly
    below, above = (first.astype(object) < low).astype(bool), (last.astype(object) > high).astype(bool)
    return (
        np.where(below, np.nextafter(first, np.inf), first),
        np.where(above, np.nextafter(last, -np.inf), last),
    )


def signed_dtype(backend: ComputeBackend) -> Any:
    """The widest signed integer dtype of the backend."""
    return backend.dtype_from_name("int64")


def signed_name(backend: ComputeBackend) -> str:
    return backend.dtype_name(signed_dtype(backend))


def can_be_anchored(backend: ComputeBackend, low: np.ndarray, high: np.ndarray) -> bool:
    """Whether integers in these bounds, and their distances from the lower bound, fit signed integers."""
    limits = np.iinfo(signed_name(backend))
    return bool(np.all(low >= limits.min) and np.all(high <= limits.max) and np.all(high - low <= limits.max))
