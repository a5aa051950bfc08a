"""Indices as users give them, as one thing to work with.

A batch may be indexed by an int, a slice, an Ellipsis, an array or list of integers, or a boolean mask. Everything
below the public methods sees either one position or a NumPy array of positions, all of them in range.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from unienv_interface.backends.base import ComputeBackend

IndexableType = int | slice | EllipsisType
_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


def is_single(index: Any) -> bool:
    """Whether an index picks one sample, without a leading axis."""
    if isinstance(index, (int, np.integer)):
        return not isinstance(index, bool)
    return getattr(index, "shape", None) == () and not isinstance(index, np.bool_)


def is_plain_index(index: Any) -> bool:
    """Whether an index is how samplers ask: int64 along one axis, in NumPy."""
    return type(index) is np.ndarray and index.dtype is _INT64 and index.ndim == 1


def resolve_index(backend: ComputeBackend, index: Any, length: int) -> int | np.ndarray:
    """A position for an int, else an int64 array of positions; an IndexError if one is out of range.

    The array may be the caller's own: it is not to be written to.
    """
    if type(index) is np.ndarray and index.dtype is _INT64 and index.ndim == 1:  # `is_plain_index`, without the call
        return _in_range(index, length)
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of range for a length of {length}")
        return int(index) + (length if index < 0 else 0)
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    if index is Ellipsis:
        return np.arange(length)
    if isinstance(index, (bool, np.bool_)):
        raise TypeError("index of type bool, it wants integers, a mask, a slice or an Ellipsis")
    array = backend.to_numpy(index) if backend.is_backendarray(index) else np.asarray(index)
    if array.dtype == bool:
        if array.shape != (length,):
            raise IndexError(f"a mask of shape {array.shape} for a length of {length}")
        return np.flatnonzero(array)
    if array.size == 0 and array.dtype.kind == "f" and isinstance(index, (list, tuple)):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"index of dtype {array.dtype}, it wants integers, a mask, a slice or an Ellipsis")
    if array.ndim == 0:
        return resolve_index(backend, int(array), length)
    if array.ndim != 1:
        raise IndexError(f"index of shape {array.shape}, it wants one axis")
    return _in_range(array.astype(np.int64, copy=False), length)


def _in_range(positions: np.ndarray, length: int) -> np.ndarray:
    if not len(positions):
        return positions
    # read as unsigned, a negative number is larger than every length: one pass finds both kinds of offender
    unsigned = positions.view(_UINT64)
    if unsigned.item(unsigned.argmax()) < length:  # quicker than max()
        return positions
    lowest, highest = int(positions.min()), int(positions.max())
    if lowest < -length or highest >= length:
        raise IndexError(f"index {lowest if lowest < -length else highest} is out of range for a length of {length}")
    return np.where(positions < 0, positions + length, positions)


def convert_index_to_backendarray(backend: ComputeBackend, index: Any, length: int, device: Any = None) -> Any:
    """An index of any kind as an array of positions on the backend."""
    positions = np.atleast_1d(np.asarray(resolve_index(backend, index, length)))
    return backend.from_numpy(positions, dtype=backend.default_index_dtype, device=device, copy=True)
