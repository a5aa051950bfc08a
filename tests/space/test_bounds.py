"""Bounds as they are kept: shortened, narrowed to fewer bits, and numbers as a dtype holds them."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue import DTYPES, FLOATS, INTEGERS, boxes
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space._bounds import representable
from unienv_interface.space.spaces import BoxSpace

np_backend = NumpyComputeBackend


@given(boxes())
def test_bounds_are_kept_as_short_as_they_can_be(space: BoxSpace) -> None:
    for bound, full in ((space.bounds.low, space.low), (space.bounds.high, space.high)):
        values = np_backend.to_host(full)
        if values.size:
            np.testing.assert_array_equal(np.broadcast_to(bound, space.shape), values)
        for axis, size in enumerate(bound.shape):
            varies = values.size > 0 and bool(np.any(values != values.take([0], axis=axis)))
            assert size == (space.shape[axis] if varies else 1)


@given(boxes(["float64"]))
def test_what_lies_between_narrowed_bounds_lay_between_the_wider_ones(space: BoxSpace) -> None:
    limit = np.finfo(np.float32).max
    low, high = np.broadcast_arrays(*space.bounds)
    try:
        narrow_low, narrow_high = space.bounds.narrowed("float64", "float32")
    except OverflowError:
        assert (low > limit).any() or (high < -limit).any()
        return
    assert narrow_low.dtype == narrow_high.dtype == np.float32
    assert not (narrow_low > narrow_high).any()
    for least, most, narrow_least, narrow_most in np.broadcast(low, high, narrow_low, narrow_high):
        with np.errstate(over="ignore"):
            first = (
                np.float32(least) if np.float32(least) >= least else np.nextafter(np.float32(least), np.float32(np.inf))
            )
        if first <= most:  # some float32 lies between
            assert least <= narrow_least
            assert narrow_most <= most


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name in FLOATS])
@given(number=st.floats(-60000, 60000))
def test_representable_rounds_like_the_backend(dtype: str, number: float) -> None:
    held = np_backend.to_host(np_backend.from_host(np.array(number), np_backend.dtype_from_name(dtype)))
    assert representable(number, dtype) == held.item()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_representable_integers(dtype: str) -> None:
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    assert [representable(number, dtype) for number in (low, high, 3.0)] == [low, high, 3]
    for number in (low - 1, high + 1, 0.5, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"is not an integer from {low} to {high}, the range of {dtype}"):
            representable(number, dtype)


def test_representable_floats() -> None:
    assert np.isnan(representable(np.nan, "float16"))
    assert representable(np.inf, "bfloat16") == np.inf
    assert representable(0, "float32") == 0
    for number, dtype in ((1e5, "float16"), (3.4e38, "bfloat16"), (-1e39, "float32")):
        with pytest.raises(ValueError, match=f"is beyond the range of {dtype}"):
            representable(number, dtype)
