"""A replay buffer against a plain Python list that does the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import Model, contents, number, number_space, numbers, read
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend


class BufferMachine(RuleBasedStateMachine):
    """Every operation on a buffer and on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="model"))
        self.next_value = 0

    @initialize(
        capacity=st.sampled_from([1, 2, 7, 40, None]),
        place=st.sampled_from(["memory", "shared", "disk", "shared disk"]),
        durable=st.booleans(),
    )
    def make(self, capacity: int | None, place: str, durable: bool) -> None:
        self.on_disk, self.shared = "disk" in place, "shared" in place
        self.model = Model(capacity)
        self.buffer = ReplayBuffer.create(
            number_space(),
            capacity=capacity,
            cache_path=self.folder / "buffer" if self.on_disk else None,
            multiprocessing=self.shared,
            maintain_segment_metadata=True,
            durable=durable,
        )

    def fresh(self, count: int) -> list[int]:
        self.next_value += count
        return list(range(self.next_value - count, self.next_value))

    # -- changing

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        for value in self.fresh(count):
            self.buffer.append(number(value))
            self.model.is_open = True
            self.model.add([value])

    @rule()
    def end_segment(self) -> None:
        self.buffer.mark_segment_end()
        self.model.end()

    @precondition(lambda self: not self.model.is_open)
    @rule(count=st.one_of(st.integers(0, 5), st.integers(0, 100)))
    def extend(self, count: int) -> None:
        values = self.fresh(count)
        self.buffer.extend(numbers(values))
        self.model.add(values)
        self.model.end()

    @precondition(lambda self: self.model.is_open)
    @rule()
    def extend_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="mark_segment_end"):
            self.buffer.extend(numbers([1]))

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def set_some(self, data: st.DataObject) -> None:
        indices = data.draw(st.lists(st.integers(-len(self.model.samples), len(self.model.samples) - 1), max_size=5))
        values = self.fresh(len(indices))
        self.buffer.set_at(np.array(indices, np.int64), numbers(values))
        for index, value in zip(indices, values, strict=True):
            self.model.samples[index] = value

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        count = len(self.model.samples)
        front = st.integers(0, count).map(range)
        anywhere = st.sets(st.integers(0, count - 1), max_size=6)
        indices = sorted(data.draw(st.one_of(front, anywhere)))
        self.buffer.remove_at(indices)
        self.model.remove(set(indices))

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.model.remove(set(range(len(self.model.samples))))
        self.model.end()

    # -- disk

    @precondition(lambda self: not self.model.is_open)
    @rule()
    def dump(self) -> None:
        self.buffer.dumps(self.folder / "copy")
        with ReplayBuffer.load_from(self.folder / "copy", backend=NumpyComputeBackend) as copy:
            self.compare(copy)
            assert copy.verify() == []

    @precondition(lambda self: self.on_disk)
    @rule(in_order=st.booleans())
    def reopen(self, in_order: bool) -> None:
        if in_order:
            self.buffer.close()
        del self.buffer
        self.buffer = ReplayBuffer.load_from(
            self.folder / "buffer", backend=NumpyComputeBackend, read_only=False, multiprocessing=self.shared
        )

    @precondition(lambda self: self.on_disk)
    @rule()
    def read_from_elsewhere(self) -> None:
        with ReplayBuffer.load_from(self.folder / "buffer", backend=NumpyComputeBackend) as reader:
            self.compare(reader)
            assert reader.verify() == []
        assert ReplayBuffer.get_length_from_path(self.folder / "buffer") == len(self.model.samples)

    @rule()
    def flush(self) -> None:
        self.buffer.flush()
        assert self.buffer.verify() == []

    # -- looking

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        count = len(self.model.samples)
        indices = data.draw(st.lists(st.integers(-count, count - 1), min_size=1, max_size=8))
        assert read(self.buffer.get_at(indices)) == [self.model.samples[index] for index in indices]
        assert read(self.buffer.get_at(indices[0])) == self.model.samples[indices[0]]
        ends = st.one_of(st.none(), st.integers(-count - 2, count + 2))
        cut = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1, 2, -1, -3])))
        assert read(self.buffer.get_at(cut)) == self.model.samples[cut]
        for index in (count, -count - 1):
            with pytest.raises(IndexError, match=f"index {index} is out of range for a length of {count}"):
                self.buffer.get_at(index)
        episode = next((part for part in self.model.segments() if part[0] <= indices[0] % count < part[1]), None)
        assert self.buffer.segment_of(indices[0]) == episode

    def compare(self, buffer: ReplayBuffer) -> None:
        assert contents(buffer) == self.model.samples
        assert buffer.get_segments() == self.model.segments()
        assert len(buffer) == len(self.model.samples)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "buffer"):
            self.compare(self.buffer)
            assert self.buffer.verify() == []
            flat: Any = self.buffer.get_flattened_at(...)
            assert flat[:, 0].tolist() == self.model.samples

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.close()
        shutil.rmtree(self.folder)


TestModel = BufferMachine.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=30)


@pytest.mark.soak
class TestModelAtLength(BufferMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=2000, stateful_step_count=50, derandomize=False)
