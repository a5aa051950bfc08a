"""Many small values as one batched value, whatever they are: infos above all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends.base import ComputeBackend


def data_stack(data: Any, backend: ComputeBackend, device: Any = None) -> Any:
    """Recursively stack Python/array data into a batched backend representation.

    `data` is a sequence of values that are alike. Dicts become one dict (see `stack_infos` for keys that some
    lack), tuples one tuple, numbers and arrays of one shape an array with a leading axis. What cannot be stacked
    (texts, objects, arrays of different shapes) stays a list.
    """
    values = list(data)
    if values and all(isinstance(value, Mapping) for value in values):
        return stack_infos(values, backend, device)
    if values and all(isinstance(value, tuple) and len(value) == len(values[0]) for value in values):
        return tuple(data_stack(column, backend, device) for column in zip(*values, strict=True))
    stacked = _stack_arrays(values, backend, device)
    return values if stacked is None else stacked


def stack_infos(infos: Sequence[Mapping[Any, Any]], backend: ComputeBackend, device: Any = None) -> dict[Any, Any]:
    """One dict of the keys of all, with the i-th entry of each value from the i-th dict.

    Where some dicts lack a key, their entries are filled (zeros in an array, None in a list, {} in a dict) and a
    boolean array under "_key" says which ones have it.
    """
    if not any(infos):
        return {}
    merged: dict[Any, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        present = np.array([key in info for info in infos])
        values = [info[key] for info in infos if key in info]
        if present.all():
            merged[key] = data_stack(values, backend, device)
            continue
        merged[key] = _stack_sparse(values, present, backend, device)
        merged[f"_{key}"] = backend.from_numpy(present, device=device)
    return merged


def _stack_sparse(values: list[Any], present: np.ndarray, backend: ComputeBackend, device: Any) -> Any:
    places = iter(values)
    if all(isinstance(value, Mapping) for value in values):
        return stack_infos([next(places) if here else {} for here in present], backend, device)
    stacked = _stack_arrays(values, backend, device)
    if stacked is None:
        return [next(places) if here else None for here in present]
    filled = backend.zeros((len(present), *stacked.shape[1:]), dtype=stacked.dtype, device=device)
    return backend.replaced_at(filled, backend.from_numpy(np.flatnonzero(present), device=device), stacked)


def _stack_arrays(values: list[Any], backend: ComputeBackend, device: Any) -> Any:
    """Numbers or arrays of one shape as one array; None if they are something else."""
    if not values:
        return None
    first = values[0]
    if backend.is_backendarray(first):
        alike = all(
            backend.is_backendarray(value) and value.shape == first.shape and value.dtype == first.dtype
            for value in values
        )
        return backend.to_device(backend.stack(values), device) if alike else None
    for kind, dtype in (
        (bool, backend.default_boolean_dtype),
        (int, backend.default_integer_dtype),
        (float, backend.default_floating_dtype),
    ):
        if all(type(value) is kind or (kind is float and type(value) is int) for value in values):
            try:
                return backend.from_host(np.asarray(values), dtype, device=device)
            except OverflowError:  # an int too large for any array
                return None
    if isinstance(first, (np.ndarray, np.generic)):
        try:
            array = np.stack(values)
        except ValueError:
            return None
        return None if array.dtype.kind not in "biufc" else backend.from_numpy(array, device=device, copy=True)
    return None
