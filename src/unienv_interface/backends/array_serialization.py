"""Numbers and arrays as JSON, exact and readable without the library that made them.

A number is a JSON number. An array is an object with the name of its dtype, its shape and its entries in C order.
Infinities and NaN are the tokens that Python's json module writes and reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import dtypes, get_backend_from_tensor
from .base import ComputeBackend
from .numpy import NumpyComputeBackend

__all__ = ["deserialize_scalar_or_array_value", "serialize_scalar_or_array_value"]


def serialize_scalar_or_array_value(value: Any) -> Any:
    """A number or an array as an object that `json.dumps` takes.

    Parameters
    ----------
    value
        A Python number, an array of any backend, or a list of numbers.

    Returns
    -------
    object
        A Python number itself; an array as a dict of dtype, shape and entries.

    Raises
    ------
    TypeError
        This is neither a number nor an array.
    """
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
        return value
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    backend = get_backend_from_tensor(value)
    host = backend.to_host(value)
    entries = np.stack([host.real, host.imag], axis=-1) if host.dtype.kind == "c" else host
    return {
        "dtype": backend.dtype_name(value.dtype),
        "shape": list(host.shape),
        "value": entries.reshape(-1).tolist(),
    }


def deserialize_scalar_or_array_value(
    value_data: Any, override_backend: ComputeBackend | None = None, override_device: Any = None
) -> Any:
    """The inverse of `serialize_scalar_or_array_value`.

    Parameters
    ----------
    value_data
        The object; a bare list, nested or not, is read as an array too.
    override_backend, override_device
        Where an array is to be; by default NumPy's.

    Returns
    -------
    value
        The number or the array.

    Raises
    ------
    ValueError
        The object is not the JSON of a number or an array.
    """
    if isinstance(value_data, (bool, int, float)):
        return value_data
    if isinstance(value_data, list):
        name, host = None, _numbers(value_data, None)
    elif isinstance(value_data, Mapping) and "value" in value_data:
        name = value_data.get("dtype")
        host = _read_array(value_data, name)
    else:
        raise ValueError(f"{value_data!r} is not the JSON of a number or an array")
    backend = override_backend or NumpyComputeBackend
    if name in dtypes.FOREIGN_FLOATING:
        return backend.from_host(host, backend.dtype_from_name(name), device=override_device)
    return backend.from_numpy(host, device=override_device)


def _read_array(value_data: Mapping[str, Any], name: Any) -> np.ndarray:
    if name is not None and name not in dtypes.KNOWN:
        raise ValueError(f"unknown dtype {name!r} of an array, known are {sorted(dtypes.KNOWN)}")
    host_dtype = None if name is None else dtypes.host_dtype(name)
    if host_dtype is not None and host_dtype.kind == "c":
        pairs = _numbers(value_data["value"], np.empty(0, host_dtype).real.dtype)
        entries = pairs.reshape(-1).view(host_dtype)
    else:
        entries = _numbers(value_data["value"], host_dtype)
    shape = value_data.get("shape", list(entries.shape))
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"shape {shape!r} of an array is not a list of sizes")
    if int(np.prod(shape, dtype=object)) != entries.size:
        raise ValueError(f"shape {shape} of an array does not fit its {entries.size} entries")
    return entries.reshape(shape)


def _numbers(value: Any, dtype: np.dtype | None) -> np.ndarray:
    allowed = (int, float) if dtype is None or dtype.kind == "f" else int
    try:
        # check each entry: NumPy converts integers above int64 to floats, and floats to integers
        for entry in np.asarray(value, dtype=object).flat:
            if not isinstance(entry, allowed):
                raise ValueError(f"{entry!r} has the wrong type")
        return np.asarray(value, dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"not the entries of an array of {dtype or 'numbers'}: {error}") from None
