"""Reads that a writer comes between at just the wrong instant; each of these was once wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer
from unienv_data.base.windows import WindowQuery
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
SPACE = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, -1e9, 1e9, "float64", shape=())})


class Hooked:
    """Counters at which something happens when one of them is read for the first time."""

    def __init__(self, counters: Any, name: str, happen: Callable[[], None]) -> None:
        vars(self).update(counters=counters, name=name, happen=[happen])

    def __getattr__(self, name: str) -> int:
        if name == self.name and self.happen:
            self.happen.pop()()
        return getattr(self.counters, name)

    def __setattr__(self, name: str, value: int) -> None:
        setattr(self.counters, name, value)


def test_a_reader_that_looks_ahead_forgets_no_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer.create(SPACE, capacity=200, maintain_segment_metadata=True)

    def write(episodes: int) -> None:
        for _ in range(episodes):
            number = buffer.sample_numbers.stop
            buffer.extend({"x": np.arange(number, number + 2, dtype=np.float64)})

    query = WindowQuery(np.array([-1, 0, 1]))
    write(100)
    buffer.read_windows(np.arange(3), query)
    write(80)
    buffer.read_windows(np.arange(3), query)
    gather, overtaking = buffer.storage.gather_windows, iter([5, 30])

    def overtaken(slots: np.ndarray, length: int) -> Any:
        found = gather(slots, length)
        write(next(overtaking, 0))
        return found

    monkeypatch.setattr(buffer.storage, "gather_windows", overtaken)
    buffer.read_windows(np.arange(3), WindowQuery(query.offsets))  # which looks at samples that are to come
    assert next(overtaking, None) is None
    monkeypatch.undo()
    data, valid, *_ = buffer.read_windows(np.arange(len(buffer)), WindowQuery(query.offsets))
    is_of_another = data["x"] // 2 != data["x"][:, 1:2] // 2
    assert valid.sum() == 2 * len(buffer)  # of each window the other sample of its episode, and itself
    assert not (is_of_another & valid).any()
    episodes = buffer.episodes_of(np.arange(len(buffer)))
    assert episodes is not None
    assert episodes.start.tolist() == [index - index % 2 for index in range(len(buffer))]


@pytest.mark.parametrize("capacity", [None, 20])
def test_a_window_does_not_reach_into_what_is_being_written(
    capacity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are said to be closed an instant before they count."""
    storage = PackedStorage.create(SPACE, capacity=capacity)
    storage.extend_length(10)
    storage.set(np.arange(10), {"x": np.arange(10.0)})
    buffer = ReplayBuffer(
        storage, "storage", count=10, maintain_segment_metadata=True, physical_segments=[(0, 4)]
    )  # so the last six are closed, and in no episode
    segments, seen = buffer._state.segments, []
    put = segments.put

    def looked_at(*record: Any) -> None:
        put(*record)
        seen.append((buffer.read_windows(np.array([8, 9]), WindowQuery(np.array([0, 1, 2]))), len(buffer)))

    monkeypatch.setattr(segments, "put", looked_at)
    buffer.extend({"x": np.full(3, 777.0)})
    ((data, valid, *_), length) = seen[0]
    assert length == 10
    assert valid.tolist() == [[True, True, False], [True, False, False]]
    assert data["x"].tolist() == [[8.0, 9.0, 9.0], [9.0, 9.0, 9.0]]


def test_what_is_removed_between_two_counters_is_not_read() -> None:
    buffer = ReplayBuffer.create(SPACE, capacity=4)
    for number in range(3):
        buffer.append({"x": float(number)})

    def remove_all() -> None:
        buffer.append({"x": 3.0})
        buffer.remove_at(slice(None))

    buffer._reader._counters = Hooked(buffer._counters, "tail", remove_all)
    with pytest.raises(IndexError, match="for a length of 0"):
        buffer.get_at(np.array([0, -1]))


def test_the_newest_is_the_newest_however_far_a_writer_gets() -> None:
    buffer = ReplayBuffer.create(SPACE, capacity=4)
    for number in range(6):
        buffer.append({"x": float(number)})

    def overtake() -> None:
        for number in range(6, 12):
            buffer.append({"x": float(number)})

    buffer._reader._counters = Hooked(buffer._counters, "tail", overtake)
    assert buffer.get_at(np.array([-1]))["x"].tolist() == [11.0]


def test_a_reader_in_the_middle_of_its_own_threads_edit_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a signal handler: the edit goes on only when the handler returns."""
    buffer = ReplayBuffer.create(SPACE, capacity=4, maintain_segment_metadata=True)
    buffer.extend({"x": np.arange(6.0)[:4]})
    monkeypatch.setattr(buffer._state, "is_writing_here", lambda: True, raising=False)
    monkeypatch.setattr(buffer._state, "wait_for_edit", lambda: pytest.fail("it waits for itself"))
    buffer._counters.edit += 1
    assert buffer.get_at(np.array([0, -1]))["x"].tolist() == [0.0, 3.0]
    assert buffer.get_segments() == [(0, 4)]
    assert buffer.get_windows_at(np.array([1]), np.array([-2, 0]))[1].tolist() == [[False, True]]
    buffer._counters.coming += 1  # and an append that has overwritten one
    buffer._counters.tail += 1
    with pytest.raises(IndexError, match="out of range for a length of 3"):
        buffer.get_at(3)


def in_a_child(work: Callable[[], None]) -> int:
    """The status that a fork of this process ends with, once it has done this."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


@pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning")  # the child uses none of its threads
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_reader_sees_the_episodes_after_a_clear_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"

    def write(buffer: ReplayBuffer, episodes: int, length: int) -> None:
        for _ in range(episodes):
            buffer.extend({"x": np.zeros(length)})
        buffer.close()

    def die_in_clear() -> None:
        buffer = ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False)
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731 - it says what it is
        buffer._writer._counters = Hooked(buffer._counters, "edit", die)
        buffer.clear()

    write(ReplayBuffer.create(SPACE, cache_path=folder, maintain_segment_metadata=True), 5, 4)
    with ReplayBuffer.load_from(folder, backend=NUMPY) as reader:
        assert len(reader) == 20
        assert reader.episodes_of(np.array([5])) is not None
        assert in_a_child(die_in_clear) == signal.SIGKILL
        write(ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False), 6, 3)
        found = reader.episodes_of(np.arange(len(reader)))
        assert found is not None
        assert found.start.tolist() == [index - index % 3 for index in range(18)]
        assert reader.get_segments() == [(start, start + 3) for start in range(0, 18, 3)]


def test_memory_that_was_outgrown_is_given_back() -> None:
    import weakref

    storage = PackedStorage.create(SPACE)
    buffer = ReplayBuffer(storage, "storage")
    buffer.append({"x": 1.0})
    buffer.mark_segment_end()
    old = weakref.ref(storage._memory.rows.records)
    buffer.extend({"x": np.arange(10_000.0)})
    assert old() is None
    buffer.append({"x": 2.0})
    assert buffer.get_at(np.array([0, 1, -1]))["x"].tolist() == [1.0, 0.0, 2.0]
