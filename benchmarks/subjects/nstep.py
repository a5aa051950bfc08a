"""Batches of 256 transitions of three steps, out of a million steps in episodes of a thousand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Work, ours, peer

from unienv_data import NStepBatch, ReplayBuffer, StepSampler
from unienv_interface.backends import NumpyComputeBackend

from ._data import BATCH, EPISODE, FLOAT_SHAPES, ROWS
from ._peers import SB3
from .shared import filled_once
from .windows import with_episodes

STEPS, GAMMA = 3, 0.99


def works() -> list[Work]:
    contenders = (n_step, plain, n_step_once, n_step_torch, stable_baselines3)
    return [Work("nstep", f"{STEPS} steps, sample {BATCH}", "us", contenders)]


def sampling(buffer: ReplayBuffer) -> Callable[[], Any]:
    return StepSampler(NStepBatch(buffer, STEPS, GAMMA), BATCH, seed=0).sample


@ours("unienv", f"StepSampler over NStepBatch, n={STEPS}")
def n_step() -> Iterator[Callable]:
    with with_episodes() as buffer:
        yield sampling(buffer)


@ours("plain sample", "StepSampler over the buffer itself")
def plain() -> Iterator[Callable]:
    with with_episodes() as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


@ours("unienv, stored once", "the same, next_obs='shared'")
def n_step_once() -> Iterator[Callable]:
    with filled_once(NumpyComputeBackend, keep_episodes=True) as buffer:
        yield sampling(buffer)


@ours("unienv PyTorch", "the same, PyTorch backend", "torch")
def n_step_torch() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with with_episodes(backend=PyTorchComputeBackend) as buffer:
        yield sampling(buffer)


@peer("stable-baselines3", f"NStepReplayBuffer, n_steps={STEPS}", *SB3)
def stable_baselines3() -> Iterator[Callable]:
    """Its columns are written as a whole, as in `_peers.sb3_buffer`."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import NStepReplayBuffer

    observation, action = (Box(-np.inf, np.inf, FLOAT_SHAPES[name], np.float32) for name in ("obs", "action"))
    buffer = NStepReplayBuffer(ROWS, observation, action, device="cpu", n_steps=STEPS, gamma=GAMMA)
    rng = np.random.default_rng(0)
    for column in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
        column[:] = rng.random(column.shape, np.float32)
    buffer.dones[EPISODE - 1 :: EPISODE] = buffer.timeouts[EPISODE - 1 :: EPISODE] = True
    buffer.full = True
    yield lambda: buffer.sample(BATCH)
