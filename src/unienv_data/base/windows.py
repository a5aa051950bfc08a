"""Index arithmetic of windows: the samples at fixed offsets from a sample.

The functions compute on the host, for any batch, which samples are in a window, which of them belong to the episode of
the sample, and which samples replace the other frames.
"""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.space import GraphInstance, Space
from unienv_interface.space.row_layout import Patch
from unienv_interface.space.space_utils import get_at, reshape_batch_size_in_data
from unienv_interface.space.spaces.graph import fields_of


class Episodes(NamedTuple):
    """The episode of each of some samples: range(start, stop, stride)."""

    start: np.ndarray
    stop: np.ndarray
    stride: int | np.ndarray


class EpisodeMarks(NamedTuple):
    """Booleans about the episode of each of some samples."""

    begins: np.ndarray  #: The batch has its first sample: not overwritten, removed or left out.
    ends: np.ndarray  #: The batch has its last sample, and the episode is closed and was not cut.
    is_cut: np.ndarray  #: The episode was closed before its end.
    is_gap: np.ndarray  #: The samples lie between two episodes.


class UnknownEpisodesWarning(UserWarning):
    """Windows may reach from one episode into another, because the batch knows no episodes.

    Examples
    --------
    >>> import warnings
    >>> plain = ReplayBuffer.create(BoxSpace("numpy", 0, 1, np.float32, shape=(2,)), capacity=100, keep_episodes=False)
    >>> plain.extend(np.zeros((10, 2), np.float32))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", UnknownEpisodesWarning)  # the samples are no episodes
    ...     windows = FrameStackedBatch(plain, prefetch_horizon=3)
    """


class Padding(enum.IntEnum):
    """Why a frame of a window is padding: the values of `slice_padding` in the metadata of windows.

    Examples
    --------
    >>> windows = FrameStackedBatch(buffer, prefetch_horizon=2, padding=True)
    >>> _, metadata = windows.get_at_with_metadata(0)  # the first step of an episode: two frames lie before it
    >>> [Padding(frame).name for frame in metadata["slice_padding"].tolist()]
    ['START', 'START', 'NONE']
    """

    NONE = 0  #: The frame is no padding.
    START = 1  #: The frame lies before the first sample of its episode.
    END = 2  #: The frame lies behind the last sample of its episode, which has ended.
    MISSING = 3  #: The sample was overwritten, removed or left out, or the episode is open or was cut.


class Limits(NamedTuple):
    """For each of some samples, the range [start, stop) of samples that its window must not leave."""

    start: np.ndarray
    stop: np.ndarray


class ColumnMask(abc.ABC):
    """Decides by one column which frames of a window belong to the episode of its sample."""

    key: str | int  #: The name of the column.
    #: Whether the mask also needs the samples in gaps between the offsets.
    looks_between: ClassVar[bool] = False

    @abc.abstractmethod
    def valid_frames(self, values: np.ndarray, offsets: np.ndarray, zero: int) -> np.ndarray:
        """Return which frames (B, T) belong to the episode of frame `zero`, given the column's values (B, T, ...)."""


@dataclass(frozen=True)
class WindowQuery:
    """A description of windows, made once and used for many reads.

    Parameters
    ----------
    offsets
        The frames of a window as offsets from the sample within its episode: sorted, without repetition, including 0.
    nested_keys
        The keys of the field to read.
    within_episodes
        Whether windows end at the ends of episodes; otherwise only at the ends of the batch.
    fill
        Whether an invalid frame repeats the next valid frame towards offset 0; otherwise its values are arbitrary.
    with_metadata
        Whether the metadata of the frames are read.
    take
        The indices of the wanted frames among the offsets, in any order; None for all. Invalid frames are still filled
        from all frames.
    tells_padding
        Whether `Windows.padding` is computed; only `within_episodes`, without a mask.
    mask, mask_keys
        A mask that decides where windows end by the column under `mask_keys`. Only for a batch that `applies_mask` of
        these keys, without `within_episodes`, and with dense offsets if the mask `looks_between`.
    """

    offsets: np.ndarray
    nested_keys: tuple[Any, ...] = ()
    within_episodes: bool = True
    fill: bool = True
    with_metadata: bool = False
    mask: ColumnMask | None = None
    mask_keys: tuple[Any, ...] = ()
    take: np.ndarray | None = None
    tells_padding: bool = False

    @property
    def count(self) -> int:
        """The number of frames in a window."""
        return len(self.offsets) if self.take is None else len(self.take)

    @functools.cached_property
    def zero(self) -> int:
        """The index of the offset 0."""
        return int(np.searchsorted(self.offsets, 0))

    @functools.cached_property
    def looks_back(self) -> bool:
        """Whether windows have frames before the sample."""
        return bool(self.offsets[0] < 0)

    @functools.cached_property
    def looks_ahead(self) -> bool:
        """Whether windows have frames behind the sample."""
        return bool(self.offsets[-1] > 0)

    @functools.cached_property
    def is_dense(self) -> bool:
        """Whether the offsets have no gaps."""
        return int(self.offsets[-1] - self.offsets[0]) == len(self.offsets) - 1


class Windows(NamedTuple):
    """Windows of B samples, T frames each: data and metadata have leading axes (B, T), the rest are host arrays."""

    data: Any
    valid: np.ndarray
    metadata: dict[str, Any] | None = None
    padding: np.ndarray | None = None  #: `Padding` of each frame, if the query `tells_padding`.


class Frames(NamedTuple):
    """The positions of the samples to read for windows (B, T), and which of them are valid (B, T)."""

    positions: np.ndarray
    valid: np.ndarray


class Spans(NamedTuple):
    """Windows of consecutive samples: the first sample of each (B,), and which frames are valid (B, T).

    Each patch replaces the frames [begin, end) of a window by one sample.
    """

    first: np.ndarray
    valid: np.ndarray
    patches: Sequence[Patch]


def parse_offsets(backend: ComputeBackend, offsets: Any) -> np.ndarray:
    """Check the offsets of a user and convert them to a host array of int64."""
    steps = backend.to_numpy(offsets) if backend.is_backendarray(offsets) else np.asarray(offsets)
    if steps.ndim != 1 or steps.dtype.kind not in "iu":
        raise ValueError(f"offsets of shape {steps.shape} and dtype {steps.dtype}, wanted integers along one axis")
    steps = steps.astype(np.int64)
    if np.any(np.diff(steps) <= 0):
        raise ValueError(f"offsets {steps.tolist()} must be sorted, without repetition")
    if 0 not in steps:
        raise ValueError(f"offsets {steps.tolist()} must include 0, the sample itself")
    return steps


def any_offsets(backend: ComputeBackend, offsets: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert offsets in any order, with 0 or without, to the sorted offsets of a query and its `take`."""
    steps = backend.to_numpy(offsets) if backend.is_backendarray(offsets) else np.asarray(offsets)
    if steps.ndim != 1 or steps.dtype.kind not in "iu" or not steps.size:
        raise ValueError(f"offsets of shape {steps.shape} and dtype {steps.dtype}, wanted integers along one axis")
    steps = steps.astype(np.int64)
    every = np.union1d(steps, [0])
    return every, None if np.array_equal(every, steps) else np.searchsorted(every, steps)


def window_frames(
    positions: np.ndarray, query: WindowQuery, bounds: Episodes, limits: Limits | None, length: int
) -> Frames:
    """Compute the frames of the windows of `positions` among `length` samples, given the episode of each position."""
    start, stop, stride = bounds
    if limits is not None:
        limits = Limits(np.maximum(limits.start, 0), np.minimum(limits.stop, length))
        start, stop = np.maximum(start, limits.start), np.minimum(stop, limits.stop)
    if query.is_dense and isinstance(stride, int) and stride == 1:
        # The nearest valid frame of consecutive samples is the end of the episode on that side.
        frames = filled = positions[:, None] + query.offsets
        if query.looks_back or limits is not None:
            filled = np.maximum(filled, start[:, None])
        if query.looks_ahead or limits is not None:
            filled = np.minimum(filled, stop[:, None] - 1)
        valid = filled == frames
    else:
        frames = positions[:, None] + query.offsets * (stride if isinstance(stride, int) else stride[:, None])
        valid = (frames >= start[:, None]) & (frames < stop[:, None])
        filled = frames if valid.all() else frames[np.arange(len(frames))[:, None], nearest_valid(valid, query.zero)]
    if query.take is not None:
        frames, filled, valid = (array.take(query.take, axis=1) for array in (frames, filled, valid))
    if query.fill:
        return Frames(filled, valid)
    low, high = (0, length) if limits is None else (limits.start[:, None], limits.stop[:, None])
    return Frames(np.clip(frames, low, high - 1), valid)


def padding_of(
    query: WindowQuery, bounds: Episodes, limits: Limits | None, marks: EpisodeMarks | None, valid: np.ndarray
) -> np.ndarray:
    """Compute the `Padding` of the frames of windows (B, T), given the episode of each sample.

    Without `marks` all episodes count as complete.
    """
    begins, ends = (np.True_, np.True_) if marks is None else (marks.begins, marks.ends)
    if limits is not None:
        begins, ends = begins & (limits.start <= bounds.start), ends & (limits.stop >= bounds.stop)
    before = np.broadcast_to(np.where(begins, Padding.START, Padding.MISSING), len(valid))
    behind = np.broadcast_to(np.where(ends, Padding.END, Padding.MISSING), len(valid))
    offsets = query.offsets if query.take is None else query.offsets[query.take]
    padding = np.where(offsets < 0, before[:, None], behind[:, None]).astype(np.uint8)
    padding[valid] = Padding.NONE
    return padding


def window_spans(positions: np.ndarray, query: WindowQuery, bounds: Episodes, length: int) -> Spans | None:
    """Compute `window_frames` as spans, for a dense query that fills; None unless nearly all windows are complete."""
    start, stop, stride = bounds
    if not isinstance(stride, int) or stride != 1 or not positions.size:
        return None
    count, few = len(query.offsets), 1 + len(positions) // 16
    first = positions + query.offsets.item(0)
    patches: list[Patch] = []
    if query.looks_back:
        missing = start - first  # the number of missing frames at the front, where positive
        cut = _cut(missing)
        if len(cut) > few or (cut and first.item(first.argmin()) < 0):
            return None
        patches = [(window, 0, missing.item(window), start.item(window)) for window in cut]
    if query.looks_ahead:
        missing = first + count - stop  # the same at the back
        cut = _cut(missing)
        if len(cut) > few or (cut and first.item(first.argmax()) + count > length):
            return None
        patches += [(window, count - missing.item(window), count, stop.item(window) - 1) for window in cut]
    valid = np.empty((len(positions), count), np.bool_)
    valid.fill(True)  # quicker than `ones`
    for window, begin, end, _ in patches:
        valid[window, begin:end] = False
    return Spans(first, valid, patches)


def _cut(missing: np.ndarray) -> list[int]:
    """Return the windows with missing frames."""
    return (missing > 0).nonzero()[0].tolist() if missing.item(missing.argmax()) > 0 else []


def nearest_valid(valid: np.ndarray, zero: int) -> np.ndarray:
    """Return for each frame of windows (B, T) the index of the nearest valid frame, itself or towards `zero`.

    Frame `zero` keeps its index, valid or not.
    """
    frames = np.where(valid, np.arange(valid.shape[1]), zero)
    if zero < valid.shape[1] - 1:
        np.maximum.accumulate(frames[:, zero:], axis=1, out=frames[:, zero:])
    if zero:
        before = frames[:, zero::-1]
        np.minimum.accumulate(before, axis=1, out=before)
    return frames


def take_frames(
    space: Space | None, backend: ComputeBackend, data: Any, shape: Sequence[int], frames: np.ndarray
) -> Any:
    """Gather frames by their indices (B, S) from data of windows (B, T); without a space the data is one array."""
    windows, count = shape
    index = (np.arange(windows)[:, None] * count + frames).reshape(-1)
    flat = merge_axes(backend, data, shape)
    taken = flat[index] if space is None else get_at(space, flat, index)
    return split_axis(backend, taken, frames.shape)


def frames_at(windows: Any, index: Any) -> Any:
    """Index the axes (B, T) of all arrays of windows: `(slice(None), 0)` gives the first frames."""
    if isinstance(windows, dict):
        return {key: frames_at(value, index) for key, value in windows.items()}
    if isinstance(windows, tuple):
        return tuple(frames_at(value, index) for value in windows)
    if isinstance(windows, GraphInstance):
        return GraphInstance(*(None if field is None else field[index] for field in fields_of(windows)))
    return windows[index]


def merge_axes(backend: ComputeBackend, data: Any, shape: Sequence[int]) -> Any:
    """Reshape data of windows (B, T) to a batch of B * T samples."""
    return reshape_batch_size_in_data(backend, data, shape, (shape[0] * shape[1],))


def split_axis(backend: ComputeBackend, data: Any, shape: Sequence[int]) -> Any:
    """Reshape a batch of B * T samples to data of windows (B, T)."""
    return reshape_batch_size_in_data(backend, data, (shape[0] * shape[1],), shape)
