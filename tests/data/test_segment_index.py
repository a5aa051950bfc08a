"""`SegmentIndex.bounds_of` against a plain list of ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unienv_data.replay_buffer._counters import CLOSED, Counters
from unienv_data.replay_buffer._segments import SegmentIndex


def expected_bounds(records, closed, sample, tail, head):
    """The range of one sample, by looking at all records."""
    ends = [(start, stop) for start, stop in records if start <= sample < stop]
    if ends:
        start, stop = ends[0]
    else:
        start = max([stop for _, stop in records if stop <= sample], default=tail)
        stop = min([start for start, _ in records if start > sample], default=None)
        if stop is None:
            start, stop = (max(start, closed), head) if sample >= closed else (start, closed)
    return max(start, tail), min(stop, head)


def check(index, records, closed, tail, head):
    index._counters.cells[CLOSED] = closed
    samples = np.arange(tail, head)
    start, stop = index.bounds_of(samples, tail, head)
    assert start.dtype == stop.dtype == np.int64
    found = list(zip(start.tolist(), stop.tolist(), strict=True))
    assert found == [expected_bounds(records, closed, sample, tail, head) for sample in samples.tolist()]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 2]), st.integers(1, 4)), max_size=12),
    st.integers(0, 5),
    st.sampled_from([None, 3, 8]),
    st.booleans(),
)
def test_bounds_are_those_of_a_plain_list(steps, open_length, capacity, has_gap_at_the_end):
    index, records, position = SegmentIndex(Counters(), capacity), [], 0
    for gap, length in steps:
        length = length if capacity is None else min(length, capacity)
        records.append((position + gap, position + gap + length))
        position += gap + length
        index.prepare()
        index.add(*records[-1])
    closed = position + (1 if has_gap_at_the_end else 0)
    head = closed + open_length
    for tail in range(0 if capacity is None else max(0, head - capacity), head):
        check(index, records, closed, tail, head)


@pytest.mark.parametrize("written", [0, 1023, 1027, 1030, 3000])
def test_bounds_where_the_ring_of_records_wraps(written):
    capacity, index = 6, SegmentIndex(Counters(), 6)
    for number in range(written):
        index.prepare()
        index.add(2 * number, 2 * number + 2)
    head = 2 * written + 1
    check(index, [(2 * number, 2 * number + 2) for number in range(written)], head - 1, max(0, head - capacity), head)


def test_a_reader_with_an_older_head_sees_the_segment_up_to_it():
    index = SegmentIndex(Counters(), None)
    index.prepare()
    index.add(0, 10)
    check(index, [(0, 10)], 10, 3, 7)


def test_looking_takes_no_longer_with_many_segments():
    """No operation over all records: a copy of them would show in the bytes that are allocated."""
    import tracemalloc

    index = SegmentIndex(Counters(), None)
    index.replace_all(np.stack([np.arange(100_000), np.arange(1, 100_001)], axis=1))
    index._counters.cells[4] = 100_000
    samples = np.arange(50_000, 50_064)
    tracemalloc.start()
    try:
        start, stop = index.bounds_of(samples, 0, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    assert start.tolist() == samples.tolist()
    assert stop.tolist() == (samples + 1).tolist()
