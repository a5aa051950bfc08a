"""`ArraySpace`, the base class of spaces whose values are single arrays of a fixed shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...backends import dtypes
from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import at_path
from ..space import Space, parse_shape


class ArraySpace(Space[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A space whose values are arrays of one shape and dtype: `BoxSpace` and `BinarySpace`.

    Parameters
    ----------
    backend
        The library of the arrays.
    shape
        The shape of every value.
    device
        The device of the arrays; None for any.
    dtype
        The dtype of the library, or its name.
    """

    def __init__(self, backend: ComputeBackend, shape: Sequence[int], device: Any, dtype: Any) -> None:
        super().__init__(backend, shape=parse_shape(shape), device=device, dtype=dtype)
        self.dtype_name = backend.dtype_name(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape  # type: ignore[return-value]

    def create_empty(self) -> BArrayType:
        return self.backend.empty(self.shape, dtype=self.dtype, device=self.device)

    def data_to(self, data: BArrayType, backend: BackendLike | None = None, device: Any = None) -> Any:
        target = self.backend if backend is None else parse_backend(backend)
        if target is not self.backend:
            data = target.from_other_backend(self.backend, data)
        return target.to_device(data, device)


def parse_dtype(backend: ComputeBackend, dtype: Any) -> Any:
    """Convert a dtype of the library, or its name, to the dtype of the backend."""
    if dtype is None:  # NumPy reads it as float64
        raise TypeError("dtype is None, an array space wants a dtype, such as 'float32'")
    name = dtype if isinstance(dtype, str) else backend.dtype_name(dtype)
    return backend.dtype_from_name(name)


def array_mismatch(
    backend: ComputeBackend, dtype_name: str, x: Any, path: str, shape: tuple[int, ...] | None
) -> str | None:
    """Describe why `x` is not an array of this backend, dtype and shape (None: any shape); None if it is."""
    if not backend.is_backendarray(x):
        return at_path(path, f"{type(x).__name__}, the space wants an array of {backend}")
    try:
        name = backend.dtype_name(x.dtype)
    except TypeError:
        name = str(x.dtype)
    if name not in dtypes.KNOWN or not dtypes.can_cast_safely(name, dtype_name):
        return at_path(path, f"dtype {name}, the space wants {dtype_name}")
    if shape is not None and tuple(x.shape) != shape:
        return at_path(path, f"shape {tuple(x.shape)}, the space wants {shape}")
    return None
