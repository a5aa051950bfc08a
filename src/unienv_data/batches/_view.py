"""The base of views over one batch, and metadata with one more entry."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import DictSpace, Space

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.index import is_plain_index
from ..base.windows import EpisodeMarks, Episodes, UnknownEpisodesWarning, WindowQuery


class BatchView(BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A view with one sample for each sample of the batch under it, in the same order; read-only by default."""

    def __init__(self, batch: BatchBase, single_space: Space, single_metadata_space: DictSpace | None) -> None:
        super().__init__(single_space, single_metadata_space)
        self.batch = batch
        self.is_segment_aware = batch.is_segment_aware

    def __len__(self) -> int:
        return len(self.batch)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.batch!r}>"

    @property
    def may_grow(self) -> bool:
        return self.batch.may_grow

    @property
    def sample_numbers(self) -> range:
        return self.batch.sample_numbers

    @property
    def renumbered(self) -> int:
        return self.batch.renumbered

    def get_segments(self) -> list[tuple[int, int]] | None:
        return self.batch.get_segments()

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        return self.batch.episodes_of(positions)

    def episode_marks(self, positions: np.ndarray) -> EpisodeMarks | None:
        return self.batch.episode_marks(positions)

    def episode_bounds(self, positions: np.ndarray, *, within_episodes: bool = True) -> Episodes:
        return self.batch.episode_bounds(positions, within_episodes=within_episodes)

    def _unsupported(self, verb: str) -> TypeError:
        reason = "does not support it" if self.is_mutable else "is read-only"
        under = type(self.batch).__name__
        return TypeError(f"{verb}: {type(self).__name__} {reason}: change the {under} under it, its `batch`, instead")


class QueriesBelow:
    """Translates a view's queries for the batch under it, and returns the same objects for the same queries."""

    def __init__(self, translate: Callable[[WindowQuery], WindowQuery]) -> None:
        self._translate = translate
        self._last: tuple[tuple[WindowQuery, ...], tuple[WindowQuery, ...]] = ((), ())

    def of(self, queries: Sequence[WindowQuery]) -> tuple[WindowQuery, ...]:
        known, below = self._last
        if len(known) != len(queries) or any(old is not new for old, new in zip(known, queries, strict=True)):
            below = tuple(map(self._translate, queries))
            self._last = (tuple(queries), below)
        return below


def warn_of_unknown_episodes(batch: BatchBase, view: str, *, or_else: str = "", stacklevel: int) -> None:
    """Warn that windows go over a batch that knows no episodes; `stacklevel` counts from the caller's caller."""
    warnings.warn(
        f"{type(batch).__name__} does not know its episodes, so windows reach from one into the next, and every frame "
        f"counts as valid: keep episodes (ReplayBuffer.create(..., keep_episodes=True), or lanes=N for a batch of N "
        f'environments), {or_else}or write {view}(..., episodes="ignore") if that is meant',
        UnknownEpisodesWarning,
        stacklevel=stacklevel + 2,
    )


def check_knows_episodes(batch: BatchBase, view: str) -> None:
    """Raise a ValueError unless a batch knows its episodes."""
    if not batch.is_segment_aware:
        raise ValueError(
            f"{view} stays inside episodes, and {batch!r} keeps none: make the buffer with keep_episodes=True, or with "
            f"lanes=N for N environments side by side"
        )


def positions_below(batch: BatchBase, idx: Any) -> int | np.ndarray:
    """Resolve an index of a view to positions in the batch under it, unchecked if the batch `checks_positions`.

    While a writer is active, only the read itself knows the number of samples.
    """
    if batch.checks_positions and is_plain_index(idx) and (not idx.size or idx.item(idx.argmin()) >= 0):
        positions: np.ndarray = idx
        return positions
    return resolve_index(batch.backend, idx, len(batch))


INNER = "inner_"


def with_space(space: DictSpace | None, like: Space, key: str, added: Space) -> DictSpace:
    """Return the space of `with_value`; without metadata, `like` gives backend and device."""
    return DictSpace(like.backend, with_value({} if space is None else dict(space.spaces), key, added), like.device)


def with_value(metadata: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Add an entry to metadata; an existing entry of that name, from a view below, gets the prefix `inner_`."""
    if key in metadata:
        metadata = with_value({name: old for name, old in metadata.items() if name != key}, INNER + key, metadata[key])
    return {**metadata, key: value}
