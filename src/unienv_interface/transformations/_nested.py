"""Dictionaries of values and dictionaries of spaces, walked by the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..space.mismatch import at_path, join_path
from ..space.space import Space
from ..space.spaces import CompositeSpace, DictSpace
from ..utils.dict_util import missing_key_text


def is_branch(node: Any) -> bool:
    """Whether a node has named children: a mapping, or a `DictSpace`."""
    return isinstance(node, (Mapping, DictSpace))


def rebuild(like: Any, items: Iterable[tuple[str, Any]]) -> Any:
    """A branch of the same kind with other children: a new `DictSpace`, or a new dict."""
    return DictSpace(like.backend, list(items)) if isinstance(like, DictSpace) else dict(items)


def replace_child(branch: Any, key: str, child: Any) -> Any:
    """A branch with one child replaced; the order stays."""
    return rebuild(branch, ((name, child if name == key else old) for name, old in branch.items()))


def has_key(node: Any, key: str) -> bool:
    return is_branch(node) and key in node.keys()  # noqa: SIM118 - `in` asks a DictSpace about values


def require_key(node: Any, chained_key: Sequence[str], depth: int) -> None:
    """Raise a KeyError that lists the keys of `node`, unless `chained_key[depth]` is among them."""
    if not has_key(node, chained_key[depth]):
        raise KeyError(missing_key_text(chained_key, depth, node))


def field_paths(node: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys that lead to each field that is no branch, or an empty one."""
    if not is_branch(node) or not node.keys():
        return [above]
    return [path for key, child in node.items() for path in field_paths(child, (*above, key))]


def overlap(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether one of two paths is, or begins with, the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def require_dict(space: Space, owner: str) -> DictSpace:
    """The space, if it is a `DictSpace`."""
    if not isinstance(space, DictSpace):
        raise TypeError(f"{owner} wants a DictSpace, not {space}")
    return space


def with_children(space: CompositeSpace, children: Sequence[Space]) -> Any:
    """A composite space with other children, which may have another backend."""
    return space.with_children(children, children[0].backend if children else None)


def call_at(key: object, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, where an error gets the key of the child it is about in front of its path."""
    try:
        return function(*args)
    except (TypeError, ValueError) as error:
        path, finding = getattr(error, "located", ("", str(error)))
        path = join_path(str(key), path) if path else str(key)
        error.args = (at_path(path, finding),)
        error.located = (path, finding)  # type: ignore[union-attr]
        raise
