"""Samples in a list."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers
from catalogue import SPACES, assert_same, samples

from unienv_data import ReplayBuffer
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_interface.backends import NumpyComputeBackend

NUMPY = NumpyComputeBackend


def test_only_what_was_written_takes_memory() -> None:
    storage = ListStorage.create(number_space(), capacity=10**6)
    assert storage.nbytes == 0
    storage.set([3, 5], numbers([1, 2]))
    assert storage.nbytes == 2 * 4 * 4
    storage.clear()
    assert storage.nbytes == 0


def test_growing_moves_nothing_and_is_given_back() -> None:
    buffer = ReplayBuffer.create(ListStorage, number_space())
    for value in range(1500):
        buffer.append(number(value))
    assert contents(buffer) == list(range(1500))
    assert (len(buffer.storage), buffer.storage.nbytes) == (1500, 1500 * 16)
    buffer.clear()
    assert (len(buffer.storage), buffer.storage.nbytes) == (0, 0)


def test_a_buffer_on_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    for storage_cls in (ListStorage, FlattenedStorage):
        options = {"inner_storage_cls": ListStorage} if storage_cls is FlattenedStorage else {}
        with pytest.raises(ValueError, match=f"{storage_cls.__name__} keeps samples in memory"):
            ReplayBuffer.create(storage_cls, number_space(), capacity=3, cache_path=tmp_path / "a", **options)
    with pytest.raises(ValueError, match="the memory of one process"):
        ReplayBuffer.create(ListStorage, number_space(), capacity=3, multiprocessing=True)
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_is_read_but_not_written_to(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(ListStorage, number_space(), capacity=4, maintain_segment_metadata=True)
    buffer.extend(numbers(range(3)))
    buffer.extend(numbers(range(3, 6)))
    buffer.dumps(tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != "lock"}
    with pytest.raises(PermissionError, match="ListStorage, can only be read from there"):
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, read_only=False)
    assert {path: path.read_bytes() for path in before} == before
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
        assert (contents(loaded), loaded.get_segments()) == ([2, 3, 4, 5], [(0, 1), (1, 4)])
        with pytest.raises(PermissionError):
            loaded.append(number(1))
        more = ReplayBuffer.create(ListStorage, number_space(), capacity=9)
        more.extend_from(loaded)
    assert contents(more) == [2, 3, 4, 5]


@pytest.mark.parametrize("name", ["everything", "text_nul", "dict_all_dtypes"])
def test_samples_of_every_kind_survive_a_pickle(name: str) -> None:
    space = SPACES[name](NUMPY)
    buffer = ReplayBuffer.create(ListStorage, space, capacity=3)
    values = samples(space, 4)
    for value in values:
        buffer.append(value)
    copy = pickle.loads(pickle.dumps(buffer))
    for found, value in zip(copy, values[1:], strict=True):
        assert_same(space, found, value)


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        ListStorage.create(number_space(), capacity=0)


def test_what_was_encoded_does_not_change_with_its_source() -> None:
    storage = ListStorage.create(number_space(), capacity=3)
    batch = numbers([1, 2])
    encoded = storage.encode(batch, 2)
    batch["number"][:] = 7
    storage.write(slice(0, 2), encoded, 0)
    assert np.array_equal(storage.get([0, 1])["number"], [1, 2])
