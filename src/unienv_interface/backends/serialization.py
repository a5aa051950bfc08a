"""Backends and dtypes as strings, for JSON and for pickles."""

from __future__ import annotations

from typing import Any

from .base import ComputeBackend

__all__ = ["deserialize_backend", "deserialize_dtype", "serialize_backend", "serialize_dtype"]

_BACKENDS = ("numpy", "pytorch", "jax")


def serialize_backend(backend: ComputeBackend) -> str:
    """The name of a backend: "numpy", "pytorch" or "jax"."""
    return backend.simplified_name


def deserialize_backend(backend_str: str) -> ComputeBackend:
    """The backend of that name. Imports its library; an ImportError names the extra to install."""
    if backend_str == "numpy":
        from .numpy import NumpyComputeBackend

        return NumpyComputeBackend
    if backend_str == "pytorch":
        from .pytorch import PyTorchComputeBackend

        return PyTorchComputeBackend
    if backend_str == "jax":
        from .jax import JaxComputeBackend

        return JaxComputeBackend
    raise ValueError(f"unknown backend {backend_str!r}, the backends are {', '.join(_BACKENDS)}")


def serialize_dtype(backend: ComputeBackend, dtype: Any) -> str | None:
    """The array-API name of a dtype of `backend`; None stays None."""
    return None if dtype is None else backend.dtype_name(dtype)


def deserialize_dtype(backend: ComputeBackend, dtype_str: str | None) -> Any:
    """The dtype of that name on `backend`; a TypeError if it has none. None stays None."""
    return None if dtype_str is None else backend.dtype_from_name(dtype_str)
