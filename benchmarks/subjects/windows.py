"""Batches of 64 windows of 16 transitions out of a million, within their episodes, with masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Contender, Work, floor, ours, peer, unable

from unienv_data import CombinedBatch, FrameStackedBatch, ReplayBuffer, SliceSampler, SliceStackedBatch, StepSampler
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

from ._data import EPISODE, ROWS, filled, filled_rows, transition_space, transitions
from ._peers import FLASHBAX, TORCHRL, jitted, torchrl_buffer

WINDOWS, FRAMES = 64, 16


def works() -> list[Work]:
    cannot = (
        unable("cpprb", "has no sequences, only n-step returns and stacked frames"),
        unable("stable-baselines3", "has no sequences"),
        unable("tianshou", "stacks observations only, not whole transitions"),
    )

    def work(name: str, *contenders: Contender) -> Work:
        return Work("windows", name, "us", contenders)

    return [
        work(
            "windows of 16, NumPy",
            windows,
            slices,
            take_windows,
            torchrl_slices(),
            torchrl_slices(cached=True),
            torchrl_slices(cached=True, compiled=True),
            flashbax,
            *cannot,
        ),
        work(
            "windows of 16, PyTorch",
            windows_torch,
            take_windows,
            torchrl_slices(),
            torchrl_slices(cached=True),
        ),
        work("windows of 16, their actions alone", actions, take_windows),
        work("windows of 16, every second sample", with_gaps, take_windows),
        work("windows of 16, in a ring that has wrapped", wrapped, take_windows),
        work("windows of 16, by episode id", by_episode_id, by_segments),
        Work("windows", "256 transitions of a combination", "us", (of_one, of_hundred, of_ten_thousand, get_at)),
    ]


# -- ours --------------------------------------------------------------------------------------------------


def with_episodes(count: int = ROWS, backend: ComputeBackend = NumpyComputeBackend) -> ReplayBuffer:
    """A buffer of ours that knows its episodes."""
    return filled(count, backend, chunk=EPISODE, keep_episodes=True)


def window_sampler(buffer: ReplayBuffer) -> StepSampler:
    return StepSampler(FrameStackedBatch(buffer, FRAMES - 1), WINDOWS, seed=0)


@ours("unienv", "StepSampler over FrameStackedBatch")
def windows() -> Iterator[Callable]:
    with with_episodes() as buffer:
        yield window_sampler(buffer).sample_with_metadata


@ours("unienv", "StepSampler over FrameStackedBatch, PyTorch backend", "torch")
def windows_torch() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with with_episodes(backend=PyTorchComputeBackend) as buffer:
        yield window_sampler(buffer).sample_with_metadata


@ours("unienv SliceSampler", "StepSampler(sampler=SliceSampler(slice_len=16))")
def slices() -> Iterator[Callable]:
    with with_episodes() as buffer:
        sampler = StepSampler(buffer, WINDOWS * FRAMES, sampler=SliceSampler(slice_len=FRAMES), seed=0)
        yield sampler.sample_with_metadata


@ours("unienv", "FrameStackedBatch over buffer.get_column(['action'])")
def actions() -> Iterator[Callable]:
    with with_episodes() as buffer:
        stack = FrameStackedBatch(buffer.get_column(["action"]), FRAMES - 1)
        yield StepSampler(stack, WINDOWS, seed=0).sample_with_metadata


@ours("unienv", "SliceStackedBatch, offsets 0, 2, ..., 30")
def with_gaps() -> Iterator[Callable]:
    with with_episodes() as buffer:
        stack = SliceStackedBatch(buffer, np.arange(0, 2 * FRAMES, 2))
        yield StepSampler(stack, WINDOWS, seed=0).sample_with_metadata


@ours("unienv", "StepSampler over FrameStackedBatch, the oldest in the middle")
def wrapped() -> Iterator[Callable]:
    with with_episodes() as buffer:
        for _ in range(ROWS // EPISODE // 3):
            buffer.extend(transitions(EPISODE))
        yield window_sampler(buffer).sample_with_metadata


@ours("unienv", "FrameStackedBatch with get_valid_mask_function_with_episodeid_key")
def by_episode_id() -> Iterator[Callable]:
    with _with_episode_ids() as buffer:
        same_episode = FrameStackedBatch.get_valid_mask_function_with_episodeid_key("episode_id")
        stack = FrameStackedBatch(buffer, FRAMES - 1, get_valid_mask_function=same_episode)
        yield StepSampler(stack, WINDOWS, seed=0).sample_with_metadata


@ours("by segments", "the same samples in a buffer that keeps episodes")
def by_segments() -> Iterator[Callable]:
    with _with_episode_ids(keep_episodes=True) as buffer:
        yield window_sampler(buffer).sample_with_metadata


def _with_episode_ids(**options: Any) -> ReplayBuffer:
    """Transitions that say which episode they are of."""
    ids = BoxSpace(NumpyComputeBackend, 0, ROWS, "int64", shape=())
    space = DictSpace(NumpyComputeBackend, {**transition_space().spaces, "episode_id": ids})
    buffer = ReplayBuffer.create(space, **{"capacity": ROWS, "keep_episodes": False, **options})
    episode = transitions(EPISODE)
    for number in range(ROWS // EPISODE):
        buffer.extend({**episode, "episode_id": np.full(EPISODE, number)})
    return buffer


@ours("unienv, 1 source", "StepSampler over CombinedBatch")
def of_one() -> Iterator[Callable]:
    with with_episodes() as buffer:
        yield StepSampler(CombinedBatch([buffer]), 256, seed=0).sample


def _combined(sources: int) -> Iterator[Callable]:
    with with_episodes() as buffer:
        size = ROWS // sources
        parts = [buffer.get_slice(slice(start, start + size)) for start in range(0, ROWS, size)]
        yield StepSampler(CombinedBatch(parts), 256, seed=0).sample


@ours("unienv, 100 sources", "StepSampler over CombinedBatch")
def of_hundred() -> Iterator[Callable]:
    return _combined(100)


@ours("unienv, 10^4 sources", "StepSampler over CombinedBatch")
def of_ten_thousand() -> Iterator[Callable]:
    return _combined(10_000)


@floor("no combination", "StepSampler over the buffer itself")
def get_at() -> Iterator[Callable]:
    with with_episodes() as buffer:
        yield StepSampler(buffer, 256, seed=0).sample


# -- floor and peers ---------------------------------------------------------------------------------------


@floor("take", "numpy take of the rows, starts drawn with it; no masks")
def take_windows() -> Iterator[Callable]:
    yield taking_windows(ROWS)


def taking_windows(count: int) -> Callable[[], np.ndarray]:
    """A call that takes the rows of windows out of so many, and does nothing else."""
    records, rng, offsets = filled_rows(count).records, np.random.default_rng(0), np.arange(FRAMES)
    return lambda: records.take(rng.integers(0, count - FRAMES, WINDOWS)[:, None] + offsets)


def torchrl_slices(count: int = ROWS, *, cached: bool = False, compiled: bool = False) -> Contender:
    form = ("cached, compiled" if compiled else "cached") if cached else ""
    options = "".join([", cache_values=True" if cached else "", ", compile=True" if compiled else ""])

    @peer(f"torchrl {form}".strip(), f"SliceSampler(end_key='truncated'{options})", *TORCHRL)
    def sample() -> Iterator[Callable]:
        from torchrl.data import SliceSampler as TorchRLSlices

        sampler = TorchRLSlices(slice_len=FRAMES, end_key="truncated", cache_values=cached, compile=compiled)
        yield torchrl_buffer(count, batch=WINDOWS * FRAMES, sampler=sampler).sample

    return sample


@peer("flashbax", "trajectory buffer, jitted; no masks: windows cross episodes", *FLASHBAX)
def flashbax() -> Iterator[Callable]:
    import flashbax as fbx
    import jax

    buffer = fbx.make_trajectory_buffer(1, WINDOWS, FRAMES, 1, FRAMES, max_length_time_axis=ROWS)
    columns = {name: jax.numpy.asarray(column) for name, column in transitions(100_000).items()}
    state = buffer.init({name: column[0] for name, column in columns.items()})
    add = jax.jit(buffer.add, donate_argnums=0)
    for _ in range(ROWS // 100_000):
        state = add(state, {name: column[None] for name, column in columns.items()})
    yield jitted(buffer.sample, state)
