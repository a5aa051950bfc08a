"""A view for hindsight experience replay: transitions whose goals are replaced by goals that were reached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import BinarySpace, Space
from unienv_interface.space.space_utils import get_at
from unienv_interface.space.space_utils.batch_utils import merge_slots
from unienv_interface.space.spaces import ArraySpace

from ..base.common import BatchBase, BatchT
from ..base.epoch_order import scattered
from ..base.nested import Keys, nested_item, path_keys, with_nested_item
from ..base.random_state import fresh_seed
from ..base.windows import Limits, WindowQuery, Windows, merge_axes, split_axis
from ._view import BatchView, check_knows_episodes, positions_below, with_space, with_value
from .nstep_batch import NStepBatch

Strategy = Literal["future", "final", "episode"]
STRATEGIES: tuple[Strategy, ...] = ("future", "final", "episode")

RELABELLED = "relabelled"


class HindsightBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A view for hindsight experience replay, in which most samples get a goal that their episode has reached.

    Of `k + 1` samples `k` are relabelled on average. Relabelling replaces the goal in `obs` and `next_obs` by the
    achieved goal in the `next_obs` of another sample of the episode, and computes the reward again. Other columns,
    `terminated` too, do not change. The view is read-only; the metadata `relabelled` marks the relabelled samples.

    The seed and the indices of a read determine the relabelled samples and their goals. A sampler draws other indices
    for each batch and thus gets other goals, while the same seeds give the same batches with any number of workers. A
    window, also of an `NStepBatch` over this view, has one goal.

    Parameters
    ----------
    batch
        The samples, with dicts of observations; it stays open when the view is closed. It must know its episodes, as a
        replay buffer with `keep_episodes` or with lanes does. An open episode reaches to the newest sample.
    strategy
        The sample of the episode that gives the goal: "future", a random one from the sample on; "final", the last;
        "episode", any random one.
    k
        The number of relabelled samples for each other sample.
    reward
        A function of two batches, the achieved goals and the goals, that returns an array of rewards.
    goal, achieved
        The keys of the goal and of the achieved goal, in `obs` and `next_obs`.
    obs, next_obs, reward_key
        The keys of the observations and of the reward in a sample.
    seed
        The same seed and the same indices give the same goals. By default the seed comes from the system.

    Raises
    ------
    KeyError
        A column is missing.
    ValueError
        The strategy is unknown, `k` is negative, goals and achieved goals have different spaces, or the batch does not
        know its episodes. When reading: the reward function does not return one reward per sample.

    Examples
    --------
    >>> view = HindsightBatch(buffer, reward=lambda achieved, goal: -(np.abs(achieved - goal).max(-1) > 0.05), seed=0)
    >>> sampler = StepSampler(NStepBatch(view, n=3, gamma=0.98), 256, seed=0)
    """

    is_mutable = False

    def __init__(
        self,
        batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        strategy: Strategy = "future",
        k: float = 4,
        *,
        reward: Callable[[Any, Any], Any],
        goal: Keys = "desired_goal",
        achieved: Keys = "achieved_goal",
        obs: Keys = "obs",
        next_obs: Keys = "next_obs",
        reward_key: Keys = "reward",
        seed: int | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}, wanted one of {', '.join(STRATEGIES)}")
        if not 0 <= k < np.inf:
            raise ValueError(f"k is {k}, it must be a number that is not negative")
        if isinstance(batch, NStepBatch):
            raise ValueError(
                "the rewards of several steps cannot be relabelled once they are summed: make the NStepBatch over the "
                "HindsightBatch"
            )
        check_knows_episodes(batch, type(self).__name__)
        space, backend = batch.single_space, batch.backend
        self._reward_key = path_keys(space, reward_key)
        self._achieved = _keys_in(space, next_obs, achieved)
        self._goals = [_keys_in(space, keys, goal) for keys in (obs, next_obs)]
        self._goal_space = nested_item(space, self._achieved)
        for keys in self._goals:
            if not _is_alike(nested_item(space, keys), self._goal_space):
                raise ValueError(
                    f"{'/'.join(map(str, keys))}: {nested_item(space, keys)}, what is achieved is of "
                    f"{self._goal_space}: it can be no goal"
                )
        self._reward_space = nested_item(space, self._reward_key)
        flag = BinarySpace(backend, (), device=batch.device)
        super().__init__(batch, space, with_space(batch.single_metadata_space, space, RELABELLED, flag))
        self.strategy, self.k, self.reward = strategy, float(k), reward
        self._device = batch.device  # cached: a composite space asks all its children
        self.seed = fresh_seed() if seed is None else int(seed)
        self._key = self.seed.to_bytes(32, "little", signed=True)
        self._last_query: tuple[WindowQuery, WindowQuery] | None = None  # of this view, and for the batch

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> BatchT:
        return self._read(idx, with_metadata=False)[0]

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._read(idx, with_metadata=True)

    def _read(self, idx: Any, *, with_metadata: bool) -> tuple[Any, dict[str, Any] | None]:
        index = positions_below(self.batch, idx)
        positions = np.array([index]) if isinstance(index, int) else index

        def read() -> tuple[Any, dict[str, Any] | None]:
            return self.batch.get_at_with_metadata(positions) if with_metadata else (self.batch.get_at(positions), None)

        (data, metadata), goals, chosen = self._read_with_goals(positions, read)
        data = self._relabelled(data, goals, chosen)
        if with_metadata:
            metadata = with_value(metadata or {}, RELABELLED, self._as_flags(chosen))
        if isinstance(index, int):
            data = get_at(self.single_space, data, 0)
            metadata = None if metadata is None else get_at(self.single_metadata_space, metadata, 0)
        return data, metadata

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        last = self._last_query
        if last is None or last[0] is not query:
            last = self._last_query = (query, replace(query, nested_keys=()))
        whole = last[1]
        (data, valid, metadata, padding), goals, chosen = self._read_with_goals(
            positions, lambda: self.batch.read_windows(positions, whole, limits)
        )
        count = valid.shape[1]
        frames = merge_axes(self.backend, data, valid.shape)
        windows = np.repeat(np.arange(len(positions)), count)  # the window of each frame
        chosen = chosen[windows]
        frames = self._relabelled(frames, get_at(self._goal_space, goals, windows), chosen)
        if query.with_metadata:
            metadata = with_value(metadata or {}, RELABELLED, self._as_flags(chosen.reshape(valid.shape)))
        data = split_axis(self.backend, frames, valid.shape)
        return Windows(nested_item(data, query.nested_keys), valid, metadata, padding)

    # -- relabelling -----------------------------------------------------------------------------------------

    def _read_with_goals(self, positions: np.ndarray, read: Callable[[], Any]) -> tuple[Any, Any, np.ndarray]:
        """Read samples; return the result, a goal for each sample, and a mask of the samples to relabel."""
        first = self.batch.sample_numbers.start
        start, stop, stride = self.batch.episode_bounds(positions)
        behind = np.maximum((positions - start) // stride, 0)  # a concurrent writer may have moved positions
        ahead = np.maximum((stop - 1 - positions) // stride, 0)
        chance, fraction = self._random(positions)
        if self.strategy == "future":
            hops = (fraction * (ahead + 1)).astype(np.int64)
        elif self.strategy == "final":
            hops = ahead
        else:
            hops = (fraction * (behind + ahead + 1)).astype(np.int64) - behind
        sources = positions + hops * stride
        chosen = chance < self.k / (self.k + 1)
        samples = read()
        goals = self.batch.get_column_at(self._achieved, sources)
        moved = self.batch.sample_numbers.start - first
        if moved:  # a ring was written meanwhile: samples that may now be of two episodes are not relabelled
            chosen &= np.maximum(positions, sources) + moved < stop
        return samples, goals, chosen

    def _random(self, positions: np.ndarray) -> np.ndarray:
        """Return two numbers from 0 to 1 for each sample, determined by the seed and all positions."""
        digest = hashlib.blake2b(positions.tobytes(), digest_size=8, key=self._key).digest()
        numbers = np.arange(2 * len(positions), dtype=np.uint64) * _GOLDEN + np.frombuffer(digest, np.uint64)
        numbers = scattered(numbers) >> np.uint64(11)
        floats: np.ndarray = numbers.reshape(2, -1) * 2.0**-53
        return floats

    def _relabelled(self, data: Any, goals: Any, chosen: np.ndarray) -> Any:
        """Replace the goals and rewards of the chosen samples."""
        backend = self.backend
        mask = self._as_flags(chosen)
        rewards = self.reward(nested_item(data, self._achieved), goals)
        for keys in self._goals:
            data = with_nested_item(data, keys, merge_slots(self._goal_space, nested_item(data, keys), mask, goals))
        old = nested_item(data, self._reward_key)
        if not backend.is_backendarray(rewards):
            rewards = backend.from_numpy(np.asarray(rewards), device=self._device)
        if tuple(rewards.shape) not in (tuple(old.shape), (len(chosen),)):
            raise ValueError(
                f"the reward function returned an array of shape {tuple(rewards.shape)}, wanted {tuple(old.shape)}: "
                f"one reward for each of the {len(chosen)} samples"
            )
        rewards = backend.reshape(backend.astype(rewards, old.dtype), tuple(old.shape))
        return with_nested_item(data, self._reward_key, merge_slots(self._reward_space, old, mask, rewards))

    def _as_flags(self, flags: np.ndarray) -> Any:
        return self.backend.from_numpy(flags, device=self._device)


#: An odd number with irregular bits, whose multiples are spread evenly.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _keys_in(space: Space, above: Keys, keys: Keys) -> tuple[Any, ...]:
    """Return the keys that lead to a field of the dict under `above`."""
    outer = path_keys(space, above)
    return (*outer, *path_keys(nested_item(space, outer), keys))


def _is_alike(first: Any, second: Any) -> bool:
    """Whether two spaces have the same shape and dtype, with any bounds."""
    if isinstance(first, ArraySpace) and isinstance(second, ArraySpace):
        return tuple(first.shape) == tuple(second.shape) and first.dtype == second.dtype
    return bool(first == second)
