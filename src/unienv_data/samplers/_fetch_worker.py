"""Worker processes of `MultiprocessingSampler`, and the blocks of shared memory for batches.

A worker writes a batch as packed rows into a block, and the parent returns arrays over that memory. The caller owns the
arrays: the block is free again when the last of them is deleted.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import struct
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from unienv_interface.space import BoxSpace, Space
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.space.space_utils import flatten_space
from unienv_interface.utils.channel import Channel, ChannelClosedError, Message, Portable, pickled
from unienv_interface.utils.shared_block import SharedBlock
from unienv_interface.utils.worker_processes import ErrorReport

from ..base.common import BatchBase
from ..base.sampling import FLAT, FLAT_WITH_METADATA, STRUCTURED, STRUCTURED_WITH_METADATA, Form

# Commands and replies
FETCH, CLOSE = range(2)
DONE, FAILED = range(2)
#: The number of the message that a worker sends once it is ready, without a request.
READY = 0

_FORMS = (STRUCTURED, STRUCTURED_WITH_METADATA, FLAT, FLAT_WITH_METADATA)
_REQUEST = struct.Struct("<Bqq")  # form, block, and the stop of the current sample numbers
_ALIGNMENT = 64
_IN_BLOCK = ...  # replaces a section that lies in the block


def request(form: Form, block: int, end: int, index: np.ndarray) -> bytes:
    """Encode the payload of a `FETCH`."""
    return _REQUEST.pack(_FORMS.index(form), block, end) + index.tobytes()


def worker_main(
    connection: Connection, given: Portable, shared: SharedBlock | None, block_nbytes: int, seed: Sequence[int]
) -> None:
    """Fetch batches until `CLOSE` or until the parent is gone."""
    _seed_apart(seed)
    channel = Channel(connection)
    server = _Server(channel, given.value, shared, block_nbytes)
    with contextlib.suppress(ChannelClosedError):
        server.reply(READY, DONE, b"")
        while (message := channel.receive()).code != CLOSE:
            server.serve(message)
    channel.close()


class _Server:
    def __init__(
        self, channel: Channel, given: tuple[BatchBase, BatchPlan], shared: SharedBlock | None, block_nbytes: int
    ) -> None:
        self._channel, self._shared, self._block_nbytes = channel, shared, block_nbytes
        self._source, self._plan = given

    def serve(self, message: Message) -> None:
        try:
            answer = self._fetch(message.payload)
        except BaseException as error:
            report = ErrorReport.of(error, 0, "fetch")
            self.reply(message.number, FAILED, pickle.dumps(tuple(report)))
        else:
            self.reply(message.number, DONE, answer)

    def _fetch(self, payload: bytes) -> bytes:
        form_number, block, end = _REQUEST.unpack_from(payload)
        form, index = _FORMS[form_number], np.frombuffer(payload, np.int64, offset=_REQUEST.size)
        if self._source.sample_numbers.stop < end:
            raise RuntimeError(
                "samples were added after the workers had started, and each worker has a copy of the data: make the "
                "replay buffer with multiprocessing=True or load it from disk, so that workers see new samples"
            )
        memory = None
        if block >= 0 and self._shared is not None:
            memory = block_memory(self._shared, block, self._block_nbytes)
        if form is STRUCTURED and self._plan.write_rows(memory, len(index), self._source.read_rows(index)):
            return b""
        return self._plan.write(memory, len(index), form, form.read(self._source, index))

    def reply(self, number: int, code: int, payload: bytes) -> None:
        self._channel.send(number, code, payload)
        self._channel.flush()


def _seed_apart(seed: Sequence[int]) -> None:
    """Seed the global generators: forked workers have inherited the same state."""
    first, second = np.random.SeedSequence(seed).generate_state(2)
    random.seed(int(first))
    np.random.seed(int(second))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int(first))


# -- blocks ------------------------------------------------------------------------------------------------


class _RowsInBlock:
    """The positions of up to `capacity` rows of a layout in a block."""

    def __init__(self, layout: RowLayout, capacity: int) -> None:
        self.layout, self.capacity = layout, capacity
        self._arrays: list[tuple[str | None, np.dtype, int]] = []
        self.nbytes = 0
        for name, dtype in [(None, layout.dtype), *((leaf.name, leaf.codec.dtype) for leaf in layout.block_leaves)]:
            self._arrays.append((name, dtype, self.nbytes))
            self.nbytes += -(-capacity * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    def rows(self, memory: np.ndarray, count: int) -> Rows:
        arrays = {
            name: memory[start : start + count * dtype.itemsize].view(dtype.base).reshape(count, *dtype.shape)
            for name, dtype, start in self._arrays
        }
        return self.layout.wrap(arrays.pop(None), arrays)  # type: ignore[arg-type]


class BatchPlan:
    """The layout of batches of a source in blocks, in each form. Values without a fixed size are pickled instead."""

    def __init__(self, source: BatchBase, capacity: int) -> None:
        self._structured = _rows_of(source.single_space, capacity)
        self._flat = _rows_of(_flat_space(source.single_space), capacity)
        self._metadata = _rows_of(source.single_metadata_space, capacity)
        self._metadata_start = max((rows.nbytes for rows in (self._structured, self._flat) if rows), default=0)
        self.nbytes = self._metadata_start + (0 if self._metadata is None else self._metadata.nbytes)

    def _sections(self, form: Form) -> list[tuple[_RowsInBlock | None, int]]:
        """Return the data, and the metadata if the form has them, with their first bytes in a block."""
        sections = [(self._flat if form.is_flat else self._structured, 0)]
        if form.with_metadata:
            sections.append((self._metadata, self._metadata_start))
        return sections

    def write(self, memory: np.ndarray | None, count: int, form: Form, batch: Any) -> bytes:
        """Write a batch to a block, if `memory` is given, and return the pickled rest."""
        values = list(batch) if form.with_metadata else [batch]
        for number, (section, start) in enumerate(self._sections(form)):
            if memory is not None and section is not None and count <= section.capacity and values[number] is not None:
                try:
                    section.layout.pack(section.rows(memory[start:], count), slice(0, count), values[number])
                except ValueError:
                    continue  # a value outside of its space is pickled
                values[number] = _IN_BLOCK
        return b"" if all(value is _IN_BLOCK for value in values) else pickled(values)

    def write_rows(self, memory: np.ndarray | None, count: int, rows: Rows | None) -> bool:
        """Write a batch of rows to a block; False if the batch must be written with `write`."""
        section = self._structured
        if rows is None or memory is None or section is None or count > section.capacity:
            return False
        target = section.rows(memory, count)
        # copying bytes is faster than copying field by field
        target.records.view(np.uint8)[...] = rows.records.view(np.uint8)
        for name, block in target.blocks.items():
            block[...] = rows.blocks[name]
        return True

    def read(self, memory: np.ndarray | None, count: int, form: Form, rest: bytes) -> Any:
        """Return a written batch; its arrays are views of the block, if the backend allows it."""
        sections = self._sections(form)
        values = pickle.loads(rest) if rest else [_IN_BLOCK] * len(sections)
        for number, (section, start) in enumerate(sections):
            if values[number] is _IN_BLOCK and section is not None and memory is not None:
                values[number] = section.layout.unpack(section.rows(memory[start:], count))
        return tuple(values) if form.with_metadata else values[0]


class _Held(weakref.ref[np.ndarray]):
    """A weak reference to the memory of a block in use; its callback frees the block."""

    __slots__ = ("block",)
    block: int


class BlockRing:
    """The blocks of a parent process, free and in use."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.nbytes = max(nbytes, 1)
        self.shared = SharedBlock.create(count * self.nbytes) if nbytes else None
        self._free: deque[int | _Held] = deque(range(count) if nbytes else ())
        self._held: dict[int, _Held] = {}

    @property
    def has_free(self) -> bool:
        return bool(self._free) or self.shared is None

    def take(self) -> int:
        """Take a free block, for `give_back` or `hand_out`; -1 if all are in use."""
        free = self._free.popleft() if self._free else -1
        return free.block if isinstance(free, _Held) else free

    def give_back(self, block: int) -> None:
        if block >= 0:
            self._free.append(block)

    def hand_out(self, block: int) -> np.ndarray | None:
        """Return the memory of a block, which is free again when the last array over it is deleted."""
        if block < 0 or self.shared is None:
            return None
        memory = block_memory(self.shared, block, self.nbytes)
        # The callback is a C function without `self`: a batch may outlive the ring, and Ctrl-C in a Python callback
        # would be lost, together with the block.
        self._held[block] = _Held(memory, self._free.append)
        self._held[block].block = block
        return memory

    def close(self) -> None:
        """Release the memory; batches in use keep theirs."""
        if self.shared is not None:
            self.shared.close()
            self.shared = None


def block_memory(shared: SharedBlock, block: int, nbytes: int) -> np.ndarray:
    """Return the bytes of one block as an array, which is the base of all arrays over the block."""
    return shared.array(np.uint8, (nbytes,), block * nbytes)


def _rows_of(space: Space | None, capacity: int) -> _RowsInBlock | None:
    if space is None:
        return None
    layout = RowLayout(space)
    return None if layout.has_heap or not layout.leaves else _RowsInBlock(layout, capacity)


def _flat_space(space: Space) -> BoxSpace | None:
    try:
        return flatten_space(space)
    except (ValueError, TypeError, NotImplementedError):
        return None  # the space has no flat form
