"""Statistics of the columns of a batch, per dimension, in one pass with bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unienv_interface.backends import dtypes
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import ArraySpace

from ..base.common import BatchBase
from ._kept_statistics import KeptStatistics

__all__ = ["ColumnStatistics", "column_stats", "is_image", "summarize", "usable_columns"]

_CHUNK_BYTES = 4 * 2**20
_BLOCK_VALUES = 32_768  # as float64, fits the cache of a core
_QUANTILE_BYTES = 32 * 2**20
_MOST_QUANTILE_ROWS = 65_536
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_LEAST_SIDE = 16  # of an image without channels: a smaller array may be a matrix

ProgressCallback = Callable[[int, int], object]


@dataclass(frozen=True)
class ColumnStatistics:
    """The statistics of a column, each an array with the shape of a value.

    Statistics of images are per channel, with a shape that broadcasts to an image.

    Attributes
    ----------
    count
        The number of finite values. The other statistics are computed from these, and NaN without any.
    min, max, mean, std
        The least and the greatest value, mean and standard deviation.
    q01, q10, q50, q90, q99
        The quantiles of 1, 10, 50, 90 and 99 percent.

    Examples
    --------
    >>> reward = column_stats(buffer, ["reward"])["reward"]
    >>> float(reward.mean), int(reward.count) == len(buffer)
    (1.0, True)
    """

    count: np.ndarray
    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray
    q10: np.ndarray
    q50: np.ndarray
    q90: np.ndarray
    q99: np.ndarray


def column_stats(
    batch: BatchBase,
    columns: Sequence[str] | None = None,
    *,
    image_frames: int = 500,
    progress: ProgressCallback | None = None,
) -> dict[str, ColumnStatistics]:
    """Compute the statistics of columns of numbers in one pass, with bounded memory for any size of the batch.

    Count, extremes, mean and standard deviation are exact, except for images, of which only `image_frames` are read.
    Statistics of images are per channel. Quantiles are computed from up to 65,536 rows spread over the batch.

    Statistics of a replay buffer on disk are cached in its folder, if the folder can be written, until its samples
    change.

    Parameters
    ----------
    batch
        Any batch whose columns are arrays.
    columns
        Names of columns such as "obs/state", or of dicts such as "obs", which select all their columns; by default all
        columns of numbers.
    image_frames
        The number of frames read of each column of images.
    progress
        Called with the number of values read so far and in all; each column of each sample counts as one value.

    Returns
    -------
    dict
        `ColumnStatistics` by the name of the column.

    Raises
    ------
    ValueError
        A name is no column, a column holds no arrays of one shape, or the batch is empty.

    Examples
    --------
    >>> stats = column_stats(buffer, ["action"])
    >>> normalize = NormalizeTransformation.from_stats(stats["action"])
    """
    leaves = {leaf.name: leaf for leaf in RowLayout(batch.single_space).leaves}
    usable = usable_columns(batch)
    chosen = list(usable) if columns is None else _chosen(columns, list(leaves), list(usable))
    count = len(batch)
    if not count:
        raise ValueError("the batch is empty: statistics need at least one sample")
    wanted = {name: min(count, image_frames) if is_image(usable[name]) else count for name in chosen}
    kept = KeptStatistics(batch, image_frames)
    results = {name: ColumnStatistics(**figures) for name, figures in kept.read(chosen).items()}
    done, total = 0, sum(wanted[name] for name in chosen if name not in results)
    for name in chosen:
        if name in results:
            continue
        space, keys = usable[name], leaves[name].path
        image = (*space.shape, 1)[:3] if is_image(space) else None
        axes = _entry_axes(space)
        summary = _Summary(math.prod(axes), image, count)
        itemsize = np.dtype(dtypes.host_dtype(space.backend.dtype_name(space.dtype))).itemsize
        rows = max(1, _CHUNK_BYTES // (math.prod(space.shape) * itemsize or 1))
        for index in _chunks(count, wanted[name], rows):
            values = batch.get_column_at(keys, index) if keys else batch.get_at(index)
            read = index.stop - index.start if isinstance(index, slice) else len(index)
            first = index.start if isinstance(index, slice) else int(index[0])
            summary.add(space.backend.to_numpy(values), first)
            done += read
            if progress is not None:
                progress(done, total)
        results[name] = summary.result(axes)
    kept.write({name: vars(results[name]) for name in chosen})
    return {name: results[name] for name in chosen}


def usable_columns(batch: BatchBase) -> dict[str, ArraySpace]:
    """Return the columns that have statistics, of arrays of real numbers.

    Parameters
    ----------
    batch
        The batch.

    Returns
    -------
    dict
        The space of each of these columns by its name.
    """
    leaves = RowLayout(batch.single_space).leaves
    arrays = {leaf.name: leaf.space for leaf in leaves if isinstance(leaf.space, ArraySpace)}
    return {
        name: space for name, space in arrays.items() if space.backend.dtype_name(space.dtype) not in dtypes.COMPLEX
    }


def is_image(space: ArraySpace) -> bool:
    """Whether the arrays of a space count as images.

    Parameters
    ----------
    space
        The space of one array.

    Returns
    -------
    bool
        Whether the shape has three axes, the first or the last with 1, 3 or 4 channels; or two axes of at least 16 with
        uint8 or uint16, as grey images and depth.
    """
    shape = space.shape
    if len(shape) == 2:
        return min(shape) >= _LEAST_SIDE and space.backend.dtype_name(space.dtype) in ("uint8", "uint16")
    return len(shape) == 3 and (shape[2] in (1, 3, 4) or shape[0] in (1, 3, 4))


def summarize(values: np.ndarray) -> ColumnStatistics:
    """Compute exact statistics of values in memory, quantiles included.

    Parameters
    ----------
    values
        The values, along the first axis.

    Returns
    -------
    ColumnStatistics
        The statistics of each entry.
    """
    summary = _Summary(math.prod(values.shape[1:]), None, len(values), most_rows=len(values))
    summary.add(values, 0)
    return summary.result(values.shape[1:])


def _chosen(columns: Sequence[str], names: list[str], usable: list[str]) -> list[str]:
    chosen: dict[str, None] = {}
    for column in columns:
        under = [name for name in names if name == column or name.startswith(f"{column}/")]
        if not under:
            raise ValueError(f"there is no column {column!r}, only {names}")
        if column in names and column not in usable:
            raise ValueError(f"column {column!r} holds no arrays of real numbers of one shape; choose from {usable}")
        chosen.update(dict.fromkeys(name for name in under if name in usable))
    return list(chosen)


def _chunks(count: int, wanted: int, rows: int) -> Iterator[slice | np.ndarray]:
    """Yield slices of all samples, or index arrays of `wanted` samples spread over all."""
    if wanted == count:
        yield from (slice(start, min(start + rows, count)) for start in range(0, count, rows))
    else:
        picked = _spread(count, wanted)
        yield from (picked[start : start + rows] for start in range(0, wanted, rows))


def _spread(count: int, wanted: int) -> np.ndarray:
    """Return sorted positions, one at random from each of `wanted` equal ranges; always the same."""
    shifts = np.random.default_rng(0).random(wanted)
    return ((np.arange(wanted) + shifts) * (count / wanted)).astype(np.int64)


def _entry_axes(space: ArraySpace) -> tuple[int, ...]:
    """Return the shape of a column's statistics."""
    shape = space.shape
    if not is_image(space):
        return shape
    if len(shape) == 2:
        return (1, 1)
    return (1, 1, shape[2]) if shape[2] in (1, 3, 4) else (shape[0], 1, 1)


class _Summary:
    """Accumulates statistics of rows of `width` entries over several arrays.

    If `image`, the shape of images, is given, every pixel is a row.
    """

    def __init__(
        self, width: int, image: tuple[int, ...] | None, rows: int, most_rows: int = _MOST_QUANTILE_ROWS
    ) -> None:
        self._width, self._image = width, image
        self._count = np.zeros(width, np.int64)
        self._mean, self._squares = np.zeros(width), np.zeros(width)
        self._min: np.ndarray | None = None
        self._max: np.ndarray | None = None
        most = min(most_rows, max(1, _QUANTILE_BYTES // (8 * max(width, 1)))) if most_rows < rows else rows
        self._picked = _spread(rows, most) if most < rows else None
        self._kept: list[np.ndarray] = []

    def add(self, values: np.ndarray, first: int) -> None:
        """Add the values of consecutive samples, the first of which is number `first`."""
        values = values.view(np.uint8) if values.dtype == np.bool_ else values
        if self._image is not None:
            values = values if self._image[2] == self._width else np.moveaxis(values, 1, -1)
            values = values.reshape(-1, self._width)
            self._kept.append(values[:: max(1, len(values) // 2048)].copy())
        else:
            values = values.reshape(len(values), self._width)
            self._keep(values, first)
        rows = max(1, _BLOCK_VALUES // max(self._width, 1))
        for start in range(0, len(values), rows):
            # NumPy reduces several times as fast along contiguous memory.
            self._add_block(np.ascontiguousarray(values[start : start + rows].T))

    def _keep(self, values: np.ndarray, first: int) -> None:
        if self._picked is None:
            self._kept.append(values.copy())
            return
        begin, end = np.searchsorted(self._picked, [first, first + len(values)])
        if end > begin:
            self._kept.append(values[self._picked[begin:end] - first])

    def _add_block(self, block: np.ndarray) -> None:
        low, high = block.min(axis=1), block.max(axis=1)
        count: int | np.ndarray = block.shape[1]
        if block.dtype.kind == "f" and not (np.isfinite(low).all() and np.isfinite(high).all()):
            finite = np.isfinite(block)
            count = finite.sum(axis=1)
            low = np.where(finite, block, np.inf).min(axis=1).astype(block.dtype)
            high = np.where(finite, block, -np.inf).max(axis=1).astype(block.dtype)
            values = np.where(finite, block, 0).astype(np.float64)
            mean = values.sum(axis=1) / np.maximum(count, 1)
            deviations = np.where(finite, values - mean[:, None], 0)
        else:
            mean = block.mean(axis=1, dtype=np.float64)
            deviations = block - mean[:, None]
        squares = np.einsum("ij,ij->i", deviations, deviations)
        # Chan's rule to merge the moments of two groups
        total = self._count + count
        shift = mean - self._mean
        share = count / np.maximum(total, 1)
        self._squares += squares + shift * shift * self._count * share
        self._mean += shift * share
        self._count = total
        self._min = low if self._min is None else np.minimum(self._min, low)
        self._max = high if self._max is None else np.maximum(self._max, high)

    def result(self, shape: Sequence[int]) -> ColumnStatistics:
        """Return all statistics as arrays of this shape."""
        kept = np.concatenate(self._kept) if self._kept else np.zeros((0, self._width))
        if kept.dtype.kind == "f" and not np.isfinite(kept).all():
            kept = np.where(np.isfinite(kept), kept, np.nan).astype(np.float64)
            has_finite = np.isfinite(kept).any(axis=0)
            quantiles = np.full((len(_QUANTILES), self._width), np.nan)
            quantiles[:, has_finite] = np.nanquantile(kept[:, has_finite], _QUANTILES, axis=0)
        else:
            quantiles = np.quantile(kept, _QUANTILES, axis=0)
        has_values = self._count > 0
        none = np.zeros(self._width)
        low, high = (none if end is None else end for end in (self._min, self._max))
        figures = [self._mean, np.sqrt(self._squares / np.maximum(self._count, 1))]
        if not has_values.all():
            low, high, *figures = (np.where(has_values, values, np.nan) for values in (low, high, *figures))
        return ColumnStatistics(*(values.reshape(shape) for values in (self._count, low, high, *figures, *quantiles)))
