"""Batches of 256 transitions with goals, four of five relabelled with a goal reached later in their episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Contender, Work, ours, peer

from unienv_data import HindsightBatch, ReplayBuffer, StepSampler
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace

from ._data import BATCH, Columns
from ._peers import SB3

# As of a robot arm that reaches: places and speeds, the place of the hand, and where it should be.
SHAPES = {"observation": (25,), "achieved_goal": (3,), "desired_goal": (3,)}
ACTION, EPISODE, K, NEAR = (4,), 50, 4, 0.05
COUNTS = (10_000, 100_000)


def works() -> list[Work]:
    return [
        Work(
            "hindsight",
            f"sample {BATCH} of {count:,}",
            "us",
            (_hindsight(count), _hindsight_numpy(count), _plain(count), _stable_baselines3(count)),
        )
        for count in COUNTS
    ]


def reward_of(achieved: Any, goal: Any, infos: Any = None) -> Any:
    """0 where a goal is reached, else -1: for arrays of any library, as Gymnasium's goal environments compute it."""
    return -1.0 * (((achieved - goal) ** 2).sum(-1) > NEAR**2)


def observations(count: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    return {name: rng.random((count, *shape), dtype=np.float32) for name, shape in SHAPES.items()}


# -- ours --------------------------------------------------------------------------------------------------


def filled_with_goals(count: int, backend: ComputeBackend) -> ReplayBuffer:
    """A buffer of ours that is full of episodes with goals."""
    boxes = {name: BoxSpace(backend, -np.inf, np.inf, "float32", shape=shape) for name, shape in SHAPES.items()}
    action = BoxSpace(backend, -1, 1, "float32", shape=ACTION)
    reward, flag = BoxSpace(backend, -np.inf, np.inf, "float32", shape=()), BinarySpace(backend, ())
    obs = DictSpace(backend, boxes)
    rest = {"action": action, "reward": reward, "terminated": flag, "truncated": flag}
    space = DictSpace(backend, {"obs": obs, "next_obs": obs, **rest})
    buffer = ReplayBuffer.create(space, capacity=count, keep_episodes=True)
    for number in range(count // EPISODE):
        before, after = (
            {name: backend.from_numpy(column) for name, column in observations(EPISODE, number + seed).items()}
            for seed in (0, 1)
        )
        columns = {
            "action": np.zeros((EPISODE, *ACTION), np.float32),
            "reward": np.full(EPISODE, -1, np.float32),
            "terminated": np.zeros(EPISODE, np.bool_),
            "truncated": np.arange(1, EPISODE + 1) == EPISODE,
        }
        arrays = {name: backend.from_numpy(column) for name, column in columns.items()}
        buffer.extend({"obs": before, "next_obs": after, **arrays})
    return buffer


def relabelling(buffer: ReplayBuffer) -> Callable[[], Any]:
    view = HindsightBatch(buffer, "future", K, reward=reward_of, seed=0)
    return StepSampler(view, BATCH, seed=0).sample


def _hindsight(count: int) -> Contender:
    @ours("unienv", f"StepSampler over HindsightBatch, future, k={K}, PyTorch backend", "torch")
    def sample() -> Iterator[Callable]:
        from unienv_interface.backends.pytorch import PyTorchComputeBackend

        with filled_with_goals(count, PyTorchComputeBackend) as buffer:
            yield relabelling(buffer)

    return sample


def _hindsight_numpy(count: int) -> Contender:
    @ours("unienv NumPy", "the same, NumPy backend")
    def sample() -> Iterator[Callable]:
        with filled_with_goals(count, NumpyComputeBackend) as buffer:
            yield relabelling(buffer)

    return sample


def _plain(count: int) -> Contender:
    @ours("plain sample", "StepSampler over the buffer itself, PyTorch backend: no goals are changed", "torch")
    def sample() -> Iterator[Callable]:
        from unienv_interface.backends.pytorch import PyTorchComputeBackend

        with filled_with_goals(count, PyTorchComputeBackend) as buffer:
            yield StepSampler(buffer, BATCH, seed=0).sample

    return sample


# -- peer --------------------------------------------------------------------------------------------------


def _stable_baselines3(count: int) -> Contender:
    @peer("stable-baselines3", f"HerReplayBuffer, future, n_sampled_goal={K}", *SB3)
    def sample() -> Iterator[Callable]:
        """Its columns are written as a whole: it adds one step at a time, which is not measured here."""
        from gymnasium.spaces import Box, Dict
        from stable_baselines3 import HerReplayBuffer

        class Env:
            """Says what the environments' own method says, without the way to them."""

            def env_method(self, name: str, achieved: Any, goal: Any, infos: Any, indices: Any) -> list[Any]:
                return [reward_of(achieved, goal, infos)]

        spaces = Dict({name: Box(-np.inf, np.inf, shape, np.float32) for name, shape in SHAPES.items()})
        env: Any = Env()
        buffer = HerReplayBuffer(count, spaces, Box(-1, 1, ACTION, np.float32), env=env, device="cpu", n_sampled_goal=K)
        for columns, seed in ((buffer.observations, 0), (buffer.next_observations, 1)):
            for name, column in observations(count, seed).items():
                columns[name][:, 0] = column
        buffer.rewards[:] = -1
        buffer.dones[EPISODE - 1 :: EPISODE] = buffer.timeouts[EPISODE - 1 :: EPISODE] = True
        buffer.ep_start[:, 0], buffer.ep_length[:] = np.arange(count) // EPISODE * EPISODE, EPISODE
        buffer.full = True
        yield lambda: buffer.sample(BATCH)

    return sample
