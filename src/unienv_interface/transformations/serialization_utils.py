"""Convert transformations to JSON and back.

The JSON of a transformation names its kind by a short key, which is looked up among the registered classes. Reading
never imports or runs code that the data names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..space.space import Space
from .transformation import DataTransformation

__all__ = ["json_to_transformation", "register_transformation", "transformation_to_json"]

TransformationClass = TypeVar("TransformationClass", bound=type[DataTransformation])

_classes: dict[str, type[DataTransformation]] = {}
_kinds: dict[type[DataTransformation], str] = {}

# Types that the reference implementation writes, and the kinds of these classes here.
_PACKAGE = "unienv_interface.transformations"
_REFERENCE_NAMES = {
    f"{_PACKAGE}.identity.IdentityTransformation": "identity",
    f"{_PACKAGE}.rescale.RescaleTransformation": "rescale",
    f"{_PACKAGE}.crop.CropTransformation": "crop",
    f"{_PACKAGE}.image_resize.ImageResizeTransformation": "image_resize",
    f"{_PACKAGE}.batch_and_unbatch.BatchifyTransformation": "batchify",
    f"{_PACKAGE}.batch_and_unbatch.UnBatchifyTransformation": "unbatchify",
    f"{_PACKAGE}.chained_transform.ChainedTransformation": "chained",
    f"{_PACKAGE}.dict_transform.DictTransformation": "dict",
    f"{_PACKAGE}.filter_dict.DictIncludeKeyTransformation": "dict_include_keys",
    f"{_PACKAGE}.filter_dict.DictExcludeKeyTransformation": "dict_exclude_keys",
    f"{_PACKAGE}.flatten_dict_transform.FlattenDictTransformation": "flatten_dict",
    f"{_PACKAGE}.flatten_dict_transform.UnflattenDictTransformation": "unflatten_dict",
    f"{_PACKAGE}.iter_transform.IterativeTransformation": "iterative",
    "unienv_data.transformations.image_compress.ImageCompressTransformation": "image_compress",
    "unienv_data.transformations.image_compress.ImageDecompressTransformation": "image_decompress",
}


def register_transformation(kind: str) -> Callable[[TransformationClass], TransformationClass]:
    """Register a class of transformations under its key in JSON.

    Parameters
    ----------
    kind
        The key, which must never change.

    Returns
    -------
    callable
        A decorator of the class.

    Raises
    ------
    ValueError
        From the decorator, if the key belongs to another class already.

    Examples
    --------
    >>> @register_transformation("my_package.negate")
    ... class NegateTransformation(DataTransformation):
    ...     def get_target_space_from_source(self, source_space):
    ...         return source_space
    ...
    ...     def transform(self, source_space, data):
    ...         return -data
    """

    def register(cls: TransformationClass) -> TransformationClass:
        if _classes.setdefault(kind, cls) is not cls:
            raise ValueError(f"the kind {kind!r} stands for {_classes[kind].__qualname__} already")
        _kinds[cls] = kind
        return cls

    return register


def transformation_to_json(transformation: DataTransformation, source_space: Space | None = None) -> dict[str, Any]:
    """Convert a transformation to an object that `json.dumps` takes: its settings, and its kind as "type".

    Parameters
    ----------
    transformation
        A transformation of a registered kind.
    source_space
        The source space, needed only if the settings depend on it.

    Returns
    -------
    dict
        The object.

    Raises
    ------
    ValueError
        The kind is not registered, or its settings cannot be written.

    Examples
    --------
    >>> json_data = transformation_to_json(RescaleTransformation(0.0, 1.0))
    >>> json_to_transformation(json_data)
    RescaleTransformation(...)
    """
    cls = type(transformation)
    if cls not in _kinds:
        raise ValueError(
            f"{cls.__qualname__} is not registered, so no JSON can stand for it: see register_transformation"
        )
    settings = transformation.serialize(source_space)
    if "type" in settings:
        raise ValueError(f"{cls.__qualname__}.serialize returned the key 'type', which is kept for the kind")
    return {"type": _kinds[cls], **settings}


def json_to_transformation(json_data: Any, source_space: Space | None = None) -> DataTransformation:
    """Read a transformation from the JSON object of `transformation_to_json`.

    Parameters
    ----------
    json_data
        The object.
    source_space
        The source space, needed only if the settings depend on it.

    Returns
    -------
    DataTransformation
        The transformation.

    Raises
    ------
    ValueError
        The object is not the JSON of a transformation; the message says where.

    Examples
    --------
    >>> json_data = transformation_to_json(CropTransformation(-1.0, 1.0))
    >>> json_to_transformation(json_data)
    CropTransformation(...)
    """
    if not isinstance(json_data, Mapping):
        raise ValueError(f"{type(json_data).__name__}, the JSON of a transformation is an object")
    if "type" not in json_data:
        raise ValueError(f"the JSON of a transformation has no 'type', only {sorted(map(str, json_data))}")
    kind = json_data["type"]
    cls = _classes.get(_REFERENCE_NAMES.get(kind, kind)) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(
            f"unknown kind {kind!r} of a transformation, known are {sorted(_classes)}; import the module that "
            "registers it before reading"
        )
    settings = {key: value for key, value in json_data.items() if key != "type"}
    try:
        return cls.deserialize_from(settings, source_space)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not the JSON of a {cls.__name__}: {error}") from error
    except RecursionError:
        raise ValueError("the JSON of a transformation is nested too deeply to be read") from None


def read_setting(json_data: Mapping[str, Any], name: str, owner: type[DataTransformation]) -> Any:
    """A required setting."""
    if name not in json_data:
        raise ValueError(f"the JSON of a {owner.__name__} lacks {name!r}, it has {sorted(map(str, json_data))}")
    return json_data[name]
