"""Samplers that draw every sample with the same probability, with and without replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.epoch_order import EpochOrder
from ..base.random_state import fresh_seed, uniform_indices
from .index_sampler import IndexBatch, IndexSampler, Seed, Source, nothing_to_draw_from, parse_batch_size


class RandomSampler(IndexSampler):
    """Draws every index with the same probability, independently of the others.

    Parameters
    ----------
    seed
        A seed, or a NumPy generator to draw with.

    Examples
    --------
    >>> sampler = StepSampler(buffer, 256, sampler=RandomSampler(seed=0))
    >>> batch = sampler.sample()
    """

    def sample(self, source: Source, batch_size: int) -> IndexBatch:
        length = len(source)
        if not length:
            raise nothing_to_draw_from()
        return IndexBatch(uniform_indices(self.rng, length, batch_size), {})


class SamplerWithoutReplacement(IndexSampler):
    """Draws epoch after epoch, each index once in an epoch.

    An epoch covers the samples at its beginning: samples that are added later come in the next epoch. If removals leave
    fewer samples than at the beginning, a new epoch begins. In a ring that is being overwritten the samples move to
    other indices, and an epoch covers each index once.

    Parameters
    ----------
    drop_last
        Whether the last batch of an epoch is left out if it is short.
    shuffle
        Whether the order is random; otherwise oldest first.
    seed
        A seed, or a NumPy generator from which the seed is drawn.

    Raises
    ------
    ValueError
        When drawing: the source has no samples, or with `drop_last` fewer than the batch size.

    Examples
    --------
    >>> sampler = StepSampler(buffer, 256, sampler=SamplerWithoutReplacement(drop_last=True, seed=0))
    >>> batch = sampler.sample()
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True, seed: Seed = None) -> None:
        super().__init__(seed)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.manual_seed(_epoch_seed(seed))

    def manual_seed(self, seed: int) -> None:
        super().manual_seed(seed)
        self._seed = seed
        self._epoch = 0  # the number of the current epoch, or of the next one
        self._position = 0
        self._order: EpochOrder | None = None

    @property
    def ran_out(self) -> bool:
        """Whether the last batch was the last of its epoch."""
        return self._order is None and self._epoch > 0

    @property
    def epoch(self) -> int:
        """The number of completed epochs."""
        return self._epoch

    def sample(self, source: Source, batch_size: int) -> IndexBatch:
        batch_size, length = parse_batch_size(batch_size), len(source)
        if self._order is not None and (
            length < self._order.length or not self._has_batch(self._order.length, batch_size)
        ):
            self._end_epoch()
        if self._order is None:
            if not length:
                raise nothing_to_draw_from()
            if not self._has_batch(length, batch_size):
                raise ValueError(
                    f"batch_size is {batch_size}, the source has {length} samples: with drop_last an epoch has no "
                    f"batch; use a smaller batch or drop_last=False"
                )
            self._order = EpochOrder(length, self._seed, self._epoch)
        start, stop = self._position, min(self._position + batch_size, self._order.length)
        index = self._order.at(start, stop) if self.shuffle else np.arange(start, stop)
        self._position = stop
        if not self._has_batch(self._order.length, batch_size):
            self._end_epoch()
        return IndexBatch(index, {})

    def _has_batch(self, length: int, batch_size: int) -> bool:
        """Whether this epoch has another batch."""
        remaining = length - self._position
        return remaining >= batch_size if self.drop_last else remaining > 0

    def _end_epoch(self) -> None:
        self._epoch, self._position, self._order = self._epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, with its position in the epoch, for `load_state_dict`."""
        return {
            **super().state_dict(),
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "length": None if self._order is None else self._order.length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._seed, self._epoch, self._position = int(state["seed"]), int(state["epoch"]), int(state["position"])
        length = state["length"]
        self._order = None if length is None else EpochOrder(int(length), self._seed, self._epoch)


def _epoch_seed(seed: Seed) -> int:
    """Return the seed for the orders of all epochs."""
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(0, 2**63))
    return fresh_seed() if seed is None else seed
