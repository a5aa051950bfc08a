"""`EpisodeStatisticsWrapper`: returns, lengths and durations of episodes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..env_base.env import Env, parse_mask
from ..env_base.wrapper import Wrapper
from .autoreset import autoreset_mode, ended_slots


class EpisodeStatisticsWrapper(Wrapper):
    """Adds the return, length and duration of an episode to the infos of the step that ends it.

    ``info["episode"]`` is ``{"r": return, "l": steps, "t": seconds}``. In a batch these are arrays with 0 for slots
    that have not ended, and ``info["_episode"]`` is the mask of the ended slots, as in Gymnasium's
    `RecordEpisodeStatistics`. An AutoresetWrapper may be below or above this wrapper; if it is above, in the mode
    ``"same_step"``, the statistics are in ``final_info``.

    Parameters
    ----------
    env
        The environment, single or batched.
    buffer_length
        The number of episodes that the queues hold.
    stats_key
        The key of the infos, instead of ``"episode"``.
    clock
        A function that returns monotonic seconds.

    Attributes
    ----------
    episode_count : int
        The number of ended episodes.
    return_queue, length_queue, time_queue : deque
        Return, steps and seconds of the last episodes.

    Examples
    --------
    >>> statistics = EpisodeStatisticsWrapper(envs)
    >>> env = AutoresetWrapper(statistics)
    >>> _ = env.reset()
    >>> for _ in range(100):
    ...     *_, info = env.step(env.sample_action())
    >>> mean_return = np.mean(statistics.return_queue)
    """

    def __init__(
        self,
        env: Env,
        buffer_length: int = 100,
        stats_key: str = "episode",
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(env)
        self.stats_key = stats_key
        self.episode_count = 0
        self.return_queue: deque[float] = deque(maxlen=buffer_length)
        self.length_queue: deque[int] = deque(maxlen=buffer_length)
        self.time_queue: deque[float] = deque(maxlen=buffer_length)
        self._clock = clock
        self._mode = autoreset_mode(env)
        slots = 1 if env.batch_size is None else env.batch_size
        self._returns, self._lengths = np.zeros(slots), np.zeros(slots, np.int64)
        self._starts, self._ended = np.full(slots, clock()), np.zeros(slots, bool)

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        slots = slice(None) if mask is None else parse_mask(mask, self.batch_size, self.backend)
        result = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._begin(slots)
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        rewards = self.backend.to_host(reward) if self.backend.is_backendarray(reward) else np.asarray(reward)
        self._returns += rewards.astype(np.float64)
        self._lengths += 1
        if self._mode == "next_step" and self._ended.any():
            self._begin(self._ended)  # this step has reset these slots
        self._ended = ended_slots(self, terminated, truncated)
        if self._ended.any():
            info = self._finish(info, self._ended)
            if self._mode == "same_step":
                self._begin(self._ended.copy())
        return observation, reward, terminated, truncated, info

    def _begin(self, slots: Any) -> None:
        self._returns[slots], self._lengths[slots] = 0.0, 0
        self._starts[slots], self._ended[slots] = self._clock(), False

    def _finish(self, info: dict[str, Any], ended: np.ndarray) -> dict[str, Any]:
        """Add the statistics of the ended slots to the infos and the queues."""
        if self.stats_key in info or f"_{self.stats_key}" in info:
            raise ValueError(f"the infos have a key {self.stats_key!r} already: pass another stats_key")
        seconds = np.round(self._clock() - self._starts, 6)
        self.episode_count += int(ended.sum())
        self.return_queue.extend(self._returns[ended].tolist())
        self.length_queue.extend(self._lengths[ended].tolist())
        self.time_queue.extend(seconds[ended].tolist())
        columns = {"r": self._returns, "l": self._lengths, "t": seconds}
        if self.batch_size is None:
            return {**info, self.stats_key: {name: column[0].item() for name, column in columns.items()}}
        stats = {name: self._native(np.where(ended, column, 0)) for name, column in columns.items()}
        return {**info, self.stats_key: stats, f"_{self.stats_key}": self._native(ended)}

    def _native(self, column: np.ndarray) -> Any:
        dtype = self.backend.dtype_from_name(column.dtype.name)
        return self.backend.from_host(column, dtype, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """The state of the queues and of the current episodes, as lists, NumPy arrays and numbers."""
        return {
            "episode_count": self.episode_count,
            "return_queue": list(self.return_queue),
            "length_queue": list(self.length_queue),
            "time_queue": list(self.time_queue),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "seconds": self._clock() - self._starts,
            "ended": self._ended.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`. With another batch size, only the queues are restored: then reset all slots."""
        self.episode_count = int(state["episode_count"])
        for name in ("return_queue", "length_queue", "time_queue"):
            queue: deque[Any] = getattr(self, name)
            queue.clear()
            queue.extend(state[name])
        if np.shape(state["returns"]) == self._returns.shape:
            self._returns, self._lengths = np.array(state["returns"]), np.array(state["lengths"])
            self._starts, self._ended = self._clock() - np.array(state["seconds"]), np.array(state["ended"])
