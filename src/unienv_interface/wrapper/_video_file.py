"""Write frames to video files, with PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ..backends import get_backend_from_tensor
from ..utils.optional import need

VideoFormat = Literal["mp4", "gif", "webm"]

# The environment blocks while a video is encoded, so the encoders have fast settings.
_CODECS: dict[str, tuple[str, str, dict[str, str]]] = {
    "mp4": ("libx264", "yuv420p", {"preset": "veryfast"}),
    "webm": ("libvpx-vp9", "yuv420p", {"deadline": "realtime", "cpu-used": "8", "crf": "30", "b": "0"}),
    "gif": ("gif", "pal8", {}),
}
_GIF_TICKS = 100  # the time base of a GIF is 1/100 second


def check_format(name: str) -> str:
    """Return the format; raises an error if it is unknown or PyAV is not installed."""
    if name not in _CODECS:
        raise ValueError(f"format is {name!r}, videos are written as one of {list(get_args(VideoFormat))}")
    need("av", extra="video")
    return name


def as_image(frame: Any) -> np.ndarray:
    """Convert a frame of any backend to a new uint8 array (height, width, 3); raises a ValueError if it is no image.

    Frames are uint8 of shape (height, width) or (height, width, channels) with 1, 3 or 4 channels: gray, RGB or RGBA,
    whose alpha is dropped.
    """
    values = get_backend_from_tensor(frame).to_numpy(frame)
    if values.dtype != np.uint8:
        raise ValueError(
            f"frame of {values.dtype}, a video wants uint8: turn values in [0, 1] into (255 * frame) of uint8"
        )
    if values.ndim == 4:
        raise ValueError(f"frame of shape {values.shape} is a batch of images: choose one with rendered_index")
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or values.size == 0:
        raise ValueError(
            f"frame of shape {values.shape}, a video wants (height, width) or (height, width, channels) with 1, 3 or 4 "
            "channels"
        )
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else np.array(values[:, :, :3], order="C")


def write_video(path: Path, frames: Sequence[np.ndarray], *, fps: float, format: str) -> None:  # noqa: A002
    """Write images, all of one size, as a video file.

    The file gets its name when it is complete, and replaces an existing file; if writing fails, the incomplete file is
    removed. Odd sizes in an mp4, which allows only even ones, are padded by repeating the last row or column.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _encode(temporary, frames, Fraction(fps).limit_denominator(1001), format)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _encode(path: Path, frames: Sequence[np.ndarray], fps: Fraction, name: str) -> None:
    av = need("av", extra="video")
    codec, pixel_format, options = _CODECS[name]
    fps = min(fps, Fraction(_GIF_TICKS)) if name == "gif" else fps
    with av.open(os.fspath(path), "w", format=name) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.pix_fmt = pixel_format
        stream.options = options
        images: Any = _video_frames(frames, fps, even=name == "mp4")
        if name == "gif":
            images = _with_palette(images, frames[0].shape, fps)
        for position, image in enumerate(images):
            if position == 0:
                stream.width, stream.height = image.width, image.height
            container.mux(stream.encode(image))
        container.mux(stream.encode())


def _video_frames(frames: Sequence[np.ndarray], fps: Fraction, *, even: bool) -> Iterator[Any]:
    av = need("av", extra="video")
    height, width = frames[0].shape[:2]
    padding = ((0, height % 2), (0, width % 2), (0, 0)) if even else None
    for position, pixels in enumerate(frames):
        padded = pixels if padding is None else np.pad(pixels, padding, mode="edge")
        image = av.VideoFrame.from_ndarray(padded, format="rgb24")
        image.pts, image.time_base = position, 1 / fps
        yield image


def _with_palette(images: Iterator[Any], shape: tuple[int, ...], fps: Fraction) -> Iterator[Any]:
    """Reduce the images to a common palette of 256 colours; the default palette is the same for every video."""
    av = need("av", extra="video")
    graph = av.filter.Graph()
    source = graph.add_buffer(width=shape[1], height=shape[0], format="rgb24", time_base=1 / fps)
    split, choose, use, sink = (graph.add(name) for name in ("split", "palettegen", "paletteuse", "buffersink"))
    source.link_to(split)
    split.link_to(choose, 0, 0)
    split.link_to(use, 1, 0)
    choose.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    for image in images:
        source.push(image)
    source.push(None)
    while True:
        try:
            yield sink.pull()
        except av.EOFError:
            return
