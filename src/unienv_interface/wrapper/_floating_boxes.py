"""Find and map the boxes of a floating dtype in nested spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..space import Space
from ..space.mismatch import join_path
from ..space.spaces import BoxSpace, CompositeSpace


def _is_floating_box(space: Space) -> bool:
    return isinstance(space, BoxSpace) and space.backend.dtype_is_real_floating(space.dtype)


def floating_boxes(space: Space, path: str) -> list[tuple[str, Any]]:
    """The boxes of a floating dtype in a space, with their paths."""
    if isinstance(space, CompositeSpace):
        children = (floating_boxes(child, join_path(path, key)) for key, child in space.child_items())
        return [box for boxes in children for box in boxes]
    return [(path, space)] if _is_floating_box(space) else []


def map_boxes(space: Space, path: str, value: Any, fn: Callable[[str, BoxSpace, Any], Any]) -> Any:
    """Apply `fn` to the values of all boxes of a floating dtype in a value."""
    if isinstance(space, CompositeSpace):
        items = zip(space.child_items(), space.child_values(value), strict=True)
        return space.build_value(map_boxes(child, join_path(path, key), leaf, fn) for (key, child), leaf in items)
    return fn(path, space, value) if isinstance(space, BoxSpace) and _is_floating_box(space) else value


def unbounded(space: Space, dtype_name: str | None = None) -> Any:
    """Remove the bounds of all boxes of a floating dtype in a space; `dtype_name` replaces their dtype."""
    if isinstance(space, CompositeSpace):
        return space.with_children([unbounded(child, dtype_name) for child in space.children])
    if not isinstance(space, BoxSpace) or not _is_floating_box(space):
        return space
    return BoxSpace(space.backend, -np.inf, np.inf, dtype_name or space.dtype_name, space.device, space.shape)
