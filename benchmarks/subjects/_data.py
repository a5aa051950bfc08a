"""The data that contenders work on, the same for all of them, and our buffers filled with it.

A transition has an observation and a next observation of 17 floats, an action of 6, a reward and two flags. An image
is 84x84x4 bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unienv_data import ReplayBuffer
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace
from unienv_interface.space.row_layout import RowLayout, Rows

ROWS, BATCH, EPISODE = 1_000_000, 256, 1000
IMAGE_SHAPE, IMAGES = (84, 84, 4), 8192
FLOAT_SHAPES: dict[str, tuple[int, ...]] = {"obs": (17,), "next_obs": (17,), "action": (6,), "reward": ()}
FLAGS = ("terminated", "truncated")

Columns = dict[str, np.ndarray]


def transition_space(backend: ComputeBackend = NumpyComputeBackend) -> DictSpace:
    floats = {name: BoxSpace(backend, -np.inf, np.inf, "float32", shape=shape) for name, shape in FLOAT_SHAPES.items()}
    return DictSpace(backend, {**floats, **{name: BinarySpace(backend, ()) for name in FLAGS}})


def transitions(count: int, seed: int = 0) -> Columns:
    """Random transitions; the last of every `EPISODE` is truncated."""
    rng = np.random.default_rng(seed)
    floats = {name: rng.random((count, *shape), dtype=np.float32) for name, shape in FLOAT_SHAPES.items()}
    ends = np.arange(1, count + 1) % EPISODE == 0
    return {**floats, "terminated": np.zeros(count, np.bool_), "truncated": ends}


def one_transition() -> Columns:
    return {name: column[0] for name, column in transitions(1).items()}


def in_chunks(count: int, chunk: int = 100_000) -> Iterator[Columns]:
    """Transitions in batches; the same numbers come again in each, which costs a reader the same and is made faster."""
    batch = transitions(min(count, chunk))
    for start in range(0, count, chunk):
        yield batch if count - start >= chunk else {name: part[: count - start] for name, part in batch.items()}


def filled(
    count: int = ROWS, backend: ComputeBackend = NumpyComputeBackend, *, chunk: int = 100_000, **options: Any
) -> ReplayBuffer:
    """A buffer of ours that is full of transitions, written `chunk` (an episode, where they are kept) at a time."""
    buffer = ReplayBuffer.create(transition_space(backend), **{"capacity": count, "keep_episodes": False, **options})
    for batch in in_chunks(count, chunk):
        buffer.extend({name: backend.from_numpy(column) for name, column in batch.items()})
    return buffer


def filled_rows(count: int = ROWS) -> Rows:
    """Transitions as bare rows of the layout that our buffers have."""
    layout = RowLayout(transition_space())
    rows = layout.empty(count)
    start = 0
    for batch in in_chunks(count):
        stop = start + len(batch["reward"])
        layout.pack(rows, slice(start, stop), batch)
        start = stop
    return rows


def records_of(buffer: ReplayBuffer) -> np.ndarray:
    """The very memory a buffer reads from: a floor over other memory would differ in its pages, not in its code."""
    storage: Any = buffer.storage
    records: np.ndarray = storage._memory.rows.records
    return records


def bare_columns(count: int = ROWS) -> Columns:
    """Columns of rows that lie side by side, as in our buffers: what assigning to them takes, no write can go below."""
    dtype = np.dtype(
        [*((name, np.float32, shape) for name, shape in FLOAT_SHAPES.items()), *((name, np.bool_) for name in FLAGS)],
        align=True,
    )
    rows = np.zeros(count, dtype)
    rows["obs"] = 1  # memory that was written before, as in a full buffer
    return {name: rows[name] for name in rows.dtype.names or ()}


def index_stream(count: int, batch: int = BATCH, seed: int = 0) -> Callable[[], np.ndarray]:
    """Gives random indices that were drawn in advance, over and over."""
    rng = np.random.default_rng(seed)
    return itertools.cycle([rng.integers(0, count, batch) for _ in range(2048)]).__next__


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *IMAGE_SHAPE), np.uint8)


def image_space(backend: ComputeBackend = NumpyComputeBackend) -> BoxSpace:
    return BoxSpace(backend, 0, 255, "uint8", shape=IMAGE_SHAPE)


def filled_with_images(backend: ComputeBackend = NumpyComputeBackend, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(image_space(backend), capacity=IMAGES, **options)
    batch = backend.from_numpy(images(1024))
    for _ in range(IMAGES // 1024):
        buffer.extend(batch)
    return buffer


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder on disk that does not stay."""
    with tempfile.TemporaryDirectory(prefix="unienv-bench-") as path:
        yield Path(path)
