"""Compress images to the bytes of image files, in arrays of one size, and back. Pillow is imported on first use."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..backends.serialization import BackendLike, parse_backend
from ..space.space import Space, parse_integer
from ..space.spaces import BoxSpace
from ..utils.optional import need
from ._operands import require_box
from .serialization_utils import read_setting, register_transformation
from .transformation import DataTransformation, need_source_space

__all__ = [
    "CONSERVATIVE_COMPRESSION_RATIOS",
    "JPEG_QUALITY_COMPRESSION_MAP",
    "ImageCompressTransformation",
    "ImageDecompressTransformation",
    "get_jpeg_compression_ratio",
]

# Measured compression ratios of JPEG for photographs, by quality; noise compresses less, hence `conservative_ratio`.
JPEG_QUALITY_COMPRESSION_MAP: dict[str, Any] = {
    "quality": np.arange(55, 101, 5),
    "compression_ratio": np.array([43.27, 36.90, 34.24, 31.50, 26.00, 25.06, 19.08, 14.30, 9.88, 5.27]),
    "conservative_ratio": 0.6,
}
# Bytes of a file besides the compressed pixels; a JPEG of a colour image has 623, mostly tables.
_HEADER_BYTES = 1024
_QUALITY_STEP = 10
_LEAST_QUALITY = 20


def get_jpeg_compression_ratio(init_quality: int) -> int:
    """A compression ratio that JPEG of this quality nearly always reaches.

    Parameters
    ----------
    init_quality
        The quality, from 1 to 100.

    Returns
    -------
    int
        The ratio: the bytes of the image divided by the bytes of the file.
    """
    table = JPEG_QUALITY_COMPRESSION_MAP
    ratio = np.interp(init_quality, table["quality"], table["compression_ratio"])
    return math.floor(float(ratio) * table["conservative_ratio"])


CONSERVATIVE_COMPRESSION_RATIOS: dict[str, Callable[[int], int]] = {"JPEG": get_jpeg_compression_ratio}


@register_transformation("image_compress")
class ImageCompressTransformation(DataTransformation):
    """Encodes every image as the bytes of an image file, padded with zeros to one size.

    Images are uint8 of shape (..., height, width, channels) with 1 or 3 channels, or (..., height, width) without
    `last_channel`. JPEG is lossy. A file that exceeds the size is encoded again with lower quality, down to 20; if it
    is still too large, a ValueError is raised.

    Parameters
    ----------
    init_quality
        The quality to try first, 1 to 100.
    max_size_bytes
        The size of the result, in bytes.
    compression_ratio
        The size of the pixels divided by the size of the result, instead of `max_size_bytes`. If neither is given, the
        quality of a JPEG determines the ratio.
    header_bytes
        Bytes to add to the size that follows from the ratio: by default 1024 if the quality determines the ratio, so
        that small images fit, and 0 if the ratio is given.
    mode
        The Pillow mode to convert images to, such as "RGB" or "L".
    format
        The Pillow format, such as "JPEG" or "PNG".
    last_channel
        Whether the last axis holds the channels.

    Raises
    ------
    ValueError
        Two options exclude each other, or `max_size_bytes` is needed for this format.
    TypeError
        `mode` or `format` is no text, or a size no integer.

    Examples
    --------
    >>> images = BoxSpace("numpy", 0, 255, np.uint8, shape=(64, 64, 3))
    >>> compress = ImageCompressTransformation(init_quality=75)
    >>> encoded = compress.transform(images, np.zeros((64, 64, 3), np.uint8))
    >>> encoded.dtype.name, encoded.size < 64 * 64 * 3
    ('uint8', True)
    """

    has_inverse = True

    def __init__(
        self,
        init_quality: int = 70,
        max_size_bytes: int | None = None,
        compression_ratio: float | None = None,
        mode: str | None = None,
        format: str = "JPEG",  # noqa: A002 - the documented name
        last_channel: bool = True,
        header_bytes: int | None = None,
    ) -> None:
        _check_names(format=format, mode=mode)
        if max_size_bytes is not None and header_bytes:
            raise ValueError(f"header_bytes is {header_bytes} and max_size_bytes {max_size_bytes}: give one")
        if max_size_bytes is not None and compression_ratio is not None:
            raise ValueError(f"max_size_bytes is {max_size_bytes} and compression_ratio {compression_ratio}: give one")
        if max_size_bytes is None and compression_ratio is None:
            if format not in CONSERVATIVE_COMPRESSION_RATIOS:
                raise ValueError(f"the compression ratio of {format} is not known: give max_size_bytes")
            compression_ratio = CONSERVATIVE_COMPRESSION_RATIOS[format](init_quality)
            header_bytes = _HEADER_BYTES if header_bytes is None else header_bytes
        if compression_ratio is not None and not compression_ratio > 0:
            raise ValueError(f"compression_ratio is {compression_ratio}, it must be above 0")
        self.init_quality = parse_integer(init_quality, "init_quality")
        self.max_size_bytes = None if max_size_bytes is None else parse_integer(max_size_bytes, "max_size_bytes")
        self.compression_ratio = compression_ratio
        self.header_bytes = parse_integer(header_bytes or 0, "header_bytes")
        self.mode, self.format, self.last_channel = mode, format, bool(last_channel)

    @staticmethod
    def get_uint8_dtype(backend: BackendLike) -> Any:
        """Return the dtype uint8 of a backend."""
        return parse_backend(backend).dtype_from_name("uint8")

    def validate_source_space(self, source_space: Space) -> None:
        """Raise a TypeError or ValueError if images of this space cannot be compressed."""
        box, expected = require_box(source_space, type(self).__name__), "(..., height, width, 1 or 3)"
        fits = len(box.shape) >= 3 and box.shape[-1] in (1, 3)
        if not self.last_channel:
            fits, expected = len(box.shape) >= 2, "(..., height, width)"
        if not fits or box.dtype_name != "uint8":
            raise ValueError(f"{type(self).__name__} wants uint8 of shape {expected}, not {box}")

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        self.validate_source_space(source_space)
        box = require_box(source_space, type(self).__name__)
        shape = (*box.shape[: -self._axes], self._size(box.shape))
        return BoxSpace(box.backend, 0, 255, self.get_uint8_dtype(box.backend), box.device, shape)

    @property
    def _axes(self) -> int:
        return 3 if self.last_channel else 2

    def _size(self, shape: tuple[int, ...]) -> int:
        if self.compression_ratio is None:
            return int(self.max_size_bytes or 0)
        return int(math.prod(shape[-self._axes :]) // self.compression_ratio) + 1 + self.header_bytes

    def transform(self, source_space: Space, data: Any) -> Any:
        backend = source_space.backend
        images = backend.to_numpy(data)
        lead, shape = images.shape[: -self._axes], images.shape[-self._axes :]
        size = self._size(shape)
        files = np.zeros((math.prod(lead), size), np.uint8)
        for row, image in zip(files, images.reshape(-1, *shape), strict=True):
            encoded, _ = self.encode_to_size(image, size, mode=self.mode)
            row[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        return backend.from_numpy(files.reshape(*lead, size), device=source_space.device)

    def encode_to_size(
        self, img_array: np.ndarray, max_bytes: int, min_quality: int = _LEAST_QUALITY, mode: str | None = None
    ) -> tuple[bytes, int]:
        """Encode an image to at most `max_bytes`; returns the file and its quality, or raises a ValueError."""
        pixels = img_array[..., 0] if img_array.ndim == 3 and img_array.shape[-1] == 1 else img_array
        image = need("PIL.Image", extra="image").fromarray(pixels)
        if mode is not None:
            image = image.convert(mode)
        quality = max(self.init_quality, min_quality)
        while True:
            file = io.BytesIO()
            try:
                image.save(file, format=self.format, quality=quality)
            except KeyError:
                raise ValueError(f"Pillow writes no format {self.format!r}") from None
            if file.tell() <= max_bytes:
                return file.getvalue(), quality
            if quality - _QUALITY_STEP < min_quality:
                raise ValueError(
                    f"an image takes {file.tell()} bytes as {self.format} of quality {quality}, there is room for "
                    f"{max_bytes}: give a larger max_size_bytes"
                )
            quality -= _QUALITY_STEP

    def direction_inverse(self, source_space: Space | None = None) -> ImageDecompressTransformation:
        box = require_box(need_source_space(self, source_space), type(self).__name__)
        self.validate_source_space(box)
        height, width = box.shape[-self._axes :][:2]
        channels = box.shape[-1] if self.last_channel else None
        return ImageDecompressTransformation(height, width, channels, self.mode, self.format)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        sizes = ("max_size_bytes", "compression_ratio", "header_bytes")
        return {name: getattr(self, name) for name in ("init_quality", *sizes, "mode", "format", "last_channel")}

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> ImageCompressTransformation:
        return cls(**json_data)


@register_transformation("image_decompress")
class ImageDecompressTransformation(DataTransformation):
    """Decodes images from the bytes of image files; the inverse of `ImageCompressTransformation`.

    Parameters
    ----------
    target_height, target_width
        The size of the images; images of another size raise a ValueError.
    target_channels
        The size of the last axis, 1 or 3; None for images without this axis.
    mode
        The Pillow mode to convert images to.
    format
        The only Pillow format to read; None for all formats.

    Raises
    ------
    ValueError
        `target_channels` is none of 1, 3 and None.
    TypeError
        `mode` or `format` is no text, or a size no integer.

    Examples
    --------
    >>> images = BoxSpace("numpy", 0, 255, np.uint8, shape=(64, 64, 3))
    >>> compress = ImageCompressTransformation(format="PNG", max_size_bytes=2_000)
    >>> files = compress.get_target_space_from_source(images)
    >>> decompress = ImageDecompressTransformation(64, 64, target_channels=3)
    >>> decompress.transform(files, compress.transform(images, np.zeros((64, 64, 3), np.uint8))).shape
    (64, 64, 3)
    """

    has_inverse = True

    def __init__(
        self,
        target_height: int,
        target_width: int,
        target_channels: int | None = 3,
        mode: str | None = None,
        format: str | None = None,  # noqa: A002 - the documented name
    ) -> None:
        _check_names(format=format, mode=mode)
        if target_channels not in (None, 1, 3):
            raise ValueError(f"target_channels is {target_channels!r}, it must be 1, 3 or None")
        self.target_height = parse_integer(target_height, "target_height")
        self.target_width = parse_integer(target_width, "target_width")
        self.target_channels, self.mode, self.format = target_channels, mode, format

    @staticmethod
    def get_uint8_dtype(backend: BackendLike) -> Any:
        """Return the dtype uint8 of a backend."""
        return parse_backend(backend).dtype_from_name("uint8")

    @staticmethod
    def validate_source_space(source_space: Space) -> None:
        """Raise a TypeError or ValueError if the space does not hold the bytes of files."""
        box = require_box(source_space, "ImageDecompressTransformation")
        if not box.shape or box.dtype_name != "uint8":
            raise ValueError(f"ImageDecompressTransformation wants uint8 of shape (..., bytes), not {box}")

    @property
    def _shape(self) -> tuple[int, ...]:
        channels = () if self.target_channels is None else (self.target_channels,)
        return (self.target_height, self.target_width, *channels)

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        self.validate_source_space(source_space)
        box = require_box(source_space, type(self).__name__)
        shape = (*box.shape[:-1], *self._shape)
        return BoxSpace(box.backend, 0, 255, self.get_uint8_dtype(box.backend), box.device, shape)

    def transform(self, source_space: Space, data: Any) -> Any:
        backend = source_space.backend
        files = backend.to_numpy(data)
        images = np.zeros((math.prod(files.shape[:-1]), *self._shape), np.uint8)
        for image, file in zip(images, files.reshape(-1, files.shape[-1]), strict=True):
            image[...] = self.decode_bytes(file.tobytes(), mode=self.mode)
        return backend.from_numpy(images.reshape(*files.shape[:-1], *self._shape), device=source_space.device)

    def decode_bytes(self, jpeg_bytes: bytes, mode: str | None = None) -> np.ndarray:
        """Decode the image at the start of the bytes; raises a ValueError for an invalid file or another size."""
        pillow, formats = need("PIL.Image", extra="image"), None if self.format is None else [self.format]
        try:
            with pillow.open(io.BytesIO(jpeg_bytes), formats=formats) as image:
                if image.size != (self.target_width, self.target_height):  # before the pixels are decoded
                    raise ValueError(f"it is {image.size[1]} high and {image.size[0]} wide")
                pixels = np.asarray(image.convert(mode or ("RGB" if self.target_channels == 3 else "L")))
        except KeyError:
            raise ValueError(f"Pillow reads no format {self.format!r}") from None
        except (OSError, ValueError, SyntaxError) as error:
            expected = f"an image {self.target_height} high and {self.target_width} wide"
            raise ValueError(f"not the file of {expected}: {error}") from error
        return pixels[..., None] if self.target_channels == 1 else pixels

    def direction_inverse(self, source_space: Space | None = None) -> ImageCompressTransformation:
        box = require_box(need_source_space(self, source_space), type(self).__name__)
        self.validate_source_space(box)
        has_channels = self.target_channels is not None
        return ImageCompressTransformation(
            max_size_bytes=box.shape[-1], mode=self.mode, format=self.format or "JPEG", last_channel=has_channels
        )

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        names = ("target_height", "target_width", "target_channels", "mode", "format")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> ImageDecompressTransformation:
        read_setting(json_data, "target_height", cls)
        return cls(**json_data)


def _check_names(**names: Any) -> None:
    """Raise a TypeError for a Pillow name that is neither a string nor None."""
    for option, name in names.items():
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{option} is {name!r}, wanted a name that Pillow knows")
