"""The state of a buffer apart from its samples: counters, segments, journal, options, and the locks of writers."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.channel import no_interrupt

from ..base.row_storage import ROW_UNKNOWN, ROW_WHOLE, ROW_WRONG, rows_of
from ..base.storage import SpaceStorage, StorageCorruptedError
from ._counters import Header, MappedHeader
from ._lanes import LanedSegmentIndex, index_in_memory, new_index, open_index
from ._locks import FolderLock, SharedWriteLock, WriteLock, holder_of, is_locked
from ._recovery import NONE, Edit, Journal, Loss, find_loss, finish, numbers_in
from ._segments import SegmentIndex, logical_segments

HEADER, SEGMENT_FILE, JOURNAL = "header.bin", "segments.bin", "journal.bin"
#: Held while a folder may be written, and while it is written by several processes.
LOCK, TURNS = "lock", "turns"
# How long a reader waits for an edit before it checks whether the writer is alive.
_PATIENCE = 0.02
_EDIT_TIMEOUT = 30.0
# After so many looks at moving counters a reader assumes a live writer.
_LOOKS = 8


class UnfinishedEditError(StorageCorruptedError):
    """Samples are half changed; the next process that opens the buffer for writing finishes the edit."""


@dataclass(frozen=True)
class BufferOptions:
    """How a buffer keeps its samples: with episodes or not, durable at their ends or not, in how many lanes."""

    maintains: bool = False
    durable: bool = False
    lanes: int = 1


class BufferState:
    """The counters that tell which slots hold samples, and the locks of the writers.

    The slot of sample n is `n - base`, modulo the storage's `ring` if it has a capacity.
    """

    def __init__(
        self,
        storage: SpaceStorage,
        header: Header,
        segments: SegmentIndex,
        journal: Journal | None,
        options: BufferOptions,
        *,
        shared: bool,
        folder: Path | None = None,
        folder_lock: FolderLock | None = None,
        write_lock: WriteLock | None = None,
    ) -> None:
        self.storage, self.segments, self.journal = rows_of(storage), segments, journal
        self.header, self.counters = header, header.counters
        self.options, self.maintains, self.durable = options, options.maintains, options.durable
        self.shared, self.folder, self.folder_lock = shared, folder, folder_lock
        self.write_lock = write_lock or (SharedWriteLock() if shared else WriteLock())
        if isinstance(self.write_lock, SharedWriteLock):
            self.write_lock.owner = weakref.proxy(self)
        self.is_closed = False
        self.failure: Exception | None = None  # after one, writes and flushes are refused
        self.edit_timeout = _EDIT_TIMEOUT  # seconds that a reader waits for the end of an edit
        self.findings: tuple[str, ...] = ()  # the samples that a power cut has damaged, in words

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.storage, self.header, self.segments, self.journal, self.options)
        write_lock = self.write_lock if self.shared else None
        return _received, (parts, self.shared, self.folder, self.folder_lock, write_lock)

    # -- slots of samples ------------------------------------------------------------------------------------

    def slots(self, numbers: Any) -> Any:
        """The slots of samples by their numbers: an array, or one."""
        slots = numbers - self.counters.base
        return slots if self.storage.ring is None else slots % self.storage.ring

    def slot(self, number: int) -> int:
        """The slot of one sample."""
        return int(self.slots(number))

    def used(self, head: int) -> int:
        """How many slots of the storage are in use."""
        return head - self.counters.base if self.storage.ring is None else self.storage.ring

    def slot_ranges(self, tail: int, head: int, base: int) -> list[tuple[int, int]]:
        """The slots of the samples from tail to head, as ranges [start, stop), some of them empty."""
        ring = self.storage.ring
        start, count = max(0, tail - base), head - base - max(0, tail - base)
        if ring is None:
            return [(start, start + count)]
        start %= ring
        return [(start, min(start + count, ring)), (0, max(0, start + count - ring))]

    def open_start(self) -> int | None:
        """The number of the first sample of the open episode, in a buffer without lanes; None if none is open."""
        start = max(self.counters.closed, self.counters.tail)
        return start if start < self.counters.head else None

    def adopt(self, count: int, offset: int, pairs: Iterable[tuple[int, int]], open_length: int = 0) -> None:
        """Start with the samples of the storage: `count` samples from slot `offset` on.

        `pairs` are the first and last slots of closed episodes, as in the reference's format; the last `open_length`
        samples belong to an open episode.
        """
        self.counters.tail, self.counters.head = offset, offset + count
        self.counters.closed = offset + count - open_length
        for start, stop in logical_segments(pairs, offset, count, self.storage.capacity):
            self.segments.prepare()
            self.segments.add(offset + start, offset + stop)

    def find_wrong_rows(self) -> list[str]:
        """The damaged samples, one sentence for each range of indices."""
        storage, tail, head = self.storage, self.counters.tail, self.counters.head
        if not storage.has_row_sums:
            return []
        numbers = np.arange(tail, max(head, tail))
        states = storage.check_rows(self.slots(numbers), numbers)
        states[: max(0, self.counters.tail - tail)] = ROW_WHOLE  # overwritten by a writer meanwhile
        where, sentences = self.folder or storage.cache_filename, []
        lost = "have no checksum, so damage to them cannot be detected"
        for state, what in ((ROW_WRONG, "do not match their checksum"), (ROW_UNKNOWN, lost)):
            edges = np.flatnonzero(np.diff(states == state, prepend=False, append=False)).reshape(-1, 2)
            sentences += [f"{where}: samples {start} to {stop - 1} {what}" for start, stop in edges.tolist()]
        return sentences

    def has_open_segment(self) -> bool:
        """Whether any lane has an open episode with samples."""
        if not isinstance(self.segments, LanedSegmentIndex):
            return self.open_start() is not None
        head = self.counters.head
        return any(start < head for start in self.segments.open_starts(self.counters.tail, head))

    def open_length(self) -> int:
        """The number of samples in the open episodes of all lanes."""
        if self.is_closed:
            return 0
        head, lanes = self.counters.head, self.segments.lanes
        if isinstance(self.segments, LanedSegmentIndex):
            starts = self.segments.open_starts(self.counters.tail, head)
            return sum(-(-max(0, head - start) // lanes) for start in starts)
        start = self.open_start()
        return 0 if start is None else head - start

    # -- writers of several processes ------------------------------------------------------------------------

    def begin_shared_write(self) -> None:
        """Repair the leftovers of a killed writer, and record this process as the writer."""
        counters = self.counters
        if self.header.is_of_another_boot:
            pass  # `_begin_to_write` compares the checksums first
        elif counters.writer:  # the last writer was killed, or its write failed
            self.recover()
            self._forget_unacknowledged()
        elif self.storage.capacity is None:
            self.storage.fit_to(counters.head - counters.base, None)  # another process may have made it grow
        counters.writer = os.getpid()

    def end_shared_write(self) -> None:
        """Record that no process writes."""
        self.counters.writer = 0

    def is_writing_here(self) -> bool:
        """Whether the calling thread is in the middle of a write, and so must not wait for a writer."""
        return self.write_lock.is_held_here()

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    def in_memory(cls, storage: SpaceStorage, options: BufferOptions, *, shared: bool) -> BufferState:
        lanes = options.lanes
        header: Header = MappedHeader.create(None) if shared else Header()
        if not shared:
            return cls(storage, header, index_in_memory(header, storage.capacity, lanes), None, options, shared=False)
        segments = new_index(header, storage.capacity, None, lanes)
        return cls(storage, header, segments, Journal.create(None), options, shared=True)

    @classmethod
    def create(
        cls,
        storage: SpaceStorage,
        folder: Path,
        options: BufferOptions,
        *,
        shared: bool,
        folder_lock: FolderLock | None = None,
    ) -> BufferState:
        """The state of a new buffer on disk; takes the folder's lock if none is given."""
        folder_lock = folder_lock or FolderLock(folder / LOCK, shared=shared)
        header = MappedHeader.create(folder / HEADER)
        segments = new_index(header, storage.capacity, folder / SEGMENT_FILE, options.lanes)
        journal = Journal.create(folder / JOURNAL)
        write_lock = SharedWriteLock.open(folder / TURNS) if shared else None
        return cls(
            storage,
            header,
            segments,
            journal,
            options,
            shared=shared,
            folder=folder,
            folder_lock=folder_lock,
            write_lock=write_lock,
        )

    @classmethod
    def open(
        cls,
        storage: SpaceStorage,
        folder: Path,
        options: BufferOptions,
        folder_lock: FolderLock | None,
        *,
        shared: bool,
    ) -> BufferState:
        """The state of a buffer on disk, for writing with a lock, else for reading; repaired after a killed writer."""
        writable = folder_lock is not None
        header = MappedHeader.open(folder / HEADER, writable=writable, data_is_live=storage.survives_kill)
        path = folder / SEGMENT_FILE
        segments = open_index(header, storage.capacity, path, options.lanes, writable=writable)
        journal = Journal.open(folder / JOURNAL) if writable else None
        shared = shared and writable
        if folder_lock is not None and not (shared and storage.is_multiprocessing_safe):
            folder_lock.refuse_others()
        write_lock = SharedWriteLock.open(folder / TURNS) if shared else None
        state = cls(
            storage,
            header,
            segments,
            journal,
            options,
            shared=shared,
            folder=folder,
            folder_lock=folder_lock,
            write_lock=write_lock,
        )
        if writable:
            state.write_lock.run(state._begin_to_write)
            return state
        if header.is_of_another_boot:
            loss = state._find_loss_beside_writers()
            if loss is not None:
                header.go_on_from(loss.counters)
                segments = open_index(header, storage.capacity, path, options.lanes, writable=False)
                state = cls(storage, header, segments, None, options, shared=False, folder=folder)
                state.findings = loss.findings
        state._check()
        return state

    def _begin_to_write(self) -> None:
        """Repair the leftovers of a killed writer, before the first write."""
        counters = self.counters
        if self.header.is_of_another_boot:
            has_edit_to_make = self.header.has_edit_to_make()
            if has_edit_to_make:
                counters.edit = self.header.newest_half().edit
            if counters.edit & 1:
                self._make_edit_again(is_durable=has_edit_to_make)
            loss = find_loss(self, counters.copy())
            if loss is not None and not loss.findings:
                counters.assign(loss.counters)
            elif loss is not None:
                raise StorageCorruptedError(
                    f"{' '.join(loss.findings)}. To go on, keep what is whole with `unienv repair` "
                    f"(unienv_data.repair), or look at it with read_only=True"
                )
            self.flush()  # the samples found whole survive another power cut
        self._check()
        self.header.begin_to_write()
        self.recover()
        used = np.arange(self.used(counters.head))
        numbers = numbers_in(used, self.storage.ring, counters.base, counters.tail)
        numbers[numbers >= counters.head] = NONE
        self.storage.replace_block_sums(numbers)
        if self.header.closed_sizes is None:
            self._forget_unacknowledged()

    def _find_loss_beside_writers(self) -> Loss | None:
        """The samples that a reader cannot show to be whole; None if a writer on another machine is at work.

        After a power cut the counters stay still: a process that opens the folder for writing moves them a few times
        at most before it refuses.
        """
        for _ in range(_LOOKS):
            deadline = time.monotonic() + _PATIENCE
            while self.header.has_edit_to_make() or self.counters.edit & 1:
                if time.monotonic() > deadline and not is_locked(Path(str(self.folder), LOCK)):
                    raise self._unfinished("the machine went down while a writer changed samples in place")
                if time.monotonic() > deadline + self.edit_timeout:
                    raise self._waited_for_edit()
                time.sleep(0.0002)
            before = self.counters.copy()
            loss = find_loss(self, before)
            if loss is None or (self.counters == before and not before.edit & 1):
                return loss
        return None

    def _forget_unacknowledged(self) -> None:
        """Remove the checksums of unacknowledged rows, which must not match the next samples of the same numbers."""
        if self.storage.forget_rows(self.counters.head):
            self._sync_files()

    def _make_edit_again(self, *, is_durable: bool) -> None:
        try:
            self.recover()
            self.counters.edit += 2  # the edit must not be made again if the samples are refused
            self._sync_files()
        except StorageCorruptedError:
            if is_durable:
                raise
            self.counters.edit += 1  # `find_loss` compares the checksums of overwritten samples next

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
            time.sleep(0.001)  # a writer may move counters between two reads
        try:
            self._check_files(self.used(head), self.header.closed_sizes)
        except StorageCorruptedError:
            if self.header.closed_sizes is None or self.header.is_closed():
                raise
            self._check_files(self.used(head), None)  # a writer has just opened the buffer

    def _check_files(self, used: int, sizes: tuple[int, int, int] | None) -> None:
        self.storage.fit_to(used, None if sizes is None else sizes[:2])
        self.segments.check_room()
        if sizes is not None and self.segments.file is not None:
            self.segments.file.check_length(sizes[2], exactly=True)

    # -- faults ----------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish the edit of a killed writer, and drop its unacknowledged records."""
        counters = self.counters
        if self.storage.capacity is None:
            self.storage.fit_to(counters.head - counters.base, None)
        if counters.edit & 1:
            if self.journal is None or not self.storage.has_raw_rows:
                counters.edit += 1
            else:
                finish(self.journal, self.storage, self.counters, self.segments)
        self.segments.recover()
        counters.closed = min(max(counters.closed, self.segments.last_stop()), counters.head)
        counters.coming = counters.head

    def wait_for_edit(self) -> None:
        """Block until no other thread or process is in the middle of an edit; a TimeoutError after `edit_timeout`."""
        begun = time.monotonic()
        deadline = begun + _PATIENCE
        if self.failure is not None and self.counters.edit & 1:
            raise self.as_failed()
        while self.counters.edit & 1 and not self.is_writing_here():
            time.sleep(0.0002)
            if time.monotonic() < deadline:
                continue
            if isinstance(self.write_lock, SharedWriteLock):
                if self.write_lock.is_free():
                    self.write_lock.run(_nothing)  # the writer is dead: its successor finishes the edit
                    return
            elif self._is_writer_gone() and self.counters.edit & 1:
                raise self._unfinished("a writer was killed while it changed samples in place")
            if time.monotonic() > begun + self.edit_timeout:
                raise self._waited_for_edit()
            deadline = time.monotonic() + _PATIENCE

    def _is_writer_gone(self) -> bool:
        """Whether no process writes to the folder; the lock of a process on another machine may be invisible."""
        return self.folder is not None and not self.header.is_of_another_boot and not is_locked(self.folder / LOCK)

    def _waited_for_edit(self) -> TimeoutError:
        pid = self.counters.writer or (holder_of(self.folder / LOCK) if self.folder else os.getpid())
        return TimeoutError(
            f"{self.folder or 'the buffer'}: its writer (pid {pid}) has been in the middle of changing samples for "
            f"{self.edit_timeout} s; if it is stopped, let it go on or end it"
        )

    def _unfinished(self, what: str) -> StorageCorruptedError:
        """The error of a reader that meets an unfinished edit, which only a writer may finish."""
        is_durable = self.header.has_edit_to_make()
        number = self.header.newest_half().edit if is_durable else self.counters.edit
        is_needed = is_durable or not self.header.is_of_another_boot  # else a writer goes on without the journal
        if is_needed and not self._has_whole_journal(number):
            return StorageCorruptedError(
                f"{self.folder}: {what}, and what it was to write is damaged as well: keep what is whole with "
                f"`unienv repair` (unienv_data.repair)"
            )
        return UnfinishedEditError(f"{self.folder}: {what}; open the buffer once with read_only=False to finish that")

    def _has_whole_journal(self, number: int) -> bool:
        try:
            journal = Journal.open(Path(str(self.folder), JOURNAL), writable=False)
        except StorageCorruptedError:
            return False
        try:
            journal.read(self.storage, self.counters, number)
        except StorageCorruptedError:
            return False
        finally:
            journal.close()
        return True

    def as_failed(self) -> OSError:
        """The error of all writes after a flush or an edit has failed."""
        where = self.folder or self.storage.cache_filename
        if self.counters.edit & 1:
            what = "samples are half changed: open the buffer again with read_only=False to finish that"
        else:
            what = "a flush has failed, the samples written since the last one may be lost"
        error = OSError(f"{where}: {what}")
        error.__cause__ = self.failure
        return error

    # -- edits -----------------------------------------------------------------------------------------------

    def flushes(self, edit: Edit) -> bool:
        """Whether an edit is made durable at once, as an edit that moves samples must be: half of it would be wrong."""
        is_journaled = self.journal is not None and self.storage.has_raw_rows
        return is_journaled and (self.durable or bool(edit.counters))

    def edit(self, edit: Edit) -> None:
        """Make an edit: readers see all of it or nothing, and it survives a kill if the storage allows that."""
        counters, journal, durable = self.counters, self.journal, self.flushes(edit)
        if journal is None or not self.storage.has_raw_rows:
            before = counters.edit
            counters.edit = before + 1
            try:
                edit.make(self.storage, counters, self.segments)
            except BaseException:  # interrupted: the edit must not stay half made
                with no_interrupt():
                    edit.make(self.storage, counters, self.segments)
                raise
            finally:
                counters.edit = before + 2
            return
        journal.write(edit, self.storage.row_nbytes, counters.edit + 1)
        if durable:
            journal.sync()
        counters.edit += 1
        try:
            if durable:
                self.flush()  # after a power cut from here on, the edit is made again
            finish(journal, self.storage, counters, self.segments)
        except BaseException:
            if counters.edit & 1:  # interrupted: the edit must not stay half made
                with no_interrupt():
                    finish(journal, self.storage, counters, self.segments)
            raise
        if durable:
            self.flush()
        journal.empty()

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all written samples survive a power cut."""
        self._sync_files()
        self.header.commit()

    def _sync_files(self) -> None:
        self.storage.flush()
        self.segments.sync()

    def close(self) -> None:
        """Flush, and release files and locks, also if the flush fails. May be called more than once."""
        is_ours = self.folder is not None and self.folder_lock is not None and self.folder_lock.is_held
        try:
            if is_ours and self.failure is None and not self.is_closed:
                self.write_lock.run(self._finish)
        finally:
            self.is_closed = True
            self.write_lock.close()  # first: a thread blocked on it must not write to closed files
            self.storage.close()
            self.segments.close()
            self.header.close()
            if self.journal is not None:
                self.journal.close()
            if self.folder_lock is not None:
                self.folder_lock.release()

    def _finish(self) -> None:
        """Flush, and seal the header if no other process writes."""
        if self.is_closed:  # by another thread
            return
        self.storage.settle()
        if not self.shared:
            self.storage.fit_to(self.used(self.counters.head), None)
            self.storage.trim()
        self.flush()
        if not self.shared:
            length = 0 if self.segments.file is None else self.segments.file.length
            self.header.seal((*self.storage.sizes(), length))
        self.is_closed = True


def _nothing() -> None:
    pass


def _received(
    parts: tuple[SpaceStorage, Header, SegmentIndex, Journal | None, BufferOptions],
    shared: bool,
    folder: Path | None,
    folder_lock: FolderLock | None,
    write_lock: WriteLock | None,
) -> BufferState:
    return BufferState(*parts, shared=shared, folder=folder, folder_lock=folder_lock, write_lock=write_lock)
