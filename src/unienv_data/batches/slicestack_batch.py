"""Windows: each sample with others at fixed offsets from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import BinarySpace, Space
from unienv_interface.space.space_utils import batch_space, get_at, unflatten_data

from ..base._index import is_plain_index, is_single
from ..base.common import BatchBase, BatchT, resolve_index
from ..base.nested import nested_item
from ..base.windows import (
    WindowQuery,
    Windows,
    lay_out,
    merge_axes,
    nearest_valid,
    parse_offsets,
    split_axis,
    take_frames,
)
from . import _mask_functions
from ._view import BatchView, with_space, with_value

#: From a stack, the indices (B, T) of the frames, their data and their metadata, both (B, T, ...), to booleans (B, T).
MaskFunction = Callable[["SliceStackedBatch", Any, Any, dict[str, Any]], Any]

VALID_MASK = "slice_valid_mask"


class SliceStackedBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A batch that stacks frames with given fixed offsets.

    Sample i becomes the window of the samples at i + offset, along a first axis of as many frames as there are
    offsets. Offsets are sorted, each of them once, and 0 is among them. This is a read-only batch, since it is a view
    of the original batch. If you want to change the data, you should mutate the containing batch instead.

    A window ends where the episode of its sample does, if the batch knows its episodes, and where the samples do, or
    those of one source of a combination. A mask function says instead which frames belong to the episode; what lies
    beyond the samples is never valid. In a buffer whose lanes were recorded side by side, offsets count the samples
    of one lane.

    Frames that are not valid are the next valid one towards the sample itself; without `fill_invalid_data` whatever
    lies there. Metadata has the mask as `slice_valid_mask`, and that of the batch: of the sample itself, or with
    `stack_metadata` of every frame.
    """

    is_mutable = False

    def __init__(
        self,
        batch: BatchBase,
        fixed_offset: Any,
        get_valid_mask_function: MaskFunction | None = None,
        fill_invalid_data: bool = True,
        stack_metadata: bool = False,
    ) -> None:
        offsets = parse_offsets(batch.backend, fixed_offset)
        single_space, count = batch.single_space, len(offsets)
        metadata_space = batch.single_metadata_space
        if metadata_space is not None and stack_metadata:
            metadata_space = batch_space(metadata_space, count)
        mask_space = BinarySpace(batch.backend, (count,), device=batch.device)
        metadata_space = with_space(metadata_space, single_space, VALID_MASK, mask_space)
        super().__init__(batch, batch_space(single_space, count), metadata_space)
        self._place = (batch.backend, batch.device)
        self.fixed_offset = self._as_indices(offsets)
        self.get_valid_mask_function = get_valid_mask_function
        self.fill_invalid_data = fill_invalid_data
        self.stack_metadata = stack_metadata
        # With a mask function nothing is known about episodes until the frames have been read.
        self._query = WindowQuery(offsets, within_episodes=get_valid_mask_function is None, fill=fill_invalid_data)
        self._query_with_metadata = replace(self._query, with_metadata=True)

    def _as_indices(self, values: np.ndarray) -> Any:
        backend, device = self._place
        return backend.from_numpy(values, dtype=backend.default_index_dtype, device=device)

    def _as_mask(self, valid: np.ndarray) -> Any:
        backend, device = self._place
        return backend.from_numpy(valid, device=device)

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
        if self.batch.checks_positions and self.get_valid_mask_function is None and is_plain_index(idx):
            positions = idx
        else:
            positions = np.atleast_1d(np.asarray(resolve_index(self.backend, idx, len(self))))
        if self.get_valid_mask_function is None:
            query = self._query_with_metadata if with_metadata else self._query
            data, valid, metadata = self.batch.read_windows(
                positions, replace(query, nested_keys=keys) if keys else query
            )
        else:
            data, valid, metadata = self._read_masked(positions)
            data = nested_item(data, keys)
        shown = self._shown_metadata(valid, metadata) if with_metadata else {}
        if is_single(idx):
            data = get_at(nested_item(self.single_space, keys), data, 0)
            shown = get_at(self.single_metadata_space, shown, 0) if with_metadata else shown
        return data, shown

    def _read_masked(self, positions: np.ndarray) -> Windows:
        """The windows where a mask function says what is valid."""
        data, there, metadata = self.batch.read_windows(positions, self._query_with_metadata)
        valid = self._ask(self.expand_index(positions), data, metadata or {}) & there
        if self.fill_invalid_data and not valid.all():
            places = nearest_valid(valid, self._query.zero)
            data = take_frames(self.batch.single_space, self.backend, data, valid.shape, places)
            if metadata is not None:
                metadata = take_frames(self.batch.single_metadata_space, self.backend, metadata, valid.shape, places)
        return Windows(data, valid, metadata)

    def _shown_metadata(self, valid: np.ndarray, metadata: dict[str, Any] | None) -> dict[str, Any]:
        """The metadata of windows as this batch gives it."""
        shown = metadata or {}
        if shown and not self.stack_metadata:
            places = np.full((len(valid), 1), self._query.zero)
            frame = take_frames(self.batch.single_metadata_space, self.backend, shown, valid.shape, places)
            shown = merge_axes(self.backend, frame, places.shape)
        return with_value(shown, VALID_MASK, self._as_mask(valid))

    # -- what is valid ---------------------------------------------------------------------------------------

    def expand_index(self, index: Any) -> Any:
        """Expand indexes to slice the data.

        Args: a 1D array of indices to expand. Can be boolean or integer. Returns: a 2D array of indices, where each
        row corresponds to the expanded indices for each batch item; those beyond the samples are the nearest there is.
        """
        positions = np.atleast_1d(np.asarray(resolve_index(self.backend, index, len(self))))
        stretches = self.batch.stretches_of(positions, within_episodes=self._query.within_episodes)
        return self._as_indices(lay_out(positions, replace(self._query, fill=False), stretches, None, len(self))[0])

    def get_valid_mask(self, expanded_idx: Any, data: Any, metadata: dict[str, Any] | None = None) -> Any:
        """Get the valid mask for the data.

        Args: what `expand_index` gave (B, T), the samples at these indices (B, T, ...), and their metadata. Returns:
        the mask (B, T).
        """
        positions = self._positions_of(expanded_idx)
        stretches = self.batch.stretches_of(positions, within_episodes=self._query.within_episodes)
        valid = lay_out(positions, self._query, stretches, None, len(self)).valid
        if self.get_valid_mask_function is not None:
            valid &= self._ask(expanded_idx, data, metadata or {})
        return self._as_mask(valid)

    def get_valid_mask_flattened(self, expanded_idx: Any, data: Any, metadata: dict[str, Any] | None = None) -> Any:
        """Get the valid mask for flattened data: `get_valid_mask` where each frame is flat, data (B, T, D)."""
        if self.get_valid_mask_function is not None:
            shape = tuple(expanded_idx.shape)
            frames = self.backend.reshape(data, (shape[0] * shape[1], data.shape[2]))
            space = batch_space(self.batch.single_space, shape[0] * shape[1])
            data = split_axis(self.backend, unflatten_data(space, frames, start_dim=1), shape)
        return self.get_valid_mask(expanded_idx, data, metadata)

    def _positions_of(self, expanded_idx: Any) -> np.ndarray:
        """The samples whose windows these are: they are there, so that none of them was replaced by another."""
        return self.backend.to_numpy(expanded_idx)[:, self._query.zero].astype(np.int64)

    def _ask(self, expanded_idx: Any, data: Any, metadata: dict[str, Any]) -> np.ndarray:
        """What the mask function says, on the host."""
        if self.get_valid_mask_function is None:
            raise TypeError("there is no mask function to ask")
        mask = self.get_valid_mask_function(self, expanded_idx, data, metadata)
        found = self.backend.to_numpy(mask) if self.backend.is_backendarray(mask) else np.asarray(mask)
        if found.dtype != np.bool_ or found.shape != tuple(expanded_idx.shape):
            raise ValueError(
                f"the mask function gave {found.dtype} of shape {found.shape}, "
                f"wanted booleans of shape {tuple(expanded_idx.shape)}"
            )
        return found

    def fill_data_with_stack_mask(self, space: Space | None, data: Any, valid_mask: Any) -> Any:
        """Fill the data with the mask as if the frames were frame-stacked.

        Args: the space of a frame, or None if the data is a backend array; the data (B, T, ...); the mask (B, T).
        Returns: the data in which each frame that is not valid is the next valid one towards offset 0.
        """
        backend = self.backend
        valid = backend.to_numpy(valid_mask) if backend.is_backendarray(valid_mask) else np.asarray(valid_mask)
        return take_frames(space, backend, data, valid.shape, nearest_valid(valid, self._query.zero))

    get_valid_mask_function_with_episodeid_key = staticmethod(_mask_functions.same_episode)
    get_valid_mask_function_with_episode_end_key = staticmethod(_mask_functions.before_episode_end)
