"""Storages by name.

A buffer's metadata names its storage by a short key. Only what is registered can be opened: a name in a file is looked
up, never imported. Ours are known without being imported; a third party registers its class, or declares it under the
entry-point group `unienv.storages`, which the user chose to install.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from unienv_interface.utils.words import did_you_mean

from ..base.storage import SpaceStorage, UnsupportedFormatError

ENTRY_POINT_GROUP = "unienv.storages"

# name: module and class. Fixed in the code, so that data cannot choose what is imported.
_OURS = {
    "packed": ("packed", "PackedStorage"),
    "shared_next_obs": ("shared_next_obs", "SharedNextObsStorage"),
    "pytorch": ("pytorch", "PytorchTensorStorage"),
    "npz": ("npz_storage", "NPZStorage"),
    "hdf5": ("hdf5", "HDF5Storage"),
    "parquet": ("parquet", "ParquetStorage"),
    "flattened": ("flattened", "FlattenedStorage"),
    "dict": ("dict_storage", "DictStorage"),
    "transformed": ("transformation", "TransformedStorage"),
    "to_backend_or_device": ("backend_compat", "ToBackendOrDeviceStorage"),
    "list": ("list_storage", "ListStorage"),
    "image": ("image_storage", "ImageStorage"),
    "video": ("video_storage", "VideoStorage"),
    "reference_images": ("_reference_frames", "ReferenceImages"),
    "reference_videos": ("_reference_frames", "ReferenceVideos"),
}
# Class names in folders that the reference implementation wrote.
_LEGACY = {
    "unienv_data.storages.pytorch.PytorchTensorStorage": "pytorch",
    "unienv_data.storages.npz_storage.NPZStorage": "npz",
    "unienv_data.storages.hdf5.HDF5Storage": "hdf5",
    "unienv_data.storages.parquet.ParquetStorage": "parquet",
    "unienv_data.storages.flattened.FlattenedStorage": "flattened",
    "unienv_data.storages.common.FlattenedStorage": "flattened",
    "unienv_data.storages.dict_storage.DictStorage": "dict",
    "unienv_data.storages.transformation.TransformedStorage": "transformed",
    "unienv_data.storages.backend_compat.ToBackendOrDeviceStorage": "to_backend_or_device",
    "unienv_data.storages.image_storage.ImageStorage": "image",
    "unienv_data.storages.video_storage.VideoStorage": "video",
}

_registered: dict[str, type[SpaceStorage]] = {}

StorageT = TypeVar("StorageT", bound=type[SpaceStorage])


def register_storage(name: str) -> Callable[[StorageT], StorageT]:
    """Register a storage class under a name.

    Parameters
    ----------
    name
        The name, by which `ReplayBuffer.create` and the metadata of folders refer to the class.

    Returns
    -------
    callable
        A decorator of the class.

    Raises
    ------
    ValueError
        By the decorator, if the name stands for another class.

    Examples
    --------
    >>> @unienv_data.storages.registry.register_storage("my_project.log")
    ... class LoggedStorage(ListStorage):
    ...     pass
    >>> buffer = ReplayBuffer.create("my_project.log", transition_space(env), capacity=1_000)
    """

    def register(cls: StorageT) -> StorageT:
        if name in _OURS and not cls.__module__.startswith("unienv_data."):
            raise ValueError(f"the name {name!r} is taken by one of UniEnv's own storages")
        if _registered.setdefault(name, cls) is not cls:
            raise ValueError(f"the name {name!r} is taken by {_registered[name].__qualname__}")
        cls.registered_name = name
        return cls

    return register


def name_of(cls: type[SpaceStorage]) -> str:
    """The name that a storage class is registered under.

    Parameters
    ----------
    cls
        The class.

    Returns
    -------
    str
        The name.

    Raises
    ------
    ValueError
        The class has none, so nobody could open its folders.
    """
    name = cls.__dict__.get("registered_name", "")  # its own: a subclass of one that is registered is not
    if _registered.get(name) is not cls:
        raise ValueError(f"{cls.__qualname__} is not registered: put @register_storage(name) over it")
    return name


def _declared() -> Any:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return entry_points(group=ENTRY_POINT_GROUP)


def storage_names() -> list[str]:
    """The names of all storages that can be opened.

    Returns
    -------
    list of str
        The names, sorted.

    Examples
    --------
    >>> "packed" in unienv_data.storages.registry.storage_names()
    True
    """
    declared = {entry.name for entry in _declared()}
    return sorted({*_OURS, *_registered, *declared})


def current_name(name: str) -> str:
    """The short name for a class name in a folder of the reference; every other name as it is."""
    return _LEGACY.get(name, name)


def storage_by_name(name: str, path: str | os.PathLike[str] | None = None) -> type[SpaceStorage]:
    """The storage class of a name.

    Parameters
    ----------
    name
        The name, or the name of a class in a folder of the reference.
    path
        The file that has the name, for the message.

    Returns
    -------
    class
        The class; its module is imported.

    Raises
    ------
    UnsupportedFormatError
        No storage has that name; the message says which one is near.

    Examples
    --------
    >>> unienv_data.storages.registry.storage_by_name("list").__name__
    'ListStorage'
    """
    key = current_name(name)
    if key in _registered:
        return _registered[key]
    if key in _OURS:
        module, cls = _OURS[key]
        return getattr(importlib.import_module(f".{module}", __package__), cls)
    for entry in _declared():
        if entry.name == key:
            return register_storage(key)(entry.load())
    near = did_you_mean(name, storage_names())
    where = "" if path is None else f"{os.fspath(path)}: "
    raise UnsupportedFormatError(f"{where}no storage is registered as {name!r}, known are {storage_names()}{near}")
