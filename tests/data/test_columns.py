"""Columns kept by rules: one set of counters and episodes over packed rows, images and videos."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("PIL")

from file_storages import run
from record_frames import assert_same, create, rules, sample, samples, space

from unienv_data import (
    Image,
    MultiprocessingSampler,
    ReplayBuffer,
    SliceStackedBatch,
    StepSampler,
    Video,
    check,
    column_stats,
    repair,
)
from unienv_data.checking import convert, info
from unienv_data.storages.columns import column_rules
from unienv_data.storages.dict_storage import DictStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace

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


@pytest.mark.parametrize(("kind", "kills"), [("ffv1", 10), ("png", 3)])
def test_every_acknowledged_frame_survives_a_kill(kind: str, kills: int, tmp_path: Path) -> None:
    assert "none lost" in run("record_frames.py", str(tmp_path / "a"), kind, str(kills), str(os.getpid()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(15))
def test_every_acknowledged_frame_survives_300_kills(seed: int, tmp_path: Path) -> None:
    assert "none lost" in run("record_frames.py", str(tmp_path / "a"), "ffv1", "20", str(seed))
    shutil.rmtree(tmp_path / "a")
