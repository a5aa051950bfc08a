"""Slices: samples that follow each other within one episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .index_sampler import IndexBatch, IndexSampler, Seed, Source, nothing_to_draw_from, numbers_of, parse_batch_size

# After so many rounds with too few fitting draws, all fitting starts are looked up.
_ROUNDS = 8
# How many samples are read at a time to find episodes by a key.
_CHUNK = 1 << 18


class SliceSampler(IndexSampler):
    """Batches of slices, each of `slice_len` samples in a row from one episode.

    A batch of `batch_size` indices holds its slices one after the other: `index.reshape(-1, slice_len)` has a slice in
    each row. The batch size must be a multiple of the number given. Every start with a whole slice after it is as
    likely as any other.

    Parameters
    ----------
    slice_len
        The length of a slice; the number of slices follows from the batch size.
    num_slices
        The number of slices, instead of their length.
    strict_length
        Leave out episodes shorter than a slice. Otherwise they come too, as likely as one start, padded at the end with
        their last sample; `info["mask"]` is False for padding.
    episode_key
        A field of the samples that tells episodes apart, such as "episode_id" or ("info", "episode"): an episode ends
        where the next sample's value differs. By default episodes are those that the source knows (`episodes_of`).
    seed
        A seed, or a NumPy generator to draw with.

    Raises
    ------
    TypeError
        Both or neither of `slice_len` and `num_slices` are given.
    ValueError
        A number is less than 1. When drawing: the source does not know its episodes, or none is long enough.

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
            # the last sample of the episode, for what lies behind it
            last = starts + (stops - 1 - starts) // stride * stride
            np.minimum(index, last[:, None], out=index)
        return IndexBatch(index.reshape(-1), {"mask": mask.reshape(-1)})

    def _shape(self, batch_size: int) -> tuple[int, int]:
        """The number of slices in a batch, and their length."""
        divisor = self.slice_len or self.num_slices or 1
        if batch_size % divisor:
            name = "slice_len" if self.slice_len else "num_slices"
            raise ValueError(f"batch_size {batch_size} is not a multiple of {name} {divisor}")
        other = batch_size // divisor
        return (other, divisor) if self.slice_len else (divisor, other)

    def _draw_starts(self, source: Source, count: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts of slices, with the ends of their episodes and the strides."""
        rounds: list[tuple[np.ndarray, ...]] = []
        missing = count
        for _ in range(_ROUNDS):
            # a few more than are missing: near the ends of episodes there is no whole slice
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
        """The positions at which a slice may start, with the ends of their episodes and the strides."""
        begins, stops, strides = self._bounds_of(source, positions)
        fits = positions + (length - 1) * strides < stops
        if not self.strict_length:
            fits |= positions == begins  # an episode that is too short is taken whole
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
                f"ReplayBuffer), or name the field that tells them apart with episode_key"
            )
        begins, stops, stride = episodes
        return begins, stops, np.broadcast_to(np.asarray(stride, np.int64), begins.shape)

    def _every_start(self, source: Source, length: int) -> np.ndarray:
        """All positions at which a slice may start; remembered until the source changes."""
        numbers = numbers_of(source)
        if self._all_starts[:2] != (numbers, length):
            every = self._fitting(source, np.arange(len(numbers)), length)[0]
            if not len(every):
                raise ValueError(
                    f"no episode has {length} samples, so there is no whole slice: use shorter slices, or "
                    f"strict_length=False for padded ones"
                )
            self._all_starts = (numbers, length, every)
        return self._all_starts[2]


class KeyedEpisodes:
    """The episodes of a source by the values of a field: an episode begins where the value differs from the one before.

    Each sample is read once: the bounds are kept by the samples' numbers, and extended when there are more samples.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = list(keys)
        self._numbers = range(0)
        self._begins = self._ends = np.empty(0, np.int64)  # the numbers of first samples, and of those after the last
        self._last: Any = None  # the value of the last sample

    def bounds_of(self, source: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and the end index of the episodes that these indices lie in."""
        while (numbers := numbers_of(source)) != self._numbers:
            self._follow(source, numbers)
        episode = self._begins.searchsorted(positions + numbers.start, "right") - 1
        starts = self._begins.take(episode) - numbers.start
        return np.maximum(starts, 0), self._ends.take(episode) - numbers.start

    def _follow(self, source: Any, numbers: range) -> None:
        """Read the new samples, and keep what they say if no sample was overwritten meanwhile."""
        if numbers.start < self._numbers.start or numbers.stop < self._numbers.stop:
            # samples were removed: all known bounds may be wrong
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
        if numbers_of(source).start == numbers.start:  # else the indices were those of other samples
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
            raise ValueError(f"{name} has values of shape {values.shape[1:]}, an episode key has one for each sample")
        return values
