"""A sampler that draws in proportion to priorities, with importance weights that correct the bias.

The sampler draws by rejection or by the sum tree, whichever is faster.

Rejection draws slots with equal probability, and keeps a slot with a probability of its weight over the largest weight.
That needs a few NumPy calls over more slots than wanted, and no sums. It is faster while a fair share of the slots is
kept, so for weights that differ little. The sum tree is faster if a few weights outweigh all others. All draws are
independent of each other, so one batch may combine both methods.

The choice depends on earlier draws, so it is part of a sampler's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.random_state import uniform_indices
from ._sum_tree import LARGEST_WEIGHT, SumTree
from .index_sampler import IndexBatch, IndexSampler, Seed, Source, nothing_to_draw_from, numbers_of, parse_batch_size

#: Returns the value for a batch, given the number of batches before it.
Schedule = Callable[[int], float]

_FEWEST_SLOTS = 1024
# The share of kept slots at which rejection and tree take about the same time.
_LEAST_SHARE = 0.1
# The slot of the largest weight may have got a smaller one: it is computed again after this many batches by the tree.
_TREE_BATCHES = 1024


@dataclass(frozen=True)
class LinearSchedule:
    """A value that changes linearly from one number to another, and then stays constant.

    Parameters
    ----------
    start
        The value at the first batch.
    stop
        The value from batch `steps` on.
    steps
        The number of batches until `stop` is reached.

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
    """Draws index i with a probability in proportion to (priority + eps) ** alpha.

    The sampler compares the sample numbers of the source before every draw, so any process may write: new samples get
    the default priority, and overwritten samples lose theirs. Removing samples from the middle moves later samples to
    other indices: priorities then stay with the indices, not with the samples.

    `info` has two columns: `weight`, (count * probability) ** -beta divided by the largest in the batch, which corrects
    the bias in a loss, and the `number` of each sample, for `update_priority_of`.

    Parameters
    ----------
    alpha
        The exponent of priorities, or a schedule: a function of the number of batches drawn. A priority keeps the alpha
        of the time of its update.
    beta
        The exponent of the weights, or a schedule.
    eps
        A constant added to every priority.
    default_priority
        The priority of new samples, by default the highest priority so far (1 at first), so that they are drawn soon.
    seed
        A seed, or a NumPy generator to draw with.

    Raises
    ------
    ValueError
        A number is negative or not finite. When drawing: the source has no samples.

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
        self._highest = 0.0  # the highest priority so far
        self._forget()

    def _forget(self) -> None:
        """Drop the weights of all samples."""
        self._numbers = range(0)
        self._draws = WeightedDraws(_FEWEST_SLOTS)

    @property
    def alpha(self) -> float:
        """The exponent for priorities that are set now."""
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
        importance = (weights.min() / weights) ** self.beta  # (count * probability) ** -beta over the batch's largest
        self._batches += 1
        return IndexBatch(index, {"weight": importance.astype(np.float32), "number": index + numbers.start})

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set the priorities of samples; of a repeated sample, the last priority counts.

        If later batches were drawn, or batches are fetched in advance, use `update_priority_of`.

        Parameters
        ----------
        index
            The indices of the samples at the time of the last draw.
        priority
            One priority for each sample, or one for all.

        Raises
        ------
        IndexError
            An index is out of range.
        ValueError
            A priority is negative, not finite, or too large for alpha.
        """
        index = np.asarray(index, np.int64)
        # as unsigned, a negative number is larger than every length
        if index.size and index.view(np.uint64).max() >= len(self._numbers):
            raise IndexError(
                f"indices from {index.min()} to {index.max()}, the last draw was from {len(self._numbers)} samples"
            )
        self._set_priority(index + self._numbers.start, priority)

    def update_priority_of(self, number: Any, priority: Any) -> None:
        """`update_priority` by the `number` in `info`; samples that were dropped since are ignored."""
        number, numbers = np.asarray(number, np.int64), self._numbers
        priority = np.broadcast_to(np.asarray(priority, np.float64), number.shape)
        is_known = (number >= numbers.start) & (number < numbers.stop)
        self._set_priority(number[is_known], priority[is_known])

    def _set_priority(self, number: np.ndarray, priority: Any) -> None:
        weights, highest = self._weights(np.asarray(priority, np.float64))
        if number.size:
            slots = (number & (self._draws.size - 1)).reshape(-1)
            self._highest = max(self._highest, highest)
            self._draws.set(slots, weights.reshape(-1) if weights.ndim else weights)

    def _weights(self, priority: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the weights of priorities, and the highest priority; a ValueError unless all are finite and >= 0."""
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
        """Set the weights of new samples, and clear the weights of dropped samples."""
        known = self._numbers
        if numbers == known:
            return
        if numbers.start < known.start:
            # numbers never fall in one source, so this is another source
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
        """Return the weights of the known samples, oldest first."""
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
    head, tail = (weights[:first], weights[first:]) if isinstance(weights, np.ndarray) else (weights, weights)
    draws.set_range(start, start + first, head)
    if first < len(numbers):
        draws.set_range(0, len(numbers) - first, tail)


def _scheduled(name: str, value: float | Schedule) -> Schedule:
    if callable(value):
        return value
    if not (np.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}, it must be a number that is not negative")
    return LinearSchedule(value, value, 1)


# -- draws in proportion to weights ------------------------------------------------------------------------


class WeightedDraws:
    """Weights of `size` slots, a power of two, and draws of slots in proportion. Weights are zero at first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._tree = SumTree(size)
        self._largest = 0.0  # no weight is larger
        self._share = 1.0  # the estimated share of kept slots in rejection
        self._tree_batches = 0

    def total(self) -> float:
        return self._tree.total()

    def get(self, slots: np.ndarray) -> np.ndarray:
        return self._tree.get(slots)

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of slots; of a repeated slot, the last weight counts. The tree keeps the array of slots."""
        self._largest = max(self._largest, float(weights.max(initial=0.0)))  # first: no weight is ever larger
        self._tree.set(slots, weights)

    def set_range(self, start: int, stop: int, weights: float | np.ndarray) -> None:
        """Set the weights of slots [start, stop)."""
        self._largest = max(self._largest, float(np.max(weights, initial=0.0)))
        self._tree.set_range(start, stop, weights)

    def draw(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw indices into `numbers` in proportion to their weights, never of weight zero; return both.

        Number n has slot n modulo the size. Slots of other numbers have weight zero.
        """
        draws: list[tuple[np.ndarray, np.ndarray]] = []
        missing = count
        while missing and self._share >= _LEAST_SHARE:
            draws.append(self._draw_by_rejection(rng, numbers, missing))
            missing -= len(draws[-1][0])
        if missing or not draws:
            draws.append(self._draw_by_tree(rng, numbers, missing))
        if len(draws) == 1:
            return draws[0]
        indices, weights = (np.concatenate(column) for column in zip(*draws, strict=True))
        return indices, weights

    def _draw_by_rejection(self, rng: np.random.Generator, numbers: range, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return up to `count` draws."""
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
        """Return the state of the draws, without the weights and the generator."""
        return {"largest": self._largest, "share": self._share, "tree_batches": self._tree_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue like the object that returned the state; the weights must be set before."""
        largest, share = float(state["largest"]), float(state["share"])
        if not (largest >= self._largest and 0 <= share <= 1):
            raise ValueError(
                f"the state has a largest weight of {largest}, wanted at least {self._largest}, and a share of "
                f"{share}, wanted from 0 to 1"
            )
        self._largest, self._share, self._tree_batches = largest, share, int(state["tree_batches"])
