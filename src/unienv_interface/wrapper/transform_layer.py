"""Mixins that transform contexts, observations and actions, for `TransformWrapper` and `FuncTransformWrapper`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..space import Space
from ..transformations.space_mapping import SpaceMapping
from ..transformations.transformation import DataTransformation


class ActionMapping:
    """A transformation from actions of a layer to actions of the environment below.

    `space` is the action space of the layer; None derives it from the space below by the inverse transformation.
    """

    def __init__(self, transformation: DataTransformation, space_below: Space, space: Space | None) -> None:
        if space is None:
            space = _space_above(transformation, space_below)
        self._mapping = SpaceMapping(transformation, space, None)
        self.transformation = transformation
        self.space = space
        target = self._mapping.target_space
        if not target.is_subspaceeq(space_below):
            raise ValueError(
                f"{transformation!r} leads from {space!r} to {target!r}, which does not lie in {space_below!r}, the "
                "action space of the environment: pass another target_action_space, or a transformation that ends there"
            )

    def inward(self, action: Any) -> Any:
        """Map an action of the layer to an action of the environment below."""
        return self._mapping.forward(action)

    def outward(self, action: Any) -> Any:
        """Map an action of the environment below to an action of the layer."""
        return self._mapping.backward(action)


def _space_above(transformation: DataTransformation, space_below: Space) -> Space:
    try:
        return transformation.direction_inverse().get_target_space_from_source(space_below)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{transformation!r} does not determine its action space: pass target_action_space") from error


class _Layer:
    """The attributes of a wrapper that the mixins below use."""

    @property
    def _below(self) -> Any:
        """The environment below."""
        raise NotImplementedError

    def _set_space(self, name: str, space: Space | None) -> None:
        """Override the space of the layer below; None removes the override. `ForwardingLayer` reads `_{name}`."""
        if space is None:
            self.__dict__.pop(f"_{name}", None)
        else:
            self.__dict__[f"_{name}"] = space


class OutgoingTransforms(_Layer):
    """Mixin that transforms contexts and observations; a transformation of None changes nothing."""

    _context_mapping: SpaceMapping | None = None
    _observation_mapping: SpaceMapping | None = None

    @property
    def context_transformation(self) -> DataTransformation | None:
        """The transformation of contexts; assigning it changes `context_space`."""
        return None if self._context_mapping is None else self._context_mapping.transformation

    @context_transformation.setter
    def context_transformation(self, value: DataTransformation | None) -> None:
        self._context_mapping = self._bind(value, "context_space")

    @property
    def observation_transformation(self) -> DataTransformation | None:
        """The transformation of observations; assigning it changes `observation_space`."""
        return None if self._observation_mapping is None else self._observation_mapping.transformation

    @observation_transformation.setter
    def observation_transformation(self, value: DataTransformation | None) -> None:
        self._observation_mapping = self._bind(value, "observation_space")

    def _bind(self, transformation: DataTransformation | None, name: str) -> SpaceMapping | None:
        if transformation is None:
            self._set_space(name, None)
            return None
        source = getattr(self._below, name)
        if source is None:
            raise ValueError(f"{self._below!r} has no {name}, so there is nothing for {transformation!r} to transform")
        mapping = SpaceMapping(transformation, source, self._below.batch_size)
        self._set_space(name, mapping.target_space)
        return mapping

    def map_context(self, context: Any) -> Any:
        """Map a context of the environment below to a context of this layer."""
        return _forward(self._context_mapping, context, None)

    def reverse_map_context(self, context: Any) -> Any:
        """Map a context of this layer to a context of the environment below."""
        return context if self._context_mapping is None else self._context_mapping.backward(context)

    def map_observation(self, observation: Any) -> Any:
        """Map an observation of the environment below to an observation of this layer."""
        return _forward(self._observation_mapping, observation, None)

    def reverse_map_observation(self, observation: Any) -> Any:
        """Map an observation of this layer to an observation of the environment below."""
        return observation if self._observation_mapping is None else self._observation_mapping.backward(observation)

    def _map_reset(self, context: Any, observation: Any, slots: np.ndarray | None) -> tuple[Any, Any]:
        """Transform the context and the observation that a reset of `slots` returned."""
        return _forward(self._context_mapping, context, slots), _forward(self._observation_mapping, observation, slots)


def _forward(mapping: SpaceMapping | None, data: Any, slots: np.ndarray | None) -> Any:
    return data if mapping is None else mapping.forward(data, slots)


class IncomingTransform(_Layer):
    """Mixin that transforms actions."""

    _action_mapping: ActionMapping | None = None

    @property
    def action_transformation(self) -> DataTransformation | None:
        """The transformation from actions of this layer to actions of the environment below."""
        return None if self._action_mapping is None else self._action_mapping.transformation

    def set_action_transformation(
        self, action_transformation: DataTransformation | None = None, target_action_space: Space | None = None
    ) -> None:
        """Set the action space of this layer and the transformation of its actions.

        By default the inverse transformation derives `target_action_space` from the action space below; raises a
        ValueError if it cannot. Without a transformation, actions do not change.
        """
        if action_transformation is not None:
            self._action_mapping = ActionMapping(action_transformation, self._below.action_space, target_action_space)
            self._set_space("action_space", self._action_mapping.space)
        elif target_action_space is None:
            self._action_mapping = None
            self._set_space("action_space", None)
        else:
            raise ValueError("target_action_space is given without the action_transformation that leads from it")

    def map_action(self, action: Any) -> Any:
        """Map an action of this layer to an action of the environment below."""
        return action if self._action_mapping is None else self._action_mapping.inward(action)

    def reverse_map_action(self, action: Any) -> Any:
        """Map an action of the environment below to an action of this layer."""
        return action if self._action_mapping is None else self._action_mapping.outward(action)
