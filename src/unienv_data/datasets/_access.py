"""Access to the samples of a replay by index and key, and the chain of transforms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend

from ..base.common import is_single, resolve_index
from ._sampling import Drawer
from ._storage import SampleStorage
from .tensordicts import Key, TensorDictBase, flat_items, from_columns, key_of, torch

if TYPE_CHECKING:
    from typing_extensions import Self

Transform = Callable[["TensorDictBase"], "TensorDictBase"]


class _Entry(NamedTuple):
    transform: Transform
    is_inverted: bool


class TransformChain:
    """A list of transforms. A transform runs on reading and its inverse on writing; with `invert`, the reverse.

    The inverse is the transform's method `inv`; without this method, nothing runs.
    """

    def __init__(self, transform: Transform | None = None) -> None:
        self._entries: list[_Entry] = []
        if transform is not None:
            self.insert(0, transform, invert=False)

    def insert(self, index: int, transform: Transform, *, invert: bool) -> None:
        """Insert a transform before the transform at `index`."""
        if not callable(transform):
            raise TypeError(f"transform is {type(transform).__name__}, wanted a function of a TensorDict")
        if not -len(self) - 1 <= index <= len(self):
            raise ValueError(f"index {index} for {len(self)} transforms")
        self._entries.insert(index if index >= 0 else len(self) + 1 + index, _Entry(transform, invert))

    def on_read(self, data: Any) -> Any:
        """Transform samples that were read."""
        for transform, is_inverted in self._entries:
            data = _backward(transform, data) if is_inverted else _checked(transform, transform(data))
        return data

    def on_write(self, data: Any) -> Any:
        """Transform samples before they are written."""
        for transform, is_inverted in reversed(self._entries):
            data = _checked(transform, transform(data)) if is_inverted else _backward(transform, data)
        return data

    def copy(self) -> TransformChain:
        """Copy the chain, with the same transforms."""
        other = TransformChain()
        other._entries = list(self._entries)
        return other

    def state_dicts(self) -> list[Any]:
        """Collect the state of each transform that has a `state_dict`; None for the others."""
        return [transform.state_dict() if hasattr(transform, "state_dict") else None for transform in self]

    def load_state_dicts(self, states: list[Any]) -> None:
        """Restore the states of `state_dicts`."""
        if len(states) != len(self):
            raise ValueError(f"the states of {len(states)} transforms, this replay has {len(self)}")
        for transform, state in zip(self, states, strict=True):
            if state is not None:
                transform.load_state_dict(state)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Transform:
        return self._entries[index].transform

    def __iter__(self) -> Iterator[Transform]:
        return (entry.transform for entry in self._entries)

    def __repr__(self) -> str:
        return f"TransformChain({', '.join(map(repr, self))})"


def _backward(transform: Transform, data: Any) -> Any:
    inverse = getattr(transform, "inv", None)
    return data if inverse is None else _checked(inverse, inverse(data))


def _checked(transform: Any, data: Any) -> Any:
    if data is None:
        raise TypeError(f"the transform {transform!r} returned None, it must return the TensorDict")
    return data


class SampleAccess:
    """Reads and changes the samples of a replay by index and key."""

    _storage: SampleStorage
    _drawer: Drawer
    _transforms: TransformChain
    _lock: threading.RLock

    def __len__(self) -> int:
        return len(self._storage)

    def _index(self, index: Any) -> int | np.ndarray:
        if isinstance(index, torch.Tensor):
            index = int(index) if is_single(index) and index.dtype != torch.bool else index.cpu().numpy()
        return resolve_index(NumpyComputeBackend, index, len(self))

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """Read samples by index, through the transforms; or an entry of all samples by its key, without transforms.

        The key of a group, such as "next", gives a TensorDict. If samples have inner axes (trajectories), `replay[2,
        5:]` indexes inside sample 2, and `replay[:8, 0]` inside the first eight.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and all(isinstance(key, str) for key in index)):
            return self._read_entry(key_of(index))
        index, inner_index = _split_index(index)
        with self._lock:
            data: Any = self._storage.get(self._index(index))
        data = self._transforms.on_read(data) if len(self._transforms) else data
        return data[inner_index] if inner_index else data

    def __getitems__(self, indices: Any) -> Any:
        """Read the samples of a batch, for a `torch.utils.data.DataLoader` with `collate_fn=lambda batch: batch`."""
        return self[np.asarray(indices, np.int64)]

    def _read_entry(self, key: Key) -> Any:
        with self._lock:
            every = np.arange(len(self))
            entries = self._storage.entries()
            if key in entries:
                return self._storage.get_column(key, every)
            group = {entry[len(key) :]: entry for entry in entries if entry[: len(key)] == key}
            if not group:
                raise KeyError(f"there is no entry {key}, there are {sorted(entries)}")
            columns = {inner: self._storage.get_column(entry, every) for inner, entry in group.items()}
        return from_columns(columns, torch.Size((len(every), *self._storage.inner_batch)))

    def read_all_in_order(self, end: int | None = None) -> Any:
        """Read all samples, or the first `end`, in the order of their indices."""
        return self[: len(self) if end is None else end]

    # -- changing --------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite samples by index, through the transforms; new entries are added to all samples."""
        if not isinstance(data, (TensorDictBase, Mapping)):
            raise TypeError(f"{type(data).__name__}, samples are a TensorDict")
        index, inner_index = _split_index(index)
        with self._lock:
            indices = np.atleast_1d(self._index(index))
            data = self._transforms.on_write(data)
            if inner_index:
                samples: Any = self._storage.get(self._index(index))
                samples[inner_index] = data
                data = samples
            items = flat_items(data.unsqueeze(0) if is_single(index) and isinstance(data, TensorDictBase) else data)
            self._set_entries(items, indices)
            self._drawer.wrote(self._storage, indices, is_new=False)

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first samples in the order of their indices.

        New entries are added to all samples: samples without a value in `data` get NaN or zero. Entries that `data`
        lacks keep their values. For a recorded dataset the changes are in the memory of this replay only.

        Parameters
        ----------
        data
            A TensorDict with a leading axis for the samples.
        end
            The number of samples to overwrite, by default the length of `data`.

        Raises
        ------
        ValueError
            If the samples do not fit, or a value does not fit its entry. Nothing changes then.
        """
        if not isinstance(data, TensorDictBase) or not data.batch_dims:
            raise TypeError(f"{type(data).__name__}, write_all wants a TensorDict with a leading axis for the samples")
        count = len(data) if end is None else end
        if not 0 <= count <= len(self) or count > len(data):
            raise ValueError(f"end is {count}, data has {len(data)} samples and the replay {len(self)}")
        self[:count] = data[:count]

    def set_(self, key: Any, value: Any) -> Self:
        """Set an entry of all samples, or add one: one value for each sample, or one number for all.

        Examples
        --------
        >>> data.set_("advantage", advantages)  # doctest: +SKIP
        """
        return self.set_at_(key, value, slice(None))

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Set an entry of the samples at these indices.

        A new entry is added to all samples; the other samples get NaN, or zero if it is no float. For a recorded
        dataset the changes are in the memory of this replay only.

        Parameters
        ----------
        key
            The key of the entry, a string or a tuple of strings.
        value
            One value for each of the samples, or one for all.
        index
            The indices of the samples.

        Raises
        ------
        ValueError
            If the value has another shape, or the dtype of the entry does not hold it.
        """
        if key_of(key) == ("index",):
            raise ValueError("index cannot be set: sampling adds the index of each sample under this key")
        with self._lock:
            self._set_entries({key_of(key): value}, np.atleast_1d(self._index(index)))
        return self

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Any = None) -> Self:
        """Set entries of all samples, or add them, from a dict or TensorDict.

        Parameters
        ----------
        input_dict_or_td
            The values by key, nested like the samples.
        clone
            Makes no difference: values are always copied.
        keys_to_update
            The keys whose values are used, by default all. The key of a group selects all its entries.
        """
        items = flat_items(input_dict_or_td)
        if keys_to_update is not None:
            chosen = [key_of(key) for key in keys_to_update]
            items = {key: value for key, value in items.items() if any(key[: len(start)] == start for start in chosen)}
        with self._lock:
            self._set_entries(items, np.arange(len(self)))
        return self

    def _set_entries(self, items: Mapping[Key, Any], index: np.ndarray) -> None:
        """Check all entries, then set them for some samples, or add them."""
        storage, inner = self._storage, self._storage.inner_batch
        items = {key: value for key, value in items.items() if key != ("index",)}  # added by sampling
        entries = storage.entries()
        known: dict[Key, torch.Tensor] = {}
        new: dict[Key, torch.Tensor] = {}
        for key, value in items.items():
            if key in entries:
                known[key] = fitted(key, value, len(index), storage.get_column(key, np.zeros(1, np.int64)))
            else:
                check_new_key(key, [*entries, *new])
                new[key] = _new_column(key, value, len(index), inner)
        if known and known.keys() == set(entries) and not new:
            storage.set(index, from_columns(known, torch.Size((len(index), *inner))))
        else:
            for key, column in known.items():
                storage.set_column(key, index, column)
        for key, column in new.items():
            storage.add_column(key, _at(column, index, len(self)))


def _split_index(index: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an index into the index of samples and the index of their inner axes, which may be empty."""
    if not isinstance(index, tuple) or not index:
        return index, ()
    first, *rest = index
    if not is_single(first) and not isinstance(first, slice):
        raise TypeError(f"index {index!r}: the index of samples before an inner index must be a number or a slice")
    return first, tuple(rest) if is_single(first) else (slice(None), *rest)


def check_new_key(key: Key, entries: list[Key]) -> None:
    """Raise a ValueError if a new key conflicts with an entry or a group of entries."""
    for entry in entries:
        shorter, longer = sorted((key, entry), key=len)
        if longer[: len(shorter)] == shorter:
            kind = "a group of entries" if entry == longer else "an entry"
            raise ValueError(f"{'/'.join(key)} cannot be added: {'/'.join(shorter)} is {kind} of the samples")


def _tensor(key: Key, value: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{'/'.join(key)}: {type(value).__name__} is no tensor, array or number: {error}") from None


def fitted(key: Key, value: Any, count: int, entry: torch.Tensor) -> torch.Tensor:
    """Convert a value to the dtype and shape of an entry, for `count` samples; a ValueError if it does not fit."""
    tensor, wanted = _tensor(key, value), (count, *entry.shape[1:])
    if not _holds(entry.dtype, tensor):
        raise ValueError(f"{'/'.join(key)}: values of {tensor.dtype} that the entry's {entry.dtype} does not hold")
    converted = tensor.to(entry.dtype)
    try:
        return converted.broadcast_to(wanted)
    except RuntimeError:
        shape = tuple(tensor.shape)
        raise ValueError(f"{'/'.join(key)}: shape {shape}, wanted {wanted} for these indices") from None


def _holds(dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    """Whether a dtype can represent values; rounding floats to less precision is allowed."""
    if tensor.dtype == dtype or (tensor.is_floating_point() and (dtype.is_floating_point or dtype.is_complex)):
        return True
    if tensor.is_complex():
        return dtype.is_complex
    return torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


def _new_column(key: Key, value: Any, count: int, inner: tuple[int, ...]) -> torch.Tensor:
    tensor, lead = _tensor(key, value), (count, *inner)
    if not tensor.ndim:
        return tensor.expand(lead)
    if tuple(tensor.shape[: len(lead)]) != lead:
        raise ValueError(
            f"{'/'.join(key)}: shape {tuple(tensor.shape)}, a new entry needs the leading axes {lead}, of the samples"
        )
    return tensor


def _at(column: torch.Tensor, index: np.ndarray, count: int) -> torch.Tensor:
    """Make a column for all samples with these values at these indices; else NaN for floats and zero otherwise."""
    is_float = column.dtype.is_floating_point or column.dtype.is_complex
    whole = torch.full((count, *column.shape[1:]), float("nan") if is_float else 0, dtype=column.dtype)
    whole[torch.from_numpy(index)] = column
    return whole
