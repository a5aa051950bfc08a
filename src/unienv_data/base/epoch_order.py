"""The random order of samples in an epoch, addressed by position.

The sample at a position is computed from the position and a key, without an array of all samples. An epoch over a
billion samples therefore begins at once, and an interrupted epoch continues at any position, in batches of any size.

The order is a Feistel network over pairs of digits: a position p is written as (p // b, p % b), and each round adds a
hash of one digit to the other digit. A round can be undone, so the network is one-to-one. It has a few more pairs than
samples; a pair beyond the samples goes through the network again until it names a sample. For few samples the network
has only few orders, so their hashes are sorted instead, which gives every order with the same probability.
"""

from __future__ import annotations

import math

import numpy as np

# Positions are computed in blocks: a NumPy call costs the same for one number as for hundreds.
_BLOCK = 4096
_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class EpochOrder:
    """The samples 0 to `length - 1` in the order of one epoch, which depends on the seed and the epoch's number."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
        self._low = max(1, math.isqrt(length))
        self._high = -(-length // self._low)
        self._block = (-1, np.empty(0, np.int64))

    def at(self, start: int, stop: int) -> np.ndarray:
        """Return the samples at positions [start, stop), int64."""
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"positions {start} to {stop} of an epoch over {self.length} samples")
        first, last = start // _BLOCK, max(start, stop - 1) // _BLOCK
        if first == last:
            return self._block_at(first)[start - first * _BLOCK : stop - first * _BLOCK].copy()
        blocks = [self._block_at(block) for block in range(first, last + 1)]
        return np.concatenate(blocks)[start - first * _BLOCK : stop - first * _BLOCK]

    def _block_at(self, block: int) -> np.ndarray:
        """Return the samples at the positions of one block; the last block is kept for the next batch."""
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
    """One pass over the samples that existed when the epoch began, and the position in it.

    Parameters
    ----------
    numbers
        The numbers of the samples.
    renumbered
        How often samples were given other numbers.
    seed, number
        The seed and the number of the epoch, which determine the order.
    position
        The position where the epoch continues.
    """

    def __init__(self, numbers: range, renumbered: int, seed: int, number: int, position: int = 0) -> None:
        self.order = EpochOrder(len(numbers), seed, number)
        self.numbers, self.renumbered, self.number, self.position = numbers, renumbered, number, position

    def adopt(self, numbers: range) -> None:
        """Continue over a copy of the samples whose numbers are smaller."""
        if numbers.start < self.numbers.start:
            self.numbers = range(numbers.start, numbers.start + len(self.numbers))

    def after(self, position: int, batch_size: int, numbers: range, renumbered: int) -> tuple[np.ndarray, int]:
        """Return the indices of the batch from a position on, and the position behind it; empty after the last batch.

        Parameters
        ----------
        position, batch_size
            The batch; the last batch of the epoch may be short.
        numbers, renumbered
            The samples that exist now. Samples that were dropped since are skipped.

        Raises
        ------
        ValueError
            Samples other than the oldest were removed, so the rest of the epoch is not known.
        """
        if numbers.stop < self.numbers.stop:
            raise ValueError(
                f"the epoch began over {len(self.numbers)} samples, {len(numbers)} are left and the newest are gone: "
                f"iterate again for a new epoch"
            )
        if renumbered > self.renumbered:
            raise ValueError(
                "samples have got other numbers since the epoch began: samples other than the oldest were removed, or "
                "one of several combined batches has changed. The rest of the epoch is not known: iterate again for a "
                "new epoch"
            )
        gone, length, indices = numbers.start - self.numbers.start, len(self.numbers), np.zeros(0, np.int64)
        while len(indices) < batch_size and position < length and gone < length:
            stop = min(position + batch_size - len(indices), length)
            samples, position = self.order.at(position, stop), stop
            indices = np.concatenate([indices, samples[samples >= gone] - gone]) if gone or len(indices) else samples
        return indices, position


def scattered(numbers: np.ndarray) -> np.ndarray:
    """Hash numbers to 64 bits, one-to-one."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        numbers = (numbers ^ (numbers >> shift)) * multiplier
    return numbers ^ (numbers >> _SHIFTS[-1])
