"""Nested dictionaries and flat dictionaries, whose keys are the keys of each level joined by a separator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["flatten_keys_in_mapping", "nested_get", "unflatten_keys_in_mapping"]


def flatten_keys_in_mapping(d: Mapping[str, Any], nested_separator: str = "/") -> dict[str, Any]:
    """Flatten a nested mapping into one dict: `{"a": {"b": 1}}` becomes `{"a/b": 1}`.

    Parameters
    ----------
    d
        The mapping; an empty one inside it counts as a value.
    nested_separator
        The separator between joined keys.

    Returns
    -------
    dict
        The values by their joined keys.

    Raises
    ------
    ValueError
        The separator is empty, or a key contains it, so that the keys could not be split again.
    TypeError
        A key is no string.
    """
    return dict(flat_items(d, nested_separator, lambda value: isinstance(value, Mapping)))


def unflatten_keys_in_mapping(d: Mapping[str, Any], nested_separator: str = "/") -> dict[str, Any]:
    """The inverse of `flatten_keys_in_mapping`.

    Parameters
    ----------
    d
        The values by their joined keys.
    nested_separator
        The separator at which keys are split.

    Returns
    -------
    dict
        The nested dict.

    Raises
    ------
    ValueError
        The separator is empty, or a key has a value and other keys below it.
    """
    return nest_items(d.items(), nested_separator, dict)


def nested_get(d: Mapping[str, Any], chained_key: Sequence[str]) -> Any:
    """The value at the end of a chain of keys.

    Parameters
    ----------
    d
        The nested mapping.
    chained_key
        The keys that lead to the value.

    Returns
    -------
    value
        The value.

    Raises
    ------
    KeyError
        A key is missing; the message names it and the keys of its parent.
    """
    value: Any = d
    for depth, key in enumerate(chained_key):
        if not isinstance(value, Mapping) or key not in value:
            raise KeyError(missing_key_text(chained_key, depth, value))
        value = value[key]
    return value


def missing_key_text(chained_key: Sequence[str], depth: int, value: Any) -> str:
    """The text of the KeyError for a `chained_key[depth]` that is not in `value`."""
    parent = "/".join(chained_key[:depth]) or "the dict"
    contents = (
        f"has the keys {sorted(map(str, value.keys()))}" if hasattr(value, "keys") else f"is a {type(value).__name__}"
    )
    return f"no key {'/'.join(chained_key)!r}: {parent} {contents}"


# -- mappings and dictionaries of spaces -------------------------------------------------------------------


def flat_items(branch: Any, separator: str, is_branch: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield the values below `branch` with their joined keys, in order. An empty branch counts as a value."""
    check_separator(separator)
    for path, value in _leaves(branch, is_branch, ()):
        joined = separator.join(path)
        if joined.split(separator) != list(path):
            raise ValueError(
                f"the keys {list(path)} cannot be joined by {separator!r} and split again: use a separator that no "
                "key contains"
            )
        yield joined, value


def _leaves(
    branch: Any, is_branch: Callable[[Any], bool], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in branch.items():
        if not isinstance(key, str):
            raise TypeError(f"key {key!r} is {type(key).__name__}, only strings can be joined")
        path = (*above, key)
        if is_branch(value) and len(value) > 0:
            yield from _leaves(value, is_branch, path)
        else:
            yield path, value


class _Branch(dict[str, Any]):
    """A dict that `nest_items` made; a plain dict is a value."""


def nest_items(items: Iterable[tuple[str, Any]], separator: str, build: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    """Invert `flat_items`; `build` makes a branch out of its items."""
    check_separator(separator)
    root = _Branch()
    for key, value in items:
        *parents, last = key.split(separator)
        branch = root
        for parent in parents:
            branch = branch.setdefault(parent, _Branch())
            if not isinstance(branch, _Branch):
                raise ValueError(f"key {key!r} lies below a key that has a value")
        if last in branch:
            raise ValueError(f"key {key!r} has a value and other keys below it, or is given twice")
        branch[last] = value
    return _built(root, build)


def _built(branch: _Branch, build: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    return build(
        [(key, _built(value, build) if isinstance(value, _Branch) else value) for key, value in branch.items()]
    )


def check_separator(separator: str) -> str:
    """Return the separator, or raise a ValueError if it is not a non-empty string."""
    if not isinstance(separator, str) or not separator:
        raise ValueError(f"nested_separator is {separator!r}, it must be a string of at least one character")
    return separator
