"""`DictTransformation`: transform some values of a dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..space.space import Space
from ..utils.dict_util import check_separator
from ._nested import call_at, field_paths, has_key, overlap, replace_child, require_dict, require_key
from .serialization_utils import (
    json_to_transformation,
    read_setting,
    register_transformation,
    transformation_to_json,
)
from .transformation import DataTransformation, KeyPath, require_transformation


def get_chained_value(data: Any, chained_key: list[str], ignore_missing_keys: bool = False) -> Any:
    """The value at the end of a chain of keys, in nested dicts or in a `DictSpace`.

    A missing key is a KeyError, or with `ignore_missing_keys` the result is None.
    """
    for depth, key in enumerate(chained_key):
        if ignore_missing_keys and not has_key(data, key):
            return None
        require_key(data, chained_key, depth)
        data = data[key]
    return data


def call_function_on_chained_dict(
    data: Any, chained_key: list[str], function: Callable[[Any], Any], ignore_missing_keys: bool = False
) -> Any:
    """Replace the value at the end of a chain of keys, in nested dicts or a `DictSpace`, by `function` of it.

    The dicts that contain the value are copied. A missing key raises a KeyError, or with `ignore_missing_keys` the
    result is `data` itself.
    """
    return _replace(data, None, chained_key, 0, lambda _, value: function(value), ignore_missing_keys)


def call_conditioned_function_on_chained_dict(
    space: Any,
    data: Any,
    chained_key: list[str],
    function: Callable[[Any, Any], Any],
    ignore_missing_keys: bool = False,
) -> Any:
    """`call_function_on_chained_dict` with `function(space, value)`, where `space` is the space at the same keys."""
    return _replace(data, space, chained_key, 0, function, ignore_missing_keys)


def _replace(
    data: Any, space: Any, keys: list[str], depth: int, function: Callable[[Any, Any], Any], ignore_missing_keys: bool
) -> Any:
    if depth == len(keys):
        return function(space, data)
    key = keys[depth]
    if ignore_missing_keys and not has_key(data, key):
        return data
    require_key(data, keys, depth)
    if space is not None:
        require_key(space, keys, depth)
    child_space = None if space is None else space[key]
    child = call_at(key, _replace, data[key], child_space, keys, depth + 1, function, ignore_missing_keys)
    return data if child is data[key] else replace_child(data, key, child)


def get_mapping_source_space(
    source_space: Space | None, mapping_key: str, nested_separator: str, ignore_missing_keys: bool
) -> Any:
    """The space at a joined key; None without a source space, or if the key is missing and `ignore_missing_keys`."""
    if source_space is None:
        return None
    return get_chained_value(source_space, mapping_key.split(nested_separator), ignore_missing_keys)


@register_transformation("dict")
class DictTransformation(DataTransformation):
    """Applies transformations to some keys of a dictionary; the other values pass through.

    Parameters
    ----------
    mapping
        The transformations by key. For nested dictionaries, join the keys of all levels with `nested_separator`.
    ignore_missing_keys
        Skip keys that the source lacks; by default a missing key raises a KeyError.
    nested_separator
        The separator between keys of nested dictionaries.

    Raises
    ------
    ValueError
        A key lies below another one, or `nested_separator` is empty.
    TypeError
        A value is no `DataTransformation`.

    Examples
    --------
    >>> space = DictSpace("numpy", {"cam": BoxSpace("numpy", 0, 255, "uint8", shape=(2,))})
    >>> transformation = DictTransformation({"cam": RescaleTransformation(0.0, 1.0, "float32")})
    >>> transformation.transform(space, {"cam": np.array([0, 255], np.uint8)})
    {'cam': array([0., 1.], dtype=float32)}
    """

    def __init__(
        self,
        mapping: Mapping[str, DataTransformation],
        ignore_missing_keys: bool = False,
        nested_separator: str = "/",
    ) -> None:
        self.mapping = {key: require_transformation(key, member) for key, member in mapping.items()}
        self.ignore_missing_keys = ignore_missing_keys
        self.nested_separator = check_separator(nested_separator)
        _check_no_overlap([key.split(nested_separator) for key in self.mapping])
        self.has_inverse = all(transformation.has_inverse for transformation in self.mapping.values())

    def get_target_space_from_source(self, source_space: Space) -> Any:
        target: Any = require_dict(source_space, type(self).__name__)
        for key, transformation in self.mapping.items():
            target = call_function_on_chained_dict(
                target,
                key.split(self.nested_separator),
                transformation.get_target_space_from_source,
                self.ignore_missing_keys,
            )
        return target

    def transform(self, source_space: Space, data: Any) -> Any:
        for key, transformation in self.mapping.items():
            data = call_conditioned_function_on_chained_dict(
                source_space,
                data,
                key.split(self.nested_separator),
                transformation.transform,
                self.ignore_missing_keys,
            )
        return data

    def direction_inverse(self, source_space: Space | None = None) -> DictTransformation:
        inverses = {}
        for key, transformation in self.mapping.items():
            child = self._source_space_of(key, source_space)
            if child is not None or source_space is None:  # else the key is missing
                inverses[key] = call_at(key, transformation.direction_inverse, child)
        return DictTransformation(inverses, self.ignore_missing_keys, self.nested_separator)

    def _source_space_of(self, key: str, source_space: Space | None) -> Any:
        return get_mapping_source_space(source_space, key, self.nested_separator, self.ignore_missing_keys)

    def narrow(
        self, source_space: Space, paths: Collection[KeyPath]
    ) -> tuple[list[KeyPath], DataTransformation] | None:
        by_path = {tuple(key.split(self.nested_separator)): key for key in self.mapping}
        needed, used = [], {}
        for field in field_paths(source_space):
            above = next((path for path in by_path if overlap(path, field)), None)
            # a transformation needs all fields of its value
            if any(overlap(field if above is None else above, path) for path in paths):
                needed.append(field)
                if above is not None:
                    used[by_path[above]] = self.mapping[by_path[above]]
        return needed, DictTransformation(used, self.ignore_missing_keys, self.nested_separator)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {
            "mapping": {
                key: transformation_to_json(transformation, self._source_space_of(key, source_space))
                for key, transformation in self.mapping.items()
            },
            "ignore_missing_keys": self.ignore_missing_keys,
            "nested_separator": self.nested_separator,
        }

    @classmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> DictTransformation:
        ignore_missing_keys = json_data.get("ignore_missing_keys", False)
        separator = check_separator(json_data.get("nested_separator", "/"))
        mapping = {
            key: json_to_transformation(
                child, get_mapping_source_space(source_space, key, separator, ignore_missing_keys)
            )
            for key, child in read_setting(json_data, "mapping", cls).items()
        }
        return cls(mapping, ignore_missing_keys, separator)

    def close(self) -> None:
        for transformation in self.mapping.values():
            transformation.close()


def _check_no_overlap(chained_keys: list[list[str]]) -> None:
    """Raise a ValueError for a key below another key: the result would depend on their order."""
    for above, below in itertools.permutations(chained_keys, 2):
        if below[: len(above)] == above:
            inner, outer = "/".join(below), "/".join(above)
            raise ValueError(f"{inner!r} lies below {outer!r}: put one DictTransformation after the other instead")
