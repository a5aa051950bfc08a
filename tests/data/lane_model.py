"""What a buffer with lanes must hold, as plain lists."""

from __future__ import annotations

import copy


class LaneModel:
    """Samples in slot order, and the episode that each belongs to; every lane has one that is open or to be opened."""

    def __init__(self, lanes: int, capacity: int | None) -> None:
        self.lanes, self.capacity = lanes, capacity
        self.samples: list[int] = []
        self.episodes: list[int] = []
        self.current = list(range(lanes))
        self._next_episode = lanes

    def extend(self, values: list[int], ended: list[bool]) -> None:
        self.samples += values
        self.episodes += self.current
        if self.capacity is not None and len(self.samples) > self.capacity:
            self.drop(1)
        self.end(ended)

    def end(self, ended: list[bool]) -> None:
        for lane in range(self.lanes):
            if ended[lane] and self.current[lane] in self.episodes:
                self.current[lane], self._next_episode = self._next_episode, self._next_episode + 1

    def drop(self, steps: int) -> None:
        del self.samples[: steps * self.lanes], self.episodes[: steps * self.lanes]

    def clear(self) -> None:
        self.end([True] * self.lanes)
        self.samples, self.episodes = [], []

    def bounds(self, index: int) -> tuple[int, int]:
        """The range, with a stride of `lanes`, of the episode that a sample is in, open or closed."""
        episode = self.episodes[index]
        last = len(self.episodes) - 1 - self.episodes[::-1].index(episode)
        return self.episodes.index(episode), last + 1

    def segment_of(self, index: int) -> tuple[int, int] | None:
        return None if self.episodes[index] in self.current else self.bounds(index)

    def segments(self) -> list[tuple[int, int]]:
        closed = [index for index in range(len(self.samples)) if self.episodes[index] not in self.current]
        return sorted({self.bounds(index) for index in closed})

    def state(self) -> tuple[list[int], list[tuple[int, int]]]:
        return self.samples, self.segments()

    def copy(self) -> LaneModel:
        return copy.deepcopy(self)
