"""Windows of a buffer's samples: episodes and rows as at one instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.windows import Episodes, Limits, WindowQuery, lay_out, lay_spans
from ._physical import logical_segments
from ._state import BufferState


class WindowLook:
    """Finds the windows of samples by their positions, given the counters of one instant.

    It `reads_whole` samples, or else only what lies under the keys of the query.
    """

    def __init__(self, stretches: Stretches, query: WindowQuery, limits: Limits | None) -> None:
        storage = stretches.state.storage
        self._stretches = stretches.episodes_or_all if query.within_episodes else stretches.all
        self.reads_whole = not (query.nested_keys and storage.has_column_access)
        source = storage if self.reads_whole else storage.get_column(query.nested_keys)
        self._gather: Callable[[np.ndarray, int], Any] = source.gather_windows
        is_span = query.is_dense and query.fill and limits is None
        self._gather_spans = source.gather_spans if is_span and source.can_gather_spans(len(query.offsets)) else None
        self.query, self._limits, self._capacity = query, limits, storage.capacity
        #: How many samples before its own a window may begin.
        self.reach = -int(query.offsets[0]) * stretches.state.segments.lanes

    def __call__(self, positions: np.ndarray, tail: int, head: int, base: int) -> tuple[Any, np.ndarray]:
        stretches = self._stretches(positions, tail, head)
        if self._capacity is None:
            shift, length = tail - base, head - base
        else:
            shift, length = (tail - base) % self._capacity, self._capacity
        if self._gather_spans is not None:
            spans = lay_spans(positions, self.query, stretches, head - tail)
            if spans is not None:
                return self._gather_spans(spans, shift, length), spans.valid
        frames, valid = lay_out(positions, self.query, stretches, self._limits, head - tail)
        return self._gather(frames + shift if shift else frames, length), valid


class Stretches:
    """Where windows end, by the counters of one instant; all in positions."""

    def __init__(self, state: BufferState, *, maintains: bool) -> None:
        self.state, self._maintains = state, maintains

    def episodes(self, positions: np.ndarray, tail: int, head: int) -> Episodes | None:
        """The episodes of samples, as the buffer keeps them or else the storage; None if neither does."""
        segments = self.state.segments
        if self._maintains:
            if not tail:
                return Episodes(*segments.bounds_of(positions, 0, head), segments.lanes)
            start, stop = segments.bounds_of(positions + tail, tail, head)
            return Episodes(start - tail, stop - tail, segments.lanes)
        ranges = self.known_to_storage(tail, head)
        if ranges is None:
            return None
        return _among(np.array(ranges, np.int64).reshape(-1, 2), positions, head - tail)

    def known_to_storage(self, tail: int, head: int) -> list[tuple[int, int]] | None:
        """The closed episodes as ranges of positions, as the storage knows them; None if it does not."""
        storage = self.state.storage
        pairs = storage.get_segments() if storage.is_segment_aware else None
        if pairs is None:
            return None
        return logical_segments(pairs, self.state.slot(tail), max(0, head - tail), storage.capacity)

    def episodes_or_all(self, positions: np.ndarray, tail: int, head: int) -> Episodes:
        """The same, or all samples of the lane where nobody keeps episodes."""
        found = self.episodes(positions, tail, head)
        return self.all(positions, tail, head) if found is None else found

    def all(self, positions: np.ndarray, tail: int, head: int) -> Episodes:
        """All samples of the lane that each sample is in."""
        lanes = self.state.segments.lanes
        return Episodes(
            positions % lanes, np.full_like(positions, head - tail), lanes
        )  # what is dropped is whole steps


def _among(ranges: np.ndarray, positions: np.ndarray, length: int) -> Episodes:
    """The range of each position, of ranges [start, stop) in order, or else the gap between two that it is in."""
    starts, stops = np.append(ranges[:, 0], length), np.append(ranges[:, 1], length)
    ends = np.append(0, ranges[:, 1])
    after = np.searchsorted(ranges[:, 1], positions, side="right")
    inside = starts[after] <= positions
    return Episodes(np.where(inside, starts[after], ends[after]), np.where(inside, stops[after], starts[after]), 1)
