"""Mean and variance of numbers in several arrays, exact for large numbers too."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["Moments"]


class Moments:
    """Accumulates counts, extremes, mean and variance over several arrays."""

    def __init__(self) -> None:
        self.count = self.nan = self.infinite = 0
        self.min: float | int | None = None
        self.max: float | int | None = None
        # The mean minus `_origin`, and the sum of squared deviations. Integers may have more digits than floats, so
        # `_origin` is one of them; squares may exceed the range of floats.
        self._origin = 0
        self._mean = self._squares = np.longdouble(0)

    def add(self, values: np.ndarray) -> None:
        """Add the numbers of an array."""
        values = values.reshape(-1)
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        if values.dtype.kind not in "iu":
            values = self._finite(values if values.dtype.kind == "c" else values.astype(np.float64))
        if values.dtype.kind == "c":
            self.count += len(values)
        elif len(values):
            least, greatest = values.min().item(), values.max().item()
            self.min = least if self.min is None else min(self.min, least)
            self.max = greatest if self.max is None else max(self.max, greatest)
            with np.errstate(over="ignore", invalid="ignore"):
                if values.dtype.kind == "f":
                    self._merge(values, 0)
                else:
                    if not self.count:
                        self._origin = least
                    self._merge(_distances(values, least), least - self._origin)

    def _finite(self, values: np.ndarray) -> np.ndarray:
        finite = np.isfinite(values)
        if finite.all():
            return values
        nan = int(np.isnan(values).sum())
        self.nan += nan
        self.infinite += int((~finite).sum()) - nan
        return values[finite]

    def _merge(self, values: np.ndarray, shift: int) -> None:
        """Merge the moments of two groups by Chan's rule, which loses no digits to large means."""
        mean, squares = _moments(values)
        if not np.isfinite(squares):  # longdouble may have a wider range
            mean, squares = _moments(values.astype(np.longdouble))
        total, distance = self.count + len(values), np.longdouble(mean) + shift - self._mean
        between = distance * distance * self.count * len(values) / total if self.count else 0
        self._squares += squares + between
        self._mean += distance * len(values) / total
        self.count = total

    @property
    def mean(self) -> float | None:
        return _figure(self._mean + self._origin) if self.min is not None else None

    @property
    def std(self) -> float | None:
        return _figure(np.sqrt(self._squares / self.count)) if self.min is not None else None


def _moments(values: np.ndarray) -> tuple[np.floating, np.floating]:
    """Return the mean and the sum of squared deviations."""
    mean = values.mean()
    return mean, np.square(values - mean).sum()


def _distances(values: np.ndarray, least: int) -> np.ndarray:
    """Subtract the least of some integers from all; exact for all 64-bit integers."""
    distances = values.astype(np.uint64) - np.uint64(least % 2**64)
    return distances.astype(np.float64)


def _figure(value: np.floating) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
