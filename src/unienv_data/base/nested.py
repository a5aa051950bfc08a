"""Fields inside samples and inside their spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unienv_interface.space import DictSpace, Space
from unienv_interface.space.spaces import TupleSpace

#: Where a field lies: one key, or the keys that lead to it.
Keys = str | int | Sequence[str | int]


def parse_keys(keys: Keys) -> tuple[str | int, ...]:
    """The keys that lead to a field."""
    return (keys,) if isinstance(keys, (str, int)) else tuple(keys)


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


def with_nested_item(space_or_data: Any, keys: Sequence[Any], item: Any) -> Any:
    """A sample in dicts, or its space, with something else under these keys; nothing that was given changes."""
    if not keys:
        return item
    key, *rest = keys
    children = space_or_data.spaces if isinstance(space_or_data, DictSpace) else space_or_data
    if rest:
        item = with_nested_item(children[key], rest, item)
    changed = {**children, key: item}
    if isinstance(space_or_data, DictSpace):
        return DictSpace(space_or_data.backend, changed, space_or_data.device)
    return changed
