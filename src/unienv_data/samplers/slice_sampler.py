"""A sampler of slices: consecutive samples of one episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .index_sampler import IndexBatch, IndexSampler, Seed, Source, nothing_to_draw_from, numbers_of, parse_batch_size

# After this many rounds with too few valid starts, the sampler computes all valid starts.
_ROUNDS = 8
# The number of samples read at a time to find episodes by a key.
_CHUNK = 1 << 18


class SliceSampler(IndexSampler):
    """Draws slices, each of `slice_len` consecutive samples of one episode.

    A batch of `batch_size` indices is a concatenation of slices: `index.reshape(-1, slice_len)` has a slice in each
    row. The batch size must be a multiple of `slice_len` or `num_slices`. All samples at which a complete slice can
    start are equally likely.

    Parameters
    ----------
    slice_len
        The length of a slice; the number of slices follows from the batch size.
    num_slices
        The number of slices, instead of their length.
    strict_length
        Whether episodes shorter than a slice are left out. Otherwise each counts as one start, and its slice is padded
        at the end with the last sample; `info["mask"]` is False for padding.
    episode_key
        A field that identifies episodes, such as "episode_id" or ("info", "episode"): an episode ends where the next
        sample's value differs. By default the source gives the episodes (`episodes_of`).
    seed
        A seed, or a NumPy generator to draw with.

    Raises
    ------
    TypeError
        Both or neither of `slice_len` and `num_slices` are given.
    ValueError
        A number is less than 1. When drawing: the source does not know its episodes, or no episode is long enough.

    Examples
    --------
    >>> sampler = StepSampler(buffer, 1024, sampler=SliceSampler(slice_len=16, seed=0))
    >>> batch, metadata = sampler.sample_with_metadata()
    >>> bool(metadata["mask"].reshape(-1, 16)[:, 0].all())
    True
    """

    def __init__(
        self,
        slice_len: int | None = None,
        num_slices: int | None = None,
        strict_length: bool = True,
        episode_key: str | int | Sequence[Any] | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(seed)
        if (slice_len is None) == (num_slices is None):
            raise TypeError("SliceSampler wants either slice_len or num_slices")
        for name, value in (("slice_len", slice_len), ("num_slices", num_slices)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        self.slice_len, self.num_slices = slice_len, num_slices
        self.strict_length = strict_length
        self.episode_key = episode_key
        keys = [episode_key] if isinstance(episode_key, (str, int)) else episode_key
        self._keyed = None if keys is None else KeyedEpisodes(keys)
        self._all_starts: tuple[range, int, np.ndarray] = (range(0), 0, np.empty(0, np.int64))

    def info_fields(self) -> dict[str, np.dtype]:
        return {"mask": np.dtype(np.bool_)}

    def sample(self, source: Source, batch_size: int) -> IndexBatch:
        count, length = self._shape(parse_batch_size(batch_size))
        if not len(source):
            raise nothing_to_draw_from()
        starts, stops, stride = self._draw_starts(source, count, length)
        index = starts[:, None] + np.arange(length) * stride[:, None]
        mask = index < stops[:, None]
        if not self.strict_length:
            # Pad with the last sample of the episode.
            last = starts + (stops - 1 - starts) // stride * stride
            np.minimum(index, last[:, None], out=index)
        return IndexBatch(index.reshape(-1), {"mask": mask.reshape(-1)})

    def _shape(self, batch_size: int) -> tuple[int, int]:
        """Return the number of slices in a batch, and their length."""
        divisor = self.slice_len or self.num_slices or 1
        if batch_size % divisor:
            name = "slice_len" if self.slice_len else "num_slices"
            raise ValueError(f"batch_size {batch_size} is not a multiple of {name} {divisor}")
        quotient = batch_size // divisor
        return (quotient, divisor) if self.slice_len else (divisor, quotient)

    def _draw_starts(self, source: Source, count: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw starts of slices; return them with the ends of their episodes and the strides."""
        rounds: list[tuple[np.ndarray, ...]] = []
        missing = count
        for _ in range(_ROUNDS):
            # A few more than missing: near the ends of episodes no complete slice can start.
            drawn = self.rng.integers(0, len(source), missing + missing // 4 + 1)
            rounds.append(tuple(column[:missing] for column in self._fitting(source, drawn, length)))
            missing -= len(rounds[-1][0])
            if not missing:
                break
        else:
            every = self._every_start(source, length)
            rounds.append(self._fitting(source, every[self.rng.integers(0, len(every), missing)], length))
        columns = [np.concatenate(column) for column in zip(*rounds, strict=True)]
        return columns[0], columns[1], columns[2]

    def _fitting(self, source: Source, positions: np.ndarray, length: int) -> tuple[np.ndarray, ...]:
        """Return the positions at which a slice can start, with the ends of their episodes and the strides."""
        begins, stops, strides = self._bounds_of(source, positions)
        fits = positions + (length - 1) * strides < stops
        if not self.strict_length:
            fits |= positions == begins  # the slice of a short episode starts at its first sample
        return positions[fits], stops[fits], strides[fits]

    def _bounds_of(self, source: Source, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._keyed is not None:
            begins, stops = self._keyed.bounds_of(source, positions)
            return begins, stops, np.ones_like(begins)
        find = getattr(source, "episodes_of", None)
        episodes = None if find is None else find(positions)
        if episodes is None:
            raise ValueError(
                f"{type(source).__name__} does not know its episodes: keep them (keep_episodes=True of "
                f"ReplayBuffer), or name the field that identifies them with episode_key"
            )
        begins, stops, stride = episodes
        return begins, stops, np.broadcast_to(np.asarray(stride, np.int64), begins.shape)

    def _every_start(self, source: Source, length: int) -> np.ndarray:
        """Return all positions at which a slice can start, cached until the source changes."""
        numbers = numbers_of(source)
        if self._all_starts[:2] != (numbers, length):
            every = self._fitting(source, np.arange(len(numbers)), length)[0]
            if not len(every):
                raise ValueError(
                    f"no episode has {length} samples: use shorter slices, or strict_length=False to pad short episodes"
                )
            self._all_starts = (numbers, length, every)
        return self._all_starts[2]


class KeyedEpisodes:
    """The episodes of a source by a field: an episode begins where the value differs from the previous sample.

    Each sample is read once: the bounds are kept by sample number, and extended when samples are added.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = list(keys)
        self._numbers = range(0)
        self._begins = self._ends = np.empty(0, np.int64)  # ranges [begin, end) of sample numbers
        self._last: Any = None  # the value of the last sample

    def bounds_of(self, source: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the end index of the episode of each index."""
        while (numbers := numbers_of(source)) != self._numbers:
            self._follow(source, numbers)
        episode = self._begins.searchsorted(positions + numbers.start, "right") - 1
        starts = self._begins.take(episode) - numbers.start
        return np.maximum(starts, 0), self._ends.take(episode) - numbers.start

    def _follow(self, source: Any, numbers: range) -> None:
        """Read the new samples, and keep the result unless samples were overwritten meanwhile."""
        if numbers.start < self._numbers.start or numbers.stop < self._numbers.stop:
            # samples were removed: the known bounds may be wrong
            self._numbers, self._begins = range(0), np.empty(0, np.int64)
        first = max(0, self._begins.searchsorted(numbers.start, "right") - 1)
        begins_by_chunk, last = [self._begins[first:]], self._last
        for start in range(max(numbers.start, self._numbers.stop), numbers.stop, _CHUNK):
            stop = min(start + _CHUNK, numbers.stop)
            values = self._values(source, start - numbers.start, stop - numbers.start)
            differs = np.ones(len(values), bool)
            np.not_equal(values[1:], values[:-1], out=differs[1:])
            if start > max(numbers.start, self._numbers.start):
                differs[0] = values[0] != last
            begins_by_chunk.append(np.flatnonzero(differs) + start)
            last = values[-1]
        if numbers_of(source).start == numbers.start:  # else a writer dropped samples, which moves indices
            begins = np.concatenate(begins_by_chunk)
            ends = np.append(begins[1:], numbers.stop)
            self._numbers, self._last, self._begins, self._ends = numbers, last, begins, ends

    def _values(self, source: Any, start: int, stop: int) -> np.ndarray:
        values = source.get_column_at(self._keys, slice(start, stop))
        values = values if isinstance(values, np.ndarray) else source.backend.to_numpy(values)
        if values.ndim > 1 and values[0].size == 1:  # such as the [., 1] of TED
            values = values.reshape(len(values))
        if values.ndim != 1:
            name = "/".join(map(str, self._keys))
            raise ValueError(f"{name} has values of shape {values.shape[1:]}, an episode key must have one per sample")
        return values
