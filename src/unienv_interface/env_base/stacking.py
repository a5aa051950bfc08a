"""Stack many small values, such as infos, into one batched value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..backends.serialization import BackendLike, parse_backend


def data_stack(data: Any, backend: BackendLike, device: Any = None) -> Any:
    """Stack similar values, nested or not, into one batched value.

    Parameters
    ----------
    data
        A sequence of values, or a mapping of sequences. A number, an array or any other value is returned unchanged.
    backend, device
        The backend and the device of the returned arrays.

    Returns
    -------
    batch
        Dicts become one dict (`stack_infos` fills missing keys), tuples become one tuple, numbers and arrays of one
        shape become an array with a leading axis. Other values (texts, lists, objects, arrays of different shapes,
        numbers that the backend cannot hold) stay a list.
    """
    backend = parse_backend(backend)
    if isinstance(data, Mapping):
        return {key: data_stack(value, backend, device) for key, value in data.items()}
    if not isinstance(data, (Sequence, Iterator)) or isinstance(data, (str, bytes)):
        return data
    values = list(data)
    kinds = set(map(type, values))  # checking the few types is much faster than checking every value
    if values and all(issubclass(kind, Mapping) for kind in kinds):
        return stack_infos(values, backend, device)
    if values and all(issubclass(kind, tuple) for kind in kinds) and len(set(map(len, values))) == 1:
        columns = [data_stack(column, backend, device) for column in zip(*values, strict=True)]
        kind = type(values[0])
        return kind(*columns) if hasattr(kind, "_fields") else tuple(columns)
    stacked = _stack_arrays(values, kinds, backend, device)
    return values if stacked is None else stacked


def stack_infos(infos: Sequence[Mapping[Any, Any]], backend: ComputeBackend, device: Any = None) -> dict[Any, Any]:
    """Stack dicts into one dict of all their keys; entry i of each value comes from dict i.

    If dicts lack a key, their entries are filled (zeros in an array, None in a list, {} in a dict), and a boolean
    array under "_key" marks the dicts that have the key.
    """
    if not any(infos):
        return {}
    merged: dict[Any, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        values = [info[key] for info in infos if key in info]
        if len(values) == len(infos):
            merged[key] = data_stack(values, backend, device)
            continue
        present = np.array([key in info for info in infos])
        merged[key] = _stack_sparse(values, present, backend, device)
        merged[f"_{key}"] = backend.from_numpy(present, device=device)
    return merged


def _stack_sparse(values: list[Any], present: np.ndarray, backend: ComputeBackend, device: Any) -> Any:
    remaining = iter(values)
    if all(isinstance(value, Mapping) for value in values):
        return stack_infos([next(remaining) if is_present else {} for is_present in present], backend, device)
    stacked = _stack_arrays(values, set(map(type, values)), backend, device)
    if stacked is None:
        return [next(remaining) if is_present else None for is_present in present]
    filled = backend.zeros((len(present), *stacked.shape[1:]), dtype=stacked.dtype, device=device)
    return backend.replaced_at(filled, backend.from_numpy(np.flatnonzero(present), device=device), stacked)


def _stack_arrays(values: list[Any], kinds: set[type], backend: ComputeBackend, device: Any) -> Any:
    """Stack numbers, or arrays of one shape, into a new array; None for other values. `kinds` are their types."""
    if not values:
        return None
    try:
        if kinds <= {bool, int, float}:
            return _stack_numbers(values, kinds, backend, device)
        if len(kinds) == 1 and isinstance(values[0], np.generic):
            return stack_scalars(np.array(values), backend, device)
        if all(issubclass(kind, (np.ndarray, np.generic, bool, int, float)) for kind in kinds):
            return _stack_host_arrays([np.asarray(value) for value in values], backend, device)
        return _stack_backend_arrays(values, backend, device)
    except (OverflowError, TypeError):  # the backend cannot hold a number, or has no such dtype
        return None


def stack_scalars(scalars: np.ndarray, backend: ComputeBackend, device: Any) -> Any:
    """Convert a new NumPy array of scalars to the backend; None if the backend cannot hold them."""
    try:
        return backend.from_numpy(scalars, device=device) if _is_stackable({scalars.dtype.kind}) else None
    except (OverflowError, TypeError):
        return None


def _stack_numbers(values: list[Any], kinds: set[type], backend: ComputeBackend, device: Any) -> Any:
    if kinds == {bool}:
        dtype = backend.default_boolean_dtype
    elif kinds == {int}:
        dtype = backend.default_integer_dtype
        limits = np.iinfo(backend.dtype_name(dtype))
        if min(values) < limits.min or max(values) > limits.max:
            dtype = backend.dtype_from_name("int64")
    elif bool not in kinds:
        dtype = backend.default_floating_dtype
    else:
        return None
    return backend.from_host(np.array(values, dtype=backend.dtype_name(dtype)), dtype, device=device)


def _stack_host_arrays(arrays: list[np.ndarray], backend: ComputeBackend, device: Any) -> Any:
    if len({array.shape for array in arrays}) > 1 or not _is_stackable({array.dtype.kind for array in arrays}):
        return None
    return backend.from_numpy(np.stack(arrays), device=device)


def _is_stackable(kinds: set[str]) -> bool:
    """Whether arrays of these dtype kinds can be stacked into one array without loss."""
    return kinds == {"b"} or (kinds <= set("iufc") and kinds != {"i", "u"})


def _stack_backend_arrays(arrays: list[Any], backend: ComputeBackend, device: Any) -> Any:
    first = arrays[0]
    if not all(backend.is_backendarray(array) for array in arrays):
        return None
    if any(array.shape != first.shape or array.dtype != first.dtype for array in arrays):
        return None
    return backend.to_device(backend.stack(arrays), device)
