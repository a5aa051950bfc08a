"""Which indices come next, as an object of its own.

A *source* is what indices are drawn for. Index samplers know it by very little:

- `len(source)`: how many samples there are; the indices are 0 to `len(source) - 1`, oldest first. That is all that
  most samplers look at, so a list will do.
- `source.sample_numbers`, a `range`: the numbers of the samples that are there. A number is given to a sample when it
  is written and stays its own, while its index falls as older samples are dropped: index i has number
  `sample_numbers[i]`. A source without this attribute has never dropped anything, so that numbers are indices. It is
  how a sampler that remembers something of samples follows a ring, whichever process writes to it.
- `source.episodes_of(positions)`: the episode that each of these indices lies in, as arrays of first and end index and
  the stride between samples of an episode; None where episodes are not known. Only slices by episode ask for it.
- `source.get_column_at(keys, index)`: one field of some samples. Only slices by an episode key ask for it.

Every `BatchBase` is such a source. Samplers keep no reference to one: it is an argument of each call.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ..base.random_state import generator_from_state, generator_state
from ..base.sampling import IndexBatch, parse_batch_size

__all__ = [
    "IndexBatch",
    "IndexSampler",
    "Seed",
    "Source",
    "nothing_to_draw_from",
    "numbers_of",
    "parse_batch_size",
]

Seed = int | np.random.Generator | None


class Source(Protocol):
    """What indices are drawn for; see the module's docstring for what some samplers ask of it besides."""

    def __len__(self) -> int: ...


class IndexSampler(abc.ABC):
    """Draws the indices of batches, with a generator of its own.

    The same seed and the same calls give the same indices. `state_dict` holds plain values (numbers, texts, lists,
    dicts and NumPy arrays): an object with the same arguments that loads it goes on as this one would have.
    """

    def __init__(self, seed: Seed = None) -> None:
        self.rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)

    @abc.abstractmethod
    def sample(self, source: Source, batch_size: int) -> IndexBatch:
        """The indices of the next batch; a ValueError if there is nothing to draw from."""

    def info_fields(self) -> dict[str, np.dtype]:
        """The names and dtypes of what `sample` puts into `info`."""
        return {}

    def manual_seed(self, seed: int) -> None:
        """Draw from now on as a sampler made with this seed; what is known of samples, such as priorities, stays."""
        self.rng = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": type(self).__name__, "rng": generator_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the sampler that gave this state was."""
        self._check_kind(state)
        self.rng = generator_from_state(state["rng"])

    def _check_kind(self, state: Mapping[str, Any]) -> None:
        found = state.get("sampler")
        if found != type(self).__name__:
            raise ValueError(f"the state is that of {found!r}, this is a {type(self).__name__}: make one of that kind")


def numbers_of(source: Source) -> range:
    """The numbers of the samples in a source."""
    numbers: range | None = getattr(source, "sample_numbers", None)
    return range(len(source)) if numbers is None else numbers


def nothing_to_draw_from() -> ValueError:
    return ValueError("there are no samples to draw from: add some first")
