"""Episodes as ranges of samples.

A closed segment is a pair [start, stop) in the numbering of all samples ever written, so dropping old samples changes
no record: a segment that `tail` has passed is gone, one that it is in the middle of begins at `tail`. A record whose
`stop` lies behind `head` is one whose samples are still being written, and does not count yet: rows and episodes are
committed by the same store, that of `head`.

Records lie in a ring that has room for as many as a full buffer can hold (every one of a single sample), or in an array
that grows. Appending one costs O(1), finding the one of a sample O(log n).
"""

from __future__ import annotations

import bisect
import struct
import zlib
from pathlib import Path

import numpy as np

from ..base.mapped import MappedFile
from ._counters import HEAD, SEGMENTS, TAIL, Counters

_RECORD = np.dtype([("start", "<i8"), ("stop", "<i8"), ("number", "<u4"), ("crc", "<u4")])
_CHECKED = struct.Struct("<qqI")
# A reader may look at records for this many more episodes before they are overwritten under its eyes.
_SLACK = 1024


class SegmentIndex:
    """The records of the closed segments; how many there are is a counter. In memory, or in a mapped file."""

    def __init__(self, counters: Counters, capacity: int | None, file: MappedFile | None = None) -> None:
        self._counters, self._capacity, self.file = counters, capacity, file
        self._ring = None if capacity is None else capacity + _SLACK
        self._hold(np.zeros(0, _RECORD))

    def _hold(self, records: np.ndarray) -> None:
        self._records = records
        # writing to this is much quicker than to the array
        self._bytes = memoryview(records.view(np.uint8))  # type: ignore[arg-type]

    @classmethod
    def create(cls, counters: Counters, capacity: int | None, path: Path | None) -> SegmentIndex:
        """Records in a new file; with None for a path one without a name."""
        return cls(counters, capacity, MappedFile.create(path, _RECORD))

    @classmethod
    def open(cls, counters: Counters, capacity: int | None, path: Path, *, writable: bool) -> SegmentIndex:
        index = cls(counters, capacity, MappedFile.open(path, _RECORD, writable=writable))
        count = counters.cells[SEGMENTS]
        index._see(count if index._ring is None else min(count, index._ring))
        return index

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _received, (self._counters, self._capacity, self.file, None if self.file else self._records)

    # -- records ---------------------------------------------------------------------------------------------

    def _see(self, count: int) -> None:
        """Have at least so many records at hand."""
        if count <= len(self._records):
            return
        if self.file is None:
            grown = np.zeros(max(count, 2 * len(self._records), 64), _RECORD)
            grown[: len(self._records)] = self._records
            self._hold(grown)
            return
        if self.file.length < count and self.file.writable:
            self.file.extend(max(count, 2 * len(self._records), 64))
        self._hold(self.file.map(max(count, self.file.length)))

    def _place(self, number: int) -> int:
        return number if self._ring is None else number % self._ring

    def prepare(self) -> None:
        """Make sure that one more record can be written."""
        place = self._place(self._counters.cells[SEGMENTS])
        self._see(place + 1)
        if self.file is not None:
            self.file.reserve(place, place + 1)

    def add(self, start: int, stop: int) -> None:
        """Add a record, after `prepare`."""
        number = self._counters.cells[SEGMENTS]
        self._write(number, start, stop)
        self._counters.cells[SEGMENTS] = number + 1

    def _write(self, number: int, start: int, stop: int) -> None:
        checked = _CHECKED.pack(start, stop, number & 0xFFFFFFFF)
        at = self._place(number) * _RECORD.itemsize
        self._bytes[at : at + _RECORD.itemsize] = checked + zlib.crc32(checked).to_bytes(4, "little")

    def replace_all(self, ranges: np.ndarray) -> None:
        """Put these in the place of all records; the counter is the caller's affair."""
        self._see(len(ranges))
        if self.file is not None:
            self.file.reserve(0, len(ranges))
        for number, (start, stop) in enumerate(ranges.tolist()):
            self._write(number, start, stop)

    # -- looking ---------------------------------------------------------------------------------------------

    def _first_after(self, sample: int, count: int) -> int:
        """The number of the first of `count` records that stops behind a sample."""
        low = 0 if self._capacity is None else max(0, count - self._capacity - 1)
        self._see(count if self._ring is None else min(count, self._ring))
        stops, place = self._records["stop"], self._place
        return low + bisect.bisect_right(range(low, count), sample, key=lambda number: int(stops[place(number)]))

    def alive(self, tail: int, head: int) -> np.ndarray:
        """The segments that have samples in [tail, head), clipped to those, as an array of [start, stop)."""
        count = self._counters.cells[SEGMENTS]
        numbers = np.arange(self._first_after(tail, count), count)
        records = self._records[numbers if self._ring is None else numbers % self._ring]
        ranges = np.stack([records["start"], records["stop"]], axis=1).reshape(-1, 2)
        ranges = ranges[ranges[:, 1] <= head]
        if len(ranges):
            ranges[0, 0] = max(int(ranges[0, 0]), tail)
        return ranges

    def of(self, sample: int, tail: int, head: int) -> tuple[int, int] | None:
        """The closed segment of a sample by its number; None if it is in none."""
        count = self._counters.cells[SEGMENTS]
        number = self._first_after(sample, count)
        if number == count:
            return None
        start, stop = self._record(number)
        return (max(start, tail), stop) if start <= sample and stop <= head else None

    def _record(self, number: int) -> tuple[int, int]:
        self._see(self._place(number) + 1)
        start, stop, *_ = self._records[self._place(number)].tolist()
        return start, stop

    def last_stop(self) -> int:
        """Where the newest segment ends; 0 if there is none."""
        count = self._counters.cells[SEGMENTS]
        return self._record(count - 1)[1] if count else 0

    # -- faults ----------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Drop the record of samples that a killed writer did not get to acknowledge, and what it left half written."""
        cells = self._counters.cells
        while cells[SEGMENTS] and self.last_stop() > cells[HEAD]:
            cells[SEGMENTS] -= 1
        place = self._place(cells[SEGMENTS])
        if place < len(self._records) and self._finding(place) is not None:
            self._records[place] = 0

    def verify(self, *, closed: bool) -> list[str]:
        """What is wrong with the records, in words; the one being written is left out unless the file is `closed`."""
        cells = self._counters.cells
        head, tail, count = cells[HEAD], cells[TAIL], cells[SEGMENTS]
        being_written = None if closed else self._place(count)
        places = (place for place in range(len(self._records)) if place != being_written)
        found = [finding for place in places if (finding := self._finding(place)) is not None]
        ranges = self.alive(tail, head)
        if len(ranges) and (np.any(ranges[:, 0] >= ranges[:, 1]) or np.any(ranges[1:, 0] < ranges[:-1, 1])):
            found.append(f"{self.file or 'segments'}: the segments do not follow one another")
        return found

    def _finding(self, place: int) -> str | None:
        start, stop, number, crc = self._records[place].tolist()
        if (start, stop, number, crc) == (0, 0, 0, 0) or zlib.crc32(_CHECKED.pack(start, stop, number)) == crc:
            return None
        return f"{self.file or 'segments'}: record {place} does not match its checksum"

    def sync(self) -> None:
        """Make the records durable."""
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        """Release what holds the records."""
        if self.file is not None:
            self.file.close()


def _received(
    counters: Counters, capacity: int | None, file: MappedFile | None, records: np.ndarray | None
) -> SegmentIndex:
    index = SegmentIndex(counters, capacity, file)
    if records is not None:
        index._hold(records)
    return index
