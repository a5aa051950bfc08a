"""Episodes as ranges of samples.

A closed segment is a pair [start, stop) in the numbering of all samples ever written, so dropping old samples changes
no record: a segment before `tail` is gone, and a segment that spans `tail` begins at `tail`. A record whose `stop` lies
behind `head` is not valid yet, since its samples are being written: the store of `head` commits rows and episodes
together.

Records lie in a ring with room for the records of a full buffer of one-sample episodes, or in an array that grows.
Appending a record costs O(1), finding the segment of a sample O(log n).

A *cut* segment was closed before its episode had ended; the highest bit of the number in its record marks it.

In this module the samples of a segment are consecutive; `_lanes` has the segments of buffers with lanes.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from ..base.mapped import MappedFile
from ..base.windows import EpisodeMarks
from ._counters import Header

_RECORD = np.dtype([("start", "<i8"), ("stop", "<i8"), ("number", "<u4"), ("crc", "<u4")])
_pack_checked, _pack_crc = struct.Struct("<qqI").pack, struct.Struct("<I").pack
_SIZE = _RECORD.itemsize
# A writer may close this many episodes before it overwrites a record that a reader is reading.
_SLACK = 1024
_NOTHING = np.zeros(0, np.int64)
# The highest bit in the number of a record: its segment is cut.
_CUT = 1 << 31
NUMBER_BITS = _CUT - 1
# The mark of a cut segment in its start, in the ranges of an edit; sample numbers are smaller.
_CUT_IN_EDIT = 1 << 62


def has_number(record: tuple[int, ...], number: int) -> bool:
    """Whether a record has this number."""
    return not (record[2] ^ number) & NUMBER_BITS


def ranges_of_edit(ranges: np.ndarray, is_cut: np.ndarray) -> np.ndarray:
    """Segments in the form of an edit, for `SegmentIndex.replace_all`."""
    return np.stack([ranges[:, 0] | np.where(is_cut, _CUT_IN_EDIT, 0), ranges[:, 1]], axis=1)


def plain_ranges(segments: np.ndarray) -> np.ndarray:
    """The ranges [start, stop) of segments in the form of an edit."""
    return segments & ~_CUT_IN_EDIT


def is_sound(start: int, stop: int, number: int, crc: int) -> bool:
    """Whether a record matches its checksum."""
    return crc32(_pack_checked(start, stop, number)) == crc


class _Edges(NamedTuple):
    """The starts and stops of segments in the records before number `seen`, valid while `state` stays the same.

    The first `length` of `values` are never written again, so a thread may read them while another one adds more.
    """

    state: tuple[int, int]  # counters `edit` and `base`: records are renumbered only when one of them changes
    seen: int
    values: np.ndarray
    length: int

    def with_more(self, starts: np.ndarray, stops: np.ndarray, tail: int) -> _Edges:
        """These edges and the edges of the next records. If the array is full, edges before `tail` are dropped.

        The buffer must have reached `tail`, so that no lookup needs the dropped edges.
        """
        ends = np.stack([starts, stops], axis=1).reshape(-1)
        ends = ends[np.diff(ends, prepend=self.values[self.length - 1]) > 0]
        values, length = self.values, self.length
        if length + len(ends) > len(values):
            gone = int(values[1:length].searchsorted(tail, "left"))
            length -= gone
            values = np.zeros(2 * (length + len(ends)), np.int64)
            values[1:length] = self.values[1 + gone : self.length]
        values[length : length + len(ends)] = ends
        return _Edges(self.state, self.seen + len(stops), values, length + len(ends))


class _Marked(NamedTuple):
    """The last samples of cut segments and of the gaps between segments, both in order.

    Read from the records before number `seen`, the last of which stops at `stop`; valid while `state` stays the same.
    """

    state: tuple[int, int]
    seen: int
    stop: int
    cut: np.ndarray
    gaps: np.ndarray


class SegmentIndex:
    """The records of the closed segments, in memory or in a mapped file; `counters.segments` is their number."""

    def __init__(self, header: Header, capacity: int | None, file: MappedFile | None = None, lanes: int = 1) -> None:
        self._header, self._counters = header, header.counters
        self._capacity, self.file, self.lanes = capacity, file, lanes
        self._ring = None if capacity is None else capacity + _SLACK
        self._ready = (0, 0)  # indices [start, stop) of records that can be written without `_make_room`
        self._set_records(np.zeros(0, _RECORD))
        self._known_edges = _Edges((-1, -1), 0, np.zeros(1, np.int64), 1)
        self._known_marked = _Marked((-1, -1), 0, 0, _NOTHING, _NOTHING)

    def _set_records(self, records: np.ndarray) -> None:
        # bytes are written much faster than an array; one statement, so that an interrupt leaves both or none
        self._bytes, self._records = memoryview(records.view(np.uint8)), records  # type: ignore[arg-type]

    @classmethod
    def create(cls, header: Header, capacity: int | None, path: Path | None, lanes: int = 1) -> SegmentIndex:
        """Records in a new file; for path None in an unnamed one."""
        return cls(header, capacity, MappedFile.create(path, _RECORD), lanes)

    @classmethod
    def open(cls, header: Header, capacity: int | None, path: Path, lanes: int = 1, *, writable: bool) -> SegmentIndex:
        index = cls(header, capacity, MappedFile.open(path, _RECORD, writable=writable), lanes)
        count = header.counters.segments
        present = index.file.length if index.file else 0  # after a power cut fewer than count
        index._ensure_records(min(present, count if index._ring is None else min(count, index._ring)))
        return index

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        parts = (self._header, self._capacity, self.file, self.lanes)
        return _received, (type(self), parts, None if self.file else self._records)

    # -- records ---------------------------------------------------------------------------------------------

    def _ensure_records(self, count: int) -> None:
        """Map or allocate at least `count` records."""
        if count <= len(self._records):
            return
        if self.file is None:
            grown = np.zeros(max(count, 2 * len(self._records), 64), _RECORD)
            grown[: len(self._records)] = self._records
            self._set_records(grown)
            return
        if self.file.length < count and self.file.writable:
            try:
                self.file.extend_reserved(max(count, 2 * len(self._records), 64))
            except OSError:  # the disk may have room for less
                self.file.extend_reserved(count)
        self._set_records(self.file.map(max(count, self.file.length)))

    def _index_of(self, number: int) -> int:
        return number if self._ring is None else number % self._ring

    def prepare(self, count: int = 1) -> None:
        """Allocate `count` more records."""
        start = self._index_of(self._counters.segments)
        stop = start + count
        if self._ready[0] <= start and stop <= self._ready[1]:
            return
        if self._ring is not None and stop > self._ring:  # the records wrap around
            self._make_room(0, stop - self._ring)
            stop = self._ring
        self._make_room(start, stop)

    def _make_room(self, start: int, stop: int) -> None:
        """Allocate the records [start, stop)."""
        self._ensure_records(stop)
        length = len(self._records) if self._ring is None else min(len(self._records), self._ring)
        first, last = (0, length) if self.file is None else self.file.reserve(start, stop)
        self._ready = (first, min(last, length))

    def add(self, start: int, stop: int) -> None:
        """Add a record, after `prepare`."""
        self.add_all([(start, stop)])

    def add_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Add records, after `prepare`; one store makes them valid."""
        self.put(self._counters.segments, ranges)

    def put(self, number: int, ranges: Sequence[tuple[int, int]], are_cut: Iterable[bool] | None = None) -> None:
        """Write the last records, from this number on, and count them, after `prepare`."""
        self._write(number, ranges, are_cut)
        self._counters.segments = number + len(ranges)

    def _write(self, number: int, ranges: Iterable[tuple[int, int]], are_cut: Iterable[bool] | None = None) -> None:
        """Write records from this number on."""
        ring, memory = self._ring, self._bytes
        marks = itertools.repeat(0) if are_cut is None else (_CUT if is_cut else 0 for is_cut in are_cut)
        for (start, stop), mark in zip(ranges, marks):  # noqa: B905 - `repeat` has no end
            checked = _pack_checked(start, stop, number & NUMBER_BITS | mark)
            at = (number if ring is None else number % ring) * _SIZE
            memory[at : at + _SIZE] = checked + _pack_crc(crc32(checked))
            number += 1

    def replace_all(self, ranges: np.ndarray) -> None:
        """Replace all records by segments in the form of an edit; the caller sets the counter."""
        self._ensure_records(len(ranges))
        if self.file is not None:
            self.file.reserve(0, len(ranges))
        is_cut = ranges[:, 0] & _CUT_IN_EDIT != 0
        self._write(0, plain_ranges(ranges).tolist(), is_cut.tolist())
        for index in self._used_indices():
            if index >= len(ranges):  # after a power cut, an old record must not pass for a new one
                self._records[index] = 0

    def _used_indices(self) -> list[int]:
        """The indices of records that were written; holes of a file stay holes."""
        if self.file is None:
            records = self._records
        else:
            length = min(self.file.length, len(self._records))
            records = np.frombuffer(self.file.read_bytes(length * _SIZE, 0), _RECORD)
        return np.flatnonzero(records["stop"]).tolist()

    # -- lookups ---------------------------------------------------------------------------------------------

    def _oldest(self, count: int) -> int:
        """The number of the oldest record that cannot have been overwritten; it is no newer than any alive record."""
        return 0 if self._capacity is None else max(0, count - self._capacity - 1)

    def _first_after(self, sample: int, count: int) -> int:
        """The number of the first of `count` records that stop behind a sample."""
        low = self._oldest(count)
        self._ensure_records(count if self._ring is None else min(count, self._ring))
        stops, index_of = self._records["stop"], self._index_of
        return low + bisect.bisect_right(range(low, count), sample, key=lambda number: int(stops[index_of(number)]))

    def alive(self, tail: int, head: int) -> np.ndarray:
        """The segments with samples in [tail, head), clipped to it, as [start, stop) in the order they were closed."""
        return self.alive_and_cut(tail, head)[0]

    def alive_and_cut(self, tail: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """`alive`, and for each segment whether it is cut."""
        count = self._counters.segments
        numbers = np.arange(self._first_after(tail, count), count)
        starts, stops, is_cut = self._fields(numbers, count)
        counts = stops <= head
        ranges = np.stack([starts, stops], axis=1)[counts]
        self._clip(ranges, tail)
        return ranges, is_cut[counts]

    def _clip(self, ranges: np.ndarray, tail: int) -> None:
        """Move the starts of segments that begin before `tail` to it."""
        if len(ranges):
            ranges[0, 0] = max(int(ranges[0, 0]), tail)

    def of(self, sample: int, tail: int, head: int) -> tuple[int, int] | None:
        """The closed segment of a sample by its number; None if the sample is in none."""
        count = self._counters.segments
        number = self._first_after(sample, count)
        if number == count:
            return None
        start, stop = self._record(number)
        return (max(start, tail), stop) if start <= sample and stop <= head else None

    def bounds_of(self, samples: np.ndarray, tail: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """The segment [start, stop) of each sample, clipped to [tail, head).

        `samples` are numbers in [tail, head), int64. The open segment reaches to `head`; samples between two segments
        form a segment of their own.
        """
        closed = self._counters.closed  # read before the records, so that no closed segment lacks its record
        edges = self._current_edges(tail)
        stops, last = edges[1:], int(edges[-1])
        order = samples.argsort()  # sorted keys halve the time of the search
        after = np.empty_like(order)
        after[order] = stops.searchsorted(samples[order], "right")
        start = edges.take(after)
        if not len(after) or after.item(after.argmax()) < len(stops):  # all in closed segments, nearly always
            stop = stops.take(after)
        else:
            is_behind = after == len(stops)
            stop = np.where(is_behind, head, edges.take(after + 1, mode="clip"))
            if closed > last:
                start = np.where(samples >= closed, closed, start)
                stop = np.where(is_behind & (samples < closed), min(closed, head), stop)  # `closed` may lead
        return np.maximum(start, tail) if tail else start, np.minimum(stop, head) if last > head else stop

    def marks_of(self, samples: np.ndarray, tail: int, head: int) -> EpisodeMarks:
        """The marks of each sample's segment; `samples` as for `bounds_of`."""
        base, is_open = self._counters.base, self._is_open(samples)
        start, stop = self.bounds_of(samples, 0, head)
        marked = self._current_marks()
        is_cut, is_gap = _is_among(marked.cut, stop - 1), _is_among(marked.gaps, stop - 1)
        if self.lanes == 1:
            is_gap = ~is_open & (is_gap | (start >= marked.stop))  # or behind all segments
        begins = np.full(samples.shape, True) if tail == base else start >= tail
        return EpisodeMarks(begins, ~(is_open | is_cut), is_cut, is_gap)

    def _is_open(self, samples: np.ndarray) -> np.ndarray:
        """Which samples are in an open segment."""
        return samples >= self._counters.closed

    def _current_marks(self) -> _Marked:
        counters = self._counters
        state = (counters.edit, counters.base)
        known = self._known_marked
        if known.state != state:
            known = _Marked(state, 0, 0, _NOTHING, _NOTHING)
        first, starts, stops, is_cut = self.counted_since(known.seen)
        if len(stops):
            before = np.concatenate([starts[:1] if first > known.seen else [known.stop], stops[:-1]])
            gaps = starts[starts > before] - 1 if self.lanes == 1 else _NOTHING
            cut = np.concatenate([known.cut, stops[is_cut] - 1])
            alive = [lasts[lasts >= counters.tail] for lasts in (cut, np.concatenate([known.gaps, gaps]))]
            known = _Marked(state, first + len(stops), int(stops[-1]), *alive)
        if not state[0] & 1:
            self._known_marked = known
        return known

    def _current_edges(self, tail: int) -> np.ndarray:
        """The starts and stops of segments, in order without duplicates, after a 0; read-only.

        Edges before `tail`, and before the buffer's own tail, may be left out. The result is kept for the next call.
        """
        counters = self._counters
        state = (counters.edit, counters.base)
        known = self._known_edges
        if known.state != state:
            known = _Edges(state, 0, np.zeros(1, np.int64), 1)
        first, starts, stops, _ = self.counted_since(known.seen)
        if len(stops):
            if first > known.seen:  # records were overwritten unseen: all seen ones are overwritten, too
                known = _Edges(state, first, np.zeros(1, np.int64), 1)
            known = known.with_more(starts, stops, min(tail, counters.tail))  # a reader may look ahead of the tail
        if not state[0] & 1:
            self._known_edges = known
        return known.values[: known.length]

    def counted_since(self, number: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """The valid records from `number` on: the number of the first, starts, stops, and which are cut."""
        counters = self._counters
        while True:
            head = counters.head  # read before the count: a record beyond the head may yet be dropped
            count = counters.segments
            if count <= number:
                return number, _NOTHING, _NOTHING, _NOTHING
            first = max(number, self._oldest(count))
            starts, stops, is_cut = self._fields(np.arange(first, count), count)
            if self._ring is None or counters.segments - first <= self._ring:  # else a writer has overwritten some
                counted = int(np.searchsorted(stops > head, True))
                return first, starts[:counted], stops[:counted], is_cut[:counted]

    def _fields(self, numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The starts and stops of the records with these numbers, out of `count`, and which are cut."""
        if count == 0:  # without records, `numbers` is empty
            return numbers, numbers, numbers.astype(bool)
        self._ensure_records(count if self._ring is None else min(count, self._ring))
        indices = numbers if self._ring is None or count <= self._ring else numbers % self._ring
        records = self._records
        return records["start"][indices], records["stop"][indices], records["number"][indices] & np.uint32(_CUT) != 0

    def _record(self, number: int) -> tuple[int, int]:
        self._ensure_records(self._index_of(number) + 1)
        start, stop, *_ = self._records[self._index_of(number)].tolist()
        return start, stop

    def stop_of(self, number: int) -> int:
        """The stop of a record's segment."""
        return self._record(number)[1]

    def count_sound(self, first: int, count: int) -> int:
        """The number of the first damaged or lost record from `first` on; `count` if all are sound.

        0 if the oldest record that should be present is lost: the records before it were overwritten.
        """
        oldest = max(first, self._oldest(count))
        indices = [self._index_of(number) for number in range(oldest, count)]
        present = len(self._records) if self.file is None else self.file.length
        self._ensure_records(min(present, count if self._ring is None else min(count, self._ring)))
        for number, index in zip(range(oldest, count), indices, strict=True):
            record = self._records[index].tolist() if index < len(self._records) else (0, 0, 0, 0)
            if not is_sound(*record) or not has_number(record, number):
                return 0 if first < oldest == number else number
        return count

    def last_stop(self) -> int:
        """The stop of the newest segment; 0 without segments."""
        count = self._counters.segments
        return self._record(count - 1)[1] if count else 0

    # -- faults ----------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Drop the records of a killed writer that are half written, or whose samples it did not acknowledge."""
        counters = self._counters
        while counters.segments and self.last_stop() > counters.head:
            counters.segments -= 1
        number = counters.segments
        while (index := self._index_of(number)) < len(self._records):
            record = self._records[index].tolist()
            is_older = is_sound(*record) and not has_number(record, number)
            if record == (0, 0, 0, 0) or is_older:
                break
            self._records[index] = 0
            number += 1

    def check_room(self) -> None:
        """A StorageCorruptedError if the file is too short for its records."""
        count = self._counters.segments
        if self.file is not None:
            self.file.check_length(count if self._ring is None else min(count, self._ring), exactly=False)

    def verify(self, *, closed: bool) -> list[str]:
        """The faults of the records, one sentence each; of a `closed` file also in unused records."""
        counters = self._counters
        head, tail, count = counters.head, counters.tail, counters.segments
        numbers = range(self._oldest(count), count)
        self._ensure_records(count if self._ring is None else min(count, self._ring))
        wrong = {self._index_of(number) for number in numbers if self._is_lost(number)}
        if closed:
            wrong.update(index for index in range(len(self._records)) if self._is_damaged(index))
        damaged = [f"{self.file or 'segments'}: record {index} does not match its checksum" for index in sorted(wrong)]
        finding = self._order_finding(self.alive(tail, head))
        return damaged if finding is None else [*damaged, f"{self.file or 'segments'}: {finding}"]

    def _order_finding(self, ranges: np.ndarray) -> str | None:
        """A sentence if the segments are out of order."""
        if np.any(ranges[:, 0] >= ranges[:, 1]) or np.any(ranges[1:, 0] < ranges[:-1, 1]):
            return "the segments do not follow one another"
        return None

    def _is_damaged(self, index: int) -> bool:
        """Whether the bytes at an index are neither a record nor zeros."""
        record = self._records[index].tolist()
        return record != (0, 0, 0, 0) and not is_sound(*record)

    def _is_lost(self, number: int) -> bool:
        """Whether a valid record is not at its index, and no writer has overwritten it meanwhile."""
        record = self._records[self._index_of(number)].tolist()
        is_there = is_sound(*record) and has_number(record, number)
        return not is_there and number >= self._oldest(self._counters.segments)

    def sync(self) -> None:
        """Make the records durable."""
        if self.file is not None:
            self.file.sync()

    def close(self) -> None:
        """Release the memory of the records."""
        if self.file is not None:
            self.file.close()


def _received(
    cls: type[SegmentIndex], parts: tuple[Header, int | None, MappedFile | None, int], records: np.ndarray | None
) -> SegmentIndex:
    index = cls(*parts)
    if records is not None:
        index._set_records(records)
    return index


def _is_among(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of `values` are in `ordered`."""
    if not len(ordered):
        return np.zeros(values.shape, np.bool_)
    return ordered.take(ordered.searchsorted(values), mode="clip") == values


# -- the reference's format: inclusive pairs of slots, wrapped where the first is the larger ---------------------


def physical_segments(ranges: np.ndarray, capacity: int | None) -> list[tuple[int, int]]:
    """Inclusive pairs of slots for ranges [start, stop) of slots counted on beyond the capacity."""
    pairs = ranges.copy()
    pairs[:, 1] -= 1
    if capacity is not None:
        pairs %= capacity
    return [(start, end) for start, end in pairs.tolist()]


def logical_segments(
    pairs: Iterable[tuple[int, int]], offset: int, count: int, capacity: int | None
) -> list[tuple[int, int]]:
    """Ranges [start, stop) of indices for inclusive pairs of slots, oldest first, clipped to `count`."""
    ranges = []
    for first, last in pairs:
        length = last - first + 1
        start = first - offset
        if capacity is not None:
            length = length if length > 0 else length + capacity
            start %= capacity
            if start >= count and start + length > capacity:  # its beginning was overwritten
                start -= capacity
        start, stop = max(start, 0), min(start + length, count)
        if start < stop:
            ranges.append((start, stop))
    return sorted(ranges)
