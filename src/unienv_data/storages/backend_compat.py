"""Samples on another backend or device than the storage that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from unienv_interface.backends import BackendLike, ComputeBackend, deserialize_backend, parse_backend, serialize_backend
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.env_base.wrapper import WrapperBArrayT, WrapperBDeviceT, WrapperBDtypeT, WrapperBRngT
from unienv_interface.space import Space
from unienv_interface.wrapper.backend_compat import data_to

from ..base.common import BatchT, WrapperBatchT
from ..base.files import json_field
from ..base.nested import nested_item
from ..base.storage import SpaceStorage
from ._options import check_inner_options
from ._wrapping import WrappingStorage, create_around, same_form
from .composed import PathLike
from .packed import PackedStorage
from .registry import register_storage

__all__ = ["ToBackendOrDeviceStorage", "data_to"]


@register_storage("to_backend_or_device")
class ToBackendOrDeviceStorage(
    WrappingStorage[WrapperBatchT, WrapperBArrayT, WrapperBDeviceT, WrapperBDtypeT, WrapperBRngT],
    Generic[
        WrapperBatchT,
        WrapperBArrayT,
        WrapperBDeviceT,
        WrapperBDtypeT,
        WrapperBRngT,
        BatchT,
        BArrayType,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
):
    """Holds samples on another backend, device or both, and moves them on the way in and out.

    The samples are those of `single_instance_space`, on its backend and device; the storage inside has the same on
    its own. A backend that would keep a dtype with fewer bits is refused.

    Parameters
    ----------
    single_instance_space
        The space of one sample, as it is written and read.
    inner_storage
        The storage inside.
    inner_storage_path
        Where it lies in the folder `cache_filename`.
    cache_filename
        The folder of the storage; None in memory.

    Examples
    --------
    >>> space = transition_space(env).to("jax")
    >>> buffer = ReplayBuffer.create("to_backend_or_device", space, capacity=1_000, backend="numpy")
    >>> buffer.backend.simplified_name, buffer.storage.inner_storage.backend.simplified_name
    ('jax', 'numpy')
    """

    metadata_file = "backend_metadata.json"

    def __init__(
        self,
        single_instance_space: Space,
        inner_storage: SpaceStorage,
        inner_storage_path: PathLike,
        cache_filename: PathLike | None = None,
    ) -> None:
        super().__init__(single_instance_space, inner_storage, inner_storage_path, cache_filename)
        inner_space = inner_storage.single_instance_space
        self.inner_backend, self.inner_device = inner_space.backend, inner_space.device
        self.current_backend, self.current_device = single_instance_space.backend, single_instance_space.device
        self.has_column_access = inner_storage.has_column_access  # type: ignore[misc]
        # where samples are handed out: without a device they would stay where the storage inside has them
        self._home = self.current_device
        if self._home is None and self.inner_device is not None and self.inner_backend is self.current_backend:
            self._home = self.current_backend.device(self.current_backend.empty((0,)))

    @classmethod
    def create(
        cls,
        single_instance_space: Space,
        inner_storage_cls: type[SpaceStorage] = PackedStorage,
        *args: Any,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        backend: BackendLike | None = None,
        device: Any = None,
        inner_storage_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> ToBackendOrDeviceStorage:
        """Create a new storage around another.

        Parameters
        ----------
        single_instance_space
            The space of one sample, as it is written and read.
        inner_storage_cls
            The class of the storage inside.
        *args, **kwargs
            Arguments for the storage inside; a TypeError if it does not take one.
        capacity, cache_path, multiprocessing
            As for every storage.
        backend, device
            Of the storage inside; by default the backend of the samples.
        inner_storage_kwargs
            Further arguments for the storage inside.
        """
        check_inner_options(cls, [inner_storage_cls], kwargs)
        return create_around(
            lambda inner, name, folder: cls(single_instance_space, inner, name, folder),
            inner_storage_cls,
            _moved_space(single_instance_space, parse_backend(backend or single_instance_space.backend), device),
            args,
            cache_path,
            {"capacity": capacity, "multiprocessing": multiprocessing, **kwargs, **(inner_storage_kwargs or {})},
        )

    @classmethod
    def _inner_space_candidates(cls, space: Space, folder: Path, content: dict[str, Any]) -> Iterator[Space]:
        yield _moved_space(space, *_read_place(folder / cls.metadata_file, content))

    def _description(self) -> dict[str, Any]:
        return {
            **super()._description(),
            "backend": serialize_backend(self.inner_backend),
            "device": self.inner_backend.serialize_device(self.inner_device),
        }

    def _inward(self, value: Any, count: int | None) -> Any:
        return self._spaces.of(count).data_to(value, self.inner_backend, self.inner_device)

    def _outward(self, value: Any, count: int | None) -> Any:
        return self._inner_spaces.of(count).data_to(value, self.current_backend, self._home)

    def get_column(self, nested_keys: Sequence[str]) -> ToBackendOrDeviceStorage:
        space = nested_item(self.single_instance_space, nested_keys)
        return ToBackendOrDeviceStorage(space, self.inner_storage.get_column(nested_keys), self.inner_storage_path)


class NarrowedStorage(ToBackendOrDeviceStorage):
    """A read-only view of a storage on a backend that has fewer bits; it has no files of its own."""

    def __init__(self, space: Space, stored: SpaceStorage) -> None:
        super().__init__(space, stored, "", stored.cache_filename)
        self.is_mutable = False

    def sizes(self) -> tuple[int, int]:
        return self.parts[0].sizes()

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        self.parts[0].fit_to(length, sizes)


def is_narrowed(space: Space, stored_space: Space) -> bool:
    """Whether values of `space` have fewer bits than those that are stored."""
    return not same_form(space, stored_space)


def in_stored_form(storage: SpaceStorage) -> SpaceStorage:
    """The storage whose samples have the form that they have on disk."""
    return storage.inner_storage if isinstance(storage, NarrowedStorage) else storage


def _moved_space(space: Space, backend: ComputeBackend, device: Any) -> Space:
    """The space on another backend and device; a ValueError if its values would not stay what they are."""
    moved = space.to(backend, device)
    if not same_form(moved, space):
        raise ValueError(f"{backend!r} keeps values of {space} as {moved}, with fewer bits: choose dtypes that it has")
    return moved


def _read_place(path: Path, content: dict[str, Any]) -> tuple[ComputeBackend, Any]:
    """The backend and the device of the storage inside."""
    prefix = "inner_" if "inner_backend" in content else ""  # as the reference calls them
    backend = deserialize_backend(json_field(content, f"{prefix}backend", str, path))
    return backend, backend.deserialize_device(json_field(content, f"{prefix}device", str, path, default=None))
