"""The base class of storages, which keep samples of one space by slot."""

from __future__ import annotations

import abc
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from .common import BatchT
from .index import IndexableType

__all__ = ["SpaceStorage", "StorageCorruptedError", "UnsupportedFormatError"]

# The buffer that writes to each storage; not an attribute, since storages are copied and pickled without it.
_BUFFERS: weakref.WeakKeyDictionary[SpaceStorage, weakref.WeakMethod[Callable[[], int]]] = weakref.WeakKeyDictionary()


class StorageCorruptedError(ValueError):
    """Stored data contradicts itself; the message names the file and the contradiction.

    Examples
    --------
    >>> from pathlib import Path
    >>> (file,) = Path("cartpole").glob("*.json")
    >>> _ = file.write_text("{")
    >>> ReplayBuffer.load_from("cartpole", backend="numpy")
    Traceback (most recent call last):
        ...
    unienv_data.base.storage.StorageCorruptedError: ...
    """


class UnsupportedFormatError(ValueError):
    """Stored data has a later format version, or is of a storage that is not registered.

    Examples
    --------
    >>> unienv_data.storages.registry.storage_by_name("hfd5")
    Traceback (most recent call last):
        ...
    unienv_data.base.storage.UnsupportedFormatError: no storage is registered as 'hfd5', ... did you mean 'hdf5'?
    """


class SpaceStorage(abc.ABC, Generic[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """SpaceStorage is an abstract base class for storages that hold instances of a specific space.

    A storage knows slots, not order: the replay buffer knows which slots hold samples, and which slot is the oldest.
    A subclass implements `create`, `load_from`, `__len__`, `get`, `set` and `dumps`, and declares its capabilities.
    A storage that grows (a capacity of None) implements `extend_length` and `shrink_length` as well. `create` refuses
    an existing path, and writing to a storage that was loaded read-only is a PermissionError.

    Data that was read belongs to the caller and does not change afterwards. A value that does not fit the space is a
    ValueError with its path, and nothing is written. Reading a slot that was never written gives arbitrary data, never
    an error; reading past `len(storage)` is an IndexError.

    Note that if you want your space storage to support multiprocessing, you need to check / implement __getstate__ and
    __setstate__ methods to ensure that the storage can be pickled and unpickled correctly.

    Parameters
    ----------
    single_instance_space
        The space of one sample.

    Examples
    --------
    >>> class ArrayStorage(SpaceStorage):
    ...     def __init__(self, space, array):
    ...         super().__init__(space)
    ...         self.array, self.capacity = array, len(array)
    ...
    ...     @classmethod
    ...     def create(cls, single_instance_space, *args, capacity, cache_path=None, multiprocessing=False, **kwargs):
    ...         return cls(single_instance_space, np.zeros((capacity, *single_instance_space.shape), np.float32))
    ...
    ...     @classmethod
    ...     def load_from(cls, path, single_instance_space, *, capacity=None, read_only=True, **kwargs):
    ...         return cls(single_instance_space, np.load(path))
    ...
    ...     def __len__(self):
    ...         return len(self.array)
    ...
    ...     def get(self, index):
    ...         return self.array[index].copy()
    ...
    ...     def set(self, index, value):
    ...         self.array[index] = value
    ...
    ...     def dumps(self, path):
    ...         np.save(path, self.array)
    >>> pose = BoxSpace("numpy", -1, 1, np.float32, shape=(3,))
    >>> poses = ReplayBuffer.create(ArrayStorage, pose, capacity=1_000)
    >>> poses.append(np.ones(3, np.float32))
    >>> poses.get_at(0)
    array([1., 1., 1.], dtype=float32)
    """

    #: The name of the storage in the registry and in a buffer's metadata.
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

    # Capabilities: callers check them before they call the method.
    #: `get_flattened` and `set_flattened` are implemented.
    has_flattened_access: ClassVar[bool] = False
    #: `get_column` reads a column without the rest of the sample.
    has_column_access: ClassVar[bool] = False
    #: The keys of `get_column` may end in `Columns`, which selects several fields of a dict.
    takes_columns: ClassVar[bool] = False
    #: The storage keeps episodes itself: `get_segments` returns ranges of slots.
    is_segment_aware: ClassVar[bool] = False
    #: Another process reads what `set` has written after this process was killed.
    survives_kill: bool = False
    #: A read compares checksums and raises an error for damage that `verify` would find in its slots.
    checks_when_read: ClassVar[bool] = False

    def __init__(self, single_instance_space: Space) -> None:
        """Bind the storage to the space of one stored element."""
        self.single_instance_space = single_instance_space
        self._next_slot: int | None = None
        self._pending = 0

    @functools.cached_property
    def layout(self) -> RowLayout:
        """The leaves of a sample and their positions in a row."""
        return RowLayout(self.single_instance_space)

    @property
    def backend(self) -> ComputeBackend:
        """The backend of the samples."""
        return self.single_instance_space.backend

    @property
    def device(self) -> Any:
        """The device of the samples."""
        return self.single_instance_space.device

    # -- creating and loading --------------------------------------------------------------------------------

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
            The number of slots; None for a storage that grows.
        cache_path
            The path of its files, which must not exist; None for a storage in memory.
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
            The path of its files.
        single_instance_space
            The space of one sample.
        capacity
            The capacity given to `create`.
        read_only
            Whether writing is refused.
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

    # -- methods that subclasses implement -------------------------------------------------------------------

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of slots: the capacity, or the current length of a growing storage."""

    @abc.abstractmethod
    def get(self, index: IndexableType | BArrayType) -> BatchT:
        """Read one or more samples from storage."""

    @abc.abstractmethod
    def set(self, index: IndexableType | BArrayType, value: BatchT) -> None:
        """Write one or more samples into storage."""

    @abc.abstractmethod
    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Dumps the storage to the specified path; with the storage's own path, makes all writes durable.

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
        """Make all writes durable, so that they survive a power cut. A storage in memory does nothing.

        A replay buffer calls this method. The default is `dumps` to the storage's own path.
        """
        if self.cache_filename is not None and self.is_mutable:
            self.dumps(self.cache_filename)

    def verify(self) -> list[str]:
        """Return the faults of the stored data, one sentence each; empty without faults, or if none can be found."""
        return []

    @property
    def nbytes(self) -> int | None:
        """The size of the samples in bytes; None if not known."""
        return None

    def close(self) -> None:
        """Release files and memory. May be called more than once."""

    # -- optional access -------------------------------------------------------------------------------------

    def get_flattened(self, index: IndexableType | BArrayType) -> BArrayType:
        """Read samples in flat form; see `has_flattened_access`."""
        raise NotImplementedError(f"{type(self).__name__} has no flattened access")

    def set_flattened(self, index: IndexableType | BArrayType, value: BArrayType) -> None:
        """Write samples in flat form; see `has_flattened_access`."""
        raise NotImplementedError(f"{type(self).__name__} has no flattened access")

    def get_column(self, nested_keys: Sequence[str]) -> SpaceStorage:
        """Return a storage of one column over the same data; see `has_column_access`. It can be closed separately."""
        raise NotImplementedError(f"{type(self).__name__} has no column access")

    # -- segments --------------------------------------------------------------------------------------------

    @property
    def has_open_segment(self) -> bool:
        """Whether a segment is open, in this storage or in the replay buffer over it."""
        return self._next_slot is not None or self._length_open_in_buffer() > 0

    @property
    def pending_segment_length(self) -> int:
        """The number of samples appended since the segment was opened."""
        return self._pending or self._length_open_in_buffer()

    def follow(self, open_length: Callable[[], int]) -> None:
        """Register the method with which the replay buffer over this storage returns the length of its open segment."""
        _BUFFERS[self] = weakref.WeakMethod(open_length)

    def _length_open_in_buffer(self) -> int:
        reference = _BUFFERS.get(self)
        open_length = None if reference is None else reference()
        return 0 if open_length is None else open_length()

    def get_segments(self) -> list[tuple[int, int]] | None:
        """Return the closed episodes as inclusive pairs of slots, start > end if wrapped; None without episodes."""
        return None

    def mark_segment_start(self, start_index: int) -> None:
        """Open a segment whose first sample goes to slot `start_index`.

        Raises
        ------
        RuntimeError
            A segment is open already.
        """
        if self._next_slot is not None:
            raise RuntimeError("a segment is open already: call mark_segment_end first")
        self._next_slot, self._pending = int(start_index), 0

    def append(self, value: Any) -> None:
        """Append one structured sample to the open segment.

        Appended values may be immediately visible or only visible after mark_segment_end(), depending on the storage
        implementation.

        Raises
        ------
        RuntimeError
            No segment is open.
        """
        if self._next_slot is None:
            raise RuntimeError("append without an open segment: call mark_segment_start first")
        self.set(self._next_slot, value)
        next_slot = self._next_slot + 1
        self._next_slot = next_slot if self.capacity is None else next_slot % self.capacity
        self._pending += 1

    def mark_segment_end(self) -> None:
        """Close the open segment."""
        self._next_slot, self._pending = None, 0

    def abort_segment(self) -> None:
        """Close the open segment and drop its samples, if the storage has not made them visible yet."""
        self._next_slot, self._pending = None, 0
