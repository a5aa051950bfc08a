"""Hugging Face datasets as batches. Needs the package `datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unienv_interface.backends import BackendLike
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space, TextSpace
from unienv_interface.space.space_utils import batch_space, concatenate, construct_space_from_data_stream
from unienv_interface.utils.optional import need

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.nested import columns_under, nested_item

datasets: Any = need("datasets", extra="huggingface")
pa: Any = need("pyarrow", extra="huggingface")
need("pyarrow.compute", extra="huggingface")

# The number of rows, spread over the dataset, that determine the space.
_SAMPLED_ROWS = 32
_TEXTS_PER_CHUNK = 100_000


class HFAsUniEnvDataset(BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A Hugging Face dataset as a read-only batch of dicts, with one entry per column.

    Columns are read from Arrow with their stored dtype; decoded columns (images, audio) are as in the dataset's NumPy
    format. Single columns can be read without the others.

    Parameters
    ----------
    hf_dataset
        The dataset.
    space
        The space of one row; `create` determines it.

    Examples
    --------
    >>> import datasets
    >>> table = datasets.Dataset.from_dict({"state": [[0.0, 1.0]] * 10, "label": list(range(10))})
    >>> data = HFAsUniEnvDataset.create(table, "numpy")
    >>> StepSampler(data, 4, seed=0).sample()["state"].shape
    (4, 2)
    """

    #: The dataset's name for the format of a backend, which is set on `hf_dataset`.
    BACKEND_TO_FORMAT_MAP = {"numpy": "numpy", "pytorch": "torch", "jax": "jax"}  # noqa: RUF012
    is_mutable = False

    def __init__(self, hf_dataset: Any, space: DictSpace) -> None:
        self.hf_dataset = hf_dataset.with_format(self.BACKEND_TO_FORMAT_MAP[space.backend.simplified_name])
        self._source = hf_dataset
        super().__init__(space)

    @staticmethod
    def create(hf_dataset: Any, backend: BackendLike, device: Any = None) -> HFAsUniEnvDataset:
        """Make a batch over a dataset; some rows determine its space, and all texts their length.

        Parameters
        ----------
        hf_dataset
            The dataset.
        backend, device
            The backend and device of the samples.

        Returns
        -------
        HFAsUniEnvDataset
            The batch.

        Raises
        ------
        ValueError
            The dataset is empty.
        """
        if not len(hf_dataset):
            raise ValueError("the dataset is empty: rows are needed to determine the space")
        sampled = np.unique(np.linspace(0, len(hf_dataset) - 1, _SAMPLED_ROWS).astype(np.int64))
        columns = _read_columns(hf_dataset, sampled)
        rows = (_row(columns, index) for index in range(len(sampled)))
        inferred: Any = construct_space_from_data_stream(rows, NumpyComputeBackend, add_bounds=False)
        longest = {key: child.max_length for key, child in inferred.items() if isinstance(child, TextSpace)}
        for start in range(0, len(hf_dataset), _TEXTS_PER_CHUNK) if longest else ():
            chunk = hf_dataset.select_columns(list(longest)).with_format("arrow")[start : start + _TEXTS_PER_CHUNK]
            for key, known in longest.items():
                longest[key] = max(known, pa.compute.max(pa.compute.utf8_length(chunk[key])).as_py() or 0)
        texts = {key: TextSpace(NumpyComputeBackend, length) for key, length in longest.items()}
        space = DictSpace(NumpyComputeBackend, {**dict(inferred.items()), **texts})
        return HFAsUniEnvDataset(hf_dataset, space.to(backend, device))

    def __len__(self) -> int:
        return len(self._source)

    def get_at(self, idx: Any) -> Any:
        return self._read(self._source, self.single_space, idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.get_at(idx), None

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        if not nested_keys:
            return self.get_at(idx)
        above, columns = columns_under(nested_keys)
        keys = [above[0]] if above or columns is None else [key for key, _ in columns.fields]
        nested_item(self.single_space, nested_keys)
        space: Any = self.single_space
        small = DictSpace(self.backend, {key: space[key] for key in keys})
        return nested_item(self._read(self._source.select_columns(keys), small, idx), nested_keys)

    def _read(self, source: Any, space: Space, idx: Any) -> Any:
        positions = resolve_index(self.backend, idx, len(self))
        columns = _read_columns(source, np.atleast_1d(np.asarray(positions)))
        if isinstance(positions, int):
            return _value(space, _row(columns, 0))
        return _batch(space, columns, len(positions))


# -- reading columns ---------------------------------------------------------------------------------------


def _read_columns(source: Any, positions: np.ndarray) -> dict[str, Any]:
    """Read the columns of some rows as arrays, dicts of arrays, or lists if sizes differ from row to row."""
    indices = positions.tolist()
    table = source.with_format("arrow")[indices]
    columns: dict[str, Any] = {}
    for key, feature in source.features.items():
        if isinstance(feature, (datasets.Image, datasets.Audio, datasets.Video)):
            columns[key] = list(source.select_columns([key]).with_format("numpy")[indices][key])
        else:
            columns[key] = _from_arrow(table[key].combine_chunks(), key)
    return columns


def _from_arrow(column: Any, name: str) -> Any:
    if column.null_count:
        raise ValueError(f"column {name!r} has rows without a value: fill or drop them")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_struct(kind):
        children = zip(kind, column.flatten(), strict=True)
        return {field.name: _from_arrow(child, f"{name}/{field.name}") for field, child in children}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        values = _from_arrow(column.flatten(), name)
        if isinstance(values, np.ndarray) and (lengths == lengths[:1]).all():
            return values.reshape(len(column), -1 if values.size else int(lengths.max(initial=0)), *values.shape[1:])
        ends = np.cumsum(lengths)
        return [values[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(object) if values.dtype.kind == "U" else values


def _row(columns: Any, index: int) -> Any:
    if isinstance(columns, dict):
        return {key: _row(column, index) for key, column in columns.items()}
    return columns[index]


# -- conversion to values of the space ---------------------------------------------------------------------


def _value(space: Space, value: Any) -> Any:
    """Convert the content of one row to a value of the space."""
    if isinstance(space, DictSpace):
        return {key: _value(child, value[key]) for key, child in space.items()}
    if isinstance(space, TextSpace):
        return str(value)
    backend = space.backend
    return backend.from_numpy(np.array(value), dtype=space.dtype, device=space.device)


def _batch(space: Space, column: Any, count: int) -> Any:
    """Convert a column to a batch of values of the space."""
    if not count:
        return batch_space(space, 0).create_empty()
    if isinstance(space, DictSpace):
        return {key: _batch(child, column[key], count) for key, child in space.items()}
    if isinstance(column, np.ndarray) and isinstance(space, (BoxSpace, BinarySpace)):
        if column.shape[1:] != space.shape:
            raise ValueError(f"values of shape {column.shape[1:]}, the space wants {space.shape}")
        return space.backend.from_numpy(column, dtype=space.dtype, device=space.device, copy=True)
    return concatenate(space, [_value(space, value) for value in column])
