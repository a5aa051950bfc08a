"""Batches as PyTorch datasets, and PyTorch datasets as batches. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_space, construct_space_from_data
from unienv_interface.utils.channel import Portable
from unienv_interface.utils.optional import need

from ..base.common import BatchBase, BatchT, resolve_index

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from torch.utils.data._utils import collate
else:
    Dataset = need("torch.utils.data", extra="torch").Dataset
    collate = need("torch.utils.data._utils.collate", extra="torch")


class Collated(NamedTuple):
    """A batch that was read as a whole, which a `DataLoader` passes on unchanged.

    Attributes
    ----------
    batch
        The samples, as tensors with a leading axis.
    """

    batch: Any


def collate_batch(items: Sequence[Collated], **_: Any) -> Any:
    """Collate function of a `DataLoader` over a `UniEnvAsPyTorchDataset`, which returns collated batches.

    Parameters
    ----------
    items
        One `Collated`.
    **_
        Ignored; PyTorch's default collate function passes its table of functions.

    Returns
    -------
    batch
        The batch, unchanged.
    """
    (item,) = items
    return item.batch


# The default collate function of a `DataLoader` now returns a `Collated` batch unchanged.
collate.default_collate_fn_map[Collated] = collate_batch


class UniEnvAsPyTorchDataset(Dataset):
    """The samples of a batch for a `torch.utils.data.DataLoader`, as tensors for any backend.

    A batch of the loader is one read (`__getitems__`), without stacking single samples. Workers get the data by fork or
    by pickling (lambdas are supported). They see samples that are added later if the replay buffer has
    `multiprocessing=True` or is on disk.

    Parameters
    ----------
    batch
        The samples.
    include_metadata
        Whether an item is a pair of a sample and its metadata.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader(UniEnvAsPyTorchDataset(buffer), batch_size=32, shuffle=True)
    >>> next(iter(loader))["obs"].shape
    torch.Size([32, 4])
    """

    def __init__(self, batch: BatchBase, include_metadata: bool = False) -> None:
        self.batch = batch
        self.include_metadata = include_metadata

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: int) -> Any:
        return self._read(index, None)

    def __getitems__(self, indices: Sequence[int]) -> list[Collated]:
        """Read the samples at these indices as one `Collated` batch."""
        positions = np.asarray(indices, np.int64)
        return [Collated(self._read(positions, len(positions)))]

    def _read(self, index: Any, count: int | None) -> Any:
        if not self.include_metadata:
            return _as_tensors(self.batch.single_space, self.batch.get_at(index), count)
        data, metadata = self.batch.get_at_with_metadata(index)
        space = self.batch.single_metadata_space
        if metadata is not None and space is not None:
            metadata = _as_tensors(space, metadata, count)
        # PyTorch's default collate function does not accept None.
        return _as_tensors(self.batch.single_space, data, count), {} if metadata is None else metadata

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batch": Portable(self.batch)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "batch": state["batch"].value})


def _as_tensors(space: Space, data: Any, count: int | None) -> Any:
    if space.backend is not PyTorchComputeBackend:
        space = space if count is None else batch_space(space, count)
        data = space.data_to(data, PyTorchComputeBackend)
    return _apart(data) if need("torch.utils.data", extra="torch").get_worker_info() is not None else data


def _apart(data: Any) -> Any:
    """Copy tensors to separate memory: a worker would send the whole block of rows with each column."""
    if isinstance(data, Mapping):
        return {key: _apart(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(map(_apart, data))
    return data.contiguous() if PyTorchComputeBackend.is_backendarray(data) else data


class PyTorchAsUniEnvDataset(BatchBase[BatchT, Any, Any, Any, Any]):
    """A map-style PyTorch dataset as a read-only batch of tensors.

    The first item determines the space: dicts and tuples of tensors, arrays, numbers and texts, as PyTorch's default
    collate function supports them. Reading an item of another shape together with others is an error.

    Parameters
    ----------
    dataset
        The dataset, with items by index and a length.

    Raises
    ------
    TypeError
        The dataset has no items by index or no length, or PyTorch cannot collate its items.
    ValueError
        The dataset is empty, or no space fits its first item.

    Examples
    --------
    >>> import torch
    >>> data = PyTorchAsUniEnvDataset(torch.utils.data.TensorDataset(torch.zeros(100, 3), torch.ones(100)))
    >>> states, labels = StepSampler(data, 8, seed=0).sample()
    >>> states.shape
    torch.Size([8, 3])
    """

    is_mutable = False

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(f"{type(dataset).__name__} is no map-style dataset, with items by index: make a list of it")
        if not len(dataset):
            raise ValueError("the dataset is empty: the first item is needed to determine the space")
        self.dataset = dataset
        super().__init__(construct_space_from_data(_first(_collated([dataset[0]])), PyTorchComputeBackend))

    def __len__(self) -> int:
        return len(self.dataset)

    def get_at(self, idx: Any) -> Any:
        positions = resolve_index(self.backend, idx, len(self))
        if isinstance(positions, int):
            return _first(_collated([self.dataset[positions]]))
        if not len(positions):
            return batch_space(self.single_space, 0).create_empty()
        indices = positions.tolist()
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(indices)
        else:
            items = [self.dataset[index] for index in indices]
        return _collated(items)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.get_at(idx), None


def _collated(items: Any) -> Any:
    return _as_batch(collate.default_collate(items))


def _as_batch(data: Any) -> Any:
    """Convert a batch of PyTorch's collate function: lists of columns to tuples, and texts to an array."""
    if isinstance(data, Mapping):
        return {key: _as_batch(value) for key, value in data.items()}
    if not isinstance(data, (list, tuple)):
        return data
    if data and all(isinstance(value, str) for value in data):
        return np.array(data, object)
    return tuple(map(_as_batch, data))


def _first(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _first(value) for key, value in data.items()}
    return tuple(map(_first, data)) if isinstance(data, tuple) else data[0]
