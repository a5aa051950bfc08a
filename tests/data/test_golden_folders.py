"""Folders that were written once and are kept: by an earlier version, and in today's format.

`write_golden_folders.py` wrote them, `checks` with the code from before every row had a checksum of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from write_golden_folders import everything, point

import unienv_data
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend

FOLDERS = Path(__file__).parent / "golden_folders"
LOAD: dict[str, Any] = {"backend": NumpyComputeBackend}
# the samples in each, how one is made, and its episodes
BUFFERS: dict[str, tuple[list[int], Callable[[int], Any], list[tuple[int, int]]]] = {
    "everything": ([2, 3, 4], everything, [(0, 2)]),
    "grow": (list(range(1, 12)), np.int64, [(0, 3), (3, 7), (7, 11)]),
    "ring": (list(range(13, 33)), point, [(0, 2), (2, 7), (7, 12), (12, 17)]),
    "lanes": (list(range(12)), point, [(0, 5), (1, 10)]),
}


def check(buffer: ReplayBuffer, name: str, more: int = 0) -> None:
    numbers, make, segments = BUFFERS[name]
    assert len(buffer) == len(numbers)
    for index, number in enumerate(numbers[more:] + [100 + each for each in range(more)]):
        found, wanted = buffer.get_at(index), make(number)
        if not isinstance(wanted, dict):
            found, wanted = {"": found}, {"": wanted}
        for key, value in wanted.items():
            assert np.array_equal(found[key], value), (name, index, key)
    if not more:
        assert buffer.get_segments() == segments
    assert buffer.verify() == []


@pytest.fixture(params=[(version, name) for version in ("checks", "sums") for name in BUFFERS], ids="-".join)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    version, name = request.param
    return name, Path(shutil.copytree(FOLDERS / version / name, tmp_path / name))


def test_it_is_read(golden: tuple[str, Path]) -> None:
    name, folder = golden
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with ReplayBuffer.load_from(folder, **LOAD) as buffer:
        check(buffer, name)
    kinds = {finding.kind for finding in unienv_data.check(folder).findings}
    assert not kinds & {"unreadable", "damaged", "episodes", "unreadable-samples"}
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_it_is_written_and_every_row_has_a_checksum_then(golden: tuple[str, Path]) -> None:
    name, folder = golden
    with ReplayBuffer.load_from(folder, read_only=False, **LOAD) as buffer:
        check(buffer, name)
    with ReplayBuffer.load_from(folder, **LOAD) as buffer:
        check(buffer, name)
        # and no row behind them, which would pass as a sample that is yet to be written
        assert buffer.storage.count_checked() <= buffer.sample_numbers.stop  # type: ignore[attr-defined]
    assert not (folder / "storage" / "checks.bin").exists()
    flip(folder / "storage" / "rows.bin", 9)
    with ReplayBuffer.load_from(folder, **LOAD) as buffer:
        (finding,) = buffer.verify()
        assert "do not match their checksum" in finding


def test_damage_from_before_is_still_reported_when_it_was_written(golden: tuple[str, Path]) -> None:
    _, folder = golden
    flip(folder / "storage" / "rows.bin", 9)
    for read_only in (True, False, True):
        with ReplayBuffer.load_from(folder, read_only=read_only, **LOAD) as buffer:
            assert any("do not match their checksum" in finding for finding in buffer.verify())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 8
    path.write_bytes(content)
