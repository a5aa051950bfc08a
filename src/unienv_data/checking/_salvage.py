"""Salvage: reading the sound samples of a damaged recording.

A folder that does not open normally still needs a description of its samples (metadata.json), its own or of a similar
recording, a sound copy of the counters (header.bin) or episodes to derive them from, and a storage that opens. All
other files may be missing; notes report the consequences.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base.files import did_you_mean_path, local_path
from ..base.row_storage import ROW_UNKNOWN, ROW_WRONG, RowStorage, rows_of
from ..base.storage import StorageCorruptedError
from ..replay_buffer import ReplayBuffer, inspection
from ..replay_buffer.inspection import EPISODE_FILE, HEADER_FILE, METADATA_FILE, Counters, Metadata, Ranges
from ..storages.columns import ColumnRule, column_rules
from .reading import (
    as_ranges,
    episode_table,
    in_one_line,
    is_damage,
    open_whole,
    rows_of_size,
    rows_per_chunk,
    table_of,
    tensor_backend,
)

_DAMAGED = "the bytes on disk differ from the written ones"
_ABSENT = "the files do not contain them"
_NOT_WRITTEN = "written after the last flush, without a checksum on disk"


@dataclass
class Salvage:
    """The samples of a recording by position from 0 to `count`, and the known facts about them.

    `episodes` has the known episodes, closed or not (None if the recording keeps no episodes), and `gaps` the samples
    between them. `endless_stops` has the stops of episodes whose end was not recorded. `is_lost` marks lost samples,
    `lost` has the reasons, `notes` further remarks. Samples with the same number in `blocks` can be read all together
    or not at all. With `shares_next_obs` each observation is stored once.
    """

    space: Space
    count: int
    stride: int
    rows_at_once: int
    read: Callable[[np.ndarray], Any]
    close: Callable[[], None]
    episodes: np.ndarray | None
    gaps: np.ndarray
    blocks: np.ndarray = field(repr=False)
    is_lost: np.ndarray = field(repr=False)
    columns: Mapping[str, ColumnRule] = field(default_factory=dict)  # columns stored as images or video
    endless_stops: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shares_next_obs: bool = False

    def lose(self, mask: np.ndarray, reason: str) -> None:
        """Mark the samples of a mask as lost, with the reason, unless they are marked already."""
        new = mask & ~self.is_lost
        for start, stop in runs(new):
            subject = f"sample {start}" if stop - start == 1 else f"samples {start} to {stop - 1}"
            self.lost.append(f"{subject}: {reason}")
        self.is_lost |= new

    def lose_damaged(
        self, storage: RowStorage, slots: np.ndarray, numbers: np.ndarray, flushed: int | None = None
    ) -> None:
        """Mark samples as lost whose row does not match its checksum, or is missing.

        `slots` and `numbers` are the slot and the number of each sample. Samples from number `flushed` on, and their
        checksums, may not have reached the disk.
        """
        for inner in inspection.storage_parts(storage):
            self.lose(_in_ranges(slots, inner.absent_slots(), len(inner)), _ABSENT)
            states = inner.check_rows(slots, numbers)
            self.lose(states == ROW_WRONG, _DAMAGED)
            if flushed is not None and inner.has_row_sums:
                self.lose((states == ROW_UNKNOWN) & (numbers >= flushed), _NOT_WRITTEN)
            unchecked = (states == ROW_UNKNOWN) & ~self.is_lost
            if unchecked.any():
                self.notes.append(inspection.without_checksum(inner, int(unchecked.sum())))
            self.notes += inspection.unplaced_damage(inner)


def runs(mask: np.ndarray) -> Ranges:
    """Return the ranges [start, stop) in which a mask is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _in_ranges(slots: np.ndarray, ranges: Ranges, length: int) -> np.ndarray:
    """Return which slots, of a storage with `length` slots, are in any of the ranges [start, stop)."""
    inside = np.zeros(length + 1, bool)  # one more, for slots behind the end
    for start, stop in ranges:
        inside[start:stop] = True
    return inside[np.minimum(slots, length)]


def salvage(path: Path, like: Path | None = None) -> Salvage:
    """Open a damaged recording; a StorageCorruptedError if no samples can be read.

    If its description cannot be read, the description of the recording `like` is used.
    """
    if not local_path(path).is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder{did_you_mean_path(path)}")
    if not (path / METADATA_FILE).exists():
        return _of_folder(path, f"{path / METADATA_FILE}: the file is missing", like)
    try:
        buffer = open_whole(path)
    except Exception as error:
        if not is_damage(error) or isinstance(error, inspection.UnfinishedEditError):
            raise  # samples of a half-finished removal would look sound
        return _of_folder(path, in_one_line(error), like)
    problems = inspection.episode_problems(buffer)
    if problems:
        buffer.close()
        return _of_folder(path, problems[0], like)  # uses the sound records of episodes
    return _of_buffer(buffer)


def _of_buffer(buffer: ReplayBuffer) -> Salvage:
    present, table = buffer.sample_numbers, episode_table(buffer)
    numbers = np.arange(present.start, present.stop)
    slots, storage = inspection.slots_of(buffer, numbers), rows_of(buffer.storage)
    salvaged = Salvage(
        space=buffer.single_space,
        count=len(numbers),
        stride=buffer.lanes,
        rows_at_once=rows_per_chunk(buffer),
        read=buffer.get_at,
        close=buffer.close,
        shares_next_obs=storage.shares_next_obs,
        episodes=None if table is None else table.all,
        endless_stops=as_ranges([])[:, 1] if table is None else table.endless_stops,
        gaps=as_ranges([]) if table is None else table.gaps,
        blocks=slots // storage.slots_read_as_one,
        is_lost=np.zeros(len(numbers), bool),
        columns=column_rules(storage),
    )
    salvaged.lose_damaged(storage, slots, numbers)
    return salvaged


# -- a folder that does not open normally ----------------------------------------------------------------------


def _of_folder(path: Path, trouble: str, like: Path | None) -> Salvage:
    """Open a folder that does not open normally because of `trouble`."""
    notes = [trouble]
    metadata, described_by = _description(path, like, notes)
    storage = _open_storage(path, metadata, described_by)
    try:
        records = inspection.read_records(path / EPISODE_FILE)
        counters = inspection.read_counters(path / HEADER_FILE, storage, notes)
        if counters is None:
            counters = _guess_counters(path, metadata, records, notes)
        if described_by is not None:
            _refuse_misfit(path, described_by, metadata, storage, counters, notes)
    except BaseException:
        storage.close()
        raise
    return _of_storage(storage, metadata, counters, records, notes)


def _of_storage(
    storage: RowStorage, metadata: Metadata, counters: Counters, records: np.ndarray, notes: list[str]
) -> Salvage:
    numbers = np.arange(counters.tail, counters.head)
    slots = numbers - counters.base
    if metadata.capacity is not None:
        slots %= metadata.capacity + storage.spare_slots
    episodes, gaps = None, as_ranges([])
    endless_stops = gaps[:, 1]
    if metadata.maintains_segments:
        closed, cut_stops, lost = inspection.closed_episodes(records, counters, metadata)
        table = table_of(closed - counters.tail, len(numbers), metadata.lanes, cut_stops - counters.tail)
        episodes, endless_stops, gaps = table.all, table.endless_stops, table.gaps
        if lost:  # an apparently unfinished episode may be several episodes with lost records
            episodes, gaps = table.closed, np.concatenate([table.gaps, table.unfinished])
            notes.append(f"{EPISODE_FILE}: {lost:,} of {counters.segments:,} records of episodes are lost")
    space = storage.single_instance_space
    salvaged = Salvage(
        space=space,
        count=len(numbers),
        stride=metadata.lanes,
        rows_at_once=rows_of_size(RowLayout(space).nbytes),
        read=lambda positions: storage.gather(slots[positions], storage.slots_there),
        close=storage.close,
        shares_next_obs=storage.shares_next_obs,
        episodes=episodes,
        endless_stops=endless_stops,
        gaps=gaps,
        blocks=slots // storage.slots_read_as_one,
        is_lost=np.zeros(len(numbers), bool),
        columns=column_rules(storage),
        notes=notes,
    )
    salvaged.lose(slots >= storage.slots_there, "the files end before them")
    salvaged.lose_damaged(storage, slots, numbers, counters.flushed)
    return salvaged


def _description(path: Path, like: Path | None, notes: list[str]) -> tuple[Metadata, Path | None]:
    """Return the folder's metadata and None, or else the metadata of the recording `like` and its path."""
    try:
        metadata = inspection.read_metadata(path)
        inspection.read_space(path, metadata, NumpyComputeBackend, None)
    except StorageCorruptedError as error:
        return _borrowed(path, like, in_one_line(error), notes), like
    if metadata.version == 0:
        raise StorageCorruptedError(
            f"{path} is of the reference implementation's format and cannot be opened: {notes[0]}"
        )
    return metadata, None


def _borrowed(path: Path, like: Path | None, trouble: str, notes: list[str]) -> Metadata:
    """Return the metadata of another recording."""
    if not (path / METADATA_FILE).exists() and not (path / HEADER_FILE).exists():
        raise FileNotFoundError(f"{path}: not a replay buffer, it has neither {METADATA_FILE} nor {HEADER_FILE}")
    if like is None:
        raise StorageCorruptedError(
            f"{path}: nothing can be read without a sound {METADATA_FILE}, which describes the samples ({trouble}); "
            f"if you have another recording that was made in the same way, give it with --like (in Python: like=)"
        )
    notes[:] = [trouble, f"the description of the samples was taken from {like}"]
    try:
        metadata = inspection.read_metadata(like)
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"like {like}: it has no sound {METADATA_FILE} either, {in_one_line(error)}") from error
    if metadata.version == 0:
        raise ValueError(f"like {like}: it has the format of the reference implementation, which has no header")
    return metadata


def _open_storage(path: Path, metadata: Metadata, described_by: Path | None) -> RowStorage:
    """Open the storage, on NumPy unless it needs PyTorch; a StorageCorruptedError if it does not open.

    With the description of another recording it must be complete, since only its sizes tell whether the description
    fits; sizes of packed rows are compared later.
    """
    accept_damaged = described_by is None or metadata.storage == "packed"
    for backend in (NumpyComputeBackend, tensor_backend(metadata.storage)):
        if backend is None:
            continue
        try:
            return inspection.open_storage(path, metadata, backend, accept_damaged=accept_damaged)
        except (ValueError, RecursionError) as error:  # storages may be nested
            trouble = in_one_line(error)
    way_out = "if you have an older copy of that file, put it there and repair the folder again"
    if described_by is not None:
        way_out = f"so it does not fit {described_by}: give a recording that was made in the same way"
    raise StorageCorruptedError(f"{path}: nothing can be read, the storage does not open: {trouble}; {way_out}")


def _guess_counters(path: Path, metadata: Metadata, records: np.ndarray, notes: list[str]) -> Counters:
    """Derive the counters from the episodes; a StorageCorruptedError for a ring, whose order is unknown."""
    counters = None if metadata.capacity is not None else inspection.counters_from_records(records, metadata.lanes)
    if counters is None:
        raise StorageCorruptedError(
            f"{path / HEADER_FILE}: no copy of the counters is sound, so the order of the samples is lost"
        )
    notes.append(
        f"{path / HEADER_FILE}: no copy of the counters is sound; samples up to the last of the {counters.segments:,} "
        f"episodes in {EPISODE_FILE} count as recorded, and these may be older than the samples if any were removed"
    )
    return counters


# -- check of the description of another recording --------------------------------------------------------------


def _refuse_misfit(
    path: Path, like: Path, metadata: Metadata, storage: RowStorage, counters: Counters, notes: list[str]
) -> None:
    """Raise a ValueError if anything in the folder contradicts the description taken from another folder."""
    wrong = (
        _counters_misfit(path / HEADER_FILE, metadata, storage, counters)
        or _files_misfit(storage, metadata, counters)
        or _checksum_misfit(storage, notes)
    )
    if wrong is not None:
        raise ValueError(f"{wrong}; so {path} does not fit {like}: give a recording that was made in the same way")
    notes.append("the description was compared by sizes only: columns of equal size may have another meaning")


def _counters_misfit(header: Path, metadata: Metadata, storage: RowStorage, counters: Counters) -> str | None:
    used, lanes = counters.head - counters.base, metadata.lanes
    if any(number % lanes for number in (counters.head, counters.tail, counters.base)):
        return f"{header}: head {counters.head} and tail {counters.tail} are no multiples of {lanes} lanes"
    if metadata.capacity is None and used > len(storage):
        return f"{header}: {used} samples, {storage.cache_filename} has {len(storage)} slots; it may be a ring, or cut"
    if metadata.capacity is not None and counters.head - counters.tail > metadata.capacity:
        return f"{header}: {counters.head - counters.tail} samples, the capacity is {metadata.capacity}"
    return None


def _files_misfit(storage: RowStorage, metadata: Metadata, counters: Counters) -> str | None:
    """Describe a misfit of the files of packed rows; None for other storages, which compare files when they open."""
    files = inspection.row_files(storage)
    if files is None:
        return None
    folder = Path(str(storage.cache_filename))
    wanted = files.rows.keys() | files.others
    for name in sorted(wanted ^ set(os.listdir(folder))):
        return f"{folder / name}: the file is {'missing' if name in wanted else 'not part of the storage'}"
    rows = metadata.capacity if counters.sizes is None else counters.sizes[0]
    if metadata.capacity not in (None, rows):
        return f"{folder.parent / HEADER_FILE}: {rows} slots, the capacity is {metadata.capacity}"
    for name, itemsize in files.rows.items():
        nbytes = (folder / name).stat().st_size
        if nbytes % max(1, itemsize) or (rows is not None and nbytes != rows * itemsize):
            number = "a whole number of" if rows is None else str(rows)
            return f"{folder / name}: {nbytes} bytes, it must have {number} rows of {itemsize} bytes"
    if counters.sizes is not None and files.heap_bytes != counters.sizes[1]:
        return f"{folder / 'heap.bin'}: {files.heap_bytes} bytes, it must have {counters.sizes[1]}"
    return None


def _checksum_misfit(storage: RowStorage, notes: list[str]) -> str | None:
    if inspection.row_files(storage) is None:
        return None
    checksums, wrong = inspection.checksum_counts(storage)
    if checksums and wrong == checksums:
        return f"{storage.cache_filename}: none of {checksums} checksums matches"
    if not checksums:
        notes.append(f"{storage.cache_filename}: no checksums to test whether the description fits")
    return None
