"""Infos as rows of numbers.

Most environments say the same things at every step, all of them numbers. Such infos have a form: the names, and the
kind of number under each. Infos of a known form are written to memory with a row for each environment, so that a batch
of them is a few columns to copy. All other infos stay dicts, which workers send through their pipe.
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
#: The numbers of one environment, whatever their kind.
INFO_ROW = np.dtype((np.uint64, (COLUMNS,)))
# The kinds that an array holds without loss, with their letter in `struct`. Python's integers may be too large.
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
    """The names of infos, in order, and the kind of number under each: NumPy's or Python's own."""

    names: list[Any]
    kinds: list[type]

    @classmethod
    def of(cls, infos: Infos) -> InfoForm | None:
        """The form that all of these have; None if there is none, or if a row does not hold it."""
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
        What all of them look like.
    area
        An `INFO_ROW` for each environment of the vector environment.
    own
        The environments whose infos are written and read here: those of one process.
    """

    def __init__(self, form: InfoForm, area: np.ndarray, own: range) -> None:
        self._made_of = form, area, own
        self.form = form
        self._columns: list[np.ndarray] = [
            np.ndarray(len(area), np.dtype(kind), area, index * area.itemsize, area.strides[:1])
            for index, kind in enumerate(form.kinds)
        ]
        self._own = slice(own.start, own.stop)
        self._is_of_numpy = all(kind in _OF_NUMPY for kind in form.kinds)
        self._types = form.kinds * len(own)
        self._lengths, self._dicts = {len(form.names)}, [dict] * len(own)
        # all values of a process at once, in a third of the time that it takes to assign them
        letters = [_LETTERS[kind] for kind in form.kinds]
        row = "".join(f"{letter}{area.itemsize - struct.calcsize('=' + letter)}x" for letter in letters)
        rest = f"{area.strides[0] - struct.calcsize('=' + row)}x"
        packing = struct.Struct("=" + rest.join([row] * len(own)))
        self._pack = functools.partial(packing.pack_into, area.data, own.start * area.strides[0])

    def __reduce__(self) -> tuple[type[InfoRows], tuple[Any, ...]]:
        return InfoRows, self._made_of

    def write(self, infos: Infos) -> bool:
        """Write the infos of the own environments; False if they are of another form."""
        names = self.form.names
        if set(map(len, infos)) != self._lengths or list(map(type, infos)) != self._dicts:
            return False  # or a subclass of dict, which may make up the values that it lacks
        try:
            values = [info[name] for info in infos for name in names]
        except KeyError:
            return False
        if list(map(type, values)) != self._types:
            return False
        self._pack(*values)
        return True

    def read(self) -> Infos:
        """The infos of the own environments that were written last."""
        columns = [self._values(index, column[self._own]) for index, column in enumerate(self._columns)]
        return [dict(zip(self.form.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def stacked(self, backend: ComputeBackend, device: Any) -> dict[Any, Any]:
        """What `stack_infos` makes of what was written last of all environments, if all have this form."""
        if self._is_of_numpy and backend is NumpyComputeBackend:
            return {name: column.copy() for name, column in zip(self.form.names, self._columns, strict=True)}
        stacked = {}
        for index, (name, kind) in enumerate(zip(*self.form, strict=True)):
            column = self._columns[index]
            if kind in _OF_NUMPY:
                try:
                    stacked[name] = backend.from_numpy(column, device=device, copy=True)
                    continue
                except (OverflowError, TypeError):  # a dtype that the backend does not hold
                    pass
            stacked[name] = data_stack(self._values(index, column), backend, device)
        return stacked

    def _values(self, index: int, column: np.ndarray) -> Sequence[Any]:
        return column.tolist() if self.form.kinds[index] in _OF_PYTHON else list(column)


def common_rows(infos: Sequence[Any]) -> InfoRows | None:
    """The first of them, if all of them are infos in rows and of one form."""
    first = infos[0]
    is_one = all(isinstance(one, InfoRows) and one.form == first.form for one in infos)
    return first if is_one else None


AnyInfos = Infos | InfoRows
