"""Episodes that were cut, as checks, repairs and conversions see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer, check, repair
from unienv_data.checking import convert
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
SPACE = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, 0, 1000, "int64", shape=())})


def record(path: Path, lanes: int) -> None:
    """Three episodes in each lane, the second of which is cut, and the third open."""
    with ReplayBuffer.create(SPACE, cache_path=path, lanes=lanes) as buffer:
        for step in range(9):
            value: Any = {"x": np.arange(lanes) + lanes * step} if lanes > 1 else {"x": np.int64(step)}
            (buffer.extend_lanes if lanes > 1 else buffer.append)(value)
            if step in (2, 5):
                buffer.mark_segment_end(cut=step == 5)


def cut(path: Path) -> list[list[int]]:
    with ReplayBuffer.load_from(path, backend=NUMPY) as buffer:
        values = buffer.get_at(...)["x"].tolist()
        return sorted(values[start : stop : buffer.lanes] for start, stop in buffer.cut_episodes() or [])


@pytest.mark.parametrize("lanes", [1, 3])
def test_check_lists_cut_episodes_and_finds_nothing_wrong_with_them(lanes: int, tmp_path: Path) -> None:
    record(tmp_path / "a", lanes)
    report = check(tmp_path / "a", ignore=["unfinished-episode"])
    assert report.is_sound
    assert report.cut_episodes == [(3 * lanes + lane, 5 * lanes + lane + 1) for lane in range(lanes)]


@pytest.mark.parametrize("lanes", [1, 3])
def test_copies_know_what_was_cut(lanes: int, tmp_path: Path) -> None:
    record(tmp_path / "a", lanes)
    wanted = sorted(
        [step * lanes + lane for step in steps] for lane in range(lanes) for steps in ([3, 4, 5], [6, 7, 8])
    )
    convert(tmp_path / "a", tmp_path / "b", "hdf5")
    assert cut(tmp_path / "b") == wanted  # what was open has no end in the copy
    repair(tmp_path / "a", tmp_path / "c")
    assert cut(tmp_path / "c") == wanted
    (tmp_path / "a" / "header.bin").unlink()
    repair(tmp_path / "a", tmp_path / "d")
    assert cut(tmp_path / "d") == [one for one in wanted if one[0] < 6 * lanes]  # nobody knows of the rest


def test_what_is_left_of_a_damaged_episode_is_cut_unless_its_end_is(tmp_path: Path) -> None:
    record(tmp_path / "a", 1)
    path = tmp_path / "a" / "storage" / "rows.bin"
    content = bytearray(path.read_bytes())
    assert np.frombuffer(content, "<i8")[:3].tolist() == [0, 1, 2]
    content[8] ^= 1  # sample 1
    path.write_bytes(content)
    repair(tmp_path / "a", tmp_path / "b")
    assert cut(tmp_path / "b") == [[0], [3, 4, 5], [6, 7, 8]]
