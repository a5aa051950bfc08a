"""Columns that are video already go to a LeRobot dataset as they are: nothing is decoded and encoded again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import frame

from unienv_data import BatchBase, CombinedBatch, Decode, ReplayBuffer, Video, check, export_lerobot, split
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from unienv_data.integrations._lerobot_writing import VideoWriter
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset

NUMPY = NumpyComputeBackend
FOLDER = Path(__file__).parent / "lerobot_folders"
SHAPE, LENGTHS = (64, 64, 3), (5, 9, 3)
MAPPING = {"observation.images.cam": "obs/cam", "action": "action"}


def recorded(folder: Path, *, open_end: bool = False, **video: Any) -> ReplayBuffer:
    """Episodes of a camera, as a reader has them."""
    observation = DictSpace(NUMPY, {"cam": BoxSpace(NUMPY, 0, 255, "uint8", shape=SHAPE)})
    space = DictSpace(NUMPY, {"obs": observation, "action": BoxSpace(NUMPY, 0, 99, "float32", shape=(2,))})
    rules = {"obs/cam": Video(**{"fps": 20, **video})}
    with ReplayBuffer.create(space, cache_path=folder, columns=rules, keep_episodes=True) as buffer:
        for number in range(sum(LENGTHS)):
            buffer.append({"obs": {"cam": frame(number, SHAPE)}, "action": np.full(2, number, np.float32)})
            buffer.storage.settle()  # a writer that is not ahead of the encoder
            if number + 1 in np.cumsum(LENGTHS)[: len(LENGTHS) - open_end]:
                buffer.mark_segment_end()
    return ReplayBuffer.load_from(folder, backend=NUMPY)


def videos(folder: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.rglob("*.mp4"))


def exported(batch: BatchBase, path: Path, **options: Any) -> dict[str, Any]:
    export_lerobot(batch, path, fps=20, task="reach", mapping=MAPPING, **options)
    with LeRobotAsUniEnvDataset.from_local(path, NUMPY) as dataset:
        return dataset.get_at(...)


def assert_same(found: dict[str, Any], batch: BatchBase) -> None:
    wanted = batch.get_at(...)
    np.testing.assert_array_equal(found["action"], wanted["action"])
    np.testing.assert_array_equal(found["observation.images.cam"], wanted["obs"]["cam"])


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("frames are encoded again")

    monkeypatch.setattr(VideoWriter, "add", refuse)


@pytest.mark.usefixtures("no_encoder")
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_columns_of_video_are_copied(codec: str, tmp_path: Path) -> None:
    with recorded(tmp_path / "a", codec=codec) as buffer:
        assert_same(exported(buffer, tmp_path / "out"), buffer)
    assert videos(tmp_path / "out") == videos(tmp_path / "a")


@pytest.mark.usefixtures("no_encoder")
def test_the_rate_is_that_of_the_video(tmp_path: Path) -> None:
    with recorded(tmp_path / "a") as buffer:
        export_lerobot(buffer, tmp_path / "out", task="reach", mapping=MAPPING)
    with LeRobotAsUniEnvDataset.from_local(tmp_path / "out", NUMPY) as dataset:
        assert dataset.fps == 20


def test_several_recordings_become_one_dataset(tmp_path: Path) -> None:
    with recorded(tmp_path / "a") as one, recorded(tmp_path / "b", gop=2) as other:
        both = CombinedBatch([one, other])
        assert_same(exported(both, tmp_path / "out"), both)
    assert videos(tmp_path / "out") == sorted(videos(tmp_path / "a") + videos(tmp_path / "b"))


@pytest.mark.usefixtures("no_encoder")
def test_some_columns_and_some_episodes_are_copied(tmp_path: Path) -> None:
    with recorded(tmp_path / "a") as buffer:
        part = split(buffer.select(["obs/cam", "action"]), {"train": 0.7}, seed=0)["train"]
        assert 0 < len(part) < len(buffer)
        assert_same(exported(part, tmp_path / "out"), part)
        middle = buffer.get_slice(slice(2, 12))  # the last 3 of 5, and the first 7 of 9
        found = exported(middle, tmp_path / "middle")
        assert found["frame_index"].tolist() == [*range(3), *range(7)]
        assert_same(found, middle)
    with LeRobotAsUniEnvDataset.from_local(tmp_path / "out", NUMPY) as dataset:
        one = split(dataset, {"one": 0.5}, seed=1)["one"]
        export_lerobot(one, tmp_path / "one", fps=20)
        with LeRobotAsUniEnvDataset.from_local(tmp_path / "one", NUMPY) as copy:
            camera = "observation.images.cam"
            np.testing.assert_array_equal(copy.get_at(...)[camera], one.get_at(...)[camera])
    for name in ("out", "one"):
        assert check(tmp_path / name).findings == []
    assert sum(map(len, videos(tmp_path / "one"))) < sum(map(len, videos(tmp_path / "out")))


@pytest.mark.usefixtures("no_encoder")
@pytest.mark.parametrize("name", ["v3_pick", "v21_pick"])
def test_a_part_of_a_lerobot_dataset_has_no_frames_of_the_rest(name: str, tmp_path: Path) -> None:
    with LeRobotAsUniEnvDataset.from_local(FOLDER / name, NUMPY) as dataset:
        for start, stop in dataset.get_segments():
            part, out = dataset.get_slice(slice(start, stop)), tmp_path / str(start)
            export_lerobot(part, out, fps=dataset.fps)
            assert check(out).findings == []
            with LeRobotAsUniEnvDataset.from_local(out, NUMPY) as copy:
                for column in copy.single_space.spaces.keys() - {"index", "episode_index", "task_index"}:
                    np.testing.assert_array_equal(copy.get_at(...)[column], part.get_at(...)[column])


@pytest.mark.usefixtures("no_encoder")
def test_an_episode_that_begins_within_a_group_of_pictures(tmp_path: Path) -> None:
    with recorded(tmp_path / "a") as buffer:
        part = buffer.get_slice(slice(2, 17))
        assert_same(exported(part, tmp_path / "out"), part)
    assert check(tmp_path / "out").findings == []


@pytest.mark.usefixtures("no_encoder")
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_a_long_episode_in_several_videos_is_joined(codec: str, tmp_path: Path) -> None:
    bound = 8 * int(np.prod(SHAPE))
    with recorded(tmp_path / "a", codec=codec, raw_bytes=bound, gop=3) as buffer:
        assert len(videos(tmp_path / "a")) > len(LENGTHS)
        assert_same(exported(buffer, tmp_path / "out"), buffer)
    assert len(videos(tmp_path / "out")) == len(LENGTHS)


@pytest.mark.parametrize("video", [{"fps": 30}, {"codec": "ffv1"}, {"open_end": True}])
def test_what_lerobot_does_not_have_is_encoded(video: dict[str, Any], tmp_path: Path) -> None:
    with recorded(tmp_path / "a", **video) as buffer:
        found, wanted = exported(buffer, tmp_path / "out"), buffer.get_at(...)
    np.testing.assert_array_equal(found["action"], wanted["action"])
    assert np.abs(found["observation.images.cam"].astype(int) - wanted["obs"]["cam"]).mean() < 10
    assert len(videos(tmp_path / "out")) == 1


def test_frames_of_another_size_are_encoded(tmp_path: Path) -> None:
    recorded(tmp_path / "a").close()
    wanted = {"obs/cam": Decode(resize=(32, 48))}
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, columns=wanted) as buffer:
        assert exported(buffer, tmp_path / "out")["observation.images.cam"].shape == (17, 32, 48, 3)


@pytest.mark.skipif(importlib.util.find_spec("lerobot") is None, reason="needs the package lerobot")
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_lerobot_itself_trains_on_videos_that_were_copied(codec: str, tmp_path: Path) -> None:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    camera, deltas = "observation.images.cam", {"observation.images.cam": [-0.05, 0.0], "action": [0.0, 0.05]}
    with recorded(tmp_path / "a", codec=codec, raw_bytes=8 * int(np.prod(SHAPE))) as buffer:
        export_lerobot(buffer, tmp_path / "out", fps=20, task="reach", mapping=MAPPING)
        frames = buffer.get_column("obs/cam").get_at(...)
    dataset = LeRobotDataset("lab/out", root=tmp_path / "out", delta_timestamps=deltas, video_backend="pyav")
    for index in range(len(frames)):
        pixels = np.moveaxis(dataset[index][camera][1].numpy(), 0, -1) * 255
        np.testing.assert_allclose(pixels, frames[index], atol=0.01)
    torch.manual_seed(0)
    policy = torch.nn.Linear(2 * int(np.prod(SHAPE)), 4)
    optimizer, losses = torch.optim.Adam(policy.parameters(), 1e-4), []
    for _ in range(8):
        for batch in torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True):
            loss = ((policy(batch[camera].flatten(1)) - batch["action"].flatten(1)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
