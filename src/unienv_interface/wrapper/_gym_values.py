"""Functions that convert the values of environments between Gymnasium and UniEnv.

`from_gym_data` and `to_gym_data` dispatch on the kind of space at every call. The spaces of an environment do not
change, so a bridge builds a reader or writer once, and a step costs one plain call per array. NumPy arrays with the
dtype and shape of their box take the shortest path.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends import dtypes
from ..backends.base import ComputeBackend
from ..backends.numpy import NumpyComputeBackend
from ..space import Space
from ..space.mismatch import join_path, prepend_key
from ..space.space_utils import batch_utils
from ..space.space_utils.gym_utils import from_gym_data, from_gym_space, to_gym_data
from ..space.spaces import ArraySpace, BoxSpace, DictSpace, TupleSpace
from ..space.spaces.batched import object_array
from ..utils.optional import need

if TYPE_CHECKING:
    import gymnasium
    import gymnasium.vector.utils as vector_utils
else:
    gymnasium = need("gymnasium", extra="gymnasium")
    vector_utils = need("gymnasium.vector.utils", extra="gymnasium")

Convert = Callable[[Any], Any]

# The kinds whose values, and whose batches of values, are single arrays.
_ARRAY_KINDS = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)


# -- spaces of batches -------------------------------------------------------------------------------------


def batched_from_gym(single: Any, batched: Any, backend: ComputeBackend, device: Any, path: str) -> Space:
    """Convert the batched space of a vector environment, given also its space of one value, `single`.

    Gymnasium batches a Text, Graph, Sequence or OneOf as a Tuple: only `single` distinguishes it from a batch of
    tuples. Bounds come from `batched`, since they may differ between slots.
    """

    def child(key: Any) -> Space:
        return batched_from_gym(single[key], batched[key], backend, device, join_path(path, key))

    if isinstance(single, gymnasium.spaces.Dict):
        return DictSpace(backend, [(key, child(key)) for key in single.spaces], device)
    if isinstance(single, gymnasium.spaces.Tuple):
        return TupleSpace(backend, [child(key) for key in range(len(single.spaces))], device)
    try:
        if isinstance(single, gymnasium.spaces.MultiBinary):  # its batch is a Box of integers
            return batch_utils.batch_space(from_gym_space(single, backend, device=device), batched.shape[0])
        if isinstance(single, _ARRAY_KINDS):
            return from_gym_space(batched, backend, device=device)
        slots = [from_gym_space(slot, backend, device=device) for slot in batched.spaces]
        return batch_utils.batch_differing_spaces(slots, device)
    except (TypeError, ValueError, OverflowError) as error:
        prepend_key(error, path)
        raise


# -- from Gymnasium ----------------------------------------------------------------------------------------


def reader(gym_space: Any, space: Space, path: str, *, batched: bool = False) -> Convert:
    """Make a function that converts values of `gym_space` to values of `space`; the result is a copy.

    With `batched` the values are batches: `space` is the space of the batch, `gym_space` the space of one value.
    Errors begin with `path`.
    """
    return _converter(gym_space, space, path, batched, _leaf_reader)


def _leaf_reader(gym_space: Any, space: Space, path: str, batched: bool) -> Convert:
    if isinstance(gym_space, _ARRAY_KINDS) and isinstance(space, ArraySpace):
        return _array_reader(space, path)
    if batched:
        single = _single_of(space)
        read_slot = reader(gym_space, single, path)
        return lambda data: batch_utils.concatenate(single, [read_slot(value) for value in data])
    return _with_path(lambda data: from_gym_data(space, copying.deepcopy(data)), path)


def _array_reader(space: ArraySpace, path: str) -> Convert:
    backend, device, shape = space.backend, space.device, space.shape
    dtype = None if space.dtype_name in dtypes.FOREIGN_FLOATING else np.dtype(space.dtype_name)

    def read_any(data: Any) -> Any:
        values = np.asarray(data)
        if values.dtype == dtype and values.shape == shape:
            return backend.from_numpy(values, device=device, copy=True)
        return from_gym_data(space, values)  # casts to a new array, or raises

    general = _with_path(read_any, path)
    if backend is not NumpyComputeBackend or dtype is None:
        return general
    if shape == () and dtype.kind in "iu":
        scalar = dtype.type
        return lambda data: np.array(data, dtype) if type(data) is scalar or type(data) is int else general(data)

    def read_fitting(data: Any) -> Any:
        if type(data) is np.ndarray and data.dtype == dtype and data.shape == shape:
            return data.copy()
        return general(data)

    return read_fitting


def signal_reader(backend: ComputeBackend, device: Any, dtype: Any) -> Convert:
    """Make a function that copies the rewards or flags of a vector environment to an array of the backend."""
    return lambda values: backend.from_numpy(np.asarray(values), dtype=dtype, device=device, copy=True)


# -- to Gymnasium ------------------------------------------------------------------------------------------


def writer(gym_space: Any, space: Space, path: str, *, batched: bool = False) -> Convert:
    """Make a function that converts values of `space` to values of `gym_space`; the result is a copy.

    Arguments as for `reader`. A Discrete also takes a Python int.
    """
    return _converter(gym_space, space, path, batched, _leaf_writer)


def _leaf_writer(gym_space: Any, space: Space, path: str, batched: bool) -> Convert:
    if isinstance(gym_space, _ARRAY_KINDS) and isinstance(space, ArraySpace):
        return _array_writer(gym_space, space, path, batched)
    if batched:
        write_slot = writer(gym_space, _single_of(space), path)
        return lambda data: tuple([write_slot(value) for value in batch_utils.iterate(space, data)])
    if isinstance(gym_space, gymnasium.spaces.Sequence) and gym_space.stack:
        return _with_path(lambda data: _stacked(gym_space.feature_space, to_gym_data(space, data)), path)
    return _with_path(lambda data: copying.deepcopy(to_gym_data(space, data)), path)


def _array_writer(gym_space: Any, space: ArraySpace, path: str, batched: bool) -> Convert:
    dtype, shape = np.dtype(gym_space.dtype), space.shape
    is_alike = space.backend is NumpyComputeBackend and isinstance(space, BoxSpace) and space.dtype == dtype
    general = _with_path(lambda value: np.array(to_gym_data(space, value), dtype), path)

    def write(value: Any) -> Any:
        if is_alike and type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value.copy()
        return general(value)

    if batched or not isinstance(gym_space, gymnasium.spaces.Discrete):
        return write
    scalar = dtype.type

    def write_scalar(value: Any) -> Any:
        if type(value) is scalar:
            return value
        return scalar(value) if isinstance(value, int) else write(value)[()]

    return write_scalar


def _stacked(feature_space: Any, items: tuple[Any, ...]) -> Any:
    """Stack the items of a Sequence with `stack=True`."""
    out: Any = vector_utils.create_empty_array(feature_space, len(items))
    return vector_utils.concatenate(feature_space, items, out) if items else out


# -- both directions ---------------------------------------------------------------------------------------


def _converter(gym_space: Any, space: Space, path: str, batched: bool, leaf: Callable[..., Convert]) -> Convert:
    """Make the conversion for a space; `leaf` makes the conversions for spaces that are neither dict nor tuple."""

    def child(key: Any, child_space: Space) -> Convert:
        return _converter(gym_space[key], child_space, join_path(path, key), batched, leaf)

    if isinstance(gym_space, gymnasium.spaces.Dict) and isinstance(space, DictSpace):
        return _dict_converter({key: child(key, child_space) for key, child_space in space.spaces.items()}, path)
    if isinstance(gym_space, gymnasium.spaces.Tuple) and isinstance(space, TupleSpace):
        return _tuple_converter([child(key, child_space) for key, child_space in enumerate(space.spaces)], path)
    return leaf(gym_space, space, path, batched)


def _dict_converter(converters: Mapping[str, Convert], path: str) -> Convert:
    pairs = tuple(converters.items())

    def convert_dict(data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping) or data.keys() != converters.keys():
            described = f"keys {list(data)}" if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"{path}: {described}, the space wants a dict with the keys {list(converters)}")
        return {key: convert(data[key]) for key, convert in pairs}

    return convert_dict


def _tuple_converter(converters: Iterable[Convert], path: str) -> Convert:
    converters = tuple(converters)

    def convert_tuple(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (tuple, list, np.ndarray)) or len(data) != len(converters):
            described = f"{len(data)} items" if hasattr(data, "__len__") else type(data).__name__
            raise ValueError(f"{path}: {described}, the space wants a tuple of {len(converters)}")
        return tuple([convert(value) for convert, value in zip(converters, data, strict=True)])

    return convert_tuple


def _with_path(convert: Convert, path: str) -> Convert:
    """Wrap a conversion so that its errors begin with `path`."""

    def convert_located(data: Any) -> Any:
        try:
            return convert(data)
        except (TypeError, ValueError, OverflowError) as error:
            prepend_key(error, path)
            raise

    return convert_located


def _single_of(space: Space) -> Space:
    """The space of one value of a batch."""
    return next(iter(batch_utils.unbatch_spaces(space)))


# -- infos -------------------------------------------------------------------------------------------------


def owned_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Copy infos with their dicts and arrays, so that the environment cannot change them."""
    return _map_info(info, np.copy)


def rows_of_info(info: Mapping[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Take the slots of `mask` from the infos of all slots."""
    return _map_info(info, lambda array: array[mask] if array.shape[:1] == mask.shape else array)


def spread_info(info: Mapping[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Spread the infos of the slots of `mask` to all slots, with masks `_key`, which is Gymnasium's format.

    The other slots are filled with zeros, or with None if the values are objects.
    """
    count = int(np.count_nonzero(mask))
    spread: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, Mapping):
            spread[key] = spread_info(value, mask)
        elif isinstance(value, (list, np.ndarray)) and len(value) == count:
            rows = value if isinstance(value, np.ndarray) else object_array((count,), value)
            spread[key] = np.full((len(mask), *rows.shape[1:]), None if rows.dtype == object else 0, rows.dtype)
            spread[key][mask] = rows
        else:
            spread[key] = value
            continue
        if not key.startswith("_"):
            spread.setdefault(f"_{key}", mask.copy())
    return spread


def _map_info(info: Mapping[str, Any], fn: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    return {
        key: fn(value) if isinstance(value, np.ndarray) else _map_info(value, fn) if isinstance(value, dict) else value
        for key, value in info.items()
    }
