"""What `check` finds in LeRobot datasets, and what `repair` keeps of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import StorageCorruptedError, check, repair
from unienv_interface.backends import NumpyComputeBackend

av: Any = pytest.importorskip("av")
pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

from unienv_data.integrations._lerobot_writing import as_arrow_table  # noqa: E402
from unienv_data.integrations._parquet_footer import one_row_of, restore_footer  # noqa: E402
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset  # noqa: E402

FOLDER = Path(__file__).parent / "lerobot_folders"
V3, V21 = "v3_pick", "v21_pick"
DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
FROM = "videos/observation.images.top/from_timestamp"
TOP = "videos/observation.images.top/chunk-000/file-000.mp4"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(FOLDER / name, tmp_path / name))


def kinds(path: Path) -> set[str]:
    return {finding.kind for finding in check(path).findings}


def texts(path: Path) -> str:
    return "\n".join(finding.text for finding in check(path).findings)


def edit_table(path: Path, name: str, change: Callable[[np.ndarray], Any]) -> None:
    table = pq.read_table(path)
    place = table.schema.names.index(name)
    values = table[name].to_numpy(zero_copy_only=False).copy()
    change(values)
    table = table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    pq.write_table(table, path)


def drop_footer(path: Path) -> None:
    """Leave what a process leaves that is killed before it closes the table."""
    data = path.read_bytes()
    path.write_bytes(data[: -8 - int.from_bytes(data[-8:-4], "little")])


def opened(path: Path) -> LeRobotAsUniEnvDataset:
    return LeRobotAsUniEnvDataset.from_local(path, NumpyComputeBackend)


def require_same_episodes(path: Path, original: Path, numbers: list[int]) -> None:
    """The dataset at `path` has these episodes of the other, value for value, frames included."""
    found, wanted = opened(path), opened(original)
    assert found.num_episodes == len(numbers)
    for place, number in enumerate(numbers):
        mine, theirs = found.get_episode(place), wanted.get_episode(number)
        for name in theirs:
            if name in ("index", "episode_index", "task_index"):
                continue
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("name", [V3, V21])
def test_what_lerobot_wrote_is_sound(name: str) -> None:
    report = check(FOLDER / name)
    assert report.is_sound, report.findings
    assert report.samples == {V3: 60, V21: 29}[name]


def _wrong_stats(root: Path) -> None:
    stats = json.loads((root / "meta/stats.json").read_text())
    stats["action"]["mean"][2] += 1
    (root / "meta/stats.json").write_text(json.dumps(stats))


def _wrong_total(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["total_frames"] = 99
    (root / "meta/info.json").write_text(json.dumps(info))


def _swap_videos(root: Path) -> None:
    """A video that is too short: that of an episode of another dataset."""
    shutil.copyfile(FOLDER / V21 / "videos/chunk-000/observation.images.top/episode_000000.mp4", root / TOP)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "stamp": (
        lambda root: edit_table(root / DATA, "timestamp", lambda v: v.__setitem__(7, v[7] + 0.03)),
        "timestamps",
        "1 timestamps are off the grid of 10 fps",
    ),
    "nan": (
        lambda root: edit_table(root / DATA, "next.reward", lambda v: v.__setitem__(3, np.nan)),
        "not-finite",
        "next.reward has NaN",
    ),
    "task": (
        lambda root: edit_table(root / DATA, "task_index", lambda v: v.__setitem__(5, 9)),
        "tasks",
        "task_index 9 is not among the tasks [0, 1]",
    ),
    "counter": (
        lambda root: edit_table(root / DATA, "frame_index", lambda v: v.__setitem__(4, 44)),
        "episodes",
        "frame 4: frame_index is 44, it must be 4",
    ),
    "statistics": (_wrong_stats, "statistics", "the mean of 'action'"),
    "total": (_wrong_total, "episodes", "total_frames is 99, the dataset has 60"),
    "index": (
        lambda root: edit_table(root / DATA, "index", lambda v: np.add(v, 1, out=v)),
        "unreadable-samples",
        "episode 1: its rows are of the episodes [0, 1]",
    ),
    "no_tasks": (lambda root: (root / "meta/tasks.parquet").unlink(), "tasks", "is not among the tasks []"),
    "span": (
        lambda root: edit_table(root / EPISODES, FROM, lambda v: v.__setitem__(1, v[1] + 0.5)),
        "videos",
        "2.500000 s to 3.300000 s is not the length of 13 frames at 10 fps",
    ),
    "no_video": (lambda root: (root / TOP).unlink(), "videos", "there is no such file"),
    "short_video": (_swap_videos, "videos", "frames for "),
    "cut_video": (lambda root: os.truncate(root / TOP, 900), "videos", "cannot be opened"),
    "no_footer": (lambda root: drop_footer(root / DATA), "unreadable", "no footer"),
    "no_episodes": (lambda root: (root / EPISODES).unlink(), "unfinished-episode", "ended before finalize"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named(damage: str, copy: Callable[[str], Path]) -> None:
    spoil, kind, text = DAMAGE[damage]
    root = copy(V3)
    spoil(root)
    assert kind in kinds(root)
    assert text in texts(root)
    assert kind not in {finding.kind for finding in check(root, ignore=[kind]).findings}


@pytest.mark.parametrize("column", ["action", "next.reward", "episode_index"])
def test_a_flipped_bit_in_a_table_is_found(column: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    repair(copy(V3), tmp_path / "written")  # whose pages have checksums; lerobot writes none
    path = tmp_path / "written" / DATA
    group = pq.read_metadata(path).row_group(0)
    (chunk,) = (
        group.column(number)
        for number in range(group.num_columns)
        if group.column(number).path_in_schema.startswith(column)
    )
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[begin + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    assert kinds(tmp_path / "written") == {"unreadable-samples"}
    assert f"episode 0: {path}: column '{column}' cannot be read" in texts(tmp_path / "written")


def test_a_missing_video_of_v21(copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = copy(V21)
    (root / "videos/chunk-000/observation.images.top/episode_000001.mp4").unlink()
    assert kinds(root) == {"videos"}
    report = repair(root, tmp_path / "new")
    assert (report.episodes, len(report.left_out)) == (1, 1)
    require_same_episodes(tmp_path / "new", FOLDER / V21, [0])


@pytest.mark.parametrize("damage", ["stamp", "counter", "statistics", "total", "index", "no_tasks", "span"])
def test_what_can_be_computed_is_mended(damage: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = copy(V3)
    DAMAGE[damage][0](root)
    report = repair(root, tmp_path / "new")
    assert (report.samples, report.left_out) == (60, [])
    assert check(tmp_path / "new").is_sound
    require_same_episodes(tmp_path / "new", FOLDER / V3, [0, 1, 2])


def test_a_repair_has_no_frames_of_what_was_left_out(copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = copy(V3)
    DAMAGE["task"][0](root)
    assert repair(root, tmp_path / "new").episodes == 2
    assert check(tmp_path / "new").is_sound
    require_same_episodes(tmp_path / "new", FOLDER / V3, [1, 2])


def test_an_episode_with_a_frame_that_cannot_be_decoded_is_left_out(
    copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root = copy(V3)
    with av.open(str(root / TOP)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][24]
    with open(root / TOP, "r+b") as file:
        file.seek(packet.pos)
        file.write(b"\xff" * packet.size)
    with pytest.raises(StorageCorruptedError, match=r"file-000\.mp4: a frame cannot be decoded"):
        opened(root).get_at([24])
    report = repair(root, tmp_path / "new")
    assert report.episodes == 2
    assert "13 samples: episode 1, 'observation.images.top'" in report.left_out[0]
    require_same_episodes(tmp_path / "new", FOLDER / V3, [0, 2])


def test_an_interrupted_recording_is_saved(copy: Callable[[str], Path], tmp_path: Path) -> None:
    """As lerobot leaves it: no table has a footer, and every episode that was saved is kept."""
    root = copy(V3)
    drop_footer(root / DATA)
    drop_footer(root / EPISODES)
    report = check(root)
    assert (report.samples, {finding.kind for finding in report.findings}) == (None, {"unreadable"})
    saved = repair(root, tmp_path / "new")
    assert (saved.samples_before, saved.samples, saved.episodes, saved.left_out) == (60, 60, 3, [])
    assert any("60 rows were read without a footer" in note for note in saved.notes)
    require_same_episodes(tmp_path / "new", FOLDER / V3, [0, 1, 2])
    assert check(tmp_path / "new").is_sound


def test_episodes_that_are_not_whole_are_left_out(copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = copy(V3)
    groups = pq.read_metadata(root / DATA)
    column = groups.row_group(2).column(0)
    os.truncate(root / DATA, column.dictionary_page_offset + 10)  # in the third episode
    (root / EPISODES).unlink()
    saved = repair(root, tmp_path / "new")
    assert saved.episodes == 2
    require_same_episodes(tmp_path / "new", FOLDER / V3, [0, 1])
    root = copy(V21)
    for path in root.glob("data/**/*.parquet"):
        os.truncate(path, 20)
    with pytest.raises(ValueError, match="no episode can be kept"):
        repair(root, tmp_path / "none")
    (root / "meta/info.json").write_text("{")
    with pytest.raises(ValueError, match=r"meta/info.json: not JSON"):
        repair(root, tmp_path / "none")
    assert not (tmp_path / "none").exists()


_KILLED = """
import os, sys
import numpy as np, pyarrow.parquet as pq
from unienv_data.integrations._lerobot_writing import as_arrow_table
writer = None
for group, rows in enumerate((5, 1, 3000)):
    rng = np.random.default_rng(group)
    table = as_arrow_table({
        "wide": rng.normal(size=(rows, 3, 2)), "flag": rng.random(rows) < 0.5, "other": rng.random(rows) < 0.5,
        "word": np.array([f"w{i % 7}" for i in range(rows)], object), "number": np.arange(rows),
    })
    writer = writer or pq.ParquetWriter(sys.argv[1], table.schema, compression="snappy", use_dictionary=True)
    writer.write_table(table)
os._exit(9)
"""


def test_a_table_whose_writer_was_killed(tmp_path: Path) -> None:
    path, whole = tmp_path / "killed.parquet", tmp_path / "whole.parquet"
    assert subprocess.run([sys.executable, "-c", _KILLED, path], check=False).returncode == 9
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(path)
    row = {
        "wide": np.zeros((1, 3, 2)),
        "flag": np.zeros(1, bool),
        "other": np.zeros(1, bool),
        "word": np.array([""], object),
        "number": np.zeros(1, np.int64),
    }
    assert restore_footer(path, whole, as_arrow_table(row)) == 3006
    table = pq.read_table(whole)
    assert table["number"].to_pylist() == [*range(5), 0, *range(3000)]
    rng = np.random.default_rng(2)
    wide = rng.normal(size=(3000, 3, 2))
    assert np.array_equal(np.array(table["wide"].to_pylist()[6:]), wide)
    assert table["flag"].to_pylist()[6:] == (rng.random(3000) < 0.5).tolist()
    for size in range(0, path.stat().st_size, max(1, path.stat().st_size // 40)):  # cut anywhere, whole groups are kept
        cut = tmp_path / "cut.parquet"
        cut.write_bytes(path.read_bytes()[:size])
        rows = restore_footer(cut, whole, as_arrow_table(row))
        assert rows in (0, 5, 6)
        if rows:
            assert pq.read_table(whole)["number"].to_pylist() == [*range(5), 0][:rows]


def test_images_in_a_table_whose_writer_was_killed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path, whole = tmp_path / "killed.parquet", tmp_path / "whole.parquet"
    images = np.array([{"bytes": rng.bytes(400_000), "path": f"frame-{i}.png"} for i in range(8)], object)
    writer = None
    for rows in (slice(0, 5), slice(5, 8)):  # of the first the dictionary gets too large
        table = as_arrow_table({"image": images[rows], "state": np.ones((8, 2), np.float32)[rows]})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="snappy", use_dictionary=True)
        writer.write_table(table)
    writer.close()
    drop_footer(path)
    row = one_row_of({"image": {"dtype": "image"}, "state": {"dtype": "float32", "shape": (2,)}})
    assert restore_footer(path, whole, as_arrow_table(row)) == 8
    assert pq.read_table(whole)["image"].to_pylist() == images.tolist()
