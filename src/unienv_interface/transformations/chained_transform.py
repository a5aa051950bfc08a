"""`ChainedTransformation`: transformations applied one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..space.space import Space
from ._nested import call_at
from ._space_cache import SpaceCache
from .serialization_utils import (
    json_to_transformation,
    read_setting,
    register_transformation,
    transformation_to_json,
)
from .transformation import DataTransformation, KeyPath, require_transformation


@register_transformation("chained")
class ChainedTransformation(DataTransformation):
    """Applies transformations in order, each to the result of the one before. An empty chain is the identity.

    Parameters
    ----------
    transformations
        The transformations, in the order in which they are applied.

    Raises
    ------
    TypeError
        A member is no `DataTransformation`.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(2,))
    >>> chain = ChainedTransformation([RescaleTransformation(0.0, 1.0, "float32"), CropTransformation(0.0, 0.5)])
    >>> chain.transform(space, np.array([0, 255], np.uint8))
    array([0. , 0.5], dtype=float32)
    """

    def __init__(self, transformations: Iterable[DataTransformation]) -> None:
        self.transformations = tuple(
            require_transformation(position, member) for position, member in enumerate(transformations)
        )
        self.has_inverse = all(transformation.has_inverse for transformation in self.transformations)
        self._spaces: SpaceCache[tuple[Any, ...]] = SpaceCache()

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return self._spaces_along(source_space)[-1]

    def transform(self, source_space: Space, data: Any) -> Any:
        spaces = self._spaces.get(source_space, source_space.device, self._make_plan)
        for transformation, space in zip(self.transformations, spaces, strict=False):
            data = transformation.transform(space, data)
        return data

    def _make_plan(self, source_space: Space, device: Any) -> tuple[Any, ...]:
        return self._spaces_along(source_space)

    def _spaces_along(self, source_space: Space) -> tuple[Any, ...]:
        """The source space of each transformation, then the target space of the last one."""
        spaces: list[Any] = [source_space]
        for position, transformation in enumerate(self.transformations):
            spaces.append(call_at(f"[{position}]", transformation.get_target_space_from_source, spaces[-1]))
        return tuple(spaces)

    def direction_inverse(self, source_space: Space | None = None) -> ChainedTransformation:
        sources = self._sources(source_space)
        pairs = zip(self.transformations, sources, strict=True)
        inverses = [transformation.direction_inverse(source) for transformation, source in pairs]
        return ChainedTransformation(reversed(inverses))

    def _sources(self, source_space: Space | None) -> tuple[Any, ...]:
        if source_space is None:
            return (None,) * len(self.transformations)
        return self._spaces_along(source_space)[:-1]

    def narrow(self, source_space: Space, paths: Collection[KeyPath]) -> tuple[list[KeyPath], DataTransformation]:
        members: list[DataTransformation] = []
        needed = list(paths)
        pairs = zip(self.transformations, self._sources(source_space), strict=True)
        for transformation, source in reversed(list(pairs)):
            needed, member = transformation.narrow(source, needed) or ([()], transformation)
            members.insert(0, member)
        return needed, ChainedTransformation(members)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        pairs = zip(self.transformations, self._sources(source_space), strict=True)
        return {"transformations": [transformation_to_json(member, source) for member, source in pairs]}

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> ChainedTransformation:
        members = []
        for child in read_setting(json_data, "transformations", cls):
            members.append(json_to_transformation(child, source_space))
            if source_space is not None:
                source_space = members[-1].get_target_space_from_source(source_space)
        return cls(members)

    def close(self) -> None:
        for transformation in self.transformations:
            transformation.close()
