"""What an experience replay keeps its samples in: TensorDicts by index."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._tensordicts import Key, leaves, torch

if TYPE_CHECKING:
    from tensordict import TensorDictBase

# Rows are copied this many bytes at a time.
COPY_BYTES = 16 * 2**20


class SampleStorage(abc.ABC):
    """Samples by index, 0 to `len(storage) - 1`, as TensorDicts on the CPU.

    An index names the place of a sample and stays its own until that place is overwritten. Samplers count positions,
    from the oldest sample on; `index_of` says where those lie. In this a storage is a source of index samplers.

    What is read is the caller's. Indices that reach the methods below are known to be in range.
    """

    is_mutable = True
    #: The most samples that there is room for; None if the storage grows.
    capacity: int | None = None
    #: The axes that a sample has itself, as a trajectory has one for time.
    inner_batch: tuple[int, ...] = ()
    #: Counts the changes, for samplers that remember something of the data.
    revision = 0

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def get(self, index: int | np.ndarray) -> TensorDictBase:
        """One sample, or a batch of samples."""

    @abc.abstractmethod
    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        """One entry of some samples."""

    @abc.abstractmethod
    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        """Overwrite one entry of some samples; its shape and dtype are those of the entry."""

    @abc.abstractmethod
    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        """Overwrite some samples."""

    @abc.abstractmethod
    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        """Add a batch of samples, in the place of the oldest where there is no room, and return their indices."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Drop all samples."""

    @abc.abstractmethod
    def dumps(self, folder: Path) -> dict[str, Any]:
        """Save what the storage holds to a folder that is not there yet, and return what else `loads` needs."""

    @abc.abstractmethod
    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        """Take over what another storage of this kind has saved."""

    def entries(self) -> list[Key]:
        """The keys of a sample's entries; none before there are samples."""
        return [key for key, _ in leaves(self.get(np.zeros(1, np.int64)))] if len(self) else []

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the storage holds; what lies under it and is the caller's stays open."""

    # -- as a source of index samplers -----------------------------------------------------------------------

    @property
    def sample_numbers(self) -> range:
        """The numbers of the samples that are there, oldest first; a number stays with its sample."""
        return range(len(self))

    def index_of(self, positions: np.ndarray) -> np.ndarray:
        """Where the samples at these positions lie."""
        return positions

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        """The numbers of the samples that lie at these indices."""
        return index

    def episodes_of(self, positions: Any) -> Any:
        """The episodes that the samples at these positions are in; None where they are not known."""
        return None

    def get_column_at(self, nested_keys: Any, positions: Any) -> Any:
        """One entry of the samples at these positions."""
        return self.get_column(tuple(nested_keys), self.index_of(np.asarray(positions)))
