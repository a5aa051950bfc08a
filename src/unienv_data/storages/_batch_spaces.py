"""The spaces of batches, kept."""

from __future__ import annotations

from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_space

# Batches tend to be of few sizes; where they are not, the oldest entry makes room.
_LIMIT = 64


class BatchSpaces:
    """The space of one sample, and those of batches of it, each worked out when it is first wanted."""

    def __init__(self, space: Space) -> None:
        self.single = space
        self._by_count: dict[int, Space] = {}

    def of(self, count: int | None) -> Space:
        """The space of a batch of `count`; with None that of one sample."""
        if count is None:
            return self.single
        space = self._by_count.get(count)
        if space is None:
            if len(self._by_count) >= _LIMIT:
                self._by_count.pop(next(iter(self._by_count)))
            space = self._by_count[count] = batch_space(self.single, count)
        return space
