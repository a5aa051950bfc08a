"""Buffers into which several environments record side by side, against plain lists that do the same."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers, read
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lane_model import LaneModel
from test_replay_buffer_processes import HERE, run

from unienv_data import CombinedBatch, ReplayBuffer, StorageCorruptedError
from unienv_data.base.files import write_json
from unienv_interface.backends import NumpyComputeBackend

NUMPY = NumpyComputeBackend


def make(lanes: int = 3, **options: Any) -> ReplayBuffer:
    return ReplayBuffer.create(number_space(), **{"capacity": 4 * lanes, "lanes": lanes, **options})


def bounds_in(buffer: ReplayBuffer) -> list[tuple[int, int]]:
    """The segment of every sample, as `bounds_of` has it, by index."""
    tail, head = buffer._counters.tail, buffer._counters.head
    start, stop = buffer._state.segments.bounds_of(np.arange(tail, head), tail, head)
    return list(zip((start - tail).tolist(), (stop - tail).tolist(), strict=True))


class LaneMachine(RuleBasedStateMachine):
    """Every operation on a buffer and on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lanes"))
        self.next_value = 0

    @initialize(
        lanes=st.sampled_from([2, 3, 8]),
        steps=st.sampled_from([1, 2, 7, None]),
        place=st.sampled_from(["memory", "shared", "disk", "shared disk"]),
    )
    def make(self, lanes: int, steps: int | None, place: str) -> None:
        self.on_disk, self.shared = "disk" in place, "shared" in place
        capacity = None if steps is None else steps * lanes
        self.model = LaneModel(lanes, capacity)
        path = self.folder / "buffer" if self.on_disk else None
        self.buffer = make(lanes, capacity=capacity, cache_path=path, multiprocessing=self.shared)
        self.reader = ReplayBuffer.load_from(path, backend=NUMPY) if path is not None else self.buffer

    def flags(self, data: st.DataObject) -> list[bool]:
        return data.draw(st.lists(st.booleans(), min_size=self.model.lanes, max_size=self.model.lanes))

    # -- changing

    @rule(data=st.data(), steps=st.integers(1, 4))
    def extend(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            values = list(range(self.next_value, self.next_value + self.model.lanes))
            self.next_value += self.model.lanes
            ended = self.flags(data)
            self.buffer.extend_lanes(numbers(values), np.array(ended))
            self.model.extend(values, ended)

    @rule(data=st.data(), everywhere=st.booleans())
    def end(self, data: st.DataObject, everywhere: bool) -> None:
        ended = [True] * self.model.lanes if everywhere else self.flags(data)
        self.buffer.mark_segment_end(None if everywhere else np.array(ended))
        self.model.end(ended)

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def remove_oldest(self, data: st.DataObject) -> None:
        steps = data.draw(st.integers(1, len(self.model.samples) // self.model.lanes))
        self.buffer.remove_at(np.arange(steps * self.model.lanes))
        self.model.drop(steps)

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def set_one(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.model.samples) - 1))
        self.buffer.set_at(index, number(-5))
        self.model.samples[index] = -5

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.model.clear()

    # -- disk

    @rule()
    def dump(self) -> None:
        self.buffer.dumps(self.folder / "copy")
        with ReplayBuffer.load_from(self.folder / "copy", backend=NUMPY) as copy:
            self.compare(copy)
            assert copy.verify() == []

    @precondition(lambda self: self.on_disk)
    @rule(in_order=st.booleans())
    def reopen(self, in_order: bool) -> None:
        if in_order:
            self.buffer.close()
        del self.buffer
        self.buffer = ReplayBuffer.load_from(
            self.folder / "buffer", backend=NUMPY, read_only=False, multiprocessing=self.shared
        )

    # -- looking

    def compare(self, buffer: ReplayBuffer) -> None:
        indices = range(len(self.model.samples))
        assert buffer.lanes == self.model.lanes
        assert contents(buffer) == self.model.samples
        assert buffer.get_segments() == self.model.segments()
        assert [buffer.segment_of(index) for index in indices] == [self.model.segment_of(index) for index in indices]
        assert bounds_in(buffer) == [self.model.bounds(index) for index in indices]

    @rule()
    def compare_elsewhere(self) -> None:
        """A reader that catches up with whatever has happened since it last looked."""
        self.compare(self.reader)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "buffer"):
            self.compare(self.buffer)
            assert self.buffer.verify() == []

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.reader.close()
            self.buffer.close()
        shutil.rmtree(self.folder)


TestModel = LaneMachine.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=25)


@pytest.mark.soak
class TestModelAtLength(LaneMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=1000, stateful_step_count=50, derandomize=False)


# -- many episodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 40])
def test_thousands_of_episodes_and_a_reader_that_seldom_looks(capacity: int | None, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    buffer = make(4, capacity=capacity, cache_path=tmp_path / "buffer")
    reader = ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY)
    for step in range(1500):
        buffer.extend_lanes(numbers(range(4 * step, 4 * step + 4)), chance.random(4) < 0.5)
        if step % 7 == 0:
            bounds_in(buffer)
    tail, head = buffer._counters.tail, buffer._counters.head
    samples = np.arange(tail, head)
    expected = _bounds_by_force(buffer, samples, tail, head)
    for one in (buffer, reader):
        start, stop = one._state.segments.bounds_of(samples, tail, head)
        assert np.array_equal(start, expected[0])
        assert np.array_equal(stop, expected[1])
    runs = buffer._state.segments._runs()  # type: ignore[attr-defined]
    assert len(runs) < 8
    assert capacity is None or sum(map(len, runs)) < 5000


def _bounds_by_force(buffer: ReplayBuffer, samples: np.ndarray, tail: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """From the list of segments alone: what lies in none is what is open."""
    lanes = buffer.lanes
    start = np.full(len(samples), -1)
    stop = head - lanes + samples % lanes + 1
    for first, last in buffer.get_segments() or []:
        start[first:last:lanes], stop[first:last:lanes] = first + tail, last + tail
    for lane in range(lanes):
        unknown = np.flatnonzero((start == -1) & (samples % lanes == lane))
        start[unknown] = samples[unknown[0]] if len(unknown) else 0
    return start, stop


# -- edges --------------------------------------------------------------------------------------------------


def test_what_does_not_fit_lanes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"capacity is 10, with 3 lanes it must be a multiple of 3, such as 12"):
        make(3, capacity=10)
    with pytest.raises(ValueError, match="lanes is 0, it must be at least 1"):
        make(0, capacity=None)
    buffer = make(3)
    with pytest.raises(TypeError, match=r"append: the buffer has 3 lanes.*extend_lanes"):
        buffer.append(number(1))
    with pytest.raises(TypeError, match=r"extend: the buffer has 3 lanes.*extend_lanes"):
        buffer.extend(numbers([1, 2, 3]))
    with pytest.raises(ValueError, match="2"):
        buffer.extend_lanes(numbers([1, 2]))
    with pytest.raises(ValueError, match="wanted one boolean for each of 3 lanes"):
        buffer.extend_lanes(numbers([1, 2, 3]), np.array([True, False]))
    with pytest.raises(ValueError, match="wanted one boolean for each of 3 lanes"):
        buffer.mark_segment_end([0, 1, 1])
    assert len(buffer) == 0
    for value in range(3):
        buffer.extend_lanes(numbers([value] * 3))
    for removed in (1, [0, 1], [3, 4, 5], [0, 1, 2, 3]):
        with pytest.raises(TypeError, match="only whole vector steps can go, the oldest ones"):
            buffer.remove_at(removed)
    assert contents(buffer) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(TypeError, match="the buffer has no lanes"):
        ReplayBuffer.create(number_space(), maintain_segment_metadata=True).extend_lanes(numbers([1]))


def test_one_lane_is_a_plain_buffer() -> None:
    buffer = ReplayBuffer.create(number_space(), lanes=1, maintain_segment_metadata=True)
    assert buffer.lanes == 1
    buffer.append(number(1))
    buffer.mark_segment_end([False])
    assert buffer.get_segments() == []
    buffer.mark_segment_end([True])
    assert buffer.get_segments() == [(0, 1)]


def test_lanes_are_in_the_metadata_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    with make(3, cache_path=path) as buffer:
        buffer.extend_lanes(numbers([1, 2, 3]), [False, True, False])
        assert buffer.maintain_segment_metadata
    metadata = path / "metadata.json"
    content = json.loads(metadata.read_text())
    assert content["lanes"] == 3
    assert content["physical_segments"] is None
    for lanes, match in ((5, "no multiple of 5 lanes"), (0, "'lanes' is 0"), (6, "lanes 6")):
        write_json(metadata, {**content, "lanes": lanes})
        with pytest.raises(StorageCorruptedError, match=match):
            ReplayBuffer.load_from(path, backend=NUMPY)


def test_a_folder_without_the_field_has_one_lane(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    with ReplayBuffer.create(number_space(), cache_path=path) as buffer:
        buffer.extend(numbers([1, 2, 3]))
    content = json.loads((path / "metadata.json").read_text())
    assert content.pop("lanes") == 1
    write_json(path / "metadata.json", content)
    with ReplayBuffer.load_from(path, backend=NUMPY) as buffer:
        assert buffer.lanes == 1


def test_interrupted_between_the_records_and_the_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C at the worst moment is raised when the samples and the ends of their episodes count."""
    buffer = make(2, cache_path=tmp_path / "buffer")
    buffer.extend_lanes(numbers([1, 2]))
    put, interrupts = buffer._state.segments.put, [KeyboardInterrupt]

    def interrupted(*given: Any) -> None:
        put(*given)
        while interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(buffer._state.segments, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        buffer.extend_lanes(numbers([3, 4]), [True, True])
    monkeypatch.undo()
    assert contents(buffer) == [1, 2, 3, 4]
    assert buffer.get_segments() == [(0, 3), (1, 4)]
    buffer.extend_lanes(numbers([5, 6]), [False, True])
    assert contents(buffer) == [1, 2, 3, 4, 5, 6]
    assert buffer.get_segments() == [(0, 3), (1, 4), (5, 6)]
    assert buffer.segment_of(4) is None
    assert bounds_in(buffer) == [(0, 3), (1, 4), (0, 3), (1, 4), (4, 5), (5, 6)]
    assert buffer.verify() == []


@pytest.mark.parametrize("capacity", [None, 12, 24])
def test_a_block_of_steps_is_the_steps_one_by_one(capacity: int | None, tmp_path: Path) -> None:
    """(steps, lanes) in one call, also around the end of the ring and more than once around."""
    rng = np.random.default_rng(0)
    one, many = make(3, capacity=capacity), make(3, capacity=capacity, cache_path=tmp_path / "buffer")
    written = 0
    for steps in (1, 3, 2, 9, 1, 4):
        values = np.arange(written, written + 3 * steps).reshape(steps, 3)
        ended = rng.random((steps, 3)) < 0.4
        for step in range(steps):
            one.extend_lanes(numbers(values[step]), ended[step])
        block = numbers(values.reshape(-1))
        many.extend_lanes(
            {
                "number": block["number"].reshape(steps, 3),
                "inner": {"copies": block["inner"]["copies"].reshape(steps, 3, 3)},
            },
            ended,
        )
        written += 3 * steps
        assert contents(many) == contents(one)
        assert many.get_segments() == one.get_segments()
    assert many.verify() == []


def test_records_that_a_kill_has_torn_are_no_damage_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    with make(cache_path=path) as buffer:
        buffer.extend_lanes(numbers([1, 2, 3]), [True, True, True])
    with ReplayBuffer.load_from(path, backend=NUMPY, read_only=False) as buffer:
        index = buffer._state.segments
        index.prepare(3)
        index._write(3, [(3, 4), (4, 5), (5, 6)])  # the last of which was not yet written when it was killed
        index._bytes[5 * 24 + 16 : 6 * 24] = bytes(8)
        shutil.copytree(path, tmp_path / "killed")
    for read_only in (True, False, True):
        with ReplayBuffer.load_from(tmp_path / "killed", backend=NUMPY, read_only=read_only) as buffer:
            assert buffer.get_segments() == [(0, 1), (1, 2), (2, 3)]
            assert buffer.verify() == []


def test_nothing_is_amiss_beside_a_writer_that_ends_episodes_all_the_time(tmp_path: Path) -> None:
    """In a ring of records that is written over and over."""
    buffer = make(3, capacity=300, cache_path=tmp_path / "buffer")
    is_over, written = threading.Event(), 0

    def write() -> None:
        nonlocal written
        while not is_over.is_set():
            buffer.extend_lanes(numbers([written] * 3), [True] * 3)
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as reader:
            deadline = time.monotonic() + 60
            looks = 0
            while (written < 3000 or looks < 30) and time.monotonic() < deadline:
                assert reader.verify() == []
                looks += 1
    finally:
        is_over.set()
        thread.join()
        buffer.close()
    assert written >= 3000


def test_a_fork_that_closes_a_buffer_seals_nothing_of_its_parents(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from buffers import number_space, numbers\n"
        "from unienv_data import ReplayBuffer\n"
        "buffer = ReplayBuffer.create(number_space(), lanes=2, cache_path=sys.argv[1])\n"
        "buffer.extend_lanes(numbers([1, 2]))\n"
        "if (child := os.fork()) == 0:\n"
        "    buffer.storage.flush()\n"
        "    buffer.close()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "buffer.extend_lanes(numbers([3, 4]))\n"
        "assert buffer.verify() == []\n"
        "buffer.close()\n"
    )
    run("-c", script, str(tmp_path / "buffer"))
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as buffer:
        assert contents(buffer) == [1, 2, 3, 4]
        assert buffer.verify() == []


def _write_two_steps(buffer: ReplayBuffer) -> None:
    buffer.extend_lanes(numbers([10, 11]), [True, False])
    buffer.extend_lanes(numbers([20, 21]), [False, True])


def test_processes_write_to_lanes_in_turn() -> None:
    buffer = make(2, multiprocessing=True)
    buffer.extend_lanes(numbers([1, 2]))
    process = multiprocessing.get_context("spawn").Process(target=_write_two_steps, args=(buffer,))
    process.start()
    process.join()
    assert process.exitcode == 0
    buffer.extend_lanes(numbers([30, 31]), [True, False])
    assert contents(buffer) == [1, 2, 10, 11, 20, 21, 30, 31]
    assert buffer.get_segments() == [(0, 3), (1, 6), (4, 7)]


def test_a_buffer_in_memory_is_sent_with_its_lanes() -> None:
    buffer = make(2)
    buffer.extend_lanes(numbers([1, 2]), [True, False])
    again = pickle.loads(pickle.dumps(buffer))
    assert (again.lanes, read(again.get_at(...)), again.get_segments()) == (2, [1, 2], [(0, 1)])


@pytest.mark.parametrize("ends_at", [0, 5])
def test_a_block_that_is_longer_than_the_ring_counts_at_once(ends_at: int) -> None:
    """A kill in the middle leaves what was there or all of it; the oldest may be gone."""
    buffer = make(2, capacity=6, maintain_segment_metadata=True)
    buffer.extend_lanes(numbers([1, 2]))
    ended, heads = np.zeros((8, 2), bool), []
    ended[ends_at] = True
    write = buffer.storage.write

    def watched(*arguments: Any) -> None:
        heads.append(buffer._counters.head)
        write(*arguments)

    buffer.storage.write = watched  # type: ignore[method-assign]
    values = numbers(range(16))
    values = {"number": values["number"].reshape(8, 2), "inner": {"copies": values["inner"]["copies"].reshape(8, 2, 3)}}
    buffer.extend_lanes(values, ended)
    assert set(heads) == {2}
    assert contents(buffer) == [10, 11, 12, 13, 14, 15]
    assert buffer.get_segments() == ([] if ends_at == 0 else [(0, 1), (1, 2)])
    assert buffer._state.open_length() == (6 if ends_at == 0 else 4)


def test_nothing_acknowledged_is_lost_in_forty_kills() -> None:
    assert "40 kills" in run(str(HERE / "kill_lanes.py"), "--kills", "40")


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_in_a_thousand_kills() -> None:
    assert "1000 kills" in run(str(HERE / "kill_lanes.py"), "--kills", "1000", "--seed", "1000")


# -- copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 4, 7, 1000])
@pytest.mark.parametrize("kind", ["all", "slice", "combined"])
def test_a_copy_has_the_episodes_of_its_source(kind: str, chunk_size: int, tmp_path: Path) -> None:
    source = ReplayBuffer.create(number_space(), maintain_segment_metadata=True)
    lengths = [3, 1, 8, 5, 2]
    for episode, length in enumerate(lengths):
        source.extend(numbers([100 * episode + step for step in range(length)]))
    batch: Any = source
    if kind == "slice":
        batch = source.get_slice(slice(2, 15))
    elif kind == "combined":
        batch = CombinedBatch([source, source])
    copied = ReplayBuffer.create(number_space(), cache_path=tmp_path / "copy", maintain_segment_metadata=True)
    copied.extend_from(batch, chunk_size=chunk_size)
    assert contents(copied) == contents(batch)
    assert copied.get_segments() == batch.get_segments()
    assert copied.verify() == []


@pytest.mark.parametrize("chunk_size", [1, 4, 1000])
@pytest.mark.parametrize("lanes", [1, 3])
def test_lanes_are_copied_to_lanes_or_one_after_the_other(lanes: int, chunk_size: int) -> None:
    source = make(3)
    ends = [[False, True, False], [True, False, False], [False, False, True], [True, True, True]]
    for step, ended in enumerate(ends):
        source.extend_lanes(numbers([10 * step, 10 * step + 1, 10 * step + 2]), np.array(ended))
    copied = ReplayBuffer.create(number_space(), maintain_segment_metadata=True, lanes=lanes)
    copied.extend_from(source, chunk_size=chunk_size)
    if lanes == 3:
        assert contents(copied) == contents(source)
        assert copied.get_segments() == source.get_segments()
        return
    wanted = [[0, 10], [1], [2, 12, 22], [11, 21, 31], [20, 30], [32]]
    found = [contents(copied)[start:stop] for start, stop in copied.get_segments() or []]
    assert found == wanted


def test_a_source_without_episodes_adds_none() -> None:
    source = ReplayBuffer.create(number_space(), keep_episodes=False)
    source.extend(numbers(range(20)))
    copied = ReplayBuffer.create(number_space(), maintain_segment_metadata=True)
    copied.extend_from(source)
    assert contents(copied) == list(range(20))
    assert copied.get_segments() == []
    with pytest.raises(ValueError, match="the batch has 1 lanes, the buffer 3"):
        make(3).extend_from(source)
