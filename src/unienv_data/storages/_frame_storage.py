"""What storages of images and of videos share, which read the folders of the reference implementation."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.spaces import BoxSpace

from ..base.files import json_field, read_json
from ..base.storage import StorageCorruptedError
from ._column_storage import ColumnStorage, new_column
from .registry import current_name

PathLike = str | os.PathLike[str]
_EXTENSION = re.compile(r"[A-Za-z0-9]{1,16}\Z")


class FrameStorage(ColumnStorage[Any, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A read-only storage whose samples are frames in files: a box each, (height, width, channels) or without channels.

    A subclass implements `_frames`.
    """

    is_multiprocessing_safe = True

    def __init__(
        self, single_instance_space: Space, cache_filename: PathLike, capacity: int | None, length: int
    ) -> None:
        if not isinstance(single_instance_space, BoxSpace):
            raise ValueError(f"{type(self).__name__} holds frames, a box each, not {single_instance_space}")
        length = length if capacity is None else capacity
        path = Path(cache_filename)
        super().__init__(single_instance_space, capacity=capacity, length=length, path=path, mutable=False)
        self._folder = path

    def _frames(self, slots: Sequence[int]) -> list[np.ndarray]:
        """The frames in these slots, which are in order and without duplicates."""
        raise NotImplementedError

    @classmethod
    def create(cls, single_instance_space: Space, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{cls.__name__} only reads so far: record to a PackedStorage")

    def _read(self, slots: np.ndarray, places: Sequence[int]) -> list[np.ndarray]:
        (leaf,) = self.layout.leaves
        column = new_column(leaf, (len(slots),))
        for row, (slot, frame) in enumerate(zip(slots.tolist(), self._frames(slots.tolist()), strict=True)):
            if frame.size != column[row].size or frame.shape[:2] != column.shape[1:3]:
                raise StorageCorruptedError(
                    f"{self._folder}: the frame in slot {slot} has shape {frame.shape}, the space wants "
                    f"{leaf.codec.shape}"
                )
            column[row] = frame.reshape(column.shape[1:])
        return [column] if len(places) else []

    def _write(self, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        self._check_mutable()

    def _resize(self, length: int) -> None:
        self._check_mutable()

    def _create_like(self, path: PathLike) -> Any:
        raise NotImplementedError(
            f"{self._folder}: {type(self).__name__} only reads so far: copy the samples into a buffer with another "
            f"storage (extend_from)"
        )

    def dumps(self, path: PathLike) -> None:
        self._create_like(path)


def read_frame_metadata(cls: type[FrameStorage], path: Path, capacity: int | None) -> dict[str, Any]:
    """The metadata file of a folder; a StorageCorruptedError unless it is of this class and capacity."""
    content = read_json(path, checksum=False)
    kind = json_field(content, "storage_type", str, path)
    if kind != cls.__name__ and current_name(kind) != cls.registered_name:
        raise StorageCorruptedError(f"{path}: of type {kind!r}, wanted {cls.__name__!r}")
    if capacity != json_field(content, "capacity", int, path, default=None):
        raise StorageCorruptedError(f"{path}: capacity {content.get('capacity')}, wanted {capacity}")
    return content


def refuse_writing(path: PathLike, *, read_only: bool) -> None:
    if not read_only:
        raise PermissionError(f"{path} is of frames in files, which are only read so far: load it with read_only=True")


def extension(content: dict[str, Any], name: str, path: Path) -> str:
    """A field that is the extension of files, which leads nowhere else."""
    found = json_field(content, name, str, path).lower()
    if not _EXTENSION.match(found):
        raise StorageCorruptedError(f"{path}: field {name!r} is {found!r}, which no file ends in")
    return found
