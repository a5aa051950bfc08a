"""Bit rot: one flipped bit in any file of a recording is reported, also after the recording went on."""

from __future__ import annotations

import importlib.util
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import number, number_space, numbers
from power_cut import LEAVES, batch, number_in, space_of

import unienv_data
from unienv_data import ReplayBuffer, SpaceStorage, StorageCorruptedError
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.registry import storage_by_name
from unienv_interface.backends import NumpyComputeBackend

LOAD: dict[str, Any] = {"backend": NumpyComputeBackend}
# storages of packed rows alone and in others, with what the samples are made of and the capacity
FOLDERS: dict[str, tuple[type[SpaceStorage], dict[str, Any], str, int | None]] = {
    "small ring": (PackedStorage, {}, "small", 12),
    "rows": (PackedStorage, {}, "rows", None),
    "blocks": (PackedStorage, {}, "blocks", 12),
    "heap": (PackedStorage, {}, "heap", None),
    "columns": (DictStorage, {"storage_cls_map": {"*": PackedStorage}}, "small", None),
}
# storages whose format has bytes that mean nothing: damage is what changes samples, and that is reported
OTHERS: dict[str, tuple[type[SpaceStorage], dict[str, Any], str, int | None]] = {
    "npz": (storage_by_name("npz"), {}, "small", 12),
    "shared": (PackedStorage, {}, "shared", None),  # observations stored once, some of whose rows are to spare
    "shared ring": (PackedStorage, {}, "shared blocks", 12),
}
if importlib.util.find_spec("h5py"):
    hdf5 = storage_by_name("hdf5")
    OTHERS["hdf5"] = (hdf5, {}, "rows", None)
    OTHERS["hdf5 ring"] = (hdf5, {}, "blocks", 12)
    OTHERS["compressed hdf5 ring"] = (hdf5, {"chunks": 5, "compression": "gzip"}, "small", 12)
if importlib.util.find_spec("pyarrow"):
    OTHERS["parquet"] = (storage_by_name("parquet"), {"piece_size": 5}, "blocks", None)
LENGTH = 12


def make(folder: Path, name: str) -> None:
    storage_cls, options, leaves, capacity = {**FOLDERS, **OTHERS}[name]
    space = space_of(leaves)
    with ReplayBuffer.create(
        storage_cls, space, capacity=capacity, cache_path=folder, maintain_segment_metadata=True, **options
    ) as buffer:
        for start in range(0, LENGTH, 4):
            buffer.extend(batch(list(range(start, start + 4)), leaves))


def flips(folder: Path, count: int, chance: random.Random) -> list[tuple[Path, int]]:
    """Files, and the bits to be flipped in them: as many of the small files as of the large ones."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.name != "lock"]  # a note for people
    return [(path, chance.randrange(8 * path.stat().st_size)) for path in chance.choices(files, k=count)]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def is_reported(folder: Path) -> bool:
    try:
        with ReplayBuffer.load_from(folder, **LOAD) as buffer:
            return bool(buffer.verify())
    except StorageCorruptedError:
        return True


def is_unharmed(folder: Path, leaves: str) -> bool:
    with ReplayBuffer.load_from(folder, **LOAD) as buffer:
        found = [number_in(buffer.get_at(index), leaves) for index in range(len(buffer))]
    return found in (list(range(LENGTH)), [*range(LENGTH), 1000], [*range(1, LENGTH), 1000])


def goes_on(folder: Path, leaves: str) -> bool:
    """Whether a recording can be opened to write, and a sample appended to it."""
    try:
        with ReplayBuffer.load_from(folder, read_only=False, **LOAD) as buffer:
            buffer.extend(batch([1000], leaves))
    except StorageCorruptedError:
        return False
    return True


def attack(folder: Path, count: int, seed: int) -> None:
    """Flip one bit after the other, look, append, and look again."""
    chance = random.Random(seed)
    for turn, name in enumerate(sorted(FOLDERS)):
        leaves, capacity = FOLDERS[name][2:]
        origin, work = folder / f"origin{turn}", folder / "work"
        make(origin, name)
        assert not is_reported(origin)
        for path, bit in flips(origin, count // len(FOLDERS), chance):
            shutil.copytree(origin, work)
            place = path.relative_to(origin)
            flip(work / place, bit)
            what = f"seed {seed}, {name}: bit {bit} of {place}"
            assert is_reported(work), f"{what}: not reported"
            report = unienv_data.check(work)
            assert report.findings, f"{what}: nothing found by check"
            if goes_on(work, leaves):
                # what an append overwrites, the oldest sample of a ring or its checksum, is gone with its damage
                may_be_gone = capacity is not None or place.name in ("segments.bin", "header.bin")
                assert is_reported(work) or may_be_gone, f"{what}: not reported any more after an append"
            shutil.rmtree(work)


def test_a_hundred_flipped_bits(tmp_path: Path) -> None:
    attack(tmp_path, 100, seed=0)


@pytest.mark.soak
def test_two_thousand_flipped_bits(tmp_path: Path) -> None:
    attack(tmp_path, 2000, seed=1)


def attack_others(folder: Path, name: str, count: int, seed: int) -> int:
    """The same on a storage of another format; how many flips were reported."""
    chance, reported = random.Random(seed), 0
    leaves = OTHERS[name][2]
    origin, work = folder / "origin", folder / "work"
    make(origin, name)
    assert not is_reported(origin)
    for path, bit in flips(origin, count, chance):
        shutil.copytree(origin, work)
        place = path.relative_to(origin)
        flip(work / place, bit)
        what = f"seed {seed}, {name}: bit {bit} of {place}"
        if is_reported(work):
            reported += 1
            assert unienv_data.check(work).findings, f"{what}: nothing found by check"
        else:
            assert is_unharmed(work, leaves), f"{what}: not reported"
        if goes_on(work, leaves):
            assert is_reported(work) or is_unharmed(work, leaves), f"{what}: not reported any more after an append"
        shutil.rmtree(work)
    return reported


@pytest.mark.parametrize("name", OTHERS)
def test_flipped_bits_in_formats_of_others(name: str, tmp_path: Path) -> None:
    assert attack_others(tmp_path, name, 20, seed=2) > 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OTHERS)
def test_two_thousand_flipped_bits_in_formats_of_others(name: str, tmp_path: Path) -> None:
    assert attack_others(tmp_path, name, 2000, seed=3) > 700


@pytest.mark.parametrize("name", ["shared", "shared ring"])
def test_rows_that_refer_to_observations_that_are_not_there_are_damage(name: str, tmp_path: Path) -> None:
    make(tmp_path / "a", name)
    rows = tmp_path / "a" / "storage" / "rows" / "rows.bin"
    rows.write_bytes(b"\x7f" * rows.stat().st_size)
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert buffer.verify()
        with pytest.raises(StorageCorruptedError, match="there is no first observation"):
            buffer.get_at(...)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The folder of a recording of ten samples, the one with index 8 damaged."""
    path = tmp_path / "damaged"
    with ReplayBuffer.create(number_space(), cache_path=path) as buffer:
        buffer.extend(numbers(range(10)))
    flip(path / "storage" / "rows.bin", 8 * (8 * 16 + 3))
    return path


def test_a_copy_of_what_is_damaged_says_so(damaged: Path, tmp_path: Path) -> None:
    with ReplayBuffer.load_from(damaged, **LOAD) as buffer:
        buffer.dumps(tmp_path / "copy")
    with ReplayBuffer.load_from(tmp_path / "copy", **LOAD) as copy:
        (finding,) = copy.verify()
        assert "samples 8 to 8" in finding


def test_what_is_damaged_is_not_moved(damaged: Path) -> None:
    with ReplayBuffer.load_from(damaged, read_only=False, **LOAD) as buffer:
        with pytest.raises(
            StorageCorruptedError,
            match=r"samples 8 to 8 would have to be moved, and 1 of them do not match .*`unienv repair`",
        ):
            buffer.remove_at([6])
        assert len(buffer) == 10
        assert len(buffer.verify()) == 1
        buffer.remove_at([8])
        assert buffer.verify() == []
        assert np.asarray(buffer.get_at(...)["number"]).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9]
        buffer.append(number(10))


def test_leaves_cover_every_placement() -> None:
    placements = {leaf.placement for name in LEAVES for leaf in PackedStorage.create(space_of(name)).layout.leaves}
    assert placements == {"row", "block", "heap"}
