"""How costs grow from 10^4 to 10^7 rows: ours, the floor's, TorchRL's and cpprb's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from harness import Contender, Work, floor, ours, peer

from unienv_data import BatchBase, StepSampler
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace

from ._child import peak_growth
from ._data import BATCH, filled, filled_rows, index_stream, one_transition
from ._peers import CPPRB, TORCHRL, as_tensordict, cpprb_buffer, torchrl_buffer
from .prioritized import cpprb_prioritized, sample_and_update, torchrl_prioritized
from .windows import FRAMES, WINDOWS, taking_windows, torchrl_slices, window_sampler, with_episodes

SIZES = {"10^4": 10_000, "10^5": 100_000, "10^6": 1_000_000, "10^7": 10_000_000}
BILLION = 10**9


def works() -> list[Work]:
    def work(name: str, *makers: Callable[[str], Contender]) -> Work:
        contenders = [replace(make(label), rows=SIZES[label]) for make in makers for label in SIZES]
        return Work("growth", name, "us", tuple(contenders))

    first = [replace(first_of_epoch(label), rows=SIZES[label]) for label in SIZES]
    billion = replace(first_of_epoch("10^9"), rows=BILLION)
    theirs = [replace(first_of_loader(label), rows=SIZES[label]) for label in SIZES]
    return [
        work("sample of 256", sampling, gathering, torchrl_sampling, cpprb_sampling),
        work("windows of 16", windows, gathering_windows, torchrl_windows),
        work("append", appending, torchrl_adding, cpprb_adding),
        work("prioritized sample and update", prioritized, torchrl_ranked, cpprb_ranked),
        Work("growth", "first batch of an epoch", "ms", (*first, billion, *theirs)),
        Work("growth", "memory of an epoch", "MB", (epoch_memory("10^4"), epoch_memory("10^9")), rounds=1),
    ]


# -- sampling ----------------------------------------------------------------------------------------------


def sampling(label: str) -> Contender:
    @ours(f"unienv {label}", "StepSampler.sample")
    def run() -> Iterator[Callable]:
        with filled(SIZES[label]) as buffer:
            yield StepSampler(buffer, BATCH, seed=0).sample

    return run


def gathering(label: str) -> Contender:
    @floor(f"take {label}", "numpy take of the rows")
    def run() -> Iterator[Callable]:
        records, index = filled_rows(SIZES[label]).records, index_stream(SIZES[label])
        yield lambda: records.take(index())

    return run


def torchrl_sampling(label: str) -> Contender:
    @peer(f"torchrl {label}", "ReplayBuffer, LazyTensorStorage", *TORCHRL)
    def run() -> Iterator[Callable]:
        yield torchrl_buffer(SIZES[label]).sample

    return run


def cpprb_sampling(label: str) -> Contender:
    @peer(f"cpprb {label}", "ReplayBuffer", *CPPRB)
    def run() -> Iterator[Callable]:
        buffer = cpprb_buffer(SIZES[label])
        yield lambda: buffer.sample(BATCH)

    return run


def windows(label: str) -> Contender:
    @ours(f"unienv {label}", f"{WINDOWS} windows of {FRAMES} with masks")
    def run() -> Iterator[Callable]:
        with with_episodes(SIZES[label]) as buffer:
            yield window_sampler(buffer).sample_with_metadata

    return run


def gathering_windows(label: str) -> Contender:
    @floor(f"take {label}", f"numpy take of the rows of {WINDOWS} windows of {FRAMES}, starts drawn with it; no masks")
    def run() -> Iterator[Callable]:
        yield taking_windows(SIZES[label])

    return run


def torchrl_windows(label: str) -> Contender:
    return replace(torchrl_slices(SIZES[label], cached=True), name=f"torchrl {label}")


# -- writing -----------------------------------------------------------------------------------------------


def appending(label: str) -> Contender:
    @ours(f"unienv {label}", "ReplayBuffer.append to a full one, with segments")
    def run() -> Iterator[Callable]:
        with with_episodes(SIZES[label]) as buffer:
            one = one_transition()
            yield lambda: buffer.append(one)

    return run


def torchrl_adding(label: str) -> Contender:
    @peer(f"torchrl {label}", "ReplayBuffer.add to a full one", *TORCHRL)
    def run() -> Iterator[Callable]:
        buffer, one = torchrl_buffer(SIZES[label]), as_tensordict(one_transition())
        yield lambda: buffer.add(one)

    return run


def cpprb_adding(label: str) -> Contender:
    @peer(f"cpprb {label}", "ReplayBuffer.add to a full one", *CPPRB)
    def run() -> Iterator[Callable]:
        buffer, one = cpprb_buffer(SIZES[label]), one_transition()
        yield lambda: buffer.add(**one)

    return run


# -- prioritized -------------------------------------------------------------------------------------------


def prioritized(label: str) -> Contender:
    @ours(f"unienv {label}", "StepSampler(sampler=PrioritizedSampler)")
    def run() -> Iterator[Callable]:
        with filled(SIZES[label]) as buffer:
            yield sample_and_update(buffer)

    return run


def torchrl_ranked(label: str) -> Contender:
    @peer(f"torchrl {label}", "ReplayBuffer(sampler=PrioritizedSampler)", *TORCHRL)
    def run() -> Iterator[Callable]:
        yield torchrl_prioritized(SIZES[label])

    return run


def cpprb_ranked(label: str) -> Contender:
    @peer(f"cpprb {label}", "PrioritizedReplayBuffer", *CPPRB)
    def run() -> Iterator[Callable]:
        yield cpprb_prioritized(SIZES[label])

    return run


# -- epochs ------------------------------------------------------------------------------------------------


class Numbers(BatchBase):
    """So many numbers, which are not kept anywhere."""

    def __init__(self, count: int) -> None:
        super().__init__(BoxSpace(NumpyComputeBackend, 0, BILLION, "int64", shape=()))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def get_at(self, idx: Any) -> Any:
        return idx


def first_of_epoch(label: str) -> Contender:
    @ours(f"unienv {label}", "StepSampler.epoch_iter, first batch of 256")
    def run() -> Iterator[Callable]:
        data = Numbers(SIZES.get(label, BILLION))
        yield lambda: next(iter(StepSampler(data, BATCH, seed=0).epoch_iter()))

    return run


def first_of_loader(label: str) -> Contender:
    @peer(f"torch DataLoader {label}", "shuffle=True, first batch of 256", "torch")
    def run() -> Iterator[Callable]:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(torch.arange(SIZES[label])), BATCH, shuffle=True)
        yield lambda: next(iter(loader))

    return run


def read_batches(count: int, batches: int) -> None:
    """Read the first batches of an epoch over so many rows."""
    epoch = iter(StepSampler(Numbers(count), BATCH, seed=0).epoch_iter())
    for _ in range(batches):
        np.asarray(next(epoch))


def epoch_memory(label: str) -> Contender:
    batches = 39  # all of an epoch over 10^4 rows

    @ours(f"unienv {label}", f"what {batches} batches of an epoch add to a process")
    def run() -> Iterator[Callable]:
        count = SIZES.get(label, BILLION)
        yield lambda: peak_growth(read_batches, [1000, 2], [count, batches]) / 2**20

    return run
