"""repair of a folder that has lost its description, by another recording that was made in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import (
    cut,
    episode,
    episodes,
    fingerprint,
    flip,
    floats,
    image,
    joined,
    leaf_map,
    live_copy,
    read_all,
    same,
    transition_space,
    write,
    write_lanes,
)

from unienv_data import ReplayBuffer, check, repair
from unienv_data.storages.registry import storage_by_name
from unienv_interface.space.row_layout import RowLayout

LENGTHS = (300, 7, 1, 92)
ROW = RowLayout(transition_space()).nbytes


def with_lost_description(path: Path, **options: Any) -> Path:
    source = write(path, episodes(LENGTHS), **options)
    (source / "metadata.json").unlink()
    return source


def refusal(source: Path, like: Path | None) -> str:
    """Why a recording cannot be repaired, by another or without."""
    target = source.with_name("new")
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        repair(source, target, like=like)
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "empty"])
def test_what_a_sample_is_comes_from_the_other(tmp_path: Path, damage: str) -> None:
    like = write(tmp_path / "like", episodes((5,)))
    source = write(tmp_path / "r", episodes(LENGTHS))
    description = source / "metadata.json"
    if damage == "gone":
        description.unlink()
    elif damage == "flipped":
        flip(description, 40)
    else:
        cut(description, 0 if damage == "empty" else 200)
    before = fingerprint(source)
    report = repair(source, tmp_path / "new", like=like)
    assert (report.samples_before, report.samples, report.episodes, report.left_out) == (400, 400, 4, [])
    assert report.notes[0].startswith(f"{description}: ")
    assert report.notes[1] == f"the description of the samples was taken from {like}"
    found, segments = read_all(tmp_path / "new")
    assert same(found, joined(episodes(LENGTHS)))
    assert segments == [(0, 300), (300, 307), (307, 308), (308, 400)]
    assert fingerprint(source) == before
    assert check(tmp_path / "new").findings == []


def test_without_another_the_way_out_is_told(tmp_path: Path) -> None:
    source = with_lost_description(tmp_path / "r")
    why = refusal(source, None)
    assert "metadata.json: the file is missing" in why
    assert why.endswith("give it with --like (in Python: like=)")


def test_a_sound_description_counts_and_not_the_other(tmp_path: Path) -> None:
    like = write(tmp_path / "like", [np.zeros((3, 2), np.float32)], floats(2))
    source = write(tmp_path / "r", episodes(LENGTHS))
    flip(source / "header.bin", 64)
    repair(source, tmp_path / "new", like=like)
    assert same(read_all(tmp_path / "new")[0], joined(episodes(LENGTHS)))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_damage_to_the_description_costs_a_sample(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("like")
    like, source = write(folder / "like", episodes((5,))), write(folder / "r", episodes(LENGTHS))
    size = (source / "metadata.json").stat().st_size
    if data.draw(st.booleans()):
        flip(source / "metadata.json", data.draw(st.integers(0, size - 1)))
    else:
        cut(source / "metadata.json", data.draw(st.integers(0, size - 1)))
    repair(source, folder / "new", like=like)
    assert same(read_all(folder / "new")[0], joined(episodes(LENGTHS)))


def test_damaged_rows_are_still_left_out(tmp_path: Path) -> None:
    lengths = (3000,)
    source = write(tmp_path / "r", episodes(lengths))
    (source / "metadata.json").unlink()
    flip(source / "storage" / "rows.bin", 0)
    report = repair(source, tmp_path / "new", like=write(tmp_path / "like", episodes((5,))))
    assert same(read_all(tmp_path / "new")[0], leaf_map(lambda leaf: leaf[1:], joined(episodes(lengths))))
    assert report.left_out[0].startswith("sample 0: ")


def test_environments_side_by_side(tmp_path: Path) -> None:
    source = write_lanes(tmp_path / "r")
    repair(source, tmp_path / "as_it_was")
    (source / "metadata.json").unlink()
    repair(source, tmp_path / "new", like=write_lanes(tmp_path / "like", steps=10, seed=1))
    (one, ours), (other, theirs) = read_all(tmp_path / "as_it_was"), read_all(tmp_path / "new")
    assert same(one, other)
    assert ours == theirs


# -- what does not fit -------------------------------------------------------------------------------------


def test_rows_of_another_size(tmp_path: Path) -> None:
    source = with_lost_description(tmp_path / "r")
    like = write(tmp_path / "like", [], transition_space(more=floats(5)))
    assert "give a recording that was made in the same way" in refusal(source, like)


def test_a_block_more_or_less(tmp_path: Path) -> None:
    images = transition_space(rgb=image(70, 70))
    source = with_lost_description(tmp_path / "r")
    assert "block-0.bin: the file is missing" in refusal(source, write(tmp_path / "like", [], images))
    part = {**episode(3, 0), "rgb": np.zeros((3, 70, 70), np.uint8)}
    source = write(tmp_path / "s", [part], images)
    (source / "metadata.json").unlink()
    assert "block-0.bin: the file is not part of the storage" in refusal(source, write(tmp_path / "other", []))


def test_checksums_tell_rows_of_another_size_where_sizes_do_not(tmp_path: Path) -> None:
    with ReplayBuffer.create(floats(3), cache_path=tmp_path / "live") as buffer:
        buffer.extend(np.random.default_rng(0).normal(size=(8000, 3)).astype(np.float32))
        buffer.flush()
        source = live_copy(buffer, tmp_path / "r")  # not closed, so that the header does not say how many rows
    (source / "metadata.json").unlink()
    cut(source / "storage" / "rows.bin", 8000 * 12)
    error = refusal(source, write(tmp_path / "like", [], floats(2)))
    assert "checksums matches" in error


@pytest.mark.parametrize(("own", "other"), [(None, 300), (300, None), (300, 200), (300, 400)])
def test_another_capacity(tmp_path: Path, own: int | None, other: int | None) -> None:
    source = with_lost_description(tmp_path / "r", capacity=own)
    error = refusal(source, write(tmp_path / "like", episodes((5,)), capacity=other))
    assert str(source) in error
    assert "give a recording that was made in the same way" in error


def test_the_same_capacity(tmp_path: Path) -> None:
    source = with_lost_description(tmp_path / "r", capacity=300)
    repair(source, tmp_path / "new", like=write(tmp_path / "like", episodes((5,)), capacity=300))
    assert same(read_all(tmp_path / "new")[0], leaf_map(lambda leaf: leaf[-300:], joined(episodes(LENGTHS))))


def test_other_lanes(tmp_path: Path) -> None:
    source = with_lost_description(tmp_path / "r")
    assert "no multiples of 3 lanes" in refusal(source, write_lanes(tmp_path / "like", steps=10))


@pytest.mark.parametrize(("name", "module"), [("hdf5", "h5py"), ("parquet", "pyarrow"), ("npz", "numpy")])
def test_other_storages_compare_their_columns(tmp_path: Path, name: str, module: str) -> None:
    pytest.importorskip(module)
    cls = storage_by_name(name)

    def record(path: Path, part: Any, **columns: Any) -> Path:
        space = transition_space(**columns)
        with ReplayBuffer.create(cls, space, cache_path=path, maintain_segment_metadata=True) as buffer:
            buffer.extend(part)
        return path

    source = record(tmp_path / "r", episode(20, 0))
    (source / "metadata.json").unlink()
    like = record(tmp_path / "like", {**episode(5, 1), "more": np.zeros(5, np.float32)}, more=floats())
    assert str(source / "storage") in refusal(source, like)
    repair(source, tmp_path / "new", like=record(tmp_path / "same", episode(5, 1)))
    assert same(read_all(tmp_path / "new")[0], episode(20, 0))


def test_the_other_must_be_a_recording(tmp_path: Path) -> None:
    source = with_lost_description(tmp_path / "r")
    for like in (tmp_path / "nowhere", source / "header.bin", source):
        assert f"like {like}: it has no sound metadata.json" in refusal(source, like)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    assert "not a replay buffer" in refusal(tmp_path / "r", write(tmp_path / "like", episodes((5,))))
    assert "there is no such folder" in refusal(tmp_path / "nowhere", tmp_path / "like")
