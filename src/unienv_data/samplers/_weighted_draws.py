"""Drawing from weights in proportion to them, in whichever of two ways takes less time.

By trial: any slot is drawn with the same probability, and kept with a probability of its weight over the largest. That
is a few NumPy calls over more slots than are wanted, and needs no sums; it is the better way while a fair share of what
is tried is kept, as it is with weights that do not differ by much. By the tree: the better way where a few weights
outweigh all others. Either way every draw is independent of the others, so one batch may come of both.

Which way is taken hangs on what was drawn before, so that is part of the state that a sampler saves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.random_state import uniform_indices
from ._sum_tree import SumTree

# The share of tries that must be kept for them to be worth it: about there both ways take the same time.
_LEAST_SHARE = 0.1
# The largest weight may be one that is long gone: it is looked up anew after so many batches by the tree.
_TREE_BATCHES = 1024


class WeightedDraws:
    """Weights of a number of slots that is a power of two, zero at first, and draws of slots that are in use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._tree = SumTree(size)
        self._largest = 0.0  # no weight is larger
        self._share = 1.0  # of tries that are kept, as far as is known
        self._tree_batches = 0

    def total(self) -> float:
        return self._tree.total()

    def get(self, slots: np.ndarray) -> np.ndarray:
        return self._tree.get(slots)

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of slots; where one comes more than once, the last counts. The array of slots is kept."""
        self._largest = max(self._largest, float(weights.max(initial=0.0)))  # first: no weight is ever larger
        self._tree.set(slots, weights)

    def set_range(self, start: int, stop: int, weights: float | np.ndarray) -> None:
        """Set the weights of slots [start, stop)."""
        self._largest = max(self._largest, float(np.max(weights, initial=0.0)))
        self._tree.set_range(start, stop, weights)

    def draw(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Places in `numbers`, each with a probability in proportion to its weight, which is never zero; and weights.

        Number n has slot n modulo the size. Slots of other numbers have no weight.
        """
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        missing = count
        while missing and self._share >= _LEAST_SHARE:
            part = self._draw_by_trial(rng, numbers, missing)
            parts.append(part)
            missing -= len(part[0])
        if missing or not parts:
            parts.append(self._draw_by_tree(rng, numbers, missing))
        if len(parts) == 1:
            return parts[0]
        places, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        return places, weights

    def _draw_by_trial(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Up to so many draws."""
        tries = int(1.1 * count / self._share) + 16
        places = uniform_indices(rng, len(numbers), tries)
        weights = self._tree.get((places + numbers.start) & (self.size - 1))
        kept = (weights > rng.random(tries) * self._largest).nonzero()[0]
        self._share = (self._share + len(kept) / tries) / 2
        kept = kept[:count]
        return places.take(kept), weights.take(kept)

    def _draw_by_tree(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        slots = self._tree.draw(rng.random(count))
        self._tree_batches += 1
        if self._tree_batches % _TREE_BATCHES == 0:
            self._largest = self._tree.largest()
        self._share = min(1.0, self._tree.total() / (len(numbers) * self._largest))
        return (slots - numbers.start) & (self.size - 1), self._tree.get(slots)

    def state_dict(self) -> dict[str, Any]:
        """What the next draws hang on, but for the weights and the generator."""
        return {"largest": self._largest, "share": self._share, "tree_batches": self._tree_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw as the one that gave this state would, once the weights are the same."""
        largest, share = float(state["largest"]), float(state["share"])
        if not (largest >= self._largest and 0 <= share <= 1):
            raise ValueError(f"the state has a largest weight of {largest} and a share of {share}: that cannot be")
        self._largest, self._share, self._tree_batches = largest, share, int(state["tree_batches"])
