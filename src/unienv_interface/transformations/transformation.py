"""Transformations: pure mappings from the values of one space to the values of another."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from typing_extensions import Self, TypeVar

from ..space.space import Space

SourceDataT = TypeVar("SourceDataT", default=Any)
SourceBArrT = TypeVar("SourceBArrT", default=Any)
SourceBDeviceT = TypeVar("SourceBDeviceT", default=Any)
SourceBDTypeT = TypeVar("SourceBDTypeT", default=Any)
SourceBDRNGT = TypeVar("SourceBDRNGT", default=Any)
#: The keys that lead to a field of nested dictionaries.
KeyPath = tuple[Any, ...]

TargetDataT = TypeVar("TargetDataT", default=Any)


class DataTransformation(abc.ABC):
    """A mapping from the values of a source space to the values of the target space that follows from it.

    A transformation is not tied to a backend or a device: the source space says which, and results stay on the
    device of the data. The data given is never written to; results may share memory with it.

    `source_space` describes the data at hand. For a batch it is the batched space, and the result is a value of the
    batched target space. Transformations that work on the last axes of an array, or on the keys of a dict, also take
    the space of one value with data that has further axes in front: rescaling, cropping, resizing, key filters, and
    what is composed of them.

    What follows from the source space alone is worked out once per space and kept, so the settings of a
    transformation are read-only unless it says otherwise. Transformations pickle, and go to JSON through
    `transformation_to_json`, which a class of your own takes part in after `register_transformation`.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, "uint8", shape=(2,))
    >>> rescale = RescaleTransformation(0.0, 1.0, "float32")
    >>> target = rescale.get_target_space_from_source(space)
    >>> data = rescale.transform(space, np.array([0, 255], np.uint8))
    >>> rescale.direction_inverse(space).transform(target, data)
    array([  0, 255], dtype=uint8)
    """

    has_inverse: bool = False

    @abc.abstractmethod
    def get_target_space_from_source(self, source_space: Space) -> Any:
        """The space of the results; a ValueError or TypeError that says where and why if there are none."""

    @abc.abstractmethod
    def transform(self, source_space: Space, data: Any) -> Any:
        """The result for a value of the source space. The value is not validated: that would cost every call."""

    def direction_inverse(self, source_space: Space | None = None) -> DataTransformation:
        """The transformation from the target space back to the source space; see `has_inverse`.

        Some inverses depend on the source space and are refused without it.
        """
        raise TypeError(f"{self!r} has no inverse")

    def narrow(
        self, source_space: Space, paths: Collection[KeyPath]
    ) -> tuple[list[KeyPath], DataTransformation] | None:
        """The part of the transformation that makes some fields of the results.

        Parameters
        ----------
        source_space
            The space of one value.
        paths
            The keys that lead to each wanted field of a result; () is all of it.

        Returns
        -------
        tuple or None
            The keys that lead to the fields of the source that it takes, and a transformation of a source that has
            nothing but these, whose results have the wanted fields; None if it takes all of the source.
        """
        return None

    @abc.abstractmethod
    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        """The settings as an object that `json.dumps` takes, without the key "type"."""

    @classmethod
    @abc.abstractmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> Self:
        """The inverse of `serialize`."""

    def close(self) -> None:  # noqa: B027 - a default, not a duty
        """Release resources of the transformation. Most have none."""

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def require_transformation(key: object, value: Any) -> DataTransformation:
    """A member of a composed transformation, after a check of its type; `key` names the member in the error."""
    if not isinstance(value, DataTransformation):
        raise TypeError(f"{key}: {type(value).__name__}, it must be a DataTransformation")
    return value


def need_source_space(transformation: DataTransformation, source_space: Space | None) -> Space:
    """The source space of an inverse that depends on it."""
    if source_space is None:
        raise ValueError(f"the inverse of {transformation!r} depends on the source space: pass source_space")
    return source_space
