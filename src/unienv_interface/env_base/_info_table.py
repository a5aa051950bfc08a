"""Infos on their way from environments to who has stepped them.

Most environments say the same things at every step, all of them numbers. Such infos are a table with a column for each
thing. Those that come after the first one, while they are of the same form, are written to memory that has a row for
each environment, so that a column is all there is to be copied.

A worker sends the first table that it has, which takes a tenth of the time that it takes to pickle every number by
itself, and writes the others to memory that it shares with its parent. Everything else is pickled.

Which form is meant is the parent's to say: it names the request whose answer had the table. So it does no harm if an
answer was thrown away because it came too late.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.base import ComputeBackend
from ..backends.numpy import NumpyComputeBackend
from ._stacking import data_stack

Infos = list[dict[str, Any]]

#: Tables of more columns are made anew, and pickled, every time.
COLUMNS = 32
#: The numbers of one environment, whatever their kind.
INFO_ROW = np.dtype((np.uint64, (COLUMNS,)))
# What an array holds without loss and gives back as it was, with its letter in `struct`; of Python's own integers not
# all are.
_OF_NUMPY: dict[type, str] = {
    np.bool_: "?",
    np.float16: "e",
    np.float32: "f",
    np.float64: "d",
    np.int8: "b",
    np.int16: "h",
    np.int32: "i",
    np.int64: "q",
    np.uint8: "B",
    np.uint16: "H",
    np.uint32: "I",
    np.uint64: "Q",
}
_OF_PYTHON: dict[type, str] = {bool: "?", float: "d"}


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


class InfoRows:
    """Where tables of one form lie in memory, of all environments and of those that one process writes.

    Their `name` is for commands; it comes of the number of the request whose answer had the first of them.
    """

    @classmethod
    def after(cls, number: int, like: InfoTable, area: np.ndarray, envs: range) -> InfoRows | None:
        """Those of the form of a table that was an answer; None if it has too many columns."""
        return cls(number, like, area, envs) if len(like.names) <= COLUMNS else None

    def __init__(self, number: int, like: InfoTable, area: np.ndarray, envs: range) -> None:
        """`area` has an `INFO_ROW` for each of all environments, `envs` are the process's own."""
        self._made_of = number, like, area, envs
        self.name, self.form = number.to_bytes(8, "little"), (like.names, like.kinds)
        self._whole: list[np.ndarray] = [
            np.ndarray(len(area), column.dtype, area, place * area.itemsize, area.strides[:1])
            for place, column in enumerate(like.columns)
        ]
        self._own = [column[envs.start : envs.stop] for column in self._whole]
        self._is_of_numpy = all(kind in _OF_NUMPY for kind in like.kinds)
        self._types = like.kinds * len(envs)
        self._lengths, self._dicts = {len(like.names)}, [dict] * len(envs)
        # all values of a worker at once, a third of the time that it takes to assign them
        letters = [(_OF_NUMPY.get(kind) or _OF_PYTHON[kind]) for kind in like.kinds]
        row = "".join(f"{letter}{area.itemsize - struct.calcsize('=' + letter)}x" for letter in letters)
        rest = f"{area.strides[0] - struct.calcsize('=' + row)}x"
        packing = struct.Struct("=" + rest.join([row] * len(envs)))
        self._pack = functools.partial(packing.pack_into, area.data, envs.start * area.strides[0])

    def __reduce__(self) -> tuple[type[InfoRows], tuple[Any, ...]]:
        return InfoRows, self._made_of

    def write(self, infos: Infos) -> bool:
        """Write the infos of the own environments; False if they are of another form."""
        names, _ = self.form
        if set(map(len, infos)) != self._lengths or list(map(type, infos)) != self._dicts:
            return False  # or dicts of another kind, which may make up what they lack
        try:
            values = [info[name] for info in infos for name in names]
        except KeyError:
            return False
        if list(map(type, values)) != self._types:
            return False
        self._pack(*values)
        return True

    def read(self) -> InfoTable:
        """What was written last of the own environments, in memory of its own."""
        return InfoTable(*self.form, [column.copy() for column in self._own])

    def stacked(self, backend: ComputeBackend, device: Any) -> dict[Any, Any]:
        """What `stack_infos` makes of what was written last, of all environments, if it is all of this form."""
        if self._is_of_numpy and backend is NumpyComputeBackend:
            return {name: column.copy() for name, column in zip(self.form[0], self._whole, strict=True)}
        return InfoTable(*self.form, self._whole).stacked(backend, device, copy=True)


AnyInfos = Infos | InfoTable | InfoRows
