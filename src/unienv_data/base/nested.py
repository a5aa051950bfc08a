"""Nested fields of samples and of their spaces: by keys, by path, and several at once."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unienv_interface.space import DictSpace, Space
from unienv_interface.space.spaces import TupleSpace
from unienv_interface.utils.words import did_you_mean

#: The key of a field, or the keys that lead to a nested field.
Keys = str | int | Sequence[str | int]


@dataclass(frozen=True)
class Columns:
    """A selection of fields of a dict, usable as the last key of a path to that dict.

    Parameters
    ----------
    fields
        The keys to keep, each with the fields to keep under it; None for all fields under the key.
    """

    fields: tuple[tuple[Any, Columns | None], ...]

    @classmethod
    def of_paths(cls, paths: Iterable[tuple[Any, ...]]) -> Columns:
        """Make the selection of the fields at these paths; no path is empty or begins with another path."""
        groups: dict[Any, list[tuple[Any, ...]]] = {}
        for key, *rest in paths:
            groups.setdefault(key, []).append(tuple(rest))
        return cls(tuple((key, None if below == [()] else cls.of_paths(below)) for key, below in groups.items()))

    def of(self, item: Any) -> Any:
        """Return a value, or its space, with only these fields."""
        picked = {key: nested_item(item, (key,) if below is None else (key, below)) for key, below in self.fields}
        return DictSpace(item.backend, picked, item.device) if isinstance(item, DictSpace) else picked

    def paths(self) -> Iterator[tuple[Any, ...]]:
        """Yield the keys that lead to each field."""
        for key, below in self.fields:
            yield from [(key,)] if below is None else ((key, *path) for path in below.paths())

    def under(self, key: Any) -> Columns | None:
        """Return the fields kept under a key; None for all of them, a KeyError if the key is not kept."""
        for name, below in self.fields:
            if name == key:
                return below
        raise KeyError(f"there is no field {key!r}: {[name for name, _ in self.fields]}")

    def meet(self, other: Columns) -> Columns:
        """Return the fields that both selections keep; a KeyError if `other` has a key that is not kept here."""
        fields = []
        for key, theirs in other.fields:
            ours = self.under(key)
            fields.append((key, theirs if ours is None else ours if theirs is None else ours.meet(theirs)))
        return Columns(tuple(fields))


def nested_item(space_or_data: Any, keys: Sequence[Any]) -> Any:
    """Return the field of a sample, or of its space, under these keys; a KeyError with the path if it is missing."""
    for depth, key in enumerate(keys):
        if type(key) is Columns:
            space_or_data = key.of(space_or_data)
            continue
        children = _children(space_or_data)
        try:
            space_or_data = children[key]
        except (KeyError, IndexError, TypeError):
            known = sorted(map(str, children)) if isinstance(children, Mapping) else f"0 to {len(children) - 1}"
            near = did_you_mean(str(key), known) if isinstance(known, list) else ""
            path = "/".join(map(str, keys[: depth + 1]))
            raise KeyError(f"there is no field {path!r}: {known}{near}") from None
    return space_or_data


def _children(item: Any) -> Any:
    if isinstance(item, (DictSpace, TupleSpace)):
        return item.spaces
    if isinstance(item, Space) or not isinstance(item, (Mapping, tuple)):
        return {}
    return item


def join_keys(above: Sequence[Any], keys: Sequence[Any]) -> tuple[Any, ...]:
    """The keys of a field inside the field under `above`, from the outermost dict; `Columns` come last, if at all."""
    plain = [key for key in above if type(key) is not Columns]
    kept: Columns | None = above[-1] if above and type(above[-1]) is Columns else None
    for key in keys:
        if kept is None:
            plain.append(key)
        elif type(key) is Columns:
            kept = kept.meet(key)
        else:
            kept = kept.under(key)
            plain.append(key)
    return tuple(plain) if kept is None else (*plain, kept)


def columns_under(keys: Sequence[Any]) -> tuple[tuple[Any, ...], Columns | None]:
    """Split keys into the keys of dicts and the `Columns` at their end, if any."""
    if keys and type(keys[-1]) is Columns:
        return tuple(keys[:-1]), keys[-1]
    return tuple(keys), None


def overlap(keys: Sequence[Any], path: Sequence[Any]) -> bool:
    """Whether the fields under `keys`, which may end in `Columns`, contain the field at `path` or lie inside it."""
    above, columns = columns_under(keys)
    wanted = [above] if columns is None else [(*above, *below) for below in columns.paths()]
    return any(all(a == b for a, b in zip(wanted_path, path, strict=False)) for wanted_path in wanted)


# -- by path ---------------------------------------------------------------------------------------------------


def column_paths(space: Space, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys that lead to each column: to every field that is no dict, or an empty dict."""
    if not isinstance(space, DictSpace) or not space.spaces:
        return [above]
    return [path for key, child in space.spaces.items() for path in column_paths(child, (*above, key))]


def path_keys(space: Space, path: Keys) -> tuple[Any, ...]:
    """Split a path such as "obs/cam" into keys; a key may itself contain a slash."""
    if isinstance(path, int):
        return (path,)
    if not isinstance(path, str):
        return tuple(path)
    keys: list[Any] = []
    rest, at = path, space
    while rest:
        children = _children(at)
        names = children if isinstance(children, Mapping) else map(str, range(len(children)))
        name = max((n for n in names if rest == n or rest.startswith(f"{n}/")), key=len, default=rest.partition("/")[0])
        keys.append(name if isinstance(children, Mapping) or not name.isdecimal() else int(name))
        at = nested_item(space, keys)
        rest = rest[len(name) + 1 :]
    return tuple(keys)


def select_columns(space: Space, columns: str | Iterable[str | Sequence[Any]]) -> Columns:
    """Select the columns named by paths, by the paths of dicts above them, or by patterns such as "obs/cam_*".

    Raises
    ------
    ValueError
        An entry names no column, or the space is no dict.
    """
    paths = column_paths(space)
    if paths == [()]:
        raise ValueError(f"there are no columns to select: the samples are {space}, no dict of columns")
    chosen: set[tuple[Any, ...]] = set()
    for column in [columns] if isinstance(columns, str) else columns:
        chosen.update(matching_paths(paths, column))
    if not chosen:
        raise ValueError(f"no columns are selected, wanted at least one of {_names(paths)}")
    return Columns.of_paths(path for path in paths if path in chosen)


def matching_paths(paths: Collection[tuple[Any, ...]], column: str | Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the paths that `column` (a path, the path of a dict, or a pattern) names; a ValueError if none."""
    if isinstance(column, str):
        matching = [path for path in paths if any(fnmatch.fnmatchcase(name, column) for name in _prefixes(path))]
        matching = [path for path in paths if column in _prefixes(path)] or matching  # a key may look like a pattern
    else:
        matching = [path for path in paths if path[: len(column)] == tuple(column)]
    if not matching:
        name = column if isinstance(column, str) else "/".join(map(str, column))
        raise ValueError(f"there is no column {column!r}, only {_names(paths)}{did_you_mean(name, _names(paths))}")
    return matching


def _prefixes(path: tuple[Any, ...]) -> list[str]:
    return ["/".join(map(str, path[:end])) for end in range(1, len(path) + 1)]


def _names(paths: Iterable[tuple[Any, ...]]) -> list[str]:
    return ["/".join(map(str, path)) for path in paths]


def with_nested_item(space_or_data: Any, keys: Sequence[Any], item: Any) -> Any:
    """Copy a sample in dicts, or its space, with `item` under these keys, new or in place of the present one."""
    if not keys:
        return item
    key, *rest = keys
    children = space_or_data.spaces if isinstance(space_or_data, DictSpace) else space_or_data
    if rest:
        below = children[key] if isinstance(space_or_data, DictSpace) else children.get(key, {})
        item = with_nested_item(below, rest, item)
    changed = {**children, key: item}
    if isinstance(space_or_data, DictSpace):
        return DictSpace(space_or_data.backend, changed, space_or_data.device)
    return changed
