"""The JAX backend. Importing this module imports jax."""

from __future__ import annotations

import copyreg
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from ..utils.optional import need
from . import dtypes
from .base import ComputeBackend, RandomFunctions

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="jax")
    jnp = need("jax.numpy", extra="jax")

__all__ = ["JaxArrayType", "JaxComputeBackend", "JaxDeviceType", "JaxDtypeType", "JaxRNGType"]

JaxArrayType = jax.Array
JaxDeviceType = jax.Device | jax.sharding.Sharding
JaxDtypeType = jnp.dtype
JaxRNGType = jax.Array


class _JaxRandom(RandomFunctions[jax.Array, Any, Any, jax.Array]):
    """Random draws from raw uint32 keys (`jax.random.PRNGKey`), which pickle and fit into rows like other arrays."""

    def random_number_generator(self, seed: int | None = None, *, device: Any = None) -> jax.Array:
        if seed is None:
            seed = secrets.randbits(64)
        if seed < 0:
            raise ValueError(f"seed {seed} is negative, a seed is a non-negative integer")
        if seed < 2**32:
            return self._backend.to_device(jax.random.PRNGKey(seed), device)
        # without x64, PRNGKey drops all but 32 bits: seeds that differ in higher bits would give the same key
        first, second = np.random.SeedSequence(seed).generate_state(2)
        return self._backend.to_device(jax.random.fold_in(jax.random.PRNGKey(first), second), device)

    def random_uniform(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: jax.Array,
        low: float = 0.0,
        high: float = 1.0,
        dtype: Any = None,
        device: Any = None,
    ) -> tuple[jax.Array, jax.Array]:
        rng, key = jax.random.split(rng)
        values = jax.random.uniform(key, shape, self._drawn_dtype(dtype))
        return rng, self._finish(low + values * (high - low), dtype, device)

    def random_normal(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: jax.Array,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: Any = None,
        device: Any = None,
    ) -> tuple[jax.Array, jax.Array]:
        rng, key = jax.random.split(rng)
        values = jax.random.normal(key, shape, self._drawn_dtype(dtype))
        return rng, self._finish(mean + std * values, dtype, device)

    def random_exponential(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: jax.Array,
        lambd: float = 1.0,
        dtype: Any = None,
        device: Any = None,
    ) -> tuple[jax.Array, jax.Array]:
        rng, key = jax.random.split(rng)
        values = jax.random.exponential(key, shape, self._drawn_dtype(dtype))
        return rng, self._finish(values / lambd, dtype, device)

    def random_discrete_uniform(
        self,
        shape: tuple[int, ...],
        /,
        from_num: Any,
        to_num: Any,
        *,
        rng: jax.Array,
        dtype: Any = None,
        device: Any = None,
        endpoint: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        rng, key = jax.random.split(rng)
        dtype = self._backend.dtype_from_name(np.dtype(dtype or np.int64).name)
        if endpoint:
            low, high = (_fitting(end, dtype) for end in (from_num, to_num))
            values = _draw_inclusive(key, shape, low, high, dtype)
        else:
            values = jax.random.randint(key, shape, from_num, to_num, dtype)
        return rng, self._backend.to_device(values, device)

    def random_permutation(
        self, n: int, /, *, rng: jax.Array, dtype: Any = None, device: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        rng, key = jax.random.split(rng)
        values = jax.random.permutation(key, n)
        if dtype is not None:
            values = values.astype(self._backend.dtype_from_name(np.dtype(dtype).name))
        return rng, self._backend.to_device(values, device)

    def _drawn_dtype(self, dtype: Any) -> Any:
        wide = dtype is None or np.dtype(dtype) == np.float64
        return self._backend.default_floating_dtype if wide else np.dtype(np.float32)

    def _finish(self, values: jax.Array, dtype: Any, device: Any) -> jax.Array:
        values = values if dtype is None else values.astype(self._backend.dtype_from_name(np.dtype(dtype).name))
        return self._backend.to_device(values, device)


def _fitting(end: Any, dtype: Any) -> np.ndarray:
    """Convert an end of an integer range to NumPy; raises an OverflowError if the dtype cannot hold it."""
    values, limits = np.asarray(end), np.iinfo(dtype)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise OverflowError(f"{end} does not fit {dtype.name}; JAX has 64-bit integers if jax_enable_x64 is set")
    return values


def _draw_inclusive(key: jax.Array, shape: tuple[int, ...], low: np.ndarray, high: np.ndarray, dtype: Any) -> jax.Array:
    """randint with both ends included, also where `high + 1` does not fit the dtype."""
    if dtype.itemsize < 4:
        return jax.random.randint(key, shape, low.astype(np.int32), high.astype(np.int32) + 1, np.int32).astype(dtype)
    limits = np.iinfo(dtype)
    at_top = high == limits.max
    full_range = at_top & (low == limits.min)
    # If `high` is the largest value of the dtype, draw from a range one lower and add one; if `low` is also the
    # smallest value, take raw bits.
    shift = (at_top & ~full_range).astype(dtype)
    start = low.astype(dtype) - shift
    stop = np.where(at_top, high, np.where(at_top, 0, high) + 1).astype(dtype)
    if full_range.all():
        return _draw_bits(key, shape, dtype)
    values = jax.random.randint(key, shape, start, stop, dtype) + shift
    if full_range.any():
        values = jnp.where(full_range, _draw_bits(jax.random.fold_in(key, 1), shape, dtype), values)
    return values


def _draw_bits(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return jax.lax.bitcast_convert_type(jax.random.bits(key, shape, unsigned), dtype)


class _JaxBackend(ComputeBackend[jax.Array, Any, Any, jax.Array]):
    """The JAX backend. Without `jax_enable_x64`, 32-bit dtypes stand for the 64-bit ones."""

    simplified_name = "jax"
    ARRAY_TYPE = JaxArrayType
    DTYPE_TYPE = JaxDtypeType
    DEVICE_TYPE = JaxDeviceType
    RNG_TYPE = JaxRNGType

    def __init__(self) -> None:
        self.random = _JaxRandom(self)

    @property
    def namespace(self) -> Any:
        return jnp

    def is_backendarray(self, data: Any) -> bool:
        return isinstance(data, jax.Array)

    def from_numpy(
        self, data: np.ndarray, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
    ) -> jax.Array:
        array = np.asarray(data)
        native = self.dtype_from_name(dtypes.name_of(array.dtype))
        if array.dtype.kind in "iu" and native.itemsize < array.dtype.itemsize and array.size:
            limits = np.iinfo(native)
            low, high = array.min(), array.max()
            if low < limits.min or high > limits.max:
                raise OverflowError(
                    f"values from {low} to {high} do not fit {native.name}, and JAX holds no {array.dtype.name} "
                    "unless jax_enable_x64 is set"
                )
        if copy is False and dtype is None and native == array.dtype and _is_sharable(array):
            return self.to_device(jnp.from_dlpack(array), device)
        target = native if dtype is None else self.dtype_from_name(np.dtype(dtype).name)
        return jax.device_put(jnp.array(array.astype(native, copy=False), dtype=target), device)

    def to_numpy(self, data: jax.Array, /) -> np.ndarray:
        return np.asarray(data)

    def to_raw(self, data: jax.Array, /) -> np.ndarray:
        array = np.asarray(data)
        name = dtypes.name_of(array.dtype)
        return array.view(dtypes.raw_dtype(name)) if name in dtypes.FOREIGN_FLOATING else array

    def from_raw(self, raw: np.ndarray, dtype_name: str, /, *, device: Any = None) -> jax.Array:
        if dtype_name in dtypes.FOREIGN_FLOATING:
            raw = raw.view(self.dtype_from_name(dtype_name))
        return self.from_numpy(raw, device=device)

    def take_slots(self, x: jax.Array, slots: np.ndarray) -> jax.Array:
        if slots.all():
            return x
        # on the host: JAX would compile the selection for every number of slots
        device = x.device if isinstance(x.device, jax.Device) else None  # a sharding may not fit fewer slots
        return jax.device_put(np.asarray(x)[slots], device)

    def merge_slots(self, x: jax.Array, mask: Any, value: jax.Array) -> jax.Array:
        if value.shape[0] != x.shape[0]:
            # expand to every slot, so that one compilation serves all masks
            every_slot = np.zeros(x.shape, x.dtype)
            every_slot[np.asarray(mask)] = value
            value = jax.device_put(every_slot)
        return super().merge_slots(x, mask, value)

    def to_dlpack(self, data: jax.Array, /) -> Any:
        return data.__dlpack__()

    def from_dlpack(self, data: Any, /) -> jax.Array:
        return jnp.from_dlpack(data)

    def device(self, data: jax.Array, /) -> Any:
        return data.device

    def to_device(self, data: jax.Array, device: Any, /) -> jax.Array:
        return data if device is None else jax.device_put(data, device)

    def serialize_device(self, device: Any) -> str | None:
        if device is None:
            return None
        device = _without_sharding(device)
        if not isinstance(device, jax.Device):
            raise ValueError(f"{device!r} has no name, it must be one JAX device or a sharding over one")
        return f"{device.platform}:{device.id}"

    def deserialize_device(self, name: str | None) -> Any:
        if name is None:
            return None
        platform, _, number = name.partition(":")
        try:
            devices = {str(device.id): device for device in jax.devices(platform)} if platform else {}
        except RuntimeError:
            devices = {}
        if (number or "0") not in devices:
            available = ", ".join(f"{device.platform}:{device.id}" for device in jax.devices())
            raise ValueError(f"JAX has no device {name!r} here, only {available}")
        return devices[number or "0"]

    def check_device(self, device: Any) -> None:
        if device is not None and not isinstance(device, (jax.Device, jax.sharding.Sharding)):
            raise ValueError(f"{device!r} is not a JAX device, such as jax.devices()[0], or a sharding")

    def same_device(self, one: Any, other: Any) -> bool:
        return _without_sharding(one) == _without_sharding(other)  # shardings over several devices have no name

    def dtype_name(self, dtype: Any) -> str:
        return dtypes.name_of(np.dtype(dtype))

    def dtype_from_name(self, name: str) -> Any:
        if name not in dtypes.KNOWN:
            raise TypeError(f"JAX has no dtype {name!r}")
        return jax.dtypes.canonicalize_dtype(jnp.dtype(name))


def _is_sharable(array: np.ndarray) -> bool:
    """Whether JAX can share this memory; NumPy exports no read-only or bfloat16 arrays."""
    known = array.dtype.isnative and dtypes.name_of(array.dtype) not in dtypes.FOREIGN_FLOATING
    # JAX 0.6, the last for Python 3.10, scrambles memory in Fortran's order that is not aligned
    return known and array.flags.writeable and array.flags.c_contiguous


def _without_sharding(device: Any) -> Any:
    """The device of a sharding over one device; any other argument is returned unchanged."""
    if isinstance(device, jax.sharding.Sharding) and len(device.device_set) == 1:
        (device,) = device.device_set
    return device


def _reduce_device(device: Any) -> Any:
    return JaxComputeBackend.deserialize_device, (JaxComputeBackend.serialize_device(device),)


JaxComputeBackend = _JaxBackend()
copyreg.pickle(jax.Device, _reduce_device)  # JAX devices do not pickle, but spaces on a device must
