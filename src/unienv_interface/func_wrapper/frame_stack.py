"""`FuncFrameStackWrapper`: functional environments with past observations and actions in their observations."""

from __future__ import annotations

from typing import Any, Generic

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, ObsType, RenderFrame, check_mask
from ..env_base.funcenv import FuncEnv, FuncEnvCommonRenderInfo, RenderStateType, StateType
from ..env_base.funcenv_wrapper import FuncEnvWrapper
from ..space.framestack_queue import FuncSpaceDataQueue, SpaceDataQueueState
from ..utils.stateclass import StateClass
from ..wrapper.frame_history import (
    history_space,
    history_value,
    newest_observation,
    parse_default_action,
    parse_stack_size,
)


class FuncFrameStackWrapperState(StateClass, Generic[StateType]):
    """The state of a `FuncFrameStackWrapper`.

    Attributes
    ----------
    env_state
        The state of the environment below.
    obs_queue_state, action_queue_state
        The states of the queues of observations and actions; None if they are not stacked.

    Examples
    --------
    >>> stacked = FuncFrameStackWrapper(Countdown(), obs_stack_size=3)  # the example of `FuncEnv`
    >>> state, *_ = stacked.initial(seed=0)
    >>> state.env_state, state.action_queue_state
    (9, None)
    """

    env_state: Any
    obs_queue_state: SpaceDataQueueState | None
    action_queue_state: SpaceDataQueueState | None


class FuncFrameStackWrapper(
    FuncEnvWrapper[
        FuncFrameStackWrapperState[StateType],
        RenderStateType,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
        StateType,
        RenderStateType,
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
    """`FrameStackWrapper` for functional environments, with the same layout of observations.

    Parameters
    ----------
    func_env
        The functional environment below.
    obs_stack_size, action_stack_size, action_default_value
        As for `FrameStackWrapper`.

    Raises
    ------
    ValueError
        A stack size is negative, or `action_default_value` is no action.
    TypeError
        A stack size is no integer.

    Examples
    --------
    >>> env = FuncEnvBasedEnv(FuncFrameStackWrapper(Countdown(), obs_stack_size=2))  # the example of `FuncEnv`
    >>> _, observation, _ = env.reset(seed=0)
    >>> observation, *_ = env.step(env.sample_action())
    >>> observation.ravel()
    array([9., 9., 8.], dtype=float32)
    """

    def __init__(
        self,
        func_env: FuncEnv,
        obs_stack_size: int = 0,
        action_stack_size: int = 0,
        action_default_value: Any = None,
    ) -> None:
        super().__init__(func_env)
        self.obs_stack_size = parse_stack_size(obs_stack_size, "obs_stack_size")
        self.action_stack_size = parse_stack_size(action_stack_size, "action_stack_size")
        self.obs_deque: FuncSpaceDataQueue | None = None
        self.action_deque: FuncSpaceDataQueue | None = None
        self.action_default_value = action_default_value
        batch_size = func_env.batch_size
        if self.obs_stack_size:
            self.obs_deque = FuncSpaceDataQueue(func_env.observation_space, batch_size, self.obs_stack_size + 1)
        if self.action_stack_size:
            self.action_deque = FuncSpaceDataQueue(func_env.action_space, batch_size, self.action_stack_size)
            self.action_default_value = parse_default_action(func_env.action_space, action_default_value)
        self.observation_space = history_space(func_env.observation_space, self.obs_deque, self.action_deque)

    def map_observation(self, state: FuncFrameStackWrapperState, observation: Any) -> Any:
        """Combine an observation of the environment below with the history in `state`."""
        return self._show(state, observation)

    def reverse_map_observation(self, observation: Any) -> Any:
        """The newest observation in an observation of this layer."""
        return newest_observation(observation, self.obs_deque, self.action_deque)

    def initial(
        self, *, seed: int | None = None, **kwargs: Any
    ) -> tuple[FuncFrameStackWrapperState, Any, Any, dict[str, Any]]:
        env_state, context, observation, info = self.func_env.initial(seed=seed, **kwargs)
        state = FuncFrameStackWrapperState(
            env_state,
            None if self.obs_deque is None else self.obs_deque.init(observation),
            None if self.action_deque is None else self.action_deque.init(self.action_default_value),
        )
        return state, context, self._show(state, observation), info

    def reset(
        self,
        state: FuncFrameStackWrapperState,
        *args: Any,
        seed: int | None = None,
        mask: Any = None,
        **kwargs: Any,
    ) -> tuple[FuncFrameStackWrapperState, Any, Any, dict[str, Any]]:
        if mask is not None:
            mask = check_mask(mask, self.batch_size, self.backend)
        env_state, context, observation, info = self.func_env.reset(
            state.env_state, *args, seed=seed, mask=mask, **kwargs
        )
        obs_state, action_state = state.obs_queue_state, state.action_queue_state
        if self.obs_deque is not None and obs_state is not None:
            obs_state = self.obs_deque.reset(obs_state, observation, mask)
        if self.action_deque is not None and action_state is not None:
            action_state = self.action_deque.reset(action_state, self.action_default_value, mask)
        state = FuncFrameStackWrapperState(env_state, obs_state, action_state)
        return state, context, self._show(state, observation), info

    def step(
        self, state: FuncFrameStackWrapperState, action: Any
    ) -> tuple[FuncFrameStackWrapperState, Any, Any, Any, Any, dict[str, Any]]:
        env_state, observation, reward, terminated, truncated, info = self.func_env.step(state.env_state, action)
        obs_state, action_state = state.obs_queue_state, state.action_queue_state
        if self.obs_deque is not None and obs_state is not None:
            obs_state = self.obs_deque.add(obs_state, observation)
        if self.action_deque is not None and action_state is not None:
            action_state = self.action_deque.add(action_state, action)
        state = FuncFrameStackWrapperState(env_state, obs_state, action_state)
        return state, self._show(state, observation), reward, terminated, truncated, info

    def close(self, state: FuncFrameStackWrapperState) -> None:
        self.func_env.close(state.env_state)

    def render_init(
        self,
        state: FuncFrameStackWrapperState,
        *,
        seed: int | None = None,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> tuple[FuncFrameStackWrapperState, Any, FuncEnvCommonRenderInfo]:
        env_state, render_state, info = self.func_env.render_init(
            state.env_state, seed=seed, render_mode=render_mode, **kwargs
        )
        return state.replace(env_state=env_state), render_state, info

    def render_image(
        self, state: FuncFrameStackWrapperState, render_state: Any
    ) -> tuple[Any, FuncFrameStackWrapperState, Any]:
        frame, env_state, render_state = self.func_env.render_image(state.env_state, render_state)
        return frame, state.replace(env_state=env_state), render_state

    def render_close(self, state: FuncFrameStackWrapperState, render_state: Any) -> FuncFrameStackWrapperState:
        return state.replace(env_state=self.func_env.render_close(state.env_state, render_state))

    def _show(self, state: FuncFrameStackWrapperState, observation: Any) -> Any:
        """Combine the observation with its history."""
        queues = ((self.obs_deque, state.obs_queue_state), (self.action_deque, state.action_queue_state))
        obs_frames, action_frames = (
            None if queue is None or frames is None else queue.get_output_data(frames) for queue, frames in queues
        )
        return history_value(observation, obs_frames, action_frames)
