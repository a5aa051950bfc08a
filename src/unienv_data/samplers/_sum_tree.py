"""A sum tree: non-negative weights with their sums, to draw slots in proportion to their weights.

The tree is wide: a node sums sixteen weights, and a draw starts with one running sum over the first level of at most a
few thousand nodes. A draw or an update of a whole batch is then a few NumPy calls per level, with two levels for a
million weights. Sums are updated when a draw needs them; reading weights does not.

In a large tree, an equal weight for a long range of slots is stored once per block of 256 slots, and written to the
slots when one of them is accessed. New samples all get the same priority, so the first draw from a billion samples
writes few slots.

Rounding cannot lead to a slot of weight zero. At every level a draw goes to the first child whose running sum exceeds
the remainder of the drawn number. This child has a weight above zero, since a zero does not raise a running sum. The
remainder is clipped below the running sum of all children, so such a child always exists.
"""

from __future__ import annotations

import mmap

import numpy as np

_WIDTH, _SHIFT = 16, 4
_TOP = 4096
_BLOCK, _BLOCK_SHIFT = 256, 8
_LARGE = 1 << 22  # the number of slots from which on blocks share weights
_AT_ONCE = 1 << 16  # nodes or slots per step, to bound the memory of temporary arrays
_RUNNING_SUMS = np.triu(np.ones((_WIDTH, _WIDTH)))
#: The sum of a hundred million such weights is still finite.
LARGEST_WEIGHT = 1e300


class SumTree:
    """Weights of a fixed number of slots, zero at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        # levels[0] are the weights; a node of each further level sums sixteen nodes of the level below
        self._levels = [_zeros(_padded(size))]
        while len(self._levels[-1]) > _TOP:
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // _WIDTH)))
        self._blocks = [level.reshape(-1, _WIDTH) for level in self._levels]
        # Complete blocks only; the last entry of `_is_shared` is for the slots behind them.
        whole = len(self._levels[0]) // _BLOCK if size >= _LARGE else 0
        self._rows = self._levels[0][: whole * _BLOCK].reshape(-1, _BLOCK)
        self._shared_weights = np.zeros(whole)
        self._is_shared = np.zeros(whole + 1, bool)
        self._shared_count = 0
        self._changed: list[np.ndarray] = []  # slots whose weights are not in the sums yet
        self._changes = 0  # the number of slots in `_changed`

    def total(self) -> float:
        self._settle()
        return float(self._levels[-1].sum())

    def largest(self) -> float:
        """The largest weight."""
        largest = [self._levels[0][self._rows.size :].max(initial=0.0)]
        for start in range(0, len(self._rows), _AT_ONCE // _WIDTH):
            chunk = slice(start, min(start + _AT_ONCE // _WIDTH, len(self._rows)))
            is_shared = self._is_shared[chunk]
            largest.append(self._shared_weights[chunk][is_shared].max(initial=0.0))
            largest.append(self._rows[chunk][~is_shared].max(initial=0.0))
        return float(max(largest))

    def get(self, slots: np.ndarray) -> np.ndarray:
        self._write_out(slots)
        return self._levels[0].take(slots)

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of slots; of a repeated slot, the last weight counts. The tree keeps the array of slots."""
        self._write_out(slots)
        if self._changes <= self._many:
            self._changed.append(slots)  # first: an interrupt must not leave a weight out of the sums
            self._changes += len(slots)
        self._levels[0][slots] = weights

    @property
    def _many(self) -> int:
        """The number of changes from which on summing all weights again is faster."""
        return self.size // _WIDTH

    def _settle(self) -> None:
        """Bring the sums up to date."""
        if not self._changed:
            return
        if self._changes > self._many:
            self._write_out(np.arange(0, self._rows.size, _BLOCK))
            self._add_up(0, len(self._levels[0]))
        else:
            slots = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
            self._write_out(slots)  # a block may have become shared since the change
            for level, blocks in zip(self._levels[1:], self._blocks, strict=False):
                slots = slots >> _SHIFT
                for start in range(0, len(slots), _AT_ONCE):
                    nodes = slots[start : start + _AT_ONCE]
                    level[nodes] = _sums(blocks.take(nodes, 0))
        self._changed, self._changes = [], 0  # last: after an interrupt the whole update is repeated

    def set_range(self, start: int, stop: int, weights: float | np.ndarray) -> None:
        """Set the weights of slots [start, stop)."""
        first = min(-(-start // _BLOCK), len(self._rows))
        last = max(min(stop // _BLOCK, len(self._rows)), first)
        if isinstance(weights, np.ndarray):
            self._mark(first, last, False)
            self._set_slots(start, stop, weights)
        elif first == last:
            self._set_slots(start, stop, weights)
        else:
            self._mark(first, last, True)
            self._set_blocks(first, last, weights)
            self._set_slots(start, first * _BLOCK, weights)
            self._set_slots(last * _BLOCK, stop, weights)

    def _mark(self, first: int, last: int, is_shared: bool) -> None:
        """Mark the blocks [first, last) as shared (one weight, not written to the slots) or not."""
        self._shared_count += (last - first) * is_shared - int(self._is_shared[first:last].sum())
        self._is_shared[first:last] = is_shared

    def _set_slots(self, start: int, stop: int, weights: float | np.ndarray) -> None:
        if start < stop:
            self._write_out(np.array([start, stop - 1]))
            self._levels[0][start:stop] = weights
            self._add_up(start, stop)

    def _set_blocks(self, first: int, last: int, weight: float) -> None:
        """Give the blocks [first, last) one shared weight, without writing it to the slots."""
        self._shared_weights[first:last] = weight
        start, stop, nodes = first * _BLOCK, last * _BLOCK, _BLOCK
        for depth, level in enumerate(self._levels[1:], 1):
            start, stop, nodes = start >> _SHIFT, stop >> _SHIFT, nodes >> _SHIFT
            weight = float(_sums(np.full((1, _WIDTH), weight))[0])
            level[start:stop] = weight
            if nodes == 1:
                self._add_up(start, stop, depth)
                return

    def _add_up(self, start: int, stop: int, depth: int = 0) -> None:
        """Update the sums over the nodes [start, stop) of a level, up to the top."""
        for level, blocks in zip(self._levels[depth + 1 :], self._blocks[depth:], strict=False):
            start, stop = start >> _SHIFT, -(-stop >> _SHIFT)
            level[start:stop] = _sums(blocks[start:stop])

    def _write_out(self, slots: np.ndarray) -> None:
        """Write the shared weights of these slots' blocks to all slots of the blocks."""
        if not self._shared_count:
            return
        if len(slots) < len(self._rows):
            blocks = np.unique(slots >> _BLOCK_SHIFT)
            blocks = blocks[self._is_shared[blocks]]
        else:
            blocks = self._is_shared.nonzero()[0]
        self._rows[blocks] = self._shared_weights[blocks, None]
        self._is_shared[blocks] = False
        self._shared_count -= len(blocks)

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Draw a slot for each number in [0, 1), in proportion to the weights; never a slot of weight zero."""
        self._settle()
        # entry i is the sum of the nodes before node i
        running = np.zeros(len(self._levels[-1]) + 1)
        self._levels[-1].cumsum(out=running[1:])
        total = running[-1]
        if not total > 0:
            raise ValueError("all weights are zero: nothing can be drawn")
        if not total < np.inf:
            raise OverflowError("the sum of the weights is too large for a float: scale the priorities down")
        left = _below(uniform * total, total)
        slots = running[1:].searchsorted(left, "right")
        left -= running.take(slots)
        rows = np.arange(0, _WIDTH * len(uniform), _WIDTH)
        for blocks in reversed(self._blocks[:-1]):
            if blocks is self._blocks[0]:
                self._write_out(slots << _SHIFT)
            weights = blocks.take(slots, 0)
            slots *= _WIDTH
            sums = weights @ _RUNNING_SUMS  # three times as fast as `cumsum`
            children = rows + _first_beyond(sums, left)
            child_weights = weights.take(children)
            if not child_weights.all():
                # A matrix product adds in any order, so rounding may raise its sum at a zero weight.
                sums = weights.cumsum(axis=1)
                children = rows + _first_beyond(sums, left)
                child_weights = weights.take(children)
            slots += children - rows
            left = np.maximum(left - (sums.take(children) - child_weights), 0.0)
        return slots


def _first_beyond(sums: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return for each row of running sums the first index whose sum exceeds `left`."""
    return (sums > _below(left, sums[:, -1])[:, None]).argmax(axis=1)


def _sums(blocks: np.ndarray) -> np.ndarray:
    """Sum short rows, twice as fast as `sum`."""
    sums: np.ndarray = np.einsum("ij->i", blocks)
    return sums


def _below(numbers: np.ndarray, limits: np.ndarray | np.float64) -> np.ndarray:
    return np.minimum(numbers, np.nextafter(limits, 0.0))


def _zeros(size: int) -> np.ndarray:
    """Make an array of zeros; a large one takes memory page by page as it is written."""
    return np.zeros(size) if size < _LARGE else np.frombuffer(mmap.mmap(-1, 8 * size))


def _padded(size: int) -> int:
    return max(1, -(-size // _WIDTH)) * _WIDTH
