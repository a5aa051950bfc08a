"""Wrappers: environments that forward to another environment."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Generic, SupportsFloat

from typing_extensions import TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..space import describe_mismatch
from ._layers import ForwardingLayer
from .env import ActType, ContextType, Env, ObsType, RenderFrame

WrapperBArrayT = TypeVar("WrapperBArrayT", default=Any)
WrapperContextT = TypeVar("WrapperContextT", default=Any)
WrapperObsT = TypeVar("WrapperObsT", default=Any)
WrapperActT = TypeVar("WrapperActT", default=Any)
WrapperRenderFrame = TypeVar("WrapperRenderFrame", default=Any)
WrapperBDeviceT = TypeVar("WrapperBDeviceT", default=Any)
WrapperBDtypeT = TypeVar("WrapperBDtypeT", default=Any)
WrapperBRngT = TypeVar("WrapperBRngT", default=Any)


class Wrapper(
    ForwardingLayer,
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
    """An environment that forwards every call to the wrapped environment; subclasses override methods.

    Spaces, metadata and `rng` come from the wrapped environment until they are assigned.

    Parameters
    ----------
    env
        The environment to wrap.

    Examples
    --------
    >>> class NoReward(Wrapper):
    ...     def step(self, action):
    ...         observation, _, *rest = self.env.step(action)
    ...         return observation, 0.0, *rest
    >>> env = NoReward(env)
    >>> _ = env.reset()
    >>> env.step(env.sample_action())[1]
    0.0
    """

    def __init__(self, env: Env) -> None:
        self.env = env

    @property
    def _below(self) -> Env:
        return self.env

    @property
    def rng(self) -> Any:
        """The generator of `sample_action` and `sample_observation`; by default the generator of the layer below."""
        return self._attribute("rng")

    @rng.setter
    def rng(self, value: Any) -> None:
        # A wrapper shares the generator of the layer below, unless it changes the backend.
        if "_rng" in self.__dict__ or self.backend is not self.env.backend:
            self._rng = value
        else:
            self.env.rng = value

    # -- forwarded calls -----------------------------------------------------------------------------------

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """The `render_mode` of the environment below."""
        return self.env.render_mode

    @property
    def render_fps(self) -> int | None:  # type: ignore[override]
        """The `render_fps` of the environment below."""
        return self.env.render_fps

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"


#: A wrapper whose values have the types of the environment below.
SameTypesWrapper = Wrapper[
    BArrayType,
    ContextType,
    ObsType,
    ActType,
    RenderFrame,
    BDeviceType,
    BDtypeType,
    BRNGType,
    BArrayType,
    ContextType,
    ObsType,
    ActType,
    RenderFrame,
    BDeviceType,
    BDtypeType,
    BRNGType,
]


def map_action(env: Env, mapping: Callable[[Any], Any], action: Any) -> Any:
    """Map an action; if this fails, say why the action is not in the action space.

    Parameters
    ----------
    env
        The environment whose `action_space` the action must be in.
    mapping
        The function to call with the action.
    action
        The action.

    Returns
    -------
    action
        The result of `mapping`.

    Raises
    ------
    ValueError
        `mapping` failed and the action is not in the action space. Other errors of `mapping` are not caught.
    """
    try:
        return mapping(action)
    except Exception as error:
        mismatch = describe_mismatch(env.action_space, action, "action")
        if mismatch is None:
            raise
        raise ValueError(mismatch) from error


class ActionWrapper(
    Wrapper[
        BArrayType,
        ContextType,
        ObsType,
        WrapperActT,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
    Generic[WrapperActT, BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType],
):
    """A wrapper that maps actions before the environment below gets them.

    Examples
    --------
    >>> class Swapped(ActionWrapper):
    ...     def map_action(self, action):
    ...         return 1 - action
    >>> env = Swapped(env)
    >>> _ = env.reset(seed=0)
    >>> observation, *_ = env.step(np.asarray(0))  # pushes to the right
    >>> bool(observation[1] > 0)
    True
    """

    @abc.abstractmethod
    def map_action(self, action: Any) -> Any:
        """Map an action of this layer to an action of the environment below."""

    def reverse_map_action(self, action: Any) -> Any:
        """Map an action of the environment below to an action of this layer."""
        raise NotImplementedError(f"{type(self).__name__} cannot map actions back")

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.env.step(map_action(self, self.map_action, action))


class ContextObservationWrapper(
    Wrapper[
        BArrayType,
        WrapperContextT,
        WrapperObsT,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
    Generic[
        WrapperContextT,
        WrapperObsT,
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
    """A wrapper that maps the contexts and observations of the environment below.

    A masked reset returns fewer slots than the batch: mappings must not depend on the number of slots. Contexts are
    mapped only if the environment below has a context space.

    Examples
    --------
    >>> class InCentimetres(ContextObservationWrapper):
    ...     def map_observation(self, observation):
    ...         return observation * np.array([100, 1, 1, 1], np.float32)
    >>> env = InCentimetres(env)
    >>> _, observation, _ = env.reset(seed=0)
    >>> observation.shape
    (4,)
    """

    def map_context(self, context: Any) -> Any:
        """Map a context of the environment below to a context of this layer."""
        return context

    def reverse_map_context(self, context: Any) -> Any:
        """Map a context of this layer to a context of the environment below."""
        return context

    def map_observation(self, observation: Any) -> Any:
        """Map an observation of the environment below to an observation of this layer."""
        return observation

    def reverse_map_observation(self, observation: Any) -> Any:
        """Map an observation of this layer to an observation of the environment below."""
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
