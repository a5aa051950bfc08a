"""Samples in image files, one `N.jpeg` or such per sample, as the reference implementation writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.utils.optional import need

from ..base.files import json_field, open_regular
from ..base.storage import StorageCorruptedError
from ._frame_storage import FrameStorage, PathLike, extension, read_frame_metadata, refuse_writing
from .registry import register_storage

__all__ = ["ImageStorage"]

METADATA = "image_metadata.json"


@register_storage("image")
class ImageStorage(FrameStorage[BArrayType, BDeviceType, BDtypeType, BRNGType]):
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
        refuse_writing(cache_filename, read_only=not mutable)
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
    ) -> ImageStorage:
        """The storage in a folder, to be read. A growing one has as many slots as there are files."""
        refuse_writing(path, read_only=read_only)
        folder, file = Path(path), Path(path) / METADATA
        content = read_frame_metadata(cls, file, capacity)
        suffix = extension(content, "format", file)
        length = 0
        if capacity is None:
            name = re.compile(rf"([0-9]+)\.{suffix}\Z")
            length = max((int(found[1]) + 1 for found in map(name.match, os.listdir(folder)) if found), default=0)
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
