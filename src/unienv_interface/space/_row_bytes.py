"""One value as the bytes of its row, in one go.

To assign seven small columns one by one takes longer than to put the seven values into one piece of memory and to copy
that: it is what an append comes to. Only for layouts whose values all lie in the row as they are, as numbers and arrays
of them; and for values that need no conversion, which are nearly all that come.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

# By kind and size, as `struct` calls them; there is none for complex numbers.
_CODES = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_PYTHON: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}


class RowPacker:
    """Makes rows of values given by their leaves.

    `dtypes` and `shapes` are those of the leaves in canonical order, `offsets` where in the row each lies.
    """

    def __init__(
        self, dtypes: Sequence[np.dtype], shapes: Sequence[tuple[int, ...]], offsets: Sequence[int], itemsize: int
    ) -> None:
        order = sorted(range(len(dtypes)), key=offsets.__getitem__)
        code, end = "<", 0
        for leaf in order:
            nbytes = dtypes[leaf].itemsize * int(np.prod(shapes[leaf]))
            own = f"{nbytes}s" if shapes[leaf] else _CODES[dtypes[leaf].str[1:]]
            code += "x" * (offsets[leaf] - end) + own
            end = offsets[leaf] + nbytes
        self._pack = struct.Struct(code + "x" * (itemsize - end)).pack
        # of one place, itemgetter would give the bare value
        self._in_order: Any = operator.itemgetter(*order) if len(order) > 1 else tuple
        self._arrays = [(leaf, dtypes[leaf], shape) for leaf, shape in enumerate(shapes) if shape]
        self._types = [
            (np.ndarray,) if shape else (_PYTHON[dtype.kind], dtype.type)
            for dtype, shape in zip(dtypes, shapes, strict=True)
        ]
        # numbers of Python that the row has fewer bits for: (leaf, the largest that fits)
        self._limited = [
            (leaf, float(np.finfo(dtype).max))
            for leaf, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
            if not shape and dtype.kind == "f" and dtype.itemsize < 8
        ]
        self._accepted: set[tuple[type, ...]] = set()  # types of leaves that may be packed

    @staticmethod
    def can_pack(dtypes: Sequence[np.dtype | None]) -> bool:
        """Whether there is a packer for plain leaves of these dtypes."""
        return bool(dtypes) and all(dtype is not None and dtype.str[1:] in _CODES for dtype in dtypes)

    def pack(self, leaves: Sequence[Any]) -> bytes | None:
        """The row of a value; None if a leaf is not an array or number just as the row wants it."""
        types = tuple(map(type, leaves))
        if types not in self._accepted and not self._accepts(types):
            return None
        parts = list(leaves)
        for place, dtype, shape in self._arrays:
            leaf = parts[place]
            if leaf.dtype is not dtype or leaf.shape != shape:
                return None
            parts[place] = leaf.tobytes()
        for place, largest in self._limited:
            if not -largest <= parts[place] <= largest and math.isfinite(parts[place]):
                return None  # it would be rounded to one that does
        try:
            return self._pack(*self._in_order(parts))
        except (struct.error, OverflowError):  # a number that is too large
            return None

    def _accepts(self, types: tuple[type, ...]) -> bool:
        """Whether leaves of these types may be packed, if arrays are as they should be."""
        accepts = all(found in wanted for found, wanted in zip(types, self._types, strict=True))
        if accepts:
            self._accepted.add(types)
        return accepts


class RowScratch:
    """Takes a batch by its leaves and gives the bytes of each row. It has memory for one batch of `count`."""

    def __init__(self, dtype: np.dtype, names: Sequence[str], count: int) -> None:
        """`dtype` is that of the rows, `names` are those of the leaves in it, in canonical order."""
        records, size = np.zeros(count, dtype), dtype.itemsize
        self._columns = [records[name] for name in names]
        raw = memoryview(records.view(np.uint8))  # type: ignore[arg-type]
        self._rows = [raw[start : start + size] for start in range(0, count * size, size)]

    def fill(self, leaves: Sequence[np.ndarray]) -> list[memoryview]:
        """The rows of a batch whose leaves have the right dtypes and shapes; they are good until the next one."""
        for column, leaf in zip(self._columns, leaves, strict=True):
            column[:] = leaf
        return self._rows
