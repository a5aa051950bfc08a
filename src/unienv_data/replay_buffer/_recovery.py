"""Recovery: a journal that finishes interrupted edits, and the samples lost in a power cut.

An edit (overwriting, removing) changes acknowledged rows, which readers may be reading. On disk the journal is written
first (the new rows, segments and counters); then the counter `edit` becomes odd, the edit is made, and `edit` becomes
even. An edit can be made twice: a process that finds `edit` odd, and no writer, makes the edit again from the journal.

A buffer that was not closed may be opened in another boot than its writer's. After an orderly restart, or in a copied
folder, all samples are there. After a power cut, the writes since the last flush have reached the disk in part and in
any order. The checksum of a row covers the number of its sample, and the checksum of an episode's record covers its
index, so each row and record shows whether it is whole. Samples that cannot be shown to be whole are kept out of reads.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.files import reserve
from ..base.mapped import MappedFile
from ..base.row_storage import ROW_WHOLE, ROW_WRONG, RowStorage
from ..base.storage import StorageCorruptedError
from ._counters import COUNTER_NAMES, Counters
from ._segments import SegmentIndex, plain_ranges, ranges_of_edit

if TYPE_CHECKING:
    from ._state import BufferState

# Bytes after the header; their CRC32, with the number of the edit in the upper half; the counts of slots, of segments
# (-1: unchanged) and of counters.
_HEADER = struct.Struct("<QQqqq")
_CHUNK_BYTES = 2**20
# The number in the checksum of a row without a sample, which must match no later sample.
NONE = -1
_SAMPLES_AT_A_TIME = 65536


# -- edits ----------------------------------------------------------------------------------------------------


class Edit:
    """New rows for some slots, the numbers of their samples, and the counters and segments that go with them.

    Rows are read and written chunk by chunk: `read_rows(chunk)` gives the raw rows of a chunk of the slots, and is
    called after the rows of the previous chunk were written.
    """

    def __init__(
        self,
        slots: np.ndarray,
        numbers: np.ndarray,
        row_nbytes: int,
        read_rows: Callable[[slice], Any],
        counters: Mapping[str, int] | None = None,
        segments: np.ndarray | None = None,
    ) -> None:
        size = max(1, _CHUNK_BYTES // max(row_nbytes, 1))
        self.slots, self.numbers, self.read_rows = slots, numbers, read_rows
        self.chunks = [slice(start, start + size) for start in range(0, len(slots), size)]
        self.counters, self.segments = counters or {}, segments
        self._next: tuple[int, Any] = (0, None)  # the next chunk to write, and its rows once they are read

    def make(self, storage: RowStorage, counters: Counters, index: SegmentIndex) -> None:
        """Make the edit; a second call after an interrupt continues it."""
        while self._next[0] < len(self.chunks):
            number, rows = self._next
            if rows is None:
                rows = self.read_rows(self.chunks[number])
                self._next = (number, rows)  # not read twice: the write may overwrite its own source
            chunk = self.chunks[number]
            storage.write_raw_rows(self.slots[chunk], rows, self.numbers[chunk])
            self._next = (number + 1, None)
        if self.segments is not None:
            index.replace_all(self.segments)
        head = self.counters.get("head", counters.head)
        if head < counters.head:  # dropped rows must not pass for the next samples of the same numbers
            storage.forget_rows(head)
        for name, value in self.counters.items():
            setattr(counters, name, int(value))


class Journal:
    """One edit, in a file with a name or without."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    @classmethod
    def create(cls, path: Path | None) -> Journal:
        return cls(MappedFile.create(path, "u1"))

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Journal:
        return cls(MappedFile.open(path, "u1", writable=writable))

    def write(self, edit: Edit, row_nbytes: int, number: int) -> None:
        """Write an edit and its number to the journal; an OSError, with nothing changed, if the disk is full."""
        segments = np.zeros((0, 2), np.int64) if edit.segments is None else edit.segments
        pairs = [(COUNTER_NAMES.index(name), value) for name, value in edit.counters.items()]
        counters = np.array(pairs, np.int64).reshape(-1, 2)
        fixed = b"".join(array.astype("<i8").tobytes() for array in (edit.slots, segments, counters))
        total = len(fixed) + len(edit.slots) * row_nbytes
        reserve(self._file.fd, 0, _HEADER.size + total, self._file.path)
        crc, offset = zlib.crc32(fixed), self._file.write_bytes(fixed, _HEADER.size)
        for chunk in edit.chunks:
            rows = edit.read_rows(chunk)
            crc, offset = zlib.crc32(rows, crc), self._file.write_bytes(rows, offset)
        numbers = (len(edit.slots), -1 if edit.segments is None else len(segments), len(counters))
        self._file.write_bytes(_HEADER.pack(total, _mark(number) | crc, *numbers), 0)

    def read(self, storage: RowStorage, live: Counters, number: int) -> Edit:
        """Read the edit of this number; a StorageCorruptedError if it is damaged, or leaves the buffer's range."""
        row_nbytes = storage.row_nbytes
        total, _, slot_count, segment_count, counter_count = self._header()
        kept = max(segment_count, 0)
        fixed_size = 8 * (slot_count + 2 * kept + 2 * counter_count)
        if fixed_size + slot_count * row_nbytes != total or not self._holds(number):
            raise self._damaged()
        numbers = np.frombuffer(self._file.read_bytes(fixed_size, _HEADER.size), "<i8").astype(np.int64)
        slots = numbers[:slot_count]
        segments = numbers[slot_count : slot_count + 2 * kept].reshape(-1, 2)
        pairs = numbers[slot_count + 2 * kept :].reshape(-1, 2).tolist()
        counters = {COUNTER_NAMES[index]: value for index, value in pairs if 0 <= index < len(COUNTER_NAMES)}
        if len(counters) != len(pairs) or not _fits(slots, segments, counters, storage, live):
            raise self._damaged()
        first = _HEADER.size + fixed_size

        def read_rows(chunk: slice) -> bytes:
            count = len(slots[chunk])
            return self._file.read_bytes(count * row_nbytes, first + chunk.start * row_nbytes)

        numbers_after = numbers_in(slots, storage.capacity, live.base, counters.get("tail", live.tail))
        numbers_after[numbers_after >= counters.get("head", live.head)] = NONE
        kept_segments = None if segment_count < 0 else segments
        return Edit(slots, numbers_after, row_nbytes, read_rows, counters, kept_segments)

    def _damaged(self) -> StorageCorruptedError:
        return StorageCorruptedError(
            f"{self._file}: the unfinished edit in it is damaged: keep what is whole with `unienv repair` "
            f"(unienv_data.repair)"
        )

    def _holds(self, number: int) -> bool:
        """Whether the journal has the whole edit of this number."""
        total, mark, *_ = self._header()
        crc = mark & 0xFFFFFFFF
        is_due = mark >> 32 == 0 or mark ^ crc == _mark(number)  # earlier versions wrote no number
        return is_due and self._crc(total) == crc

    def _header(self) -> tuple[int, ...]:
        numbers = _HEADER.unpack(self._file.read_bytes(_HEADER.size, 0))
        if numbers[0] > self._file.nbytes or min(numbers[2], numbers[4]) < 0:
            raise self._damaged()
        return numbers

    def _crc(self, total: int) -> int:
        crc = 0
        for start in range(0, total, _CHUNK_BYTES):
            crc = zlib.crc32(self._file.read_bytes(min(_CHUNK_BYTES, total - start), _HEADER.size + start), crc)
        return crc

    def sync(self) -> None:
        """Make the journal durable."""
        self._file.sync()

    def empty(self) -> None:
        """Drop the edit, once it was made."""
        os.ftruncate(self._file.fd, 0)

    def close(self) -> None:
        self._file.close()


def _fits(
    slots: np.ndarray, segments: np.ndarray, counters: Mapping[str, int], storage: RowStorage, live: Counters
) -> bool:
    """Whether an edit, which may be half made, stays within the buffer's range."""
    tail, head = counters.get("tail", live.tail), counters.get("head", live.head)
    room = live.head - live.base if storage.ring is None else storage.ring
    ranges = plain_ranges(segments)
    return (
        counters.keys() <= {"head", "tail", "closed", "segments", "renumbered"}
        and live.base <= live.tail <= tail <= head <= live.head
        and live.base <= counters.get("closed", tail) <= head
        and counters.get("segments", len(segments)) == len(segments)
        and live.renumbered <= counters.get("renumbered", live.renumbered) <= live.renumbered + 1
        and bool(((slots >= 0) & (slots < room)).all())
        and bool(((ranges[:, 0] >= live.base) & (ranges[:, 0] < ranges[:, 1]) & (ranges[:, 1] <= head)).all())
    )


def _mark(number: int) -> int:
    return (number & 0xFFFFFFFF) << 32


def finish(journal: Journal, storage: RowStorage, counters: Counters, index: SegmentIndex) -> None:
    """Make the unfinished edit in the journal, and count it as made."""
    journal.read(storage, counters, counters.edit).make(storage, counters, index)
    counters.edit += 1


def numbers_in(slots: np.ndarray, capacity: int | None, base: int, tail: int) -> np.ndarray:
    """The numbers of the samples in these slots of a buffer."""
    return slots + base if capacity is None else tail + (slots - (tail - base)) % capacity


def removal(
    storage: RowStorage,
    slots_of: Callable[[np.ndarray], np.ndarray],
    removed: np.ndarray,
    bounds: tuple[int, int, int],
    segments: tuple[np.ndarray, np.ndarray],
    renumbered: int,
    *,
    join: bool,
) -> Edit:
    """The edit that removes samples and closes the gaps, moving the older or the newer samples, whichever are fewer.

    `removed` are numbers of samples, in order and without duplicates; `bounds` are tail, closed and head; `segments`
    the closed segments alive and which of them are cut. A segment is split where samples are removed, or with `join`
    only shrinks; an empty segment is dropped. `renumbered` is how often samples were moved before.

    A StorageCorruptedError if a sample to be moved is damaged: its new checksum would hide the damage.
    """
    tail, closed, head = bounds
    count, first, last = len(removed), int(removed[0]), int(removed[-1])
    moves_older = last + 1 - tail <= head - first and count < head - tail
    if moves_older:
        # from the newest to the oldest: no sample is overwritten before it was moved
        kept = np.setdiff1d(np.arange(tail, last + 1), removed, assume_unique=True)[::-1]
        tail += count
    else:
        kept = np.setdiff1d(np.arange(first, head), removed, assume_unique=True)
        head -= count

    def moved(numbers: np.ndarray) -> np.ndarray:
        return numbers - np.searchsorted(removed, numbers) + (count if moves_older else 0)

    ranges, is_cut = segments
    shrunk = moved(ranges.reshape(-1)).reshape(-1, 2)
    cut_stops = shrunk[is_cut & (shrunk[:, 0] < shrunk[:, 1]), 1]  # unique: the remaining segments have different stops
    closed = int(moved(np.array([closed]))[0])
    if not join:
        cuts = moved(removed[np.diff(removed, prepend=-1) > 1])  # the new number of the sample behind each gap
        inside = cuts[(cuts > closed) & (cuts < head)]
        shrunk = np.concatenate([shrunk, _split(closed, int(inside[-1]), inside[:-1])]) if len(inside) else shrunk
        closed = int(inside[-1]) if len(inside) else closed
        pieces = [_split(start, stop, cuts[(cuts > start) & (cuts < stop)]) for start, stop in shrunk.tolist()]
        shrunk = np.concatenate([np.zeros((0, 2), np.int64), *pieces])
    shrunk = shrunk[shrunk[:, 0] < shrunk[:, 1]]
    shrunk = ranges_of_edit(shrunk, np.isin(shrunk[:, 1], cut_stops))
    counters = {"head": head, "tail": tail, "closed": closed, "segments": len(shrunk)}
    counters["renumbered"] = renumbered + (len(kept) > 0)
    is_wrong = storage.check_rows(slots_of(kept), kept) == ROW_WRONG
    if is_wrong.any():
        damaged = kept[is_wrong] - bounds[0]
        raise StorageCorruptedError(
            f"{storage.cache_filename}: samples {damaged.min()} to {damaged.max()} would have to be moved, and "
            f"{len(damaged)} of them do not match their checksum: first keep what is whole with `unienv repair` "
            f"(unienv_data.repair), or overwrite or remove the damaged samples as well"
        )
    numbers = moved(kept)
    sources, targets = slots_of(kept), slots_of(numbers)
    row_nbytes = storage.row_nbytes if storage.has_raw_rows else 2**12
    return Edit(targets, numbers, row_nbytes, lambda chunk: storage.raw_rows(sources[chunk]), counters, shrunk)


def _split(start: int, stop: int, cuts: np.ndarray) -> np.ndarray:
    """Split the range [start, stop) at `cuts`."""
    edges = np.array([start, *cuts.tolist(), stop], np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)


# -- after a power cut ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """The samples lost in a power cut, in sentences, and the counters without them."""

    counters: Counters
    findings: tuple[str, ...]


def find_loss(state: BufferState, live: Counters) -> Loss | None:
    """The samples that cannot be shown to be whole; None if the live counters are right.

    Compares the checksums of the samples since the last flush, and the numbers of the older samples.
    """
    committed = state.header.newest_half()
    tail, head, count = live.tail, live.head, live.segments
    if state.storage.has_row_sums:
        first = min(max(committed.head, tail), head)
        tail, head = _without_overwritten(state, tail, first, head)
        head = _first_not_whole(state, max(first, tail), head)
    else:
        head = min(head, max(committed.head, tail))
    sound = state.segments.count_sound(min(committed.segments, count), count)
    closed = live.closed
    if sound < count:  # samples outside the sound episodes belong to the one open at the last flush
        closed = state.segments.stop_of(sound - 1) if sound else tail
        head = max(tail, min(head, max(closed, committed.head)))
    head -= (head - tail) % state.segments.lanes
    counters = live.copy()
    counters.tail, counters.head, counters.segments = tail, max(head, tail), sound
    if counters.head == tail:
        counters.base = tail  # an empty buffer needs no rows
    if counters == live:
        return None
    counters.closed, counters.coming = min(closed, counters.head), counters.head
    return Loss(counters, tuple(_sentences(state, live, counters)))


def _sentences(state: BufferState, live: Counters, kept: Counters) -> list[str]:
    where, sentences = state.folder, []
    if kept.tail > live.tail:
        sentences.append(
            f"{where}: the oldest {kept.tail - live.tail:,} samples were overwritten after the last flush by samples "
            f"that did not all reach the disk when the machine went down; they are kept out of reads"
        )
    if kept.head < live.head:
        first, count = kept.head - kept.tail, live.head - kept.head
        sentences.append(
            f"{where}: samples {first:,} to {first + count - 1:,} ({count:,}) were written after the last flush, and "
            f"when the machine went down not all of them reached the disk whole; they are kept out of reads"
        )
    if kept.segments < live.segments:
        sentences.append(f"{where}: {live.segments - kept.segments:,} records of episodes did not reach the disk")
    return sentences


def _without_overwritten(state: BufferState, tail: int, first: int, head: int) -> tuple[int, int]:
    """Tail and head without the samples before `first` whose slots hold other samples."""
    for start in range(tail, first, _SAMPLES_AT_A_TIME):
        numbers = np.arange(start, min(start + _SAMPLES_AT_A_TIME, first))
        is_wrong = state.storage.check_rows(state.slots(numbers), numbers, numbers_only=True) == ROW_WRONG
        if not is_wrong.any():
            continue
        if state.storage.capacity is None:  # a removal has moved samples: the order of the later ones is unknown
            return tail, int(numbers[is_wrong][0])
        tail = int(numbers[is_wrong][-1]) + 1
    return tail + (-tail) % state.segments.lanes, head


def _first_not_whole(state: BufferState, first: int, head: int) -> int:
    """The first sample from `first` on whose row does not match its checksum; `head` if all rows do."""
    for start in range(first, head, _SAMPLES_AT_A_TIME):
        numbers = np.arange(start, min(start + _SAMPLES_AT_A_TIME, head))
        not_whole = state.storage.check_rows(state.slots(numbers), numbers) != ROW_WHOLE
        if not_whole.any():
            return int(numbers[not_whole][0])
    return head
