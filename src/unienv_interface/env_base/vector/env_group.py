"""`EnvGroup`: the environments of one process of a vector environment, which step one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...backends.base import ComputeBackend
from ...space import Space
from ...space.row_layout import Rows
from ...space.space_utils import batch_utils
from ..env import Env

# The dtypes of reward, terminated and truncated.
SIGNAL_DTYPES = (np.dtype(np.float64), np.dtype(np.bool_), np.dtype(np.bool_))

Access = Literal["call", "get_attr", "set_attr"]
_ALL = slice(None)


@dataclass(frozen=True)
class EnvSpec:
    """The spaces and attributes of one environment of a vector environment."""

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
            raise ValueError(f"{env!r} is batched: a vector environment takes single environments, batch_size None")
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
    """The memory for results, a row for each environment; a new result overwrites the last one."""

    observations: Rows
    contexts: Rows | None
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def __reduce__(self) -> tuple[type[ResultRows], tuple[Any, ...]]:
        # without `vectors`, which are memoryviews of this process
        return ResultRows, (self.observations, self.contexts, self.rewards, self.terminated, self.truncated)

    @functools.cached_property
    def vectors(self) -> list[memoryview] | None:
        """A memoryview of each row, if observations are vectors of one plain dtype; else None."""
        dtype, shape = self.observations.layout.plain_value
        return None if dtype is None or len(shape) != 1 else [row.data for row in self.observations.columns[0]]


class EnvGroup:
    """The environments of one process, addressed by their index in the vector environment.

    Parameters
    ----------
    first
        The index of the first environment.
    at_work
        An array of one integer, to which the group writes the index of the environment that it calls.
    """

    def __init__(self, first: int = 0, at_work: Any = None) -> None:
        self.first = first
        self.at_work = [first] if at_work is None else at_work
        self.envs: list[Env] = []
        self.specs: list[EnvSpec] = []
        self.command = "construction"  # the command under way, for errors

    def build(self, factories: Sequence[Callable[[], Env]]) -> None:
        """Make the environments. If a factory fails, the environments made before are closed."""
        try:
            for index, factory in enumerate(factories, start=self.first):
                self.at_work[0] = index
                self.envs.append(factory())
                self.specs.append(EnvSpec.of(self.envs[-1]))
        except BaseException:
            self.close(quiet=True)
            raise

    def reset(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: ResultRows,
    ) -> list[dict[str, Any]]:
        """Reset environments and write their observations and contexts to rows; returns their infos."""
        infos = []
        self.command = "reset"
        observations, contexts = results.observations, results.contexts
        for index, seed in zip(indices, seeds, strict=True):
            self.at_work[0] = index
            context, observation, info = self.envs[index - self.first].reset(*args, seed=seed, **kwargs)
            observations.layout.pack(observations, index, observation)
            if contexts is not None:
                contexts.layout.pack(contexts, index, context)
            infos.append(info)
        return infos

    def step(
        self, indices: Sequence[int], action_space: Space, actions: Any, results: ResultRows
    ) -> list[dict[str, Any]]:
        """Step environments, with one action each, and write their results to rows; returns their infos."""
        infos = []
        envs, first, at_work = self.envs, self.first, self.at_work
        observations = results.observations
        # memoryviews: assigning a small value to one is faster than to an array
        vectors: Any = results.vectors
        rewards: Any = results.rewards.data
        terminated, truncated = results.terminated.data, results.truncated.data
        self.command = "step"
        # `_split` has checked the lengths: `strict` would cost as much as a small step
        for index, action in zip(indices, _split(action_space, actions, len(indices))):  # noqa: B905
            at_work[0] = index
            step = envs[index - first].step
            observation, rewards[index], terminated[index], truncated[index], info = step(action)
            if vectors is None or type(observation) is not np.ndarray:
                observations.layout.pack(observations, index, observation)
            else:
                try:
                    vectors[index][_ALL] = observation
                except ValueError:  # the observation has another dtype or shape
                    observations.layout.pack(observations, index, observation)
            infos.append(info)
        return infos

    def access(self, verb: Access, index: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, get or set an attribute of one environment or of its wrappers."""
        self.command = name if verb == "call" else f"{verb} {name}"
        self.at_work[0] = index
        env = self.envs[index - self.first]
        if verb == "set_attr":
            return env.set_wrapper_attr(name, *args)
        attribute = env.get_wrapper_attr(name)
        return attribute(*args, **kwargs) if verb == "call" else attribute

    def close(self, quiet: bool = False) -> None:
        """Close all environments, also after one fails to close; then raise the first error unless `quiet`."""
        first: BaseException | None = None
        for index, env in enumerate(self.envs, start=self.first):
            try:
                env.close()
            except BaseException as error:
                if first is None and not quiet:
                    first, self.command = error, "close"
                    self.at_work[0] = index
        self.envs = []
        if first is not None:
            raise first


def _split(action_space: Space, actions: Any, count: int) -> Sequence[Any]:
    """Split a batch of actions into one action for each environment."""
    try:
        singles = batch_utils.split(action_space, actions)
    except TypeError as error:
        raise TypeError(f"actions are {actions!r:.80}, {count} are wanted, one for each environment") from error
    if len(singles) != count:
        if batch_utils.batch_size_data(actions) is not None:
            raise ValueError(f"{len(singles)} actions for {count} environments, each needs one")
        singles = [actions] * count  # for an empty dict or tuple
    return singles
