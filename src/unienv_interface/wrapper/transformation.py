"""Wrappers that transform actions, observations and contexts."""

from __future__ import annotations

from typing import Any

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..env_base.wrapper import (
    ActionWrapper,
    ContextObservationWrapper,
    Wrapper,
    WrapperActT,
    WrapperBArrayT,
    WrapperBDeviceT,
    WrapperBDtypeT,
    WrapperBRngT,
    WrapperContextT,
    WrapperObsT,
    WrapperRenderFrame,
    map_action,
)
from ..space import Space
from ..transformations.transformation import DataTransformation
from .autoreset import refuse_autoreset
from .transform_layer import IncomingTransform, OutgoingTransforms


class TransformWrapper(
    OutgoingTransforms,
    IncomingTransform,
    Wrapper[
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
    """Transforms contexts, observations and actions; a transformation of None changes nothing.

    Parameters
    ----------
    env
        The environment below.
    context_transformation, observation_transformation
        The transformations from the environment below to this layer.
    action_transformation
        The transformation from this layer to the environment below (see `set_action_transformation`).
    target_action_space
        The action space of this layer; by default the inverse transformation derives it from the action space below.

    Raises
    ------
    ValueError
        `observation_transformation` is given, and `env` restarts by itself in the step that ends an episode.

    Examples
    --------
    >>> env = TransformWrapper(unienv.make("Pendulum-v1"), observation_transformation=RescaleTransformation(-1.0, 1.0))
    >>> float(env.observation_space.high[2])
    1.0
    """

    def __init__(
        self,
        env: Env,
        context_transformation: DataTransformation | None = None,
        observation_transformation: DataTransformation | None = None,
        action_transformation: DataTransformation | None = None,
        target_action_space: Space | None = None,
    ) -> None:
        super().__init__(env)
        if observation_transformation is not None:
            refuse_autoreset(env, type(self).__name__, "same_step")
        self.context_transformation = context_transformation
        self.observation_transformation = observation_transformation
        self.set_action_transformation(action_transformation, target_action_space)

    @property
    def _below(self) -> Env:
        return self.env

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        slots = None if mask is None else parse_mask(mask, self.env.batch_size, self.backend)
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        return *self._map_reset(context, observation, slots), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(map_action(self, self.map_action, action))
        return self.map_observation(observation), reward, terminated, truncated, info


class ContextObservationTransformWrapper(
    OutgoingTransforms,
    ContextObservationWrapper[
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
    """Transforms contexts and observations; a transformation of None changes nothing.

    Parameters
    ----------
    env
        The environment below.
    context_transformation, observation_transformation
        The transformations from the environment below to this layer.

    Raises
    ------
    ValueError
        `observation_transformation` is given, and `env` restarts by itself in the step that ends an episode.

    Examples
    --------
    >>> rescale = RescaleTransformation(-1.0, 1.0)
    >>> env = ContextObservationTransformWrapper(unienv.make("Pendulum-v1"), observation_transformation=rescale)
    """

    def __init__(
        self,
        env: Env,
        context_transformation: DataTransformation | None = None,
        observation_transformation: DataTransformation | None = None,
    ) -> None:
        super().__init__(env)
        if observation_transformation is not None:
            refuse_autoreset(env, type(self).__name__, "same_step")
        self.context_transformation = context_transformation
        self.observation_transformation = observation_transformation

    @property
    def _below(self) -> Env:
        return self.env

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        slots = None if mask is None else parse_mask(mask, self.batch_size, self.backend)
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        return *self._map_reset(context, observation, slots), info


class ActionTransformWrapper(
    IncomingTransform,
    ActionWrapper[
        WrapperActT, BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType
    ],
):
    """Transforms actions of `target_action_space` to actions of the environment below.

    Parameters
    ----------
    env
        The environment below.
    action_transformation
        The transformation from this layer to the environment below.
    target_action_space
        The action space of this layer; by default the inverse transformation derives it from the action space below.

    Examples
    --------
    >>> env = unienv.make("Pendulum-v1")
    >>> unit = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(1,))
    >>> env = ActionTransformWrapper(env, RescaleTransformation(-2.0, 2.0), target_action_space=unit)
    """

    def __init__(
        self, env: Env, action_transformation: DataTransformation, target_action_space: Space | None = None
    ) -> None:
        super().__init__(env)
        self.set_action_transformation(action_transformation, target_action_space)

    @property
    def _below(self) -> Env:
        return self.env
