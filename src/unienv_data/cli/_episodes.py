"""The episodes of a stored buffer: where they lie, how long they are, what they returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..replay_buffer import ReplayBuffer
from ._progress import Advance, unwatched
from ._reading import MOST_ROWS, Column

#: Columns that hold what a step was worth, the preferred name first.
REWARD_NAMES = ("reward", "next/reward")


@dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a buffer as arrays of [start, stop); each is the samples range(start, stop, stride).

    `unfinished` are those at the end that were never closed, `loose` what lies between episodes.
    """

    closed: np.ndarray
    unfinished: np.ndarray
    loose: np.ndarray
    stride: int

    @property
    def all(self) -> np.ndarray:
        """Closed and unfinished ones, by their start."""
        both = np.concatenate([self.closed, self.unfinished])
        return both[np.argsort(both[:, 0], kind="stable")]


def episode_table(buffer: ReplayBuffer) -> EpisodeTable | None:
    """The episodes of a buffer; None if they are not kept."""
    segments = buffer.get_segments()
    return None if segments is None else table_of(as_ranges(segments), len(buffer), buffer.lanes)


def table_of(closed: np.ndarray, count: int, stride: int) -> EpisodeTable:
    """The table for the closed episodes among `count` samples."""
    unfinished: list[tuple[int, int]] = []
    loose: list[tuple[int, int]] = []
    for lane in range(stride):
        own = closed[closed[:, 0] % stride == lane]
        own = own[np.argsort(own[:, 0], kind="stable")]
        ends = np.concatenate([[lane], own[:, 1] - 1 + stride])  # where the next episode of the lane should start
        starts = np.concatenate([own[:, 0], [count + lane]])
        for start, stop in zip(ends.tolist(), starts.tolist(), strict=True):
            if start < min(stop, count):
                (loose if stop < count else unfinished).append((start, stop - stride + 1))
    return EpisodeTable(closed, as_ranges(unfinished), as_ranges(loose), stride)


def as_ranges(pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Pairs [start, stop) as an array, also if there are none."""
    return np.array(pairs, np.int64).reshape(-1, 2)


def lengths_of(ranges: np.ndarray, stride: int) -> np.ndarray:
    """How many samples episodes have."""
    return -(-(ranges[:, 1] - ranges[:, 0]) // stride)


def returns_of(buffer: ReplayBuffer, ranges: np.ndarray, reward: Column, advance: Advance = unwatched) -> np.ndarray:
    """The sum of rewards of each of these episodes, which are in the order of their starts."""
    sums, count = np.zeros(len(ranges)), len(buffer)
    advance.expect(count)
    for start in range(0, count, MOST_ROWS):
        positions = np.arange(start, min(start + MOST_ROWS, count))
        values = buffer.backend.to_numpy(buffer.get_column_at(reward.keys, slice(start, int(positions[-1]) + 1)))
        episodes = buffer.episodes_of(positions)
        if episodes is not None and len(ranges):
            place = np.minimum(np.searchsorted(ranges[:, 0], episodes.start), len(ranges) - 1)
            belongs = ranges[place, 0] == episodes.start
            with np.errstate(invalid="ignore", over="ignore"):  # of rewards that are not finite, or too large
                per_sample = values.reshape(len(positions), -1).astype(np.float64).sum(axis=1)
                np.add.at(sums, place[belongs], per_sample[belongs])
        advance(len(positions))
    return sums


@dataclass(frozen=True)
class Summary:
    """What some numbers, one per episode, are like; `curve` are their means over stretches of time, oldest first.

    All of that is of the finite ones, None if there is none; `not_finite` are so many others.
    """

    min: float | None
    mean: float | None
    max: float | None
    curve: list[float]
    not_finite: int


def summary(values: np.ndarray, points: int = 40) -> Summary | None:
    """A summary of numbers; None of none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Summary(None, None, None, [], len(values)) if len(values) else None
    curve = [float(part.mean()) for part in np.array_split(finite, min(points, len(finite)))]
    figures = (float(finite.min()), float(finite.mean()), float(finite.max()))
    return Summary(*figures, curve, len(values) - len(finite))


def describe_range(ranges: Sequence[int], stride: int) -> str:
    """A range of samples in words."""
    start, stop = (int(end) for end in ranges)
    if stop - start <= stride:
        return f"sample {start}"
    return f"samples {start} to {stop - 1}" + ("" if stride == 1 else f", one in {stride}")
