"""A storage of TensorDicts as packed rows, in a ring or growing, in memory or in a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import DictSpace
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.space.space_utils.serialization_utils import json_to_space, space_to_json

from ..base.files import contained, read_json, sync_folder, write_json
from ..base.storage import StorageCorruptedError
from ..storages.packed import PackedStorage
from ._episodes import row_files
from ._storage import COPY_BYTES, ImmutableDatasetError, RingStorage
from .tensordicts import Key, from_nested, space_of, to_nested, torch

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

FORMAT, VERSION = "unienv-tensordicts", 1
MARKER, ROWS = "storage.json", "rows"


class TensorDictStorage(RingStorage):
    """A storage of TensorDicts; the first samples define the entries with their shapes and dtypes.

    Parameters
    ----------
    max_size
        The number of samples of a ring, which drops its oldest sample for each new sample when it is full. With None
        the storage grows.
    cache_path
        A new folder for the samples, which any process can `open` after `flush` or `close`. By default the samples are
        in memory.

    Raises
    ------
    ValueError
        `max_size` is below 1.
    FileExistsError
        The folder `cache_path` is not empty.

    Examples
    --------
    >>> replay = ExperienceReplay(storage=TensorDictStorage(max_size=1_000), batch_size=32)
    """

    def __init__(self, max_size: int | None = None, *, cache_path: str | os.PathLike[str] | None = None) -> None:
        if max_size is not None and max_size < 1:
            raise ValueError(f"max_size is {max_size}, it must be at least 1, or None to grow")
        self.capacity = max_size
        self._folder = None if cache_path is None else Path(cache_path)
        if self._folder is not None and self._folder.exists() and any(self._folder.iterdir()):
            raise FileExistsError(f"{self._folder} exists: give another cache_path, or open it with open(path)")
        self._storage: PackedStorage | None = None
        self._rows_name = ROWS  # the name of the folder with the rows
        self.inner_batch = ()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, read_only: bool = True) -> TensorDictStorage:
        """Open the storage in a folder.

        Parameters
        ----------
        path
            The `cache_path` of the storage, or the `dest` of `preprocess`.
        read_only
            Whether writing is refused. A folder has one writer at a time.

        Raises
        ------
        StorageCorruptedError
            If the folder is not a storage, or its files contradict each other.
        """
        folder = Path(path)
        storage = cls.__new__(cls)
        storage._folder, storage.is_mutable = folder, not read_only
        marker = read_json(folder / MARKER, checksum=True)
        if (marker.get("format"), marker.get("format_version")) != (FORMAT, VERSION):
            stored = f"{marker.get('format')!r}, version {marker.get('format_version')}"
            raise StorageCorruptedError(f"{folder / MARKER}: {stored}, wanted {FORMAT!r}, version {VERSION}")
        storage.capacity, storage.inner_batch = marker["capacity"], tuple(marker["inner_batch"])
        storage._first, storage._written = marker["first"], marker["written"]
        storage._rows_name, storage._storage = marker.get("rows", ROWS), None
        if marker["space"] is not None:
            space = json_to_space(marker["space"], PyTorchComputeBackend)
            rows = contained(folder, storage._rows_name)
            storage._storage = PackedStorage.load_from(rows, space, capacity=storage.capacity, read_only=read_only)
            if len(storage._storage) < len(storage):
                raise StorageCorruptedError(f"{rows}: {len(storage._storage)} rows, {MARKER} has {len(storage)}")
        return storage

    def _describe(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": VERSION,
            "capacity": self.capacity,
            "inner_batch": list(self.inner_batch),
            "first": self._first,
            "written": self._written,
            "rows": self._rows_name,
            "space": None if self._storage is None else space_to_json(self._storage.single_instance_space),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        if self._folder is not None and not self.is_mutable:
            return _opened, (self._folder,)
        if self._folder is not None:
            raise TypeError(f"{self._folder}: only this process can write; flush, and open the path elsewhere")
        return super().__reduce__()  # type: ignore[return-value]

    @property
    def space(self) -> DictSpace | None:
        """The space of one sample; None before the first sample is written."""
        return None if self._storage is None else self._storage.single_instance_space  # type: ignore[return-value]

    @property
    def max_size(self) -> int | None:
        """The number of samples of a ring, by TorchRL's name; None if the storage grows."""
        return self.capacity

    @property
    def path(self) -> Path | None:
        """The folder of the storage; None if it is in memory."""
        return self._folder

    # -- reading ---------------------------------------------------------------------------------------------

    def _rows(self) -> PackedStorage:
        if self._storage is None:
            raise IndexError("the storage is empty")
        return self._storage

    def get(self, index: int | np.ndarray) -> TensorDict:
        batch = () if isinstance(index, int) else (len(index),)
        return from_nested(self._rows().get(index), torch.Size((*batch, *self.inner_batch)))

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        return self._rows().get_column(key).get(index)

    def entries(self) -> list[Key]:
        return [] if self.space is None else [leaf.path for leaf in RowLayout(self.space).leaves]

    def mapped(self) -> TensorDict:
        """Map all samples of a storage on disk; changes to the tensors stay in this process's memory.

        Raises
        ------
        TypeError
            The storage is in memory.
        """
        if self._folder is None:
            raise TypeError("the storage is in memory and cannot be mapped: give a cache_path")
        self.flush()
        layout = RowLayout(self._rows().single_instance_space)
        folder, count = self._folder / self._rows_name, len(self)
        arrays = [
            np.memmap(folder / name, dtype.base, "c", shape=(count, *dtype.shape)) for name, dtype in row_files(layout)
        ]
        records, *blocks = arrays
        names = (leaf.name for leaf in layout.block_leaves)
        rows = Rows(layout, records, dict(zip(names, blocks, strict=True)), None)
        return from_nested(layout.unpack(rows), torch.Size((len(self), *self.inner_batch)))

    # -- writing ---------------------------------------------------------------------------------------------

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        self._check_mutable()
        nested, rows = to_nested(data), self._rows_for(data)
        index, kept = self._next_slots(count)
        if kept < count:
            nested = to_nested(data[count - kept :])
        added = 0 if self.capacity is not None else max(0, self._written + count - len(rows))
        rows.extend_length(added)
        try:
            rows.set(index[count - kept :], nested)
        except BaseException:
            rows.shrink_length(added)
            raise
        self._wrote(count)
        return index

    def put(self, slots: np.ndarray, data: TensorDictBase) -> None:
        """Write new samples to these slots of a ring; the sample in the last slot becomes the newest.

        Raises
        ------
        ValueError
            The storage has no `max_size`.
        """
        self._check_mutable()
        if self.capacity is None:
            raise ValueError("put needs a ring: give the storage a max_size")
        nested = to_nested(data)
        self._rows_for(data).set(slots, nested)
        steps = (int(slots[-1]) - self._written) % self.capacity + 1  # from the previous newest sample on
        self._wrote(steps if steps >= len(slots) else steps + self.capacity)

    def _rows_for(self, data: TensorDictBase) -> PackedStorage:
        """Return the rows; the first samples create them."""
        if self._storage is None:
            self._storage = self._create(space_of(data), self._rows_name)
            self.inner_batch = tuple(data.batch_size[1:])
        return self._storage

    def _create(self, space: DictSpace, name: str) -> PackedStorage:
        path = None if self._folder is None else self._folder / name
        return PackedStorage.create(space, capacity=self.capacity, cache_path=path)

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise ImmutableDatasetError(f"{self._folder} was opened read-only: open it with read_only=False to write")

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        self._check_mutable()
        self._rows().set(index, to_nested(data))
        self.revision += 1

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        self._check_mutable()
        for start, stop in self._chunks(len(index)):
            data = self.get(index[start:stop])
            data.set(key, value[start:stop])
            self.set(index[start:stop], data)

    def add_column(self, key: Key, value: torch.Tensor) -> None:
        """Add an entry to all samples: copies them, chunk by chunk, to new rows with this entry.

        Raises
        ------
        ValueError
            The storage is empty.
        """
        self._check_mutable()
        if not len(self):
            raise ValueError(f"{'/'.join(key)}: the storage is empty, its first samples define the entries")
        old, previous = self._rows(), self._rows_name
        name = f"{ROWS}-{int(previous.removeprefix(ROWS).removeprefix('-') or 0) + 1}"
        first = self.get(np.zeros(1, np.int64))
        first.set(key, value[:1])
        if self._folder is not None:
            shutil.rmtree(self._folder / name, ignore_errors=True)  # left by a process that was killed here
        new = self._create(space_of(first), name)
        try:
            new.extend_length(len(self))
            for start, stop in self._chunks(len(self)):
                data = self.get(np.arange(start, stop))
                data.set(key, value[start:stop])
                new.set(np.arange(start, stop), to_nested(data))
            self._storage, self._rows_name = new, name
            self.flush()  # commits the new rows
        except BaseException:
            self._storage, self._rows_name = old, previous
            new.close()
            if self._folder is not None:
                shutil.rmtree(self._folder / name, ignore_errors=True)
            raise
        old.close()
        if self._folder is not None:
            shutil.rmtree(self._folder / previous, ignore_errors=True)
        self.revision += 1

    def _chunks(self, count: int) -> list[tuple[int, int]]:
        """Return ranges [start, stop) of samples of about `COPY_BYTES`."""
        size = max(1, COPY_BYTES // RowLayout(self._rows().single_instance_space).nbytes)
        return [(start, min(start + size, count)) for start in range(0, count, size)]

    def _copy(self, source: PackedStorage, target: PackedStorage) -> None:
        """Copy all samples to an empty storage of the same space."""
        target.extend_length(len(self))
        for start, stop in self._chunks(len(self)):
            index = np.arange(start, stop)
            target.set(index, source.get(index))

    def clear(self) -> None:
        self._check_mutable()
        self._forget()
        if self._storage is not None:
            self._storage.clear()

    def replace(self, data: TensorDictBase, numbers: range | None = None) -> None:
        self._check_mutable()
        self._check_room(data)
        nested = to_nested(data)
        if self._storage is not None:
            self._check_same(space_of(data))
            self._storage.clear()
        elif len(data):
            self._storage = self._create(space_of(data), self._rows_name)
        self.inner_batch = tuple(data.batch_size[1:])
        if len(data):
            self._rows().extend_length(len(data))
            self._rows().set(np.arange(len(data)), nested)
        self._replaced(len(data), numbers)

    def _check_same(self, space: DictSpace) -> None:
        if self.space != space:
            raise ValueError(f"the saved samples are of {space}, this storage has {self.space}")

    # -- saving ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all writes to the folder durable and visible to processes that open it."""
        if self._folder is not None and self.is_mutable:
            if self._storage is not None:
                self._storage.flush()
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / MARKER, self._describe())
            sync_folder(self._folder)

    def dumps(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        if self._storage is not None:
            space = self._storage.single_instance_space
            copy = PackedStorage.create(space, capacity=self.capacity, cache_path=folder / ROWS)
            with contextlib.closing(copy):
                self._copy(self._storage, copy)
                copy.flush()
        write_json(folder / MARKER, {**self._describe(), "rows": ROWS})
        return {"kind": FORMAT}

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        self._check_mutable()
        if description.get("kind") != FORMAT:
            raise ValueError(
                f"the saved samples are of a {description.get('kind')!r}, this replay has a TensorDictStorage"
            )
        saved = TensorDictStorage.open(folder)
        try:
            self._restore(saved)
        finally:
            saved.close()

    def _restore(self, saved: TensorDictStorage) -> None:
        if self.capacity != saved.capacity:
            raise ValueError(f"the saved storage has a max_size of {saved.capacity}, this storage of {self.capacity}")
        if saved.space is not None:
            if self._storage is None:
                self._storage = self._create(saved.space, self._rows_name)
            self._check_same(saved.space)
            self._storage.clear()
            saved._copy(saved._rows(), self._storage)
        elif self._storage is not None:
            self._storage.clear()
        self._first, self._written, self.inner_batch = saved._first, saved._written, saved.inner_batch
        self.revision += 1

    def state_dict(self) -> dict[str, Any]:
        return {"kind": FORMAT, "capacity": self.capacity, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state.get("kind"), state.get("capacity")) != (FORMAT, self.capacity):
            raise ValueError(
                f"the state is of a {state.get('kind')!r} with a max_size of {state.get('capacity')}, this is a "
                f"TensorDictStorage with a max_size of {self.capacity}"
            )
        super().load_state_dict(state)

    def close(self) -> None:
        self.flush()
        if self._storage is not None:
            self._storage.close()

    def __repr__(self) -> str:
        path = "" if self._folder is None else f", path={str(self._folder)!r}"
        return f"TensorDictStorage(len={len(self)}, max_size={self.capacity}{path})"


def _opened(folder: Path) -> TensorDictStorage:
    return TensorDictStorage.open(folder)
