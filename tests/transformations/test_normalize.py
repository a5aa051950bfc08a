"""Normalising by statistics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.transformations import NormalizeTransformation

NUMPY = NumpyComputeBackend
STATS = {"mean": [1.0, 5.0], "std": [2.0, 0.0], "min": [-4, 5], "max": [6, 5], "q01": [-3.0, 5.0], "q99": [5.0, 5.0]}
SPACE = BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=(2,))


@pytest.mark.parametrize(
    ("mode", "value", "wanted"),
    [
        ("mean_std", [5.0, 7.0], [2.0, 2.0]),
        ("min_max", [6.0, 5.0], [1.0, 0.0]),
        ("min_max", [-4.0, 6.0], [-1.0, 1.0]),
        ("quantile", [5.0, 5.0], [1.0, 0.0]),
        ("quantile", [-7.0, 4.0], [-2.0, -1.0]),
    ],
)
@pytest.mark.parametrize("given", [dict, lambda stats: SimpleNamespace(**stats)], ids=["mapping", "object"])
def test_modes(mode: Any, value: list[float], wanted: list[float], given: Any) -> None:
    normalize = NormalizeTransformation.from_stats(given(STATS), mode)
    found = normalize.transform(SPACE, np.array(value, np.float32))
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))
    target = normalize.get_target_space_from_source(SPACE)
    back = normalize.direction_inverse(SPACE).transform(target, found)
    np.testing.assert_allclose(back, value, rtol=1e-6)


def test_bounds_follow() -> None:
    space = BoxSpace(NUMPY, [0.0, -2.0], [10.0, np.inf], "float64")
    target = NormalizeTransformation([5.0, 0.0], [5.0, 2.0]).get_target_space_from_source(space)
    assert target.low.tolist() == [-1.0, -1.0]
    assert target.high.tolist() == [1.0, np.inf]
    assert target.dtype_name == "float64"


def test_images_of_bytes_are_normalised_by_channel_and_recovered() -> None:
    space = BoxSpace(NUMPY, 0, 255, "uint8", shape=(4, 5, 3))
    stats = {"mean": np.array([[[100.0, 120.0, 90.0]]]), "std": np.array([[[50.0, 60.0, 40.0]]])}
    normalize = NormalizeTransformation.from_stats(stats, new_dtype="float32")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    found = normalize.transform(space, pixels)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (pixels - stats["mean"]) / stats["std"], rtol=1e-5, atol=1e-6)
    target = normalize.get_target_space_from_source(space)
    np.testing.assert_array_equal(normalize.direction_inverse(space).transform(target, found), pixels)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: NormalizeTransformation.from_stats(STATS, "range"), "mode is 'range', it must be"),  # type: ignore[arg-type]
        (lambda: NormalizeTransformation.from_stats({"mean": [1.0]}), "the statistics have no 'std'"),
        (lambda: NormalizeTransformation.from_stats({"mean": [np.nan], "std": [1.0]}), "mean is .* must be finite"),
        (lambda: NormalizeTransformation(np.inf), "offset is inf, it must be finite"),
        (lambda: NormalizeTransformation(0, [1, 0]), "scale is .* must be finite and above 0"),
        (lambda: NormalizeTransformation(new_dtype="bool"), "new_dtype is 'bool'"),
        (lambda: NormalizeTransformation(low=0), "only one of low and high is given: give both or neither"),
        (
            lambda: NormalizeTransformation([1.0, 2.0, 3.0]).get_target_space_from_source(SPACE),
            "offset and scale do not suit",
        ),
    ],
)
def test_what_cannot_be(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()
