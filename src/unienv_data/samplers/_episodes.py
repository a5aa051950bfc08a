"""Where episodes begin and end, found from a field of the samples that says which episode each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .index_sampler import numbers_of

# So many samples are looked at a time.
_STRETCH = 1 << 18


class KeyedEpisodes:
    """The episodes of a source by the value of a field: one begins where the value differs from the one before.

    Each sample is looked at once: what was found is kept by the samples' numbers, and extended when there are more.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = list(keys)
        self._numbers = range(0)
        self._begins = self._ends = np.empty(0, np.int64)  # the numbers of first samples, and of those after the last
        self._last: Any = None  # the value of the last sample

    def bounds_of(self, source: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and the end index of the episodes that these indices lie in."""
        while (numbers := numbers_of(source)) != self._numbers:
            self._follow(source, numbers)
        episode = self._begins.searchsorted(positions + numbers.start, "right") - 1
        starts = self._begins.take(episode) - numbers.start
        return np.maximum(starts, 0), self._ends.take(episode) - numbers.start

    def _follow(self, source: Any, numbers: range) -> None:
        """Look at what is new, if nothing is overwritten meanwhile."""
        if numbers.start < self._numbers.start or numbers.stop < self._numbers.stop:
            # samples were removed: all that is known may be wrong
            self._numbers, self._begins = range(0), np.empty(0, np.int64)
        found, last = [self._begins[max(0, self._begins.searchsorted(numbers.start, "right") - 1) :]], self._last
        for start in range(max(numbers.start, self._numbers.stop), numbers.stop, _STRETCH):
            stop = min(start + _STRETCH, numbers.stop)
            values = self._values(source, start - numbers.start, stop - numbers.start)
            differs = np.ones(len(values), bool)
            np.not_equal(values[1:], values[:-1], out=differs[1:])
            if start > max(numbers.start, self._numbers.start):
                differs[0] = values[0] != last
            found.append(np.flatnonzero(differs) + start)
            last = values[-1]
        if numbers_of(source).start == numbers.start:  # else the indices were those of other samples
            self._numbers, self._last, self._begins = numbers, last, np.concatenate(found)
            self._ends = np.append(self._begins[1:], numbers.stop)

    def _values(self, source: Any, start: int, stop: int) -> np.ndarray:
        values = source.get_column_at(self._keys, slice(start, stop))
        values = values if isinstance(values, np.ndarray) else source.backend.to_numpy(values)
        if values.ndim > 1 and values[0].size == 1:  # such as the [., 1] of TED
            values = values.reshape(len(values))
        if values.ndim != 1:
            name = "/".join(map(str, self._keys))
            raise ValueError(f"{name} has values of shape {values.shape[1:]}, an episode key has one for each sample")
        return values
