"""Collect the leaves of a value in canonical order, and build a value from its leaves.

The functions here prepare everything that depends on the space alone; the functions that they return only collect and
build.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .mismatch import join_path
from .space import Space
from .spaces import CompositeSpace, DictSpace, TupleSpace

Collector = Callable[[Any, list[Any]], None]


def walk(space: Space, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Space]]:
    """The paths and spaces of the leaves, in canonical order."""
    if not isinstance(space, CompositeSpace):
        return [(path, space)]
    return [leaf for key, child in space.child_items() for leaf in walk(child, (*path, key))]


def collector(space: Space) -> Collector:
    """Make a function that appends the leaves of a value to a list, in canonical order."""
    if not isinstance(space, CompositeSpace):
        return lambda data, values: values.append(data)
    items = space.child_items()
    keys = [key for key, _ in items]
    count = len(keys)
    if isinstance(space, DictSpace):
        container: Any = (dict, Mapping)
    elif isinstance(space, TupleSpace):
        container = tuple
    else:
        return _general_collector(space)
    if not any(isinstance(child, CompositeSpace) for _, child in items):
        # itemgetter is the fastest, but with a single key it returns the bare value
        fetch: Any = operator.itemgetter(*keys) if count > 1 else lambda data: [data[key] for key in keys]

        def collect_flat(data: Any, values: list[Any]) -> None:
            if not isinstance(data, container) or len(data) != count:
                raise ValueError("not built like a value of the space")
            values.extend(fetch(data))

        return collect_flat
    collectors = [(key, collector(child)) for key, child in items]

    def collect(data: Any, values: list[Any]) -> None:
        if not isinstance(data, container) or len(data) != count:
            raise ValueError("not built like a value of the space")
        for key, collect_child in collectors:
            collect_child(data[key], values)

    return collect


def leaf_fetcher(space: Space) -> Callable[[Any], Sequence[Any]]:
    """Make a function that returns the leaves of a value, in canonical order."""
    collect = collector(space)

    def fetch(data: Any) -> list[Any]:
        values: list[Any] = []
        collect(data, values)
        return values

    return fetch


def _general_collector(space: CompositeSpace) -> Collector:
    """`collector` for composite spaces other than `DictSpace` and `TupleSpace`."""
    collectors = [collector(child) for child in space.children]

    def collect(data: Any, values: list[Any]) -> None:
        finding = space.structure_mismatch(data, "")
        if finding is not None:
            raise ValueError(finding)
        for collect_child, value in zip(collectors, space.child_values(data), strict=True):
            collect_child(value, values)

    return collect


def builder(space: Space) -> Callable[[Sequence[Any]], Any]:
    """Make a function that builds a value from its leaves, given in canonical order."""
    if not isinstance(space, CompositeSpace):
        return lambda leaves: leaves[0]
    spans, start = {}, 0
    for key, child in space.child_items():
        stop = start + len(walk(child, ()))
        spans[key] = (start, stop, builder(child) if isinstance(child, CompositeSpace) else None)
        start = stop
    if not isinstance(space, DictSpace):
        return lambda leaves: space.build_value(
            leaves[first] if build is None else build(leaves[first:last]) for first, last, build in spans.values()
        )
    items = [(key, *spans[key]) for key in space.spaces]
    if [first for _, first, _, build in items if build is None] == list(range(len(items))):
        keys = list(space.spaces)
        return lambda leaves: dict(zip(keys, leaves))  # noqa: B905 - equal lengths by construction
    return lambda leaves: {
        key: leaves[first] if build is None else build(leaves[first:last]) for key, first, last, build in items
    }


def structure_finding(space: Space, data: Any, path: str) -> str | None:
    """Describe the first dict or tuple in a value that differs from the space; None if all fit."""
    if not isinstance(space, CompositeSpace):
        return None
    finding = space.structure_mismatch(data, path)
    if finding is not None:
        return finding
    for (key, child), value in zip(space.child_items(), space.child_values(data), strict=True):
        finding = structure_finding(child, value, join_path(path, key))
        if finding is not None:
            return finding
    return None
