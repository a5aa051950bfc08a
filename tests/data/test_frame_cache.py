"""Decoded frames kept on disk, and frames as they are wanted of columns of video."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from frames import frames
from record_frames import create, sample, samples

from unienv_data import Decode, MultiprocessingSampler, ReplayBuffer, StepSampler, StorageCorruptedError
from unienv_data.storages._frame_cache import FrameCache, bytes_of
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace

# This process may have threads of other tests' libraries; the forks use none of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

LOAD: Any = {"backend": NumpyComputeBackend}
SHAPE = (6, 8, 3)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording") / "a"
    with create(folder, "ffv1") as buffer:
        for number in range(20):
            buffer.append(sample(number))
            if number % 7 == 6:
                buffer.mark_segment_end()
        buffer.mark_segment_end()
    return folder


def caches(folder: Path) -> list[Path]:
    return sorted((folder / "storage").glob("*/cache-*"))


def test_frames_of_columns_come_cropped_resized_and_from_the_cache(recording: Path) -> None:
    wanted = samples(range(20))["obs"]["cam_1"]
    columns = {"obs/cam_1": Decode(crop=(4, 8, 16, 20)), "obs/cam_2": Decode(resize=(12, 16))}
    for _ in range(2):
        with ReplayBuffer.load_from(recording, columns=columns, frame_cache="1MB", **LOAD) as buffer:
            assert buffer.single_space["obs"]["cam_1"].shape == (16, 20, 3)
            assert buffer.single_space["obs"]["cam_2"].shape == (12, 16, 3)
            found = buffer.get_at([3, 19, 3])
            assert np.array_equal(found["obs"]["cam_1"], wanted[[3, 19, 3], 4:20, 8:28])
            assert np.array_equal(found["obs"]["depth"], samples([3, 19, 3])["obs"]["depth"])
            means = samples([3, 19, 3])["obs"]["cam_2"].reshape(3, 12, 2, 16, 2, 3).mean(axis=(2, 4))
            assert np.abs(found["obs"]["cam_2"] - means).mean() < 2
            assert np.array_equal(buffer.get_column(["obs", "cam_1"]).get_at(19), wanted[19, 4:20, 8:28])
            assert buffer.single_space.contains(buffer.get_at(0))
    assert [path.name.rpartition("-")[0] for path in caches(recording)] == [
        "cache-4-8-16-20-16-20-3",
        "cache-12-16-3",
        "cache-24-32",
    ]


def test_workers_of_a_sampler_have_the_same_frames(recording: Path) -> None:
    columns = {"obs/cam_*": Decode(resize=(12, 16))}
    with ReplayBuffer.load_from(recording, columns=columns, frame_cache=10**6, **LOAD) as buffer:
        wanted = buffer.get_at(...)["obs"]["cam_1"]
        for method in ("fork", "spawn"):
            steps = StepSampler(buffer, batch_size=5, seed=0)
            workers = MultiprocessingSampler(steps, n_workers=1, ctx=multiprocessing.get_context(method))
            try:
                batch = workers.sample()
            finally:
                workers.close()
            assert np.array_equal(batch["obs"]["cam_1"], wanted[batch["n"]])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": {"obs/state": Decode()}}, r"names no column of video, these are \['obs/cam_1'"),
        ({"columns": {"obs/cam_1": Decode((0, 3))}}, r"resize is \(0, 3\)"),
        ({"columns": {"obs/cam_1": Decode(crop=(4, 4, 99, 4))}}, r"crop is \(4, 4, 99, 4\)"),
        ({"frame_cache": "many"}, "'many' is no number of bytes"),
        ({"frame_cache": 100}, "frame_cache of 33 bytes, a frame takes"),
    ],
)
def test_wishes_that_cannot_be_met(options: Any, text: str, recording: Path) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        ReplayBuffer.load_from(recording, **options, **LOAD)
    assert not isinstance(caught.value, StorageCorruptedError)  # the folder is sound


def test_other_buffers_have_no_video(tmp_path: Path) -> None:
    space = BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(2,))
    ReplayBuffer.create(space, cache_path=tmp_path / "a", capacity=3).close()
    with pytest.raises(ValueError, match=r"has no columns of video, which \['resize'\] is for"):
        ReplayBuffer.load_from(tmp_path / "a", resize=(2, 2), **LOAD)


# -- the cache alone ---------------------------------------------------------------------------------------


def cache_of(folder: Path, count: int, name: str = "form") -> FrameCache:
    nbytes = int(np.prod(SHAPE))
    return FrameCache(folder, name, SHAPE, np.dtype(np.uint8), count * (nbytes + 8))


def read(cache: FrameCache, numbers: Any, mark: int = 7) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros((len(numbers), *SHAPE), np.uint8)
    return cache.get(np.asarray(numbers), np.full(len(numbers), mark), out), out


def put(cache: FrameCache, numbers: Any, mark: int = 7) -> None:
    numbers = np.asarray(numbers)
    cache.put(numbers, np.full(len(numbers), mark), pictures(numbers))


def pictures(numbers: Any) -> np.ndarray:
    return np.stack([frames(1, SHAPE, first=int(number))[0] for number in numbers])


def test_what_was_put_is_there_until_another_takes_its_place(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 10)
    put(cache, range(6))
    is_there, found = read(cache, [5, 9, 0, 5])
    assert is_there.tolist() == [True, False, True, True]
    assert np.array_equal(found[is_there], pictures([5, 0, 5]))
    assert not read(cache, [5], mark=8)[0].any()  # of another video, whose samples have the same numbers
    put(cache, [15, 10])
    assert read(cache, [5, 15, 0, 10, 1])[0].tolist() == [False, True, False, True, True]
    again = cache_of(tmp_path, 10)
    assert np.array_equal(read(again, [15])[1], pictures([15]))
    files = list(tmp_path.rglob("*.bin"))
    assert sum(path.stat().st_size for path in files) <= 10 * (np.prod(SHAPE) + 8)
    for one in (cache, again):
        one.close()


def test_a_cache_of_another_size_is_deleted_once_nobody_uses_it(tmp_path: Path) -> None:
    first, second = cache_of(tmp_path, 10), cache_of(tmp_path, 4, "other")
    put(first, [3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache-form-10", "cache-other-4"]
    first.close()
    second.close()
    cache_of(tmp_path, 4).close()
    assert [path.name for path in tmp_path.iterdir()] == ["cache-form-4"]


def test_a_damaged_frame_is_not_there(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 4)
    put(cache, range(4))
    (path,) = tmp_path.rglob("frames.bin")
    content = bytearray(path.read_bytes())
    content[int(np.prod(SHAPE)) + 3] ^= 16
    path.write_bytes(content)
    assert read(cache, range(4))[0].tolist() == [True, False, True, True]
    cache.close()


def _write_and_read(folder: Path, seed: int) -> None:
    rng, cache = np.random.default_rng(seed), cache_of(folder, 3)
    known = pictures(range(12))
    for _ in range(300):
        numbers = rng.integers(0, 12, 4)
        cache.put(numbers, np.full(4, 7), known[numbers])
        is_there, found = read(cache, numbers)
        if not np.array_equal(found[is_there], known[numbers[is_there]]):
            os._exit(3)


def test_processes_that_write_at_once_never_read_half_a_frame(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_and_read, args=(tmp_path, seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]


@pytest.mark.parametrize(("text", "count"), [("20GB", 20 * 10**9), ("1.5 MB", 1_500_000), ("300", 300), (7, 7)])
def test_numbers_of_bytes(text: Any, count: int) -> None:
    assert bytes_of(text) == count
