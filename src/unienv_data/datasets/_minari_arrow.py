"""Minari's Arrow and Parquet files, read with pyarrow.

A dataset has a folder of files for each episode, whose rows are the observations, one more than steps. Rows are decoded
in chunks, and earlier chunks are dropped.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

from ..base.storage import StorageCorruptedError
from ._minari_source import FLAGS, SAMPLE_NAMES, Episode, Leaf, Path_, is_image

FORMATS = ("arrow", "parquet")

_CHUNK_BYTES = 4 * 2**20
# The assumed size of a value without a fixed size, to compute the rows of a chunk.
_VARIABLE_BYTES = 64 * 2**10


class ArrowSource:
    """A dataset with a folder of Arrow or Parquet files for each episode."""

    def __init__(self, folder: Path, metadata: dict[str, Any], observation_space: Any, action_space: Any) -> None:
        self.metadata, self.observation_space, self.action_space = metadata, observation_space, action_space
        self._folder = folder

    def __len__(self) -> int:
        return int(self.metadata.get("total_episodes", 0))

    def episodes(self) -> Iterator[Episode]:
        for number in range(len(self)):
            name = f"{self._folder}: episode {number}"
            with _errors_of(name):
                episode = self._episode(number, name)
            yield episode

    def _episode(self, number: int, name: str) -> Episode:
        rows = EpisodeFiles(self._folder / str(number), self.metadata["data_format"], name)
        has_images = bool(self.metadata.get("jpeg_encoding", True))
        spaces = {"observations": self.observation_space, "actions": self.action_space}
        leaves: dict[Path_, Leaf] = {}
        for field in rows.schema:
            key = SAMPLE_NAMES.get(field.name, field.name)
            if key in ("observation", "info"):
                length = rows.length
            elif key in ("action", "reward", *FLAGS):
                length = rows.length - 1  # Minari pads these columns to the length of observations
            else:
                continue
            for path, space, inner in _fields(field, (), spaces.get(field.name)):
                entry = (key, *path)
                kind, shape, dtype = _kind_of(f"{name}: {'/'.join(entry)}", inner, space, has_images)
                leaves[entry] = ArrowLeaf(rows, (field.name, *path), length, kind, shape, dtype)
        for flag in FLAGS:
            if (flag,) not in leaves:
                raise StorageCorruptedError(f"{name}: {flag} are missing")
        return Episode(name, number, leaves, [leaves.pop((flag,)) for flag in FLAGS])

    def close(self) -> None:
        pass


class EpisodeFiles:
    """The rows of one episode, decoded in chunks in ascending order."""

    def __init__(self, folder: Path, data_format: str, name: str) -> None:
        self.name = name
        self._is_parquet = data_format == "parquet"
        self._paths = sorted(folder.glob(f"*.{data_format}"), key=lambda path: (len(path.name), path.name))
        if not self._paths:
            raise StorageCorruptedError(f"{name}: no *.{data_format} in {folder}")
        self.schema: Any = None
        self.length = nbytes = 0
        for path in self._paths:
            schema, rows, size = self._measure(path)
            if self.schema is not None and schema != self.schema:
                raise StorageCorruptedError(f"{path}: the columns differ from {self._paths[0]}")
            self.schema, self.length, nbytes = schema, self.length + rows, nbytes + size
        if not self.length:
            raise StorageCorruptedError(f"{name}: no observations")
        row_bytes = max(nbytes // self.length, sum(_bytes_of(field.type) for field in self.schema))
        self._chunk_rows = max(1, _CHUNK_BYTES // max(1, row_bytes))
        self._batches: Iterator[Any] = iter(())
        self._decoded: deque[tuple[int, Any]] = deque()  # chunks with their first rows
        self._end = self.length  # the row behind the decoded chunks; at first so that `read` starts over

    def _measure(self, path: Path) -> tuple[Any, int, int]:
        """Return the schema, the number of rows and the bytes of a file."""
        if self._is_parquet:
            with need("pyarrow.parquet", extra="parquet").ParquetFile(path) as file:
                groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
                return file.schema_arrow, file.metadata.num_rows, sum(group.total_byte_size for group in groups)
        pyarrow = need("pyarrow", extra="parquet")
        with pyarrow.memory_map(str(path)) as memory:
            file = pyarrow.ipc.open_file(memory)
            rows = sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))
            return file.schema, rows, memory.size()

    def read(self, start: int, stop: int) -> list[tuple[int, int, Any]]:
        """Return the chunks that contain rows [start, stop), each with the range [first, last) of these rows in it."""
        while self._decoded and self._decoded[0][0] + self._decoded[0][1].num_rows <= start:
            self._decoded.popleft()
        if (self._decoded[0][0] if self._decoded else self._end) > start:
            self._batches, self._end = self._from_start(), 0
            self._decoded.clear()
        while self._end < stop:
            batch = next(self._batches, None)
            if batch is None:
                raise StorageCorruptedError(f"{self.name}: {self._end} rows, its files declare {self.length}")
            if self._end + batch.num_rows > start:
                batch.validate(full=True)  # a damaged file may refer to values outside of it
                self._decoded.append((self._end, batch))
            self._end += batch.num_rows
        return [
            (max(start - first, 0), min(stop - first, batch.num_rows), batch)
            for first, batch in self._decoded
            if first < stop
        ]

    def _from_start(self) -> Iterator[Any]:
        for path in self._paths:
            yield from self._parquet(path) if self._is_parquet else self._arrow(path)

    def _parquet(self, path: Path) -> Iterator[Any]:
        # A small buffer: by default pyarrow loads a whole column of a row group at once.
        file = need("pyarrow.parquet", extra="parquet").ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        with file:
            yield from file.iter_batches(self._chunk_rows, use_threads=False)

    def _arrow(self, path: Path) -> Iterator[Any]:
        pyarrow = need("pyarrow", extra="parquet")
        number, start = 0, 0
        while True:
            # Mapped again for each chunk: pages of dropped chunks would count as this process's memory.
            with pyarrow.memory_map(str(path)) as memory:
                file = pyarrow.ipc.open_file(memory)
                if number == file.num_record_batches:
                    return
                batch = file.get_batch(number)
            yield batch.slice(start, self._chunk_rows)
            start += self._chunk_rows
            if start >= batch.num_rows:
                number, start = number + 1, 0


class ArrowLeaf:
    """A column of an episode in its files."""

    def __init__(
        self, rows: EpisodeFiles, path: Path_, length: int, kind: str, shape: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self.length, self.kind, self.shape, self.dtype = length, kind, shape, dtype
        self._rows, self._path = rows, path

    def read(self, start: int, stop: int) -> Any:
        name = f"{self._rows.name}: {'/'.join(self._path)}"
        with _errors_of(name):
            chunks = [self._decoded(batch, first, last) for first, last, batch in self._rows.read(start, stop)]
            if self.kind != "array":
                return [value for chunk in chunks for value in chunk]
            return np.concatenate(chunks) if chunks else np.empty((0, *self.shape), self.dtype)

    def _decoded(self, batch: Any, first: int, last: int) -> Any:
        column = batch.column(self._path[0])
        for key in self._path[1:]:
            column = column.field(key)
        column = column.slice(first, last - first)
        if column.null_count:
            raise StorageCorruptedError(f"{self._rows.name}: {'/'.join(self._path)}: values are missing")
        if self.kind == "text":
            return [text.encode() for text in column.to_pylist()]
        if self.kind == "jpeg":
            return column.to_pylist()
        pyarrow = need("pyarrow", extra="parquet")
        if pyarrow.types.is_fixed_size_list(column.type):
            column = column.flatten()
        return column.to_numpy(zero_copy_only=False).reshape(last - first, *self.shape)


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Convert errors of pyarrow and of contradictory files to a StorageCorruptedError with a name."""
    arrow_error = need("pyarrow", extra="parquet").ArrowException
    try:
        yield
    except StorageCorruptedError:
        raise
    except (arrow_error, OSError, ValueError, KeyError) as error:
        raise StorageCorruptedError(f"{name} cannot be read, {error!r}") from error


def _fields(field: Any, path: Path_, space: Any) -> Iterator[tuple[Path_, Any, Any]]:
    """Yield the path, space and field of each column under a field; a struct is a dict or a tuple."""
    types = need("pyarrow", extra="parquet").types
    if not types.is_struct(field.type):
        yield path, space, field
        return
    children = getattr(space, "spaces", {})
    if isinstance(children, tuple):
        children = {str(index): child for index, child in enumerate(children)}
    for index in range(field.type.num_fields):
        child = field.type.field(index)
        yield from _fields(child, (*path, child.name), children.get(child.name))


def _kind_of(name: str, field: Any, space: Any, has_images: bool) -> tuple[str, tuple[int, ...], np.dtype]:
    """Return the kind of a column ("text", "jpeg" or "array"), and the shape and dtype of an entry."""
    types, kind = need("pyarrow", extra="parquet").types, field.type
    if types.is_string(kind) or types.is_large_string(kind):
        return "text", (), np.dtype("S")
    if has_images and is_image(space) and (types.is_binary(kind) or types.is_large_binary(kind)):
        return "jpeg", (), np.dtype(np.uint8)
    is_list = types.is_fixed_size_list(kind)
    items = kind.value_type if is_list else kind
    if not (types.is_integer(items) or types.is_floating(items) or types.is_boolean(items)):
        raise StorageCorruptedError(f"{name}: {kind}, wanted values of equal size")
    dtype = np.dtype(items.to_pandas_dtype())
    if not is_list:
        return "array", (), dtype
    shape = _shape_of(field, space, kind.list_size)
    if math.prod(shape) != kind.list_size:
        raise StorageCorruptedError(f"{name}: lists of {kind.list_size} numbers, wanted the shape {shape}")
    return "array", shape, dtype


def _shape_of(field: Any, space: Any, size: int) -> tuple[int, ...]:
    """Return the shape of list entries: from their space, or from the field's metadata for infos."""
    if space is not None:
        return tuple(space.shape)
    shape = (field.metadata or {}).get(b"shape")
    if shape is None:
        return (size,)
    return tuple(int(number) for number in shape.split(b",") if number)


def _bytes_of(kind: Any) -> int:
    """Return the decoded size in bytes of one value of an Arrow type."""
    types = need("pyarrow", extra="parquet").types
    if types.is_struct(kind):
        return sum(_bytes_of(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return int(kind.list_size) * _bytes_of(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VARIABLE_BYTES
