"""Samples as flat arrays in a storage of arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number_space, numbers
from catalogue import SPACES, assert_same, samples

from unienv_data import ReplayBuffer
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.registry import storage_by_name
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import concatenate, flatten_data, flatten_space

NUMPY = NumpyComputeBackend


def test_its_folder_is_as_the_reference_has_it(tmp_path: Path) -> None:
    FlattenedStorage.create(number_space(), PackedStorage, capacity=4, cache_path=tmp_path / "a").close()
    content = json.loads((tmp_path / "a" / "flattened_metadata.json").read_text())
    assert content["storage_type"] == "flattened"
    assert content["inner_storage_type"] == "packed"
    assert content["inner_storage_path"] == "inner_storage"
    assert (tmp_path / "a" / "inner_storage").is_dir()


@pytest.mark.parametrize("module", ["flattened", "common"])
def test_the_names_of_the_reference_resolve(module: str) -> None:
    assert storage_by_name(f"unienv_data.storages.{module}.FlattenedStorage") is FlattenedStorage


def test_flat_samples_go_straight_to_the_storage_inside() -> None:
    storage = FlattenedStorage.create(number_space(), ListStorage, capacity=4)
    flat = np.arange(8, dtype=np.int32).reshape(2, 4)
    storage.set_flattened([1, 3], flat)
    assert storage.inner_storage.get([1, 3]).tolist() == flat.tolist()
    assert storage.get_flattened(3).tolist() == flat[1].tolist()
    assert storage.get(3)["number"] == 7
    for misfit in (np.zeros(5, np.int32), np.zeros(4, np.float32)):
        with pytest.raises(ValueError, match="the space wants"):
            storage.set_flattened(0, misfit)


@pytest.mark.parametrize("name", ["text_ascii", "dynamic_box", "union", "dict_nested", "box_scalar", "binary"])
def test_every_space_with_a_flat_form_can_be_kept(name: str) -> None:
    space = SPACES[name](NUMPY)
    storage = FlattenedStorage.create(space, capacity=4)
    values = samples(space, 4)
    batch = concatenate(space, values)
    storage.set(..., batch)
    assert storage.inner_storage.single_instance_space == flatten_space(space)
    assert_same(None, storage.get(...), batch)
    assert_same(None, storage.get_flattened(2), flatten_data(space, values[2]))
    buffer = ReplayBuffer.create(FlattenedStorage, space, capacity=3)
    buffer.extend(batch)
    assert_same(space, buffer.get_at(-1), values[3])
    assert len(buffer.get_flattened_at([])) == 0
    assert len(buffer.get_flattened_at(...)) == 3


def test_a_space_without_a_flat_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no flat form"):
        FlattenedStorage.create(SPACES["graph_edges"](NUMPY), capacity=4, cache_path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_options_go_to_the_storage_inside(tmp_path: Path) -> None:
    made: dict[str, Any] = {}

    class Inner(ListStorage):
        @classmethod
        def create(cls, space: Any, first: Any = None, **options: Any) -> Any:  # type: ignore[override]
            made.update(options, first=first)
            return cls(space, options["capacity"])

    FlattenedStorage.create(number_space(), Inner, "one", capacity=4, inner_storage_kwargs={"second": "two"})
    assert made == {"first": "one", "second": "two", "capacity": 4, "cache_path": None, "multiprocessing": False}


def test_a_snapshot_is_read_and_gone_on_with(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(FlattenedStorage, number_space(), capacity=4, maintain_segment_metadata=True)
    buffer.extend(numbers(range(3)))
    buffer.extend(numbers(range(3, 6)))
    buffer.dumps(tmp_path / "a")
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, read_only=False) as loaded:
        assert (contents(loaded), loaded.get_segments()) == ([2, 3, 4, 5], [(0, 1), (1, 4)])
        loaded.extend(numbers([6]))
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
        assert contents(loaded) == [3, 4, 5, 6]
        assert loaded.get_flattened_at(...)[:, 0].tolist() == [3, 4, 5, 6]
        with pytest.raises(PermissionError):
            loaded.storage.set_flattened(0, np.zeros(4, np.int32))
