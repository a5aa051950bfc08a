"""Samples in one HDF5 file, a dataset per leaf. Importing this module imports h5py."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLeaf
from unienv_interface.space.spaces import ArraySpace

from ..base.files import check_disk, remove, reserve
from ..base.storage import StorageCorruptedError
from . import _hdf5_file as files
from ._column_storage import DEFAULT_KEY, ColumnStorage, check_capacity, fixed_layout, stored_names, text_column
from ._hdf5_file import h5py
from ._options import checks_options
from .registry import register_storage

if TYPE_CHECKING:
    from ..replay_buffer import ReplayBuffer

__all__ = ["HDF5Storage"]

# Rows that lie so close together, on average, are read with all that lies between them.
_GAP = 8
# Room for chunks is taken so many bytes at a time, so that it costs nothing per sample.
_ROOM_BYTES = 2**22
PathLike = str | os.PathLike[str]


@register_storage("hdf5")
class HDF5Storage(ColumnStorage):
    """Samples in one HDF5 file that other programs can read: a dataset per leaf, in groups as the space is nested.

    The samples of a space that is no dictionary are in the dataset `data`. Texts are UTF-8 strings; a NUL in one, or
    half of a surrogate pair, is a ValueError. Without `cache_path` the file is in memory.

    Datasets lie in chunks with checksums, which every read and `verify` compare; a read takes whole chunks from the
    file. `get_column` reads only the datasets of that column.

    One process writes, and then no other reads (HDF5 locks the file); read-only, any number do. HDF5 keeps part of
    what was written in memory, so a file does not survive a kill of its writer: what was written since the last
    `flush` is lost, and the file says so and is refused. `accept_unclean=True` opens what is left. To record where
    that must not happen use a PackedStorage, and convert afterwards (docs/storages.md).

    Examples
    --------
    >>> buffer = ReplayBuffer.create(
    ...     "hdf5", transition_space(env, episode_id=True), capacity=100_000, cache_path="hdf5", compression="gzip"
    ... )
    >>> buffer.append(transition)
    >>> buffer.close()
    """

    single_file_ext = ".hdf5"
    checks_when_read = True
    DEFAULT_KEY: ClassVar[str] = DEFAULT_KEY
    _unfit_characters = re.compile("[\0\ud800-\udfff]")

    def __init__(
        self,
        single_instance_space: Space,
        root: h5py.Group,
        capacity: int | None = None,
        reduce_io: bool = True,
        *,
        is_mutable: bool | None = None,
        path: Path | None = None,
    ) -> None:
        """Samples in a group of a file that the caller has opened; `create` and `load_from` open their own.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        root
            The group of the samples.
        capacity
            How many slots there are; None for a storage that grows.
        reduce_io
            Read samples that lie close together in a dataset without chunks in one go.
        is_mutable
            Whether samples can be written; by default whether the file can be.
        path
            The path of the storage; by default the caller keeps the file.

        Raises
        ------
        StorageCorruptedError
            The datasets differ in length, or from `capacity`.
        """
        file_name = str(path or root.file.filename)
        mutable = root.file.mode != "r" if is_mutable is None else is_mutable
        super().__init__(single_instance_space, capacity=capacity, length=0, path=path, mutable=mutable)
        self.reduce_io = reduce_io
        names = files.dataset_names(self.layout)
        with files.named_errors(file_name):
            self._names = stored_names(names, lambda name: name in root)
        self._owns_file = False
        self._attach(root)
        lengths = {len(dataset) for dataset in self._datasets} or {capacity or 0}
        if len(lengths) != 1 or (capacity is not None and lengths != {capacity}):
            wanted = "all of one length" if capacity is None else f"all of the capacity, {capacity}"
            raise StorageCorruptedError(f"{file_name}: datasets of length {sorted(lengths)}, wanted {wanted}")
        self._length = lengths.pop()
        self.is_multiprocessing_safe = path is not None and not mutable
        self._unclean = mutable and files.is_unclean(root.file)
        self._room_until = 0

    def _attach(self, root: h5py.Group) -> None:
        self.root: h5py.Group = root
        self._pid = os.getpid()
        file_name = str(self.cache_filename or root.file.filename)
        leaves = self.layout.leaves
        self._datasets = [
            files.leaf_dataset(root, name, leaf, file_name) for name, leaf in zip(self._names, leaves, strict=True)
        ]
        self._chunk_room = files.room_in_memory(self._datasets)
        self._rows_at_once = [files.rows_at_once(dataset) for dataset in self._datasets]
        self._rows_of_chunk = [files.rows_of_chunk(dataset) for dataset in self._datasets]

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        initial_capacity: int | None = None,
        compression: str | Mapping[str, str | None] | None = None,
        compression_level: int | None = None,
        chunks: int | bool | tuple[int, ...] | None = None,
        reduce_io: bool = True,
    ) -> HDF5Storage:
        """Create a new file.

        Parameters
        ----------
        single_instance_space, capacity, multiprocessing
            As for every storage.
        cache_path
            The file, which must not be there yet; by default it is in memory.
        initial_capacity
            Without a capacity: for how many samples there must be room on disk.
        compression
            A filter of h5py's ("gzip", "lzf"), for all leaves or by leaf ("obs/rgb").
        compression_level
            The level of "gzip".
        chunks
            The number of rows in a chunk, or its shape; by default a good one.
        reduce_io
            In datasets without chunks, which other programs write, read samples that lie close together in one go.

        Returns
        -------
        HDF5Storage
            The storage.

        Raises
        ------
        FileExistsError
            There is something at `cache_path`.
        ValueError
            `multiprocessing` is True.
        """
        check_capacity(capacity)
        if multiprocessing:
            raise ValueError("HDF5Storage has one writer: use PackedStorage with multiprocessing=True")
        layout = fixed_layout(single_instance_space, cls.__name__)
        names = files.dataset_names(layout)
        filters = [_filters(name, names, compression, compression_level) for name in names]
        path = None if cache_path is None else Path(cache_path)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            check_disk(path, (capacity or initial_capacity or 0) * layout.nbytes)
        file = files.create_file(path)
        try:
            for name, leaf, options in zip(names, layout.leaves, filters, strict=True):
                files.create_dataset(file, name, leaf, capacity, options, chunks)
            file.flush()
            storage = cls(single_instance_space, file, capacity, reduce_io, path=path)
        except BaseException:
            file.close()
            if path is not None:
                remove(path)
            raise
        storage._owns_file = True
        storage._options = (compression, compression_level, chunks)
        return storage

    _options: tuple[Any, Any, Any] = (None, None, None)

    def _create_like(self, path: PathLike) -> HDF5Storage:
        compression, level, chunks = self._options
        return self.create(
            self.single_instance_space,
            self.capacity,
            path,
            compression=compression,
            compression_level=level,
            chunks=chunks,
            reduce_io=self.reduce_io,
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
        reduce_io: bool = True,
        accept_unclean: bool = False,
        **kwargs: Any,
    ) -> HDF5Storage:
        """Load the storage in a file.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only, multiprocessing
            As for every storage.
        reduce_io
            In datasets without chunks, which other programs write, read samples that lie close together in one go.
        accept_unclean
            Open a file whose writer was killed, with what is left in it.
        **kwargs
            Arguments of other storages; ignored.

        Returns
        -------
        HDF5Storage
            The storage.

        Raises
        ------
        StorageCorruptedError
            The file is damaged, or its writer was killed and `accept_unclean` is False.
        ValueError
            `multiprocessing` is True without `read_only`.
        """
        path = Path(path)
        if multiprocessing and not read_only:
            raise ValueError(f"{path}: an HDF5 file has one writer, load it with read_only=True")
        file = files.open_file(path, writable=not read_only)
        try:
            if not accept_unclean and files.is_unclean(file):
                raise StorageCorruptedError(
                    f"{path}: something was written since the last flush, and the writer was killed or is still at "
                    f"work; flush it there, or open what is left with accept_unclean=True, as `unienv repair` does"
                )
            storage = cls(single_instance_space, file, capacity, reduce_io, is_mutable=not read_only, path=path)
        except BaseException:
            file.close()
            raise
        storage._owns_file = True
        storage._options = _options_of(files.dataset_names(storage.layout), storage._datasets)
        return storage

    @staticmethod
    def build_space_from_hdf5_file(root: h5py.Group) -> tuple[int, int, Space]:
        """Capacity, number of samples and the space of one for datasets of one length, whoever wrote them."""
        count, space = files.infer_space(root, str(root.file.filename))
        return count, count, space

    @staticmethod
    def load_replay_buffer_from_raw_hdf5(path: PathLike) -> ReplayBuffer:
        """A read-only buffer over a file of datasets of one length, whoever wrote it."""
        from ..replay_buffer import ReplayBuffer

        file = files.open_file(Path(path), writable=False)
        try:
            count, _, space = HDF5Storage.build_space_from_hdf5_file(file)
            storage = HDF5Storage(space, file, None, is_mutable=False, path=Path(path))
        except BaseException:
            file.close()
            raise
        storage._owns_file = True
        return ReplayBuffer(storage, Path(path).name, count=count)

    @staticmethod
    def call_function_on_every_dataset(root: h5py.Group, function: Callable[[h5py.Dataset], Any]) -> list[Any]:
        """What a function gives for every dataset of a group and of the groups in it."""
        return [function(dataset) for dataset in files.every_dataset(root, str(root.file.filename))]

    @staticmethod
    def call_function_on_first_dataset(root: h5py.Group, function: Callable[[h5py.Dataset], Any]) -> Any:
        """What a function gives for the first dataset of a group."""
        return function(next(files.every_dataset(root, str(root.file.filename))))

    # -- processes -------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self.is_mutable or self.cache_filename is None:
            raise TypeError("an HDF5 file has one writer, this process: load it with read_only=True in the other one")
        return {**super().__getstate__(), "root": None, "_datasets": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reopen()

    def _reopen(self) -> None:
        self._attach(files.open_file(Path(str(self.cache_filename)), writable=False))
        self._owns_file = True

    # -- samples ---------------------------------------------------------------------------------------------

    def _read(self, slots: np.ndarray, leaf_indices: Sequence[int]) -> list[np.ndarray]:
        if self._pid != os.getpid() and self.is_multiprocessing_safe:
            self._reopen()  # a handle that two processes share has one state of HDF5's in each
        return [self._read_column(leaf_index, slots) for leaf_index in leaf_indices]

    def _read_column(self, leaf_index: int, slots: np.ndarray) -> np.ndarray:
        dataset, leaf = self._datasets[leaf_index], self.layout.leaves[leaf_index]
        if len(slots) > self._rows_at_once[leaf_index]:
            parts = np.split(slots, range(self._rows_at_once[leaf_index], len(slots), self._rows_at_once[leaf_index]))
            return np.concatenate([self._read_column(leaf_index, part) for part in parts])
        first, stop = int(slots[0]), int(slots[-1]) + 1
        with self._naming_the_file(self._names[leaf_index]):
            if stop - first == len(slots):
                values = dataset[first:stop]
            elif (rows := self._rows_of_chunk[leaf_index]) is not None:
                runs = np.split(slots, np.flatnonzero(np.diff(slots // rows)) + 1)
                values = np.concatenate([dataset[int(run[0]) : int(run[-1]) + 1].take(run - run[0], 0) for run in runs])
            elif self.reduce_io and stop - first <= _GAP * len(slots):
                values = dataset[first:stop].take(slots - first, 0)
            else:
                values = dataset[slots]
        return values if isinstance(leaf.space, ArraySpace) else _decoded(leaf, values, str(self.cache_filename))

    def reserve(self, start: int, stop: int) -> None:
        self._take_room(stop - start)
        super().reserve(start, stop)

    def _take_room(self, rows: int) -> None:
        """Take the disk's room for what these rows add to the file, and for all that is still in memory.

        HDF5 forgets a chunk that it cannot write, and does not say so to whoever reads it next.
        """
        if not self._chunk_room or not self._owns_file or self.cache_filename is None:
            return
        end = self.root.file.id.get_filesize()
        needed = end + rows * self.row_nbytes + self._chunk_room
        if needed <= self._room_until:
            return
        handle, path = self.root.file.id.get_vfd_handle(), Path(self.cache_filename)
        try:
            reserve(handle, end, needed + _ROOM_BYTES, path)
            self._room_until = needed + _ROOM_BYTES
        except OSError:
            reserve(handle, end, needed, path)  # no room for more, but enough for this
            self._room_until = needed

    def _write(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        self._take_room(len(slots))
        self._begin_write()
        with self._naming_the_file():
            for leaf_index, (leaf, column) in enumerate(zip(self.layout.leaves, columns, strict=True)):
                if not isinstance(leaf.space, ArraySpace):
                    column = _encoded(leaf, column, self._datasets[leaf_index].dtype)
                self._write_column(leaf_index, slots, column)

    def _write_column(self, leaf_index: int, slots: np.ndarray, column: np.ndarray) -> None:
        dataset = self._datasets[leaf_index]
        if self._rows_of_chunk[leaf_index] is None and int(slots[-1]) - int(slots[0]) >= len(slots):
            dataset[slots] = column
            return
        bounds = [0, *(np.flatnonzero(np.diff(slots) > 1) + 1).tolist(), len(slots)]
        for start, stop in itertools.pairwise(bounds):
            dataset[int(slots[start]) : int(slots[stop - 1]) + 1] = column[start:stop]

    def _resize(self, length: int) -> None:
        self._begin_write()
        with self._naming_the_file():
            for dataset in self._datasets:
                dataset.resize(length, 0)

    def _begin_write(self) -> None:
        if self._owns_file and self.cache_filename is not None and not self._unclean:
            self._unclean = True
            with self._naming_the_file():
                files.mark_unclean(self.root.file, True)

    @contextlib.contextmanager
    def _naming_the_file(self, name: str | None = None) -> Iterator[None]:
        """`named_errors` of this storage's file; a RuntimeError once it is closed."""
        if not self.root:
            raise RuntimeError(f"{self.cache_filename}: the storage is closed")
        with files.named_errors(str(self.cache_filename or self.root.file.filename), name):
            yield

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.is_mutable or not self.root:
            return
        with self._naming_the_file():
            if not self._unclean or self.cache_filename is None:
                self.root.file.flush()
                return
            os_handle = self.root.file.id.get_vfd_handle()
            self.root.file.flush()
            self._room_until, end = 0, self.root.file.id.get_filesize()
            if os.fstat(os_handle).st_size > end:
                os.ftruncate(os_handle, end)  # give back the room that was not used
            os.fsync(os_handle)
            files.mark_unclean(self.root.file, False)
            os.fsync(os_handle)
        self._unclean = False

    def verify(self) -> list[str]:
        findings = []
        step = 1024
        for leaf_index, name in enumerate(self._names):
            for start in range(0, self._length, step):
                slots = np.arange(start, min(start + step, self._length))
                try:
                    self._read(slots, [leaf_index])
                except (ValueError, OSError) as error:
                    findings.append(f"{self.cache_filename}: {name!r}, rows {start} to {int(slots[-1])}: {error}")
        return findings

    def absent_slots(self) -> list[tuple[int, int]]:
        return sorted({absent for dataset in self._datasets for absent in files.absent_rows(dataset)})

    @property
    def nbytes(self) -> int | None:
        with self._naming_the_file():
            return sum(dataset.id.get_storage_size() for dataset in self._datasets)

    def close(self) -> None:
        if self._owns_file and self.root:
            try:
                self.flush()
            finally:
                self.root.close()


def _filters(
    name: str, names: list[str], compression: str | Mapping[str, str | None] | None, level: int | None
) -> dict[str, Any]:
    if isinstance(compression, Mapping):
        unknown = sorted(set(compression) - set(names))
        if unknown:
            raise ValueError(f"compression of {unknown[0]!r}, the datasets are {names}")
        compression = compression.get(name)
    return {"compression": compression, "compression_opts": None if compression is None else level}


def _options_of(names: list[str], datasets: list[h5py.Dataset]) -> tuple[Any, Any, Any]:
    """The arguments that files like this one are created with."""
    compression = {name: dataset.compression for name, dataset in zip(names, datasets, strict=True)}
    levels = {dataset.compression_opts for dataset in datasets if dataset.compression is not None}
    rows = {dataset.chunks[0] for dataset in datasets if dataset.chunks is not None}
    return compression, levels.pop() if len(levels) == 1 else None, rows.pop() if len(rows) == 1 else None


def _encoded(leaf: RowLeaf, column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Texts as HDF5 keeps them."""
    texts = leaf.codec.decode(column, None)
    flat = [text.encode() for text in texts.flat]
    return np.array(flat, object if dtype.kind == "O" else dtype).reshape(texts.shape)


def _decoded(leaf: RowLeaf, encoded: np.ndarray, file_name: str) -> np.ndarray:
    """The column of texts that HDF5 has kept."""
    texts = np.empty(encoded.shape, object)
    try:
        texts.reshape(-1)[:] = [text.decode() for text in encoded.reshape(-1).tolist()]
        return text_column(leaf, leaf.codec.encode(texts, encoded.shape[:1]), encoded.shape[:1])
    except (ValueError, AttributeError) as error:
        raise StorageCorruptedError(
            f"{file_name}: {leaf.name!r} holds what is no text of the space, {error}"
        ) from error
