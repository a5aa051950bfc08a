"""Infos as rows of numbers.

Most environments return the same keys at every step, each with a number. These keys and the types of the numbers are
the form of the infos. Infos of a known form are written to memory, with a row for each environment, and stacking a
batch copies a few columns. Workers send all other infos as dicts through their pipe.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends.base import ComputeBackend
from ...backends.numpy import NumpyComputeBackend
from ..stacking import data_stack

Infos = list[dict[str, Any]]

#: Infos with more names stay dicts.
COLUMNS = 32
#: The memory for the infos of one environment: eight bytes for each number, whatever its type.
INFO_ROW = np.dtype((np.uint64, (COLUMNS,)))
# The types that an array holds without loss, with their letter in `struct`. A Python int may be too large.
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
_LETTERS = {**_OF_NUMPY, **_OF_PYTHON}


class InfoForm(NamedTuple):
    """The keys of infos, in order, and the type of the number of each key, of NumPy or Python."""

    names: list[Any]
    kinds: list[type]

    @classmethod
    def of(cls, infos: Infos) -> InfoForm | None:
        """The form that all infos have in common; None if they differ or do not fit into a row."""
        names = list(infos[0]) if infos else []
        kinds = [type(value) for value in infos[0].values()] if infos else []
        if not 0 < len(names) <= COLUMNS or not all(kind in _LETTERS for kind in kinds):
            return None
        is_alike = all(list(info) == names and [type(v) for v in info.values()] == kinds for info in infos)
        return cls(names, kinds) if is_alike else None


class InfoRows:
    """Infos of one form in memory.

    Parameters
    ----------
    form
        The form of the infos.
    area
        An `INFO_ROW` for each environment of the vector environment.
    env_range
        The environments of one process, whose infos this object writes and reads.
    """

    def __init__(self, form: InfoForm, area: np.ndarray, env_range: range) -> None:
        self._arguments = form, area, env_range
        self.form = form
        self._columns: list[np.ndarray] = [
            np.ndarray(len(area), np.dtype(kind), area, index * area.itemsize, area.strides[:1])
            for index, kind in enumerate(form.kinds)
        ]
        self._slots = slice(env_range.start, env_range.stop)
        self._is_of_numpy = all(kind in _OF_NUMPY for kind in form.kinds)
        self._types = form.kinds * len(env_range)
        self._lengths, self._dicts = {len(form.names)}, [dict] * len(env_range)
        # one `pack_into` for all values takes a third of the time of assigning them
        letters = [_LETTERS[kind] for kind in form.kinds]
        row = "".join(f"{letter}{area.itemsize - struct.calcsize('=' + letter)}x" for letter in letters)
        padding = f"{area.strides[0] - struct.calcsize('=' + row)}x"
        packing = struct.Struct("=" + padding.join([row] * len(env_range)))
        self._pack = functools.partial(packing.pack_into, area.data, env_range.start * area.strides[0])

    def __reduce__(self) -> tuple[type[InfoRows], tuple[Any, ...]]:
        return InfoRows, self._arguments

    def write(self, infos: Infos) -> bool:
        """Write the infos of this process's environments; returns False if they have another form."""
        names = self.form.names
        if set(map(len, infos)) != self._lengths or list(map(type, infos)) != self._dicts:
            return False  # a subclass of dict, such as defaultdict, may invent missing values
        try:
            values = [info[name] for info in infos for name in names]
        except KeyError:
            return False
        if list(map(type, values)) != self._types:
            return False
        self._pack(*values)
        return True

    def read(self) -> Infos:
        """The infos of this process's environments that were written last."""
        columns = [self._values(index, column[self._slots]) for index, column in enumerate(self._columns)]
        return [dict(zip(self.form.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def stacked(self, backend: ComputeBackend, device: Any) -> dict[Any, Any]:
        """The infos of all environments as `stack_infos` returns them; all must have this form."""
        if self._is_of_numpy and backend is NumpyComputeBackend:
            return {name: column.copy() for name, column in zip(self.form.names, self._columns, strict=True)}
        stacked = {}
        for index, (name, kind) in enumerate(zip(*self.form, strict=True)):
            column = self._columns[index]
            if kind in _OF_NUMPY:
                try:
                    stacked[name] = backend.from_numpy(column, device=device, copy=True)
                    continue
                except (OverflowError, TypeError):  # the backend has no such dtype
                    pass
            stacked[name] = data_stack(self._values(index, column), backend, device)
        return stacked

    def _values(self, index: int, column: np.ndarray) -> Sequence[Any]:
        return column.tolist() if self.form.kinds[index] in _OF_PYTHON else list(column)


def common_rows(infos: Sequence[Any]) -> InfoRows | None:
    """The first entry, if all entries are `InfoRows` of the same form; else None."""
    first = infos[0]
    is_common = all(isinstance(rows, InfoRows) and rows.form == first.form for rows in infos)
    return first if is_common else None


AnyInfos = Infos | InfoRows
