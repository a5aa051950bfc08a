"""Columns: one field of the samples of another storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base.index import resolve_index
from ..base.nested import columns_under
from ..base.row_storage import RowStorage


def leaf_indices(layout: RowLayout, keys: Sequence[Any], column: RowLayout) -> list[int]:
    """The indices, among the leaves of a layout, of the leaves under these keys, which may end in `Columns`."""
    above, _ = columns_under(keys)
    index_of = {leaf.path: index for index, leaf in enumerate(layout.leaves)}
    return [index_of[above + leaf.path] for leaf in column.leaves]


class ColumnView(RowStorage):
    """A read-only storage of one field of another storage's samples, over the same data.

    A subclass implements `__len__` and `gather`. Closing it leaves the other storage open.
    """

    is_mutable = False

    @classmethod
    def create(cls, single_instance_space: Space, *args: Any, **kwargs: Any) -> RowStorage:
        raise TypeError("a column is got from its storage: storage.get_column(keys)")

    @classmethod
    def load_from(cls, path: Any, single_instance_space: Space, **kwargs: Any) -> RowStorage:
        raise TypeError("a column is got from its storage: storage.get_column(keys)")

    def get(self, index: Any) -> Any:
        length = len(self)
        return self.gather(resolve_index(self.backend, index, length), length)

    def set(self, index: Any, value: Any) -> None:
        raise TypeError("a column is read-only: write whole samples to its storage")

    def dumps(self, path: str | os.PathLike[str]) -> None:
        raise TypeError("a column has no files of its own: dump its storage")
