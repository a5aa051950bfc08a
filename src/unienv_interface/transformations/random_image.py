"""Random changes of images: crops, shifts and colours, with a separate draw for each sample."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import Self

from ..backends import dtypes
from ..space.space import Space
from ..space.spaces import BoxSpace
from ._operands import (
    ClipFloats,
    RoundToIntegers,
    as_array,
    constants_device,
    lacks_arithmetic,
    require_box,
    signed_name,
)
from .serialization_utils import read_setting, register_transformation
from .transformation import DataTransformation

_HEIGHT, _WIDTH = -3, -2


class _RandomImageTransformation(DataTransformation):
    """The base class of random transformations of images; owns their generator.

    Every call draws new numbers; the same seed and the same calls give the same results. Copies, such as the copies in
    the workers of a sampler, draw independent streams.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._sequence = np.random.SeedSequence(seed)
        self._begin()

    def _begin(self) -> None:
        self._rng, self._process = np.random.default_rng(self._sequence), os.getpid()

    @property
    def rng(self) -> np.random.Generator:
        """The generator that the next call draws from."""
        if self._process != os.getpid():  # after a fork: the parent draws from the same state
            self._sequence = np.random.SeedSequence(
                self._sequence.entropy, spawn_key=(*self._sequence.spawn_key, os.getpid())
            )
            self._begin()
        return self._rng

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rng": None, "_sequence": self._sequence.spawn(1)[0]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        box = require_box(source_space, type(self).__name__)
        if len(box.shape) < 3:
            raise ValueError(
                f"{type(self).__name__} wants images (height, width, channels) in the last axes, not {box}"
            )
        return box

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {**self._settings(), "seed": self.seed}

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> Self:
        settings = {key: value for key, value in json_data.items() if key != "type"}
        read_setting(json_data, "seed", cls)
        return cls(**settings)


def _take_pixels(box: BoxSpace, data: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Gather the pixels of images (N, ..., H, W, C) at rows (N, h) and columns (N, w)."""
    backend, device = box.backend, constants_device(box.backend, data)
    shape = tuple(data.shape)
    lead = shape[:_HEIGHT]
    count = lead[0] if lead else 1
    images = backend.reshape(data, (count, -1, *shape[_HEIGHT:]))
    name = signed_name(backend)
    sample = as_array(backend, np.arange(count)[:, None, None, None], name, device)
    frame = as_array(backend, np.arange(images.shape[1])[None, :, None, None], name, device)
    y = as_array(backend, rows[:, None, :, None], name, device)
    x = as_array(backend, columns[:, None, None, :], name, device)
    pixels = images[sample, frame, y, x]
    return backend.reshape(pixels, (*lead, rows.shape[1], columns.shape[1], shape[-1]))


@register_transformation("random_crop")
class RandomCropTransformation(_RandomImageTransformation):
    """Crops each image to a rectangle at a random position.

    Images have the shape (..., height, width, channels). Each entry of the first axis has its own draw, so all frames
    of one sample are cropped at the same position.

    Parameters
    ----------
    height, width
        The size of the rectangle.
    seed
        The seed of the draws; by default a random seed.

    Raises
    ------
    ValueError
        An image is smaller than the rectangle.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(96, 96, 3))
    >>> RandomCropTransformation(84, 84, seed=0).transform(space, np.zeros((96, 96, 3), np.uint8)).shape
    (84, 84, 3)
    """

    def __init__(self, height: int, width: int, seed: int | None = None) -> None:
        if min(height, width) < 1:
            raise ValueError(f"height is {height} and width {width}, they must be at least 1")
        super().__init__(seed)
        self.height, self.width = int(height), int(width)

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        box = super().get_target_space_from_source(source_space)
        if box.shape[_HEIGHT] < self.height or box.shape[_WIDTH] < self.width:
            raise ValueError(f"{box} has images that are smaller than {self.height}x{self.width}")
        low, high = box.bounds
        return BoxSpace(
            box.backend,
            low.min(axis=(_HEIGHT, _WIDTH), keepdims=True),
            high.max(axis=(_HEIGHT, _WIDTH), keepdims=True),
            box.dtype,
            box.device,
            (*box.shape[:_HEIGHT], self.height, self.width, box.shape[-1]),
        )

    def transform(self, source_space: Space, data: Any) -> Any:
        box = require_box(source_space, type(self).__name__)
        count = data.shape[0] if len(data.shape) > 3 else 1
        size = (data.shape[_HEIGHT], data.shape[_WIDTH])
        top, left = (
            self.rng.integers(0, length - cropped + 1, (count, 1))
            for length, cropped in zip(size, (self.height, self.width), strict=True)
        )
        return _take_pixels(box, data, top + np.arange(self.height), left + np.arange(self.width))

    def _settings(self) -> dict[str, Any]:
        return {"height": self.height, "width": self.width}


@register_transformation("random_shift")
class RandomShiftTransformation(_RandomImageTransformation):
    """Shifts each image by up to `pixels` in both directions; new pixels repeat the edge, as in DrQ.

    Images and draws are as in `RandomCropTransformation`.

    Parameters
    ----------
    pixels
        The largest shift.
    seed
        The seed of the draws; by default a random seed.

    Raises
    ------
    ValueError
        `pixels` is negative.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(84, 84, 3))
    >>> RandomShiftTransformation(4, seed=0).transform(space, np.zeros((84, 84, 3), np.uint8)).shape
    (84, 84, 3)
    """

    def __init__(self, pixels: int, seed: int | None = None) -> None:
        if pixels < 0:
            raise ValueError(f"pixels is {pixels}, it must not be negative")
        super().__init__(seed)
        self.pixels = int(pixels)

    def transform(self, source_space: Space, data: Any) -> Any:
        box = require_box(source_space, type(self).__name__)
        count = data.shape[0] if len(data.shape) > 3 else 1
        rows, columns = (
            np.clip(np.arange(size) + self.rng.integers(-self.pixels, self.pixels + 1, (count, 1)), 0, size - 1)
            for size in (data.shape[_HEIGHT], data.shape[_WIDTH])
        )
        return _take_pixels(box, data, rows, columns)

    def _settings(self) -> dict[str, Any]:
        return {"pixels": self.pixels}


@register_transformation("color_jitter")
class ColorJitterTransformation(_RandomImageTransformation):
    """Changes brightness, contrast and saturation of each image by random factors from 1 - x to 1 + x.

    Images and draws are as in `RandomCropTransformation`. Results are clipped to the bounds of the box; integers are
    rounded to the nearest.

    Parameters
    ----------
    brightness, contrast
        The largest distance of the factor from 1; 0 for no change.
    saturation
        The same for saturation, which needs three channels: red, green and blue.
    seed
        The seed of the draws; by default a random seed.

    Raises
    ------
    ValueError
        A strength is not from 0 to 1.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(84, 84, 3))
    >>> jitter = ColorJitterTransformation(brightness=0.2, contrast=0.2, seed=0)
    >>> jitter.transform(space, np.zeros((84, 84, 3), np.uint8)).shape
    (84, 84, 3)
    """

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, seed: int | None = None
    ) -> None:
        for name, value in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, it must be from 0 to 1")
        super().__init__(seed)
        self.brightness, self.contrast, self.saturation = float(brightness), float(contrast), float(saturation)

    def get_target_space_from_source(self, source_space: Space) -> BoxSpace:
        box = super().get_target_space_from_source(source_space)
        if self.saturation and box.shape[-1] != 3:
            raise ValueError(f"saturation is for images of three channels, not for {box}")
        if lacks_arithmetic(box.backend, box.dtype_name):
            raise ValueError(f"{box.backend} cannot compute with {box.dtype_name}: rescale the images first")
        return box

    def transform(self, source_space: Space, data: Any) -> Any:
        box = require_box(source_space, type(self).__name__)
        backend, device = box.backend, constants_device(box.backend, data)
        count = data.shape[0] if len(data.shape) > 3 else 1
        shape = (count, *(1 for _ in data.shape[1:])) if len(data.shape) > 3 else (1, 1, 1)
        brightness, contrast, saturation = (
            as_array(backend, self.rng.uniform(1 - most, 1 + most, count).reshape(shape), "float32", device)
            for most in (self.brightness, self.contrast, self.saturation)
        )
        values = backend.astype(data, backend.dtype_from_name("float32"), copy=True) * brightness
        if self.contrast:
            mean = backend.mean(values, axis=(_HEIGHT, _WIDTH, -1), keepdims=True)
            values = (values - mean) * contrast + mean
        if self.saturation:
            weights = as_array(backend, np.array([0.299, 0.587, 0.114]), "float32", device)
            grey = backend.sum(values * weights, axis=-1, keepdims=True)
            values = (values - grey) * saturation + grey
        into = RoundToIntegers if box.dtype_name in dtypes.INTEGER else ClipFloats
        return into.into(box, "float32", device)(values)

    def _settings(self) -> dict[str, Any]:
        return {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}
