"""Samples in a list, in this process's memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base.index import resolve_index
from ..base.row_storage import RowStorage
from ._options import checks_options
from .packed import PackedStorage
from .registry import register_storage

__all__ = ["ListStorage"]

_COPY_COUNT = 256


@register_storage("list")
class ListStorage(RowStorage):
    """Samples in a list: only samples that were written take memory, and growing copies nothing.

    It is always in memory, whatever `cache_path` says: `dumps` writes the samples as a `PackedStorage` would, and
    `load_from` reads all of them. A batch costs a step of Python per sample, so a `PackedStorage` is the quicker
    choice; this one suits samples that differ much in size, or few of them.

    Parameters
    ----------
    single_instance_space
        The space of one sample.
    capacity
        How many slots there are; None for a storage that grows.

    Raises
    ------
    ValueError
        `capacity` is below 1.

    Examples
    --------
    >>> buffer = ReplayBuffer.create("list", transition_space(env, episode_id=True), capacity=None)  # grows
    >>> buffer.append(transition)
    >>> len(buffer)
    1
    """

    def __init__(self, single_instance_space: Space, capacity: int | None = None) -> None:
        super().__init__(single_instance_space)
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1, or None to grow")
        self.capacity = capacity
        self.layout = RowLayout(single_instance_space)
        # what slots hold that were never written
        self._blank = self._leaves_of(single_instance_space.create_empty())
        # one entry a slot: the leaves of a sample as `RowLayout` encodes them
        self._samples: list[list[Any]] = [self._blank] * (capacity or 0)

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        cache_path: str | os.PathLike[str] | None = None,
        multiprocessing: bool = False,
    ) -> ListStorage:
        """Create a new storage in the memory of this process.

        Parameters
        ----------
        single_instance_space, capacity
            As for every storage.
        cache_path
            Ignored.
        multiprocessing
            Must be False.

        Raises
        ------
        ValueError
            `multiprocessing` is True, or `capacity` is below 1.
        """
        if multiprocessing:
            raise ValueError("a list is the memory of one process: use a PackedStorage with multiprocessing=True")
        return cls(single_instance_space, capacity)

    @classmethod
    def load_from(
        cls,
        path: str | os.PathLike[str],
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> ListStorage:
        """What was dumped to a path, in memory: what is written then does not change the files."""
        storage = cls(single_instance_space, capacity)
        with contextlib.closing(PackedStorage.load_from(path, single_instance_space, capacity=capacity)) as stored:
            storage.extend_length(len(stored))
            for start in range(0, len(stored), _COPY_COUNT):
                part = slice(start, min(start + _COPY_COUNT, len(stored)))
                storage.write(part, storage.encode(stored.get(part), part.stop - part.start), start)
        storage.is_mutable = not read_only
        return storage

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, index: Any) -> Any:
        slots = resolve_index(self.backend, index, len(self._samples))
        chosen = [slots] if isinstance(slots, int) else slots.tolist()
        rows = self.layout.empty(len(chosen))
        for row, slot in enumerate(chosen):
            self.layout.write(rows, row, self.layout.store(self._samples[slot], rows.heap))
        return self.layout.unpack(rows[0] if isinstance(slots, int) else rows)

    def set(self, index: Any, value: Any) -> None:
        if not self.is_mutable:
            raise PermissionError("the storage was opened read-only: open it with read_only=False to write")
        slots = resolve_index(self.backend, index, len(self._samples))
        if isinstance(slots, int):
            self._samples[slots] = self.encode(value, None)
        else:
            for slot, sample in zip(slots.tolist(), self.encode(value, len(slots)), strict=True):
                self._samples[slot] = sample

    def extend_length(self, length: int) -> None:
        if self.capacity is None:
            self._samples += [self._blank] * length

    def shrink_length(self, length: int) -> None:
        if self.capacity is None:
            if not 0 <= length <= len(self._samples):
                raise ValueError(f"cannot shrink by {length}, there are {len(self._samples)} slots")
            del self._samples[len(self._samples) - length :]

    def clear(self) -> None:
        self._samples = [self._blank] * (self.capacity or 0)

    @property
    def nbytes(self) -> int:
        written = (sample for sample in self._samples if sample is not self._blank)
        return sum(_nbytes(leaf) for sample in written for leaf in sample)

    # -- how a replay buffer writes --------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> list[Any]:
        if count is None:
            return self._leaves_of(value)
        columns = self.layout.encode(value, (count,))
        return [[column[index, ...].copy() for column in columns] for index in range(count)]

    def _leaves_of(self, value: Any) -> list[Any]:
        return [np.array(leaf) for leaf in self.layout.encode(value, ())]

    def part(self, encoded: list[Any], count: int, start: int, stop: int) -> list[Any]:
        return encoded[start:stop]

    def write(self, slots: int | slice, encoded: list[Any], number: int) -> None:
        self._samples[slots] = encoded

    # -- copies ----------------------------------------------------------------------------------------------

    def dumps(self, path: str | os.PathLike[str]) -> None:
        self.snapshot(path, [(0, len(self))])

    def snapshot(self, path: str | os.PathLike[str], slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        new = PackedStorage.create(self.single_instance_space, capacity=self.capacity, cache_path=path)
        with contextlib.closing(new) as copy:
            copy.extend_length(max((stop for _, stop in slots), default=0))
            for first, last in slots:
                for start in range(first, last, _COPY_COUNT):
                    part = slice(start, min(start + _COPY_COUNT, last))
                    copy.set(part, self.get(part))
            copy.flush()


def _nbytes(leaf: np.ndarray) -> int:
    """The bytes of a leaf; of texts and of values without a fixed size those of their contents."""
    return sum(map(len, leaf.flat)) if leaf.dtype == object else leaf.nbytes
