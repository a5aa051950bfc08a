"""Rules for columns: which leaves of a sample are kept in another storage than the rest."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.utils.words import did_you_mean

from ..base.storage import SpaceStorage
from ._dict_plan import REST
from .dict_storage import DictStorage

__all__ = ["ColumnRule", "column_rules", "storages_of_columns"]

_SEPARATORS = "/.:|"


class ColumnRule(Protocol):
    """The rule by which the leaves that match a pattern are kept: `Image` or `Video`."""

    def storage(self) -> tuple[type[SpaceStorage], dict[str, Any]]:
        """The storage of such a leaf, and its options."""


@runtime_checkable
class KeptByRule(Protocol):
    """A storage of one column that a rule has made."""

    def column_rule(self) -> ColumnRule:
        """The rule that makes such a storage."""


def storages_of_columns(
    space: Space, columns: Mapping[str, ColumnRule], rest: type[SpaceStorage], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a `DictStorage` that keeps the named leaves by their rules, and all others in a `rest`.

    Parameters
    ----------
    space
        The space of a sample.
    columns
        The rule for the leaves that each pattern names, by their path, such as "obs/cam_*". Of several patterns that
        name a leaf the first one counts.
    rest, options
        The storage of the leaves that no pattern names, and its options.

    Returns
    -------
    dict
        The options.

    Raises
    ------
    ValueError
        A pattern names no leaf, or the space is a single leaf.
    """
    leaves = RowLayout(space).leaves
    if len(leaves) == 1 and not leaves[0].path:
        raise ValueError(
            f"columns {list(columns)}: the samples have no columns, they are {space}: name the storage instead, "
            f"such as ReplayBuffer.create(VideoStorage, space)"
        )
    separator = next(one for one in _SEPARATORS if not any(one in str(key) for leaf in leaves for key in leaf.path))
    rules = {}
    for leaf in leaves:
        pattern = next((one for one in columns if fnmatchcase(leaf.name, one)), None)
        if pattern is not None:
            rules[leaf.path] = columns[pattern]
    for pattern in columns:
        if not any(fnmatchcase(leaf.name, pattern) for leaf in leaves):
            names = [leaf.name for leaf in leaves]
            raise ValueError(f"columns {pattern!r} names none of {names}{did_you_mean(pattern, names)}")
    classes: dict[str, type[SpaceStorage]] = {}
    by_key: dict[str, dict[str, Any]] = {}
    for path, rule in rules.items():
        key = separator.join(map(str, path))
        classes[key], by_key[key] = rule.storage()
    if len(rules) < len(leaves):
        classes[REST], by_key[REST] = rest, dict(options)
    elif options:
        raise ValueError(f"the options {list(options)} are for the rest of a sample, and columns name all of it")
    return {"storage_cls_map": classes, "key_kwargs": by_key, "nested_separator": separator}


def column_rules(storage: SpaceStorage) -> dict[str, ColumnRule]:
    """The rules by which a storage keeps its columns.

    Parameters
    ----------
    storage
        The storage.

    Returns
    -------
    dict
        The rule of each column by its name; empty if there is none.
    """
    if not isinstance(storage, DictStorage):
        return {}
    names = {leaf.path: leaf.name for leaf in storage.layout.leaves}
    rules = {}
    for key, part in storage.storage_map.items():
        name = names.get(tuple(key.split(storage.nested_separator)))
        if name is not None and isinstance(part, KeptByRule):
            rules[name] = part.column_rule()
    return rules
