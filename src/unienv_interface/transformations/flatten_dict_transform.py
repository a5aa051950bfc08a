"""Nested dictionaries to flat ones with joined keys, and back."""

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
    """Nested dicts, or a `DictSpace`, as one level whose keys are the joined keys on the way to each value.

    An empty dict inside counts as a value. A ValueError if the keys could not be told apart again.
    """
    return rebuild(data, flat_items(data, nested_separator, is_branch))


def unflatten_mapping(data: Any, nested_separator: str) -> Any:
    """The inverse of `flatten_nested_mapping`. A ValueError if a key is both a value and a parent of others."""
    return nest_items(data.items(), nested_separator, functools.partial(rebuild, data))


class _JoinedKeys(DataTransformation):
    """The base of the two directions."""

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

    Tuples and all other values stay as they are, and so does an empty dictionary. Keys that contain the separator are
    a ValueError, since the inverse could not tell them apart.

    Parameters
    ----------
    nested_separator
        What joins the keys.

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

    A key that has a value of its own and others below it is a ValueError. The inverse makes one level of everything,
    which is the source again if that had one level.

    Parameters
    ----------
    nested_separator
        What the keys are split at.

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
