"""The memory of a vector environment: rows for values, and rings of commands for the workers.

Commands are always in shared memory. With `shared_memory=False` each process keeps its rows and sends them as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...space.row_layout import Heap, RowLayout, Rows
from ...utils.shared_block import SharedBlock
from .env_group import SIGNAL_DTYPES, EnvSpec, ResultRows
from .infos import INFO_ROW

_LINE = 64  # bytes of a cache line: no two processes write to the same one
_HEAP_SHIFT = 40  # a heap reference has the index of the environment above this bit, the offset below


# -- commands ----------------------------------------------------------------------------------------------

#: The number of commands that a worker may have without an answer that its parent has seen.
DEPTH = 32
#: The code of a number that has no command, since posting it was interrupted.
NOTHING = 0
#: Set in the code of a command or an answer that has a payload, which comes through the pipe.
PAYLOAD = 64

# The 64-bit words of a ring. The parent writes `_POSTED`, `_KNOWN_FORM` and `_COMMANDS`, the worker the others.
_POSTED, _KNOWN_FORM = 0, 1
_ANSWERED, _AT_WORK = 16, 17
_COMMANDS, _ANSWERS = 24, 24 + DEPTH
_WORDS = 24 + 2 * DEPTH


class CommandRing:
    """The commands of one worker and its answers, numbered from 1, as codes in shared memory.

    The parent posts command `number` by writing its code, then raising `posted`; the worker answers the same way with
    `answered`. An event then wakes the other process, which may block.
    """

    NBYTES = _WORDS * 8

    def __init__(self, block: SharedBlock, worker: int) -> None:
        self._words = block.array(np.int64, (_WORDS,), worker * self.NBYTES).data
        #: A memoryview of one integer: the index of the environment that the worker calls.
        self.at_work = self._words[_AT_WORK : _AT_WORK + 1]

    def clear(self) -> None:
        """Remove all commands, before a new worker starts."""
        for word in range(_WORDS):
            self._words[word] = 0

    # -- the parent's side ---------------------------------------------------------------------------------

    def post(self, number: int, code: int) -> None:
        self._words[_COMMANDS + number % DEPTH] = code
        self._words[_POSTED] = number

    def skip_to(self, number: int) -> None:
        """Post the commands up to `number`; a command whose code was not written is `NOTHING`."""
        self._words[_POSTED] = number

    @property
    def answered(self) -> int:
        """The number of the last answered command."""
        return self._words[_ANSWERED]

    def answer_to(self, number: int) -> int:
        """The code of the answer to an answered command."""
        return self._words[_ANSWERS + number % DEPTH]

    # -- the worker's side ---------------------------------------------------------------------------------

    @property
    def posted(self) -> int:
        """The number of the last posted command."""
        return self._words[_POSTED]

    def take(self, number: int) -> int:
        """Take the code of a posted command; `NOTHING` if it was skipped."""
        slot = _COMMANDS + number % DEPTH
        code, self._words[slot] = self._words[slot], NOTHING
        return code

    def answer(self, number: int, code: int) -> None:
        self._words[_ANSWERS + number % DEPTH] = code
        self._words[_ANSWERED] = number

    # -- the form of infos in rows -------------------------------------------------------------------------

    @property
    def known_form(self) -> int:
        """The number of the command whose answer had the form of infos that the parent expects in rows, or 0."""
        return self._words[_KNOWN_FORM]

    @known_form.setter
    def known_form(self, number: int) -> None:
        self._words[_KNOWN_FORM] = number


class Control:
    """The shared memory for commands: a ring for each worker, two numbers for each environment."""

    def __init__(self, block: SharedBlock, workers: int, count: int) -> None:
        self.rings = [CommandRing(block, worker) for worker in range(workers)]
        start = workers * CommandRing.NBYTES
        #: For each environment, the number of the last command for some environments that included it.
        self.turns = block.array(np.int64, (count,), start)
        #: For each environment the seed of its next reset.
        self.seeds = block.array(np.int64, (count,), start + count * 8)

    @staticmethod
    def nbytes(workers: int, count: int) -> int:
        return _next_line(workers * CommandRing.NBYTES + 2 * count * 8)


# -- rows --------------------------------------------------------------------------------------------------


class Areas(NamedTuple):
    """The rows of a vector environment: for results, actions and infos."""

    results: ResultRows
    actions: Rows
    infos: np.ndarray


@dataclass(frozen=True)
class MemoryPlan:
    """The rows of a vector environment and their offsets in the shared block."""

    observation: RowLayout
    context: RowLayout | None
    action: RowLayout
    count: int
    start: int  # the offset of the first free byte of the block

    @classmethod
    def of(cls, spec: EnvSpec, count: int, start: int) -> MemoryPlan:
        context = None if spec.context_space is None else RowLayout(spec.context_space)
        return cls(RowLayout(spec.observation_space), context, RowLayout(spec.action_space), count, start)

    def lay_out(self, block: SharedBlock | None, heap: Heap, action_heap: Heap) -> Areas:
        """The areas, in the block, or without a block in this process's memory."""
        end = self.start

        def area(dtype: np.dtype) -> np.ndarray:
            nonlocal end
            start = _next_line(end)
            end = start + self.count * dtype.itemsize
            return np.zeros(self.count, dtype) if block is None else block.array(dtype, (self.count,), start)

        def rows(layout: RowLayout, heap: Heap) -> Rows:
            records = area(layout.dtype)
            blocks = {leaf.name: area(leaf.codec.dtype) for leaf in layout.block_leaves}
            return Rows(layout, records, blocks, heap)

        contexts = None if self.context is None else rows(self.context, heap)
        observations, (reward, terminated, truncated) = rows(self.observation, heap), SIGNAL_DTYPES
        results = ResultRows(observations, contexts, area(reward), area(terminated), area(truncated))
        return Areas(results, rows(self.action, action_heap), area(INFO_ROW))

    @property
    def nbytes(self) -> int:
        """The size of the block."""
        layouts = [layout for layout in (self.observation, self.context, self.action) if layout is not None]
        areas = [layout.itemsize for layout in layouts]
        areas += [leaf.codec.dtype.itemsize for layout in layouts for leaf in layout.block_leaves]
        areas += [dtype.itemsize for dtype in SIGNAL_DTYPES]
        areas.append(INFO_ROW.itemsize)
        return _next_line(self.start) + sum(_next_line(self.count * itemsize) for itemsize in areas)


def _next_line(offset: int) -> int:
    """Round an offset up to the next cache line."""
    return -(-offset // _LINE) * _LINE


class ChunkedHeap:
    """Values without a fixed size, in one chunk per environment; messages carry the chunks.

    `write` appends to the chunk of the environment whose index is in `at_work`.
    """

    def __init__(self, at_work: Sequence[int]) -> None:
        self.chunks: dict[int, bytearray] = {}
        self._at_work = at_work

    def write(self, data: bytes) -> int:
        owner = int(self._at_work[0])
        chunk = self.chunks.setdefault(owner, bytearray())
        offset = (owner << _HEAP_SHIFT) + len(chunk)
        chunk += data
        return offset

    def drop(self, owners: Iterable[int]) -> None:
        """Remove the chunks of environments."""
        if self.chunks:
            for owner in owners:
                self.chunks.pop(owner, None)

    def read(self, offset: int, length: int) -> memoryview:
        start = offset & ((1 << _HEAP_SHIFT) - 1)
        return memoryview(bytes(self.chunks[offset >> _HEAP_SHIFT][start : start + length]))


def result_arrays(results: ResultRows) -> list[np.ndarray]:
    """All arrays that hold results."""
    contexts = [] if results.contexts is None else row_arrays(results.contexts)
    signals = [results.rewards, results.terminated, results.truncated]
    return [*signals, *row_arrays(results.observations), *contexts]


def row_arrays(rows: Rows) -> list[np.ndarray]:
    """All arrays that hold rows."""
    return [rows.records, *rows.blocks.values()]


def export_rows(arrays: Sequence[np.ndarray], indices: Sequence[int]) -> list[bytes]:
    """The bytes of some rows, to send to a process that does not share their memory."""
    return [array[indices].tobytes() for array in arrays]


def import_rows(arrays: Sequence[np.ndarray], indices: Sequence[int], exported: Sequence[bytes]) -> None:
    """Write exported rows to the same indices of these arrays."""
    for array, data in zip(arrays, exported, strict=True):
        array[indices] = np.frombuffer(data, array.dtype).reshape(len(indices), *array.shape[1:])
