"""`DictStorage`: every field of a sample in a storage that suits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space

from ..base.encoded_frames import EncodedFrames
from ..base.files import contained, json_field
from ..base.nested import nested_item
from ..base.row_storage import RowStorage, rows_of
from ..base.storage import SpaceStorage, StorageCorruptedError
from ._column_view import ColumnView
from ._dict_plan import REST, DictPlan, KeyPath, assemble
from ._frame_cache import bytes_of
from ._options import check_inner_options, takes_option
from .composed import ComposedStorage, PathLike, build, check_parts, read_description
from .packed import PackedStorage
from .registry import name_of, register_storage, storage_by_name

__all__ = ["DictStorage", "get_chained_residual_space", "get_chained_space"]

ByKey = Mapping[str, Mapping[str, Any]]
ByType = Mapping[type[SpaceStorage], Mapping[str, Any]]


def get_chained_space(space: Space, key_chain: str, all_keys: Sequence[str], nested_separator: str = "/") -> Space:
    """The space of one part of a `DictStorage`.

    Parameters
    ----------
    space
        The space of a sample.
    key_chain
        The key of the part.
    all_keys
        The keys of all parts.
    nested_separator
        What joins the keys that lead to a field.

    Returns
    -------
    Space
        The space of the part.

    Raises
    ------
    ValueError
        There is no such part, or the parts do not hold all of a sample.
    """
    plan = DictPlan(space, all_keys, nested_separator)
    if key_chain not in plan.keys:
        raise ValueError(f"there is no part {key_chain!r}, the parts are {plan.keys}")
    return plan.spaces()[plan.keys.index(key_chain)]


def get_chained_residual_space(
    space: Space, all_keys: Sequence[str], prefix: str = "", nested_separator: str = "/"
) -> Space | None:
    """What the parts of a `DictStorage` leave of a space.

    Parameters
    ----------
    space
        The space of a sample.
    all_keys
        The keys of the parts.
    prefix
        The field to look at; by default the whole sample.
    nested_separator
        What joins the keys that lead to a field.

    Returns
    -------
    Space or None
        The space of what is left; None if that is nothing.
    """
    rest = f"{prefix}{nested_separator}{REST}" if prefix else REST
    plan = DictPlan(space, dict.fromkeys([*all_keys, REST, rest]), nested_separator)
    return plan.spaces()[plan.keys.index(rest)] if rest in plan.keys else None


@register_storage("dict")
class DictStorage(ComposedStorage[dict[str, Any], BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Samples split by field: chosen fields in storages of their own, all others in the storage for "*".

    A field is named by the keys that lead to it, joined by `nested_separator`; "obs/*" stands for what is left of
    "obs". All parts have the same slots. A column reads the parts that it lies in, and no others.

    Examples
    --------
    >>> parts = {"reward": ListStorage, "*": PackedStorage}
    >>> buffer = ReplayBuffer.create("dict", transition_space(env, episode_id=True), parts, capacity=1_000)
    >>> buffer.append(transition)
    """

    metadata_file = "dict_storage_metadata.json"
    has_column_access = True
    decodes_columns = True

    def __init__(
        self,
        single_instance_space: Space,
        storage_map: Mapping[str, SpaceStorage],
        cache_filename: PathLike | None = None,
        nested_separator: str = "/",
        storage_paths: Mapping[str, str] | None = None,
    ) -> None:
        """Join parts that exist; `create` and `load_from` make them.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        storage_map
            The part for each key.
        cache_filename
            The folder of the storage; None in memory.
        nested_separator
            What joins the keys that lead to a field.
        storage_paths
            Where the part of each key lies in that folder.

        Raises
        ------
        ValueError
            A part holds another space than that of its key.
        """
        plan = DictPlan(single_instance_space, storage_map, nested_separator)
        paths = storage_paths or _part_names({key: type(storage_map[key]) for key in plan.keys})
        super().__init__(single_instance_space, {paths[key]: storage_map[key] for key in plan.keys}, cache_filename)
        for key, space, part in zip(plan.keys, plan.spaces(), self.parts, strict=True):
            if part.single_instance_space != space:
                raise ValueError(f"the part {key!r} holds {part.single_instance_space}, not {space}")
            part.be_called(f"{cache_filename}, column {key!r}")
        self.storage_map = {key: storage_map[key] for key in plan.keys}
        self.nested_separator = nested_separator
        self._plan = plan
        self._columns: dict[KeyPath, _DictColumn] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}

    @classmethod
    def create(
        cls,
        single_instance_space: Space,
        storage_cls_map: Mapping[str, type[SpaceStorage]] | None = None,
        *args: Any,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        key_kwargs: ByKey | None = None,
        type_kwargs: ByType | None = None,
        nested_separator: str = "/",
        **kwargs: Any,
    ) -> DictStorage:
        """Create a new storage with a part for each of some fields.

        Parameters
        ----------
        single_instance_space
            The space of one sample.
        storage_cls_map
            The class of each part by its key, such as "obs/rgb", "obs/*" or "*"; by default a `PackedStorage` for all.
        *args
            Arguments for every part.
        capacity, cache_path, multiprocessing
            As for every storage.
        key_kwargs
            Arguments for the part of a key.
        type_kwargs
            Arguments for the parts of a class.
        nested_separator
            Joins the keys that lead to a field.
        **kwargs
            Arguments for every part whose class takes them; a TypeError if there is none.

        Returns
        -------
        DictStorage
            The storage.

        Raises
        ------
        ValueError
            A key names no field, a field is in no part, or a part refuses its arguments; the message names the key.
        """
        classes = {REST: PackedStorage} if storage_cls_map is None else dict(storage_cls_map)
        plan = DictPlan(single_instance_space, classes, nested_separator)
        options_of = _part_options(classes, key_kwargs, type_kwargs)
        names = _part_names({key: classes[key] for key in plan.keys})
        check_inner_options(cls, classes.values(), kwargs)

        def options_for(key: str) -> dict[str, Any]:
            known = {name: value for name, value in kwargs.items() if takes_option(classes[key], name)}
            return {**known, **options_of(key)}

        def make_part(key: str, space: Space, folder: Path | None) -> SpaceStorage:
            path = None if folder is None else folder / names[key]
            options: dict[str, Any] = {"capacity": capacity, "cache_path": path, "multiprocessing": multiprocessing}
            try:
                return classes[key].create(space, *args, **options, **options_for(key))
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error

        def make_parts(folder: Path | None) -> dict[str, SpaceStorage]:
            return {
                names[key]: make_part(key, space, folder) for key, space in zip(plan.keys, plan.spaces(), strict=True)
            }

        def compose(parts: dict[str, SpaceStorage], folder: Path | None) -> DictStorage:
            storage_map = {key: parts[names[key]] for key in plan.keys}
            return cls(single_instance_space, storage_map, folder, nested_separator, names)

        return build(cache_path, make_parts, compose)

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        key_kwargs: ByKey | None = None,
        type_kwargs: ByType | None = None,
        columns: Mapping[str, Any] | None = None,
        frame_cache: int | str = 0,
        **kwargs: Any,
    ) -> DictStorage:
        """Load the storage in a folder.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only, multiprocessing
            As for every storage.
        key_kwargs, type_kwargs
            Arguments for the part of a key, and for the parts of a class.
        columns
            How the frames of columns of video are wanted (see `Decode`), by patterns.
        frame_cache
            How many bytes the decoded frames of all parts may take on disk, such as "20GB".
        **kwargs
            Arguments for every part.
        """
        folder = Path(path)
        separator, classes, names = _read_parts(folder, read_description(cls, folder))
        if columns or frame_cache:
            wanted = decoding_options(classes, separator, columns or {}, frame_cache)
            key_kwargs = {key: {**wanted.get(key, {}), **(key_kwargs or {}).get(key, {})} for key in classes}
        plan = DictPlan(single_instance_space, classes, separator)
        options_of = _part_options(classes, key_kwargs, type_kwargs)
        options = {"capacity": capacity, "read_only": read_only, "multiprocessing": multiprocessing, **kwargs}
        parts: dict[str, SpaceStorage] = {}
        try:
            for key, space in zip(plan.keys, plan.spaces(), strict=True):
                part_path = contained(folder, names[key])
                parts[key] = classes[key].load_from(part_path, space, **{**options, **options_of(key)})
            check_parts(folder, parts, capacity, accept_damaged=bool(kwargs.get("accept_damaged")))
            if columns:  # frames of another size
                single_instance_space = plan.space_of([parts[key].single_instance_space for key in plan.keys])
            return cls(single_instance_space, parts, folder, separator, names)
        except BaseException:
            for part in parts.values():
                part.close()
            raise

    def _description(self) -> dict[str, Any]:
        return {
            "nested_separator": self.nested_separator,
            "storages": {
                key: {"storage_type": name_of(type(part)), "storage_path": name}
                for (key, part), name in zip(self.storage_map.items(), self._names, strict=True)
            },
        }

    def _apart(self, value: Any, count: int | None) -> Sequence[Any]:
        return self._plan.apart(value)

    def _together(self, values: list[Any], count: int | None) -> Any:
        return self._plan.together(values)

    def get_subspace_by_key(self, key: str) -> Space:
        """The space of the part that is named `key`.

        Raises
        ------
        KeyError
            There is no such part.
        """
        if key not in self.storage_map:
            raise KeyError(f"there is no part {key!r}, the parts are {list(self.storage_map)}")
        return self.storage_map[key].single_instance_space

    def encoded_frames(self, nested_keys: tuple[Any, ...], slots: Any, length: int) -> EncodedFrames | None:
        sources, _ = self._plan.column(nested_keys)
        if len(sources) != 1:
            return None
        number, keys = sources[0]
        return self.parts[number].encoded_frames(keys, slots, length)

    def get_column(self, nested_keys: Sequence[Any]) -> ColumnView:
        keys = tuple(nested_keys)
        if keys not in self._columns:
            self._columns[keys] = _DictColumn(self, self._plan, keys)
        return self._columns[keys]


class _DictColumn(ColumnView):
    """One field of the samples of a `DictStorage`."""

    def __init__(self, storage: DictStorage, plan: DictPlan, keys: KeyPath) -> None:
        super().__init__(nested_item(storage.single_instance_space, keys))
        self.capacity = storage.capacity
        self._storage = storage
        sources, self._pieces = plan.column(keys)
        self._sources = [_field_reader(storage.parts[number], inner_keys) for number, inner_keys in sources]

    def __len__(self) -> int:
        return len(self._storage)

    def gather(self, slots: Any, length: int) -> Any:
        return assemble(self._pieces, [read(slots, length) for read in self._sources])


def _field_reader(part: RowStorage, keys: KeyPath) -> Callable[[Any, int], Any]:
    """The `gather` of a field of a storage."""
    if not keys:
        return part.gather
    if part.has_column_access:
        return rows_of(part.get_column(keys)).gather
    return lambda slots, length: nested_item(part.gather(slots, length), keys)


def _part_names(classes: Mapping[str, type[SpaceStorage]]) -> dict[str, str]:
    """Where parts lie in the folder. Keys can have characters that names of files cannot."""
    return {key: f"part-{number}{cls.single_file_ext or ''}" for number, (key, cls) in enumerate(classes.items())}


def _part_options(
    classes: Mapping[str, type[SpaceStorage]], key_kwargs: ByKey | None, type_kwargs: ByType | None
) -> Callable[[str], dict[str, Any]]:
    """The options of the part of a key; a ValueError if some are for a key or a class that no part has."""
    by_key, by_type = key_kwargs or {}, type_kwargs or {}
    for key in by_key:
        if key not in classes:
            raise ValueError(f"key_kwargs for {key!r}, the keys of the parts are {list(classes)}")
    for cls in by_type:
        if cls not in classes.values():
            raise ValueError(
                f"type_kwargs for {cls!r}, the parts are of {sorted({c.__name__ for c in classes.values()})}"
            )
    return lambda key: {**by_type.get(classes[key], {}), **by_key.get(key, {})}


def _read_parts(folder: Path, content: dict[str, Any]) -> tuple[str, dict[str, type[SpaceStorage]], dict[str, str]]:
    """The separator, and the classes and the paths of the parts by their keys."""
    path = folder / DictStorage.metadata_file
    separator = json_field({"nested_separator": "/", **content}, "nested_separator", str, path)
    # the reference's folder calls it "storage_map", with "type" and "path"
    field, prefix = ("storages", "storage_") if "storages" in content else ("storage_map", "")
    by_key = json_field(content, field, dict, path)
    parts = {key: json_field(by_key, key, dict, path) for key in by_key}
    classes = {key: storage_by_name(json_field(part, f"{prefix}type", str, path), path) for key, part in parts.items()}
    names = {key: json_field(part, f"{prefix}path", str, path) for key, part in parts.items()}
    paths = [contained(folder, name) for name in names.values()]
    taken = set(paths)
    if len(taken) < len(paths) or any(not taken.isdisjoint(part.parents) for part in paths):
        raise StorageCorruptedError(f"{path}: two parts lie at one path, or one lies inside the other")
    return separator, classes, names


def decoding_options(
    classes: Mapping[str, type[SpaceStorage]], separator: str, columns: Mapping[str, Any], frame_cache: int | str
) -> dict[str, dict[str, Any]]:
    """The options of the parts that are video, by their keys; a ValueError if a pattern names none of them.

    They share the bytes of the cache.
    """
    of_video = [key for key, cls in classes.items() if issubclass(cls, RowStorage) and cls.decodes_frames]
    names = {key: "/".join(key.split(separator)) for key in of_video}
    for pattern in columns:
        if not any(fnmatchcase(name, pattern) for name in names.values()):
            raise ValueError(f"columns {pattern!r} names no column of video, these are {list(names.values())}")
    share = bytes_of(frame_cache) // max(1, len(names))
    options = {}
    for key, name in names.items():
        rule = next((columns[pattern] for pattern in columns if fnmatchcase(name, pattern)), None)
        form = {} if rule is None else {"resize": rule.resize, "crop": rule.crop}
        options[key] = {**form, "frame_cache": share}
    return options
