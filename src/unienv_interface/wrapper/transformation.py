"""Wrappers that pass actions, observations and contexts through transformations."""

from __future__ import annotations

from typing import Any

from ..env_base.env import Env, parse_mask
from ..env_base.wrapper import ActionWrapper, ContextObservationWrapper, Wrapper
from ..space import Space
from ..transformations.transformation import DataTransformation
from ..utils.space_mapping import ActionMapping, SpaceMapping


class _OutgoingTransforms(Wrapper):
    """Contexts and observations on their way out. A transformation of None leaves them as they are."""

    _context_mapping: SpaceMapping | None = None
    _observation_mapping: SpaceMapping | None = None

    @property
    def context_transformation(self) -> DataTransformation | None:
        """What contexts of the environment below go through; assigning it changes `context_space`."""
        return None if self._context_mapping is None else self._context_mapping.transformation

    @context_transformation.setter
    def context_transformation(self, value: DataTransformation | None) -> None:
        if value is None:
            self._context_mapping = None
            self.__dict__.pop("_context_space", None)
            return
        if self.env.context_space is None:
            raise ValueError(f"{self.env!r} has no context_space, so there is no context to transform")
        self._context_mapping = SpaceMapping(value, self.env.context_space, self.env.batch_size)
        self.context_space = self._context_mapping.target_space

    @property
    def observation_transformation(self) -> DataTransformation | None:
        """What observations of the environment below go through; assigning it changes `observation_space`."""
        return None if self._observation_mapping is None else self._observation_mapping.transformation

    @observation_transformation.setter
    def observation_transformation(self, value: DataTransformation | None) -> None:
        if value is None:
            self._observation_mapping = None
            self.__dict__.pop("_observation_space", None)
            return
        self._observation_mapping = SpaceMapping(value, self.env.observation_space, self.env.batch_size)
        self.observation_space = self._observation_mapping.target_space

    def map_context(self, context: Any) -> Any:
        """A context of the environment below as one of this layer."""
        return context if self._context_mapping is None else self._context_mapping.forward(context)

    def reverse_map_context(self, context: Any) -> Any:
        """A context of this layer as one of the environment below."""
        return context if self._context_mapping is None else self._context_mapping.backward(context)

    def map_observation(self, observation: Any) -> Any:
        """An observation of the environment below as one of this layer."""
        return observation if self._observation_mapping is None else self._observation_mapping.forward(observation)

    def reverse_map_observation(self, observation: Any) -> Any:
        """An observation of this layer as one of the environment below."""
        return observation if self._observation_mapping is None else self._observation_mapping.backward(observation)

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        slots = None if mask is None else parse_mask(mask, self.env.batch_size, self.backend)
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        if self._context_mapping is not None:
            context = self._context_mapping.forward(context, slots)
        if self._observation_mapping is not None:
            observation = self._observation_mapping.forward(observation, slots)
        return context, observation, info


class _IncomingTransform(Wrapper):
    """Actions on their way in."""

    _action_mapping: ActionMapping | None = None

    @property
    def action_transformation(self) -> DataTransformation | None:
        """What turns an action of this layer into one of the environment below."""
        return None if self._action_mapping is None else self._action_mapping.transformation

    def set_action_transformation(
        self, action_transformation: DataTransformation | None = None, target_action_space: Space | None = None
    ) -> None:
        """Take `target_action_space` as the action space of this layer and transform its actions on their way in.

        Without `target_action_space` it is what the inverse transformation makes of the action space below, which
        not every inverse can say. Without a transformation actions are handed on as they are.
        """
        if action_transformation is None:
            if target_action_space is not None:
                raise ValueError("target_action_space is given without the action_transformation that leads from it")
            self._action_mapping = None
            self.__dict__.pop("_action_space", None)
            return
        self._action_mapping = ActionMapping(action_transformation, self.env.action_space, target_action_space)
        self.action_space = self._action_mapping.space

    def map_action(self, action: Any) -> Any:
        """An action of this layer as one of the environment below."""
        return action if self._action_mapping is None else self._action_mapping.inward(action)

    def reverse_map_action(self, action: Any) -> Any:
        """An action of the environment below as one of this layer."""
        return action if self._action_mapping is None else self._action_mapping.outward(action)


class TransformWrapper(_OutgoingTransforms, _IncomingTransform, Wrapper):
    """Passes contexts, observations and actions through transformations; None leaves them as they are.

    `context_transformation` and `observation_transformation` lead from the environment below to this layer,
    `action_transformation` from this layer, whose actions are those of `target_action_space`, to the environment
    below; see `set_action_transformation`.
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
        self.context_transformation = context_transformation
        self.observation_transformation = observation_transformation
        self.set_action_transformation(action_transformation, target_action_space)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(self.map_action(action))
        return self.map_observation(observation), reward, terminated, truncated, info


class ContextObservationTransformWrapper(_OutgoingTransforms, ContextObservationWrapper):
    """Passes contexts and observations through transformations; None leaves them as they are."""

    def __init__(
        self,
        env: Env,
        context_transformation: DataTransformation | None = None,
        observation_transformation: DataTransformation | None = None,
    ) -> None:
        super().__init__(env)
        self.context_transformation = context_transformation
        self.observation_transformation = observation_transformation


class ActionTransformWrapper(_IncomingTransform, ActionWrapper):
    """Takes actions of `target_action_space` and passes them through a transformation to the environment below."""

    def __init__(
        self, env: Env, action_transformation: DataTransformation, target_action_space: Space | None = None
    ) -> None:
        super().__init__(env)
        self.set_action_transformation(action_transformation, target_action_space)
