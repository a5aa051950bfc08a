"""The space of a batch, and the spaces of the single values in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dispatch import rule_per_space
from ..mismatch import at_path, join_path
from ..space import Space
from ..spaces import (
    ArraySpace,
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    CompositeSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    UnionSpace,
)

# -- batching ----------------------------------------------------------------------------------------------


@rule_per_space
def batch_space(space: Space, n: int = 1) -> Any:
    """The space of n values of `space`, stacked along a new leading axis.

    Parameters
    ----------
    space
        The space of one value.
    n
        The number of values.

    Returns
    -------
    Space
        The space of the batch, of the same kind where arrays can hold the values, else a `BatchedSpace`.

    Examples
    --------
    >>> batch_space(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,)), 8).shape
    (8, 3)
    """


@batch_space.register
def _(space: BoxSpace, n: int = 1) -> BoxSpace:
    low, high = (bound[None] for bound in space.bounds)
    return BoxSpace(space.backend, low, high, space.dtype, space.device, (n, *space.shape))


@batch_space.register
def _(space: BinarySpace, n: int = 1) -> BinarySpace:
    return BinarySpace(space.backend, (n, *space.shape), device=space.device)


@batch_space.register
def _(space: CompositeSpace, n: int = 1) -> Any:
    return space.with_children(batch_space(child, n) for child in space.children)


@batch_space.register
def _(space: GraphSpace, n: int = 1) -> GraphSpace:
    return space.replace(batch_shape=(n, *space.batch_shape))


@batch_space.register
def _(space: BatchedSpace, n: int = 1) -> BatchedSpace:
    if not space.batch_shape or None in space.batch_shape:  # no batch of one fixed shape
        return BatchedSpace(space, (n,))
    return BatchedSpace(space.single_space, (n, *space.batch_shape))


@batch_space.register(TextSpace)
@batch_space.register(UnionSpace)
@batch_space.register(DynamicBoxSpace)
def _(space: Space, n: int = 1) -> BatchedSpace:
    return BatchedSpace(space, (n,))


# -- the size of a batch -----------------------------------------------------------------------------------


@rule_per_space
def batch_size(space: Space) -> int | None:
    """The number of values in the batch that a space describes.

    Parameters
    ----------
    space
        The space of the batch.

    Returns
    -------
    int or None
        The number; None if the space has no batch axis. A dict or tuple without leaves never has a batch axis.

    Examples
    --------
    >>> batch_size(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(8, 3)))
    8
    """


@batch_size.register
def _(space: ArraySpace) -> int | None:
    return space.shape[0] if space.shape else None


@batch_size.register(GraphSpace)
@batch_size.register(BatchedSpace)
def _(space: Any) -> int | None:
    return space.batch_shape[0] if space.batch_shape else None


@batch_size.register
def _(space: CompositeSpace) -> int | None:
    sizes = _leaf_sizes(space)
    return sizes.pop() if len(sizes) == 1 else None


@batch_size.register(TextSpace)
@batch_size.register(UnionSpace)
@batch_size.register(DynamicBoxSpace)
def _(space: Space) -> None:
    return None


def _leaf_sizes(space: Space) -> set[int | None]:
    """The distinct batch sizes of the leaves; empty dicts and tuples do not count."""
    if isinstance(space, CompositeSpace):
        return set().union(*(_leaf_sizes(child) for child in space.children))
    return {batch_size(space)}


def need_batch_size(space: Space) -> int:
    """The size of the batch; raises a ValueError if the space is not a batch."""
    size = batch_size(space)
    if size is None:
        raise ValueError(f"{space} has no batch axis that all its leaves share")
    return size


# -- unbatching --------------------------------------------------------------------------------------------


@rule_per_space
def unbatch_spaces(space: Space) -> Iterable[Any]:  # type: ignore[empty-body]
    """The spaces of the single values of a batch.

    Parameters
    ----------
    space
        The space of the batch.

    Returns
    -------
    iterable of Space
        The space of each value, in order, with the bounds of its slot.

    Raises
    ------
    ValueError
        The space has no batch axis that all its leaves share.

    Examples
    --------
    >>> spaces = list(unbatch_spaces(BoxSpace("numpy", -1.0, 1.0, "float32", shape=(8, 3))))
    >>> len(spaces), spaces[0].shape
    (8, (3,))
    """


@unbatch_spaces.register
def _(space: BoxSpace) -> Iterator[BoxSpace]:
    size = need_batch_size(space)

    def at(position: int) -> BoxSpace:
        low, high = (bound[position if bound.shape[0] > 1 else 0] for bound in space.bounds)
        return BoxSpace(space.backend, low, high, space.dtype, space.device, space.shape[1:])

    return map(at, range(size))


@unbatch_spaces.register
def _(space: BinarySpace) -> Iterator[BinarySpace]:
    size = need_batch_size(space)
    return itertools.repeat(BinarySpace(space.backend, space.shape[1:], device=space.device), size)


@unbatch_spaces.register
def _(space: CompositeSpace) -> Iterator[Any]:
    size = need_batch_size(space)
    columns = [
        unbatch_spaces(child) if _leaf_sizes(child) else itertools.repeat(child, size) for child in space.children
    ]
    return map(space.with_children, zip(*columns, strict=True))


@unbatch_spaces.register
def _(space: GraphSpace) -> Iterator[GraphSpace]:
    size = need_batch_size(space)
    return itertools.repeat(space.replace(batch_shape=space.batch_shape[1:]), size)


@unbatch_spaces.register
def _(space: BatchedSpace) -> Iterator[Space]:
    size, inner_shape = need_batch_size(space), space.batch_shape[1:]
    return itertools.repeat(BatchedSpace(space.single_space, inner_shape) if inner_shape else space.single_space, size)


@unbatch_spaces.register(TextSpace)
@unbatch_spaces.register(UnionSpace)
@unbatch_spaces.register(DynamicBoxSpace)
def _(space: Space) -> Iterator[Space]:
    return itertools.repeat(space, need_batch_size(space))


# -- batches of differing spaces ---------------------------------------------------------------------------


def batch_differing_spaces(spaces: Iterable[Space], device: Any = None) -> Any:
    """The space of a batch whose i-th value comes from the i-th space.

    Parameters
    ----------
    spaces
        Spaces of one kind, shape and dtype; each slot of the batch keeps its bounds. Spaces without bounds must be
        equal; dynamic boxes may differ, and every slot of their batch admits the sizes and bounds of all of them.
    device
        The device of the batch; by default the device of the spaces.

    Returns
    -------
    Space
        The space of the batch.

    Raises
    ------
    ValueError
        `spaces` is empty, or two spaces do not fit together; the message says where.

    Examples
    --------
    >>> low, high = BoxSpace("numpy", 0, 1, "float32", shape=()), BoxSpace("numpy", 0, 9, "float32", shape=())
    >>> batch_differing_spaces([low, high]).high
    array([1., 9.], dtype=float32)
    """
    spaces = list(spaces)
    if not spaces:
        raise ValueError("there are no spaces to batch")
    joined = _join(spaces[0], spaces, "")
    return joined if device is None else joined.to(device=device)


@rule_per_space
def _join(first: Space, spaces: Sequence[Space], path: str) -> Any:
    """The rules of `batch_differing_spaces`."""


def _differ(path: str, position: int, relation: str, mine: object, theirs: object, rule: str) -> ValueError:
    return ValueError(at_path(path, f"space {position} {relation} {mine}, space 0 {relation} {theirs}: {rule}"))


def _check_alike(spaces: Sequence[Any], path: str, *attributes: str) -> None:
    first = spaces[0]
    for position, space in enumerate(spaces):
        if type(space) is not type(first) or space.backend is not first.backend:
            raise _differ(path, position, "is", space, first, "they must be of one kind and backend")
        for name in attributes:
            mine, theirs = getattr(space, name), getattr(first, name)
            if mine != theirs and not (mine != mine and theirs != theirs):  # fill_value may be NaN
                raise _differ(path, position, f"has {name}", mine, theirs, "they must agree")


@_join.register
def _(first: BoxSpace, spaces: Sequence[BoxSpace], path: str) -> BoxSpace:
    _check_alike(spaces, path, "dtype_name", "shape")
    low, high = (
        np.stack([np.broadcast_to(bound, first.shape) for bound in bounds])
        for bounds in zip(*(space.bounds for space in spaces), strict=True)
    )
    return BoxSpace(first.backend, low, high, first.dtype, first.device, (len(spaces), *first.shape))


@_join.register
def _(first: CompositeSpace, spaces: Sequence[CompositeSpace], path: str) -> Any:
    _check_alike(spaces, path)
    keys = [key for key, _ in first.child_items()]
    for position, space in enumerate(spaces):
        other_keys = [key for key, _ in space.child_items()]
        if other_keys != keys:
            raise _differ(path, position, "has the keys", other_keys, keys, "they must agree")
    columns = zip(*(space.children for space in spaces), strict=True)
    joined = [_join(column[0], column, join_path(path, key)) for key, column in zip(keys, columns, strict=True)]
    return first.with_children(joined)


@_join.register
def _(first: DynamicBoxSpace, spaces: Sequence[DynamicBoxSpace], path: str) -> BatchedSpace:
    _check_alike(spaces, path, "dtype_name", "fill_value")
    for position, space in enumerate(spaces):
        mine, theirs = len(space.shape_low), len(first.shape_low)
        if mine != theirs:
            raise _differ(path, position, "has a number of axes of", mine, theirs, "they must agree")
    least = [min(sizes) for sizes in zip(*(space.shape_low for space in spaces), strict=True)]
    most = [
        None if None in sizes else max(sizes) for sizes in zip(*(space.shape_high for space in spaces), strict=True)
    ]
    varying = tuple(axis for axis, (a, b) in enumerate(zip(least, most, strict=True)) if a != b)
    low, high = (
        # an axis that varies in the batch has a single bound
        pick.reduce(np.broadcast_arrays(*(pick.reduce(bound, axis=varying, keepdims=True) for bound in bounds)))
        for pick, bounds in zip(
            (np.minimum, np.maximum), zip(*(space.bounds for space in spaces), strict=True), strict=True
        )
    )
    hull = DynamicBoxSpace(first.backend, low, high, least, most, first.dtype, first.device, first.fill_value)
    return BatchedSpace(hull, (len(spaces),))


@_join.register
def _(first: Space, spaces: Sequence[Space], path: str) -> Any:
    for position, space in enumerate(spaces):
        if space != first:
            raise _differ(path, position, "is", space, first, "they must be equal")
    return batch_space(first, len(spaces))
