"""Buffers of small numbered samples, and rows that know their own hash."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace


def number_space(backend: ComputeBackend = NumpyComputeBackend) -> DictSpace:
    """Samples with a number in two places, so that a mix of two samples shows."""
    return DictSpace(
        backend,
        {
            "number": BoxSpace(backend, -(2**30), 2**30, "int32", shape=()),
            "inner": {"copies": BoxSpace(backend, -(2**30), 2**30, "int32", shape=(3,))},
        },
    )


def number(value: int, backend: ComputeBackend = NumpyComputeBackend) -> dict[str, Any]:
    return _on(backend, np.asarray(value, np.int32))


def numbers(values: Any, backend: ComputeBackend = NumpyComputeBackend) -> dict[str, Any]:
    return _on(backend, np.asarray(values, np.int32).reshape(-1))


def _on(backend: ComputeBackend, values: np.ndarray) -> dict[str, Any]:
    copies = np.repeat(values[..., None], 3, axis=-1)
    return {
        "number": backend.from_numpy(values, copy=True),
        "inner": {"copies": backend.from_numpy(copies, copy=True)},
    }


def read(batch: Any, backend: ComputeBackend = NumpyComputeBackend) -> list[int]:
    """The numbers of a batch of samples, once it is known that none is mixed."""
    values, copies = (backend.to_numpy(part) for part in (batch["number"], batch["inner"]["copies"]))
    assert np.array_equal(np.repeat(values[..., None], 3, axis=-1), copies), (values, copies)
    return values.tolist()


def contents(buffer: Any) -> list[int]:
    return read(buffer.get_at(...), buffer.backend)


# -- rows of several pages that know their own hash --------------------------------------------------------

PAYLOAD = 12_000  # bytes: one leaf in the row and one in a block of its own


def hashed_space(payload: int = PAYLOAD) -> DictSpace:
    backend = NumpyComputeBackend
    return DictSpace(
        backend,
        {
            "id": BoxSpace(backend, 0, 2**62, "int64", shape=(3,)),  # who, which, and the hash of it all
            "small": BoxSpace(backend, 0, 255, "uint8", shape=(100,)),
            "large": BoxSpace(backend, 0, 255, "uint8", shape=(payload,)),
        },
    )


def hashed(who: int, first: int, count: int, payload: int = PAYLOAD) -> dict[str, np.ndarray]:
    """A batch of rows of one writer, numbered from `first`."""
    which = np.arange(first, first + count)
    small = ((which[:, None] * 7 + np.arange(100) + who) % 251).astype(np.uint8)
    large = ((which[:, None] * 13 + np.arange(payload) + who) % 241).astype(np.uint8)
    ids = np.stack([np.full(count, who), which, np.zeros(count, np.int64)], axis=1).astype(np.int64)
    for row in range(count):
        ids[row, 2] = _hash(ids[row], small[row], large[row])
    return {"id": ids, "small": small, "large": large}


def one_hashed(who: int, which: int, payload: int = PAYLOAD) -> dict[str, np.ndarray]:
    return {key: column[0] for key, column in hashed(who, which, 1, payload).items()}


def check_hashes(batch: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """Who and which of every row; an AssertionError if one is torn."""
    found = []
    for ids, small, large in zip(batch["id"], batch["small"], batch["large"], strict=True):
        assert int(ids[2]) == _hash(ids, small, large), f"torn row {ids.tolist()}"
        found.append((int(ids[0]), int(ids[1])))
    return found


def _hash(ids: np.ndarray, small: np.ndarray, large: np.ndarray) -> int:
    return zlib.crc32(large, zlib.crc32(small, zlib.crc32(ids[:2].tobytes()))) + 1


# -- what a buffer must hold --------------------------------------------------------------------------------


class Model:
    """Samples, and the episode that each belongs to; the open one is the last."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.samples: list[int] = []
        self.episodes: list[int] = []
        self.episode = 0
        self.is_open = False

    def add(self, values: list[int]) -> None:
        self.samples += values
        self.episodes += [self.episode] * len(values)
        if self.capacity is not None and len(self.samples) > self.capacity:
            extra = len(self.samples) - self.capacity
            del self.samples[:extra], self.episodes[:extra]

    def end(self) -> None:
        self.episode += 1
        self.is_open = False

    def remove(self, indices: set[int]) -> None:
        """What is left of an episode on both sides of a gap becomes two."""
        kept = [index for index in range(len(self.samples)) if index not in indices]
        old, number, gaps = self.episodes, self.episode, list[bool]()
        if not (kept and self.is_open and old[kept[-1]] == self.episode):
            number, self.is_open = self.episode - 1, False
        for left, right in itertools.pairwise(kept):
            gaps.append(right - left > 1 or old[left] != old[right])
        labels = []
        for is_apart in [*gaps, False][::-1] if kept else []:
            number -= is_apart
            labels.append(number)
        self.samples = [self.samples[index] for index in kept]
        self.episodes = labels[::-1]

    def segments(self) -> list[tuple[int, int]]:
        closed = sorted({episode for episode in self.episodes if not (self.is_open and episode == self.episode)})
        starts = [(self.episodes.index(episode), self.episodes.count(episode)) for episode in closed]
        return [(start, start + count) for start, count in starts]
