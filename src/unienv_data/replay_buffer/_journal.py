"""Edits in place that a kill cannot leave half done.

Overwriting samples, or moving them together where some were removed, changes rows that readers may be reading and that
were acknowledged before. So an edit is written down first (the rows, the segments and the counters as they shall be);
then the counter `EDIT` becomes odd, the edit is made, and `EDIT` becomes even. Making an edit twice does no harm: who
finds `EDIT` odd with nobody at work makes the edit again from the journal.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.files import reserve
from ..base.mapped import MappedFile
from ..base.storage import SpaceStorage, StorageCorruptedError
from ._counters import COUNTER_NAMES, Counters
from ._segments import SegmentIndex

# what follows it in bytes and its CRC32, then the numbers of slots, of segments (-1: they stay) and of counters
_HEADER = struct.Struct("<QQqqq")
_CHUNK_BYTES = 2**20


class Edit(NamedTuple):
    """What an edit writes: rows, in pieces that belong to the slots in order, counters, and segments if they change."""

    slots: np.ndarray
    rows: Iterable[tuple[np.ndarray, Any]]
    counters: Mapping[str, int] = {}
    segments: np.ndarray | None = None


def make(edit: Edit, storage: SpaceStorage, counters: Counters, index: SegmentIndex) -> None:
    """Make an edit. May be repeated, if its rows can."""
    for slots, raw in edit.rows:
        storage.write_raw_rows(slots, raw)
    if edit.segments is not None:
        index.replace_all(edit.segments)
    for name, value in edit.counters.items():
        setattr(counters, name, int(value))


class Journal:
    """One edit, in a file with a name or without."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    @classmethod
    def create(cls, path: Path | None) -> Journal:
        return cls(MappedFile.create(path, "u1"))

    @classmethod
    def open(cls, path: Path) -> Journal:
        return cls(MappedFile.open(path, "u1", writable=True))

    def write(self, edit: Edit, row_nbytes: int) -> None:
        """Write an edit down; an OSError if there is no room, and then nothing has happened."""
        segments = np.zeros((0, 2), np.int64) if edit.segments is None else edit.segments
        counters = np.array(
            [(COUNTER_NAMES.index(name), value) for name, value in edit.counters.items()], np.int64
        ).reshape(-1, 2)
        fixed = b"".join(part.astype("<i8").tobytes() for part in (edit.slots, segments, counters))
        total = len(fixed) + len(edit.slots) * row_nbytes
        reserve(self._file.fd, 0, _HEADER.size + total, self._file.path)
        crc, offset = 0, _HEADER.size
        for part in itertools.chain([fixed], (raw for _, raw in edit.rows)):
            crc, offset = zlib.crc32(part, crc), self._file.write_bytes(part, offset)
        numbers = (len(edit.slots), -1 if edit.segments is None else len(segments), len(counters))
        self._file.write_bytes(_HEADER.pack(total, crc, *numbers), 0)

    def read(self, row_nbytes: int) -> Edit:
        """The edit that was written down last; a StorageCorruptedError if it is not whole."""
        total, crc, slot_count, segment_count, counter_count = self._header()
        kept = max(segment_count, 0)
        fixed_size = 8 * (slot_count + 2 * kept + 2 * counter_count)
        if fixed_size + slot_count * row_nbytes != total or self._crc(total) != crc:
            raise StorageCorruptedError(f"{self._file}: the edit that was being made is damaged")
        numbers = np.frombuffer(self._file.read_bytes(fixed_size, _HEADER.size), "<i8").astype(np.int64)
        slots = numbers[:slot_count]
        segments = numbers[slot_count : slot_count + 2 * kept].reshape(-1, 2)
        counters = numbers[slot_count + 2 * kept :].reshape(-1, 2).tolist()
        rows = self._rows(slots, row_nbytes, _HEADER.size + fixed_size)
        return Edit(
            slots,
            rows,
            {COUNTER_NAMES[place]: int(value) for place, value in counters},
            None if segment_count < 0 else segments,
        )

    def _header(self) -> tuple[int, ...]:
        numbers = _HEADER.unpack(self._file.read_bytes(_HEADER.size, 0))
        if numbers[0] > self._file.nbytes or min(numbers[2], numbers[4]) < 0:
            raise StorageCorruptedError(f"{self._file}: the edit that was being made is damaged")
        return numbers

    def _crc(self, total: int) -> int:
        crc = 0
        for start in range(0, total, _CHUNK_BYTES):
            crc = zlib.crc32(self._file.read_bytes(min(_CHUNK_BYTES, total - start), _HEADER.size + start), crc)
        return crc

    def _rows(self, slots: np.ndarray, row_nbytes: int, offset: int) -> Iterator[tuple[np.ndarray, bytes]]:
        for part in chunks(slots, row_nbytes):
            yield part, self._file.read_bytes(len(part) * row_nbytes, offset)
            offset += len(part) * row_nbytes

    def sync(self) -> None:
        self._file.sync()

    def empty(self) -> None:
        """Forget the edit; it was made."""
        os.ftruncate(self._file.fd, 0)

    def close(self) -> None:
        self._file.close()


def chunks(slots: np.ndarray, row_nbytes: int) -> list[np.ndarray]:
    """The slots in pieces whose rows are about a megabyte. The same pieces for the same slots, always."""
    size = max(1, _CHUNK_BYTES // max(row_nbytes, 1))
    return [slots[start : start + size] for start in range(0, len(slots), size)]


def finish(journal: Journal, storage: SpaceStorage, counters: Counters, index: SegmentIndex) -> None:
    """Make the edit in the journal, which `EDIT` says is due, and say that it is made."""
    make(journal.read(storage.row_nbytes), storage, counters, index)
    counters.edit += 1
