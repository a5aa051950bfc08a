"""Wrappers that flatten structured actions, observations and contexts to vectors."""

from __future__ import annotations

from typing import Any

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame
from ..env_base.wrapper import ActionWrapper, ContextObservationWrapper
from ..space.space_utils import flatten_utils
from .autoreset import refuse_autoreset


def _batch_axes(env: Env) -> int:
    """The number of leading axes to keep: 1 for a batch, else 0."""
    return 0 if env.batch_size is None else 1


class FlattenActionWrapper(
    ActionWrapper[BArrayType, BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Takes actions as flat vectors, in the layout of `space_utils.flatten_utils`.

    Parameters
    ----------
    env
        The environment to wrap.

    Raises
    ------
    ValueError
        The actions have no flat form.

    Examples
    --------
    >>> env = FlattenActionWrapper(unienv.make("Pendulum-v1"))
    >>> env.action_space.shape
    (1,)
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._start_dim = _batch_axes(env)
        self.action_space = flatten_utils.flatten_space(env.action_space, self._start_dim)

    def map_action(self, action: Any) -> Any:
        return flatten_utils.unflatten_data(self.env.action_space, action, self._start_dim)

    def reverse_map_action(self, action: Any) -> Any:
        return flatten_utils.flatten_data(self.env.action_space, action, self._start_dim)


class FlattenContextObservationWrapper(
    ContextObservationWrapper[
        BArrayType,
        BArrayType,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ]
):
    """Flattens observations, contexts or both to separate vectors.

    Parameters
    ----------
    env
        The environment below.
    flatten_context
        Flatten contexts; no effect without a context space.
    flatten_observation
        Flatten observations.

    Raises
    ------
    ValueError
        The values have no flat form, or observations are to be flattened and `env` restarts by itself in the step that
        ends an episode.

    Examples
    --------
    >>> env = FlattenContextObservationWrapper(env)
    >>> env.observation_space.shape
    (4,)
    """

    def __init__(self, env: Env, flatten_context: bool = False, flatten_observation: bool = True) -> None:
        super().__init__(env)
        if flatten_observation:
            refuse_autoreset(env, type(self).__name__, "same_step")
        self.flatten_context = flatten_context and env.context_space is not None
        self.flatten_observation = flatten_observation
        self._start_dim = _batch_axes(env)
        if self.flatten_context:
            self.context_space = flatten_utils.flatten_space(env.context_space, self._start_dim)
        if self.flatten_observation:
            self.observation_space = flatten_utils.flatten_space(env.observation_space, self._start_dim)

    def map_context(self, context: Any) -> Any:
        if not self.flatten_context:
            return context
        return flatten_utils.flatten_data(self.env.context_space, context, self._start_dim)

    def reverse_map_context(self, context: Any) -> Any:
        if not self.flatten_context:
            return context
        return flatten_utils.unflatten_data(self.env.context_space, context, self._start_dim)

    def map_observation(self, observation: Any) -> Any:
        if not self.flatten_observation:
            return observation
        return flatten_utils.flatten_data(self.env.observation_space, observation, self._start_dim)

    def reverse_map_observation(self, observation: Any) -> Any:
        if not self.flatten_observation:
            return observation
        return flatten_utils.unflatten_data(self.env.observation_space, observation, self._start_dim)
