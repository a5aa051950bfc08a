"""Samples in another form, by way of a transformation that has an inverse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_space
from unienv_interface.transformations import DataTransformation
from unienv_interface.transformations.serialization_utils import json_to_transformation, transformation_to_json

from ..base.common import BatchT
from ..base.storage import SpaceStorage, StorageCorruptedError
from ._options import check_inner_options
from ._wrapping import WrappingStorage, create_around, same_form
from .composed import PathLike
from .packed import PackedStorage
from .registry import register_storage

__all__ = ["TransformedStorage"]

# In folders of the reference's: a pickle, which can run code when it is read.
_PICKLED = "data_transformation.pkl"


@register_storage("transformed")
class TransformedStorage(WrappingStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Stores transformed samples, and applies the inverse transformation when they are read.

    What is read is what the inverse gives, which is the sample that was written if the transformation loses nothing.
    Moving samples, as `remove_at` of a buffer does, moves the stored form and loses nothing.

    On disk the transformation is kept as JSON, so it must be a registered one (see `register_transformation`).

    Parameters
    ----------
    single_instance_space
        The space of one sample, as it is written and read.
    data_transformation
        Leads from `single_instance_space` to the space of the storage inside, and has an inverse.
    inner_storage
        The storage of the transformed samples.
    inner_storage_path
        Where it lies in the folder `cache_filename`.
    cache_filename
        The folder of the storage; None in memory.

    Raises
    ------
    ValueError
        The transformation has no inverse, or one that does not lead back.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1, 1, np.float32, shape=(3,))
    >>> as_bytes = RescaleTransformation(0, 255, "uint8")  # a quarter of the memory, rounded
    >>> poses = ReplayBuffer.create("transformed", space, capacity=1_000, data_transformation=as_bytes)
    >>> poses.append(np.array([-1, 0, 1], np.float32))
    """

    metadata_file = "transformed_metadata.json"

    def __init__(
        self,
        single_instance_space: Space,
        data_transformation: DataTransformation,
        inner_storage: SpaceStorage,
        inner_storage_path: PathLike,
        cache_filename: PathLike | None = None,
    ) -> None:
        super().__init__(single_instance_space, inner_storage, inner_storage_path, cache_filename)
        self.data_transformation = data_transformation
        self.inv_data_transformation = _inverse(data_transformation, single_instance_space)
        inner_space = inner_storage.single_instance_space
        self.maps_batches = _maps_batches(data_transformation, single_instance_space) and _maps_batches(
            self.inv_data_transformation, inner_space
        )

    @classmethod
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        inner_storage_cls: type[SpaceStorage] = PackedStorage,
        *args: Any,
        data_transformation: DataTransformation,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        inner_storage_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> TransformedStorage:
        """Create a new storage around another.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        inner_storage_cls
            The class of the storage inside.
        *args, **kwargs
            Arguments for the storage inside; a TypeError if it does not take one.
        data_transformation
            Leads from `single_instance_space` to the space of the storage inside, and has an inverse.
        capacity, cache_path, multiprocessing
            As for every storage.
        inner_storage_kwargs
            Further arguments for the storage inside.
        """
        _inverse(data_transformation, single_instance_space)  # before anything is made
        check_inner_options(cls, [inner_storage_cls], kwargs)
        return create_around(
            lambda inner, name, folder: cls(single_instance_space, data_transformation, inner, name, folder),
            inner_storage_cls,
            data_transformation.get_target_space_from_source(single_instance_space),
            args,
            cache_path,
            {"capacity": capacity, "multiprocessing": multiprocessing, **kwargs, **(inner_storage_kwargs or {})},
        )

    @classmethod
    def _inner_space_candidates(cls, space: Space, folder: Path, content: dict[str, Any]) -> Iterator[Space]:
        yield _read_transformation(folder, content, space).get_target_space_from_source(space)

    @classmethod
    def _around(
        cls, space: Space, inner: SpaceStorage, name: str, folder: Path, content: dict[str, Any]
    ) -> TransformedStorage:
        return cls(space, _read_transformation(folder, content, space), inner, name, folder)

    def _description(self) -> dict[str, Any]:
        transformation = transformation_to_json(self.data_transformation, self.single_instance_space)
        return {**super()._description(), "data_transformation": transformation}

    def _inward(self, value: Any, count: int | None) -> Any:
        return self.data_transformation.transform(self._spaces.of(count), value)

    def _outward(self, value: Any, count: int | None) -> Any:
        try:
            return self.inv_data_transformation.transform(self._inner_spaces.of(count), value)
        except ValueError as error:
            if self.cache_filename is None:
                raise
            raise StorageCorruptedError(f"{self.cache_filename}: what is stored leads to no sample, {error}") from error


def _inverse(transformation: DataTransformation, space: Space) -> DataTransformation:
    """The inverse; a ValueError if there is none, or it does not lead back to samples of this form."""
    if not transformation.has_inverse:
        raise ValueError(f"{transformation!r} has no inverse, so that what it makes of samples could not be read")
    inverse = transformation.direction_inverse(space)
    reached = inverse.get_target_space_from_source(transformation.get_target_space_from_source(space))
    if not same_form(reached, space):
        raise ValueError(f"the inverse of {transformation!r} leads to {reached}, not back to {space}")
    return inverse


def _maps_batches(transformation: DataTransformation, space: Space) -> bool:
    """Whether what becomes of a batch is the batch of what becomes of its samples."""
    wanted = batch_space(transformation.get_target_space_from_source(space), 2)
    try:
        return same_form(transformation.get_target_space_from_source(batch_space(space, 2)), wanted)
    except (TypeError, ValueError):  # it cannot do with a batch
        return False


def _read_transformation(folder: Path, content: Mapping[str, Any], space: Space) -> DataTransformation:
    path = folder / TransformedStorage.metadata_file
    if content.get("data_transformation") is None:
        if (folder / _PICKLED).exists():
            raise StorageCorruptedError(
                f"{folder / _PICKLED} is a pickle, which can run code and is not read: write the transformation as "
                f"JSON (transformation_to_json) into the field 'data_transformation' of {path.name}"
            )
        raise StorageCorruptedError(f"{path}: field 'data_transformation' is missing")
    try:
        return json_to_transformation(content["data_transformation"], space)
    except (ValueError, TypeError, KeyError) as error:
        raise StorageCorruptedError(f"{path}: field 'data_transformation': {error}") from error
