"""Descriptions of recordings, without reading all samples, and reading a few samples."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space import BoxSpace, Space
from unienv_interface.space.space_utils import batch_space, get_at
from unienv_interface.space.spaces import ArraySpace

from ..base.files import PathLike
from ..base.row_storage import rows_of
from ..replay_buffer import ReplayBuffer
from ..replay_buffer.inspection import is_being_written, read_metadata
from ..storages.columns import ColumnRule, column_rules
from ..storages.registry import name_of
from ._convert import bytes_on_disk, file_stats
from .reading import (
    MOST_ROWS,
    Column,
    EpisodeTable,
    ProgressCallback,
    columns_of,
    episode_table,
    lengths_of,
    open_folder,
    unwatched,
)

#: Names of the reward column, the preferred name first.
REWARD_NAMES = ("reward", "next/reward")


@dataclass(frozen=True)
class ColumnInfo:
    """A column of a recording.

    Attributes
    ----------
    name : str
        The name, such as "obs/rgb".
    keys : list of str
        The keys that lead to the column in a sample.
    space : str
        The space in words, and the encoding of frames.

    Examples
    --------
    >>> [(column.name, column.space) for column in unienv.info("data/").columns][:2]
    [('action', ...), ('next_obs', ...)]
    """

    name: str
    keys: list[str]
    space: str


@dataclass(frozen=True)
class Summary:
    """A summary of numbers, one per episode.

    Attributes
    ----------
    min, mean, max : float or None
        The smallest, mean and largest finite number; None without finite numbers.
    curve : list of float
        The means over equal spans of time, oldest first.
    not_finite : int
        The count of numbers that are not finite.

    Examples
    --------
    >>> lengths = unienv.info("data/").lengths
    >>> lengths.min <= lengths.mean <= lengths.max
    True
    """

    min: float | None
    mean: float | None
    max: float | None
    curve: list[float] = field(repr=False)
    not_finite: int


@dataclass(frozen=True)
class InfoReport:
    """A description of a buffer on disk.

    Attributes
    ----------
    path : str
        The folder.
    storage : str
        The registered name of its storage.
    samples : int
        The number of samples.
    capacity : int or None
        The largest number of samples; None if the buffer grows.
    written : int
        The number of samples ever written, including dropped ones.
    lanes : int
        The number of environments that record in parallel.
    episodes, unfinished_episodes : int or None
        The numbers of closed and of open episodes; None if the buffer keeps no episodes.
    lengths, returns : Summary or None
        Of the closed episodes; None if the buffer keeps no episodes, returns also without rewards.
    is_durable : bool
        Whether a closed episode survives a power cut.
    is_being_written : bool
        Whether another process writes.
    bytes_per_sample : int
        The size of a sample in bytes.
    shares_next_obs : bool
        Whether each observation is stored once.
    bytes_on_disk : int
        The size of the files in bytes.
    last_written : str
        The time of the last write: UTC, in ISO 8601.
    format_version : int
        The version of the format.
    columns : list of ColumnInfo
        The columns of the samples.

    Examples
    --------
    >>> report = unienv.info("data/")
    >>> report.samples, report.lanes, report.is_being_written
    (2000, 8, False)
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
    shares_next_obs: bool
    bytes_on_disk: int
    last_written: str
    format_version: int
    columns: list[ColumnInfo]


def info(path: PathLike, *, progress: ProgressCallback | None = None) -> InfoReport:
    """Describe the recording in a folder; reads only the rewards of samples.

    Parameters
    ----------
    path
        The folder.
    progress
        Called as ``progress(done, total)`` with numbers of samples.

    Returns
    -------
    InfoReport
        The description.

    Raises
    ------
    FileNotFoundError
        There is no such folder, or no replay buffer in it.
    StorageCorruptedError
        The buffer cannot be opened.

    Examples
    --------
    >>> unienv.info("data/").samples
    2000
    """
    path = Path(path)
    with open_folder(path) as buffer:
        columns, table = columns_of(buffer.single_space), episode_table(buffer)
        rules = column_rules(buffer.storage)
        lengths, returns = _summaries(buffer, table, columns, progress or unwatched)
        return InfoReport(
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
            is_being_written=is_being_written(path),
            bytes_per_sample=rows_of(buffer.storage).row_nbytes,
            shares_next_obs=rows_of(buffer.storage).shares_next_obs,
            bytes_on_disk=bytes_on_disk(path),
            last_written=_last_written(path),
            format_version=read_metadata(path).version,
            columns=[_column_info(column, rules.get(column.name)) for column in columns],
        )


def _summaries(
    buffer: ReplayBuffer, table: EpisodeTable | None, columns: list[Column], progress: ProgressCallback
) -> tuple[Summary | None, Summary | None]:
    """Summarize the lengths and the returns of episodes."""
    if table is None or not len(table.closed):
        return None, None
    by_name = {column.name: column for column in columns}
    reward = next((by_name[name] for name in REWARD_NAMES if name in by_name), None)
    returns = None if reward is None else summary(_returns(buffer, table.closed, reward, progress))
    return summary(lengths_of(table.closed, table.stride)), returns


def _returns(buffer: ReplayBuffer, ranges: np.ndarray, reward: Column, progress: ProgressCallback) -> np.ndarray:
    """Sum the rewards of episodes, which are in the order of their starts."""
    sums, count = np.zeros(len(ranges)), len(buffer)
    progress(0, count)
    for start in range(0, count, MOST_ROWS):
        positions = np.arange(start, min(start + MOST_ROWS, count))
        values = buffer.backend.to_numpy(buffer.get_column_at(reward.keys, slice(start, int(positions[-1]) + 1)))
        episodes = buffer.episodes_of(positions)
        if episodes is not None and len(ranges):
            number = np.minimum(np.searchsorted(ranges[:, 0], episodes.start), len(ranges) - 1)
            is_closed = ranges[number, 0] == episodes.start
            with np.errstate(invalid="ignore", over="ignore"):  # rewards may be infinite or very large
                per_sample = values.reshape(len(positions), -1).astype(np.float64).sum(axis=1)
                np.add.at(sums, number[is_closed], per_sample[is_closed])
        progress(int(positions[-1]) + 1, count)
    return sums


def summary(values: np.ndarray, points: int = 40) -> Summary | None:
    """Summarize numbers; None without numbers."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Summary(None, None, None, [], len(values)) if len(values) else None
    curve = [float(split.mean()) for split in np.array_split(finite, min(points, len(finite)))]
    figures = (float(finite.min()), float(finite.mean()), float(finite.max()))
    return Summary(*figures, curve, len(values) - len(finite))


def _column_info(column: Column, rule: ColumnRule | None) -> ColumnInfo:
    space = space_in_words(column.space) + ("" if rule is None else f", kept as {rule}")
    return ColumnInfo(column.name, [str(key) for key in column.keys], space)


def space_in_words(space: Space) -> str:
    """Describe the space of a column in a few words.

    Parameters
    ----------
    space
        The space.

    Returns
    -------
    str
        Such as "float32 (4,)".

    Examples
    --------
    >>> space_in_words(BoxSpace("numpy", 0, 255, "uint8", shape=(96, 96, 3)))
    'uint8 (96, 96, 3) in [0, 255]'
    """
    if not isinstance(space, ArraySpace):
        return space.get_repr(abbreviate=True, include_backend=False, include_device=False)
    words = f"{space.dtype_name} {tuple(space.shape)}"
    if not isinstance(space, BoxSpace) or space.bounds.low.dtype.kind == "c":
        return words
    low, high = (float(bound.flat[0]) if bound.min() == bound.max() else None for bound in space.bounds)
    if low is None or high is None:
        return f"{words} with bounds for each entry"
    return words if math.isinf(low) and math.isinf(high) else f"{words} in [{low:g}, {high:g}]"


def describe_difference(recorded: Space, given: Space) -> str:
    """Say how the samples of two spaces differ.

    Parameters
    ----------
    recorded, given
        The space of a recording, and the space of new samples for it.

    Returns
    -------
    str
        A clause that names the first column that differs, for a message.

    Examples
    --------
    >>> describe_difference(transition_space(env), transition_space(env, step=True))
    'step was not there and is int64 ()...'
    """
    before, now = (
        {column.name: space_in_words(column.space) for column in columns_of(space)} for space in (recorded, given)
    )
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name, 'not there')} and is {now.get(name, 'not there')}"
    return f"recorded samples are of {recorded}, new samples of {given}"


def _last_written(path: Path) -> str:
    newest = max(stat.st_mtime for stat in file_stats(path))
    return datetime.datetime.fromtimestamp(newest, datetime.timezone.utc).isoformat(timespec="seconds")


# -- samples -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One sample: its index, the range [start, stop) of its episode if closed, and its values by column."""

    index: int
    episode: tuple[int, int] | None
    values: dict[str, Any]


@dataclass(frozen=True)
class Head:
    """Consecutive samples of a recording.

    Attributes
    ----------
    path : str
        The folder.
    samples : int
        The number of samples in the recording.
    shown : list of Sample
        The samples that were read.

    Examples
    --------
    >>> head = unienv_data.checking.head("data/", count=2)
    >>> len(head.shown), head.samples
    (2, 2000)
    """

    path: str
    samples: int
    shown: list[Sample]


def head(path: PathLike, count: int = 5, start: int = 0) -> Head:
    """Read a few samples of a recording.

    Parameters
    ----------
    path
        The folder.
    count
        The number of samples.
    start
        The index of the first sample; a negative index counts from the end.

    Returns
    -------
    Head
        The samples, fewer than `count` at the end of the recording.

    Raises
    ------
    ValueError
        `count` is negative, or `start` lies behind the last sample.
    FileNotFoundError
        There is no such folder, or no replay buffer in it.
    StorageCorruptedError
        The buffer cannot be opened, or a sample cannot be read.

    Examples
    --------
    >>> unienv_data.checking.head("data/", count=2)
    Head(...)
    """
    if count < 0:
        raise ValueError(f"count is {count}, it must be 0 or more")
    with open_folder(Path(path)) as buffer:
        length = len(buffer)
        first = max(0, start + length) if start < 0 else start
        if first > length:
            raise ValueError(f"{path}: there are {length} samples, none from {start} on")
        stop = min(first + count, length)
        batch, columns = buffer.get_at(slice(first, stop)), columns_of(buffer.single_space)
        space = batch_space(buffer.single_space, stop - first)
        shown = []
        for index in range(first, stop):
            sample = get_at(space, batch, index - first)
            values = {column.name: _plain(column.pick(sample), buffer.backend) for column in columns}
            shown.append(Sample(index, buffer.segment_of(index), values))
        return Head(str(path), length, shown)


def _plain(value: Any, backend: Any) -> Any:
    """Convert an array to NumPy; return other values unchanged."""
    return np.asarray(backend.to_numpy(value)) if backend.is_backendarray(value) else value
