"""Checks of the samples themselves. Each sees all chunks once, in order, and says at the end what it has found.

A chunk begins with the last samples of the one before, as many as lie between two samples of an episode, so every
sample is seen together with the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from unienv_interface.space import BoxSpace, describe_mismatch
from unienv_interface.space.space_utils import batch_space, get_at

from ._findings import ContentCheck, Finding, Tally
from ._frame_checks import DuplicatedEpisodes, RepeatedFrames
from ._reading import Chunk, Column, by_sample

_FLAGS = ("terminated", "truncated", "done")
_TIMES = ("timestamp", "timestamps")
#: Where observations stand, and where those that steps led to.
_OBSERVATIONS = (("obs",), ("observation",), ("observations",))
_CHAINS = (
    (("obs",), ("next_obs",)),
    (("observation",), ("next", "observation")),
    (("observation",), ("next_observation",)),
)


def content_checks(columns: Sequence[Column]) -> list[ContentCheck]:
    """The checks that samples of these columns can be put to."""
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
    """The columns that make up what was observed; of samples that are one array, that one."""
    if len(columns) == 1 and not columns[0].keys:
        return list(columns)
    return [column for column in columns if _starts(column, *_OBSERVATIONS)]


def end_flags(columns: Sequence[Column]) -> list[Column]:
    """The columns that say whether a sample is the last of its episode: at the top, or under "next"."""
    arrays = [column for column in columns if column.is_array and column.keys]
    return [column for column in arrays if column.keys[-1] in _FLAGS and column.keys[:-1] in ((), ("next",))]


def _starts(column: Column, *prefixes: tuple[str, ...]) -> bool:
    return any(column.keys[: len(prefix)] == prefix for prefix in prefixes)


def _kind(column: Column) -> str:
    """The kind of the dtype of a column of numbers, as NumPy has it; bfloat16 counts as a float."""
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
    """The columns of observations with those of the observations that steps led to."""
    by_keys = {column.keys: column for column in columns}
    found = []
    for column in columns:
        other = by_keys.get((*after, *column.keys[len(before) :]))
        if _starts(column, before) and other is not None and other.space.shape == column.space.shape:
            found.append((column, other))
    return found


# -- values ------------------------------------------------------------------------------------------------


class NotFinite(ContentCheck):
    """NaN and infinite values."""

    def __init__(self, column: Column) -> None:
        self._column, self._nan, self._infinite = column, Tally(), Tally()

    def look(self, chunk: Chunk) -> None:
        start = chunk.start + chunk.before
        if not self._column.is_array:
            values = chunk.each(self._column)
            self._nan.add(np.array([np.isnan(value).any() for value in values], bool), start)
            self._infinite.add(np.array([np.isinf(value).any() for value in values], bool), start)
            return
        side_by_side = by_sample(chunk.fresh(self._column))
        if not np.isfinite(side_by_side).all():
            self._nan.add(np.any(np.isnan(side_by_side), axis=1), start)
            self._infinite.add(np.any(np.isinf(side_by_side), axis=1), start)

    def findings(self) -> Iterator[Finding]:
        for what, tally in (("NaN", self._nan), ("infinite values", self._infinite)):
            if tally.count:
                yield Finding("not-finite", f"{self._column.name}: {what} in {tally}")


class OutOfBounds(ContentCheck):
    """Numbers outside the bounds of a box; NaN is the business of `NotFinite`."""

    def __init__(self, column: Column) -> None:
        self._column, self._tally, self._example = column, Tally(), ""
        self._bounds = column.space.bounds  # type: ignore[attr-defined]

    def look(self, chunk: Chunk) -> None:
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
    """Values of other kinds than arrays that are not in their space."""

    def __init__(self, column: Column) -> None:
        self._column, self._tally, self._example = column, Tally(), ""

    def look(self, chunk: Chunk) -> None:
        space = batch_space(self._column.space, chunk.count)
        values = self._column.pick(chunk.data)
        if describe_mismatch(space, values) is None:
            return
        own = range(chunk.before, chunk.count)
        reasons = [describe_mismatch(self._column.space, get_at(space, values, place)) for place in own]
        if not self._tally.count:
            self._example = next((reason for reason in reasons if reason is not None), "")
        wrong = np.array([reason is not None for reason in reasons], bool)
        self._tally.add(wrong, chunk.start + chunk.before)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            yield Finding("out-of-space", f"{self._column.name}: not in its space in {self._tally}: {self._example}")


# -- one sample after the other ----------------------------------------------------------------------------


class MissedEnds(ContentCheck):
    """Samples that say they are the last of their episode, and are not."""

    def __init__(self, flags: Sequence[Column]) -> None:
        self._flags, self._tally, self._knows_episodes = flags, Tally(), False

    def look(self, chunk: Chunk) -> None:
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
            yield Finding("missed-ends", f"marked as the last of an episode that goes on: {self._tally}")
        else:
            yield Finding(
                "missed-ends", f"episodes end at {self._tally}, but none are kept: windows of samples will cross them"
            )


class Chain(ContentCheck):
    """Whether each step begins where the one before it has led to."""

    def __init__(self, pairs: Sequence[tuple[Column, Column]]) -> None:
        self._pairs, self._tally = pairs, Tally()

    def look(self, chunk: Chunk) -> None:
        if chunk.episode is None:  # who knows which samples follow one another
            return
        pairs, stride = chunk.pairs(), chunk.stride
        broken = np.zeros(len(pairs), bool)
        for column, following in self._pairs:
            here, there = chunk.array(column)[stride:], chunk.array(following)[: len(pairs)]
            broken |= by_sample((here != there) & ~((here != here) & (there != there))).any(axis=1)
        self._tally.add(broken & pairs, chunk.start + stride)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            names = f"{self._pairs[0][0].name} and {self._pairs[0][1].name} of the step before"
            yield Finding("broken-chain", f"{names} differ in {self._tally}")


class Timestamps(ContentCheck):
    """Times that become less within an episode."""

    def __init__(self, column: Column) -> None:
        self._column, self._tally = column, Tally()

    def look(self, chunk: Chunk) -> None:
        pairs, stride = chunk.pairs(), chunk.stride
        times = by_sample(chunk.array(self._column))
        back = (times[stride:] < times[: len(pairs)]).any(axis=1)
        self._tally.add(back & pairs, chunk.start + stride)

    def findings(self) -> Iterator[Finding]:
        if self._tally.count:
            yield Finding("timestamps", f"{self._column.name}: less than in the sample before in {self._tally}")
