"""The environments that the tests of vector environments run on, and their values as plain data."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from vec_processes import context

from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import (
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    Space,
    TextSpace,
    TupleSpace,
    UnionSpace,
)


class CounterEnv(Env):
    """Counts its steps. The observation is [index, episodes, steps, a number drawn at the reset].

    The reward is the sum of the action, and the info tells the seed of the reset and, now and then, more.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    render_fps = 20

    def __init__(
        self, index: int = 0, *, backend: ComputeBackend = NumpyComputeBackend, bound: float = 1.0, length: int = 10**9
    ) -> None:
        self.backend, self.index, self.length = backend, index, length
        self.action_space = BoxSpace(backend, -bound, bound, "float32", shape=(2,))
        self.observation_space = BoxSpace(backend, -np.inf, np.inf, "float32", shape=(4,))
        self.pid = os.getpid()
        self.episodes = self.steps = 0
        self.drawn = 0.0
        self.seeds: list[int | None] = []

    def observation(self) -> Any:
        values = np.array([self.index, self.episodes, self.steps, self.drawn], np.float32)
        return self.backend.from_numpy(values, copy=True)

    def reset(self, *, mask: Any = None, seed: int | None = None, start: int = 0, **kwargs: Any) -> tuple[Any, ...]:
        self.seeds.append(seed)
        self.episodes += 1
        self.steps = start
        self.drawn = np.random.default_rng(seed).random()
        return None, self.observation(), {"seed": seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info = {"odd": {"index": self.index}} if self.index % 2 else {}
        return self.observation(), float(action.sum()), self.steps >= self.length, False, info

    def render(self) -> Any:
        return np.full((2, 2, 3), self.index, np.uint8) if self.index != 1 else None

    def scaled(self, factor: float, *, offset: float = 0.0) -> float:
        return self.index * factor + offset


def counters(count: int, **kwargs: Any) -> list[Callable[[], CounterEnv]]:
    return [lambda index=index: CounterEnv(index, **kwargs) for index in range(count)]


class SamplingEnv(Env):
    """Observations and contexts are samples of their spaces, drawn from the seed of the reset.

    The reward is a number that hangs on the action, so that an action that is lost on the way is seen.
    """

    def __init__(self, observation_space: Space, action_space: Space, context_space: Space | None = None) -> None:
        self.backend = observation_space.backend
        self.observation_space, self.action_space, self.context_space = observation_space, action_space, context_space
        self.steps = 0

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        self.rng = self.backend.random.random_number_generator(seed)
        self.steps = 0
        return self.sample_context(), self.sample_observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.sample_observation(), weight(action), self.steps % 3 == 0, self.steps % 4 == 0, {}

    def render(self) -> None:
        return None


def weight(value: Any) -> float:
    """A number that hangs on all parts of a value."""
    if isinstance(value, dict):
        return sum((place + 1) * weight(value[key]) for place, key in enumerate(sorted(value)))
    if isinstance(value, (tuple, list)):
        return sum((place + 1) * weight(part) for place, part in enumerate(value))
    if isinstance(value, str):
        return float(sum(map(ord, value)))
    return float(np.asarray(value, dtype=np.float64).sum())


def rich_space(backend: ComputeBackend) -> DictSpace:
    """A leaf of every kind: in the row, in a block of its own (an image of more than a page), in the heap."""
    box = BoxSpace(backend, -1.0, 1.0, "float32", shape=(3,))
    return DictSpace(
        backend,
        {
            "pose": box,
            "camera": {"rgb": BoxSpace(backend, 0, 255, "uint8", shape=(40, 40, 3))},
            "task": TextSpace(backend, 8),
            "points": DynamicBoxSpace(backend, -1.0, 1.0, (0, 2), (5, 2), "float32"),
            "scene": GraphSpace(backend, box, None, min_nodes=1, max_nodes=4, min_edges=0, max_edges=5),
            "either": UnionSpace(backend, [box, TextSpace(backend, 3)]),
            "pair": TupleSpace(backend, [BinarySpace(backend, ()), box]),
        },
    )


# -- vector environments -----------------------------------------------------------------------------------


def make_async(factories: Any, **kwargs: Any) -> AsyncVecEnv:
    """The asynchronous one, on two workers that start fast."""
    return AsyncVecEnv(factories, **{"ctx": context("fork"), "num_workers": 2, **kwargs})


both = pytest.mark.parametrize("make", [SyncVecEnv, make_async], ids=["sync", "async"])


def zeros(count: int) -> np.ndarray:
    """Actions for so many `CounterEnv`."""
    return np.zeros((count, 2), np.float32)


# -- values ------------------------------------------------------------------------------------------------


def frozen(value: Any) -> Any:
    """A value as plain Python data that nobody can change, to be compared."""
    if isinstance(value, dict):
        return {key: frozen(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [frozen(part) for part in value]
    if hasattr(value, "__dataclass_fields__"):  # a graph
        return {name: frozen(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [frozen(part) for part in value.tolist()]
    return value.tolist() if hasattr(value, "tolist") else value


def rows(space: Space, batch: Any) -> list[Any]:
    """The single values of a batch as plain Python data."""
    return [frozen(value) for value in batch_utils.iterate(space, batch)]
