"""Compute backends: one array library behind one interface.

A backend is an object used as a namespace. It has the array-API functions of its library (through
array-api-compat), the helpers of array-api-extra, and adds `random`, conversions, device moves and properties of
dtypes. Each library has one backend object, so backends compare by identity; they pickle by name.
"""

from __future__ import annotations

import abc
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Generic

import numpy as np
from typing_extensions import TypeVar

from . import dtypes

BArrayType = TypeVar("BArrayType", default=Any)
BDeviceType = TypeVar("BDeviceType", default=Any)
BDtypeType = TypeVar("BDtypeType", default=Any)
BRNGType = TypeVar("BRNGType", default=Any)

ArrayAPIArray = Any
ArrayAPIGetIndex = Any
ArrayAPISetIndex = Any


class RandomFunctions(abc.ABC, Generic[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Random draws of one backend. Each function takes a generator and returns it with the value.

    A NumPy or PyTorch generator advances in place and is returned itself; a JAX key is split and the new key is
    returned. Code that always continues with the returned generator works on all three backends.

    Parameters
    ----------
    backend
        The backend of the draws.

    Examples
    --------
    >>> random = NumpyComputeBackend.random
    >>> rng = random.random_number_generator(0)
    >>> rng, value = random.random_uniform((3,), rng=rng, low=-1.0, high=1.0)
    >>> value.shape
    (3,)
    """

    @abc.abstractmethod
    def random_number_generator(self, seed: int | None = None, *, device: BDeviceType | None = None) -> BRNGType:
        """Make a generator. The same seed gives the same draws; None takes a seed from the operating system."""

    @abc.abstractmethod
    def random_uniform(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: BRNGType,
        low: float = 0.0,
        high: float = 1.0,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
    ) -> tuple[BRNGType, BArrayType]:
        """Draw floats uniformly from [low, high); rounding to a narrow dtype may give `high` itself."""

    @abc.abstractmethod
    def random_normal(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: BRNGType,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
    ) -> tuple[BRNGType, BArrayType]:
        """Draw floats from the normal distribution."""

    @abc.abstractmethod
    def random_exponential(
        self,
        shape: tuple[int, ...],
        /,
        *,
        rng: BRNGType,
        lambd: float = 1.0,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
    ) -> tuple[BRNGType, BArrayType]:
        """Draw floats from the exponential distribution with rate `lambd`."""

    @abc.abstractmethod
    def random_discrete_uniform(
        self,
        shape: tuple[int, ...],
        /,
        from_num: Any,
        to_num: Any,
        *,
        rng: BRNGType,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
        endpoint: bool = False,
    ) -> tuple[BRNGType, BArrayType]:
        """Draw integers uniformly from [from_num, to_num), or from [from_num, to_num] with `endpoint`.

        The ends are ints or integer arrays that broadcast to `shape`. Only with `endpoint` can the largest value of
        a dtype be drawn; the ends must then not be traced by JAX.
        """

    @abc.abstractmethod
    def random_permutation(
        self,
        n: int,
        /,
        *,
        rng: BRNGType,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
    ) -> tuple[BRNGType, BArrayType]:
        """Draw a random order of the numbers 0 to n-1."""

    def random_geometric(
        self,
        shape: tuple[int, ...],
        /,
        *,
        p: float,
        rng: BRNGType,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
    ) -> tuple[BRNGType, BArrayType]:
        """Draw numbers of trials up to and including the first success; each trial succeeds with probability `p`.

        Raises
        ------
        ValueError
            `p` does not lie in (0, 1].
        """
        if not 0.0 < p <= 1.0:
            raise ValueError(f"p is {p}, a probability of success lies in (0, 1]")
        waits: Any
        rng, waits = self.random_exponential(shape, rng=rng, lambd=1.0, device=device)
        rate = -float(np.log1p(-p)) if p < 1.0 else np.inf
        trials = self._backend.floor(waits / rate) + 1
        name = self._backend.dtype_name(dtype or self._backend.default_integer_dtype)
        # not astype: NumPy turns arrays without axes into numbers
        return rng, self._backend.asarray(trials, dtype=self._backend.dtype_from_name(name))

    def __init__(self, backend: ComputeBackend) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return f"{self._backend}.random"


class ComputeBackend(abc.ABC, Generic[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """One array library as a namespace; see the module's docstring.

    Every conversion documents whether memory is shared. A read-only array (a read-only NumPy array, a JAX array)
    never becomes a writable array of the same memory, and an immutable array never shares memory that other code may
    write to.

    Examples
    --------
    >>> numpy = parse_backend("numpy")
    >>> rng = numpy.random.random_number_generator(0)
    >>> rng, noise = numpy.random.random_normal((3,), rng=rng)
    >>> noise.shape
    (3,)
    """

    simplified_name: str
    random: RandomFunctions[BArrayType, BDeviceType, BDtypeType, BRNGType]
    ARRAY_TYPE: Any
    DTYPE_TYPE: Any
    DEVICE_TYPE: Any
    RNG_TYPE: Any

    @property
    @abc.abstractmethod
    def namespace(self) -> Any:
        """The array-API namespace of the library."""

    # -- the namespace -------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"backend {self.simplified_name} has no attribute {name!r}")
        value = self._look_up(name)
        self.__dict__[name] = value  # later lookups skip __getattr__
        return value

    def _look_up(self, name: str) -> Any:
        import array_api_extra

        if hasattr(self.namespace, name):
            return getattr(self.namespace, name)
        helper = getattr(array_api_extra, name, None)
        if helper is None or isinstance(helper, types.ModuleType):
            raise AttributeError(
                f"backend {self.simplified_name} has no attribute {name!r}: it is neither in the array API, "
                f"nor in array-api-extra, nor in {self.namespace.__name__}"
            )
        takes_namespace = inspect.isfunction(helper) and "xp" in inspect.signature(helper).parameters
        return functools.partial(helper, xp=self.namespace) if takes_namespace else helper

    def __array_namespace_info__(self) -> Any:
        return self.namespace.__array_namespace_info__()

    # -- identity ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return self.simplified_name

    def __reduce__(self) -> tuple[Callable[[str], ComputeBackend], tuple[str]]:
        from .serialization import deserialize_backend

        return deserialize_backend, (self.simplified_name,)

    def __copy__(self) -> ComputeBackend:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ComputeBackend:
        return self

    # -- arrays and conversions ----------------------------------------------------------------------------

    @abc.abstractmethod
    def is_backendarray(self, data: Any) -> bool:
        """Whether `data` is an array of this backend."""

    @abc.abstractmethod
    def from_numpy(
        self,
        data: np.ndarray,
        /,
        *,
        dtype: BDtypeType | None = None,
        device: BDeviceType | None = None,
        copy: bool | None = None,
    ) -> BArrayType:
        """Convert a NumPy array to an array of this backend.

        NumPy and PyTorch (on the CPU) share the memory of a writable array; PyTorch copies a read-only array, since
        it has no read-only tensors. JAX copies, since its arrays must not change. `copy=True` always copies;
        `copy=False` shares memory wherever the library can, and the caller promises that no code writes to it.
        """

    @abc.abstractmethod
    def to_numpy(self, data: BArrayType, /) -> np.ndarray:
        """Convert an array of this backend to a NumPy array.

        On the CPU the memory is shared: writable for NumPy and PyTorch, read-only for JAX.
        """

    @abc.abstractmethod
    def to_raw(self, data: BArrayType, /) -> np.ndarray:
        """Convert an array to NumPy bit by bit: like `to_numpy`, with bfloat16 as uint16."""

    @abc.abstractmethod
    def from_raw(self, raw: np.ndarray, dtype_name: str, /, *, device: BDeviceType | None = None) -> BArrayType:
        """Invert `to_raw`. The array shares the memory where possible, and the caller must not write to it."""

    def raw_decoder(
        self, dtype_name: str, /, *, device: BDeviceType | None = None
    ) -> Callable[[np.ndarray], BArrayType]:
        """`from_raw` bound to a dtype and a device, for writable arrays without negative strides."""
        return lambda raw: self.from_raw(raw, dtype_name, device=device)

    def to_host(self, data: BArrayType, /) -> np.ndarray:
        """Convert an array to a NumPy array of a dtype that NumPy computes with: bfloat16 becomes float32."""
        values = self.to_numpy(data)
        dtype = dtypes.host_dtype(self.dtype_name(data.dtype))  # type: ignore[attr-defined]
        return values if values.dtype == dtype else values.astype(dtype)

    def from_host(self, values: np.ndarray, /, dtype: BDtypeType, *, device: BDeviceType | None = None) -> BArrayType:
        """Convert a NumPy array to a new array of the given dtype: the inverse of `to_host`."""
        name = self.dtype_name(dtype)
        if name in dtypes.FOREIGN_FLOATING:
            narrow = np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape)
            return self.astype(self.from_numpy(narrow, device=device, copy=True), dtype)
        return self.from_numpy(np.asarray(values, dtype=name), device=device, copy=True)

    def from_other_backend(self, other_backend: ComputeBackend, data: Any, /) -> BArrayType:
        """Convert an array of another backend to this backend; shares CPU memory where `from_numpy` would."""
        if other_backend is self:
            return data
        name = other_backend.dtype_name(data.dtype)
        if name in dtypes.FOREIGN_FLOATING:
            # As raw bits, so that NumPy need not know the dtype; copied, since `from_raw` may share the memory.
            return self.from_raw(other_backend.to_raw(data).copy(), name)
        return self.from_numpy(other_backend.to_numpy(data))

    @abc.abstractmethod
    def to_dlpack(self, data: BArrayType, /) -> Any:
        """The DLPack capsule of an array, for libraries without a backend."""

    @abc.abstractmethod
    def from_dlpack(self, data: Any, /) -> BArrayType:
        """Make an array that shares the memory of an object with DLPack; the caller must not write to it."""

    @abc.abstractmethod
    def device(self, data: BArrayType, /) -> BDeviceType:
        """The device an array lies on."""

    @abc.abstractmethod
    def to_device(self, data: BArrayType, device: BDeviceType | None, /) -> BArrayType:
        """Move an array to a device; returns the array itself if it is there already or `device` is None."""

    @abc.abstractmethod
    def serialize_device(self, device: BDeviceType | None) -> str | None:
        """The name of a device, for JSON; None for the default device."""

    @abc.abstractmethod
    def deserialize_device(self, name: str | None) -> BDeviceType | None:
        """The device with a name; if this machine does not have it, a ValueError lists its devices."""

    def check_device(self, device: BDeviceType | None) -> None:
        """Raise a ValueError if `device` is not a valid device of the library; the machine may lack it."""
        self.serialize_device(device)

    def same_device(self, one: BDeviceType | None, other: BDeviceType | None) -> bool:
        """Whether two devices are the same device."""
        return self.serialize_device(one) == self.serialize_device(other)

    # -- dtypes --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def dtype_name(self, dtype: BDtypeType) -> str:
        """The array-API name of a dtype, such as "float32" or "bfloat16"."""

    @abc.abstractmethod
    def dtype_from_name(self, name: str) -> BDtypeType:
        """The dtype with an array-API name; a TypeError if the library has none.

        JAX without `jax_enable_x64` has no 64-bit types and gives the 32-bit ones, as it does everywhere.
        """

    @property
    def default_integer_dtype(self) -> BDtypeType:
        """The default dtype of integers."""
        return self.dtype_from_name("int64")

    @property
    def default_floating_dtype(self) -> BDtypeType:
        """The default dtype of floating-point numbers."""
        return self.dtype_from_name("float64")

    @property
    def default_boolean_dtype(self) -> BDtypeType:
        """The dtype of booleans."""
        return self.dtype_from_name("bool")

    @property
    def default_index_dtype(self) -> BDtypeType:
        """The dtype of index arrays."""
        return self.dtype_from_name("int64")

    def dtype_is_real_integer(self, dtype: BDtypeType | None) -> bool:
        """Return whether a dtype holds integers; False for None."""
        return dtype is not None and self.dtype_name(dtype) in dtypes.INTEGER

    def dtype_is_real_floating(self, dtype: BDtypeType | None) -> bool:
        """Return whether a dtype holds real floating-point numbers; False for None."""
        return dtype is not None and self.dtype_name(dtype) in dtypes.FLOATING

    def dtype_is_boolean(self, dtype: BDtypeType | None) -> bool:
        """Return whether a dtype holds booleans; False for None."""
        return dtype is not None and self.dtype_name(dtype) in dtypes.BOOLEAN

    def dtype_is_complex(self, dtype: BDtypeType | None) -> bool:
        """Return whether a dtype holds complex numbers; False for None."""
        return dtype is not None and self.dtype_name(dtype) in dtypes.COMPLEX

    # -- array helpers -------------------------------------------------------------------------------------

    def abbreviate_array(self, array: BArrayType, try_cast_scalar: bool = True) -> Any:
        """Shorten an array for printing: an axis whose entries are all equal is reduced to one entry.

        A uniform array becomes a Python number with `try_cast_scalar`, else an array of one element per axis.
        """
        short = abbreviate(self.to_host(array))
        if try_cast_scalar and short.size == 1:
            return short.item()
        return self.from_host(short, array.dtype)  # type: ignore[attr-defined]

    def map_fn_over_arrays(self, data: Any, func: Callable[[BArrayType], Any]) -> Any:
        """Apply `func` to every array of this backend in nested dicts, lists and tuples; keep all other values."""
        if self.is_backendarray(data):
            return func(data)
        if isinstance(data, Mapping):
            return {key: self.map_fn_over_arrays(value, func) for key, value in data.items()}
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*(self.map_fn_over_arrays(value, func) for value in data))
        if isinstance(data, (list, tuple)):
            return type(data)(self.map_fn_over_arrays(value, func) for value in data)
        return data

    def replaced_at(self, x: BArrayType, index: Any, value: Any) -> BArrayType:
        """Copy `x` with `x[index]` replaced; `index` as in NumPy (ints, slices, index arrays, masks)."""
        return self.at(x)[index].set(value, copy=True)

    def take_slots(self, x: BArrayType, slots: np.ndarray) -> BArrayType:
        """Take the slots of a batch that a NumPy mask selects, in order."""
        return x[self.from_numpy(slots)]  # type: ignore[index]

    def merge_slots(self, x: BArrayType, mask: Any, value: BArrayType) -> BArrayType:
        """Copy the batch `x` with the slots of a mask replaced by slots of `value`.

        `value` holds every slot, or only the slots of the mask, in order. With every slot, JAX can trace the call.
        """
        if value.shape[0] != x.shape[0]:  # type: ignore[attr-defined]
            return self.replaced_at(x, mask, value)
        per_slot = self.reshape(mask, (-1,) + (1,) * (len(x.shape) - 1))  # type: ignore[attr-defined]
        return self.where(per_slot, self.astype(value, x.dtype), x)  # type: ignore[attr-defined]

    def pad_dim(self, x: BArrayType, dim: int, target_size: int, value: int | float = 0) -> BArrayType:
        """Append `value` along axis `dim` up to `target_size`; a ValueError if `x` is longer already."""
        shape = tuple(x.shape)  # type: ignore[attr-defined]
        missing = target_size - shape[dim]
        if missing < 0:
            raise ValueError(f"axis {dim} has size {shape[dim]}, it cannot be padded to {target_size}")
        if missing == 0:
            return x
        dim = dim % len(shape)
        filler_shape = (*shape[:dim], missing, *shape[dim + 1 :])
        filler = self.full(filler_shape, value, dtype=x.dtype, device=self.device(x))  # type: ignore[attr-defined]
        return self.concat([x, filler], axis=dim)


def abbreviate(values: np.ndarray) -> np.ndarray:
    """Reduce every axis whose entries are all equal to one entry; empty axes stay."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1:
            first = values.take([0], axis=axis)
            if np.array_equal(np.broadcast_to(first, values.shape), values, equal_nan=values.dtype.kind in "fc"):
                values = first
    return values
