"""Several environments stepped one after the other: what a vector environment does in each of its processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..space import Space
from ..space.row_layout import RowLayout, Rows
from ..space.space_utils import batch_utils
from .env import Env

# Reward and flags of one slot, as they lie beside the row of its observation.
SIGNALS = np.dtype({"names": ["reward", "terminated", "truncated"], "formats": ["<f8", "?", "?"],
                    "offsets": [0, 8, 9], "itemsize": 16})  # fmt: skip


@dataclass(frozen=True)
class EnvSpec:
    """What a vector environment has to know of one of its environments."""

    backend: ComputeBackend
    device: Any
    metadata: dict[str, Any]
    render_mode: str | None
    render_fps: int | None
    action_space: Space
    observation_space: Space
    context_space: Space | None

    @classmethod
    def of(cls, env: Env) -> EnvSpec:
        if env.batch_size is not None:
            raise ValueError(f"{env!r} is batched, a vector environment takes environments that are not")
        return cls(
            env.backend,
            env.device,
            dict(env.metadata),
            env.render_mode,
            env.render_fps,
            env.action_space,
            env.observation_space,
            env.context_space,
        )


@dataclass(frozen=True)
class Slots:
    """The memory that results are written to: one row per slot, or per result where it is made for one call."""

    observations: Rows
    contexts: Rows | None
    signals: np.ndarray

    @classmethod
    def empty(cls, observation_layout: RowLayout, context_layout: RowLayout | None, count: int) -> Slots:
        contexts = None if context_layout is None else context_layout.empty(count)
        return cls(observation_layout.empty(count), contexts, np.zeros(count, SIGNALS))


class EnvGroup:
    """Environments of one process, by their index in the group."""

    def __init__(self, first_index: int = 0) -> None:
        self.envs: list[Env] = []
        self.specs: list[EnvSpec] = []
        self.first_index = first_index
        self.progress = np.zeros(1, np.int32)  # the environment at work; shared memory where the parent watches
        self.command = "construction"
        self._turn_to(0)

    @property
    def at_work(self) -> tuple[int, str]:
        """Which environment does what, for the report of an error."""
        return int(self.progress[0]), self.command

    def _turn_to(self, position: int) -> None:
        self.progress[0] = self.first_index + position

    def build(self, factories: Sequence[Callable[[], Env]]) -> None:
        """Make the environments; where one cannot be made, the others are closed again."""
        try:
            for position, factory in enumerate(factories):
                self._turn_to(position)
                self.envs.append(factory())
                self.specs.append(EnvSpec.of(self.envs[-1]))
        except BaseException:
            self.close(quiet=True)
            raise

    def reset(
        self,
        positions: Sequence[int],
        seeds: Sequence[int | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        slots: Slots,
        rows: Sequence[int],
    ) -> list[dict[str, Any]]:
        """Reset the environments at these positions into these rows; returns their infos."""
        infos = []
        self.command = "reset"
        contexts = slots.contexts
        write = slots.observations.layout.writer(slots.observations)
        for position, seed, row in zip(positions, seeds, rows, strict=True):
            self._turn_to(position)
            context, observation, info = self.envs[position].reset(*args, seed=seed, **kwargs)
            write(row, observation)
            if contexts is not None:
                contexts.layout.pack(contexts, row, context)
            infos.append(info)
        return infos

    def step(
        self, positions: Sequence[int], action_space: Space, actions: Any, slots: Slots, rows: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Step the environments at these positions, with one action each, into these rows; returns their infos."""
        infos, signals = [], []
        write = slots.observations.layout.writer(slots.observations)
        envs, first, progress = self.envs, self.first_index, self.progress
        self.command = "step"
        for position, row, action in zip(positions, rows, batch_utils.split(action_space, actions), strict=True):
            progress[0] = first + position
            observation, reward, terminated, truncated, info = envs[position].step(action)
            write(row, observation)
            signals.append((float(reward), bool(terminated), bool(truncated)))
            infos.append(info)
        slots.signals[_as_index(rows)] = signals
        return infos

    def call(self, position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of one environment, found through its wrappers."""
        self.command = name
        self._turn_to(position)
        return self.envs[position].get_wrapper_attr(name)(*args, **kwargs)

    def get_attr(self, position: int, name: str) -> Any:
        self.command = f"get_attr {name}"
        self._turn_to(position)
        return self.envs[position].get_wrapper_attr(name)

    def set_attr(self, position: int, name: str, value: Any) -> None:
        self.command = f"set_attr {name}"
        self._turn_to(position)
        self.envs[position].set_wrapper_attr(name, value)

    def close(self, quiet: bool = False) -> None:
        """Close all the environments, also where one of them fails to; then the first failure is raised."""
        first: BaseException | None = None
        for position, env in enumerate(self.envs):
            try:
                env.close()
            except Exception as error:
                if first is None and not quiet:
                    first, self.command = error, "close"
                    self._turn_to(position)
        self.envs = []
        if first is not None:
            raise first


def _as_index(rows: Sequence[int]) -> Any:
    """Rows as the cheapest index for them: a slice where they follow one another."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return np.asarray(rows, np.intp)
