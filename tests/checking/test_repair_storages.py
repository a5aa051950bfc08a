"""repair of every storage: the rows that all of its files can give are kept, whatever kind of files these are."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import (
    BACKEND,
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
)

from unienv_data import ReplayBuffer, StorageCorruptedError, check, repair
from unienv_data.base.storage import SpaceStorage
from unienv_data.checking._repair import _find_unreadable
from unienv_data.checking._salvage import Salvage
from unienv_data.checking.reading import as_ranges
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.registry import storage_by_name
from unienv_interface.space import DictSpace, Space

LENGTHS = (30, 7, 1, 62)
COUNT = sum(LENGTHS)


def storage(name: str) -> type[SpaceStorage]:
    pytest.importorskip({"hdf5": "h5py", "parquet": "pyarrow", "pytorch": "torch"}.get(name, "numpy"))
    return storage_by_name(name)


def record(path: Path, name: str, **options: Any) -> Path:
    """A recording of the usual episodes with a storage; closed in order."""
    space: Space = transition_space()
    if name == "pytorch":
        from unienv_interface.backends.pytorch import PyTorchComputeBackend, torch

        with ReplayBuffer.create(
            storage(name),
            space.to(PyTorchComputeBackend),
            cache_path=path,
            maintain_segment_metadata=True,
            **{"capacity": COUNT, **options},
        ) as buffer:
            for part in episodes(LENGTHS):
                buffer.extend(leaf_map(torch.from_numpy, part))
        return path
    with ReplayBuffer.create(
        storage(name), space, cache_path=path, maintain_segment_metadata=True, **options
    ) as buffer:
        for part in episodes(LENGTHS):
            buffer.extend(part)
    return path


def check_kept(target: Path, kept: np.ndarray) -> None:
    """Compare with what was written; `kept` are the samples that should be there, in order."""
    found, segments = read_all(target)
    assert same(found, leaf_map(lambda leaf: leaf[kept], joined(episodes(LENGTHS))))
    assert sum(stop - start for start, stop in segments or ()) == len(kept)
    for start, stop in segments or ():
        assert np.array_equal(kept[start:stop], np.arange(kept[start], kept[start] + stop - start))
    assert [finding for finding in check(target).findings if finding.kind == "checksum"] == []


EVERY = np.arange(COUNT)
NAMES = ("hdf5", "parquet", "npz", "pytorch")


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_header_costs_no_sample(tmp_path: Path, name: str) -> None:
    source = record(tmp_path / "r", name)
    flip(source / "header.bin", 64)
    before = fingerprint(source)
    report = repair(source, tmp_path / "new")
    assert report.left_out == []
    check_kept(tmp_path / "new", EVERY)
    assert fingerprint(source) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_record_of_an_episode_costs_no_sample(tmp_path: Path, name: str) -> None:
    source = record(tmp_path / "r", name)
    flip(source / "segments.bin", 1 * 24 + 1)
    repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", EVERY)
    assert read_all(tmp_path / "new")[1] == [(0, 30), (30, 37), (37, 38), (38, 100)]


def test_a_piece_of_parquet_is_left_out_as_one(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "parquet", piece_size=16)
    flip(source / "storage" / "part-000002.parquet", 200)
    (why,) = repair(source, tmp_path / "new").left_out
    check_kept(tmp_path / "new", np.setdiff1d(EVERY, range(32, 48)))
    assert why.startswith("samples 32 to 47: ")
    assert "part-000002.parquet" in why


def test_pieces_that_are_gone_are_left_out(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "parquet", piece_size=16)
    (source / "storage" / "part-000000.parquet").unlink()
    cut(source / "storage" / "part-000006.parquet", 10)
    report = repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", np.arange(16, 96))
    assert [text.split(":")[0] for text in report.left_out] == ["samples 0 to 15", "samples 96 to 99"]


def test_samples_of_npz_are_left_out_one_by_one(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "npz")
    (source / "storage" / "5.npz").unlink()
    cut(source / "storage" / "50.npz", 100)
    flip(source / "storage" / "70.npz", 100)
    report = repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", np.setdiff1d(EVERY, [5, 50, 70]))
    assert [text.split(":")[0] for text in report.left_out] == ["sample 5", "sample 50", "sample 70"]
    assert report.split_episodes == 2


def damage_chunk(path: Path, dataset: str, chunk: int) -> None:
    """Change a byte of a chunk where it lies in the file."""
    import h5py

    with h5py.File(path, "r") as file:
        at = file[dataset].id.get_chunk_info(chunk).byte_offset
    flip(path, at + 3)


def test_chunks_of_two_columns_of_hdf5_are_left_out(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "hdf5", chunks=16)
    damage_chunk(source / "storage.hdf5", "reward", 1)
    damage_chunk(source / "storage.hdf5", "obs/joints", 4)
    first, second = repair(source, tmp_path / "new").left_out
    check_kept(tmp_path / "new", np.setdiff1d(EVERY, [*range(16, 32), *range(64, 80)]))
    assert first.startswith("samples 16 to 31: ")
    assert "'reward': HDF5 cannot do it" in first
    assert second.startswith("samples 64 to 79: ")
    assert "'obs/joints': HDF5 cannot do it" in second


def test_chunks_that_are_not_in_the_file_are_no_zeros(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source = record(tmp_path / "r", "hdf5", chunks=16)
    with h5py.File(source / "storage.hdf5", "r+") as file:
        for rows in (64, COUNT):  # this removes the chunks behind it, and reads give zeros for them
            file["reward"].resize(rows, 0)
    report = repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", np.arange(64))
    assert report.left_out == ["samples 64 to 99: the files do not contain them"]


def test_a_ring_of_pieces_is_unrolled(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "parquet", piece_size=16, capacity=64)  # sample 36 is the oldest, in slot 36
    flip(source / "storage" / "part-000000.parquet", 200)  # slots 0 to 15: samples 64 to 79
    repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", np.setdiff1d(np.arange(36, 100), range(64, 80)))


def test_tensors_that_were_cut_keep_the_samples_that_are_whole(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "pytorch")
    file = source / "storage.memmap"
    cut(file, file.stat().st_size - 33 * 1)  # the last tensor has one byte a sample
    report = repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", np.arange(COUNT - 33))
    assert report.left_out == [f"samples {COUNT - 33} to {COUNT - 1}: the files end before them"]


def test_tensors_without_a_description_must_have_the_size_of_the_other(tmp_path: Path) -> None:
    source = record(tmp_path / "r", "pytorch")
    (source / "metadata.json").unlink()
    for capacity in (COUNT - 1, COUNT + 1):
        like = record(tmp_path / f"like{capacity}", "pytorch", capacity=capacity)
        with pytest.raises(StorageCorruptedError, match=f"storage.memmap.*does not fit {like}"):
            repair(source, tmp_path / "new", like=like)
    repair(source, tmp_path / "new", like=record(tmp_path / "like", "pytorch"))
    check_kept(tmp_path / "new", EVERY)


# -- writers that were killed ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hdf5", "parquet"])
@pytest.mark.parametrize("capacity", [None, 100])
def test_what_was_flushed_before_a_kill_is_kept(tmp_path: Path, name: str, capacity: int | None) -> None:
    with ReplayBuffer.create(
        storage(name),
        transition_space(),
        cache_path=tmp_path / "live",
        capacity=capacity,
        maintain_segment_metadata=True,
    ) as buffer:
        for part in episodes(LENGTHS):
            buffer.extend(part)
        buffer.flush()
        buffer.extend(episode(20, 9))
        source = live_copy(buffer, tmp_path / "r")
    report = repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", EVERY if capacity is None else np.arange(20, 100))
    opens_as_it_was_flushed = name == "parquet" and capacity is None
    assert opens_as_it_was_flushed or any("20 samples were not flushed" in note for note in report.notes)


def test_where_samples_lie_is_not_guessed(tmp_path: Path) -> None:
    with ReplayBuffer.create(storage("parquet"), transition_space(), cache_path=tmp_path / "live") as buffer:
        buffer.extend(episode(20, 9))
        buffer.flush()
        buffer.remove_at(np.array([3, 7]))
        source = live_copy(buffer, tmp_path / "r")
    with pytest.raises(StorageCorruptedError, match="the place of its samples is unknown"):
        repair(source, tmp_path / "new")


# -- storages made of storages -----------------------------------------------------------------------------


def write_dict(path: Path, **options: Any) -> tuple[Path, Any]:
    """Observations in packed rows, actions as NumPy files; and what was written."""
    space = DictSpace(BACKEND, {"obs": image(70, 70), "action": floats(2)})
    rng = np.random.default_rng(0)
    batch = {
        "obs": rng.integers(0, 255, (40, 70, 70), np.uint8, endpoint=True),
        "action": rng.normal(size=(40, 2)).astype(np.float32),
    }
    with ReplayBuffer.create(
        DictStorage,
        space,
        {"obs": PackedStorage, "*": storage("npz")},
        cache_path=path,
        maintain_segment_metadata=True,
        **options,
    ) as buffer:
        buffer.extend(batch)
    return path, batch


def rows_of(source: Path) -> Path:
    """The part of packed rows."""
    return next(source.rglob("rows.bin")).parent


def check_dict(target: Path, batch: Any, kept: np.ndarray) -> None:
    assert same(read_all(target)[0], leaf_map(lambda leaf: leaf[kept], batch))


def test_a_sample_needs_all_parts(tmp_path: Path) -> None:
    source, batch = write_dict(tmp_path / "r")
    flip(rows_of(source) / "block-0.bin", 20 * 4900)
    next(source.rglob("3.npz")).unlink()
    repair(source, tmp_path / "new")
    found = len(read_all(tmp_path / "new")[0]["action"])
    assert found == 40 - 2
    check_dict(tmp_path / "new", batch, np.setdiff1d(np.arange(40), [3, 20]))


@pytest.mark.parametrize("capacity", [None, 40])
def test_a_part_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path, capacity: int | None) -> None:
    source, batch = write_dict(tmp_path / "r", capacity=capacity)
    cut(rows_of(source) / "block-0.bin", 30 * 4900 + 7)
    (rows_of(source) / "sums.bin").unlink()
    report = repair(source, tmp_path / "new")
    check_dict(tmp_path / "new", batch, np.arange(30))
    assert any("have no checksum" in note for note in report.notes)


def test_a_storage_around_another(tmp_path: Path) -> None:
    space = DictSpace(BACKEND, {"a": floats(3), "b": floats()})
    batch = {"a": np.arange(30, dtype=np.float32).reshape(10, 3), "b": np.arange(10, dtype=np.float32)}
    source = tmp_path / "r"
    with ReplayBuffer.create(
        FlattenedStorage, space, storage("npz"), cache_path=source, maintain_segment_metadata=True
    ) as buffer:
        buffer.extend(batch)
    flip(source / "header.bin", 64)
    (source / "storage" / "inner_storage" / "4.npz").unlink()
    repair(source, tmp_path / "new")
    check_dict(tmp_path / "new", batch, np.setdiff1d(np.arange(10), [4]))


# -- what does not open ------------------------------------------------------------------------------------


def cut_hdf5(source: Path) -> Path:
    file = source / "storage.hdf5"
    cut(file, file.stat().st_size // 2)
    return file


def no_index(source: Path) -> Path:
    (source / "storage" / "_metadata.json").unlink()
    return source / "storage" / "_metadata.json"


def no_folder(source: Path) -> Path:
    shutil.rmtree(source / "storage")
    return source / "storage"


@pytest.mark.parametrize(("name", "damage"), [("hdf5", cut_hdf5), ("parquet", no_index), ("npz", no_folder)])
def test_a_storage_that_does_not_open_is_named(tmp_path: Path, name: str, damage: Callable[[Path], Path]) -> None:
    source = record(tmp_path / "r", name)
    file = damage(source)
    with pytest.raises(StorageCorruptedError) as caught:
        repair(source, tmp_path / "new")
    assert str(file) in str(caught.value)
    assert "if you have an older copy of that file, put it there" in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("number", "is_left_out"), [(errno.EIO, True), (errno.EACCES, False)])
def test_a_disk_that_fails_in_places(number: int, is_left_out: bool) -> None:
    def read(positions: np.ndarray) -> Any:
        if 3 in positions:
            raise OSError(number, "no")
        return np.zeros(len(positions), np.float32)

    found = Salvage(
        space=floats(),
        count=9,
        stride=1,
        rows_at_once=4,
        read=read,
        close=lambda: None,
        episodes=None,
        gaps=as_ranges([]),
        blocks=np.arange(9),
        is_lost=np.zeros(9, bool),
    )
    if is_left_out:
        _find_unreadable(found, lambda done: None)
        assert found.is_lost.tolist() == [place == 3 for place in range(9)]
    else:
        with pytest.raises(PermissionError):
            _find_unreadable(found, lambda done: None)
