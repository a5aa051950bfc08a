"""Writing: check, reserve, fill, commit.

Every write takes these steps. *Check*: each leaf has its column's dtype and shape, or is converted, or refused.
*Reserve*: the storage allocates the slots. Nothing has changed so far. *Fill*: the tail moves past the samples that
will be overwritten, and the leaves are assigned to their slots. *Commit*: the ends of episodes are recorded, and one
store of `head` makes samples and episodes visible. A buffer holds every acknowledged sample, whenever its process is
killed.

Fill and commit can be repeated with the same result. An interrupt in the middle is therefore raised once both are done.
Changes of existing samples go through the journal.
"""

from __future__ import annotations

import bisect
import os
import weakref
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_size_data, batch_space, get_at

from ..base.index import resolve_index
from ._lanes import LanedSegmentIndex
from ._recovery import Edit, removal
from ._state import BufferState

_WRITERS: weakref.WeakSet[BufferWriter] = weakref.WeakSet()  # of buffers that only this process writes


def _renew_writers() -> None:
    for writer in list(_WRITERS):
        writer.renew()


os.register_at_fork(after_in_child=_renew_writers)


class BufferWriter:
    """Writes to a buffer. The caller holds the state's write lock, except for `check`."""

    def __init__(self, state: BufferState) -> None:
        self._state, self._counters, self._segments = state, state.counters, state.segments
        self._storage, self._lanes, self._maintains = state.storage, state.segments.lanes, state.maintains
        capacity = state.storage.capacity
        self._capacity = None if capacity is None else int(capacity)
        self._ring = None if capacity is None else int(state.storage.ring or capacity)
        self._appends, self._tells = state.storage.is_segment_aware, state.storage.wants_episodes
        self._is_closed = False
        self._is_refused = not self._may_write()  # kept, since asking takes a system call
        self._open_starts: list[int] | None = None  # of each lane; None if unknown
        self._first_path: tuple[Any, ...] = ()
        self._block_ndim = -1  # the first leaf's axes in a block of steps
        if self._lanes > 1 and state.storage.layout.leaves:
            first = state.storage.layout.leaves[0]
            self._first_path, self._block_ndim = first.path, len(first.codec.shape) + 2
        if not state.shared:
            _WRITERS.add(self)

    def check(self) -> None:
        """Raise unless this process may write."""
        if self._is_refused:
            raise self._refusal()

    def renew(self) -> None:
        """Make the lock anew in a forked process, and ask again whether this process may write."""
        self._state.write_lock.renew()
        self._is_refused = not self._may_write()

    def _may_write(self) -> bool:
        lock = self._state.folder_lock
        is_ours = lock is None or lock.is_held
        return self._storage.is_mutable and self._state.failure is None and not self._is_closed and is_ours

    def _refusal(self) -> Exception:
        """Why this process may not write."""
        state = self._state
        where = state.folder or self._storage.cache_filename
        if self._is_closed:
            return RuntimeError("the buffer is closed")
        if not self._storage.is_mutable:
            return PermissionError(f"{where} was opened read-only: open it with read_only=False to write")
        if state.failure is not None:
            return state.as_failed()
        pid = state.folder_lock and state.folder_lock.pid
        return PermissionError(
            f"{where} is written by the process that this one is a fork of (pid {pid}): "
            f"create or load it with multiprocessing=True to write from several"
        )

    # -- adding ----------------------------------------------------------------------------------------------

    def append(self, value: Any) -> None:
        """Add one sample to the open segment."""
        if self._is_refused:
            raise self._refusal()
        if self._lanes > 1:
            raise self._wants_all_lanes("append")
        self._add(self._storage.encode(value, None), None)

    def extend(self, value: Any) -> None:
        """Add a batch of samples as a segment of its own."""
        if self._is_refused:
            raise self._refusal()
        count = _batch_length(value)
        if count is None:
            space = self._storage.single_instance_space
            raise ValueError(f"extend wants a batch of {space}, with a leading axis, not {value!r:.200}")
        if self._lanes > 1:
            raise self._wants_all_lanes("extend")
        head, base, capacity = self._counters.head, None, self._capacity
        if self._counters.closed < head and self._state.open_start() is not None:
            raise RuntimeError("extend while a segment of append is open: call mark_segment_end first")
        encoded = self._storage.encode(value, count)
        if not count:
            return
        if capacity is not None and count >= capacity:
            encoded, count = self._storage.part(encoded, count, count - capacity, count), capacity
            base = head  # from slot 0, so that the oldest lies there
        ended = [(head, head + count)] if self._maintains else ()
        self._add(encoded, count, ended, head + count, base)
        if self._state.durable:
            self._flush()

    def extend_episodes(
        self, value: Any, count: int, ended: Sequence[tuple[int, int]], are_cut: Sequence[bool] | None = None
    ) -> None:
        """Add a batch, and the episodes [start, stop) of samples by their numbers that end with it."""
        self.check()
        encoded, closed = self._storage.encode(value, count), self._counters.head + count
        self._add(encoded, count, ended, closed, are_cut=are_cut)

    def extend_lanes(self, value: Any, ended: np.ndarray | None) -> None:
        """Add one sample to every lane, or a block of several steps; `ended` marks the last samples of episodes."""
        if self._is_refused:
            raise self._refusal()
        lanes = self._lanes
        if lanes == 1:
            raise TypeError("extend_lanes: the buffer has no lanes: make it with ReplayBuffer.create(..., lanes=N)")
        shape: tuple[int, ...] = (lanes,)
        steps = self._count_steps(value)
        if steps is not None:
            shape = (steps, lanes)
            value = self._storage.layout.merge_lead(value, (steps, lanes))
        count = lanes if steps is None else steps * lanes
        encoded = self._storage.encode(value, count)
        closing: list[int] = []
        if ended is not None:
            if ended.shape != shape:
                each = f"each of {lanes} lanes" + ("" if steps is None else f" at each of {steps} steps")
                raise ValueError(f"ended has shape {ended.shape}, wanted one boolean for {each}")
            closing = ended.reshape(-1).nonzero()[0].tolist()
        if closing or steps is not None:
            self._extend_open(encoded, count, closing)
        else:
            self._add(encoded, count, (), self._counters.head + count)
        if closing and self._state.durable:
            self._flush()

    def extend_all_lanes(self, value: Any, count: int, closing: list[int], are_cut: list[bool]) -> None:
        """Add whole vector steps, samples of the lanes in turn; the samples at indices `closing` end episodes."""
        self.check()
        self._extend_open(self._storage.encode(value, count), count, closing, are_cut)
        if closing and self._state.durable:
            self._flush()

    def _count_steps(self, value: Any) -> int | None:
        """How many steps a block of leading shape (steps, lanes) has; None for one vector step, of shape (lanes,)."""
        leaf = value
        try:
            for key in self._first_path:
                leaf = leaf[key]
        except (LookupError, TypeError):
            return None  # `encode` raises the error, with the path
        return int(leaf.shape[0]) if getattr(leaf, "ndim", 0) == self._block_ndim else None

    def _extend_open(self, encoded: Any, count: int, closing: list[int], are_cut: Sequence[bool] | None = None) -> None:
        """Add samples to the open segments of the lanes.

        The samples at indices `closing`, in ascending order, end the segments of their lanes; `are_cut` tells for each
        whether it is cut.
        """
        lanes, capacity, head = self._lanes, self._capacity, self._counters.head
        if capacity is not None and count > capacity:  # the ring keeps the last samples
            dropped, first = count - capacity, bisect.bisect_left(closing, count - capacity)
            encoded, count = self._storage.part(encoded, count, dropped, count), capacity
            closing = [index - dropped for index in closing[first:]]
            are_cut = None if are_cut is None else are_cut[first:]
        if not closing:
            self._add(encoded, count, (), head + count)
            return
        starts, self._open_starts = self._lane_starts(), None  # unknown until the write is done
        ranges, oldest = [], self._counters.tail
        if capacity is not None:
            oldest = max(oldest, head + count - capacity)
        for index in closing:
            lane = index % lanes
            ranges.append((max(starts[lane], oldest + lane), head + index + 1))
            starts[lane] = head + index + lanes
        self._add(encoded, count, ranges, head + count, are_cut=are_cut)
        self._open_starts = starts

    # -- the one way in --------------------------------------------------------------------------------------

    def _add(
        self,
        encoded: Any,
        count: int | None,
        ended: Sequence[tuple[int, int]] = (),
        closed: int | None = None,
        base: int | None = None,
        are_cut: Sequence[bool] | None = None,
    ) -> None:
        """Reserve slots behind the head, fill them with encoded samples, and commit them.

        Parameters
        ----------
        encoded, count
            The samples and their number; `count` None for one sample without a leading axis.
        ended, are_cut
            Segments [start, stop) that end with these samples, and which of them are cut.
        closed, base
            New values of these counters; None to keep the value.
        """
        counters, capacity, ring, storage = self._counters, self._capacity, self._ring, self._storage
        head = counters.head
        slot = head - (counters.base if base is None else base)
        size = 1 if count is None else count
        new_head, tail, rest, record, interrupt = head + size, None, None, 0, None
        if capacity is not None and ring is not None:
            slot %= ring
            if new_head - counters.tail > capacity:
                tail = new_head - capacity
        stop = slot + size
        if ring is not None and stop > ring:  # around the end of the ring
            first, stop = ring - slot, ring
            rest = storage.part(encoded, size, first, size)
            encoded = storage.part(encoded, size, 0, first)
        slots = slot if count is None else slice(slot, stop)
        start, end = storage.reserved
        if slot < start or stop > end:
            storage.reserve(slot, stop)
        if rest is not None:
            storage.reserve(0, slot + size - stop)
        if ended:
            record = counters.segments
            self._segments.prepare(len(ended))
        while True:  # can be repeated: an interrupt is raised once all of it is done
            try:
                if tail is not None:
                    counters.coming = new_head
                    counters.tail = tail
                if base is not None:
                    counters.base = base
                storage.write(slots, encoded, head)
                if rest is not None:
                    storage.write(slice(0, slot + size - stop), rest, head + stop - slot)
                if closed is not None:
                    counters.closed = closed
                if ended:
                    self._segments.put(record, ended, are_cut)
                counters.head = new_head  # this store makes samples and segments visible
                break
            except BaseException as error:
                if interrupt is not None or self._appends:
                    raise
                interrupt = error
        if self._tells and ended:
            try:
                self._tell(ended)
            except BaseException:
                self._tell(ended)  # can be repeated
                raise
        if interrupt is not None:
            raise interrupt

    # -- segments --------------------------------------------------------------------------------------------

    def end_segment(self, is_cut: bool) -> None:
        """Close the open segment; without one, nothing happens."""
        if self._is_refused:
            raise self._refusal()
        start, head = self._state.open_start(), self._counters.head
        if start is None:
            return
        if self._storage.is_segment_aware and self._storage.has_open_segment:
            self._storage.mark_segment_end()
        self._segments.prepare(1)
        self._close([(start, head)], head, is_cut)
        if self._state.durable:
            self._flush()

    def end_lanes(self, ended: np.ndarray, is_cut: bool) -> None:
        """Close the open segments of these lanes; lanes without an open segment are skipped."""
        self.check()
        counters, lanes = self._counters, self._lanes
        head, tail = counters.head, counters.tail
        starts, self._open_starts = self._lane_starts(), None
        closing = [lane for lane in ended.nonzero()[0].tolist() if starts[lane] < head]
        if closing:
            self._segments.prepare(len(closing))
            ranges = [(max(starts[lane], tail + lane), head - lanes + lane + 1) for lane in closing]
            self._close(ranges, None, is_cut)
            for lane in closing:
                starts[lane] = head + lane
            if self._state.durable:
                self._flush()
        self._open_starts = starts

    def _close(self, ranges: Sequence[tuple[int, int]], closed: int | None, is_cut: bool) -> None:
        """Record closed segments, after `prepare`; an interrupt is raised once that is done."""
        record, are_cut = self._counters.segments, [True] * len(ranges) if is_cut else None
        try:
            self._put_segments(record, ranges, closed, are_cut)
        except BaseException:
            self._put_segments(record, ranges, closed, are_cut)
            raise
        finally:
            if self._tells:
                try:
                    self._tell(ranges)
                except BaseException:
                    self._tell(ranges)
                    raise

    def _tell(self, ended: Sequence[tuple[int, int]]) -> None:
        """Tell the storage which episodes, [start, stop) in sample numbers, have ended. Can be repeated."""
        tail = self._counters.tail
        for start, stop in ended:
            numbers = np.arange(max(start, tail), stop)
            if len(numbers):
                self._storage.end_episode(self._state.slots(numbers), int(numbers[0]))

    def tell_of_all(self) -> None:
        """Tell the storage of all episodes: a killed writer may not have told of the last ones."""
        if self._tells:
            counters = self._counters
            self._tell(self._segments.alive(counters.tail, counters.head).tolist())

    def _put_segments(
        self, record: int, ranges: Sequence[tuple[int, int]], closed: int | None, are_cut: Sequence[bool] | None
    ) -> None:
        if self._maintains:
            self._segments.put(record, ranges, are_cut)
        if closed is not None:
            self._counters.closed = closed

    def _lane_starts(self) -> list[int]:
        """The start of each lane's open segment; the lane's next sample if no segment is open."""
        if self._open_starts is not None and not self._state.shared:  # other processes may close segments
            return self._open_starts
        return cast(LanedSegmentIndex, self._segments).open_starts(self._counters.tail, self._counters.head)

    def _wants_all_lanes(self, verb: str) -> TypeError:
        return TypeError(
            f"{verb}: the buffer has {self._lanes} lanes, which are written together: use "
            f"extend_lanes(value, ended) with a batch of {self._lanes}"
        )

    # -- changing --------------------------------------------------------------------------------------------

    def set_at(self, idx: Any, value: Any) -> None:
        """Overwrite samples."""
        self.check()
        counters, storage = self._counters, self._storage
        position = resolve_index(storage.backend, idx, counters.head - counters.tail)
        count = None if isinstance(position, int) else len(position)
        numbers = np.atleast_1d(np.asarray(position) + counters.tail)
        slots = self._state.slots(numbers)
        if count is None:  # a batch of one, in the backend's arrays
            layout = RowLayout(storage.single_instance_space)  # a storage's own layout may be lossy
            rows = layout.empty(1)
            layout.pack(rows, 0, value)
            value = layout.unpack(rows)
        total, space = len(slots), batch_space(storage.single_instance_space, len(slots))
        encoded = None
        if storage.has_raw_rows:
            encoded = storage.encode(value, total)
        else:
            storage.layout.check(value, (total,))

        def read_rows(chunk: slice) -> Any:
            if not storage.has_raw_rows:
                return get_at(space, value, chunk)
            samples = storage.part(encoded, total, chunk.start, chunk.stop)
            return storage.encoded_as_raw_rows(samples, len(slots[chunk]))

        edit = Edit(slots, numbers, storage.layout.nbytes, read_rows)
        if len(slots):
            self._edit(edit)

    def remove_at(self, idx: Any, join: bool) -> None:
        """Remove samples and close the gaps; an episode is split there, unless its parts are to `join`."""
        self.check()
        counters = self._counters
        head, tail = counters.head, counters.tail
        removed = np.unique(np.atleast_1d(resolve_index(self._storage.backend, idx, head - tail))) + tail
        if not removed.size:
            return
        is_oldest = int(removed[-1]) - tail + 1 == removed.size
        if self._lanes > 1 and not (is_oldest and removed.size % self._lanes == 0):
            raise TypeError(
                f"remove_at: the buffer has {self._lanes} lanes, whose samples lie side by side: only whole vector "
                f"steps can go, the oldest ones (remove_at(range(n * {self._lanes})))"
            )
        if is_oldest:
            counters.tail = tail + removed.size  # no sample has to move
            return
        self._remove(removed, join=join or not self._maintains)

    def _remove(self, removed: np.ndarray, *, join: bool) -> None:
        """Remove samples by their numbers, and move later samples into the gaps."""
        state, head, tail = self._state, self._counters.head, self._counters.tail
        bounds = (tail, min(max(self._counters.closed, tail), head), head)
        alive = state.segments.alive_and_cut(tail, head)
        self._edit(removal(self._storage, state.slots, removed, bounds, alive, self._counters.renumbered, join=join))

    def discard_open_segment(self) -> int:
        """Remove the samples of the open episode; how many there were."""
        self.check()
        if self._lanes > 1 or not self._maintains:
            why = "it does not keep episodes" if self._lanes == 1 else f"it has {self._lanes} lanes"
            raise TypeError(f"discard_open_segment: the buffer cannot drop an open episode, since {why}")
        count = self._state.open_length()
        if count:
            head = self._counters.head
            self._remove(np.arange(head - count, head), join=False)
        return count

    def _edit(self, edit: Edit) -> None:
        self._storage.check_rewritable(edit.slots)
        before = self._counters.edit
        try:
            self._state.edit(edit)
        except Exception as error:
            is_flushed = self._state.flushes(edit)
            if self._counters.edit & 1 or (is_flushed and self._counters.edit != before):  # a flush has failed
                self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        """Refuse all writes from here on: a later success would hide the loss."""
        self._state.failure, self._is_refused = error, True

    def clear(self) -> None:
        """Drop all samples and episodes."""
        self.check()
        counters = self._counters
        if self._storage.has_open_segment:
            self._storage.abort_segment()
        head = counters.head
        counters.tail = head
        counters.base = head  # from slot 0 again
        counters.closed = head
        if self._lanes == 1 and self._state.folder is None:
            counters.segments = 0  # lanes, and recovery after a power cut, need new numbers
        self._open_starts = None
        counters.edit += 2
        self._storage.clear()

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all written samples survive a power cut."""
        self.check()
        self._storage.settle()
        self._flush()

    def _flush(self) -> None:
        try:
            self._state.flush()
        except OSError as error:
            self._fail(error)  # the kernel drops pages that it could not write
            raise

    def close(self) -> None:
        """Refuse all writes from here on; threads blocked on the write lock raise."""
        self._is_closed = self._is_refused = True


def _batch_length(value: Any) -> int | None:
    """The length of a batch's first leaf; `encode` compares the other leaves with it."""
    leaf = value
    while type(leaf) is dict and leaf:
        leaf = next(iter(leaf.values()))
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if shape else batch_size_data(value)
