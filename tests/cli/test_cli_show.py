"""`unienv show`: the images of an episode as a video and as a sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer, Video
from unienv_data.checking import info, stats
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

av: Any = pytest.importorskip("av")
Image: Any = pytest.importorskip("PIL.Image")
LEROBOT = Path(__file__).parent.parent / "data" / "lerobot_folders" / "v3_pick"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two episodes of two cameras, frame i of episode e as bright as 100 e + 2 i; the sizes are odd."""
    shapes = {"wrist": (33, 45, 3), "top": (1, 20, 30), "depth": (4, 4)}
    cameras = {name: BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=shape) for name, shape in shapes.items()}
    space = DictSpace(NumpyComputeBackend, {"obs": DictSpace(NumpyComputeBackend, cameras)})
    with ReplayBuffer.create(space, cache_path=tmp_path / "r", keep_episodes=True) as buffer:
        for episode, length in enumerate((10, 40)):
            level = (100 * episode + 2 * np.arange(length)).astype(np.uint8)
            frames = {
                name: np.broadcast_to(level.reshape(-1, *(1,) * len(shape)), (length, *shape)).copy()
                for name, shape in shapes.items()
            }
            buffer.extend({"obs": frames})
    return tmp_path / "r"


def frames_of(path: Path) -> tuple[np.ndarray, float]:
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return np.stack(frames).astype(int), float(container.streams.video[0].average_rate)


def test_an_episode_as_a_video(recording: Path, run: Any, tmp_path: Path) -> None:
    out = run("show", recording, "--episode", 1, "--mp4", tmp_path / "a" / "out.mp4", "--fps", 12).stdout
    assert "episode 1, 40 samples, obs/top, obs/wrist" in out
    frames, fps = frames_of(tmp_path / "a" / "out.mp4")
    assert (frames.shape, fps) == ((40, 34, 76, 3), 12)
    levels = 100 + 2 * np.arange(40)
    assert np.abs(frames[:, 5:15, 35:70].mean(axis=(1, 2, 3)) - levels).max() < 4
    assert frames[:, 24:, 4:26].mean() < 8  # below the smaller camera
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out.mp4"]


def test_a_column_of_video_is_shown_at_its_rate(run: Any, tmp_path: Path) -> None:
    camera = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=(32, 32, 3))
    space = DictSpace(NumpyComputeBackend, {"cam": camera})
    with ReplayBuffer.create(space, columns={"cam": Video(fps=15)}, cache_path=tmp_path / "r") as buffer:
        buffer.extend({"cam": np.full((6, 32, 32, 3), 90, np.uint8)})
    run("show", tmp_path / "r", "--mp4", tmp_path / "out.mp4")
    frames, fps = frames_of(tmp_path / "out.mp4")
    assert (len(frames), fps) == (6, 15)
    assert np.abs(frames - 90).max() < 4


def test_grey_frames_without_a_channel_are_shown(run: Any, tmp_path: Path) -> None:
    camera = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=(32, 48))
    with ReplayBuffer.create(DictSpace(NumpyComputeBackend, {"cam": camera}), cache_path=tmp_path / "r") as buffer:
        buffer.extend({"cam": np.full((6, 32, 48), 90, np.uint8)})
    run("show", tmp_path / "r", "--mp4", tmp_path / "out.mp4")
    frames, _ = frames_of(tmp_path / "out.mp4")
    assert frames.shape == (6, 32, 48, 3)
    assert np.abs(frames - 90).max() < 4


def test_an_episode_as_a_sheet(recording: Path, run_json: Any, tmp_path: Path) -> None:
    found = run_json("show", recording, "--episode", -2, "--png", tmp_path / "s.png", "--column", "obs/wrist")
    assert (found["samples"], found["columns"]) == (10, ["obs/wrist"])
    with Image.open(tmp_path / "s.png") as image:
        sheet = np.asarray(image).astype(int)
    width, height = 7 * 45, 7 * 33  # enlarged, five to a row
    assert sheet.shape == (2 * (height + 14), 5 * width + 4 * 4, 3)
    for row in range(2):
        middles = sheet[row * (height + 14) + 20, width // 2 :: width + 4, 0]
        assert middles.tolist() == (2 * np.arange(5 * row, 5 * row + 5)).tolist()
    assert (sheet[:, width : width + 4] == 255).all()
    run_json("show", recording, "--episode", 1, "--png", tmp_path / "s.png", "--frames", 5)
    with Image.open(tmp_path / "s.png") as image:
        assert image.width == 5 * 4 * 75 + 4 * 4


def test_a_lerobot_dataset(run_json: Any, tmp_path: Path) -> None:
    found = run_json("show", LEROBOT, "--episode", 2, "--mp4", tmp_path / "o.mp4", "--png", tmp_path / "o.png")
    frames, fps = frames_of(tmp_path / "o.mp4")
    assert (len(frames), fps) == (found["samples"], 10)


@pytest.mark.parametrize("verb", [info, stats])
def test_what_does_not_take_a_lerobot_dataset_says_what_does(verb: Any) -> None:
    with pytest.raises(FileNotFoundError, match="a LeRobot dataset and no replay buffer: check, repair, show and"):
        verb(LEROBOT)


def test_a_lerobot_dataset_is_written_anew(run: Any, tmp_path: Path) -> None:
    run("convert", LEROBOT, tmp_path / "copy", "--to", "lerobot")
    name = "videos/observation.images.top/chunk-000/file-000.mp4"
    assert (tmp_path / "copy" / name).read_bytes() == (LEROBOT / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ([], 2, "give --mp4 FILE"),
        (["--png", "x.png", "--episode", "2"], 1, "there is no episode 2: there are 2"),
        (["--png", "x.png", "--column", "obs/depth"], 1, "column 'obs/depth' holds no images"),
    ],
)
def test_what_cannot_be_shown(recording: Path, run: Any, options: list[str], status: int, text: str) -> None:
    result = run("show", recording, *options, status=status)
    assert text in result.stderr
