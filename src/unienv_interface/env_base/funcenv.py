"""Environments without state of their own: every function takes the state and returns the next one."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, SupportsFloat

from typing_extensions import TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ..space import Space
from .env import ActType, ContextType, Env, ObsType, RenderFrame, merge_masked
from .wrapper import is_handed_on

StateType = TypeVar("StateType", default=Any)
RenderStateType = TypeVar("RenderStateType", default=Any)


@dataclass(frozen=True)
class FuncEnvCommonRenderInfo:
    """What a functional environment says about its frames."""

    render_mode: str | None = None
    render_fps: int | None = None


class FuncEnv(
    abc.ABC,
    Generic[
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
    """An environment as pure functions of its state; spaces and batching as in `Env`.

    No function changes a state it is given: the caller may keep it and go on from it again.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - replaced as a whole, never changed
    backend: ComputeBackend
    device: Any = None
    batch_size: int | None = None
    observation_space: Space
    action_space: Space
    context_space: Space | None = None

    @abc.abstractmethod
    def initial(
        self, *, seed: int | None = None, **kwargs: Any
    ) -> tuple[StateType, ContextType, ObsType, dict[str, Any]]:
        """The first state, with context, observation and infos. The same seed gives the same state."""

    @abc.abstractmethod
    def reset(
        self, state: StateType, *, seed: int | None = None, mask: BArrayType | None = None, **kwargs: Any
    ) -> tuple[StateType, ContextType, ObsType, dict[str, Any]]:
        """The state with new episodes begun, everywhere or where `mask` says so; results as in `Env.reset`."""

    @abc.abstractmethod
    def step(
        self, state: StateType, action: ActType
    ) -> tuple[StateType, ObsType, SupportsFloat | BArrayType, bool | BArrayType, bool | BArrayType, dict[str, Any]]:
        """The next state, with observation, reward, terminated, truncated and infos."""

    def close(self, state: StateType) -> None:
        """Release what the state holds."""

    def render_init(
        self, state: StateType, *, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> tuple[StateType, RenderStateType, FuncEnvCommonRenderInfo]:
        """What rendering needs, made once."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def render_image(
        self, state: StateType, render_state: RenderStateType
    ) -> tuple[RenderFrame | Sequence[RenderFrame] | None, StateType, RenderStateType]:
        """A frame of the state."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def render_close(self, state: StateType, render_state: RenderStateType) -> StateType:
        """Release what rendering held."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def update_observation_post_reset(self, old_obs: ObsType, newobs_masked: ObsType, mask: BArrayType) -> ObsType:
        """Merge masked reset observations back into a full batched observation; `old_obs` stays as it is."""
        return merge_masked(self.observation_space, self.batch_size, old_obs, newobs_masked, mask)

    def update_context_post_reset(
        self, old_context: ContextType, new_context: ContextType, mask: BArrayType
    ) -> ContextType:
        """Merge masked reset contexts back into a full batched context; `old_context` stays as it is."""
        if self.context_space is None:
            return new_context
        return merge_masked(self.context_space, self.batch_size, old_context, new_context, mask)

    @property
    def unwrapped(self) -> FuncEnv:
        """The environment under all wrappers."""
        return self

    @property
    def prev_wrapper_layer(self) -> FuncEnv | None:
        """The environment one layer down, or None at the bottom."""
        return None

    def has_wrapper_attr(self, name: str) -> bool:
        """Checks if the attribute `name` exists in the environment."""
        return hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Gets the attribute `name` from the environment."""
        return getattr(self, name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Sets the attribute `name` on the environment with `value`."""
        setattr(self, name, value)


class FuncEnvBasedEnv(Env):
    """An `Env` that keeps the state of a `FuncEnv`."""

    def __init__(
        self, func_env: FuncEnv, *, render_mode: str | None = None, render_kwargs: dict[str, Any] | None = None
    ) -> None:
        self.func_env = func_env
        self.state: Any = None
        self.render_state: Any = None
        self.rng = func_env.backend.random.random_number_generator(device=func_env.device)
        self._render_mode = render_mode
        self._render_kwargs = dict(render_kwargs or {})
        self._render_info = FuncEnvCommonRenderInfo(render_mode=render_mode)
        self._has_state = False

    @property
    def metadata(self) -> dict[str, Any]:
        return self.func_env.metadata

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self.func_env.metadata = value

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        return self._render_info.render_mode

    @property
    def render_fps(self) -> int | None:  # type: ignore[override]
        return self._render_info.render_fps

    @property
    def backend(self) -> ComputeBackend:  # type: ignore[override]
        return self.func_env.backend

    @property
    def device(self) -> Any:
        return self.func_env.device

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.func_env.batch_size

    @property
    def action_space(self) -> Space:  # type: ignore[override]
        return self.func_env.action_space

    @property
    def observation_space(self) -> Space:  # type: ignore[override]
        return self.func_env.observation_space

    @property
    def context_space(self) -> Space | None:  # type: ignore[override]
        return self.func_env.context_space

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        if seed is not None:
            self.rng = self.backend.random.random_number_generator(seed, device=self.device)
        if self._has_state:
            result = self.func_env.reset(self.state, seed=seed, mask=mask, **kwargs)
        elif mask is not None:
            raise RuntimeError("reset with a mask before any reset: there are no other slots to keep yet")
        else:
            result = self.func_env.initial(seed=seed, **kwargs)
        self.state, context, observation, info = result
        self._has_state = True
        if self._render_mode is not None and self.render_state is None:
            self.state, self.render_state, self._render_info = self.func_env.render_init(
                self.state, seed=seed, render_mode=self._render_mode, **self._render_kwargs
            )
        return context, observation, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._has_state:
            raise RuntimeError("step before reset: there is no state to step from")
        self.state, observation, reward, terminated, truncated, info = self.func_env.step(self.state, action)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        if self.render_state is None:
            return None
        frame, self.state, self.render_state = self.func_env.render_image(self.state, self.render_state)
        return frame

    def close(self) -> None:
        if self.render_state is not None:
            self.state = self.func_env.render_close(self.state, self.render_state)
            self.render_state = None
        if self._has_state:
            self.func_env.close(self.state)
            self.state, self._has_state = None, False

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self, name) or self.func_env.has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else self.func_env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        if hasattr(self, name) and not is_handed_on(name, self, self.func_env):
            setattr(self, name, value)
        else:
            self.func_env.set_wrapper_attr(name, value)
