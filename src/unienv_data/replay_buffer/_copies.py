"""Copies of samples: a snapshot of a buffer in another folder, and the samples of another batch in a buffer."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.common import BatchBase, chunks_of
from ..base.files import is_temporary, remove_leftovers, replace_folder, sync_folder
from ..base.row_storage import rows_of
from ..base.storage import StorageCorruptedError
from ..batches.combined_batch import CombinedBatch
from ..storages.backend_compat import in_stored_form
from ._folder import write_description
from ._locks import FolderLock
from ._metadata import FILE_NAME, read_metadata
from ._state import HEADER, JOURNAL, LOCK, SEGMENT_FILE, TURNS, BufferOptions, BufferState

if TYPE_CHECKING:
    from .replay_buffer import ReplayBuffer

_SNAPSHOT_ATTEMPTS = 10


# -- snapshots ---------------------------------------------------------------------------------------------


def write_snapshot(buffer: ReplayBuffer, target: Path) -> None:
    """Write a copy of a buffer to another folder, and replace the buffer in it, if any."""
    if target.exists() and any(target.iterdir()):
        _check_is_buffer_alone(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        if target.exists():
            # the replaced buffer must have no writer
            lock = FolderLock(target / LOCK, shared=False)
            undo.callback(lock.release)
        for _ in range(_SNAPSHOT_ATTEMPTS):
            if _copy(buffer, temporary):
                break
            shutil.rmtree(temporary)
        else:
            raise RuntimeError(f"a writer has changed samples during each of {_SNAPSHOT_ATTEMPTS} copies")
        replace_folder(temporary, target)


def _check_is_buffer_alone(folder: Path) -> None:
    """A FileExistsError if a folder has other files than a buffer's: a dump replaces the whole folder."""
    if not (folder / FILE_NAME).exists():
        raise FileExistsError(f"{folder} is there, and not a replay buffer: give another path")
    own = {FILE_NAME, HEADER, SEGMENT_FILE, JOURNAL, LOCK, TURNS}
    with contextlib.suppress(StorageCorruptedError):
        own.update(Path(read_metadata(folder).storage_path).parts[:1])
    for path in folder.iterdir():
        if path.name not in own and not path.name.startswith("storage") and not is_temporary(path):
            raise FileExistsError(
                f"{path} does not belong to the replay buffer in {folder}, and a dump would remove it: give another "
                f"path"
            )


def _copy(buffer: ReplayBuffer, folder: Path) -> bool:
    """Copy a buffer to a new folder; False if a writer has changed samples in place meanwhile.

    Samples that a writer overwrites during the copy are dropped: the copy begins at the buffer's tail after copying.
    """
    counters, storage = buffer._counters, rows_of(in_stored_form(buffer.storage))
    edit = counters.edit
    if edit & 1:
        buffer._state.wait_for_edit()
        edit = counters.edit
    head, tail, base = counters.head, counters.tail, counters.base
    folder.mkdir()
    storage.snapshot(folder / buffer.storage_path_relative, buffer._state.slot_ranges(tail, head, base), tail)
    tail = min(counters.tail, head)
    segments = buffer._state.segments.alive_and_cut(tail, head)
    if counters.edit != edit:
        return False
    _write_state(buffer, folder, (head, tail, base), segments)
    write_description(buffer, folder, tail, head)
    sync_folder(folder)
    return True


def _write_state(
    buffer: ReplayBuffer, folder: Path, bounds: tuple[int, int, int], segments: tuple[np.ndarray, np.ndarray]
) -> None:
    path, stored = folder / buffer.storage_path_relative, in_stored_form(buffer.storage)
    storage = type(stored).load_from(
        path, stored.single_instance_space, capacity=buffer.capacity, read_only=False, multiprocessing=False
    )
    state = BufferState.create(storage, folder, BufferOptions(lanes=buffer.lanes), shared=False)
    head, tail, base = bounds
    state.counters.base, state.counters.tail = base, tail
    state.counters.renumbered = buffer.renumbered
    ranges, is_cut = segments
    for number, ((start, stop), cut) in enumerate(zip(ranges.tolist(), is_cut.tolist(), strict=True)):
        state.segments.prepare()
        state.segments.put(number, [(start, stop)], [cut])
    state.counters.closed = state.counters.head = head
    if buffer.capacity is None and head - base > len(storage):
        raise StorageCorruptedError(f"{path}: {len(storage)} rows were copied, wanted {head - base}")
    state.close()


# -- from another batch ------------------------------------------------------------------------------------


class _Episodes(NamedTuple):
    """The episodes of a batch in the order in which its samples are copied."""

    positions: np.ndarray | None  # of the samples in the batch; None where they are copied in its order
    starts: np.ndarray  # where the episode of each sample starts
    ends: np.ndarray  # whether its episode ends with a sample
    is_cut: np.ndarray  # whether the end of its episode is not in the batch


def extend_from(buffer: ReplayBuffer, other: BatchBase, chunk_size: int, *, show_progress: bool) -> None:
    """Add all samples of another batch with its episodes, `chunk_size` at a time; see `ReplayBuffer.extend_from`."""
    size = max(buffer.lanes, min(chunk_size, buffer.capacity or chunk_size) // buffer.lanes * buffer.lanes)
    copies = [(source, _episodes_of(buffer, source)) for source in _sources_of(other)]
    for source, episodes in copies:
        _extend_from(buffer, source, episodes, size, show_progress=show_progress)


def _extend_from(
    buffer: ReplayBuffer, other: BatchBase, episodes: _Episodes, size: int, *, show_progress: bool
) -> None:
    writer, first = buffer._writer, buffer._counters.head
    positions, starts, ends, is_cut = episodes
    for part in chunks_of(len(other), size, show_progress=show_progress):
        start, count = part.start, part.stop - part.start
        batch = other.get_at(part if positions is None else positions[part])
        closing = np.flatnonzero(ends[part]).tolist()
        are_cut = is_cut[part][closing].tolist()
        if buffer.lanes > 1:
            buffer._locked(writer.extend_all_lanes, batch, count, closing, are_cut)
        else:
            ended = [(first + int(starts[start + index]), first + start + index + 1) for index in closing]
            buffer._locked(writer.extend_episodes, batch, count, ended, are_cut)


def _sources_of(batch: BatchBase) -> list[BatchBase]:
    """The batches of a combination, of which one may know its episodes and another not."""
    if not isinstance(batch, CombinedBatch):
        return [batch]
    return [source for part in batch._sources for source in _sources_of(part)]


def _has_sources_with_episodes(batch: BatchBase) -> bool:
    """Whether a view lies over a combination in which some batches know their episodes."""
    under: Any = batch
    while not isinstance(under, CombinedBatch):
        under = getattr(under, "batch", None)
        if under is None:
            return False
    return any(source.is_segment_aware for source in _sources_of(under))


def _episodes_of(buffer: ReplayBuffer, other: BatchBase) -> _Episodes:
    """The episodes of another batch as this buffer can keep them; a ValueError if it has another number of lanes."""
    count, lanes, numbers = len(other), buffer.lanes, np.arange(len(other))
    episodes = other.episodes_of(numbers) if buffer.maintain_segment_metadata else None
    if episodes is None:
        if buffer.maintain_segment_metadata and _has_sources_with_episodes(other):
            raise ValueError(
                f"extend_from: {type(other).__name__} is a view over several batches, of which some know their "
                f"episodes and some do not: copy the same view of each of these batches by itself"
            )
        if lanes > 1:
            raise _wrong_lanes(1, lanes)
        return _Episodes(None, np.zeros(count, np.int64), np.zeros(count, bool), np.zeros(count, bool))
    stride = int(np.max(episodes.stride, initial=1))
    if lanes > 1 and stride != lanes:
        raise _wrong_lanes(stride, lanes)
    marks = other.episode_marks(numbers)
    starts, ends = episodes.start, numbers + 1 >= episodes.stop
    is_cut = np.zeros(count, bool) if marks is None else ~marks.ends
    if marks is not None and stride == 1:
        ends &= ~marks.is_gap
    if stride == 1 or lanes > 1:
        return _Episodes(None, starts, ends, is_cut)
    order = np.argsort(starts, kind="stable")  # one episode after the other
    begins = np.flatnonzero(np.diff(starts[order], prepend=-1))
    return _Episodes(order, np.repeat(begins, np.diff(begins, append=count)), ends[order], is_cut[order])


def _wrong_lanes(stride: int, lanes: int) -> ValueError:
    way_out = "no lanes" if stride == 1 else f"lanes={stride}"
    return ValueError(
        f"extend_from: the batch has {stride} lanes, the buffer {lanes}: copy into a buffer with {way_out}"
    )
