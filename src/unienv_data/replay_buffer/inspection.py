"""Access to the inside of buffers and their folders, for `check` and `repair`.

In an open buffer: the slots of samples, checksums, and the records of episodes. In a folder that does not open: the
counters in its header, the records of episodes, and the files of packed rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.backends import ComputeBackend

from ..base.files import contained, open_regular
from ..base.mapped import MappedFile
from ..base.row_storage import ROW_UNKNOWN, RowStorage, rows_of
from ..base.storage import StorageCorruptedError
from ..storages.composed import ComposedStorage
from ..storages.image_storage import IMAGE_METADATA, ImageStorage
from ..storages.packed import BLOCKS_FILE, SUMS_FILE, PackedStorage
from ..storages.registry import storage_by_name
from ..storages.row_memory import file_parts
from ._counters import PAGE_SIZE, MappedHeader
from ._counters import Counters as HeaderCounters
from ._folder import clear_killed_create as clear_killed_create
from ._locks import BeingWrittenError as BeingWrittenError
from ._locks import is_locked
from ._metadata import FILE_NAME
from ._metadata import Metadata as Metadata
from ._metadata import read_metadata as read_metadata
from ._metadata import read_space as read_space
from ._segments import _RECORD, _SLACK, NUMBER_BITS, is_sound
from ._state import HEADER, LOCK, SEGMENT_FILE
from ._state import UnfinishedEditError as UnfinishedEditError
from .replay_buffer import ReplayBuffer

Ranges = list[tuple[int, int]]
#: The files of a buffer beside its storage: description, counters, records of episodes.
METADATA_FILE, HEADER_FILE, EPISODE_FILE = FILE_NAME, HEADER, SEGMENT_FILE


# -- open buffers --------------------------------------------------------------------------------------------


def is_being_written(folder: Path) -> bool:
    """Whether a process holds the lock of the writer of this folder."""
    return is_locked(folder / LOCK)


def slots_of(buffer: ReplayBuffer, numbers: np.ndarray) -> np.ndarray:
    """The slots of samples by their numbers, which count from the first sample ever written."""
    return buffer._state.slots(numbers)


def episode_problems(buffer: ReplayBuffer) -> list[str]:
    """The faults of the episodes' records of a buffer on disk, and the samples kept out of reads, in words."""
    state = buffer._state
    if state.folder is None:
        return []
    return [*state.findings, *state.segments.verify(closed=not is_being_written(state.folder))]


def wait_for_edit(buffer: ReplayBuffer) -> None:
    """Block until no writer changes samples in place; a StorageCorruptedError if the writer was killed."""
    buffer._state.wait_for_edit()


def lost_checksums(buffer: ReplayBuffer) -> list[str]:
    """Sentences for files without checksums of samples, if the buffer's `verify` has none."""
    state, numbers = buffer._state, np.asarray(buffer.sample_numbers)
    if state.storage.has_row_sums:
        return []
    lost, slots = [], state.slots(numbers)
    for storage in storage_parts(state.storage):
        count = int((storage.check_rows(slots, numbers) == ROW_UNKNOWN).sum())
        if count:
            lost.append(without_checksum(storage, count))
    return lost


def add_samples(buffer: ReplayBuffer, batch: Any, count: int, ended: np.ndarray, are_cut: np.ndarray) -> None:
    """Append `count` samples together with the episodes [start, stop) that end with them, some of which are cut.

    `ReplayBuffer.extend` would make one episode of every batch.
    """
    ranges = [(start, stop) for start, stop in ended.tolist()]
    buffer._locked(buffer._writer.extend_episodes, batch, count, ranges, are_cut.tolist())


# -- storages ------------------------------------------------------------------------------------------------


def open_storage(folder: Path, metadata: Metadata, backend: ComputeBackend, *, accept_damaged: bool) -> RowStorage:
    """Open the storage of a folder for reading, also after a kill, or with damaged or shortened files."""
    path, space = contained(folder, metadata.storage_path), read_space(folder, metadata, backend, None)
    options: Any = {"accept_unclean": True, "accept_damaged": accept_damaged, "read_only": True}
    storage_cls = storage_by_name(metadata.storage, folder / FILE_NAME)
    return rows_of(storage_cls.load_from(path, space, capacity=metadata.capacity, **options))


def storage_parts(storage: RowStorage) -> Iterator[RowStorage]:
    """The storages that a composed storage consists of, or the storage itself; each has all slots."""
    if isinstance(storage, ComposedStorage):
        for part in storage.parts:
            yield from storage_parts(part)
    else:
        yield storage


def unplaced_damage(storage: RowStorage) -> list[str]:
    """Sentences for damage that cannot be located by checksums of rows or by reading them."""
    is_located = isinstance(storage, PackedStorage) or storage.has_row_sums or storage.checks_when_read
    return [] if is_located else storage.verify()


def without_checksum(storage: RowStorage, count: int) -> str:
    """The sentence for samples without a checksum."""
    return f"{storage.cache_filename}: {count:,} samples have no checksum, so damage to them cannot be detected"


class RowFiles(NamedTuple):
    """The files of packed rows: row files with the bytes of a row, the names of other files, bytes of the heap."""

    rows: dict[str, int]
    others: set[str]
    heap_bytes: int


def row_files(storage: RowStorage) -> RowFiles | None:
    """The files that packed rows should have; None for a storage of another kind."""
    if not isinstance(storage, PackedStorage):
        return None
    layout, heap = storage.layout, Path(str(storage.cache_filename), "heap.bin")
    is_old = (heap.parent / BLOCKS_FILE).exists() and not (heap.parent / SUMS_FILE).exists()
    others = {BLOCKS_FILE if is_old else SUMS_FILE, *([heap.name] if layout.has_heap else [])}
    if isinstance(storage, ImageStorage):
        others.add(IMAGE_METADATA)
    heap_bytes = heap.stat().st_size if layout.has_heap and heap.exists() else 0
    return RowFiles({name: dtype.itemsize for name, dtype in file_parts(layout)}, others, heap_bytes)


def checksum_counts(storage: RowStorage) -> tuple[int, int]:
    """How many packed rows have a checksum, and how many do not match theirs."""
    if not isinstance(storage, PackedStorage):
        return 0, 0
    wrong = sum(stop - start for start, stop in storage.find_wrong())
    return storage.count_checked(), wrong


# -- counters --------------------------------------------------------------------------------------------------


class Counters(NamedTuple):
    """The counters of a header: samples [tail, head) by number, the number in slot 0, and the records of episodes.

    `sizes` are the rows, the bytes of the heap and the records of episodes at a clean close; None after any other end.
    `flushed` is the first sample that a power cut may have damaged, if any.
    """

    head: int
    tail: int
    base: int
    segments: int
    sizes: tuple[int, int, int] | None = None
    flushed: int | None = None


def read_counters(path: Path, storage: RowStorage, notes: list[str]) -> Counters | None:
    """The counters of a header, or of its newest sound copy; None if neither is sound."""
    try:
        header = MappedHeader.open(path, writable=False)
    except StorageCorruptedError:
        return _read_copy(path)
    if header.closed_sizes is None and not storage.survives_kill:
        return _flushed(path, header, notes)
    counters = _plausible(header.counters, header.closed_sizes)
    if counters is None or not header.is_of_another_boot:
        return counters
    try:
        return counters._replace(flushed=header.newest_half().head)
    except StorageCorruptedError:
        return counters._replace(flushed=0)


def _flushed(path: Path, header: MappedHeader, notes: list[str]) -> Counters | None:
    """The counters of the flushed samples, which are all that a storage without kill safety still has."""
    live = header.counters
    try:
        flushed = header.newest_half()
    except StorageCorruptedError:
        return None
    if (live.base, live.edit) != (flushed.base, flushed.edit):
        raise StorageCorruptedError(
            f"{path.parent}: its writer was killed after it had removed or changed samples and before the next flush, "
            f"so the place of its samples is unknown"
        )
    if live.head > flushed.head:
        notes.append(f"{live.head - flushed.head} samples were not flushed when the writer was killed")
    flushed.tail = min(max(flushed.tail, live.tail), flushed.head)
    return _plausible(flushed)


def _read_copy(path: Path) -> Counters | None:
    page = MappedFile.create(None, np.uint8, PAGE_SIZE)  # a copy: the file may be short, and must not change
    try:
        content = _content(path)[:PAGE_SIZE]
        page.map(PAGE_SIZE)[: len(content)] = np.frombuffer(content, np.uint8)
        return _plausible(MappedHeader(page).newest_half())
    except StorageCorruptedError:
        return None


def _plausible(counters: HeaderCounters, sizes: tuple[int, int, int] | None = None) -> Counters | None:
    head, tail, base, segments = counters.head, counters.tail, counters.base, counters.segments
    return Counters(head, tail, base, segments, sizes) if 0 <= base <= tail <= head and segments >= 0 else None


# -- records of episodes ---------------------------------------------------------------------------------------


def read_records(path: Path) -> np.ndarray:
    """The records in a file of episodes; damaged records are zeros."""
    content = _content(path)
    records = np.frombuffer(content[: len(content) // _RECORD.itemsize * _RECORD.itemsize], _RECORD).copy()
    for index, record in enumerate(records.tolist()):
        if not is_sound(*record):
            records[index] = 0
    return records


def counters_from_records(records: np.ndarray, lanes: int) -> Counters | None:
    """The counters of a growing buffer, derived from its episodes; None if the first samples' records are lost."""
    known = np.flatnonzero(
        (records["number"] & NUMBER_BITS == np.arange(len(records)) & NUMBER_BITS) & (records["stop"] > 0)
    )
    # the first episode of a lane begins with the first samples, unless these were removed
    if not len(known) or records["start"][known].min() >= lanes:
        return None
    return Counters(int(records["stop"][known].max()), 0, 0, int(known[-1]) + 1)


def closed_episodes(records: np.ndarray, counters: Counters, metadata: Metadata) -> tuple[np.ndarray, np.ndarray, int]:
    """The closed episodes with samples, as [start, stop) in sample numbers; the stops of the cut ones; lost records."""
    ring = None if metadata.capacity is None else metadata.capacity + _SLACK
    # older records have no samples left, and their places may hold records that are not valid yet
    oldest = 0 if metadata.capacity is None else max(0, counters.segments - metadata.capacity - 1)
    numbers = np.arange(oldest, counters.segments)
    slots = numbers if ring is None else numbers % ring
    present = slots < len(records)
    start, stop = records["start"][slots[present]], records["stop"][slots[present]]
    is_valid = (records["number"][slots[present]] & NUMBER_BITS == numbers[present] & NUMBER_BITS) & (stop > 0)
    has_samples = is_valid & (stop <= counters.head) & (stop > np.maximum(start, counters.tail))
    start = np.where(start < counters.tail, counters.tail + start % metadata.lanes, start)
    closed = np.stack([start, stop], axis=1)[has_samples].astype(np.int64)
    is_cut = (records["number"][slots[present]] > NUMBER_BITS)[has_samples]
    return closed, closed[is_cut, 1], len(numbers) - int(is_valid.sum())


def _content(path: Path) -> bytes:
    try:
        fd = open_regular(path, writable=False)
    except StorageCorruptedError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read()
