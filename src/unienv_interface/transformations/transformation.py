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
#: The keys from the root to a field of nested dictionaries.
KeyPath = tuple[Any, ...]

TargetDataT = TypeVar("TargetDataT", default=Any)


class DataTransformation(abc.ABC):
    """A mapping from values of a source space to values of a target space, which follows from the source space.

    A transformation has no backend and no device: the source space has the backend, and results stay on the device of
    the data. A transformation never writes to its data; results may share memory with the data.

    `source_space` describes the data. For a batch it is the batched space, and the result is a value of the batched
    target space. Transformations of the last axes of an array, or of the keys of a dict, also take the space of one
    value with data that has more leading axes: rescaling, cropping, resizing, key filters, and compositions of these.

    Transformations cache constants per source space, so their settings are read-only unless documented otherwise.
    Transformations pickle, and `transformation_to_json` converts them to JSON; register your own class with
    `register_transformation`.

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
        """The space of the results; raises a ValueError or TypeError if the source space does not fit."""

    @abc.abstractmethod
    def transform(self, source_space: Space, data: Any) -> Any:
        """Transform a value of the source space. The value is not validated, to save time."""

    def direction_inverse(self, source_space: Space | None = None) -> DataTransformation:
        """The transformation from the target space back to the source space; see `has_inverse`.

        Some inverses depend on the source space and raise a ValueError without it.

        Raises
        ------
        TypeError
            The transformation has no inverse.
        """
        raise TypeError(f"{self!r} has no inverse")

    def narrow(
        self, source_space: Space, paths: Collection[KeyPath]
    ) -> tuple[list[KeyPath], DataTransformation] | None:
        """Narrow the transformation to some fields of the results.

        Parameters
        ----------
        source_space
            The space of one value.
        paths
            The key paths of the fields of a result to compute; () stands for the whole result.

        Returns
        -------
        tuple or None
            The key paths of the needed fields of the source, and a transformation of a source with only these fields,
            whose results have the fields in `paths`; None if it needs the whole source.
        """
        return None

    @abc.abstractmethod
    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        """Convert the settings to an object that `json.dumps` takes, without the key "type"."""

    @classmethod
    @abc.abstractmethod
    def deserialize_from(cls, json_data: Mapping[str, Any], source_space: Space | None = None) -> Self:
        """The inverse of `serialize`."""

    def close(self) -> None:  # noqa: B027 - optional to override
        """Release the resources of the transformation; most have none."""

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def require_transformation(key: object, value: Any) -> DataTransformation:
    """Return a member of a composed transformation, or raise a TypeError that names it by `key`."""
    if not isinstance(value, DataTransformation):
        raise TypeError(f"{key}: {type(value).__name__}, it must be a DataTransformation")
    return value


def need_source_space(transformation: DataTransformation, source_space: Space | None) -> Space:
    """Return the source space, or raise a ValueError if it is None."""
    if source_space is None:
        raise ValueError(f"the inverse of {transformation!r} depends on the source space: pass source_space")
    return source_space
