"""Observations with those before them, and with the actions that led there."""

from __future__ import annotations

from typing import Any

from ..env_base.env import Env, parse_mask
from ..env_base.wrapper import ContextObservationWrapper
from ..space.space_utils import batch_utils
from ..utils.frame_stacking import FrameStacking
from ..utils.framestack_queue import SpaceDataQueue


class FrameStackWrapper(ContextObservationWrapper):
    """Gives each observation together with the `obs_stack_size` ones before it, and with the last actions.

    With `obs_stack_size` above 0, observations get a time axis of `obs_stack_size` + 1 frames, oldest first, which
    is the first axis, or in a batch the second. With `action_stack_size` above 0 they become a dict:

        {"observation": the observation, stacked or not, "past_actions": the last actions, stacked likewise}

    After a reset the first observation stands for all those before it, and `action_default_value`, a value of the
    action space, for the actions. Without one it is the action nearest to zero. In a batch the slots have histories
    of their own. What is returned is new memory each time.
    """

    def __init__(
        self, env: Env, obs_stack_size: int = 0, action_stack_size: int = 0, action_default_value: Any = None
    ) -> None:
        super().__init__(env)
        self._stacking = FrameStacking(
            env.observation_space,
            env.action_space,
            env.batch_size,
            obs_stack_size,
            action_stack_size,
            action_default_value,
        )
        self.obs_stack_size = self._stacking.obs_stack_size
        self.action_stack_size = self._stacking.action_stack_size
        self.action_default_value = self._stacking.action_default_value
        self.observation_space = self._stacking.space
