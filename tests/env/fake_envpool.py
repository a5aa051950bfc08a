"""As much of EnvPool as `FromEnvPool` uses, built like it: a spec with a config, a pool made of the spec.

A pool restarts a slot by itself in the step after its end, and its reset returns the rows of the slots asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np


class FakeConfig(NamedTuple):
    num_envs: int = 1
    batch_size: int = 0
    max_num_players: int = 1
    seed: int = 42
    env_seed: list[int] = []  # noqa: RUF012 - as EnvPool has it
    max_episode_steps: int = 5


class FakeSpec:
    def __init__(self, config: tuple[Any, ...]) -> None:
        self.config = FakeConfig(*config)


class FakePool:
    """Observations are (where the episode began, its steps)."""

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    _render_mode: str | None = None

    def __init__(self, spec: FakeSpec) -> None:
        self.spec = spec
        count, seed = spec.config.num_envs, spec.config.seed
        self.observation_space = self.single_observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = self.single_action_space = gymnasium.spaces.Discrete(2)
        self.rngs = [np.random.default_rng(seed + slot) for slot in range(count)]
        self.state = np.zeros((count, 2), np.float32)
        self.done = np.zeros(count, bool)

    @property
    def config(self) -> dict[str, Any]:
        return self.spec.config._asdict()

    @property
    def is_async(self) -> bool:
        return 0 < self.spec.config.batch_size != self.spec.config.num_envs

    @property
    def render_mode(self) -> str | None:
        return self._render_mode

    def reset(self, env_id: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        slots = np.arange(len(self.done), dtype=np.int32) if env_id is None else env_id
        assert slots.dtype == np.int32
        for slot in slots:
            self.state[slot] = self.rngs[slot].random(), 0
            self.done[slot] = False
        return self.state[slots], self._info(slots)

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        assert set(np.unique(action)) <= {0, 1}
        restarted = self.done.copy()
        self.state[~restarted, 1] += 1
        if restarted.any():
            self.reset(np.flatnonzero(restarted).astype(np.int32))
        self.done = self.state[:, 1] >= self.spec.config.max_episode_steps
        reward = np.where(restarted, 0, action + 1).astype(np.float32)
        truncated = self.done.copy()
        every = np.arange(len(self.done), dtype=np.int32)
        return self.state.copy(), reward, np.zeros_like(truncated), truncated, self._info(every)

    def render(self, env_ids: np.ndarray) -> np.ndarray:
        return np.zeros((len(env_ids), 4, 4, 3), np.uint8)

    def close(self) -> None:
        pass

    def _info(self, slots: np.ndarray) -> dict[str, Any]:
        return {"env_id": slots.copy(), "elapsed_step": self.state[slots, 1].astype(np.int32)}


def make(task: str, env_type: str, render_mode: str | None = None, **config: Any) -> FakePool:
    made = FakePool(FakeSpec(tuple(FakeConfig(**config))))
    if render_mode is not None:
        made._render_mode = render_mode
    return made
