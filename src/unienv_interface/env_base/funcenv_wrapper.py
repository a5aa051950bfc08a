"""Functional environments around functional environments."""

from __future__ import annotations

from typing import Any

from ..backends.base import ComputeBackend
from ..space import Space
from .funcenv import FuncEnv, FuncEnvCommonRenderInfo
from .wrapper import is_handed_on


class FuncEnvWrapper(FuncEnv):
    """A functional environment that hands everything on to the one it wraps; a subclass changes what it wants to."""

    def __init__(self, func_env: FuncEnv) -> None:
        self.func_env = func_env

    @property
    def metadata(self) -> dict[str, Any]:
        return self._own("_metadata", "metadata")

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self._metadata = value

    @property
    def action_space(self) -> Space:
        return self._own("_action_space", "action_space")

    @action_space.setter
    def action_space(self, value: Space) -> None:
        self._action_space = value

    @property
    def observation_space(self) -> Space:
        return self._own("_observation_space", "observation_space")

    @observation_space.setter
    def observation_space(self, value: Space) -> None:
        self._observation_space = value

    @property
    def context_space(self) -> Space | None:
        return self._own("_context_space", "context_space")

    @context_space.setter
    def context_space(self, value: Space | None) -> None:
        self._context_space = value

    def _own(self, name: str, below: str) -> Any:
        """An attribute of this layer if it was assigned, else that of the environment below."""
        own = self.__dict__
        return own[name] if name in own else getattr(self.func_env, below)

    @property
    def backend(self) -> ComputeBackend:  # type: ignore[override]
        return self.func_env.backend

    @property
    def device(self) -> Any:
        return self.func_env.device

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.func_env.batch_size

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

    @property
    def unwrapped(self) -> FuncEnv:
        return self.func_env.unwrapped

    @property
    def prev_wrapper_layer(self) -> FuncEnv | None:
        return self.func_env

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self, name) or self.func_env.has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else self.func_env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        if hasattr(self, name) and not is_handed_on(name, self, self.func_env):
            setattr(self, name, value)
        else:
            self.func_env.set_wrapper_attr(name, value)
