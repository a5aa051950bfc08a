"""Index samplers: objects that draw the indices of batches.

A *source* is what an index sampler draws indices for. Index samplers use few of its methods:

- `len(source)`: how many samples there are; the indices are 0 to `len(source) - 1`, oldest first. Most samplers need
  nothing else, so a list will do.
- `source.sample_numbers`, a `range`: the numbers of the samples. A sample gets its number when it is written and keeps
  it, while its index falls as older samples are dropped: index i has number `sample_numbers[i]`. A source without this
  attribute has never dropped a sample, so that numbers are indices. Numbers let a sampler that remembers something of
  samples follow a ring, whichever process writes to it.
- `source.episodes_of(positions)`: the episode of each of these indices, as arrays of first and end index and the stride
  between samples of an episode; None where episodes are not known. Only slices by episode need it.
- `source.get_column_at(keys, index)`: one field of some samples. Only slices by an episode key need it.

Every `BatchBase` is such a source. Samplers keep no reference to a source: it is an argument of each call.
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
    """What indices are drawn for; the module's docstring lists what some samplers need besides.

    Examples
    --------
    >>> RandomSampler(seed=0).sample(range(1_000), batch_size=4).index.shape  # all that has a length is a source
    (4,)
    """

    def __len__(self) -> int: ...


class IndexSampler(abc.ABC):
    """Draws the indices of batches, with a generator of its own.

    The same seed and the same calls give the same indices. `state_dict` holds plain values (numbers, texts, lists,
    dicts and NumPy arrays): an object with the same arguments that loads it goes on as this one would have.

    Parameters
    ----------
    seed
        A seed, or a NumPy generator to draw with; without one, the seed comes from the system.

    Examples
    --------
    >>> class Newest(IndexSampler):
    ...     def sample(self, source, batch_size):
    ...         return IndexBatch(np.arange(len(source) - batch_size, len(source)), {})
    >>> batch = StepSampler(buffer, 32, sampler=Newest()).sample()
    """

    def __init__(self, seed: Seed = None) -> None:
        self.rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)

    @abc.abstractmethod
    def sample(self, source: Source, batch_size: int) -> IndexBatch:
        """Draw the indices of the next batch.

        Parameters
        ----------
        source
            What to draw from; see the module's docstring.
        batch_size
            How many indices to draw.

        Raises
        ------
        ValueError
            The source has no samples.
        """

    def info_fields(self) -> dict[str, np.dtype]:
        """The names and dtypes of the columns that `sample` puts into `info`."""
        return {}

    def manual_seed(self, seed: int) -> None:
        """Draw from now on as a sampler made with this seed; what was learned, such as priorities, stays."""
        self.rng = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, for `load_state_dict`."""
        return {"sampler": type(self).__name__, "rng": generator_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the sampler that gave this state was; a ValueError if it is of another class."""
        self._check_kind(state)
        self.rng = generator_from_state(state["rng"])

    def _check_kind(self, state: Mapping[str, Any]) -> None:
        kind = state.get("sampler")
        if kind != type(self).__name__:
            raise ValueError(f"the state is that of {kind!r}, this is a {type(self).__name__}: make one of that kind")


def numbers_of(source: Source) -> range:
    """The numbers of the samples in a source, which they keep when older ones are dropped.

    Parameters
    ----------
    source
        The source.

    Returns
    -------
    range
        Its `sample_numbers`; without these the indices.
    """
    numbers: range | None = getattr(source, "sample_numbers", None)
    return range(len(source)) if numbers is None else numbers


def nothing_to_draw_from() -> ValueError:
    """The error for a source without samples.

    Returns
    -------
    ValueError
        The error.
    """
    return ValueError("there are no samples to draw from: add some first")
