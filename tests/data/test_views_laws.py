"""Views over samples of every kind, in every order, and what of them is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from buffers import number_space
from catalogue import BACKENDS, assert_same, samples, space_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from views import SOURCES, Held, Watched, read_windows

from unienv_data import (
    BatchBase,
    CombinedBatch,
    FrameStackedBatch,
    ReplayBuffer,
    SliceStackedBatch,
    ToBackendOrDeviceBatch,
    TransformedBatch,
)
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_space, concatenate, get_at
from unienv_interface.transformations import DictTransformation, RescaleTransformation

NUMPY = NumpyComputeBackend


def _can_be_batched(space: Any) -> bool:
    """Not so a dict with nothing in it, and graphs of which there are none."""
    return bool(RowLayout(space).leaves) and 0 not in getattr(space, "batch_shape", ())


@pytest.mark.parametrize("space", space_cases(backends=BACKENDS[:2], where=_can_be_batched))
def test_windows_of_samples_of_every_kind(space: Any) -> None:
    """A ring that has wrapped and a buffer that grows, combined: windows frame by frame, in both orders of views."""
    values = samples(space, 7)
    ring = ReplayBuffer.create(space, capacity=4, maintain_segment_metadata=True)
    grows = ReplayBuffer.create(space, maintain_segment_metadata=True)
    for buffer, parts in ((ring, (values[5:6], values[:2], values[2:4])), (grows, (values[4:7],))):
        for part in parts:
            buffer.extend(concatenate(space, part))
    ring.extend(concatenate(space, values[4:5]))
    held = Held([1, 2, 3, 4, 4, 5, 6], ["a", "b", "b", "c", "d", "d", "d"])
    stack = SliceStackedBatch(CombinedBatch([ring, grows]), [-1, 0, 1])
    order = [6, 0, 3, 2, 4]
    frames, valid = held.windows(order, [-1, 0, 1])
    data, metadata = stack.get_at_with_metadata(order)
    assert space.backend.to_numpy(metadata["slice_valid_mask"]).tolist() == valid
    whole = batch_space(stack.single_space, len(order))
    for place, expected in enumerate(frames):
        one = get_at(whole, data, place)
        assert one in stack.single_space
        for frame, number in enumerate(expected):
            assert_same(space, get_at(stack.single_space, one, frame), values[number])
    assert_same(stack.single_space, stack.get_at(order[0]), get_at(whole, data, 0))


# -- any order ---------------------------------------------------------------------------------------------


class Model:
    """What a view must hold: the value of each sample, an array of numbers, and its episode."""

    def __init__(self, values: list[np.ndarray], episodes: list[Any]) -> None:
        self.values, self.episodes = values, episodes

    def _as_held(self) -> Held:
        return Held(list(range(len(self.values))), self.episodes)

    def part(self, indices: list[int], step: int) -> Model:
        held = self._as_held().part(indices, step)
        return Model([self.values[index] for index in indices], held.episodes)

    def stacked(self, offsets: list[int]) -> Model:
        frames, _ = self._as_held().windows(range(len(self.values)), offsets)
        return Model([np.stack([self.values[place] for place in window]) for window in frames], self.episodes)

    def twice(self) -> Model:
        return Model(self.values * 2, [(copy, episode) for copy in (0, 1) for episode in self.episodes])


def _views(batch: Any, model: Model, draw: Any) -> tuple[Any, Model]:
    kind = draw(st.sampled_from(["part", "run", "steps", "stack", "column", "twice", "backend", "scaled"]))
    count = len(model.values)
    if kind == "part":
        indices = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=12))
        return batch.get_slice(indices), model.part(indices, 1)
    if kind in ("run", "steps"):
        step = 1 if kind == "run" else 2
        start = draw(st.integers(0, count - 1))
        return batch.get_slice(slice(start, None, step)), model.part(list(range(start, count, step)), step)
    if kind == "stack" and model.values[0].ndim < 2:
        offsets = sorted({0, *draw(st.lists(st.integers(-3, 3), max_size=3))})
        return SliceStackedBatch(batch, offsets), model.stacked(offsets)
    if kind == "column" and "inner" in batch.single_space.spaces:
        return batch.get_column(["inner"]), model
    if kind == "twice" and count < 100:
        return CombinedBatch([batch, batch]), model.twice()
    if kind == "backend":
        return ToBackendOrDeviceBatch(batch, draw(st.sampled_from(BACKENDS[:2]))), model
    if kind == "scaled" and "number" in batch.single_space.spaces:
        halved = RescaleTransformation(-(2**31), 2**31 - 2, "int64")  # doubles numbers from -2**30 to 2**30
        return TransformedBatch(batch, DictTransformation({"number": halved})), model
    return batch, model


def _numbers(batch: BatchBase, index: Any) -> np.ndarray:
    """The numbers of samples, from the field that no view here leaves out or changes."""
    data = batch.get_at(index)
    return batch.backend.to_numpy(data.get("inner", data)["copies"])[..., 0]


@settings(max_examples=200)
@given(st.data(), st.sampled_from(list(SOURCES)))
def test_views_in_any_order(data: Any, source: str) -> None:
    batch, held = SOURCES[source](NUMPY)
    model = Model([np.array(value) for value in held.samples], held.episodes)
    for _ in range(data.draw(st.integers(1, 5))):
        batch, model = _views(batch, model, data.draw)
    assert len(batch) == len(model.values)
    assert _numbers(batch, ...).tolist() == np.stack(model.values).tolist()
    some = data.draw(st.lists(st.integers(-len(batch), len(batch) - 1), max_size=6))
    assert _numbers(batch, some).tolist() == [model.values[index].tolist() for index in some]
    assert _numbers(batch, some[0] if some else 0).tolist() == model.values[some[0] if some else 0].tolist()
    flat = batch.backend.to_numpy(batch.get_flattened_at(...))
    assert len(flat) == len(model.values)
    found, metadata = batch.get_at_with_metadata(0)
    assert found in batch.single_space
    assert (metadata is None) if batch.single_metadata_space is None else metadata in batch.single_metadata_space
    windows = SliceStackedBatch(batch, [-1, 0, 2])
    assert _numbers(windows, ...).tolist() == [window.tolist() for window in model.stacked([-1, 0, 2]).values]


# -- laziness ----------------------------------------------------------------------------------------------


def test_only_the_column_and_the_rows_that_are_asked_for_are_read() -> None:
    sources = [Watched(NUMPY), Watched(NUMPY)]
    view = CombinedBatch(sources).get_slice(slice(3, 17)).get_column(["inner"]).get_column(["copies"])
    assert view.get_at([0, 13, 1])[:, 0].tolist() == [3, 6, 4]
    _, metadata = view.get_at_with_metadata(2)
    assert metadata["tenfold"].tolist() == [50, 50]
    keys = ("inner", "copies")
    assert [source.reads for source in sources] == [[(keys, [3, 4]), (keys, 5)], [(keys, [6])]]


@pytest.mark.parametrize("first", ["column", "stack"])
def test_windows_read_their_frames_and_nothing_else(first: str) -> None:
    sources = [Watched(NUMPY), Watched(NUMPY)]
    part = CombinedBatch(sources).get_slice(slice(3, 17))
    if first == "column":
        view: BatchBase = FrameStackedBatch(part.get_column(["number"]), 1, 1)
    else:
        view = FrameStackedBatch(part, 1, 1).get_column(["number"])
    assert view.get_at([0, 7, 4]).tolist() == [[3, 3, 4], [0, 0, 1], [6, 7, 8]]
    assert sources[0].reads == [(("number",), [3, 3, 4, 6, 7, 8])]
    assert sources[1].reads == [(("number",), [0, 0, 1])]


def test_packed_rows_are_read_in_one_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames of all windows, those across the seam and those that are filled among them; of a column only that."""
    batch, held = SOURCES["ring"](NUMPY)
    frames, valid = held.windows(range(20), [-1, 0, 1])
    gathers: list[Any] = []
    for storage in (batch.storage, batch.storage.get_column(("number",))):

        def watched(slots: Any, length: int, gather: Any = storage.gather, storage: Any = storage) -> Any:
            gathers.append((storage, slots.shape))
            return gather(slots, length)

        monkeypatch.setattr(storage, "gather", watched)
    stack = FrameStackedBatch(batch, 1, 1)
    assert read_windows(stack, ...) == (frames, valid)
    assert stack.get_column(["number"]).get_at(...).tolist() == frames
    assert gathers == [(batch.storage, (20, 3)), (batch.storage.get_column(("number",)), (20, 3))]


def test_a_column_of_nothing() -> None:
    for source in (ReplayBuffer.create(number_space()), ReplayBuffer.create(number_space(), capacity=3)):
        column = source.get_column(["inner", "copies"])
        assert column.get_at(...).shape == (0, 3)
        assert FrameStackedBatch(column, 1).get_at(...).shape == (0, 2, 3)
        assert CombinedBatch([column, column]).get_at([]).shape == (0, 3)
