"""Steps that are staged and not yet written, since to write many at once takes little longer than to write one.

Nobody can tell. A buffer that has yet to get some is of the class `AwaitingBuffer`: whatever is looked up on it first
hands them over, and makes it a `ReplayBuffer` again. This is for buffers in this process's own memory, where writing
what is staged cannot fail; on disk, a step that has returned is to survive a kill.

Threads. One at a time stages steps. Any may look at a buffer and so hand over what it has yet to get, under the lock
that all who write to it hold, and no other. A step counts from the store of `StepBlock.count` on. Who stages looks
after that whether the buffers still await steps; who hands over looks, after he has said that one does not, whether
there are more: one of the two finds out.

Signals. An exception that a handler raises loses no step and writes none twice. A handler that looks at a buffer while
its own thread is handing over sees it without those steps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._writer import BufferWriter
from .replay_buffer import ReplayBuffer

_MOST_STEPS, _MOST_BYTES = 64, 1 << 16
_BUSY: set[int] = set()  # threads that have, or wait for, the right to write
os.register_at_fork(after_in_child=_BUSY.clear)


def block_length(buffers: Sequence[ReplayBuffer], slots: int) -> int:
    """How many steps of so many slots to write to these buffers at once."""
    rows, length = slots if len(buffers) == 1 else 1, _MOST_STEPS
    for buffer in buffers:
        storage, capacity = buffer.storage, buffer.capacity
        if type(buffer) is not ReplayBuffer or storage.own_rows is None or capacity is None:
            return 1
        length = min(length, capacity // (2 * rows), _MOST_BYTES // max(1, slots * storage.row_nbytes))
    return max(length, 1)


class StepBlock:
    """Steps of all slots, as bytes. The last `length` of them are there, so who gets a share must keep up."""

    def __init__(self, leaves: Sequence[np.ndarray], length: int) -> None:
        """For steps that have leaves such as these."""
        self.length, self.process = length, os.getpid()
        self._names = [f"leaf {place}" for place in range(len(leaves))]
        self._dtype = np.dtype([(name, leaf.dtype, leaf.shape) for name, leaf in zip(self._names, leaves, strict=True)])
        self._nbytes = self._dtype.itemsize
        self._steps = [b""] * length
        self._ended: list[Sequence[int]] = [()] * length  # the slots whose episodes end, of each step
        self._last_read: tuple[Any, Any] = (None, None)  # which steps, and what there was of them
        self.count = 0  # steps ever
        self.is_awaited = False  # whether every buffer that gets a share awaits it

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

    def between(self, start: int, stop: int) -> tuple[list[np.ndarray], list[Sequence[int]]]:
        """Some steps, one at least, by their leaves, and the slots whose episodes end with each."""
        steps, found = self._last_read
        if steps != (start, stop):  # else another buffer has just got its share of them
            places = slice(start % self.length, (stop - 1) % self.length + 1)
            read = np.frombuffer(b"".join(self._steps[places]), self._dtype)
            found = [read[name] for name in self._names], self._ended[places]
            self._last_read = (start, stop), found
        return found


class Share:
    """What one buffer gets of a block: the rows of a slot with its episodes, or of all slots, with theirs or none."""

    def __init__(self, block: StepBlock, slot: int | None, keeps_episodes: bool) -> None:
        self.block, self._slot, self._keeps_episodes = block, slot, keeps_episodes
        self._written = block.count  # steps, of those that the block has had

    def await_steps(self, buffer: ReplayBuffer) -> None:
        """Have the steps to come handed over as soon as anybody looks at the buffer; an error if it takes none."""
        if type(buffer) is AwaitingBuffer and _share_of(buffer) is self:
            return

        def begin(writer: BufferWriter) -> None:
            other = _share_of(buffer)
            if other is not None and type(buffer) is AwaitingBuffer:
                other.hand_over(buffer)  # of another environment that is recorded into it, too
            writer.check()
            if not self._keeps_episodes:
                writer.check_extends()
            buffer._share = self
            buffer.__class__ = AwaitingBuffer

        _write(buffer, begin)

    def keep_up(self, buffer: ReplayBuffer) -> None:
        """Write what is staged, and go on waiting for more."""
        if self._written < self.block.count:
            _write(buffer, self._catch_up)

    def settle(self, buffer: ReplayBuffer) -> None:
        """Write what is staged, and wait no more."""
        if _is_locked(buffer):
            if threading.get_ident() in _BUSY:
                return
            if self.block.process != os.getpid():  # by a thread that was not forked with this one, and so for ever
                _stop_waiting(self.block, buffer)
                return
        _write(buffer, lambda _: self.hand_over(buffer))

    def hand_over(self, buffer: ReplayBuffer) -> None:
        """`settle`, for whoever holds the right to write."""
        while True:
            self._catch_up(_writer_of(buffer))
            _stop_waiting(self.block, buffer)
            if self._written == self.block.count:
                return

    def _catch_up(self, writer: BufferWriter) -> None:
        start, stop, head = self._written, self.block.count, writer.head
        if start == stop:
            return
        try:
            self._write_steps(writer, *self.block.between(start, stop))
            self._written = stop
        except BaseException:
            if writer.head != head:  # interrupted, but they count
                self._written = stop
            raise

    def _write_steps(self, writer: BufferWriter, leaves: list[np.ndarray], ended: list[Sequence[int]]) -> None:
        count, slots = leaves[0].shape[:2]
        if self._slot is not None:
            closing = [step for step, those in enumerate(ended) if self._slot in those]
            writer.extend_open([leaf[:, self._slot] for leaf in leaves], count, closing)
            return
        rows = [leaf.reshape(count * slots, *leaf.shape[2:]) for leaf in leaves]
        if self._keeps_episodes:
            closing = [step * slots + slot for step, those in enumerate(ended) for slot in those]
            writer.extend_open(rows, count * slots, closing)
        else:
            writer.add_segment(rows, count * slots)


class AwaitingBuffer(ReplayBuffer):
    """A buffer that may have yet to get some steps, and does as soon as it is looked at."""

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_share").settle(self)
        return object.__getattribute__(self, name)


# What is needed of a buffer without looking at it.


def _writer_of(buffer: ReplayBuffer) -> BufferWriter:
    found: BufferWriter = object.__getattribute__(buffer, "_writer")
    return found


def _share_of(buffer: ReplayBuffer) -> Share | None:
    found: Share | None = object.__getattribute__(buffer, "_share")
    return found


def _stop_waiting(block: StepBlock, buffer: ReplayBuffer) -> None:
    buffer.__class__ = ReplayBuffer
    block.is_awaited = False  # last: who stages may have looked in between


def _write(buffer: ReplayBuffer, action: Callable[[BufferWriter], None]) -> None:
    """Do something with the right to write."""
    writer, thread = _writer_of(buffer), threading.get_ident()
    try:
        _BUSY.add(thread)
        with writer.writing:
            action(writer)
    finally:
        _BUSY.discard(thread)


def _is_locked(buffer: ReplayBuffer) -> bool:
    lock: Any = _writer_of(buffer).writing
    return bool(lock.locked())
