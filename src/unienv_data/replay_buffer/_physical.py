"""Slots, as the reference's format and interface speak of them.

Its episodes are inclusive pairs of slots, wrapped where the first is the larger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from unienv_interface.backends.base import ComputeBackend

from ..base._index import resolve_index


def index_with_offset(
    backend: ComputeBackend, index: Any, len_transitions: int, offset: int, device: Any = None
) -> Any:
    """The slots of an index into a full ring of `len_transitions` samples, the oldest of which is in slot `offset`.

    An int for an int, else an array of the backend.
    """
    position = resolve_index(backend, index, len_transitions)
    if isinstance(position, int):
        return (position + offset) % len_transitions
    slots = (position + offset) % max(len_transitions, 1)
    return backend.from_numpy(slots, dtype=backend.default_index_dtype, device=device, copy=True)


def physical_segments(ranges: np.ndarray, capacity: int | None) -> list[tuple[int, int]]:
    """Inclusive pairs of slots for ranges [start, stop) of slots counted on beyond the capacity."""
    pairs = ranges.copy()
    pairs[:, 1] -= 1
    if capacity is not None:
        pairs %= capacity
    return [(start, end) for start, end in pairs.tolist()]


def logical_segments(
    pairs: Iterable[tuple[int, int]], offset: int, count: int, capacity: int | None
) -> list[tuple[int, int]]:
    """Ranges [start, stop) of indices for inclusive pairs of slots, oldest first and clipped to what is there."""
    found = []
    for first, last in pairs:
        length = last - first + 1
        start = first - offset
        if capacity is not None:
            length = length if length > 0 else length + capacity
            start %= capacity
            if start >= count and start + length > capacity:  # its beginning was overwritten
                start -= capacity
        start, stop = max(start, 0), min(start + length, count)
        if start < stop:
            found.append((start, stop))
    return sorted(found)
