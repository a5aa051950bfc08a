"""The inside of buffers and of their folders, for `check` and `repair`.

Of an open buffer: the slots of its samples, its checksums, the records of its episodes. Of a folder that does not open
as usual: the counters in its header, the records of episodes, the files of packed rows.
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
#: The files of a buffer beside its storage: what it is, its counters, its episodes.
METADATA_FILE, HEADER_FILE, EPISODE_FILE = FILE_NAME, HEADER, SEGMENT_FILE


# -- a buffer that is open -----------------------------------------------------------------------------------


def is_being_written(folder: Path) -> bool:
    """Whether a process has the right to write to the buffer in this folder."""
    return is_locked(folder / LOCK)


def slots_of(buffer: ReplayBuffer, numbers: np.ndarray) -> np.ndarray:
    """The slots of samples by their numbers, which count from the first sample ever written."""
    return buffer._state.slots(numbers)


def episode_problems(buffer: ReplayBuffer) -> list[str]:
    """What is wrong with the episodes' records of a buffer on disk, and what of it is kept out of reads."""
    state = buffer._state
    if state.folder is None:
        return []
    return [*state.findings, *state.segments.verify(closed=not is_being_written(state.folder))]


def wait_for_edit(buffer: ReplayBuffer) -> None:
    """Wait for a writer that changes samples in place; a StorageCorruptedError if it was killed meanwhile."""
    buffer._state.wait_for_edit()


def lost_checksums(buffer: ReplayBuffer) -> list[str]:
    """Which files lack checksums of samples, where `verify` of the buffer does not say so."""
    state, numbers = buffer._state, np.asarray(buffer.sample_numbers)
    if state.storage.has_row_sums:
        return []
    lost, slots = [], state.slots(numbers)
    for part in storage_parts(state.storage):
        count = int((part.check_rows(slots, numbers) == ROW_UNKNOWN).sum())
        if count:
            lost.append(without_checksum(part, count))
    return lost


def add_samples(buffer: ReplayBuffer, batch: Any, count: int, ended: np.ndarray, are_cut: np.ndarray) -> None:
    """Append `count` samples together with the episodes [start, stop) that end with them, some of which are cut.

    `ReplayBuffer.extend` would make one episode of every batch.
    """
    ranges = [(start, stop) for start, stop in ended.tolist()]
    buffer._locked(buffer._writer.extend_episodes, batch, count, ranges, are_cut.tolist())


# -- storages ------------------------------------------------------------------------------------------------


def open_storage(folder: Path, metadata: Metadata, backend: ComputeBackend, *, accept_damaged: bool) -> RowStorage:
    """The storage of a folder, to read, also where its writer was killed, or files of it are damaged or cut."""
    path, space = contained(folder, metadata.storage_path), read_space(folder, metadata, backend, None)
    options: Any = {"accept_unclean": True, "accept_damaged": accept_damaged, "read_only": True}
    storage_cls = storage_by_name(metadata.storage, folder / FILE_NAME)
    return rows_of(storage_cls.load_from(path, space, capacity=metadata.capacity, **options))


def storage_parts(storage: RowStorage) -> Iterator[RowStorage]:
    """The storages that one is made of, each of which has all of its slots; or it alone."""
    if isinstance(storage, ComposedStorage):
        for part in storage.parts:
            yield from storage_parts(part)
    else:
        yield storage


def unplaced_damage(part: RowStorage) -> list[str]:
    """Damage, in words, that neither ranges of slots nor reading them tell."""
    is_told = isinstance(part, PackedStorage) or part.has_row_sums or part.checks_when_read
    return [] if is_told else part.verify()


def without_checksum(part: RowStorage, count: int) -> str:
    """That samples have no checksum, in words."""
    return f"{part.cache_filename}: {count:,} samples have no checksum, damage to them cannot be told"


class RowFiles(NamedTuple):
    """The files of packed rows: those with rows, each with the bytes of one, and the names of the others."""

    rows: dict[str, int]
    others: set[str]
    heap_bytes: int


def row_files(storage: RowStorage) -> RowFiles | None:
    """The files that packed rows should have, and the bytes of the heap there is; None of a storage of another kind."""
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
    """How many rows of packed rows have a checksum, and how many of these do not match."""
    if not isinstance(storage, PackedStorage):
        return 0, 0
    wrong = sum(stop - start for start, stop in storage.find_wrong())
    return storage.count_checked(), wrong


# -- counters --------------------------------------------------------------------------------------------------


class Counters(NamedTuple):
    """What a header says: samples [tail, head) by number, the number in slot 0, and how many episodes count.

    `sizes` are the rows, the bytes of the heap and the records of episodes that the files had when they were closed in
    order; None if they were not. `flushed` is where the samples begin that a power cut may have taken, if any.
    """

    head: int
    tail: int
    base: int
    segments: int
    sizes: tuple[int, int, int] | None = None
    flushed: int | None = None


def read_counters(path: Path, storage: RowStorage, notes: list[str]) -> Counters | None:
    """What the header says, or its newest copy that is sound; None if there is none."""
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
    """What was flushed and not overwritten since: a storage that does not survive a kill has no more."""
    live = header.counters
    try:
        flushed = header.newest_half()
    except StorageCorruptedError:
        return None
    if (live.base, live.edit) != (flushed.base, flushed.edit):
        raise StorageCorruptedError(
            f"{path.parent}: its writer was killed after it had removed or changed samples and before the next flush, "
            f"so which samples are where cannot be told"
        )
    if live.head > flushed.head:
        notes.append(f"{live.head - flushed.head} samples were not flushed when the writer was killed")
    flushed.tail = min(max(flushed.tail, live.tail), flushed.head)
    return _plausible(flushed)


def _read_copy(path: Path) -> Counters | None:
    page = MappedFile.create(None, np.uint8, PAGE_SIZE)  # in memory: the file may be shorter, and must not change
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
    """The records of a file of episodes, each where it lies; those that do not match their checksum are zeros."""
    content = _content(path)
    records = np.frombuffer(content[: len(content) // _RECORD.itemsize * _RECORD.itemsize], _RECORD).copy()
    for index, record in enumerate(records.tolist()):
        if not is_sound(*record):
            records[index] = 0
    return records


def counters_from_records(records: np.ndarray, lanes: int) -> Counters | None:
    """Counters of a buffer that grows for which its episodes speak; None if these do not say where samples lie."""
    known = np.flatnonzero(
        (records["number"] & NUMBER_BITS == np.arange(len(records)) & NUMBER_BITS) & (records["stop"] > 0)
    )
    # the first episode of a lane begins with the first samples, unless these were removed
    if not len(known) or records["start"][known].min() >= lanes:
        return None
    return Counters(int(records["stop"][known].max()), 0, 0, int(known[-1]) + 1)


def closed_episodes(records: np.ndarray, counters: Counters, metadata: Metadata) -> tuple[np.ndarray, np.ndarray, int]:
    """The closed episodes that have samples, as [start, stop) of sample numbers.

    With them where those stop that were cut, and how many records are lost.
    """
    ring = None if metadata.capacity is None else metadata.capacity + _SLACK
    # older records speak of no sample that is left, and their slots may hold others that do not count yet
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
