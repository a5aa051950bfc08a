"""Samplers of both kinds behind one face: UniEnv's index samplers, and objects with TorchRL's sampler protocol."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..samplers.index_sampler import IndexSampler
from ._saved_state import read_state, write_state
from ._storage import SampleStorage
from ._tensordicts import key_of, torch

Info = dict[Any, torch.Tensor]


@dataclass(slots=True)
class Draw:
    """The indices of a batch, what the sampler says of each, and whether it is the last batch of an epoch."""

    index: np.ndarray
    info: Info
    is_last: bool


class Drawer(abc.ABC):
    """Draws indices with a sampler and tells it what happens to the samples."""

    sampler: Any

    @abc.abstractmethod
    def draw(self, storage: SampleStorage, batch_size: int) -> Draw:
        """The next batch."""

    @abc.abstractmethod
    def begin(self) -> None:
        """A new iteration begins."""

    @abc.abstractmethod
    def wrote(self, storage: SampleStorage, index: np.ndarray, *, is_new: bool) -> None:
        """Samples lie at these indices; `is_new` if they were added, else they were changed or already there."""

    @abc.abstractmethod
    def emptied(self) -> None:
        """All samples are gone."""

    @abc.abstractmethod
    def update_priority(self, storage: SampleStorage, index: np.ndarray, numbers: Any, priority: Any) -> None:
        """Give samples new priorities; `numbers` are those of the samples where they are known."""

    @abc.abstractmethod
    def dumps(self, folder: Path) -> None:
        """Save the sampler's state to a new folder."""

    @abc.abstractmethod
    def loads(self, folder: Path) -> None:
        """Take over a saved state."""


def drawer(sampler: Any) -> Drawer:
    """The face of a sampler; a TypeError if it is of neither kind."""
    if isinstance(sampler, IndexSampler):
        return IndexDrawer(sampler)
    if callable(getattr(sampler, "sample", None)) and callable(getattr(sampler, "mark_update", None)):
        return TorchRLDrawer(sampler)
    raise TypeError(
        f"sampler is {type(sampler).__name__}: wanted one of unienv_data.samplers, such as RandomSampler, or an "
        f"object with the methods of a TorchRL sampler"
    )


class IndexDrawer(Drawer):
    """One of UniEnv's samplers. It follows the storage by itself, so there is nothing to tell it."""

    def __init__(self, sampler: IndexSampler) -> None:
        self.sampler: Any = sampler
        self._has_epochs = hasattr(sampler, "ran_out")

    def begin(self) -> None:
        pass

    def wrote(self, storage: SampleStorage, index: np.ndarray, *, is_new: bool) -> None:
        pass

    def emptied(self) -> None:
        pass

    def draw(self, storage: SampleStorage, batch_size: int) -> Draw:
        positions, info = self.sampler.sample(storage, batch_size)
        tensors = {key: torch.from_numpy(value) for key, value in info.items()} if info else {}
        return Draw(storage.index_of(positions), tensors, self._has_epochs and self.sampler.ran_out)

    def update_priority(self, storage: SampleStorage, index: np.ndarray, numbers: Any, priority: Any) -> None:
        update = getattr(self.sampler, "update_priority_of", None)
        if update is None:
            raise TypeError(f"{type(self.sampler).__name__} has no priorities: use a PrioritizedSampler")
        update(storage.numbers_at(index) if numbers is None else np.asarray(numbers), np.asarray(priority))

    def dumps(self, folder: Path) -> None:
        write_state(folder, self.sampler.state_dict())

    def loads(self, folder: Path) -> None:
        self.sampler.load_state_dict(read_state(folder))


class TorchRLDrawer(Drawer):
    """A sampler of TorchRL's, which is handed what it looks at of a TorchRL storage."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._view: StorageView | None = None

    def _seen(self, storage: SampleStorage) -> StorageView:
        if self._view is None or self._view.storage is not storage:
            self._view = StorageView(storage)
        return self._view

    def draw(self, storage: SampleStorage, batch_size: int) -> Draw:
        index, info = self.sampler.sample(self._seen(storage), batch_size)
        if isinstance(index, tuple):
            (index,) = index  # one part for each axis of the storage
        tensors = {key: torch.as_tensor(value) for key, value in info.items()}
        places = torch.as_tensor(index, dtype=torch.int64).reshape(-1).numpy()
        return Draw(places, tensors, bool(getattr(self.sampler, "ran_out", False)))

    def begin(self) -> None:
        if getattr(self.sampler, "ran_out", False):
            self.sampler.ran_out = False

    def wrote(self, storage: SampleStorage, index: np.ndarray, *, is_new: bool) -> None:
        if is_new:
            self.sampler.extend(torch.from_numpy(index))
        if len(index):
            self.sampler.mark_update(torch.from_numpy(index), storage=self._seen(storage))

    def emptied(self) -> None:
        self.sampler._empty()

    def update_priority(self, storage: SampleStorage, index: np.ndarray, numbers: Any, priority: Any) -> None:
        self.sampler.update_priority(torch.from_numpy(index), torch.as_tensor(priority), storage=self._seen(storage))

    def dumps(self, folder: Path) -> None:
        folder.mkdir()
        self.sampler.dumps(folder)

    def loads(self, folder: Path) -> None:
        self.sampler.loads(folder)


class StorageView:
    """What TorchRL's samplers look at of a storage. The names are TorchRL's."""

    ndim = 1
    device = torch.device("cpu")
    _rng = None

    def __init__(self, storage: SampleStorage) -> None:
        self.storage = storage

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def max_size(self) -> int:
        return len(self) if self.storage.capacity is None else self.storage.capacity

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self)])

    @property
    def _total_shape(self) -> torch.Size:
        return torch.Size([self.max_size])

    @property
    def _len_along_dim0(self) -> int:
        return len(self)

    @property
    def _is_full(self) -> bool:
        return self.storage.is_mutable and len(self) == self.storage.capacity

    @property
    def _last_cursor_index(self) -> int | None:
        numbers = self.storage.sample_numbers
        return int(self.storage.index_of(np.array([len(numbers) - 1]))[0]) if len(numbers) else None

    @property
    def _mutation_revision(self) -> int:
        return self.storage.revision

    def _rand_given_ndim(self, batch_size: int) -> torch.Tensor:
        return torch.randint(0, len(self), (batch_size,), generator=self._rng)

    def get(self, index: Any) -> Any:
        return self[index]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index == slice(None):
            return _Columns(self.storage)
        return self.storage.get(np.arange(len(self))[index])


class _Columns:
    """All samples, of which only the entries that are asked for are read."""

    def __init__(self, storage: SampleStorage) -> None:
        self._storage = storage

    def __getitem__(self, key: Any) -> torch.Tensor:
        if key_of(key) not in self._storage.entries():
            raise KeyError(key)
        return self._storage.get_column(key_of(key), np.arange(len(self._storage)))

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key_of(key) in self._storage.entries() else default
