"""Functions of ours, and files they are in, on the way of a step to disk and of a batch out of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import count_calls
from harness import Work, ours


def works() -> list[Work]:
    return [
        Work("calls", "recording a step on disk", "calls", (recording_calls,), rounds=1),
        Work("calls", "recording a step on disk, files", "files", (recording_files,), rounds=1),
        Work("calls", "sampling a batch of PyTorch", "calls", (sampling_calls,), rounds=1),
    ]


@ours("unienv", "ReplayBufferCollectionWrapper.step of one environment, which is not counted")
def recording_calls() -> Iterator[Callable]:
    with count_calls.recording() as calls:
        yield lambda: len(calls)


@ours("unienv", "ReplayBufferCollectionWrapper.step of one environment, which is not counted")
def recording_files() -> Iterator[Callable]:
    with count_calls.recording() as calls:
        yield lambda: len(count_calls.files_of(calls))


@ours("unienv", "StepSampler.sample of 256", "torch")
def sampling_calls() -> Iterator[Callable]:
    with count_calls.sampling() as calls:
        yield lambda: len(calls)
