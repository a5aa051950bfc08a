"""The PyTorch backend. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..utils.optional import need
from . import dtypes
from .base import ComputeBackend, RandomFunctions

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="torch")

__all__ = ["PyTorchArrayType", "PyTorchComputeBackend", "PyTorchDeviceType", "PyTorchDtypeType", "PyTorchRNGType"]

PyTorchArrayType = torch.Tensor
PyTorchDeviceType = torch.device | str
PyTorchDtypeType = torch.dtype
PyTorchRNGType = torch.Generator


class _PyTorchRandom(RandomFunctions[torch.Tensor, PyTorchDeviceType, torch.dtype, torch.Generator]):
    def random_number_generator(
        self, seed: int | None = None, *, device: PyTorchDeviceType | None = None
    ) -> torch.Generator:
        rng = torch.Generator(device=device or "cpu")
        if seed is None:
            rng.seed()
        else:
            # torch takes 64 bits, but its CPU generator uses only 32 of them: longer seeds are hashed
            rng.manual_seed(seed if 0 <= seed < 2**32 else _mixed(seed))
        return rng

    def random_uniform(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: torch.Generator,
        low: float = 0.0,
        high: float = 1.0,
        dtype: torch.dtype | None = None,
        device: PyTorchDeviceType | None = None,
    ) -> tuple[torch.Generator, torch.Tensor]:
        values = torch.rand(shape, generator=rng, dtype=_drawn_dtype(dtype), device=rng.device)
        return rng, _finish(low + values * (high - low), dtype, device)

    def random_normal(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: torch.Generator,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: torch.dtype | None = None,
        device: PyTorchDeviceType | None = None,
    ) -> tuple[torch.Generator, torch.Tensor]:
        values = torch.randn(shape, generator=rng, dtype=_drawn_dtype(dtype), device=rng.device)
        return rng, _finish(mean + std * values, dtype, device)

    def random_exponential(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: torch.Generator,
        lambd: float = 1.0,
        dtype: torch.dtype | None = None,
        device: PyTorchDeviceType | None = None,
    ) -> tuple[torch.Generator, torch.Tensor]:
        values = torch.empty(shape, dtype=_drawn_dtype(dtype), device=rng.device)
        return rng, _finish(values.exponential_(lambd, generator=rng), dtype, device)

    def random_discrete_uniform(
        self,
        shape: tuple[int, ...],
        /,
        from_num: Any,
        to_num: Any,
        *,
        rng: torch.Generator,
        dtype: torch.dtype | None = None,
        device: PyTorchDeviceType | None = None,
        endpoint: bool = False,
    ) -> tuple[torch.Generator, torch.Tensor]:
        dtype = dtype or torch.int64
        if isinstance(from_num, int) and isinstance(to_num, int):
            stop = to_num + 1 if endpoint else to_num
            if stop < 2**63 and stop - from_num < 2**63:
                values = torch.randint(from_num, stop, shape, generator=rng, dtype=torch.int64, device=rng.device)
                return rng, values.to(dtype=dtype, device=device)
        # torch.randint takes only one pair of bounds of at most 63 bits
        seed = int(torch.randint(0, 2**63 - 1, (), generator=rng, device=rng.device))
        low, high = (x.cpu().numpy() if isinstance(x, torch.Tensor) else x for x in (from_num, to_num))
        name = self._backend.dtype_name(dtype)
        host_rng = np.random.default_rng(seed)
        drawn = np.asarray(host_rng.integers(low, high, size=shape, dtype=name, endpoint=endpoint))
        return rng, torch.from_numpy(drawn).to(device=device or rng.device)

    def random_permutation(
        self,
        n: int,
        /,
        *,
        rng: torch.Generator,
        dtype: torch.dtype | None = None,
        device: PyTorchDeviceType | None = None,
    ) -> tuple[torch.Generator, torch.Tensor]:
        values = torch.randperm(n, generator=rng, device=rng.device)
        return rng, values.to(dtype=dtype or torch.int64, device=device)


def _mixed(seed: int) -> int:
    if seed < 0:
        raise ValueError(f"seed {seed} is negative, a seed is a non-negative integer")
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def _drawn_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype to draw: floats narrower than float32 are drawn as float32 and rounded, as on other backends."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _finish(values: torch.Tensor, dtype: torch.dtype | None, device: PyTorchDeviceType | None) -> torch.Tensor:
    return values.to(dtype=dtype or torch.float32, device=device)


_HOST = torch.device("cpu")
# torch cannot index-assign these unsigned dtypes: `replaced_at` uses views as the signed ones.
SIGNED_OF_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class _PyTorchBackend(ComputeBackend[torch.Tensor, PyTorchDeviceType, torch.dtype, torch.Generator]):
    simplified_name = "pytorch"
    ARRAY_TYPE = PyTorchArrayType
    DTYPE_TYPE = PyTorchDtypeType
    DEVICE_TYPE = PyTorchDeviceType
    RNG_TYPE = PyTorchRNGType

    def __init__(self) -> None:
        self.random = _PyTorchRandom(self)
        self._dtypes = {name: getattr(torch, name) for name in dtypes.KNOWN if hasattr(torch, name)}
        self._names = {dtype: name for name, dtype in self._dtypes.items()}

    @property
    def namespace(self) -> Any:
        import array_api_compat.torch

        return array_api_compat.torch

    @property
    def default_integer_dtype(self) -> torch.dtype:
        return torch.int32

    @property
    def default_floating_dtype(self) -> torch.dtype:
        return torch.float32

    def is_backendarray(self, data: Any) -> bool:
        return isinstance(data, torch.Tensor)

    def from_numpy(
        self,
        data: np.ndarray,
        /,
        *,
        dtype: torch.dtype | None = None,
        device: PyTorchDeviceType | None = None,
        copy: bool | None = None,
    ) -> torch.Tensor:
        array = np.asarray(data)
        name = dtypes.name_of(array.dtype)
        foreign = name in dtypes.FOREIGN_FLOATING
        if foreign:
            array = array.view(dtypes.raw_dtype(name))
        if copy or not _is_sharable(array):
            array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
        tensor = torch.from_numpy(array)
        if foreign:
            tensor = tensor.view(self._dtypes[name])
        return tensor if dtype is None and device is None else tensor.to(dtype=dtype, device=device)

    def to_numpy(self, data: torch.Tensor, /) -> np.ndarray:
        name = self._names.get(data.dtype)
        if name in dtypes.FOREIGN_FLOATING:
            from .numpy import NumpyComputeBackend

            return self.to_raw(data).view(NumpyComputeBackend.dtype_from_name(name))
        return data.numpy(force=True)

    def to_host(self, data: torch.Tensor, /) -> np.ndarray:
        # torch converts bfloat16 itself, so that ml_dtypes is not needed
        if self._names.get(data.dtype) in dtypes.FOREIGN_FLOATING:
            data = data.to(torch.float32)
        return data.numpy(force=True)

    def to_raw(self, data: torch.Tensor, /) -> np.ndarray:
        name = self._names.get(data.dtype)
        if name in dtypes.FOREIGN_FLOATING:
            return data.detach().view(torch.int16).numpy(force=True).view(dtypes.raw_dtype(name))
        return data.numpy(force=True)

    def from_raw(self, raw: np.ndarray, dtype_name: str, /, *, device: PyTorchDeviceType | None = None) -> torch.Tensor:
        if not raw.flags.writeable:
            raw = raw.copy()  # tensors are always writable
        if dtype_name in dtypes.FOREIGN_FLOATING:
            tensor = torch.from_numpy(raw.view(np.int16)).view(self._dtypes[dtype_name])
        else:
            tensor = torch.from_numpy(raw)
        return tensor if device is None or device == _HOST else tensor.to(device)  # `to` is slow even without a move

    def raw_decoder(
        self, dtype_name: str, /, *, device: PyTorchDeviceType | None = None
    ) -> Callable[[np.ndarray], torch.Tensor]:
        if dtype_name in dtypes.FOREIGN_FLOATING or (device is not None and device != _HOST):
            return super().raw_decoder(dtype_name, device=device)
        decoder: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy
        return decoder

    def replaced_at(self, x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
        signed = SIGNED_OF_UNSIGNED.get(x.dtype)
        if signed is None:
            return super().replaced_at(x, index, value)
        bits = torch.as_tensor(value, dtype=x.dtype, device=x.device).view(signed)
        return super().replaced_at(x.view(signed), index, bits).view(x.dtype)

    def merge_slots(self, x: torch.Tensor, mask: Any, value: torch.Tensor) -> torch.Tensor:
        return super().merge_slots(x, mask.to(x.device), value)

    def to_dlpack(self, data: torch.Tensor, /) -> Any:
        return data.__dlpack__()

    def from_dlpack(self, data: Any, /) -> torch.Tensor:
        return torch.from_dlpack(data)

    def device(self, data: torch.Tensor, /) -> torch.device:
        return data.device

    def to_device(self, data: torch.Tensor, device: PyTorchDeviceType | None, /) -> torch.Tensor:
        return data if device is None else data.to(device)

    def serialize_device(self, device: PyTorchDeviceType | None) -> str | None:
        if device is None:
            return None
        named = _parse_device(device)
        return named.type if named.index is None or named.type == "cpu" else f"{named.type}:{named.index}"

    def deserialize_device(self, name: str | None) -> torch.device | None:
        if name is None:
            return None
        device = _parse_device(name)
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError):  # absent, or not compiled in
            available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
            raise ValueError(f"PyTorch has no device {name!r} here, only {', '.join(available)}") from None
        return device

    def dtype_name(self, dtype: torch.dtype) -> str:
        try:
            return self._names[dtype]
        except (KeyError, TypeError):
            raise TypeError(f"{dtype!r} is not a PyTorch dtype that spaces can hold") from None

    def dtype_from_name(self, name: str) -> torch.dtype:
        try:
            return self._dtypes[name]
        except KeyError:
            raise TypeError(f"PyTorch has no dtype {name!r}") from None


def _is_sharable(array: np.ndarray) -> bool:
    """Whether a tensor can share this memory: tensors have no read-only, negative-stride or byte-swapped arrays."""
    strides_fit = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return array.flags.writeable and array.flags.aligned and array.dtype.isnative and strides_fit


def _parse_device(device: PyTorchDeviceType) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError:
        raise ValueError(f"{device!r} is not the name of a PyTorch device, such as 'cpu' or 'cuda:0'") from None


PyTorchComputeBackend = _PyTorchBackend()
