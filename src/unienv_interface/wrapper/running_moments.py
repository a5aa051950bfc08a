"""`RunningMoments`: mean and variance of values that come in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends.numpy import NumpyComputeBackend
from ..backends.serialization import BackendLike, parse_backend


class RunningMoments:
    """The running mean and variance of each entry of rows.

    Batches are merged by the parallel algorithm of Chan et al., which is stable for any number of rows. The moments
    are float64, or the widest floating dtype of the backend. The initial mean of 0 and variance of 1 count as `count`
    rows, as in Gymnasium.

    Parameters
    ----------
    shape
        The shape of one row.
    backend, device
        The backend and the device of the moments and the rows.
    count
        The weight of the initial mean 0 and variance 1, in rows; above 0.

    Attributes
    ----------
    mean, var
        Arrays of shape ``shape``; every update replaces them by new arrays.
    count
        The number of rows so far plus the initial weight.

    Raises
    ------
    ValueError
        `count` is not above 0.

    Examples
    --------
    >>> moments = RunningMoments((3,))
    >>> moments.update(np.ones((10, 3)))
    >>> moments.normalize(np.ones((2, 3))).shape
    (2, 3)
    """

    def __init__(
        self,
        shape: Sequence[int] = (),
        *,
        backend: BackendLike = NumpyComputeBackend,
        device: Any = None,
        count: float = 1e-4,
    ) -> None:
        if not count > 0:
            raise ValueError(f"count is {count}, the initial moments want a weight above 0")
        backend = parse_backend(backend)
        self.shape, self.backend, self.device = tuple(shape), backend, device
        self.dtype = backend.dtype_from_name("float64")
        self.mean: Any = backend.zeros(self.shape, dtype=self.dtype, device=device)
        self.var: Any = backend.ones(self.shape, dtype=self.dtype, device=device)
        self.count = count

    def update(self, rows: Any) -> None:
        """Update the moments with an array of rows of shape (n, *shape); n may be 0.

        Raises
        ------
        ValueError
            The rows are of another shape.
        """
        if tuple(rows.shape[1:]) != self.shape or not rows.shape:
            raise ValueError(f"rows of shape {tuple(rows.shape)}, wanted (n, {', '.join(map(str, self.shape))})")
        if not rows.shape[0]:
            return
        values = self.backend.astype(rows, self.dtype)
        mean, var = self.backend.mean(values, axis=0), self.backend.var(values, axis=0)
        self.update_from_moments(mean, var, rows.shape[0])

    def update_from_moments(self, mean: Any, var: Any, count: float) -> None:
        """Update the moments with `count` rows, given by their mean and population variance."""
        total = self.count + count
        delta = mean - self.mean
        squares = self.var * self.count + var * count + delta * delta * (self.count * count / total)
        self.mean, self.var, self.count = self.mean + delta * (count / total), squares / total, total

    def std(self, epsilon: float = 1e-8) -> Any:
        """The standard deviation: the square root of the variance plus `epsilon`."""
        return self.backend.sqrt(self.var + epsilon)

    def normalize(self, values: Any, epsilon: float = 1e-8) -> Any:
        """Subtract the mean from a row or an array of rows and divide by the standard deviation."""
        return (values - self.mean) / self.std(epsilon)

    def denormalize(self, values: Any, epsilon: float = 1e-8) -> Any:
        """Invert `normalize` with the current moments."""
        return values * self.std(epsilon) + self.mean

    def state_dict(self) -> dict[str, Any]:
        """Copy the moments to NumPy arrays and a number."""
        mean, var = (np.array(self.backend.to_host(values)) for values in (self.mean, self.var))
        return {"mean": mean, "var": var, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, also of another backend.

        Raises
        ------
        ValueError
            The moments of the state are of another shape.
        """
        mean, var = (np.asarray(state[name], np.float64) for name in ("mean", "var"))
        for name, values in (("mean", mean), ("var", var)):
            if values.shape != self.shape:
                raise ValueError(f"{name} has shape {values.shape}, these moments have {self.shape}")
        self.mean, self.var = (self.backend.from_host(v.copy(), self.dtype, device=self.device) for v in (mean, var))
        self.count = float(state["count"])

    def __repr__(self) -> str:
        return f"RunningMoments(shape={self.shape}, count={self.count:g}, backend={self.backend})"
