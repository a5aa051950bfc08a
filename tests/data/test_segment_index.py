"""`SegmentIndex.bounds_of` against a plain list of ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unienv_data.replay_buffer._counters import Header
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
    index._counters.closed = closed
    index._counters.head = max(head, closed)
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
    index, records, position = SegmentIndex(Header(), capacity), [], 0
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
    capacity, index = 6, SegmentIndex(Header(), 6)
    for number in range(written):
        index.prepare()
        index.add(2 * number, 2 * number + 2)
    head = 2 * written + 1
    check(index, [(2 * number, 2 * number + 2) for number in range(written)], head - 1, max(0, head - capacity), head)


def test_a_reader_with_an_older_head_sees_the_segment_up_to_it():
    index = SegmentIndex(Header(), None)
    index.prepare()
    index.add(0, 10)
    check(index, [(0, 10)], 10, 3, 7)


def test_looking_takes_no_longer_with_many_segments():
    """No operation over all records but the first time: it would show in the bytes that are allocated."""
    import tracemalloc

    index = SegmentIndex(Header(), None)
    index.replace_all(np.stack([np.arange(100_000), np.arange(1, 100_001)], axis=1))
    counters = index._counters
    counters.segments = counters.head = 100_000
    samples = np.arange(50_000, 50_064)
    index.bounds_of(samples, 0, 100_000)
    index.prepare()
    index.add(100_000, 100_001)
    counters.head = 100_001
    tracemalloc.start()
    try:
        start, stop = index.bounds_of(samples, 0, 100_001)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    assert start.tolist() == samples.tolist()
    assert stop.tolist() == (samples + 1).tolist()


def test_what_was_seen_of_a_segment_that_is_taken_back_is_forgotten():
    index = SegmentIndex(Header(), None)
    index.prepare(2)
    index.add(0, 5)
    check(index, [(0, 5)], 5, 0, 5)
    index.add(5, 9)  # its samples are still being written, and never come
    assert index.bounds_of(np.arange(5), 0, 5)[1].tolist() == [5] * 5
    index._counters.segments = 1
    index.add(5, 7)
    check(index, [(0, 5), (5, 7)], 7, 0, 8)


def test_segments_that_were_changed_in_place_are_read_again():
    index = SegmentIndex(Header(), None)
    index.prepare(2)
    index.add_all([(0, 5), (5, 9)])
    check(index, [(0, 5), (5, 9)], 9, 0, 9)
    index.replace_all(np.array([[0, 3], [3, 7]]))
    index._counters.edit += 2
    check(index, [(0, 3), (3, 7)], 7, 0, 7)


def test_segments_that_are_gone_leave_no_trace_however_seldom_one_looks():
    index, capacity = SegmentIndex(Header(), 6), 6
    for number in range(5000):
        index.prepare()
        index.add(2 * number, 2 * number + 2)
        if number in (0, 1, 40, 900, 901, 4999):
            records = [(2 * one, 2 * one + 2) for one in range(number + 1)]
            head = 2 * number + 2
            check(index, records, head, max(0, head - capacity), head)
