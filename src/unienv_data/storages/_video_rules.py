"""What a user says of columns of video: how they are kept, and how their frames are wanted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..base.storage import SpaceStorage

RAW_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Video:
    """A rule for a column: the frames of each episode are kept as a video, in a `VideoStorage`.

    Parameters
    ----------
    codec : str
        "h264", "hevc", "av1", or "ffv1", which keeps every bit, of 16-bit depth too.
    fps : float
        Frames a second.
    gop : int
        Every so many frames one is encoded by itself. A frame is decoded from the last such one on, so more of them
        are read faster and take more room.
    crf : int, optional
        The constant rate factor: 0 is best, and 30 the default, as in LeRobot.
    pixel_format : str, optional
        The pixel format in the file; by default "yuv420p" for colours, and what keeps every bit for ffv1.
    raw_bytes : int
        How many bytes of frames may wait to be encoded, about. A writer that is ahead of that has to wait.

    Examples
    --------
    >>> rules = {"obs/cam*": Video(fps=30)}
    >>> buffer = ReplayBuffer.create(space, columns=rules, cache_path="demos")
    >>> buffer.close()
    """

    codec: str = "h264"
    fps: float = 30.0
    gop: int = 4
    crf: int | None = None
    pixel_format: str | None = None
    raw_bytes: int = RAW_BYTES

    def __str__(self) -> str:
        return f"{self.codec} video"

    def storage(self) -> tuple[type[SpaceStorage], dict[str, Any]]:
        """The storage of the column, and its options."""
        from .video_storage import VideoStorage

        return VideoStorage, asdict(self)


@dataclass(frozen=True)
class Decode:
    """How to crop and resize the frames of a video column when a buffer is loaded.

    Parameters
    ----------
    resize : (height, width), optional
        Their size; what is cropped first.
    crop : (top, left, height, width), optional
        The part of them.

    Examples
    --------
    >>> wanted = {"obs/cam_*": Decode(resize=(96, 128))}
    >>> ReplayBuffer.load_from("demos", backend="numpy", columns=wanted, frame_cache="20GB")  # doctest: +SKIP
    """

    resize: tuple[int, int] | None = None
    crop: tuple[int, int, int, int] | None = None
