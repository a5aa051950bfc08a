"""The folders of storages that are made of storages: making them, and reading what they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.files import json_field, new_folder, read_json
from ..base.storage import SpaceStorage, StorageCorruptedError, UnsupportedFormatError
from .registry import current_name, name_of

if TYPE_CHECKING:
    from ._composed import ComposedStorage

FORMAT_VERSION = 1

PathLike = str | os.PathLike[str]
Parts = dict[str, SpaceStorage]
ComposedT = TypeVar("ComposedT", bound="ComposedStorage")


def build(
    path: PathLike | None,
    make_parts: Callable[[Path | None], Parts],
    compose: Callable[[Parts, Path | None], ComposedT],
) -> ComposedT:
    """A new storage of new parts, in a new folder if there is a path and the parts have files."""
    if path is None:
        return compose(make_parts(None), None)
    with new_folder(path) as folder:
        parts = make_parts(folder)
        storage = compose(parts, _folder_in_use(folder, parts))
        if storage.cache_filename is not None:
            storage.describe(folder)
    return storage


def _folder_in_use(folder: Path, parts: Parts) -> Path | None:
    """The folder in which parts have their files; None, and it is gone, if all of them are in memory."""
    in_memory = [name for name, part in parts.items() if part.cache_filename is None]
    if not in_memory:
        return folder
    if len(in_memory) < len(parts):
        raise ValueError(
            f"{folder}: the parts {in_memory} would be in memory and get lost, while the others have files"
        )
    folder.rmdir()
    return None


def read_description(cls: type[ComposedStorage], folder: Path) -> dict[str, Any]:
    """What the metadata file of a storage of this class says; a StorageCorruptedError if it is of another class."""
    path = folder / cls.metadata_file
    content = read_json(path, checksum=False)
    version = json_field(content, "format_version", int, path, default=FORMAT_VERSION)
    if version > FORMAT_VERSION:
        raise UnsupportedFormatError(f"{path}: format version {version}, this release reads up to {FORMAT_VERSION}")
    name = json_field(content, "storage_type", str, path)
    # the reference's name of the class may stand there, with its module or without
    if name != cls.__name__ and current_name(name) != cls.registered_name:
        raise StorageCorruptedError(f"{path}: of storage type {name!r}, wanted {name_of(cls)!r}")
    return content


def check_parts(
    folder: Path, parts: Mapping[str, SpaceStorage], capacity: int | None, *, accept_damaged: bool = False
) -> None:
    """A StorageCorruptedError unless the parts that were loaded can make up one storage.

    With `accept_damaged` some may be shorter: all have the slots of the shortest.
    """
    wrong = {name: part.capacity for name, part in parts.items() if part.capacity != capacity}
    if wrong:
        raise StorageCorruptedError(f"{folder}: parts of capacities {wrong}, the storage has {capacity}")
    lengths = {name: len(part) for name, part in parts.items()}
    if capacity is not None and not accept_damaged and len(set(lengths.values())) > 1:
        raise StorageCorruptedError(f"{folder}: its parts differ in length: {lengths}")
