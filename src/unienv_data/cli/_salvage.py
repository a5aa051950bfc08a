"""What can still be read of a recording, whatever happened to its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space import Space

from ..base.storage import SpaceStorage
from ..replay_buffer import ReplayBuffer
from ..replay_buffer._locks import is_locked
from ..replay_buffer._state import LOCK
from ..storages._composed import ComposedStorage
from ..storages.packed import PackedStorage
from ._episodes import as_ranges, episode_table
from ._errors import CommandError, in_one_line
from ._reading import open_buffer, rows_per_chunk

_DAMAGED = "the bytes on disk are not those that were written"
_ABSENT = "there is nothing on disk for them"


@dataclass
class Salvage:
    """Samples by position from 0 to `count`, and what is known about them.

    `episodes` has those that are known, closed or not, and `loose` what lies between them; None where episodes are
    not kept. `lost` says why samples cannot be had, `is_lost` which ones; `notes` what else there is to know.
    Samples with the same number in `blocks` can all be read, or none of them can.
    """

    space: Space
    count: int
    stride: int
    rows_at_once: int
    read: Callable[[np.ndarray], Any]
    close: Callable[[], None]
    episodes: np.ndarray | None
    loose: np.ndarray
    blocks: np.ndarray = field(repr=False)
    is_lost: np.ndarray = field(repr=False)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lose(self, which: np.ndarray, why: str) -> None:
        """Leave out the samples of a mask, those that are not left out yet."""
        new = which & ~self.is_lost
        for start, stop in runs(new):
            what = f"sample {start}" if stop - start == 1 else f"samples {start} to {stop - 1}"
            self.lost.append(f"{what}: {why}")
        self.is_lost |= new


def runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Where a mask is true, as ranges [start, stop)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def salvage(path: Path, like: Path | None = None) -> Salvage:
    """Open a recording for what is sound in it; a CommandError if that cannot be told.

    What its description should say is taken from the recording `like`, if it cannot be read.
    """
    from ._salvage_folder import salvage_folder

    if not path.is_dir():
        raise CommandError(f"{path}: there is no such folder")
    try:
        buffer = open_buffer(path)
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        return salvage_folder(path, in_one_line(error), like)
    problems = buffer._state.segments.verify(closed=not is_locked(path / LOCK))
    if problems and buffer._state.folder is not None:
        buffer.close()
        return salvage_folder(path, problems[0], like)  # which goes by the records of episodes that are sound
    return _of_buffer(buffer)


def _of_buffer(buffer: ReplayBuffer) -> Salvage:
    count, table = len(buffer), episode_table(buffer)
    slots = np.arange(buffer.offset, buffer.offset + count)
    if buffer.capacity is not None:
        slots %= buffer.capacity
    found = Salvage(
        space=buffer.single_space,
        count=count,
        stride=buffer.lanes,
        rows_at_once=rows_per_chunk(buffer),
        read=buffer.get_at,
        close=buffer.close,
        episodes=None if table is None else table.all,
        loose=as_ranges([]) if table is None else table.loose,
        blocks=slots // buffer.storage.slots_read_as_one,
        is_lost=np.zeros(count, bool),
    )
    mark_damage(found, buffer.storage, slots)
    return found


def mark_damage(found: Salvage, storage: SpaceStorage, slots: np.ndarray) -> None:
    """Leave out what does not match its checksum, unless reading it tells; `slots` has where each sample lies."""
    for part in _parts_of(storage):
        found.lose(_in_ranges(slots, part.absent_slots(), len(part)), _ABSENT)
        if isinstance(part, PackedStorage):
            found.lose(_in_ranges(slots, part.damaged_rows(), len(part)), _DAMAGED)
            unchecked = _in_ranges(slots, part.unchecked_rows(), len(part)) & ~found.is_lost
            if unchecked.any():
                found.notes.append(_without_checksum(part, int(unchecked.sum())))
        elif not part.checks_when_read:
            found.notes += part.verify()


def lost_checksums(buffer: ReplayBuffer) -> Iterator[str]:
    """Of a buffer that was closed in order, after which every sample has one: which files lack some."""
    state, numbers = buffer._state, buffer.sample_numbers
    used = state.slot_ranges(numbers.start, numbers.stop, state.counters.base)
    for part in _parts_of(buffer.storage):
        if isinstance(part, PackedStorage):
            unchecked = part.unchecked_rows()
            overlaps = [min(stop, last) - max(start, first) for start, stop in unchecked for first, last in used]
            count = sum(overlap for overlap in overlaps if overlap > 0)
            if count:
                yield _without_checksum(part, count)


def _without_checksum(storage: PackedStorage, count: int) -> str:
    return f"{storage.cache_filename}: {count:,} samples have no checksum, damage to them cannot be told"


def _in_ranges(slots: np.ndarray, ranges: list[tuple[int, int]], length: int) -> np.ndarray:
    """Which of the slots, of a storage of that length, are in any of the ranges [start, stop)."""
    inside = np.zeros(length + 1, bool)  # one more, for samples that lie behind the end
    for start, stop in ranges:
        inside[start:stop] = True
    return inside[np.minimum(slots, length)]


def _parts_of(storage: SpaceStorage) -> Iterator[SpaceStorage]:
    """The storages that one is made of; every slot of it is a slot of each of them."""
    if isinstance(storage, ComposedStorage):
        for part in storage._parts:
            yield from _parts_of(part)
    else:
        yield storage
