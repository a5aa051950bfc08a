"""Convert spaces to JSON and back.

The JSON of a space names no backend, no device and no Python class: it can be read for every backend and device, and
reading imports and runs no code. Bounds have one entry along axes on which they do not vary. Numbers are exact for
every dtype, and infinities are the tokens that Python's json module writes and reads.

JSON from untrusted sources is safe to read: every error in it raises a ValueError with the path.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from ...backends import dtypes
from ...backends.base import ComputeBackend
from ...backends.numpy import NumpyComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ..dispatch import rule_per_space
from ..mismatch import at_path, join_path
from ..space import Space
from ..spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)

__all__ = ["json_to_space", "register_json_reader", "space_to_json"]

FORMAT_VERSION = 1
# A deeper nested space is an attack or an error; reading it could exhaust the stack.
MAX_DEPTH = 64

Reader = Callable[["SpaceJson"], Space]
_readers: dict[str, Reader] = {}


def space_to_json(space: Space) -> dict[str, Any]:
    """Convert a space to an object that `json.dumps` takes.

    A kind of space of your own registers its fields with `space_fields.register`.

    Parameters
    ----------
    space
        The space.

    Returns
    -------
    dict
        The object, which names no backend and no device.

    Raises
    ------
    ValueError
        The space is nested too deeply to be read back.

    Examples
    --------
    >>> space = BinarySpace("numpy", shape=(2,))
    >>> json_to_space(space_to_json(space), "numpy") == space
    True
    """
    try:
        node = space_node(space)
        too_deep = _levels(node) > MAX_DEPTH
    except RecursionError:
        too_deep = True
    if too_deep:
        raise ValueError(f"the space is nested deeper than {MAX_DEPTH} levels, json_to_space would refuse its JSON")
    return {"version": FORMAT_VERSION, **node}


def _levels(node: Any) -> int:
    """The number of nested spaces in the JSON of a space, or in one of its fields."""
    if isinstance(node, Mapping):
        return isinstance(node.get("type"), str) + max(map(_levels, node.values()), default=0)
    holds_nodes = isinstance(node, list) and node and isinstance(node[0], Mapping)
    return max(map(_levels, node)) if holds_nodes else 0


def space_node(space: Space) -> dict[str, Any]:
    """The JSON of a child space; `space_fields` of the outer space calls it for its children."""
    return {"type": type(space).__name__, **space_fields(space)}


@rule_per_space
def space_fields(space: Space) -> dict[str, Any]:  # type: ignore[empty-body]
    """The fields of a space's JSON, without the type."""


def json_to_space(json_data: Any, map_backend: BackendLike, map_device: Any = None) -> Any:
    """Read a space from the JSON object of `space_to_json`.

    Parameters
    ----------
    json_data
        The object; it may come from an untrusted source.
    map_backend, map_device
        The backend and the device of the space.

    Returns
    -------
    Space
        The space.

    Raises
    ------
    ValueError
        The object is not the JSON of a space; the message says where.

    Examples
    --------
    >>> json_data = space_to_json(BinarySpace("numpy", shape=(2,)))
    >>> json_to_space(json_data, "torch").backend.simplified_name
    'pytorch'
    """
    version = json_data.get("version", FORMAT_VERSION) if isinstance(json_data, Mapping) else FORMAT_VERSION
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(
            f"format version {reprlib.repr(version)} of a space, this release reads up to {FORMAT_VERSION}"
        )
    return SpaceJson(json_data, parse_backend(map_backend), map_device).read()


def register_json_reader(kind: str) -> Callable[[Reader], Reader]:
    """Register a reader for the JSON of a kind of space.

    Parameters
    ----------
    kind
        The type in the JSON: the name of the class.

    Returns
    -------
    callable
        A decorator of the reader, a function from a `SpaceJson` to the space. Errors of the reader (ValueError,
        TypeError, LookupError and similar) become a ValueError with the path.

    Raises
    ------
    ValueError
        From the decorator, if the kind has another reader already.

    Examples
    --------
    >>> class Angle(BoxSpace):
    ...     def __init__(self, backend, device=None):
    ...         super().__init__(backend, -3.2, 3.2, np.float32, device=device, shape=())
    >>> reader = register_json_reader("Angle")(lambda json: Angle(json.backend, json.device))
    >>> isinstance(json_to_space({"type": "Angle"}, "numpy"), Angle)
    True
    """

    def register(reader: Reader) -> Reader:
        if _readers.setdefault(kind, reader) is not reader:
            raise ValueError(f"there is a reader for {kind!r} already")
        return reader

    return register


class _LocatedError(ValueError):
    """An error whose text already begins with its path."""


class SpaceJson:
    """One node of the JSON of a space, with the backend and device of the space to make."""

    def __init__(self, node: Any, backend: ComputeBackend, device: Any, path: str = "", depth: int = 0) -> None:
        self.node, self.backend, self.device, self.path, self._depth = node, backend, device, path, depth
        if depth >= MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH} levels")
        if not isinstance(node, Mapping):
            raise self._error(f"{type(node).__name__}, the JSON of a space is an object")

    def _error(self, finding: str) -> ValueError:
        return _LocatedError(at_path(self.path, finding))

    def read(self) -> Space:
        kind = self.field("type")
        reader = _readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise self._error(f"unknown type {reprlib.repr(kind)} of a space, known are {sorted(_readers)}")
        try:
            return reader(self)
        except _LocatedError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise self._error(f"not the JSON of a {kind}: {error}") from error

    def field(self, name: str, kind: type | tuple[type, ...] = object) -> Any:
        """The value of a required field; raises a ValueError unless it is of type `kind`."""
        try:
            value = self.node[name]
        except KeyError:
            raise self._error(f"field {name!r} is missing") from None
        if not isinstance(value, kind):
            raise self._error(f"field {name!r} is {reprlib.repr(value)}, which is of the wrong type")
        return value

    def child(self, node: Any, key: object) -> Space:
        """The space of a child node."""
        return SpaceJson(node, self.backend, self.device, join_path(self.path, key), self._depth + 1).read()

    def place(self, make_space: Callable[[ComputeBackend], Any]) -> Any:
        """Make a space with a dtype on the backend, through NumPy if the backend lacks the dtype."""
        name = self.field("dtype", str)
        if name not in dtypes.KNOWN:
            raise self._error(f"unknown dtype {reprlib.repr(name)}")
        if self.backend.dtype_name(self.backend.dtype_from_name(name)) != name:
            return make_space(NumpyComputeBackend).to(self.backend, self.device)
        built = make_space(self.backend)
        return built if self.device is None else built.to(device=self.device)


@space_fields.register
def _(space: BoxSpace) -> dict[str, Any]:
    low, high = (bound.tolist() for bound in space.bounds)
    return {"shape": list(space.shape), "low": low, "high": high, "dtype": space.dtype_name}


@register_json_reader("BoxSpace")
def _(json: SpaceJson) -> Space:
    low, high, dtype = (json.field(name) for name in ("low", "high", "dtype"))
    shape = json.field("shape", list)
    return json.place(lambda backend: BoxSpace(backend, low, high, dtype, shape=shape))


@space_fields.register
def _(space: BinarySpace) -> dict[str, Any]:
    return {"shape": list(space.shape), "dtype": space.dtype_name}


@register_json_reader("BinarySpace")
def _(json: SpaceJson) -> Space:
    return BinarySpace(json.backend, json.field("shape", list), json.field("dtype", str), device=json.device)


@space_fields.register
def _(space: DynamicBoxSpace) -> dict[str, Any]:
    low, high = (bound.tolist() for bound in space.bounds)
    shapes = {"shape_low": list(space.shape_low), "shape_high": list(space.shape_high)}
    return {"low": low, "high": high, **shapes, "dtype": space.dtype_name, "fill_value": space.fill_value}


@register_json_reader("DynamicBoxSpace")
def _(json: SpaceJson) -> Space:
    low, high, dtype = (json.field(name) for name in ("low", "high", "dtype"))
    shape_low, shape_high = (json.field(name, list) for name in ("shape_low", "shape_high"))
    fill_value = json.field("fill_value", (int, float))
    return json.place(
        lambda backend: DynamicBoxSpace(backend, low, high, shape_low, shape_high, dtype, fill_value=fill_value)
    )


@space_fields.register(TupleSpace)
@space_fields.register(UnionSpace)
def _(space: Any) -> dict[str, Any]:
    return {"spaces": [space_node(child) for child in space.spaces]}


def _children(json: SpaceJson) -> list[Space]:
    return [json.child(node, key) for key, node in enumerate(json.field("spaces", list))]


@register_json_reader("TupleSpace")
def _(json: SpaceJson) -> Space:
    return TupleSpace(json.backend, _children(json), json.device)


@register_json_reader("UnionSpace")
def _(json: SpaceJson) -> Space:
    return UnionSpace(json.backend, _children(json), json.device)


@space_fields.register
def _(space: DictSpace) -> dict[str, Any]:
    return {"spaces": {key: space_node(child) for key, child in space.spaces.items()}}


@register_json_reader("DictSpace")
def _(json: SpaceJson) -> Space:
    children = [(key, json.child(node, key)) for key, node in json.field("spaces", Mapping).items()]
    return DictSpace(json.backend, children, json.device)


@space_fields.register
def _(space: TextSpace) -> dict[str, Any]:
    characters = space.charset_list
    charset: Any = None if characters is None else "".join(characters)
    if characters is not None and any("\ud800" <= char <= "\udfff" for char in characters):
        charset = list(characters)  # JSON would join two adjacent surrogates to one character
    return {"min_length": space.min_length, "max_length": space.max_length, "charset": charset}


@register_json_reader("TextSpace")
def _(json: SpaceJson) -> Space:
    lengths = {"min_length": json.field("min_length", int), "max_length": json.field("max_length", int)}
    charset = json.field("charset", (str, list, type(None)))
    return TextSpace(json.backend, **lengths, charset=charset, device=json.device)


@space_fields.register
def _(space: GraphSpace) -> dict[str, Any]:
    features = {
        name: None if getattr(space, name) is None else space_node(getattr(space, name))
        for name in ("node_feature_space", "edge_feature_space")
    }
    names = ("min_nodes", "max_nodes", "min_edges", "max_edges", "is_edge")
    return {
        **{name: getattr(space, name) for name in names},
        **features,
        "batch_shape": list(space.batch_shape),
    }


@register_json_reader("GraphSpace")
def _(json: SpaceJson) -> Space:
    features: dict[str, Any] = {
        name: None if json.field(name) is None else json.child(json.field(name), name)
        for name in ("node_feature_space", "edge_feature_space")
    }
    limits = {name: json.field(name) for name in ("min_nodes", "max_nodes", "min_edges", "max_edges")}
    other_fields = {"is_edge": json.field("is_edge", bool), "batch_shape": json.field("batch_shape", list)}
    return GraphSpace(json.backend, **features, **limits, **other_fields, device=json.device)


@space_fields.register
def _(space: BatchedSpace) -> dict[str, Any]:
    return {"single_space": space_node(space.single_space), "batch_shape": list(space.batch_shape)}


@register_json_reader("BatchedSpace")
def _(json: SpaceJson) -> Space:
    return BatchedSpace(json.child(json.field("single_space"), "single_space"), json.field("batch_shape", list))
