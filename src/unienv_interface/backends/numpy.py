"""The NumPy backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..utils.optional import need
from . import dtypes
from .base import ComputeBackend, RandomFunctions

__all__ = ["NumpyArrayType", "NumpyComputeBackend", "NumpyDeviceType", "NumpyDtypeType", "NumpyRNGType"]

NumpyArrayType = np.ndarray
NumpyDeviceType = Any
NumpyDtypeType = np.dtype
NumpyRNGType = np.random.Generator


class _NumpyRandom(RandomFunctions[np.ndarray, Any, np.dtype, np.random.Generator]):
    def random_number_generator(self, seed: int | None = None, *, device: Any = None) -> np.random.Generator:
        if seed is not None and seed < 0:
            raise ValueError(f"seed {seed} is negative, a seed is a non-negative integer")
        return np.random.default_rng(seed)

    def random_uniform(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: np.random.Generator,
        low: float = 0.0,
        high: float = 1.0,
        dtype: Any = None,
        device: Any = None,
    ) -> tuple[np.random.Generator, np.ndarray]:
        values = rng.random(shape, dtype=_drawn_dtype(dtype))
        return rng, _finish(values if (low, high) == (0.0, 1.0) else low + values * (high - low), dtype)

    def random_normal(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: np.random.Generator,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: Any = None,
        device: Any = None,
    ) -> tuple[np.random.Generator, np.ndarray]:
        return rng, _finish(mean + std * rng.standard_normal(shape, dtype=_drawn_dtype(dtype)), dtype)

    def random_exponential(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: np.random.Generator,
        lambd: float = 1.0,
        dtype: Any = None,
        device: Any = None,
    ) -> tuple[np.random.Generator, np.ndarray]:
        return rng, _finish(rng.standard_exponential(shape, dtype=_drawn_dtype(dtype)) / lambd, dtype)

    def random_discrete_uniform(
        self,
        shape: tuple[int, ...],
        /,
        from_num: Any,
        to_num: Any,
        *,
        rng: np.random.Generator,
        dtype: Any = None,
        device: Any = None,
        endpoint: bool = False,
    ) -> tuple[np.random.Generator, np.ndarray]:
        kind = np.dtype(dtype or np.int64)
        return rng, np.asarray(rng.integers(from_num, to_num, size=shape or None, dtype=kind, endpoint=endpoint))

    def random_permutation(
        self, n: int, /, *, rng: np.random.Generator, dtype: Any = None, device: Any = None
    ) -> tuple[np.random.Generator, np.ndarray]:
        return rng, rng.permutation(n).astype(dtype or np.int64, copy=False)


def _drawn_dtype(dtype: Any) -> Any:
    """The dtype to draw: generators draw float32 and float64 only, so narrower floats are drawn as float32."""
    return np.float64 if dtype is None or np.dtype(dtype) == np.float64 else np.float32


def _finish(values: Any, dtype: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64 if dtype is None else dtype)


class _NumpyBackend(ComputeBackend[np.ndarray, Any, np.dtype, np.random.Generator]):
    simplified_name = "numpy"
    ARRAY_TYPE = NumpyArrayType
    DTYPE_TYPE = NumpyDtypeType
    DEVICE_TYPE = NumpyDeviceType
    RNG_TYPE = NumpyRNGType

    def __init__(self) -> None:
        self.random = _NumpyRandom(self)

    @property
    def namespace(self) -> Any:
        # imported on first use: this import loads all submodules of NumPy and takes a third of UniEnv's import time
        import array_api_compat.numpy

        return array_api_compat.numpy

    def is_backendarray(self, data: Any) -> bool:
        return isinstance(data, (np.ndarray, np.generic)) and data.dtype != object

    def from_numpy(
        self, data: np.ndarray, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
    ) -> np.ndarray:
        return np.array(data, dtype=dtype) if copy else np.asarray(data, dtype=dtype)

    def to_numpy(self, data: np.ndarray, /) -> np.ndarray:
        return np.asarray(data)

    def to_raw(self, data: np.ndarray, /) -> np.ndarray:
        name = self.dtype_name(data.dtype)
        return np.asarray(data).view(dtypes.raw_dtype(name)) if name in dtypes.FOREIGN_FLOATING else np.asarray(data)

    def from_raw(self, raw: np.ndarray, dtype_name: str, /, *, device: Any = None) -> np.ndarray:
        return raw.view(self.dtype_from_name(dtype_name)) if dtype_name in dtypes.FOREIGN_FLOATING else raw

    def to_dlpack(self, data: np.ndarray, /) -> Any:
        return data.__dlpack__()

    def from_dlpack(self, data: Any, /) -> np.ndarray:
        return np.from_dlpack(data)

    def device(self, data: np.ndarray, /) -> Any:
        return "cpu"

    def to_device(self, data: np.ndarray, device: Any, /) -> np.ndarray:
        self.serialize_device(device)
        return data

    def serialize_device(self, device: Any) -> str | None:
        if device not in (None, "cpu"):
            raise ValueError(f"NumPy arrays lie on the CPU, there is no device {device!r}")
        return None

    def deserialize_device(self, name: str | None) -> Any:
        return self.serialize_device(name)

    def dtype_name(self, dtype: Any) -> str:
        return dtypes.name_of(np.dtype(dtype))

    def dtype_from_name(self, name: str) -> np.dtype:
        if name in dtypes.FOREIGN_FLOATING:
            return np.dtype(getattr(need("ml_dtypes", extra="jax"), name))
        if name not in dtypes.KNOWN:
            raise TypeError(f"NumPy has no dtype {name!r}")
        return np.dtype(name)


NumpyComputeBackend = _NumpyBackend()
