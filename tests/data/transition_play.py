"""Transitions as environments make them: each follows on the one before, or an episode begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space.space_utils import concatenate
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, TextSpace

NUMPY = NumpyComputeBackend


def spaces_of(kind: str, backend: ComputeBackend = NUMPY) -> dict[str, Any]:
    vector = BoxSpace(backend, -np.inf, np.inf, "float32", shape=(3,))
    obs: Any = vector
    if kind == "mixed":
        image = BoxSpace(backend, 0, 255, "uint8", shape=(65, 64))  # which has a block of its own
        obs = DictSpace(backend, {"image": image, "state": vector, "mission": TextSpace(backend, 6)})
    elif kind == "image":
        obs = BoxSpace(backend, 0, 255, "uint8", shape=(65, 64))
    elif kind == "scalar":
        obs = BoxSpace(backend, 0, 1000, "int64", shape=())
    spaces: dict[str, Any] = {"obs": obs, "next_obs": obs, "terminated": BinarySpace(backend, ())}
    spaces["action"] = BoxSpace(backend, -1, 1, "float32", shape=(2,))
    if kind == "mixed":
        spaces["extra"] = BoxSpace(backend, 0, 255, "uint8", shape=(5000,))
    return spaces


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from flat(value[key], f"{path}/{key}")
    else:
        yield path, value


def same(some: Any, others: Any) -> None:
    """The same leaves, bit for bit."""
    ours, theirs = dict(flat(some)), dict(flat(others))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        one, other = np.asarray(value), np.asarray(theirs[path])
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes(), path


class Play:
    """What environments do, in as many lanes: a transition follows on the one before, or an episode begins."""

    def __init__(self, kind: str, lanes: int, seed: int) -> None:
        self.space = DictSpace(NUMPY, spaces_of(kind))
        self.lanes, self.chance, self.rng = lanes, random.Random(seed), np.random.default_rng(seed)
        self.last = [self._observation() for _ in range(lanes)]
        self.ended = [True] * lanes

    def _observation(self) -> Any:
        self.rng, value = self.space["obs"].sample(self.rng)
        return value

    def step(self, lane: int = 0) -> tuple[Any, bool]:
        """A transition, and whether the episode ends with it."""
        if self.ended[lane] or self.chance.random() < 0.05:  # a reset, or one in the middle of an episode
            self.last[lane] = self._observation()
        self.rng, action = self.space["action"].sample(self.rng)
        terminated = self.chance.random() < 0.2
        following = self._observation()
        value = {"obs": self.last[lane], "next_obs": following, "terminated": np.bool_(terminated), "action": action}
        if "extra" in self.space.spaces:
            self.rng, value["extra"] = self.space["extra"].sample(self.rng)
        self.last[lane], self.ended[lane] = following, terminated or self.chance.random() < 0.1
        return value, self.ended[lane]

    def steps(self, count: int) -> tuple[Any, np.ndarray]:
        """A batch of `count` vector steps, sample after sample, and where episodes end."""
        found = [self.step(lane) for _ in range(count) for lane in range(self.lanes)]
        return concatenate(self.space, [value for value, _ in found]), np.array([ended for _, ended in found])
