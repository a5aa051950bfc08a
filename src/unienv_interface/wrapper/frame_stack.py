"""`FrameStackWrapper`: observations with past observations and actions."""

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
    """Stacks each observation with the `obs_stack_size` observations before it, and with the last actions.

    With `obs_stack_size` above 0, observations get a time axis of `obs_stack_size` + 1 frames, oldest first. It is the
    first axis, in a batch the second. With `action_stack_size` above 0, observations become a dict:

        {"observation": the observation, stacked or not, "past_actions": the stacked actions}

    A reset fills the history with copies of the first observation. In a batch every slot has its own history. Stacked
    arrays are new arrays in every step.

    Parameters
    ----------
    env
        The environment below.
    obs_stack_size
        The number of past observations to stack with the last one.
    action_stack_size
        The number of past actions to stack.
    action_default_value
        The action to fill the history with at a reset; by default the action nearest to zero.

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
        """Combine an observation with the current history, without adding it; `reset` and `step` add observations."""
        return self._show(observation, None)

    def reverse_map_observation(self, observation: Any) -> Any:
        """The newest observation in an observation of this layer."""
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
        """Step the environment. `options`, such as a recorder's `extras`, go to the `step` of `env`."""
        observation, reward, terminated, truncated, info = self.env.step(action, **options)
        if self.obs_deque is not None:
            self.obs_deque.add(observation)
        if self.action_deque is not None:
            self.action_deque.add(action)
        return self._show(observation, None), reward, terminated, truncated, info

    def _show(self, observation: Any, mask: Any) -> Any:
        """Combine an observation, with the rows of the mask, with the history of these rows."""
        obs_frames, action_frames = (
            None if queue is None else rows_of(queue.output_space, queue.get_output_data(), mask)
            for queue in (self.obs_deque, self.action_deque)
        )
        return history_value(observation, obs_frames, action_frames)
