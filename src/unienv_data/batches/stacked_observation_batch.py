"""Transitions whose observations are stacks of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space.space import parse_integer
from unienv_interface.space.space_utils import batch_space, get_at
from unienv_interface.space.spaces import ArraySpace

from ..base.common import BatchBase, BatchT
from ..base.nested import Columns, Keys, column_paths, nested_item, overlap, path_keys, with_nested_item
from ..base.windows import WindowQuery, Windows, frames_at
from ._view import BatchView, check_knows_episodes, positions_below

_FIRST: tuple[Any, Any] = (slice(None), 0)  # of windows (B, 1)


class StackedObservationBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Transitions of single frames as transitions of stacks, such as the last four frames of Atari.

    `obs` becomes the last `frames` observations of the episode, oldest first, and `next_obs` the stack one step later.
    At the start of an episode its first observation is repeated, as in `FrameStackWrapper`. An agent trained on stacks
    thus sees its own observations, while the buffer stores each frame once. Other columns, and metadata, are unchanged.
    The view is read-only; an `NStepBatch` or a sampler can go over it.

    If a ring has overwritten the earlier frames of an episode, its oldest frame is repeated.

    Parameters
    ----------
    batch
        The transitions, of a `DictSpace`; it stays open when the view is closed. It must know its episodes, as a replay
        buffer with `keep_episodes` or with lanes does.
    frames
        The number of frames in a stack.
    obs, next_obs
        The columns of the frames, each a path such as "obs/camera" or a sequence of keys. For a second camera, make a
        view of the view.

    Raises
    ------
    KeyError
        A column is missing.
    ValueError
        `frames` is less than 1, the columns are not arrays of the same space, or the batch does not know its episodes.

    Examples
    --------
    >>> batch = StackedObservationBatch(buffer, 4)
    >>> sampler = StepSampler(NStepBatch(batch, n=3, gamma=0.99), 32, seed=0)
    """

    is_mutable = False

    def __init__(
        self,
        batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        frames: int,
        *,
        obs: Keys = "obs",
        next_obs: Keys = "next_obs",
    ) -> None:
        self.frames = parse_integer(frames, "frames")
        if self.frames < 1:
            raise ValueError(f"frames is {frames}, it must be at least 1")
        check_knows_episodes(batch, type(self).__name__)
        space = batch.single_space
        self._obs, self._next_obs = path_keys(space, obs), path_keys(space, next_obs)
        frame, following = nested_item(space, self._obs), nested_item(space, self._next_obs)
        if not isinstance(frame, ArraySpace) or frame != following:
            raise ValueError(f"{obs}: {frame} and {next_obs}: {following}, wanted two columns of the same array space")
        stack = batch_space(frame, self.frames)
        space = with_nested_item(with_nested_item(space, self._obs, stack), self._next_obs, stack)
        super().__init__(batch, space, batch.single_metadata_space)
        self.has_column_access = batch.has_column_access
        offsets = np.arange(1 - self.frames, 1)
        self._obs_query, self._next_query = WindowQuery(offsets, self._obs), WindowQuery(offsets, self._next_obs)
        self._oldest_query = replace(self._obs_query, take=np.zeros(1, np.int64))
        self._other_queries: dict[tuple[tuple[Any, ...], bool], WindowQuery] = {}

    def get_at(self, idx: Any) -> BatchT:
        data: BatchT = self._read(idx, (), with_metadata=False)[0]
        return data

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._read(idx, (), with_metadata=True)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self._read(idx, tuple(nested_keys), with_metadata=False)[0]

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._read(idx, tuple(nested_keys), with_metadata=True)

    def _read(self, idx: Any, keys: tuple[Any, ...], *, with_metadata: bool) -> tuple[Any, dict[str, Any] | None]:
        index = positions_below(self.batch, idx)
        positions = np.array([index]) if isinstance(index, int) else index
        has_obs, has_next = overlap(keys, self._obs), overlap(keys, self._next_obs)
        queries = [self._query_of_others(keys, with_metadata=with_metadata)]
        if has_obs or has_next:
            queries.append(self._obs_query if has_obs else self._oldest_query)
        if has_next:
            queries.append(self._next_query)
        others, *stacks = self.batch.read_column_windows(positions, queries)
        data = frames_at(others.data, _FIRST)
        if has_obs:
            data = with_nested_item(data, self._obs, stacks[0].data)
        if has_next:
            data = with_nested_item(data, self._next_obs, self._begun(stacks[1], stacks[0].data[_FIRST]))
        values = nested_item(data, keys)
        metadata = None if others.metadata is None else frames_at(others.metadata, _FIRST)
        if isinstance(index, int):
            values = get_at(nested_item(self.single_space, keys), values, 0)
            space = self.single_metadata_space
            metadata = None if metadata is None or space is None else get_at(space, metadata, 0)
        return values, metadata

    def _begun(self, stacks: Windows, oldest: Any) -> Any:
        """Fill the invalid frames of `next_obs` stacks, before the first step, with the episode's first observation."""
        windows, frames = (~stacks.valid).nonzero()
        if not len(windows):
            return stacks.data
        window_index, frame_index = (self.backend.from_numpy(array, device=self.device) for array in (windows, frames))
        copy = None if self.has_column_access else True  # arrays of a storage belong to the caller
        return self.backend.at(stacks.data)[window_index, frame_index].set(oldest[window_index], copy=copy)

    def _query_of_others(self, keys: tuple[Any, ...], *, with_metadata: bool) -> WindowQuery:
        """Return the query for the other columns under these keys: the same object every time."""
        query = self._other_queries.get((keys, with_metadata))
        if query is None:
            paths = [path for path in column_paths(self.batch.single_space) if overlap(keys, path)]
            fields = Columns.of_paths(path for path in paths if path not in (self._obs, self._next_obs))
            query = WindowQuery(np.zeros(1, np.int64), (fields,), with_metadata=with_metadata)
            self._other_queries[keys, with_metadata] = query
        return query
