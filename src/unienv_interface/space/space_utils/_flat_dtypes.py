"""The dtypes of flat values: one for parts of several, which must come out of it again as they went in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backends import dtypes
from ...backends.base import ComputeBackend


def counting_dtype(most: int) -> str:
    """The smallest dtype for numbers from 0 to `most`."""
    return np.min_scalar_type(most).name


def common_dtype(backend: ComputeBackend, *names: str) -> str:
    """The smallest dtype that NumPy finds for all of them together, as this backend has it."""
    if len(set(names)) == 1:
        return names[0]
    common = np.result_type(*(dtypes.host_dtype(name) for name in names)).name
    return backend.dtype_name(backend.dtype_from_name(common))


def real(values: np.ndarray) -> np.ndarray:
    """The real parts, where other parts of the flat vector were complex."""
    return values.real if values.dtype.kind == "c" else values


def cast(backend: ComputeBackend, array: Any, name: str) -> Any:
    """An array in another dtype, or an OverflowError where an integer would change by that."""
    found = backend.dtype_name(array.dtype)
    if found == name:
        return array
    if found in dtypes.COMPLEX and name not in dtypes.COMPLEX:
        array = backend.real(array)
    result = backend.astype(array, backend.dtype_from_name(name))
    if found in dtypes.INTEGER and not dtypes.can_cast_safely(found, name):
        before = backend.to_host(array)
        changed = _changed_integers(before, real(backend.to_host(result)))
        if np.any(changed):
            raise OverflowError(f"integer {before[changed].flat[0]} of {found} has no exact value in {name}")
    return result


def _changed_integers(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Where integers are no longer the same once cast to other integers or to floats."""
    if after.dtype.kind in "iu":
        return (after.astype(before.dtype) != before) | ((after < 0) != (before < 0))
    floats = after.astype(np.float64)
    bits = 8 * before.dtype.itemsize - (before.dtype.kind == "i")
    in_range = floats < 2.0**bits  # what a cast back makes of the others depends on the processor
    return ~in_range | (np.where(in_range, floats, 0).astype(before.dtype) != before)
