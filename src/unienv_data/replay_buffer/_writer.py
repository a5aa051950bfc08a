"""Writing, in an order that a kill at any instant does no harm to.

First whatever may fail: the value is checked, and room is made sure of. Then the tail moves past what will be
overwritten, then the rows are written, then the head moves. What is changed in place goes by way of the journal.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol, cast

import numpy as np

from unienv_interface.space.space_utils import batch_size_data, concatenate

from ..base._index import resolve_index
from ._journal import Edit, chunks
from ._lanes import LanedSegmentIndex
from ._removal import removal
from ._state import BufferState

_WRITERS: weakref.WeakSet[BufferWriter] = weakref.WeakSet()  # those that write for this process alone


def _begin_anew() -> None:
    """In a forked process, where threads that held locks are not there."""
    for writer in list(_WRITERS):
        writer.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


class Pending(Protocol):
    """What `_deferred` has staged for a buffer."""

    def hand_over(self, writer: BufferWriter, buffer: Any = None) -> None:
        """Write it, for whoever holds the right to write, and wait for no more."""


class Closed:
    """Stands for what is staged, so that who has waited for the right to write while the buffer was closed is told."""

    def hand_over(self, writer: BufferWriter, buffer: Any = None) -> None:
        raise RuntimeError("the buffer is closed")


class BufferWriter:
    """The writer of a buffer. Whether this process may write at all is `check`'s affair."""

    def __init__(self, state: BufferState, *, maintains: bool, durable: bool) -> None:
        self._state, self._counters, self._storage = state, state.counters, state.storage
        capacity = state.storage.capacity
        self._capacity, self._backend = None if capacity is None else int(capacity), state.storage.backend
        self._maintains, self._durable = maintains, durable
        self._failure: OSError | None = None
        self._is_refused = not self._may_write()  # as it was last found out: looking again takes a call of the system
        self._own_rows = state.storage.own_rows
        self.writing = state.writing
        self._segments, self._lanes = state.segments, state.segments.lanes
        self._open_starts: list[int] | None = None  # of each lane; None where they have to be looked up
        self._closed_before: int | None = None  # where no segment was open before a write that is under way
        # Steps that are staged for this buffer and not yet written: whoever writes has them written first.
        self.pending: Pending | None = None
        self._is_ending = False  # whether a segment is being closed
        if not state.shared:
            _WRITERS.add(self)

    @property
    def has_copies(self) -> bool:
        """Whether other buffers in this process are of the same samples."""
        return self._state.has_copies

    @property
    def head(self) -> int:
        """How many samples were ever written."""
        return self._counters.head

    def check(self) -> None:
        """Raise unless this process may write."""
        if self._is_refused:
            raise self._refusal()

    def _may_write(self) -> bool:
        lock = self._state.lock
        return self._storage.is_mutable and self._failure is None and (lock is None or lock.is_held)

    def begin_anew(self) -> None:
        """In a forked process: have a lock that nobody holds, and find out whether this process may write."""
        self._state.renew_lock()
        self.writing = self._state.writing
        self._is_refused = not self._may_write()

    def _refusal(self) -> OSError:
        """Why this process may not write."""
        state = self._state
        place = state.folder or self._storage.cache_filename
        if not self._storage.is_mutable:
            return PermissionError(f"{place} was opened read-only: open it with read_only=False to write")
        if self._failure is not None:
            error = OSError(f"{place}: a flush has failed, what was written since may be lost")
            error.__cause__ = self._failure
            return error
        return PermissionError(
            f"{place} is written by the process that this one is a fork of (pid {state.lock and state.lock.pid}): "
            f"create or load it with multiprocessing=True to write from several"
        )

    # -- adding ----------------------------------------------------------------------------------------------

    def append(self, value: Any, staged: Any = None) -> None:
        """Add one sample to the open segment; one that is staged already may be given as that."""
        if self._is_refused:
            raise self._refusal()
        if self._lanes > 1:
            raise self._wants_all_lanes("append")
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            counters, capacity, storage = self._counters, self._capacity, self._storage
            head = counters.head
            slot = head - counters.base if capacity is None else (head - counters.base) % capacity
            if staged is None:
                staged = storage.stage(value, None)
            if self._own_rows is None and not storage.ready[0] <= slot < storage.ready[1]:
                storage.prepare(slot, slot + 1)
            if counters.closed > head:
                self._recover()
            if capacity is not None and head - counters.tail >= capacity:
                counters.coming = head + 1
                counters.tail = head + 1 - capacity
            if self._own_rows is not None and isinstance(staged, (bytes, memoryview)):
                start = slot * len(staged)
                self._own_rows[start : start + len(staged)] = staged  # all that `write` would do
            elif storage.is_segment_aware:
                if not storage.has_open_segment:
                    storage.mark_segment_start(slot)
                storage.append(staged)
            else:
                storage.write(slot, staged)
            counters.head = head + 1

    def extend(self, value: Any) -> None:
        """Add a batch of samples as a segment of its own."""
        if self._is_refused:
            raise self._refusal()
        count = _batch_length(value)
        if count is None:
            space = self._storage.single_instance_space
            raise ValueError(f"extend wants a batch of {space}, with a leading axis, not {value!r:.200}")
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            self.check_extends()
            staged = self._storage.stage(value, count)
            if count:
                self.add_segment(staged, count)

    def make_room(self, count: int) -> None:
        """Have room for so many more samples, for whoever holds the right to write; an error if there is none."""
        start, storage = self._counters.head - self._counters.base, self._storage
        if self._capacity is None and start + count > storage.ready[1]:
            storage.prepare(start, start + count)

    def extend_staged(self, staged: Any, count: int) -> None:
        """`extend` by samples that are staged already, one at least."""
        if self._is_refused:
            raise self._refusal()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            self.check_extends()
            self.add_segment(staged, count)

    def check_extends(self) -> None:
        """Raise unless a segment of its own can be added now, by whoever holds the right to write."""
        if self._is_ending:
            self._recover()
        if self._lanes > 1:
            raise self._wants_all_lanes("extend")
        closed, head = self._counters.closed, self._counters.head
        if closed < head and self._state.open_start() is not None:
            raise RuntimeError("extend while a segment of append is open: call mark_segment_end first")

    def add_segment(self, staged: Any, count: int) -> None:
        """Add samples as a segment of its own, for whoever holds the right to write, after `check_extends`."""
        counters, capacity = self._counters, self._capacity
        head, base = counters.head, counters.base
        if counters.closed > head:
            self._recover()
        if capacity is not None and count >= capacity:
            staged, count = self._storage.part(staged, count, count - capacity, count), capacity
            base = head  # from slot 0, so that the oldest lies there
        self._commit(staged, count, base, [(head, head + count)] if self._maintains else [], head + count)
        if self._durable:
            self._flush()

    def _commit(self, staged: Any, count: int, base: int, ended: list[tuple[int, int]], closed: int) -> None:
        """Write rows, and the segments that end with them, and make both count; before `closed` no segment is open."""
        counters, capacity, storage = self._counters, self._capacity, self._storage
        head = counters.head
        slot, first = head - base, count
        if capacity is not None:
            slot %= capacity
            if slot + count > capacity:
                first = capacity - slot  # so many, then the rest from slot 0
        if not (storage.ready[0] <= slot and slot + count <= storage.ready[1]):
            storage.prepare(slot, slot + first)
            if first < count:
                storage.prepare(0, count - first)
        if ended:
            self._segments.prepare(len(ended))
        if capacity is not None and head + count - counters.tail > capacity:
            counters.coming = head + count
            counters.tail = head + count - capacity
        counters.base = base
        if first == count:
            storage.write(slice(slot, slot + count), staged)
        else:
            storage.write(slice(slot, slot + first), storage.part(staged, count, 0, first))
            storage.write(slice(0, count - first), storage.part(staged, count, first, count))
        self._closed_before, counters.closed = counters.closed, closed
        if ended:
            self._segments.add_all(ended)
        counters.head = head + count  # this one store makes the samples count, and their segments
        self._closed_before = None

    # -- lanes -----------------------------------------------------------------------------------------------

    def extend_lanes(self, value: Any, closing: list[int], staged: Any = None) -> None:
        """Add one sample to every lane, and close the segments of those in `closing`, in ascending order."""
        if self._is_refused:
            raise self._refusal()
        if self._lanes == 1:
            raise TypeError("extend_lanes: the buffer has no lanes: make it with ReplayBuffer.create(..., lanes=N)")
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            if staged is None:
                staged = self._storage.stage(value, self._lanes)
            self.extend_open(staged, self._lanes, closing)

    def extend_open(self, staged: Any, count: int, closing: list[int]) -> None:
        """Add samples to the open segments, for whoever holds the right to write: one, or with lanes one of each.

        `closing` are the places among them, in ascending order, behind each of which the segment of its lane ends.
        """
        counters, lanes, capacity, head = self._counters, self._lanes, self._capacity, self._counters.head
        if counters.closed > head or self._is_ending:
            self._recover()
        if not closing:
            self._commit(staged, count, counters.base, [], head + count if lanes > 1 else counters.closed)
            return
        starts, self._open_starts = self._lane_starts(), None  # known again once all of this has happened
        tail, segments = counters.tail, []
        for place in closing:
            lane = place % lanes
            start, sample = starts[lane], head + place
            if start < tail + lane:
                start = tail + lane
            if capacity is not None and start < sample + lanes - capacity:
                start = sample + lanes - capacity  # the oldest of the lane by then
            segments.append((start, sample + 1))
            starts[lane] = sample + lanes
        closed = head + (count if lanes > 1 else closing[-1] + 1)
        self._commit(staged, count, counters.base, segments if self._maintains else [], closed)
        self._open_starts = starts
        if self._durable:
            self._flush()

    def end_lanes(self, ended: np.ndarray) -> None:
        """Close the open segments of these lanes; of one that has none, nothing happens."""
        self.check()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            counters, lanes, head = self._counters, self._lanes, self._counters.head
            if counters.closed > head:
                self._recover()
            starts, self._open_starts = self._lane_starts(), None
            closing = [lane for lane in ended.nonzero()[0].tolist() if starts[lane] < head]
            if closing:
                tail = counters.tail
                self._segments.prepare(len(closing))
                self._segments.add_all([(max(starts[lane], tail + lane), head - lanes + lane + 1) for lane in closing])
                for lane in closing:
                    starts[lane] = head + lane
                if self._durable:
                    self._flush()
            self._open_starts = starts

    def _lane_starts(self) -> list[int]:
        """Where the open segment of each lane starts; its next sample if none is open."""
        if self._lanes == 1:
            return [max(self._counters.closed, self._counters.tail)]
        if self._open_starts is not None and not self._state.is_shared:  # else somebody may have closed some
            return self._open_starts
        return cast(LanedSegmentIndex, self._segments).open_starts(self._counters.tail, self._counters.head)

    def _wants_all_lanes(self, verb: str) -> TypeError:
        return TypeError(
            f"{verb}: the buffer has {self._lanes} lanes, which are written together: use "
            f"extend_lanes(value, ended) with a batch of {self._lanes}"
        )

    # -- segments --------------------------------------------------------------------------------------------

    def end_segment(self) -> None:
        """Close the open segment; without one, nothing happens."""
        if self._is_refused:
            raise self._refusal()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            if self._is_ending:
                self._recover()
            start = self._state.open_start()
            if start is None:
                return
            if self._storage.is_segment_aware:
                self._storage.mark_segment_end()
            if self._maintains:
                self._segments.prepare(1)
                self._is_ending = True  # until it is closed, too: an interrupt in between must not have it end twice
                self._segments.add_all([(start, self._counters.head)])
            self._counters.closed = self._counters.head
            self._is_ending = False
            if self._durable:
                self._flush()

    def _recover(self) -> None:
        """Take back the segments of a write that was interrupted, whose samples do not count, or close one for good."""
        self._open_starts = None
        is_ahead = self._counters.closed > self._counters.head
        self._state.recover(self._closed_before if is_ahead else None)
        self._closed_before, self._is_ending = None, False

    # -- changing --------------------------------------------------------------------------------------------

    def set_at(self, idx: Any, value: Any) -> None:
        """Overwrite samples."""
        self.check()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            counters, storage = self._counters, self._storage
            position = resolve_index(self._backend, idx, counters.head - counters.tail)
            count = None if isinstance(position, int) else len(position)
            slots = np.atleast_1d(self._state.slots(np.asarray(position) + counters.tail))
            if not storage.has_raw_rows:
                batch = concatenate(storage.single_instance_space, [value]) if count is None else value
                self._edit(Edit(slots, [(slots, batch)]))
                return
            staged = storage.stage(value, count)
            if count is None:
                self._edit(Edit(slots, [(slots, storage.staged_as_raw_rows(staged, None))]))
            elif count:
                self._edit(Edit(slots, self._raw_parts(slots, staged)))

    def _raw_parts(self, slots: np.ndarray, staged: Any) -> Iterator[tuple[np.ndarray, bytes]]:
        """A staged batch as raw rows, in pieces."""
        storage, start = self._storage, 0
        for piece in chunks(slots, storage.row_nbytes):
            stop = start + len(piece)
            yield piece, storage.staged_as_raw_rows(storage.part(staged, len(slots), start, stop), len(piece))
            start = stop

    def remove_at(self, idx: Any) -> None:
        """Remove samples and close the gaps."""
        self.check()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            counters, state = self._counters, self._state
            head, tail = counters.head, counters.tail
            removed = np.unique(np.atleast_1d(resolve_index(self._backend, idx, head - tail))) + tail
            if not removed.size:
                return
            is_oldest = int(removed[-1]) - tail + 1 == removed.size
            if self._lanes > 1 and not (is_oldest and removed.size % self._lanes == 0):
                raise TypeError(
                    f"remove_at: the buffer has {self._lanes} lanes, whose samples lie side by side: only whole vector "
                    f"steps can go, the oldest ones (remove_at(range(n * {self._lanes})))"
                )
            if is_oldest:
                counters.tail = tail + removed.size  # the oldest: nothing has to be moved
                return
            bounds = (tail, min(max(counters.closed, tail), head), head)
            self._edit(removal(self._storage, state.slots, removed, bounds, state.segments.alive(tail, head)))

    def _edit(self, edit: Edit) -> None:
        before = self._counters.edit
        try:
            self._state.edit(edit, durable=self._durable)
        except OSError as error:
            is_flushed = self._durable and self._storage.has_raw_rows and self._state.journal is not None
            if self._counters.edit & 1 or (is_flushed and self._counters.edit != before):  # a flush has failed
                self._poison(error)
            raise

    def _poison(self, error: OSError) -> None:
        """Let nothing be written from here on: trying again would hide what was lost."""
        self._failure, self._is_refused = error, True

    def clear(self) -> None:
        """Drop all samples and episodes."""
        self.check()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            counters = self._counters
            if self._storage.has_open_segment:
                self._storage.abort_segment()
            head = counters.head
            counters.tail = head
            counters.base = head  # from slot 0 again
            counters.closed = head
            if self._lanes == 1:  # readers of lanes go by the numbers of the records alone, which therefore only grow
                counters.segments = 0
            self._open_starts = None
            counters.edit += 2
            self._storage.clear()

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything that was written survive a power cut."""
        self.check()
        with self.writing:
            if self.pending is not None:
                self.pending.hand_over(self)
            self._flush()

    def _flush(self) -> None:
        try:
            self._state.flush()
        except OSError as error:
            self._poison(error)  # the system has forgotten what it could not write
            raise


def _batch_length(value: Any) -> int | None:
    """The length of a batch by its first leaf; the other leaves are compared with it when the batch is staged."""
    leaf = value
    while type(leaf) is dict and leaf:
        leaf = next(iter(leaf.values()))
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if shape else batch_size_data(value)


def is_writing_further_down(writer: BufferWriter, callers: int) -> bool:
    """Whether this thread has, or waits for, the right to write, but for so many functions that have led to asking.

    Then who runs on top of it must not wait: handlers of signals, and what is called when objects go.
    """
    lock: Any = writer.writing
    frame: FrameType | None = sys._getframe(callers) if lock.locked() else None
    while (frame := None if frame is None else frame.f_back) is not None:
        found = frame.f_locals
        if found.get("self") is writer or found.get("writer") is writer or found.get("state") is writer._state:
            return True
    return False
