"""The metadata.json of a buffer.

The file describes the buffer (space, storage, capacity) and does not change with the samples, which the counters count.
For readers of the reference's format it has that format's fields, too; its count, offset and segments are those of the
moment when the file was written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unienv_interface.backends import BackendLike, ComputeBackend, NumpyComputeBackend, parse_backend
from unienv_interface.space import Space
from unienv_interface.space.space_utils import json_to_space, space_to_json

from ..base.files import PathLike, format_version, json_field, read_json, write_json
from ..base.storage import StorageCorruptedError, UnsupportedFormatError
from ._segments import logical_segments

FILE_NAME = "metadata.json"
FORMAT_VERSION = 2  # 1: records of episodes without the mark of cut ones


@dataclass(frozen=True)
class Metadata:
    """The fields, checked. `version` is 0 in a folder that the reference implementation wrote."""

    version: int
    storage: str
    storage_path: str
    capacity: int | None
    count: int
    offset: int
    segments: list[tuple[int, int]] | None
    maintains_segments: bool
    durable: bool
    lanes: int
    space_json: dict[str, Any]


def write_metadata(
    folder: Path,
    space: Space,
    *,
    storage: str,
    storage_path: str,
    capacity: int | None,
    count: int,
    offset: int,
    segments: Sequence[tuple[int, int]] | None,
    maintains_segments: bool,
    durable: bool,
    lanes: int,
) -> None:
    """Replace the file atomically."""
    content = {
        "type": "ReplayBuffer",
        "format_version": FORMAT_VERSION,
        "count": count,
        "offset": offset,
        "capacity": capacity,
        "storage_cls": storage,
        "storage_path_relative": storage_path,
        "single_instance_space": space_to_json(space),
        "physical_segments": None if segments is None else [list(pair) for pair in segments],
        "maintain_segment_metadata": maintains_segments,
        "durable": durable,
        "lanes": lanes,
    }
    write_json(folder / FILE_NAME, content)


def read_metadata(folder: PathLike) -> Metadata:
    """The metadata of a buffer.

    Raises
    ------
    FileNotFoundError
        The folder has no files of a buffer.
    UnsupportedFormatError
        The file describes something else, or is of a later version.
    StorageCorruptedError
        The file is damaged.
    """
    path = os.path.join(folder, FILE_NAME)
    if not os.path.lexists(path) and not os.path.lexists(os.path.join(folder, "header.bin")):
        raise FileNotFoundError(errno.ENOENT, f"not a replay buffer, there is no {FILE_NAME}", str(folder))
    content = read_json(path, checksum=False)
    if content.get("type") != "ReplayBuffer":
        raise UnsupportedFormatError(f"{path}: of type {content.get('type')!r}, wanted a ReplayBuffer")
    version = format_version(content, path, FORMAT_VERSION, default=0)
    has_segments = content.get("physical_segments") is not None
    metadata = Metadata(
        version,
        json_field(content, "storage_cls", str, path),
        json_field(content, "storage_path_relative", str, path),
        json_field(content, "capacity", int, path, least=1, default=None),
        json_field(content, "count", int, path),
        json_field(content, "offset", int, path),
        _segments(content, path),
        json_field(content, "maintain_segment_metadata", bool, path, default=has_segments),
        json_field(content, "durable", bool, path, default=False),
        json_field(content, "lanes", int, path, least=1, default=1),
        json_field(content, "single_instance_space", dict, path),
    )
    capacity = metadata.capacity
    if capacity is not None and not (metadata.count <= capacity and metadata.offset < capacity):
        raise StorageCorruptedError(
            f"{path}: count {metadata.count} and offset {metadata.offset} do not fit a capacity of {capacity}"
        )
    if capacity is not None and capacity % metadata.lanes:
        raise StorageCorruptedError(f"{path}: a capacity of {capacity} is no multiple of {metadata.lanes} lanes")
    return metadata


def _segments(content: dict[str, Any], path: PathLike) -> list[tuple[int, int]] | None:
    pairs = json_field(content, "physical_segments", list, path, default=None)
    if pairs is None:
        return None
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or any(type(end) is not int or end < 0 for end in pair):
            raise StorageCorruptedError(f"{path}: field 'physical_segments' has {pair!r:.100}, wanted [start, end]")
    return [(start, end) for start, end in pairs]


def check_segments(folder: Path, metadata: Metadata) -> None:
    """A StorageCorruptedError if two episodes overlap."""
    last = 0
    for start, stop in logical_segments(metadata.segments or (), metadata.offset, metadata.count, metadata.capacity):
        if start < last:
            raise StorageCorruptedError(f"{folder / FILE_NAME}: field 'physical_segments': episodes overlap")
        last = stop


def has_64_bits(backend: ComputeBackend) -> bool:
    """Whether a backend has 64-bit dtypes; JAX has none without `jax_enable_x64`."""
    return all(backend.dtype_name(backend.dtype_from_name(name)) == name for name in ("int64", "float64"))


def read_space(folder: PathLike, metadata: Metadata, backend: BackendLike, device: Any) -> Space:
    """The space of one sample, on a backend; narrowed if the backend has no 64-bit dtypes."""
    backend = parse_backend(backend)  # outside the `try`: its errors are not the file's
    if not has_64_bits(backend):
        stored = read_space(folder, metadata, NumpyComputeBackend, None)
        try:
            return stored.to(backend, device)
        except OverflowError as error:
            what = "open it on another backend, or with jax_enable_x64"
            raise OverflowError(f"{os.path.join(folder, FILE_NAME)}: {error} on {backend!r}: {what}") from error
    try:
        return json_to_space(metadata.space_json, backend, device)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        path = os.path.join(folder, FILE_NAME)
        raise StorageCorruptedError(f"{path}: field 'single_instance_space': {what}") from error
