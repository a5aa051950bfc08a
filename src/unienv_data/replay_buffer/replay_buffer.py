"""The replay buffer: samples in order, in a ring or growing, with episodes, in memory or on disk.

Promises, in three words. *Visible*: other processes see it. *Acknowledged* (append, extend or segment end has
returned): it survives a kill -9 of this process. *Durable* (`flush()` has returned, or the segment ended on a buffer
with `durable=True`): it survives a power cut. The latter two hold for buffers on disk (`cache_path`) whose storage
keeps them; `PackedStorage` does.

One process writes to a buffer on disk, any number read it, without a lock. With `multiprocessing=True` several
processes write to one buffer, one at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.space import Space

from ..base.common import BatchBase, resolve_index
from ..base.storage import SpaceStorage
from . import _folder
from ._counters import CLOSED, HEAD, TAIL
from ._physical import logical_segments
from ._reader import BufferReader
from ._state import BufferState
from ._writer import BufferWriter

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class BufferStats:
    """What a buffer holds: samples, room for them, samples ever written, bytes, closed segments; None if not known."""

    count: int
    capacity: int | None
    written: int
    nbytes: int | None
    segments: int | None


class ReplayBuffer(BatchBase):
    """Ring-buffer style batch storage built on top of a SpaceStorage.

    Index 0 is the oldest sample. `append` adds one sample to the episode that is open, opening one if need be, and
    `mark_segment_end` closes it; each `extend` is an episode of its own. With `maintain_segment_metadata` the episodes
    are kept, and `get_segments` gives them.

    A read gives samples as they are at one instant. While another process or thread writes, and so fast that the
    oldest samples are gone before they are read, that instant is a little later than the call.
    """

    def __init__(
        self,
        storage: SpaceStorage,
        storage_path_relative: str,
        count: int = 0,
        offset: int = 0,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        *,
        maintain_segment_metadata: bool = False,
        physical_segments: Sequence[tuple[int, int]] | None = None,
        active_segment_start_physical: int | None = None,
        active_segment_length: int = 0,
        durable: bool = False,
        state: BufferState | None = None,
    ) -> None:
        """Wrap a storage object with replay-buffer indexing semantics.

        The counters are in memory unless a `state` is given, which then has them: for a buffer on disk use `create`
        and `load_from`.
        """
        super().__init__(storage.single_instance_space)
        self.storage = storage
        self._storage_path_relative = storage_path_relative
        self._cache_path = None if cache_path is None else Path(cache_path)
        self._maintains = maintain_segment_metadata
        self._durable = durable
        self._closed = False
        self._capacity = storage.capacity
        if state is None:
            state = BufferState.in_memory(storage, shared=multiprocessing and storage.is_mutable)
            state.cells[TAIL], state.cells[HEAD] = offset, offset + count
            state.cells[CLOSED] = offset + count - active_segment_length
            if active_segment_start_physical is not None and not active_segment_length:
                raise ValueError("active_segment_start_physical without active_segment_length")
            for start, stop in logical_segments(physical_segments or (), offset, count, self._capacity):
                state.segments.prepare()
                state.segments.add(offset + start, offset + stop)
        self._state, self._cells = state, state.cells
        self._reader = BufferReader(state)
        self._writer = BufferWriter(state, maintains=maintain_segment_metadata, durable=durable)
        self.is_segment_aware = maintain_segment_metadata or storage.is_segment_aware

    # -- making ----------------------------------------------------------------------------------------------

    @staticmethod
    def create(
        storage_cls: type[SpaceStorage] | Space | None = None,
        single_instance_space: Space | None = None,
        *args: Any,
        cache_path: PathLike | None = None,
        capacity: int | None = None,
        multiprocessing: bool = False,
        maintain_segment_metadata: bool = False,
        durable: bool = False,
        **kwargs: Any,
    ) -> ReplayBuffer:
        """Create a new replay buffer and its backing storage; a `PackedStorage` if no class is named.

        With `cache_path` the folder must not exist; the buffer can be loaded from the moment this returns. With
        `durable` the end of every segment makes it survive a power cut. Further arguments are the storage's.
        """
        if isinstance(storage_cls, Space):  # create(space, ...), without a class
            storage_cls, single_instance_space = None, storage_cls
        if single_instance_space is None:
            raise TypeError("create wants the space of one sample: create(PackedStorage, space) or create(space)")
        return _folder.create(
            storage_cls,
            single_instance_space,
            args,
            None if cache_path is None else Path(cache_path),
            {"capacity": capacity, "multiprocessing": multiprocessing, **kwargs},
            {"maintain_segment_metadata": maintain_segment_metadata, "durable": durable},
        )

    @staticmethod
    def load_from(
        path: PathLike,
        *,
        backend: ComputeBackend,
        device: Any = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        single_instance_space: Space | None = None,
        **storage_kwargs: Any,
    ) -> ReplayBuffer:
        """Load a replay buffer plus its backing storage from disk.

        If `single_instance_space` is provided, it is validated against the space reconstructed from the on-disk
        metadata and, if compatible, reused instead of keeping the reconstructed copy. This avoids allocating duplicate
        Space objects when many buffers with identical spaces are loaded simultaneously (e.g. for `CombinedBatch`).

        Read-only, new samples of a writer in another process are seen as they come. To write, there must be no other
        writer: a PermissionError names the process that is.
        """
        place = (backend, device, single_instance_space)
        return _folder.load(Path(path), place, read_only, multiprocessing, storage_kwargs)

    is_loadable_from = staticmethod(_folder.is_loadable_from)
    get_length_from_path = staticmethod(_folder.get_length_from_path)
    get_capacity_from_path = staticmethod(_folder.get_capacity_from_path)
    get_space_from_path = staticmethod(_folder.get_space_from_path)

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._state
        if state.folder is not None and not self.is_mutable:
            return _folder.load, (state.folder, (self.backend, self.device, self.single_space), True, False, {})
        if state.folder is not None and not state.shared:
            raise TypeError(
                f"{state.folder} has one writer, this process: create or load it with multiprocessing=True to write "
                f"from several, or load it with read_only=True in the other process"
            )
        options = {"maintain_segment_metadata": self._maintains, "durable": self._durable}
        return _folder.received, (self._storage_path_relative, self._cache_path, state, options)

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        return self.storage.is_mutable

    @property
    def is_multiprocessing_safe(self) -> bool:
        """Whether a buffer made before a fork may be used in the processes that come of it."""
        return self.storage.is_multiprocessing_safe and (self._state.shared or not self.is_mutable)

    @property
    def cache_path(self) -> Path | None:
        return self._cache_path

    @property
    def storage_path_relative(self) -> str:
        return self._storage_path_relative

    @property
    def maintain_segment_metadata(self) -> bool:
        return self._maintains

    @property
    def is_durable(self) -> bool:
        """Whether the end of a segment makes it survive a power cut."""
        return self._durable

    @property
    def capacity(self) -> int | None:
        return self._capacity

    @property
    def count(self) -> int:
        return len(self)

    @property
    def offset(self) -> int:
        """The slot of the oldest sample."""
        return self._state.slot(self._cells[TAIL])

    def __len__(self) -> int:
        head = self._cells[HEAD]  # before tail: then there are never more than the capacity
        return max(0, head - self._cells[TAIL])

    def stats(self) -> BufferStats:
        """Counts, bytes and segments."""
        segments = self.get_segments()
        count = None if segments is None else len(segments)
        return BufferStats(len(self), self._capacity, self._cells[HEAD], self.storage.nbytes, count)

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> Any:
        return self._reader.read(idx, self.storage.gather)

    def get_flattened_at(self, idx: Any) -> Any:
        if not self.storage.has_flattened_access:
            return super().get_flattened_at(idx)
        capacity, read = self._capacity, self.storage.get_flattened
        return self._reader.read(idx, lambda slots, _: read(slots if capacity is None else slots % capacity))

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        if not self.storage.has_column_access:
            return super().get_column_at(nested_keys, idx)
        return self._reader.read(idx, self.storage.get_column(nested_keys).gather)

    def get_segments(self) -> list[tuple[int, int]] | None:
        return self._reader.segments() if self._maintains else self._reader.storage_segments()

    def segment_of(self, index: int) -> tuple[int, int] | None:
        """The closed episode that a sample is in, as a range [start, stop) of indices; None if it is in none."""
        if self._maintains:
            return self._reader.segment_of(index)
        position = int(resolve_index(self.backend, index, len(self)))
        return next((part for part in self.get_segments() or [] if part[0] <= position < part[1]), None)

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, value: Any) -> None:
        """Append one sample to the open segment, opening one if there is none."""
        self._writer.append(value)

    def extend(self, value: Any) -> None:
        """Append a batch of samples, as a segment of its own."""
        self._writer.extend(value)

    def mark_segment_end(self) -> None:
        """Close the open segment; without one, nothing happens."""
        self._writer.end_segment()

    def set_at(self, idx: Any, value: Any) -> None:
        self._writer.set_at(idx, value)

    def remove_at(self, idx: Any) -> None:
        """Remove samples; those that stay keep their order, and an episode shrinks by what is taken out of it.

        Removing the oldest costs O(1). Otherwise the samples on one side of what is removed are moved together.
        """
        self._writer.remove_at(idx)

    def clear(self) -> None:
        """Drop all samples and episodes."""
        self._writer.clear()

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything that was written survive a power cut."""
        self._writer.flush()

    def verify(self) -> list[str]:
        """What is wrong with the stored samples and episodes, one sentence each; empty if nothing is.

        Checksums are of what was sealed: all of it after `flush` or `close`, else all but what was written last.
        """
        closed = self._state.counters.closed_sizes is not None and not self.is_mutable
        return [*self._state.segments.verify(closed=closed), *self.storage.verify()]

    def dumps(self, path: PathLike) -> None:
        """Persist the replay buffer metadata and its backing storage.

        To another path this writes a snapshot, in the place of a buffer that is there; at any instant the old or the
        new one is there, whole. To the buffer's own path it is a flush.
        """
        if self._closed:
            raise RuntimeError("the buffer is closed")
        if self._state.open_start() is not None:
            raise RuntimeError("dumps while a segment is open: call mark_segment_end first")
        own = self._cache_path
        if own is not None and os.path.exists(path) and os.path.samefile(path, own):
            if self._state.folder is None and self.is_mutable:
                raise RuntimeError(f"{own} holds only the storage: make the buffer with create(cache_path=...)")
            if self.is_mutable:
                self.flush()
                _folder.write_description(self, own)
            return
        with self._state.writing if self.is_mutable else contextlib.nullcontext():
            _folder.write_snapshot(self, Path(path))

    def close(self) -> None:
        """Make what was written durable and give back files and memory. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._reader = self._writer = _Closed()  # type: ignore[assignment]
            self._state.close()


class _Closed:
    """Stands for the reader and the writer of a closed buffer."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the buffer is closed")
