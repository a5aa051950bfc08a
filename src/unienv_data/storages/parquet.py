"""Samples in a folder of Parquet files, a column per leaf. Importing this module imports pyarrow."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import TextSpace

from ..base.files import check_disk, json_field, new_folder, remove_temporaries, replacing, write_json
from ..base.storage import StorageCorruptedError, UnsupportedFormatError
from ._column_storage import (
    DEFAULT_KEY,
    ColumnStorage,
    check_capacity,
    fixed_layout,
    leaf_names,
    new_column,
    stored_names,
)
from ._options import checks_options
from ._parquet_file import (
    FORMAT_VERSION,
    METADATA,
    MOST_COLUMN_BYTES,
    Compression,
    RowFile,
    check_compression,
    described_space,
    dtype_name,
    infer_column,
    nest,
    read_generations,
    read_metadata,
    write_rows,
)
from .registry import register_storage

if TYPE_CHECKING:
    from ..replay_buffer import ReplayBuffer

__all__ = ["ParquetStorage"]

# A piece lies in memory while it is written: a folder that asks for more than this was not written by us.
_MOST_PIECE_BYTES = 2**34
PathLike = str | os.PathLike[str]


@register_storage("parquet")
class ParquetStorage(ColumnStorage):
    """Samples in `part-000000.parquet` and so on, `piece_size` rows each, for other programs and for archives.

    A column per leaf ("obs/rgb"; `data` for a space that is no dictionary): numbers and lists of numbers, texts as
    strings (half of a surrogate pair is a ValueError), a leaf of a page or more as binary values. `get_column` reads
    only the columns of that leaf. Pages have checksums, which every read and `verify` compare.

    Rows are written to pieces in memory. A piece is written to its file when `cache_bytes` are full, and all are by
    `flush`, `dumps` and `close`: what was written since does not survive a kill of the process, and other processes
    see what was flushed when they opened it. To record where nothing may be lost use a PackedStorage, and convert
    afterwards (docs/storages.md). A piece that was never written cannot be read.

    Examples
    --------
    >>> space = transition_space(env, episode_id=True)
    >>> buffer = ReplayBuffer.create("parquet", space, capacity=100_000, cache_path="parquet")
    >>> buffer.append(transition)
    >>> buffer.close()  # writes the files
    """

    checks_when_read = True
    DEFAULT_KEY: ClassVar[str] = DEFAULT_KEY
    _unfit_characters = re.compile("[\ud800-\udfff]")

    def __init__(
        self,
        single_instance_space: Space,
        storage_dir: PathLike,
        capacity: int | None,
        piece_size: int,
        *,
        length: int = 0,
        generations: Mapping[int, int] | None = None,
        read_only: bool = False,
        compression: Compression = "snappy",
        cache_bytes: int = 2**28,
        single_file: Path | None = None,
    ) -> None:
        """The pieces in a folder that exists; `create` makes a new one.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        storage_dir
            The folder.
        capacity
            How many slots there are; None for a storage that grows.
        piece_size
            How many rows a piece has.
        length
            How many slots are in use, without a capacity.
        generations
            How often each piece was written, by its number; a piece that is not there was never written.
        read_only
            Refuse to be written.
        compression, cache_bytes
            As for `create`.
        single_file
            A file by itself, whose row groups are the pieces.
        """
        folder, length = Path(storage_dir), length if capacity is None else capacity
        super().__init__(single_instance_space, capacity=capacity, length=length, path=folder, mutable=not read_only)
        self.is_multiprocessing_safe = read_only
        self.piece_size, self.compression, self.cache_bytes = piece_size, compression, cache_bytes
        self.slots_read_as_one = piece_size
        self._folder, self._single_file = folder, single_file
        self._starts = None if single_file is None else self._row_groups(single_file)  # of the pieces, and the end
        self._names = leaf_names(self.layout)
        self._generations = dict(generations or {})
        self._kept_length = length  # as the metadata has it
        self._piece_cache: OrderedDict[int, list[np.ndarray]] = OrderedDict()  # being written, not in their files yet
        self._table_cache: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()  # columns as they are in files
        self._table_bytes = 0

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        piece_size: int = 1024,
        compression: Compression = "snappy",
        cache_bytes: int = 2**28,
    ) -> ParquetStorage:
        """Create a new folder.

        Parameters
        ----------
        single_instance_space, capacity, multiprocessing
            As for every storage.
        cache_path
            The folder, new or empty.
        piece_size
            How many rows a file has.
        compression
            One of Arrow's codecs ("snappy", "gzip", "zstd"), for all columns or by column.
        cache_bytes
            How many bytes of pieces are kept in memory before they are written.

        Returns
        -------
        ParquetStorage
            The storage.

        Raises
        ------
        FileExistsError
            The folder is not empty.
        ValueError
            `cache_path` is missing, `multiprocessing` is True, `piece_size` is below 1 or too large, or Parquet has no
            column for a leaf.
        """
        check_capacity(capacity)
        if cache_path is None:
            raise ValueError("ParquetStorage keeps its samples in files: give the folder as cache_path")
        if multiprocessing:
            raise ValueError("ParquetStorage has one writer: use PackedStorage with multiprocessing=True")
        if piece_size < 1:
            raise ValueError(f"piece_size is {piece_size}, it must be at least 1")
        layout, folder = fixed_layout(single_instance_space, cls.__name__), Path(cache_path)
        names = leaf_names(layout)
        for name, leaf in zip(names, layout.leaves, strict=True):
            if piece_size * leaf.codec.dtype.itemsize > MOST_COLUMN_BYTES:
                raise ValueError(
                    f"{name}: a piece of {piece_size} rows has {piece_size * leaf.codec.dtype.itemsize} bytes, at most "
                    f"{MOST_COLUMN_BYTES} are read: give a smaller piece_size"
                )
            if 0 in leaf.codec.shape:
                raise ValueError(f"{name}: {leaf.space} has no elements, which Parquet has no column for")
        if not names:
            raise ValueError(f"{single_instance_space} has no leaves, which Parquet has no rows for")
        check_compression(names, compression)
        options: Any = {"compression": compression, "cache_bytes": cache_bytes}
        with new_folder(folder):
            storage = cls(single_instance_space, folder, capacity, piece_size, **options)
            storage._write_metadata()
        return storage

    def _create_like(self, path: PathLike) -> ParquetStorage:
        return self.create(
            self.single_instance_space,
            capacity=self.capacity,
            cache_path=path,
            piece_size=self.piece_size,
            compression=self.compression,
            cache_bytes=self.cache_bytes,
        )

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        cache_bytes: int = 2**28,
        **kwargs: Any,
    ) -> ParquetStorage:
        """Load the storage in a folder, as it was when it was flushed; part files that it does not name are ignored.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only, multiprocessing
            As for every storage.
        cache_bytes
            As for `create`.
        **kwargs
            Arguments of other storages; ignored.

        Returns
        -------
        ParquetStorage
            The storage.

        Raises
        ------
        StorageCorruptedError
            The folder holds another space or capacity.
        UnsupportedFormatError
            The pieces are too large to be written.
        ValueError
            `multiprocessing` is True without `read_only`.
        """
        if multiprocessing and not read_only:
            raise ValueError(f"{path}: ParquetStorage has one writer, load it with read_only=True")
        folder, file = Path(path), Path(path) / METADATA
        content = read_metadata(file)
        stored = sorted(json_field(content, "column_shapes", dict, file))
        names = stored_names(leaf_names(fixed_layout(single_instance_space, cls.__name__)), stored.__contains__)
        if stored != sorted(names):
            raise StorageCorruptedError(f"{file}: columns {stored}, the space wants {sorted(names)}")
        length = json_field(content, "num_rows", int, file)
        if capacity is not None and length != capacity:
            raise StorageCorruptedError(f"{file}: {length} rows, wanted the capacity, {capacity}")
        piece_size = json_field(content, "piece_size", int, file)
        if not read_only:
            if piece_size * RowLayout(single_instance_space).nbytes > _MOST_PIECE_BYTES:
                raise UnsupportedFormatError(f"{file}: pieces of {piece_size} rows are too large to be written here")
            remove_temporaries(folder)
        storage = cls(
            single_instance_space,
            folder,
            capacity,
            piece_size,
            length=length,
            generations=read_generations(content, file),
            read_only=read_only,
            compression=content.get("compression"),
            cache_bytes=cache_bytes,
        )
        storage._names = names
        return storage

    @staticmethod
    def build_space_from_parquet_file(path: PathLike) -> tuple[int, int, Space]:
        """Capacity, number of samples and the space of one for a storage's folder or for any Parquet file.

        Of a folder only the metadata is read, but for the length of texts where that is not in it.
        """
        path = Path(path)
        if not path.is_dir():
            with RowFile(path) as file:
                columns = {name: infer_column(file, name) for name in file.schema.names}
                return file.length, file.length, nest(columns, DEFAULT_KEY)
        content = read_metadata(path / METADATA)
        count = json_field(content, "num_rows", int, path / METADATA)
        return count, count, described_space(content, path)

    @staticmethod
    def load_replay_buffer_from_raw_parquet(path: PathLike) -> ReplayBuffer:
        """A read-only buffer over a storage's folder or any Parquet file, whoever wrote it."""
        from ..replay_buffer import ReplayBuffer

        path = Path(path)
        count, _, space = ParquetStorage.build_space_from_parquet_file(path)
        if path.is_dir():
            storage = ParquetStorage.load_from(path, space)
        else:
            options: Any = {"length": count, "read_only": True, "single_file": path}
            storage = ParquetStorage(space, path, None, max(1, count), **options)
        return ReplayBuffer(storage, path.name, count=count)

    def _write_metadata(self) -> None:
        leaves = list(zip(self._names, self.layout.leaves, strict=True))
        content = {
            "storage_type": self.registered_name,
            "format_version": FORMAT_VERSION,
            "piece_size": self.piece_size,
            "num_rows": self._kept_length,
            "column_shapes": {name: list(leaf.codec.shape) for name, leaf in leaves},
            "column_dtypes": {name: dtype_name(leaf) for name, leaf in leaves},
            "text_lengths": {name: leaf.space.max_length for name, leaf in leaves if isinstance(leaf.space, TextSpace)},
            "compression": dict(self.compression) if isinstance(self.compression, Mapping) else self.compression,
            "generations": {str(piece): number for piece, number in sorted(self._generations.items())},
        }
        write_json(self._folder / METADATA, content)

    def __getstate__(self) -> dict[str, Any]:
        if self.is_mutable:
            raise TypeError(
                f"{self._folder} has one writer, this process: load it with read_only=True in the other one"
            )
        caches = {"_piece_cache": OrderedDict(), "_table_cache": OrderedDict(), "_table_bytes": 0}
        return {**super().__getstate__(), **caches}

    # -- samples ---------------------------------------------------------------------------------------------

    def _read(self, slots: np.ndarray, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        leaves = self.layout.leaves
        columns = [new_column(leaves[leaf_index], (len(slots),)) for leaf_index in leaf_indices]
        for piece, part, rows in self._by_piece(slots):
            for column, leaf_index in zip(columns, leaf_indices, strict=True):
                column[part] = self._column_of(piece, leaf_index)[rows]
        return columns

    def _write(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        for piece, part, rows in self._by_piece(slots):
            for mine, column in zip(self._editable(piece), columns, strict=True):
                mine[rows] = column[part]
        self._evict()

    def _by_piece(self, slots: np.ndarray) -> Iterator[tuple[int, slice, Any]]:
        """Slots in order by the piece they lie in: which part of them, and which rows of the piece."""
        starts, size = self._starts, self.piece_size
        pieces = slots // size if starts is None else np.searchsorted(starts, slots, "right") - 1
        ends = [*(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(slots)]
        start = 0
        for stop in ends:
            piece = int(pieces[start])
            first = piece * size if starts is None else int(starts[piece])
            yield piece, slice(start, stop), slots[start:stop] - first
            start = stop

    def _rows_in(self, piece: int) -> int:
        """How many rows a piece has."""
        return min(self.piece_size, self._length - piece * self.piece_size)

    def _row_groups(self, path: Path) -> np.ndarray:
        """Where each row group of a file begins, and where the last one ends; all of them are there to be read."""
        with RowFile(path) as file:
            groups = file.groups
        self._generations = dict.fromkeys(range(len(groups)), 0)
        are_equal = len(set(groups[:-1])) == 1 and groups[-1] <= groups[0]
        self.slots_read_as_one = max(1, groups[0]) if are_equal else 1
        return np.cumsum([0, *groups])

    # -- pieces ----------------------------------------------------------------------------------------------

    def _path_of(self, piece: int) -> Path:
        return self._single_file or self._folder / f"part-{piece:06d}.parquet"

    def _column_of(self, piece: int, leaf_index: int) -> np.ndarray:
        """A column of a piece, not to be written to."""
        if piece in self._piece_cache:
            return self._piece_cache[piece][leaf_index]
        key = (piece, leaf_index)
        if key in self._table_cache:
            self._table_cache.move_to_end(key)
            return self._table_cache[key]
        column = self._read_columns(piece, [leaf_index])[0]
        self._table_cache[key] = column
        self._table_bytes += column.nbytes
        while self._table_bytes > self.cache_bytes and len(self._table_cache) > 1:
            self._table_bytes -= self._table_cache.popitem(last=False)[1].nbytes
        return column

    def _read_columns(self, piece: int, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        path = self._path_of(piece)
        if self._single_file is not None:
            with RowFile(path) as file:
                return [
                    file.column(self._names[leaf_index], self.layout.leaves[leaf_index], piece)
                    for leaf_index in leaf_indices
                ]
        if piece not in self._generations:
            raise StorageCorruptedError(f"{path}: nothing was written to the rows of this piece")
        with RowFile(path) as file:
            stamp = (piece, self._generations[piece])
            if file.stamp not in (None, stamp):
                raise StorageCorruptedError(
                    f"{path}: piece and version {file.stamp}, wanted {stamp}; it was written since this storage was "
                    f"opened or last flushed, or it is not in its place"
                )
            if not self._rows_in(piece) <= file.length <= self.piece_size:
                raise StorageCorruptedError(f"{path}: {file.length} rows, wanted {self._rows_in(piece)}")
            return [file.column(self._names[leaf_index], self.layout.leaves[leaf_index]) for leaf_index in leaf_indices]

    def _editable(self, piece: int) -> list[np.ndarray]:
        """The columns of a piece, to be written to; it is in memory from now on until it is written to its file."""
        if piece not in self._piece_cache:
            columns = [new_column(leaf, (self.piece_size,)) for leaf in self.layout.leaves]
            if piece in self._generations:
                for mine, column in zip(columns, self._read_columns(piece, self._leaf_indices), strict=True):
                    mine[: len(column)] = column[: self.piece_size]
            self._piece_cache[piece] = columns
            self._forget_tables(piece)
        self._piece_cache.move_to_end(piece)
        return self._piece_cache[piece]

    def _forget_tables(self, piece: int) -> None:
        for leaf_index in self._leaf_indices:
            column = self._table_cache.pop((piece, leaf_index), None)
            self._table_bytes -= 0 if column is None else column.nbytes

    def _evict(self) -> None:
        """Write pieces to their files until those in memory take no more than they may; one always stays."""
        piece_bytes = max(1, self.piece_size * self.row_nbytes)
        while len(self._piece_cache) > 1 and len(self._piece_cache) * piece_bytes > self.cache_bytes:
            piece = next(iter(self._piece_cache))
            self._write_piece(piece)
            del self._piece_cache[piece]
            self._write_metadata()

    def _write_piece(self, piece: int) -> None:
        columns = [column[: self._rows_in(piece)] for column in self._piece_cache[piece]]
        generation = self._generations.get(piece, 0) + 1
        with replacing(self._path_of(piece)) as file:
            write_rows(file, self._names, self.layout.leaves, columns, self.compression, (piece, generation))
        self._generations[piece] = generation

    def reserve(self, start: int, stop: int) -> None:
        pieces = len(self._piece_cache) + 2 + (stop - start) // self.piece_size
        check_disk(self._folder, pieces * self.piece_size * self.row_nbytes)
        super().reserve(start, stop)

    def _resize(self, length: int) -> None:
        last = min(length, self._length) // self.piece_size
        if min(length, self._length) % self.piece_size and (last in self._generations or last in self._piece_cache):
            self._editable(last)  # its file has another number of rows by now
        if length < self._length:
            first_gone = -(-length // self.piece_size)
            for piece in [piece for piece in {*self._piece_cache, *self._generations} if piece >= first_gone]:
                self._piece_cache.pop(piece, None)
                self._forget_tables(piece)
                if self._generations.pop(piece, None) is not None:
                    self._path_of(piece).unlink(missing_ok=True)

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.is_mutable:
            return
        changed = bool(self._piece_cache) or self._kept_length != self._length
        for piece in sorted(self._piece_cache):
            self._write_piece(piece)
        self._kept_length = self._length
        if changed:
            self._write_metadata()
        while len(self._piece_cache) > 1:  # the one that is likely to be written next stays
            self._piece_cache.popitem(last=False)

    def verify(self) -> list[str]:
        findings = []
        for piece in sorted(self._generations):
            try:
                if piece not in self._piece_cache:
                    self._read_columns(piece, self._leaf_indices)
            except (ValueError, OSError) as error:
                findings.append(str(error))
        return findings

    @property
    def nbytes(self) -> int | None:
        paths = set(map(self._path_of, self._generations))
        return sum(path.stat().st_size for path in paths if path.exists())

    def dumps(self, path: PathLike) -> None:
        if self._is_own(path):
            self.flush()
            return
        if self._single_file is not None:
            self.snapshot(path, [(0, self._length)])
            return
        pieces = sorted({*self._generations, *self._piece_cache})
        starts = [(piece * self.piece_size, piece * self.piece_size + self._rows_in(piece)) for piece in pieces]
        self.snapshot(path, [*starts, (self._length, self._length)])

    def close(self) -> None:
        if self.is_mutable and self._folder.exists():
            self.flush()
