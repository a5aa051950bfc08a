"""Batches in shared memory: how one lies in a block, and which blocks are free.

A worker writes a batch as packed rows into a block, and the parent hands out arrays over that memory. They belong to
whoever holds them: a block is free again when the last of them is gone.
"""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from typing import Any

import numpy as np

from unienv_interface.space import BoxSpace, Space
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.space.space_utils import flatten_space
from unienv_interface.utils.channel import pickled
from unienv_interface.utils.shared_block import SharedBlock

from ..base.common import BatchBase
from ..base.sampling import Form

_ALIGNMENT = 64
_IN_BLOCK = ...  # in the place of a part that lies in the block


class _Part:
    """Where the rows of one layout lie in a block, for up to `capacity` of them."""

    def __init__(self, layout: RowLayout, capacity: int) -> None:
        self.layout, self.capacity = layout, capacity
        self._places: list[tuple[str | None, np.dtype, int]] = []
        self.nbytes = 0
        for name, dtype in [(None, layout.dtype), *((leaf.name, leaf.codec.dtype) for leaf in layout.block_leaves)]:
            self._places.append((name, dtype, self.nbytes))
            self.nbytes += -(-capacity * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    def rows(self, memory: np.ndarray, count: int) -> Rows:
        arrays = {
            name: memory[start : start + count * dtype.itemsize].view(dtype.base).reshape(count, *dtype.shape)
            for name, dtype, start in self._places
        }
        return self.layout.wrap(arrays.pop(None), arrays)  # type: ignore[arg-type]


class BatchPlan:
    """How batches of a source lie in blocks, in each form. What has no fixed size does not, and is pickled instead."""

    def __init__(self, source: BatchBase, capacity: int) -> None:
        self._structured = _part(source.single_space, capacity)
        self._flat = _part(_flat_space(source.single_space), capacity)
        self._metadata = _part(source.single_metadata_space, capacity)
        data = max((part.nbytes for part in (self._structured, self._flat) if part is not None), default=0)
        self._metadata_start = data
        self.nbytes = data + (0 if self._metadata is None else self._metadata.nbytes)

    def _parts(self, form: Form) -> list[tuple[_Part | None, int]]:
        """The parts of a batch in this form, and where they begin."""
        parts = [(self._flat if form.startswith("get_flattened") else self._structured, 0)]
        if form.endswith("with_metadata"):
            parts.append((self._metadata, self._metadata_start))
        return parts

    def write(self, memory: np.ndarray | None, count: int, form: Form, batch: Any) -> bytes:
        """Write a batch to a block, if there is one, and return the bytes of what is not in it."""
        values = list(batch) if form.endswith("with_metadata") else [batch]
        for place, (part, start) in enumerate(self._parts(form)):
            if memory is not None and part is not None and count <= part.capacity and values[place] is not None:
                try:
                    part.layout.pack(part.rows(memory[start:], count), slice(0, count), values[place])
                except ValueError:
                    continue  # not a value of its space: it gets there as it is
                values[place] = _IN_BLOCK
        return b"" if all(value is _IN_BLOCK for value in values) else pickled(values)

    def write_rows(self, memory: np.ndarray | None, count: int, rows: Rows | None) -> bool:
        """Write a batch that is rows already; False if it has to be written in another way."""
        part = self._structured
        if rows is None or memory is None or part is None or count > part.capacity:
            return False
        target = part.rows(memory, count)
        # as bytes, which is quicker than field by field
        target.records.view(np.uint8)[...] = rows.records.view(np.uint8)
        for name, block in target.blocks.items():
            block[...] = rows.blocks[name]
        return True

    def read(self, memory: np.ndarray | None, count: int, form: Form, rest: bytes) -> Any:
        """The batch that was written; what lies in the block is handed out as views of it, where that can be."""
        parts = self._parts(form)
        values = pickle.loads(rest) if rest else [_IN_BLOCK] * len(parts)
        for place, (part, start) in enumerate(parts):
            if values[place] is _IN_BLOCK and part is not None and memory is not None:
                values[place] = part.layout.unpack(part.rows(memory[start:], count))
        return tuple(values) if form.endswith("with_metadata") else values[0]


class BlockRing:
    """The blocks of a parent process, and who holds them."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.nbytes = max(nbytes, 1)
        self.shared = SharedBlock.create(count * self.nbytes) if nbytes else None
        self._free: deque[int] = deque(range(count) if nbytes else ())
        self._held: dict[int, weakref.ref[np.ndarray]] = {}

    @property
    def has_free(self) -> bool:
        return bool(self._free) or self.shared is None

    def take(self) -> int:
        """A free block, -1 if there is none. It is the taker's until it is given back or handed out."""
        return self._free.popleft() if self._free else -1

    def give_back(self, block: int) -> None:
        if block >= 0:
            self._free.append(block)

    def hand_out(self, block: int) -> np.ndarray | None:
        """The memory of a block. It is free again when the last array over it is gone."""
        if block < 0 or self.shared is None:
            return None
        memory = block_memory(self.shared, block, self.nbytes)
        free = self._free  # not self: a batch may outlive the ring, which it does not keep alive
        self._held[block] = weakref.ref(memory, lambda _: free.append(block))
        return memory

    def close(self) -> None:
        """Make no more use of the memory; batches that are held keep theirs."""
        if self.shared is not None:
            self.shared.close()
            self.shared = None


def block_memory(shared: SharedBlock, block: int, nbytes: int) -> np.ndarray:
    """The bytes of one block. Arrays over them keep this one alive, as their base."""
    return shared.array(np.uint8, (nbytes,), block * nbytes)


def _part(space: Space | None, capacity: int) -> _Part | None:
    if space is None:
        return None
    layout = RowLayout(space)
    return None if layout.has_heap or not layout.leaves else _Part(layout, capacity)


def _flat_space(space: Space) -> BoxSpace | None:
    try:
        return flatten_space(space)
    except (ValueError, TypeError, NotImplementedError):
        return None  # it has no flat form
