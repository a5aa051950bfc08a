"""Observations with those before them, and with the actions that led there."""

from __future__ import annotations

from typing import Any

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..env_base.wrapper import ContextObservationWrapper
from ..space.framestack_queue import SpaceDataQueue
from .autoreset import refuse_autoreset
from .frame_history import (
    history_space,
    history_value,
    newest_observation,
    parse_default_action,
    parse_stack_size,
    rows_of,
)


class FrameStackWrapper(
    ContextObservationWrapper[
        ContextType, Any, BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType
    ]
):
    """Gives each observation together with the `obs_stack_size` ones before it, and with the last actions.

    With `obs_stack_size` above 0, observations get a time axis of `obs_stack_size` + 1 frames, oldest first: their
    first axis, or in a batch the second. With `action_stack_size` above 0 they become a dict:

        {"observation": the observation, stacked or not, "past_actions": the actions, stacked alike}

    After a reset the first observation stands for all those before it. In a batch every slot has a history of its own.
    Stacked arrays are new memory each time.

    Parameters
    ----------
    env
        The environment below.
    obs_stack_size
        How many observations before the last one are given with it.
    action_stack_size
        How many of the last actions are given.
    action_default_value
        The action that stands for those before the first step, a value of the action space; by default the one nearest
        to zero.

    Raises
    ------
    ValueError
        A stack size is negative, `action_default_value` is no action, or `env` restarts by itself; see
        `AutoresetWrapper`.
    TypeError
        A stack size is no integer.

    Examples
    --------
    >>> env = FrameStackWrapper(env, obs_stack_size=4)
    >>> _, observation, _ = env.reset()
    """

    def __init__(
        self, env: Env, obs_stack_size: int = 0, action_stack_size: int = 0, action_default_value: Any = None
    ) -> None:
        super().__init__(env)
        refuse_autoreset(env, type(self).__name__)
        self.obs_stack_size = parse_stack_size(obs_stack_size, "obs_stack_size")
        self.action_stack_size = parse_stack_size(action_stack_size, "action_stack_size")
        self.obs_deque: SpaceDataQueue | None = None
        self.action_deque: SpaceDataQueue | None = None
        self.action_default_value = action_default_value
        if self.obs_stack_size:
            self.obs_deque = SpaceDataQueue(env.observation_space, env.batch_size, self.obs_stack_size + 1)
        if self.action_stack_size:
            self.action_deque = SpaceDataQueue(env.action_space, env.batch_size, self.action_stack_size)
            self.action_default_value = parse_default_action(env.action_space, action_default_value)
        self.observation_space = history_space(env.observation_space, self.obs_deque, self.action_deque)

    def map_observation(self, observation: Any) -> Any:
        """The observation with the history as it stands. Nothing is recorded: `reset` and `step` do that."""
        return self._show(observation, None)

    def reverse_map_observation(self, observation: Any) -> Any:
        """The newest observation in one of this layer."""
        return newest_observation(observation, self.obs_deque, self.action_deque)

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        if mask is not None:
            mask = self.backend.from_numpy(parse_mask(mask, self.batch_size, self.backend))
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        if self.obs_deque is not None:
            self.obs_deque.reset(observation, mask)
        if self.action_deque is not None:
            self.action_deque.reset(rows_of(self.env.action_space, self.action_default_value, mask), mask)
        return context, self._show(observation, mask), info

    def step(self, action: Any, **options: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step as `env` does. Options, such as a recorder's `extras`, go to its `step`."""
        observation, reward, terminated, truncated, info = self.env.step(action, **options)
        if self.obs_deque is not None:
            self.obs_deque.add(observation)
        if self.action_deque is not None:
            self.action_deque.add(action)
        return self._show(observation, None), reward, terminated, truncated, info

    def _show(self, observation: Any, mask: Any) -> Any:
        """The observation, whose rows are those of the mask, with their history."""
        obs_frames, action_frames = (
            None if queue is None else rows_of(queue.output_space, queue.get_output_data(), mask)
            for queue in (self.obs_deque, self.action_deque)
        )
        return history_value(observation, obs_frames, action_frames)
