"""Padding of windows: at the start of an episode, at its end, and in the place of samples that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from buffers import number, number_space, numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from unienv_data import (
    BatchBase,
    CombinedBatch,
    FrameStackedBatch,
    Padding,
    ReplayBuffer,
    SliceStackedBatch,
    StepSampler,
    ToBackendOrDeviceBatch,
    WindowedBatch,
)
from unienv_interface.backends.pytorch import PyTorchComputeBackend

NONE, START, END, MISSING = map(int, Padding)
OFFSETS = [-2, -1, 0, 1, 2]


def padding(batch: BatchBase, index: Any) -> list[list[int]]:
    """That of windows, which must be the same by column, and 0 just where a frame is valid."""
    _, metadata = SliceStackedBatch(batch, OFFSETS, padding=True).get_at_with_metadata(index)
    found = batch.backend.to_numpy(metadata["slice_padding"])
    assert found.dtype == np.uint8
    assert np.array_equal(found == NONE, batch.backend.to_numpy(metadata["slice_valid_mask"]))
    columns = WindowedBatch(batch, {"number": OFFSETS, "inner": [2, -2]}, padding=True)
    kinds = columns.get_at_with_metadata(index)[1]["slice_padding"]
    assert np.array_equal(batch.backend.to_numpy(kinds["number"]), found)
    assert np.array_equal(batch.backend.to_numpy(kinds["inner"]), found[:, [4, 0]])
    return found.tolist()


def test_starts_ends_and_the_seam_of_a_ring() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=8)
    for start in (0, 4):
        buffer.extend(numbers(range(start, start + 4)))
    assert padding(buffer, [0, 3, 4]) == [[1, 1, 0, 0, 0], [0, 0, 0, 2, 2], [1, 1, 0, 0, 0]]
    for value in (8, 9):  # two of the first episode are gone, and the third has not ended
        buffer.append(number(value))
    assert padding(buffer, [0, 1, 2, 7]) == [[3, 3, 0, 0, 2], [3, 0, 0, 2, 2], [1, 1, 0, 0, 0], [1, 0, 0, 3, 3]]
    buffer.mark_segment_end()
    assert padding(buffer, [7]) == [[1, 0, 0, 2, 2]]


def test_episodes_that_were_cut_have_no_end() -> None:
    buffer = ReplayBuffer.create(number_space())
    buffer.append(number(0))
    buffer.mark_segment_end(cut=True)
    buffer.extend(numbers([1]))
    assert padding(buffer, [0, 1]) == [[1, 1, 0, 3, 3], [1, 1, 0, 2, 2]]


def filled() -> ReplayBuffer:
    buffer = ReplayBuffer.create(number_space())
    for start in (0, 4):
        buffer.extend(numbers(range(start, start + 4)))
    return buffer


def test_views() -> None:
    buffer = filled()
    assert padding(buffer.get_slice(slice(1, 7)), [0, 2, 5]) == [[3, 3, 0, 0, 0], [0, 0, 0, 2, 2], [0, 0, 0, 3, 3]]
    assert padding(buffer.get_slice([0, 1, 6, 7]), [1, 2]) == [[1, 0, 0, 3, 3], [3, 3, 0, 0, 2]]
    combined = CombinedBatch([buffer.get_slice(slice(0, 3)), buffer])
    assert padding(combined, [3, 2]) == [[1, 1, 0, 0, 0], [0, 0, 0, 3, 3]]
    assert padding(buffer.select(["number", "inner"]), [0]) == [[1, 1, 0, 0, 0]]
    assert padding(ToBackendOrDeviceBatch(buffer, PyTorchComputeBackend), [3]) == [[0, 0, 0, 2, 2]]
    stack = FrameStackedBatch(buffer, 1, padding=True)
    data, metadata = StepSampler(stack, 64, seed=0).sample_with_metadata()
    assert metadata is not None
    begins = np.isin(data["number"][:, -1], [0, 4])
    assert metadata["slice_padding"].tolist() == [[int(is_first), 0] for is_first in begins]
    assert stack.single_metadata_space is not None
    assert stack.get_at_with_metadata(0)[1] in stack.single_metadata_space
    over = SliceStackedBatch(stack, [-1, 0], padding=True).get_at_with_metadata(0)[1]
    assert (over["slice_padding"].tolist(), over["inner_slice_padding"].tolist()) == ([1, 0], [1, 0])


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6), st.integers(4, 12))
def test_rings_of_lanes(lengths: list[tuple[int, bool]], capacity: int) -> None:
    """Of two lanes with the same episodes, against the bookkeeping of one list."""
    buffer = ReplayBuffer.create(number_space(), capacity=2 * capacity, lanes=2)
    frames: list[tuple[int, int, int, bool]] = []  # of a lane: episode, step, steps to its end, and whether it ends
    for episode, (length, is_cut) in enumerate(lengths):
        is_open = episode == len(lengths) - 1
        for step in range(length):
            ends = step == length - 1 and not is_cut and not is_open
            buffer.extend_lanes(numbers([step, step]), np.array([ends, ends]))
            frames.append((episode, step, length - 1 - step, not (is_cut or is_open)))
        if is_cut and not is_open:
            buffer.mark_segment_end(cut=True)
    frames = frames[-capacity:]
    found = padding(buffer, np.arange(len(buffer)))
    for place, (episode, step, left, has_end) in enumerate(frames):
        wanted = []
        for offset in OFFSETS:
            is_there = 0 <= place + offset < len(frames) and frames[place + offset][0] == episode
            before = START if step <= place else MISSING
            wanted.append(NONE if is_there else before if offset < 0 else END if has_end else MISSING)
        assert found[2 * place] == found[2 * place + 1] == wanted, (place, left)


def _without_episodes() -> ReplayBuffer:
    buffer = ReplayBuffer.create(number_space(), keep_episodes=False)
    buffer.extend(numbers(range(4)))
    return buffer


MASK = SliceStackedBatch.get_valid_mask_function_with_episodeid_key("number")


@pytest.mark.parametrize(
    "make",
    [
        lambda: SliceStackedBatch(_without_episodes(), [-1, 0], MASK, padding=True),
        lambda: SliceStackedBatch(filled(), [-1, 0], MASK, padding=True),
        lambda: SliceStackedBatch(filled(), [-1, 0], episodes="ignore", padding=True),
        lambda: WindowedBatch(filled(), {"number": [-1, 0]}, episodes="ignore", padding=True),
    ],
)
def test_without_known_episodes_it_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="padding=True needs a batch that knows its episodes"):
        make()
