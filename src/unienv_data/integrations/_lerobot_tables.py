"""Reading columns of Parquet files by row, with a bounded cache of decoded columns."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

from ._lerobot_meta import Episodes

_CACHE_BYTES = 512 * 2**20
_MOST_FOOTERS = 4096


class TableFile:
    """The footer of one Parquet file: the starts of its row groups, its columns, and the `index` of its first row."""

    def __init__(self, path: Path, first_index: int | None, rows_wanted: int) -> None:
        pq = need("pyarrow.parquet", extra="lerobot")
        try:
            footer = pq.read_metadata(path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: there is no such file, although episodes refer to it") from None
        except (OSError, ValueError, NotImplementedError) as error:
            raise ValueError(f"{path}: not a Parquet file, or one that was never finished: {error}") from None
        counts = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        self.path = path
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.names = set(footer.schema.to_arrow_schema().names)
        self.first_index = 0
        if first_index is not None:
            if "index" in self.names and footer.num_rows:
                self.first_index = int(_decode(path, 0, "index")[0])
            elif footer.num_rows == rows_wanted:
                self.first_index = first_index  # the file has no other rows


class Tables:
    """Reads columns of the samples of all episodes.

    A decoded column of a row group stays in a cache of `cache_bytes`.
    """

    def __init__(self, episodes: Episodes, cache_bytes: int = _CACHE_BYTES) -> None:
        self._episodes, self._cache_bytes = episodes, cache_bytes
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._files: OrderedDict[int, TableFile] = OrderedDict()
        self._columns: OrderedDict[tuple[int, int, str], Any] = OrderedDict()
        self._used = 0

    def __getstate__(self) -> tuple[Episodes, int]:
        return self._episodes, self._cache_bytes

    def __setstate__(self, state: tuple[Episodes, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def close(self) -> None:
        """Drop the cache; the next read decodes again."""
        with self._lock:
            self._forget()

    def read(self, name: str, positions: np.ndarray) -> np.ndarray:
        """Read a column of some samples; texts and images are arrays of objects."""
        with self._lock:
            return self._read(name, positions)

    def longest_text(self, name: str) -> int:
        """Return the number of characters of the longest text of a column."""
        return max((len(text) for text in self.read(name, np.arange(self._episodes.starts[-1]))), default=0)

    def _read(self, name: str, positions: np.ndarray) -> np.ndarray:
        episodes = self._episodes
        number = np.searchsorted(episodes.starts, positions, side="right") - 1
        rows = positions - episodes.starts[number]
        file_of = episodes.file_of[number]
        out: np.ndarray | None = None
        for index in np.unique(file_of).tolist():
            in_file = np.flatnonzero(file_of == index)
            file = self._file(index)
            if name not in file.names:
                raise KeyError(f"{file.path}: there is no column {name!r}, although the features name it")
            wanted = rows[in_file]
            if episodes.from_index is not None:
                wanted = wanted + episodes.from_index[number[in_file]] - file.first_index
            if wanted.min() < 0 or wanted.max() >= file.starts[-1]:
                raise ValueError(
                    f"{file.path}: {file.starts[-1]} rows, and the episodes want row {wanted.max()}: the file is "
                    "incomplete, or was replaced by another file"
                )
            group_of = np.searchsorted(file.starts, wanted, side="right") - 1
            for group in np.unique(group_of).tolist():
                in_group = group_of == group
                values = self._column(index, group, name)
                if out is None:
                    out = np.empty((len(positions), *values.shape[1:]), values.dtype)
                out[in_file[in_group]] = values[wanted[in_group] - file.starts[group]]
        return np.empty(0) if out is None else out

    def _file(self, index: int) -> TableFile:
        file = self._files.get(index)
        if file is None:
            episodes = self._episodes
            in_file = np.flatnonzero(episodes.file_of == index)
            first = None if episodes.from_index is None else int(episodes.from_index[in_file].min())
            file = TableFile(episodes.files[index], first, int(episodes.lengths[in_file].sum()))
            self._files[index] = file
            if len(self._files) > _MOST_FOOTERS:
                self._files.popitem(last=False)
        return file

    def _column(self, index: int, group: int, name: str) -> np.ndarray:
        key = (index, group, name)
        if key in self._columns:
            self._columns.move_to_end(key)
            return self._columns[key]
        values = _decode(self._episodes.files[index], group, name)
        self._columns[key] = values
        self._used += _nbytes(values)
        while self._used > self._cache_bytes and len(self._columns) > 1:
            self._used -= _nbytes(self._columns.popitem(last=False)[1])
        return values


def _decode(path: Path, group: int, name: str) -> np.ndarray:
    pq = need("pyarrow.parquet", extra="lerobot")
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        try:
            column = file.read_row_group(group, columns=[name])[name].combine_chunks()
        except OSError as error:
            raise OSError(f"{path}: column {name!r} cannot be read: {error}") from error
    return _as_array(column, f"{path}: column {name!r}")


def _as_array(column: Any, name: str) -> np.ndarray:
    """Convert an Arrow column to an array; texts and images to an array of objects."""
    pa = need("pyarrow", extra="lerobot")
    if column.null_count:
        raise ValueError(f"{name} has rows without a value: fill them or leave the feature out")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if len(lengths) and (lengths != lengths[0]).any():
            raise ValueError(f"{name} has lists of different lengths, a feature has one shape")
        values = _as_array(column.flatten(), name)
        return values.reshape(len(column), int(lengths[0]) if len(lengths) else 0, *values.shape[1:])
    if pa.types.is_struct(kind):  # an image: the bytes of a file, or its path
        return np.fromiter(column.to_pylist(), object, len(column))
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(object) if values.dtype.kind == "U" else values


def _nbytes(values: np.ndarray) -> int:
    if values.dtype != object:
        return values.nbytes
    return sum(_object_bytes(value) for value in values.reshape(-1))


def _object_bytes(value: Any) -> int:
    items: Sequence[Any] = list(value.values()) if isinstance(value, dict) else [value]
    return sum(len(item) for item in items if item is not None)
