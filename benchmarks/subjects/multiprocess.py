"""Batches of 256 that two worker processes fetch, and reading while another process writes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from harness import Ready, Work, fetching_ahead, floor, ours, peer

from unienv_data import BatchBase, MultiprocessingSampler, ReplayBuffer, StepSampler
from unienv_interface.backends import NumpyComputeBackend

from ._data import BATCH, IMAGES, filled, filled_with_images, folder, images, index_stream, one_transition, transitions

WORKERS, AHEAD = 2, 8
ROWS = 200_000


def works() -> list[Work]:
    made = [_computing(microseconds) for microseconds in (0, 100, 500, 2000)]
    carried = (image_workers, image_in_process, image_loader, image_batch_loader)
    return [
        *made,
        Work("multiprocess", "images", "us", carried),
        Work("multiprocess", "reading beside a writer", "us", (beside_writer, beside_other, alone), per_call=2000),
    ]


# -- a transformation that takes time ----------------------------------------------------------------------


class Computing(BatchBase):
    """A view whose batches take some time of a core to compute."""

    is_mutable = False

    def __init__(self, batch: BatchBase, seconds: float) -> None:
        super().__init__(batch.single_space)
        self.batch, self.seconds = batch, seconds

    def __len__(self) -> int:
        return len(self.batch)

    def get_at(self, idx: Any) -> Any:
        found = self.batch.get_at(idx)
        compute(self.seconds)
        return found


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds  # of this thread's own: what others take of the core does not count
    while time.thread_time() < end:
        pass


def _computing(microseconds: int) -> Work:
    name = f"transitions, {microseconds} us of computing a batch"
    repeats = 20_000 // max(microseconds, 100)

    @ours("2 workers", "MultiprocessingSampler(n_workers=2)")
    def with_workers() -> Iterator[Ready]:
        with _shared() as buffer:
            data = Computing(buffer, microseconds * 1e-6)
            with MultiprocessingSampler(StepSampler(data, BATCH, seed=0), WORKERS, AHEAD, ctx=_fork()) as sampler:
                yield fetching_ahead(sampler.sample, AHEAD, repeats)

    @ours("one process", "StepSampler")
    def in_process() -> Iterator[Callable]:
        with _shared() as buffer:
            yield StepSampler(Computing(buffer, microseconds * 1e-6), BATCH, seed=0).sample

    @peer("torch DataLoader", "2 workers, a batch per item (batch_size=None), persistent_workers", "torch")
    def loader() -> Iterator[Ready]:
        columns = transitions(ROWS)

        def read(index: np.ndarray) -> dict[str, np.ndarray]:
            batch = {name: column.take(index, 0) for name, column in columns.items()}
            compute(microseconds * 1e-6)
            return batch

        yield from _loading(Items(ROWS, read), repeats, whole_batches=True)

    return Work("multiprocess", name, "us", (with_workers, in_process, loader))


def _shared() -> ReplayBuffer:
    return filled(ROWS, multiprocessing=True)


def _fork() -> Any:
    return multiprocessing.get_context("fork")


class Items:
    """A dataset as PyTorch wants one: what `read` gives for an index, or for the indices of a batch."""

    def __init__(self, count: int, read: Callable[[Any], Any]) -> None:
        self.count, self.read = count, read

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        return self.read(index)


def _loading(dataset: Any, repeats: int, *, whole_batches: bool) -> Iterator[Ready]:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    order = RandomSampler(dataset, replacement=True, num_samples=10**9)
    options: dict[str, Any] = {"batch_size": BATCH, "sampler": order}
    if whole_batches:
        options = {"batch_size": None, "sampler": BatchSampler(order, BATCH, drop_last=True)}
    loader: Any = DataLoader(
        dataset,
        num_workers=WORKERS,
        prefetch_factor=AHEAD // WORKERS,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(0),
        multiprocessing_context="fork",
        **options,
    )
    batches: Any = iter(loader)
    try:
        yield fetching_ahead(lambda: next(batches), AHEAD, repeats)
    finally:
        batches._shutdown_workers()  # it has no other way to end them at once


# -- images ------------------------------------------------------------------------------------------------


@ours("2 workers", "MultiprocessingSampler(n_workers=2), PyTorch backend", "torch")
def image_workers() -> Iterator[Ready]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with (
        filled_with_images(PyTorchComputeBackend, multiprocessing=True) as buffer,
        MultiprocessingSampler(StepSampler(buffer, BATCH, seed=0), WORKERS, AHEAD, ctx=_fork()) as sampler,
    ):
        yield fetching_ahead(sampler.sample, AHEAD, 16)


@ours("one process", "StepSampler, PyTorch backend", "torch")
def image_in_process() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with filled_with_images(PyTorchComputeBackend, multiprocessing=True) as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


def _image_items() -> Items:
    import torch

    stored = torch.from_numpy(np.concatenate([images(1024)] * (IMAGES // 1024)))
    return Items(IMAGES, lambda index: stored[index])


@peer("torch DataLoader", "2 workers, an image per item, persistent_workers", "torch")
def image_loader() -> Iterator[Ready]:
    yield from _loading(_image_items(), 16, whole_batches=False)


@peer("DataLoader, batched", "2 workers, a batch per item (batch_size=None), persistent_workers", "torch")
def image_batch_loader() -> Iterator[Ready]:
    yield from _loading(_image_items(), 16, whole_batches=True)


# -- reading beside a writer -------------------------------------------------------------------------------

READS = 2000


def _reading(path: Path) -> Iterator[Callable]:
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as reader:
        index = index_stream(ROWS)

        def read() -> None:
            for _ in range(READS):
                reader.get_at(index())

        yield read


def _beside(*, same: bool) -> Iterator[Ready]:
    """Reading while another process appends as fast as it can, to the same buffer or to another one."""
    context = multiprocessing.get_context("spawn")
    with folder() as root:
        paths = [root / "read", root / "written"]
        for path in paths:
            filled(ROWS, cache_path=path).close()
        written = paths[0] if same else paths[1]
        may_write, is_over = context.Event(), context.Event()
        writer = context.Process(target=append_while, args=(written, may_write, is_over), daemon=True)
        writer.start()
        try:
            with ReplayBuffer.load_from(written, backend=NumpyComputeBackend) as watched:

                def start() -> None:
                    before = watched.stats().written
                    may_write.set()
                    while watched.stats().written == before and writer.is_alive():
                        time.sleep(0.001)

                for read in _reading(paths[0]):
                    yield Ready(read, start, may_write.clear)
        finally:
            is_over.set()
            may_write.set()
            writer.join()


def append_while(path: Path, may_write: Event, is_over: Event) -> None:
    """What the writer does: append, a hundred at a time, whenever it may."""
    one = one_transition()
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False) as buffer:
        while may_write.wait() and not is_over.is_set():
            for _ in range(100):
                buffer.append(one)


@ours("beside a writer", "get_at of 256 while a process appends to the same buffer")
def beside_writer() -> Iterator[Ready]:
    yield from _beside(same=True)


@ours("beside another's", "get_at of 256 while a process appends to another buffer")
def beside_other() -> Iterator[Ready]:
    yield from _beside(same=False)


@floor("alone", "get_at of 256, nobody writes")
def alone() -> Iterator[Callable]:
    with folder() as root:
        filled(ROWS, cache_path=root / "read").close()
        yield from _reading(root / "read")
