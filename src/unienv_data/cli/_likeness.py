"""Reading a folder that has lost its description by that of another recording, if it fits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from unienv_interface.space.row_layout import RowLayout

from ..base.storage import SpaceStorage
from ..replay_buffer._metadata import FILE_NAME, Metadata, read_metadata
from ..replay_buffer._state import HEADER
from ..storages._row_memory import file_parts
from ..storages.packed import PackedStorage
from ._errors import CommandError, in_one_line


class Counters(NamedTuple):
    """What a header says: samples [tail, head) by number, the number in slot 0, and how many episodes count.

    `sizes` are the rows, the bytes of the heap and the records of episodes that the files had when they were closed in
    order; None if they were not.
    """

    head: int
    tail: int
    base: int
    segments: int
    sizes: tuple[int, int, int] | None = None


def borrow_metadata(like: Path) -> Metadata:
    """The description of another recording."""
    try:
        metadata = read_metadata(like)
    except (ValueError, NotADirectoryError) as error:
        raise CommandError(f"--like {like}: it has no sound {FILE_NAME} either, {in_one_line(error)}") from error
    if metadata.version == 0:
        raise CommandError(f"--like {like}: it is of the reference implementation's format, which keeps no header")
    return metadata


def refuse_misfit(
    path: Path, like: Path, metadata: Metadata, storage: SpaceStorage, counters: Counters, notes: list[str]
) -> None:
    """A CommandError if anything in the folder contradicts the description that was taken from another one."""
    wrong = _counters_misfit(path / HEADER, metadata, storage, counters)
    if isinstance(storage, PackedStorage):
        wrong = wrong or _files_misfit(storage, metadata, counters) or _checksum_misfit(storage, notes)
    if wrong is not None:
        raise CommandError(f"{wrong}; so {path} does not fit {like}: give a recording that was made in the same way")
    notes.append("columns that take as many bytes look alike: whether they mean the same there, nobody has checked")


def _counters_misfit(header: Path, metadata: Metadata, storage: SpaceStorage, counters: Counters) -> str | None:
    used, lanes = counters.head - counters.base, metadata.lanes
    if any(number % lanes for number in counters[:3]):
        return f"{header}: head {counters.head} and tail {counters.tail} are no multiples of {lanes} lanes"
    if metadata.capacity is None and used > len(storage):
        return f"{header}: {used} samples, {storage.cache_filename} has {len(storage)} slots; it may be a ring, or cut"
    if metadata.capacity is not None and counters.head - counters.tail > metadata.capacity:
        return f"{header}: {counters.head - counters.tail} samples, the capacity is {metadata.capacity}"
    return None


def _files_misfit(storage: PackedStorage, metadata: Metadata, counters: Counters) -> str | None:
    folder, layout = Path(str(storage.cache_filename)), RowLayout(storage.single_instance_space)
    parts = file_parts(layout)
    wanted = {name for name, _ in parts} | {"checks.bin"} | ({"heap.bin"} if layout.has_heap else set())
    for name in sorted(wanted ^ set(os.listdir(folder))):
        return f"{folder / name}: the file is {'missing' if name in wanted else 'one too many'}"
    rows = metadata.capacity if counters.sizes is None else counters.sizes[0]
    if metadata.capacity not in (None, rows):
        return f"{folder.parent / HEADER}: {rows} slots, the capacity is {metadata.capacity}"
    for name, dtype in parts:
        nbytes = (folder / name).stat().st_size
        if nbytes % max(1, dtype.itemsize) or (rows is not None and nbytes != rows * dtype.itemsize):
            many = "a whole number of" if rows is None else str(rows)
            return f"{folder / name}: {nbytes} bytes, it should be {many} rows of {dtype.itemsize} bytes"
    in_heap = (folder / "heap.bin").stat().st_size if layout.has_heap else 0
    if counters.sizes is not None and in_heap != counters.sizes[1]:
        return f"{folder / 'heap.bin'}: {in_heap} bytes, it had {counters.sizes[1]}"
    return None


def _checksum_misfit(storage: PackedStorage, notes: list[str]) -> str | None:
    sealed, damaged = storage.count_sealed(), len(storage.damaged_rows())
    if sealed and damaged == sealed:
        return f"{storage.cache_filename}: not one of {sealed} checksums matches"
    if not sealed:
        notes.append(f"{storage.cache_filename}: there is no checksum yet that tells whether this fits")
    return None
