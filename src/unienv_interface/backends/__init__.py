"""Array libraries behind one surface. PyTorch and JAX are imported only by the modules of their name."""

from __future__ import annotations

import sys
from typing import Any

from .base import (
    ArrayAPIArray,
    ArrayAPIGetIndex,
    ArrayAPISetIndex,
    BArrayType,
    BDeviceType,
    BDtypeType,
    BRNGType,
    ComputeBackend,
    RandomFunctions,
)
from .numpy import NumpyComputeBackend
from .serialization import deserialize_backend, deserialize_dtype, serialize_backend, serialize_dtype

__all__ = [
    "ArrayAPIArray",
    "ArrayAPIGetIndex",
    "ArrayAPISetIndex",
    "BArrayType",
    "BDeviceType",
    "BDtypeType",
    "BRNGType",
    "ComputeBackend",
    "NumpyComputeBackend",
    "RandomFunctions",
    "deserialize_backend",
    "deserialize_dtype",
    "get_backend_from_tensor",
    "serialize_backend",
    "serialize_dtype",
]


def __getattr__(name: str) -> ComputeBackend:
    """The backends of PyTorch and JAX, which are imported where they are asked for."""
    names = {"PyTorchComputeBackend": "pytorch", "JaxComputeBackend": "jax"}
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return deserialize_backend(names[name])


def get_backend_from_tensor(tensor: Any) -> ComputeBackend:
    """The backend whose array this is. Imports no library: an array of it can only exist if it is imported."""
    if NumpyComputeBackend.is_backendarray(tensor):
        return NumpyComputeBackend
    for library, name in (("torch", "pytorch"), ("jax", "jax")):
        if sys.modules.get(library) is not None:  # None marks a library that may not be imported
            backend = deserialize_backend(name)
            if backend.is_backendarray(tensor):
                return backend
    raise TypeError(f"{type(tensor).__module__}.{type(tensor).__qualname__} is not an array of NumPy, PyTorch or JAX")
