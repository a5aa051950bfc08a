"""Images in a heap: how a leaf of pixels becomes the bytes of an image file, and back."""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.row_layout import ArrayCodec, Heap, HeapCodec, need_heap
from unienv_interface.space.spaces import ArraySpace
from unienv_interface.utils.optional import need

from ._threads import map_in_threads

#: The formats by name, each with the channels that it keeps of dtype uint8; all but JPEG keep every bit.
FORMATS = {"JPEG": (1, 3), "PNG": (1, 3, 4), "WEBP": (1, 3, 4)}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class ImageCodec(HeapCodec):
    """A leaf of pixels as an image file in the heap, of which the row has offset and length."""

    def __init__(self, space: ArraySpace, format: str, quality: int) -> None:  # noqa: A002 - the documented name
        super().__init__(space)
        self.format, self.quality = format, quality
        self._array = ArrayCodec(space)
        self._pixels = pixel_shape(space)
        check_format(space, format, quality)

    def __reduce__(self) -> tuple[type[ImageCodec], tuple[Any, ...]]:
        return ImageCodec, (self.space, self.format, self.quality)

    def check(self, value: Any, lead: tuple[int, ...]) -> None:
        self._array.check(value, lead)

    def encode(self, value: Any, lead: tuple[int, ...], path: str = "") -> np.ndarray:
        pixels = np.asarray(self._array.encode(value, lead, path))
        encoded: np.ndarray = np.empty(lead, object)
        frames = pixels.reshape(-1, *self._pixels)
        encoded.reshape(-1)[:] = map_in_threads(self._compress, frames)  # type: ignore[arg-type]
        return encoded

    def _compress(self, pixels: np.ndarray) -> bytes:
        image = need("PIL.Image", extra="image").fromarray(pixels)
        if self.format == "WEBP" and image.mode == "L":
            image = image.convert("RGB")  # which is what the format has for grey
        options: dict[str, Any] = {
            "JPEG": {"quality": self.quality, "subsampling": 0 if self.quality >= 95 else 2},
            "PNG": {"compress_level": 1},  # a higher one takes many times as long to gain some percent
            "WEBP": {"lossless": True, "quality": 0, "method": 0, "exact": True},
        }[self.format]
        file = io.BytesIO()
        image.save(file, self.format, **options)
        return file.getvalue()

    def decode(self, column: np.ndarray, heap: Heap | None) -> Any:
        heap = need_heap(heap)
        # windows have a frame more than once: the same bytes are read and decoded once
        references, places = np.unique(column.reshape(-1), return_inverse=True)
        frames = np.zeros((len(references), *self._pixels), self._array.raw)

        def read(number: int) -> None:
            offset, length = references[number].tolist()
            if length:  # else the row was never written
                frames[number] = self._decompress(heap.read(offset, length))

        map_in_threads(read, range(len(references)))
        return self._array.decode(frames[places].reshape(column.shape + self._array.shape), None)

    def _decompress(self, data: memoryview) -> np.ndarray:
        height, width = self._pixels[:2]
        try:
            with need("PIL.Image", extra="image").open(io.BytesIO(data), formats=[self.format]) as image:
                if image.size != (width, height):  # known before anything is unpacked
                    raise ValueError(f"it is {image.size[1]} high and {image.size[0]} wide")
                pixels = np.asarray(image)
        except (OSError, ValueError, SyntaxError) as error:
            raise ValueError(f"not a {self.format} {height} high and {width} wide: {error}") from error
        if pixels.ndim == 3 and len(self._pixels) == 2:
            pixels = pixels[..., 0]
        if pixels.shape != self._pixels or pixels.dtype != self._array.raw:
            raise ValueError(f"a {self.format} of {pixels.dtype} {pixels.shape}, wanted {self._pixels}")
        return pixels


def pixel_shape(space: Space) -> tuple[int, ...]:
    """Height and width, and the channels if there is more than one; a ValueError if a space has no pixels."""
    shape = tuple(space.shape) if isinstance(space, ArraySpace) else ()
    if len(shape) == 3 and shape[2] == 1:
        shape = shape[:2]
    is_sound = len(shape) == 2 or (len(shape) == 3 and shape[2] in _MODES)
    if not isinstance(space, ArraySpace) or space.dtype_name not in ("uint8", "uint16") or not is_sound:
        raise ValueError(
            f"frames are uint8 or uint16 of shape (height, width) or (height, width, channels) with 1, 3 or 4 "
            f"channels, not {space}"
        )
    return shape


def frame_space(space: Space) -> ArraySpace:
    """The space, which has pixels; a ValueError if it has none."""
    pixel_shape(space)
    return cast(ArraySpace, space)


def check_format(space: ArraySpace, format: str, quality: int) -> None:  # noqa: A002 - the documented name
    """A ValueError unless images of this format keep the pixels of a space."""
    if format not in FORMATS:
        raise ValueError(f"image format {format!r}, it must be one of {', '.join(FORMATS)}")
    if not 1 <= quality <= 100:
        raise ValueError(f"image quality {quality}, it must be from 1 to 100")
    channels = (*pixel_shape(space), 1)[2]
    kept = FORMATS[format] if space.dtype_name == "uint8" else (1,) if format == "PNG" else ()
    if channels not in kept:
        raise ValueError(
            f"{format} does not keep {space.dtype_name} with {channels} channels: PNG keeps uint8 with 1, 3 or 4 "
            f"channels and uint16 with one"
        )
