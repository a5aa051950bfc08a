"""Columns of a storage, one or several, as a buffer reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.nested import columns_under
from ..base.storage import SpaceStorage


def column_source(storage: SpaceStorage, keys: Sequence[Any]) -> Any:
    """What has the `gather` and `gather_windows` of the field under these keys, which may end in `Columns`."""
    above, columns = columns_under(keys)
    if columns is None or storage.takes_columns:
        return storage.get_column(keys)
    return _ColumnByColumn({path: storage.get_column((*above, *path)) for path in columns.paths()})


class _ColumnByColumn:
    """Several columns of a storage that reads them one at a time."""

    def __init__(self, columns: dict[tuple[Any, ...], SpaceStorage]) -> None:
        self._columns = columns

    def gather(self, slots: Any, length: int) -> Any:
        return self._together(lambda column: column.gather(slots, length))

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self._together(lambda column: column.gather_windows(slots, length))

    def _together(self, read: Callable[[SpaceStorage], Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for (*above, last), column in self._columns.items():
            holder = found
            for key in above:
                holder = holder.setdefault(key, {})
            holder[last] = read(column)
        return found
