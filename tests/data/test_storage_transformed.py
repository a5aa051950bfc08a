"""Samples that are stored in another form."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number_space, numbers
from catalogue import assert_same

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.base.files import write_json
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.transformation import TransformedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.transformations import (
    BatchifyTransformation,
    ChainedTransformation,
    CropTransformation,
    DictIncludeKeyTransformation,
    DictTransformation,
    FlattenDictTransformation,
    IdentityTransformation,
    RescaleTransformation,
)

NUMPY = NumpyComputeBackend
BOX = BoxSpace(NUMPY, 0.0, 10.0, "float32", shape=(2,))


def storage_of(space: Any, transformation: Any, **options: Any) -> TransformedStorage:
    return TransformedStorage.create(space, PackedStorage, data_transformation=transformation, capacity=4, **options)


def rows(*values: float) -> np.ndarray:
    return np.array([[value, value] for value in values], np.float32)


def test_what_is_stored_is_what_the_transformation_gives() -> None:
    buffer = ReplayBuffer.create(TransformedStorage, BOX, capacity=4, data_transformation=RescaleTransformation())
    buffer.extend(rows(10, 5))
    buffer.append(rows(0)[0])
    inner = buffer.storage.inner_storage
    assert inner.single_instance_space == BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(2,))
    assert inner.get([0, 1, 2]).tolist() == rows(1, 0, -1).tolist()
    assert buffer.get_at(...).tolist() == rows(10, 5, 0).tolist()
    buffer.mark_segment_end()
    buffer.set_at([0, 2], rows(7.5, 2.5))
    assert inner.get([0, 2]).tolist() == rows(0.5, -0.5).tolist()
    assert buffer.get_flattened_at([0, 2]).tolist() == rows(7.5, 2.5).tolist()
    buffer.set_flattened_at([1, 0], rows(10, 0))
    assert inner.get([0, 1]).tolist() == rows(-1, 1).tolist()
    buffer.storage.set_flattened(3, rows(5)[0])
    assert buffer.storage.get_flattened(3).tolist() == [5, 5]


@pytest.mark.parametrize(
    "transformation",
    [
        FlattenDictTransformation(),
        DictTransformation({"number": RescaleTransformation(new_dtype="float64")}),
        ChainedTransformation([FlattenDictTransformation(), IdentityTransformation()]),
        DictTransformation({"inner/copies": BatchifyTransformation(0)}),
        DictTransformation({"inner/copies": BatchifyTransformation(1), "number": CropTransformation(-100, 100)}),
    ],
    ids=repr,
)
def test_samples_survive_the_way_there_and_back(transformation: Any, tmp_path: Path) -> None:
    options = {"data_transformation": transformation, "cache_path": tmp_path / "a"}
    with ReplayBuffer.create(TransformedStorage, number_space(), capacity=5, **options) as buffer:
        buffer.extend(numbers(range(3)))
        buffer.extend(numbers(range(3, 7)))
        assert contents(buffer) == [2, 3, 4, 5, 6]
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
        assert contents(loaded) == [2, 3, 4, 5, 6]
        assert type(loaded.storage.data_transformation) is type(transformation)
        assert contents(loaded.get_slice([])) == []


def test_a_transformation_of_single_values_is_not_given_batches() -> None:
    storage = storage_of(BOX, BatchifyTransformation(0))
    assert not storage.maps_batches  # a batch of arrays (1, 2) is not an array (1, n, 2)
    storage.set([0, 2], rows(1, 2))
    assert storage.inner_storage.get([0, 2]).shape == (2, 1, 2)
    assert_same(None, storage.get([2, 0]), rows(2, 1))
    assert storage.get([]).shape == (0, 2)
    assert storage_of(BOX, RescaleTransformation()).maps_batches


def test_an_inverse_is_needed_and_must_lead_back(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no inverse"):
        storage_of(number_space(), DictIncludeKeyTransformation(["number"]), cache_path=tmp_path / "a")

    class Wrong(IdentityTransformation):
        def direction_inverse(self, source_space: Any = None) -> Any:
            return BatchifyTransformation(0)

    with pytest.raises(ValueError, match="not back to"):
        storage_of(BOX, Wrong(), cache_path=tmp_path / "a")
    with pytest.raises(TypeError, match="data_transformation"):
        TransformedStorage.create(BOX, capacity=3)
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_registered_stays_in_memory(tmp_path: Path) -> None:
    class Mine(IdentityTransformation):
        pass

    with pytest.raises(ValueError, match="Mine is not registered"):
        storage_of(BOX, Mine(), cache_path=tmp_path / "a")
    storage = storage_of(BOX, Mine())
    with pytest.raises(ValueError, match="Mine is not registered"):
        storage.dumps(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def described(folder: Path) -> tuple[Path, dict[str, Any]]:
    options = {"data_transformation": RescaleTransformation(), "cache_path": folder}
    with ReplayBuffer.create(TransformedStorage, BOX, capacity=4, **options) as buffer:
        buffer.extend(rows(1, 2))
    path = folder / "storage" / "transformed_metadata.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    return path, content


def test_the_metadata_of_the_reference_is_read(tmp_path: Path) -> None:
    path, content = described(tmp_path / "a")
    assert content["data_transformation"]["type"] == "rescale"
    content["data_transformation"]["type"] = "unienv_interface.transformations.rescale.RescaleTransformation"
    content["storage_type"] = "unienv_data.storages.transformation.TransformedStorage"
    del content["format_version"]
    path.write_text(json.dumps(content))
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
        np.testing.assert_allclose(loaded.get_at(...), rows(1, 2), rtol=1e-5)


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize(
    ("transformation", "text"),
    [
        (None, "is a pickle, which can run code"),
        ({"type": "os.system"}, "unknown kind 'os.system'"),
        ({"type": "rescale", "new_low": 5, "new_high": 1}, "new_low"),
        ({"type": "dict", "mapping": {"a": {"type": "identity"}}}, "data_transformation"),
        ([1], "an object"),
    ],
    ids=str,
)
def test_a_transformation_that_is_no_json_of_one_is_refused(
    transformation: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, content = described(tmp_path / "a")
    (path.parent / "data_transformation.pkl").write_bytes(pickle.dumps(Evil()))
    write_json(path, {**content, "data_transformation": transformation})
    with pytest.raises(StorageCorruptedError, match=text):
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)
    assert not (tmp_path / "ran").exists()


def test_numbers_are_rounded_once_however_often_samples_move() -> None:
    space = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, 0.0, 7.0, "float32", shape=())})
    options = {"data_transformation": DictTransformation({"x": RescaleTransformation(0, 255, "uint8")})}
    buffer = ReplayBuffer.create(TransformedStorage, space, ListStorage, capacity=50, **options)
    buffer.extend({"x": np.linspace(0, 7, 40, dtype=np.float32)})
    stored = buffer.storage.inner_storage.get(slice(0, 40))["x"].tolist()
    for _ in range(10):
        buffer.remove_at([5])
    assert buffer.storage.inner_storage.get(slice(buffer.offset, buffer.offset + 30))["x"].tolist() == (
        stored[:5] + stored[15:]
    )
