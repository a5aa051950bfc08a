"""Samples in NumPy's own files, one `N.npz` per sample."""

from __future__ import annotations

import errno
import io
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLeaf

from ..base.files import (
    check_disk,
    format_version,
    json_field,
    new_folder,
    open_regular,
    read_json,
    remove_temporaries,
    replacing,
    sync_folder,
    write_json,
)
from ..base.storage import StorageCorruptedError
from ._column_storage import ColumnStorage, check_capacity, element_dtype, fixed_layout, leaf_names, new_column
from ._options import checks_options
from .registry import current_name, register_storage

__all__ = ["NPZStorage"]

METADATA = "npz_metadata.json"
FORMAT_VERSION = 1
_SAMPLE = re.compile(r"([0-9]+)\.npz\Z")
# What stands before the values in a member takes less than this.
_MOST_HEADER_BYTES = 2**14
# What a member takes besides its values and its name, which stands there twice; and what a file is a multiple of.
_MEMBER_BYTES, _BLOCK_BYTES = 2**9, 2**12
PathLike = str | os.PathLike[str]


@register_storage("npz")
class NPZStorage(ColumnStorage[Any, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A folder with an `N.npz` per sample, for few large samples that other programs read with `numpy.load`.

    A sample of a dictionary has an array per leaf ("obs/rgb"), any other the array `data`. A file is replaced as a
    whole, so what was written survives a kill, and any number of processes read and write at the same time. Reading a
    slot whose file is missing, never written or lost, is a StorageCorruptedError. Files are checked as they are read,
    against their checksums, the space, and the number of the slot, which each has as its comment.

    A sample costs a file, some 100 us to read or write: for many small ones use PackedStorage.

    Examples
    --------
    >>> buffer = ReplayBuffer.create("npz", transition_space(env, episode_id=True), capacity=100, cache_path="npz")
    >>> buffer.append(transition)
    >>> buffer.close()
    """

    checks_when_read = True
    has_raw_rows = True
    survives_kill = True
    is_multiprocessing_safe = True

    def __init__(
        self,
        single_instance_space: Space,
        compressed: bool,
        cache_filename: PathLike,
        mutable: bool = True,
        capacity: int | None = None,
        length: int = 0,
    ) -> None:
        """The samples in a folder that exists; `create` makes a new one.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        compressed
            Whether files that are written are compressed.
        cache_filename
            The folder.
        mutable
            Whether samples can be written.
        capacity
            How many slots there are; None for a storage that grows.
        length
            How many slots are in use, without a capacity.
        """
        folder, length = Path(cache_filename), length if capacity is None else capacity
        super().__init__(single_instance_space, capacity=capacity, length=length, path=folder, mutable=mutable)
        self.compressed = compressed
        self._folder = folder
        self._members = [f"{name}.npy" for name in leaf_names(self.layout)]
        self._unsynced: set[int] = set()

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        compressed: bool = True,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
    ) -> NPZStorage:
        """Create a new folder.

        Parameters
        ----------
        single_instance_space, capacity, multiprocessing
            As for every storage.
        compressed
            Compress the files.
        cache_path
            The folder, new or empty.

        Returns
        -------
        NPZStorage
            The storage.

        Raises
        ------
        FileExistsError
            The folder is not empty.
        ValueError
            `cache_path` is missing.
        """
        check_capacity(capacity)
        if cache_path is None:
            raise ValueError("NPZStorage keeps its samples in files: give the folder as cache_path")
        layout, folder = fixed_layout(single_instance_space, cls.__name__), Path(cache_path)
        if not compressed:
            check_disk(folder, (capacity or 0) * layout.nbytes)
        with new_folder(folder):
            storage = cls(single_instance_space, compressed, folder, capacity=capacity)
            storage._write_metadata()
        return storage

    def _create_like(self, path: PathLike) -> NPZStorage:
        return self.create(
            self.single_instance_space, compressed=self.compressed, capacity=self.capacity, cache_path=path
        )

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> NPZStorage:
        """Load the storage in a folder.

        A growing storage has as many slots as there are files, or were when it was flushed.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only, multiprocessing
            As for every storage.
        **kwargs
            Arguments of other storages; ignored.

        Returns
        -------
        NPZStorage
            The storage.

        Raises
        ------
        StorageCorruptedError
            The folder holds another storage or capacity.
        """
        folder, file = Path(path), Path(path) / METADATA
        content = read_json(file, checksum=False)
        format_version(content, file, FORMAT_VERSION, default=0)
        kind = json_field(content, "storage_type", str, file, default="npz")
        if kind != cls.__name__ and current_name(kind) != "npz":  # the reference's has no module, or one
            raise StorageCorruptedError(f"{file}: of type {kind!r}, wanted 'npz'")
        compressed = json_field(content, "compressed", bool, file)
        if capacity != json_field(content, "capacity", int, file, default=None):
            raise StorageCorruptedError(f"{file}: capacity {content.get('capacity')}, wanted {capacity}")
        length = json_field(content, "length", int, file, default=0)
        if capacity is None:
            length = max([length, *(slot + 1 for slot in _slots_in(folder))])
        if not read_only and not multiprocessing:
            remove_temporaries(folder)
        return cls(single_instance_space, compressed, folder, not read_only, capacity, length)

    def _write_metadata(self) -> None:
        content = {
            "storage_type": self.registered_name,
            "format_version": FORMAT_VERSION,
            "compressed": self.compressed,
            "capacity": self.capacity,
            "length": self._length,
        }
        write_json(self._folder / METADATA, content)

    # -- samples ---------------------------------------------------------------------------------------------

    def _path(self, slot: int) -> Path:
        return self._folder / f"{slot}.npz"

    def _read(self, slots: np.ndarray, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        leaves = self.layout.leaves
        columns = [new_column(leaves[leaf_index], (len(slots),)) for leaf_index in leaf_indices]
        for row, slot in enumerate(slots.tolist()):
            for column, value in zip(columns, self._read_sample(slot, leaf_indices), strict=True):
                column[row] = value
        return columns

    def _read_sample(self, slot: int, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        path = self._path(slot)
        fd = open_regular(path, writable=False)
        try:
            with os.fdopen(fd, "rb") as file, zipfile.ZipFile(file) as archive:
                if archive.comment not in (b"", _comment(slot)):  # the reference writes none
                    raise ValueError(f"it was written as another file, {archive.comment!r}")
                if sorted(archive.namelist()) != sorted(self._members):
                    raise ValueError(f"it has {archive.namelist()}, wanted {self._members}")
                return [
                    _member(archive, self._members[leaf_index], self.layout.leaves[leaf_index])
                    for leaf_index in leaf_indices
                ]
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise StorageCorruptedError(f"{path}: {error}") from error
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise StorageCorruptedError(f"{path}: it refers to a place outside itself") from error

    def _write(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        for row, slot in enumerate(slots.tolist()):
            self._unsynced.add(slot)
            with replacing(self._path(slot), durable=False) as file:
                file.write(self._archive(slot, [column[row, ...] for column in columns]))

    def _archive(self, slot: int, values: list[np.ndarray]) -> bytes:
        buffer = io.BytesIO()
        method = zipfile.ZIP_DEFLATED if self.compressed else zipfile.ZIP_STORED
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.comment = _comment(slot)
            for name, value in zip(self._members, values, strict=True):
                info = zipfile.ZipInfo(name)
                info.compress_type = method
                with archive.open(info, "w", force_zip64=value.nbytes > 2**30) as member:
                    np.lib.format.write_array(member, value, allow_pickle=False)
        return buffer.getvalue()

    def reserve(self, start: int, stop: int) -> None:
        archive = self.row_nbytes + sum(_MEMBER_BYTES + 2 * len(name) for name in self._members)
        check_disk(self._folder, (stop - start) * -(-archive // _BLOCK_BYTES) * _BLOCK_BYTES)
        super().reserve(start, stop)

    def _resize(self, length: int) -> None:
        for slot in range(length, self._length):
            self._path(slot).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all samples."""
        self._check_mutable()
        for slot in _slots_in(self._folder):
            self._path(slot).unlink(missing_ok=True)
        self._unsynced.clear()
        if self.capacity is None:
            self._length = 0

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        if self.capacity is None:
            self._length = length
        if length > self._length:
            raise StorageCorruptedError(f"{self._folder}: {self._length} slots, the buffer has {length}")

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.is_mutable:
            return
        unsynced, self._unsynced = self._unsynced, set()
        for slot in unsynced:
            if self._path(slot).exists():  # it may have been removed since
                fd = os.open(self._path(slot), os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        sync_folder(self._folder)
        if self.capacity is None:
            self._write_metadata()

    def verify(self) -> list[str]:
        findings = []
        for slot in sorted(_slots_in(self._folder)):
            try:
                if slot < self._length:
                    self._read_sample(slot, self._leaf_indices)
            except (ValueError, OSError) as error:
                findings.append(str(error))
        return findings

    @property
    def nbytes(self) -> int | None:
        return sum(self._path(slot).stat().st_size for slot in _slots_in(self._folder))

    def dumps(self, path: PathLike) -> None:
        if self._is_own(path):
            self.flush()
            return
        written = np.array(sorted(slot for slot in _slots_in(self._folder) if slot < self._length), np.int64)
        runs = np.split(written, np.flatnonzero(np.diff(written) > 1) + 1)
        ranges = [(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
        self.snapshot(path, [*ranges, (self._length, self._length)])

    def close(self) -> None:
        if self.is_mutable and self._folder.exists():
            self.flush()


def _comment(slot: int) -> bytes:
    """What tells the file of a slot from those of the others."""
    return f"slot {slot}".encode()


def _slots_in(folder: Path) -> list[int]:
    """The slots that have a file."""
    return [int(match[1]) for match in map(_SAMPLE.match, os.listdir(folder)) if match is not None]


def _member(archive: zipfile.ZipFile, name: str, leaf: RowLeaf) -> np.ndarray:
    """An array of an archive, if it is what the leaf wants; its size is known before anything is unpacked."""
    info, dtype, shape = archive.getinfo(name), element_dtype(leaf), leaf.codec.shape
    wanted = leaf.codec.dtype.itemsize
    if not wanted <= info.file_size <= wanted + _MOST_HEADER_BYTES:
        raise ValueError(f"{name} has {info.file_size} bytes, the space wants {wanted} and a header")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by method {info.compress_type}, which is not known")
    data = io.BytesIO(archive.read(info))
    version = np.lib.format.read_magic(data)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{name} is of version {version} of NumPy's format, which is not known")
    found_shape, in_columns, found_dtype = readers[version](data)
    if (found_shape, found_dtype) != (shape, dtype):
        raise ValueError(f"{name} has {found_dtype} of shape {found_shape}, the space wants {dtype} of shape {shape}")
    values = data.read()
    if len(values) != wanted:
        raise ValueError(f"{name} has {len(values)} bytes of values, wanted {wanted}")
    return np.frombuffer(values, dtype).reshape(shape, order="F" if in_columns else "C")
