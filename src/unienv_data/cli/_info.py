"""What is in a folder, without reading all of it."""

from __future__ import annotations

import datetime
import math
import os
from dataclasses import dataclass
from pathlib import Path

from unienv_interface.space import BoxSpace, Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import ArraySpace

from ..replay_buffer import ReplayBuffer
from ..replay_buffer._locks import is_locked
from ..replay_buffer._metadata import read_metadata
from ..replay_buffer._state import LOCK
from ..storages.registry import name_of
from ._episodes import REWARD_NAMES, EpisodeTable, Summary, episode_table, lengths_of, returns_of, summary
from ._progress import Advance, unwatched
from ._reading import Column, columns_of, find_column, open_buffer


@dataclass(frozen=True)
class ColumnInfo:
    """A leaf of the samples: its name, the keys that lead to it, and its space in words."""

    name: str
    keys: list[str]
    space: str


@dataclass(frozen=True)
class BufferInfo:
    """What a buffer on disk is and holds.

    `written` counts all samples that were ever written, those dropped since included. `episodes` are those that were
    closed; None, like `lengths` and `returns`, where episodes are not kept. There are returns if there are rewards.
    """

    path: str
    storage: str
    samples: int
    capacity: int | None
    written: int
    lanes: int
    episodes: int | None
    unfinished_episodes: int | None
    lengths: Summary | None
    returns: Summary | None
    is_durable: bool
    is_being_written: bool
    bytes_per_sample: int
    bytes_on_disk: int
    last_written: str
    format_version: int
    columns: list[ColumnInfo]


def buffer_info(path: Path, advance: Advance = unwatched) -> BufferInfo:
    """Describe the buffer in a folder. Of the samples only the rewards are read."""
    with open_buffer(path) as buffer:
        columns, table = columns_of(buffer.single_space), episode_table(buffer)
        lengths, returns = _summaries(buffer, table, find_column(columns, *REWARD_NAMES), advance)
        return BufferInfo(
            path=str(path),
            storage=name_of(type(buffer.storage)),
            samples=len(buffer),
            capacity=buffer.capacity,
            written=buffer.stats().written,
            lanes=buffer.lanes,
            episodes=None if table is None else len(table.closed),
            unfinished_episodes=None if table is None else len(table.unfinished),
            lengths=lengths,
            returns=returns,
            is_durable=buffer.is_durable,
            is_being_written=is_locked(path / LOCK),
            bytes_per_sample=RowLayout(buffer.single_space).nbytes,
            bytes_on_disk=bytes_on_disk(path),
            last_written=_last_written(path),
            format_version=read_metadata(path).version,
            columns=[_column_info(column) for column in columns],
        )


def _summaries(
    buffer: ReplayBuffer, table: EpisodeTable | None, reward: Column | None, advance: Advance
) -> tuple[Summary | None, Summary | None]:
    if table is None or not len(table.closed):
        return None, None
    ranges = table.closed
    lengths = summary(lengths_of(ranges, table.stride))
    return lengths, None if reward is None else summary(returns_of(buffer, ranges, reward, advance))


def _column_info(column: Column) -> ColumnInfo:
    return ColumnInfo(column.name, [str(key) for key in column.keys], space_in_words(column.space))


def space_in_words(space: Space) -> str:
    """A leaf in a few words, such as "float32 (4,)" or "uint8 (96, 96, 3) in [0, 255]"."""
    if not isinstance(space, ArraySpace):
        return space.get_repr(abbreviate=True, include_backend=False, include_device=False)
    what = f"{space.dtype_name} {tuple(space.shape)}"
    if not isinstance(space, BoxSpace) or space.bounds.low.dtype.kind == "c":
        return what
    low, high = (float(bound.flat[0]) if bound.min() == bound.max() else None for bound in space.bounds)
    if low is None or high is None:
        return f"{what} with bounds for each entry"
    return what if math.isinf(low) and math.isinf(high) else f"{what} in [{low:g}, {high:g}]"


def _files(path: Path) -> list[os.stat_result]:
    return [(Path(folder) / name).lstat() for folder, _, names in os.walk(path) for name in names]


def bytes_on_disk(path: Path) -> int:
    """What the files of a folder take, holes in them left out."""
    return sum(found.st_blocks * 512 for found in _files(path))


def _last_written(path: Path) -> str:
    newest = max(found.st_mtime for found in _files(path))
    return datetime.datetime.fromtimestamp(newest, datetime.timezone.utc).isoformat(timespec="seconds")
