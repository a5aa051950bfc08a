"""Convert values between Gymnasium's spaces and UniEnv's.

Every step of an environment converts values of Box and Discrete, so on NumPy fitting values are returned unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends import dtypes
from ...backends.numpy import NumpyComputeBackend
from ...utils.optional import need
from .._bounds import Bounds
from ..dispatch import rule_per_space
from ..mismatch import prepend_key, validate
from ..space import Space
from ..spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphInstance,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)
from ..spaces.batched import object_array
from ._gym_spaces import check_sequence, discrete_count, no_counterpart, sequence_feature

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = need("gymnasium", extra="gymnasium")

# The NumPy dtypes of Gymnasium's values.
_HOST = {name: dtypes.host_dtype(name) for name in dtypes.KNOWN}


@rule_per_space
def to_gym_data(space: Space, data: Any) -> Any:
    """Convert a value of `space` to a value of `to_gym_space(space)`.

    Parameters
    ----------
    space
        The space of the value.
    data
        The value. Its structure, shapes and dtypes are checked, not its bounds.

    Returns
    -------
    value
        On the CPU arrays share memory with `data`; arrays from JAX are read-only. Copy arrays before you write to them.

    Raises
    ------
    ValueError
        The value has another structure, shape or dtype than the space.
    TypeError
        Gymnasium has no counterpart of the space.

    Examples
    --------
    >>> space = from_gym_space(gymnasium.spaces.Discrete(3), "torch")
    >>> rng, value = space.sample(space.backend.random.random_number_generator(0))
    >>> to_gym_space(space).contains(to_gym_data(space, value))
    True
    """


@rule_per_space
def from_gym_data(space: Space, data: Any) -> Any:
    """Convert a value of a Gymnasium space to a value of `space`.

    Parameters
    ----------
    space
        `from_gym_space` of the Gymnasium space.
    data
        The value: arrays, NumPy scalars, Python numbers and lists. Floats of another dtype are rounded to the dtype of
        `space`. Bounds are not checked.

    Returns
    -------
    value
        Arrays share memory with `data` in the cases that `ComputeBackend.from_numpy` documents: copy `data` first if
        the environment reuses its buffer for observations.

    Raises
    ------
    ValueError
        The value has another structure or shape than the space, or a number that its dtype cannot hold.
    TypeError
        Gymnasium has no counterpart of the space.

    Examples
    --------
    >>> space = from_gym_space(gymnasium.spaces.Discrete(3), "numpy")
    >>> int(from_gym_data(space, 2))
    2
    """


# -- arrays ------------------------------------------------------------------------------------------------


@to_gym_data.register
def _(space: BoxSpace, data: Any) -> Any:
    shape = space.shape
    if space.backend is NumpyComputeBackend and _fits(data, _HOST[space.dtype_name], shape):
        values = data
    else:
        values = _checked_shape(_to_host(space, space.dtype_name, data), shape)
    if shape:
        return values
    # values of a Discrete are scalars, made by indexing with (); a Box wants arrays, also of shape ()
    return np.asarray(values) if discrete_count(space) is None else values[()]


@from_gym_data.register
def _(space: BoxSpace, data: Any) -> Any:
    if space.backend is NumpyComputeBackend and _fits(data, space.dtype, space.shape):
        return data
    values = _checked_shape(np.asarray(data), space.shape)
    return _from_host(space, space, _rounded(values, space.dtype_name, space.bounds))


@to_gym_data.register
def _(space: BinarySpace, data: Any) -> Any:
    values = _checked_shape(_to_host(space, "bool", data), space.shape)
    return values.astype(np.int8) if space.shape else np.int64(values)


@from_gym_data.register
def _(space: BinarySpace, data: Any) -> Any:
    return _from_host(space, space, _checked_shape(_cast(np.asarray(data), np.dtype(bool)), space.shape))


@to_gym_data.register
def _(space: DynamicBoxSpace, data: Any) -> Any:
    feature = sequence_feature(space)
    values = _to_host(space, space.dtype_name, data)
    _checked_shape(values, (values.shape[0] if values.ndim else None, *feature.shape))
    if feature.shape or discrete_count(feature) is not None:
        return tuple(values)
    return tuple(np.asarray(value) for value in values)  # a Box wants arrays, also of shape ()


@from_gym_data.register
def _(space: DynamicBoxSpace, data: Any) -> Any:
    """The value may be a tuple of items or one stacked array."""
    sizes = sequence_feature(space).shape
    if isinstance(data, (tuple, list)):
        items = [np.asarray(item) for item in data]
        stacked = np.stack(items) if items else np.empty((0, *sizes), _HOST[space.dtype_name])
    else:
        stacked = np.asarray(data)
    _checked_shape(stacked, (stacked.shape[0] if stacked.ndim else None, *sizes))
    return _from_host(space, space, _rounded(stacked, space.dtype_name, space.bounds))


def _fits(data: Any, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    return isinstance(data, (np.ndarray, np.generic)) and data.dtype == dtype and data.shape == shape


def _to_host(space: Space, dtype_name: str, array: Any) -> np.ndarray:
    if not space.backend.is_backendarray(array):
        raise ValueError(f"{type(array).__name__}, the space wants an array of {space.backend}")
    return _cast(space.backend.to_host(array), _HOST[dtype_name])


def _from_host(space: Space, leaf: Any, values: np.ndarray) -> Any:
    if leaf.dtype_name in dtypes.FOREIGN_FLOATING:
        return space.backend.from_host(values, leaf.dtype, device=space.device)
    return space.backend.from_numpy(values, device=space.device)


def _checked_shape(values: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    if values.shape != shape:
        raise ValueError(f"shape {values.shape}, the space wants {shape}")
    return values


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast to another dtype: floats are rounded, other numbers must not change."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biuf":
        raise ValueError(f"dtype {values.dtype}, the space wants {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
        if values.dtype.kind == dtype.kind == "f":
            lost = np.isinf(cast) & np.isfinite(values)
        else:
            # casting back detects rounding, comparing detects a change of sign
            lost = (cast.astype(values.dtype) != values) | (cast != values)
    if lost.any():
        raise ValueError(f"value {values[lost].flat[0]} of {values.dtype} does not fit {dtype}, which the space wants")
    return cast


def _rounded(values: np.ndarray, dtype_name: str, bounds: Bounds) -> np.ndarray:
    """Cast to another dtype so that rounding never crosses a bound.

    Bounds of a wider dtype were rounded inward, so a value at such a bound would be rounded outside.
    """
    cast = _cast(values, _HOST[dtype_name])
    if cast is values or cast.dtype.kind != "f" or values.dtype.kind != "f":
        return cast
    limit = cast.dtype.type(np.inf)
    cast = np.where((cast > bounds.high) & (cast > values), np.nextafter(cast, -limit), cast)
    return np.where((cast < bounds.low) & (cast < values), np.nextafter(cast, limit), cast)


# -- text and composites -----------------------------------------------------------------------------------


@to_gym_data.register
def _(space: TextSpace, data: Any) -> Any:
    return _checked_text(data)


@from_gym_data.register
def _(space: TextSpace, data: Any) -> Any:
    return _checked_text(data)


def _checked_text(data: Any) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{type(data).__name__}, the space wants a string")
    return data


@to_gym_data.register
def _(space: DictSpace, data: Any) -> Any:
    _check_structure(space, data)
    return _convert_items(to_gym_data, space.spaces.items(), data)


@from_gym_data.register
def _(space: DictSpace, data: Any) -> Any:
    _check_structure(space, data)
    return _convert_items(from_gym_data, space.spaces.items(), data)


@to_gym_data.register
def _(space: TupleSpace, data: Any) -> Any:
    _check_structure(space, data)
    return tuple(_convert_items(to_gym_data, enumerate(space.spaces), data).values())


@from_gym_data.register
def _(space: TupleSpace, data: Any) -> Any:
    data = tuple(data) if isinstance(data, (list, np.ndarray)) else data  # Gymnasium accepts these as tuples
    _check_structure(space, data)
    return tuple(_convert_items(from_gym_data, enumerate(space.spaces), data).values())


def _check_structure(space: DictSpace | TupleSpace, data: Any) -> None:
    if type(data) is dict and isinstance(space, DictSpace) and data.keys() == space.spaces.keys():
        return
    finding = space.structure_mismatch(data, "")
    if finding is not None:
        raise ValueError(finding)


def _convert_items(convert: Any, spaces: Iterable[tuple[Any, Space]], data: Any) -> dict[Any, Any]:
    """Convert `data[key]` for each key and space; errors name the key."""
    converted = {}
    key: object = None
    try:
        for key, child in spaces:
            converted[key] = convert(child, data[key])
    except (TypeError, ValueError, OverflowError) as error:
        prepend_key(error, key)
        raise
    return converted


@to_gym_data.register
def _(space: UnionSpace, data: Any) -> Any:
    index = _alternative(space, data)
    return np.int64(index), _convert_items(to_gym_data, [(index, space.spaces[index])], {index: data[1]})[index]


@from_gym_data.register
def _(space: UnionSpace, data: Any) -> Any:
    index = _alternative(space, data)
    return index, _convert_items(from_gym_data, [(index, space.spaces[index])], {index: data[1]})[index]


def _alternative(space: UnionSpace, data: Any) -> int:
    if not isinstance(data, tuple) or len(data) != 2:
        raise ValueError(f"{type(data).__name__}, the space wants a pair of an index and a value")
    if not isinstance(data[0], (int, np.integer)) or not 0 <= data[0] < len(space.spaces):
        raise ValueError(f"alternative {data[0]!r}, the space has 0 to {len(space.spaces) - 1}")
    return int(data[0])


# -- batches of objects ------------------------------------------------------------------------------------


@to_gym_data.register
def _(space: BatchedSpace, data: Any) -> Any:
    check_sequence(space)
    if not isinstance(data, np.ndarray) or data.ndim != 1:
        validate(space, data)
    return tuple(_convert_items(to_gym_data, ((key, space.single_space) for key in range(len(data))), data).values())


@from_gym_data.register
def _(space: BatchedSpace, data: Any) -> Any:
    """The value may be a tuple of items or stacked: an array, or for a dict of items a dict of columns."""
    check_sequence(space)
    if isinstance(data, Mapping):
        data = _stacked_items(space.single_space, data)
    if not isinstance(data, (tuple, list, np.ndarray)):
        raise ValueError(f"{type(data).__name__}, the space wants a sequence")
    items = _convert_items(from_gym_data, ((key, space.single_space) for key in range(len(data))), data)
    return object_array((len(items),), items.values())


def _stacked_items(space: Space, column: Any) -> Any:
    """Split the columns that Gymnasium has stacked, one for each leaf, into items."""
    if isinstance(space, DictSpace):
        _check_structure(space, column)
        rows = zip(*(_stacked_items(child, column[key]) for key, child in space.spaces.items()), strict=True)
        return [dict(zip(space.spaces, row, strict=True)) for row in rows]
    if isinstance(space, TupleSpace):
        _check_structure(space, column)
        return list(zip(*(_stacked_items(child, column[key]) for key, child in enumerate(space.spaces)), strict=True))
    return column


# -- graphs ------------------------------------------------------------------------------------------------


@to_gym_data.register
def _(space: GraphSpace, data: Any) -> Any:
    if space.batch_shape:
        raise no_counterpart(space, "convert the graphs of the batch one by one")
    if not isinstance(data, GraphInstance):
        raise ValueError(f"{type(data).__name__}, the space wants a GraphInstance")
    nodes = _features_to_gym(space, space.node_feature_space, data.nodes_features, int(data.n_nodes))
    count = int(data.n_edges) if space.is_edge else 0
    if count == 0:  # like the samples of Gymnasium
        return gymnasium.spaces.GraphInstance(nodes, None, None)
    edges = _features_to_gym(space, space.edge_feature_space, data.edges_features, count)
    return gymnasium.spaces.GraphInstance(nodes, edges, space.backend.to_host(data.edges)[:count])


def _features_to_gym(space: GraphSpace, leaf: BoxSpace | None, features: Any, count: int) -> np.ndarray:
    if leaf is None:
        return np.empty((count, 0), np.float32)
    return _checked_shape(_to_host(space, leaf.dtype_name, features)[:count], (count, *leaf.shape))


@from_gym_data.register
def _(space: GraphSpace, data: Any) -> Any:
    if space.batch_shape:
        raise no_counterpart(space, "convert the graphs of the batch one by one")
    if not isinstance(data, gymnasium.spaces.GraphInstance):
        raise ValueError(f"{type(data).__name__}, the space wants a GraphInstance of Gymnasium")
    if not space.is_edge and not (data.edges is None and data.edge_links is None):
        raise ValueError("the graph has edges, the space has none")
    count, features = _features_from_gym(space, space.node_feature_space, data.nodes)
    graph = GraphInstance(_indices(space, count), nodes_features=features)
    if space.is_edge:
        links = np.empty((0, 2), np.int64) if data.edge_links is None else np.asarray(data.edge_links)
        edges = _no_features(space.edge_feature_space) if data.edges is None else data.edges
        count, graph.edges_features = _features_from_gym(space, space.edge_feature_space, edges)
        graph.n_edges = _indices(space, count)
        graph.edges = _indices(space, _checked_shape(links, (count, 2)))
    return graph


def _no_features(leaf: BoxSpace | None) -> np.ndarray:
    return np.empty((0, 0), np.float32) if leaf is None else np.empty((0, *leaf.shape), _HOST[leaf.dtype_name])


def _features_from_gym(space: GraphSpace, leaf: BoxSpace | None, features: Any) -> tuple[int, Any]:
    """The number of nodes or edges, and their converted features."""
    values = np.asarray(features)
    if values.ndim == 0:
        raise ValueError("the features of a graph are an array with one entry per node or edge")
    if leaf is None:
        return len(values), None
    _checked_shape(values, (len(values), *leaf.shape))
    return len(values), _from_host(space, leaf, _rounded(values, leaf.dtype_name, leaf.bounds))


def _indices(space: GraphSpace, values: Any) -> Any:
    dtype = np.dtype(space.backend.dtype_name(space.index_dtype))
    return space.backend.from_host(_cast(np.asarray(values), dtype), space.index_dtype, device=space.device)
