"""Writes a few small recordings, to be kept: with the code of a version on the path they are that version's.

python tests/data/write_golden_folders.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace, DynamicBoxSpace, TextSpace

NUMPY = NumpyComputeBackend
NUMBER = BoxSpace(NUMPY, 0, 2**40, "int64", shape=())
POINT = DictSpace(NUMPY, {"id": NUMBER, "x": BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(3,))})
EVERYTHING = DictSpace(
    NUMPY,
    {
        "id": NUMBER,
        "image": BoxSpace(NUMPY, 0, 255, "uint8", shape=(64, 64)),
        "list": DynamicBoxSpace(NUMPY, 0, 255, (0,), (9,), "uint8"),
        "text": TextSpace(NUMPY, 8),
    },
)


def point(number: int) -> dict[str, Any]:
    return {"id": np.int64(number), "x": np.full(3, number / 64, np.float32)}


def everything(number: int) -> dict[str, Any]:
    image = np.zeros((64, 64), np.uint8)
    image[number] = number
    return {"id": np.int64(number), "image": image, "list": np.arange(number, dtype=np.uint8), "text": f"n{number}"}


def write(folder: Path) -> None:
    """Four buffers. Their samples are `everything(n)`, n, `point(n)` and `point(n)`."""
    options: Any = {"maintain_segment_metadata": True}
    with ReplayBuffer.create(EVERYTHING, capacity=3, cache_path=folder / "everything", **options) as buffer:
        for number in range(5):
            buffer.append(everything(number))
            if number == 3:
                buffer.mark_segment_end()
    with ReplayBuffer.create(NUMBER, cache_path=folder / "grow", **options) as buffer:
        for start in (0, 4, 8):
            buffer.extend(np.arange(start, start + 4))
        buffer.remove_at([0])
    with ReplayBuffer.create(POINT, capacity=20, cache_path=folder / "ring", **options) as buffer:
        for number in range(33):
            buffer.append(point(number))
            if number % 5 == 4:
                buffer.mark_segment_end()
    with ReplayBuffer.create(POINT, capacity=24, cache_path=folder / "lanes", lanes=2) as buffer:
        for first in range(0, 12, 2):
            values = [point(first), point(first + 1)]
            ended = np.array([first == 4, first == 8])
            buffer.extend_lanes({name: np.stack([value[name] for value in values]) for name in values[0]}, ended)
    for path in folder.rglob("lock"):
        path.unlink()  # it names this machine


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True)
    write(Path(sys.argv[1]))
