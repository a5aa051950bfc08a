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
    """The collate function of a `DataLoader` over a `UniEnvAsPyTorchDataset`, which has collated the batch already.

    Parameters
    ----------
    items
        One `Collated`.
    **_
        Ignored; the default collate function passes a table of its own.

    Returns
    -------
    batch
        The batch as it is.
    """
    (item,) = items
    return item.batch


# So that the collate function which every `DataLoader` has by default passes such a batch on as it is.
collate.default_collate_fn_map[Collated] = collate_batch


class UniEnvAsPyTorchDataset(Dataset):
    """The samples of a batch for a `torch.utils.data.DataLoader`, as tensors whatever their backend.

    A batch of the loader is one read (`__getitems__`), which the loader's default collate function does not take apart
    and stack again. With workers the data goes to them by fork or by pickling, lambdas among it; a replay buffer whose
    samples they are to see as they are added is one with `multiprocessing=True`, or on disk.

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
        """The samples at these indices as one batch, in the wrapping that the default collate function unwraps."""
        positions = np.asarray(indices, np.int64)
        return [Collated(self._read(positions, len(positions)))]

    def _read(self, index: Any, count: int | None) -> Any:
        if not self.include_metadata:
            return _as_tensors(self.batch.single_space, self.batch.get_at(index), count)
        data, metadata = self.batch.get_at_with_metadata(index)
        space = self.batch.single_metadata_space
        if metadata is not None and space is not None:
            metadata = _as_tensors(space, metadata, count)
        # the default collate function knows no None
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
    """Tensors with memory of their own: columns of one block of rows would each take the whole block to the parent."""
    if isinstance(data, Mapping):
        return {key: _apart(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(map(_apart, data))
    return data.contiguous() if PyTorchComputeBackend.is_backendarray(data) else data


class PyTorchAsUniEnvDataset(BatchBase[BatchT, Any, Any, Any, Any]):
    """A map-style PyTorch dataset as a read-only batch of tensors.

    Its space is found from the first item: dicts and tuples of tensors, arrays, numbers and texts, as the default
    collate function of a `DataLoader` has them. An item of another shape is an error when it is read with others.

    Parameters
    ----------
    dataset
        The dataset, with items by index and a length.

    Raises
    ------
    TypeError
        The dataset has no items by index or no length, or its items are none that PyTorch collates.
    ValueError
        The dataset is empty, or no space holds its first item.

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
            raise TypeError(f"{type(dataset).__name__} has no items by index, a map-style dataset has: list it first")
        if not len(dataset):
            raise ValueError("the dataset is empty: its space is found from its first item")
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
        places = positions.tolist()
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(places)
        else:
            items = [self.dataset[place] for place in places]
        return _collated(items)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.get_at(idx), None


def _collated(items: Any) -> Any:
    return _as_batch(collate.default_collate(items))


def _as_batch(data: Any) -> Any:
    """What PyTorch makes of items as a batch of ours: tuples are tuples, and texts an array."""
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
