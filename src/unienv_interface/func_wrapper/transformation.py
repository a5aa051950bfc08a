"""`FuncTransformWrapper`: functional environments with transformed actions, observations and contexts."""

from __future__ import annotations

from typing import Any

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, ObsType, RenderFrame
from ..env_base.funcenv import FuncEnv, RenderStateType, StateType
from ..env_base.funcenv_wrapper import FuncEnvWrapper
from ..env_base.wrapper import (
    WrapperActT,
    WrapperBDeviceT,
    WrapperBDtypeT,
    WrapperBRngT,
    WrapperContextT,
    WrapperObsT,
    WrapperRenderFrame,
)
from ..space import Space
from ..transformations.transformation import DataTransformation
from ..wrapper.transform_layer import IncomingTransform, OutgoingTransforms


class FuncTransformWrapper(
    OutgoingTransforms,
    IncomingTransform,
    FuncEnvWrapper[
        StateType,
        RenderStateType,
        BArrayType,
        WrapperContextT,
        WrapperObsT,
        WrapperActT,
        WrapperRenderFrame,
        WrapperBDeviceT,
        WrapperBDtypeT,
        WrapperBRngT,
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
    ],
):
    """`TransformWrapper` for functional environments.

    Parameters
    ----------
    func_env
        The functional environment below.
    context_transformation, observation_transformation, action_transformation, target_action_space
        As for `TransformWrapper`.

    Examples
    --------
    >>> rescale = RescaleTransformation(new_low=0.0, new_high=1.0)
    >>> env = FuncEnvBasedEnv(FuncTransformWrapper(Countdown(), observation_transformation=rescale))
    >>> _, observation, _ = env.reset(seed=0)  # 9 of 9; the example of `FuncEnv`
    >>> observation
    array([1.], dtype=float32)
    """

    def __init__(
        self,
        func_env: FuncEnv,
        context_transformation: DataTransformation | None = None,
        observation_transformation: DataTransformation | None = None,
        action_transformation: DataTransformation | None = None,
        target_action_space: Space | None = None,
    ) -> None:
        super().__init__(func_env)
        self.context_transformation = context_transformation
        self.observation_transformation = observation_transformation
        self.set_action_transformation(action_transformation, target_action_space)

    @property
    def _below(self) -> FuncEnv:
        return self.func_env

    def initial(self, *, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        state, context, observation, info = self.func_env.initial(seed=seed, **kwargs)
        return state, *self._map_reset(context, observation, None), info

    def reset(
        self, state: Any, *args: Any, seed: int | None = None, mask: Any = None, **kwargs: Any
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        state, context, observation, info = self.func_env.reset(state, *args, seed=seed, mask=mask, **kwargs)
        return state, *self._map_reset(context, observation, None), info

    def step(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, dict[str, Any]]:
        state, observation, *signals, info = self.func_env.step(state, self.map_action(action))
        reward, terminated, truncated = signals
        return state, self.map_observation(observation), reward, terminated, truncated, info
