"""The kinds of findings, and the checks of samples.

Every check visits all chunks once, in order, and then yields its findings. A chunk begins with the last samples of the
previous chunk, as many as the stride of episodes, so that every sample is visited together with its predecessor.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unienv_interface.space import BoxSpace, describe_mismatch
from unienv_interface.space.space_utils import batch_space, get_at

from .reading import Chunk, Column, by_sample

_FLAGS = ("terminated", "truncated", "done")
_TIMES = ("timestamp", "timestamps")
#: The keys of observations, and of observations with the next observations.
_OBSERVATIONS = (("obs",), ("observation",), ("observations",))
_CHAINS = (
    (("obs",), ("next_obs",)),
    (("observation",), ("next", "observation")),
    (("observation",), ("next_observation",)),
)
# One second at the rate of most cameras; shorter repeats are normal for a camera slower than the recording.
_FROZEN = 30
_MANY, _ENOUGH_PAIRS = 0.25, 100
# Shorter episodes may be equal by chance.
_SHORTEST = 8

#: Every kind of finding, with its meaning.
KINDS = {
    "unreadable": "the folder cannot be opened: a file is missing, cut, longer, or was changed",
    "checksum": "bytes of samples or episodes differ from the written ones",
    "episodes": "episodes overlap, lie outside the samples, or leave samples out",
    "unfinished-episode": "an episode was never closed, and no process is writing",
    "empty": "the recording has no samples",
    "unreadable-samples": "reading some samples fails",
    "not-finite": "a column has NaN or infinite values",
    "out-of-space": "values are outside of the recording's space",
    "frozen-frames": "an image, or the whole observation, stays the same for a second or more",
    "duplicated-frames": "many images, or whole observations, are equal to the previous one",
    "duplicated-episodes": "two episodes have the same observations from beginning to end",
    "missed-ends": "samples are marked as the last of an episode that continues after them",
    "mega-episode": "everything is one very long episode",
    "broken-chain": "the next observation of a step differs from the observation of the next step",
    "timestamps": "time runs backwards within an episode, or is off the grid of a LeRobot dataset",
    "videos": "a video is missing, or has other frames than the episodes of a LeRobot dataset",
    "tasks": "samples name a task that a LeRobot dataset does not have",
    "statistics": "the statistics of a LeRobot dataset differ from its data",
}


@dataclass(frozen=True)
class Finding:
    """One fault of a recording.

    Attributes
    ----------
    kind : str
        A key of `unienv_data.checking.KINDS`, which explains all kinds.
    text : str
        The fault and its position, in one sentence.

    Examples
    --------
    >>> Finding("unfinished-episode", "samples 90 to 99: the episode was never closed")
    Finding(kind='unfinished-episode', text='samples 90 to 99: the episode was never closed')
    """

    kind: str
    text: str


class ContentCheck(abc.ABC):
    """A check of samples, which visits all chunks once, in order."""

    @abc.abstractmethod
    def visit(self, chunk: Chunk) -> None:
        """Process a chunk."""

    @abc.abstractmethod
    def findings(self) -> Iterator[Finding]:
        """Yield the findings of all chunks."""


class Tally:
    """Counts the samples with a fault, and remembers the first."""

    def __init__(self) -> None:
        self.count, self.first = 0, -1

    def add(self, wrong: np.ndarray, start: int) -> None:
        """Add a mask of samples from index `start` on."""
        count = int(np.count_nonzero(wrong))
        if count and not self.count:
            self.first = start + int(np.argmax(wrong))
        self.count += count

    def __str__(self) -> str:
        return f"sample {self.first}" if self.count == 1 else f"{self.count:,} samples, the first is {self.first}"


def content_checks(columns: Sequence[Column]) -> list[ContentCheck]:
    """Return the checks that apply to samples of these columns."""
    arrays = [column for column in columns if column.is_array]
    checks: list[ContentCheck] = [
        NotFinite(column) for column in columns if column.is_numbers and _kind(column) in "fc"
    ]
    checks += [OutOfBounds(column) for column in arrays if _is_bounded(column)]
    checks += [OutOfSpace(column) for column in columns if not column.is_array]
    observation = [column for column in observation_columns(arrays) if math.prod(column.space.shape or ())]
    images = [column for column in arrays if _is_image(column) and not _starts(column, ("next_obs",), ("next",))]
    checks += [RepeatedFrames(column.name, [column]) for column in images]
    if any(_kind(column) in "fc" for column in observation) and set(observation) - set(images):
        checks.append(RepeatedFrames("the observation", observation))
    if observation and any(_kind(column) in "fc" or _is_image(column) for column in observation):
        checks.append(DuplicatedEpisodes(observation))
    flags = end_flags(columns)
    checks += [MissedEnds(flags)] if flags else []
    checks += [Chain(pairs) for before, after in _CHAINS if (pairs := _chain_pairs(arrays, before, after))]
    checks += [Timestamps(column) for column in arrays if column.keys and column.keys[-1] in _TIMES]
    return checks


def observation_columns(columns: Sequence[Column]) -> list[Column]:
    """Return the columns of the observation; if samples are one array, this column."""
    if len(columns) == 1 and not columns[0].keys:
        return list(columns)
    return [column for column in columns if _starts(column, *_OBSERVATIONS)]


def end_flags(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that mark the last sample of an episode, at the root or under "next"."""
    arrays = [column for column in columns if column.is_array and column.keys]
    return [column for column in arrays if column.keys[-1] in _FLAGS and column.keys[:-1] in ((), ("next",))]


def _starts(column: Column, *prefixes: tuple[str, ...]) -> bool:
    return any(column.keys[: len(prefix)] == prefix for prefix in prefixes)


def _kind(column: Column) -> str:
    """Return NumPy's kind of the dtype of a column of numbers; bfloat16 counts as a float."""
    name = column.space.backend.dtype_name(column.space.dtype)
    return "f" if "float" in name else np.dtype(name).kind


def _is_image(column: Column) -> bool:
    shape = column.space.shape or ()
    return len(shape) >= 2 and int(np.prod(shape)) >= 64


def _is_bounded(column: Column) -> bool:
    space = column.space
    if not isinstance(space, BoxSpace) or _kind(column) == "c":
        return False
    if _kind(column) == "f":
        return bool(np.isfinite(space.bounds.low).any() or np.isfinite(space.bounds.high).any())
    return True


def _chain_pairs(
    columns: Sequence[Column], before: tuple[str, ...], after: tuple[str, ...]
) -> list[tuple[Column, Column]]:
    """Return pairs of observation columns and their next observation columns."""
    by_keys = {column.keys: column for column in columns}
    pairs = [
        (column, by_keys.get((*after, *column.keys[len(before) :]))) for column in columns if _starts(column, before)
    ]
    return [(column, target) for column, target in pairs if target and target.space.shape == column.space.shape]


# -- values ------------------------------------------------------------------------------------------------


class NotFinite(ContentCheck):
    """Finds NaN and infinite values."""

    def __init__(self, column: Column) -> None:
        self._column, self._nan, self._infinite = column, Tally(), Tally()

    def visit(self, chunk: Chunk) -> None:
        start = chunk.start + chunk.before
        if not self._column.is_array:
            values = chunk.each(self._column)
            self._nan.add(np.array([np.isnan(value).any() for value in values], bool), start)
            self._infinite.add(np.array([np.isinf(value).any() for value in values], bool), start)
            return
        entries = by_sample(chunk.fresh(self._column))
        if not np.isfinite(entries).all():
            self._nan.add(np.any(np.isnan(entries), axis=1), start)
            self._infinite.add(np.any(np.isinf(entries), axis=1), start)

    def findings(self) -> Iterator[Finding]:
        for values, tally in (("NaN", self._nan), ("infinite values", self._infinite)):
            if tally.count:
                yield Finding("not-finite", f"{self._column.name}: {values} in {tally}")


class OutOfBounds(ContentCheck):
    """Finds numbers outside the bounds of a box; `NotFinite` finds NaN."""

    def __init__(self, column: Column) -> None:
        self._column, self._tally, self._example = column, Tally(), ""
        self._bounds = column.space.bounds  # type: ignore[attr-defined]

    def visit(self, chunk: Chunk) -> None:
        values = chunk.fresh(self._column)
        wrong = np.asarray((values < self._bounds.low) | (values > self._bounds.high))
        if wrong.any():
            if not self._tally.count:
                self._example = f"{values[wrong][0]}"
            self._tally.add(np.any(by_sample(wrong), axis=1), chunk.start + chunk.before)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            low, high = self._bounds.in_words()
            yield Finding(
                "out-of-space",
                f"{self._column.name}: outside [{low}, {high}] in {self._tally}, with a value of {self._example}",
            )


class OutOfSpace(ContentCheck):
    """Finds values outside of their space, of columns other than arrays."""

    def __init__(self, column: Column) -> None:
        self._column, self._tally, self._example = column, Tally(), ""

    def visit(self, chunk: Chunk) -> None:
        space = batch_space(self._column.space, chunk.count)
        values = self._column.pick(chunk.data)
        if describe_mismatch(space, values) is None:
            return
        indices = range(chunk.before, chunk.count)
        reasons = [describe_mismatch(self._column.space, get_at(space, values, index)) for index in indices]
        if not self._tally.count:
            self._example = next((reason for reason in reasons if reason is not None), "")
        wrong = np.array([reason is not None for reason in reasons], bool)
        self._tally.add(wrong, chunk.start + chunk.before)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            yield Finding("out-of-space", f"{self._column.name}: not in its space in {self._tally}: {self._example}")


# -- consecutive samples -----------------------------------------------------------------------------------


class MissedEnds(ContentCheck):
    """Finds samples that are marked as the last of their episode, and are not."""

    def __init__(self, flags: Sequence[Column]) -> None:
        self._flags, self._tally, self._knows_episodes = flags, Tally(), False

    def visit(self, chunk: Chunk) -> None:
        self._knows_episodes = chunk.episode is not None
        pairs = chunk.pairs()
        ended = np.zeros(chunk.count, bool)
        for flag in self._flags:
            ended |= by_sample(chunk.array(flag)).astype(bool).any(axis=1)
        self._tally.add(ended[: len(pairs)] & pairs, chunk.start)

    def findings(self) -> Iterator[Finding]:
        if not self._tally.count:
            return
        if self._knows_episodes:
            yield Finding("missed-ends", f"marked as the last of an episode that continues: {self._tally}")
        else:
            yield Finding(
                "missed-ends", f"episodes end at {self._tally}, but none are kept: windows of samples will cross them"
            )


class Chain(ContentCheck):
    """Finds steps whose observation differs from the next observation of the previous step."""

    def __init__(self, pairs: Sequence[tuple[Column, Column]]) -> None:
        self._pairs, self._tally = pairs, Tally()

    def visit(self, chunk: Chunk) -> None:
        if chunk.episode is None:  # then samples need not be in the order of steps
            return
        pairs, stride = chunk.pairs(), chunk.stride
        broken = np.zeros(len(pairs), bool)
        for column, following in self._pairs:
            observed, expected = chunk.array(column)[stride:], chunk.array(following)[: len(pairs)]
            are_nan = (observed != observed) & (expected != expected)
            broken |= by_sample((observed != expected) & ~are_nan).any(axis=1)
        self._tally.add(broken & pairs, chunk.start + stride)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            names = f"{self._pairs[0][0].name} and {self._pairs[0][1].name} of the previous step"
            yield Finding("broken-chain", f"{names} differ in {self._tally}")


class Timestamps(ContentCheck):
    """Finds times that decrease within an episode."""

    def __init__(self, column: Column) -> None:
        self._column, self._tally = column, Tally()

    def visit(self, chunk: Chunk) -> None:
        pairs, stride = chunk.pairs(), chunk.stride
        times = by_sample(chunk.array(self._column))
        back = (times[stride:] < times[: len(pairs)]).any(axis=1)
        self._tally.add(back & pairs, chunk.start + stride)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            yield Finding("timestamps", f"{self._column.name}: less than in the previous sample in {self._tally}")


# -- duplicates ----------------------------------------------------------------------------------------------


class RepeatedFrames(ContentCheck):
    """Finds frames that are equal to the previous frame, in long runs or often."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self._name, self._columns = name, columns
        self._runs: dict[int, int] = {}  # the length of the current run of equal frames, by lane
        self._longest, self._end, self._stride = 0, 0, 1
        self._pairs = self._same = 0

    def visit(self, chunk: Chunk) -> None:
        pairs, stride = chunk.pairs(), chunk.stride
        if chunk.before < stride:  # the previous samples could not be read
            self._runs.clear()
        same = pairs.copy()
        for column in self._columns:
            values = by_sample(chunk.array(column))
            same &= (values[stride:] == values[: len(pairs)]).all(axis=1)
        self._pairs, self._same = self._pairs + int(pairs.sum()), self._same + int(same.sum())
        self._stride = stride
        for first in range(min(stride, len(same))):
            self._follow(same[first::stride], chunk.start + stride + first, stride)

    def _follow(self, same: np.ndarray, start: int, stride: int) -> None:
        """Continue the run of one lane, whose next sample has index `start`."""
        lane = start % stride
        steps = np.arange(1, len(same) + 1)
        broken = np.maximum.accumulate(np.where(same, 0, steps))  # the last step so far with a new frame
        lengths = steps - broken + np.where(broken == 0, self._runs.get(lane, 0), 0)
        longest = int(lengths.argmax())
        if lengths[longest] > self._longest:
            self._longest, self._end = int(lengths[longest]), start + longest * stride
        self._runs[lane] = int(lengths[-1])

    def findings(self) -> Iterator[Finding]:
        frames = self._longest + 1
        if frames >= _FROZEN:
            first = self._end - self._longest * self._stride
            yield Finding("frozen-frames", f"{self._name}: the same {frames} times in a row from sample {first} on")
        elif self._pairs >= _ENOUGH_PAIRS and self._same >= _MANY * self._pairs:
            share = 100 * self._same / self._pairs
            yield Finding("duplicated-frames", f"{self._name}: equal to the previous sample in {share:.0f} % of them")


class DuplicatedEpisodes(ContentCheck):
    """Finds episodes with the same observations, by their hashes."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._hashes: dict[int, tuple[int, int]] = {}  # the hash and length so far, by the start of an episode

    def visit(self, chunk: Chunk) -> None:
        if chunk.episode is None:
            return
        episode = chunk.episode[chunk.before :]
        steps = (np.arange(chunk.start + chunk.before, chunk.start + chunk.count) - episode) // chunk.stride
        # The step in its episode is part of a sample's hash, so that hashes can be summed in any order.
        hashes = _mixed(self._sample_hashes(chunk) + _mixed(steps.astype(np.uint64)))
        starts, episode_index = np.unique(episode, return_inverse=True)
        sums = np.zeros(len(starts), np.uint64)
        np.add.at(sums, episode_index, hashes)
        lengths = np.bincount(episode_index, minlength=len(starts))
        for start, added, length in zip(starts.tolist(), sums.tolist(), lengths.tolist(), strict=True):
            previous, before = self._hashes.get(start, (0, 0))
            self._hashes[start] = ((previous + added) % 2**64, before + length)

    def _sample_hashes(self, chunk: Chunk) -> np.ndarray:
        hashes = np.zeros(chunk.count - chunk.before, np.uint64)
        for column in self._columns:
            data = np.ascontiguousarray(by_sample(chunk.fresh(column))).view(np.uint8)
            words = np.zeros((len(data), -(-data.shape[1] // 8) * 8), np.uint8)
            words[:, : data.shape[1]] = data
            numbers = words.view(np.uint64)
            weights = _mixed(np.arange(1, numbers.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
            hashes = _mixed(hashes + (_mixed(numbers) * weights).sum(axis=1, dtype=np.uint64))
        return hashes

    def findings(self) -> Iterator[Finding]:
        first_starts: dict[tuple[int, int], int] = {}
        pairs = []
        for start, content in sorted(self._hashes.items()):
            if content[1] >= _SHORTEST:
                first = first_starts.setdefault(content, start)
                if first != start:
                    pairs.append((first, start))
        if pairs:
            (first, second), more = pairs[0], len(pairs) - 1
            also = "" if not more else f", and {more:,} more {'is' if more == 1 else 'are'} like an earlier one"
            yield Finding(
                "duplicated-episodes",
                f"the episodes from samples {first} and {second} on have the same observations{also}",
            )


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Hash numbers to 64 bits, so that different terms give different sums."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return numbers ^ (numbers >> np.uint64(31))
