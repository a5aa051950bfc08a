"""Snapshots: deep copies of nested data, and the first difference of two snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends import get_backend_from_tensor
from ..space import GraphInstance
from ..space.mismatch import join_path


class _Unknown:
    """A placeholder for an object of an unknown type; `difference` ignores it."""


def snapshot(value: Any) -> Any:
    """Copy nested data, with all arrays as NumPy arrays of the same bits."""
    if isinstance(value, Mapping):
        return {key: snapshot(child) for key, child in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(snapshot(child) for child in value)
    if isinstance(value, GraphInstance):
        return snapshot(vars(value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return tuple(snapshot(child) for child in value.flat)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    try:
        return np.array(get_backend_from_tensor(value).to_raw(value))
    except TypeError:
        return _Unknown()


def difference(before: Any, after: Any, path: str = "") -> str | None:
    """Describe where and how two snapshots differ; None if they are equal. NaN equals NaN."""
    if isinstance(before, _Unknown) or isinstance(after, _Unknown):
        return None
    if type(before) is not type(after):
        return f"{path or 'value'}: {type(before).__name__}, then {type(after).__name__}"
    if isinstance(before, dict):
        if before.keys() != after.keys():
            return f"{path or 'value'}: the keys {sorted(before, key=str)}, then {sorted(after, key=str)}"
        pairs = [(key, before[key], after[key]) for key in before]
        return next(filter(None, (difference(old, new, join_path(path, key)) for key, old, new in pairs)), None)
    if isinstance(before, tuple):
        if len(before) != len(after):
            return f"{path or 'value'}: {len(before)} entries, then {len(after)}"
        pairs = [(key, old, new) for key, (old, new) in enumerate(zip(before, after, strict=True))]
        return next(filter(None, (difference(old, new, join_path(path, key)) for key, old, new in pairs)), None)
    if isinstance(before, np.ndarray):
        alike = (before.dtype, before.shape, before.tobytes()) == (after.dtype, after.shape, after.tobytes())
    else:
        alike = before == after or before != before
    return None if alike else f"{path or 'value'}: {_in_words(before)}, then {_in_words(after)}"


def _in_words(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{value.reshape(-1)[:8].tolist()}... of shape {value.shape}"
    return str(value.tolist() if isinstance(value, np.ndarray) else value)
