"""Flatten nested dictionaries to one level of joined keys, and back."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from ..space.space import Space
from ..utils.dict_util import check_separator, flat_items, nest_items
from ._nested import is_branch, rebuild, require_dict
from .serialization_utils import register_transformation
from .transformation import DataTransformation


def flatten_nested_mapping(data: Any, nested_separator: str) -> Any:
    """Flatten nested dicts, or a `DictSpace`, to one level whose keys are joined keys.

    An empty dict counts as a value. Raises a ValueError for keys that could not be split again.
    """
    return rebuild(data, flat_items(data, nested_separator, is_branch))


def unflatten_mapping(data: Any, nested_separator: str) -> Any:
    """Invert `flatten_nested_mapping`. Raises a ValueError if a key has a value and other keys below it."""
    return nest_items(data.items(), nested_separator, functools.partial(rebuild, data))


class _JoinedKeys(DataTransformation):
    """The base class of `FlattenDictTransformation` and `UnflattenDictTransformation`."""

    has_inverse = True

    def __init__(self, nested_separator: str = "/") -> None:
        self.nested_separator = check_separator(nested_separator)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {"nested_separator": self.nested_separator}

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> Self:
        return cls(json_data.get("nested_separator", "/"))


@register_transformation("flatten_dict")
class FlattenDictTransformation(_JoinedKeys):
    """Flattens nested dictionaries to one level: `{"a": {"b": x}}` becomes `{"a/b": x}`.

    Tuples, empty dictionaries and all other values do not change. Keys that contain the separator raise a ValueError,
    since the inverse could not split them.

    Parameters
    ----------
    nested_separator
        The separator between joined keys.

    Raises
    ------
    ValueError
        `nested_separator` is empty.

    Examples
    --------
    >>> space = DictSpace("numpy", {"obs": {"speed": BinarySpace("numpy", ())}})
    >>> FlattenDictTransformation().transform(space, {"obs": {"speed": np.array(True)}})
    {'obs/speed': array(True)}
    """

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return flatten_nested_mapping(require_dict(source_space, type(self).__name__), self.nested_separator)

    def transform(self, source_space: Space, data: Any) -> Any:
        return flatten_nested_mapping(data, self.nested_separator)

    def direction_inverse(self, source_space: Space | None = None) -> UnflattenDictTransformation:
        return UnflattenDictTransformation(self.nested_separator)


@register_transformation("unflatten_dict")
class UnflattenDictTransformation(_JoinedKeys):
    """Builds nested dictionaries from joined keys: `{"a/b": x}` becomes `{"a": {"b": x}}`.

    A key that has a value and other keys below it raises a ValueError. The inverse flattens all levels, and restores
    the source if it had one level.

    Parameters
    ----------
    nested_separator
        The separator at which keys are split.

    Raises
    ------
    ValueError
        `nested_separator` is empty.

    Examples
    --------
    >>> space = DictSpace("numpy", {"obs/speed": BinarySpace("numpy", ())})
    >>> UnflattenDictTransformation().transform(space, {"obs/speed": np.array(True)})
    {'obs': {'speed': array(True)}}
    """

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return unflatten_mapping(require_dict(source_space, type(self).__name__), self.nested_separator)

    def transform(self, source_space: Space, data: Any) -> Any:
        return unflatten_mapping(data, self.nested_separator)

    def direction_inverse(self, source_space: Space | None = None) -> FlattenDictTransformation:
        return FlattenDictTransformation(self.nested_separator)
