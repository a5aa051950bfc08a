"""Convert spaces between Gymnasium and UniEnv; `gym_utils` has the table of counterparts."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends import dtypes
from ...backends.base import ComputeBackend
from ...backends.numpy import NumpyComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ...utils.optional import need
from ..dispatch import rule_per_space
from ..mismatch import prepend_key
from ..space import Space
from ..spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)
from ..spaces.array import parse_dtype
from ..spaces.text import alphanumeric

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = need("gymnasium", extra="gymnasium")

_LARGEST = {name: int(np.iinfo(name).max) for name in dtypes.INTEGER}
# In Gymnasium 1.0 to 1.2.0 every Discrete has the dtype int64.
_DISCRETE_DTYPES = (
    dtypes.INTEGER if "dtype" in inspect.signature(gymnasium.spaces.Discrete).parameters else frozenset({"int64"})
)


@rule_per_space
def to_gym_space(space: Space) -> Any:
    """Convert a space to the Gymnasium space of the same values.

    Parameters
    ----------
    space
        The space.

    Returns
    -------
    gymnasium.Space
        The space, whose values are NumPy arrays: backend and device are dropped.

    Raises
    ------
    TypeError
        Gymnasium has no counterpart of the space.

    Examples
    --------
    >>> to_gym_space(BoxSpace("numpy", 0, 1, np.float32, shape=(2,)))
    Box(0.0, 1.0, (2,), float32)
    """


@rule_per_space
def from_gym_space(gym_space: gymnasium.Space, backend: BackendLike, dtype: Any = None, device: Any = None) -> Any:
    """Convert a Gymnasium space to the space of the same values.

    Parameters
    ----------
    gym_space
        The space of Gymnasium.
    backend, device
        The backend and the device of the space.
    dtype
        Replaces the dtype of every float box and rounds its bounds inward (for bfloat16, to the nearest); other dtypes
        do not change. On JAX without `jax_enable_x64`, 64-bit dtypes become 32-bit ones.

    Returns
    -------
    Space
        The space; see the table of `gym_utils`.

    Raises
    ------
    TypeError
        UniEnv has no counterpart of the space.
    ValueError
        A box of booleans excludes False or True, a key is not a string, `dtype` is not a float, or a Discrete or
        MultiDiscrete does not fit the 32-bit dtype.
    OverflowError
        A Box does not fit the 32-bit dtype.

    Examples
    --------
    >>> from_gym_space(gymnasium.spaces.Discrete(3), "torch").backend.simplified_name
    'pytorch'
    """


# -- shared with the conversion of data --------------------------------------------------------------------


def no_counterpart(space: Space, advice: str) -> TypeError:
    return TypeError(f"Gymnasium has no counterpart of {space}: {advice}")


def discrete_count(space: BoxSpace) -> int | None:
    """The `n` of the Discrete that a space becomes in Gymnasium; None if it becomes a Box."""
    if space.shape or space.dtype_name not in _DISCRETE_DTYPES:
        return None
    count = space.bounds.high.item() - space.bounds.low.item() + 1
    return count if count <= _LARGEST[space.dtype_name] else None  # Discrete stores n in its dtype


def sequence_feature(space: DynamicBoxSpace) -> BoxSpace:
    """The space of one entry along axis 0; raises a TypeError unless only axis 0 varies, from 0 to no limit."""
    if space.shape_low[:1] != (0,) or space.shape_high != (None, *space.shape_low[1:]):
        raise no_counterpart(
            space,
            "only axis 0 may vary, and from 0 to None. Widen it to that, or pad the values into a BoxSpace",
        )
    low, high = (bound[0] for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, space.shape_low[1:])


# -- to Gymnasium ------------------------------------------------------------------------------------------


@to_gym_space.register
def _(space: BoxSpace) -> gymnasium.Space:
    count = discrete_count(space)
    if count is not None:
        start = space.bounds.low.item()
        if space.dtype_name == "int64":
            return gymnasium.spaces.Discrete(count, start=start)
        return gymnasium.spaces.Discrete(count, start=start, dtype=np.dtype(space.dtype_name).type)
    if space.dtype_name in dtypes.COMPLEX:
        raise no_counterpart(space, "split it into a real and an imaginary box")
    low, high = (np.broadcast_to(bound, space.shape) for bound in space.bounds)
    dtype = dtypes.host_dtype(space.dtype_name)
    box = gymnasium.spaces.Box(low, high, space.shape, dtype.type)
    if dtype.kind in "iu" and dtype.itemsize == 8:
        # The ends of a 64-bit dtype mean "no bound" here. As a bound, Gymnasium would add one to the upper end to
        # draw samples, which wraps around.
        limits = np.iinfo(dtype)
        box.bounded_below = np.asarray(low > limits.min) if dtype.kind == "i" else box.bounded_below
        box.bounded_above = np.asarray(high < limits.max)
    return box


@to_gym_space.register
def _(space: BinarySpace) -> gymnasium.Space:
    if space.shape == ():
        return gymnasium.spaces.Discrete(2)
    if 0 in space.shape:  # MultiBinary wants positive sizes
        return gymnasium.spaces.Box(0, 1, space.shape, np.int8)
    # in Gymnasium, MultiBinary(4) and MultiBinary((4,)) are not equal, and users mostly write the first
    return gymnasium.spaces.MultiBinary(space.shape if len(space.shape) > 1 else space.shape[0])


@to_gym_space.register
def _(space: TextSpace) -> gymnasium.Space:
    charset = alphanumeric if space.charset is None else space.charset
    return gymnasium.spaces.Text(space.max_length, min_length=space.min_length, charset=charset)


@to_gym_space.register
def _(space: DictSpace) -> gymnasium.Space:
    return gymnasium.spaces.Dict([(key, _child_to_gym(key, child)) for key, child in space.spaces.items()])


@to_gym_space.register
def _(space: TupleSpace) -> gymnasium.Space:
    return gymnasium.spaces.Tuple([_child_to_gym(key, child) for key, child in enumerate(space.spaces)])


@to_gym_space.register
def _(space: UnionSpace) -> gymnasium.Space:
    return gymnasium.spaces.OneOf([_child_to_gym(key, child) for key, child in enumerate(space.spaces)])


@to_gym_space.register
def _(space: GraphSpace) -> gymnasium.Space:
    if space.batch_shape:
        raise no_counterpart(space, "convert the graphs of the batch one by one")
    nodes = _features_to_gym("node_feature_space", space.node_feature_space)
    edges = _features_to_gym("edge_feature_space", space.edge_feature_space) if space.is_edge else None
    return gymnasium.spaces.Graph(nodes, edges)


def _features_to_gym(name: str, space: BoxSpace | None) -> Any:
    return gymnasium.spaces.Box(0.0, 0.0, (0,)) if space is None else _child_to_gym(name, space)


@to_gym_space.register
def _(space: DynamicBoxSpace) -> gymnasium.Space:
    return gymnasium.spaces.Sequence(to_gym_space(sequence_feature(space)))


@to_gym_space.register
def _(space: BatchedSpace) -> gymnasium.Space:
    check_sequence(space)
    return gymnasium.spaces.Sequence(to_gym_space(space.single_space))


def check_sequence(space: BatchedSpace) -> None:
    """Raise a TypeError unless the batch has one axis of any size."""
    if space.batch_shape != (None,):
        raise no_counterpart(space, "only a batch_shape of (None,) becomes a Sequence. Convert the items one by one")


def _child_to_gym(key: object, child: Space) -> gymnasium.Space:
    try:
        return to_gym_space(child)
    except (TypeError, ValueError, OverflowError) as error:
        prepend_key(error, key)
        raise


# -- from Gymnasium ----------------------------------------------------------------------------------------


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Box, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    name, kind = gym_space.dtype.name, gym_space.dtype.kind
    if kind == "b":
        if np.any(gym_space.low) or not np.all(gym_space.high):
            raise ValueError(f"{gym_space} leaves out False or True, a BinarySpace holds both: use bounds of 0 and 1")
        return BinarySpace(backend, gym_space.shape, device=device)
    box = BoxSpace(NumpyComputeBackend, gym_space.low, gym_space.high, name, shape=gym_space.shape)
    if dtype is None or kind != "f":
        return box.to(backend, device)
    target = backend.dtype_name(parse_dtype(backend, dtype))
    if target not in dtypes.FLOATING:
        raise ValueError(f"dtype is {target}, it replaces the dtype of float boxes and must be a float itself")
    low, high = box.bounds.narrowed(name, target)
    return BoxSpace(backend, low, high, target, device, box.shape)


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Discrete, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    start, count = int(gym_space.start), int(gym_space.n)
    return BoxSpace(backend, start, start + count - 1, np.dtype(gym_space.dtype).name, device, ())


@from_gym_space.register
def _(
    gym_space: gymnasium.spaces.MultiDiscrete, backend: ComputeBackend, dtype: Any = None, device: Any = None
) -> Space:
    low, count = gym_space.start, gym_space.nvec
    high = low + (count - 1)  # in this order: low + count may overflow
    return BoxSpace(backend, low, high, low.dtype.name, device)


@from_gym_space.register
def _(gym_space: gymnasium.spaces.MultiBinary, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    return BinarySpace(backend, gym_space.shape, device=device)


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Text, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    return TextSpace(
        backend,
        gym_space.max_length,
        min_length=gym_space.min_length,
        charset=gym_space.character_set,
        device=device,
    )


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Dict, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    children = []
    for key, child in gym_space.spaces.items():
        if not isinstance(key, str):
            raise ValueError(f"key {key!r} is {type(key).__name__}, the keys of a DictSpace are strings")
        children.append((key, _child_from_gym(key, child, backend, dtype, device)))
    return DictSpace(backend, children, device)


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Tuple, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    pairs = enumerate(gym_space.spaces)
    return TupleSpace(backend, [_child_from_gym(key, child, backend, dtype, device) for key, child in pairs], device)


@from_gym_space.register
def _(gym_space: gymnasium.spaces.OneOf, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    pairs = enumerate(gym_space.spaces)
    return UnionSpace(backend, [_child_from_gym(key, child, backend, dtype, device) for key, child in pairs], device)


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Graph, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    features: dict[str, Any] = {}
    for name in ("node_space", "edge_space"):
        child = getattr(gym_space, name)
        features[name] = None if child is None else _child_from_gym(name, child, backend, dtype, device)
        if child is not None and not isinstance(features[name], BoxSpace):
            raise TypeError(
                f"{name}: {child}, the features of a GraphSpace are boxes: use Box, Discrete or MultiDiscrete"
            )
    return GraphSpace(
        backend,
        features["node_space"],
        features["edge_space"],
        is_edge=gym_space.edge_space is not None,
        min_nodes=0,
        min_edges=0,
        device=device,
    )


@from_gym_space.register
def _(gym_space: gymnasium.spaces.Sequence, backend: BackendLike, dtype: Any = None, device: Any = None) -> Space:
    backend = parse_backend(backend)
    feature = from_gym_space(gym_space.feature_space, backend, dtype, device)
    if isinstance(feature, BoxSpace):
        low, high = (bound[np.newaxis] for bound in feature.bounds)
        sizes = feature.shape
        return DynamicBoxSpace(backend, low, high, (0, *sizes), (None, *sizes), feature.dtype, device)
    if gym_space.stack and isinstance(feature, TupleSpace):
        raise TypeError(
            f"{gym_space}: a stacked value is a tuple of columns, which cannot be told from a tuple of "
            "items; use stack=False"
        )
    return BatchedSpace(feature, (None,))


def _child_from_gym(key: object, child: Any, backend: ComputeBackend, dtype: Any, device: Any) -> Space:
    try:
        return from_gym_space(child, backend, dtype, device)
    except (TypeError, ValueError, OverflowError) as error:
        prepend_key(error, key)
        raise
