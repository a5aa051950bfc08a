"""Where frames lie in video files, for who copies the streams without decoding them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np


class EncodedFrames(NamedTuple):
    """The file of each of some frames, and the second at which the frame is shown there."""

    paths: list[Path]
    seconds: np.ndarray
    fps: float
