"""convert: the same samples and episodes in another format, or nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import (
    BACKEND,
    episode,
    episodes,
    fingerprint,
    flat,
    leaf_map,
    live_copy,
    read_all,
    same,
    transition_space,
    write,
    write_lanes,
)

from unienv_data import ReplayBuffer, check
from unienv_data.checking import FORMATS, convert, reading
from unienv_data.checking._convert import NewRecording
from unienv_data.checking.reading import open_folder
from unienv_interface.space import DictSpace, TextSpace

_LIBRARIES = {"hdf5": "h5py", "parquet": "pyarrow", "pt": "torch"}
AVAILABLE = [fmt for fmt in FORMATS if fmt not in _LIBRARIES or importlib.util.find_spec(_LIBRARIES[fmt])]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 30)


def contents(path: Path) -> tuple[Any, list[tuple[int, int]] | None, int]:
    """Samples on the host, episodes and lanes, whatever the format."""
    with open_folder(path) as buffer:
        batch = leaf_map(lambda leaf: np.asarray(buffer.backend.to_numpy(leaf)), buffer.get_at(...))
        return batch, buffer.get_segments(), buffer.lanes


@pytest.mark.parametrize("fmt", AVAILABLE)
@pytest.mark.parametrize("kind", ["episodes", "lanes", "ring"])
def test_samples_and_episodes_are_the_same(tmp_path: Path, run: Any, fmt: str, kind: str) -> None:
    lengths = (20, 3, 1, 40, 11)
    if kind == "lanes":
        source = write_lanes(tmp_path / "r", steps=40)
    else:
        source = write(tmp_path / "r", episodes(lengths), capacity=60 if kind == "ring" else None)
    before = fingerprint(source)
    run("convert", source, tmp_path / "new", "--to", fmt)
    samples, segments, lanes = contents(source)
    new_samples, new_segments, new_lanes = contents(tmp_path / "new")
    assert same(samples, new_samples)
    assert (segments, lanes) == (new_segments, new_lanes)
    assert {name: leaf.dtype for name, leaf in flat(samples).items()} == {
        name: leaf.dtype for name, leaf in flat(new_samples).items()
    }
    assert check(tmp_path / "new").findings == []
    assert fingerprint(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "r"]


@pytest.mark.parametrize("fmt", AVAILABLE)
def test_there_and_back_again(tmp_path: Path, fmt: str) -> None:
    source = write(tmp_path / "r", episodes((12, 20)))
    convert(source, tmp_path / "there", fmt)
    convert(tmp_path / "there", tmp_path / "back", "packed")
    assert same(read_all(source)[0], read_all(tmp_path / "back")[0])
    assert read_all(source)[1] == read_all(tmp_path / "back")[1]


def test_texts_and_no_episodes(tmp_path: Path) -> None:
    space = DictSpace(BACKEND, {"task": TextSpace(BACKEND, 8)})
    batch = {"task": np.array(["lift", "", "push"], object)}
    source = write(tmp_path / "r", [batch], space, maintain_segment_metadata=False)
    report = convert(source, tmp_path / "new", "npz")
    found, segments = read_all(tmp_path / "new")
    assert (found["task"].tolist(), segments, report.episodes) == (["lift", "", "push"], None, None)


def test_an_episode_that_was_never_closed_is_closed_in_the_copy(tmp_path: Path) -> None:
    with ReplayBuffer.create(
        transition_space(), cache_path=tmp_path / "live", maintain_segment_metadata=True
    ) as buffer:
        buffer.extend(episode(20, 0))
        buffer.append(leaf_map(lambda leaf: leaf[0], episode(2, 1)))
        source = live_copy(buffer, tmp_path / "r")
    convert(source, tmp_path / "new", "packed")
    assert read_all(tmp_path / "new")[1] == [(0, 20), (20, 21)]


def test_an_empty_recording(tmp_path: Path) -> None:
    assert convert(write(tmp_path / "r", []), tmp_path / "new", "packed").samples == 0
    assert read_all(tmp_path / "new")[1] == []


def test_report_as_json(tmp_path: Path, run_json: Any) -> None:
    found = run_json("convert", write(tmp_path / "r", episodes()), tmp_path / "new", "--to", "packed")
    assert set(found) == {"source", "target", "format", "samples", "episodes", "bytes_on_disk"}
    assert (found["samples"], found["episodes"]) == (2000, 7)


# -- or nothing --------------------------------------------------------------------------------------------


def test_what_is_there_is_not_overwritten(tmp_path: Path, run: Any) -> None:
    source = write(tmp_path / "r", episodes())
    (tmp_path / "new").mkdir()
    assert "it exists already" in run("convert", source, tmp_path / "new", "--to", "packed", status=1).stderr
    assert list((tmp_path / "new").iterdir()) == []


def test_an_unknown_format_says_which_there_are(tmp_path: Path, run: Any) -> None:
    source = write(tmp_path / "r", episodes())
    error = run("convert", source, tmp_path / "new", "--to", "csv", status=2).stderr
    assert "'csv' is no format, it must be one of packed, hdf5, parquet, npz, pt" in error


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_half_a_conversion_leaves_nothing(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    source = write(tmp_path / "r", episodes())
    add, calls = NewRecording.add, []

    def fails_at_the_third(self: NewRecording, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise trouble
        add(self, *args)

    monkeypatch.setattr(NewRecording, "add", fails_at_the_third)
    status = 130 if isinstance(trouble, KeyboardInterrupt) else 1
    run("convert", source, tmp_path / "new", "--to", "packed", status=status)
    assert len(calls) == 3
    assert list(tmp_path.iterdir()) == [source]


def test_samples_that_are_dropped_meanwhile_are_noticed(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplayBuffer.create(
        transition_space(), cache_path=tmp_path / "r", capacity=500, maintain_segment_metadata=True
    ) as writer:
        writer.extend(episode(500, 0))
        add = NewRecording.add

        def while_the_ring_moves_on(self: NewRecording, *args: Any) -> None:
            add(self, *args)
            writer.extend(episode(200, 1))

        monkeypatch.setattr(NewRecording, "add", while_the_ring_moves_on)
        error = run("convert", tmp_path / "r", tmp_path / "new", "--to", "packed", status=1).stderr
    assert "samples were dropped during the copy" in error
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["episodes", "lanes"])
def test_a_recording_becomes_a_lerobot_dataset(tmp_path: Path, run_json: Any, kind: str) -> None:
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset

    source = write(tmp_path / "r", episodes((20, 3))) if kind == "episodes" else write_lanes(tmp_path / "r", steps=10)
    options = ("--to", "lerobot", "--fps", 20, "--task", "reach")
    report = run_json("convert", source, tmp_path / "new", *options)
    dataset = LeRobotAsUniEnvDataset.from_local(tmp_path / "new", BACKEND)
    samples, _ = read_all(source)
    with open_folder(source) as buffer:
        starts = buffer.episodes_of(np.arange(len(buffer))).start
    order = np.argsort(starts, kind="stable")  # episode by episode
    assert (report["samples"], report["episodes"]) == (len(order), dataset.num_episodes)
    found = dataset.get_at(...)
    np.testing.assert_array_equal(found["observation.joints"], samples["obs"]["joints"][order])
    np.testing.assert_array_equal(found["action"], samples["action"][order])
    assert set(found["task"]) == {"reach"}


def test_a_lerobot_dataset_wants_its_rate(tmp_path: Path, run: Any) -> None:
    source = write(tmp_path / "r", episodes((5,)))
    refused = run("convert", source, tmp_path / "new", "--to", "lerobot", "--task", "reach", status=1)
    assert "fps is None, it must be the number of samples per second: give fps (--fps)" in refused.stderr
    assert (
        "fps and task are for" in run("convert", source, tmp_path / "new", "--to", "npz", "--fps", 3, status=1).stderr
    )
    assert not (tmp_path / "new").exists()
