"""Opening a folder of which some files are damaged, cut or gone.

The description (metadata.json) says what a sample is, so without it another recording has to. Of the counters
(header.bin) there are copies with checksums. The storage must open, as far as it is left. Everything else can be done
without, at a price that is told.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.row_layout import RowLayout

from ..base.files import contained, open_regular
from ..base.mapped import MappedFile
from ..base.storage import SpaceStorage, StorageCorruptedError
from ..replay_buffer import _counters
from ..replay_buffer._counters import PAGE_SIZE, MappedHeader
from ..replay_buffer._metadata import FILE_NAME, Metadata, read_metadata, read_space
from ..replay_buffer._segments import _RECORD, _SLACK, is_sound
from ..replay_buffer._state import HEADER, SEGMENT_FILE
from ..storages.registry import storage_by_name
from ._episodes import as_ranges, table_of
from ._errors import CommandError, in_one_line
from ._likeness import Counters, borrow_metadata, refuse_misfit
from ._reading import CHUNK_BYTES, MOST_ROWS, tensor_backend
from ._salvage import Salvage, mark_damage


def salvage_folder(path: Path, trouble: str, like: Path | None) -> Salvage:
    """Open a folder that cannot be opened as usual because of `trouble`."""
    notes = [trouble]
    metadata, lender = _description(path, like, notes)
    storage = _open_storage(path, metadata, lender)
    try:
        records = _valid_records(path / SEGMENT_FILE)
        counters = _read_counters(path / HEADER, storage, notes) or _guess_counters(path, metadata, records, notes)
        if lender is not None:
            refuse_misfit(path, lender, metadata, storage, counters, notes)
    except BaseException:
        storage.close()
        raise
    return _found(storage, metadata, counters, records, notes)


def _found(
    storage: SpaceStorage, metadata: Metadata, counters: Counters, records: np.ndarray, notes: list[str]
) -> Salvage:
    numbers = np.arange(counters.tail, counters.head)
    slots = numbers - counters.base
    if metadata.capacity is not None:
        slots %= metadata.capacity
    episodes, loose = None, as_ranges([])
    if metadata.maintains_segments:
        closed, lost = _closed(records, counters, metadata)
        table = table_of(closed - counters.tail, len(numbers), metadata.lanes)
        episodes, loose = table.all, table.loose
        if lost:  # what looks like an episode that was never closed may be those that these speak of
            episodes, loose = table.closed, np.concatenate([table.loose, table.unfinished])
            notes.append(f"{SEGMENT_FILE}: {lost:,} of {counters.segments:,} records of episodes are lost")
    space = storage.single_instance_space
    found = Salvage(
        space=space,
        count=len(numbers),
        stride=metadata.lanes,
        rows_at_once=min(max(CHUNK_BYTES // RowLayout(space).nbytes, 1), MOST_ROWS),
        read=lambda positions: storage.get(slots[positions]),
        close=storage.close,
        episodes=episodes,
        loose=loose,
        blocks=slots // storage.slots_read_as_one,
        is_lost=np.zeros(len(numbers), bool),
        notes=notes,
    )
    found.lose(slots >= len(storage), "the files end before them")
    mark_damage(found, storage, slots)
    return found


def _description(path: Path, like: Path | None, notes: list[str]) -> tuple[Metadata, Path | None]:
    """What the folder says about its samples, or else the other recording; in that case with the path of that."""
    try:
        metadata = read_metadata(path)
        read_space(path, metadata, NumpyComputeBackend, None)
    except StorageCorruptedError as error:
        return _borrowed(path, like, in_one_line(error), notes), like
    if metadata.version == 0:
        raise CommandError(f"{path} is of the reference implementation's format and cannot be opened: {notes[0]}")
    return metadata, None


def _borrowed(path: Path, like: Path | None, trouble: str, notes: list[str]) -> Metadata:
    if not (path / FILE_NAME).exists() and not (path / HEADER).exists():
        raise CommandError(f"{path}: not a replay buffer, it has neither {FILE_NAME} nor {HEADER}")
    if like is None:
        raise CommandError(
            f"{path}: nothing can be read without a sound {FILE_NAME}, which says what a sample is ({trouble}); if "
            f"there is another recording that was made in the same way, give it with --like"
        )
    notes[:] = [trouble, f"what a sample is was taken from {like}"]
    return borrow_metadata(like)


def _open_storage(path: Path, metadata: Metadata, lender: Path | None) -> SpaceStorage:
    """What is left of the storage, on NumPy unless it wants PyTorch; a CommandError if it does not open.

    By a description that was taken from another folder, it must be whole, for its sizes have to tell whether they fit;
    those of packed rows are looked at later.
    """
    options = {"accept_unclean": True, "accept_damaged": lender is None or metadata.storage == "packed"}
    for backend in (NumpyComputeBackend, tensor_backend(metadata.storage)):
        if backend is None:
            continue
        try:
            place, space = contained(path, metadata.storage_path), read_space(path, metadata, backend, None)
            cls = storage_by_name(metadata.storage)
            return cls.load_from(place, space, capacity=metadata.capacity, read_only=True, **options)
        except (ValueError, RecursionError) as error:  # storages may lie in storages
            trouble = in_one_line(error)
    way_out = "if there is a copy of that file from before, put it there and repair the folder again"
    if lender is not None:
        way_out = f"so it does not fit {lender}: give a recording that was made in the same way"
    raise CommandError(f"{path}: nothing can be read, the storage does not open: {trouble}; {way_out}")


# -- counters ----------------------------------------------------------------------------------------------


def _read_counters(path: Path, storage: SpaceStorage, notes: list[str]) -> Counters | None:
    """What the header says, or its newest copy that is sound; None if there is none."""
    try:
        header = MappedHeader.open(path, writable=False)
    except StorageCorruptedError:
        return _read_copy(path)
    if header.closed_sizes is None and not storage.survives_kill:
        return _flushed(path, header, notes)
    return _checked(header.counters, header.closed_sizes)


def _flushed(path: Path, header: MappedHeader, notes: list[str]) -> Counters | None:
    """Of a storage that a kill of its writer leaves as it was flushed: what was flushed and not overwritten since."""
    live = header.counters
    try:
        kept = header.newest_half()
    except StorageCorruptedError:
        return None
    if (live.base, live.edit) != (kept.base, kept.edit):
        raise CommandError(
            f"{path.parent}: its writer was killed after it had removed or changed samples and before the next flush, "
            f"so which samples are where cannot be told"
        )
    if live.head > kept.head:
        notes.append(f"{live.head - kept.head} samples were not flushed when the writer was killed")
    kept.tail = min(max(kept.tail, live.tail), kept.head)
    return _checked(kept)


def _read_copy(path: Path) -> Counters | None:
    page = MappedFile.create(
        None, np.uint8, PAGE_SIZE
    )  # a page of its own: the file may be shorter, and is not to change
    try:
        present = _content(path)[:PAGE_SIZE]
        page.map(PAGE_SIZE)[: len(present)] = np.frombuffer(present, np.uint8)
        return _checked(MappedHeader(page).newest_half())
    except StorageCorruptedError:
        return None


def _checked(found: _counters.Counters, sizes: tuple[int, int, int] | None = None) -> Counters | None:
    head, tail, base, segments = found.head, found.tail, found.base, found.segments
    return Counters(head, tail, base, segments, sizes) if 0 <= base <= tail <= head and segments >= 0 else None


def _guess_counters(path: Path, metadata: Metadata, records: np.ndarray, notes: list[str]) -> Counters:
    """Counters for which the episodes speak; a CommandError if they do not say where samples lie."""
    known = np.flatnonzero((records["number"] == np.arange(len(records)) & 0xFFFFFFFF) & (records["stop"] > 0))
    # the first episode of a lane begins with the first samples, unless these were removed
    if metadata.capacity is not None or not len(known) or records["start"][known].min() >= metadata.lanes:
        raise CommandError(f"{path / HEADER}: no copy of the counters is sound, so the order of the samples is lost")
    notes.append(
        f"{path / HEADER}: no copy of the counters is sound; what counts as recorded are samples up to the last of the "
        f"{len(known):,} episodes in {SEGMENT_FILE}, which may be older than the samples if any were removed"
    )
    return Counters(int(records["stop"][known].max()), 0, 0, int(known[-1]) + 1)


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
    for place, record in enumerate(records.tolist()):
        if not is_sound(*record):
            records[place] = 0
    return records


def _closed(records: np.ndarray, counters: Counters, metadata: Metadata) -> tuple[np.ndarray, int]:
    """The closed episodes that have samples, as [start, stop) of sample numbers, and how many records are lost."""
    ring = None if metadata.capacity is None else metadata.capacity + _SLACK
    # of those before, no sample is left, and their places may have others that do not count yet
    oldest = 0 if metadata.capacity is None else max(0, counters.segments - metadata.capacity - 1)
    numbers = np.arange(oldest, counters.segments)
    places = numbers if ring is None else numbers % ring
    present = places < len(records)
    found = records[places[present]]
    is_there = (found["number"] == numbers[present] & 0xFFFFFFFF) & (found["stop"] > 0)
    lost = len(numbers) - int(is_there.sum())
    alive = is_there & (found["stop"] <= counters.head)
    found = found[alive & (found["stop"] > np.maximum(found["start"], counters.tail))]
    starts, lane = found["start"], found["start"] % metadata.lanes
    starts = np.where(starts < counters.tail, counters.tail + lane, starts)
    return np.stack([starts, found["stop"]], axis=1).astype(np.int64), lost
