"""A view of windows in which each column has its own offsets or times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import BinarySpace, DictSpace, Space
from unienv_interface.space.space_utils import batch_space, get_at

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.index import is_plain_index, is_single
from ..base.nested import Columns, column_paths, nested_item, overlap, path_keys
from ..base.windows import WindowQuery, Windows, any_offsets, merge_axes, split_axis
from ._view import BatchView, warn_of_unknown_episodes, with_space, with_value
from .slicestack_batch import PADDING, VALID_MASK, check_tells_padding, padding_space

__all__ = ["Seconds", "WindowedBatch", "seconds"]


@dataclass(frozen=True)
class Seconds:
    """Times relative to each sample, instead of offsets; made by `seconds`.

    Attributes
    ----------
    times
        The seconds from each sample.
    tolerance
        The largest difference in seconds between a frame and its wanted time.
    timestamp
        The column of timestamps.

    Examples
    --------
    >>> seconds([0, 0.1, 0.2], tolerance=0.01)
    Seconds(times=(0.0, 0.1, 0.2), tolerance=0.01, timestamp='timestamp')
    """

    times: tuple[float, ...]
    tolerance: float
    timestamp: str | Sequence[Any]


def seconds(times: Sequence[float], tolerance: float = 1e-4, timestamp: str | Sequence[Any] = "timestamp") -> Seconds:
    """Define the frames of a window by time, in seconds from the sample.

    A frame is the sample of the episode whose timestamp is nearest to the wanted time. It is valid if the difference is
    within the tolerance, so frames beyond the episode, or in a gap of the recording, are invalid.

    Parameters
    ----------
    times
        The seconds from each sample, in any order.
    tolerance
        The largest difference in seconds between a frame and its wanted time.
    timestamp
        The column of timestamps in seconds, which increase within an episode.

    Returns
    -------
    Seconds
        The times, for `WindowedBatch`.

    Raises
    ------
    ValueError
        `times` is empty or not finite, or the tolerance is negative.

    Examples
    --------
    >>> WindowedBatch(buffer, {"action": seconds([0, 0.1, 0.2], tolerance=0.01)})  # doctest: +SKIP
    """
    wanted = tuple(float(time) for time in times)
    if not wanted or not np.isfinite(wanted).all():
        raise ValueError(f"times are {list(times)!r}, wanted at least one number of seconds")
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}, it must be 0 or more")
    return Seconds(wanted, float(tolerance), timestamp)


class _Window(NamedTuple):
    """An entry of `windows`: its name, its columns, and their offsets or times."""

    name: str
    paths: list[tuple[Any, ...]]
    offsets: np.ndarray | Seconds

    @property
    def length(self) -> int:
        """The number of frames."""
        return len(self.offsets.times) if isinstance(self.offsets, Seconds) else len(self.offsets)


class _Plan(NamedTuple):
    """The reads for some of the columns: queries by offset, and keys and times by time."""

    queries: list[WindowQuery]
    by_time: list[tuple[tuple[Any, ...], Seconds]]
    #: The names of the windows of each query, then of each entry of `by_time`.
    names: list[list[str]]


class WindowedBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A view in which each column has its own window.

    Sample i contains, for each column, the values at i + offset, along a first axis with one frame for each offset.
    Columns without offsets are left out and not read. The view is read-only: to change the data, write to the batch
    under it.

    A window ends as in `SliceStackedBatch`: at the ends of the episode, if the batch knows its episodes, and at those
    of the batch. An invalid frame repeats the nearest valid frame of the window towards the sample, or the sample
    itself. `slice_valid_mask` in the metadata has a mask of valid frames for each entry of `windows`, under its name.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    windows
        The offsets by column. A key is a path such as "obs/cam", or the path of a dict such as "obs", which applies to
        all its columns without a key of their own. Offsets are integers in any order, with or without 0 (the sample
        itself), or `seconds`.
    episodes
        With "ignore", windows reach over the ends of episodes, even if the batch knows its episodes.
    padding
        Whether the metadata also contain `slice_padding` for each entry of `windows`, as in `SliceStackedBatch`. Not
        possible with `seconds`.

    Raises
    ------
    ValueError
        A path names no column, offsets are invalid, `episodes` has an unknown value, or `padding` is used with windows
        by time or without episodes.
    TypeError
        `windows` is no mapping, or empty.

    Warns
    -----
    UnknownEpisodesWarning
        The batch knows no episodes, so every existing frame is valid. `episodes="ignore"` silences the warning.

    Examples
    --------
    >>> windows = WindowedBatch(buffer, {"obs": [-1, 0], "obs/cam": [0], "action": range(16)})
    >>> data, metadata = StepSampler(windows, 64).sample_with_metadata()
    >>> metadata["slice_valid_mask"]["action"].shape
    (64, 16)
    """

    is_mutable = False

    def __init__(
        self,
        batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        windows: Mapping[str | Sequence[Any], Any],
        *,
        episodes: Literal["respect", "ignore"] = "respect",
        padding: bool = False,
    ) -> None:
        if not isinstance(windows, Mapping) or not windows:
            raise TypeError(
                f"windows are {windows!r}, wanted offsets by column, such as "
                "{'obs': [-1, 0], 'action': range(16)}; one list for whole samples is for SliceStackedBatch"
            )
        space = batch.single_space
        if not isinstance(space, DictSpace):
            raise ValueError(f"samples of {space} have no columns: SliceStackedBatch makes windows of them")
        if episodes not in ("respect", "ignore"):
            raise ValueError(f"episodes is {episodes!r}, it must be 'respect' or 'ignore'")
        self.windows = dict(windows)
        self._windows = _parse_windows(batch, windows)
        self._within_episodes = episodes == "respect"
        if self._within_episodes and not batch.is_segment_aware:
            warn_of_unknown_episodes(batch, type(self).__name__, stacklevel=1)
        self._tells_padding = padding
        if padding:
            check_tells_padding(batch, self._within_episodes)
            if any(isinstance(window.offsets, Seconds) for window in self._windows):
                raise ValueError("padding=True is for windows by offsets, and some of these are by seconds")
        masks = {
            window.name: BinarySpace(batch.backend, (window.length,), device=batch.device) for window in self._windows
        }
        mask_space = DictSpace(batch.backend, masks, batch.device)
        counts = {path: window.length for window in self._windows for path in window.paths}
        metadata_space = with_space(batch.single_metadata_space, space, VALID_MASK, mask_space)
        if padding:
            kinds = {window.name: padding_space(batch, window.length) for window in self._windows}
            kinds_space = DictSpace(batch.backend, kinds, batch.device)
            metadata_space = with_space(metadata_space, space, PADDING, kinds_space)
        super().__init__(batch, _windowed_space(space, counts, ()), metadata_space)
        self._plans: dict[tuple[tuple[Any, ...], bool], _Plan] = {}

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> Any:
        return self._read(idx, (), with_metadata=False)[0]

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, (), with_metadata=True)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self._read(idx, tuple(nested_keys), with_metadata=False)[0]

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, tuple(nested_keys), with_metadata=True)

    def _read(self, idx: Any, keys: tuple[Any, ...], *, with_metadata: bool) -> tuple[Any, dict[str, Any]]:
        plan = self._plan(keys, with_metadata=with_metadata)
        if self.batch.checks_positions and is_plain_index(idx) and not plan.by_time:
            positions = idx
        else:
            positions = np.atleast_1d(np.asarray(resolve_index(self.backend, idx, len(self))))
        read = self.batch.read_column_windows(positions, plan.queries)
        read += [self._read_by_time(positions, below, times) for below, times in plan.by_time]
        data: dict[Any, Any] = {}
        for windows in read[: len(plan.names)]:
            _merge(data, windows.data)
        values = nested_item(data, keys)
        shown: dict[str, Any] = {}
        if with_metadata:
            shown = self._shown_metadata(plan, read)
        if is_single(idx):
            values = get_at(nested_item(self.single_space, keys), values, 0)
            shown = get_at(self.single_metadata_space, shown, 0) if with_metadata else shown
        return values, shown

    def _plan(self, keys: tuple[Any, ...], *, with_metadata: bool) -> _Plan:
        """Return the plan for the field under these keys: the same queries every time."""
        plan = self._plans.get((keys, with_metadata))
        if plan is None:
            plan = self._plans[keys, with_metadata] = self._make_plan(keys, with_metadata=with_metadata)
        return plan

    def _make_plan(self, keys: tuple[Any, ...], *, with_metadata: bool) -> _Plan:
        nested_item(self.single_space, keys)
        by_offsets: dict[bytes, list[_Window]] = {}
        by_time, time_names = [], []
        for window in self._windows:
            paths = [path for path in window.paths if overlap(keys, path)]
            if not paths and not with_metadata:
                continue
            if isinstance(window.offsets, Seconds):
                by_time.append(((Columns.of_paths(paths),), window.offsets))
                time_names.append([window.name])
            else:
                by_offsets.setdefault(window.offsets.tobytes(), []).append(window._replace(paths=paths))
        queries, names, tells_padding = [], [], self._tells_padding and with_metadata
        for group in by_offsets.values():
            offsets, take = any_offsets(self.backend, group[0].offsets)
            fields = Columns.of_paths(path for window in group for path in window.paths)
            queries.append(
                WindowQuery(
                    offsets, (fields,), within_episodes=self._within_episodes, take=take, tells_padding=tells_padding
                )
            )
            names.append([window.name for window in group])
        if with_metadata and self.batch.single_metadata_space is not None:
            queries.append(WindowQuery(np.zeros(1, np.int64), (Columns(()),), with_metadata=True))
            names.append([])
        return _Plan(queries, by_time, names + time_names)

    def _shown_metadata(self, plan: _Plan, read: Sequence[Windows]) -> dict[str, Any]:
        """Return the metadata of the samples with the masks of all windows."""
        metadata: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        kinds: dict[str, Any] = {}
        for windows, names in zip(read, plan.names, strict=True):
            if windows.metadata is not None:
                metadata = merge_axes(self.backend, windows.metadata, windows.valid.shape)
            for name in names:
                masks[name] = self.backend.from_numpy(windows.valid, device=self.device, copy=len(names) > 1)
                if windows.padding is not None:
                    kinds[name] = self.backend.from_numpy(windows.padding, device=self.device, copy=len(names) > 1)
        names_in_order = [window.name for window in self._windows]
        metadata = with_value(metadata, VALID_MASK, {name: masks[name] for name in names_in_order})
        return with_value(metadata, PADDING, {name: kinds[name] for name in names_in_order}) if kinds else metadata

    # -- by time ---------------------------------------------------------------------------------------------

    def _read_by_time(self, positions: np.ndarray, keys: tuple[Any, ...], times: Seconds) -> Windows:
        frames, valid = self._frames_by_time(positions, times)
        data = self.batch.get_column_at(keys, frames.reshape(-1))
        return Windows(split_axis(self.backend, data, frames.shape), valid)

    def _frames_by_time(self, positions: np.ndarray, times: Seconds) -> tuple[np.ndarray, np.ndarray]:
        """Find the samples nearest to the wanted times (B, T) by bisection, and which are within the tolerance."""
        bounds = self.batch.episode_bounds(positions, within_episodes=self._within_episodes)
        stride = np.broadcast_to(bounds.stride, positions.shape)[:, None]
        start, last = bounds.start[:, None], (bounds.stop - 1 - bounds.start)[:, None] // stride
        wanted = self._timestamps(positions, times)[:, None] + np.array(times.times)
        low, high = np.zeros(wanted.shape, np.int64), np.broadcast_to(last, wanted.shape)
        while (low < high).any():
            middle = (low + high + 1) // 2
            is_before = self._timestamps(start + middle * stride, times) <= wanted
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle - 1)
        after = np.minimum(low + 1, last)
        stamps = self._timestamps(np.stack([start + low * stride, start + after * stride]), times)
        error = np.abs(stamps - wanted)
        is_after = error[1] < error[0]
        # float32 timestamps are rounded, so the tolerance is widened by their spacing
        tolerance = times.tolerance + np.spacing(np.abs(stamps).max(axis=0).astype(np.float32)).astype(np.float64)
        return start + np.where(is_after, after, low) * stride, np.where(is_after, error[1], error[0]) <= tolerance

    def _timestamps(self, positions: np.ndarray, times: Seconds) -> np.ndarray:
        keys = path_keys(self.batch.single_space, times.timestamp)
        values = self.backend.to_numpy(self.batch.get_column_at(keys, positions.reshape(-1)))
        return values.reshape(positions.shape).astype(np.float64)


def _parse_windows(batch: BatchBase, windows: Mapping[str | Sequence[Any], Any]) -> list[_Window]:
    space = batch.single_space
    paths = column_paths(space)
    keys: dict[tuple[Any, ...], str] = {}
    parsed: dict[str, Any] = {}
    for column, offsets in windows.items():
        try:
            path = path_keys(space, column)
        except KeyError as error:
            raise ValueError(f"windows: {error.args[0]}") from None
        name = column if isinstance(column, str) else "/".join(map(str, column))
        if not path or path in keys or name in parsed:
            names = ["/".join(map(str, column)) for column in paths]
            raise ValueError(f"windows: {name!r} must name columns of {names}, and only once")
        keys[path], parsed[name] = name, _parse_offsets(batch, name, offsets)
    columns_of: dict[str, list[tuple[Any, ...]]] = {name: [] for name in parsed}
    for path in paths:
        above = [key for key in keys if path[: len(key)] == key]
        if above:
            columns_of[keys[max(above, key=len)]].append(path)
    for name, columns in columns_of.items():
        if not columns:
            raise ValueError(f"windows: {name!r} has no columns left, longer paths name all of them: leave it out")
    return [_Window(name, columns_of[name], parsed[name]) for name in parsed]


def _parse_offsets(batch: BatchBase, name: str, offsets: Any) -> np.ndarray | Seconds:
    if not isinstance(offsets, Seconds):
        values = list(offsets) if isinstance(offsets, range) else offsets
        try:
            every, take = any_offsets(batch.backend, values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"windows: {name!r}: {error}") from None
        return every if take is None else every[take]
    try:
        stamps = nested_item(batch.single_space, path_keys(batch.single_space, offsets.timestamp))
    except KeyError as error:
        raise ValueError(f"windows: {name!r} is by time: {error.args[0]}") from None
    if getattr(stamps, "shape", None) not in ((), (1,)):
        raise ValueError(
            f"windows: {name!r} is by time, {offsets.timestamp!r} has {stamps}, wanted one number per sample"
        )
    return offsets


def _windowed_space(space: Space, counts: Mapping[tuple[Any, ...], int], above: tuple[Any, ...]) -> Any:
    if above in counts:
        return batch_space(space, counts[above])
    children = {}
    for key, child in space.spaces.items():  # type: ignore[attr-defined] # a dict: it is on the way to a column
        if any(path[: len(above) + 1] == (*above, key) for path in counts):
            children[key] = _windowed_space(child, counts, (*above, key))
    return DictSpace(space.backend, children, space.device)


def _merge(target: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    """Merge nested dicts into `target`."""
    for key, value in more.items():
        if isinstance(value, Mapping) and key in target:
            _merge(target[key], value)
        else:
            target[key] = value
