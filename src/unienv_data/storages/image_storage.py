"""Frames as still images, one per sample, many to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from typing_extensions import Self

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base.files import json_field, read_json, write_json
from ..base.storage import SpaceStorage, UnsupportedFormatError
from ._image_codec import ImageCodec, frame_space
from ._options import checks_options
from ._reference_frames import IMAGE_METADATA as IMAGE_METADATA
from ._reference_frames import PathLike, ReferenceImages
from .packed import PackedStorage
from .registry import register_storage

__all__ = ["Image", "ImageStorage"]

_VERSION = 1


@dataclass(frozen=True)
class Image:
    """A rule for a column: its frames are kept as still images, in an `ImageStorage`.

    Parameters
    ----------
    format : str
        "jpeg", "png" or "webp" (lossless). Depth in 16 bits wants "png".
    quality : int
        Of JPEG, from 1 to 100.

    Examples
    --------
    >>> buffer = ReplayBuffer.create(space, columns={"obs/depth": Image("png")})
    """

    format: str = "jpeg"
    quality: int = 75

    def __str__(self) -> str:
        return self.format.upper()

    def storage(self) -> tuple[type[SpaceStorage], dict[str, Any]]:
        """The storage of the column, and its options."""
        return ImageStorage, {"format": self.format, "quality": self.quality}


@register_storage("image")
class ImageStorage(PackedStorage, Generic[BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Frames as still images: JPEG, PNG or lossless WebP, grey, RGB or RGBA, and PNG for 16-bit depth.

    The images lie one after the other in a heap, each with its offset and length in a packed row, which has a checksum
    of the image too. So all else is as in `PackedStorage`: in memory, in files, or in shared memory; what a `set` has
    written survives the death of the process. JPEG loses detail, the others do not.

    Folders that the reference implementation wrote, with a file per sample, are opened to be read.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, np.uint8, shape=(64, 64, 3))
    >>> frames = ReplayBuffer.create("image", space, capacity=1_000, format="png")
    >>> frames.append(np.zeros((64, 64, 3), np.uint8))
    >>> frames.get_at(0).shape
    (64, 64, 3)
    """

    has_column_access = False

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        format: str = "jpeg",  # noqa: A002 - the documented name
        quality: int = 75,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
    ) -> ImageStorage:
        """A new storage of frames; a ValueError if the format does not keep those of the space.

        Parameters
        ----------
        single_instance_space
            A box of uint8 or uint16 of shape (height, width) or (height, width, channels).
        format
            "jpeg", "png" or "webp".
        quality
            Of JPEG, from 1 to 100.
        capacity, cache_path, multiprocessing
            As of `PackedStorage`.
        """
        layout = _layout(single_instance_space, format, quality)
        return cls._create(layout, capacity, cache_path, multiprocessing)

    @classmethod
    def _create_files(cls, layout: RowLayout, capacity: int | None, path: Path) -> Self:
        storage = super()._create_files(layout, capacity, path)
        codec: Any = layout.leaves[0].codec
        content = {"storage_type": "image", "format_version": _VERSION}
        write_json(path / IMAGE_METADATA, {**content, "format": codec.format, "quality": codec.quality})
        return storage

    @classmethod
    def load_from(  # type: ignore[override]
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        accept_damaged: bool = False,
        **kwargs: Any,
    ) -> ImageStorage | ReferenceImages:
        """The storage in a folder; see `PackedStorage.load_from`."""
        folder = Path(path)
        file = folder / IMAGE_METADATA
        content = read_json(file, checksum=False)
        if "format_version" not in content:
            return ReferenceImages.load_from(path, single_instance_space, capacity=capacity, read_only=read_only)
        version = json_field(content, "format_version", int, file)
        if version > _VERSION:
            raise UnsupportedFormatError(f"{file}: format version {version}, this release reads up to {_VERSION}")
        options = (json_field(content, "format", str, file), json_field(content, "quality", int, file))
        return cls._load(_layout(single_instance_space, *options), folder, capacity, read_only, accept_damaged)

    def column_rule(self) -> Image:
        """Return the rule that makes such a storage for a column."""
        return Image(self.format, self.quality)

    @property
    def format(self) -> str:
        """The format of the images: "JPEG", "PNG" or "WEBP"."""
        codec: Any = self.layout.leaves[0].codec
        return str(codec.format)

    @property
    def quality(self) -> int:
        """The quality of JPEG images."""
        codec: Any = self.layout.leaves[0].codec
        return int(codec.quality)


def _layout(space: Space, format: str, quality: int) -> RowLayout:  # noqa: A002 - the documented name
    """Rows that refer to images in a heap."""
    return RowLayout(space, {(): ImageCodec(frame_space(space), format.upper(), quality)})
