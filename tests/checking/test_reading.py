"""Reading recordings in chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recordings import (
    episodes,
    floats,
    image,
    read_all,
    write,
    write_lanes,
)

from unienv_data import ReplayBuffer
from unienv_data.checking import reading
from unienv_data.checking.reading import ChunkReader, open_folder, rows_per_chunk
from unienv_interface.space.row_layout import RowLayout


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 150)


@pytest.mark.parametrize("lanes", [1, 3])
def test_chunks_give_every_sample_once_and_overlap_as_asked(tmp_path: Path, lanes: int) -> None:
    path = write(tmp_path / "r", episodes()) if lanes == 1 else write_lanes(tmp_path / "r", lanes)
    whole, _ = read_all(path)
    with open_folder(path) as buffer:
        reader = ChunkReader(buffer, overlap=lanes, with_episodes=True)
        found = list(reader)
        assert len(found) > 3
        assert np.array_equal(
            np.concatenate([chunk.data["action"][chunk.before :] for chunk in found]), whole["action"]
        )
        assert [chunk.before for chunk in found] == [0, *[lanes] * (len(found) - 1)]
        for chunk in found:
            assert np.array_equal(chunk.data["action"], whole["action"][chunk.start : chunk.start + chunk.count])
            for place in (0, chunk.count - 1):
                segment = buffer.segment_of(chunk.start + place)
                assert segment is not None
                assert chunk.episode is not None
                assert chunk.episode[place] == segment[0]


def test_a_chunk_takes_a_few_megabytes_whatever_a_sample_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 65_536)
    for name, space in {"small": floats(), "large": image(96, 96, 3), "huge": image(2048, 2048, 3)}.items():
        with ReplayBuffer.create(space, cache_path=tmp_path / name, capacity=4) as buffer:
            nbytes = RowLayout(space).nbytes
            assert 1 <= rows_per_chunk(buffer) <= max(1, reading.CHUNK_BYTES // nbytes)


def test_of_a_ring_that_moves_on_what_is_gone_is_left_out(tmp_path: Path) -> None:
    with ReplayBuffer.create(floats(), cache_path=tmp_path / "r", capacity=400) as writer:
        writer.extend(np.arange(400, dtype=np.float32))
        with open_folder(tmp_path / "r") as buffer:
            reader = iter(ChunkReader(buffer))
            first = next(reader)
            writer.extend(np.arange(400, 600, dtype=np.float32))
            rest = [value for chunk in reader for value in chunk.data.tolist()]
    assert first.data.tolist() == list(range(150))
    assert rest == list(range(200, 400))
