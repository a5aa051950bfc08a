"""Non-negative weights with their sums, to draw from them in proportion.

The tree is wide: a node sums sixteen weights, and of the first level with no more than a few thousand nodes one running
sum is made. A draw or an update of a whole batch is then a few NumPy calls per level, two levels for a million weights.
Sums are updated when they are asked for: reading weights does not need them.

In a large tree, one weight for a long range of slots is kept once for each block of 256 and written out when a slot of
the block is asked for. New samples all get the same priority, so that the first draw from a billion writes to few.

Rounding cannot lead to a slot of weight zero. At every level a draw goes to the first child whose running sum exceeds
the rest of the drawn number; this child has a weight above zero, since a zero does not raise a running sum. The rest is
kept below the running sum of all children, as they are added up there, so there always is one.
"""

from __future__ import annotations

import mmap

import numpy as np

_WIDTH, _SHIFT = 16, 4
_TOP = 4096
_BLOCK, _BLOCK_SHIFT = 256, 8
_LARGE = 1 << 22  # slots from which on blocks share weights
_AT_ONCE = 1 << 16  # nodes or slots, to bound the memory of what is computed of them
_RUNNING_SUMS = np.triu(np.ones((_WIDTH, _WIDTH)))
#: So that the sum of a hundred million of them is still a number.
LARGEST_WEIGHT = 1e300


class SumTree:
    """Weights of a fixed number of slots, zero at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        # levels[0] are the weights, each further level the sums of sixteen of the one below
        self._levels = [_zeros(_padded(size))]
        while len(self._levels[-1]) > _TOP:
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // _WIDTH)))
        self._blocks = [level.reshape(-1, _WIDTH) for level in self._levels]
        # whole blocks only; the last entry of `_is_shared` stands for the slots behind them
        whole = len(self._levels[0]) // _BLOCK if size >= _LARGE else 0
        self._rows = self._levels[0][: whole * _BLOCK].reshape(-1, _BLOCK)
        self._shared_weights = np.zeros(whole)
        self._is_shared = np.zeros(whole + 1, bool)
        self._shared_count = 0
        self._changed: list[np.ndarray] = []  # slots whose weights are not in the sums yet
        self._changes = 0

    def total(self) -> float:
        self._settle()
        return float(self._levels[-1].sum())

    def largest(self) -> float:
        """The largest weight."""
        largest = [self._levels[0][self._rows.size :].max(initial=0.0)]
        for start in range(0, len(self._rows), _AT_ONCE // _WIDTH):
            some = slice(start, min(start + _AT_ONCE // _WIDTH, len(self._rows)))
            is_shared = self._is_shared[some]
            largest += [
                part.max(initial=0.0) for part in (self._shared_weights[some][is_shared], self._rows[some][~is_shared])
            ]
        return float(max(largest))

    def get(self, slots: np.ndarray) -> np.ndarray:
        self._write_out(slots)
        return self._levels[0].take(slots)

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of slots; where one comes more than once, the last counts. The array of slots is kept."""
        self._write_out(slots)
        if self._changes <= self._many:
            self._changed.append(slots)  # first: an interrupt must not leave a weight that is in no sum
            self._changes += len(slots)
        self._levels[0][slots] = weights

    @property
    def _many(self) -> int:
        """How many changes make it the better way to add up everything anew."""
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
            self._write_out(slots)  # a block may share one weight since
            for level, blocks in zip(self._levels[1:], self._blocks, strict=False):
                slots = slots >> _SHIFT
                for start in range(0, len(slots), _AT_ONCE):
                    some = slots[start : start + _AT_ONCE]
                    level[some] = _sums(blocks.take(some, 0))
        self._changed, self._changes = [], 0  # last: after an interrupt all of it is done again

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
        """Whether each of the blocks [first, last) has one weight that is not written out."""
        self._shared_count += (last - first) * is_shared - int(self._is_shared[first:last].sum())
        self._is_shared[first:last] = is_shared

    def _set_slots(self, start: int, stop: int, weights: float | np.ndarray) -> None:
        if start < stop:
            self._write_out(np.array([start, stop - 1]))
            self._levels[0][start:stop] = weights
            self._add_up(start, stop)

    def _set_blocks(self, first: int, last: int, weight: float) -> None:
        """Give all slots of the blocks [first, last) one weight, without writing it to them."""
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
        """Bring the sums of the nodes [start, stop) of a level up to date, up to the top."""
        for level, blocks in zip(self._levels[depth + 1 :], self._blocks[depth:], strict=False):
            start, stop = start >> _SHIFT, -(-stop >> _SHIFT)
            level[start:stop] = _sums(blocks[start:stop])

    def _write_out(self, slots: np.ndarray) -> None:
        """Write the weights of the blocks of these slots to all their slots."""
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
        """A slot for each number in [0, 1), its probability in proportion to its weight, which is never zero."""
        self._settle()
        # running sums have a zero in front: entry i is what the nodes before node i take
        running = np.zeros(len(self._levels[-1]) + 1)
        self._levels[-1].cumsum(out=running[1:])
        total = running[-1]
        if not total > 0:
            raise ValueError("all weights are zero: there is nothing to draw")
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
            sums = weights @ _RUNNING_SUMS  # in a third of the time that `cumsum` takes
            children = rows + _first_beyond(sums, left)
            own = weights.take(children)
            if not own.all():
                # each sum of a product may be added up in another order, and round to more where nothing was added
                sums = weights.cumsum(axis=1)
                children = rows + _first_beyond(sums, left)
                own = weights.take(children)
            slots += children - rows
            left = np.maximum(left - (sums.take(children) - own), 0.0)
        return slots


def _first_beyond(sums: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The first index in each row of running sums whose sum exceeds what is left."""
    return (sums > _below(left, sums[:, -1])[:, None]).argmax(axis=1)


def _sums(blocks: np.ndarray) -> np.ndarray:
    """The sums of short rows, in half the time that `sum` takes."""
    sums: np.ndarray = np.einsum("ij->i", blocks)
    return sums


def _below(numbers: np.ndarray, limits: np.ndarray | np.float64) -> np.ndarray:
    return np.minimum(numbers, np.nextafter(limits, 0.0))


def _zeros(size: int) -> np.ndarray:
    """Memory of zeros; where it is large, small pages of it are taken as they are written to."""
    return np.zeros(size) if size < _LARGE else np.frombuffer(mmap.mmap(-1, 8 * size))


def _padded(size: int) -> int:
    return max(1, -(-size // _WIDTH)) * _WIDTH
