"""A user's program, in types: an environment, a batch and a storage of their own, and what is done with them.

`test_types.py` has mypy read it. Lines that end in "# wrong" hold a mistake that it must find, and no other line may.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import unienv
from unienv_data import (
    BatchBase,
    CombinedBatch,
    FrameStackedBatch,
    MultiprocessingSampler,
    NStepBatch,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    SpaceStorage,
    StepSampler,
    transition_space,
)
from unienv_data.samplers import PrioritizedSampler
from unienv_interface import AsyncVecEnv, Env, SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, Space
from unienv_interface.wrapper import FrameStackWrapper, TimeLimitWrapper

if TYPE_CHECKING:
    import unienv_data


class Walk(Env):
    """A walk on a line that ends at distance five."""

    def __init__(self) -> None:
        self.backend = NumpyComputeBackend
        self.action_space = BoxSpace("numpy", -1.0, 1.0, np.float32, shape=())
        self.observation_space = BoxSpace("numpy", -np.inf, np.inf, np.float32, shape=(1,))
        self.place = np.zeros(1, np.float32)

    def reset(
        self, *, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[None, np.ndarray, dict[str, Any]]:
        self.rng = np.random.default_rng(seed)
        self.place = np.zeros(1, np.float32)
        return None, self.place.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place = self.place + action
        return self.place.copy(), -abs(float(self.place[0])), bool(abs(self.place[0]) > 5), False, {}

    def render(self) -> None:
        return None


class Squares(BatchBase):
    """The squares of the numbers below a thousand."""

    is_mutable = False

    def __init__(self) -> None:
        super().__init__(BoxSpace("numpy", 0, 1e6, np.float32, shape=(1,)))

    def __len__(self) -> int:
        return 1000

    def get_at(self, idx: Any) -> np.ndarray:
        squares = np.arange(1000, dtype=np.float32)[:, None] ** 2
        return np.asarray(squares[idx])


class InMemory(SpaceStorage):
    """Samples as one array."""

    def __init__(self, space: Space, array: np.ndarray) -> None:
        super().__init__(space)
        self.array, self.capacity = array, len(array)

    @classmethod
    def create(
        cls,
        single_instance_space: Space,
        *args: Any,
        capacity: int | None,
        cache_path: str | os.PathLike[str] | None = None,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> InMemory:
        return cls(single_instance_space, np.zeros((capacity or 1, *(single_instance_space.shape or ())), np.float32))

    @classmethod
    def load_from(
        cls,
        path: str | os.PathLike[str],
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> InMemory:
        return cls(single_instance_space, np.load(path))

    def __len__(self) -> int:
        return len(self.array)

    def get(self, index: Any) -> np.ndarray:
        return np.array(self.array[index])

    def set(self, index: Any, value: np.ndarray) -> None:
        self.array[index] = value

    def dumps(self, path: str | os.PathLike[str]) -> None:
        np.save(path, self.array)


def main(folder: Path) -> None:
    envs = SyncVecEnv([Walk] * 4, seed=0)
    buffer = ReplayBuffer.create(transition_space(envs), capacity=4_000, cache_path=folder / "walk", lanes=4)
    recorder = ReplayBufferCollectionWrapper(envs, buffer)
    recorder.reset(seed=0)
    for _ in range(100):
        _, _, terminated, truncated, _ = recorder.step(recorder.sample_action())
        if (terminated | truncated).any():
            recorder.reset(mask=terminated | truncated)
    batch = StepSampler(buffer, batch_size=8, seed=0, sampler=PrioritizedSampler(alpha=0.6)).sample()
    windows = StepSampler(FrameStackedBatch(buffer, prefetch_horizon=1, postfetch_horizon=2), 8, seed=0)
    frames, metadata = windows.sample_with_metadata()
    mask = (metadata or {})["slice_valid_mask"]
    print(batch["obs"].shape, frames["obs"].shape, mask.shape, len(buffer), buffer.get_segments())
    buffer.close()
    squares = StepSampler(Squares(), 16, seed=0).sample()
    stored = ReplayBuffer.create(InMemory, BoxSpace("numpy", 0, 1, np.float32, shape=(3,)), capacity=10)
    stored.extend(np.zeros((5, 3), np.float32))
    print(squares.shape, len(stored), FrameStackWrapper(TimeLimitWrapper(Walk(), 10), 2).observation_space)

    with unienv.record(unienv.make(Walk, num_envs=2, seed=0), folder / "short", steps=100) as recording:
        print(recording.steps, len(recording))
    with unienv.load(folder / "short") as data:
        print(data.windows(before=1, after=2).sampler(4, seed=0).sample()["obs"].shape, unienv.info(folder / "short"))


def misspelt() -> None:
    unienv.mak("CartPole-v1")  # wrong
    unienv.make("CartPole-v1", num_env=8)  # wrong
    unienv.make("CartPole-v1", backend="troch")  # wrong
    unienv.record(Walk(), "walk", step=10)  # wrong
    unienv.load("walk", backend="tensorflow")  # wrong
    unienv.load("walk").sampler(batchsize=4)  # wrong
    unienv.load("walk").windows(befor=4)  # wrong
    print(unienv_data.StepSampeler)  # wrong
    StepSampler(Squares(), batch_sz=4)  # wrong
    FrameStackedBatch(Squares(), prefetch=4)  # wrong
    AsyncVecEnv([Walk], workers=4)  # wrong
    ReplayBuffer.load_from("walk", backend="numpi")  # wrong
    print(ReplayBuffer.load_from("walk", backend="numpy").sgements)  # wrong
    BoxSpace("nump", 0, 1, np.float32, shape=())  # wrong


def misused(buffer: ReplayBuffer[dict[str, np.ndarray]], env: Env[np.ndarray, None, np.ndarray, np.ndarray]) -> None:
    """Samples and observations have the types that their buffer and environment are annotated with."""
    for batch in StepSampler(FrameStackedBatch(buffer, 1, 14), 8).epoch_iter():
        print(batch["obs"].shape)
        print(batch["obs"].shpe)  # wrong
        print(batch.obs)  # wrong
    print(MultiprocessingSampler(StepSampler(buffer, 8)).sample().obs)  # wrong
    print(CombinedBatch([buffer, buffer]).get_slice(slice(0, 3)).get_at(0).obs)  # wrong
    print(NStepBatch(buffer, 3, 0.99).get_at(0).obs)  # wrong
    _, observation, _ = env.reset()
    print(observation.shpe)  # wrong
    print(env.sample_action().shpe)  # wrong
