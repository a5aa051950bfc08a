"""Heaps of stored rows: bytes of values without a fixed size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..base.files import reserve
from ..base.mapped import MappedFile


class PrivateHeap:
    """A heap in this process's memory that gives back what is no longer referred to.

    What it calls an offset is a number of its own for each value; 0 is none, as in a row that was never written.
    """

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}
        self._last = 0

    def write(self, data: bytes) -> int:
        self._last += 1
        self._values[self._last] = bytes(data)
        return self._last

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(self._values[offset])

    def free(self, references: np.ndarray) -> None:
        """Forget the values of these references."""
        for offset in references["offset"].ravel().tolist():
            self._values.pop(offset, None)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._values.values()))


class FileHeap:
    """An append-only file, with a name or without. Its end is the end of the file.

    Bytes are written before the row that refers to them, so a row never points past what is there. What a row that
    was overwritten referred to stays in the file.
    """

    def __init__(self, file: MappedFile) -> None:
        self.file = file

    @classmethod
    def create(cls, path: Path | None) -> FileHeap:
        return cls(MappedFile.create(path, np.uint8))

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> FileHeap:
        return cls(MappedFile.open(path, np.uint8, writable=writable))

    @property
    def nbytes(self) -> int:
        return self.file.nbytes

    def write(self, data: bytes) -> int:
        start = self.file.nbytes
        reserve(self.file.fd, start, start + len(data), self.file.path)
        self.file.write_bytes(data, start)
        return start

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(self.file.read_bytes(length, offset))


def copy_references(references: np.ndarray, source: Any, target: Any) -> np.ndarray:
    """The references to copies, in another heap, of what these refer to."""
    copied = np.zeros_like(references)
    for place in np.ndindex(references.shape):
        offset, length = (int(number) for number in references[place])
        if length:
            copied[place] = (target.write(bytes(source.read(offset, length))), length)
    return copied
