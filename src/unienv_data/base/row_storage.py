"""The storage interface of a replay buffer: samples by slot, encoded first and written in place.

`SpaceStorage` is the interface that every storage implements. `RowStorage` adds the methods that a replay buffer calls;
each has a default over `SpaceStorage`, which a storage overrides where it has a faster way. `rows_of` makes a
`RowStorage` of any storage. The slots in calls of a buffer are always in range.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.row_layout import Rows
from unienv_interface.space.space_utils import batch_space, get_at

from .common import BatchT
from .encoded_frames import EncodedFrames
from .storage import SpaceStorage, StorageCorruptedError
from .windows import Spans, split_axis

__all__ = ["ROW_UNKNOWN", "ROW_WHOLE", "ROW_WRONG", "RowStorage", "rows_of"]

#: The results of `check_rows` for a row: unchanged, unknown, or damaged.
ROW_WHOLE, ROW_UNKNOWN, ROW_WRONG = 0, 1, 2


class RowStorage(SpaceStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A storage that a replay buffer writes to in place.

    `encode` checks every leaf of a sample, `reserve` reserves room, and `write` assigns the encoded leaves to their
    slots.
    """

    #: The reserved slots [start, stop), which can be written without another `reserve`.
    reserved: tuple[int, int] = (0, 0)
    #: `raw_rows` returns bytes, so that an edit can be logged before it is made and survives a kill.
    has_raw_rows: bool = False
    #: `check_rows` compares a checksum of each row.
    has_row_sums: bool = False
    #: The buffer calls `end_episode` for closed episodes, so that the storage can re-encode their samples.
    wants_episodes: bool = False
    #: `load_from` takes `resize`, `crop` and `frame_cache`.
    decodes_frames: ClassVar[bool] = False
    #: `load_from` takes these per column, in `columns` by pattern, and one `frame_cache` for all columns.
    decodes_columns: ClassVar[bool] = False
    #: Each observation of an episode is stored once.
    shares_next_obs: ClassVar[bool] = False
    #: With n the value: the files can be read for all slots [k * n, (k + 1) * n) or for none of them.
    slots_read_as_one: int = 1
    #: The number of ring slots beyond the capacity, whose contents are needed after their samples were dropped.
    spare_slots: int = 0

    @property
    def ring(self) -> int | None:
        """The number of slots in the ring of a buffer; None if the storage grows."""
        return None if self.capacity is None else self.capacity + self.spare_slots

    @property
    def slots_there(self) -> int:
        """The number of slots that can be read, with the spare slots; fewer than the `ring` if files were cut."""
        return len(self)

    @property
    def original(self) -> SpaceStorage:
        """The storage that the user passed to the buffer: this one, or the storage that `rows_of` has wrapped."""
        return self

    # -- reading ---------------------------------------------------------------------------------------------

    def gather(self, slots: Any, length: int) -> Any:
        """Read a slot or an array of slots; `length` is the current length of a growing storage.

        With a capacity, slots may wrap: they are taken modulo the `ring`.
        """
        return self.get(slots if self.ring is None else slots % self.ring)

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        """`gather` for windows (B, T) of slots; the samples have these two leading axes."""
        return split_axis(self.backend, self.gather(slots.reshape(-1), length), slots.shape)

    def gather_flattened(self, slots: Any, length: int) -> Any:
        """`gather` in flat form; see `has_flattened_access`."""
        return self.get_flattened(slots if self.capacity is None else slots % self.capacity)

    def gather_rows(self, slots: np.ndarray, length: int) -> Rows | None:
        """`gather` for an array of slots of any shape, as rows of the layout; None if the storage has no rows."""
        return None

    def can_gather_spans(self, count: int) -> bool:
        """Whether `gather_spans` is implemented, and faster for windows of `count` samples."""
        return False

    def gather_spans(self, spans: Spans, shift: int, length: int) -> Any:
        """`gather_windows` for windows of consecutive slots, the positions of `spans` plus `shift`."""
        raise NotImplementedError(f"{type(self).__name__} has no spans")

    def encoded_frames(self, nested_keys: tuple[Any, ...], slots: np.ndarray, length: int) -> EncodedFrames | None:
        """Return the positions of a column's frames in video files; None unless these contain all of the frames."""
        return None

    # -- writing ---------------------------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> Any:
        """Check a sample, or a batch of `count`, and prepare it for `write`; a ValueError names the leaf at fault.

        Stored samples do not change.
        """
        self.layout.check(value, () if count is None else (count,))
        return value

    def part(self, encoded: Any, count: int, start: int, stop: int) -> Any:
        """Return the samples [start, stop) of an encoded batch of `count`."""
        return get_at(batch_space(self.single_instance_space, count), encoded, slice(start, stop))

    def reserve(self, start: int, stop: int) -> None:
        """Reserve room for slots [start, stop); an OSError or MemoryError if there is no room.

        The new range replaces the previous one, unless `reserved` contains both.
        """
        if self.capacity is None and stop > len(self):
            self.extend_length(stop - len(self))

    def write(self, slots: int | slice, encoded: Any, number: int) -> None:
        """Write an encoded sample to its slot, or a batch to a slice of slots; `number` is the first sample's number.

        A call can be repeated, except if the storage keeps episodes itself: it appends the sample to the open episode.
        """
        if self.is_segment_aware and isinstance(slots, int):
            if self._next_slot is None:
                self.mark_segment_start(slots)
            self.append(encoded)
        else:
            self.set(slots, encoded)

    def check_rewritable(self, slots: np.ndarray) -> None:
        """Raise a PermissionError with the way out unless these slots can be overwritten."""

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        """Receive a closed episode: its slots, and the number of its first sample; see `wants_episodes`.

        The head of the buffer includes these samples. May be called more than once for an episode.
        """

    def settle(self, timeout: float | None = None) -> int:
        """Wait at most `timeout` seconds for background work; return the number of samples it still has to process."""
        return 0

    def be_called(self, name: str) -> None:
        """Set the name of the storage for warnings: its column, and the folder of all columns."""

    # -- moving samples --------------------------------------------------------------------------------------

    def raw_rows(self, slots: Any) -> Any:
        """Return the content of these slots for `write_raw_rows`; bytes if `has_raw_rows`."""
        return self.get(slots)

    def write_raw_rows(self, slots: Any, raw: Any, numbers: np.ndarray) -> None:
        """Write the result of `raw_rows` to these slots, as the samples with these numbers."""
        self.set(slots, raw)

    def encoded_as_raw_rows(self, encoded: Any, count: int | None) -> bytes:
        """Convert the result of `encode` to bytes for `write_raw_rows`; see `has_raw_rows`."""
        raise NotImplementedError(f"{type(self).__name__} has no raw rows")

    @property
    def row_nbytes(self) -> int:
        """The size of a raw row in bytes if `has_raw_rows`, else of the fixed-size leaves of a sample."""
        return self.layout.nbytes

    # -- files -----------------------------------------------------------------------------------------------

    def snapshot(self, path: str | os.PathLike[str], slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        """`dumps` for the slots in these ranges [start, stop) only; ranges may be empty.

        The slots hold consecutive samples from `number` on. The copy of a growing storage must have all slots up to the
        last `stop`.
        """
        self.dumps(path)

    def trim(self) -> None:
        """Cut the files to the slots in use. No process may write meanwhile."""

    def sizes(self) -> tuple[int, int]:
        """Return two sizes of the storage's files, which the buffer saves when it is closed normally."""
        return (0, 0)

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        """Set the number of slots in use; a StorageCorruptedError if the files have fewer.

        `sizes` is the result of `sizes()` when the buffer was closed; None if it was not closed normally.
        """
        if length > len(self):
            raise StorageCorruptedError(f"{self.cache_filename}: {len(self)} slots, the buffer has {length}")

    def absent_slots(self) -> list[tuple[int, int]]:
        """Return the ranges [start, stop) of slots that are missing in the files and read as empty, if known."""
        return []

    # -- checksums of rows -----------------------------------------------------------------------------------

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        """Check that the slots hold the samples with these numbers: ROW_WHOLE, ROW_UNKNOWN or ROW_WRONG for each.

        With `numbers_only`, only the stored numbers are compared, not the checksums of rows. A storage without row
        checksums returns ROW_WHOLE for every row: reading, or `verify`, finds damage.
        """
        return np.full(len(slots), ROW_WHOLE, np.int8)

    def forget_rows(self, head: int) -> bool:
        """Remove the checksums of samples with numbers from `head` on; return whether there were any."""
        return False

    def replace_block_sums(self, numbers: np.ndarray) -> None:
        """Replace the block checksums of an earlier version by row checksums.

        `numbers` has the number of the sample in each slot, -1 for an empty slot.
        """


def rows_of(storage: SpaceStorage) -> RowStorage:
    """Return the storage itself if it is a `RowStorage`, else a `RowStorage` over it.

    Parameters
    ----------
    storage
        The storage.

    Returns
    -------
    RowStorage
        The storage itself, or an adapter over its documented methods.
    """
    return storage if isinstance(storage, RowStorage) else _PlainStorage(storage)


class _PlainStorage(RowStorage):
    """A `RowStorage` over a storage that implements only `SpaceStorage`."""

    def __init__(self, storage: SpaceStorage) -> None:
        super().__init__(storage.single_instance_space)
        self._storage = storage
        self.capacity, self.cache_filename = storage.capacity, storage.cache_filename
        self.is_mutable, self.is_multiprocessing_safe = storage.is_mutable, storage.is_multiprocessing_safe
        self.survives_kill, self.single_file_ext = storage.survives_kill, storage.single_file_ext
        self.has_flattened_access = storage.has_flattened_access  # type: ignore[misc]
        self.has_column_access = storage.has_column_access  # type: ignore[misc]
        self.takes_columns = storage.takes_columns  # type: ignore[misc]
        self.is_segment_aware = storage.is_segment_aware  # type: ignore[misc]
        self.checks_when_read = storage.checks_when_read  # type: ignore[misc]

    @classmethod
    def create(cls, single_instance_space: Space, *args: Any, **kwargs: Any) -> RowStorage:
        raise TypeError("create the SpaceStorage, and pass it to rows_of")

    @classmethod
    def load_from(cls, path: Any, single_instance_space: Space, **kwargs: Any) -> RowStorage:
        raise TypeError("load the SpaceStorage, and pass it to rows_of")

    @property
    def original(self) -> SpaceStorage:
        return self._storage

    def __len__(self) -> int:
        return len(self._storage)

    def get(self, index: Any) -> Any:
        return self._storage.get(index)

    def set(self, index: Any, value: Any) -> None:
        self._storage.set(index, value)

    def get_flattened(self, index: Any) -> Any:
        return self._storage.get_flattened(index)

    def set_flattened(self, index: Any, value: Any) -> None:
        self._storage.set_flattened(index, value)

    def get_column(self, nested_keys: Sequence[str]) -> SpaceStorage:
        return self._storage.get_column(nested_keys)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        self._storage.dumps(path)

    def extend_length(self, length: int) -> None:
        self._storage.extend_length(length)

    def shrink_length(self, length: int) -> None:
        self._storage.shrink_length(length)

    def clear(self) -> None:
        self._storage.clear()

    def flush(self) -> None:
        self._storage.flush()

    def verify(self) -> list[str]:
        return self._storage.verify()

    @property
    def nbytes(self) -> int | None:
        return self._storage.nbytes

    def close(self) -> None:
        self._storage.close()

    @property
    def has_open_segment(self) -> bool:
        return self._storage.has_open_segment

    @property
    def pending_segment_length(self) -> int:
        return self._storage.pending_segment_length

    def get_segments(self) -> list[tuple[int, int]] | None:
        return self._storage.get_segments()

    def mark_segment_start(self, start_index: int) -> None:
        super().mark_segment_start(start_index)
        self._storage.mark_segment_start(start_index)

    def append(self, value: Any) -> None:
        self._storage.append(value)

    def mark_segment_end(self) -> None:
        super().mark_segment_end()
        self._storage.mark_segment_end()

    def abort_segment(self) -> None:
        super().abort_segment()
        self._storage.abort_segment()
