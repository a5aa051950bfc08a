"""Conversions between TensorDicts, nested dicts of tensors, spaces, and one contiguous buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.utils.optional import need

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict, TensorDictBase, is_non_tensor
else:
    torch = need("torch", extra="torch")
    TensorDict = need("tensordict", extra="torch").TensorDict
    TensorDictBase = need("tensordict", extra="torch").TensorDictBase
    is_non_tensor = need("tensordict", extra="torch").is_non_tensor

Key = tuple[str, ...]

_ALIGNMENT = 64
_RAGGED = "an entry must have one shape in all samples, pad shorter values and add a mask"
_CPU = torch.device("cpu")


def from_nested(data: Mapping[str, Any], batch: torch.Size) -> TensorDict:
    """Wrap a nested dict of tensors with these leading axes, without checks."""
    return TensorDict._new_unsafe(data, batch_size=batch, device=_CPU)


def from_columns(columns: Mapping[Key, torch.Tensor], batch: torch.Size) -> TensorDict:
    """Wrap tensors by key, with these leading axes, without checks."""
    nested: dict[str, Any] = {}
    for key, column in columns.items():
        inner = nested
        for name in key[:-1]:
            inner = inner.setdefault(name, {})
        inner[key[-1]] = column
    return from_nested(nested, batch)


def put(data: TensorDictBase, key: Any, value: torch.Tensor) -> None:
    """Set an entry of a TensorDict of `from_nested`; the value must have its leading axes."""
    if type(data) is TensorDict and type(key) is str:
        data._tensordict[key] = value  # `set` without its checks
    else:
        data.set(key, value)


def as_tensors(nested: Any) -> Any:
    """Convert a nested dict of arrays to tensors over the same memory."""
    if isinstance(nested, Mapping):
        return {key: as_tensors(value) for key, value in nested.items()}
    return torch.from_numpy(nested) if isinstance(nested, np.ndarray) else torch.as_tensor(nested)


def to_nested(data: TensorDictBase, path: Key = ()) -> dict[str, Any]:
    """Convert a TensorDict to a nested dict of tensors on the CPU; a TypeError if an entry is no tensor."""
    nested: dict[str, Any] = {}
    for key, value in _items(data, path):
        if isinstance(value, TensorDictBase):
            nested[key] = to_nested(value, (*path, key))
        elif isinstance(value, torch.Tensor):
            nested[key] = value.detach().to(_CPU)
        else:
            name = "/".join((*path, key))
            raise TypeError(f"{name}: {type(value).__name__}, only tensors can be stored: encode it as one")
    return nested


def _items(data: TensorDictBase, path: Key) -> list[tuple[str, Any]]:
    try:
        return list(data.items())
    except RuntimeError as error:  # a lazy stack is stacked here
        raise ValueError(f"{'/'.join(path) or 'the samples'}: {_RAGGED}: {error}") from error


def stacked(samples: list[TensorDictBase]) -> TensorDictBase:
    """Stack samples to a batch; a ValueError if the shapes of an entry differ."""
    try:
        return torch.stack(samples)
    except RuntimeError as error:
        raise ValueError(f"the samples: {_RAGGED}: {error}") from error


def leaves(data: TensorDictBase) -> Iterator[tuple[Key, torch.Tensor]]:
    """Iterate over the tensors of a TensorDict with their keys."""
    for key, value in data.items(include_nested=True, leaves_only=True):
        yield key if isinstance(key, tuple) else (key,), value


def flat_items(data: Any, path: Key = ()) -> dict[Key, Any]:
    """Collect the values of a nested dict, or of a TensorDict, by their keys."""
    if isinstance(data, TensorDictBase):
        return {(*path, *key): value for key, value in leaves(data)}
    if not isinstance(data, Mapping):
        raise TypeError(f"{type(data).__name__}, wanted a TensorDict or a dict of entries")
    items: dict[Key, Any] = {}
    for key, value in data.items():
        inner = (*path, *key_of(key))
        items |= flat_items(value, inner) if isinstance(value, (Mapping, TensorDictBase)) else {inner: value}
    return items


def key_of(key: Any) -> Key:
    """Convert a key of a TensorDict to a tuple of strings; a TypeError if it is no key."""
    keys = (key,) if isinstance(key, str) else key
    if not isinstance(keys, (tuple, list)) or not keys or not all(isinstance(name, str) for name in keys):
        raise TypeError(f"key {key!r}: wanted a string, or a tuple of strings")
    return tuple(keys)


def space_of(data: TensorDictBase) -> DictSpace:
    """Make the PyTorch space of one sample of a batch."""
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    def space(value: Any) -> Space:
        if isinstance(value, Mapping):
            return DictSpace(PyTorchComputeBackend, {key: space(child) for key, child in value.items()})
        if value.dtype == torch.bool:
            return BinarySpace(PyTorchComputeBackend, tuple(value.shape[1:]))
        return BoxSpace(PyTorchComputeBackend, -np.inf, np.inf, value.dtype, shape=tuple(value.shape[1:]))

    return space(to_nested(data))  # type: ignore[return-value]


# -- a TensorDict in one buffer ------------------------------------------------------------------------------


def to_buffer(data: TensorDictBase) -> tuple[dict[str, Any], np.ndarray]:
    """Copy all tensors of a TensorDict into one array of bytes, and describe them by plain values."""
    entries, end = [], 0
    for key, value in leaves(data):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{'/'.join(key)}: {type(value).__name__}, only tensors can be stored: encode it as one")
        entries.append((key, str(value.dtype).removeprefix("torch."), tuple(value.shape), end))
        end += -(-value.numel() * value.element_size() // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(end, dtype=torch.uint8)
    for (_, _, shape, start), (_, value) in zip(entries, leaves(data), strict=True):
        nbytes = value.numel() * value.element_size()
        buffer[start : start + nbytes].view(value.dtype).view(shape).copy_(value.detach())
    return {"batch": tuple(data.batch_size), "parts": entries}, buffer.numpy()


def from_buffer(description: Mapping[str, Any], buffer: np.ndarray) -> TensorDict:
    """Rebuild the TensorDict of a buffer; its tensors are views of one copy of the buffer."""
    memory = torch.from_numpy(np.array(buffer))
    columns: dict[Key, torch.Tensor] = {}
    for key, dtype_name, shape, start in description["parts"]:
        dtype = getattr(torch, dtype_name)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        columns[tuple(key)] = memory[start : start + nbytes].view(dtype).view(tuple(shape))
    return from_columns(columns, torch.Size(description["batch"]))
