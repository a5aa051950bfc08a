"""An environment of Gymnasium that needs no seeds: all of it follows from its number, the episode and the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

#: For tests that compare with statistics of Gymnasium's vector wrappers.
counts_restarts = pytest.mark.skipif(
    tuple(map(int, gymnasium.__version__.split(".")[:2])) < (1, 4),
    reason="before Gymnasium 1.4, its wrappers count steps that restart an episode wrongly",
)
LENGTHS = (3, 1, 4, 2, 5)  # of the episodes, beginning at another place in each environment


class CountedGymEnv(gymnasium.Env):
    """Observations are (number, episode, step); every other episode is truncated, the others terminate."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, number: int, *, key_at_end: bool = True, nested: bool = True) -> None:
        self.number, self.episode, self.t = number, -1, 0
        self.key_at_end, self.nested = key_at_end, nested

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {"t": 0, "began": self.episode}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        ends = self.t >= LENGTHS[(self.number + self.episode) % len(LENGTHS)]
        assert self.t <= max(LENGTHS), "stepped past the end"
        info: dict[str, Any] = {"t": self.t}
        if self.nested:
            info["where"] = {"place": np.array([self.number, self.t], np.float32)}
        if ends and self.key_at_end:
            info["score"] = float(self.episode)
        reward = 1.0 + self.number + 0.25 * float(np.sum(action))
        is_even = self.episode % 2 == 0
        return self._observe(), reward, ends and is_even, ends and not is_even, info

    def _observe(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)


def makers(count: int, **kwargs: Any) -> list[Callable[[], CountedGymEnv]]:
    return [lambda number=number: CountedGymEnv(number, **kwargs) for number in range(count)]  # type: ignore[misc]


def gym_actions(count: int, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, count, 2)).astype(np.float32)
