"""Encoding frames as a video with PyAV: by which encoder, in which pixel format, and whether all of them are in it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space.spaces import ArraySpace
from unienv_interface.utils.optional import need

from ..base.files import sync_file
from ..base.storage import StorageCorruptedError
from ._image_codec import pixel_shape

_CRC_BYTES = 2**20
_SHOWN_FORMATS = 16


@dataclass(frozen=True)
class Codec:
    """How a codec is had of FFmpeg: by these encoders, the first that is there, into this kind of file."""

    encoders: tuple[str, ...]
    extension: str
    container: str
    most_crf: int
    options: dict[str, str]
    pixel_formats: dict[tuple[str, int], str]  # by dtype and channels
    least_side: int = 1


_LOSSY = {("uint8", 1): "gray", ("uint8", 3): "yuv420p"}
# One thread each, since several videos are encoded at a time; no frames out of order, so that frame i is the i-th.
CODECS = {
    "h264": Codec(("libx264",), "mp4", "mp4", 51, {"preset": "veryfast", "bf": "0"}, _LOSSY),
    "hevc": Codec(
        ("libx265",),
        "mp4",
        "mp4",
        51,
        {"preset": "veryfast", "x265-params": "log-level=none:bframes=0:pools=none:frame-threads=1"},
        _LOSSY,
        64,  # of frames narrower than its coding unit x265 corrupts the heap
    ),
    "av1": Codec(
        ("libsvtav1",),
        "mp4",
        "mp4",
        63,
        {"preset": "12", "svtav1-params": "lp=1"},
        {("uint8", 1): "yuv420p", ("uint8", 3): "yuv420p"},
        4,
    ),
    "ffv1": Codec(
        ("ffv1",),
        "avi",
        "avi",
        0,
        {},
        {("uint8", 1): "gray", ("uint8", 3): "bgr0", ("uint8", 4): "bgra", ("uint16", 1): "gray16le"},
    ),
}
#: The pixel formats of arrays, by dtype and channels.
_ARRAYS = {("uint8", 1): "gray", ("uint8", 3): "rgb24", ("uint8", 4): "rgba", ("uint16", 1): "gray16le"}
# A chroma sample of these stands for two pixels along each of these axes (height, width).
_HALVED = {"yuv420p": (2, 2), "yuv422p": (1, 2)}


@dataclass(frozen=True)
class VideoSettings:
    """What a video is encoded with; see `Video`."""

    codec: str
    fps: float
    gop: int
    crf: int
    pixel_format: str

    @property
    def extension(self) -> str:
        return CODECS[self.codec].extension


def array_format(space: ArraySpace) -> str:
    """The pixel format of FFmpeg for arrays of a space."""
    kind = (space.dtype_name, (*pixel_shape(space), 1)[2])
    if kind not in _ARRAYS:
        raise ValueError(f"no video has frames of {kind[0]} with {kind[1]} channels: ffv1 has uint16 with one channel")
    return _ARRAYS[kind]


def settings_for(
    space: ArraySpace, codec: str, fps: float, gop: int, crf: int | None, pixel_format: str | None
) -> VideoSettings:
    """The settings for the frames of a space; a ValueError that says what would do if these do not."""
    if codec not in CODECS:
        raise ValueError(f"video codec {codec!r}, it must be one of {', '.join(CODECS)}")
    if not fps > 0 or gop < 1:
        raise ValueError(f"fps is {fps} and gop {gop}: fps must be above 0 and gop at least 1")
    known, shape = CODECS[codec], pixel_shape(space)
    crf = min(30, known.most_crf) if crf is None else crf
    if not 0 <= crf <= known.most_crf:
        raise ValueError(f"crf is {crf}, for {codec} it must be from 0 (best) to {known.most_crf}")
    array_format(space)
    channels = (*shape, 1)[2]
    if pixel_format is None:
        pixel_format = known.pixel_formats.get((space.dtype_name, channels))
    if pixel_format is None:
        raise ValueError(f"{codec} does not keep {space.dtype_name} with {channels} channels: ffv1 does")
    if min(shape[:2]) < known.least_side:
        raise ValueError(
            f"frames of {shape[0]} x {shape[1]}, {codec} wants at least {known.least_side} x {known.least_side}: take "
            f"codec='h264' or 'ffv1'"
        )
    steps = _HALVED.get(pixel_format, (1, 1))
    if any(length % step for length, step in zip(shape, steps, strict=False)):
        raise ValueError(
            f"frames of {shape[0]} x {shape[1]} in {pixel_format}, which wants even numbers: crop them, or take "
            f"pixel_format='yuv444p' or codec='ffv1'"
        )
    formats = need("av", extra="video").codec.Codec(_encoder(codec), "w").video_formats or ()
    names = [known_format.name for known_format in formats]
    if pixel_format not in names:
        raise ValueError(f"pixel_format is {pixel_format!r}, {codec} has {', '.join(names[:_SHOWN_FORMATS])} ...")
    return VideoSettings(codec, float(fps), gop, crf, pixel_format)


def _encoder(codec: str) -> str:
    available = need("av", extra="video").codec.codecs_available
    for name in CODECS[codec].encoders:
        if name in available:
            return name
    raise ValueError(f"this PyAV has no encoder for {codec} ({', '.join(CODECS[codec].encoders)}): take codec='h264'")


def encode_video(path: Path, frames: Iterable[np.ndarray], settings: VideoSettings, pixels: str) -> int:
    """Write a video with these frames, arrays of the pixel format `pixels`, and make it durable; the frames in it."""
    av = need("av", extra="video")
    known, rate, count = CODECS[settings.codec], Fraction(settings.fps).limit_denominator(100_000), 0
    options = {**known.options, "g": str(settings.gop)}
    if known.most_crf:
        options["crf"] = str(settings.crf)
    if settings.codec == "av1":
        os.environ.setdefault("SVT_LOG", "1")  # or else it writes its settings to the standard error stream
    with av.open(os.fspath(path), "w", format=known.container) as container:
        stream: Any = None
        for frame in frames:
            if stream is None:
                stream = container.add_stream(_encoder(settings.codec), rate, options=options)
                stream.height, stream.width = frame.shape[:2]
                stream.pix_fmt = settings.pixel_format
                if settings.pixel_format.startswith("gray"):  # FFmpeg decodes grey H.264 as YUV, of half that range
                    stream.codec_context.color_range = av.video.reformatter.ColorRange.JPEG
                stream.codec_context.thread_count = 1
            picture = av.VideoFrame.from_ndarray(frame, format=pixels)
            picture.pts, picture.time_base = count, 1 / rate
            count += 1
            container.mux(stream.encode(picture))
        if stream is not None:
            container.mux(stream.encode())
    sync_file(path)
    return count


def verify_video(path: Path, count: int) -> None:
    """A StorageCorruptedError unless so many frames can be decoded from a video."""
    av = need("av", extra="video")
    with av.open(os.fspath(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        decoded = sum(1 for _ in container.decode(video=0))
    if decoded != count:
        raise StorageCorruptedError(f"{path}: {decoded} frames can be decoded, {count} were encoded")


def crc_of(path: Path) -> int:
    """The CRC32 of a file."""
    crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CRC_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc
