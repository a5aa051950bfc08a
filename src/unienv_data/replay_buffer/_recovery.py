"""Recovery of a buffer that was not closed, on another boot than its writer's.

The machine may have been restarted in order, or the folder copied: then everything is there. Or the power was cut: then
what was written since the last flush has reached the disk in part, in any order. The checksum of a row covers the
number of its sample, and that of an episode's record its index, so each of them shows whether it is whole. What
cannot be shown to be whole is kept out of reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.row_storage import ROW_WHOLE, ROW_WRONG
from ._counters import Counters

if TYPE_CHECKING:
    from ._state import BufferState

_CHUNK = 65536


@dataclass(frozen=True)
class Loss:
    """What of a buffer does not count any more: the counters without it, and sentences that name it."""

    counters: Counters
    findings: tuple[str, ...]


def find_loss(state: BufferState) -> Loss | None:
    """What of a buffer cannot be shown to be whole; None if its counters can be taken as they are.

    Looks at the checksums of the samples since the last flush, and at the numbers of the others.
    """
    live, committed = state.counters, state.header.newest_half()
    tail, head, count = live.tail, live.head, live.segments
    if state.storage.has_row_sums:
        first = min(max(committed.head, tail), head)
        tail, head = _without_overwritten(state, tail, first, head)
        head = _first_not_whole(state, max(first, tail), head)
    else:
        head = min(head, max(committed.head, tail))
    sound = state.segments.count_sound(min(committed.segments, count), count)
    closed = live.closed
    if sound < count:  # samples that are not in an episode of those are in the one that was open at the last flush
        closed = state.segments.stop_of(sound - 1) if sound else tail
        head = max(tail, min(head, max(closed, committed.head)))
    head -= (head - tail) % state.segments.lanes
    counters = live.copy()
    counters.tail, counters.head, counters.segments = tail, max(head, tail), sound
    if counters.head == tail:
        counters.base = tail  # there need be no rows at all
    if counters == live:
        return None
    counters.closed, counters.coming = min(closed, counters.head), counters.head
    return Loss(counters, tuple(_sentences(state, live, counters)))


def _sentences(state: BufferState, live: Counters, kept: Counters) -> list[str]:
    where, sentences = state.folder, []
    if kept.tail > live.tail:
        sentences.append(
            f"{where}: the oldest {kept.tail - live.tail:,} samples were overwritten after the last flush by samples "
            f"that did not all reach the disk when the machine went down; they are kept out of reads"
        )
    if kept.head < live.head:
        first, count = kept.head - kept.tail, live.head - kept.head
        sentences.append(
            f"{where}: samples {first:,} to {first + count - 1:,} ({count:,}) were written after the last flush, and "
            f"when the machine went down not all of them reached the disk whole; they are kept out of reads"
        )
    if kept.segments < live.segments:
        sentences.append(f"{where}: {live.segments - kept.segments:,} records of episodes did not reach the disk")
    return sentences


def _without_overwritten(state: BufferState, tail: int, first: int, head: int) -> tuple[int, int]:
    """Tail and head such that no sample between tail and `first` lies in a slot that holds another one."""
    for start in range(tail, first, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, first))
        is_wrong = state.storage.check_rows(state.slots(numbers), numbers, numbers_only=True) == ROW_WRONG
        if not is_wrong.any():
            continue
        if state.storage.capacity is None:  # moved by a removal of samples: what follows is not known to be in order
            return tail, int(numbers[is_wrong][0])
        tail = int(numbers[is_wrong][-1]) + 1
    return tail + (-tail) % state.segments.lanes, head


def _first_not_whole(state: BufferState, first: int, head: int) -> int:
    """The first of the samples from `first` to `head` whose row does not match its checksum; `head` if all do."""
    for start in range(first, head, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, head))
        not_whole = state.storage.check_rows(state.slots(numbers), numbers) != ROW_WHOLE
        if not_whole.any():
            return int(numbers[not_whole][0])
    return head
