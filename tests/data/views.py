"""Batches to make views of, each beside a plain list that says what it holds; and what windows of a list are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from buffers import number, number_space, numbers
from catalogue import BACKENDS

from unienv_data import BatchBase, CombinedBatch, ReplayBuffer
from unienv_data.base.common import resolve_index
from unienv_data.base.nested import nested_item
from unienv_interface.backends import ComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace

Windows = tuple[list[list[int]], list[list[bool]]]


@dataclass
class Held:
    """What a batch holds: the number of each sample, and which episode it is in."""

    samples: list[int]
    episodes: list[Any]

    def windows(self, positions: Sequence[int], offsets: Sequence[int]) -> Windows:
        found = [self.window(position, offsets) for position in positions]
        return [frames for frames, _ in found], [valid for _, valid in found]

    def window(self, position: int, offsets: Sequence[int]) -> tuple[list[int], list[bool]]:
        """The samples so many further on in the episode; where there is none, the next there is towards offset 0."""
        position %= len(self.samples)
        members = [place for place, episode in enumerate(self.episodes) if episode == self.episodes[position]]
        rank = members.index(position)
        valid = [0 <= rank + offset < len(members) for offset in offsets]
        frames = []
        for offset in offsets:
            nearest = min((o for o, v in zip(offsets, valid, strict=True) if v), key=lambda o: abs(o - offset))
            frames.append(self.samples[members[rank + nearest]])
        return frames, valid

    def part(self, indices: Sequence[int], step: int = 1) -> Held:
        """What a view of some samples holds: an episode ends where the next index is not a step further on."""
        runs = np.cumsum([0, *(after - before != step for before, after in itertools.pairwise(indices))])
        episodes = [(self.episodes[index], run) for index, run in zip(indices, runs.tolist(), strict=False)]
        return Held([self.samples[index] for index in indices], episodes)


def read_windows(stack: BatchBase, index: Any) -> Windows:
    """The numbers in the windows of a stack and their mask; none of the samples may be mixed."""
    data, metadata = stack.get_at_with_metadata(index)
    to_numpy = stack.backend.to_numpy
    values, copies = to_numpy(data["number"]), to_numpy(data["inner"]["copies"])
    assert np.array_equal(np.repeat(values[..., None], 3, axis=-1), copies)
    assert metadata is not None
    return values.tolist(), to_numpy(metadata["slice_valid_mask"]).tolist()


# -- batches ---------------------------------------------------------------------------------------------------


def wrapped_ring(backend: ComputeBackend, first: int = 0) -> tuple[ReplayBuffer, Held]:
    """A full ring, the oldest episode cut by its edge, one across the seam, the newest open."""
    buffer = ReplayBuffer.create(number_space(backend), capacity=20, maintain_segment_metadata=True)
    held = _fill(buffer, first, [7, 9, 1, 6], open_length=3)
    return buffer, Held(held.samples[-20:], held.episodes[-20:])


def growing(backend: ComputeBackend, first: int = 0) -> tuple[ReplayBuffer, Held]:
    buffer = ReplayBuffer.create(number_space(backend), maintain_segment_metadata=True)
    return buffer, _fill(buffer, first, [4, 1, 6], open_length=2)


def without_episodes(backend: ComputeBackend, first: int = 0) -> tuple[ReplayBuffer, Held]:
    buffer = ReplayBuffer.create(number_space(backend), capacity=12, keep_episodes=False)
    held = _fill(buffer, first, [5, 10], open_length=0)
    return buffer, Held(held.samples[-12:], [0] * 12)


def lanes(backend: ComputeBackend, first: int = 0) -> tuple[ReplayBuffer, Held]:
    """Three environments side by side, whose episodes end at different steps; the ring has wrapped."""
    buffer = ReplayBuffer.create(number_space(backend), capacity=24, lanes=3)
    held, running = Held([], []), [0, 0, 0]
    for step in range(11):
        values = [first + 3 * step + lane for lane in range(3)]
        ended = [(step + lane) % (3 + lane) == 2 for lane in range(3)]
        buffer.extend_lanes(numbers(values, backend), ended)
        held.samples += values
        held.episodes += [(lane, running[lane]) for lane in range(3)]
        running = [count + end for count, end in zip(running, ended, strict=True)]
    return buffer, Held(held.samples[-24:], held.episodes[-24:])


def combined(backend: ComputeBackend, first: int = 0) -> tuple[CombinedBatch, Held]:
    """Batches that know their episodes and one that does not."""
    parts = [
        make(backend, first + 1000 * place) for place, make in enumerate([growing, wrapped_ring, without_episodes])
    ]
    episodes = [(place, episode) for place, (_, held) in enumerate(parts) for episode in held.episodes]
    return CombinedBatch([batch for batch, _ in parts]), Held([n for _, held in parts for n in held.samples], episodes)


def _fill(buffer: ReplayBuffer, first: int, lengths: Sequence[int], open_length: int) -> Held:
    held = Held([], [])
    for episode, length in enumerate([*lengths, open_length]):
        values = list(range(first + len(held.samples), first + len(held.samples) + length))
        held.samples += values
        held.episodes += [episode] * length
        if episode < len(lengths):
            buffer.extend(numbers(values, buffer.backend))
        else:
            for value in values:
                buffer.append(number(value, buffer.backend))
    return held


SOURCES: dict[str, Callable[..., tuple[Any, Held]]] = {
    "ring": wrapped_ring,
    "growing": growing,
    "without_episodes": without_episodes,
    "lanes": lanes,
    "combined": combined,
}


def source_cases() -> list[Any]:
    """One pytest parameter (backend, source) each; JAX, which compiles for every new shape, has few of them."""
    return [
        pytest.param(backend, source, id=f"{backend}-{source}")
        for backend in BACKENDS
        for source in SOURCES
        if backend.simplified_name != "jax" or source in ("ring", "combined")
    ]


class Watched(BatchBase):
    """Samples in lists, with metadata, that write down what was read: the keys and the indices."""

    is_mutable = False

    def __init__(self, backend: ComputeBackend, lengths: Sequence[int] = (5, 1, 4)) -> None:
        self.held = Held(list(range(sum(lengths))), [e for e, length in enumerate(lengths) for _ in range(length)])
        space = DictSpace(
            backend,
            {
                **number_space(backend).spaces,
                "episode_id": BoxSpace(backend, 0, 100, "int32", shape=()),
                "episode_end": BinarySpace(backend, (1,)),
            },
        )
        metadata_space = DictSpace(
            backend,
            {
                "tenfold": BoxSpace(backend, 0, 10_000, "int32", shape=(2,)),
                "id": BoxSpace(backend, 0, 100, "int32", shape=(1,)),
                "end": BinarySpace(backend, ()),
            },
        )
        super().__init__(space, metadata_space)
        self.reads: list[tuple[tuple[Any, ...], Any]] = []
        self.closed = False

    def __len__(self) -> int:
        return len(self.held.samples)

    def get_at(self, idx: Any) -> Any:
        return self.get_at_with_metadata(idx)[0]

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._sample((), idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return nested_item(self._sample(tuple(nested_keys), idx)[0], nested_keys)

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any]]:
        data, metadata = self._sample(tuple(nested_keys), idx)
        return nested_item(data, nested_keys), metadata

    def _sample(self, keys: tuple[Any, ...], idx: Any) -> tuple[Any, dict[str, Any]]:
        place = resolve_index(self.backend, idx, len(self))
        self.reads.append((keys, place if isinstance(place, int) else place.tolist()))
        episodes = np.array(self.held.episodes, np.int32)
        values, ids = np.array(self.held.samples, np.int32)[place], episodes[place]
        ends = np.append(np.diff(episodes) != 0, True)[place]
        put = self.backend.from_numpy
        data = numbers(values, self.backend) if np.ndim(values) else number(int(values), self.backend)
        data.update(episode_id=put(np.asarray(ids)), episode_end=put(np.asarray(ends)[..., None]))
        tenfold = np.repeat(np.asarray(values * 10)[..., None], 2, axis=-1).astype(np.int32)
        return data, {"tenfold": put(tenfold), "id": put(np.asarray(ids)[..., None]), "end": put(np.asarray(ends))}

    def close(self) -> None:
        self.closed = True
