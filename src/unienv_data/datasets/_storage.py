"""The base classes of storages and writers of an experience replay."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend

from ..base.common import is_single, resolve_index
from .tensordicts import Key, from_nested, leaves, to_nested, torch

if TYPE_CHECKING:
    from tensordict import TensorDictBase

#: The number of bytes that are copied at a time.
COPY_BYTES = 16 * 2**20
#: The way out in errors about immutable samples.
COPY_INSTEAD = "ExperienceReplay(storage=TensorDictStorage(max_size)), and extend that with data[:]"


class ImmutableDatasetError(PermissionError, RuntimeError):
    """A write to a recorded dataset; the message says how to make a copy that can be changed.

    Examples
    --------
    >>> replay = MinariExperienceReplay("pole/random-v0", batch_size=32)  # doctest: +SKIP
    >>> replay.add(replay[0])  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    unienv_data.datasets._storage.ImmutableDatasetError: ...
    """


class SamplingError(ValueError, RuntimeError):
    """A replay cannot draw a batch. Also a RuntimeError, as in TorchRL."""


class SampleStorage(abc.ABC):
    """Samples by index, 0 to `len(storage) - 1`, as TensorDicts on the CPU.

    An index is the slot of a sample until the slot is overwritten. Samplers count positions from the oldest sample on;
    `index_of` converts positions to indices. A storage is thus a source of index samplers.

    Data that was read belongs to the caller. The replay checks all arguments before it calls the methods below: indices
    are in range, and values have the shape and dtype of their entry.

    TorchRL's `ReplayBuffer` accepts a storage: it calls its `storage` argument, and `__call__` returns an adapter.
    """

    is_mutable = True
    #: The largest number of samples; None if the storage grows.
    capacity: int | None = None
    #: The inner axes of a sample, such as the time axis of a trajectory.
    inner_batch: tuple[int, ...] = ()
    #: Counts the changes, for samplers that cache data.
    revision = 0

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def get(self, index: int | np.ndarray) -> TensorDictBase:
        """Read one sample, or a batch of samples."""

    @abc.abstractmethod
    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        """Read one entry of some samples."""

    @abc.abstractmethod
    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        """Overwrite one entry of some samples."""

    @abc.abstractmethod
    def add_column(self, key: Key, value: torch.Tensor) -> None:
        """Add an entry to all samples; a ValueError if the storage has fixed entries."""

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        """Overwrite all entries of some samples."""
        for key, value in leaves(data):
            self.set_column(key, index, value)

    @abc.abstractmethod
    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        """Add a batch of samples and return their indices; a full storage overwrites its oldest samples."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Drop all samples."""

    @abc.abstractmethod
    def replace(self, data: TensorDictBase, numbers: range | None = None) -> None:
        """Replace all samples; a ValueError if the new ones do not fit.

        `numbers` are the `sample_numbers` of the new samples, if they were saved with them.
        """

    @abc.abstractmethod
    def dumps(self, folder: Path) -> dict[str, Any]:
        """Save the samples to a new folder, and return a description for `loads`."""

    @abc.abstractmethod
    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        """Restore the samples that a storage of this class has saved."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the samples as nested dicts of plain values and tensors."""
        numbers = self.sample_numbers
        samples = to_nested(self.get(np.arange(len(self)))) if len(self) else None
        return {"samples": samples, "numbers": [numbers.start, numbers.stop], "inner_batch": list(self.inner_batch)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`, of a storage of this class."""
        numbers = range(*state["numbers"])
        if state["samples"] is None:
            self.clear()
        else:
            self.replace(from_nested(state["samples"], torch.Size((len(numbers), *state["inner_batch"]))), numbers)

    def __getitem__(self, index: Any) -> TensorDictBase:
        """Read samples by a NumPy index, like a replay without transforms."""
        if isinstance(index, torch.Tensor):
            index = int(index) if is_single(index) and index.dtype != torch.bool else index.cpu().numpy()
        return self.get(resolve_index(NumpyComputeBackend, index, len(self)))

    def __iter__(self) -> Iterator[TensorDictBase]:
        return (self.get(index) for index in range(len(self)))

    def entries(self) -> list[Key]:
        """List the keys of a sample's entries; empty before the first sample."""
        return [key for key, _ in leaves(self.get(np.zeros(1, np.int64)))] if len(self) else []

    @abc.abstractmethod
    def close(self) -> None:
        """Release the storage's resources; a batch of the caller stays open."""

    def __call__(self) -> Any:
        """Adapt the storage to TorchRL: `torchrl.data.ReplayBuffer(storage=storage)` calls it."""
        from ._torchrl import adapted_to_torchrl

        return adapted_to_torchrl(self)

    # -- as a source of index samplers -----------------------------------------------------------------------

    @property
    def sample_numbers(self) -> range:
        """The numbers of the present samples, oldest first; a sample keeps its number."""
        return range(len(self))

    def index_of(self, positions: np.ndarray) -> np.ndarray:
        """Return the indices of the samples at these positions."""
        return positions

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        """Return the numbers of the samples at these indices."""
        return index

    def episodes_of(self, positions: Any) -> Any:
        """Return the episodes of the samples at these positions; None if not known."""
        return None

    def get_column_at(self, nested_keys: Any, positions: Any) -> np.ndarray:
        """Read one entry of the samples at these positions, as an array."""
        index = np.atleast_1d(resolve_index(NumpyComputeBackend, positions, len(self)))
        return self.get_column(tuple(nested_keys), self.index_of(index)).numpy()


# -- a ring ------------------------------------------------------------------------------------------------


class RingStorage(SampleStorage):
    """A ring of samples; a full ring drops its oldest sample for each new sample.

    Samples have the numbers [first, written), and sample n has the index n modulo the capacity. Without a capacity the
    storage grows, and sample n has the index n.
    """

    _first = _written = 0

    def __len__(self) -> int:
        return self._written - self._first

    @property
    def sample_numbers(self) -> range:
        return range(self._first, self._written)

    def index_of(self, positions: np.ndarray) -> np.ndarray:
        return positions if self.capacity is None else (positions + self._first) % self.capacity

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        return index if self.capacity is None else self._first + (index - self._first) % self.capacity

    def _next_slots(self, count: int) -> tuple[np.ndarray, int]:
        """Return the indices of the next `count` samples, and how many of them remain, the last ones."""
        numbers = np.arange(self._written, self._written + count)
        return (numbers, count) if self.capacity is None else (numbers % self.capacity, min(count, self.capacity))

    def _wrote(self, count: int) -> None:
        self._written += count
        self._first = max(self._first, self._written - (self.capacity or self._written))
        self.revision += 1

    def _forget(self) -> None:
        """Drop all samples. New samples start at index 0 with new numbers, so that samplers see them as new."""
        self._written = 0 if self.capacity is None else -(-self._written // self.capacity) * self.capacity
        self._first = self._written
        self.revision += 1

    def _check_room(self, data: TensorDictBase) -> None:
        if not data.batch_dims:
            raise ValueError("the TensorDict has no axis for the samples")
        if self.capacity is not None and len(data) > self.capacity:
            raise ValueError(f"{len(data)} samples, the storage has room for {self.capacity}")

    def _replaced(self, count: int, numbers: range | None) -> None:
        """Set the numbers of samples at the indices [0, count), to `numbers` if they match the indices."""
        self._first, self._written = 0, count
        if numbers is not None and len(numbers) == count and (self.capacity is not None or not numbers.start):
            is_ring = self.capacity is None or count == self.capacity or numbers.start % self.capacity == 0
            if is_ring:
                self._first, self._written = numbers.start, numbers.stop
        self.revision += 1


# -- writers -----------------------------------------------------------------------------------------------


class Writer(abc.ABC):
    """Writes samples to a storage and returns their indices.

    Examples
    --------
    >>> replay.set_writer(RoundRobinWriter())  # doctest: +SKIP
    """

    #: The number of samples written through `add` and `extend`.
    write_count = 0

    def check(self, storage: SampleStorage) -> None:
        """Raise an ImmutableDatasetError if the storage cannot be written."""
        if not storage.is_mutable:
            raise ImmutableDatasetError(
                f"{storage!r} is immutable, {type(self).__name__} cannot write to it: leave out the writer, or give an "
                f"ImmutableDatasetWriter. For a copy that can be written to: {COPY_INSTEAD}"
            )

    @abc.abstractmethod
    def write(self, storage: SampleStorage, data: Any, count: int) -> np.ndarray:
        """Write a batch of samples and return their indices."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Reset the writer after the storage was emptied."""
        if empty_write_count:
            self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the writer's state, for `load_state_dict`."""
        return {"writer": type(self).__name__, "write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`; a ValueError if it is of another class."""
        if state.get("writer") != type(self).__name__:
            raise ValueError(f"the state is of a {state.get('writer')!r}, this is a {type(self).__name__}")
        self.write_count = int(state["write_count"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobinWriter(Writer):
    """Writes new samples behind the last sample; a full storage drops its oldest samples.

    Examples
    --------
    >>> writer = RoundRobinWriter()
    >>> writer.state_dict()
    {'writer': 'RoundRobinWriter', 'write_count': 0}
    """

    def write(self, storage: SampleStorage, data: Any, count: int) -> np.ndarray:
        index = storage.extend(data, count)
        self.write_count += count
        return index


class ImmutableDatasetWriter(Writer):
    """Refuses every write, for recorded datasets.

    Examples
    --------
    >>> writer = ImmutableDatasetWriter()  # every MinariExperienceReplay has one
    >>> writer.state_dict()
    {'writer': 'ImmutableDatasetWriter', 'write_count': 0}
    """

    def check(self, storage: SampleStorage) -> None:
        self.write(storage, None, 0)

    def write(self, storage: SampleStorage, data: Any, count: int) -> np.ndarray:
        raise ImmutableDatasetError(
            "this is a recorded dataset, nothing can be added to it. For a copy that can be written to: "
            f"{COPY_INSTEAD}; for a changed copy on disk: data.preprocess(fn, dest=path)"
        )


def check_writer(writer: Any, storage: SampleStorage) -> Writer:
    """Return the writer; an error if it is no `Writer`, or cannot write to the storage."""
    if not isinstance(writer, Writer):
        raise TypeError(
            f"writer is {type(writer).__name__}: wanted a RoundRobinWriter, an ImmutableDatasetWriter, or a subclass "
            f"of unienv_data.datasets.Writer"
        )
    if not isinstance(writer, ImmutableDatasetWriter):
        writer.check(storage)
    return writer
