"""Recordings go to LeRobot's layout and come back equal, and LeRobot itself opens them where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import BatchBase, ReplayBuffer, export_lerobot
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.base import ComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, DynamicBoxSpace, TextSpace

pytest.importorskip("av")
pq: Any = pytest.importorskip("pyarrow.parquet")

from unienv_data.integrations import _lerobot_writing  # noqa: E402
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset  # noqa: E402

NUMPY = NumpyComputeBackend
FOLDER = Path(__file__).parent / "lerobot_folders"
LENGTHS = (12, 1, 23)
NAMES = {
    "observation.images.front": "obs/front",
    "observation.images.side": "obs/side",
    "observation.joints": "obs/joints",
    "observation.word": "obs/word",
    "action": "action",
    "next.reward": "reward",
    "next.terminated": "terminated",
    "matrix": "matrix",
    "level": "level",
}


def space_of(backend: ComputeBackend, **more: Any) -> DictSpace:
    observation = {
        "front": BoxSpace(backend, 0, 255, "uint8", shape=(48, 64, 3)),
        "side": BoxSpace(backend, 0, 255, "uint8", shape=(3, 65, 51)),
        "joints": BoxSpace(backend, -9, 9, "float32", shape=(7,)),
        "word": TextSpace(backend, 5),
    }
    children = {
        "obs": DictSpace(backend, observation),
        "next_obs": DictSpace(backend, {"joints": observation["joints"]}),
        "action": BoxSpace(backend, -1, 1, "float64", shape=(2,)),
        "reward": BoxSpace(backend, -np.inf, np.inf, "float32", shape=()),
        "terminated": BinarySpace(backend, ()),
        "matrix": BoxSpace(backend, 0, 1, "float32", shape=(2, 3)),
        "level": BoxSpace(backend, 0, 9, "int16", shape=()),
        **more,
    }
    return DictSpace(backend, children)


def recorded(backend: ComputeBackend = NUMPY, **more: Any) -> ReplayBuffer:
    """Three episodes, the last of which was never closed."""
    space = space_of(backend, **more)
    buffer = ReplayBuffer.create(space, maintain_segment_metadata=True)
    rng = backend.random.random_number_generator(0)
    rows, columns = np.mgrid[:65, :64]
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            rng, sample = space.sample(rng)
            picture = np.stack([columns * 3 + step, rows * 3, rows * 0 + 70 * episode], -1).clip(0, 255).astype("uint8")
            sample["obs"]["front"] = backend.from_numpy(picture[:48])
            sample["obs"]["side"] = backend.from_numpy(np.moveaxis(picture[:, :51], -1, 0).copy())
            buffer.append(sample)
        if episode < len(LENGTHS) - 1:
            buffer.mark_segment_end()
    return buffer


def read_back(path: Path) -> LeRobotAsUniEnvDataset:
    return LeRobotAsUniEnvDataset.from_local(path, NUMPY)


def column(batch: BatchBase, path: str) -> np.ndarray:
    values = batch.get_column(path.split("/")).get_at(...)
    values = values if isinstance(values, np.ndarray) else batch.backend.to_numpy(values)
    return np.moveaxis(values, 1, -1) if path == "obs/side" else values


@pytest.mark.parametrize("backend", [NUMPY, PyTorchComputeBackend], ids=str)
def test_a_recording_comes_back_equal(tmp_path: Path, backend: ComputeBackend) -> None:
    buffer = recorded(backend)
    seen: list[tuple[int, int]] = []
    report = export_lerobot(
        buffer,
        tmp_path / "out",
        fps=30,
        task=["lift", "push", "lift"],
        robot_type="arm",
        progress=lambda done, total: seen.append((done, total)),
    )
    dataset = read_back(tmp_path / "out")
    assert (report.episodes, report.frames, sorted(report.features)) == (3, 36, sorted(NAMES))
    assert seen == [(0, 36), (12, 36), (13, 36), (36, 36)]
    assert dataset.get_segments() == [(0, 12), (12, 13), (13, 36)]
    assert (dataset.fps, dataset.meta.info["robot_type"], dataset.meta.info["total_tasks"]) == (30, "arm", 2)
    found = dataset.get_at(...)
    assert found["task"].tolist() == ["lift"] * 12 + ["push"] + ["lift"] * 23
    np.testing.assert_array_equal(found["timestamp"], (found["frame_index"] / 30).astype(np.float32))
    assert found["index"].tolist() == list(range(36))
    for name, path in NAMES.items():
        wanted = column(buffer, path)
        if "images" in name:
            apart = np.abs(found[name].astype(int) - wanted.astype(int))
            assert apart.mean() < 3, name
            assert apart.max() < 48, name
        else:
            assert found[name].dtype == wanted.dtype
            np.testing.assert_array_equal(found[name], wanted)


def test_statistics_are_those_of_the_data(tmp_path: Path) -> None:
    buffer = recorded()
    export_lerobot(buffer, tmp_path / "out", fps=30, task="lift")
    stats = read_back(tmp_path / "out").stats
    joints, rewards = column(buffer, "obs/joints"), column(buffer, "reward")
    for name, figure in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
        np.testing.assert_allclose(stats["observation.joints"][name], figure(joints.astype(float), axis=0), rtol=1e-6)
        np.testing.assert_allclose(stats["next.reward"][name], [figure(rewards.astype(float))], rtol=1e-6)
    assert stats["observation.joints"]["count"].tolist() == [36]
    front = column(buffer, "obs/front") / 255
    assert stats["observation.images.front"]["mean"].shape == (3, 1, 1)
    np.testing.assert_allclose(
        stats["observation.images.front"]["mean"][:, 0, 0], front.mean(axis=(0, 1, 2)), atol=1e-3
    )
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    np.testing.assert_allclose(
        episodes[2]["stats/action/q90"], np.quantile(column(buffer, "action")[13:], 0.9, axis=0), rtol=1e-6
    )


def test_columns_are_chosen_and_named(tmp_path: Path) -> None:
    words = {"task": TextSpace(NUMPY, 9), "step": BoxSpace(NUMPY, 0, 99, "int64", shape=())}
    buffer = recorded(**words)
    buffer.get_column(["task"])
    mapping: Any = {"observation.state": "obs/joints", "action": ("action",)}
    export_lerobot(buffer, tmp_path / "out", fps=12.5, mapping=mapping)
    found = read_back(tmp_path / "out").get_at(...)
    assert {name for name in found if "index" not in name} == {"observation.state", "action", "task", "timestamp"}
    np.testing.assert_array_equal(found["observation.state"], column(buffer, "obs/joints"))
    assert found["task"].tolist() == column(buffer, "task").tolist()
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["fps"] == 12.5


@pytest.mark.parametrize("name", ["v3_pick", "v21_pick"])
def test_videos_of_a_lerobot_dataset_are_copied(tmp_path: Path, name: str) -> None:
    source = read_back(FOLDER / name)
    export_lerobot(source, tmp_path / "out")
    copy = read_back(tmp_path / "out")
    np.testing.assert_equal(copy.get_at(...), source.get_at(...))
    assert copy.get_segments() == source.get_segments()
    assert copy.meta.info["codebase_version"] == "v3.0"
    videos = sorted(path.read_bytes() for path in (FOLDER / name).rglob("*.mp4"))
    assert sorted(path.read_bytes() for path in (tmp_path / "out").rglob("*.mp4")) == videos


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lerobot_writing.Cursor, "DATA_BYTES", 1)
    monkeypatch.setattr(_lerobot_writing.Cursor, "VIDEO_BYTES", 1)
    monkeypatch.setattr(_lerobot_writing, "CHUNK_SIZE", 2)
    monkeypatch.setattr(_lerobot_writing, "_EPISODES_AT_A_TIME", 2)
    buffer = recorded()
    export_lerobot(buffer, tmp_path / "out", fps=30, task="lift")
    names = sorted(str(path.relative_to(tmp_path / "out/data")) for path in (tmp_path / "out/data").rglob("*.parquet"))
    assert names == ["chunk-000/file-000.parquet", "chunk-000/file-001.parquet", "chunk-001/file-000.parquet"]
    found = read_back(tmp_path / "out").get_at(...)
    np.testing.assert_array_equal(found["observation.joints"], column(buffer, "obs/joints"))
    assert np.abs(found["observation.images.front"].astype(int) - column(buffer, "obs/front")).mean() < 3


def test_lanes_are_episodes_one_after_the_other(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, 0, 99, "int64", shape=())})
    with ReplayBuffer.create(space, maintain_segment_metadata=True, lanes=2) as buffer:
        for step in range(4):
            buffer.extend_lanes({"x": np.array([step, 50 + step])}, np.array([step == 1, False]))
        export_lerobot(buffer, tmp_path / "out", fps=1, task="count")
    dataset = read_back(tmp_path / "out")
    assert [dataset.get_episode(i)["x"].tolist() for i in range(3)] == [[0, 1], [50, 51, 52, 53], [2, 3]]


@pytest.mark.parametrize(
    ("more", "options", "why"),
    [
        ({}, {"task": "lift"}, "fps is None, it must be the number of samples per second"),
        ({}, {"fps": 30}, "task is None and there is no text column 'task'"),
        ({}, {"fps": 30, "task": ["lift"]}, "task has 1 texts, and there are 3 episodes"),
        ({}, {"fps": 30, "task": "lift", "codec": "gif"}, "codec is 'gif', it must be one of"),
        ({}, {"fps": 30, "task": "lift", "codec": "av1"}, "AV1 needs even sides: give codec='h264'"),
        ({}, {"fps": 30, "task": "lift", "mapping": {"action": "act"}}, "there is no column 'act', only"),
        ({}, {"fps": 30, "task": "lift", "mapping": {"index": "level"}}, "feature 'index': "),
        (
            {"cloud": DynamicBoxSpace(NUMPY, 0, 1, (0, 3), (4, 3), "float32")},
            {"fps": 30, "task": "lift"},
            "column 'cloud' holds .* leave it out of `mapping`",
        ),
    ],
)
def test_what_cannot_be_exported_says_why_and_leaves_nothing(tmp_path: Path, more: Any, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        export_lerobot(recorded(**more), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_without_episodes_and_a_path_that_is_taken(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, 0, 99, "int64", shape=())})
    without = ReplayBuffer.create(space, keep_episodes=False)
    with without, pytest.raises(ValueError, match="keep_episodes=True"):
        export_lerobot(without, tmp_path / "out", fps=1, task="count")
    with pytest.raises(FileExistsError, match="give another path"):
        export_lerobot(read_back(FOLDER / "v3_pick"), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is None, reason="needs the package lerobot")
@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_lerobot_itself_reads_the_same(tmp_path: Path, codec: str) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    mapping = {name: path for name, path in NAMES.items() if codec == "h264" or path != "obs/side"}
    export_lerobot(recorded(), tmp_path / "out", fps=30, task=["lift", "push", "lift"], mapping=mapping, codec=codec)
    deltas = {"action": [-1 / 30, 0.0, 2 / 30]}
    theirs = LeRobotDataset("lab/out", root=tmp_path / "out", delta_timestamps=deltas, video_backend="pyav")
    ours, pads = read_back(tmp_path / "out").windows(deltas).get_at_with_metadata(...)
    assert (len(theirs), theirs.num_episodes) == (36, 3)
    for index in range(36):
        for name, value in theirs[index].items():
            if name.endswith("_is_pad"):
                np.testing.assert_array_equal(value, pads[name][index])
            elif isinstance(value, str):
                assert value == ours[name][index]
            elif "images" in name:
                pixels = np.moveaxis(np.asarray(value), 0, -1) * 255
                np.testing.assert_allclose(pixels, ours[name][index], atol=2)
            else:
                np.testing.assert_allclose(value, ours[name][index], rtol=1e-6)
