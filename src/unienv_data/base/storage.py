"""Storages: memory for samples of one space, by slot."""

from __future__ import annotations

import abc
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.space.space_utils import batch_space, get_at

from .common import BatchT
from .index import IndexableType
from .windows import Spans, split_axis

__all__ = ["ROW_UNKNOWN", "ROW_WHOLE", "ROW_WRONG", "RowStorage", "SpaceStorage", "StorageCorruptedError"]

#: The state of a row by `check_rows`: as it was written, unknown, or not as it was written.
ROW_WHOLE, ROW_UNKNOWN, ROW_WRONG = 0, 1, 2


# Which buffer writes to a storage. Beside the storages, which are copied and pickled without it.
_BUFFERS: weakref.WeakKeyDictionary[SpaceStorage, weakref.WeakMethod[Callable[[], int]]] = weakref.WeakKeyDictionary()


class StorageCorruptedError(ValueError):
    """Stored data contradicts itself; the text says which file and what."""


class UnsupportedFormatError(ValueError):
    """Stored data may be sound, but not read here: it is of a later version, or of a storage that is not registered."""


class SpaceStorage(abc.ABC, Generic[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """SpaceStorage is an abstract base class for storages that hold instances of a specific space.

    A storage knows slots, not order: the replay buffer knows which slots hold samples, and which is the oldest.
    A subclass implements `create`, `load_from`, `__len__`, `get`, `set` and `dumps`, and declares what else it can do.
    One that grows (a capacity of None) implements `extend_length` and `shrink_length` as well. `create` refuses a path
    where something is, and a storage that was loaded read-only refuses to be written with a PermissionError.

    What is read is the caller's and does not change afterwards. A value that does not fit the space is a ValueError
    with its path, and then nothing has been written. Reading a slot that was never written gives arbitrary data, never
    an error; reading past `len(storage)` is an IndexError.

    Note that if you want your space storage to support multiprocessing, you need to check / implement __getstate__ and
    __setstate__ methods to ensure that the storage can be pickled and unpickled correctly.
    """

    #: The name under which the storage is registered, and which stands in a buffer's metadata.
    registered_name: ClassVar[str] = ""

    #: The file extension of a storage that is one file; None if it is a folder.
    single_file_ext: str | None = None
    #: The total capacity (number of single instances) of the storage. If None, the storage has unlimited capacity.
    capacity: int | None = None
    #: The cache path for the storage. If None, the storage will not use caching.
    cache_filename: str | os.PathLike[str] | None = None
    #: Can the storage instance be safely used in multiprocessing environments after creation?
    is_multiprocessing_safe: bool = False
    #: Is the storage mutable? If False, the storage is read-only.
    is_mutable: bool = True

    # What a storage can do beyond its verbs; declared, and asked for before the method is called.
    #: `get_flattened` and `set_flattened` are implemented.
    has_flattened_access: ClassVar[bool] = False
    #: `get_column` reads a column without the rest of the sample.
    has_column_access: ClassVar[bool] = False
    #: The keys that `get_column` takes may end in `Columns`, several fields of a dict.
    takes_columns: ClassVar[bool] = False
    #: It keeps episodes apart by itself: `get_segments` gives physical ranges.
    is_segment_aware: ClassVar[bool] = False
    #: The slots [start, stop) that can be written without another `reserve`.
    reserved: tuple[int, int] = (0, 0)
    #: `raw_rows` gives bytes, so that an edit can be written down before it is made and survives a kill.
    has_raw_rows: bool = False
    #: What `set` has written is read back by another process after this one was killed.
    survives_kill: bool = False
    #: `check_rows` compares a checksum of each row.
    has_row_sums: bool = False
    #: A read compares checksums: what `verify` would find in the slots that are read is an error then.
    checks_when_read: ClassVar[bool] = False
    #: The buffer calls `end_episode` for episodes that end, so that the storage can keep their samples in another form.
    wants_episodes: bool = False
    #: `load_from` takes `resize`, `crop` and `frame_cache`.
    decodes_frames: ClassVar[bool] = False
    #: Of slots [k * n, (k + 1) * n), n being this number, either all can be read from the files or none.
    slots_read_as_one: int = 1

    def __init__(self, single_instance_space: Space) -> None:
        """Bind the storage to the space of one stored element."""
        self.single_instance_space = single_instance_space
        self._next_slot: int | None = None
        self._pending = 0

    @functools.cached_property
    def layout(self) -> RowLayout:
        """The leaves of a sample, and how they lie in a row."""
        return RowLayout(self.single_instance_space)

    @property
    def ring(self) -> int | None:
        """How many slots a buffer goes round in: the capacity, and those that must stay a while after their sample."""
        return self.capacity

    @property
    def backend(self) -> ComputeBackend:
        return self.single_instance_space.backend

    @property
    def device(self) -> Any:
        return self.single_instance_space.device

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @abc.abstractmethod
    def create(
        cls,
        single_instance_space: Space,
        *args: Any,
        capacity: int | None,
        cache_path: str | os.PathLike[str] | None = None,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> SpaceStorage:
        """Create a new storage instance for samples from `single_instance_space`.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        *args, **kwargs
            Further arguments of a subclass.
        capacity
            How many slots there are; None for a storage that grows.
        cache_path
            Where its files are to lie; a path where something is already is refused. By default it is in memory.
        multiprocessing
            Whether several processes write.
        """

    @classmethod
    @abc.abstractmethod
    def load_from(
        cls,
        path: str | os.PathLike[str],
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> SpaceStorage:
        """Restore a storage instance previously written to disk.

        Parameters
        ----------
        path
            Where its files lie.
        single_instance_space
            The space of one sample.
        capacity
            The capacity that it was created with.
        read_only
            Refuse to be written.
        multiprocessing
            Whether several processes write.
        **kwargs
            Further arguments of a subclass.

        Raises
        ------
        StorageCorruptedError
            A file is missing, damaged, or of another storage.
        UnsupportedFormatError
            The files are of a later release.
        """

    # -- the verbs -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of slots: the capacity, or how far a growing storage has been extended."""

    @abc.abstractmethod
    def get(self, index: IndexableType | BArrayType) -> BatchT:
        """Read one or more samples from storage."""

    @abc.abstractmethod
    def set(self, index: IndexableType | BArrayType, value: BatchT) -> None:
        """Write one or more samples into storage."""

    @abc.abstractmethod
    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Dumps the storage to the specified path; to its own path, it makes what was written durable.

        This is used for storages that have a single file extension (e.g. .pt for PyTorch).
        """

    def extend_length(self, length: int) -> None:
        """This is used by capacity = None storages to extend the length of the storage.

        If this is called on a storage with a fixed capacity, we will simply ignore the call.
        """
        if self.capacity is None:
            raise NotImplementedError(f"{type(self).__name__} does not grow")

    def shrink_length(self, length: int) -> None:
        """This is used by capacity = None storages to shrink the length of the storage.

        If this is called on a storage with a fixed capacity, we will simply ignore the call.
        """
        if self.capacity is None:
            raise NotImplementedError(f"{type(self).__name__} does not shrink")

    def clear(self) -> None:
        """Clear all data inside the storage and set the length to 0 if the storage has unlimited capacity.

        For storages with fixed capacity, this should reset the storage to its initial state.
        """
        if self.capacity is None:
            self.shrink_length(len(self))

    def flush(self) -> None:
        """Have everything that was written in its files, so that it survives a power cut. In memory, nothing happens.

        A replay buffer calls this, never `dumps` to the storage's own path: which is what is done here, for a storage
        that knows no shorter way.
        """
        if self.cache_filename is not None and self.is_mutable:
            self.dumps(self.cache_filename)

    def trim(self) -> None:
        """Cut the files to the slots in use, while nobody writes."""

    def sizes(self) -> tuple[int, int]:
        """Two figures about the storage's files, which the buffer keeps when it is closed in order."""
        return (0, 0)

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        """Take over how many slots are in use; a StorageCorruptedError if there cannot be so many.

        `sizes` is what `sizes()` said when the buffer was closed; None if it was not closed in order.
        """
        if length > len(self):
            raise StorageCorruptedError(f"{self.cache_filename}: {len(self)} slots, the buffer has {length}")

    def replace_block_sums(self, numbers: np.ndarray) -> None:
        """Have a checksum for each row where the files are of an earlier version; `numbers` are those of the samples.

        A slot that holds none has -1. A storage without such files has nothing to do.
        """

    def forget_rows(self, head: int) -> bool:
        """Have no checksum for rows of samples with numbers from `head` on; whether there was one.

        A storage without checksums of rows has nothing to do.
        """
        return False

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        """Of each slot, which should hold the sample of this number: ROW_WHOLE, ROW_UNKNOWN or ROW_WRONG.

        With `numbers_only` rows are not compared with their checksums, only the numbers that stand beside those.
        """
        return np.full(len(slots), ROW_UNKNOWN, np.int8)

    def verify(self) -> list[str]:
        """What is wrong with the stored data, one sentence each; empty if nothing is, or nothing can be told."""
        return []

    def absent_slots(self) -> list[tuple[int, int]]:
        """Ranges [start, stop) of slots that read as empty because the files have nothing for them, if known."""
        return []

    @property
    def nbytes(self) -> int | None:
        """The bytes that the samples take; None if the storage cannot say."""
        return None

    def close(self) -> None:
        """Release files and memory. May be called more than once."""

    # -- how a replay buffer reads and writes --------------------------------------------------------------
    #
    # Over the verbs above; a storage overrides them where it knows a shorter way. Slots are known to be in range.

    def gather(self, slots: Any, length: int) -> Any:
        """`get` for a slot or an array of slots; of a growing storage `length` slots are in use by now.

        With a capacity, slots may be counted on beyond the `ring` once around: then they are meant modulo the ring.
        """
        return self.get(slots if self.ring is None else slots % self.ring)

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        """`gather` for windows (B, T) of slots, with these two axes in front."""
        return split_axis(self.backend, self.gather(slots.reshape(-1), length), slots.shape)

    def encode(self, value: Any, count: int | None) -> Any:
        """A sample, or a batch of `count`, checked and made ready for `write`; a ValueError with the path of a misfit.

        Nothing that can be read changes.
        """
        self.layout.check(value, () if count is None else (count,))
        return value

    def part(self, encoded: Any, count: int, start: int, stop: int) -> Any:
        """The samples [start, stop) of an encoded batch of `count`."""
        return get_at(batch_space(self.single_instance_space, count), encoded, slice(start, stop))

    def reserve(self, start: int, stop: int) -> None:
        """Make sure that slots [start, stop) can be written; an OSError or MemoryError if there is no room.

        What was reserved before is no longer, unless `reserved` says so.
        """
        if self.capacity is None and stop > len(self):
            self.extend_length(stop - len(self))

    def write(self, slots: int | slice, encoded: Any, number: int) -> None:
        """Write an encoded sample to its slot, or a batch to a slice of slots; `number` is that of the (first) sample.

        To repeat it does no harm, but where the storage keeps episodes by itself: a sample is appended to the open one.
        """
        if self.is_segment_aware and isinstance(slots, int):
            if self._next_slot is None:
                self.mark_segment_start(slots)
            self.append(encoded)
        else:
            self.set(slots, encoded)

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        """The samples in these slots, of which `number` is the first one's, are an episode; see `wants_episodes`.

        They count by now. The storage may be told of an episode more than once.
        """

    def check_rewritable(self, slots: np.ndarray) -> None:
        """A PermissionError with the way out unless samples in these slots can be overwritten, or moved there."""

    def column_rule(self) -> Any:
        """The rule by which a column is kept in such a storage (`Image`, `Video`); None if there is none."""
        return None

    def settle(self, timeout: float | None = None) -> int:
        """Wait for what the storage does in the background, at most so many seconds; how many samples are left."""
        return 0

    def raw_rows(self, slots: Any) -> Any:
        """What lies in these slots, an array, to be moved by `write_raw_rows`; bytes if `has_raw_rows`."""
        return self.get(slots)

    def write_raw_rows(self, slots: Any, raw: Any, numbers: np.ndarray) -> None:
        """Write what `raw_rows` gave to these slots, as the samples of these numbers."""
        self.set(slots, raw)

    def encoded_as_raw_rows(self, encoded: Any, count: int | None) -> bytes:
        """A sample, or a batch of `count`, as `encode` gave it, for `write_raw_rows`; see `has_raw_rows`."""
        raise NotImplementedError(f"{type(self).__name__} has no raw rows")

    @property
    def row_nbytes(self) -> int:
        """The bytes of one raw row; see `has_raw_rows`."""
        raise NotImplementedError(f"{type(self).__name__} has no raw rows")

    def snapshot(self, path: str | os.PathLike[str], slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        """`dumps` of which only the slots in these ranges [start, stop), some of them empty, are wanted.

        They hold consecutive samples, of which `number` is the first one's.

        A growing storage must have all slots up to the last `stop`.
        """
        self.dumps(path)

    # -- optional access -------------------------------------------------------------------------------------

    def get_flattened(self, index: IndexableType | BArrayType) -> BArrayType:
        """Read samples in flat form; see `has_flattened_access`."""
        raise NotImplementedError(f"{type(self).__name__} has no flattened access")

    def gather_flattened(self, slots: Any, length: int) -> Any:
        """`gather` in flat form; see `has_flattened_access`."""
        return self.get_flattened(slots if self.capacity is None else slots % self.capacity)

    def set_flattened(self, index: IndexableType | BArrayType, value: BArrayType) -> None:
        """Write samples in flat form; see `has_flattened_access`."""
        raise NotImplementedError(f"{type(self).__name__} has no flattened access")

    def get_column(self, nested_keys: Sequence[str]) -> SpaceStorage:
        """A storage of one column, over the same data; see `has_column_access`. Closing it leaves this one open."""
        raise NotImplementedError(f"{type(self).__name__} has no column access")

    # -- segments --------------------------------------------------------------------------------------------

    @property
    def has_open_segment(self) -> bool:
        """Whether a segment is open: here, or in the replay buffer over this storage."""
        return self._next_slot is not None or self._length_open_in_buffer() > 0

    @property
    def pending_segment_length(self) -> int:
        """The number of samples appended since the segment was opened."""
        return self._pending or self._length_open_in_buffer()

    def follow(self, open_length: Callable[[], int]) -> None:
        """Ask a method of the replay buffer that writes here how long its open segment is, while that buffer lives."""
        _BUFFERS[self] = weakref.WeakMethod(open_length)

    def _length_open_in_buffer(self) -> int:
        reference = _BUFFERS.get(self)
        open_length = None if reference is None else reference()
        return 0 if open_length is None else open_length()

    def get_segments(self) -> list[tuple[int, int]] | None:
        """Closed episodes as inclusive pairs of slots, wrapped as start > end; None if the storage keeps none."""
        return None

    def mark_segment_start(self, start_index: int) -> None:
        """Open a segment whose first sample goes to slot `start_index`."""
        if self._next_slot is not None:
            raise RuntimeError("a segment is open already: call mark_segment_end first")
        self._next_slot, self._pending = int(start_index), 0

    def append(self, value: Any) -> None:
        """Append one structured sample to the open segment.

        Appended values may be immediately visible or only visible after mark_segment_end(), depending on the storage
        implementation.
        """
        if self._next_slot is None:
            raise RuntimeError("append without an open segment: call mark_segment_start first")
        self.set(self._next_slot, value)
        following = self._next_slot + 1
        self._next_slot = following % self.capacity if self.capacity is not None else following
        self._pending += 1

    def mark_segment_end(self) -> None:
        """Close the open segment."""
        self._next_slot, self._pending = None, 0

    def abort_segment(self) -> None:
        """Close the open segment and forget what was appended, where the storage has not made it visible yet."""
        self._next_slot, self._pending = None, 0


class RowStorage(SpaceStorage):
    """A storage whose samples are rows of its `layout`, in memory that this process can address.

    A replay buffer writes to it in place: `encode` looks at every leaf, `reserve` makes sure of room, and `write`
    assigns the leaves to their columns.
    """

    #: The rows of all slots. Replaced when the memory grows; what was read before stays valid.
    rows: Rows

    def encode(self, value: Any, count: int | None) -> Sequence[Any]:
        """The leaves of a sample or of a batch, each as it is where it has the column's dtype and shape."""
        return self.layout.encode(value, () if count is None else (count,))

    def part(self, encoded: Sequence[Any], count: int, start: int, stop: int) -> list[Any]:
        return [leaf[start:stop] for leaf in encoded]

    @abc.abstractmethod
    def gather_rows(self, slots: np.ndarray, length: int) -> Rows | None:
        """`gather` for an array of slots of any shape, as rows of the layout; None if values lie in a heap."""

    @abc.abstractmethod
    def can_gather_spans(self, count: int) -> bool:
        """Whether `gather_spans` gains anything for windows of `count` samples."""

    @abc.abstractmethod
    def gather_spans(self, spans: Spans, shift: int, length: int) -> Any:
        """`gather_windows` for windows of slots one after the other, which are `shift` more than `spans` says."""
