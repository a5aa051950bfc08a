"""The plan of a `DictStorage`: which part holds which field of a sample.

A part is named by a key: the keys that lead to a field, joined by a separator. A key that ends in "*" stands for all
that no other part holds: of the whole sample ("*"), or of the field before it ("obs/*").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from unienv_interface.space import Space
from unienv_interface.space.spaces import DictSpace
from unienv_interface.utils.dict_util import check_separator

from ..base.nested import nested_item

REST = "*"
KeyPath = tuple[Any, ...]


class Piece(NamedTuple):
    """A field that lies whole in one part: its path in the sample, which part, and its path in the part's value."""

    path: KeyPath
    part: int
    inner_path: KeyPath


class DictPlan:
    """Takes samples of a space apart into the values of parts, and puts them together again.

    `keys` are those of the parts. One that stands for the rest, where nothing is left, has no part.
    """

    def __init__(self, space: Space, keys: Iterable[str], separator: str = "/") -> None:
        """A ValueError if a field would be in no part, or in two."""
        check_separator(separator)
        self._space = space
        self._whole: dict[KeyPath, str] = {}
        self._rest: dict[KeyPath, str] = {}
        for key in keys:
            *above, last = key.split(separator)
            if last == REST:
                self._rest[tuple(above)] = key
            else:
                root = (*above, last)
                self._whole[root] = key
        self._check_roots()
        owners = list(self._owners(space, ()))
        self.keys = list(dict.fromkeys(key for _, _, key in owners))
        idle = sorted(set(self._whole.values()) - set(self.keys))
        if idle:
            raise ValueError(f"the key {idle[0]!r} of a storage lies below another: name the rest of that with a '*'")
        roots = {key: root for _, root, key in owners}
        self._roots = [roots[key] for key in self.keys]
        self._pieces = [Piece(path, self.keys.index(key), path[len(root) :]) for path, root, key in owners]

    def _check_roots(self) -> None:
        for root, key in (*self._whole.items(), *self._rest.items()):
            try:
                field = nested_item(self._space, root)
            except KeyError as error:
                raise ValueError(f"the key {key!r} of a storage: {error.args[0]}") from None
            if root and root in self._rest and not isinstance(field, DictSpace):
                raise ValueError(f"the key {key!r} of a storage: {'/'.join(root)!r} is no dictionary, but {field}")

    def _owners(self, space: Space, path: KeyPath) -> Iterator[tuple[KeyPath, KeyPath, str]]:
        """The fields that lie whole in one part, each with that part's root and key."""
        if path in self._whole:
            yield path, path, self._whole[path]
            return
        is_shared = any(len(root) > len(path) and root[: len(path)] == path for root in (*self._whole, *self._rest))
        scope = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self._rest), None)
        if scope is not None and not is_shared:
            yield path, scope, self._rest[scope]
        elif isinstance(space, DictSpace) and space.spaces:
            for key, child in space.spaces.items():
                yield from self._owners(child, (*path, key))
        else:
            field = "/".join(path) or "the sample"
            raise ValueError(f"no storage for {field!r}: give one for {REST!r}, which is all the rest")

    def spaces(self) -> list[Space]:
        """The spaces of the parts."""
        fields = [nested_item(self._space, piece.path) for piece in self._pieces]
        values = _collect(self._pieces, len(self.keys), fields)
        return [DictSpace(self._space.backend, value) if isinstance(value, dict) else value for value in values]

    def space_of(self, spaces: Sequence[Space]) -> Space:
        """The space of samples whose parts are of these spaces."""
        fields = [nested_item(spaces[piece.part], piece.inner_path) for piece in self._pieces]
        return _replaced(self._space, {piece.path: field for piece, field in zip(self._pieces, fields, strict=True)})

    def apart(self, value: Any) -> list[Any]:
        """The values of the parts for a sample, or for a batch."""
        return _collect(self._pieces, len(self.keys), [_at(value, piece.path) for piece in self._pieces])

    def together(self, values: Sequence[Any]) -> Any:
        """The sample, or batch, that these values of the parts are."""
        return assemble(self._pieces, values)

    def column(self, keys: KeyPath) -> tuple[list[tuple[int, KeyPath]], list[Piece]]:
        """The columns of parts to read for one field, and the pieces to assemble it from."""
        shared = [
            piece for piece in self._pieces if all(one == other for one, other in zip(piece.path, keys, strict=False))
        ]
        numbers = sorted({piece.part for piece in shared})
        sources = [(number, keys[len(self._roots[number]) :]) for number in numbers]
        pieces = [
            Piece(
                piece.path[len(keys) :],
                numbers.index(piece.part),
                piece.path[max(len(keys), len(self._roots[piece.part])) :],
            )
            for piece in shared
        ]
        return sources, pieces


def assemble(pieces: Sequence[Piece], values: Sequence[Any]) -> Any:
    """The sample whose pieces lie in these values."""
    result: dict[str, Any] = {}
    for path, part, inner_path in pieces:
        field = _at(values[part], inner_path)
        if not path:
            return field
        _put(result, path, field)
    return result


def _collect(pieces: Sequence[Piece], count: int, fields: Sequence[Any]) -> list[Any]:
    """The values of `count` parts that have these fields for their pieces."""
    values: list[Any] = [None] * count
    for (_, part, inner_path), field in zip(pieces, fields, strict=True):
        if not inner_path:
            values[part] = field
            continue
        if values[part] is None:
            values[part] = {}
        _put(values[part], inner_path, field)
    return values


def _at(value: Any, path: KeyPath) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(target: dict[Any, Any], path: KeyPath, value: Any) -> None:
    *above, last = path
    for key in above:
        target = target.setdefault(key, {})
    target[last] = value


def _replaced(space: Space, fields: dict[KeyPath, Space], path: KeyPath = ()) -> Space:
    """A space with other fields at these paths."""
    if path in fields:
        return fields[path]
    if not isinstance(space, DictSpace):
        return space
    spaces = {key: _replaced(child, fields, (*path, key)) for key, child in space.spaces.items()}
    return DictSpace(space.backend, spaces, device=space.device)
