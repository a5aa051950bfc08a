"""Frames like those of a camera: a texture that moves, with noise. Frame n is the same wherever it is made."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=8)
def _texture(height: int, width: int, channels: int) -> np.ndarray:
    coarse = np.random.default_rng(0).integers(0, 256, (height // 8 + 16, width // 8 + 16, channels))
    smooth = np.kron(coarse, np.ones((8, 8, 1)))
    for axis in (0, 1):
        smooth = sum(np.roll(smooth, shift, axis) for shift in range(-3, 4)) / 7
    return smooth


def frame(number: int, shape: tuple[int, ...], dtype: Any = "uint8") -> np.ndarray:
    """One frame of this shape; in uint16 it fills the range."""
    height, width, channels = (*shape, 1)[:3]
    texture = _texture(height, width, channels)
    top, left = 2 * number % 64, 3 * number % 64
    pixels = texture[top : top + height, left : left + width]
    pixels = pixels + np.random.default_rng(number).normal(0, 3, pixels.shape)
    found = np.clip(pixels, 0, 255).reshape(shape)
    return (found * 257).astype(np.uint16) if dtype == "uint16" else found.astype(np.uint8)


def frames(count: int, shape: tuple[int, ...], dtype: Any = "uint8", first: int = 0) -> np.ndarray:
    return np.stack([frame(number, shape, dtype) for number in range(first, first + count)])
