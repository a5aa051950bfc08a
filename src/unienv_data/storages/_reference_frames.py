"""Folders of frames that the reference implementation wrote: an image file per sample, or a video per episode.

They are read, and not written.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.utils.optional import need

from ..base.files import json_field, open_regular, read_json
from ..base.storage import StorageCorruptedError
from ._column_storage import ColumnStorage, new_column
from .registry import register_storage

IMAGE_METADATA, VIDEO_METADATA, VIDEO_INDEX = "image_metadata.json", "video_metadata.json", "episode_index.json"

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
        raise NotImplementedError(f"{cls.__name__} only reads: record to an ImageStorage or a VideoStorage")

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
            f"{self._folder} is of the reference implementation, whose frames are only read: copy the samples into a "
            f"buffer with another storage (extend_from)"
        )

    def dumps(self, path: PathLike) -> None:
        self._create_like(path)


@register_storage("reference_images")
class ReferenceImages(FrameStorage[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A folder with an image file per sample, of RGB, uint8; it is read, and not written so far.

    JPEG loses detail, PNG does not. Reading a slot whose file is missing is a StorageCorruptedError.
    """

    def __init__(
        self,
        single_instance_space: Space,
        format: str,  # noqa: A002 - the documented name
        quality: int,
        cache_filename: PathLike,
        mutable: bool = False,
        capacity: int | None = None,
        length: int = 0,
    ) -> None:
        _refuse_writing(cache_filename, read_only=not mutable)
        super().__init__(single_instance_space, cache_filename, capacity, length)
        self.format, self.quality = format, quality

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> ReferenceImages:
        """The storage in a folder, to be read. A growing one has as many slots as there are files."""
        _refuse_writing(path, read_only=read_only)
        folder, file = Path(path), Path(path) / IMAGE_METADATA
        content = _read_metadata("ImageStorage", file, capacity)
        suffix = _extension(content, "format", file)
        length = 0
        if capacity is None:
            name = re.compile(rf"([0-9]+)\.{suffix}\Z")
            length = max((int(match[1]) + 1 for match in map(name.match, os.listdir(folder)) if match), default=0)
        quality = json_field(content, "quality", int, file, default=75)
        return cls(single_instance_space, content["format"], quality, folder, capacity=capacity, length=length)

    def _frames(self, slots: Sequence[int]) -> list[np.ndarray]:
        return [self._frame(self._folder / f"{slot}.{self.format.lower()}") for slot in slots]

    def _frame(self, path: Path) -> np.ndarray:
        pillow = need("PIL.Image", extra="image")
        height, width = self.layout.leaves[0].codec.shape[:2]
        with os.fdopen(open_regular(path, writable=False), "rb") as file:
            try:
                with pillow.open(file, formats=[self.format]) as image:
                    if image.size != (width, height):  # known before anything is unpacked
                        raise ValueError(f"it is {image.size[1]} high and {image.size[0]} wide")
                    return np.asarray(image.convert("RGB"))
            except (OSError, ValueError, SyntaxError) as error:
                wanted = f"a {self.format} {height} high and {width} wide"
                raise StorageCorruptedError(f"{path}: not {wanted}: {error}") from error


@register_storage("reference_videos")
class ReferenceVideos(FrameStorage[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A folder with a video per episode, of RGB (uint8) or of depth (uint16); it is read, and not written so far.

    A file is named after the first and the last slot of its episode, in a ring with the first behind the last where it
    goes around the end. To read a frame decodes its video up to it.
    """

    is_segment_aware = True

    def __init__(
        self,
        single_instance_space: Space,
        cache_filename: PathLike,
        *,
        file_ext: str = "mp4",
        buffer_pixel_format: str = "rgb24",
        fps: int = 15,
        capacity: int | None = None,
        length: int = 0,
        file_ranges: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(single_instance_space, cache_filename, capacity, length)
        self.file_ext, self.buffer_pixel_format, self.fps = file_ext, buffer_pixel_format, fps
        self._ranges = sorted(file_ranges)
        # where each range of slots begins, where it stops, its file, and the number of its first frame there
        self._slot_ranges: list[tuple[int, int, int, int]] = []
        for number, (first, last) in enumerate(self._ranges):
            if first <= last:
                self._slot_ranges.append((first, last + 1, number, 0))
            else:
                self._slot_ranges += [(first, len(self), number, 0), (0, last + 1, number, len(self) - first)]
        self._slot_ranges.sort()

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> ReferenceVideos:
        """The storage in a folder, to be read."""
        _refuse_writing(path, read_only=read_only)
        folder = Path(path)
        file = folder / (VIDEO_METADATA if (folder / VIDEO_METADATA).exists() else IMAGE_METADATA)
        content = _read_metadata("VideoStorage", file, capacity)
        suffix = _extension(content, "file_ext", file)
        ranges = _file_ranges(folder, suffix, capacity)
        return cls(
            single_instance_space,
            folder,
            file_ext=suffix,
            buffer_pixel_format=json_field(content, "buffer_pixel_format", str, file, default="rgb24"),
            fps=json_field(content, "fps", int, file, default=15),
            capacity=capacity,
            length=max((last + 1 for _, last in ranges), default=0),
            file_ranges=ranges,
        )

    def get_segments(self) -> list[tuple[int, int]] | None:
        return list(self._ranges)

    def _frames(self, slots: Sequence[int]) -> list[np.ndarray]:
        wanted: dict[int, dict[int, int]] = {}  # of each file: the index in the result of each frame
        for index, slot in enumerate(slots):
            at = bisect.bisect_right(self._slot_ranges, slot, key=lambda entry: entry[0]) - 1
            if at < 0 or slot >= self._slot_ranges[at][1]:
                raise StorageCorruptedError(f"{self._folder}: there is no video for slot {slot}")
            first, _, number, frame = self._slot_ranges[at]
            wanted.setdefault(number, {})[frame + slot - first] = index
        frames: list[Any] = [None] * len(slots)
        for number, indices in wanted.items():
            for index, pixels in self._decode(number, indices):
                frames[index] = pixels
        return frames

    def _decode(self, file_number: int, indices: dict[int, int]) -> list[tuple[int, np.ndarray]]:
        """The frames of a file whose numbers are in `indices`, each with its index in the result."""
        av = need("av", extra="video")
        first, last = self._ranges[file_number]
        path, decoded = self._folder / f"{first}_{last}.{self.file_ext}", []
        with os.fdopen(open_regular(path, writable=False), "rb") as file:
            try:
                with av.open(file) as container:
                    for index, frame in enumerate(container.decode(video=0)):
                        if index in indices:
                            decoded.append((indices[index], frame.to_ndarray(format=self.buffer_pixel_format)))
                            if len(decoded) == len(indices):
                                break
            except (av.FFmpegError, ValueError, IndexError) as error:
                raise StorageCorruptedError(f"{path}: not a video that can be read: {error}") from error
        if len(decoded) < len(indices):
            raise StorageCorruptedError(f"{path}: frame {max(indices)} is missing, the video is shorter")
        return decoded


def _file_ranges(folder: Path, suffix: str, capacity: int | None) -> list[tuple[int, int]]:
    """The first and the last slot of each video, as the index has them; without an index, as the files are named."""
    name = re.compile(rf"([0-9]+)_([0-9]+)\.{suffix}\Z")
    present = [(int(match[1]), int(match[2])) for match in map(name.match, os.listdir(folder)) if match]
    if (folder / VIDEO_INDEX).exists():
        index = read_json(folder / VIDEO_INDEX, checksum=False)
        pairs = json_field(index, "file_ranges", list, folder / VIDEO_INDEX)
        if len(pairs) != len(present) or any([*pair] not in pairs for pair in present):
            raise StorageCorruptedError(
                f"{folder / VIDEO_INDEX}: it names the videos {pairs}, those there are {present}"
            )
    if any(max(pair) >= (capacity or 2**62) or (capacity is None and pair[0] > pair[1]) for pair in present):
        raise StorageCorruptedError(f"{folder}: videos of slots {present} do not fit a capacity of {capacity}")
    return present


def _read_metadata(kind: str, path: Path, capacity: int | None) -> dict[str, Any]:
    """The metadata file of a folder; a StorageCorruptedError unless it is of this class and capacity."""
    content = read_json(path, checksum=False)
    stored_kind = json_field(content, "storage_type", str, path)
    if stored_kind.rpartition(".")[2] != kind:
        raise StorageCorruptedError(f"{path}: of type {stored_kind!r}, wanted {kind!r}")
    if capacity != json_field(content, "capacity", int, path, default=None):
        raise StorageCorruptedError(f"{path}: capacity {content.get('capacity')}, wanted {capacity}")
    return content


def _refuse_writing(path: PathLike, *, read_only: bool) -> None:
    if not read_only:
        raise PermissionError(
            f"{path} is of the reference implementation, whose frames are only read: load it with read_only=True"
        )


def _extension(content: dict[str, Any], name: str, path: Path) -> str:
    """A field that is the extension of files, which leads nowhere else."""
    extension = json_field(content, name, str, path).lower()
    if not _EXTENSION.match(extension):
        raise StorageCorruptedError(f"{path}: field {name!r} is {extension!r}, which no file ends in")
    return extension
