"""TensorDicts and what they are made of: nested dicts of tensors, their spaces, and one contiguous buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.utils.optional import need

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict, TensorDictBase
else:
    torch = need("torch", extra="torch")
    TensorDict = need("tensordict", extra="torch").TensorDict
    TensorDictBase = need("tensordict", extra="torch").TensorDictBase

Key = tuple[str, ...]

_ALIGNMENT = 64
_CPU = torch.device("cpu")


def from_nested(data: Mapping[str, Any], batch: torch.Size) -> TensorDict:
    """The TensorDict of a nested dict of tensors, all of which begin with these axes. Nothing is checked."""
    return TensorDict._new_unsafe(data, batch_size=batch, device=_CPU)


def put(data: TensorDictBase, key: Any, value: torch.Tensor) -> None:
    """Set an entry of a TensorDict that `from_nested` has made; the value begins with its axes."""
    if type(data) is TensorDict and type(key) is str:
        data._tensordict[key] = value  # what `set` does once it has checked
    else:
        data.set(key, value)


def as_tensors(nested: Any) -> Any:
    """A nested dict of arrays as one of tensors over the same memory."""
    if isinstance(nested, Mapping):
        return {key: as_tensors(value) for key, value in nested.items()}
    return torch.from_numpy(nested) if isinstance(nested, np.ndarray) else torch.as_tensor(nested)


def to_nested(data: TensorDictBase, path: Key = ()) -> dict[str, Any]:
    """A nested dict of the tensors of a TensorDict, on the CPU; a TypeError where one is no tensor."""
    nested: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, TensorDictBase):
            nested[key] = to_nested(value, (*path, key))
        elif isinstance(value, torch.Tensor):
            nested[key] = value.detach().to(_CPU)
        else:
            where = "/".join((*path, key))
            raise TypeError(f"{where}: {type(value).__name__}, only tensors can be stored: encode it as one")
    return nested


def leaves(data: TensorDictBase) -> Iterator[tuple[Key, torch.Tensor]]:
    """The tensors of a TensorDict by their keys."""
    for key, value in data.items(include_nested=True, leaves_only=True):
        yield key if isinstance(key, tuple) else (key,), value


def key_of(key: Any) -> Key:
    """A key of a TensorDict as a tuple of strings."""
    return (key,) if isinstance(key, str) else tuple(key)


def space_of(data: TensorDictBase) -> DictSpace:
    """The space of one of the samples that a batch consists of, on PyTorch."""
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    def space(value: Any) -> Space:
        if isinstance(value, Mapping):
            return DictSpace(PyTorchComputeBackend, {key: space(child) for key, child in value.items()})
        if value.dtype == torch.bool:
            return BinarySpace(PyTorchComputeBackend, tuple(value.shape[1:]))
        return BoxSpace(PyTorchComputeBackend, -np.inf, np.inf, value.dtype, shape=tuple(value.shape[1:]))

    return space(to_nested(data))  # type: ignore[return-value]


# -- one buffer --------------------------------------------------------------------------------------------


def to_buffer(data: TensorDictBase) -> tuple[dict[str, Any], np.ndarray]:
    """All tensors of a TensorDict side by side in one array of bytes, and a description of plain values."""
    parts, end = [], 0
    for key, value in leaves(data):
        tensor = value.detach().to(_CPU)
        parts.append((key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(end, dtype=torch.uint8)
    for (_, _, shape, start), (_, value) in zip(parts, leaves(data), strict=True):
        nbytes = value.numel() * value.element_size()
        buffer[start : start + nbytes].view(value.dtype).view(shape).copy_(value)
    return {"batch": tuple(data.batch_size), "parts": parts}, buffer.numpy()


def from_buffer(description: Mapping[str, Any], buffer: np.ndarray) -> TensorDict:
    """The TensorDict that was put into a buffer; its tensors are views of one copy of that."""
    memory = torch.from_numpy(np.array(buffer))
    nested: dict[str, Any] = {}
    for key, dtype_name, shape, start in description["parts"]:
        dtype = getattr(torch, dtype_name)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        inner = nested
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        inner[key[-1]] = memory[start : start + nbytes].view(dtype).view(shape)
    return from_nested(nested, torch.Size(description["batch"]))
