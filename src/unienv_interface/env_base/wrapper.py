"""Environments around environments."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, SupportsFloat

from typing_extensions import TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ..space import Space
from .env import ActType, ContextType, Env, ObsType, RenderFrame

if TYPE_CHECKING:
    from .funcenv import FuncEnv

WrapperBArrayT = TypeVar("WrapperBArrayT", default=Any)
WrapperContextT = TypeVar("WrapperContextT", default=Any)
WrapperObsT = TypeVar("WrapperObsT", default=Any)
WrapperActT = TypeVar("WrapperActT", default=Any)
WrapperRenderFrame = TypeVar("WrapperRenderFrame", default=Any)
WrapperBDeviceT = TypeVar("WrapperBDeviceT", default=Any)
WrapperBDtypeT = TypeVar("WrapperBDtypeT", default=Any)
WrapperBRngT = TypeVar("WrapperBRngT", default=Any)


class Wrapper(
    Env[
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
        WrapperBArrayT,
        WrapperContextT,
        WrapperObsT,
        WrapperActT,
        WrapperRenderFrame,
        WrapperBDeviceT,
        WrapperBDtypeT,
        WrapperBRngT,
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
    """An environment that hands everything on to the one it wraps; a subclass changes what it wants to.

    Spaces, metadata and the generator can be assigned; until then they are those of the wrapped environment.
    """

    def __init__(self, env: Env) -> None:
        self.env = env

    # -- what is handed on, and may be replaced ------------------------------------------------------------

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

    @property
    def rng(self) -> Any:
        return self._own("_rng", "rng")

    @rng.setter
    def rng(self, value: Any) -> None:
        # A wrapper on the same backend shares the generator below it; one that changes the backend has its own.
        if "_rng" in self.__dict__ or self.backend is not self.env.backend:
            self._rng = value
        else:
            self.env.rng = value

    def _own(self, name: str, below: str) -> Any:
        """An attribute of this layer if it was assigned, else that of the environment below."""
        own = self.__dict__
        return own[name] if name in own else getattr(self.env, below)

    # -- what is handed on ---------------------------------------------------------------------------------

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        return self.env.render_mode

    @property
    def render_fps(self) -> int | None:  # type: ignore[override]
        return self.env.render_fps

    @property
    def backend(self) -> ComputeBackend:  # type: ignore[override]
        return self.env.backend

    @property
    def device(self) -> Any:
        return self.env.device

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self.env.batch_size

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        return self.env.reset(*args, mask=mask, seed=seed, **kwargs)

    def step(self, action: Any) -> tuple[Any, SupportsFloat | Any, bool | Any, bool | Any, dict[str, Any]]:
        return self.env.step(action)

    def render(self) -> Any | Sequence[Any] | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    # -- layers --------------------------------------------------------------------------------------------

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped

    @property
    def prev_wrapper_layer(self) -> Env | None:
        return self.env

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self, name) or self.env.has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        if hasattr(self, name):
            return getattr(self, name)
        try:
            return self.env.get_wrapper_attr(name)
        except AttributeError:
            raise AttributeError(f"neither {type(self).__name__} nor a layer below it has {name!r}") from None

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Sets the attribute on the outermost layer that has it as its own, or on the bottom one if none has."""
        if hasattr(self, name) and not is_handed_on(name, self, self.env):
            setattr(self, name, value)
        else:
            self.env.set_wrapper_attr(name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"


def is_handed_on(name: str, layer: Env | FuncEnv, below: Env | FuncEnv) -> bool:
    """Whether a layer only shows this attribute of the layer below, which is where it can be set."""
    attribute = getattr(type(layer), name, None)
    return isinstance(attribute, property) and attribute.fset is None and below.has_wrapper_attr(name)


class ActionWrapper(Wrapper):
    """A wrapper that changes actions on their way in."""

    @abc.abstractmethod
    def map_action(self, action: Any) -> Any:
        """An action of this layer as one of the environment below."""

    def reverse_map_action(self, action: Any) -> Any:
        """An action of the environment below as one of this layer."""
        raise NotImplementedError(f"{type(self).__name__} cannot map actions back")

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.env.step(self.map_action(action))


class ContextObservationWrapper(Wrapper):
    """A wrapper that changes contexts and observations on their way out.

    What a masked reset returns holds fewer slots than the batch; mapping must not depend on their number. Contexts
    are mapped only where there are any.
    """

    def map_context(self, context: Any) -> Any:
        """A context of the environment below as one of this layer."""
        return context

    def reverse_map_context(self, context: Any) -> Any:
        """A context of this layer as one of the environment below."""
        return context

    def map_observation(self, observation: Any) -> Any:
        """An observation of the environment below as one of this layer."""
        return observation

    def reverse_map_observation(self, observation: Any) -> Any:
        """An observation of this layer as one of the environment below."""
        return observation

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        if self.env.context_space is not None:
            context = self.map_context(context)
        return context, self.map_observation(observation), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.map_observation(observation), reward, terminated, truncated, info
