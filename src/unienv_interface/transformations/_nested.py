"""Helpers that treat dicts of values and `DictSpace`s alike: both are branches of named children."""

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
    """Make a branch of the same kind with other children: a `DictSpace` or a dict."""
    return DictSpace(like.backend, list(items)) if isinstance(like, DictSpace) else dict(items)


def replace_child(branch: Any, key: str, child: Any) -> Any:
    """Return a branch with one child replaced, in the same order."""
    return rebuild(branch, ((name, child if name == key else old) for name, old in branch.items()))


def has_key(node: Any, key: str) -> bool:
    return is_branch(node) and key in node.keys()  # noqa: SIM118 - `in` of a DictSpace checks values


def require_key(node: Any, chained_key: Sequence[str], depth: int) -> None:
    """Raise a KeyError that lists the keys of `node` if `chained_key[depth]` is missing."""
    if not has_key(node, chained_key[depth]):
        raise KeyError(missing_key_text(chained_key, depth, node))


def field_paths(node: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The key paths of all leaves; an empty branch is a leaf."""
    if not is_branch(node) or not node.keys():
        return [above]
    return [path for key, child in node.items() for path in field_paths(child, (*above, key))]


def overlap(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two paths are equal or one is a prefix of the other."""
    return all(a == b for a, b in zip(first, second, strict=False))


def require_dict(space: Space, owner: str) -> DictSpace:
    """Return the space, or raise a TypeError if it is not a `DictSpace`."""
    if not isinstance(space, DictSpace):
        raise TypeError(f"{owner} wants a DictSpace, not {space}")
    return space


def with_children(space: CompositeSpace, children: Sequence[Space]) -> Any:
    """Return a composite space with other children, which may have another backend."""
    return space.with_children(children, children[0].backend if children else None)


def call_at(key: object, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)`; put the key of the child in front of the path in an error's message."""
    try:
        return function(*args)
    except (TypeError, ValueError) as error:
        path, finding = getattr(error, "located", ("", str(error)))
        path = join_path(str(key), path) if path else str(key)
        error.args = (at_path(path, finding),)
        error.located = (path, finding)  # type: ignore[union-attr]
        raise
