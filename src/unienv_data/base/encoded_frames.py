"""The positions of frames in video files, for exports that copy video streams without decoding them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np


class EncodedFrames(NamedTuple):
    """The video file of each frame, and the second at which that file shows the frame."""

    paths: list[Path]
    seconds: np.ndarray
    fps: float
