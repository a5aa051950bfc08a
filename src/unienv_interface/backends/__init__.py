"""Array libraries behind one interface. Only the modules `pytorch` and `jax` import PyTorch and JAX."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..utils.lazy import lazy_exports
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
from .serialization import (
    BackendLike,
    deserialize_backend,
    deserialize_dtype,
    parse_backend,
    serialize_backend,
    serialize_dtype,
)

if TYPE_CHECKING:
    from .jax import JaxComputeBackend as JaxComputeBackend
    from .pytorch import PyTorchComputeBackend as PyTorchComputeBackend
else:
    __getattr__, __dir__ = lazy_exports(
        __name__, {".jax": ["JaxComputeBackend"], ".pytorch": ["PyTorchComputeBackend"]}
    )

__all__ = [
    "ArrayAPIArray",
    "ArrayAPIGetIndex",
    "ArrayAPISetIndex",
    "BArrayType",
    "BDeviceType",
    "BDtypeType",
    "BRNGType",
    "BackendLike",
    "ComputeBackend",
    "NumpyComputeBackend",
    "RandomFunctions",
    "deserialize_backend",
    "deserialize_dtype",
    "get_backend_from_tensor",
    "parse_backend",
    "serialize_backend",
    "serialize_dtype",
]


def get_backend_from_tensor(tensor: Any) -> ComputeBackend:
    """The backend of an array. No library is imported, since the array's own is imported already.

    Parameters
    ----------
    tensor
        The array.

    Returns
    -------
    ComputeBackend
        The backend of its library.

    Raises
    ------
    TypeError
        This is no array of NumPy, PyTorch or JAX.

    Examples
    --------
    >>> get_backend_from_tensor(np.zeros(3)).simplified_name
    'numpy'
    """
    if NumpyComputeBackend.is_backendarray(tensor):
        return NumpyComputeBackend
    for library, name in (("torch", "pytorch"), ("jax", "jax")):
        if sys.modules.get(library) is not None:  # None marks a library that may not be imported
            backend = deserialize_backend(name)
            if backend.is_backendarray(tensor):
                return backend
    raise TypeError(f"{type(tensor).__module__}.{type(tensor).__qualname__} is not an array of NumPy, PyTorch or JAX")
