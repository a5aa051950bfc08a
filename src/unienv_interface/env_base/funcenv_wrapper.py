"""Wrappers of functional environments."""

from __future__ import annotations

from typing import Any, Generic

from typing_extensions import TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, ObsType, RenderFrame
from ..env_base.wrapper import (
    WrapperActT,
    WrapperBArrayT,
    WrapperBDeviceT,
    WrapperBDtypeT,
    WrapperBRngT,
    WrapperContextT,
    WrapperObsT,
    WrapperRenderFrame,
)
from ._layers import ForwardingLayer
from .funcenv import FuncEnv, FuncEnvCommonRenderInfo, RenderStateType, StateType

WrapperStateT = TypeVar("WrapperStateT", default=Any)
WrapperRenderStateT = TypeVar("WrapperRenderStateT", default=Any)


class FuncEnvWrapper(
    ForwardingLayer,
    FuncEnv[
        WrapperStateT,
        WrapperRenderStateT,
        WrapperBArrayT,
        WrapperContextT,
        WrapperObsT,
        WrapperActT,
        WrapperRenderFrame,
        WrapperBDeviceT,
        WrapperBDtypeT,
        WrapperBRngT,
    ],
    Generic[
        WrapperStateT,
        WrapperRenderStateT,
        WrapperBArrayT,
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
    """A functional environment that forwards every call to the wrapped environment; subclasses override methods.

    Parameters
    ----------
    func_env
        The functional environment to wrap.

    Examples
    --------
    >>> class NoReward(FuncEnvWrapper):
    ...     def step(self, state, action):
    ...         state, observation, _, *rest = self.func_env.step(state, action)
    ...         return state, observation, 0.0, *rest
    >>> env = FuncEnvBasedEnv(NoReward(Countdown()))  # the example of `FuncEnv`
    >>> _ = env.reset(seed=0)
    >>> env.step(env.sample_action())[1]
    0.0
    """

    def __init__(self, func_env: FuncEnv) -> None:
        self.func_env = func_env

    @property
    def _below(self) -> FuncEnv:
        return self.func_env

    def initial(self, *, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        return self.func_env.initial(seed=seed, **kwargs)

    def reset(
        self, state: Any, *args: Any, seed: int | None = None, mask: Any = None, **kwargs: Any
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        return self.func_env.reset(state, *args, seed=seed, mask=mask, **kwargs)

    def step(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, dict[str, Any]]:
        return self.func_env.step(state, action)

    def close(self, state: Any) -> None:
        self.func_env.close(state)

    def render_init(
        self, state: Any, *, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> tuple[Any, Any, FuncEnvCommonRenderInfo]:
        return self.func_env.render_init(state, seed=seed, render_mode=render_mode, **kwargs)

    def render_image(self, state: Any, render_state: Any) -> tuple[Any, Any, Any]:
        return self.func_env.render_image(state, render_state)

    def render_close(self, state: Any, render_state: Any) -> Any:
        return self.func_env.render_close(state, render_state)
