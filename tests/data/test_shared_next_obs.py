"""Observations that are stored once read as if they were stored twice, whatever is done to the buffer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transitions import Play, spaces_of

from unienv_data import FrameStackedBatch, ReplayBuffer, SliceStackedBatch
from unienv_data.storages.shared_next_obs import SharedNextObsSpace, SharedNextObsStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import reshape_batch_size_in_data

NUMPY = NumpyComputeBackend


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from flat(value[key], f"{path}/{key}")
    else:
        yield path, value


def same(some: Any, others: Any) -> None:
    """The same leaves, bit for bit."""
    ours, theirs = dict(flat(some)), dict(flat(others))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        one, other = np.asarray(value), np.asarray(theirs[path])
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes(), path


class Pair:
    """A buffer that stores observations once and one that stores them twice, to which the same is done."""

    def __init__(self, kind: str, place: str, lanes: int, capacity: int | None, folder: Path, seed: int) -> None:
        self.play, self.place, self.folder = Play(kind, lanes, seed), place, folder
        self.chance, self.dumps = random.Random(seed), 0
        options: dict[str, Any] = {"capacity": capacity, "lanes": lanes, "maintain_segment_metadata": True}
        if place == "shared memory":
            options["multiprocessing"] = True
        self.twice = ReplayBuffer.create(self.play.space, **options)
        self.once = ReplayBuffer.create(
            SharedNextObsSpace(NUMPY, spaces_of(kind)),
            cache_path=folder / "once" if place == "disk" else None,
            **options,
        )
        assert isinstance(self.once.storage, SharedNextObsStorage)

    @property
    def both(self) -> tuple[ReplayBuffer, ReplayBuffer]:
        return self.twice, self.once

    def act(self) -> None:
        kinds = ["write", "extend", "end", "drop", "clear", "reopen", "dump", "copy"]
        kind = self.chance.choices(kinds, [20, 4, 2, 2, 0.3, 1, 0.5, 0.5])[0]
        getattr(self, f"_{kind}")()

    def _write(self) -> None:
        lanes = self.play.lanes
        if lanes == 1:
            value, ended = self.play.step()
            for buffer in self.both:
                buffer.append(value)
                if ended:
                    buffer.mark_segment_end()
            return
        count = self.chance.choice([1, 1, 1, 3])
        batch, ended = self.play.steps(count)
        if count > 1:
            batch = reshape_batch_size_in_data(NUMPY, batch, (count * lanes,), (count, lanes))
            ended = ended.reshape(count, lanes)
        for buffer in self.both:
            buffer.extend_lanes(batch, ended)

    def _extend(self) -> None:
        if self.play.lanes > 1 or self.twice.has_open_segment:
            return self._end()
        batch, _ = self.play.steps(self.chance.choice([1, 4, 9, 40]))
        for buffer in self.both:
            buffer.extend(batch)
        return None

    def _end(self) -> None:
        for buffer in self.both:
            buffer.mark_segment_end()

    def _drop(self) -> None:
        count = min(len(self.twice), self.play.lanes * self.chance.choice([1, 2, 5]))
        for buffer in self.both:
            buffer.remove_at(np.arange(count))

    def _clear(self) -> None:
        for buffer in self.both:
            buffer.clear()

    def _reopen(self) -> None:
        if self.place == "disk":
            if self.chance.random() < 0.5:
                self.once.close()
            else:
                self.once._state.folder_lock.release()  # as if the process had been killed
            self.once = ReplayBuffer.load_from(self.folder / "once", backend=NUMPY, read_only=False)

    def _dump(self) -> None:
        self._end()
        self.once.dumps(self.folder / "dump")
        with ReplayBuffer.load_from(self.folder / "dump", backend=NUMPY) as dumped:
            self.compare(dumped)
            assert dumped.verify() == []

    def _copy(self) -> None:
        self._end()
        options: Any = {"lanes": self.play.lanes, "maintain_segment_metadata": True}
        copied = ReplayBuffer.create(SharedNextObsSpace(NUMPY, self.play.space.spaces), **options)
        copied.extend_from(self.once, chunk_size=7)
        self.compare(copied)

    def compare(self, once: ReplayBuffer) -> None:
        twice = self.twice
        assert len(once) == len(twice)
        assert once.get_segments() == twice.get_segments()
        same(once.get_at(...), twice.get_at(...))
        if not len(twice):
            return
        chosen = np.array([self.chance.randrange(len(twice)) for _ in range(8)])
        same(once.get_at(chosen), twice.get_at(chosen))
        same(once.get_at(int(chosen[0])), twice.get_at(int(chosen[0])))
        for key in ("obs", "next_obs", "action"):
            same(once.get_column_at((key,), chosen), twice.get_column_at((key,), chosen))
        for view in (FrameStackedBatch, lambda batch, count: SliceStackedBatch(batch, np.array([-count, 0, 2]))):
            (some, ours), (others, theirs) = (view(buffer, 3).get_at_with_metadata(chosen) for buffer in (once, twice))
            same(some, others)
            same(ours, theirs)


@contextmanager
def playing(*arguments: Any) -> Iterator[Pair]:
    pair = Pair(*arguments)
    try:
        yield pair
    finally:
        for buffer in pair.both:
            buffer.close()


PLACES = ["memory", "disk", "shared memory"]
SIZES = [(1, None), (1, 30), (1, 2), (3, None), (3, 30), (3, 3)]
CASES = [("vector", lanes, capacity, place) for lanes, capacity in SIZES for place in PLACES]
CASES += [("mixed", 1, 30, "disk"), ("mixed", 3, 30, "memory"), ("mixed", 3, None, "disk"), ("scalar", 1, 9, "disk")]


@pytest.mark.parametrize(("kind", "lanes", "capacity", "place"), CASES)
def test_batches_are_those_of_a_buffer_that_stores_next_obs(
    kind: str, lanes: int, capacity: int | None, place: str, tmp_path: Path
) -> None:
    with playing(kind, place, lanes, capacity, tmp_path, 7) as pair:
        for step in range(120):
            pair.act()
            if step % 5 == 0:
                pair.compare(pair.once)
                assert pair.once.verify() == []
