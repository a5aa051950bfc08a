"""`BinarySpace`: arrays of booleans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...backends import dtypes
from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import describe_mismatch
from ..space import BoundedManner
from .array import ArraySpace, array_mismatch, parse_dtype


class BinarySpace(ArraySpace[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Boolean arrays of one shape.

    Parameters
    ----------
    backend
        The library of the arrays.
    shape
        The shape of every value.
    dtype
        The boolean dtype of the library, which is also the default.
    device
        The device of the arrays; None for any.

    Raises
    ------
    ValueError
        `dtype` is not boolean, or `shape` has a negative size.

    Examples
    --------
    >>> space = BinarySpace("numpy", shape=(2,))
    >>> space.contains(np.array([True, False]))
    True
    """

    def __init__(self, backend: BackendLike, shape: Sequence[int], dtype: Any = None, device: Any = None) -> None:
        backend = parse_backend(backend)
        dtype = parse_dtype(backend, "bool" if dtype is None else dtype)
        if backend.dtype_name(dtype) not in dtypes.BOOLEAN:
            raise ValueError(
                f"dtype is {backend.dtype_name(dtype)}, a BinarySpace holds booleans: use BoxSpace for numbers"
            )
        super().__init__(backend, shape, device, dtype)

    def to(self, backend: BackendLike | None = None, device: Any = None) -> BinarySpace:
        backend = None if backend is None else parse_backend(backend)
        if self._is_on(backend, device):
            return self
        return BinarySpace(backend or self.backend, self.shape, device=device)

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, BArrayType]:
        byte = self.backend.dtype_from_name("uint8")
        rng, bits = self.backend.random.random_discrete_uniform(
            self.shape, 0, 2, rng=rng, dtype=byte, device=self.device
        )
        return rng, self.backend.astype(bits, self.dtype)

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return True

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        return isinstance(other, BinarySpace) and self == other

    def _key(self) -> tuple[Any, ...]:
        return (self.shape,)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        name = "Binary(" if abbreviate else "BinarySpace(shape="
        return f"{name}{self.shape}{self._backend_repr(include_backend, include_device)})"


@describe_mismatch.register
def _(space: BinarySpace, x: Any, path: str = "") -> str | None:
    return array_mismatch(space.backend, space.dtype_name, x, path, space.shape)
