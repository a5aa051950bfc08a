"""A view of windows, the samples at fixed offsets from each sample, and masks of the frames in its episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import BinarySpace, BoxSpace, Space
from unienv_interface.space.space_utils import batch_space, get_at, unflatten_data

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.index import is_plain_index, is_single
from ..base.nested import nested_item
from ..base.windows import (
    ColumnMask,
    Padding,
    WindowQuery,
    Windows,
    merge_axes,
    nearest_valid,
    parse_offsets,
    split_axis,
    take_frames,
    window_frames,
)
from ._view import BatchView, warn_of_unknown_episodes, with_space, with_value

#: Takes a stack, the indices (B, T) of frames, their data and metadata (B, T, ...), and returns booleans (B, T).
MaskFunction = Callable[["SliceStackedBatch", Any, Any, dict[str, Any]], Any]

VALID_MASK = "slice_valid_mask"
PADDING = "slice_padding"


@dataclass(frozen=True)
class SameEpisode(ColumnMask):
    """A mask function: a frame is valid if it has the episode id of the sample."""

    key: str | int
    is_in_metadata: bool

    def __call__(self, stack: SliceStackedBatch, expanded_idx: Any, data: Any, metadata: dict[str, Any]) -> np.ndarray:
        ids = _values(stack, metadata if self.is_in_metadata else data, self.key)
        return self.valid_frames(ids, *stack.host_offsets)

    def valid_frames(self, values: np.ndarray, offsets: np.ndarray, zero: int) -> np.ndarray:
        return _per_frame(values == values[:, zero : zero + 1], np.all)


@dataclass(frozen=True)
class BeforeEpisodeEnd(ColumnMask):
    """A mask function: a frame is valid if no episode ends between the frame and the sample.

    A sample that ends an episode belongs to this episode.
    """

    key: str | int
    is_in_metadata: bool
    looks_between: ClassVar[bool] = True

    def __call__(self, stack: SliceStackedBatch, expanded_idx: Any, data: Any, metadata: dict[str, Any]) -> np.ndarray:
        offsets, zero = stack.host_offsets
        dense = np.arange(offsets[0], offsets[-1] + 1)
        if len(dense) == len(offsets):
            is_end = _values(stack, metadata if self.is_in_metadata else data, self.key)
        else:
            is_end = self._read(stack, stack.backend.to_numpy(expanded_idx)[:, zero], dense)
        return self.valid_frames(is_end, offsets, zero)

    def valid_frames(self, values: np.ndarray, offsets: np.ndarray, zero: int) -> np.ndarray:
        ends = np.cumsum(_per_frame(values != 0, np.any), axis=1)  # up to and including each frame
        before = np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1)[:, offsets - offsets[0]]
        return before == before[:, zero : zero + 1]

    def _read(self, stack: SliceStackedBatch, positions: np.ndarray, dense: np.ndarray) -> np.ndarray:
        """Read the flags of all samples from the first frame to the last."""
        bounds = stack.batch.episode_bounds(positions, within_episodes=False)
        query = WindowQuery(dense, within_episodes=False, fill=False)
        frames = window_frames(positions, query, bounds, None, len(stack.batch)).positions
        index: Any = frames.reshape(-1)
        if self.is_in_metadata:
            flags = _values(stack, stack.batch.get_at_with_metadata(index)[1] or {}, self.key)
        else:
            flags = _values(stack, {self.key: stack.batch.get_column_at((self.key,), index)}, self.key)
        return flags.reshape(*frames.shape, *flags.shape[1:])


class SliceStackedBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A view of windows: the samples at fixed offsets from each sample.

    Sample i becomes the window of the samples at i + offset, along a first axis with one frame for each offset. The
    view is read-only: to change the data, write to the batch under it.

    A window ends at the ends of its episode, if the batch knows its episodes, at the ends of the batch, and at the ends
    of one source of a combination. In a buffer with lanes, offsets count the samples of one lane. The metadata contain
    the mask of valid frames, `slice_valid_mask`, and the metadata of the batch.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    fixed_offset
        The offsets of the frames: sorted integers without repetition, with 0 (the sample itself) among them.
    get_valid_mask_function
        A function that decides which frames are valid, instead of the episodes of the batch. It gets the stack, the
        indices (B, T) of the frames, their data and their metadata, and returns booleans (B, T). Frames beyond the
        batch are never valid. `get_valid_mask_function_with_episodeid_key` and `..._with_episode_end_key` make such
        functions.
    fill_invalid_data
        Whether an invalid frame repeats the nearest valid frame towards the sample; otherwise its values are arbitrary.
    stack_metadata
        Whether the metadata have an entry for every frame; otherwise they are the metadata of the sample.
    episodes
        With "ignore", windows reach over the ends of episodes, even if the batch knows its episodes.
    padding
        Whether the metadata also contain `slice_padding`: for each frame a number of `Padding`, which says why the
        frame is padding.

    Warns
    -----
    UnknownEpisodesWarning
        The batch knows no episodes and there is no mask function, so every existing frame is valid.
        `episodes="ignore"` silences the warning.

    Raises
    ------
    ValueError
        The offsets are not sorted integers with 0 among them, `episodes` has an unknown value, or `padding` is used
        without the episodes of the batch.
    TypeError
        The offsets are given by column; use a `WindowedBatch`.

    Examples
    --------
    >>> windows = SliceStackedBatch(buffer, [-2, -1, 0])
    >>> data, metadata = windows.get_at_with_metadata(slice(0, 64))
    >>> metadata["slice_valid_mask"].shape
    (64, 3)
    """

    is_mutable = False

    def __init__(
        self,
        batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        fixed_offset: Any,
        get_valid_mask_function: MaskFunction | None = None,
        fill_invalid_data: bool = True,
        stack_metadata: bool = False,
        *,
        episodes: Literal["respect", "ignore"] = "respect",
        padding: bool = False,
    ) -> None:
        if isinstance(fixed_offset, Mapping):
            raise TypeError(f"offsets by column are for WindowedBatch: WindowedBatch(batch, {dict(fixed_offset)!r})")
        if episodes not in ("respect", "ignore"):
            raise ValueError(f"episodes is {episodes!r}, it must be 'respect' or 'ignore'")
        if episodes == "respect" and get_valid_mask_function is None and not batch.is_segment_aware:
            level = 1 if type(self) is SliceStackedBatch else 2  # the caller's line, also through a subclass
            give_mask = "give get_valid_mask_function=..., "
            warn_of_unknown_episodes(batch, type(self).__name__, or_else=give_mask, stacklevel=level)
        if padding:
            check_tells_padding(batch, episodes == "respect" and get_valid_mask_function is None)
        offsets = parse_offsets(batch.backend, fixed_offset)
        single_space, count = batch.single_space, len(offsets)
        metadata_space = batch.single_metadata_space
        if metadata_space is not None and stack_metadata:
            metadata_space = batch_space(metadata_space, count)
        mask_space = BinarySpace(batch.backend, (count,), device=batch.device)
        metadata_space = with_space(metadata_space, single_space, VALID_MASK, mask_space)
        if padding:
            metadata_space = with_space(metadata_space, single_space, PADDING, padding_space(batch, count))
        super().__init__(batch, batch_space(single_space, count), metadata_space)
        self._backend_and_device = (batch.backend, batch.device)
        self.fixed_offset = self._as_indices(offsets)
        self.get_valid_mask_function = get_valid_mask_function
        self.fill_invalid_data = fill_invalid_data
        self.stack_metadata = stack_metadata
        # A mask function needs the data of the frames, so the query itself ignores episodes.
        within = get_valid_mask_function is None and episodes == "respect"
        self._query = WindowQuery(offsets, within_episodes=within, fill=fill_invalid_data, tells_padding=padding)
        mask = get_valid_mask_function
        if (
            isinstance(mask, (SameEpisode, BeforeEpisodeEnd))
            and not mask.is_in_metadata
            and (self._query.is_dense or not mask.looks_between)
            and batch.applies_mask((mask.key,))
        ):
            self._query = replace(self._query, mask=mask, mask_keys=(mask.key,))
        self._queries: dict[tuple[tuple[Any, ...], bool], WindowQuery] = {}

    @property
    def host_offsets(self) -> tuple[np.ndarray, int]:
        """The offsets as a host array, and the index of the offset 0."""
        return self._query.offsets, self._query.zero

    def _as_indices(self, values: np.ndarray) -> Any:
        backend, device = self._backend_and_device
        return backend.from_numpy(values, dtype=backend.default_index_dtype, device=device)

    def _as_mask(self, frames: np.ndarray) -> Any:
        backend, device = self._backend_and_device
        return backend.from_numpy(frames, device=device)

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> BatchT:
        return self._read(idx, (), with_metadata=False)[0]

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, (), with_metadata=True)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self._read(idx, tuple(nested_keys), with_metadata=False)[0]

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, tuple(nested_keys), with_metadata=True)

    def _query_for(self, keys: tuple[Any, ...], *, with_metadata: bool) -> WindowQuery:
        """Return the query for the field under these keys: the same object every time."""
        query = self._queries.get((keys, with_metadata))
        if query is None:
            tells_padding = self._query.tells_padding and with_metadata
            query = replace(self._query, nested_keys=keys, with_metadata=with_metadata, tells_padding=tells_padding)
            self._queries[keys, with_metadata] = query
        return query

    def _read(self, idx: Any, keys: tuple[Any, ...], *, with_metadata: bool) -> tuple[Any, dict[str, Any]]:
        masks_data = self.get_valid_mask_function is not None and self._query.mask is None
        if self.batch.checks_positions and not masks_data and is_plain_index(idx):
            positions = idx
        else:
            positions = np.atleast_1d(np.asarray(resolve_index(self.backend, idx, len(self))))
        if masks_data:
            windows = self._read_masked(positions)
            data = nested_item(windows.data, keys)
        else:
            windows = self.batch.read_windows(positions, self._query_for(keys, with_metadata=with_metadata))
            data = windows.data
        shown = self._shown_metadata(windows) if with_metadata else {}
        if is_single(idx):
            data = get_at(nested_item(self.single_space, keys), data, 0)
            shown = get_at(self.single_metadata_space, shown, 0) if with_metadata else shown
        return data, shown

    def _read_masked(self, positions: np.ndarray) -> Windows:
        """Read the windows and call the mask function for the valid frames."""
        data, in_batch, metadata, _ = self.batch.read_windows(positions, self._query_for((), with_metadata=True))
        valid = self._call_mask(self.expand_index(positions), data, metadata or {}) & in_batch
        if self.fill_invalid_data and not valid.all():
            frames = nearest_valid(valid, self._query.zero)
            data = take_frames(self.batch.single_space, self.backend, data, valid.shape, frames)
            if metadata is not None:
                metadata = take_frames(self.batch.single_metadata_space, self.backend, metadata, valid.shape, frames)
        return Windows(data, valid, metadata)

    def _shown_metadata(self, windows: Windows) -> dict[str, Any]:
        """Convert the metadata of windows to the metadata of this view."""
        shown, valid = windows.metadata or {}, windows.valid
        if shown and not self.stack_metadata:
            frames = np.full((len(valid), 1), self._query.zero)
            frame = take_frames(self.batch.single_metadata_space, self.backend, shown, valid.shape, frames)
            shown = merge_axes(self.backend, frame, frames.shape)
        shown = with_value(shown, VALID_MASK, self._as_mask(valid))
        return shown if windows.padding is None else with_value(shown, PADDING, self._as_mask(windows.padding))

    # -- masks -----------------------------------------------------------------------------------------------

    def expand_index(self, index: Any) -> Any:
        """Expand indices of samples to the indices of the frames of their windows.

        Parameters
        ----------
        index
            An index of any kind; a boolean array is a mask.

        Returns
        -------
        array
            An array of the backend (B, T), with a window in each row. A frame beyond the batch has the nearest index.
        """
        positions = np.atleast_1d(np.asarray(resolve_index(self.backend, index, len(self))))
        bounds = self.batch.episode_bounds(positions, within_episodes=self._query.within_episodes)
        unfilled = replace(self._query, fill=False)
        return self._as_indices(window_frames(positions, unfilled, bounds, None, len(self)).positions)

    def get_valid_mask(self, expanded_idx: Any, data: Any, metadata: dict[str, Any] | None = None) -> Any:
        """Decide which frames of windows are valid.

        Parameters
        ----------
        expanded_idx
            The result of `expand_index` (B, T).
        data
            The samples at these indices (B, T, ...).
        metadata
            Their metadata (B, T, ...).

        Returns
        -------
        array
            The mask, booleans of the backend (B, T).

        Raises
        ------
        ValueError
            The mask function did not return booleans (B, T).
        """
        positions = self.backend.to_numpy(expanded_idx)[:, self._query.zero].astype(np.int64)  # never replacements
        bounds = self.batch.episode_bounds(positions, within_episodes=self._query.within_episodes)
        valid = window_frames(positions, self._query, bounds, None, len(self)).valid
        if self.get_valid_mask_function is not None:
            valid &= self._call_mask(expanded_idx, data, metadata or {})
        return self._as_mask(valid)

    def get_valid_mask_flattened(self, expanded_idx: Any, data: Any, metadata: dict[str, Any] | None = None) -> Any:
        """Decide which frames of windows are valid: `get_valid_mask` for flat frames, data (B, T, D)."""
        if self.get_valid_mask_function is not None:
            shape = tuple(expanded_idx.shape)
            frames = self.backend.reshape(data, (shape[0] * shape[1], data.shape[2]))
            space = batch_space(self.batch.single_space, shape[0] * shape[1])
            data = split_axis(self.backend, unflatten_data(space, frames, start_dim=1), shape)
        return self.get_valid_mask(expanded_idx, data, metadata)

    def _call_mask(self, expanded_idx: Any, data: Any, metadata: dict[str, Any]) -> np.ndarray:
        """Call the mask function, check its result, and return it on the host."""
        if self.get_valid_mask_function is None:
            raise TypeError("the view has no mask function: pass get_valid_mask_function")
        mask = self.get_valid_mask_function(self, expanded_idx, data, metadata)
        valid = self.backend.to_numpy(mask) if self.backend.is_backendarray(mask) else np.asarray(mask)
        if valid.dtype != np.bool_ or valid.shape != tuple(expanded_idx.shape):
            raise ValueError(
                f"the mask function returned {valid.dtype} of shape {valid.shape}, "
                f"wanted booleans of shape {tuple(expanded_idx.shape)}"
            )
        return valid

    def fill_data_with_stack_mask(self, space: Space | None, data: Any, valid_mask: Any) -> Any:
        """Replace each invalid frame by the next valid frame towards offset 0.

        Parameters
        ----------
        space
            The space of a frame; None if the data is one array of the backend.
        data
            The frames of windows (B, T, ...).
        valid_mask
            Which of the frames are valid (B, T).
        """
        backend = self.backend
        valid = backend.to_numpy(valid_mask) if backend.is_backendarray(valid_mask) else np.asarray(valid_mask)
        return take_frames(space, backend, data, valid.shape, nearest_valid(valid, self._query.zero))

    @staticmethod
    def get_valid_mask_function_with_episodeid_key(
        episode_id_key: str | int = "episode_id", is_in_metadata: bool = False
    ) -> MaskFunction:
        """Make a mask function for samples, or metadata, with the id of their episode under a key.

        Parameters
        ----------
        episode_id_key
            The key of the ids; neighbouring episodes must have different ids.
        is_in_metadata
            Whether the ids are in the metadata of the batch instead of its samples.

        Examples
        --------
        >>> mask = SliceStackedBatch.get_valid_mask_function_with_episodeid_key("episode_id")
        >>> windows = FrameStackedBatch(buffer, 15, get_valid_mask_function=mask)
        """
        return SameEpisode(episode_id_key, is_in_metadata)

    @staticmethod
    def get_valid_mask_function_with_episode_end_key(
        episode_end_key: str | int = "episode_end", is_in_metadata: bool = False
    ) -> MaskFunction:
        """Make a mask function for samples, or metadata, with a flag that is true at the last step of each episode.

        With gaps between the offsets, the flags of the samples in the gaps are read too.

        Parameters
        ----------
        episode_end_key
            The key of the flags.
        is_in_metadata
            Whether the flags are in the metadata of the batch instead of its samples.
        """
        return BeforeEpisodeEnd(episode_end_key, is_in_metadata)


def check_tells_padding(batch: BatchBase, within_episodes: bool) -> None:
    """Raise a ValueError unless windows of a batch end at episodes that the batch knows."""
    if not (within_episodes and batch.is_segment_aware):
        raise ValueError(
            f"padding=True needs a batch that knows its episodes, and windows that end there: leave out the mask "
            f'function and episodes="ignore", and make {batch!r} with keep_episodes=True or lanes=N'
        )


def padding_space(batch: BatchBase, count: int) -> BoxSpace:
    """Return the space of the `Padding` of a window."""
    return BoxSpace(batch.backend, 0, int(max(Padding)), "uint8", batch.device, shape=(count,))


def _values(stack: SliceStackedBatch, holder: Any, key: str | int) -> np.ndarray:
    """Return the values under a key, on the host."""
    column = nested_item(holder, (key,))
    return stack.backend.to_numpy(column) if stack.backend.is_backendarray(column) else np.asarray(column)


def _per_frame(flags: np.ndarray, combine: Callable[..., Any]) -> np.ndarray:
    """Reduce flags (B, T, ...) to one flag per frame (B, T)."""
    return flags if flags.ndim == 2 else combine(flags, axis=tuple(range(2, flags.ndim)))
