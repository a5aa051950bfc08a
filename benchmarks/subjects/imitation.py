"""What imitation learning reads: windows by column beside images, some columns of rows, statistics, cold frames."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Ready, Work, floor, ours

from unienv_data import FrameStackedBatch, ReplayBuffer, StepSampler, WindowedBatch, column_stats
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

from . import _page_cache
from ._data import folder, index_stream

COUNT, EPISODE, BATCH, FRAME = 20_000, 200, 64, (96, 128, 3)
FRAME_BYTES = int(np.prod(FRAME))
STATS_ROWS = 700_000


def works() -> list[Work]:
    megabytes = STATS_ROWS * 14 * 4 / 1e6
    return [
        Work("imitation", "2 states, a frame and 16 actions", "us", (by_column, by_hand, cut_windows)),
        Work("imitation", "two columns of rows with images", "us", (selected, two_columns)),
        Work("imitation", "a megabyte of column_stats", "ms", (stats,), per_call=megabytes),
        Work("imitation", "64 frames, cold", "ms", (frames_cold, pread_cold)),
    ]


def _space() -> DictSpace:
    backend = NumpyComputeBackend
    vector = BoxSpace(backend, -np.inf, np.inf, "float32", shape=(14,))
    cameras = BoxSpace(backend, 0, 255, "uint8", shape=FRAME)
    reward = BoxSpace(backend, -np.inf, np.inf, "float32", shape=())
    obs = DictSpace(backend, {"cam": cameras, "state": vector})
    return DictSpace(backend, {"obs": obs, "action": vector, "reward": reward})


def _filled(count: int = COUNT, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(_space(), capacity=count, keep_episodes=True, **options)
    rng = np.random.default_rng(0)
    for start in range(0, count, EPISODE):
        state, action = rng.normal(size=(2, EPISODE, 14)).astype(np.float32)
        frames = np.full((EPISODE, *FRAME), start % 251, np.uint8)
        buffer.extend({"obs": {"cam": frames, "state": state}, "action": action, "reward": state[:, 0]})
    return buffer


# -- windows ---------------------------------------------------------------------------------------------------


@ours("unienv", "StepSampler over WindowedBatch")
def by_column() -> Iterator[Callable]:
    with _filled() as buffer:
        windows = WindowedBatch(buffer, {"obs/state": [-1, 0], "obs/cam": [0], "action": range(16)})
        yield StepSampler(windows, BATCH, seed=0).sample


@floor("by hand", "columns of the storage at indices that are cut at the ends of episodes")
def by_hand() -> Iterator[Callable]:
    with _filled() as buffer:
        columns = [buffer.storage.get_column(keys) for keys in (("obs", "cam"), ("obs", "state"), ("action",))]
        cam, state, action = columns
        draw, before, after = index_stream(COUNT, BATCH), np.array([-1, 0]), np.arange(16)

        def read() -> Any:
            index = draw()
            first = (index // EPISODE * EPISODE)[:, None]
            states = np.maximum(index[:, None] + before, first)
            actions = np.minimum(index[:, None] + after, first + EPISODE - 1)
            return cam.gather(index, COUNT), state.gather(states, COUNT), action.gather(actions, COUNT)

        yield read


@ours("full windows, cut", "FrameStackedBatch of whole samples, of which a part is taken")
def cut_windows() -> Iterator[Callable]:
    with _filled() as buffer:
        sampler = StepSampler(FrameStackedBatch(buffer, 1, 15), BATCH, seed=0)

        def read() -> Any:
            data = sampler.sample()
            return data["obs"]["cam"][:, 1:2], data["obs"]["state"][:, :2], data["action"][:, 1:]

        yield read


# -- columns ---------------------------------------------------------------------------------------------------


@ours("unienv", "select of two columns, get_at")
def selected() -> Iterator[Callable]:
    with _filled(2_000) as buffer:
        small, index = buffer.select(["action", "obs/state"]), index_stream(2_000)
        yield lambda: small.get_at(index())


@floor("two columns", "get_column_at of each")
def two_columns() -> Iterator[Callable]:
    with _filled(2_000) as buffer:
        draw = index_stream(2_000)

        def read() -> Any:
            index = draw()
            return buffer.get_column_at(("action",), index), buffer.get_column_at(("obs", "state"), index)

        yield read


@ours("unienv", "column_stats of 14 floats, in memory")
def stats() -> Iterator[Callable]:
    space = DictSpace(NumpyComputeBackend, {"x": _space()["action"]})
    with ReplayBuffer.create(space, capacity=STATS_ROWS) as buffer:
        rng = np.random.default_rng(0)
        for _ in range(10):
            buffer.extend({"x": rng.normal(size=(STATS_ROWS // 10, 14)).astype(np.float32)})
        yield lambda: column_stats(buffer)


# -- cold ------------------------------------------------------------------------------------------------------


def _cold(open_and_read: Callable[[Path, np.ndarray], Any]) -> Iterator[Ready]:
    """Frames of a file that is in no cache; what reads them lets go of it afterwards."""
    with folder() as path:
        _filled(8_000, cache_path=path / "b").close()
        gc.collect()
        draw, kept = index_stream(8_000, BATCH), []

        def prepare() -> None:
            kept.clear()
            gc.collect()
            _page_cache.drop(path)

        yield Ready(lambda: kept.append(open_and_read(path / "b", draw())), prepare)


@ours("unienv", "load_from and get_column_at of the images")
def frames_cold() -> Iterator[Ready]:
    def read(path: Path, index: np.ndarray) -> Any:
        with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as buffer:
            return buffer.get_column_at(("obs", "cam"), index)

    yield from _cold(read)


@floor("pread", "the same bytes, a call for each frame")
def pread_cold() -> Iterator[Ready]:
    def read(path: Path, index: np.ndarray) -> np.ndarray:
        frames = np.empty((len(index), FRAME_BYTES), np.uint8)
        descriptor = os.open(next(path.rglob("block-0.bin")), os.O_RDONLY)
        try:
            for frame, at in zip(frames, index.tolist(), strict=True):
                os.preadv(descriptor, [frame], at * FRAME_BYTES)
        finally:
            os.close(descriptor)
        return frames

    yield from _cold(read)
