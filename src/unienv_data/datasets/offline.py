"""Methods of recorded datasets for offline RL: returns, derived columns, selection of episodes, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ._batch_storage import BatchStorage
from ._episodes import EpisodeRows
from ._storage import COPY_BYTES
from .tensordicts import Key, TensorDict, flat_items, from_columns, key_of, torch

if TYPE_CHECKING:
    from typing_extensions import Self

_REWARD: Key = ("next", "reward")


class EpisodeSummary(NamedTuple):
    """An episode of a dataset.

    Attributes
    ----------
    number
        The number of the episode in the dataset.
    start, stop
        Its steps [start, stop) in the replay.
    total_return
        The sum of its rewards.
    terminated, truncated
        How it ended.

    Examples
    --------
    >>> EpisodeSummary(number=3, start=40, stop=47, total_return=7.0, terminated=True, truncated=False).total_return
    7.0
    """

    number: int
    start: int
    stop: int
    total_return: float
    terminated: bool
    truncated: bool


class OfflineMethods:
    """Methods of a replay over recorded episodes.

    Returns, columns and statistics are computed from the entries of the replay, with entries that were set. Columns are
    kept in memory.
    """

    _rows: EpisodeRows
    _steps: BatchStorage

    @property
    def metadata(self) -> dict[str, Any]:
        raise NotImplementedError

    def select_episodes(self, chosen: Any, *, sampler: Any = None) -> Self:
        raise NotImplementedError

    # -- returns ---------------------------------------------------------------------------------------------

    def episodes(self) -> list[EpisodeSummary]:
        """Summarise every episode, in order."""
        flags = self._rows.read_flags(np.maximum(self._rows.ends - 1, 0))
        starts, ends = self._rows.starts, self._rows.ends
        flags = np.where(ends > starts, flags, 0)
        returns = self.episode_returns().tolist()
        return [
            EpisodeSummary(int(number), int(start), int(end), total, bool(flag & 1), bool(flag & 2))
            for number, start, end, total, flag in zip(self._rows.ids, starts, ends, returns, flags, strict=True)
        ]

    def episode_returns(self) -> torch.Tensor:
        """Sum the rewards of every episode, without discount, as float64."""
        totals = np.concatenate(([0.0], np.cumsum(self._rewards())))
        return torch.from_numpy(totals[self._rows.ends] - totals[self._rows.starts])

    def normalized_score(self, returns: Any) -> torch.Tensor:
        """Scale returns so that 0 is the dataset's lower reference score, and 1 the upper reference score.

        Parameters
        ----------
        returns
            Returns without discount, a number or an array.

        Raises
        ------
        ValueError
            If the dataset has no reference scores.

        Examples
        --------
        >>> data.normalized_score(data.episode_returns()).mean()  # doctest: +SKIP
        """
        low, high = self.metadata.get("ref_min_score"), self.metadata.get("ref_max_score")
        if low is None or high is None or low == high:
            raise ValueError(
                f"the dataset's reference scores are {low} and {high}, a normalised score needs two different ones: "
                f"ref_min_score and ref_max_score in its metadata"
            )
        return (torch.as_tensor(returns, dtype=torch.float64) - low) / (high - low)

    def _rewards(self) -> np.ndarray:
        rewards = self._steps.get_column(_REWARD, np.arange(len(self._steps)))
        return rewards.to(torch.float64).numpy().reshape(-1)

    # -- columns ---------------------------------------------------------------------------------------------

    def add_return_to_go(self, discount: float = 1.0, *, key: Any = "return_to_go") -> Self:
        """Add the discounted sum of the rewards from each step to the end of its trajectory, of shape [., 1].

        Parameters
        ----------
        discount
            The factor of a reward for each step that it comes later.
        key
            The entry to add or set.
        """
        _check_discount(discount)
        ends = self._rows.trajectory_ends()
        starts = np.concatenate(([0], ends[:-1]))
        returns = self._rewards()
        for back in range(1, int((ends - starts).max())):  # one step of all trajectories at a time
            steps = ends[ends - starts > back] - 1 - back
            returns[steps] += discount * returns[steps + 1]
        self._set_column(key_of(key), torch.from_numpy(returns)[:, None])
        return self

    def add_n_step(self, n: int, discount: float, *, key: Any = "n_step", observations: bool = True) -> Self:
        """Add n-step returns: the result of each step and up to `n` - 1 steps behind it in its trajectory.

        The entries under `key` are `reward` (the discounted sum), `terminated` and `truncated` (of the last step),
        `discount` (the factor of the value after the last step, 0 if that was terminated), each of shape [., 1],
        `steps` (their number), and `observation` (after the last step).

        Parameters
        ----------
        n
            The largest number of steps.
        discount
            The factor of a reward for each step that it comes later.
        key
            The group to add.
        observations
            Whether `observation` is added, which takes as much memory as the observations.
        """
        _check_discount(discount)
        if n < 1:
            raise ValueError(f"n is {n}, it must be at least 1")
        rewards, ends = self._rewards(), self._rows.trajectory_ends()
        steps = np.arange(len(rewards))
        remaining = ends[np.searchsorted(ends, steps, "right")] - steps
        count = np.minimum(n, remaining)
        total = rewards.copy()
        for ahead in range(1, min(n, int(remaining.max()))):
            inside = np.flatnonzero(remaining > ahead)
            total[inside] += discount**ahead * rewards[inside + ahead]
        last = steps + count - 1
        terminated = self._steps.get_column(("next", "terminated"), last)
        after = torch.from_numpy(discount ** count.astype(np.float64))[:, None] * ~terminated
        columns: dict[Key, torch.Tensor] = {
            ("reward",): torch.from_numpy(total)[:, None],
            ("terminated",): terminated,
            ("truncated",): self._steps.get_column(("next", "truncated"), last),
            ("discount",): after,
            ("steps",): torch.from_numpy(count),
        }
        if observations:
            for entry in self._steps.entries():
                if entry[:2] == ("next", "observation"):
                    columns[entry[1:]] = self._steps.get_column(entry, last)
        for path, column in columns.items():
            self._set_column((*key_of(key), *path), column)
        return self

    def _set_column(self, key: Key, column: torch.Tensor) -> None:
        raise NotImplementedError

    # -- selecting episodes ----------------------------------------------------------------------------------

    def filter_episodes(self, condition: Callable[[EpisodeSummary], bool], *, sampler: Any = None) -> Self:
        """Make a replay of the episodes whose summary satisfies a condition."""
        chosen = [number for number, episode in enumerate(self.episodes()) if condition(episode)]
        return self.select_episodes(chosen, sampler=sampler)

    def filter_by_return(
        self,
        minimum: float = -math.inf,
        maximum: float = math.inf,
        *,
        top: float | None = None,
        sampler: Any = None,
    ) -> Self:
        """Make a replay of the episodes with these returns.

        Parameters
        ----------
        minimum, maximum
            The bounds of the return, both inclusive.
        top
            The share of the episodes with the highest returns to keep: 0.1 for a tenth, rounded up.
        sampler
            The sampler of the new replay; `RandomSampler()` by default.
        """
        returns = self.episode_returns().numpy()
        is_chosen = (returns >= minimum) & (returns <= maximum)
        if top is not None:
            if not 0 < top <= 1:
                raise ValueError(f"top is {top}, wanted a share of the episodes, more than 0 and at most 1")
            best = np.argsort(-returns, kind="stable")[: math.ceil(top * len(returns))]
            is_chosen &= np.isin(np.arange(len(returns)), best)
        return self.select_episodes(np.flatnonzero(is_chosen), sampler=sampler)

    def split_episodes(self, fractions: Sequence[float], *, seed: int = 0) -> list[Self]:
        """Split the dataset at random into replays without common episodes.

        Parameters
        ----------
        fractions
            The share of the episodes in each replay; the sum must be 1.
        seed
            The same seed gives the same split.

        Examples
        --------
        >>> train, validation = data.split_episodes([0.9, 0.1])  # doctest: +SKIP
        """
        if isinstance(fractions, (str, Mapping)):
            raise TypeError(f"fractions is a {type(fractions).__name__}, wanted a list of numbers, such as [0.9, 0.1]")
        if not fractions or min(fractions) <= 0 or not math.isclose(sum(fractions), 1):
            raise ValueError(f"fractions are {list(fractions)}, wanted positive numbers with the sum 1")
        order = np.random.default_rng(seed).permutation(len(self._rows.ends))
        bounds = np.rint(np.cumsum(fractions)[:-1] * len(order)).astype(int)
        splits = np.split(order, bounds)
        if not all(map(len, splits)):
            raise ValueError(f"{len(order)} episodes are too few for shares of {list(fractions)}: a share is empty")
        return [self.select_episodes(np.sort(chosen)) for chosen in splits]

    # -- statistics ------------------------------------------------------------------------------------------

    def statistics(self, keys: Sequence[Any] | None = None) -> TensorDict:
        """Compute the statistics of entries over all steps, for normalisation.

        Parameters
        ----------
        keys
            The entries, or groups of entries; by default all numbers except `episode`.

        Returns
        -------
        TensorDict
            Under the key of each entry `mean`, `std`, `min`, `max` in float64, and `count`. Missing values (NaN) are
            left out; without a single value, the others are NaN.
        """
        first = flat_items(self._steps.get(np.zeros(1, np.int64)))
        numbers = [key for key, value in first.items() if value.dtype != torch.bool and not value.dtype.is_complex]
        if keys is None:
            chosen = [key for key in numbers if key != ("episode",)]
        else:
            prefixes = [key_of(key) for key in keys]
            chosen = [key for key in numbers if any(key[: len(prefix)] == prefix for prefix in prefixes)]
            for prefix in prefixes:
                if not any(key[: len(prefix)] == prefix for key in chosen):
                    raise KeyError(f"there are no numbers under {prefix}, there are {sorted(numbers)}")
        columns: dict[Key, torch.Tensor] = {}
        for key in chosen:
            figures = _statistics(self._chunks(key, first[key]))
            columns |= {(*key, name): torch.from_numpy(np.asarray(value)) for name, value in figures.items()}
        return from_columns(columns, torch.Size([]))

    def _chunks(self, key: Key, sample: torch.Tensor) -> Iterator[np.ndarray]:
        size = max(1, COPY_BYTES // max(1, 8 * sample.numel()))
        for start in range(0, len(self._steps), size):
            index = np.arange(start, min(start + size, len(self._steps)))
            yield self._steps.get_column(key, index).to(torch.float64).numpy()

    # -- the environment -------------------------------------------------------------------------------------

    def recover_environment(self, eval_env: bool = False, **kwargs: Any) -> Any:
        """Make the Gymnasium environment that the dataset was recorded in.

        This runs code that the dataset names: call it only for datasets that you trust.

        Parameters
        ----------
        eval_env
            Whether the environment for evaluation is made, if the dataset names one.
        kwargs
            Further arguments of `gymnasium.make`.

        Raises
        ------
        ValueError
            If the dataset names no environment.
        """
        gymnasium = need("gymnasium", extra="gymnasium")
        spec = (self.metadata.get("eval_env_spec") if eval_env else None) or self.metadata.get("env_spec")
        if spec is None:
            raise ValueError("the dataset names no environment (env_spec): make the environment yourself")
        spec = gymnasium.envs.registration.EnvSpec.from_json(spec)
        try:
            return gymnasium.make(spec, **kwargs)
        except (ImportError, gymnasium.error.Error) as error:
            wanted = ", ".join(self.metadata.get("requirements") or ()) or "nothing"
            raise RuntimeError(f"{spec.id!r} cannot be made: {error}. The dataset requires: {wanted}") from error


def _check_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount}, wanted a number from 0 to 1")


def _statistics(chunks: Iterator[np.ndarray]) -> dict[str, Any]:
    """Compute mean, standard deviation and bounds over several arrays, without NaN."""
    count: Any = 0
    mean: Any = 0.0
    squares: Any = 0.0  # the sum of the squared deviations
    low, high = np.inf, -np.inf
    for values in chunks:
        is_number = ~np.isnan(values)
        added = is_number.sum(0)
        chunk_mean = np.where(is_number, values, 0).sum(0) / np.maximum(added, 1)
        chunk_squares = np.where(is_number, (values - chunk_mean) ** 2, 0).sum(0)
        total = count + added
        share = added / np.maximum(total, 1)
        squares = squares + chunk_squares + (chunk_mean - mean) ** 2 * count * share
        mean = mean + (chunk_mean - mean) * share
        low = np.minimum(low, np.where(is_number, values, np.inf).min(0))
        high = np.maximum(high, np.where(is_number, values, -np.inf).max(0))
        count = total
    is_empty = count == 0
    figures = {"mean": mean, "std": np.sqrt(squares / np.maximum(count, 1)), "min": low, "max": high}
    return {**{name: np.where(is_empty, np.nan, value) for name, value in figures.items()}, "count": count}
