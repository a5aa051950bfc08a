"""Infos on their way from workers to the vector environment.

Most environments say the same things at every step, all of them numbers. Such infos are a table with a column for each
thing. The first one that a worker has it sends, which takes a tenth of the time that it takes to pickle every number by
itself; those after it, while they are of the same form, it writes to shared memory. Everything else is pickled.

Which form is meant is the parent's to say: it names the request whose answer had the table. So it does no harm if an
answer was thrown away because it came too late.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.base import ComputeBackend
from ._stacking import data_stack

Infos = list[dict[str, Any]]

#: Tables of more columns are pickled every time.
COLUMNS = 32
# What an array holds without loss and gives back as it was; of Python's own integers not all are.
_OF_NUMPY = frozenset(
    {np.bool_, np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64}
    | {np.uint8, np.uint16, np.uint32, np.uint64}
)
_OF_PYTHON = frozenset({bool, float})


class InfoTable(NamedTuple):
    """Infos that all have these names, in this order, each with the numbers of one column."""

    names: list[Any]
    kinds: list[type]  # of the numbers of each column: NumPy's or Python's own
    columns: list[np.ndarray]

    @classmethod
    def of(cls, infos: Infos) -> InfoTable | None:
        """Infos as a table; None if they are not one."""
        names = list(infos[0]) if infos else []
        if not names or any(list(info) != names for info in infos):
            return None
        kinds, columns = [], []
        for name in names:
            values = [info[name] for info in infos]
            kind, *others = set(map(type, values))
            if others or not (kind in _OF_NUMPY or kind in _OF_PYTHON):
                return None
            kinds.append(kind)
            columns.append(np.array(values))
        return cls(names, kinds, columns)

    def infos(self) -> Infos:
        """The infos that it was made of."""
        values = [self._values(place) for place in range(len(self.names))]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*values, strict=True)]

    def _values(self, place: int) -> Sequence[Any]:
        column = self.columns[place]
        return column.tolist() if self.kinds[place] in _OF_PYTHON else list(column)

    def stacked(self, backend: ComputeBackend, device: Any, copy: bool | None = None) -> dict[Any, Any]:
        """What `stack_infos` makes of the infos; with `copy` nothing of it lies in the memory of the table."""
        found = {}
        for place, (name, kind, column) in enumerate(zip(*self, strict=True)):
            if kind in _OF_NUMPY:
                try:
                    found[name] = backend.from_numpy(column, device=device, copy=copy)
                    continue
                except (OverflowError, TypeError):  # a dtype that the backend does not hold
                    pass
            found[name] = data_stack(self._values(place), backend, device)
        return found


class SharedInfos:
    """Where tables of one form lie in shared memory, of all environments and of those of one worker.

    Their `name` is for commands; it comes of the number of the request whose answer had the first of them.
    """

    @classmethod
    def after(cls, number: int, like: InfoTable, area: Sequence[np.ndarray], envs: range) -> SharedInfos | None:
        """Those of the form of a table that was an answer; None if it has too many columns."""
        return cls(number, like, area, envs) if len(like.names) <= COLUMNS else None

    def __init__(self, number: int, like: InfoTable, area: Sequence[np.ndarray], envs: range) -> None:
        """`area` has a row for each column, `COLUMNS` of them, with 8 bytes for each environment."""
        self.name, self.form = number.to_bytes(8, "little"), (like.names, like.kinds)
        self._whole = [
            row.view(column.dtype)[:: row.itemsize // column.itemsize]
            for row, column in zip(area, like.columns, strict=False)  # there is room for more
        ]
        self._own = [column[envs.start : envs.stop] for column in self._whole]
        self._pack = [_packing(column) for column in self._own]
        self._types = [kind for kind in like.kinds for _ in envs]  # of all values, column by column

    def write(self, infos: Infos) -> bool:
        """Write the infos of the worker's environments; False if they are of another form."""
        names, _ = self.form
        count = len(infos)
        if set(map(len, infos)) != {len(names)}:
            return False
        try:
            values = [info[name] for name in names for info in infos]
        except KeyError:
            return False
        if list(map(type, values)) != self._types:
            return False
        for place, (column, pack) in enumerate(zip(self._own, self._pack, strict=True)):
            own = values[place * count : (place + 1) * count]
            if pack is None:
                column[:] = own
            else:
                pack(column, 0, *own)
        return True

    def read(self) -> InfoTable:
        """What was written last of the worker's environments, in memory of its own."""
        return InfoTable(*self.form, [column.copy() for column in self._own])

    def stacked(self, backend: ComputeBackend, device: Any) -> dict[Any, Any]:
        """What `stack_infos` makes of what was written last, of all environments, if it is all of this form."""
        return InfoTable(*self.form, self._whole).stacked(backend, device, copy=True)


AnyInfos = Infos | InfoTable | SharedInfos


def _packing(column: np.ndarray) -> Callable[..., None] | None:
    """`struct.Struct.pack_into` for a column whose numbers lie side by side: a third of the time of an assignment."""
    is_dense = column.itemsize == 8 and column.dtype.kind in "fiu"
    return struct.Struct(f"={len(column)}{_LETTERS[column.dtype.kind]}").pack_into if is_dense else None


_LETTERS = {"f": "d", "i": "q", "u": "Q"}
