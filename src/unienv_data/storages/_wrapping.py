"""Storages that hold every sample in another form, in one storage inside."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_space, concatenate, get_at, iterate

from ..base.common import BatchT
from ..base.files import contained, json_field
from ..base.storage import SpaceStorage, StorageCorruptedError
from .composed import BatchSpaces, ComposedStorage, PathLike, build, check_parts, read_description
from .registry import name_of, storage_by_name

WrappingT = TypeVar("WrappingT", bound="WrappingStorage")


class WrappingStorage(ComposedStorage[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A storage around another, which holds the same samples in another form.

    A subclass maps values inward and outward. `maps_batches` says whether it maps a batch as a whole; otherwise it is
    mapped sample by sample.
    """

    maps_batches: bool = True

    def __init__(
        self,
        single_instance_space: Space,
        inner_storage: SpaceStorage,
        inner_storage_path: PathLike,
        cache_filename: PathLike | None = None,
    ) -> None:
        super().__init__(single_instance_space, {str(inner_storage_path): inner_storage}, cache_filename)
        self.inner_storage = inner_storage
        self.inner_storage_path = inner_storage_path
        self._inner_spaces = BatchSpaces(inner_storage.single_instance_space)

    @classmethod
    def load_from(
        cls: type[WrappingT],
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        **kwargs: Any,
    ) -> WrappingT:
        """The storage in a folder; further arguments are those of the storage inside."""
        folder, content = Path(path), read_description(cls, Path(path))
        options = {"capacity": capacity, "read_only": read_only, "multiprocessing": multiprocessing, **kwargs}
        refusal: StorageCorruptedError | None = None
        for inner_space in cls._inner_space_candidates(single_instance_space, folder, content):
            try:
                inner, name = _load_inner(folder, cls.metadata_file, content, inner_space, options)
            except StorageCorruptedError as error:
                refusal = refusal or error
                continue
            return cls._around(single_instance_space, inner, name, folder, content)
        raise refusal or StorageCorruptedError(f"{folder}: no storage inside")

    @classmethod
    @abc.abstractmethod
    def _inner_space_candidates(cls, space: Space, folder: Path, content: dict[str, Any]) -> Iterator[Space]:
        """The spaces that the storage inside a folder with this description may have, the likeliest first."""

    @classmethod
    def _around(
        cls: type[WrappingT], space: Space, inner: SpaceStorage, name: str, folder: Path, content: dict[str, Any]
    ) -> WrappingT:
        """The storage around a loaded one, which lies at `name` in the folder."""
        return cls(space, inner, name, folder)

    @abc.abstractmethod
    def _inward(self, value: Any, count: int | None) -> Any:
        """Map a value, or a batch of `count`, to the form of the inner storage."""

    @abc.abstractmethod
    def _outward(self, value: Any, count: int | None) -> Any:
        """The inverse of `_inward`."""

    def _apart(self, value: Any, count: int | None) -> Sequence[Any]:
        if count is None or self.maps_batches:
            return (self._inward(value, count),)
        values = [self._inward(sample, None) for sample in iterate(self._spaces.of(count), value)]
        return (_stacked(self._inner_spaces.single, values),)

    def _together(self, values: list[Any], count: int | None) -> Any:
        (value,) = values
        if count is None or self.maps_batches:
            return self._outward(value, count)
        samples = [self._outward(sample, None) for sample in iterate(self._inner_spaces.of(count), value)]
        return _stacked(self._spaces.single, samples)

    def _description(self) -> dict[str, Any]:
        return {
            "inner_storage_type": name_of(type(self.inner_storage)),
            "inner_storage_path": str(self.inner_storage_path),
        }


def _stacked(space: Space, values: list[Any]) -> Any:
    if values:
        return concatenate(space, values)
    return get_at(batch_space(space, 1), concatenate(space, [space.create_empty()]), slice(0, 0))


def same_form(one: Space, other: Space) -> bool:
    """Whether values of two spaces have the same structure, shapes and dtypes, whatever their bounds."""
    ours, theirs = (
        [(leaf.path, type(leaf.codec), leaf.codec.dtype) for leaf in RowLayout(space).leaves] for space in (one, other)
    )
    return ours == theirs


def create_around(
    compose: Callable[[SpaceStorage, str, Path | None], WrappingT],
    inner_storage_cls: type[SpaceStorage],
    inner_space: Space,
    args: Sequence[Any],
    cache_path: PathLike | None,
    options: Mapping[str, Any],
) -> WrappingT:
    """A new storage around a new one of a class; `compose` takes that, its path in the folder, and the folder."""
    name = f"inner_storage{inner_storage_cls.single_file_ext or ''}"

    def make_inner(folder: Path | None) -> dict[str, SpaceStorage]:
        path = None if folder is None else folder / name
        return {name: inner_storage_cls.create(inner_space, *args, cache_path=path, **options)}

    return build(cache_path, make_inner, lambda parts, folder: compose(parts[name], name, folder))


def _load_inner(
    folder: Path, metadata_file: str, content: dict[str, Any], inner_space: Space, options: Mapping[str, Any]
) -> tuple[SpaceStorage, str]:
    """The storage inside of one that is loaded, and its path in the folder; `options` are those of `load_from`."""
    name = json_field(content, "inner_storage_path", str, folder / metadata_file)
    path = folder / metadata_file
    inner_storage_cls = storage_by_name(json_field(content, "inner_storage_type", str, path), path)
    inner = inner_storage_cls.load_from(contained(folder, name), inner_space, **options)
    check_parts(folder, {name: inner}, options["capacity"], accept_damaged=bool(options.get("accept_damaged")))
    return inner, name
