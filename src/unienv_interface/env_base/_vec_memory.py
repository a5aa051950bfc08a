"""The memory that a vector environment and its workers have in common, and its way through a pipe without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..space.row_layout import Heap, RowLayout, Rows
from ..utils.shared_block import SharedBlock
from . import _mailbox
from ._env_group import SIGNAL_DTYPES, EnvSpec, Slots
from ._info_table import INFO_ROW
from ._mailbox import Mailbox

# What each worker has at the beginning of the block: a cache line with the environment that it is at work on, then a
# mailbox for commands and one for answers.
_LINE = 64
PROGRESS = np.dtype({"names": ["index"], "formats": ["<i4"], "offsets": [0], "itemsize": _LINE + 2 * _mailbox.SIZE})


def mailboxes(block: SharedBlock, worker: int) -> tuple[Mailbox, Mailbox]:
    """A worker's mailboxes: for commands and for answers."""
    start = worker * PROGRESS.itemsize + _LINE
    return Mailbox(block, start), Mailbox(block, start + _mailbox.SIZE)


# A reference to a heap holds the environment's number above the offset.
_HEAP_SHIFT = 40
# The seed to reset an environment with, or `NO_SEED` if it is not to be reset.
_SEED_DTYPE = np.dtype(np.int64)
NO_SEED = -1


class Areas(NamedTuple):
    """The memory of a vector environment: rows for results, actions and infos, and seeds."""

    slots: Slots
    actions: Rows
    infos: np.ndarray
    seeds: np.ndarray


@dataclass(frozen=True)
class MemoryPlan:
    """Which rows a vector environment keeps, and where each part of them lies in the shared block."""

    observation: RowLayout
    context: RowLayout | None
    action: RowLayout
    count: int
    start: int  # where the block is free

    @classmethod
    def of(cls, spec: EnvSpec, count: int, start: int) -> MemoryPlan:
        context = None if spec.context_space is None else RowLayout(spec.context_space)
        return cls(RowLayout(spec.observation_space), context, RowLayout(spec.action_space), count, start)

    def lay_out(self, block: SharedBlock | None, heap: Heap, action_heap: Heap) -> Areas:
        """The areas, in the block, or without one in this process's memory."""
        end = self.start

        def area(dtype: np.dtype) -> np.ndarray:
            nonlocal end
            start = _next_line(end)  # workers write next to each other
            end = start + self.count * dtype.itemsize
            return np.zeros(self.count, dtype) if block is None else block.array(dtype, (self.count,), start)

        def rows(layout: RowLayout, heap: Heap) -> Rows:
            records = area(layout.dtype)
            blocks = {leaf.name: area(leaf.codec.dtype) for leaf in layout.block_leaves}
            return Rows(layout, records, blocks, heap)

        contexts = None if self.context is None else rows(self.context, heap)
        observations, (reward, terminated, truncated) = rows(self.observation, heap), SIGNAL_DTYPES
        slots = Slots(observations, contexts, area(reward), area(terminated), area(truncated))
        actions = rows(self.action, action_heap)
        return Areas(slots, actions, area(INFO_ROW), area(_SEED_DTYPE))

    @property
    def nbytes(self) -> int:
        """The size of the block."""
        layouts = [layout for layout in (self.observation, self.context, self.action) if layout is not None]
        areas = [layout.itemsize for layout in layouts]
        areas += [leaf.codec.dtype.itemsize for layout in layouts for leaf in layout.block_leaves]
        areas += [dtype.itemsize for dtype in SIGNAL_DTYPES]
        areas += [INFO_ROW.itemsize, _SEED_DTYPE.itemsize]
        return _next_line(self.start) + sum(_next_line(self.count * itemsize) for itemsize in areas)


def _next_line(offset: int) -> int:
    """Where the next cache line begins."""
    return -(-offset // _LINE) * _LINE


class PartedHeap:
    """Values without a fixed size, in one part per environment, which travel in messages.

    Writing is on behalf of the environment whose number is in `at_work`.
    """

    def __init__(self, at_work: Sequence[int]) -> None:
        self.parts: dict[int, bytearray] = {}
        self._at_work = at_work

    def write(self, data: bytes) -> int:
        owner = int(self._at_work[0])
        part = self.parts.setdefault(owner, bytearray())
        offset = (owner << _HEAP_SHIFT) + len(part)
        part += data
        return offset

    def drop(self, owners: Iterable[int]) -> None:
        """Forget the parts of these environments."""
        for owner in owners:
            self.parts.pop(owner, None)

    def read(self, offset: int, length: int) -> memoryview:
        start = offset & ((1 << _HEAP_SHIFT) - 1)
        return memoryview(bytes(self.parts[offset >> _HEAP_SHIFT][start : start + length]))


def result_arrays(slots: Slots) -> list[np.ndarray]:
    """The memory of result slots."""
    contexts = [] if slots.contexts is None else row_arrays(slots.contexts)
    signals = [slots.rewards, slots.terminated, slots.truncated]
    return [*signals, *row_arrays(slots.observations), *contexts]


def row_arrays(rows: Rows) -> list[np.ndarray]:
    """The memory of rows."""
    return [rows.records, *rows.blocks.values()]


def export_rows(arrays: Sequence[np.ndarray], indices: Sequence[int]) -> list[bytes]:
    """The bytes of some rows, for a vector environment without shared memory."""
    return [array[indices].tobytes() for array in arrays]


def import_rows(arrays: Sequence[np.ndarray], indices: Sequence[int], parts: Sequence[bytes]) -> None:
    """Put exported rows where they belong."""
    for array, part in zip(arrays, parts, strict=True):
        array[indices] = np.frombuffer(part, array.dtype).reshape(len(indices), *array.shape[1:])


def copy_rows(source: Rows, target: Rows, indices: Any) -> None:
    """Copy some rows to the same places of other rows; what they have in a heap stays where it is."""
    for old, new in zip(row_arrays(source), row_arrays(target), strict=True):
        new[indices] = old[indices]
