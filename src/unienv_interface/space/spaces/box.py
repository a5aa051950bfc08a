"""`BoxSpace`: arrays of numbers between bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backends import dtypes
from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from .._bounds import Bounds
from ..mismatch import at_path, describe_mismatch
from ..space import BoundedManner
from .array import ArraySpace, array_mismatch, parse_dtype


class BoxSpace(ArraySpace[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Arrays of one shape and dtype, each entry between a lower and an upper bound, both inclusive.

    Parameters
    ----------
    backend
        The library of the arrays.
    low, high
        Numbers, or arrays that broadcast to `shape`. An infinite bound means no bound; for an integer dtype it becomes
        the end of the dtype's range. Complex dtypes have no bounds.
    dtype
        The dtype of the library, or its name. On JAX without `jax_enable_x64`, 64-bit dtypes become 32-bit ones.
    device
        The device of the arrays; None for any.
    shape
        The shape of every value; by default the shape that the bounds broadcast to.

    Raises
    ------
    ValueError
        `dtype` is boolean; a bound is NaN, beyond the range of the dtype or of another shape; or `low` is
        above `high`.
    TypeError
        A bound is no number, or the backend has no such dtype.

    Examples
    --------
    >>> from unienv_interface.backends import NumpyComputeBackend
    >>> BoxSpace(NumpyComputeBackend, -1.0, 1.0, "float32", shape=(3,))
    BoxSpace(low=-1.0, high=1.0, shape=(3,), dtype=float32, backend=numpy)
    """

    def __init__(
        self,
        backend: BackendLike,
        low: Any,
        high: Any,
        dtype: Any,
        device: Any = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        backend = parse_backend(backend)
        dtype = parse_dtype(backend, dtype)
        name = backend.dtype_name(dtype)
        if name in dtypes.BOOLEAN:
            raise ValueError("dtype is bool, a box holds numbers: use BinarySpace for booleans")
        bounds, full_shape = Bounds.parse(backend, low, high, name, shape)
        super().__init__(backend, full_shape, device, dtype)
        self.bounds = bounds

    @classmethod
    def _from_bounds(
        cls, backend: ComputeBackend, bounds: Bounds, dtype: Any, device: Any, shape: Sequence[int]
    ) -> BoxSpace:
        return cls(backend, bounds.low, bounds.high, dtype, device, shape)

    @property
    def low(self) -> BArrayType:
        """The lower bounds, as a new array of the full shape."""
        return self.bounds.native(self.bounds.low, self.backend, self._bound_dtype, self.device, self.shape)

    @property
    def high(self) -> BArrayType:
        """The upper bounds, as a new array of the full shape."""
        return self.bounds.native(self.bounds.high, self.backend, self._bound_dtype, self.device, self.shape)

    @property
    def _bound_dtype(self) -> Any:
        # the bounds of complex numbers, all infinite, are real
        is_complex = self.dtype_name in dtypes.COMPLEX
        return self.backend.dtype_from_name("float64") if is_complex else self.dtype

    def to(self, backend: BackendLike | None = None, device: Any = None) -> BoxSpace:
        backend = None if backend is None else parse_backend(backend)
        if self._is_on(backend, device):
            return self
        if backend is None or backend is self.backend:
            return self._from_bounds(self.backend, self.bounds, self.dtype, device, self.shape)
        dtype = backend.dtype_from_name(self.dtype_name)
        bounds = self.bounds.narrowed(self.dtype_name, backend.dtype_name(dtype))
        return self._from_bounds(backend, bounds, dtype, device, self.shape)

    def data_to(self, data: BArrayType, backend: BackendLike | None = None, device: Any = None) -> Any:
        backend = None if backend is None else parse_backend(backend)
        if backend is None or backend is self.backend:
            return self.backend.to_device(data, device)
        target = backend.dtype_name(backend.dtype_from_name(self.dtype_name))
        if target == self.dtype_name or self.dtype_name not in dtypes.FLOATING:
            return super().data_to(data, backend, device)
        # Rounding to fewer bits may exceed the narrowed bounds of `to` by one step: clip.
        values = self.backend.to_host(data)
        with np.errstate(over="ignore"):
            narrow = values.astype(target)
        if np.any(np.isinf(narrow) & np.isfinite(values)):
            raise OverflowError(f"a value up to {np.abs(values[np.isfinite(values)]).max()} does not fit {target}")
        bounds = self.bounds.narrowed(self.dtype_name, target)
        return backend.from_numpy(np.clip(narrow, bounds.low, bounds.high), device=device)

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, BArrayType]:
        return self.bounds.sample(self.backend, rng, self.shape, self.dtype, self.device)

    def clip(self, x: BArrayType) -> BArrayType:
        """Clip every entry of `x` to the bounds."""
        return self.bounds.clip(self.backend, x, self.dtype, self.device)

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return self.bounds.is_bounded(manner)

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        return (
            isinstance(other, BoxSpace)
            and self.backend is other.backend
            and self.dtype_name == other.dtype_name
            and self.shape == other.shape
            and self.bounds.inside(other.bounds)
        )

    def _key(self) -> tuple[Any, ...]:
        return (self.shape, self.dtype_name, *self.bounds.key())

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        low, high = self.bounds.in_words()
        dtype = f", dtype={self.dtype_name}" if include_dtype else ""
        suffix = self._backend_repr(include_backend, include_device)
        if abbreviate:
            return f"Box([{low}, {high}], {self.shape}{dtype}{suffix})"
        return f"BoxSpace(low={low}, high={high}, shape={self.shape}{dtype}{suffix})"


@describe_mismatch.register
def _(space: BoxSpace, x: Any, path: str = "") -> str | None:
    finding = array_mismatch(space.backend, space.dtype_name, x, path, space.shape)
    if finding is None:
        violation = space.bounds.violation(space.backend.to_host(x))
        finding = None if violation is None else at_path(path, violation)
    return finding
