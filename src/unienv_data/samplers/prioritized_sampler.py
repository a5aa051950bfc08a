"""Samples drawn in proportion to their priority, with the weights that correct the bias.

There are two ways to draw from weights in proportion to them, and the quicker one is taken.

By trial: any slot is drawn with the same probability, and kept with a probability of its weight over the largest. That
takes a few NumPy calls over more slots than are wanted, and no sums; it is the quicker way while a fair share of the
tries is kept, as with weights that do not differ by much. By the tree: the quicker way where a few weights outweigh all
others. Either way every draw is independent of the others, so one batch may come of both.

The choice depends on what was drawn before, so it is part of the state that a sampler saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.random_state import uniform_indices
from ._sum_tree import LARGEST_WEIGHT, SumTree
from .index_sampler import IndexBatch, IndexSampler, Seed, Source, nothing_to_draw_from, numbers_of, parse_batch_size

#: A value for each batch, by how many came before it.
Schedule = Callable[[int], float]

_FEWEST_SLOTS = 1024
# The share of tries that must be kept for them to be worth it: about there both ways take the same time.
_LEAST_SHARE = 0.1
# The largest weight may be one that is long gone: it is looked up anew after so many batches by the tree.
_TREE_BATCHES = 1024


@dataclass(frozen=True)
class LinearSchedule:
    """A value that changes linearly from one number to another, and then stays.

    Parameters
    ----------
    start
        The value at the first batch.
    stop
        The value from batch `steps` on.
    steps
        After how many batches `stop` is reached.

    Examples
    --------
    >>> sampler = PrioritizedSampler(beta=LinearSchedule(0.4, 1.0, 100_000))
    """

    start: float
    stop: float
    steps: int

    def __call__(self, batch: int) -> float:
        done = min(batch / self.steps, 1.0) if self.steps > 0 else 1.0
        return self.start + (self.stop - self.start) * done


class PrioritizedSampler(IndexSampler):
    """Index i with a probability in proportion to (priority + eps) ** alpha.

    The sampler follows the numbers of the samples in the source whenever it draws, so any process may write: new
    samples get the default priority, and overwritten samples are forgotten. Removing samples from the middle moves the
    others: priorities then stay with the indices, not with the samples.

    `info` has for each index its `weight`, (count * probability) ** -beta over the largest in the batch, which corrects
    the bias in a loss, and the `number` of the sample, for `update_priority_of`.

    Parameters
    ----------
    alpha
        The exponent of priorities, or a schedule: a function of how many batches were drawn. A priority keeps the alpha
        of the moment when it was given.
    beta
        The exponent of the weights, or a schedule.
    eps
        Added to every priority.
    default_priority
        The priority of new samples, by default the highest that was ever given, 1 at first, so that each is drawn soon.
    seed
        A seed, or a NumPy generator to draw with.

    Raises
    ------
    ValueError
        A number is negative or not finite. When drawing: there are no samples.

    Examples
    --------
    >>> priorities = PrioritizedSampler(seed=0)
    >>> sampler = StepSampler(buffer, 256, sampler=priorities)
    >>> batch, metadata = sampler.sample_with_metadata()
    >>> priorities.update_priority(metadata["index"], np.ones(256))
    """

    def __init__(
        self,
        alpha: float | Schedule = 0.6,
        beta: float | Schedule = 0.4,
        eps: float = 1e-8,
        default_priority: float | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(seed)
        if not (np.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps is {eps}, it must be a number that is not negative")
        self._alpha, self._beta, self.eps = _scheduled("alpha", alpha), _scheduled("beta", beta), float(eps)
        self.default_priority = None if default_priority is None else float(default_priority)
        self._batches = 0
        self._highest = 0.0  # of the priorities that were given
        self._forget()

    def _forget(self) -> None:
        """Forget every sample."""
        self._numbers = range(0)
        self._draws = WeightedDraws(_FEWEST_SLOTS)

    @property
    def alpha(self) -> float:
        """The exponent of priorities that are given now."""
        return self._alpha(self._batches)

    @property
    def beta(self) -> float:
        """The exponent of the weights of the next batch."""
        return self._beta(self._batches)

    def info_fields(self) -> dict[str, np.dtype]:
        return {"weight": np.dtype(np.float32), "number": np.dtype(np.int64)}

    def sample(self, source: Source, batch_size: int) -> IndexBatch:
        batch_size = parse_batch_size(batch_size)
        self._follow(numbers_of(source))
        numbers = self._numbers
        if not numbers:
            raise nothing_to_draw_from()
        index, weights = self._draws.draw(self.rng, numbers, batch_size)
        importance = (weights.min() / weights) ** self.beta  # (count * probability) ** -beta over the largest of them
        self._batches += 1
        return IndexBatch(index, {"weight": importance.astype(np.float32), "number": index + numbers.start})

    def update_priority(self, index: Any, priority: Any) -> None:
        """Give samples new priorities; where a sample comes more than once, the last priority counts.

        If other batches were drawn since, or in advance, use `update_priority_of`.

        Parameters
        ----------
        index
            The samples, by their index when the last batch was drawn.
        priority
            One for each sample, or one for all.

        Raises
        ------
        IndexError
            An index is out of range.
        ValueError
            A priority is negative, not finite, or too large for alpha.
        """
        index = np.asarray(index, np.int64)
        # read as unsigned, a negative number is larger than every length
        if index.size and index.view(np.uint64).max() >= len(self._numbers):
            raise IndexError(f"index {index.min()} to {index.max()}, there were {len(self._numbers)} samples")
        self._set_priority(index + self._numbers.start, priority)

    def update_priority_of(self, number: Any, priority: Any) -> None:
        """`update_priority` by the `number` in `info`; samples that were dropped are passed over."""
        number, numbers = np.asarray(number, np.int64), self._numbers
        priority = np.broadcast_to(np.asarray(priority, np.float64), number.shape)
        there = (number >= numbers.start) & (number < numbers.stop)
        self._set_priority(number[there], priority[there])

    def _set_priority(self, number: np.ndarray, priority: Any) -> None:
        weights, highest = self._weights(np.asarray(priority, np.float64))
        if number.size:
            slots = (number & (self._draws.size - 1)).reshape(-1)
            self._highest = max(self._highest, highest)
            self._draws.set(slots, weights.reshape(-1) if weights.ndim else weights)

    def _weights(self, priority: np.ndarray) -> tuple[np.ndarray, float]:
        """The weights of priorities, and the highest priority; a ValueError if one is no finite number >= 0."""
        if not priority.size:
            return priority, 0.0
        highest = float(priority.max())
        if not (priority.min() >= 0 and highest < np.inf):  # a NaN is not >= 0
            raise ValueError(f"priorities from {priority.min()} to {highest}, they must be finite and >= 0")
        alpha = self.alpha
        if highest > 1 and alpha * np.log2(highest + self.eps) > np.log2(LARGEST_WEIGHT):
            raise ValueError(f"a priority of {highest} with alpha {alpha} is too large: scale them down")
        weights: np.ndarray = (priority + self.eps) ** alpha
        return weights, highest

    def _follow(self, numbers: range) -> None:
        """Give weights to the samples that were added since the last batch, and take those of dropped samples."""
        known = self._numbers
        if numbers == known:
            return
        if numbers.start < known.start:
            # not the samples that were there: another source, or one that was made anew
            self._forget()
            known = self._numbers
        kept = range(max(known.start, numbers.start), max(min(known.stop, numbers.stop), numbers.start))
        _set_weights(self._draws, range(known.start, min(kept.start, known.stop)), 0.0)
        _set_weights(self._draws, range(max(kept.stop, known.start), known.stop), 0.0)
        self._numbers = kept
        if len(numbers) > self._draws.size:
            self._grow(len(numbers))
        priority = self.default_priority
        if priority is None:
            priority = self._highest or 1.0
        _set_weights(self._draws, range(kept.stop, numbers.stop), float(self._weights(np.array([priority]))[0][0]))
        self._numbers = numbers

    def _grow(self, count: int) -> None:
        weights = self._known_weights()
        old, self._draws = self._draws, WeightedDraws(1 << (count - 1).bit_length())
        _set_weights(self._draws, self._numbers, weights)
        self._draws.load_state_dict(old.state_dict())

    def _known_weights(self) -> np.ndarray:
        """The weights of the known samples, oldest first."""
        numbers = np.arange(self._numbers.start, self._numbers.stop)
        return self._draws.get(numbers & (self._draws.size - 1))

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, priorities included, for `load_state_dict`."""
        return {
            **super().state_dict(),
            "batches": self._batches,
            "highest_priority": self._highest,
            "first_number": self._numbers.start,
            "weights": self._known_weights(),
            "draws": self._draws.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_kind(state)
        weights, first = np.asarray(state["weights"], np.float64), int(state["first_number"])
        if weights.ndim != 1 or not (np.isfinite(weights) & (weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise ValueError("the weights in the state are not a list of finite numbers >= 0")
        numbers = range(first, first + len(weights))
        draws = WeightedDraws(max(_FEWEST_SLOTS, 1 << max(len(weights) - 1, 1).bit_length()))
        _set_weights(draws, numbers, weights)
        draws.load_state_dict(state["draws"])
        super().load_state_dict(state)
        self._batches, self._highest = int(state["batches"]), float(state["highest_priority"])
        self._numbers, self._draws = numbers, draws


def _set_weights(draws: WeightedDraws, numbers: range, weights: float | np.ndarray) -> None:
    """Set the weights of a range of samples, whose slots may wrap."""
    start = numbers.start & (draws.size - 1)
    first = min(len(numbers), draws.size - start)
    parts = (weights[:first], weights[first:]) if isinstance(weights, np.ndarray) else (weights, weights)
    draws.set_range(start, start + first, parts[0])
    if first < len(numbers):
        draws.set_range(0, len(numbers) - first, parts[1])


def _scheduled(name: str, value: float | Schedule) -> Schedule:
    if callable(value):
        return value
    if not (np.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}, it must be a number that is not negative")
    return LinearSchedule(value, value, 1)


# -- draws in proportion to weights ------------------------------------------------------------------------


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
        """Indices into `numbers`, each with a probability in proportion to its weight, never zero; and their weights.

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
        indices, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        return indices, weights

    def _draw_by_trial(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Up to `count` draws."""
        tries = int(1.1 * count / self._share) + 16
        indices = uniform_indices(rng, len(numbers), tries)
        weights = self._tree.get((indices + numbers.start) & (self.size - 1))
        kept = (weights > rng.random(tries) * self._largest).nonzero()[0]
        self._share = (self._share + len(kept) / tries) / 2
        kept = kept[:count]
        return indices.take(kept), weights.take(kept)

    def _draw_by_tree(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        slots = self._tree.draw(rng.random(count))
        self._tree_batches += 1
        if self._tree_batches % _TREE_BATCHES == 0:
            self._largest = self._tree.largest()
        self._share = min(1.0, self._tree.total() / (len(numbers) * self._largest))
        return (slots - numbers.start) & (self.size - 1), self._tree.get(slots)

    def state_dict(self) -> dict[str, Any]:
        """The state of the next draws, without the weights and the generator."""
        return {"largest": self._largest, "share": self._share, "tree_batches": self._tree_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw as the one that gave this state would, once the weights are the same."""
        largest, share = float(state["largest"]), float(state["share"])
        if not (largest >= self._largest and 0 <= share <= 1):
            raise ValueError(f"the state has a largest weight of {largest} and a share of {share}: that cannot be")
        self._largest, self._share, self._tree_batches = largest, share, int(state["tree_batches"])
