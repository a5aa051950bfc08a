"""Observations that are stored once: batches of 256, of a million vectors and of stacks of four 84x84 frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Work, ours, peer

from unienv_data import FrameStackedBatch, ReplayBuffer, StackedObservationBatch, StepSampler
from unienv_data.storages.shared_next_obs import SharedNextObsSpace
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import BoxSpace

from ._data import BATCH, EPISODE, ROWS, filled, in_chunks, transition_space
from ._peers import SB3

FRAME, STACK, FRAMES = (84, 84), 4, 20_000


def works() -> list[Work]:
    return [
        Work("shared", f"sample {BATCH}", "us", (once, twice)),
        Work("shared", f"stacks of {STACK} frames, sample {BATCH}", "ms", (stacks, stacks_as_seen, stacks_sb3)),
        Work("shared", "a transition of frames", "bytes", (bytes_once, bytes_sb3), rounds=1),
    ]


def filled_once(backend: ComputeBackend = NumpyComputeBackend, **options: Any) -> ReplayBuffer:
    """A buffer of ours that is full of transitions in episodes, and stores each observation once."""
    space = SharedNextObsSpace(backend, transition_space(backend).spaces)
    buffer = ReplayBuffer.create(space, capacity=ROWS, **options)
    for batch in in_chunks(ROWS, EPISODE):
        seen = np.concatenate([batch["obs"][:1], batch["next_obs"]])
        buffer.extend({**batch, "obs": seen[:-1]})
    return buffer


@ours("unienv", "StepSampler.sample, next_obs='shared'")
def once() -> Iterator[Callable]:
    with filled_once() as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


@ours("unienv, stored twice", "StepSampler.sample, next_obs in every row")
def twice() -> Iterator[Callable]:
    with filled() as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


def filled_with_frames(backend: ComputeBackend = NumpyComputeBackend) -> ReplayBuffer:
    """A buffer of ours that is full of transitions of frames, in episodes."""
    spaces: dict[str, Any] = dict(transition_space(backend).spaces)
    spaces["obs"] = spaces["next_obs"] = BoxSpace(backend, 0, 255, "uint8", shape=FRAME)
    space, rng = SharedNextObsSpace(backend, spaces), np.random.default_rng(0)
    buffer = ReplayBuffer.create(space, capacity=FRAMES, keep_episodes=True)
    for batch in in_chunks(FRAMES, EPISODE):
        seen = rng.integers(0, 256, (EPISODE + 1, *FRAME), np.uint8)
        columns = {**batch, "obs": seen[:-1], "next_obs": seen[1:]}
        buffer.extend({name: backend.from_numpy(column) for name, column in columns.items()})
    return buffer


@ours("unienv", "StepSampler over FrameStackedBatch, PyTorch backend", "torch")
def stacks() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with filled_with_frames(PyTorchComputeBackend) as buffer:
        yield StepSampler(FrameStackedBatch(buffer, STACK - 1), BATCH, seed=0).sample


@ours("unienv, as seen", "StepSampler over StackedObservationBatch, PyTorch backend", "torch")
def stacks_as_seen() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with filled_with_frames(PyTorchComputeBackend) as buffer:
        yield StepSampler(StackedObservationBatch(buffer, STACK), BATCH, seed=0).sample


@ours("unienv", "next_obs='shared', in memory")
def bytes_once() -> Iterator[Callable]:
    with filled_with_frames() as buffer:
        yield lambda: (buffer.storage.nbytes or 0) / FRAMES


def sb3_frames() -> Any:
    """Its memory-optimised buffer, of observations that are stacks; full, as it is after as many steps."""
    from gymnasium.spaces import Box, Discrete
    from stable_baselines3.common.buffers import ReplayBuffer

    observation, options = Box(0, 255, (STACK, *FRAME), np.uint8), {"handle_timeout_termination": False}
    buffer = ReplayBuffer(FRAMES, observation, Discrete(18), device="cpu", optimize_memory_usage=True, **options)
    buffer.observations[:] = np.random.default_rng(0).integers(0, 256, buffer.observations.shape, np.uint8)
    buffer.full = True
    return buffer


@peer("stable-baselines3", "ReplayBuffer(optimize_memory_usage=True)", *SB3)
def stacks_sb3() -> Iterator[Callable]:
    buffer = sb3_frames()
    yield lambda: buffer.sample(BATCH)


@peer("stable-baselines3", "ReplayBuffer(optimize_memory_usage=True)", *SB3)
def bytes_sb3() -> Iterator[Callable]:
    buffer = sb3_frames()
    columns = (buffer.observations, buffer.actions, buffer.rewards, buffer.dones)
    yield lambda: sum(column.nbytes for column in columns) / FRAMES
