"""`SpaceMapping`: a transformation bound to its source space."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..space import Space
from ..space.space_utils.row_spaces import RowSpaces
from .transformation import DataTransformation


class SpaceMapping:
    """A transformation bound to its source space, for whole batches or some of their rows."""

    def __init__(self, transformation: DataTransformation, source_space: Space, batch_size: int | None) -> None:
        self.transformation = transformation
        self.source_space = source_space
        self.target_space: Space = transformation.get_target_space_from_source(source_space)
        self._rows = None if batch_size is None else RowSpaces(source_space)
        self._inverse: DataTransformation | None = None

    def forward(self, data: Any, slots: np.ndarray | None = None) -> Any:
        """Transform a value; with the NumPy mask `slots`, `data` holds only the rows of these slots."""
        source = self.source_space if slots is None or self._rows is None else self._rows.of(slots)
        return self.transformation.transform(source, data)

    def backward(self, data: Any) -> Any:
        """Transform a value of the target space back to the source space."""
        if self._inverse is None:
            self._inverse = self.transformation.direction_inverse(self.source_space)
        return self._inverse.transform(self.target_space, data)
