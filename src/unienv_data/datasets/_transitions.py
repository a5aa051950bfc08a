"""The steps of converted episodes as a batch, in TED form: at the root what held, under `next` what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.space import BoxSpace, DictSpace, Space
from unienv_interface.space.row_structure import builder, walk
from unienv_interface.space.spaces import TextSpace, TupleSpace
from unienv_interface.space.spaces.batched import object_array
from unienv_interface.utils.optional import need

from ..base._index import resolve_index
from ..base.common import BatchBase
from ..base.nested import nested_item
from ..base.windows import Episodes
from ._episode_rows import EpisodeRows
from ._minari_convert import TERMINATED, TRUNCATED

Finish = Callable[[np.ndarray], Any]


class TransitionBatch(BatchBase):
    """Steps of whole episodes; read-only, and the same in every process.

    With `as_tensors` every leaf is an array: texts are their UTF-8 bytes, filled up with zeros, and tuples are dicts
    with the keys "0", "1" and so on.
    """

    is_mutable = False
    is_segment_aware = True

    def __init__(
        self, rows: EpisodeRows, backend: ComputeBackend, device: Any = None, *, as_tensors: bool = False
    ) -> None:
        space = rows.sample_space
        if as_tensors:
            space = _tensor_space(space, rows.row_space, ())
        super().__init__(space.to(backend, device))
        self.rows, self._as_tensors = rows, as_tensors
        self._build = builder(self.single_space)
        places = {path: place for place, (path, _) in enumerate(walk(rows.row_space, ()))}
        leaves, recorded = walk(self.single_space, ()), walk(space, ())
        self._leaves = [
            (_place(_stored(path), places), _finisher(leaf, known))
            for (path, leaf), (_, known) in zip(leaves, recorded, strict=True)
        ]
        self._numbers = {path: number for number, (path, _) in enumerate(leaves)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.rows, self.backend, self.device, self._as_tensors)

    def __len__(self) -> int:
        return len(self.rows)

    def get_at(self, idx: Any) -> Any:
        position = resolve_index(self.backend, idx, len(self))
        if isinstance(position, int):
            parts = self._read(np.array([position]))
            return self._build([finish(parts[place][0, ...]) for place, finish in self._leaves])
        return self.take(position)

    def take(self, index: np.ndarray) -> Any:
        """`get_at` for indices that are known to be in range."""
        parts = self._read(index)
        return self._build([finish(parts[place]) for place, finish in self._leaves])

    def _read(self, index: np.ndarray) -> list[np.ndarray]:
        """The columns of some steps, those of the rows after, the flags and the episodes; see `_place`."""
        columns, episode, flags = self.rows.read(index)
        count, meaning = len(index), _MEANING.take(flags, 0)
        parts = [column[:count] for column in columns]
        parts += [column[count:] for column in columns]
        parts += (meaning[:, 0:1], meaning[:, 1:2], meaning[:, 2:3], episode)
        return parts

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        """One field; of a single leaf, only its own bytes are read."""
        keys = tuple(nested_keys)
        space = nested_item(self.single_space, keys)
        position = resolve_index(self.backend, idx, len(self))
        index = np.atleast_1d(position)
        values = [self._leaf(_stored(keys + path), index) for path, _ in walk(space, ())]
        if isinstance(position, int):
            values = [value[0, ...] for value in values]
        finishers = [self._leaves[self._numbers[keys + path]][1] for path, _ in walk(space, ())]
        return builder(space)([finish(value) for finish, value in zip(finishers, values, strict=True)])

    def _leaf(self, path: tuple[str, ...], index: np.ndarray) -> np.ndarray:
        if path == ("episode",):
            return self.rows.ids.take(self.rows.episode_numbers(index))
        if path in _FLAGS:
            return _MEANING.take(self.rows.read_flags(index), 0)[:, _FLAGS[path], None]
        after = path[0] == "next" and path != ("next", "reward")
        return self.rows.read_column(path[1:] if path[0] == "next" else path, index, after=after)

    # -- episodes --------------------------------------------------------------------------------------------

    def get_segments(self) -> list[tuple[int, int]]:
        pairs = zip(self.rows.starts.tolist(), self.rows.ends.tolist(), strict=True)
        return [(start, end) for start, end in pairs if start < end]

    def episodes_of(self, positions: np.ndarray) -> Episodes:
        number = self.rows.episode_numbers(positions)
        return Episodes(self.rows.starts.take(number), self.rows.ends.take(number), 1)

    @property
    def may_grow(self) -> bool:
        return False


def _rebuilt(rows: EpisodeRows, backend: ComputeBackend, device: Any, as_tensors: bool) -> TransitionBatch:
    return TransitionBatch(rows, backend, device, as_tensors=as_tensors)


# -- leaves ------------------------------------------------------------------------------------------------

_FLAGS: dict[tuple[str, ...], int] = {("next", "terminated"): 0, ("next", "truncated"): 1, ("next", "done"): 2}
# What the flags of a step mean, a column for each of these.
_MEANING = np.array([[bits & TERMINATED, bits & TRUNCATED, bits] for bits in range(4)], bool)


def _stored(path: tuple[Any, ...]) -> tuple[str, ...]:
    """A path in samples as one in rows, where a tuple is a dict."""
    return tuple(map(str, path))


def _place(path: tuple[str, ...], places: dict[tuple[Any, ...], int]) -> int:
    """Where the column of a leaf of samples is in what was read; `places` are those of the columns in a row."""
    if path == ("episode",):
        return 2 * len(places) + len(_FLAGS)
    if path in _FLAGS:
        return 2 * len(places) + _FLAGS[path]
    if path[0] == "next" and path != ("next", "reward"):
        return len(places) + places[path[1:]]
    return places[path[1:] if path[0] == "next" else path]


def _finisher(space: Space, recorded: Space) -> Finish:
    """What makes values of a space of a column that holds those of the space as it was recorded."""
    if isinstance(space, TextSpace):
        return _texts
    backend, device, dtype = space.backend, space.device, getattr(space, "dtype", None)
    name = backend.dtype_name(dtype)
    if name != recorded.backend.dtype_name(getattr(recorded, "dtype", None)):  # a backend without 64-bit numbers
        return lambda column: backend.from_numpy(column, dtype=dtype, device=device)
    if backend.simplified_name == "pytorch" and device is None:
        return need("torch", extra="torch").from_numpy  # all that `from_raw` does with a column, once it has looked
    return lambda column: backend.from_raw(column, name, device=device)


def _texts(column: np.ndarray) -> Any:
    texts = np.ascontiguousarray(column).view(f"S{column.shape[-1]}")[..., 0]
    decoded = object_array(texts.shape, (text.decode() for text in texts.flat))
    return decoded if decoded.shape else decoded.item()


def _tensor_space(space: Space, rows: Space, path: tuple[str, ...]) -> Any:
    """The space with arrays for texts and dicts for tuples."""
    if isinstance(space, (DictSpace, TupleSpace)):
        items = space.spaces.items() if isinstance(space, DictSpace) else enumerate(space.spaces)
        children = {str(key): _tensor_space(child, rows, (*path, str(key))) for key, child in items}
        return DictSpace(space.backend, children)
    if isinstance(space, TextSpace):
        stored = nested_item(rows, path[1:] if path[0] == "next" else path)
        return BoxSpace(space.backend, 0, 255, "uint8", shape=stored.shape)
    return space
