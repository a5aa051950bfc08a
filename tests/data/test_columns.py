"""Columns kept by rules: one set of counters and episodes over packed rows, images and videos."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("PIL")

from file_storages import run
from frames import frame
from record_frames import SHAPE, assert_same, create, rules, sample, samples, space
from test_replay_buffer_bit_rot import flip, flips, is_reported

from unienv_data import (
    Image,
    MultiprocessingSampler,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    SliceStackedBatch,
    StepSampler,
    StorageCorruptedError,
    Video,
    check,
    column_stats,
    repair,
    transition_space,
)
from unienv_data.checking import _convert, convert, info
from unienv_data.storages import _episode_encoder
from unienv_data.storages.columns import column_rules
from unienv_data.storages.dict_storage import DictStorage
from unienv_interface import SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.spaces import BoxSpace, DictSpace

LOAD: Any = {"backend": NumpyComputeBackend}
LOSSLESS = ["ffv1", "png"]


def record(folder: Path, kind: str, lengths: tuple[int, ...] = (5, 9, 4), **options: Any) -> ReplayBuffer:
    buffer, number = create(folder, kind, **options), 0
    for length in lengths:
        for _ in range(length):
            buffer.append(sample(number))
            number += 1
        buffer.mark_segment_end()
    return buffer


@pytest.mark.parametrize("kind", LOSSLESS)
def test_samples_windows_and_columns_are_as_they_were_written(kind: str, tmp_path: Path) -> None:
    with record(tmp_path / "a", kind) as buffer:
        assert isinstance(buffer.storage, DictStorage)
        assert sorted(buffer.storage.storage_map) == ["*", "obs/cam_1", "obs/cam_2", "obs/depth"]
        buffer.storage.settle()
        assert_same(buffer.get_at(...), samples(range(18)))
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert buffer.get_segments() == [(0, 5), (5, 14), (14, 18)]
        assert_same(buffer.get_at([17, 0, 0, 6]), samples([17, 0, 0, 6]))
        one = buffer.get_at(3)
        assert np.array_equal(one["obs"]["depth"], sample(3)["obs"]["depth"])
        windows = SliceStackedBatch(buffer, [-2, -1, 0, 1]).get_at([5, 13])
        assert windows["n"].tolist() == [[5, 5, 5, 6], [11, 12, 13, 13]]
        assert np.array_equal(windows["obs"]["cam_1"][1], samples([11, 12, 13, 13])["obs"]["cam_1"])
        column = buffer.get_column(["obs", "cam_2"]).get_at([2, 16])
        assert np.array_equal(column, samples([2, 16])["obs"]["cam_2"])
        rule = rules(kind)["obs/cam_*"]
        assert {name: type(rule) for name, rule in column_rules(buffer.storage).items()} == {
            "obs/cam_1": type(rule),
            "obs/cam_2": type(rule),
            "obs/depth": type(rules(kind)["obs/depth"]),
        }
        assert buffer.verify() == []


def test_only_the_columns_that_are_read_are_decoded(tmp_path: Path) -> None:
    record(tmp_path / "a", "ffv1").close()
    for path in (tmp_path / "a").rglob("*.avi"):
        path.write_bytes(b"no video")
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert buffer.get_column(["obs", "state"]).get_at([3, 1])[:, 0].tolist() == [3, 1]
        with pytest.raises(ValueError, match="a video cannot be read"):
            buffer.get_column(["obs", "cam_1"]).get_at([3])


@pytest.mark.parametrize("kind", LOSSLESS)
def test_samplers_and_their_workers_read_them(kind: str, tmp_path: Path) -> None:
    record(tmp_path / "a", kind).close()
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        batch = StepSampler(buffer, batch_size=6, seed=0).sample()
        assert_same(batch, samples(batch["n"]))
        workers = MultiprocessingSampler(StepSampler(buffer, batch_size=6, seed=0), n_workers=2)
        try:
            found = [workers.sample() for _ in range(4)]
        finally:
            workers.close()
        for batch in found:
            assert_same(batch, samples(batch["n"]))


def test_check_info_stats_convert_and_repair_know_them(tmp_path: Path) -> None:
    record(tmp_path / "a", "ffv1").close()
    report = info(tmp_path / "a")
    assert report.episodes == 3
    spaces = {column.name: column.space for column in report.columns}
    assert spaces["obs/cam_1"].endswith("kept as ffv1 video")
    assert not [finding for finding in check(tmp_path / "a").findings if finding.severity == "error"]
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        stats = column_stats(buffer)
        assert {"obs/cam_1", "obs/state"} <= set(stats)
    for fmt in ("packed", "npz"):
        convert(tmp_path / "a", tmp_path / fmt, fmt)
        with ReplayBuffer.load_from(tmp_path / fmt, **LOAD) as buffer:
            assert_same(buffer.get_at(...), samples(range(18)))
            assert buffer.get_segments() == [(0, 5), (5, 14), (14, 18)]
            assert bool(column_rules(buffer.storage)) == (fmt == "packed")
    damaged = next((tmp_path / "a" / "storage").glob("*/5-13-*.avi"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert any("do not match" in str(finding) for finding in check(tmp_path / "a").findings)
    repaired = repair(tmp_path / "a", tmp_path / "b")
    assert (repaired.samples, repaired.episodes) == (9, 2)
    with ReplayBuffer.load_from(tmp_path / "b", **LOAD) as buffer:
        assert_same(buffer.get_at(...), samples([*range(5), *range(14, 18)]))
        assert set(column_rules(buffer.storage)) == {"obs/cam_1", "obs/cam_2", "obs/depth"}


def test_dumps_and_rings(tmp_path: Path) -> None:
    with record(tmp_path / "a", "ffv1", (6, 3, 8, 5), capacity=12) as buffer:
        assert_same(buffer.get_at(...), samples(range(10, 22)))
        buffer.dumps(tmp_path / "b")
        with pytest.raises(PermissionError, match="cannot be overwritten"):
            buffer.set_at(0, sample(0))
        assert_same(buffer.get_at(...), samples(range(10, 22)))
    with ReplayBuffer.load_from(tmp_path / "b", read_only=False, **LOAD) as buffer:
        assert_same(buffer.get_at(...), samples(range(10, 22)))
        buffer.extend(samples(range(22, 25)))
        assert_same(buffer.get_at(...), samples(range(13, 25)))


def test_images_need_no_folder() -> None:
    with ReplayBuffer.create(space(), columns={"obs/cam_*": Image("png")}, capacity=4) as buffer:
        buffer.extend(samples(range(6)))
        assert_same(buffer.get_at(...), samples(range(2, 6)))


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"obs/cam": Video()}, {}, r"columns 'obs/cam' names none of .*obs/cam_1"),
        ({"obs/state": Image()}, {}, "frames are uint8 or uint16 of shape"),
        ({"obs/cam_*": Video()}, {"lanes": 2}, "lanes must be 1, not 2"),
        ({"obs/cam_*": Video()}, {"cache_path": None}, "give cache_path"),
    ],
)
def test_rules_that_do_not_fit_are_refused(columns: Any, options: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        ReplayBuffer.create(space(), columns=columns, **{"cache_path": tmp_path / "a", **options})


def test_samples_without_columns_have_no_rules(tmp_path: Path) -> None:
    box = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=(8, 8))
    with pytest.raises(ValueError, match=r"name the storage instead"):
        ReplayBuffer.create(box, columns={"*": Image()})


@pytest.mark.parametrize(("kind", "kills"), [("ffv1", 6), ("png", 2)])
def test_every_acknowledged_frame_survives_a_kill(kind: str, kills: int, tmp_path: Path) -> None:
    assert "none lost" in run("record_frames.py", str(tmp_path / "a"), kind, str(kills), str(os.getpid()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(15))
def test_every_acknowledged_frame_survives_300_kills(seed: int, tmp_path: Path) -> None:
    assert "none lost" in run("record_frames.py", str(tmp_path / "a"), "ffv1", "20", str(seed))
    shutil.rmtree(tmp_path / "a")


# -- damage ---------------------------------------------------------------------------------------------------


def flip_bits(folder: Path, kind: str, count: int, seed: int) -> int:
    """Flip one bit after the other: it is reported, also after an append, or no frame is another; how many were."""
    chance, reported = random.Random(seed), 0
    origin, work = folder / "origin", folder / "work"
    record(origin, kind, (3, 4)).close()
    with ReplayBuffer.load_from(origin, read_only=False, **LOAD) as buffer:
        buffer.append(sample(7))  # as it was recorded, until its episode ends
    assert not is_reported(origin)
    for path, bit in flips(origin, count, chance):
        shutil.copytree(origin, work)
        flip(work / path.relative_to(origin), bit)
        what = f"seed {seed}: bit {bit} of {path.relative_to(origin)}"
        is_found = is_reported(work)
        reported += is_found
        findings = [finding for finding in check(work).findings if finding.kind != "unfinished-episode"]
        assert is_found == bool(findings), what
        with (
            contextlib.suppress(StorageCorruptedError),
            ReplayBuffer.load_from(work, read_only=False, **LOAD) as buffer,
        ):
            buffer.append(sample(8))
        if not is_reported(work):
            with ReplayBuffer.load_from(work, **LOAD) as buffer:
                assert_same(buffer.get_at(...), samples(range(len(buffer))))
        shutil.rmtree(work)
    return reported


@pytest.mark.parametrize("kind", LOSSLESS)
def test_flipped_bits_in_columns_of_frames(kind: str, tmp_path: Path) -> None:
    assert flip_bits(tmp_path, kind, 15, seed=0) > 7


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_thousand_flipped_bits_in_columns_of_frames(kind: str, tmp_path: Path) -> None:
    assert flip_bits(tmp_path, kind, 1000, seed=1) > 500


# -- recorded ------------------------------------------------------------------------------------------------


class CameraEnv(Env):
    """Frame n of a texture after n steps in all; episodes of four steps."""

    backend, context_space = NumpyComputeBackend, None
    action_space = BoxSpace(NumpyComputeBackend, -1.0, 1.0, "float32", shape=(2,))
    observation_space = DictSpace(
        NumpyComputeBackend,
        {
            "cam": BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=SHAPE),
            "count": BoxSpace(NumpyComputeBackend, 0.0, np.inf, "float32", shape=(1,)),
        },
    )

    def __init__(self, first: int = 0) -> None:
        self.count, self.steps = first, 0

    def observation(self) -> dict[str, Any]:
        return {"cam": frame(self.count, SHAPE), "count": np.array([self.count], np.float32)}

    def reset(self, **options: Any) -> tuple[None, Any, dict[str, Any]]:
        self.steps = 0
        return None, self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count, self.steps = self.count + 1, self.steps + 1
        return self.observation(), 0.0, self.steps == 4, False, {}

    def render(self) -> None:
        return None


def camera_buffer(env: Env, path: Path, **options: Any) -> ReplayBuffer:
    return ReplayBuffer.create(transition_space(env), columns={"*obs/cam": Video("ffv1")}, cache_path=path, **options)


def assert_frames_are_of_their_steps(buffer: ReplayBuffer, steps: int) -> None:
    samples = buffer.get_at(...)
    for key in ("obs", "next_obs"):
        wanted = np.stack([frame(int(count), SHAPE) for count in samples[key]["count"][:, 0]])
        assert np.array_equal(samples[key]["cam"], wanted)
    assert len(buffer) == steps
    assert buffer.verify() == []


def play(wrapper: ReplayBufferCollectionWrapper, steps: int) -> None:
    wrapper.reset()
    for _ in range(steps):
        *_, terminated, truncated, _ = wrapper.step(wrapper.sample_action())
        ended = np.logical_or(terminated, truncated)
        if np.any(ended):
            wrapper.reset(mask=ended) if np.ndim(ended) else wrapper.reset()


def test_an_environment_with_a_camera_is_recorded(tmp_path: Path) -> None:
    env = CameraEnv()
    buffer = camera_buffer(env, tmp_path / "a")
    assert set(column_rules(buffer.storage)) == {"obs/cam", "next_obs/cam"}
    with buffer, ReplayBufferCollectionWrapper(env, buffer) as wrapper:
        play(wrapper, 10)
        assert wrapper.discard_episode() == 2
        play(wrapper, 5)
        buffer.mark_segment_end()
        buffer.storage.settle()
        assert_frames_are_of_their_steps(buffer, 13)
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert buffer.get_segments() == [(0, 4), (4, 8), (8, 12), (12, 13)]
        assert_frames_are_of_their_steps(buffer, 13)


def test_environments_with_cameras_are_recorded_to_a_buffer_each(tmp_path: Path) -> None:
    envs = SyncVecEnv([CameraEnv, lambda: CameraEnv(50)])
    buffers = [camera_buffer(CameraEnv(), tmp_path / str(number)) for number in range(2)]
    with ReplayBufferCollectionWrapper(envs, buffers, replay_mode="per_env") as wrapper:
        play(wrapper, 9)
    for buffer in buffers:
        buffer.storage.settle()
        assert_frames_are_of_their_steps(buffer, 9)
        assert (buffer.get_segments() or [])[:2] == [(0, 4), (4, 8)]
        buffer.close()
    with pytest.raises(ValueError, match="record each environment to a buffer of its own"):
        camera_buffer(CameraEnv(), tmp_path / "lanes", lanes=2)


def test_samples_are_copied_into_columns_of_video_and_out_of_them(tmp_path: Path) -> None:
    with record(tmp_path / "a", "ffv1") as source, create(tmp_path / "b", "ffv1") as target:
        target.extend_from(source)
        target.storage.settle()
        assert_same(target.get_at(...), samples(range(18)))
        assert target.get_segments() == source.get_segments()
        plain = ReplayBuffer.create(space(), keep_episodes=True)
        plain.extend_from(target)
        plain.set_at(2, sample(99))
        assert_same(plain.get_at(...), samples([0, 1, 99, *range(3, 18)]))
        source.clear()
        assert not list((tmp_path / "a").rglob("*.avi"))
        source.extend(samples(range(3)))
        assert_same(source.get_at(...), samples(range(3)))


def test_a_conversion_tells_of_the_frames_that_are_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", "ffv1").close()
    told: list[tuple[int, int]] = []
    first_told, encode = threading.Event(), _episode_encoder.encode_video

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        if total > 18:
            first_told.set()

    def wait(*arguments: Any) -> int:
        assert first_told.wait(60)
        return encode(*arguments)

    monkeypatch.setattr(_episode_encoder, "encode_video", wait)
    monkeypatch.setattr(_convert, "_SETTLE_SECONDS", 0.01)
    convert(tmp_path / "a", tmp_path / "b", "packed", progress=progress)
    assert (18, 18) in told
    assert told[-1][1] == 18 + 3 * 18  # three columns
    assert all(earlier <= later for earlier, later in itertools.pairwise(told))
