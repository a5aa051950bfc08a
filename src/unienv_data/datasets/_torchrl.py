"""Adapters for TorchRL: its samplers, writers and storages in an experience replay, and our storages in TorchRL.

TorchRL defines the names with an underscore: its samplers and storages access them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.utils.optional import need

from ._sampling import Draw, Drawer
from ._storage import COPY_INSTEAD, ImmutableDatasetWriter, RingStorage, RoundRobinWriter, SampleStorage
from .tensordicts import Key, key_of, to_nested, torch

if TYPE_CHECKING:
    from tensordict import TensorDictBase

# -- samplers ----------------------------------------------------------------------------------------------


class TorchRLDrawer(Drawer):
    """Draws with a sampler of TorchRL, which gets a view of the storage."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._view: StorageView | None = None
        self._known_stop: int | None = None  # the number behind the last sample known to the sampler; None: all known

    def _report_unknown(self, storage: SampleStorage) -> None:
        """Report samples that another replay or process has written to the storage."""
        numbers = storage.sample_numbers
        if self._known_stop is None:
            self._known_stop = numbers.stop
        unknown = np.arange(max(self._known_stop, numbers.start), numbers.stop)
        if len(unknown):
            self.wrote(storage, storage.index_of(unknown - numbers.start), is_new=True)

    def _view_of(self, storage: SampleStorage) -> StorageView:
        if self._view is None or self._view.storage is not storage:
            self._view = StorageView(storage)
        return self._view

    def draw(self, storage: SampleStorage, batch_size: int) -> Draw:
        self._report_unknown(storage)
        key = getattr(self.sampler, "traj_key", None)
        if key is not None and getattr(self.sampler, "_fetch_traj", False) and key_of(key) not in storage.entries():
            self.sampler._fetch_traj = False  # as over a TensorStorage: trajectories end with `end_key`
        index, info = self.sampler.sample(self._view_of(storage), batch_size)
        if isinstance(index, tuple):
            (index,) = index  # one index for each axis of the storage
        slots = torch.as_tensor(index, dtype=torch.int64).reshape(-1).numpy()
        tensors = {key: _for_each(torch.as_tensor(value), len(slots)) for key, value in info.items()}
        return Draw(slots, tensors, bool(getattr(self.sampler, "ran_out", False)))

    def begin(self) -> None:
        if getattr(self.sampler, "ran_out", False):
            self.sampler.ran_out = False

    def wrote(self, storage: SampleStorage, index: np.ndarray, *, is_new: bool) -> None:
        if is_new:
            self.sampler.extend(torch.from_numpy(index))
        if is_new or self._known_stop is None:
            self._known_stop = storage.sample_numbers.stop
        if len(index):
            self.sampler.mark_update(torch.from_numpy(index), storage=self._view_of(storage))

    def emptied(self) -> None:
        self.sampler._empty()

    def update_priority(self, storage: SampleStorage, index: np.ndarray, numbers: Any, priority: Any) -> None:
        self.sampler.update_priority(torch.from_numpy(index), torch.as_tensor(priority), storage=self._view_of(storage))

    def dumps(self, folder: Path) -> None:
        folder.mkdir()
        self.sampler.dumps(folder)

    def loads(self, folder: Path) -> None:
        self.sampler.loads(folder)
        self._known_stop = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._known_stop = None


def _for_each(value: torch.Tensor, count: int) -> torch.Tensor:
    """Return a sampler's info with an axis for the samples, which some samplers omit for one sample."""
    return value if value.ndim else value.expand(count)


class StorageView:
    """The interface of a storage that TorchRL's samplers access."""

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
    """All samples; reads only the requested entries."""

    def __init__(self, storage: SampleStorage) -> None:
        self._storage = storage

    def __getitem__(self, key: Any) -> torch.Tensor:
        if key_of(key) not in self._storage.entries():
            raise KeyError(key)
        return self._storage.get_column(key_of(key), np.arange(len(self._storage)))

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key_of(key) in self._storage.entries() else default


# -- writers -----------------------------------------------------------------------------------------------


def writer_of_ours(writer: Any) -> Any:
    """Replace a TorchRL writer by the equivalent writer of UniEnv; return any other object unchanged."""
    module = sys.modules.get("torchrl.data.replay_buffers.writers")
    if module is not None and type(writer) in (module.RoundRobinWriter, module.TensorDictRoundRobinWriter):
        return RoundRobinWriter()
    if module is not None and type(writer) is module.ImmutableDatasetWriter:
        return ImmutableDatasetWriter()
    return writer


# -- storages ----------------------------------------------------------------------------------------------


def is_torchrl_storage(storage: Any) -> bool:
    """Whether an object is a TorchRL storage, without importing TorchRL."""
    module = sys.modules.get("torchrl.data.replay_buffers.storages")
    return module is not None and isinstance(storage, module.Storage)


def adapted_to_torchrl(storage: SampleStorage) -> Any:
    """Make a `torchrl.data.TensorStorage` of the samples.

    TorchRL reads and writes an empty `TensorDictStorage` with a `max_size` directly. Other storages do not change:
    samples on disk are mapped, with changes of TorchRL in memory only, and samples of other storages are copied.
    """
    from .tensordict_storage import TensorDictStorage

    if isinstance(storage, TensorDictStorage) and storage.is_mutable and storage.capacity and not storage.entries():
        from ._torchrl_storage import TorchRLWritableStorage

        return TorchRLWritableStorage(storage)
    if not len(storage):
        raise ValueError(
            "the storage is empty: TorchRL reads existing samples, or writes to a new TensorDictStorage(max_size)"
        )
    is_on_disk = isinstance(storage, TensorDictStorage) and storage.path is not None
    data = storage.mapped() if is_on_disk else storage.get(np.arange(len(storage)))  # type: ignore[attr-defined]
    return need("torchrl.data", extra="torch").TensorStorage(data)


class TorchRLStorage(RingStorage):
    """Samples in a TorchRL storage with one axis, such as `LazyMemmapStorage`.

    Existing samples come first, in the order of their indices. A full storage drops its oldest samples.
    """

    def __init__(self, storage: Any) -> None:
        if storage.ndim != 1:
            raise ValueError(f"the TorchRL storage has {storage.ndim} axes, it must have one")
        self.inner = storage
        self.capacity = int(storage.max_size)
        self._first, self._written = 0, len(storage)
        if len(storage):
            self.inner_batch = tuple(self.get(np.zeros(1, np.int64)).batch_size[1:])

    def get(self, index: int | np.ndarray) -> TensorDictBase:
        data = self.inner.get(index if isinstance(index, int) else torch.from_numpy(index))
        if isinstance(data, list):
            data = torch.stack(data)
        return data.clone().to("cpu")

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        return self.get(index).get(key)

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        data = self.get(index)
        data.set(key, value)
        self.set(index, data)

    def add_column(self, key: Key, value: torch.Tensor) -> None:
        raise ValueError(
            f"{'/'.join(key)}: a {type(self.inner).__name__} keeps the entries of its first samples. For a "
            f"copy that takes more: {COPY_INSTEAD}"
        )

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        self.inner.set(torch.from_numpy(index), data, set_cursor=False)
        self.revision += 1

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        index, kept = self._next_slots(count)
        if not len(self):
            self.inner_batch = tuple(data.batch_size[1:])
        self.inner.set(torch.from_numpy(index[count - kept :]), data[count - kept :])
        self._wrote(count)
        return index

    def clear(self) -> None:
        self.inner._empty()
        self._forget()

    def replace(self, data: TensorDictBase, numbers: range | None = None) -> None:
        self._check_room(data)
        to_nested(data)
        self.clear()
        if len(data):
            self.inner.set(torch.arange(len(data)), data)
        self._replaced(len(data), numbers)

    def dumps(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        if len(self):
            self.inner.dumps(folder)
        return {"kind": type(self.inner).__name__, "first": self._first, "written": self._written}

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        if description.get("kind") != type(self.inner).__name__:
            raise ValueError(
                f"the saved samples are of a {description.get('kind')!r}, this storage is a {type(self.inner).__name__}"
            )
        if description["written"] > description["first"]:
            self.inner.loads(folder)
        else:
            self.inner._empty()
        self._first, self._written = description["first"], description["written"]
        self.revision += 1

    def close(self) -> None:
        """Do nothing: the TorchRL storage belongs to the caller."""

    def __repr__(self) -> str:
        return f"TorchRLStorage({type(self.inner).__name__} of {len(self)}, max_size={self.capacity})"
