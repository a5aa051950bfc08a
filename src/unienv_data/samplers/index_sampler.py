"""Index samplers: objects that draw the indices of batches.

An index sampler draws from a *source*, of which it uses few methods:

- `len(source)`: the number of samples; the indices are 0 to `len(source) - 1`, oldest first. Most samplers need only
  this method, so that a list can be a source.
- `source.sample_numbers`, a `range`: the numbers of the samples. A sample gets its number when it is written and keeps
  it, while its index falls as older samples are dropped: index i has number `sample_numbers[i]`. A source without this
  attribute never drops samples, so that numbers equal indices. By numbers, a sampler with data per sample (such as
  priorities) follows a ring, whichever process writes to the ring.
- `source.episodes_of(positions)`: the episode of each index, as arrays of first and end index and the stride between
  samples of an episode; None if episodes are not known. Only slices by episode need this method.
- `source.get_column_at(keys, index)`: one field of some samples. Only slices by an episode key need this method.

Every `BatchBase` is a source. Samplers keep no reference to a source: it is an argument of each call.
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
    """The samples to draw indices for; the module's docstring lists further methods that some samplers need.

    Examples
    --------
    >>> RandomSampler(seed=0).sample(range(1_000), batch_size=4).index.shape  # a source needs only a length
    (4,)
    """

    def __len__(self) -> int: ...


class IndexSampler(abc.ABC):
    """Draws the indices of batches, with its own generator.

    The same seed and the same calls give the same indices. `state_dict` returns plain values (numbers, strings, lists,
    dicts and NumPy arrays): a sampler with the same arguments that loads them continues with the same draws.

    Parameters
    ----------
    seed
        A seed, or a NumPy generator to draw with; by default the seed comes from the system.

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
            The samples to draw from; see the module's docstring.
        batch_size
            The number of indices to draw.

        Raises
        ------
        ValueError
            The source has no samples.
        """

    def info_fields(self) -> dict[str, np.dtype]:
        """Return the names and dtypes of the columns that `sample` puts into `info`."""
        return {}

    def manual_seed(self, seed: int) -> None:
        """Restart the generator like a new sampler with this seed; data about samples, such as priorities, stays."""
        self.rng = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, for `load_state_dict`."""
        return {"sampler": type(self).__name__, "rng": generator_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of the sampler that returned the state; a ValueError if its class differs."""
        self._check_kind(state)
        self.rng = generator_from_state(state["rng"])

    def _check_kind(self, state: Mapping[str, Any]) -> None:
        kind = state.get("sampler")
        if kind != type(self).__name__:
            raise ValueError(
                f"the state is of a {kind!r}, this is a {type(self).__name__}: make a sampler of the class of the state"
            )


def numbers_of(source: Source) -> range:
    """Return the numbers of the samples in a source, which do not change when older samples are dropped.

    Parameters
    ----------
    source
        The source.

    Returns
    -------
    range
        The `sample_numbers` of the source, or else its indices.
    """
    numbers: range | None = getattr(source, "sample_numbers", None)
    return range(len(source)) if numbers is None else numbers


def nothing_to_draw_from() -> ValueError:
    """Make the error for a source without samples.

    Returns
    -------
    ValueError
        The error.
    """
    return ValueError("the source has no samples to draw from: add samples first")
