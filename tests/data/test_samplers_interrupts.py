"""Ctrl-C at every point of drawing and fetching a batch: the next one is right."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from buffers import number_space, numbers, read
from interrupter import Interrupter, press

import unienv_data
import unienv_interface
from unienv_data import (
    MultiprocessingSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    StepSampler,
)
from unienv_data.base.sampling import BatchSampler

# With the modules of the standard library whose code waits for threads.
OURS = (unienv_data, unienv_interface, concurrent.futures, contextlib, threading)
LENGTH, SIZE = 48, 8
POINTS = pytest.mark.parametrize("most", [25, pytest.param(10**9, marks=pytest.mark.soak)])
FORKS = [
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def filled() -> ReplayBuffer:
    buffer = ReplayBuffer.create(number_space(), capacity=LENGTH, multiprocessing=True, keep_episodes=True)
    for start in range(0, LENGTH, 6):
        buffer.extend(numbers(range(start, start + 6)))
    return buffer


def workers(buffer: ReplayBuffer) -> MultiprocessingSampler:
    sampler = StepSampler(buffer, SIZE, sampler=RandomSampler(seed=0))
    return MultiprocessingSampler(sampler, n_workers=1, n_buffers=3)


SAMPLERS: dict[str, Callable[[ReplayBuffer], BatchSampler]] = {
    "random": lambda buffer: StepSampler(buffer, SIZE, sampler=RandomSampler(seed=0)),
    "without replacement": lambda buffer: StepSampler(buffer, SIZE, sampler=SamplerWithoutReplacement(seed=0)),
    "prioritized": lambda buffer: StepSampler(buffer, SIZE, sampler=PrioritizedSampler(seed=0)),
    "slices": lambda buffer: StepSampler(buffer, SIZE, sampler=SliceSampler(slice_len=4, seed=0)),
    "keyed slices": lambda buffer: StepSampler(
        buffer, SIZE, sampler=SliceSampler(slice_len=1, episode_key="number", seed=0)
    ),
    "in advance": lambda buffer: StepSampler(buffer, SIZE, sampler=RandomSampler(seed=0), prefetch=2),
    "workers": workers,
}
KINDS = [pytest.param(name, marks=FORKS if name == "workers" else []) for name in SAMPLERS]


def take(sampler: BatchSampler) -> list[int]:
    """The samples of the next batch, which are those that its indices say."""
    batch, info = sampler.sample_with_metadata()
    assert info is not None
    found = read(batch)
    assert found == info["index"].tolist()
    assert len(found) == SIZE
    return found


def all_blocks_come_back(sampler: MultiprocessingSampler) -> None:
    """No block of shared memory is lost to a batch that nobody has."""
    sampler.take_back()
    pool: Any = sampler._pool
    while any(worker.todo for worker in pool._workers.values()):
        pool._receive_all(0.01)
    gc.collect()
    assert sorted(pool.blocks.take() for _ in range(sampler.n_buffers)) == list(range(sampler.n_buffers))
    for block in range(sampler.n_buffers):
        pool.blocks.give_back(block)


@POINTS
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_every_point_of_a_sample(kind: str, most: int) -> None:
    with filled() as buffer, contextlib.closing(SAMPLERS[kind](buffer)) as sampler:  # type: ignore[type-var]
        take(sampler)
        with Interrupter(OURS, 0, press) as points:
            sampler.sample()
        interrupted = 0
        for at in range(1, points.count + 1, max(1, points.count // most)):
            try:
                with Interrupter(OURS, at, press):
                    sampler.sample()
            except KeyboardInterrupt:
                interrupted += 1
            for _ in range(3):
                take(sampler)
            if isinstance(sampler, MultiprocessingSampler):
                all_blocks_come_back(sampler)
        assert interrupted > 5


@POINTS
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_every_point_of_a_batch_of_an_epoch(kind: str, most: int) -> None:
    """The batch that was asked for is passed over, and one that was drawn in advance; no sample comes twice."""
    with filled() as buffer, contextlib.closing(SAMPLERS[kind](buffer)) as sampler:  # type: ignore[type-var]
        for _ in sampler.epoch_iter():
            pass
        iterator = sampler.epoch_iter()
        next(iterator)
        with Interrupter(OURS, 0, press) as points:
            next(iterator)
        step = max(1, points.count // most)
        for at in range(1, points.count + 1, step):
            iterator, found, was_interrupted = sampler.epoch_iter(), list[int](), False
            found += read(next(iterator))
            try:
                with Interrupter(OURS, at, press):
                    batch = next(iterator)
                found += read(batch)
            except KeyboardInterrupt:
                was_interrupted = True
            for batch in iterator:
                found += read(batch)
            assert len(set(found)) == len(found), f"point {at}: a sample came twice"
            most_lost = SIZE * was_interrupted * (2 if kind in ("in advance", "workers") else 1)
            assert len(found) >= LENGTH - most_lost, f"point {at}: {len(found)} of {LENGTH}"


@POINTS
def test_ctrl_c_at_every_point_of_priorities(most: int) -> None:
    """The sums that draws go by are those of the weights."""
    with filled() as buffer:
        priorities = PrioritizedSampler(seed=0)
        index, priority = np.arange(0, LENGTH, 5), np.linspace(1.0, 30.0, 10)

        def play() -> None:
            priorities.sample(buffer, SIZE)
            priorities.update_priority(index, priority)
            buffer.extend(numbers(range(3)))
            priorities.sample(buffer, SIZE)

        play()
        with Interrupter(OURS, 0, press) as points:
            play()
        for at in range(1, points.count + 1, max(1, points.count // most)):
            with contextlib.suppress(KeyboardInterrupt), Interrupter(OURS, at, press):
                play()
            priorities.sample(buffer, SIZE)
            state = priorities.state_dict()
            assert priorities._draws.total() == pytest.approx(state["weights"].sum()), f"point {at}"
            assert len(state["weights"]) == LENGTH
            assert priorities._draws._largest >= state["weights"].max(), f"point {at}"
