"""`RowSpaces`: the spaces of some rows of a batch."""

from __future__ import annotations

import numpy as np

from ..space import Space
from . import batch_utils


class RowSpaces:
    """The spaces of some rows of a batch: fewer slots, each with its own bounds.

    If all slots have equal spaces, as in most batches, the space of n rows does not depend on the rows and is cached.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        count = batch_utils.batch_size(space)
        if count is None:
            raise ValueError(f"{space} has no batch axis that all its leaves share")
        self._singles = [next(iter(batch_utils.unbatch_spaces(space)))] if count else []
        self._are_alike = bool(count) and batch_utils.batch_space(self._singles[0], count) == space
        if not self._are_alike:
            self._singles = list(batch_utils.unbatch_spaces(space))
        self._by_count: dict[int, Space] = {count: space} if self._are_alike else {}

    def of(self, slots: np.ndarray) -> Space:
        """The space of the rows that a NumPy mask selects, in order."""
        chosen = np.flatnonzero(slots)
        if len(chosen) == len(slots):
            return self.space
        if len(chosen) and not self._are_alike:
            return batch_utils.batch_differing_spaces([self._singles[slot] for slot in chosen])
        if len(chosen) not in self._by_count:
            self._by_count[len(chosen)] = batch_utils.batch_space(self._singles[0], len(chosen))
        return self._by_count[len(chosen)]
