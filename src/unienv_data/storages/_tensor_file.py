"""Tensors in one file, or in memory that processes share: the tensor of each leaf, one after the other."""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from unienv_interface.backends.pytorch import PyTorchComputeBackend, torch
from unienv_interface.space.row_layout import RowLayout, RowLeaf

from ..base.files import check_disk, check_memory, open_regular, reserve
from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError, UnsupportedFormatError
from ._column_storage import element_dtype

FORMAT_VERSION = 1
_PAGE = 4096
_WRITE_BYTES = 2**24
# Memory that is only written to by accident need not be set aside; Python knows the flag's name in later versions.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0))


class TensorFile:
    """The tensors of `capacity` samples, mapped from a file with a name or without.

    What is written to the tensors of a file that was opened to be read stays in this process.
    """

    def __init__(self, layout: RowLayout, capacity: int, file: MappedFile, present: int | None = None) -> None:
        """The tensors have only the first `present` samples if a number is given."""
        self.layout, self.capacity, self._file, self._present = layout, capacity, file, present
        self.path = file.path
        starts = _offsets(layout.leaves, capacity)
        memory = _map(file, starts[-1] if present is None else min(starts[-1], file.nbytes))
        self.tensors = [
            _tensor(memory, start, leaf, capacity if present is None else present)
            for leaf, start in zip(layout.leaves, starts, strict=False)
        ]

    @classmethod
    def create(cls, layout: RowLayout, capacity: int, path: Path | None) -> TensorFile:
        """A new file with room for all samples, or memory to share if there is no path."""
        total = _offsets(layout.leaves, capacity)[-1]
        if path is None:
            check_memory(total, f"{capacity} samples in shared memory")
        else:
            check_disk(path, total)
            path.parent.mkdir(parents=True, exist_ok=True)
        file = MappedFile.create(path, np.uint8, total)
        try:
            reserve(file.fd, 0, total, path)
        except BaseException:
            file.close()
            if path is not None:
                path.unlink()
            raise
        return cls(layout, capacity, file)

    @classmethod
    def open(cls, layout: RowLayout, capacity: int | None, path: Path, *, writable: bool) -> TensorFile:
        """A file that is there; a StorageCorruptedError unless it has just the room of the samples."""
        file = MappedFile.open(path, np.uint8, writable=writable)
        try:
            if capacity is None:
                capacity = _capacity_of(file, layout.leaves)
            file.check_length(_offsets(layout.leaves, capacity)[-1], exactly=True)
            if writable:
                reserve(file.fd, 0, file.nbytes, path)  # a copy of a file may have got holes
            return cls(layout, capacity, file)
        except BaseException:
            file.close()
            raise

    @classmethod
    def open_rest(cls, layout: RowLayout, capacity: int, path: Path) -> TensorFile:
        """A file that may have been cut, to read: the samples of which every leaf is still there."""
        file = MappedFile.open(path, np.uint8, writable=False)
        present = capacity
        for leaf, start in zip(layout.leaves, _offsets(layout.leaves, capacity), strict=False):
            present = min(present, max(0, file.nbytes - start) // max(1, leaf.codec.dtype.itemsize))
        if not present:
            file.close()
            raise StorageCorruptedError(f"{path}: it was cut, and no sample is whole")
        return cls(layout, capacity, file, present)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorFile, (self.layout, self.capacity, self._file, self._present)

    def sync(self) -> None:
        """Make what was written durable; nothing happens if the file is closed."""
        if self._file.fd >= 0:
            self._file.sync()

    def close(self) -> None:
        """Close the descriptor. The tensors stay valid."""
        self._file.close()


def _offsets(leaves: Sequence[RowLeaf], capacity: int) -> list[int]:
    """Where each leaf begins, at whole pages, and at last where the file ends. A leaf by itself is the whole file."""
    ends = [0]
    for leaf in leaves:
        ends[-1] = -(-ends[-1] // _PAGE) * _PAGE
        ends.append(ends[-1] + capacity * leaf.codec.dtype.itemsize)
    return ends


def _capacity_of(file: MappedFile, leaves: Sequence[RowLeaf]) -> int:
    """How many samples of a single leaf a file holds."""
    nbytes = leaves[0].codec.dtype.itemsize
    if len(leaves) != 1 or not nbytes:
        raise ValueError(f"{file}: give the capacity, which the file of several tensors does not tell")
    capacity, rest = divmod(file.nbytes, nbytes)
    if rest or not capacity:
        raise StorageCorruptedError(f"{file}: {file.nbytes} bytes, samples have {nbytes} each")
    return capacity


def _map(file: MappedFile, nbytes: int) -> np.ndarray:
    if file.writable or not nbytes:
        return file.map(nbytes)
    # PyTorch has no tensors that are only read; a private mapping sees what others write as a shared one does
    flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    return np.frombuffer(mmap.mmap(file.fd, nbytes, flags=flags, prot=access), np.uint8)


def _tensor(memory: np.ndarray, start: int, leaf: RowLeaf, capacity: int) -> torch.Tensor:
    raw = memory[start : start + capacity * leaf.codec.dtype.itemsize].view(element_dtype(leaf))
    tensor = PyTorchComputeBackend.from_raw(raw, leaf.space.dtype_name)  # type: ignore[attr-defined]
    return tensor.reshape(capacity, *leaf.codec.shape)


def write_tensors(file: BinaryIO, tensors: Sequence[torch.Tensor], leaves: Sequence[RowLeaf], capacity: int) -> None:
    """Write tensors as such a file has them."""
    starts = _offsets(leaves, capacity)
    for tensor, leaf, start in zip(tensors, leaves, starts, strict=False):
        file.seek(start)
        rows = max(1, _WRITE_BYTES // max(1, leaf.codec.dtype.itemsize))
        for first in range(0, capacity, rows):
            file.write(PyTorchComputeBackend.to_raw(tensor[first : first + rows].contiguous()).tobytes())
    file.truncate(starts[-1])


# -- what torch.save writes --------------------------------------------------------------------------------


def save_pickled(file: BinaryIO, tensors: Sequence[torch.Tensor], leaves: Sequence[RowLeaf]) -> None:
    """Write tensors by the names of their leaves."""
    by_name = {leaf.name: tensor for leaf, tensor in zip(leaves, tensors, strict=True)}
    torch.save({"format_version": FORMAT_VERSION, "tensors": by_name}, file)


def load_pickled(path: Path, layout: RowLayout, capacity: int | None) -> list[torch.Tensor]:
    """The tensors that `torch.save` has written; nothing but tensors and plain values is loaded."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise RuntimeError(f"{path}: torch {torch.__version__} may run code from such a file, 2.6 or later does not")
    try:
        with os.fdopen(open_regular(path, writable=False), "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no archive")
            file.seek(0)
            content = torch.load(file, map_location=layout.space.device or "cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise StorageCorruptedError(f"{path}: not tensors that torch.save wrote, {error}") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise StorageCorruptedError(f"{path}: format version {version!r:.100}, wanted a number")
    if version > FORMAT_VERSION:
        raise UnsupportedFormatError(f"{path}: format version {version}, this release reads up to {FORMAT_VERSION}")
    descriptions = content.get("tensors")
    names = [leaf.name for leaf in layout.leaves]
    if not isinstance(descriptions, dict) or set(descriptions) != set(names):
        raise StorageCorruptedError(f"{path}: wanted tensors for {names}")
    tensors = [descriptions[name] for name in names]
    count = capacity if capacity is not None else len(tensors[0])
    for leaf, tensor in zip(layout.leaves, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != leaf.space.dtype:
            raise StorageCorruptedError(f"{path}: {leaf.name!r} is not a tensor of {leaf.space}")
        if tuple(tensor.shape) != (count, *leaf.codec.shape):
            raise StorageCorruptedError(f"{path}: {leaf.name!r} of shape {tuple(tensor.shape)}, wanted {count} samples")
    return tensors
