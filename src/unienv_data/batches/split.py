"""Splitting a batch, for example for training and validation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from ..base.common import BatchBase
from ..base.windows import Episodes
from .subindex_batch import SubIndexedBatch

__all__ = ["split", "without_cut_episodes"]


def split(
    batch: BatchBase, parts: Mapping[str, float], by: Literal["episode", "sample"] = "episode", seed: int = 0
) -> dict[str, SubIndexedBatch]:
    """Divide a batch at random into views without common samples.

    Parameters
    ----------
    batch
        The batch; it must know its episodes for `by="episode"`.
    parts
        The size of each part by name, as a share of the episodes (or samples). Shares add up to at most 1; the rest is
        in no part. Each part gets at least one episode (or sample).
    by
        Whether whole episodes or single samples are divided.
    seed
        The same seed gives the same parts.

    Returns
    -------
    dict
        A view for each part, with the samples in the order of the batch. A buffer with several lanes, whose episodes
        are interleaved, is ordered episode by episode.

    Raises
    ------
    TypeError
        `parts` is no mapping of names to shares.
    ValueError
        The shares are not positive or add up to more than 1, the batch does not know its episodes, or it has fewer
        episodes (or samples) than parts.

    Examples
    --------
    >>> parts = split(buffer, {"train": 0.9, "val": 0.1})
    >>> sampler = StepSampler(parts["train"], batch_size=64)
    """
    strides: int | np.ndarray
    if not isinstance(parts, Mapping):
        raise TypeError(f'parts are {parts!r:.100}, wanted a share by name, such as {{"train": 0.9, "val": 0.1}}')
    shares = np.array(list(parts.values()), np.float64)
    if not len(shares) or not (shares > 0).all() or shares.sum() > 1 + 1e-9:
        raise ValueError(f"parts are {dict(parts)}, wanted positive shares that add up to 1 at most")
    positions = np.arange(len(batch))
    if by == "episode":
        episodes = batch.episodes_of(positions)
        if episodes is None:
            raise ValueError(
                f"{type(batch).__name__} does not know its episodes: record with maintain_segment_metadata=True, or "
                'split with by="sample"'
            )
        # The first sample identifies an episode, also in a buffer with several lanes.
        number_of, strides = np.unique(episodes.start, return_inverse=True)[1], episodes.stride
    elif by == "sample":
        number_of, strides = positions, 1
    else:
        raise ValueError(f"by is {by!r}, it must be 'episode' or 'sample'")
    count = int(number_of.max(initial=-1)) + 1
    sizes = _sizes(shares, count, by)
    order = np.random.default_rng(seed).permutation(count)
    view_of = np.full(count, -1)
    ends = np.cumsum(sizes)
    for view_index, (start, stop) in enumerate(zip(ends - sizes, ends, strict=True)):
        view_of[order[start:stop]] = view_index
    view_of_sample = view_of[number_of]
    has_lanes = by == "episode" and bool(np.any(np.not_equal(strides, 1)))
    views: dict[str, SubIndexedBatch] = {}
    for view_index, name in enumerate(parts):
        indices = np.flatnonzero(view_of_sample == view_index)
        views[name] = (
            _EpisodesInTurn(batch, indices, number_of[indices]) if has_lanes else SubIndexedBatch(batch, indices)
        )
    return views


def without_cut_episodes(batch: BatchBase) -> SubIndexedBatch:
    """Return a view of a batch without its cut episodes, which were closed before their end.

    An episode is cut when recording fails or the recorder is closed during it (`ReplayBuffer.cut_episodes`). Open
    episodes stay in the view. The samples are selected at once: after writes to the batch, make a new view.

    Parameters
    ----------
    batch
        The batch: a replay buffer that keeps episodes, or any view over such buffers.

    Returns
    -------
    SubIndexedBatch
        The other samples, in the order of the batch, or episode by episode for a buffer with several lanes.

    Raises
    ------
    ValueError
        The batch does not know which episodes were cut.

    Examples
    --------
    >>> windows = FrameStackedBatch(without_cut_episodes(buffer), postfetch_horizon=15)
    """
    positions = np.arange(len(batch))
    marks, episodes = batch.episode_marks(positions), batch.episodes_of(positions)
    if marks is None or episodes is None:
        raise ValueError(
            f"{type(batch).__name__} does not know which episodes were cut: record with keep_episodes=True or lanes=N"
        )
    kept = np.flatnonzero(~marks.is_cut)
    if np.all(np.equal(episodes.stride, 1)):
        return SubIndexedBatch(batch, kept)
    return _EpisodesInTurn(batch, kept, np.unique(episodes.start, return_inverse=True)[1][kept])


class _EpisodesInTurn(SubIndexedBatch):
    """Whole episodes one after the other, for a batch in which episodes are interleaved."""

    def __init__(self, batch: BatchBase, indices: np.ndarray, numbers: np.ndarray) -> None:
        order = np.argsort(numbers, kind="stable")
        super().__init__(batch, indices[order])
        self._starts = np.append(np.flatnonzero(np.diff(numbers[order], prepend=-1)), len(indices))

    def get_segments(self) -> list[tuple[int, int]] | None:
        below = self.batch.get_segments()
        if below is None or not len(self):
            return below and []
        closed, first = {start for start, _ in below}, self.sub_indexes[self._starts[:-1]].tolist()
        ranges = zip(first, itertools.pairwise(self._starts.tolist()), strict=True)
        return [ends for start, ends in ranges if start in closed]

    def episodes_of(self, positions: np.ndarray) -> Episodes:
        after = np.searchsorted(self._starts, positions, side="right")
        return Episodes(self._starts[after - 1], self._starts[after], 1)

    # Episodes are contiguous in this view, not in the batch under it, so the view computes its own windows.
    episode_bounds = BatchBase.episode_bounds
    read_windows = BatchBase.read_windows


def _sizes(shares: np.ndarray, count: int, by: str) -> np.ndarray:
    """Return the size of each part: the nearest integers from 1 on with the right sum."""
    if count < len(shares):
        raise ValueError(f"the batch has {count} {by}s for {len(shares)} parts, each part needs at least one")
    exact = shares * count
    total = max(len(shares), math.floor(exact.sum() + 0.5))
    sizes = np.maximum(np.floor(exact + 1e-9).astype(np.int64), 1)
    while sizes.sum() != total:
        step = 1 if sizes.sum() < total else -1
        error = (exact - sizes) * step
        sizes[int(np.argmax(np.where((sizes > 1) | (step > 0), error, -np.inf)))] += step
    return sizes
