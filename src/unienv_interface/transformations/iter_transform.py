"""Transformations of every leaf of a nested space."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..space.space import Space
from ..space.spaces import CompositeSpace
from ._nested import call_at, field_paths, overlap, with_children
from .serialization_utils import (
    json_to_transformation,
    read_setting,
    register_transformation,
    transformation_to_json,
)
from .transformation import DataTransformation, KeyPath, require_transformation

LeafFunction = Callable[[Space], bool]

_leaf_functions: dict[str, LeafFunction] = {}
# Names that the reference implementation writes, and the names of these functions here.
_REFERENCE_NAMES = {"unienv_interface.transformations.iter_transform.default_is_leaf_fn": "default"}


def register_leaf_function(name: str, function: LeafFunction) -> LeafFunction:
    """Register a leaf function under its name in JSON.

    Parameters
    ----------
    name
        The name in stored JSON, which must never change.
    function
        The function, which returns whether a space is a leaf.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    ValueError
        The name stands for another function.

    Examples
    --------
    >>> def is_array(space):
    ...     return isinstance(space, BoxSpace)
    >>> is_array = register_leaf_function("my_project.is_array", is_array)
    >>> rescale = IterativeTransformation(RescaleTransformation(0.0, 1.0, "float32"), is_leaf_node_fn=is_array)
    >>> json_to_transformation(transformation_to_json(rescale)).is_leaf_node_fn is is_array
    True
    """
    if _leaf_functions.setdefault(name, function) is not function:
        raise ValueError(f"there is a leaf function {name!r} already")
    return function


def default_is_leaf_fn(space: Space) -> bool:
    """Whether a space is neither a dictionary nor a tuple of spaces."""
    return not isinstance(space, CompositeSpace)


register_leaf_function("default", default_is_leaf_fn)


def find_leaf_source_space(source_space: Space | None, is_leaf_node_fn: LeafFunction) -> Any:
    """The first leaf of a space, or None."""
    return None if source_space is None else next(_leaves(source_space, is_leaf_node_fn), None)


def _leaves(space: Space, is_leaf: LeafFunction) -> Iterator[Space]:
    if is_leaf(space):
        yield space
    else:
        for child in _require_composite(space).children:
            yield from _leaves(child, is_leaf)


def _leaf_sources(source_space: Space | None, is_leaf: LeafFunction, count: int) -> list[Any]:
    """The leaves of a space, which must have `count` leaves; without a space, a list of `count` times None."""
    if source_space is None:
        return [None] * count
    leaves = list(_leaves(source_space, is_leaf))
    if len(leaves) != count:
        raise ValueError(f"{source_space} has {len(leaves)} leaves for {count} transformations")
    return leaves


def _require_composite(space: Space) -> CompositeSpace:
    if not isinstance(space, CompositeSpace):
        raise TypeError(f"the leaf function says that {space} is not a leaf, but it has no children to go on to")
    return space


def _leaf_function_name(function: LeafFunction) -> str:
    for name, known in _leaf_functions.items():
        if known is function:
            return name
    label = getattr(function, "__qualname__", repr(function))
    raise ValueError(
        f"the leaf function {label} is not registered, so no JSON can stand for it: see register_leaf_function"
    )


def _leaf_function(stored: Any) -> LeafFunction:
    """Look up a leaf function by its name in JSON; never imports or unpickles."""
    name = stored
    if isinstance(stored, Mapping):  # the format of the reference implementation
        if stored.get("mode") != "name":
            raise ValueError(
                f"a leaf function in mode {stored.get('mode')!r} is refused: it would run code from the data"
            )
        name = next((value for key, value in stored.items() if key != "mode"), None)
    function = _leaf_functions.get(_REFERENCE_NAMES.get(name, name)) if isinstance(name, str) else None
    if function is None:
        raise ValueError(
            f"unknown leaf function {name!r}, known are {sorted(_leaf_functions)}: see register_leaf_function"
        )
    return function


class _LeafTransformation(DataTransformation):
    """The base class of `IterativeTransformation` and `LeafwiseTransformation`, which walks to the leaves.

    Leaves have the canonical order of their spaces, with sorted keys of dictionaries.
    """

    def __init__(self, is_leaf_node_fn: LeafFunction, inv_is_leaf_node_fn: LeafFunction) -> None:
        self.is_leaf_node_fn = is_leaf_node_fn
        self.inv_is_leaf_node_fn = inv_is_leaf_node_fn

    @abc.abstractmethod
    def _per_leaf(self) -> Iterator[DataTransformation]:
        """The transformations of the first leaf, the second, and so on."""

    def get_target_space_from_source(self, source_space: Space) -> Any:
        return self._target(source_space, self._per_leaf())

    def _target(self, space: Space, per_leaf: Iterator[DataTransformation]) -> Any:
        if self.is_leaf_node_fn(space):
            return next(per_leaf).get_target_space_from_source(space)
        composite = _require_composite(space)
        return with_children(
            composite, [call_at(key, self._target, child, per_leaf) for key, child in composite.child_items()]
        )

    def transform(self, source_space: Space, data: Any) -> Any:
        return self._walk(source_space, data, self._per_leaf())

    def _walk(self, space: Space, data: Any, per_leaf: Iterator[DataTransformation]) -> Any:
        if self.is_leaf_node_fn(space):
            return next(per_leaf).transform(space, data)
        composite = _require_composite(space)
        pairs = zip(composite.child_items(), composite.child_values(data), strict=True)
        return composite.build_value(
            [call_at(key, self._walk, child, value, per_leaf) for (key, child), value in pairs]
        )

    def _serialize_leaf_functions(self) -> dict[str, str]:
        return {
            "is_leaf_node_fn": _leaf_function_name(self.is_leaf_node_fn),
            "inv_is_leaf_node_fn": _leaf_function_name(self.inv_is_leaf_node_fn),
        }


def _read_leaf_functions(json_data: Mapping[str, Any]) -> tuple[LeafFunction, LeafFunction]:
    return (
        _leaf_function(json_data.get("is_leaf_node_fn", "default")),
        _leaf_function(json_data.get("inv_is_leaf_node_fn", "default")),
    )


@register_transformation("iterative")
class IterativeTransformation(_LeafTransformation):
    """Applies one transformation to every leaf of nested dictionaries and tuples; the structure does not change.

    If the spaces of the leaves differ, the inverse is a `LeafwiseTransformation`.

    Parameters
    ----------
    transformation
        The transformation of every leaf.
    is_leaf_node_fn
        A function that returns whether a space in the source is a leaf.
    inv_is_leaf_node_fn
        The same for the target, used by the inverse.

    Raises
    ------
    TypeError
        `transformation` is no `DataTransformation`.

    Examples
    --------
    >>> space = DictSpace("numpy", {"cam": BoxSpace("numpy", 0, 255, "uint8", shape=(2,))})
    >>> rescale = IterativeTransformation(RescaleTransformation(0.0, 1.0, "float32"))
    >>> rescale.transform(space, {"cam": np.array([0, 255], np.uint8)})
    {'cam': array([0., 1.], dtype=float32)}
    """

    def __init__(
        self,
        transformation: DataTransformation,
        is_leaf_node_fn: LeafFunction = default_is_leaf_fn,
        inv_is_leaf_node_fn: LeafFunction = default_is_leaf_fn,
    ) -> None:
        super().__init__(is_leaf_node_fn, inv_is_leaf_node_fn)
        self.transformation = require_transformation("transformation", transformation)
        self.has_inverse = transformation.has_inverse

    def _per_leaf(self) -> Iterator[DataTransformation]:
        return itertools.repeat(self.transformation)

    def narrow(
        self, source_space: Space, paths: Collection[KeyPath]
    ) -> tuple[list[KeyPath], DataTransformation] | None:
        if self.is_leaf_node_fn is not default_is_leaf_fn:
            return None
        fields = field_paths(source_space)
        return [field for field in fields if any(overlap(field, path) for path in paths)], self

    def direction_inverse(self, source_space: Space | None = None) -> DataTransformation:
        leaves = [] if source_space is None else list(_leaves(source_space, self.is_leaf_node_fn))
        swapped = (self.inv_is_leaf_node_fn, self.is_leaf_node_fn)
        if all(leaf == leaves[0] for leaf in leaves):
            return IterativeTransformation(self.transformation.direction_inverse(next(iter(leaves), None)), *swapped)
        return LeafwiseTransformation([self.transformation.direction_inverse(leaf) for leaf in leaves], *swapped)

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        leaf = find_leaf_source_space(source_space, self.is_leaf_node_fn)
        return {
            "transformation": transformation_to_json(self.transformation, leaf),
            **self._serialize_leaf_functions(),
        }

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> IterativeTransformation:
        is_leaf, inv_is_leaf = _read_leaf_functions(json_data)
        inner = read_setting(json_data, "transformation", cls)
        leaf = find_leaf_source_space(source_space, is_leaf)
        return cls(json_to_transformation(inner, leaf), is_leaf, inv_is_leaf)

    def close(self) -> None:
        self.transformation.close()


@register_transformation("leafwise")
class LeafwiseTransformation(_LeafTransformation):
    """Applies a different transformation to each leaf of nested dictionaries and tuples.

    Parameters
    ----------
    transformations
        One for each leaf, in the order of the leaves.
    is_leaf_node_fn, inv_is_leaf_node_fn
        As for `IterativeTransformation`.

    Raises
    ------
    TypeError
        `transformation` is no `DataTransformation`.

    Examples
    --------
    >>> images, state = BoxSpace("numpy", 0, 255, "uint8", shape=(2,)), BoxSpace("numpy", -1, 1, "float32", shape=(2,))
    >>> space = DictSpace("numpy", {"cam": images, "state": state})
    >>> mapping = LeafwiseTransformation([RescaleTransformation(0.0, 1.0, "float32"), IdentityTransformation()])
    >>> mapping.transform(space, {"cam": np.array([0, 255], np.uint8), "state": np.ones(2, np.float32)})
    {'cam': array([0., 1.], dtype=float32), 'state': array([1., 1.], dtype=float32)}
    """

    def __init__(
        self,
        transformations: Iterable[DataTransformation],
        is_leaf_node_fn: LeafFunction = default_is_leaf_fn,
        inv_is_leaf_node_fn: LeafFunction = default_is_leaf_fn,
    ) -> None:
        super().__init__(is_leaf_node_fn, inv_is_leaf_node_fn)
        self.transformations = tuple(
            require_transformation(position, member) for position, member in enumerate(transformations)
        )
        self.has_inverse = all(transformation.has_inverse for transformation in self.transformations)

    def _per_leaf(self) -> Iterator[DataTransformation]:
        yield from self.transformations
        raise ValueError(f"the space has more leaves than the {len(self.transformations)} transformations")

    def get_target_space_from_source(self, source_space: Space) -> Any:
        self._sources(source_space)
        return super().get_target_space_from_source(source_space)

    def direction_inverse(self, source_space: Space | None = None) -> LeafwiseTransformation:
        pairs = zip(self.transformations, self._sources(source_space), strict=True)
        inverses = [transformation.direction_inverse(source) for transformation, source in pairs]
        return LeafwiseTransformation(inverses, self.inv_is_leaf_node_fn, self.is_leaf_node_fn)

    def _sources(self, source_space: Space | None) -> list[Any]:
        return _leaf_sources(source_space, self.is_leaf_node_fn, len(self.transformations))

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        pairs = zip(self.transformations, self._sources(source_space), strict=True)
        return {
            "transformations": [transformation_to_json(transformation, source) for transformation, source in pairs],
            **self._serialize_leaf_functions(),
        }

    @classmethod
    def deserialize_from(
        cls, json_data: Mapping[str, Any], source_space: Space | None = None
    ) -> LeafwiseTransformation:
        is_leaf, inv_is_leaf = _read_leaf_functions(json_data)
        stored = read_setting(json_data, "transformations", cls)
        leaves = _leaf_sources(source_space, is_leaf, len(stored))
        members = [json_to_transformation(child, leaf) for child, leaf in zip(stored, leaves, strict=True)]
        return cls(members, is_leaf, inv_is_leaf)

    def close(self) -> None:
        for transformation in self.transformations:
            transformation.close()
