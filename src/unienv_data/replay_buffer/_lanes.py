"""The segments of buffers with lanes: episodes that are recorded side by side.

In a buffer with N lanes every write adds N samples, one for each lane in order, so sample n belongs to lane n % N, and
an episode is the samples range(start, stop, N) of one lane. Records have the same form as without lanes, in the order
in which the episodes were closed.

To find the episode of a sample, the lanes are laid end to end on one line, on which sample n has the position
`lane << 40 | n // N` and episodes are intervals that do not overlap. The order of the intervals differs from the order
of the records, so every process keeps the intervals in memory, in sorted runs of about geometric sizes: new records
make a new run, and runs of similar size are merged. A new record costs O(log n), a lookup O(log n) per run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.mapped import MappedFile
from ._counters import Header
from ._segments import SegmentIndex

_STEP_BITS = 40
_STEP_MASK = 2**_STEP_BITS - 1
_BEFORE_ALL, _AFTER_ALL = -1, 2**62
# The last runs are merged with the run before them unless that is this many times as long as all of them.
_GROWTH = 4


class _Run(NamedTuple):
    """Intervals [start, stop) on the line, in order, padded with one before all positions and one after them."""

    starts: np.ndarray
    stops: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, stops: np.ndarray) -> _Run:
        order = np.argsort(stops, kind="stable")
        padded = [np.concatenate([[_BEFORE_ALL], ends[order], [_AFTER_ALL]]) for ends in (starts, stops)]
        return cls(*padded)

    def __len__(self) -> int:
        return len(self.starts) - 2

    @classmethod
    def merged(cls, runs: Sequence[_Run], first_step: int) -> _Run:
        """One run of all runs, without the episodes that end before the oldest vector step."""
        starts, stops = (np.concatenate([ends[1:-1] for ends in column]) for column in zip(*runs, strict=True))
        alive = (stops & _STEP_MASK) >= first_step  # the next one of its lane begins there
        return cls.of(starts[alive], stops[alive])


class LanedSegmentIndex(SegmentIndex):
    """The closed segments of a buffer with several lanes."""

    def __init__(self, header: Header, capacity: int | None, file: MappedFile | None = None, lanes: int = 1) -> None:
        super().__init__(header, capacity, file, lanes)
        self._known: tuple[int, tuple[_Run, ...]] = (0, ())  # the records in the runs, and the runs; replaced together

    # -- the line --------------------------------------------------------------------------------------------

    def _position(self, samples: np.ndarray) -> np.ndarray:
        return (samples % self.lanes << _STEP_BITS) + samples // self.lanes

    def _sample(self, position: np.ndarray) -> np.ndarray:
        return (position & _STEP_MASK) * self.lanes + (position >> _STEP_BITS)

    def _runs(self) -> tuple[_Run, ...]:
        """The runs of all closed episodes."""
        seen, runs = self._known
        first, starts, stops, _ = self.counted_since(seen)
        if len(stops):
            runs = self._merged((*runs, _Run.of(self._position(starts), self._position(stops - 1) + 1)))
            self._known = (first + len(stops), runs)
        return runs

    def _merged(self, runs: tuple[_Run, ...]) -> tuple[_Run, ...]:
        """Merge the last runs, until each run is much longer than all runs after it together."""
        kept, total = len(runs) - 1, len(runs[-1])
        while kept and len(runs[kept - 1]) <= _GROWTH * total:
            kept -= 1
            total += len(runs[kept])
        if kept == len(runs) - 1:
            return runs
        return (*runs[:kept], _Run.merged(runs[kept:], self._counters.tail // self.lanes))

    def _around(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each position: the stop of the last episode before it, and the start and stop of the next one to stop."""
        last_stop = np.full(positions.shape, _BEFORE_ALL)
        next_start, next_stop = (np.full(positions.shape, _AFTER_ALL) for _ in range(2))
        for starts, stops in self._runs():
            after = np.searchsorted(stops, positions, side="right")
            np.maximum(last_stop, stops[after - 1], out=last_stop)
            # intervals do not overlap, so the first to stop is also the first to start
            np.minimum(next_start, starts[after], out=next_start)
            np.minimum(next_stop, stops[after], out=next_stop)
        return last_stop, next_start, next_stop

    # -- lookups ---------------------------------------------------------------------------------------------

    def bounds_of(self, samples: np.ndarray, tail: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """The segment range(start, stop, lanes) of each sample, as without lanes."""
        positions = self._position(samples)
        last_stop, next_start, next_stop = self._around(positions)
        inside = next_start <= positions
        lane = positions & ~_STEP_MASK
        start = np.maximum(np.where(inside, next_start, last_stop), lane + tail // self.lanes)
        stop = np.minimum(np.where(inside, next_stop, next_start), lane + head // self.lanes)
        return self._sample(start), self._sample(stop - 1) + 1

    def of(self, sample: int, tail: int, head: int) -> tuple[int, int] | None:
        positions = self._position(np.array([sample]))
        _, next_start, next_stop = self._around(positions)
        stop = int(self._sample(next_stop - 1)[0]) + 1
        if next_start[0] > positions[0] or stop > head:
            return None
        (start,), _ = self.bounds_of(np.array([sample]), tail, head)
        return int(start), stop

    def _is_open(self, samples: np.ndarray) -> np.ndarray:
        positions = self._position(samples)
        return self._around(positions)[1] > positions

    def open_starts(self, tail: int, head: int) -> list[int]:
        """The start of the open episode of each lane; the next sample of the lane if none is open."""
        lanes = np.arange(self.lanes) << _STEP_BITS
        last_stop, _, _ = self._around(lanes + head // self.lanes)
        return self._sample(np.maximum(last_stop, lanes + tail // self.lanes)).tolist()

    def _clip(self, ranges: np.ndarray, tail: int) -> None:
        starts = ranges[:, 0]
        ranges[:, 0] = np.where(starts < tail, tail + starts % self.lanes, starts)

    def _order_finding(self, ranges: np.ndarray) -> str | None:
        starts, stops = self._position(ranges[:, 0]), self._position(ranges[:, 1] - 1) + 1
        order = np.argsort(starts)
        starts, stops = starts[order], stops[order]
        if np.any(starts >= stops) or np.any(starts[1:] < stops[:-1]):
            return "the segments of a lane do not follow one another"
        if np.any(starts >> _STEP_BITS != (stops - 1) >> _STEP_BITS):
            return "a segment begins in one lane and ends in another"
        return None


def new_index(header: Header, capacity: int | None, path: Path | None, lanes: int) -> SegmentIndex:
    """An index for `lanes` lanes, with its records in a new file; for path None in an unnamed one."""
    return _class_for(lanes).create(header, capacity, path, lanes)


def index_in_memory(header: Header, capacity: int | None, lanes: int) -> SegmentIndex:
    """An index with its records in this process's memory."""
    return _class_for(lanes)(header, capacity, None, lanes)


def open_index(header: Header, capacity: int | None, path: Path, lanes: int, *, writable: bool) -> SegmentIndex:
    """The index over the records of an existing file."""
    return _class_for(lanes).open(header, capacity, path, lanes, writable=writable)


def _class_for(lanes: int) -> type[SegmentIndex]:
    return SegmentIndex if lanes == 1 else LanedSegmentIndex
