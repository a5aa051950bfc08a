"""How a replay buffer uses a storage: samples by slot, encoded first and written in place.

`SpaceStorage` is what a storage has to be. `RowStorage` is what a buffer wants beyond that; each method has a default
over the verbs, which a storage overrides where it knows a shorter way. `rows_of` gives the `RowStorage` of any storage.
Slots that a buffer hands to these methods are in range.
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

#: The state of a row by `check_rows`: as it was written, unknown, or not as it was written.
ROW_WHOLE, ROW_UNKNOWN, ROW_WRONG = 0, 1, 2


class RowStorage(SpaceStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A storage that a replay buffer writes to in place.

    `encode` looks at every leaf of a sample, `reserve` makes sure of room, and `write` assigns the encoded leaves to
    their slots.
    """

    #: The slots [start, stop) that can be written without another `reserve`.
    reserved: tuple[int, int] = (0, 0)
    #: `raw_rows` gives bytes, so that an edit can be written down before it is made and survives a kill.
    has_raw_rows: bool = False
    #: `check_rows` compares a checksum of each row.
    has_row_sums: bool = False
    #: The buffer calls `end_episode` for episodes that end, so that the storage can keep their samples in another form.
    wants_episodes: bool = False
    #: `load_from` takes `resize`, `crop` and `frame_cache`.
    decodes_frames: ClassVar[bool] = False
    #: `load_from` takes these for the columns that a pattern names, in `columns`, and a `frame_cache` for all of them.
    decodes_columns: ClassVar[bool] = False
    #: Each observation of a transition is stored once.
    shares_next_obs: ClassVar[bool] = False
    #: Of slots [k * n, (k + 1) * n), n being this number, either all can be read from the files or none.
    slots_read_as_one: int = 1
    #: How many slots a buffer goes round in beyond the capacity: those that must stay a while after their sample.
    spare_slots: int = 0

    @property
    def ring(self) -> int | None:
        """How many slots a buffer goes round in; None if the storage grows."""
        return None if self.capacity is None else self.capacity + self.spare_slots

    @property
    def slots_there(self) -> int:
        """How many slots can be read, the spare ones too; fewer than the `ring` where files were cut."""
        return len(self)

    @property
    def original(self) -> SpaceStorage:
        """The storage itself; where it has only the verbs, the storage that the buffer was given."""
        return self

    # -- reading ---------------------------------------------------------------------------------------------

    def gather(self, slots: Any, length: int) -> Any:
        """Read a slot or an array of slots; a growing storage has `length` slots by now.

        With a capacity, slots may run past the `ring` once: they are taken modulo the ring.
        """
        return self.get(slots if self.ring is None else slots % self.ring)

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        """`gather` for windows (B, T) of slots, with these two axes in front."""
        return split_axis(self.backend, self.gather(slots.reshape(-1), length), slots.shape)

    def gather_flattened(self, slots: Any, length: int) -> Any:
        """`gather` in flat form; see `has_flattened_access`."""
        return self.get_flattened(slots if self.capacity is None else slots % self.capacity)

    def gather_rows(self, slots: np.ndarray, length: int) -> Rows | None:
        """`gather` for an array of slots of any shape, as rows of the layout; None where samples are no rows."""
        return None

    def can_gather_spans(self, count: int) -> bool:
        """Whether `gather_spans` is implemented, and quicker for windows of `count` samples."""
        return False

    def gather_spans(self, spans: Spans, shift: int, length: int) -> Any:
        """`gather_windows` for windows of consecutive slots, which are `shift` more than `spans` says."""
        raise NotImplementedError(f"{type(self).__name__} has no spans")

    def encoded_frames(self, nested_keys: tuple[Any, ...], slots: np.ndarray, length: int) -> EncodedFrames | None:
        """Where the frames of a column lie in video files; None unless all of them do, as they are read."""
        return None

    # -- writing ---------------------------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> Any:
        """Check a sample, or a batch of `count`, and prepare it for `write`; a ValueError with the path of a misfit.

        Nothing that can be read changes.
        """
        self.layout.check(value, () if count is None else (count,))
        return value

    def part(self, encoded: Any, count: int, start: int, stop: int) -> Any:
        """The samples [start, stop) of an encoded batch of `count`."""
        return get_at(batch_space(self.single_instance_space, count), encoded, slice(start, stop))

    def reserve(self, start: int, stop: int) -> None:
        """Make sure that slots [start, stop) can be written; an OSError or MemoryError if there is no room.

        This replaces the previous reservation, unless `reserved` says otherwise.
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

    def check_rewritable(self, slots: np.ndarray) -> None:
        """A PermissionError with the way out unless samples in these slots can be overwritten, or moved there."""

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        """Note that the samples in these slots, `number` being the first one's, are an episode; see `wants_episodes`.

        The head of the buffer includes them. May be called more than once for an episode.
        """

    def settle(self, timeout: float | None = None) -> int:
        """Wait at most `timeout` seconds for what the storage does in the background; how many samples are left."""
        return 0

    def be_called(self, name: str) -> None:
        """Have warnings call the storage so: by the column that it keeps, and the folder of all columns."""

    # -- moving samples --------------------------------------------------------------------------------------

    def raw_rows(self, slots: Any) -> Any:
        """What lies in these slots, an array, for `write_raw_rows`; bytes if `has_raw_rows`."""
        return self.get(slots)

    def write_raw_rows(self, slots: Any, raw: Any, numbers: np.ndarray) -> None:
        """Write what `raw_rows` gave to these slots, as the samples of these numbers."""
        self.set(slots, raw)

    def encoded_as_raw_rows(self, encoded: Any, count: int | None) -> bytes:
        """A sample, or a batch of `count`, as `encode` gave it, for `write_raw_rows`; see `has_raw_rows`."""
        raise NotImplementedError(f"{type(self).__name__} has no raw rows")

    @property
    def row_nbytes(self) -> int:
        """The bytes of a sample, without what has no fixed size; those of one raw row if `has_raw_rows`."""
        return self.layout.nbytes

    # -- files -----------------------------------------------------------------------------------------------

    def snapshot(self, path: str | os.PathLike[str], slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        """`dumps` of which only the slots in these ranges [start, stop), some of them empty, are wanted.

        They hold consecutive samples, the first of which has `number`. A growing storage must have all slots up to the
        last `stop`.
        """
        self.dumps(path)

    def trim(self) -> None:
        """Cut the files to the slots in use, while nobody writes."""

    def sizes(self) -> tuple[int, int]:
        """Two figures about the storage's files, which the buffer keeps when it is closed in order."""
        return (0, 0)

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        """Set the number of slots in use; a StorageCorruptedError if the files have fewer.

        `sizes` is what `sizes()` said when the buffer was closed; None if it was not closed in order.
        """
        if length > len(self):
            raise StorageCorruptedError(f"{self.cache_filename}: {len(self)} slots, the buffer has {length}")

    def absent_slots(self) -> list[tuple[int, int]]:
        """Ranges [start, stop) of slots that read as empty because the files have nothing for them, if known."""
        return []

    # -- checksums of rows -----------------------------------------------------------------------------------

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        """Of each slot, which should hold the sample of this number: ROW_WHOLE, ROW_UNKNOWN or ROW_WRONG.

        With `numbers_only` rows are not compared with their checksums, only the numbers that stand beside those. A
        storage without checksums of rows calls every row whole: reading it, or `verify`, finds damage.
        """
        return np.full(len(slots), ROW_WHOLE, np.int8)

    def forget_rows(self, head: int) -> bool:
        """Remove the checksums of samples with numbers from `head` on; whether there was one."""
        return False

    def replace_block_sums(self, numbers: np.ndarray) -> None:
        """Replace the block checksums of an earlier version by one per row.

        `numbers` are those of the samples in all slots, -1 where there is none.
        """


def rows_of(storage: SpaceStorage) -> RowStorage:
    """A storage as a replay buffer uses it.

    Parameters
    ----------
    storage
        The storage.

    Returns
    -------
    RowStorage
        The storage itself, or an adapter over its documented methods.
    """
    return storage if isinstance(storage, RowStorage) else _VerbsAlone(storage)


class _VerbsAlone(RowStorage):
    """A storage that has only the verbs, as a replay buffer uses it."""

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
        raise TypeError("make the storage that has the verbs")

    @classmethod
    def load_from(cls, path: Any, single_instance_space: Space, **kwargs: Any) -> RowStorage:
        raise TypeError("load the storage that has the verbs")

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
