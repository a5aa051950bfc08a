"""Seeds drawn from a generator, for whatever wants a number rather than a generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import BRNGType, ComputeBackend

# Seeds lie in [0, 2**31 - 1): never negative, and within the 32-bit integers that simulators take.
_END = 2**31 - 1


def next_seed(np_rng: np.random.Generator) -> int:
    """A seed, drawn from a NumPy generator.

    Parameters
    ----------
    np_rng
        The generator, which advances.

    Returns
    -------
    int
        The seed, in [0, 2**31 - 1).
    """
    return int(np_rng.random() * _END)  # a quarter of what `integers` takes


def next_seed_rng(rng: BRNGType, backend: ComputeBackend[Any, Any, Any, BRNGType]) -> tuple[BRNGType, int]:
    """A seed, drawn from a generator of any backend.

    Parameters
    ----------
    rng
        The generator.
    backend
        Its backend.

    Returns
    -------
    tuple
        The generator to go on with, and the seed, in [0, 2**31 - 1).
    """
    if isinstance(rng, np.random.Generator):
        return rng, next_seed(rng)  # the same, with less around it
    rng, drawn = backend.random.random_discrete_uniform((), 0, _END, rng=rng)
    return rng, int(drawn)
