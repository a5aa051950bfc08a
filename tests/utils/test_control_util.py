"""The time step of which all periods are whole multiples."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.utils.control_util import find_best_timestep


@pytest.mark.parametrize(
    ("periods", "step", "steps"),
    [
        ([1 / 50, 1 / 30], Fraction(1, 150), [3, 5]),
        ([0.02, 0.01, 0.04], Fraction(1, 100), [2, 1, 4]),
        ([0.1], Fraction(1, 10), [1]),
        ([2, 3], Fraction(1), [2, 3]),
        ([0.0333333333, 0.1], Fraction(1, 30), [1, 3]),
    ],
)
def test_the_longest_step_that_all_periods_are_multiples_of(
    periods: list[float], step: Fraction, steps: list[int]
) -> None:
    assert find_best_timestep(periods, return_fraction=True) == (step, steps)
    found, _ = find_best_timestep(periods)
    assert type(found) is float
    assert found == float(step)


@given(st.lists(st.fractions(Fraction(1, 500), 10, max_denominator=500), min_size=1, max_size=5))
def test_it_divides_every_period_and_no_longer_one_does(periods: list[Fraction]) -> None:
    step, steps = find_best_timestep([float(period) for period in periods], return_fraction=True)
    assert [step * number for number in steps] == periods
    for factor in range(2, 50):
        assert any((period / (step * factor)).denominator > 1 for period in periods)


@pytest.mark.parametrize(
    ("periods", "text"),
    [
        ([], "no periods"),
        ([0.1, 0], "period 0, a period is finite and above 0"),
        ([-1], "period -1"),
        ([float("inf")], "period inf"),
        ([1e-9], "period 1e-09 is less than 1/10000: give a larger max_denominator"),
    ],
)
def test_what_is_no_period_is_refused(periods: list[float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        find_best_timestep(periods)
    if periods == [1e-9]:
        assert find_best_timestep(periods, max_denominator=10**9) == (1e-9, [1])
