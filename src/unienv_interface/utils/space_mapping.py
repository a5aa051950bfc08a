"""Transformations bound to the spaces they lead between."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..space import Space
from ..transformations.transformation import DataTransformation
from .row_spaces import RowSpaces


class SpaceMapping:
    """A transformation bound to its source space, also where only some rows of a batch are at hand."""

    def __init__(self, transformation: DataTransformation, source_space: Space, batch_size: int | None) -> None:
        self.transformation = transformation
        self.source_space = source_space
        self.target_space: Space = transformation.get_target_space_from_source(source_space)
        self._rows = None if batch_size is None else RowSpaces(source_space)
        self._inverse: DataTransformation | None = None

    def forward(self, data: Any, slots: np.ndarray | None = None) -> Any:
        """A value of the target space; with `slots`, a host mask, `data` holds the rows of these slots only."""
        source = self.source_space if slots is None or self._rows is None else self._rows.of(slots)
        return self.transformation.transform(source, data)

    def backward(self, data: Any) -> Any:
        """The value of the source space that `forward` made `data` of."""
        if self._inverse is None:
            self._inverse = self.transformation.direction_inverse(self.source_space)
        return self._inverse.transform(self.target_space, data)


class ActionMapping:
    """A transformation from the actions of a layer to those of the environment below it.

    `space` is the action space of the layer: the one given, or what the inverse makes of the space below.
    """

    def __init__(self, transformation: DataTransformation, space_below: Space, space: Space | None) -> None:
        if space is None:
            space = _space_above(transformation, space_below)
        self._mapping = SpaceMapping(transformation, space, None)
        self.transformation = transformation
        self.space = space
        reached = self._mapping.target_space
        if not reached.is_subspaceeq(space_below):
            raise ValueError(
                f"{transformation!r} leads from {space!r} to {reached!r}, which does not lie in {space_below!r}, the "
                "action space of the environment: pass another target_action_space, or a transformation that ends there"
            )

    def inward(self, action: Any) -> Any:
        """An action of the layer as one of the environment below."""
        return self._mapping.forward(action)

    def outward(self, action: Any) -> Any:
        """An action of the environment below as one of the layer."""
        return self._mapping.backward(action)


def _space_above(transformation: DataTransformation, space_below: Space) -> Space:
    try:
        return transformation.direction_inverse().get_target_space_from_source(space_below)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"which actions {transformation!r} takes does not follow from it: pass target_action_space"
        ) from error
