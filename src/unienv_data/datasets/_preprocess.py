"""Applying a function to all samples of a storage, chunk by chunk, in this process or in workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from ..base.files import remove_leftovers, replace_folder
from ._storage import SampleStorage
from .tensordict_storage import TensorDictStorage
from .tensordicts import TensorDictBase, from_buffer, to_buffer, torch

_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Plan:
    """The chunks and processes of the work; see `ExperienceReplay.preprocess`."""

    chunksize: int | None
    num_chunks: int | None
    num_workers: int | None
    pool: Any
    generator: torch.Generator | None
    max_tasks_per_child: int | None
    worker_threads: int
    progress: bool
    start_method: str | None

    def __post_init__(self) -> None:
        if self.chunksize is not None and self.num_chunks is not None:
            raise ValueError("chunksize and num_chunks were both given: pass only one of them")
        if self.pool is not None and self.num_workers is not None:
            raise ValueError("pool and num_workers were both given: a pool has its workers")
        if self.max_tasks_per_child is not None and self.max_tasks_per_child < 1:
            raise ValueError(f"max_tasks_per_child is {self.max_tasks_per_child}, it must be at least 1")

    def chunks(self, storage: SampleStorage, count: int) -> list[tuple[int, int]]:
        """Return the range [start, stop) of samples of each chunk."""
        if self.num_chunks is not None:
            if self.num_chunks < 1:
                raise ValueError(f"num_chunks is {self.num_chunks}, it must be at least 1")
            size = -(-count // self.num_chunks)
        elif self.chunksize:
            size = self.chunksize
        else:
            _, buffer = to_buffer(storage.get(np.zeros(1, np.int64)))
            size = max(1, _CHUNK_BYTES // max(1, len(buffer)))
        return [(start, min(start + size, count)) for start in range(0, count, max(1, size))]


def preprocess(
    storage: SampleStorage, fn: Callable[[Any], Any], dest: Path, num_frames: int | None, plan: Plan
) -> TensorDictStorage:
    """Write the function's results to a new folder, which is removed on failure."""
    count = len(storage) if num_frames is None else min(num_frames, len(storage))
    if count < 1:
        raise ValueError(f"{count} samples, preprocess needs at least one")
    if dest.exists() and any(dest.iterdir()):
        raise FileExistsError(f"{dest} is not empty: give another dest")
    dest.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(dest)
    temporary = dest.with_name(f".{dest.name}.{os.getpid()}.tmp")
    task = _Task(cloudpickle.dumps(fn), plan.chunksize == 0, _seed(plan.generator))
    chunks = plan.chunks(storage, count)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        written = TensorDictStorage(count, cache_path=temporary)
        undo.callback(written.close)
        results = undo.enter_context(contextlib.closing(_results(storage, task, chunks, plan)))
        for (start, stop), (description, buffer) in zip(chunks, _with_progress(results, chunks, plan), strict=True):
            result = from_buffer(description, buffer)
            if not result.batch_dims or len(result) != stop - start:
                raise ValueError(
                    f"the function returned shape {tuple(result.batch_size)} for the {stop - start} samples from "
                    f"{start} on: it must return as many samples"
                )
            written.extend(result, stop - start)
        written.close()
        replace_folder(temporary, dest)
        undo.pop_all()
    return TensorDictStorage.open(dest, read_only=False)


def _seed(generator: torch.Generator | None) -> int | None:
    return None if generator is None else int(torch.randint(2**62, (), generator=generator))


def _with_progress(results: Iterator[Any], chunks: list[tuple[int, int]], plan: Plan) -> Any:
    from tqdm import tqdm

    return tqdm(results, total=len(chunks), unit="chunk", disable=not plan.progress)


@dataclass(frozen=True)
class _Task:
    """The work on a chunk; pickled for the workers."""

    pickled_fn: bytes
    is_single: bool
    seed: int | None

    def __call__(self, number: int, description: dict[str, Any], buffer: np.ndarray) -> tuple[dict[str, Any], Any]:
        if self.seed is not None:
            torch.manual_seed(self.seed + number)
        fn, data = cloudpickle.loads(self.pickled_fn), from_buffer(description, buffer)
        result = torch.stack([fn(data[number]) for number in range(len(data))]) if self.is_single else fn(data)
        if not isinstance(result, TensorDictBase):
            raise TypeError(f"the function returned {type(result).__name__}, wanted a TensorDict")
        return to_buffer(result)


def _results(
    storage: SampleStorage, task: _Task, chunks: list[tuple[int, int]], plan: Plan
) -> Generator[Any, None, None]:
    """Yield the result of each chunk, in order; at most a few chunks are in memory."""
    inputs = ((number, *to_buffer(storage.get(np.arange(*chunk)))) for number, chunk in enumerate(chunks))
    if plan.pool is not None:
        yield from _in_order(inputs, lambda chunk: plan.pool.apply_async(task, chunk).get, 2 * plan.pool._processes)
    elif plan.num_workers is None or plan.num_workers < 1:
        with torch.random.fork_rng(devices=[], enabled=task.seed is not None):
            for chunk in inputs:
                yield task(*chunk)
    else:
        with _Workers(plan) as workers:
            yield from _in_order(inputs, lambda chunk: workers.submit(task, *chunk).result, 2 * plan.num_workers)


class _Workers:
    """Processes that take turns, each replaced after `max_tasks_per_child` tasks.

    Each process has its own executor, since an executor does not replace forked processes.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._count = plan, plan.num_workers or 1
        self._executors: list[ProcessPoolExecutor | None] = [None] * self._count
        self._tasks = [0] * self._count
        self._turn = 0

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        worker, self._turn = self._turn, (self._turn + 1) % self._count
        executor = self._executors[worker]
        if executor is not None and self._tasks[worker] == self._plan.max_tasks_per_child:
            executor.shutdown(wait=False)
            executor = None
        if executor is None:
            context = multiprocessing.get_context(self._plan.start_method or "spawn")
            executor = ProcessPoolExecutor(
                1, context, initializer=torch.set_num_threads, initargs=(self._plan.worker_threads,)
            )
            self._executors[worker], self._tasks[worker] = executor, 0
        self._tasks[worker] += 1
        return executor.submit(fn, *args)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for executor in self._executors:
            if executor is not None:
                executor.shutdown(wait=True, cancel_futures=True)


def _in_order(inputs: Iterator[Any], start: Callable[[Any], Callable[[], Any]], ahead: int) -> Iterator[Any]:
    waiting: deque[Callable[[], Any]] = deque()
    for chunk in inputs:
        waiting.append(start(chunk))
        if len(waiting) >= ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()
