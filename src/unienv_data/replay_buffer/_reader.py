"""Reading without a lock, beside a writer in another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base._index import is_plain_index, resolve_index
from ..base.windows import Episodes
from ._state import BufferState
from ._windows import Stretches, WindowLook

# After so many reads that were overtaken by a writer, a reader asks the writer to wait, or gives up.
_ATTEMPTS = 1000
# How long a reader waits for a sample that a busy writer is about to write, and for one that is being written.
_SOON, _IN_GOOD_TIME = 0.002, 1.0

Gather = Callable[[Any, int], Any]
Look = Callable[[Any, int, int, int], Any]


class BufferReader:
    """Takes the counters before and after it looks, and looks again where a writer has come between."""

    def __init__(self, state: BufferState, *, maintains: bool) -> None:
        self._state, self._counters, self.stretches = state, state.counters, Stretches(state, maintains=maintains)
        self._capacity, self._backend = state.storage.capacity, state.storage.backend

    def read(self, idx: Any, gather: Gather, gather_among: Gather | None = None) -> Any:
        """What `gather` finds in the slots of these indices, all of it as at one instant.

        `gather_among` is for indices whose range it looks at by itself.
        """
        counters = self._counters
        edit, head, tail, base = counters.edit, counters.head, counters.tail, counters.base
        try:  # as it goes nearly always: nobody comes between
            if self._capacity is None:
                shift, length = tail - base, head - base
            else:
                shift, length = (tail - base) % self._capacity, self._capacity
            if gather_among is not None and is_plain_index(idx):
                if not shift:
                    values = gather_among(idx, max(0, head - tail))  # a writer may come between the two
                    if counters.edit == edit and not edit & 1 and counters.tail == tail:
                        return values
                elif head - tail == self._capacity and idx.size and idx.item(idx.argmax()) < length:
                    # Counted from the end of the ring: a slot below 0 is one at the end, as it is to an array.
                    values = gather_among(idx + (shift - length), length)
                    now = counters.tail
                    if counters.edit == edit and not edit & 1 and (now == tail or _oldest(idx) >= now - tail):
                        return values
            position = resolve_index(self._backend, idx, head - tail)
            values = gather(position + shift if shift else position, length)
            now = counters.tail
            if counters.edit == edit and not edit & 1 and (now == tail or _oldest(position) >= now - tail):
                return values
        except (ValueError, LookupError):
            pass  # for good reason, or of a row that was being overwritten: that is found out now
        return self._read_again(idx, self._look_for_rows(gather), 0)

    def read_windows(self, positions: np.ndarray, look: WindowLook) -> tuple[Any, np.ndarray]:
        """The windows of samples and which of their frames are valid, all of it as at one instant."""
        counters = self._counters
        edit, head, tail, base = counters.edit, counters.head, counters.tail, counters.base
        try:
            position = np.asarray(resolve_index(self._backend, positions, head - tail))
            found = look(position, tail, head, base)
            now = counters.tail
            if counters.edit == edit and not edit & 1 and (now == tail or _oldest(position) - look.reach >= now - tail):
                return found
        except (ValueError, LookupError):
            pass  # as above
        return self._read_again(positions, look, look.reach)

    def _look_for_rows(self, gather: Gather) -> Look:
        def look(position: Any, tail: int, head: int, base: int) -> Any:
            if self._capacity is None:
                return gather(position + (tail - base), head - base)
            return gather(position + (tail - base) % self._capacity, self._capacity)

        return look

    def _read_again(self, idx: Any, look: Look, reach: int) -> Any:
        """What `look` finds beside a writer that does come between; it looks at up to `reach` samples before."""
        counters, ahead = self._counters, 0
        for _ in range(_ATTEMPTS):
            edit = counters.edit
            if edit & 1 and not self._state.is_writing_here():
                self._state.wait_for_edit()
                continue
            head, tail, base = counters.head, counters.tail, counters.base
            if tail > head:
                continue  # so fast a writer has come between
            try:
                position = resolve_index(self._backend, idx, head - tail)
            except IndexError:
                if counters.head == head and counters.tail == tail and not self._is_coming(head):
                    raise
                continue  # it is in range when what is being overwritten counts
            if ahead:
                tail += ahead
                if not self._wait_for(tail + _newest(position)):
                    ahead = 0
                    continue
                head = counters.head
            try:
                values = look(position, tail, head, base)
            except (ValueError, LookupError):
                if counters.edit == edit and counters.tail <= tail:
                    raise
                values = None  # of a row that was being overwritten
            now = counters.tail
            if counters.edit == edit and (now <= tail or max(0, _oldest(position) - reach) + tail >= now):
                return values
            # The samples as they will be when the tail is further on can be read before they are overtaken.
            ahead = max(2 * (now - tail + ahead), 2 * ahead)
        return self._read_alone(idx, look)

    def _is_coming(self, head: int) -> bool:
        """Whether a writer that is overwriting samples has moved the head on, or does so in good time."""
        return self._counters.coming > head and self._wait_for(head, _IN_GOOD_TIME)

    def _wait_for(self, number: int, patience: float = _SOON) -> bool:
        """Wait for a sample that a busy writer is about to write; False if it does not come soon."""
        deadline = time.perf_counter() + patience
        while self._counters.head <= number:
            if time.perf_counter() > deadline:
                return False
        return True

    def _read_alone(self, idx: Any, look: Look) -> Any:
        """Read while no writer may write, if this process can see to that."""
        state, counters = self._state, self._counters
        if not state.storage.is_mutable:
            raise RuntimeError(f"samples were overwritten while they were read, {_ATTEMPTS} times in a row")

        def read() -> Any:
            head, tail = counters.head, counters.tail
            return look(resolve_index(self._backend, idx, head - tail), tail, head, counters.base)

        return read() if state.is_writing_here() else state.write_lock.run(read)

    # -- episodes --------------------------------------------------------------------------------------------

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        """The episodes of samples; None if nobody keeps them."""
        return self._look(lambda tail, head: self.stretches.episodes(positions, tail, head))[0]

    def segments(self) -> list[tuple[int, int]]:
        """The closed episodes as ranges of indices."""
        ranges, tail = self._look(self._state.segments.alive)
        found = [(start - tail, stop - tail) for start, stop in ranges.tolist()]
        return found if self._state.segments.lanes == 1 else sorted(found)

    def segment_of(self, index: int) -> tuple[int, int] | None:
        """The closed episode that a sample is in, as a range of indices; None if it is in none."""

        def find(tail: int, head: int) -> tuple[int, int] | None:
            position = int(resolve_index(self._backend, index, head - tail))
            return self._state.segments.of(tail + position, tail, head)

        found, tail = self._look(find)
        return None if found is None else (found[0] - tail, found[1] - tail)

    def storage_segments(self) -> list[tuple[int, int]] | None:
        """The same as the storage knows them; None if it does not."""
        head = self._counters.head  # before tail: then there are never more than the capacity
        return self.stretches.known_to_storage(self._counters.tail, head)

    def _look(self, look: Callable[[int, int], Any]) -> tuple[Any, int]:
        """What `look(tail, head)` finds while no sample is changed in place, and the tail."""
        counters = self._counters
        while True:
            edit = counters.edit
            if edit & 1 and not self._state.is_writing_here():
                self._state.wait_for_edit()
                continue
            head, tail = counters.head, counters.tail
            found = look(tail, max(head, tail))
            if counters.edit == edit:
                return found, tail


def _oldest(position: Any) -> int:
    if isinstance(position, int):
        return position
    return position.item(position.argmin()) if position.size else 2**62  # quicker than min()


def _newest(position: Any) -> int:
    if isinstance(position, int):
        return position
    return int(position.max()) if position.size else -1
