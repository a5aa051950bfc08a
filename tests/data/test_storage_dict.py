"""A storage for every field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number_space, numbers
from catalogue import SPACES, assert_same, samples

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.storages.dict_storage import DictStorage, get_chained_residual_space, get_chained_space
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import concatenate
from unienv_interface.space.spaces import BoxSpace, DictSpace, TupleSpace

NUMPY = NumpyComputeBackend


def box(size: int = 2) -> BoxSpace:
    return BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(size,))


def robot_space() -> DictSpace:
    cameras = {"left": box(3), "right": box(4)}
    return DictSpace(
        NUMPY,
        {"obs": {"cameras": cameras, "pose": box(5)}, "act": box(6), "pair": TupleSpace(NUMPY, [box(7), box(8)])},
    )


def filled(keys: dict[str, Any], count: int = 4, **options: Any) -> tuple[DictStorage, list[Any]]:
    space = robot_space()
    storage = DictStorage.create(space, keys, capacity=count, **options)
    values = samples(space, count)
    storage.set(..., concatenate(space, values))
    return storage, values


# -- which part holds what ---------------------------------------------------------------------------------


def sizes(storage: DictStorage) -> dict[str, int]:
    """How many numbers a sample has in each part."""
    return {key: part.row_nbytes // 4 for key, part in storage.storage_map.items()}


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["*"], {"*": 33}),
        (["obs/cameras/left", "*"], {"obs/cameras/left": 3, "*": 30}),
        (["obs/cameras", "*"], {"obs/cameras": 7, "*": 26}),
        (["obs/*", "*"], {"obs/*": 12, "*": 21}),
        (["obs/cameras/right", "obs/*", "*"], {"obs/cameras/right": 4, "obs/*": 8, "*": 21}),
        (["obs/cameras/*", "obs/pose", "act", "pair"], {"obs/cameras/*": 7, "obs/pose": 5, "act": 6, "pair": 15}),
        (["obs", "act", "pair", "*"], {"obs": 12, "act": 6, "pair": 15}),
    ],
    ids=str,
)
def test_every_field_is_in_one_part(keys: list[str], wanted: dict[str, int]) -> None:
    storage, values = filled(dict.fromkeys(keys, PackedStorage))
    assert sizes(storage) == wanted
    for slot, value in enumerate(values):
        assert_same(storage.single_instance_space, storage.get(slot), value)
    for key, part in storage.storage_map.items():
        assert storage.get_subspace_by_key(key) == part.single_instance_space
        assert get_chained_space(storage.single_instance_space, key, keys) == part.single_instance_space
    with pytest.raises(KeyError, match="no part 'x'"):
        storage.get_subspace_by_key("x")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["obs"], "no storage for 'act': give one for '\\*'"),
        (["obs/cameras/left", "act", "pair"], "no storage for 'obs/cameras/right'"),
        (["obs", "obs/pose", "*"], "'obs/pose' of a storage lies below another"),
        (["nothing", "*"], "'nothing' of a storage: there is no field 'nothing'"),
        (["obs/depth", "*"], "there is no field 'obs/depth'"),
        (["act/*", "*"], "'act' is no dictionary"),
    ],
    ids=str,
)
def test_a_map_that_leaves_fields_out_or_takes_them_twice_is_refused(keys: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DictStorage.create(robot_space(), dict.fromkeys(keys, PackedStorage), capacity=3)


def test_what_is_left_of_a_space() -> None:
    space = robot_space()
    assert get_chained_residual_space(space, ["obs", "pair"]) == DictSpace(NUMPY, {"act": box(6)})
    assert get_chained_residual_space(space, ["obs/pose"], "obs") == DictSpace(
        NUMPY, {"cameras": space["obs"]["cameras"]}
    )
    assert get_chained_residual_space(space, ["obs", "act", "pair"]) is None


def test_another_separator_is_kept(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"a/b": box(2), "c": {"d": box(3)}})
    keys = {"a/b": PackedStorage, "c.d": PackedStorage}
    value = {"a/b": np.zeros(2, np.float32), "c": {"d": np.ones(3, np.float32)}}
    storage = DictStorage.create(space, keys, capacity=2, cache_path=tmp_path / "a", nested_separator=".")
    storage.set(1, value)
    storage.close()
    loaded = DictStorage.load_from(tmp_path / "a", space, capacity=2)
    assert loaded.nested_separator == "."
    assert_same(space, loaded.get(1), value)
    assert loaded.get_column(["c", "d"]).get(1).tolist() == [1, 1, 1]
    loaded.close()


def test_options_go_to_their_part(tmp_path: Path) -> None:
    keys = {"obs": FlattenedStorage, "act": FlattenedStorage, "*": PackedStorage}
    storage, _ = filled(
        keys,
        type_kwargs={FlattenedStorage: {"inner_storage_cls": ListStorage}},
        key_kwargs={"act": {"inner_storage_cls": PackedStorage}},
    )
    inner = {key: type(getattr(part, "inner_storage", None)) for key, part in storage.storage_map.items()}
    assert inner == {"obs": ListStorage, "act": PackedStorage, "*": type(None)}
    with pytest.raises(ValueError, match="key_kwargs for 'axt', the keys of the parts are"):
        filled(keys, key_kwargs={"axt": {}})
    with pytest.raises(ValueError, match=r"type_kwargs for .*ListStorage"):
        filled(keys, type_kwargs={ListStorage: {}})


def test_parts_in_memory_beside_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would be kept in memory and lost"):
        DictStorage.create(robot_space(), {"act": ListStorage, "*": PackedStorage}, cache_path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_parts_of_different_capacities_are_refused() -> None:
    space = DictSpace(NUMPY, {"a": box(), "b": box()})
    parts = {"a": PackedStorage.create(box(), capacity=3), "b": PackedStorage.create(box(), capacity=4)}
    with pytest.raises(ValueError, match="must have one capacity"):
        DictStorage(space, parts)
    with pytest.raises(ValueError, match="the part 'a' holds"):
        DictStorage(space, {"a": PackedStorage.create(box(9), capacity=4), "b": parts["b"]})


# -- columns -----------------------------------------------------------------------------------------------


class Opaque(ListStorage):
    """Has no columns of its own."""


@pytest.mark.parametrize(
    ("column", "parts"),
    [
        (("obs", "cameras", "left"), ["obs/cameras/left"]),
        (("obs", "cameras", "right"), ["obs/*"]),
        (("obs", "cameras"), ["obs/*", "obs/cameras/left"]),
        (("obs",), ["obs/*", "obs/cameras/left"]),
        (("act",), ["act"]),
        (("pair",), ["*"]),
        (("pair", 1), ["*"]),
        ((), ["*", "act", "obs/*", "obs/cameras/left"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("part_cls", [PackedStorage, Opaque], ids=["columns", "no columns"])
def test_a_column_reads_its_own_parts_only(column: Any, parts: list[str], part_cls: Any) -> None:
    keys = ["obs/cameras/left", "obs/*", "act", "*"]
    storage, values = filled(dict.fromkeys(keys, part_cls))
    space = storage.single_instance_space
    touched = set()
    for key, part in storage.storage_map.items():
        _watch(part, key, touched)
    view = storage.get_column(column)
    wanted = [_at(value, column) for value in values]
    assert_same(view.single_instance_space, view.get(2), wanted[2])
    assert_same(None, view.get([3, 0]), _at(concatenate(space, [values[3], values[0]]), column))
    assert sorted(touched) == sorted(parts)
    view.close()
    assert_same(space, storage.get(1), values[1])
    with pytest.raises(TypeError, match="read-only"):
        view.set(0, wanted[0])


def _watch(part: Any, key: str, touched: set[str]) -> None:
    """Note when anything of a part is read."""
    gather, get_column = part.gather, part.get_column

    def watched(read: Any) -> Any:
        def look(*args: Any) -> Any:
            touched.add(key)
            return read(*args)

        return look

    part.gather = watched(gather)
    part.get_column = watched(get_column)


def _at(value: Any, path: Any) -> Any:
    for key in path:
        value = value[key]
    return value


def test_a_buffers_column_follows_the_ring(tmp_path: Path) -> None:
    keys = {"storage_cls_map": {"number": PackedStorage, "*": PackedStorage}}
    with ReplayBuffer.create(DictStorage, number_space(), capacity=4, cache_path=tmp_path / "a", **keys) as buffer:
        buffer.extend(numbers(range(6)))
        assert buffer.get_column(["number"]).get_at(...).tolist() == [2, 3, 4, 5]
        assert buffer.get_column(["inner", "copies"]).get_at(0).tolist() == [2, 2, 2]
    with pytest.raises(KeyError, match="no field 'nonsense'"):
        DictStorage.create(number_space(), capacity=4).get_column(["nonsense"])


# -- faults ------------------------------------------------------------------------------------------------


def test_parts_of_different_lengths_are_found(tmp_path: Path) -> None:
    keys = {"storage_cls_map": {"number": PackedStorage, "*": PackedStorage}}
    with ReplayBuffer.create(DictStorage, number_space(), cache_path=tmp_path / "a", **keys) as buffer:
        buffer.extend(numbers(range(2000)))
        buffer.dumps(tmp_path / "short")
    shorter = ReplayBuffer.create(DictStorage, number_space(), **keys)
    shorter.extend(numbers(range(5)))
    shorter.dumps(tmp_path / "b")
    for name in ("rows.bin", "sums.bin"):
        part = Path("storage") / "part-0" / name
        (tmp_path / "short" / part).write_bytes((tmp_path / "b" / part).read_bytes())
    with pytest.raises(StorageCorruptedError):
        ReplayBuffer.load_from(tmp_path / "short", backend=NUMPY)


def test_a_part_of_another_capacity_is_found(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"a": box(), "b": box()})
    keys = {"a": PackedStorage, "b": ListStorage}
    storage = DictStorage.create(space, keys, capacity=3)
    storage.dumps(tmp_path / "a")
    DictStorage.create(space, keys, capacity=4).dumps(tmp_path / "b")
    for file in (tmp_path / "b" / "part-1").iterdir():
        (tmp_path / "a" / "part-1" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(StorageCorruptedError):
        DictStorage.load_from(tmp_path / "a", space, capacity=3)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"storages": []}, "'storages' is \\[\\], wanted dict"),
        ({"storages": {"number": "packed"}}, "'number' is 'packed', wanted dict"),
        ({"storages": {}}, "no storage for 'inner/copies'"),
        ({"nested_separator": 3}, "'nested_separator' is 3"),
        ({"nested_separator": ""}, "nested_separator is ''"),
    ],
    ids=str,
)
def test_metadata_that_makes_no_sense_is_refused(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    content = _described(tmp_path / "a")
    _write(tmp_path / "a", {**content, **change})
    with pytest.raises(StorageCorruptedError, match=text):
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)


def test_what_a_later_release_wrote_is_refused_and_not_called_corrupted(tmp_path: Path) -> None:
    content = _described(tmp_path / "a")
    file = tmp_path / "a" / "storage" / "dict_storage_metadata.json"
    for change, text in (
        ({"format_version": 2}, "format version 2, this release reads up to 1"),
        ({"storages": {"*": {"storage_type": "lance", "storage_path": "a"}}}, "no storage is registered as 'lance'"),
    ):
        _write(tmp_path / "a", {**content, **change})
        with pytest.raises(ValueError, match=re.escape(f"{file}: {text}")) as refused:
            ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)
        assert not isinstance(refused.value, StorageCorruptedError)


@pytest.mark.parametrize("path", ["part-0", "part-0/inside", "../outside", "/etc", "..", "part-7"])
def test_a_part_lies_in_the_folder_and_by_itself(path: str, tmp_path: Path) -> None:
    content = _described(tmp_path / "a")
    assert content["storages"]["*"]["storage_path"] == "part-1"
    content["storages"]["*"]["storage_path"] = path
    _write(tmp_path / "a", content)
    with pytest.raises(StorageCorruptedError):
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)


def _described(folder: Path) -> dict[str, Any]:
    keys = {"storage_cls_map": {"inner/copies": PackedStorage, "*": PackedStorage}}
    with ReplayBuffer.create(DictStorage, number_space(), capacity=3, cache_path=folder, **keys) as buffer:
        buffer.extend(numbers(range(2)))
        assert contents(buffer) == [0, 1]
    return json.loads((folder / "storage" / "dict_storage_metadata.json").read_text())


def _write(folder: Path, content: dict[str, Any]) -> None:
    from unienv_data.base.files import write_json

    content = {key: value for key, value in content.items() if key != "checksum"}
    write_json(folder / "storage" / "dict_storage_metadata.json", content)


def test_a_plain_space_is_one_part(tmp_path: Path) -> None:
    storage = DictStorage.create(SPACES["box_float32"](NUMPY), capacity=3)
    assert list(storage.storage_map) == ["*"]
    with pytest.raises(ValueError, match="there is no field 'a'"):
        DictStorage.create(SPACES["box_float32"](NUMPY), {"a": PackedStorage}, capacity=3)
