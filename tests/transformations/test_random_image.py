"""Random changes of images: what they give, that a seed fixes them, and that each sample is drawn for itself."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import MultiprocessingSampler, ReplayBuffer, StepSampler, TransformedBatch
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import batch_space
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.transformations import (
    ColorJitterTransformation,
    DataTransformation,
    DictTransformation,
    RandomCropTransformation,
    RandomShiftTransformation,
    json_to_transformation,
    transformation_to_json,
)

NUMPY = NumpyComputeBackend
MAKERS: dict[str, Any] = {
    "crop": lambda seed: RandomCropTransformation(5, 6, seed=seed),
    "shift": lambda seed: RandomShiftTransformation(3, seed=seed),
    "jitter": lambda seed: ColorJitterTransformation(0.3, 0.4, 0.5, seed=seed),
}
kinds = pytest.mark.parametrize("kind", MAKERS)


def image_space(backend: Any = NUMPY, dtype: str = "uint8") -> BoxSpace:
    return BoxSpace(backend, 0, 255, dtype, shape=(9, 8, 3))


def pixels(count: int = 12) -> np.ndarray:
    """Images whose pixels say where they are: row, column and a third channel."""
    rows, columns = np.mgrid[:9, :8]
    return np.stack([np.stack([10 * rows, 10 * columns, rows * 0 + number], -1) for number in range(count)]).astype(
        np.uint8
    )


@kinds
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_results_lie_in_the_target_space(kind: str, backend: Any) -> None:
    transformation, space = MAKERS[kind](0), batch_space(image_space(backend), 12)
    found = transformation.transform(space, backend.from_numpy(pixels()))
    target = transformation.get_target_space_from_source(space)
    assert found in target
    one = MAKERS[kind](0).transform(image_space(backend), backend.from_numpy(pixels()[3]))
    assert one in transformation.get_target_space_from_source(image_space(backend))
    same = MAKERS[kind](0).transform(batch_space(image_space(), 12), pixels())
    assert np.allclose(backend.to_numpy(found), same, atol=1)


def test_a_crop_is_a_rectangle_of_its_image() -> None:
    found = RandomCropTransformation(5, 6, seed=1).transform(batch_space(image_space(), 12), pixels())
    tops, lefts = found[:, 0, 0, 0] // 10, found[:, 0, 0, 1] // 10
    for number, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        assert np.array_equal(found[number], pixels()[number, top : top + 5, left : left + 6])
    assert {tuple(place) for place in np.stack([tops, lefts], 1).tolist()} != {(tops[0], lefts[0])}
    many = RandomCropTransformation(5, 6, seed=1).transform(
        batch_space(image_space(), 500), np.tile(pixels(1), (500, 1, 1, 1))
    )
    assert set((many[:, 0, 0, 0] // 10).tolist()) == set(range(5))
    assert set((many[:, 0, 0, 1] // 10).tolist()) == set(range(3))


def test_a_shift_repeats_the_edge() -> None:
    found = RandomShiftTransformation(2, seed=0).transform(batch_space(image_space(), 12), pixels())
    padded = np.pad(pixels(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    for number in range(12):
        assert any(
            np.array_equal(found[number], padded[number, y : y + 9, x : x + 8]) for y in range(5) for x in range(5)
        )
    assert np.array_equal(RandomShiftTransformation(0).transform(batch_space(image_space(), 12), pixels()), pixels())


def test_jitter_is_what_it_says() -> None:
    space = batch_space(BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=(9, 8, 3)), 12)
    data = pixels().astype(np.float32)
    brighter = ColorJitterTransformation(brightness=0.5, seed=0).transform(space, data)
    factors = (brighter[:, 8, 7, 0] / data[:, 8, 7, 0])[:, None, None, None]
    assert np.allclose(brighter, data * factors, rtol=1e-5)
    assert ((factors >= 0.5) & (factors <= 1.5)).all()
    assert len(np.unique(factors)) == 12
    contrasted = ColorJitterTransformation(contrast=0.5, seed=0).transform(space, data)
    assert np.allclose(contrasted.mean(axis=(1, 2, 3)), data.mean(axis=(1, 2, 3)), rtol=1e-4)
    grey = np.repeat(data[..., :1], 3, axis=-1)
    assert np.allclose(ColorJitterTransformation(saturation=1, seed=0).transform(space, grey), grey, atol=1e-3)
    assert np.array_equal(ColorJitterTransformation().transform(space, data), data)


@kinds
def test_frames_of_a_sample_are_changed_alike(kind: str) -> None:
    windows = np.repeat(pixels(4)[:, None], 3, axis=1)
    found = MAKERS[kind](0).transform(batch_space(batch_space(image_space(), 3), 4), windows)
    assert np.array_equal(found[:, 0], found[:, 1])
    assert np.array_equal(found[:, 0], found[:, 2])


@kinds
def test_a_seed_fixes_all_draws(kind: str) -> None:
    space = batch_space(image_space(), 12)
    one, other = MAKERS[kind](5), MAKERS[kind](5)
    first, second = one.transform(space, pixels()), one.transform(space, pixels())
    assert not np.array_equal(first, second)
    assert np.array_equal(other.transform(space, pixels()), first)
    stored: DataTransformation = json_to_transformation(transformation_to_json(MAKERS[kind](5)))
    assert np.array_equal(stored.transform(space, pixels()), first)
    copies = [pickle.loads(pickle.dumps(other)) for _ in range(2)]
    drawn = [copy.transform(space, pixels()) for copy in copies]
    assert not np.array_equal(*drawn)
    again = MAKERS[kind](5)
    assert np.array_equal(pickle.loads(pickle.dumps(again)).transform(space, pixels()), drawn[0])


def test_workers_draw_for_themselves() -> None:
    buffer = ReplayBuffer.create(
        DictSpace(NUMPY, {"image": image_space()}), capacity=64, maintain_segment_metadata=True, multiprocessing=True
    )
    buffer.extend({"image": np.tile(pixels(1), (64, 1, 1, 1))})
    view = TransformedBatch(buffer, DictTransformation({"image": RandomShiftTransformation(4, seed=0)}))
    with MultiprocessingSampler(StepSampler(view, 16, seed=0), n_workers=2) as sampler:
        batches = [sampler.sample()["image"].copy() for _ in range(6)]
    assert len({batch.tobytes() for batch in batches}) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCropTransformation(0, 4), "at least 1"),
        (lambda: RandomCropTransformation(10, 4).get_target_space_from_source(image_space()), "smaller than 10x4"),
        (lambda: RandomShiftTransformation(-1), "not be negative"),
        (lambda: ColorJitterTransformation(brightness=2), "from 0 to 1"),
        (
            lambda: ColorJitterTransformation(saturation=0.1).get_target_space_from_source(
                BoxSpace(NUMPY, 0, 1, "float32", shape=(4, 4, 1))
            ),
            "three channels",
        ),
        (
            lambda: RandomShiftTransformation(1).get_target_space_from_source(
                BoxSpace(NUMPY, 0, 1, "float32", shape=(4,))
            ),
            "wants images",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
