"""Select, merge and split the infos of a batch by slots.

Infos of a batch are a dict of arrays, lists and dicts with one entry per slot, in order. If only some slots have a key,
a boolean array under "_key" is their mask. A value of another length is the same for all slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.base import ComputeBackend
from ..backends.numpy import NumpyComputeBackend


class InfoPart(NamedTuple):
    """The infos of the slots of a mask, in order."""

    slots: np.ndarray
    info: Any  # a mapping, or a value of a mapping during recursion


def rows_of_infos(info: Mapping[str, Any], slots: np.ndarray) -> dict[str, Any]:
    """Take the slots of a mask from the infos of all slots; drops keys that none of these slots has."""
    if not slots.any():
        return {}
    chosen = {key: _rows_of(value, slots) for key, value in info.items()}
    for mask in [key for key in chosen if _is_mask(chosen, key) and not bool(chosen[key].any())]:
        del chosen[mask], chosen[mask[1:]]
    return chosen


def _rows_of(value: Any, slots: np.ndarray) -> Any:
    if isinstance(value, Mapping):
        return rows_of_infos(value, slots)
    if not _is_per_slot(value, len(slots)):
        return value
    if isinstance(value, list):
        return [entry for entry, is_chosen in zip(value, slots, strict=True) if is_chosen]
    return value[np.flatnonzero(slots)]


def merge_infos(parts: Sequence[InfoPart], backend: ComputeBackend, device: Any = None) -> dict[str, Any]:
    """Merge the infos of disjoint groups of slots into the infos of the batch."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in _names(part.info)):
        having = [(part, _present(part, key, backend)) for part in parts if key in part.info]
        present = np.zeros(len(parts[0].slots), bool)
        for part, rows in having:
            present[np.flatnonzero(part.slots)[rows]] = True
        merged[key] = _merge_values([InfoPart(part.slots, part.info[key]) for part, _ in having], backend, device)
        if not present.all():
            merged[f"_{key}"] = backend.from_numpy(present, device=device)
    return merged


def split_infos(info: Mapping[str, Any], count: int, backend: ComputeBackend) -> list[dict[str, Any]]:
    """Split the infos of a batch into a dict for each slot; arrays become NumPy arrays."""
    split: list[dict[str, Any]] = [{} for _ in range(count)]
    every = np.ones(count, bool)
    for key in _names(info):
        value = info[key]
        entries: Sequence[Any]
        if isinstance(value, Mapping):
            entries = split_infos(value, count, backend)
        elif not _is_per_slot(value, count):
            entries = [value] * count
        elif backend.is_backendarray(value):
            entries = backend.to_host(value).copy()
        else:
            entries = value
        for slot in np.flatnonzero(_present(InfoPart(every, info), key, backend)).tolist():
            split[slot][key] = entries[slot]
    return split


def _names(info: Mapping[str, Any]) -> Iterable[str]:
    """The keys without the masks."""
    return (key for key in info if not _is_mask(info, key))


def _is_mask(info: Mapping[str, Any], key: str) -> bool:
    """Whether the key is the mask of another key."""
    return key.startswith("_") and key[1:] in info and "bool" in str(getattr(info[key], "dtype", ""))


def _present(part: InfoPart, key: str, backend: ComputeBackend) -> np.ndarray:
    """The mask of the rows of a part that have the key."""
    if f"_{key}" not in part.info or not _is_mask(part.info, f"_{key}"):
        return np.ones(int(part.slots.sum()), bool)
    mask = part.info[f"_{key}"]
    return backend.to_host(mask) if backend.is_backendarray(mask) else np.asarray(mask)


def _is_per_slot(value: Any, count: int) -> bool:
    if isinstance(value, list):
        return len(value) == count
    shape: Any = getattr(value, "shape", ())
    return bool(shape) and shape[0] == count


def _merge_values(parts: list[InfoPart], backend: ComputeBackend, device: Any) -> Any:
    values: list[Any] = [part.info for part in parts]
    if all(isinstance(value, Mapping) for value in values):
        return merge_infos(parts, backend, device)
    counts = [int(part.slots.sum()) for part in parts]
    is_per_slot = [_is_per_slot(value, count) for value, count in zip(values, counts, strict=True)]
    if not any(is_per_slot):
        return values[-1]
    for kind in (backend, NumpyComputeBackend):  # infos may be NumPy arrays on any backend
        if all(is_per_slot) and _are_alike(values, kind):
            return _merge_arrays([part.slots for part in parts], values, kind)
    merged: list[Any] = [None] * len(parts[0].slots)
    for part, value, is_column, count in zip(parts, values, is_per_slot, counts, strict=True):
        for slot, entry in zip(np.flatnonzero(part.slots), value if is_column else [value] * count, strict=True):
            merged[slot] = entry
    return merged


def _are_alike(values: list[Any], backend: ComputeBackend) -> bool:
    """Whether all values are numeric arrays of the backend whose entries have one shape."""
    if not all(map(backend.is_backendarray, values)) or values[0].dtype == object:
        return False
    return len({tuple(value.shape[1:]) for value in values}) == 1


def _merge_arrays(masks: list[np.ndarray], columns: list[Any], backend: ComputeBackend) -> Any:
    dtypes = {column.dtype for column in columns}
    dtype = dtypes.pop() if len(dtypes) == 1 else backend.result_type(*columns)
    device = backend.device(columns[0])
    merged = backend.zeros((len(masks[0]), *columns[0].shape[1:]), dtype=dtype, device=device)
    for slots, column in zip(masks, columns, strict=True):
        index = backend.from_numpy(np.flatnonzero(slots), device=device)
        merged = backend.replaced_at(merged, index, backend.astype(column, dtype))
    return merged
