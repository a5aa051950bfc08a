"""One column of packed rows: only its own bytes are read."""

from __future__ import annotations

import os
from typing import Any

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base._index import resolve_index
from ..base.nested import nested_item
from ..base.storage import SpaceStorage
from ._row_memory import RowMemory


class PackedColumn(SpaceStorage):
    """A read-only storage of one field of another storage's samples, over the same memory."""

    is_mutable = False

    def __init__(self, space: Space, capacity: int | None, memory: RowMemory, keys: tuple[Any, ...]) -> None:
        super().__init__(nested_item(space, keys))
        self.capacity = capacity
        self._memory = memory
        self._layout = RowLayout(self.single_instance_space)
        leaves = memory.layout.leaves
        self._places = [place for place, leaf in enumerate(leaves) if leaf.path[: len(keys)] == keys]

    @classmethod
    def create(cls, single_instance_space: Space, *args: Any, **kwargs: Any) -> SpaceStorage:
        raise TypeError("a column is got from its storage: storage.get_column(keys)")

    @classmethod
    def load_from(cls, path: Any, single_instance_space: Space, **kwargs: Any) -> SpaceStorage:
        raise TypeError("a column is got from its storage: storage.get_column(keys)")

    def __len__(self) -> int:
        return self._memory.used

    def get(self, index: Any) -> Any:
        return self.gather(resolve_index(self.backend, index, len(self)), len(self))

    def gather(self, slots: Any, length: int) -> Any:
        memory = self._memory
        if length > len(memory.rows):
            memory.grow(length)
        columns = memory.rows.columns
        single = type(slots) is int
        taken = [columns[place].take([slots] if single else slots, 0, None, "wrap") for place in self._places]
        if single:
            taken = [column[0, ...] for column in taken]
        return self._layout.assemble(taken, memory.heap)

    def set(self, index: Any, value: Any) -> None:
        raise TypeError("a column is read-only: write whole samples to its storage")

    def dumps(self, path: str | os.PathLike[str]) -> None:
        raise TypeError("a column has no files of its own: dump its storage")
