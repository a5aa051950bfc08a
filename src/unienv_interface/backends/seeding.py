"""Integer seeds drawn from a generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import BRNGType, ComputeBackend

# Seeds lie in [0, 2**31 - 1): never negative, and within the 32-bit integers that simulators take.
_END = 2**31 - 1


def next_seed(np_rng: np.random.Generator) -> int:
    """Draw a seed from a NumPy generator.

    Parameters
    ----------
    np_rng
        The generator, which advances.

    Returns
    -------
    int
        The seed, in [0, 2**31 - 1).
    """
    return int(np_rng.random() * _END)  # `integers` takes four times as long


def next_seed_rng(rng: BRNGType, backend: ComputeBackend[Any, Any, Any, BRNGType]) -> tuple[BRNGType, int]:
    """Draw a seed from a generator of any backend.

    Parameters
    ----------
    rng
        The generator.
    backend
        The backend of the generator.

    Returns
    -------
    tuple
        The new generator, and the seed, in [0, 2**31 - 1).
    """
    if isinstance(rng, np.random.Generator):
        return rng, next_seed(rng)  # the same seed, faster
    rng, drawn = backend.random.random_discrete_uniform((), 0, _END, rng=rng)
    return rng, int(drawn)
