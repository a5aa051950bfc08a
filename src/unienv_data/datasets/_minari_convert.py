"""Conversion of a Minari dataset to rows on disk, in chunks of an episode.

A first pass over all episodes determines the columns, and the spaces of rows and samples. A second pass writes the rows
to a temporary folder, which is then moved to the target. The folder has a fingerprint of its source, so that a changed
source is converted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils.serialization_utils import space_to_json
from unienv_interface.space.spaces import TextSpace, TupleSpace

from ..base.files import check_disk, replace_folder, sync_folder, write_json
from ..base.storage import StorageCorruptedError
from ._episodes import (
    EPISODE,
    EPISODES,
    FLAGS,
    FORMAT,
    MARKER,
    TERMINATED,
    TRUNCATED,
    VERSION,
    row_files,
)
from ._minari_source import METADATA, Episode, Leaf, Path_, Source, decoded_image, open_source

#: The mask of a column that some rows lack has the same path, under this key.
MASK = "mask"

_RESERVED = ("episode", "index", "next", "done", "terminated", "truncated", MASK)
_CHUNK_BYTES = 4 * 2**20
_TEXTS_AT_ONCE = 4096


def fingerprint(folder: Path) -> str:
    """Identify a dataset by the names, sizes and times of its files, and by its metadata."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    with contextlib.suppress(FileNotFoundError):
        digest.update((folder / METADATA).read_bytes())
    return digest.hexdigest()


def convert(folder: Path, target: Path, *, dataset_id: str, origin: Path | None, progress: bool) -> None:
    """Convert the dataset in a folder, and replace the folder `target`.

    The caller holds the lock of the target. `origin` is the path to check for changes of the source later; None for a
    temporary source.
    """
    source_fingerprint = fingerprint(folder)
    source = open_source(folder)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        schema = read_schema(source)
        if not schema.steps:
            raise StorageCorruptedError(f"{folder}: the dataset has no steps")
        temporary.mkdir()
        checksums = _write(source, schema, temporary, dataset_id, progress)
        if fingerprint(folder) != source_fingerprint:
            raise RuntimeError(f"{folder} was changed while it was read: try again when it is complete")
        marker = {
            "format": FORMAT,
            "format_version": VERSION,
            "dataset_id": dataset_id,
            "origin": None if origin is None else str(origin),
            "fingerprint": source_fingerprint,
            "steps": schema.steps,
            "episodes": schema.episodes,
            "checksums": checksums,
            "space": space_to_json(schema.sample_space(source)),
            "row_space": space_to_json(schema.row_space()),
            "metadata": source.metadata,
        }
        write_json(temporary / MARKER, marker)
        sync_folder(temporary)
        replace_folder(temporary, target)
    finally:
        source.close()
        shutil.rmtree(temporary, ignore_errors=True)


# -- writing -----------------------------------------------------------------------------------------------


class _File:
    """A file that is written sequentially, and its checksum."""

    def __init__(self, path: Path) -> None:
        self.name, self.checksum = path.name, 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by `close`

    def write(self, items: np.ndarray) -> None:
        data: Any = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
        self._file.write(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _write(source: Source, schema: Schema, folder: Path, dataset_id: str, progress: bool) -> dict[str, int]:
    """Write rows, flags and episodes, and return the checksum of each file."""
    from tqdm import tqdm

    layout = RowLayout(schema.row_space())
    check_disk(folder, schema.rows * layout.nbytes)
    size = max(1, _CHUNK_BYTES // layout.nbytes)
    scratch = layout.empty(size)
    scratch.records.view(np.uint8)[:] = 0  # the bytes between fields go to the file, too
    episodes = np.zeros(schema.episodes, EPISODE)
    with contextlib.ExitStack() as stack:
        files = [_File(folder / name) for name in (*(name for name, _ in row_files(layout)), FLAGS, EPISODES)]
        for file in files:
            stack.callback(file.close)
        *columns, flags, table = files
        bar = stack.enter_context(tqdm(total=schema.steps, desc=dataset_id, unit="step", disable=not progress))
        for number, episode in enumerate(source.episodes()):
            episodes[number] = (episode.number, episode.steps)
            for start in range(0, episode.steps + 1, size):
                stop = min(start + size, episode.steps + 1)
                rows = scratch[: stop - start]
                for leaf, column in zip(layout.leaves, rows.columns, strict=True):
                    if leaf.path[0] == MASK:
                        column[...] = _mask(episode, leaf.path[1:], start, stop)
                    else:
                        column[...] = _values_of(episode, schema.columns[leaf.path], start, stop)
                for file, items in zip(columns, (rows.records, *rows.blocks.values()), strict=True):
                    file.write(items)
                terminated, truncated = episode.flags(start, min(stop, episode.steps))
                flags.write((TERMINATED * terminated + TRUNCATED * truncated).astype(np.uint8))
                bar.update(len(terminated))
        table.write(episodes)
    return {file.name: file.checksum for file in files}


def _present_rows(episode: Episode, path: Path_) -> tuple[int, int]:
    """Return the rows [first, end) of an episode that have an entry in a column.

    An info with one entry less than rows belongs to the steps: the first row, of the reset, has no entry.
    """
    leaf = episode.leaves.get(path)
    if leaf is None:
        return 0, 0
    return episode.steps + 1 - leaf.length, episode.steps + 1


def _mask(episode: Episode, path: Path_, start: int, stop: int) -> np.ndarray:
    first, end = _present_rows(episode, path)
    rows = np.arange(start, stop)
    return (rows >= first) & (rows < end)


def _values_of(episode: Episode, column: Column, start: int, stop: int) -> np.ndarray:
    """Read the entries of rows [start, stop); missing entries are NaN for floats and zero otherwise."""
    dtype, shape = column.stored
    first, end = _present_rows(episode, column.path) if column.is_state else (0, episode.steps)
    low, high = max(start, first), min(stop, end)
    name = f"{episode.name}: {'/'.join(column.path)}"
    if low >= high:
        return _missing_values(column, dtype, (stop - start, *shape))
    values = episode.leaves[column.path].read(low - first, high - first)
    if column.kind == "text":
        values = np.array(values, f"S{column.width}").view(np.uint8)
    elif column.kind == "jpeg":
        images = [decoded_image(name, data) for data in values]
        if any(image.shape != shape for image in images):
            raise StorageCorruptedError(f"{name}: images of different sizes, wanted {shape}")
        values = np.stack(images)
    values = np.asarray(values, dtype).reshape(high - low, *shape)
    if high - low == stop - start:
        return values
    whole = _missing_values(column, dtype, (stop - start, *shape))
    whole[low - start : high - start] = values
    return whole


def _missing_values(column: Column, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    is_missing = column.is_state and dtype.kind in "fc"
    return np.full(shape, np.nan, dtype) if is_missing else np.zeros(shape, dtype)


# -- columns -----------------------------------------------------------------------------------------------


@dataclass
class Column:
    """A column of all episodes: its values, and whether they are states (T + 1 entries) or belong to steps (T)."""

    path: Path_
    kind: str
    dtype: np.dtype
    shape: tuple[int, ...]
    is_state: bool
    first_episode: str  # the name of the first episode with this column, for messages
    width: int = 1  # of texts, in bytes
    longest: int = 1  # of texts, in characters
    characters: set[str] = field(default_factory=set)
    episodes: int = 0  # the number of episodes with an entry in every row

    @property
    def stored(self) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype and shape of an entry in a row; a text is UTF-8 bytes padded with zeros."""
        if self.kind == "text":
            return np.dtype(np.uint8), (self.width,)
        return self.dtype, (1,) if self.path == ("reward",) else self.shape


@dataclass
class Schema:
    """The columns of a dataset by path, and the numbers of episodes and steps."""

    columns: dict[Path_, Column]
    episodes: int
    steps: int

    @property
    def rows(self) -> int:
        return self.steps + self.episodes

    def is_incomplete(self, column: Column) -> bool:
        """Whether some rows have no entry in a column, which then has a mask."""
        return column.episodes < self.episodes

    def row_space(self) -> DictSpace:
        """The space of one row, on NumPy."""
        tree: dict[str, Any] = {}
        for path, column in self.columns.items():
            _put(tree, path, _unbounded(*column.stored))
            if self.is_incomplete(column):
                _put(tree, (MASK, *path), BinarySpace(NumpyComputeBackend, ()))
        return _as_dict_space(tree)

    def sample_space(self, source: Source) -> DictSpace:
        """The space of one sample: entries before the step at the root, and after the step under `next`."""
        from unienv_interface.space.space_utils.gym_utils import from_gym_space  # needs Gymnasium

        root: dict[str, Any] = {"episode": _unbounded(np.dtype(np.int64), ())}
        for key in {path[0] for path in self.columns}:
            gym = {"observation": source.observation_space, "action": source.action_space}.get(key)
            root[key] = self._as_declared((key,), None if gym is None else from_gym_space(gym, NumpyComputeBackend))
        masks = [column for column in self.columns.values() if self.is_incomplete(column)]
        if masks:
            tree: dict[str, Any] = {}
            for column in masks:
                _put(tree, column.path, BinarySpace(NumpyComputeBackend, ()))
            root[MASK] = _as_dict_space(tree)
        kept = {path[0] for path, column in self.columns.items() if column.is_state} | ({MASK} if masks else set())
        after: dict[str, Any] = {key: root[key] for key in kept}
        after["reward"] = root.pop("reward")
        after |= {key: BinarySpace(NumpyComputeBackend, (1,)) for key in ("done", "terminated", "truncated")}
        return DictSpace(NumpyComputeBackend, {**root, "next": DictSpace(NumpyComputeBackend, after)})

    def _as_declared(self, path: Path_, declared: Space | None) -> Space:
        """Return the space under a path: as the dataset declares it, except where its data contradict."""
        if path in self.columns:
            return _leaf_space(self.columns[path], declared)
        if isinstance(declared, TupleSpace):
            children = [self._as_declared((*path, str(i)), child) for i, child in enumerate(declared.spaces)]
            return TupleSpace(NumpyComputeBackend, children)
        keys = {column[len(path)] for column in self.columns if column[: len(path)] == path}
        below = declared.spaces if isinstance(declared, DictSpace) else {}
        return DictSpace(NumpyComputeBackend, {key: self._as_declared((*path, key), below.get(key)) for key in keys})


def read_schema(source: Source) -> Schema:
    """Determine the columns of all episodes; a StorageCorruptedError if they contradict each other."""
    schema = Schema({}, 0, 0)
    required = {
        *_declared_paths(source.observation_space, ("observation",)),
        *_declared_paths(source.action_space, ("action",)),
    }
    for episode in source.episodes():
        for path in required - episode.leaves.keys():
            raise StorageCorruptedError(f"{episode.name}: {'/'.join(path)} is missing, which the dataset's space has")
        for path, leaf in episode.leaves.items():
            _add(schema, episode, path, leaf)
        schema.episodes += 1
        schema.steps += episode.steps
    for column in schema.columns.values():
        if schema.is_incomplete(column) and not column.is_state:
            raise StorageCorruptedError(
                f"{'/'.join(column.path)} is missing in some episodes, {column.first_episode} has it"
            )
        for end in range(1, len(column.path)):
            if column.path[:end] in schema.columns:
                other = schema.columns[column.path[:end]]
                raise StorageCorruptedError(
                    f"{'/'.join(other.path)} is a value in {other.first_episode}, and a group in {column.first_episode}"
                )
    return schema


def _add(schema: Schema, episode: Episode, path: Path_, leaf: Leaf) -> None:
    steps, name = episode.steps, "/".join(path)
    if path[0] in _RESERVED:
        raise StorageCorruptedError(f"{episode.name}: {name}, but the name {path[0]} is reserved in samples")
    if path[0] == "observation":
        episode.check_length(name, leaf, steps + 1)
    elif path[0] in ("action", "reward"):
        episode.check_length(name, leaf, steps)
    else:
        episode.check_length(name, leaf, steps, steps + 1)
    column = schema.columns.get(path)
    if column is None:
        # A column with T + 1 entries, or an info, is a state; all others belong to steps.
        is_state = leaf.length == steps + 1 or path[0] in ("info", "state")
        dtype, shape = leaf.dtype, leaf.shape
        if leaf.kind == "jpeg":
            dtype, shape = np.dtype(np.uint8), decoded_image(f"{episode.name}: {name}", leaf.read(0, 1)[0]).shape
        column = Column(path, leaf.kind, dtype, shape, is_state, episode.name)
        schema.columns[path] = column
    _check_same(column, episode, leaf)
    if leaf.kind == "text":
        _measure(column, leaf)
    elif leaf.kind == "array":
        column.dtype = np.promote_types(column.dtype, leaf.dtype)
    column.episodes += leaf.length == (steps + 1 if column.is_state else steps)


def _check_same(column: Column, episode: Episode, leaf: Leaf) -> None:
    if column.kind == leaf.kind == "jpeg":
        return
    is_same = (leaf.kind, leaf.shape) == (column.kind, column.shape)
    if not is_same or (leaf.kind == "array" and (leaf.dtype.kind == "b") != (column.dtype.kind == "b")):
        raise StorageCorruptedError(
            f"{episode.name}: {'/'.join(column.path)} is {leaf.kind} {leaf.dtype} of shape {leaf.shape}, "
            f"in {column.first_episode} it is {column.kind} {column.dtype} of shape {column.shape}"
        )


def _measure(column: Column, leaf: Leaf) -> None:
    for start in range(0, leaf.length, _TEXTS_AT_ONCE):
        for text in set(leaf.read(start, min(start + _TEXTS_AT_ONCE, leaf.length))):
            try:
                decoded = text.decode()
            except UnicodeDecodeError as error:
                raise StorageCorruptedError(f"{'/'.join(column.path)}: {text!r} is not UTF-8, {error}") from None
            column.width, column.longest = max(column.width, len(text)), max(column.longest, len(decoded))
            column.characters.update(decoded)


def _declared_paths(space: Any, path: Path_) -> list[Path_]:
    children = getattr(space, "spaces", None)
    if space is None:
        return []
    if children is None:
        return [path]
    items = children.items() if hasattr(children, "items") else enumerate(children)
    return [below for key, child in items for below in _declared_paths(child, (*path, str(key)))]


# -- spaces ------------------------------------------------------------------------------------------------


def _leaf_space(column: Column, declared: Space | None) -> Space:
    dtype, shape = column.stored
    if column.kind == "text":
        longest, charset = column.longest, None
        if isinstance(declared, TextSpace):
            longest = max(longest, declared.max_length)
            charset = declared.charset if column.characters <= set(declared.charset or ()) else None
        return TextSpace(NumpyComputeBackend, longest, charset=charset)
    if isinstance(declared, BinarySpace) and dtype.kind != "b" and declared.shape == shape:
        return BoxSpace(NumpyComputeBackend, 0, 1, dtype.name, shape=shape)
    if isinstance(declared, (BoxSpace, BinarySpace)) and (declared.dtype, declared.shape) == (dtype, shape):
        return declared
    return _unbounded(dtype, shape)


def _unbounded(dtype: np.dtype, shape: tuple[int, ...]) -> Space:
    if dtype.kind == "b":
        return BinarySpace(NumpyComputeBackend, shape)
    return BoxSpace(NumpyComputeBackend, -np.inf, np.inf, dtype.name, shape=shape)


def _put(tree: dict[str, Any], path: Path_, leaf: Space) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf


def _as_dict_space(tree: dict[str, Any]) -> DictSpace:
    children = {key: _as_dict_space(child) if isinstance(child, dict) else child for key, child in tree.items()}
    return DictSpace(NumpyComputeBackend, children)
