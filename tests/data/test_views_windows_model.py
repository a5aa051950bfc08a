"""Windows of a buffer against a plain Python list, whatever was done to the buffer before."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from buffers import Model, number, number_space, numbers
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from views import Held, read_windows

from unienv_data import CombinedBatch, ReplayBuffer, SliceStackedBatch

OFFSETS = st.sets(st.integers(-9, 9), max_size=8).map(lambda offsets: sorted({0, *offsets}))
DENSE = st.tuples(st.integers(-9, 0), st.integers(0, 9)).map(lambda ends: list(range(ends[0], ends[1] + 1)))


class WindowMachine(RuleBasedStateMachine):
    """Everything that moves samples or episodes, and windows of all samples after each of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="windows"))
        self.next_value = 0

    @initialize(capacity=st.sampled_from([1, 3, 10, 30, None]), place=st.sampled_from(["memory", "shared", "disk"]))
    def make(self, capacity: int | None, place: str) -> None:
        self.model = Model(capacity)
        self.buffer = ReplayBuffer.create(
            number_space(),
            capacity=capacity,
            cache_path=self.folder / "buffer" if place == "disk" else None,
            multiprocessing=place == "shared",
            maintain_segment_metadata=True,
        )

    def fresh(self, count: int) -> list[int]:
        self.next_value += count
        return list(range(self.next_value - count, self.next_value))

    @rule(count=st.integers(1, 6), ends=st.booleans())
    def append(self, count: int, ends: bool) -> None:
        for value in self.fresh(count):
            self.buffer.append(number(value))
            self.model.is_open = True
            self.model.add([value])
        if ends:
            self.buffer.mark_segment_end()
            self.model.end()

    @precondition(lambda self: not self.model.is_open)
    @rule(count=st.integers(1, 40))
    def extend(self, count: int) -> None:
        values = self.fresh(count)
        self.buffer.extend(numbers(values))
        self.model.add(values)
        self.model.end()

    @precondition(lambda self: self.model.samples)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        count = len(self.model.samples)
        front = st.integers(0, count).map(range)
        indices = sorted(data.draw(st.one_of(front, st.sets(st.integers(0, count - 1), max_size=5))))
        self.buffer.remove_at(indices)
        self.model.remove(set(indices))

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.model.remove(set(range(len(self.model.samples))))
        self.model.end()

    @precondition(lambda self: self.model.samples)
    @rule(offsets=st.one_of(OFFSETS, DENSE), data=st.data())
    def look(self, offsets: list[int], data: st.DataObject) -> None:
        held, count = self.held(), len(self.model.samples)
        stack = SliceStackedBatch(self.buffer, offsets)
        assert read_windows(stack, ...) == held.windows(range(count), offsets)
        indices = data.draw(st.lists(st.integers(-count, count - 1), min_size=1, max_size=8))
        assert read_windows(stack, indices) == held.windows(indices, offsets)
        assert read_windows(stack, indices[0]) == held.window(indices[0], offsets)
        some = sorted({index % count for index in indices})
        part = SliceStackedBatch(self.buffer.get_slice(some), offsets)
        assert read_windows(part, ...) == held.part(some).windows(range(len(some)), offsets)
        twice = SliceStackedBatch(CombinedBatch([self.buffer, self.buffer]), offsets)
        frames, valid = held.windows(range(count), offsets)
        assert read_windows(twice, ...) == (frames * 2, valid * 2)
        column: Any = stack.get_column(["inner", "copies"]).get_at(...)
        assert column[..., 2].tolist() == frames

    def held(self) -> Held:
        return Held(self.model.samples, self.model.episodes)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "buffer"):
            count, offsets = len(self.model.samples), [-2, -1, 0, 1]
            expected = self.held().windows(range(count), offsets)
            assert read_windows(SliceStackedBatch(self.buffer, offsets), ...) == expected

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.close()
        shutil.rmtree(self.folder)


TestWindows = WindowMachine.TestCase
TestWindows.settings = settings(max_examples=40, stateful_step_count=20)


@pytest.mark.soak
class TestWindowsAtLength(WindowMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=3000, stateful_step_count=40, derandomize=False)
