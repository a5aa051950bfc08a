"""Keep or drop some keys of a dictionary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Optional

from typing_extensions import Self

from ..space.space import Space
from ..utils.dict_util import check_separator, missing_key_text
from ._nested import field_paths, has_key, is_branch, overlap, rebuild, require_dict
from .serialization_utils import read_setting, register_transformation
from .transformation import DataTransformation, KeyPath

# A tree of keys: all keys below a key (None), or only some of them.
KeyTree = dict[str, Optional["KeyTree"]]


def exclude_chained_key_in_dict(d: Any, chained_key: list[str], /, ignore_missing_keys: bool = False) -> Any:
    """Remove the value at the end of a chain of keys from nested dicts or a `DictSpace`; returns a new one.

    A dict that becomes empty stays. A missing key raises a ValueError, unless `ignore_missing_keys`.
    """
    return _without(d, _key_tree([chained_key]), ignore_missing_keys)


def include_chained_key_in_dict(
    d: Any, chained_key: list[str], *, target_d: Any = None, ignore_missing_keys: bool = False
) -> Any:
    """Keep only the value at the end of a chain of keys of nested dicts or a `DictSpace`; returns a new one.

    With `target_d`, the value is merged into a copy of `target_d`. A missing key raises a ValueError, unless
    `ignore_missing_keys`.
    """
    included = _only(d, _key_tree([chained_key]), ignore_missing_keys)
    return included if target_d is None else _merged(target_d, included)


def _key_tree(chained_keys: Iterable[list[str]]) -> KeyTree:
    root: KeyTree = {}
    for chained_key in sorted(chained_keys):  # a key before the keys below it, which it includes
        node: KeyTree | None = root
        for key in chained_key[:-1]:
            node = None if node is None else node.setdefault(key, {})
        if node is not None:
            node[chained_key[-1]] = None
    return root


def _only(branch: Any, tree: KeyTree, ignore_missing_keys: bool, above: tuple[str, ...] = ()) -> Any:
    _check_keys(branch, tree, ignore_missing_keys, above)
    items = []
    for key, child in branch.items():
        if key not in tree:
            continue
        below = tree[key]
        if below is None:
            items.append((key, child))
        elif _is_reachable(child, below, ignore_missing_keys, (*above, key)):
            filtered = _only(child, below, ignore_missing_keys, (*above, key))
            if len(filtered) > 0:
                items.append((key, filtered))
    return rebuild(branch, items)


def _without(branch: Any, tree: KeyTree, ignore_missing_keys: bool, above: tuple[str, ...] = ()) -> Any:
    _check_keys(branch, tree, ignore_missing_keys, above)
    items = []
    for key, child in branch.items():
        if key not in tree:
            items.append((key, child))
            continue
        below = tree[key]
        if below is not None:
            if _is_reachable(child, below, ignore_missing_keys, (*above, key)):
                child = _without(child, below, ignore_missing_keys, (*above, key))
            items.append((key, child))
    return rebuild(branch, items)


def _is_reachable(child: Any, below: KeyTree, ignore_missing_keys: bool, above: tuple[str, ...]) -> bool:
    """Whether a child is a branch; if not, the keys below it are missing."""
    if not is_branch(child):
        _check_keys(child, below, ignore_missing_keys, above)
    return is_branch(child)


def _check_keys(node: Any, tree: KeyTree, ignore_missing_keys: bool, above: tuple[str, ...]) -> None:
    if not ignore_missing_keys:
        for key in tree:
            if not has_key(node, key):
                raise ValueError(missing_key_text((*above, key), len(above), node))


def _merged(target: Any, extra: Any) -> Any:
    """Merge the items of `extra` into a branch; returns a new branch."""
    children = dict(target.items())
    for key, child in extra.items():
        both = is_branch(child) and is_branch(children.get(key))
        children[key] = _merged(children[key], child) if both else child
    return rebuild(target, children.items())


class _DictKeyFilter(DataTransformation):
    """The base class of the two filters. Results have the order of the source."""

    has_inverse = False
    _keys_name: str

    def __init__(self, keys: Iterable[str], ignore_missing_keys: bool, nested_separator: str) -> None:
        self.nested_separator = check_separator(nested_separator)
        self.ignore_missing_keys = ignore_missing_keys
        self._set_keys(keys)

    def _set_keys(self, keys: Iterable[str]) -> None:
        if isinstance(keys, str):
            raise TypeError(f"{self._keys_name} is the string {keys!r}, it must be a collection of keys")
        self._keys = frozenset(keys)
        self._tree = _key_tree(key.split(self.nested_separator) for key in self._keys)

    def narrow(self, source_space: Space, paths: Collection[KeyPath]) -> tuple[list[KeyPath], DataTransformation]:
        fields = field_paths(self.get_target_space_from_source(source_space))
        narrowed = type(self)(self._keys, ignore_missing_keys=True, nested_separator=self.nested_separator)
        return [field for field in fields if any(overlap(field, path) for path in paths)], narrowed

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {
            self._keys_name: sorted(self._keys),
            "ignore_missing_keys": self.ignore_missing_keys,
            "nested_separator": self.nested_separator,
        }

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> Self:
        options = {name: json_data[name] for name in ("ignore_missing_keys", "nested_separator") if name in json_data}
        return cls(read_setting(json_data, cls._keys_name, cls), **options)


@register_transformation("dict_include_keys")
class DictIncludeKeyTransformation(_DictKeyFilter):
    """Keeps only some keys of a dictionary, and the dictionaries that contain them.

    Parameters
    ----------
    enabled_keys
        The keys to keep. For nested dictionaries, join the keys of all levels with `nested_separator`.
    ignore_missing_keys
        Skip keys that the source lacks; by default a missing key raises a ValueError.
    nested_separator
        The separator between keys of nested dictionaries.

    Examples
    --------
    >>> space = transition_space(env)
    >>> sorted(DictIncludeKeyTransformation(["obs", "action"]).get_target_space_from_source(space).spaces)
    ['action', 'obs']
    """

    _keys_name = "enabled_keys"

    def __init__(
        self, enabled_keys: Iterable[str], *, ignore_missing_keys: bool = False, nested_separator: str = "/"
    ) -> None:
        super().__init__(enabled_keys, ignore_missing_keys, nested_separator)

    @property
    def enabled_keys(self) -> frozenset[str]:
        """The keys to keep. Assign only before a chain with this transformation is used: the chain caches spaces."""
        return self._keys

    @enabled_keys.setter
    def enabled_keys(self, keys: Iterable[str]) -> None:
        self._set_keys(keys)

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return _only(require_dict(source_space, type(self).__name__), self._tree, self.ignore_missing_keys)

    def transform(self, source_space: Space, data: Any) -> Any:
        return _only(data, self._tree, self.ignore_missing_keys)


@register_transformation("dict_exclude_keys")
class DictExcludeKeyTransformation(_DictKeyFilter):
    """Drops some keys of a dictionary; a dictionary that becomes empty stays.

    Parameters
    ----------
    excluded_keys
        The keys to drop. For nested dictionaries, join the keys of all levels with `nested_separator`.
    ignore_missing_keys
        Skip keys that the source lacks; by default a missing key raises a ValueError.
    nested_separator
        The separator between keys of nested dictionaries.

    Examples
    --------
    >>> space = transition_space(env)
    >>> "reward" in DictExcludeKeyTransformation(["reward"]).get_target_space_from_source(space).spaces
    False
    """

    _keys_name = "excluded_keys"

    def __init__(
        self, excluded_keys: Iterable[str], *, ignore_missing_keys: bool = False, nested_separator: str = "/"
    ) -> None:
        super().__init__(excluded_keys, ignore_missing_keys, nested_separator)

    @property
    def excluded_keys(self) -> frozenset[str]:
        """The keys to drop. Assign only before a chain with this transformation is used: the chain caches spaces."""
        return self._keys

    @excluded_keys.setter
    def excluded_keys(self, keys: Iterable[str]) -> None:
        self._set_keys(keys)

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return _without(require_dict(source_space, type(self).__name__), self._tree, self.ignore_missing_keys)

    def transform(self, source_space: Space, data: Any) -> Any:
        return _without(data, self._tree, self.ignore_missing_keys)
