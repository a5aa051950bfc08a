"""Seeds, and generator states as plain values that can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937)
}


def fresh_seed() -> int:
    """Return a seed from the system's entropy."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


def uniform_indices(rng: np.random.Generator, length: int, count: int) -> np.ndarray:
    """Draw `count` indices below `length`, each with the same probability, int64.

    Scaled floats take half the time of `integers`; the product stays below `length`, and probabilities differ by no
    more than one part in 2**53 / length.
    """
    return (rng.random(count) * length).astype(np.int64)


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as nested dicts of numbers and strings."""
    return {key: _plain(value) for key, value in rng.bit_generator.state.items()}


def generator_from_state(state: Mapping[str, Any]) -> np.random.Generator:
    """Make a generator that continues from a saved state; a ValueError if its kind is unknown."""
    name = state.get("bit_generator")
    if name not in _BIT_GENERATORS:
        raise ValueError(f"unknown generator {name!r}, known are {', '.join(_BIT_GENERATORS)}")
    bits = _BIT_GENERATORS[name]()
    as_set: Any = {key: _as_set(value) for key, value in state.items()}
    bits.state = as_set
    return np.random.Generator(bits)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _as_set(value: Any) -> Any:
    """Convert a saved state for `bit_generator.state`: Philox, SFC64 and MT19937 need arrays of unsigned numbers."""
    if isinstance(value, Mapping):
        return {key: _as_set(item) for key, item in value.items()}
    return np.asarray(value, np.uint64) if isinstance(value, list) else value
