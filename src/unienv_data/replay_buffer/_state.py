"""All of a buffer but its samples: counters, segments, journal, and the locks among writers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..base.storage import SpaceStorage, StorageCorruptedError
from . import _journal
from ._counters import Header, MappedHeader
from ._journal import Edit, Journal
from ._lanes import LanedSegmentIndex, index_in_memory, new_index, open_index
from ._locks import FolderLock, ProcessMutex, is_locked
from ._physical import logical_segments
from ._segments import SegmentIndex

HEADER, SEGMENT_FILE, JOURNAL, LOCK = "header.bin", "segments.bin", "journal.bin", "lock"
# How long a reader waits for an edit before it looks whether anybody is making it.
_PATIENCE = 0.02


class BufferState:
    """The numbers that say which slots hold samples, and who may change them.

    Slot of sample n: `n - BASE`, modulo the capacity if there is one.
    """

    def __init__(
        self,
        storage: SpaceStorage,
        header: Header,
        segments: SegmentIndex,
        journal: Journal | None,
        *,
        shared: bool,
        folder: Path | None = None,
        lock: FolderLock | None = None,
        mutex: ProcessMutex | None = None,
    ) -> None:
        self.storage, self.segments, self.journal = storage, segments, journal
        self.header, self.counters = header, header.counters
        self.shared, self.folder, self.lock = shared, folder, lock
        self.mutex = mutex or (ProcessMutex() if shared else None)
        self._threads = threading.Lock()
        self.has_copies = False  # whether other buffers in this process have this state, too
        self.is_closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.storage, self.header, self.segments, self.journal)
        return _received, (parts, self.shared, self.folder, self.lock, self.mutex)

    # -- where samples lie -----------------------------------------------------------------------------------

    def slots(self, numbers: Any) -> Any:
        """The slots of samples by their numbers: an array, or one."""
        slots = numbers - self.counters.base
        return slots if self.storage.capacity is None else slots % self.storage.capacity

    def slot(self, number: int) -> int:
        """The slot of one sample."""
        return int(self.slots(number))

    def used(self, head: int) -> int:
        """How many slots of the storage are in use."""
        return head - self.counters.base if self.storage.capacity is None else self.storage.capacity

    def slot_ranges(self, tail: int, head: int, base: int) -> list[tuple[int, int]]:
        """The slots of the samples from tail to head, as ranges [start, stop), some of them empty."""
        capacity = self.storage.capacity
        start, count = max(0, tail - base), head - base - max(0, tail - base)
        if capacity is None:
            return [(start, start + count)]
        start %= capacity
        return [(start, min(start + count, capacity)), (0, max(0, start + count - capacity))]

    def open_start(self) -> int | None:
        """The number of the first sample of the open episode; None if none is open.

        Of a buffer without lanes: else each of them has an open episode of its own.
        """
        start = max(self.counters.closed, self.counters.tail)
        return start if start < self.counters.head else None

    def take_over(self, count: int, offset: int, pairs: Iterable[tuple[int, int]], open_length: int = 0) -> None:
        """Begin with what the storage holds: `count` samples from slot `offset` on.

        The closed episodes are pairs of slots, as in the reference's format; the last `open_length` samples are in
        one that is open.
        """
        self.counters.tail, self.counters.head = offset, offset + count
        self.counters.closed = offset + count - open_length
        for start, stop in logical_segments(pairs, offset, count, self.storage.capacity):
            self.segments.prepare()
            self.segments.add(offset + start, offset + stop)

    def has_open_segment(self) -> bool:
        """Whether an episode, of any lane, has samples and is not closed."""
        if not isinstance(self.segments, LanedSegmentIndex):
            return self.open_start() is not None
        head = self.counters.head
        return any(start < head for start in self.segments.open_starts(self.counters.tail, head))

    # -- the right to write ----------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether anybody else may change it, in this process or in another."""
        return self.shared or self.has_copies

    @property
    def writing(self) -> contextlib.AbstractContextManager[Any]:
        """Held while writing; where several processes may write, it also puts right what a dead one left."""
        return self if self.shared else self._threads

    def renew_lock(self) -> None:
        """Have a lock among threads that none holds."""
        self._threads = threading.Lock()

    def __enter__(self) -> None:
        mutex, counters = self._shared_mutex(), self.counters
        mutex.__enter__()
        try:
            if counters.writer:
                self.recover()
            elif self.storage.capacity is None:
                self.storage.fit_to(counters.head - counters.base, None)  # others may have made it grow
            counters.writer = os.getpid()
        except BaseException:
            mutex.__exit__()
            raise

    def __exit__(self, exc_type: object, *exc_info: object) -> None:
        if exc_type is None:  # else the next one looks whether something was left half done
            self.counters.writer = 0
        self._shared_mutex().__exit__()

    def _shared_mutex(self) -> ProcessMutex:
        if self.mutex is None:
            raise RuntimeError("the buffer is not shared between processes")
        return self.mutex

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    def in_memory(cls, storage: SpaceStorage, *, shared: bool, lanes: int = 1) -> BufferState:
        header: Header = MappedHeader.create(None) if shared else Header()
        if not shared:
            return cls(storage, header, index_in_memory(header, storage.capacity, lanes), None, shared=False)
        segments = new_index(header, storage.capacity, None, lanes)
        return cls(storage, header, segments, Journal.create(None), shared=True)

    @classmethod
    def create(
        cls, storage: SpaceStorage, folder: Path, *, shared: bool, lanes: int = 1, lock: FolderLock | None = None
    ) -> BufferState:
        """The state of a new buffer on disk, by whoever has the lock or takes it now."""
        lock = lock or FolderLock(folder / LOCK, shared=shared)
        header = MappedHeader.create(folder / HEADER)
        segments = new_index(header, storage.capacity, folder / SEGMENT_FILE, lanes)
        journal = Journal.create(folder / JOURNAL)
        return cls(storage, header, segments, journal, shared=shared, folder=folder, lock=lock)

    @classmethod
    def open(
        cls, storage: SpaceStorage, folder: Path, lock: FolderLock | None, *, shared: bool, lanes: int = 1
    ) -> BufferState:
        """The state of a buffer on disk, to write if there is a lock; made whole where a writer was killed."""
        writable = lock is not None
        header = MappedHeader.open(folder / HEADER, writable=writable, data_is_live=storage.survives_kill)
        segments = open_index(header, storage.capacity, folder / SEGMENT_FILE, lanes, writable=writable)
        journal = Journal.open(folder / JOURNAL) if writable else None
        state = cls(storage, header, segments, journal, shared=shared and writable, folder=folder, lock=lock)
        state._check()
        if writable:
            state.recover()
        return state

    def _check(self) -> None:
        """Compare the counters with each other and with the files."""
        counters, capacity = self.counters, self.storage.capacity
        for attempt in range(5):
            head, tail, base = counters.head, counters.tail, counters.base
            fits = 0 <= base <= tail <= head and (capacity is None or head - tail <= capacity)
            fits = fits and not any(number % self.segments.lanes for number in (head, tail, base))
            if fits and min(counters.closed, counters.segments, counters.edit) >= 0:
                break
            if attempt == 4:
                raise StorageCorruptedError(
                    f"{self.folder / HEADER if self.folder else 'counters'}: they cannot be right: head {head}, "
                    f"tail {tail}, base {base}, capacity {capacity}, lanes {self.segments.lanes}"
                )
            time.sleep(0.001)  # a writer may have changed them between one look and the next
        try:
            self._check_files(self.used(head), self.header.closed_sizes)
        except StorageCorruptedError:
            if self.header.closed_sizes is None or self.header.is_closed():
                raise
            self._check_files(self.used(head), None)  # somebody has just begun to write

    def _check_files(self, used: int, sizes: tuple[int, int, int] | None) -> None:
        self.storage.fit_to(used, None if sizes is None else sizes[:2])
        if sizes is not None and self.segments.file is not None:
            self.segments.file.check_length(sizes[2], exactly=True)

    # -- faults ----------------------------------------------------------------------------------------------

    def recover(self, closed: int | None = None) -> None:
        """Make whole what a writer has left half done; before `closed`, if that is known, no segment is open."""
        counters = self.counters
        if self.storage.capacity is None:
            self.storage.fit_to(counters.head - counters.base, None)
        if counters.edit & 1:
            if self.journal is None or not self.storage.has_raw_rows:
                counters.edit += 1
            else:
                _journal.finish(self.journal, self.storage, self.counters, self.segments)
        self.segments.recover()
        counters.closed = (
            min(max(counters.closed, self.segments.last_stop()), counters.head) if closed is None else closed
        )
        counters.coming = counters.head

    def wait_for_edit(self) -> None:
        """Wait until nobody is in the middle of changing samples in place."""
        deadline = time.monotonic() + _PATIENCE
        while self.counters.edit & 1:
            time.sleep(0.0002)
            if time.monotonic() < deadline:
                continue
            if self.shared:
                with self.writing:  # if the one who did it is dead, this takes over and makes the edit
                    return
            if self.folder is not None and not is_locked(self.folder / LOCK) and self.counters.edit & 1:
                raise StorageCorruptedError(
                    f"{self.folder}: a writer was killed while it changed samples in place; "
                    f"open the buffer once with read_only=False to finish that"
                )
            deadline = time.monotonic() + _PATIENCE

    # -- edits -----------------------------------------------------------------------------------------------

    def edit(self, edit: Edit, *, durable: bool) -> None:
        """Make an edit that readers see whole or not at all, and that survives a kill where the storage allows it."""
        counters = self.counters
        if self.journal is None or not self.storage.has_raw_rows:
            counters.edit += 1
            try:
                _journal.make(edit, self.storage, self.counters, self.segments)
            finally:
                counters.edit += 1
            return
        self.journal.write(edit, self.storage.row_nbytes)
        if durable:
            self.journal.sync()
        counters.edit += 1
        try:
            if durable:
                self.flush()  # a power cut from here on finds that an edit is due
            _journal.finish(self.journal, self.storage, self.counters, self.segments)
        except BaseException:
            if counters.edit & 1:  # interrupted: it must not stay half made
                _journal.finish(self.journal, self.storage, self.counters, self.segments)
            raise
        if durable:
            self.flush()
        self.journal.empty()

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything that was written survive a power cut."""
        self.storage.flush()
        self.segments.sync()
        self.header.commit()

    def close(self) -> None:
        """Give back files and locks; what was written is durable by then. May be called more than once."""
        if self.is_closed:
            return
        if self.folder is not None and self.lock is not None and self.lock.is_held:
            with self.writing:
                if not self.shared and self.header.closed_sizes is None:
                    self.storage.seal(self.slot_ranges(self.counters.tail, self.counters.head, self.counters.base))
                self.flush()
                if not self.shared:
                    length = 0 if self.segments.file is None else self.segments.file.length
                    self.header.seal((*self.storage.sizes(), length))
        self.is_closed = True
        if self.mutex is not None:
            self.mutex.close()  # before what others may be about to write to
        self.storage.close()
        self.segments.close()
        self.header.close()
        if self.journal is not None:
            self.journal.close()
        if self.lock is not None:
            self.lock.release()


def _received(
    parts: tuple[SpaceStorage, Header, SegmentIndex, Journal | None],
    shared: bool,
    folder: Path | None,
    lock: FolderLock | None,
    mutex: ProcessMutex | None,
) -> BufferState:
    return BufferState(*parts, shared=shared, folder=folder, lock=lock, mutex=mutex)
