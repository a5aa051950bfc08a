"""Converted episodes on disk, and their steps as a batch in TED form.

A row has the state of one time (observation, info, state) and the step from there (action, reward). An episode of T
steps takes T + 1 rows, so every observation is stored once: step i of episode e is in row i + e, and its result in the
next row. Samples have the entries before the step at the root, and the entries after the step under `next`.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace, Space
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.space.row_structure import builder, walk
from unienv_interface.space.space_utils.serialization_utils import json_to_space
from unienv_interface.space.spaces import TextSpace, TupleSpace
from unienv_interface.space.spaces.batched import object_array
from unienv_interface.utils.optional import need

from ..base.common import BatchBase, resolve_index
from ..base.files import read_json
from ..base.mapped import MappedFile
from ..base.nested import columns_under, nested_item
from ..base.storage import StorageCorruptedError
from ..base.windows import Episodes

FORMAT, VERSION = "unienv-episodes", 2
#: The files of a converted dataset; a leaf outside of the rows (an image) has a file `block-N.bin`.
MARKER, ROWS, FLAGS, EPISODES, BLOCK = "dataset.json", "rows.bin", "flags.bin", "episodes.bin", "block-{}.bin"
#: One episode of the dataset: its id in the dataset, and the number of its steps.
EPISODE = np.dtype([("id", "<i8"), ("steps", "<i8")])
TERMINATED, TRUNCATED = 1, 2

_MAX_CACHED_STEPS = 2**24
_CHECK_BYTES = 2**20

Decode = Callable[[np.ndarray], Any]


# -- the folder --------------------------------------------------------------------------------------------


def read_marker(folder: Path) -> dict[str, Any]:
    """Read and check the marker of a converted folder."""
    marker = read_json(folder / MARKER, checksum=True)
    if marker.get("format") != FORMAT:
        raise StorageCorruptedError(f"{folder / MARKER}: not a converted dataset")
    if marker.get("format_version") != VERSION:
        raise StorageCorruptedError(
            f"{folder / MARKER}: format version {marker.get('format_version')}, this library reads {VERSION}"
        )
    return marker


def row_files(layout: RowLayout) -> list[tuple[str, np.dtype]]:
    """List the files of rows, each with the dtype of its items."""
    blocks = [(BLOCK.format(number), leaf.codec.dtype) for number, leaf in enumerate(layout.block_leaves)]
    return [(ROWS, layout.dtype), *blocks]


class Steps(NamedTuple):
    """Some steps: their rows and the following rows as one batch, their episodes and their flags."""

    columns: list[np.ndarray]  # for n steps 2n entries: first the rows of the steps, then the following rows
    episode: np.ndarray
    flags: np.ndarray


class EpisodeRows:
    """The episodes in a folder written by `convert`, or some of them; read-only, and equal in every process.

    Parameters
    ----------
    folder
        The folder of the converted dataset.
    chosen
        The episodes to use, counted from 0 in the order of the dataset; all if None.
    fingerprint
        The fingerprint that the folder must have, to detect a conversion of a changed dataset.
    """

    def __init__(
        self, folder: str | os.PathLike[str], chosen: np.ndarray | None = None, fingerprint: str | None = None
    ) -> None:
        self.folder = Path(folder)
        self.marker = read_marker(self.folder)
        if fingerprint not in (None, self.marker["fingerprint"]):
            raise StorageCorruptedError(f"{self.folder}: the dataset was converted again meanwhile, open it again")
        steps, episodes = self.marker["steps"], self.marker["episodes"]
        self.sample_space: DictSpace = json_to_space(self.marker["space"], NumpyComputeBackend)
        self.row_space: DictSpace = json_to_space(self.marker["row_space"], NumpyComputeBackend)
        self._table = self._map(EPISODES, EPISODE, episodes)
        if zlib.crc32(self._table.tobytes()) != self.marker["checksums"][EPISODES]:
            raise StorageCorruptedError(f"{self.folder / EPISODES}: the checksum does not match, the file was damaged")
        if int(self._table["steps"].sum()) != steps or int(self._table["steps"].min()) < 0:
            raise StorageCorruptedError(f"{self.folder / EPISODES}: not {steps} steps, as {MARKER} has")
        self._flags = self._map(FLAGS, np.dtype(np.uint8), steps)
        layout = RowLayout(self.row_space)
        records, *blocks = (self._map(name, dtype, steps + episodes) for name, dtype in row_files(layout))
        names = (leaf.name for leaf in layout.block_leaves)
        self._rows = Rows(layout, records, dict(zip(names, blocks, strict=True)), None)
        self._columns = {leaf.path: column for leaf, column in zip(layout.leaves, self._rows.columns, strict=True)}
        self._choose(np.arange(episodes) if chosen is None else chosen)

    def _map(self, name: str, dtype: np.dtype, length: int) -> np.ndarray:
        file = MappedFile.open(self.folder / name, dtype, writable=False)
        try:
            file.check_length(length, exactly=True)
            return file.map(length)
        finally:
            file.close()

    def _choose(self, chosen: np.ndarray) -> None:
        """Use these episodes, in this order."""
        if not len(chosen):
            raise ValueError("no episodes are left: a replay needs at least one")
        self.chosen = chosen
        lengths, first = self._table["steps"][chosen], self._table["steps"].cumsum() - self._table["steps"]
        self.ids = self._table["id"][chosen]
        self.ends = lengths.cumsum()  # the end of each episode, in steps
        self._to_row = first[chosen] + chosen - self.starts  # added to a step gives its row
        self._to_flag = self._to_row - chosen

    def select(self, chosen: np.ndarray) -> EpisodeRows:
        """Use some of these episodes, counted from 0; the files are shared."""
        other = EpisodeRows.__new__(EpisodeRows)
        other.__dict__.update({key: value for key, value in self.__dict__.items() if key != "_numbers"})
        other._choose(self.chosen[chosen])
        return other

    @property
    def has_all(self) -> bool:
        """Whether these are all episodes of the dataset, in order."""
        return np.array_equal(self.chosen, np.arange(self.marker["episodes"]))

    def __reduce__(self) -> tuple[type[EpisodeRows], tuple[Any, ...]]:
        chosen = None if self.has_all else self.chosen
        return EpisodeRows, (self.folder, chosen, self.marker["fingerprint"])

    def __len__(self) -> int:
        """The number of steps."""
        return int(self.ends[-1])

    @property
    def starts(self) -> np.ndarray:
        """The first step of each episode."""
        return np.concatenate(([0], self.ends[:-1]))

    def episode_numbers(self, index: np.ndarray) -> np.ndarray:
        """Return the episode of each step, counted from 0."""
        if self._numbers is not None:
            return self._numbers.take(index)
        return self.ends.searchsorted(index, "right")

    @functools.cached_property
    def _numbers(self) -> np.ndarray | None:
        """The episode of every step, a lookup that is five times as fast; None if it takes too much memory."""
        if len(self) > _MAX_CACHED_STEPS:
            return None
        return np.repeat(np.arange(len(self.ends), dtype=np.int32), np.diff(self.ends, prepend=0))

    def read(self, index: np.ndarray) -> Steps:
        """Read steps by indices, which must be in range."""
        number = self.episode_numbers(index)
        row = index + self._to_row.take(number)
        rows = self._rows.take(np.concatenate((row, row + 1)), "wrap")
        return Steps(rows.columns, self.ids.take(number), self._flags.take(index + self._to_flag.take(number)))

    def read_column(self, path: tuple[str, ...], index: np.ndarray, *, after: bool) -> np.ndarray:
        """Read one column of the rows of some steps, or of the following rows if `after`."""
        return self._columns[path][index + self._to_row.take(self.episode_numbers(index)) + after]

    def read_flags(self, index: np.ndarray) -> np.ndarray:
        return self._flags.take(index + self._to_flag.take(self.episode_numbers(index)))

    def read_ids(self, index: np.ndarray) -> np.ndarray:
        """Read the ids in the dataset of the episodes of some steps."""
        return self.ids.take(self.episode_numbers(index))

    def trajectory_ends(self) -> np.ndarray:
        """Return the ends of trajectories: the ends of episodes, and behind terminated or truncated steps."""
        done = np.flatnonzero(self.read_flags(np.arange(len(self)))) + 1
        ends = np.unique(np.concatenate((self.ends, done)))
        return ends[ends > 0]

    def verify(self) -> list[str]:
        """Compare all files with their checksums; return one sentence for each damaged file."""
        findings = []
        for name, checksum in self.marker["checksums"].items():
            crc = 0
            with open(self.folder / name, "rb") as file:
                while data := file.read(_CHECK_BYTES):
                    crc = zlib.crc32(data, crc)
            if crc != checksum:
                findings.append(f"{self.folder / name}: the checksum does not match, the file was damaged")
        return findings


# -- the steps as a batch ----------------------------------------------------------------------------------


class TransitionBatch(BatchBase):
    """Steps of complete episodes; read-only, and equal in every process.

    With `as_tensors` every leaf is an array: texts are UTF-8 bytes padded with zeros, and tuples are dicts with the
    keys "0", "1" and so on.
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
        row_columns = {leaf.path: index for index, leaf in enumerate(RowLayout(rows.row_space).leaves)}
        self._leaves = [
            (_column_index(_row_path(path), row_columns), _decoder(leaf, nested_item(space, path)))
            for path, leaf in walk(self.single_space, ())
        ]
        self._numbers = {path: number for number, (path, _) in enumerate(walk(self.single_space, ()))}
        self._build = builder(self.single_space)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.rows, self.backend, self.device, self._as_tensors)

    def __len__(self) -> int:
        return len(self.rows)

    def only_episodes(self, chosen: np.ndarray) -> TransitionBatch:
        """Use some of these episodes, counted from 0."""
        return TransitionBatch(self.rows.select(chosen), self.backend, self.device, as_tensors=self._as_tensors)

    def get_at(self, idx: Any) -> Any:
        position = resolve_index(self.backend, idx, len(self))
        if isinstance(position, int):
            columns = self._read(np.array([position]))
            return self._build([decode(columns[number][0, ...]) for number, decode in self._leaves])
        return self.take(position)

    def take(self, index: np.ndarray) -> Any:
        """`get_at` for an array of indices that are in range."""
        columns = self._read(index)
        return self._build([decode(columns[number]) for number, decode in self._leaves])

    def _read(self, index: np.ndarray) -> list[np.ndarray]:
        """Read the columns of some steps, of the following rows, the flags and the episodes; see `_column_index`."""
        columns, episode, flags = self.rows.read(index)
        count, decoded = len(index), self._decoded(flags)
        before = [column[:count] for column in columns]
        after = [column[count:] for column in columns]
        return [*before, *after, decoded[:, 0:1], decoded[:, 1:2], decoded[:, 2:3], episode]

    def _decoded(self, flags: np.ndarray) -> np.ndarray:
        try:
            return _DECODED_FLAGS.take(flags, 0)
        except IndexError:
            raise StorageCorruptedError(
                f"{self.rows.folder / FLAGS}: unknown flags, the file was damaged: "
                f'download="force" makes the converted dataset again'
            ) from None

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        """Fetch one nested field of samples; only the columns under it are read."""
        keys = tuple(nested_keys)
        space, above = nested_item(self.single_space, keys), columns_under(keys)[0]
        position = resolve_index(self.backend, idx, len(self))
        index = np.atleast_1d(position)
        values = []
        for path, _ in walk(space, ()):
            column = self._leaf(_row_path(above + path), index)
            decode = self._leaves[self._numbers[above + path]][1]
            values.append(decode(column[0, ...] if isinstance(position, int) else column))
        return builder(space)(values)

    def _leaf(self, path: tuple[str, ...], index: np.ndarray) -> np.ndarray:
        if path == ("episode",):
            return self.rows.read_ids(index)
        if path in _FLAGS:
            return self._decoded(self.rows.read_flags(index))[:, _FLAGS[path], None]
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
# The flags of a step by their bits, one column for each key of `_FLAGS`.
_DECODED_FLAGS = np.array([[bits & TERMINATED, bits & TRUNCATED, bits] for bits in range(4)], bool)


def _children(space: Space) -> list[tuple[Any, Space]] | None:
    """Return the keys and spaces under a dict or tuple; None for a leaf."""
    if isinstance(space, DictSpace):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, TupleSpace) else None


def _row_path(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Convert a path in samples to a path in rows, where a tuple is a dict."""
    return tuple(map(str, path))


def _column_index(path: tuple[str, ...], row_columns: dict[tuple[Any, ...], int]) -> int:
    """Return the index of a sample's leaf in the result of `_read`; `row_columns` has the columns of a row by path."""
    if path == ("episode",):
        return 2 * len(row_columns) + len(_FLAGS)
    if path in _FLAGS:
        return 2 * len(row_columns) + _FLAGS[path]
    if path[0] == "next" and path != ("next", "reward"):
        return len(row_columns) + row_columns[path[1:]]
    return row_columns[path[1:] if path[0] == "next" else path]


def _decoder(space: Space, recorded: Space) -> Decode:
    """Return the function that converts a column of the recorded space to values of a space."""
    if isinstance(space, TextSpace):
        return _texts
    backend, device, dtype = space.backend, space.device, getattr(space, "dtype", None)
    name = backend.dtype_name(dtype)
    if name != recorded.backend.dtype_name(getattr(recorded, "dtype", None)):  # a backend without 64-bit numbers
        return lambda column: backend.from_numpy(column, dtype=dtype, device=device)
    if backend.simplified_name == "pytorch" and device is None:
        return need("torch", extra="torch").from_numpy  # `from_raw` without its checks
    return lambda column: backend.from_raw(column, name, device=device)


def _texts(column: np.ndarray) -> Any:
    texts = np.ascontiguousarray(column).view(f"S{column.shape[-1]}")[..., 0]
    decoded = object_array(texts.shape, (text.decode() for text in texts.flat))
    return decoded if decoded.shape else decoded.item()


def _tensor_space(space: Space, rows: Space, path: tuple[str, ...]) -> Any:
    """Return a space with arrays for texts and dicts for tuples."""
    children = _children(space)
    if children is not None:
        spaces = {str(key): _tensor_space(child, rows, (*path, str(key))) for key, child in children}
        return DictSpace(space.backend, spaces)
    if isinstance(space, TextSpace):
        stored = nested_item(rows, path[1:] if path[0] == "next" else path)
        return BoxSpace(space.backend, 0, 255, "uint8", shape=stored.shape)
    return space
