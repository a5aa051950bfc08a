"""Parts of a batch put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.space import GraphInstance
from unienv_interface.space.spaces.graph import fields_of


def joined(backend: ComputeBackend, parts: Sequence[Any], order: np.ndarray | None) -> Any:
    """Batches one after the other, along their first axis; then, with `order`, sample i is what was sample order[i]."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: joined(backend, [part[key] for part in parts], order) for key in first}
    if isinstance(first, tuple):
        return tuple(joined(backend, column, order) for column in zip(*parts, strict=True))
    if isinstance(first, GraphInstance):
        return _joined_graphs(backend, parts, order)
    return _joined_arrays(backend, parts, order)


def _joined_arrays(backend: ComputeBackend, arrays: Sequence[Any], order: np.ndarray | None) -> Any:
    if len(arrays) == 1:
        whole = arrays[0]
    else:
        whole = np.concatenate(arrays) if isinstance(arrays[0], np.ndarray) else backend.concat(arrays, axis=0)
    return whole if order is None else whole[order]


def _joined_graphs(backend: ComputeBackend, graphs: Sequence[GraphInstance], order: np.ndarray | None) -> GraphInstance:
    batch_axes = graphs[0].n_nodes.ndim
    merged: list[Any] = []
    for place, fields in enumerate(zip(*map(fields_of, graphs), strict=True)):
        if fields[0] is None:
            merged.append(None)
            continue
        arrays = list(fields)
        if place >= 2:  # features and edges: filled up to the largest number of entries
            most = max(array.shape[batch_axes] for array in arrays)
            arrays = [backend.pad_dim(array, batch_axes, most) for array in arrays]
        merged.append(_joined_arrays(backend, arrays, order))
    return GraphInstance(*merged)
