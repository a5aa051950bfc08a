"""What can be wrong with a recording, by name."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ._reading import Chunk

#: Every kind of finding, and what it means.
KINDS = {
    "unreadable": "the folder cannot be opened: a file is missing, cut, longer, or was changed",
    "checksum": "bytes of samples or episodes are not what was written",
    "episodes": "episodes overlap, lie outside the samples, or leave samples out",
    "unfinished-episode": "an episode was never closed, and nobody is writing",
    "empty": "there are no samples",
    "unreadable-samples": "reading some samples fails",
    "not-finite": "a column has NaN or infinite values",
    "out-of-space": "values are not in the space that the recording declares",
    "frozen-frames": "an image, or the whole observation, stays the same for a second or more",
    "duplicated-frames": "many images, or whole observations, are the same as the one before",
    "duplicated-episodes": "two episodes have the same observations from beginning to end",
    "missed-ends": "samples are marked as the last of an episode that goes on after them",
    "mega-episode": "everything is one very long episode",
    "broken-chain": "the next observation of a step is not the observation of the step after it",
    "timestamps": "time runs backwards within an episode",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its kind, and where and what in a sentence."""

    kind: str
    text: str


class ContentCheck(abc.ABC):
    """One question about samples, which sees all chunks once, in order."""

    @abc.abstractmethod
    def look(self, chunk: Chunk) -> None:
        """Take a chunk into account."""

    @abc.abstractmethod
    def findings(self) -> Iterator[Finding]:
        """What was found in all of them."""


class Tally:
    """Counts the samples that something is wrong with, and remembers the first."""

    def __init__(self) -> None:
        self.count, self.first = 0, -1

    def add(self, wrong: np.ndarray, start: int) -> None:
        """Take over a mask of samples from index `start` on."""
        count = int(np.count_nonzero(wrong))
        if count and not self.count:
            self.first = start + int(np.argmax(wrong))
        self.count += count

    def __str__(self) -> str:
        return f"sample {self.first}" if self.count == 1 else f"{self.count:,} samples, the first is {self.first}"
