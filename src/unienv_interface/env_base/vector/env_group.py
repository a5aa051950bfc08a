"""Environments that step one after the other: what a vector environment does in each of its processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...backends.base import ComputeBackend
from ...space import Space
from ...space.row_layout import Rows
from ...space.space_utils import batch_utils
from ..env import Env

# What a step says besides the observation: reward, terminated, truncated.
SIGNAL_DTYPES = (np.dtype(np.float64), np.dtype(np.bool_), np.dtype(np.bool_))

Access = Literal["call", "get_attr", "set_attr"]


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
class ResultRows:
    """The memory that results are written to, a row for each environment; every result overwrites the one before."""

    observations: Rows
    contexts: Rows | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class EnvGroup:
    """The environments of one process, by their position in the group.

    Parameters
    ----------
    first_index
        The index of the first of them in the vector environment.
    at_work
        An array of one integer: the index of the environment that is at work.
    """

    def __init__(self, first_index: int = 0, at_work: Any = None) -> None:
        self.first_index = first_index
        self.at_work = [first_index] if at_work is None else at_work
        self.envs: list[Env] = []
        self.specs: list[EnvSpec] = []
        self.command = "construction"  # the one under way

    def turn_to(self, position: int) -> None:
        """Note which environment the process is at work on from now on."""
        self.at_work[0] = self.first_index + position

    def build(self, factories: Sequence[Callable[[], Env]]) -> None:
        """Make the environments. If one cannot be made, the others are closed again."""
        try:
            for position, factory in enumerate(factories):
                self.turn_to(position)
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
        results: ResultRows,
        rows: Sequence[int],
    ) -> list[dict[str, Any]]:
        """Reset the environments at these positions into these rows; returns their infos."""
        infos = []
        self.command = "reset"
        observations, contexts = results.observations, results.contexts
        for position, seed, row in zip(positions, seeds, rows, strict=True):
            self.turn_to(position)
            context, observation, info = self.envs[position].reset(*args, seed=seed, **kwargs)
            observations.layout.pack(observations, row, observation)
            if contexts is not None:
                contexts.layout.pack(contexts, row, context)
            infos.append(info)
        return infos

    def step(
        self, positions: Sequence[int], action_space: Space, actions: Any, results: ResultRows, rows: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Step the environments at these positions, with one action each, into these rows; returns their infos."""
        infos = []
        observations, envs, at_work, first = results.observations, self.envs, self.at_work, self.first_index
        pack, column = observations.layout.pack, observations.columns[0] if observations.columns else None
        dtype, shape = observations.layout.plain_value
        # through memoryviews, which small values are written to fastest
        rewards, terminations, truncations = results.rewards.data, results.terminated.data, results.truncated.data
        self.command = "step"
        # as many as there are positions: `strict` would cost as much as a small step
        for position, row, action in zip(positions, rows, _split(action_space, actions, len(positions))):  # noqa: B905
            at_work[0] = first + position
            observation, reward, terminated, truncated, info = envs[position].step(action)
            if type(observation) is np.ndarray and observation.dtype is dtype and observation.shape == shape:
                column[row] = observation
            else:
                pack(observations, row, observation)
            rewards[row], terminations[row], truncations[row] = reward, terminated, truncated
            infos.append(info)
        return infos

    def access(self, verb: Access, position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, get or set an attribute of one environment, found through its wrappers."""
        self.command = name if verb == "call" else f"{verb} {name}"
        self.turn_to(position)
        env = self.envs[position]
        if verb == "set_attr":
            return env.set_wrapper_attr(name, *args)
        found = env.get_wrapper_attr(name)
        return found(*args, **kwargs) if verb == "call" else found

    def close(self, quiet: bool = False) -> None:
        """Close all the environments, also where one of them fails to; then the first failure is raised."""
        first: BaseException | None = None
        for position, env in enumerate(self.envs):
            try:
                env.close()
            except BaseException as error:
                if first is None and not quiet:
                    first, self.command = error, "close"
                    self.turn_to(position)
        self.envs = []
        if first is not None:
            raise first


def _split(action_space: Space, actions: Any, count: int) -> Sequence[Any]:
    """One action for each of the environments."""
    singles = batch_utils.split(action_space, actions)
    if len(singles) != count:
        if batch_utils.batch_size_data(actions) is not None:  # before any of them moves
            raise ValueError(f"{len(singles)} actions for {count} environments, each wants one")
        singles = [actions] * count  # a dict or tuple of nothing, the same for all
    return singles
