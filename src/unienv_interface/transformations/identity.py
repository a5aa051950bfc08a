"""`IdentityTransformation`: the transformation that changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..space.space import Space
from .serialization_utils import register_transformation
from .transformation import DataTransformation, KeyPath


@register_transformation("identity")
class IdentityTransformation(DataTransformation):
    """Returns the space and the data unchanged; its own inverse.

    Examples
    --------
    >>> IdentityTransformation().transform(BinarySpace("numpy", ()), np.array(True))
    array(True)
    """

    has_inverse = True

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return source_space

    def transform(self, source_space: Space, data: Any) -> Any:
        return data

    def direction_inverse(self, source_space: Space | None = None) -> IdentityTransformation:
        return self

    def narrow(self, source_space: Space, paths: Collection[KeyPath]) -> tuple[list[KeyPath], DataTransformation]:
        return list(paths), self

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {}

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> IdentityTransformation:
        return cls()
