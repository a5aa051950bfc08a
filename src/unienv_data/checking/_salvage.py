"""Salvage: reading what is left of a recording, whatever happened to its files.

Of a folder that does not open as usual, the description (metadata.json) says what a sample is, so without it another
recording has to. Of the counters (header.bin) there are copies with checksums. The storage must open, as far as it is
left. Everything else can be done without, at a price that the notes tell.
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

_DAMAGED = "the bytes on disk are not those that were written"
_ABSENT = "there is nothing on disk for them"
_NOT_WRITTEN = "written after the last flush, and they have no checksum on disk"


@dataclass
class Salvage:
    """Samples by position from 0 to `count`, and what is known about them.

    `episodes` has those that are known, closed or not, and `gaps` the samples between them; None where episodes are
    not kept. `endless_stops` is where those stop whose end was not recorded. `lost` says why samples cannot be had,
    `is_lost` which ones; `notes` what else there is to know.
    Samples with the same number in `blocks` can all be read, or none of them can. With `shares_next_obs` each
    observation is stored once.
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
    columns: Mapping[str, ColumnRule] = field(default_factory=dict)  # those that are kept as images or video
    endless_stops: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shares_next_obs: bool = False

    def lose(self, which: np.ndarray, why: str) -> None:
        """Leave out the samples of a mask, those that are not left out yet."""
        new = which & ~self.is_lost
        for start, stop in runs(new):
            what = f"sample {start}" if stop - start == 1 else f"samples {start} to {stop - 1}"
            self.lost.append(f"{what}: {why}")
        self.is_lost |= new

    def lose_damaged(
        self, storage: RowStorage, slots: np.ndarray, numbers: np.ndarray, flushed: int | None = None
    ) -> None:
        """Leave out what does not match its checksum, unless reading it tells.

        `slots` has where each sample lies, `numbers` which sample it is. Of those from `flushed` on the checksum may
        not have reached the disk, nor the sample.
        """
        for part in inspection.storage_parts(storage):
            length = len(part)
            self.lose(_in_ranges(slots, part.absent_slots(), length), _ABSENT)
            states = part.check_rows(slots, numbers)
            self.lose(states == ROW_WRONG, _DAMAGED)
            if flushed is not None and part.has_row_sums:
                self.lose((states == ROW_UNKNOWN) & (numbers >= flushed), _NOT_WRITTEN)
            unchecked = (states == ROW_UNKNOWN) & ~self.is_lost
            if unchecked.any():
                self.notes.append(inspection.without_checksum(part, int(unchecked.sum())))
            self.notes += inspection.unplaced_damage(part)


def runs(mask: np.ndarray) -> Ranges:
    """The ranges [start, stop) in which a mask is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _in_ranges(slots: np.ndarray, ranges: Ranges, length: int) -> np.ndarray:
    """Which of the slots, of a storage of that length, are in any of the ranges [start, stop)."""
    inside = np.zeros(length + 1, bool)  # one more, for samples that lie behind the end
    for start, stop in ranges:
        inside[start:stop] = True
    return inside[np.minimum(slots, length)]


def salvage(path: Path, like: Path | None = None) -> Salvage:
    """Open a recording for what is sound in it; a StorageCorruptedError if that cannot be told.

    What its description should say is taken from the recording `like`, if it cannot be read.
    """
    if not local_path(path).is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder{did_you_mean_path(path)}")
    if not (path / METADATA_FILE).exists():
        return _of_folder(path, f"{path / METADATA_FILE}: the file is missing", like)
    try:
        buffer = open_whole(path)
    except Exception as error:
        if not is_damage(error) or isinstance(error, inspection.UnfinishedEditError):
            raise  # half of a removal would be kept as if it were right
        return _of_folder(path, in_one_line(error), like)
    problems = inspection.episode_problems(buffer)
    if problems:
        buffer.close()
        return _of_folder(path, problems[0], like)  # which goes by the records of episodes that are sound
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


# -- a folder that does not open as usual ----------------------------------------------------------------------


def _of_folder(path: Path, trouble: str, like: Path | None) -> Salvage:
    """Open a folder that cannot be opened as usual because of `trouble`."""
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
        if lost:  # what looks like an episode that was never closed may be several whose records are lost
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
    """What the folder says about its samples, or else the other recording; in that case with the path of that."""
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
    """The description of another recording."""
    if not (path / METADATA_FILE).exists() and not (path / HEADER_FILE).exists():
        raise FileNotFoundError(f"{path}: not a replay buffer, it has neither {METADATA_FILE} nor {HEADER_FILE}")
    if like is None:
        raise StorageCorruptedError(
            f"{path}: nothing can be read without a sound {METADATA_FILE}, which says what a sample is ({trouble}); if "
            f"there is another recording that was made in the same way, give it with --like (in Python: like=)"
        )
    notes[:] = [trouble, f"what a sample is was taken from {like}"]
    try:
        metadata = inspection.read_metadata(like)
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"like {like}: it has no sound {METADATA_FILE} either, {in_one_line(error)}") from error
    if metadata.version == 0:
        raise ValueError(f"like {like}: it is of the reference implementation's format, which keeps no header")
    return metadata


def _open_storage(path: Path, metadata: Metadata, described_by: Path | None) -> RowStorage:
    """What is left of the storage, on NumPy unless it wants PyTorch; a StorageCorruptedError if it does not open.

    By a description of another recording it must be whole, since its sizes have to tell whether they fit; those of
    packed rows are looked at later.
    """
    accept_damaged = described_by is None or metadata.storage == "packed"
    for backend in (NumpyComputeBackend, tensor_backend(metadata.storage)):
        if backend is None:
            continue
        try:
            return inspection.open_storage(path, metadata, backend, accept_damaged=accept_damaged)
        except (ValueError, RecursionError) as error:  # storages may lie in storages
            trouble = in_one_line(error)
    way_out = "if there is a copy of that file from before, put it there and repair the folder again"
    if described_by is not None:
        way_out = f"so it does not fit {described_by}: give a recording that was made in the same way"
    raise StorageCorruptedError(f"{path}: nothing can be read, the storage does not open: {trouble}; {way_out}")


def _guess_counters(path: Path, metadata: Metadata, records: np.ndarray, notes: list[str]) -> Counters:
    """Counters derived from the episodes; a StorageCorruptedError if these do not show where samples lie."""
    counters = None if metadata.capacity is not None else inspection.counters_from_records(records, metadata.lanes)
    if counters is None:
        raise StorageCorruptedError(
            f"{path / HEADER_FILE}: no copy of the counters is sound, so the order of the samples is lost"
        )
    notes.append(
        f"{path / HEADER_FILE}: no copy of the counters is sound; what counts as recorded are samples up to the last "
        f"of the {counters.segments:,} episodes in {EPISODE_FILE}, which may be older than the samples if any were "
        f"removed"
    )
    return counters


# -- whether the description of another recording fits ----------------------------------------------------------


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
    notes.append("columns that take as many bytes look alike: whether they mean the same there, nobody has checked")


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
    """The misfit of the files of packed rows, in words; None for other storages, which compare them when they open."""
    files = inspection.row_files(storage)
    if files is None:
        return None
    folder = Path(str(storage.cache_filename))
    wanted = files.rows.keys() | files.others
    for name in sorted(wanted ^ set(os.listdir(folder))):
        return f"{folder / name}: the file is {'missing' if name in wanted else 'one too many'}"
    rows = metadata.capacity if counters.sizes is None else counters.sizes[0]
    if metadata.capacity not in (None, rows):
        return f"{folder.parent / HEADER_FILE}: {rows} slots, the capacity is {metadata.capacity}"
    for name, itemsize in files.rows.items():
        nbytes = (folder / name).stat().st_size
        if nbytes % max(1, itemsize) or (rows is not None and nbytes != rows * itemsize):
            many = "a whole number of" if rows is None else str(rows)
            return f"{folder / name}: {nbytes} bytes, it should be {many} rows of {itemsize} bytes"
    if counters.sizes is not None and files.heap_bytes != counters.sizes[1]:
        return f"{folder / 'heap.bin'}: {files.heap_bytes} bytes, it had {counters.sizes[1]}"
    return None


def _checksum_misfit(storage: RowStorage, notes: list[str]) -> str | None:
    if inspection.row_files(storage) is None:
        return None
    checksums, wrong = inspection.checksum_counts(storage)
    if checksums and wrong == checksums:
        return f"{storage.cache_filename}: not one of {checksums} checksums matches"
    if not checksums:
        notes.append(f"{storage.cache_filename}: there is no checksum yet that tells whether this fits")
    return None
