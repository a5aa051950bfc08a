"""Indices of every kind, resolved to positions.

A user may index a batch by an int, a slice, an Ellipsis, an array or list of integers, or a boolean mask. Everything
below the public methods sees either one position or a NumPy array of positions, all of them in range.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from unienv_interface.backends import BackendLike, parse_backend
from unienv_interface.backends.base import ComputeBackend

IndexableType = int | slice | EllipsisType
_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


def is_single(index: Any) -> bool:
    """Whether an index picks one sample, without a leading axis."""
    if isinstance(index, (int, np.integer)):
        return not isinstance(index, bool)
    return getattr(index, "shape", None) == () and not isinstance(index, np.bool_)


def is_plain_index(index: Any) -> bool:
    """Whether an index is what samplers give: int64 along one axis, in NumPy."""
    return type(index) is np.ndarray and index.dtype is _INT64 and index.ndim == 1


def resolve_index(backend: ComputeBackend, index: Any, length: int) -> int | np.ndarray:
    """Resolve an index of any kind to one position or an array of positions, all of them in range.

    Parameters
    ----------
    backend
        The backend whose arrays may be indices.
    index
        An int, slice, Ellipsis, list, array of integers or mask; negative ones count from the end.
    length
        The number of samples.

    Returns
    -------
    int or numpy.ndarray
        An int for one integer, else an int64 array on the host. It may be the array passed in: do not write to it.

    Raises
    ------
    IndexError
        An index is out of range, or has more than one axis.
    TypeError
        The index is of another kind.
    """
    if type(index) is np.ndarray and index.dtype is _INT64 and index.ndim == 1:  # `is_plain_index`, without a call
        # As unsigned, a negative number is larger than every length; argmax is quicker than max.
        unsigned = index.view(_UINT64)
        if not index.size or unsigned.item(unsigned.argmax()) < length:
            return index
        return _counted_from_the_end(index, length)
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
            raise IndexError(f"index is a mask of shape {array.shape}, it wants shape ({length},)")
        return np.flatnonzero(array)
    if array.size == 0 and array.dtype.kind == "f" and isinstance(index, (list, tuple)):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"index of dtype {array.dtype}, it wants integers, a mask, a slice or an Ellipsis")
    if array.ndim == 0:
        return resolve_index(backend, int(array), length)
    if array.ndim != 1:
        raise IndexError(f"index of shape {array.shape}, it wants one axis")
    return _counted_from_the_end(array.astype(np.int64, copy=False), length)


def _counted_from_the_end(positions: np.ndarray, length: int) -> np.ndarray:
    """Convert negative positions, which count from the end, and check the range of all."""
    lowest, highest = int(positions.min(initial=0)), int(positions.max(initial=-1))
    if lowest >= 0 and highest < length:
        return positions
    if lowest < -length or highest >= length:
        raise IndexError(f"index {lowest if lowest < -length else highest} is out of range for a length of {length}")
    return np.where(positions < 0, positions + length, positions)


def convert_index_to_backendarray(backend: BackendLike, index: Any, length: int, device: Any = None) -> Any:
    """Resolve an index of any kind to an array of positions on the backend.

    Parameters
    ----------
    backend
        The backend of the result.
    index
        As for `resolve_index`.
    length
        How many positions there are.
    device
        The device of the result.

    Returns
    -------
    array
        The positions, in [0, length), in one axis.

    Raises
    ------
    IndexError
        An index is out of range, or has more than one axis.
    TypeError
        The index is of another kind.
    """
    backend = parse_backend(backend)
    positions = np.atleast_1d(np.asarray(resolve_index(backend, index, length)))
    return backend.from_numpy(positions, dtype=backend.default_index_dtype, device=device, copy=True)
