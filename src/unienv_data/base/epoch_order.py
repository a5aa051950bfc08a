"""The order in which an epoch goes through samples, addressed by position.

No array with an entry per sample is built: the sample at a position is computed from the position and a key. So an
epoch over a billion samples begins at once, and an interrupted one continues at any position, in batches of any size.

The order is a Feistel network over pairs of digits: a position p is written as (p // b, p % b), and in each round a
hash of one digit is added to the other, which can be undone and is therefore one-to-one. The pairs are a few more than
the samples; a pair beyond the samples is sent through again until it is one. For few samples, for which the network
has only few orders, their hashes are sorted instead, which gives each order with the same probability.
"""

from __future__ import annotations

import math

import numpy as np

# Positions are worked out this many at a time: a NumPy call costs the same for one number as for hundreds.
_BLOCK = 4096
_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class EpochOrder:
    """The samples 0 to `length - 1` in the order of one epoch: each once, another order for each seed and epoch."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
        self._low = max(1, math.isqrt(length))
        self._high = -(-length // self._low)
        self._block = (-1, np.empty(0, np.int64))

    def at(self, start: int, stop: int) -> np.ndarray:
        """The samples at positions [start, stop), int64."""
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"positions {start} to {stop} of an epoch over {self.length} samples")
        first, last = start // _BLOCK, max(start, stop - 1) // _BLOCK
        if first == last:
            return self._block_at(first)[start - first * _BLOCK : stop - first * _BLOCK].copy()
        parts = [self._block_at(block) for block in range(first, last + 1)]
        return np.concatenate(parts)[start - first * _BLOCK : stop - first * _BLOCK]

    def _block_at(self, block: int) -> np.ndarray:
        """The samples at the positions of one block; remembered, since batches follow each other."""
        known, samples = self._block
        if known != block:
            positions = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, self.length), dtype=np.uint64)
            samples = self._sorted_hashes() if self.length <= _BLOCK else self._walk(positions)
            self._block = (block, samples)
        return samples

    def _sorted_hashes(self) -> np.ndarray:
        return np.argsort(scattered(np.arange(self.length, dtype=np.uint64) ^ self._keys[0]), kind="stable")

    def _walk(self, positions: np.ndarray) -> np.ndarray:
        samples = self._once(positions)
        while len(outside := np.flatnonzero(samples >= self.length)):
            samples[outside] = self._once(samples[outside])
        return samples.astype(np.int64)

    def _once(self, positions: np.ndarray) -> np.ndarray:
        low, high = np.uint64(self._low), np.uint64(self._high)
        left, right = positions // low, positions % low
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right = (right + scattered(left ^ key) % low) % low
            else:
                left = (left + scattered(right ^ key) % high) % high
        return left * low + right


class Epoch:
    """One pass over samples, those that were there when it began, of which `position` were handed out or are gone.

    Parameters
    ----------
    numbers
        The numbers of the samples.
    renumbered
        How often samples were given other numbers.
    seed, number
        What the order comes from; `number` is that of the epoch.
    position
        Where it goes on.
    """

    def __init__(self, numbers: range, renumbered: int, seed: int, number: int, position: int = 0) -> None:
        self.order = EpochOrder(len(numbers), seed, number)
        self.numbers, self.renumbered, self.number, self.position = numbers, renumbered, number, position

    def adopt(self, numbers: range) -> None:
        """Go on over a copy of the samples, the numbers of which are smaller."""
        if numbers.start < self.numbers.start:
            self.numbers = range(numbers.start, numbers.start + len(self.numbers))

    def after(self, position: int, batch_size: int, numbers: range, renumbered: int) -> tuple[np.ndarray, int]:
        """The indices of the next batch from a position on, and the position behind it; after the last it is empty.

        Parameters
        ----------
        position, batch_size
            The batch; the last one may be short.
        numbers, renumbered
            The samples that are there now. Of the others the oldest are left out.

        Raises
        ------
        ValueError
            Others than the oldest were removed, so it is not known which of them were handed out.
        """
        if numbers.stop < self.numbers.stop:
            raise ValueError(
                f"this is an epoch over {len(self.numbers)} samples and now there are {len(numbers)}, without the "
                f"newest of them: iterate again for a new epoch"
            )
        if renumbered > self.renumbered:
            raise ValueError(
                "samples have got other numbers since the epoch began: others than the oldest were removed, or one of "
                "several combined batches has changed. Which of them have come is not known: iterate again for a new "
                "epoch"
            )
        gone, length, indices = numbers.start - self.numbers.start, len(self.numbers), np.zeros(0, np.int64)
        while len(indices) < batch_size and position < length and gone < length:
            stop = min(position + batch_size - len(indices), length)
            found, position = self.order.at(position, stop), stop
            indices = np.concatenate([indices, found[found >= gone] - gone]) if gone or len(indices) else found
        return indices, position


def scattered(numbers: np.ndarray) -> np.ndarray:
    """Numbers scattered over 64 bits, one to one."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        numbers = (numbers ^ (numbers >> shift)) * multiplier
    return numbers ^ (numbers >> _SHIFTS[-1])
