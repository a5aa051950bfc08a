"""Steps that are staged and not yet written, since to write many at once takes little longer than to write one.

Nobody can tell, but by `type`. A buffer that may have yet to get some is an `AwaitingBuffer`: whatever is looked up on
it first hands them over, and makes it a `ReplayBuffer` again. And whoever writes to a buffer first has written what is
staged for it. This is for buffers in this process's own memory; on disk, a step that has returned must survive a kill.

Threads. One at a time stages steps. Any may look at a buffer and so hand over what it has yet to get, under the lock
that all who write to it hold, and no other. A step counts from the store of `StepBlock.count` on. Who stages looks
after that whether the buffers still await steps. Who hands over says first that one does not, then writes what counts,
and only then makes it a buffer that nobody has to wait for: so a step that has returned is written by then, and one
that comes later finds out, waits for the lock, and does not return before the buffer awaits steps again.

Signals. An exception that a handler raises loses no step and writes none twice. A handler that looks at a buffer while
its own thread is writing to it sees the buffer as it is by then.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._writer import BufferWriter, is_writing_further_down
from .replay_buffer import ReplayBuffer

_MOST_STEPS, _MOST_BYTES = 128, 1 << 16
_BLOCKS: weakref.WeakSet[StepBlock] = weakref.WeakSet()


def _forget_threads() -> None:
    """In a forked process, where a thread that was just about to have buffers await steps is not there."""
    for block in list(_BLOCKS):
        block.is_awaited = False


os.register_at_fork(after_in_child=_forget_threads)


def block_length(buffers: Sequence[ReplayBuffer], slots: int) -> int:
    """How many steps of so many slots to write to these buffers at once."""
    rows, length = slots if len(buffers) == 1 else 1, _MOST_STEPS
    for buffer in buffers:
        if type(buffer) not in (ReplayBuffer, AwaitingBuffer):
            return 1
        storage, capacity = buffer.storage, buffer.capacity
        if buffer._state.is_shared or not (storage.is_private and storage.has_raw_rows and storage.row_nbytes):
            return 1
        length = min(length, _MOST_BYTES // (slots * storage.row_nbytes))
        if capacity is not None:
            length = min(length, capacity // (2 * rows))
    return max(length, 1)


class StepBlock:
    """Steps of all slots, as bytes. The last `length` of them are there, so who gets a share must keep up."""

    def __init__(self, leaves: Sequence[np.ndarray], length: int) -> None:
        """For steps that have leaves such as these."""
        self.length, self.slots = length, len(leaves[0])
        self._names = [f"leaf {place}" for place in range(len(leaves))]
        self._dtype = np.dtype([(name, leaf.dtype, leaf.shape) for name, leaf in zip(self._names, leaves, strict=True)])
        self._nbytes = self._dtype.itemsize
        self._steps = [b""] * length
        self._ended: list[Sequence[int]] = [()] * length  # the slots whose episodes end, of each step
        self._last_read: tuple[Any, Any] = (None, None)  # which steps, and what there was of them
        self.count = 0  # steps ever
        self.is_awaited = False  # whether every buffer that gets a share awaits it
        _BLOCKS.add(self)

    def add(self, leaves: Sequence[np.ndarray], ended: Sequence[int]) -> None:
        """Stage one more step."""
        place = self.count % self.length
        try:
            step = b"".join(leaves)  # type: ignore[arg-type]
        except (BufferError, TypeError, ValueError):  # of an array that lies scattered, or that lends no memory
            step = b"".join([leaf.tobytes() for leaf in leaves])
        if len(step) != self._nbytes:
            raise ValueError(f"a step has {len(step)} bytes, those before it had {self._nbytes}: its form has changed")
        self._steps[place], self._ended[place] = step, ended
        self.count += 1

    def between(self, start: int, stop: int) -> tuple[list[np.ndarray], list[tuple[int, Sequence[int]]]]:
        """Some steps, one at least, by their leaves; which of them end episodes, and in which slots."""
        steps, found = self._last_read
        if steps != (start, stop):  # else another buffer has just got its share of them
            places = slice(start % self.length, (stop - 1) % self.length + 1)
            read = np.frombuffer(b"".join(self._steps[places]), self._dtype)
            ended = [(step, slots) for step, slots in enumerate(self._ended[places]) if slots]
            found = [read[name] for name in self._names], ended
            self._last_read = (start, stop), found
        return found


class Share:
    """What one buffer gets of a block: the rows of a slot with its episodes, or of all slots, with theirs or none."""

    def __init__(self, block: StepBlock, slot: int | None, keeps_episodes: bool) -> None:
        self.block, self._slot, self._keeps_episodes = block, slot, keeps_episodes
        self._most_rows = block.length * (block.slots if slot is None else 1)
        self._written = block.count  # steps, of those that the block has had
        self._under_way: tuple[int, int] | None = None  # the head before a write, and what is written if it moves

    # -- for whoever holds the right to write ----------------------------------------------------------------

    def write(self, writer: BufferWriter) -> None:
        """Write what is staged."""
        if self._under_way is not None:  # it was interrupted
            head, stop = self._under_way
            self._written, self._under_way = stop if writer.head != head else self._written, None
        start, stop = self._written, self.block.count
        if start != stop:
            leaves, ended = self.block.between(start, stop)
            self._under_way = writer.head, stop
            self._write_steps(writer, leaves, ended)
            self._written, self._under_way = stop, None

    def _write_steps(
        self, writer: BufferWriter, leaves: list[np.ndarray], ended: list[tuple[int, Sequence[int]]]
    ) -> None:
        count, slots = leaves[0].shape[:2]
        if self._slot is not None:
            closing = [step for step, those in ended if self._slot in those]
            writer.extend_open([leaf[:, self._slot] for leaf in leaves], count, closing)
            return
        rows = [leaf.reshape(count * slots, *leaf.shape[2:]) for leaf in leaves]
        if self._keeps_episodes:
            closing = [step * slots + slot for step, those in ended for slot in those]
            writer.extend_open(rows, count * slots, closing)
        else:
            writer.add_segment(rows, count * slots)

    def hand_over(self, writer: BufferWriter, buffer: ReplayBuffer | None = None) -> None:
        """Write what is staged, and wait for no more: somebody looks at `buffer`, or without it is about to write."""
        self.block.is_awaited = False
        self.write(writer)
        if buffer is None:
            writer.pending = None
        else:
            buffer.__class__ = ReplayBuffer

    # -- for whoever stages steps ----------------------------------------------------------------------------

    def keep_up(self, buffer: ReplayBuffer, *, for_more: bool = True) -> None:
        """Write what is staged, and go on waiting for more, if there are to be more."""
        writer = _writer_of(buffer)

        def write() -> None:
            self._take_over(writer)
            self.write(writer)
            if for_more:
                writer.make_room(self._most_rows)

        _write(writer, write)

    def _take_over(self, writer: BufferWriter) -> None:
        """Have another environment's steps written, if one is recorded into the same buffer."""
        if writer.pending is not None and writer.pending is not self:
            writer.pending.hand_over(writer)

    def await_steps(self, buffer: ReplayBuffer) -> bool:
        """Have the steps to come handed over as soon as anybody looks at the buffer; an error if it takes none.

        If it has been copied it awaits none, since who looks at a copy does not look at it.
        """
        writer = _writer_of(buffer)
        awaits = True

        def begin() -> None:
            nonlocal awaits
            _writer_of(buffer).check()  # it may have been closed meanwhile
            if type(buffer) is AwaitingBuffer and writer.pending is self:
                return
            self._take_over(writer)
            if writer.has_copies:
                self.write(writer)
                awaits = False
                return
            if not self._keeps_episodes:
                writer.check_extends()
            writer.make_room(self._most_rows)
            writer.pending = self
            buffer.__class__ = AwaitingBuffer

        _write(writer, begin)
        return awaits


class AwaitingBuffer(ReplayBuffer):
    """A buffer that may have yet to get some steps, and does as soon as it is looked at."""

    __module__, __qualname__ = ReplayBuffer.__module__, ReplayBuffer.__qualname__

    def __getattribute__(self, name: str) -> Any:
        _settle(self)
        return object.__getattribute__(self, name)


AwaitingBuffer.__name__ = ReplayBuffer.__name__


def _settle(buffer: ReplayBuffer) -> None:
    """Write what is staged for a buffer, unless this thread is writing to it already."""
    writer = _writer_of(buffer)
    if type(writer) is not BufferWriter:  # it was closed by a handler, on top of who had it wait
        buffer.__class__ = ReplayBuffer
        return

    def hand_over() -> None:
        if writer.pending is not None:
            writer.pending.hand_over(writer, buffer)
        else:
            buffer.__class__ = ReplayBuffer

    if not is_writing_further_down(writer, callers=2):
        _write(writer, hand_over)


def _write(writer: BufferWriter, action: Callable[[], None]) -> None:
    """Do something with the right to write."""
    with writer.writing:
        action()


def _writer_of(buffer: ReplayBuffer) -> BufferWriter:
    """The writer of a buffer, without looking at it."""
    found: BufferWriter = object.__getattribute__(buffer, "_writer")
    return found
