"""A prioritized batch of 256 transitions out of a million, and the update of its priorities.

Priorities are drawn from [0, 1); and from a distribution in which few outweigh all others, for which ours has to go
another way (see `unienv_data.samplers.prioritized_sampler`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Work, ours, peer, unable

from unienv_data import PrioritizedSampler, StepSampler

from ._data import BATCH, ROWS, filled, one_transition, transitions
from ._peers import CPPRB, FLASHBAX, TIANSHOU, TORCHRL, cpprb_buffer, tianshou_buffer, torchrl_buffer
from .sampling import take_random

ALPHA, BETA = 0.6, 0.4


def works() -> list[Work]:
    cannot = unable("stable-baselines3", "has no prioritized buffer")
    peers = (torchrl, cpprb, tianshou, flashbax, cannot)
    return [
        Work("prioritized", "sample and update", "us", (sample, sample_torch, take_random, *peers)),
        Work("prioritized", "sample and update, few outweigh all", "us", (sample_few, torchrl_few, cpprb_few)),
    ]


def priority_stream(dtype: type[np.floating] = np.float64, *, few: bool = False) -> Callable[[], np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = [rng.pareto(0.5, BATCH).clip(max=1e12) if few else rng.random(BATCH) for _ in range(256)]
    return itertools.cycle([priorities.astype(dtype) for priorities in drawn]).__next__


def sample_and_update(buffer: Any, *, few: bool = False) -> Callable[[], None]:
    """A step of a learner with ours."""
    sampler, priorities = PrioritizedSampler(ALPHA, BETA, seed=0), priority_stream(few=few)
    steps = StepSampler(buffer, BATCH, sampler=sampler)

    def step() -> None:
        metadata: Any = steps.sample_with_metadata()[1]
        sampler.update_priority(metadata["index"], priorities())

    return step


@ours("unienv", "StepSampler(sampler=PrioritizedSampler(0.6, 0.4))")
def sample() -> Iterator[Callable]:
    with filled() as buffer:
        yield sample_and_update(buffer)


@ours("unienv", "StepSampler(sampler=PrioritizedSampler(0.6, 0.4))")
def sample_few() -> Iterator[Callable]:
    with filled() as buffer:
        yield sample_and_update(buffer, few=True)


@ours("unienv PyTorch", "the same, PyTorch backend", "torch")
def sample_torch() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with filled(backend=PyTorchComputeBackend) as buffer:
        yield sample_and_update(buffer)


@peer("torchrl", "ReplayBuffer(sampler=PrioritizedSampler), LazyTensorStorage", *TORCHRL)
def torchrl() -> Iterator[Callable]:
    yield torchrl_prioritized(ROWS)


@peer("torchrl", "ReplayBuffer(sampler=PrioritizedSampler), LazyTensorStorage", *TORCHRL)
def torchrl_few() -> Iterator[Callable]:
    yield torchrl_prioritized(ROWS, few=True)


def torchrl_prioritized(count: int, *, few: bool = False) -> Callable[[], None]:
    import torch
    import torchrl.data

    buffer = torchrl_buffer(count, sampler=torchrl.data.PrioritizedSampler(count, alpha=ALPHA, beta=BETA))
    priorities = priority_stream(np.float32, few=few)  # its tree takes no others

    def step() -> None:
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], torch.from_numpy(priorities()))

    return step


@peer("cpprb", "PrioritizedReplayBuffer", *CPPRB)
def cpprb() -> Iterator[Callable]:
    yield cpprb_prioritized(ROWS)


@peer("cpprb", "PrioritizedReplayBuffer", *CPPRB)
def cpprb_few() -> Iterator[Callable]:
    yield cpprb_prioritized(ROWS, few=True)


def cpprb_prioritized(count: int, *, few: bool = False) -> Callable[[], None]:
    buffer, priorities = cpprb_buffer(count, kind="PrioritizedReplayBuffer", alpha=ALPHA), priority_stream(few=few)

    def step() -> None:
        batch = buffer.sample(BATCH, beta=BETA)
        buffer.update_priorities(batch["indexes"], priorities())

    return step


@peer("tianshou", "PrioritizedReplayBuffer", *TIANSHOU)
def tianshou() -> Iterator[Callable]:
    from tianshou.data import PrioritizedReplayBuffer

    buffer, priorities = PrioritizedReplayBuffer(ROWS, alpha=ALPHA, beta=BETA), priority_stream()
    part = tianshou_buffer(ROWS // 10)
    for _ in range(10):
        buffer.update(part)

    def step() -> None:
        _, indices = buffer.sample(BATCH)
        buffer.update_weight(indices, priorities())

    yield step


@peer("flashbax", "prioritised item buffer, jitted, state donated, block_until_ready", *FLASHBAX)
def flashbax() -> Iterator[Callable]:
    import flashbax as fbx
    import jax

    buffer = fbx.make_prioritised_item_buffer(ROWS, 1, BATCH, add_batches=True, priority_exponent=ALPHA)
    state = buffer.init(jax.tree.map(jax.numpy.asarray, one_transition()))
    add = jax.jit(buffer.add, donate_argnums=0)
    columns = jax.tree.map(jax.numpy.asarray, transitions(100_000))
    for _ in range(ROWS // 100_000):
        state = add(state, columns)

    def step(state: Any, key: Any, priorities: Any) -> Any:
        key, drawn = jax.random.split(key)
        batch = buffer.sample(state, drawn)
        return buffer.set_priorities(state, batch.indices, priorities), key, batch

    jitted, key, priorities = jax.jit(step, donate_argnums=0), jax.random.key(0), priority_stream()

    def call() -> Any:
        nonlocal state, key
        state, key, batch = jitted(state, key, priorities())
        return jax.block_until_ready(batch)

    yield call
