"""Batches of 256 transitions of three steps, out of a million steps in episodes of a thousand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Work, floor, ours, peer

from unienv_data import NStepBatch, ReplayBuffer, StepSampler
from unienv_interface.backends import NumpyComputeBackend

from ._data import BATCH, EPISODE, FLOAT_SHAPES, ROWS, filled_rows, index_stream
from ._peers import SB3
from .shared import filled_once
from .windows import with_episodes

STEPS, GAMMA = 3, 0.99


def works() -> list[Work]:
    contenders = (n_step, plain, bare, n_step_once, n_step_torch, stable_baselines3)
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


@floor("NumPy", "rows gathered and summed by hand; ends of episodes by flags alone, indices drawn beforehand")
def bare() -> Iterator[Callable]:
    records, draw, offsets = filled_rows().records, index_stream(ROWS - STEPS), np.arange(STEPS)
    powers, ones, every = GAMMA ** np.arange(STEPS + 1), np.ones(STEPS), np.arange(BATCH)

    def sample() -> dict[str, np.ndarray]:
        rows = records.take(draw()[:, None] + offsets)
        columns = {name: rows[name] for name in records.dtype.names or ()}
        ended = columns["terminated"] | columns["truncated"]
        weights, reach, last = powers[:-1], powers[-1], (slice(None), -1)
        if np.count_nonzero(ended[:, :-1]):
            goes_on = np.ones_like(ended)
            goes_on[:, 1:] = ~ended[:, :-1]
            np.logical_and.accumulate(goes_on, axis=1, out=goes_on)
            steps = goes_on.sum(axis=1)
            weights, reach, last = weights * goes_on, powers[steps], (every, steps - 1)
        batch = {name: column[:, 0] for name, column in columns.items()}
        batch |= {name: columns[name][last] for name in ("next_obs", "terminated", "truncated")}
        batch["reward"] = ((columns["reward"] * weights) @ ones).astype(np.float32)
        batch["discount"] = (reach * ~batch["terminated"]).astype(np.float32)
        return batch

    yield sample


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
