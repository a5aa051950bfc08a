"""Opening a folder of packed rows of which some files are damaged, cut or gone.

The description (metadata.json) says what a sample is, so without it nothing can be read. Of the counters (header.bin)
there are copies with checksums. Everything else can be done without, at a price that is told.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base.files import contained, open_regular
from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError
from ..replay_buffer._counters import _SIZE, BASE, HEAD, SEGMENTS, TAIL, MappedCounters
from ..replay_buffer._metadata import Metadata, read_metadata, read_space
from ..replay_buffer._segments import _CHECKED, _RECORD, _SLACK
from ..replay_buffer._state import HEADER, SEGMENT_FILE
from ..storages._checks import RowChecks
from ..storages._heap import FileHeap
from ..storages._row_memory import MappedMemory
from ..storages.packed import PackedStorage
from ._episodes import as_ranges, table_of
from ._errors import CommandError, in_one_line
from ._reading import CHUNK_BYTES, MOST_ROWS
from ._salvage import Salvage, mark_damage


class _Counters(NamedTuple):
    """What the header says: samples [tail, head) by number, the number in slot 0, and how many episodes count."""

    head: int
    tail: int
    base: int
    segments: int


def salvage_packed(path: Path, trouble: str) -> Salvage:
    """Open a folder that cannot be opened as usual because of `trouble`."""
    notes = [trouble]
    try:
        metadata = read_metadata(path)
        if metadata.storage != "packed" or metadata.version == 0:
            raise CommandError(f"{path} cannot be opened, and its storage cannot be repaired: {trouble}")
        space = read_space(path, metadata, NumpyComputeBackend, None)
        storage = _open_rows(contained(path, metadata.storage_path), space, notes)
    except ValueError as error:
        raise CommandError(f"{path}: nothing can be read, {in_one_line(error)}") from error
    records = _valid_records(path / SEGMENT_FILE)
    counters = _read_counters(path / HEADER) or _guess_counters(path, metadata, records, notes)
    numbers = np.arange(counters.tail, counters.head)
    slots = numbers - counters.base
    if metadata.capacity is not None:
        slots %= metadata.capacity
    episodes, loose = None, as_ranges([])
    if metadata.maintains_segments:
        closed = _closed(records, counters, metadata)
        table = table_of(closed - counters.tail, len(numbers), metadata.lanes)
        episodes, loose = table.all, table.loose
    found = Salvage(
        space=space,
        count=len(numbers),
        stride=metadata.lanes,
        rows_at_once=min(max(CHUNK_BYTES // RowLayout(space).nbytes, 1), MOST_ROWS),
        read=lambda positions: storage.get(slots[positions]),
        close=storage.close,
        episodes=episodes,
        loose=loose,
        is_lost=np.zeros(len(numbers), bool),
        notes=notes,
    )
    found.lose(slots >= len(storage), "the files end before them")
    mark_damage(found, storage, slots)
    return found


def _open_rows(folder: Path, space: Space, notes: list[str]) -> PackedStorage:
    """All rows that the files have room for."""
    layout = RowLayout(space)
    heap = FileHeap.open(folder / "heap.bin", writable=False) if layout.has_heap else None
    memory = MappedMemory.open(layout, heap, folder, None, writable=False)
    try:
        checks = RowChecks.open(memory, folder / "checks.bin", writable=False, alone=True)
    except StorageCorruptedError as error:
        checks = None
        notes.append(f"without checksums damaged samples cannot be told from sound ones ({in_one_line(error)})")
    storage = PackedStorage(space, memory, capacity=None, path=folder, mutable=False, checks=checks)
    memory.used = len(memory.rows)
    return storage


# -- counters ----------------------------------------------------------------------------------------------


def _read_counters(path: Path) -> _Counters | None:
    """What the header says, or its newest copy that is sound; None if there is none."""
    try:
        counters = MappedCounters.open(path, writable=False)
    except StorageCorruptedError:
        return _read_copy(path)
    return _checked(counters.cells)


def _read_copy(path: Path) -> _Counters | None:
    page = MappedFile.create(None, np.uint8, _SIZE)  # a page of its own: the file may be shorter, and is not to change
    try:
        present = _content(path)[:_SIZE]
        page.map(_SIZE)[: len(present)] = np.frombuffer(present, np.uint8)
        return _checked(MappedCounters(page)._newest_half())
    except StorageCorruptedError:
        return None


def _checked(cells: memoryview) -> _Counters | None:
    head, tail, base, segments = (cells[place] for place in (HEAD, TAIL, BASE, SEGMENTS))
    return _Counters(head, tail, base, segments) if 0 <= base <= tail <= head and segments >= 0 else None


def _guess_counters(path: Path, metadata: Metadata, records: np.ndarray, notes: list[str]) -> _Counters:
    """Counters for which the episodes speak; a CommandError if they do not say where samples lie."""
    count = 0
    while count < len(records) and records["number"][count] == count and records["stop"][count] > 0:
        count += 1
    if metadata.capacity is not None or not count or records["start"][:count].min() != 0:
        raise CommandError(f"{path / HEADER}: no copy of the counters is sound, so the order of the samples is lost")
    notes.append(
        f"{path / HEADER}: no copy of the counters is sound; what counts as recorded are the {count} episodes in "
        f"{SEGMENT_FILE}, which may be older than the samples if any were removed"
    )
    return _Counters(int(records["stop"][:count].max()), 0, 0, count)


# -- episodes ----------------------------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    try:
        fd = open_regular(path, writable=False)
    except StorageCorruptedError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read()


def _valid_records(path: Path) -> np.ndarray:
    """The records of the file, each in its place; those that do not match their checksum are zeros."""
    content = _content(path)
    records = np.frombuffer(content[: len(content) // _RECORD.itemsize * _RECORD.itemsize], _RECORD).copy()
    for place, (start, stop, number, crc) in enumerate(records.tolist()):
        if zlib.crc32(_CHECKED.pack(start, stop, number)) != crc:
            records[place] = 0
    return records


def _closed(records: np.ndarray, counters: _Counters, metadata: Metadata) -> np.ndarray:
    """The closed episodes that have samples, as [start, stop) of sample numbers."""
    ring = None if metadata.capacity is None else metadata.capacity + _SLACK
    oldest = 0 if ring is None else max(0, counters.segments - ring)
    numbers = np.arange(oldest, counters.segments)
    places = numbers if ring is None else numbers % ring
    present = places < len(records)
    found = records[places[present]]
    alive = (found["number"] == numbers[present] & 0xFFFFFFFF) & (found["stop"] <= counters.head)
    found = found[alive & (found["stop"] > np.maximum(found["start"], counters.tail))]
    starts, lane = found["start"], found["start"] % metadata.lanes
    starts = np.where(starts < counters.tail, counters.tail + lane, starts)
    return np.stack([starts, found["stop"]], axis=1).astype(np.int64)
