"""LeRobot datasets read equal to what LeRobot gives: `lerobot_folders/` has what it wrote, and its own samples."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from unienv_data import SliceStackedBatch, StepSampler
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BinarySpace, TextSpace
from unienv_interface.space.space_utils import batch_space

av: Any = pytest.importorskip("av")
pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

from unienv_data.integrations.lerobot import FrameTimestampError, LeRobotAsUniEnvDataset, LeRobotWindows  # noqa: E402
from unienv_data.storages import video_frames  # noqa: E402
from unienv_data.storages.video_frames import FrameReader, FrameRequest  # noqa: E402

NUMPY = NumpyComputeBackend
FOLDER = Path(__file__).parent / "lerobot_folders"
V3, V21 = FOLDER / "v3_pick", FOLDER / "v21_pick"
EXPECTED = np.load(FOLDER / "v3_pick.expected.npz")
FRAMES_OF = EXPECTED["frames_of"]  # the samples whose frames were kept
TOP, WRIST = "observation.images.top", "observation.images.wrist"
DELTAS = {
    "action": [-0.1, 0.0, 0.1, 0.2, 0.3],
    "observation.state": [-0.1, 0.0],
    TOP: [-0.2, 0.0],
    WRIST: [-0.2, 0.0],
}


def opened(path: Path = V3, **options: Any) -> LeRobotAsUniEnvDataset:
    return LeRobotAsUniEnvDataset.from_local(path, NUMPY, **options)


def expected(name: str) -> np.ndarray:
    """What LeRobot gives, images with the channels last."""
    values = EXPECTED[name]
    return np.moveaxis(values, -3, -1) if values.dtype == np.uint8 else values


def compare(found: Any, wanted: np.ndarray) -> None:
    if wanted.dtype == np.uint8:
        found, wanted = found[FRAMES_OF].astype(int), wanted.astype(int)
        np.testing.assert_allclose(found, wanted, atol=2, rtol=0)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A dataset that a test may spoil."""
    return Path(shutil.copytree(V3, tmp_path / "v3"))


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [NUMPY, PyTorchComputeBackend, JaxComputeBackend], ids=str)
def test_all_samples_are_those_of_lerobot(backend: Any) -> None:
    dataset = LeRobotAsUniEnvDataset.from_local(V3, backend)
    found = dataset.get_at(...)
    names = [name for name in EXPECTED.files if "|" not in name and name != "frames_of"]
    assert set(dataset.single_space.spaces) == set(names) == set(found)
    assert batch_space(dataset.single_space, 60).contains(found)
    for name in names:
        compare(found[name] if name == "task" else backend.to_numpy(found[name]), expected(name))


@pytest.mark.parametrize("index", [0, -1, 33, slice(18, 36, 3), [5, 5, 59, 0, 20], np.array([33, 32]), [], -60])
def test_every_kind_of_index(index: Any) -> None:
    dataset = opened()
    everything, found = dataset.get_at(...), dataset.get_at(index)
    space = dataset.single_space
    assert (space if isinstance(index, int) else batch_space(space, len(np.arange(60)[index]))).contains(found)
    for name, values in everything.items():
        np.testing.assert_array_equal(found[name], values[index])
        np.testing.assert_array_equal(dataset.get_column([name]).get_at(index), values[index])


@pytest.mark.parametrize("index", [60, -61, [3, 60], [-61]])
def test_an_index_out_of_range(index: Any) -> None:
    with pytest.raises(IndexError, match="out of range"):
        opened().get_at(index)


def test_v21_is_read_alike() -> None:
    dataset = opened(V21)
    assert (len(dataset), dataset.num_episodes, dataset.get_segments()) == (29, 2, [(0, 18), (18, 29)])
    found = dataset.get_at(...)
    for episode, (start, stop) in enumerate(dataset.get_segments()):
        table = pq.read_table(V21 / f"data/chunk-000/episode_{episode:06d}.parquet")
        np.testing.assert_array_equal(found["action"][start:stop], table["action"].to_pylist())
        with av.open(str(V21 / f"videos/chunk-000/{TOP}/episode_{episode:06d}.mp4")) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        np.testing.assert_array_equal(found[TOP][start:stop], frames)
    assert found["task"].tolist() == ["pick the cube"] * 18 + ["place the cube"] * 11
    state = np.concatenate([found["observation.state"]])
    for name, figure in (("mean", state.mean(axis=0)), ("std", state.std(axis=0)), ("max", state.max(axis=0))):
        np.testing.assert_allclose(dataset.stats["observation.state"][name], figure, atol=1e-6)
    assert dataset.stats["observation.state"]["count"] == [29]


def test_v20_differs_in_its_statistics(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(V21, tmp_path / "v20"))
    (folder / "meta/episodes_stats.jsonl").unlink()
    change_json(folder / "meta/info.json", lambda info: info.update(codebase_version="v2.0"))
    assert opened(folder).stats == {}
    (folder / "meta/stats.json").write_text('{"action": {"mean": [1, 2]}}')
    assert opened(folder).stats["action"]["mean"].tolist() == [1, 2]
    np.testing.assert_array_equal(opened(folder).get_at(...)["action"], opened(V21).get_at(...)["action"])


# -- what is known -----------------------------------------------------------------------------------------


def test_what_is_known_of_a_dataset() -> None:
    dataset = opened()
    assert (len(dataset), dataset.num_episodes, dataset.fps) == (60, 3, 10)
    assert dataset.tasks == {0: "pick the cube", 1: "place the cube"}
    assert dataset.schema["action"]["names"] == ["j0", "j1", "j2", "j3", "j4", "j5"]
    assert [row["length"] for row in dataset.episode_metadata] == [20, 13, 27]
    assert dataset.stats["action"]["q99"].shape == (6,)
    assert isinstance(dataset.single_space["next.done"], BinarySpace)
    assert isinstance(dataset.single_space["task"], TextSpace)
    with pytest.raises(TypeError, match="is read-only"):
        dataset.set_at(0, dataset.get_at(0))


def test_episodes() -> None:
    dataset = opened()
    for number, (start, stop) in enumerate([(0, 20), (20, 33), (33, 60)]):
        episode = dataset.get_episode(number)
        assert episode["index"].tolist() == list(range(start, stop))
        assert dataset.get_episode(number - 3)["task"][0] == episode["task"][0]
    with pytest.raises(IndexError):
        dataset.get_episode(3)


def test_windows_of_samples_never_cross_an_episode() -> None:
    stack = SliceStackedBatch(opened(decode_video=False), np.arange(-2, 4))
    data, metadata = stack.get_at_with_metadata(...)
    centre = data["episode_index"][:, 2:3]
    assert (data["episode_index"] == centre).all()
    frames = np.arange(60)[:, None] + np.arange(-2, 4)
    ends = np.array([0, 20, 33, 60])
    episode = np.searchsorted(ends, np.arange(60), side="right")[:, None]
    inside = (frames >= ends[episode - 1]) & (frames < ends[episode])
    np.testing.assert_array_equal(metadata["slice_valid_mask"], inside)


def test_features_are_chosen() -> None:
    assert set(opened(include_features=["action", TOP, "task"]).get_at(0)) == {"action", TOP, "task"}
    without = opened(exclude_features=["action", "task"])
    assert not {"action", "task"} & set(without.single_space.spaces)
    assert TOP not in opened(decode_video=False).get_at([0, 1])
    with pytest.raises(ValueError, match="include_features: there is no feature 'arm', only"):
        opened(include_features=["arm"])
    with pytest.raises(ValueError, match="no feature is left"):
        opened(include_features=[TOP], decode_video=False)
    with pytest.raises(ValueError, match="video_backend is 'gif', videos are decoded with one of auto, pyav, torchco"):
        opened(video_backend="gif")


class _TorchcodecDecoder:
    """What is used of `torchcodec.decoders.VideoDecoder`."""

    def __init__(self, path: str, *, dimension_order: str, num_ffmpeg_threads: int) -> None:
        assert (dimension_order, num_ffmpeg_threads) == ("NHWC", 1)
        with av.open(path) as container:
            self._frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])

    def get_frames_at(self, indices: list[int]) -> Any:
        return SimpleNamespace(data=torch.from_numpy(self._frames[indices]))


@pytest.mark.parametrize("path", [V3, V21])
def test_torchcodec_gives_the_same_frames(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        with pytest.raises(ImportError, match="needs torchcodec"):
            opened(path, video_backend="torchcodec")
        stub = SimpleNamespace(VideoDecoder=_TorchcodecDecoder)
        monkeypatch.setattr(video_frames, "_torchcodec", lambda: stub)
    wanted, found = opened(path), pickle.loads(pickle.dumps(opened(path, video_backend="torchcodec")))
    for index in (7, [5, 3, 3, 20], slice(None)):
        frames = found.get_column([TOP]).get_at(index).astype(int)
        np.testing.assert_allclose(frames, wanted.get_column([TOP]).get_at(index), atol=2)
    request = FrameRequest([*path.rglob("*.mp4")][:1], np.array([0.04]), np.array([0.01]), (64, 80, 3))
    with pytest.raises(FrameTimestampError, match=r"no frame at 0\.04"):
        FrameReader(backend="torchcodec").read([request])


def test_neither_lerobot_nor_a_framework_is_needed() -> None:
    script = f"""
import sys
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset
from unienv_interface.backends import NumpyComputeBackend
LeRobotAsUniEnvDataset.from_local({str(V3)!r}, NumpyComputeBackend).get_at([3, 50])
print({{"torch", "jax", "lerobot", "datasets"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "set()\n", done.stderr


def test_a_missing_library_names_the_extra() -> None:
    script = f"""
import sys
sys.modules["pyarrow"] = sys.modules["av"] = None
from unienv_data import *
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset
from unienv_interface.backends import NumpyComputeBackend
try:
    LeRobotAsUniEnvDataset.from_local({str(V3)!r}, NumpyComputeBackend)
except ImportError as error:
    print(error, end="")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "pyarrow is not installed; get it with: pip install 'unienv[lerobot]'", done.stderr


def test_a_forked_process_reads_on() -> None:
    script = f"""
import os
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset
from unienv_interface.backends import NumpyComputeBackend
dataset = LeRobotAsUniEnvDataset.from_local({str(V3)!r}, NumpyComputeBackend)
before = dataset.get_at([3, 40])
child = os.fork()
for _ in range(20):
    found = dataset.get_at([3, 40])
    assert all((found[name] == values).all() for name, values in before.items())
if child == 0:
    del dataset
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "7\n", done.stderr


def test_the_hub_gives_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Any = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.append((repo_id, options))
        return str(V3)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    dataset = LeRobotAsUniEnvDataset.from_hub("lab/pick", NUMPY, revision="v3.0", local_dir="there", decode_video=False)
    assert len(dataset) == 60
    ((repo_id, options),) = asked
    assert repo_id == "lab/pick"
    assert options == {
        "repo_type": "dataset",
        "revision": "v3.0",
        "local_dir": "there",
        "ignore_patterns": ["videos/**"],
    }


# -- windows by seconds ------------------------------------------------------------------------------------


def test_windows_by_seconds_are_those_of_lerobot() -> None:
    data, metadata = opened().windows(DELTAS).get_at_with_metadata(...)
    for name in EXPECTED.files:
        if name.startswith("win|"):
            key = name.removeprefix("win|")
            compare(metadata[key] if key.endswith("_is_pad") else data[key], expected(name))
    np.testing.assert_array_equal(data["next.reward"], EXPECTED["next.reward"])


def test_windows_by_seconds_are_a_batch() -> None:
    windows = opened().windows({"action": [0.2, 0.0, -1.5], TOP: [0.1]})
    everything, pads = windows.get_at_with_metadata(...)
    assert batch_space(windows.single_space, 60).contains(everything)
    assert windows.single_space.contains(windows.get_at(7))
    metadata_space: Any = windows.single_metadata_space
    assert metadata_space.contains(windows.get_at_with_metadata(-1)[1])
    np.testing.assert_array_equal(everything["action"][:, 1], EXPECTED["action"])
    np.testing.assert_array_equal(windows.get_column(["action"]).get_at([4, 59]), everything["action"][[4, 59]])
    np.testing.assert_array_equal(windows.get_column_at_with_metadata(["action"], 5)[1]["action_is_pad"], [0, 0, 1])
    assert pads["action_is_pad"][19].tolist() == [True, False, False]
    assert windows.get_segments() == [(0, 20), (20, 33), (33, 60)]
    sampler = StepSampler(windows, 8, seed=0)
    assert sampler.sampled_space.contains(sampler.sample())


@pytest.mark.parametrize(
    ("deltas", "why"),
    [
        ({"action": [0.0, 0.15]}, r"'action' has 0.15 s, which is no multiple of 1/10 s: the nearest is 0\.[12] s"),
        ({"arm": [0.0]}, "there is no feature 'arm'"),
        ({"task": [0.0]}, "there is no feature 'task' that windows can be made of"),
        ({"action": []}, "wanted a list of seconds"),
    ],
)
def test_windows_that_cannot_be(deltas: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        opened().windows(deltas)


def test_the_tolerance_is_that_of_seconds() -> None:
    assert LeRobotWindows(opened(), {"action": [0.104]}, tolerance_s=0.005).get_at(0)["action"].shape == (1, 6)
    with pytest.raises(ValueError, match=r"tolerance 0\.003 s"):
        LeRobotWindows(opened(), {"action": [0.104]}, tolerance_s=0.003)


# -- files -------------------------------------------------------------------------------------------------


def v3_dataset(folder: Path, files: list[list[tuple[int, int]]], index: bool = True, before: int = 0) -> Path:
    """A dataset without videos, of files that hold episodes, each the range of its `index`; `before` rows in front."""
    features = {"x": {"dtype": "float32", "shape": [2], "names": None}}
    features |= {"index": {"dtype": "int64", "shape": [1], "names": None}} if index else {}
    (folder / "meta/episodes/chunk-000").mkdir(parents=True)
    info = {"codebase_version": "v3.0", "fps": 5, "features": features}
    (folder / "meta/info.json").write_text(json.dumps(info))
    rows = []
    for number, episodes in enumerate(files):
        values = np.arange(episodes[0][0] - before, episodes[-1][1])
        columns = {"x": pa.FixedSizeListArray.from_arrays(np.repeat(values, 2).astype(np.float32), 2)}
        table = pa.table(columns | ({"index": values} if index else {}))
        path = folder / f"data/chunk-001/file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=2)
        for start, stop in episodes:
            places = {"data/chunk_index": 1, "data/file_index": number}
            ends = {"dataset_from_index": start, "dataset_to_index": stop, "length": stop - start}
            rows.append({"episode_index": len(rows), **ends, **places})
    pq.write_table(pa.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    return folder


@pytest.mark.parametrize("index", [True, False])
def test_episodes_in_several_files(tmp_path: Path, index: bool) -> None:
    dataset = opened(v3_dataset(tmp_path / "d", [[(0, 3), (3, 4)], [(4, 9)], [(9, 11), (11, 12)]], index))
    assert dataset.get_at(...)["x"][:, 0].tolist() == list(range(12))
    assert dataset.get_at([11, 3, 4, 4, 0])["x"][:, 1].tolist() == [11, 3, 4, 4, 0]
    assert dataset.get_segments() == [(0, 3), (3, 4), (4, 9), (9, 11), (11, 12)]


@pytest.mark.parametrize("index", [True, False])
def test_rows_in_front_of_the_first_episode_are_not_its_own(tmp_path: Path, index: bool) -> None:
    dataset = opened(v3_dataset(tmp_path / "d", [[(3, 5)]], index, before=3))
    assert dataset.get_episode(0)["x"][:, 0].tolist() == [3, 4]


def test_a_file_that_lacks_rows(tmp_path: Path) -> None:
    folder = v3_dataset(tmp_path / "d", [[(0, 6)]])
    path = folder / "data/chunk-001/file-000.parquet"
    pq.write_table(pq.read_table(path).slice(0, 4), path)
    with pytest.raises(ValueError, match="4 rows, and the episodes want row 5"):
        opened(folder).get_at(...)


def test_a_feature_that_is_not_in_the_file(copied: Path) -> None:
    change_json(copied / "meta/info.json", lambda info: info["features"].update(arm=info["features"]["action"]))
    with pytest.raises(KeyError, match="there is no column 'arm', although the features name it"):
        opened(copied).get_at(0)


def test_a_recording_that_was_never_finalized(copied: Path) -> None:
    path = copied / "data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match="not a Parquet file, or one that was never finished"):
        opened(copied).get_at(0)
    shutil.rmtree(copied / "meta/episodes")
    with pytest.raises(FileNotFoundError, match="no table of episodes in it; a recording that was ended before"):
        opened(copied)
    with pytest.raises(FileNotFoundError, match="is not a LeRobot dataset"):
        opened(copied / "data")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"codebase_version": "v1.6"}, "codebase_version is 'v1.6'"),
        ({"data_path": "../{chunk_index}{file_index}"}, "leads out of the dataset's folder"),
        ({"data_path": "/{chunk_index}"}, "leads out of the dataset's folder"),
        ({"data_path": "{frame}"}, "cannot be filled in"),
    ],
)
def test_metadata_that_cannot_be_followed(copied: Path, change: Any, why: str) -> None:
    change_json(copied / "meta/info.json", lambda info: info.update(change))
    with pytest.raises(ValueError, match=why):
        opened(copied)


def test_timestamps_off_the_grid_of_the_video(copied: Path) -> None:
    path = copied / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    times = table["timestamp"].to_numpy() + np.where(np.arange(60) == 7, 0.04, 0).astype(np.float32)
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", pa.array(times)), path)
    with pytest.raises(FrameTimestampError, match=r"no frame at 0\.74\d* s, the nearest is 0\.04\d* s away"):
        opened(copied).get_at(7)
    assert opened(copied, tolerance_s=0.05).get_at(7)[TOP].shape == (64, 80, 3)
    assert opened(copied).get_at(8)[TOP].shape == (64, 80, 3)


def test_images_in_tables(tmp_path: Path) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    folder = v3_dataset(tmp_path / "d", [[(0, 4)]])
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
    image.fromarray(pixels[3]).save(folder / "three.png")
    values = []
    for frame in pixels[:3]:
        image.fromarray(frame).save(tmp_path / "frame.png")
        values.append({"bytes": (tmp_path / "frame.png").read_bytes(), "path": None})
    values.append({"bytes": None, "path": "three.png"})
    path = folder / "data/chunk-001/file-000.parquet"
    pq.write_table(pq.read_table(path).append_column("cam", pa.array(values)), path)
    for shape, names in (([6, 5, 3], None), ([3, 6, 5], ["channels", "height", "width"])):
        feature = {"dtype": "image", "shape": shape, "names": names}
        change_json(folder / "meta/info.json", lambda info, f=feature: info["features"].update(cam=f))
        np.testing.assert_array_equal(opened(folder).get_at(...)["cam"], pixels)


def test_a_dataset_pickles_with_its_videos_open() -> None:
    dataset = opened()
    before = dataset.get_at([3, 40])
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_equal(again.get_at([3, 40]), before)
    dataset.close()
    np.testing.assert_equal(dataset.get_at([3, 40]), before)


# -- frames ------------------------------------------------------------------------------------------------


def write_video(path: Path, times: list[int], gop: int, **options: str) -> np.ndarray:
    """A video with frames at these times, in hundredths of a second: the frames as decoded one after the other."""
    rows, columns = np.mgrid[:48, :64]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=100, options={"g": str(gop), **options})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 100)
        for number, time in enumerate(times):
            pixels = np.stack([(columns * 3 + 5 * number) % 256, (rows * 4 + number) % 256, rows * 0 + number], -1)
            frame = av.VideoFrame.from_ndarray(pixels.astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        return np.array([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize("options", [{}, {"x264-params": "open-gop=1:bframes=3:scenecut=0"}], ids=["closed", "open"])
@pytest.mark.parametrize("gop", [1, 2, 12, 250])
def test_frames_in_any_order_are_those_decoded_in_order(tmp_path: Path, gop: int, options: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.integers(2, 6, 70)).tolist()  # a rate that varies
    times = [time - times[0] for time in times]
    frames = write_video(tmp_path / "a.mp4", times, gop, **options)
    assert len(frames) == 70
    reader = FrameReader()
    for picked in (np.arange(70), np.arange(70)[::-1], *rng.integers(0, 70, (5, 30)), np.array([69, 69, 0, 68])):
        seconds = np.array(times)[picked] / 100
        wanted = FrameRequest([tmp_path / "a.mp4"] * len(picked), seconds, np.full(len(picked), 1e-4), (48, 64, 3))
        (found,) = reader.read([wanted])
        np.testing.assert_array_equal(found, frames[picked])
    reader.close()


@pytest.mark.parametrize(("gop", "first", "parts"), [(2, 0, [4, 4]), (2, 1, [3, 5]), (4, 3, [1, 7]), (12, 2, [8])])
def test_threads_decode_about_as_many_frames_each(
    gop: int, first: int, parts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / "a.mp4", list(range(24)), gop, **{"x264-params": "scenecut=0:bframes=0"})
    seen: list[int] = []

    def run(work: Any, tasks: Any) -> None:
        for task in tasks:
            seen.append(len(task[2]))
            work(task)

    monkeypatch.setattr(video_frames, "map_in_threads", run)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    seconds = (first + np.arange(8)) / 100
    reader = FrameReader()
    reader.read([FrameRequest([tmp_path / "a.mp4"] * 8, seconds, np.full(8, 1e-4), (48, 64, 3))])
    reader.close()
    assert seen == parts


def test_decoding_begins_at_the_key_frame_of_the_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(tmp_path / "a.mp4", list(range(48)), 12, **{"x264-params": "scenecut=0:bframes=3"})
    decoded, advance = [0], video_frames.VideoFile._advance

    def count(self: video_frames.VideoFile) -> bool:
        decoded[0] += 1
        return advance(self)

    monkeypatch.setattr(video_frames.VideoFile, "_advance", count)
    reader = FrameReader()
    for number in (24, 38, 12):
        decoded[0] = 0
        reader.read([FrameRequest([tmp_path / "a.mp4"], np.array([number / 100]), np.full(1, 1e-4), (48, 64, 3))])
        assert decoded[0] == number % 12 + 1
    reader.close()


def test_more_videos_than_are_kept_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.mp4" for number in range(5)]
    frames = np.array([write_video(path, list(range(0, 40, 4 + number)), 2)[:5] for number, path in enumerate(paths)])
    reader = FrameReader(most_open=2)
    rng = np.random.default_rng(0)
    for _ in range(4):
        file, number = rng.integers(0, 5, 20), rng.integers(0, 4, 20)
        seconds = number * (4 + file) / 100
        request = FrameRequest([paths[i] for i in file], seconds, np.full(20, 1e-4), (48, 64, 3))
        (found,) = reader.read([request])
        np.testing.assert_array_equal(found, frames[file, number])
    reader.close()


def test_frames_that_are_not_there(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [0, 10, 20], 2)
    reader = FrameReader()

    def read(second: float, shape: tuple[int, ...] = (48, 64, 3)) -> Any:
        return reader.read([FrameRequest([tmp_path / "a.mp4"], np.array([second]), np.array([1e-4]), shape)])

    for second in (0.05, 0.3, 0.21, 9.0):
        with pytest.raises(FrameTimestampError, match="the timestamps of the data are not those of the video"):
            read(second)
    with pytest.raises(ValueError, match=r"frames of shape \(48, 64, 3\), the features say \(50, 64, 3\)"):
        read(0.1, (50, 64, 3))
    assert read(0.2)[0].shape == (1, 48, 64, 3)
