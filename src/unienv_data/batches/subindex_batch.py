"""A view of some samples of a batch, selected by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.encoded_frames import EncodedFrames
from ..base.windows import EpisodeMarks, Episodes, Limits, WindowQuery, Windows
from ._view import BatchView


class SubIndexedBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A batch that offers a view of the original batch with a fixed index range, in the order of the indices.

    The indices are resolved when the view is made: when the batch later drops its oldest samples, the same indices name
    newer samples. The view can be written to, but does not grow.

    An episode of the view is a run of consecutive samples of one episode of the batch, or of every k-th sample if the
    indices are a slice with step k.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    sub_indexes
        The samples to show: an index of any kind. An int shows one sample.

    Raises
    ------
    IndexError
        An index is out of range.

    Examples
    --------
    >>> train = SubIndexedBatch(buffer, slice(0, 800))  # or buffer.get_slice(slice(0, 800))
    >>> len(train)
    800
    """

    def __init__(
        self, batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType], sub_indexes: Any
    ) -> None:
        super().__init__(batch, batch.single_space, batch.single_metadata_space)
        # A range if possible: it takes no memory for large batches.
        self._indices = _indices(batch, sub_indexes)
        self._step = max(1, self._indices.step) if isinstance(self._indices, range) else 1
        self._known_starts: np.ndarray | None = None

    @property
    def sub_indexes(self) -> np.ndarray:
        """The indices in the batch under this view."""
        return self._under(np.arange(len(self)))

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        """Whether the batch below can be written."""
        return self.batch.is_mutable

    @property
    def has_column_access(self) -> bool:  # type: ignore[override]
        """Whether the batch below reads single columns without the rest."""
        return self.batch.has_column_access

    @property
    def may_grow(self) -> bool:
        return False

    @property
    def sample_numbers(self) -> range:
        indices = self._indices
        if not isinstance(indices, range) or indices.step != 1:
            return range(len(self))  # the numbers in the batch are not consecutive
        first = self.batch.sample_numbers.start
        return range(first + indices.start, first + indices.stop)

    def __len__(self) -> int:
        return len(self._indices)

    def _under(self, position: Any) -> Any:
        """Translate a position in this view, or an array of positions, to the batch under it."""
        indices = self._indices
        if isinstance(indices, range):
            return indices.start + indices.step * position
        return int(indices[position]) if isinstance(position, int) else indices[position]

    def _below(self, idx: Any) -> Any:
        return self._under(resolve_index(self.backend, idx, len(self)))

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> BatchT:
        return self.batch.get_at(self._below(idx))

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_at_with_metadata(self._below(idx))

    def get_flattened_at(self, idx: Any) -> Any:
        return self.batch.get_flattened_at(self._below(idx))

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_flattened_at_with_metadata(self._below(idx))

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self.batch.get_column_at(nested_keys, self._below(idx))

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata(nested_keys, self._below(idx))

    def encoded_frames(self, nested_keys: Sequence[Any], idx: Any) -> EncodedFrames | None:
        return self.batch.encoded_frames(nested_keys, self._below(idx))

    def set_at(self, idx: Any, value: Any) -> None:
        self.batch.set_at(self._below(idx), value)

    def set_flattened_at(self, idx: Any, value: Any) -> None:
        self.batch.set_flattened_at(self._below(idx), value)

    # -- episodes --------------------------------------------------------------------------------------------

    def get_segments(self) -> list[tuple[int, int]] | None:
        """Return the closed episodes in indices of the view; None if not known, or if episodes are not contiguous."""
        below = self.batch.get_segments()
        everything = np.arange(len(self))
        episodes = None if below is None else self.episodes_of(everything)
        if below is None or episodes is None or np.any(episodes.stride != 1):
            return None
        under, ranges = self._under(everything), np.array(below, np.int64).reshape(-1, 2)
        after = np.searchsorted(ranges[:, 1], under, side="right")
        is_closed = np.append(ranges[:, 0], np.iinfo(np.int64).max)[after] <= under
        firsts = np.flatnonzero(is_closed & (episodes.start == everything))
        return list(zip(firsts.tolist(), episodes.stop[firsts].tolist(), strict=True))

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        below = self.batch.episodes_of(self._under(positions))
        return None if below is None else self._as_seen_here(positions, below)

    def episode_marks(self, positions: np.ndarray) -> EpisodeMarks | None:
        under = self._under(positions)
        marks, below = self.batch.episode_marks(under), self.batch.episodes_of(under)
        episodes = self.episodes_of(positions)
        if marks is None or below is None or episodes is None:
            return None
        begins = marks.begins & (self._under(episodes.start) == below.start)
        ends = marks.ends & (self._under(episodes.stop - 1) == below.stop - 1)
        return marks._replace(begins=begins, ends=ends)

    def episode_bounds(self, positions: np.ndarray, *, within_episodes: bool = True) -> Episodes:
        below = self.batch.episode_bounds(self._under(positions), within_episodes=within_episodes)
        return self._as_seen_here(positions, below)

    def _as_seen_here(self, positions: np.ndarray, below: Episodes) -> Episodes:
        """Return the part of each episode of the batch that the view contains, in positions of the view."""
        under, run = self._under(positions), self._runs_of(positions)
        stride = below.stride // np.gcd(below.stride, self._step)  # between samples of an episode, in the view
        stride_below = stride * self._step  # the same distance in the batch
        back = np.minimum((under - below.start) // stride_below, (positions - run.start) // stride)
        ahead = np.minimum((below.stop - 1 - under) // stride_below, (run.stop - 1 - positions) // stride)
        stride = int(stride) if np.ndim(stride) == 0 else stride
        return Episodes(positions - back * stride, positions + ahead * stride + 1, stride)

    def _runs_of(self, positions: np.ndarray) -> Limits:
        """Return the run of indices with constant step that contains each position."""
        if isinstance(self._indices, range) and self._indices.step > 0:
            return Limits(np.zeros_like(positions), np.full_like(positions, len(self)))
        if self._known_starts is None:
            is_first = np.diff(self.sub_indexes, prepend=-2) != self._step
            self._known_starts = np.append(np.flatnonzero(is_first), len(self))
        after = np.searchsorted(self._known_starts, positions, side="right")
        return Limits(self._known_starts[after - 1], self._known_starts[after])

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        return self.read_column_windows(positions, (query,), limits)[0]

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        under, step = self._under(positions), self._step
        if step != 1:
            within = queries[0].within_episodes
            stride = self.batch.episode_bounds(under, within_episodes=within).stride
            if not isinstance(stride, int):
                return [super(SubIndexedBatch, self).read_windows(positions, query, limits) for query in queries]
            factor = step // math.gcd(step, stride)
            queries = [replace(query, offsets=query.offsets * factor) for query in queries]
        # Consecutive samples of a run are consecutive in the batch too, so the batch can read the windows.
        run = self._runs_of(positions)
        if limits is not None:
            run = Limits(np.maximum(run.start, limits.start), np.minimum(run.stop, limits.stop))
        first, last = under - (positions - run.start) * step, under + (run.stop - 1 - positions) * step
        return self.batch.read_column_windows(under, queries, Limits(first, last + 1))


def _indices(batch: BatchBase, sub_indexes: Any) -> range | np.ndarray:
    length = len(batch)
    if sub_indexes is Ellipsis:
        return range(length)
    if isinstance(sub_indexes, slice):
        return range(*sub_indexes.indices(length))
    return np.atleast_1d(np.array(resolve_index(batch.backend, sub_indexes, length)))
