"""From a Minari dataset to packed rows on disk, a stretch of an episode at a time.

The folder is written beside its place and then moved there as a whole, so that what is in its place is whole. It says
what it was made of: a copy whose source has changed since is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils.serialization_utils import space_to_json

from ..base.files import replace_folder, sync_folder, write_json
from ..base.storage import StorageCorruptedError
from ..storages.packed import PackedStorage
from ._minari_schema import MASK, Column, Schema, read_schema
from ._minari_source import METADATA, Episode, Source, decoded_image, open_source

FORMAT, VERSION = "unienv-episodes", 1
MARKER, ROWS, FLAGS, EPISODES = "dataset.json", "rows", "flags.bin", "episodes.bin"
#: One episode of the dataset: its number there, and its steps.
EPISODE = np.dtype([("id", "<i8"), ("steps", "<i8")])
TERMINATED, TRUNCATED = 1, 2

_CHUNK_BYTES = 4 * 2**20
_RESIDENT_BYTES = 4 * 2**20


def fingerprint(folder: Path) -> str:
    """Changes when the files of a dataset do: their names, sizes and times, and all that its metadata says."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    with contextlib.suppress(FileNotFoundError):
        digest.update((folder / METADATA).read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Wait until no other process or thread makes this folder; what one that was killed has left is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        leftover = re.compile(re.escape(f".{target.name}.") + r"(download\.)?[0-9]+(\.old)?\.tmp")
        for path in target.parent.iterdir():
            if leftover.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        yield
    finally:
        os.close(fd)


def is_converted(folder: Path) -> bool:
    """Whether there is a folder that `convert` has written; a FileExistsError if there is one of something else."""
    if (folder / MARKER).exists():
        return True
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is there, and not a converted dataset: give another root")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give another root")
    return False


def convert(folder: Path, target: Path, *, dataset_id: str, origin: Path | None, progress: bool) -> None:
    """Write the dataset in a folder to `target`, in the place of a copy that is there. Call it while `alone`.

    `origin` is where the source is to be looked for when the copy is opened again; None if it does not stay.
    """
    is_converted(target)
    made_of = fingerprint(folder)
    source = open_source(folder)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        schema = read_schema(source)
        if not schema.steps:
            raise StorageCorruptedError(f"{folder}: a dataset without a single step")
        temporary.mkdir()
        checks = _write(source, schema, temporary, dataset_id, progress)
        if fingerprint(folder) != made_of:
            raise RuntimeError(f"{folder} was changed while it was read: try again when it is complete")
        marker = {
            "format": FORMAT,
            "format_version": VERSION,
            "dataset_id": dataset_id,
            "origin": None if origin is None else str(origin),
            "fingerprint": made_of,
            "steps": schema.steps,
            "episodes": schema.episodes,
            **checks,
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


def _write(source: Source, schema: Schema, folder: Path, dataset_id: str, progress: bool) -> dict[str, int]:
    """Write rows, flags and episodes; the checksums of the latter two."""
    from tqdm import tqdm

    layout = RowLayout(schema.row_space())
    storage = PackedStorage.create(layout.space, capacity=schema.rows, cache_path=folder / ROWS)
    episodes = np.zeros(schema.episodes, EPISODE)
    row, crc, held = 0, 0, 0
    with contextlib.closing(storage), open(folder / FLAGS, "wb") as flags:
        bar = tqdm(total=schema.steps, desc=dataset_id, unit="step", disable=not progress)
        for number, episode in enumerate(source.episodes()):
            episodes[number] = (episode.number, episode.steps)
            for columns, ends in _stretches(schema, layout, episode):
                count = len(columns[0])
                storage.reserve(row, row + count)
                storage.write(slice(row, row + count), columns, row)
                row += count
                crc = zlib.crc32(ends, crc)
                flags.write(ends)
                bar.update(len(ends))
                held += count * layout.nbytes
                if held > _RESIDENT_BYTES:
                    _let_go_of(storage)
                    held = 0
        bar.close()
        flags.flush()
        os.fsync(flags.fileno())
        storage.flush()
    with open(folder / EPISODES, "wb") as file:
        file.write(episodes.tobytes())
        file.flush()
        os.fsync(file.fileno())
    return {"flags_checksum": crc, "episodes_checksum": zlib.crc32(episodes.tobytes())}


def _stretches(schema: Schema, layout: RowLayout, episode: Episode) -> Iterator[tuple[list[Any], bytes]]:
    """The rows of an episode, some at a time: the columns in the order of the layout, and the flags of the steps."""
    size, rows = max(1, _CHUNK_BYTES // layout.nbytes), episode.steps + 1
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        columns = [
            _mask(episode, leaf.path[1:], start, stop)
            if leaf.path[0] == MASK
            else _entries(episode, schema.columns[leaf.path], start, stop)
            for leaf in layout.leaves
        ]
        terminated, truncated = episode.flags(start, min(stop, episode.steps))
        yield columns, (TERMINATED * terminated + TRUNCATED * truncated).astype(np.uint8).tobytes()


def _present(episode: Episode, path: tuple[str, ...]) -> tuple[int, int]:
    """The rows [first, end) of an episode that have an entry in a column.

    An info that has one entry less than there are rows came with the steps: the first row, of the reset, has none.
    """
    leaf = episode.leaves.get(path)
    if leaf is None:
        return 0, 0
    return episode.steps + 1 - leaf.length, episode.steps + 1


def _mask(episode: Episode, path: tuple[str, ...], start: int, stop: int) -> np.ndarray:
    first, end = _present(episode, path)
    rows = np.arange(start, stop)
    return (rows >= first) & (rows < end)


def _entries(episode: Episode, column: Column, start: int, stop: int) -> np.ndarray:
    """The entries of rows [start, stop); where there is none, NaN for floats and zero for everything else."""
    dtype, shape = column.stored
    first, end = _present(episode, column.path) if column.is_state else (0, episode.steps)
    begin, until = max(start, first), min(stop, end)
    name = f"{episode.name}: {'/'.join(column.path)}"
    if begin >= until:
        return _nothing(column, dtype, (stop - start, *shape))
    values = episode.leaves[column.path].read(begin - first, until - first)
    if column.kind == "text":
        values = np.array(values, f"S{column.width}").view(np.uint8)
    elif column.kind == "jpeg":
        images = [decoded_image(name, data) for data in values]
        if any(image.shape != shape for image in images):
            raise StorageCorruptedError(f"{name}: images of different sizes, wanted {shape}")
        values = np.stack(images)
    values = np.ascontiguousarray(values, dtype).reshape(until - begin, *shape)
    if until - begin == stop - start:
        return values
    whole = _nothing(column, dtype, (stop - start, *shape))
    whole[begin - start : until - start] = values
    return whole


def _nothing(column: Column, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    is_missing = column.is_state and dtype.kind in "fc"
    return np.full(shape, np.nan, dtype) if is_missing else np.zeros(shape, dtype)


def _let_go_of(storage: PackedStorage) -> None:
    """Leave what was written to the system's cache: mapped pages would count as this process's memory."""
    rows = storage._memory.rows
    for array in (rows.records, *rows.blocks.values()):
        memory: Any = array
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, mmap.mmap):
            memory.madvise(mmap.MADV_DONTNEED)
