"""Mask functions: which frames of windows lie in the episode of their sample, told by what the samples say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.nested import nested_item

if TYPE_CHECKING:
    from .slicestack_batch import SliceStackedBatch


@dataclass(frozen=True)
class SameEpisode:
    """Frames are valid that have the episode id of the sample itself."""

    key: str | int
    is_in_metadata: bool

    def __call__(self, stack: SliceStackedBatch, expanded_idx: Any, data: Any, metadata: dict[str, Any]) -> np.ndarray:
        ids = _values(stack, metadata if self.is_in_metadata else data, self.key)
        return _per_frame(ids == ids[:, _zero(stack)][:, None], np.all)


@dataclass(frozen=True)
class BeforeEpisodeEnd:
    """Frames are valid between which and the sample itself no episode ends; a sample that ends one belongs to it."""

    key: str | int
    is_in_metadata: bool

    def __call__(self, stack: SliceStackedBatch, expanded_idx: Any, data: Any, metadata: dict[str, Any]) -> np.ndarray:
        offsets, zero = stack.backend.to_numpy(stack.fixed_offset), _zero(stack)
        dense = np.arange(offsets[0], offsets[-1] + 1)
        if len(dense) == len(offsets):
            is_end = _values(stack, metadata if self.is_in_metadata else data, self.key)
        else:
            is_end = self._of_all(stack, stack.backend.to_numpy(expanded_idx)[:, zero], dense)
        ends = np.cumsum(_per_frame(is_end != 0, np.any), axis=1)  # up to and with each frame
        before = np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1)[:, offsets - offsets[0]]
        return before == before[:, zero][:, None]

    def _of_all(self, stack: SliceStackedBatch, positions: np.ndarray, dense: np.ndarray) -> np.ndarray:
        """The flags of all samples from the first frame to the last: an episode may end where offsets leave a gap."""
        every = stack.batch.stretches_of(positions, within_episodes=False).stride
        frames = positions[:, None] + dense * (every if isinstance(every, int) else every[:, None])
        index: Any = np.clip(frames, 0, len(stack.batch) - 1).reshape(-1)
        if self.is_in_metadata:
            flags = _values(stack, stack.batch.get_at_with_metadata(index)[1] or {}, self.key)
        else:
            flags = _values(stack, {self.key: stack.batch.get_column_at((self.key,), index)}, self.key)
        return flags.reshape(*frames.shape, *flags.shape[1:])


def same_episode(
    episode_id_key: str | int = "episode_id", is_in_metadata: bool = False
) -> Callable[[SliceStackedBatch, Any, Any, dict[str, Any]], Any]:
    """A mask function for samples, or metadata, that have the id of their episode under this key."""
    return SameEpisode(episode_id_key, is_in_metadata)


def before_episode_end(
    episode_end_key: str | int = "episode_end", is_in_metadata: bool = False
) -> Callable[[SliceStackedBatch, Any, Any, dict[str, Any]], Any]:
    """A mask function for samples, or metadata, that have under this key whether they are the last of their episode.

    With gaps between the offsets, the flags of the samples in the gaps are read too.
    """
    return BeforeEpisodeEnd(episode_end_key, is_in_metadata)


def _zero(stack: SliceStackedBatch) -> int:
    """Where in a window the sample itself stands."""
    return int(np.searchsorted(stack.backend.to_numpy(stack.fixed_offset), 0))


def _values(stack: SliceStackedBatch, holder: Any, key: str | int) -> np.ndarray:
    """What lies under a key, on the host."""
    found = nested_item(holder, (key,))
    return stack.backend.to_numpy(found) if stack.backend.is_backendarray(found) else np.asarray(found)


def _per_frame(flags: np.ndarray, combine: Callable[..., Any]) -> np.ndarray:
    """One flag per frame (B, T), where a value may have further axes."""
    return combine(flags, axis=tuple(range(2, flags.ndim)))
