"""Objects that answer questions with exceptions, or look like a value and are none."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class RefusalError(Exception):
    """What the objects here raise, so that nobody can have expected it."""


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RefusalError


class RaisingEverything:
    """Raises on every question that code is likely to ask."""

    __eq__ = __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = __repr__ = __str__ = _refuse
    __array__ = __index__ = __int__ = __float__ = __lt__ = __le__ = __getattr__ = __hash__ = _refuse


class RaisingClass:
    """isinstance() asks for __class__."""

    __class__ = property(_refuse)


class RaisingArray(np.ndarray):
    shape = property(_refuse)
    dtype = property(_refuse)


class RaisingUfuncArray(np.ndarray):
    __array_ufunc__ = _refuse


class RaisingDict(dict[Any, Any]):
    __iter__ = __contains__ = keys = items = __getitem__ = _refuse


class ForgetfulMapping(Mapping[str, Any]):
    """Has every key, and no value."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class RaisingKey(str):
    __repr__ = __str__ = __format__ = _refuse
    __hash__ = str.__hash__


class RaisingTuple(tuple[Any, ...]):
    __len__ = __iter__ = __getitem__ = _refuse


class RaisingText(str):
    __len__ = __iter__ = _refuse


class RaisingIndex(int):
    __le__ = __lt__ = __ge__ = __gt__ = __index__ = __repr__ = _refuse


class RaisingMeta(type):
    __name__ = property(_refuse)


class NamedPair(NamedTuple):
    first: int
    second: int


class Nameless(metaclass=RaisingMeta):
    pass


def _recursive_list() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def _recursive_dict() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    return loop


def _recursive_objects() -> np.ndarray:
    loop = np.empty(3, object)
    loop[:] = [loop] * 3
    return loop


def _deep(depth: int = 100_000) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


HOSTILE: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "ellipsis": lambda: ...,
    "type": lambda: np.ndarray,
    "module": lambda: np,
    "lambda": lambda: lambda: None,
    "int": lambda: 0,
    "huge_int": lambda: 10**400,
    "bool": lambda: True,
    "float_nan": lambda: float("nan"),
    "complex": lambda: 1j,
    "bytes": lambda: b"abc",
    "surrogates": lambda: "\ud800\udfff",
    "nul": lambda: "\0",
    "long_text": lambda: "x" * 100_000,
    "list": lambda: [0.0, 0.0, 0.0],
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "generator": lambda: (i for i in range(3)),
    "pair": lambda: (0, 0),
    "pair_of_wrong_index": lambda: (-1, None),
    "pair_of_numpy_index": lambda: (np.uint64(2**63), None),
    "pair_of_nan": lambda: (float("nan"), None),
    "pair_of_raising_index": lambda: (RaisingIndex(0), None),
    "raising_everything": RaisingEverything,
    "raising_class": RaisingClass,
    "raising_array": lambda: np.zeros(3, np.float32).view(RaisingArray),
    "raising_ufunc": lambda: np.zeros(3, np.float32).view(RaisingUfuncArray),
    "raising_dict": lambda: RaisingDict(a=1),
    "forgetful_mapping": ForgetfulMapping,
    "raising_key": lambda: {RaisingKey("surplus"): 0},
    "raising_tuple": lambda: RaisingTuple((1, 2, 3)),
    "raising_text": lambda: RaisingText("abc"),
    "nameless": Nameless,
    "nameless_in_tuple": lambda: (Nameless(), Nameless(), Nameless()),
    "keys_of_all_kinds": lambda: {1: 0, None: 0, (): 0, "a": 0},
    "mapping_proxy": lambda: types.MappingProxyType({"rgb": 1}),
    "ordered_dict": lambda: collections.OrderedDict(rgb=1),
    "counter": lambda: collections.Counter("abc"),
    "named_tuple": lambda: NamedPair(0, 0),
    "recursive_list": _recursive_list,
    "recursive_dict": _recursive_dict,
    "recursive_objects": _recursive_objects,
    "deep_list": _deep,
    "nan_array": lambda: np.full(3, np.nan, np.float32),
    "masked_array": lambda: np.ma.masked_array(np.full(3, 9.0, np.float32), mask=[True, False, True]),
    "matrix": lambda: np.zeros((3, 1), np.float32).view(np.matrix),
    "structured": lambda: np.zeros(3, [("a", "f4"), ("b", "i4")]),
    "record": lambda: np.zeros(3, [("a", "f4")]).view(np.recarray),
    "objects": lambda: np.array([None, object(), "a"], object),
    "no_objects": lambda: np.empty(0, object),
    "objects_of_raising": lambda: _objects(RaisingEverything, 3),
    "strings": lambda: np.array(["a", "bc", ""]),
    "byte_strings": lambda: np.array([b"a"]),
    "dates": lambda: np.zeros(3, "M8[s]"),
    "void": lambda: np.void(b"abc"),
    "long_double": lambda: np.zeros(3, np.longdouble),
    "big_endian": lambda: np.full(3, 9.0, ">f4"),
    "numpy_scalar": lambda: np.float32(9.0),
    "numpy_text": lambda: np.str_("*"),
    "zero_dimensional": lambda: np.array(9.0),
    "many_axes": lambda: np.zeros((1,) * 32, np.float32),
    "no_memory": lambda: np.broadcast_to(np.float32(0), (2**20, 2**20, 2**20)),
}


@functools.cache
def hostile_objects() -> dict[str, Any]:
    return {name: make() for name, make in HOSTILE.items()}


def _objects(make: Callable[[], Any], count: int) -> np.ndarray:
    array = np.empty(count, object)
    for position in range(count):
        array[position] = make()
    return array


@functools.cache
def hostile_tensors() -> dict[str, Any]:
    """PyTorch tensors that cannot be read like others."""
    import torch

    dense = torch.full((3,), 9.0)
    return {
        "sparse": dense.to_sparse(),
        "meta": torch.zeros(3, device="meta"),
        "nested": torch.nested.nested_tensor([dense, dense], layout=torch.jagged),
        "float8": dense.to(torch.float8_e4m3fn),
        "conjugate": torch.zeros(3, dtype=torch.complex64).conj() / 0,
        "generator": torch.Generator(),
    }


@functools.cache
def hostile_jax_arrays() -> dict[str, Any]:
    """JAX arrays that cannot be read like others."""
    import jax
    import jax.numpy as jnp

    deleted = jnp.full(3, 9.0)
    deleted.delete()
    traced: list[Any] = []
    jax.make_jaxpr(lambda x: traced.append(x))(jnp.full(3, 9.0))
    return {"deleted": deleted, "traced": traced[0], "key": jax.random.key(0), "int4": jnp.zeros(3, jnp.int4)}
