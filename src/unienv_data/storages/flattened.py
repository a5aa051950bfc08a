"""Samples as flat arrays, in a storage of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.space_utils import flatten_data, flatten_space, unflatten_data

from ..base.common import BatchT
from ..base.storage import SpaceStorage
from ._composed import PathLike
from ._composed_folder import read_description
from ._wrapping import WrappingStorage, create_around, load_inner
from .packed import PackedStorage
from .registry import register_storage

__all__ = ["FlattenedStorage"]


@register_storage("flattened")
class FlattenedStorage(WrappingStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Every sample as one flat array (see `flatten_data`), in a storage inside: for storages that hold arrays only.

    Flat reads and writes go straight to the storage inside. The leaves of a sample get one common dtype there, so
    that integers beside floats are exact only as far as that dtype is.
    """

    metadata_file = "flattened_metadata.json"

    def __init__(
        self,
        single_instance_space: Space,
        inner_storage: SpaceStorage,
        inner_storage_path: PathLike,
        cache_filename: PathLike | None = None,
    ) -> None:
        super().__init__(single_instance_space, inner_storage, inner_storage_path, cache_filename)
        self.maps_batches = self.has_flattened_access  # texts, for one, have a flat form by themselves only
        self.has_flattened_access = True  # type: ignore[misc]

    @classmethod
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        inner_storage_cls: type[SpaceStorage] = PackedStorage,
        *args: Any,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        inner_storage_kwargs: Mapping[str, Any] | None = None,
    ) -> FlattenedStorage:
        """A new storage around one of `inner_storage_cls`, whose arguments are `args` and `inner_storage_kwargs`."""
        return create_around(
            lambda inner, name, folder: cls(single_instance_space, inner, name, folder),
            inner_storage_cls,
            flatten_space(single_instance_space),
            args,
            cache_path,
            {"capacity": capacity, "multiprocessing": multiprocessing, **(inner_storage_kwargs or {})},
        )

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> FlattenedStorage:
        """The storage in a folder; further arguments are those of the storage inside."""
        folder, content = Path(path), read_description(cls, Path(path))
        options = {"capacity": capacity, "read_only": read_only, "multiprocessing": multiprocessing, **kwargs}
        inner_space = flatten_space(single_instance_space)
        inner, name = load_inner(folder, cls.metadata_file, content, inner_space, options)
        return cls(single_instance_space, inner, name, folder)

    def _inward(self, value: Any, count: int | None) -> Any:
        return flatten_data(self._spaces.of(count), value, start_dim=0 if count is None else 1)

    def _outward(self, value: Any, count: int | None) -> Any:
        return unflatten_data(self._spaces.of(count), value, start_dim=0 if count is None else 1)

    def gather_flattened(self, slots: Any, length: int) -> Any:
        return self.inner_storage.gather(slots, length)

    def set_flattened(self, index: Any, value: Any) -> None:
        self.inner_storage.set(index, value)
