"""Checks for what is there twice: frames one after the other, and whole episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ._findings import ContentCheck, Finding
from ._reading import Chunk, Column, by_sample

# A second at the rate of most cameras; less is what a camera slower than the recording gives.
_FROZEN = 30
_MANY, _ENOUGH_PAIRS = 0.25, 100
# Shorter episodes may well be the same by chance.
_SHORTEST = 8


class RepeatedFrames(ContentCheck):
    """Frames that are the same as the one before, in a row or here and there."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self._name, self._columns = name, columns
        self._runs: dict[int, int] = {}  # of each lane: how many frames in a row were the same up to now
        self._longest, self._end, self._stride = 0, 0, 1
        self._pairs = self._same = 0

    def look(self, chunk: Chunk) -> None:
        pairs, stride = chunk.pairs(), chunk.stride
        if chunk.before < stride:  # what came before could not be read
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
        """Go on with one lane, whose next sample has index `start`."""
        lane = start % stride
        steps = np.arange(1, len(same) + 1)
        broken = np.maximum.accumulate(np.where(same, 0, steps))  # the last step up to here that was another frame
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
            yield Finding("duplicated-frames", f"{self._name}: the same as one sample before in {share:.0f} % of them")


class DuplicatedEpisodes(ContentCheck):
    """Episodes with the same observations, found by their hashes."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._hashes: dict[int, tuple[int, int]] = {}  # where an episode starts: its hash up to now, its length

    def look(self, chunk: Chunk) -> None:
        if chunk.episode is None:
            return
        episode = chunk.episode[chunk.before :]
        steps = (np.arange(chunk.start + chunk.before, chunk.start + chunk.count) - episode) // chunk.stride
        # each sample counts by where in its episode it stands, so that they can be added up in any order
        hashes = _mixed(self._sample_hashes(chunk) + _mixed(steps.astype(np.uint64)))
        starts, place = np.unique(episode, return_inverse=True)
        sums = np.zeros(len(starts), np.uint64)
        np.add.at(sums, place, hashes)
        lengths = np.bincount(place, minlength=len(starts))
        for start, more, length in zip(starts.tolist(), sums.tolist(), lengths.tolist(), strict=True):
            seen, before = self._hashes.get(start, (0, 0))
            self._hashes[start] = ((seen + more) % 2**64, before + length)

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
        seen: dict[tuple[int, int], int] = {}
        pairs = []
        for start, content in sorted(self._hashes.items()):
            if content[1] >= _SHORTEST:
                first = seen.setdefault(content, start)
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
    """Numbers scattered over 64 bits, so that sums of them tell their terms apart."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return numbers ^ (numbers >> np.uint64(31))
