"""Counts, extremes, mean and variance of numbers that come in several arrays, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from unienv_data.checking import _stats


@given(
    arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
    st.floats(-1e9, 1e9),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_moments_do_not_depend_on_how_numbers_come(values: np.ndarray, shift: float, cuts: list[int]) -> None:
    values = values + shift
    moments = _stats.Moments()
    for part in np.split(values, sorted(min(cut, len(values)) for cut in cuts)):
        moments.add(part)
    assert (moments.count, moments.min, moments.max) == (len(values), values.min(), values.max())
    assert moments.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-6)
    assert moments.std == pytest.approx(values.std(), rel=1e-9, abs=1e-5)


def test_moments_of_numbers_at_the_end_of_the_range_of_floats() -> None:
    moments = _stats.Moments()
    moments.add(np.array([1.7e308, -1.7e308, 1.7e308]))
    assert (moments.std, moments.max) == (pytest.approx(np.sqrt(8 / 9) * 1.7e308), 1.7e308)
    for _ in range(3):
        moments.add(np.full(100_000, 1.7e308))
    assert moments.mean == pytest.approx(1.7e308, rel=1e-4)


@pytest.mark.parametrize(
    "values",
    [
        np.full(1000, 1e300),
        np.full(1000, 1.7e308),
        np.array([1e200, 1.5e200] * 500),
        2**60 + np.arange(1000) % 100,
        np.array([-(2**63), 2**63 - 1] * 500),
        np.array([0, 2**64 - 1] * 500, np.uint64),
        np.full(1000, 2**63 - 1),
    ],
)
@pytest.mark.parametrize("size", [7, 1000])
def test_moments_lose_no_digits_where_numbers_are_large(values: np.ndarray, size: int) -> None:
    moments = _stats.Moments()
    for start in range(0, len(values), size):
        moments.add(values[start : start + size])
    exact = [Fraction(value) for value in values.tolist()]
    mean = sum(exact) / len(exact)
    spread = np.sqrt(np.longdouble(str(sum((value - mean) ** 2 for value in exact) // len(exact))))
    largest = float(max(map(abs, exact)))
    assert moments.mean == pytest.approx(float(mean), abs=2e-16 * largest)
    assert moments.std == pytest.approx(float(spread), rel=1e-2, abs=1e-9)
