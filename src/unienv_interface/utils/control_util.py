"""Control periods of robots, sensors and simulations that step together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["Number", "find_best_timestep"]

Number = int | float


def find_best_timestep(
    timesteps: Sequence[Number], *, max_denominator: int = 10000, return_fraction: bool = False
) -> tuple[float | Fraction, list[int]]:
    """Find the longest time step that divides all periods.

    Parameters
    ----------
    timesteps
        Periods in seconds. Each is rounded to the nearest fraction: 0.0333333 becomes 1/30.
    max_denominator
        The largest denominator of these fractions.
    return_fraction
        Return the time step as an exact `Fraction`, not as a float.

    Returns
    -------
    tuple
        The time step in seconds, and the number of steps in each period.

    Raises
    ------
    ValueError
        `timesteps` is empty, or a period is not finite, not above 0, or too short for `max_denominator`.

    Examples
    --------
    >>> find_best_timestep([1 / 50, 1 / 30])
    (0.006666666666666667, [3, 5])
    """
    periods = [Fraction(period).limit_denominator(max_denominator) for period in _check_periods(timesteps)]
    for period, timestep in zip(periods, timesteps, strict=True):
        if period <= 0:
            raise ValueError(f"period {timestep!r} is less than 1/{max_denominator}: give a larger max_denominator")
    shared = math.lcm(*(period.denominator for period in periods))
    step = Fraction(math.gcd(*(int(period * shared) for period in periods)), shared)
    return step if return_fraction else float(step), [int(period / step) for period in periods]


def _check_periods(timesteps: Sequence[Number]) -> Sequence[Number]:
    if not len(timesteps):
        raise ValueError("there are no periods to find a time step for")
    for period in timesteps:
        if not (math.isfinite(period) and period > 0):
            raise ValueError(f"period {period!r}, a period is finite and above 0")
    return timesteps
