"""Samples as flat arrays, in a storage of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import dtypes
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import flatten_data, flatten_space, unflatten_data
from unienv_interface.space.spaces import ArraySpace, BoxSpace

from ..base.common import BatchT
from ..base.files import json_field
from ..base.storage import SpaceStorage, StorageCorruptedError
from ._options import check_inner_options
from ._wrapping import WrappingStorage, create_around
from .composed import PathLike
from .packed import PackedStorage
from .registry import register_storage

__all__ = ["FlattenedStorage"]


@register_storage("flattened")
class FlattenedStorage(WrappingStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Every sample as one flat array (see `flatten_data`) in an inner storage, which may hold arrays only.

    Flat reads and writes go straight to the storage inside. The leaves of a sample get one common dtype there, so
    that integers beside floats are exact only as far as that dtype is.

    Parameters
    ----------
    single_instance_space
        The space of one sample.
    inner_storage
        The storage of the flat samples.
    inner_storage_path
        Where it lies in the folder `cache_filename`.
    cache_filename
        The folder of the storage; None in memory.

    Examples
    --------
    >>> buffer = ReplayBuffer.create("flattened", transition_space(env, episode_id=True), capacity=1_000)
    >>> buffer.append(transition)
    >>> buffer.get_flattened_at(0).shape
    (13,)
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
        flat_space: Any = inner_storage.single_instance_space
        self._flat_dtype = flatten_space(single_instance_space).dtype
        self._narrow_dtype = None if flat_space.dtype == self._flat_dtype else flat_space.dtype

    @classmethod
    def create(
        cls,
        single_instance_space: Space,
        inner_storage_cls: type[SpaceStorage] = PackedStorage,
        *args: Any,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        inner_storage_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> FlattenedStorage:
        """Create a new storage around another.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        inner_storage_cls
            The class of the storage inside.
        *args, **kwargs
            Arguments for the storage inside; a TypeError if it does not take one.
        capacity, cache_path, multiprocessing
            As for every storage.
        inner_storage_kwargs
            Further arguments for the storage inside.
        """
        check_inner_options(cls, [inner_storage_cls], kwargs)
        return create_around(
            lambda inner, name, folder: cls(single_instance_space, inner, name, folder),
            inner_storage_cls,
            flatten_space(single_instance_space),
            args,
            cache_path,
            {"capacity": capacity, "multiprocessing": multiprocessing, **kwargs, **(inner_storage_kwargs or {})},
        )

    @classmethod
    def _inner_space_candidates(cls, space: Space, folder: Path, content: dict[str, Any]) -> Iterator[Space]:
        return _flat_spaces(space, content, folder / cls.metadata_file)

    def _description(self) -> dict[str, Any]:
        return {**super()._description(), "flat_dtype": _dtype_of(self.inner_storage.single_instance_space)}

    def _inward(self, value: Any, count: int | None) -> Any:
        flat = flatten_data(self._spaces.of(count), value, start_dim=0 if count is None else 1)
        return flat if self._narrow_dtype is None else self._narrowed(flat, self._narrow_dtype)

    def _narrowed(self, flat: Any, dtype: Any) -> Any:
        """Flat values in the narrower dtype of a folder of the reference's, where they are the same in it."""
        backend = self.backend
        narrow = backend.astype(flat, dtype)
        same = (backend.astype(narrow, flat.dtype) == flat) | (flat != flat)
        if not bool(backend.all(same)):
            raise ValueError(
                f"an integer has no exact value in {backend.dtype_name(dtype)}, which {self.cache_filename} keeps flat "
                f"samples in: copy the buffer into a new one (extend_from)"
            )
        return narrow

    def _outward(self, value: Any, count: int | None) -> Any:
        return unflatten_data(self._spaces.of(count), value, start_dim=0 if count is None else 1)

    def gather_flattened(self, slots: Any, length: int) -> Any:
        flat = self.parts[0].gather(slots, length)
        return flat if self._narrow_dtype is None else self.backend.astype(flat, self._flat_dtype)

    def set_flattened(self, index: Any, value: Any) -> None:
        flat = value if self._narrow_dtype is None else self._narrowed(value, self._narrow_dtype)
        self.inner_storage.set(index, flat)


def _flat_spaces(space: Space, content: dict[str, Any], path: Path) -> Iterator[Space]:
    """The spaces that the storage inside may be of: that which its folder names, or in the reference's all there are.

    For integers beside floats the reference takes the dtype that the backend promotes to: on NumPy ours, on the others
    the widest of the floats.
    """
    try:
        flat = flatten_space(space)
    except MemoryError as error:
        raise StorageCorruptedError(f"{path}: no memory for a flat sample of {space}: {error}") from error
    backend, own = flat.backend, _dtype_of(flat)
    floats = {name for leaf in RowLayout(space).leaves if (name := _dtype_of(leaf.space)) in dtypes.FLOATING}
    narrow = own
    if floats:
        narrow = floats.pop() if len(floats) == 1 else np.result_type(*map(dtypes.host_dtype, floats)).name
    names = [json_field(content, "flat_dtype", str, path)] if "flat_dtype" in content else [own, narrow]
    if not set(names) <= {own, narrow}:
        raise StorageCorruptedError(f"{path}: field 'flat_dtype' is {names[0]!r}, wanted {own!r} or {narrow!r}")
    for name in dict.fromkeys(names):
        dtype = backend.dtype_from_name(name)
        yield flat if name == own else BoxSpace(backend, -np.inf, np.inf, dtype, flat.device, flat.shape)


def _dtype_of(space: Space) -> str:
    return space.dtype_name if isinstance(space, ArraySpace) else ""
