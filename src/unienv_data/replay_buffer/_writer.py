"""Writing, in an order that a kill at any instant does no harm to.

First whatever may fail: the value is checked, and room is made sure of. Then the tail moves past what will be
overwritten, then the rows are written, then the head moves. What is changed in place goes by way of the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unienv_interface.space.space_utils import batch_size_data, concatenate

from ..base._index import resolve_index
from ._counters import BASE, CLOSED, COMING, EDIT, HEAD, SEGMENTS, TAIL
from ._journal import Edit, chunks
from ._removal import removal
from ._state import BufferState


class BufferWriter:
    """The writer of a buffer. Whether this process may write at all is `check`'s affair."""

    def __init__(self, state: BufferState, *, maintains: bool, durable: bool) -> None:
        self._state, self._cells, self._storage = state, state.cells, state.storage
        self._capacity, self._backend = state.storage.capacity, state.storage.backend
        self._maintains, self._durable = maintains, durable
        self._failure: OSError | None = None

    def check(self) -> None:
        """Raise unless this process may write."""
        state = self._state
        place = state.folder or self._storage.cache_filename
        if not self._storage.is_mutable:
            raise PermissionError(f"{place} was opened read-only: open it with read_only=False to write")
        if self._failure is not None:
            raise OSError(f"{place}: a flush has failed, what was written since may be lost") from self._failure
        if state.lock is not None and not state.lock.is_held:
            raise PermissionError(
                f"{place} is written by the process that this one is a fork of (pid {state.lock.pid}): "
                f"create or load it with multiprocessing=True to write from several"
            )

    # -- adding ----------------------------------------------------------------------------------------------

    def append(self, value: Any) -> None:
        """Add one sample to the open segment."""
        self.check()
        with self._state.writing:
            cells, capacity, storage = self._cells, self._capacity, self._storage
            head = cells[HEAD]
            slot = head - cells[BASE] if capacity is None else (head - cells[BASE]) % capacity
            staged = storage.stage(value, None)
            storage.prepare(slot, slot + 1)
            if cells[CLOSED] > head:
                self._state.recover()  # an extend was interrupted
            if capacity is not None and head - cells[TAIL] >= capacity:
                cells[COMING] = head + 1
                cells[TAIL] = head + 1 - capacity
            if storage.is_segment_aware:
                if not storage.has_open_segment:
                    storage.mark_segment_start(slot)
                storage.append(staged)
            else:
                storage.write(slot, staged)
            cells[HEAD] = head + 1

    def extend(self, value: Any) -> None:
        """Add a batch of samples as a segment of its own."""
        self.check()
        count = _batch_length(value)
        if count is None:
            space = self._storage.single_instance_space
            raise ValueError(f"extend wants a batch of {space}, with a leading axis, not {value!r:.200}")
        with self._state.writing:
            if self._state.open_start() is not None:
                raise RuntimeError("extend while a segment of append is open: call mark_segment_end first")
            staged = self._storage.stage(value, count)
            if count:
                self._extend(staged, count)

    def _extend(self, staged: Any, count: int) -> None:
        cells, capacity, storage = self._cells, self._capacity, self._storage
        head, base = cells[HEAD], cells[BASE]
        if capacity is not None and count >= capacity:
            staged, count = storage.part(staged, count, count - capacity, count), capacity
            base = head  # from slot 0, so that the oldest lies there
        parts = _parts(head - base, count, capacity)
        for start, stop, _ in parts:
            storage.prepare(start, stop)
        if self._maintains:
            self._prepare_segment()
        if capacity is not None and head + count - cells[TAIL] > capacity:
            cells[COMING] = head + count
            cells[TAIL] = head + count - capacity
        cells[BASE] = base
        for start, stop, first in parts:
            whole = stop - start == count
            part = staged if whole else storage.part(staged, count, first, first + stop - start)
            storage.write(slice(start, stop), part)
        cells[CLOSED] = head + count
        if self._maintains:
            self._state.segments.add(head, head + count)
        cells[HEAD] = head + count  # this one store makes the samples count, and their segment
        self._segment_ended()

    def end_segment(self) -> None:
        """Close the open segment; without one, nothing happens."""
        self.check()
        with self._state.writing:
            start = self._state.open_start()
            if start is None:
                return
            if self._storage.is_segment_aware:
                self._storage.mark_segment_end()
            if self._maintains:
                self._prepare_segment()
                self._state.segments.add(start, self._cells[HEAD])
            self._cells[CLOSED] = self._cells[HEAD]
            self._segment_ended()

    def _prepare_segment(self) -> None:
        """Make sure that a segment can be recorded."""
        if self._cells[CLOSED] > self._cells[HEAD]:  # an extend was interrupted: its samples do not count
            self._state.recover()
        self._state.segments.prepare()

    def _segment_ended(self) -> None:
        if self._durable:
            self._flush()

    # -- changing --------------------------------------------------------------------------------------------

    def set_at(self, idx: Any, value: Any) -> None:
        """Overwrite samples."""
        self.check()
        with self._state.writing:
            cells, storage = self._cells, self._storage
            position = resolve_index(self._backend, idx, cells[HEAD] - cells[TAIL])
            count = None if isinstance(position, int) else len(position)
            slots = np.atleast_1d(self._state.slots(np.asarray(position) + cells[TAIL]))
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
        with self._state.writing:
            cells, state = self._cells, self._state
            head, tail = cells[HEAD], cells[TAIL]
            removed = np.unique(np.atleast_1d(resolve_index(self._backend, idx, head - tail))) + tail
            if not removed.size:
                return
            if int(removed[-1]) - tail + 1 == removed.size:
                cells[TAIL] = tail + removed.size  # the oldest: nothing has to be moved
                return
            bounds = (tail, min(max(cells[CLOSED], tail), head), head)
            self._edit(removal(self._storage, state.slots, removed, bounds, state.segments.alive(tail, head)))

    def _edit(self, edit: Edit) -> None:
        try:
            self._state.edit(edit, durable=self._durable)
        except OSError as error:
            if self._cells[EDIT] & 1:
                self._failure = error
            raise

    def clear(self) -> None:
        """Drop all samples and episodes."""
        self.check()
        with self._state.writing:
            cells = self._cells
            if self._storage.has_open_segment:
                self._storage.abort_segment()
            head = cells[HEAD]
            cells[TAIL] = head
            cells[BASE] = head  # from slot 0 again
            cells[CLOSED] = head
            cells[SEGMENTS] = 0
            cells[EDIT] += 2
            self._storage.clear()

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything that was written survive a power cut."""
        self.check()
        with self._state.writing:
            self._flush()

    def _flush(self) -> None:
        try:
            self._state.flush()
        except OSError as error:
            self._failure = error  # the system has forgotten what it could not write: trying again would hide that
            raise


def _batch_length(value: Any) -> int | None:
    """The length of a batch by its first leaf; the other leaves are compared with it when the batch is staged."""
    leaf = value
    while type(leaf) is dict and leaf:
        leaf = next(iter(leaf.values()))
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if shape else batch_size_data(value)


def _parts(slot: int, count: int, capacity: int | None) -> list[tuple[int, int, int]]:
    """The ranges [start, stop) of slots that follow, two where they wrap, and where in the batch each begins."""
    if capacity is None:
        return [(slot, slot + count, 0)]
    slot %= capacity
    first = min(count, capacity - slot)
    return [(slot, slot + first, 0), (0, count - first, first)][: 1 + (first < count)]
