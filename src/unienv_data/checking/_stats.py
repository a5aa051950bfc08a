"""Statistics of each column, in one pass over all samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unienv_interface.space.spaces import ArraySpace

from ..base.files import PathLike
from ..batches.moments import Moments
from ..batches.statistics import ColumnStatistics, column_stats, usable_columns
from .reading import Column, ProgressCallback, chunks, columns_of, open_folder, unwatched


@dataclass(frozen=True)
class ColumnStats:
    """The statistics of a column, over all entries of its arrays together.

    Attributes
    ----------
    name : str
        The name of the column.
    dtype : str or None
        The dtype of the values; None if they are no numbers.
    shape : list of int or None
        The shape of the values; None if it differs from sample to sample, or if they are no numbers.
    count, nan, infinite : int or None
        The numbers of finite, NaN and infinite entries; None if the values are no numbers.
    min, max, mean, std : float, int or None
        Of the finite numbers; None without finite numbers, beyond the range of floats, or for values that are no real
        numbers.
    dimensions : dict or None
        The statistics and quantiles of each dimension as in `column_stats` (of images by channel), as nested lists;
        None if the column has no arrays of one shape.

    Examples
    --------
    >>> (obs,) = [column for column in unienv.stats("data/").columns if column.name == "obs"]
    >>> obs.dtype, obs.shape, obs.nan
    ('float32', [4], 0)
    """

    name: str
    dtype: str | None
    shape: list[int] | None
    count: int | None
    nan: int | None
    infinite: int | None
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    dimensions: dict[str, Any] | None


@dataclass(frozen=True)
class StatsReport:
    """The statistics of all columns of a recording.

    Attributes
    ----------
    path : str
        The folder.
    samples : int
        How many samples it has.
    columns : list of ColumnStats
        The statistics of each column.

    Examples
    --------
    >>> report = unienv.stats("data/")
    >>> {column.name: column.mean for column in report.columns}["reward"]
    1.0
    """

    path: str
    samples: int
    columns: list[ColumnStats]


def stats(path: PathLike, *, progress: ProgressCallback | None = None) -> StatsReport:
    """Compute the statistics of all columns of the recording in a folder, with bounded memory.

    The statistics by dimension are cached in the folder, if it is writable, until the recording changes.

    Parameters
    ----------
    path
        The folder of the recording.
    progress
        Called as ``progress(done, total)`` with numbers of samples.

    Returns
    -------
    StatsReport
        The statistics of each column.

    Raises
    ------
    FileNotFoundError
        There is no such folder, or no replay buffer in it.
    StorageCorruptedError
        The buffer cannot be opened, or a sample cannot be read.

    Examples
    --------
    >>> [column.name for column in unienv.stats("data/").columns]
    ['action', 'next_obs', 'obs', 'reward', 'terminated', 'truncated']
    """
    show = progress or unwatched
    with open_folder(Path(path)) as buffer:
        columns = columns_of(buffer.single_space)
        moments = {column.name: Moments() for column in columns}
        samples = 0
        for chunk in chunks(buffer, lambda done, total: show(done // 2, total)):
            samples += chunk.count
            for column in columns:
                if column.is_array:
                    moments[column.name].add(chunk.array(column))
                elif column.is_numbers:
                    for value in chunk.each(column):
                        moments[column.name].add(value)
        by_name: dict[str, ColumnStatistics] = {}
        if samples and usable_columns(buffer):
            by_name = column_stats(
                buffer, progress=lambda done, total: show((samples + done * samples // max(total, 1)) // 2, samples)
            )
        return StatsReport(
            str(path),
            samples,
            [_column_stats(column, moments[column.name], by_name.get(column.name)) for column in columns],
        )


def _column_stats(column: Column, moments: Moments, statistics: ColumnStatistics | None) -> ColumnStats:
    space = column.space
    if not column.is_numbers:
        return ColumnStats(column.name, *[None] * 10)
    dtype = space.backend.dtype_name(space.dtype)
    shape = list(space.shape) if isinstance(space, ArraySpace) else None
    counts = (moments.count, moments.nan, moments.infinite)
    figures = (moments.min, moments.max, moments.mean, moments.std)
    dimensions = None if statistics is None else {name: values.tolist() for name, values in vars(statistics).items()}
    return ColumnStats(column.name, dtype, shape, *counts, *figures, dimensions)
