"""`DynamicBoxSpace`: arrays of numbers whose shape varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backends import dtypes
from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from .._bounds import Bounds, representable
from ..mismatch import at_path, describe_mismatch
from ..space import BoundedManner, Space, parse_shape
from .array import array_mismatch, parse_dtype


class DynamicBoxSpace(Space[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Arrays of one dtype whose axes have sizes between two limits, both inclusive.

    Parameters
    ----------
    backend
        The library of the arrays.
    low, high
        The bounds, as for `BoxSpace`; they do not vary along a varying axis.
    shape_low, shape_high
        The smallest and the largest size of each axis; at least one axis varies. None in `shape_high` means no limit.
    dtype, device
        As for `BoxSpace`.
    fill_value
        The value that `pad_data` appends. `unpad_data` can strip the padding only if the value is outside the bounds,
        such as NaN.

    Raises
    ------
    ValueError
        `dtype` is not real, no axis varies, a size is negative or above the largest one, or the bounds
        or `fill_value` do not fit the dtype.
    TypeError
        A bound is no number, or a shape no sequence of integers.

    Examples
    --------
    >>> points = DynamicBoxSpace("numpy", -1.0, 1.0, (0, 3), (100, 3), "float32")
    >>> points.contains(np.zeros((7, 3), np.float32))
    True
    """

    def __init__(
        self,
        backend: BackendLike,
        low: Any,
        high: Any,
        shape_low: Sequence[int],
        shape_high: Sequence[int | None],
        dtype: Any,
        device: Any = None,
        fill_value: int | float = 0,
    ) -> None:
        backend = parse_backend(backend)
        dtype = parse_dtype(backend, dtype)
        self.dtype_name = backend.dtype_name(dtype)
        if self.dtype_name not in dtypes.INTEGER | dtypes.FLOATING:
            raise ValueError(f"dtype is {self.dtype_name}, a dynamic box holds real numbers")
        super().__init__(backend, device=device, dtype=dtype)
        self._shape_low: tuple[int, ...] = parse_shape(shape_low, "shape_low")
        self._shape_high: tuple[int | None, ...] = parse_shape(shape_high, "shape_high", open_ended=True)
        if len(self._shape_low) != len(self._shape_high):
            raise ValueError(f"shape_low {self._shape_low} and shape_high {self._shape_high} differ in length")
        for axis, (least, most) in enumerate(zip(self._shape_low, self._shape_high, strict=True)):
            if most is not None and most < least:
                raise ValueError(f"axis {axis}: sizes from {least} to {most}, they want 0 <= low <= high")
        if self._shape_low == self._shape_high:
            raise ValueError(f"shape {self._shape_low} does not vary: use BoxSpace")
        self.bounds, _ = Bounds.parse(backend, low, high, self.dtype_name, self._bound_shape)
        try:
            self.fill_value = representable(fill_value, self.dtype_name)
        except ValueError as error:
            raise ValueError(f"fill_value {error}") from None

    @property
    def _bound_shape(self) -> tuple[int, ...]:
        """The shape of the bounds: a single entry along every axis that varies."""
        return tuple(
            least if least == most else 1 for least, most in zip(self._shape_low, self._shape_high, strict=True)
        )

    @property
    def shape_low(self) -> tuple[int, ...]:
        """The smallest size of each axis."""
        return self._shape_low

    @property
    def shape_high(self) -> tuple[int | None, ...]:
        """The largest size of each axis; None where an axis has no limit."""
        return self._shape_high

    @property
    def low(self) -> BArrayType:
        """The lower bounds, with a single entry along every axis that varies."""
        return self.get_low(self._bound_shape)

    @property
    def high(self) -> BArrayType:
        """The upper bounds, with a single entry along every axis that varies."""
        return self.get_high(self._bound_shape)

    def get_low(self, shape: Sequence[int]) -> BArrayType:
        """The lower bounds of a value of that shape."""
        return self.bounds.native(self.bounds.low, self.backend, self.dtype, self.device, shape)

    def get_high(self, shape: Sequence[int]) -> BArrayType:
        """The upper bounds of a value of that shape."""
        return self.bounds.native(self.bounds.high, self.backend, self.dtype, self.device, shape)

    def shape_contains(self, shape: Sequence[int]) -> bool:
        """Whether a value may have this shape."""
        limits = zip(self._shape_low, self._shape_high, strict=True)
        return len(shape) == len(self._shape_low) and all(
            least <= size and (most is None or size <= most) for size, (least, most) in zip(shape, limits, strict=True)
        )

    def clip(self, x: BArrayType) -> BArrayType:
        """Clip every entry of `x` to the bounds."""
        return self.bounds.clip(self.backend, x, self.dtype, self.device)

    # -- padding -------------------------------------------------------------------------------------------

    @staticmethod
    def pad_array_on_axis(
        backend: BackendLike, data: Any, axis: int, target_size: int, fill_value: int | float = 0
    ) -> Any:
        """Append `fill_value` to `data` along one axis up to `target_size`."""
        return parse_backend(backend).pad_dim(data, axis, target_size, fill_value)

    @staticmethod
    def get_array_axis_length(backend: BackendLike, data: Any, axis: int, fill_value: int | float = 0) -> int:
        """The size of an axis without the trailing slices that contain only `fill_value`."""
        backend = parse_backend(backend)
        values = np.moveaxis(backend.to_host(data), axis, 0)
        fill_value = representable(fill_value, backend.dtype_name(data.dtype))
        filled = np.isnan(values) if np.isnan(fill_value) else values == fill_value
        used = np.flatnonzero(~filled.reshape(values.shape[0], -1).all(axis=1)) if values.size else np.zeros(0, int)
        return int(used[-1]) + 1 if used.size else 0

    @staticmethod
    def unpad_array_on_axis(backend: BackendLike, data: Any, axis: int, fill_value: int | float = 0) -> Any:
        """Strip the trailing slices along one axis that contain only `fill_value`."""
        length = DynamicBoxSpace.get_array_axis_length(backend, data, axis, fill_value)
        return data[(slice(None),) * (axis % len(data.shape)) + (slice(0, length),)]

    def _varying_axes(self, start_axis: int | None, end_axis: int | None) -> list[int]:
        axes = range(len(self._shape_low))[start_axis:end_axis]
        return [axis for axis in axes if self._shape_low[axis] != self._shape_high[axis]]

    def pad_data(self, data: BArrayType, start_axis: int | None = None, end_axis: int | None = None) -> BArrayType:
        """Pad a value to `shape_high` along the varying axes in [start_axis, end_axis).

        Raises
        ------
        ValueError
            An axis has no limit.
        """
        for axis in self._varying_axes(start_axis, end_axis):
            most = self._shape_high[axis]
            if most is None:
                raise ValueError(f"axis {axis} has no limit, so there is no size to pad it to")
            data = self.pad_array_on_axis(self.backend, data, axis, most, self.fill_value)
        return data

    def unpad_data(
        self,
        data: BArrayType,
        start_axis: int | None = None,
        end_axis: int | None = None,
        *,
        shape: Sequence[int] | None = None,
    ) -> BArrayType:
        """Invert `pad_data`, exactly if the original `shape` is given.

        Without `shape`, strips the trailing slices of `fill_value`; raises a ValueError if they could be data.

        Raises
        ------
        ValueError
            `shape` is missing, and `fill_value` cannot be told from data.
        """
        if shape is not None:
            return data[tuple(slice(0, size) for size in shape)]  # type: ignore[index]
        if self.bounds.admits(self.fill_value):
            raise ValueError(
                f"fill_value {self.fill_value} lies within the bounds, so padding cannot be told from data: pass "
                "shape=, or give the space a fill_value outside its bounds"
            )
        for axis in self._varying_axes(start_axis, end_axis):
            length = self.get_array_axis_length(self.backend, data, axis, self.fill_value)
            keep = slice(0, max(length, self._shape_low[axis]))
            data = data[(slice(None),) * axis + (keep,)]  # type: ignore[index]
        return data

    # -- methods of every space ----------------------------------------------------------------------------

    def to(self, backend: BackendLike | None = None, device: Any = None) -> DynamicBoxSpace:
        backend = None if backend is None else parse_backend(backend)
        if self._is_on(backend, device):
            return self
        backend = backend or self.backend
        dtype = backend.dtype_from_name(self.dtype_name)
        bounds = self.bounds.narrowed(self.dtype_name, backend.dtype_name(dtype))
        low, high = bounds
        return DynamicBoxSpace(backend, low, high, self._shape_low, self._shape_high, dtype, device, self.fill_value)

    def data_to(self, data: BArrayType, backend: BackendLike | None = None, device: Any = None) -> Any:
        return self.of_shape(data.shape).data_to(data, backend, device)  # type: ignore[attr-defined]

    def of_shape(self, shape: Sequence[int]) -> Any:
        """The `BoxSpace` of the values with a shape."""
        from .box import BoxSpace

        return BoxSpace(self.backend, self.bounds.low, self.bounds.high, self.dtype, self.device, shape)

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, BArrayType]:
        shape = []
        for least, most in zip(self._shape_low, self._shape_high, strict=True):
            rng, size = sample_size(self.backend, rng, least, most)
            shape.append(size)
        return self.bounds.sample(self.backend, rng, tuple(shape), self.dtype, self.device)

    def create_empty(self) -> BArrayType:
        return self.backend.empty(self._shape_low, dtype=self.dtype, device=self.device)

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return self.bounds.is_bounded(manner)

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        if not isinstance(other, DynamicBoxSpace) or self.backend is not other.backend:
            return False
        if self.dtype_name != other.dtype_name or len(self.shape_low) != len(other.shape_low):
            return False
        sizes_fit = all(
            least <= mine_least and (most is None or (mine_most is not None and mine_most <= most))
            for mine_least, mine_most, least, most in zip(
                self.shape_low, self.shape_high, other.shape_low, other.shape_high, strict=True
            )
        )
        return sizes_fit and self.bounds.inside(other.bounds)

    def _key(self) -> tuple[Any, ...]:
        return (self._shape_low, self._shape_high, self.dtype_name, *self.bounds.key())

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
            return f"DynamicBox([{low}, {high}], {self._shape_low}..{self._shape_high}{dtype}{suffix})"
        return (
            f"DynamicBoxSpace(low={low}, high={high}, shape_low={self._shape_low}, shape_high={self._shape_high}, "
            f"fill_value={self.fill_value}{dtype}{suffix})"
        )


def sample_size(backend: ComputeBackend, rng: Any, least: int, most: int | None) -> tuple[Any, int]:
    """Draw a size uniformly between two limits; without an upper limit, a few above the lower one."""
    if most is None:
        rng, drawn = backend.random.random_geometric((), p=0.25, rng=rng)
        return rng, least + int(drawn) - 1
    if least == most:
        return rng, least
    rng, drawn = backend.random.random_discrete_uniform((), least, most + 1, rng=rng)
    return rng, int(drawn)


@describe_mismatch.register
def _(space: DynamicBoxSpace, x: Any, path: str = "") -> str | None:
    finding = array_mismatch(space.backend, space.dtype_name, x, path, None)
    if finding is not None:
        return finding
    if not space.shape_contains(tuple(x.shape)):
        return at_path(path, f"shape {tuple(x.shape)}, the space wants {space.shape_low} to {space.shape_high}")
    violation = space.bounds.violation(space.backend.to_host(x))
    return None if violation is None else at_path(path, violation)
