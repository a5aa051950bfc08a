"""Backends and dtypes as strings, for JSON and for pickles."""

from __future__ import annotations

from typing import Any, Literal

from ..utils.words import did_you_mean
from .base import ComputeBackend

__all__ = [
    "BackendLike",
    "deserialize_backend",
    "deserialize_dtype",
    "parse_backend",
    "serialize_backend",
    "serialize_dtype",
]

_BACKENDS = ("numpy", "pytorch", "jax")  # as stored
_NAMES = ("numpy", "torch", "jax")  # as users say them

#: A backend, or its name.
BackendLike = ComputeBackend | Literal["numpy", "torch", "pytorch", "jax"]


def parse_backend(backend: BackendLike) -> ComputeBackend:
    """The backend that a user means.

    Parameters
    ----------
    backend
        The backend itself, or its name: "numpy", "torch" (or "pytorch") or "jax".

    Returns
    -------
    ComputeBackend
        The backend; its library is imported.

    Raises
    ------
    ValueError
        No backend has that name; the message suggests a similar name.
    ImportError
        The library of the backend is not installed; the message names the extra.
    TypeError
        `backend` is neither a backend nor a string.

    Examples
    --------
    >>> parse_backend("torch").simplified_name
    'pytorch'
    """
    if isinstance(backend, ComputeBackend):
        return backend
    if not isinstance(backend, str):
        raise TypeError(f"backend is {backend!r}, wanted a ComputeBackend such as NumpyComputeBackend")
    if backend not in (*_NAMES, "pytorch"):
        raise ValueError(
            f"unknown backend {backend!r}, the backends are {', '.join(_NAMES)}{did_you_mean(backend, _NAMES)}"
        )
    return deserialize_backend("pytorch" if backend == "torch" else backend)


def serialize_backend(backend: BackendLike) -> str:
    """The name of a backend, as files have it.

    Parameters
    ----------
    backend
        The backend, or a name of it.

    Returns
    -------
    str
        "numpy", "pytorch" or "jax".

    Raises
    ------
    ValueError, TypeError
        No backend has this name.

    Examples
    --------
    >>> serialize_backend(parse_backend("torch"))
    'pytorch'
    """
    return parse_backend(backend).simplified_name


def deserialize_backend(backend_str: str) -> ComputeBackend:
    """The backend of a name that `serialize_backend` has given.

    Parameters
    ----------
    backend_str
        The name: "numpy", "pytorch" or "jax".

    Returns
    -------
    ComputeBackend
        The backend; its library is imported.

    Raises
    ------
    ValueError
        No backend has that name.
    ImportError
        Its library is not installed; the message names the extra.

    Examples
    --------
    >>> deserialize_backend("numpy").simplified_name
    'numpy'
    """
    if backend_str == "numpy":
        from .numpy import NumpyComputeBackend

        return NumpyComputeBackend
    if backend_str == "pytorch":
        from .pytorch import PyTorchComputeBackend

        return PyTorchComputeBackend
    if backend_str == "jax":
        from .jax import JaxComputeBackend

        return JaxComputeBackend
    near = did_you_mean(backend_str, _BACKENDS)
    raise ValueError(f"unknown backend {backend_str!r}, the backends are {', '.join(_BACKENDS)}{near}")


def serialize_dtype(backend: BackendLike, dtype: Any) -> str | None:
    """The array-API name of a dtype of `backend`, such as "float32".

    Parameters
    ----------
    backend
        The backend, or its name.
    dtype
        The dtype, or None.

    Returns
    -------
    str or None
        The name; None for None.

    Raises
    ------
    TypeError
        This is no dtype of the backend, or none that spaces can hold.

    Examples
    --------
    >>> serialize_dtype("numpy", np.float32)
    'float32'
    """
    return None if dtype is None else parse_backend(backend).dtype_name(dtype)


def deserialize_dtype(backend: BackendLike, dtype_str: str | None) -> Any:
    """The dtype of a name on a backend.

    Parameters
    ----------
    backend
        The backend, or its name.
    dtype_str
        The name, such as "float32", or None.

    Returns
    -------
    dtype
        The dtype; None for None. JAX without `jax_enable_x64` gives a 32-bit dtype for a 64-bit one.

    Raises
    ------
    TypeError
        The backend has no such dtype.

    Examples
    --------
    >>> deserialize_dtype("torch", "float32")
    torch.float32
    """
    return None if dtype_str is None else parse_backend(backend).dtype_from_name(dtype_str)
