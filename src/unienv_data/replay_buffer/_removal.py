"""Taking samples out of the middle of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..base.storage import SpaceStorage
from ._journal import Edit, chunks

Slots = Callable[[np.ndarray], np.ndarray]


def removal(
    storage: SpaceStorage, slots_of: Slots, removed: np.ndarray, bounds: tuple[int, int, int], segments: np.ndarray
) -> Edit:
    """The edit that removes samples and closes the gaps, by moving what is on the side where less has to be moved.

    `removed` are numbers of samples, in order and without duplicates; `bounds` are tail, closed and head; `segments`
    the closed segments alive. A segment shrinks by what is taken out of it, and is gone when nothing is left.
    """
    tail, closed, head = bounds
    count, first, last = len(removed), int(removed[0]), int(removed[-1])
    moves_older = last + 1 - tail <= head - first
    if moves_older:
        kept = np.setdiff1d(np.arange(tail, last + 1), removed, assume_unique=True)
        # from the newest to the oldest, so that no sample is overwritten before it was moved
        kept = kept[::-1]

        def moved(numbers: np.ndarray) -> np.ndarray:
            return numbers + count - np.searchsorted(removed, numbers)

        tail += count
    else:
        kept = np.setdiff1d(np.arange(first, head), removed, assume_unique=True)

        def moved(numbers: np.ndarray) -> np.ndarray:
            return numbers - np.searchsorted(removed, numbers)

        head -= count
    shrunk = moved(segments.reshape(-1)).reshape(-1, 2)
    shrunk = shrunk[shrunk[:, 0] < shrunk[:, 1]]
    closed = int(moved(np.array([closed]))[0])
    counters = {"head": head, "tail": tail, "closed": closed, "segments": len(shrunk)}
    targets = slots_of(moved(kept))
    return Edit(targets, _rows(storage, slots_of(kept), targets), counters, shrunk)


def _rows(storage: SpaceStorage, sources: np.ndarray, targets: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    """The rows to be moved, in pieces; each is read when it is asked for."""
    row_nbytes = storage.row_nbytes if storage.has_raw_rows else 2**12
    for source, target in zip(chunks(sources, row_nbytes), chunks(targets, row_nbytes), strict=True):
        yield target, storage.raw_rows(source)
