"""Episodes in video files, one `START_END.mp4` or such per episode, as the reference implementation writes them."""

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
from unienv_interface.utils.optional import need

from ..base.files import json_field, open_regular, read_json
from ..base.storage import StorageCorruptedError
from ._frame_storage import FrameStorage, PathLike, extension, read_frame_metadata, refuse_writing
from .registry import register_storage

__all__ = ["VideoStorage"]

METADATA, OLD_METADATA, INDEX = "video_metadata.json", "image_metadata.json", "episode_index.json"


@register_storage("video")
class VideoStorage(FrameStorage[BArrayType, BDeviceType, BDtypeType, BRNGType]):
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
        # where each stretch of slots begins, where it stops, its file, and the number of its first frame there
        self._stretches: list[tuple[int, int, int, int]] = []
        for number, (first, last) in enumerate(self._ranges):
            if first <= last:
                self._stretches.append((first, last + 1, number, 0))
            else:
                self._stretches += [(first, len(self), number, 0), (0, last + 1, number, len(self) - first)]
        self._stretches.sort()

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
    ) -> VideoStorage:
        """The storage in a folder, to be read."""
        refuse_writing(path, read_only=read_only)
        folder = Path(path)
        file = folder / (METADATA if (folder / METADATA).exists() else OLD_METADATA)
        content = read_frame_metadata(cls, file, capacity)
        suffix = extension(content, "file_ext", file)
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
        wanted: dict[int, dict[int, int]] = {}  # of each file: the place in the result of each frame
        for place, slot in enumerate(slots):
            at = bisect.bisect_right(self._stretches, slot, key=lambda stretch: stretch[0]) - 1
            if at < 0 or slot >= self._stretches[at][1]:
                raise StorageCorruptedError(f"{self._folder}: there is no video for slot {slot}")
            first, _, number, frame = self._stretches[at]
            wanted.setdefault(number, {})[frame + slot - first] = place
        frames: list[Any] = [None] * len(slots)
        for number, places in wanted.items():
            for place, pixels in self._decode(number, places):
                frames[place] = pixels
        return frames

    def _decode(self, number: int, places: dict[int, int]) -> list[tuple[int, np.ndarray]]:
        """The frames of a file whose numbers are in `places`, with their places."""
        av = need("av", extra="video")
        first, last = self._ranges[number]
        path, found = self._folder / f"{first}_{last}.{self.file_ext}", []
        with os.fdopen(open_regular(path, writable=False), "rb") as file:
            try:
                with av.open(file) as container:
                    for index, frame in enumerate(container.decode(video=0)):
                        if index in places:
                            found.append((places[index], frame.to_ndarray(format=self.buffer_pixel_format)))
                            if len(found) == len(places):
                                break
            except (av.FFmpegError, ValueError, IndexError) as error:
                raise StorageCorruptedError(f"{path}: not a video that can be read: {error}") from error
        if len(found) < len(places):
            raise StorageCorruptedError(f"{path}: frame {max(places)} is missing, the video is shorter")
        return found


def _file_ranges(folder: Path, suffix: str, capacity: int | None) -> list[tuple[int, int]]:
    """The first and the last slot of each video, as the index has them; without an index, as the files are named."""
    name = re.compile(rf"([0-9]+)_([0-9]+)\.{suffix}\Z")
    present = [(int(found[1]), int(found[2])) for found in map(name.match, os.listdir(folder)) if found]
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX, checksum=False)
        pairs = json_field(index, "file_ranges", list, folder / INDEX)
        if sorted(pairs) != sorted(map(list, present)):
            raise StorageCorruptedError(f"{folder / INDEX}: it names the videos {pairs}, those there are {present}")
    if any(max(pair) >= (capacity or 2**62) or (capacity is None and pair[0] > pair[1]) for pair in present):
        raise StorageCorruptedError(f"{folder}: videos of slots {present} do not fit a capacity of {capacity}")
    return present
