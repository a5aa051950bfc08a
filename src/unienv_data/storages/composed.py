"""Storages composed of other storages, their parts, and their folders."""

from __future__ import annotations

import abc
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_space, flatten_data, is_flattenable, unflatten_data

from ..base.common import BatchT
from ..base.files import format_version, json_field, new_folder, read_json, write_json
from ..base.index import resolve_index
from ..base.row_storage import RowStorage, rows_of
from ..base.storage import SpaceStorage, StorageCorruptedError
from .registry import current_name, name_of

FORMAT_VERSION = 1
# Batches tend to have few sizes; beyond this number the oldest entry is dropped.
_MOST_BATCH_SPACES = 64

PathLike = str | os.PathLike[str]
Parts = dict[str, SpaceStorage]
ComposedT = TypeVar("ComposedT", bound="ComposedStorage")


class BatchSpaces:
    """The space of one sample, and the spaces of batches of it, each made at its first use."""

    def __init__(self, space: Space) -> None:
        self.single = space
        self._by_count: dict[int, Space] = {}

    def of(self, count: int | None) -> Space:
        """The space of a batch of `count`; with None that of one sample."""
        if count is None:
            return self.single
        space = self._by_count.get(count)
        if space is None:
            if len(self._by_count) >= _MOST_BATCH_SPACES:
                self._by_count.pop(next(iter(self._by_count)))
            space = self._by_count[count] = batch_space(self.single, count)
        return space


class _Encoded(NamedTuple):
    """What the parts have encoded of a value, in their order."""

    parts: list[Any]


class _Moved(NamedTuple):
    """Raw rows of parts that do not all have bytes to give, in their order."""

    parts: list[Any]


class ComposedStorage(RowStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A storage whose samples lie in other storages, its parts: every slot is a slot of each of them.

    A subclass takes values apart, puts them together, and describes itself in the metadata file. All else follows from
    the parts: it grows, survives a kill, has raw rows or keeps episodes apart if they do. On disk it is a folder with
    the parts and the metadata file, which is written last and names the storages of the parts.

    A sample that was written to some of the parts only, since the process was killed in between, is not visible in a
    replay buffer: its head moves when all parts have it.
    """

    #: The name of the metadata file.
    metadata_file: ClassVar[str] = ""

    def __init__(self, single_instance_space: Space, parts: Mapping[str, SpaceStorage], path: PathLike | None) -> None:
        """`parts` are by their paths in the folder `path`; None if all of them are in memory."""
        super().__init__(single_instance_space)
        self._names, self.parts = list(parts), [rows_of(part) for part in parts.values()]
        self.capacity = _common_capacity(parts)
        for name, part in zip(self._names, self.parts, strict=True):
            if part.ring != part.capacity:
                raise ValueError(f"{name}: a {type(part).__name__} cannot lie inside another storage")
        self.cache_filename = path
        self.is_mutable = all(part.is_mutable for part in self.parts)
        self.is_multiprocessing_safe = all(part.is_multiprocessing_safe for part in self.parts)
        self.has_raw_rows = all(part.has_raw_rows for part in self.parts)
        self.has_row_sums = all(part.has_row_sums for part in self.parts)
        self.survives_kill = all(part.survives_kill for part in self.parts)
        self.wants_episodes = any(part.wants_episodes for part in self.parts)
        self._aware = [part for part in self.parts if part.is_segment_aware]
        self.is_segment_aware = bool(self._aware)  # type: ignore[misc]
        self._spaces = BatchSpaces(single_instance_space)
        self.has_flattened_access = is_flattenable(self._spaces.of(1), 1)  # type: ignore[misc]

    # -- methods of a subclass -------------------------------------------------------------------------------

    @abc.abstractmethod
    def _apart(self, value: Any, count: int | None) -> Sequence[Any]:
        """The values of the parts for a value that fits the space, or for a batch of `count`."""

    @abc.abstractmethod
    def _together(self, values: list[Any], count: int | None) -> Any:
        """The value, or batch of `count`, that these values of the parts are."""

    @abc.abstractmethod
    def _description(self) -> dict[str, Any]:
        """The fields of the metadata file beside the storage's name."""

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return min(map(len, self.parts))  # a kill may leave some parts longer than others

    def get(self, index: Any) -> Any:
        length = len(self)
        return self.gather(resolve_index(self.backend, index, length), length)

    def gather(self, slots: Any, length: int) -> Any:
        count = None if type(slots) is int else len(slots)
        return self._together([part.gather(slots, length) for part in self.parts], count)

    def set(self, index: Any, value: Any) -> None:
        self._check_mutable()
        slots = resolve_index(self.backend, index, len(self))
        if isinstance(slots, int):
            encoded = self.encode(value, None)
            self.reserve(slots, slots + 1)
            self.check_rewritable(np.array([slots]))
            self.write(slots, encoded, slots)
        else:
            self.check_rewritable(slots)
            values = self._apart(self._checked(value, len(slots)), len(slots))
            for part, own in zip(self.parts, values, strict=True):
                part.set(slots, own)

    def extend_length(self, length: int) -> None:
        if self.capacity is None:
            self._check_mutable()
            wanted = len(self) + length
            for part in self.parts:
                part.extend_length(wanted - len(part))

    def shrink_length(self, length: int) -> None:
        if self.capacity is not None:
            return
        self._check_mutable()
        present = len(self)
        if not 0 <= length <= present:
            raise ValueError(f"cannot shrink by {length}, there are {present} slots")
        for part in self.parts:
            part.shrink_length(len(part) - present + length)

    def clear(self) -> None:
        self._check_mutable()
        for part in self.parts:
            part.clear()

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self.cache_filename} was opened read-only: open it with read_only=False to write")

    @property
    def nbytes(self) -> int | None:
        figures = [part.nbytes for part in self.parts]
        return None if None in figures else sum(figure or 0 for figure in figures)

    # -- how a replay buffer writes --------------------------------------------------------------------------

    def _checked(self, value: Any, count: int | None) -> Any:
        """The value with its Python numbers as arrays; a ValueError with the path if it does not fit the space."""
        encoded = self.layout.encode(value, () if count is None else (count,))
        if count is not None or not _has_numbers(value):
            return value
        rows = self.layout.empty(1)
        self.layout.write(rows, 0, self.layout.store(encoded, rows.heap))
        return self.layout.unpack(rows[0])

    def encode(self, value: Any, count: int | None) -> _Encoded:
        values = self._apart(self._checked(value, count), count)
        return _Encoded([part.encode(own, count) for part, own in zip(self.parts, values, strict=True)])

    def part(self, encoded: _Encoded, count: int, start: int, stop: int) -> _Encoded:
        pairs = zip(self.parts, encoded.parts, strict=True)
        return _Encoded([part.part(own, count, start, stop) for part, own in pairs])

    def reserve(self, start: int, stop: int) -> None:
        for part in self.parts:
            first, last = part.reserved
            if start < first or stop > last:
                part.reserve(start, stop)

    def write(self, slots: int | slice, encoded: _Encoded, number: int) -> None:
        if self.is_segment_aware and isinstance(slots, int):
            super().write(slots, encoded, number)
            return
        for part, own in zip(self.parts, encoded.parts, strict=True):
            part.write(slots, own, number)

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        for part in self.parts:
            part.end_episode(slots, number)

    def check_rewritable(self, slots: np.ndarray) -> None:
        for part in self.parts:
            part.check_rewritable(slots)

    def settle(self, timeout: float | None = None) -> int:
        return sum(part.settle(timeout) for part in self.parts)

    # -- raw rows --------------------------------------------------------------------------------------------

    @property
    def row_nbytes(self) -> int:
        return sum(part.row_nbytes for part in self.parts)

    def raw_rows(self, slots: np.ndarray) -> Any:
        rows = [part.raw_rows(slots) for part in self.parts]
        return b"".join(rows) if self.has_raw_rows else _Moved(rows)

    def encoded_as_raw_rows(self, encoded: _Encoded, count: int | None) -> bytes:
        pairs = zip(self.parts, encoded.parts, strict=True)
        return b"".join(part.encoded_as_raw_rows(own, count) for part, own in pairs)

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        if isinstance(raw, _Moved):
            for part, own in zip(self.parts, raw.parts, strict=True):
                part.write_raw_rows(slots, own, numbers)
        elif not self.has_raw_rows:
            self.set(slots, raw)
        else:
            start = 0
            for part in self.parts:
                stop = start + len(slots) * part.row_nbytes
                part.write_raw_rows(slots, raw[start:stop], numbers)
                start = stop

    # -- flat samples ----------------------------------------------------------------------------------------

    def get_flattened(self, index: Any) -> Any:
        length = len(self)
        return self.gather_flattened(resolve_index(self.backend, index, length), length)

    def gather_flattened(self, slots: Any, length: int) -> Any:
        count = None if type(slots) is int else len(slots)
        return flatten_data(self._spaces.of(count), self.gather(slots, length), start_dim=0 if count is None else 1)

    def set_flattened(self, index: Any, value: Any) -> None:
        count = None if value.ndim == 1 else value.shape[0]
        self.set(index, unflatten_data(self._spaces.of(count), value, start_dim=0 if count is None else 1))

    # -- segments --------------------------------------------------------------------------------------------

    def get_segments(self) -> list[tuple[int, int]] | None:
        return self._aware[0].get_segments() if self._aware else None

    def mark_segment_start(self, start_index: int) -> None:
        super().mark_segment_start(start_index)
        for part in self._aware:
            part.mark_segment_start(start_index)

    def append(self, value: Any) -> None:
        """Append a sample, encoded or not, to the open segment."""
        if self._next_slot is None:
            raise RuntimeError("append without an open segment: call mark_segment_start first")
        self._check_mutable()
        slot = self._next_slot
        encoded = value if isinstance(value, _Encoded) else self.encode(value, None)
        self.reserve(slot, slot + 1)
        for part, own in zip(self.parts, encoded.parts, strict=True):
            if part.is_segment_aware:
                part.append(own)
            else:
                part.write(slot, own, slot)
        self._next_slot = slot + 1 if self.capacity is None else (slot + 1) % self.capacity
        self._pending += 1

    def mark_segment_end(self) -> None:
        super().mark_segment_end()
        for part in self._aware:
            part.mark_segment_end()

    def abort_segment(self) -> None:
        super().abort_segment()
        for part in self._aware:
            part.abort_segment()

    # -- durability ------------------------------------------------------------------------------------------

    def replace_block_sums(self, numbers: np.ndarray) -> None:
        for part in self.parts:
            part.replace_block_sums(numbers)
        self.has_row_sums = all(part.has_row_sums for part in self.parts)

    def forget_rows(self, head: int) -> bool:
        were_any = [part.forget_rows(head) for part in self.parts]  # a list, so that every part is called
        return any(were_any)

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        states = [part.check_rows(slots, numbers, numbers_only=numbers_only) for part in self.parts]
        worst: np.ndarray = np.max(states, axis=0)
        return worst

    def trim(self) -> None:
        for part in self.parts:
            part.trim()

    def flush(self) -> None:
        for part in self.parts:
            part.flush()

    def sizes(self) -> tuple[int, int]:
        return zlib.crc32(json.dumps([part.sizes() for part in self.parts]).encode()), 0

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        if sizes is not None and sizes != self.sizes():
            raise StorageCorruptedError(f"{self.cache_filename}: its files have changed in size since the last close")
        for part in self.parts:
            part.fit_to(length, None if sizes is None else part.sizes())

    def verify(self) -> list[str]:
        return [finding for part in self.parts for finding in part.verify()]

    def dumps(self, path: PathLike) -> None:
        own = self.cache_filename
        if own is not None and os.path.exists(path) and os.path.samefile(path, own):
            self.flush()
        else:
            self.snapshot(path, [(0, len(self))])

    def snapshot(self, path: PathLike, slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        with new_folder(path) as folder:
            for name, part in zip(self._names, self.parts, strict=True):
                part.snapshot(folder / name, slots, number)
            self.describe(folder)

    def describe(self, folder: Path) -> None:
        """Write the metadata file."""
        head = {"storage_type": name_of(type(self)), "format_version": FORMAT_VERSION}
        write_json(folder / self.metadata_file, {**head, **self._description()})

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _common_capacity(parts: Mapping[str, SpaceStorage]) -> int | None:
    capacities = {part.capacity for part in parts.values()}
    if len(capacities) != 1:
        by_name = {name: part.capacity for name, part in parts.items()}
        raise ValueError(f"the parts of a storage must have one capacity, they have {by_name}")
    return capacities.pop()


def _has_numbers(value: Any) -> bool:
    """Whether a value contains Python numbers, which scalar leaves of array spaces accept."""
    if isinstance(value, Mapping):
        return any(map(_has_numbers, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_numbers, value))
    return type(value) in (int, float, bool)


# -- folders -----------------------------------------------------------------------------------------------


def build(
    path: PathLike | None,
    make_parts: Callable[[Path | None], Parts],
    compose: Callable[[Parts, Path | None], ComposedT],
) -> ComposedT:
    """A new storage of new parts, in a new folder if a path is given and the parts have files."""
    if path is None:
        return compose(make_parts(None), None)
    with new_folder(path) as folder:
        parts = make_parts(folder)
        storage = compose(parts, _folder_in_use(folder, parts))
        if storage.cache_filename is not None:
            storage.describe(folder)
    return storage


def _folder_in_use(folder: Path, parts: Parts) -> Path | None:
    """The folder of the parts' files; None if all parts are in memory, and then the folder is removed."""
    in_memory = [name for name, part in parts.items() if part.cache_filename is None]
    if not in_memory:
        return folder
    if len(in_memory) < len(parts):
        raise ValueError(
            f"{folder}: the parts {in_memory} would be kept in memory and lost, while the others have files"
        )
    folder.rmdir()
    return None


def read_description(cls: type[ComposedStorage], folder: Path) -> dict[str, Any]:
    """Read the metadata file of a storage of this class; a StorageCorruptedError if it is of another class."""
    path = folder / cls.metadata_file
    content = read_json(path, checksum=False)
    format_version(content, path, FORMAT_VERSION, default=FORMAT_VERSION)
    name = json_field(content, "storage_type", str, path)
    # in a folder of the reference: the name of its class, with or without the module
    if name != cls.__name__ and current_name(name) != cls.registered_name:
        raise StorageCorruptedError(f"{path}: of storage type {name!r}, wanted {name_of(cls)!r}")
    return content


def check_parts(
    folder: Path, parts: Mapping[str, SpaceStorage], capacity: int | None, *, accept_damaged: bool = False
) -> None:
    """A StorageCorruptedError if the loaded parts differ in capacity, or in length unless `accept_damaged`."""
    wrong = {name: part.capacity for name, part in parts.items() if part.capacity != capacity}
    if wrong:
        raise StorageCorruptedError(f"{folder}: parts of capacities {wrong}, the storage has {capacity}")
    lengths = {name: len(part) for name, part in parts.items()}
    if capacity is not None and not accept_damaged and len(set(lengths.values())) > 1:
        raise StorageCorruptedError(f"{folder}: its parts differ in length: {lengths}")
