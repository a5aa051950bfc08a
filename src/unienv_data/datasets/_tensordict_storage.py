"""TensorDicts as packed rows, in a ring or growing, in memory or in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import DictSpace
from unienv_interface.space.space_utils.serialization_utils import json_to_space, space_to_json

from ..base.files import contained, read_json, write_json
from ..base.storage import StorageCorruptedError
from ..storages.packed import PackedStorage
from ._storage import COPY_BYTES, SampleStorage
from ._tensordicts import Key, from_nested, space_of, to_nested, torch

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

FORMAT, VERSION = "unienv-tensordicts", 1
MARKER, ROWS = "storage.json", "rows"


class TensorDictStorage(SampleStorage):
    """Samples of one kind, which the first ones written decide.

    With a `max_size` it is a ring: a full one drops its oldest sample for each new one. With None it grows. With
    `cache_path` the samples lie in a new folder, which `open` opens again, in any process, after `flush` or `close`.
    """

    def __init__(self, max_size: int | None = None, *, cache_path: str | os.PathLike[str] | None = None) -> None:
        if max_size is not None and max_size < 1:
            raise ValueError(f"max_size is {max_size}, it must be at least 1, or None to grow")
        self.capacity = max_size
        self._folder = None if cache_path is None else Path(cache_path)
        if self._folder is not None and self._folder.exists() and any(self._folder.iterdir()):
            raise FileExistsError(f"{self._folder} is there: give another cache_path, or open it with open(path)")
        self._storage: PackedStorage | None = None
        self.inner_batch = ()
        # The samples in the storage have the numbers [first, written), and sample n lies at n modulo the capacity.
        self._first = self._written = 0

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, read_only: bool = True) -> TensorDictStorage:
        """The storage in a folder."""
        folder = Path(path)
        storage = cls.__new__(cls)
        storage._folder, storage.is_mutable = folder, not read_only
        storage._restore(folder, read_json(folder / MARKER, checksum=True), read_only=read_only)
        return storage

    def _restore(self, folder: Path, marker: dict[str, Any], *, read_only: bool) -> None:
        if (marker.get("format"), marker.get("format_version")) != (FORMAT, VERSION):
            found = f"{marker.get('format')!r}, version {marker.get('format_version')}"
            raise StorageCorruptedError(f"{folder / MARKER}: {found}, wanted {FORMAT!r}, version {VERSION}")
        self.capacity, self.inner_batch = marker["capacity"], tuple(marker["inner_batch"])
        self._first, self._written = marker["first"], marker["written"]
        self._storage = None
        if marker["space"] is not None:
            space = json_to_space(marker["space"], PyTorchComputeBackend)
            rows = contained(folder, ROWS)
            self._storage = PackedStorage.load_from(rows, space, capacity=self.capacity, read_only=read_only)
            self._storage.fit_to(self._written - self._first, None)

    def _describe(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": VERSION,
            "capacity": self.capacity,
            "inner_batch": list(self.inner_batch),
            "first": self._first,
            "written": self._written,
            "space": None if self._storage is None else space_to_json(self._storage.single_instance_space),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        if self._folder is not None and not self.is_mutable:
            return _opened, (self._folder,)
        if self._folder is not None:
            raise TypeError(f"{self._folder} has one writer, this process: flush it, and open it in the other one")
        return super().__reduce__()  # type: ignore[return-value]

    @property
    def space(self) -> DictSpace | None:
        """The space of one sample; None before the first is written."""
        return None if self._storage is None else self._storage.single_instance_space  # type: ignore[return-value]

    @property
    def path(self) -> Path | None:
        """The folder of the storage; None if it is in memory."""
        return self._folder

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return min(self._written - self._first, self.capacity or self._written)

    def _rows(self) -> PackedStorage:
        if self._storage is None:
            raise IndexError("the storage is empty")
        return self._storage

    def get(self, index: int | np.ndarray) -> TensorDict:
        batch = () if isinstance(index, int) else (len(index),)
        return from_nested(self._rows().get(index), torch.Size((*batch, *self.inner_batch)))

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        return self._rows().get_column(key).get(index)

    # -- writing ---------------------------------------------------------------------------------------------

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        self._check_mutable()
        nested = to_nested(data)
        if self._storage is None:
            self._create(data)
        numbers = np.arange(self._written, self._written + count)
        index = numbers if self.capacity is None else numbers % self.capacity
        kept = count if self.capacity is None else min(count, self.capacity)
        if kept < count:
            nested = to_nested(data[count - kept :])
        rows = self._rows()
        if self.capacity is None:
            rows.extend_length(count)
        try:
            rows.set(index[count - kept :], nested)
        except BaseException:
            if self.capacity is None:
                rows.shrink_length(count)
            raise
        self._written += count
        self._first = max(self._first, self._written - (self.capacity or self._written))
        self.revision += 1
        return index

    def _create(self, data: TensorDictBase) -> None:
        path = None if self._folder is None else self._folder / ROWS
        self._storage = PackedStorage.create(space_of(data), capacity=self.capacity, cache_path=path)
        self.inner_batch = tuple(data.batch_size[1:])

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self._folder} was opened read-only: open it with read_only=False to write")

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        self._check_mutable()
        self._rows().set(index, to_nested(data))
        self.revision += 1

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        size = max(1, COPY_BYTES // self._rows().row_nbytes)
        for start in range(0, len(index), size):
            part = index[start : start + size]
            data = self.get(part)
            data.set(key, value[start : start + size])
            self.set(part, data)

    def clear(self) -> None:
        self._check_mutable()
        # Numbers go on, so that nobody takes new samples for old ones, from one whose sample lies at index 0.
        self._written = 0 if self.capacity is None else -(-self._written // self.capacity) * self.capacity
        self._first = self._written
        if self._storage is not None:
            self._storage.clear()
        self.revision += 1

    # -- as a source of index samplers -----------------------------------------------------------------------

    @property
    def sample_numbers(self) -> range:
        return range(self._first, self._written)

    def index_of(self, positions: np.ndarray) -> np.ndarray:
        return positions if self.capacity is None else (positions + self._first) % self.capacity

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        return index if self.capacity is None else self._first + (index - self._first) % self.capacity

    # -- saving ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make what was written to the folder durable, and known to those who open it."""
        if self._folder is not None and self.is_mutable:
            if self._storage is not None:
                self._storage.flush()
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / MARKER, self._describe())

    def dumps(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        if self._storage is not None:
            self._storage.snapshot(folder / ROWS, [(0, len(self))])
        write_json(folder / MARKER, self._describe())
        return {"kind": FORMAT}

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        self._check_mutable()
        saved = TensorDictStorage.open(folder)
        try:
            self._take_over(saved)
        finally:
            saved.close()

    def _take_over(self, saved: TensorDictStorage) -> None:
        if self.capacity != saved.capacity:
            raise ValueError(f"what was saved has a max_size of {saved.capacity}, this storage of {self.capacity}")
        if saved._storage is not None:
            if self._storage is None:
                path = None if self._folder is None else self._folder / ROWS
                space = saved._storage.single_instance_space
                self._storage = PackedStorage.create(space, capacity=self.capacity, cache_path=path)
            elif self.space != saved.space:
                raise ValueError(f"what was saved are samples of {saved.space}, here they are of {self.space}")
            if self.capacity is None:
                self._storage.clear()
                self._storage.extend_length(len(saved))
            size = max(1, COPY_BYTES // saved._storage.row_nbytes)
            for start in range(0, len(saved), size):
                part = np.arange(start, min(start + size, len(saved)))
                self._storage.set(part, saved._storage.get(part))
        elif self._storage is not None:
            self._storage.clear()
        self._first, self._written, self.inner_batch = saved._first, saved._written, saved.inner_batch
        self.revision += 1

    def close(self) -> None:
        self.flush()
        if self._storage is not None:
            self._storage.close()

    def __repr__(self) -> str:
        place = "" if self._folder is None else f", path={str(self._folder)!r}"
        return f"TensorDictStorage(len={len(self)}, max_size={self.capacity}{place})"


def _opened(folder: Path) -> TensorDictStorage:
    return TensorDictStorage.open(folder)
