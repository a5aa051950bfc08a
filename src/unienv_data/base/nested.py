"""Fields inside samples and inside their spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unienv_interface.space import DictSpace, Space
from unienv_interface.space.spaces import TupleSpace


def nested_item(space_or_data: Any, keys: Sequence[Any]) -> Any:
    """The field of a sample, or of its space, under these keys; a KeyError with the path if there is none."""
    for depth, key in enumerate(keys):
        children = _children(space_or_data)
        try:
            space_or_data = children[key]
        except (KeyError, IndexError, TypeError):
            known = sorted(map(str, children)) if isinstance(children, Mapping) else f"0 to {len(children) - 1}"
            path = "/".join(map(str, keys[: depth + 1]))
            raise KeyError(f"there is no field {path!r}: {known}") from None
    return space_or_data


def _children(item: Any) -> Any:
    if isinstance(item, (DictSpace, TupleSpace)):
        return item.spaces
    if isinstance(item, Space) or not isinstance(item, (Mapping, tuple)):
        return {}
    return item
