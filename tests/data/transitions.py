"""Transitions that say which step of which episode they are, in buffers, beside a list of what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unienv_data import ReplayBuffer
from unienv_interface.backends import ComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace


@dataclass(frozen=True)
class Step:
    """A transition: from observation `obs` to `obs + 1`, of an episode of this name."""

    obs: int
    episode: Any
    reward: float
    terminated: bool = False
    truncated: bool = False


def transition_numbers_space(backend: ComputeBackend) -> DictSpace:
    number, flag = BoxSpace(backend, -(2**30), 2**30, "int32", shape=()), BinarySpace(backend, ())
    reward = BoxSpace(backend, -np.inf, np.inf, "float32", shape=())
    columns = {"obs": {"number": number}, "next_obs": {"number": number}, "action": number}
    return DictSpace(backend, {**columns, "reward": reward, "terminated": flag, "truncated": flag})


def as_rows(steps: Sequence[Step], backend: ComputeBackend) -> dict[str, Any]:
    """Steps as a batch of `transition_numbers_space`."""
    obs = np.array([step.obs for step in steps], np.int32).reshape(-1)
    columns: dict[str, Any] = {
        "action": obs * 10,
        "reward": np.array([step.reward for step in steps], np.float32),
        "terminated": np.array([step.terminated for step in steps], bool),
        "truncated": np.array([step.truncated for step in steps], bool),
    }
    found: dict[str, Any] = {key: backend.from_numpy(column, copy=True) for key, column in columns.items()}
    found["obs"] = {"number": backend.from_numpy(obs, copy=True)}
    return {**found, "next_obs": {"number": backend.from_numpy(obs + 1, copy=True)}}


def episode(first: int, length: int, end: str, name: Any) -> list[Step]:
    """The steps of an episode that ends by "terminated", "truncated" or in no way that its flags tell ("cut")."""
    rewards = np.random.default_rng(first).normal(size=length).round(3).tolist()
    steps = [Step(first + place, name, reward) for place, reward in enumerate(rewards)]
    flags = {} if end == "cut" else {end: True}
    return [*steps[:-1], Step(steps[-1].obs, name, steps[-1].reward, **flags)]


def recorded(
    backend: ComputeBackend, episodes: Sequence[tuple[int, str]], open_length: int, capacity: int | None
) -> tuple[ReplayBuffer, list[Step]]:
    """A buffer of these episodes (length, end), with one that is open after them, and what it holds."""
    buffer = ReplayBuffer.create(transition_numbers_space(backend), capacity=capacity, keep_episodes=True)
    held: list[Step] = []
    for name, (length, end) in enumerate([*episodes, (open_length, "cut")]):
        if not length:
            continue
        steps = episode(100 * (name + 1), length, end, name)
        is_open = name == len(episodes)
        for step in steps if is_open else ():
            buffer.append({key: _first(column) for key, column in as_rows([step], backend).items()})
        if not is_open:
            buffer.extend(as_rows(steps, backend))
        held += steps
    return buffer, held if capacity is None else held[-capacity:]


def recorded_lanes(
    backend: ComputeBackend, lanes: int, steps: int, capacity: int | None
) -> tuple[ReplayBuffer, list[Step]]:
    """Environments side by side, whose episodes end at different steps."""
    buffer = ReplayBuffer.create(transition_numbers_space(backend), capacity=capacity, lanes=lanes)
    held: list[Step] = []
    running = [0] * lanes
    for step in range(steps):
        ends = [
            ("terminated", "truncated", "")[(step + lane) % 3] if (step + lane) % (3 + lane) == 2 else None
            for lane in range(lanes)
        ]
        row = [
            Step(1000 * (lane + 1) + step, (lane, running[lane]), float(step - lane), **({end: True} if end else {}))
            for lane, end in enumerate(ends)
        ]
        buffer.extend_lanes(as_rows(row, backend), [end is not None for end in ends])
        running = [count + (end is not None) for count, end in zip(running, ends, strict=True)]
        held += row
    return buffer, held if capacity is None else held[-capacity:]


def _first(column: Any) -> Any:
    return {key: value[0] for key, value in column.items()} if isinstance(column, dict) else column[0]
