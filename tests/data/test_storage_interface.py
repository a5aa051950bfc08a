"""What all storages take of the documented interface: keywords, empty folders, and the buffer's open segment."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import ReplayBuffer, SpaceStorage
from unienv_data.storages.backend_compat import ToBackendOrDeviceStorage
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.npz_storage import NPZStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.transformation import TransformedStorage
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.transformations import IdentityTransformation

BOX = BoxSpace(NumpyComputeBackend, -100.0, 100.0, np.float32, shape=(2,))
PAIR = DictSpace(NumpyComputeBackend, {"one": BOX, "other": BOX})
ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)
WRAPPING: dict[str, tuple[type[SpaceStorage], dict[str, Any]]] = {
    "flattened": (FlattenedStorage, {}),
    "transformed": (TransformedStorage, {"data_transformation": IdentityTransformation()}),
    "to_backend": (ToBackendOrDeviceStorage, {"backend": NumpyComputeBackend}),
}


def storage_classes() -> list[type[SpaceStorage]]:
    found = [PackedStorage, NPZStorage]
    for module, name in (("hdf5", "HDF5Storage"), ("parquet", "ParquetStorage")):
        pytest.importorskip({"hdf5": "h5py", "parquet": "pyarrow"}[module])
        found.append(getattr(__import__(f"unienv_data.storages.{module}", fromlist=[name]), name))
    return found


# -- keywords ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRAPPING)
def test_keywords_that_a_wrapping_storage_does_not_know_are_the_inner_ones(name: str, tmp_path: Path) -> None:
    cls, options = WRAPPING[name]
    storage = cls.create(BOX, NPZStorage, capacity=2, cache_path=tmp_path / "a", compressed=False, **options)
    assert storage.inner_storage.compressed is False  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"compresed.*cache_path.*inner_storage_kwargs.*NPZStorage takes.*'compressed'"):
        cls.create(BOX, NPZStorage, capacity=2, cache_path=tmp_path / "b", compresed=False, **options)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("is_memmap", [True, False])
def test_a_memmap_is_asked_for_through_flattened(is_memmap: bool, tmp_path: Path) -> None:
    torch = deserialize_backend("pytorch") if any(b.simplified_name == "pytorch" for b in BACKENDS) else None
    if torch is None:
        pytest.skip("needs PyTorch")
    from unienv_data.storages.pytorch import PytorchTensorStorage

    space = BoxSpace(torch, -1.0, 1.0, torch.default_floating_dtype, shape=(2,))
    buffer = ReplayBuffer.create(
        FlattenedStorage, space, PytorchTensorStorage, capacity=2, cache_path=tmp_path / "a", is_memmap=is_memmap
    )
    assert buffer.storage.inner_storage.is_memmap is is_memmap  # type: ignore[attr-defined]
    buffer.close()


def test_keywords_of_a_dict_storage_go_to_the_parts_that_know_them(tmp_path: Path) -> None:
    classes = {"one": NPZStorage, "other": PackedStorage}
    storage = DictStorage.create(PAIR, classes, capacity=2, cache_path=tmp_path / "a", compressed=False)
    assert storage.storage_map["one"].compressed is False  # type: ignore[attr-defined]
    text = "is_memmap.*'key_kwargs'.*NPZStorage takes.*'compressed'.*PackedStorage takes"
    with pytest.raises(TypeError, match=text):
        DictStorage.create(PAIR, classes, capacity=2, cache_path=tmp_path / "b", is_memmap=False)


def test_a_wrapping_storage_in_another_hands_keywords_on(tmp_path: Path) -> None:
    inner = {"inner_storage_cls": NPZStorage}
    storage = ToBackendOrDeviceStorage.create(
        BOX, FlattenedStorage, capacity=2, cache_path=tmp_path / "a", inner_storage_kwargs=inner, compressed=False
    )
    assert storage.inner_storage.inner_storage.compressed is False  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"FlattenedStorage\.create takes no keyword 'nothing'"):
        ToBackendOrDeviceStorage.create(
            BOX, FlattenedStorage, capacity=2, cache_path=tmp_path / "b", inner_storage_kwargs=inner, nothing=1
        )
    assert not (tmp_path / "b").exists()


def test_a_keyword_that_nobody_knows_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    for cls in [*storage_classes(), ListStorage]:
        with pytest.raises(
            TypeError, match=f"{cls.__name__}.create takes no keyword 'nothing', it takes .*'cache_path'"
        ):
            cls.create(BOX, capacity=2, cache_path=tmp_path / "a", nothing=1)
    assert not (tmp_path / "a").exists()


# -- folders -----------------------------------------------------------------------------------------------


def test_a_folder_that_is_empty_is_taken_and_one_that_is_not_is_refused(tmp_path: Path) -> None:
    for cls in storage_classes():
        if cls.single_file_ext is None:
            folder = tmp_path / cls.__name__
            folder.mkdir()
            storage = cls.create(BOX, capacity=2, cache_path=folder)
            storage.set(0, ROWS[0])
            assert np.array_equal(storage.get(0), ROWS[0])
            storage.close()
            with pytest.raises(FileExistsError, match="it exists already: give another path"):
                cls.create(BOX, capacity=2, cache_path=folder)
    for name, (cls, options) in WRAPPING.items():
        (tmp_path / name).mkdir()
        cls.create(BOX, NPZStorage, capacity=2, cache_path=tmp_path / name, **options).close()
    for cls in [None, *storage_classes()]:
        folder = tmp_path / "buffers" / str(cls)
        folder.mkdir(parents=True)
        with ReplayBuffer.create(cls, BOX, capacity=4, cache_path=folder) as buffer:
            buffer.extend(ROWS[:3])
        with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend) as buffer:
            assert np.array_equal(buffer.get_at(...), ROWS[:3])


def test_a_folder_that_could_not_be_filled_is_as_before(tmp_path: Path) -> None:
    for name in ("empty", "absent"):
        folder = tmp_path / name
        if name == "empty":
            folder.mkdir()
        with pytest.raises(ValueError, match="keeps samples in memory"):
            ReplayBuffer.create(ListStorage, BOX, cache_path=folder)
        assert folder.exists() == (name == "empty")
        assert name == "absent" or not list(folder.iterdir())


# -- the open segment --------------------------------------------------------------------------------------


@pytest.mark.parametrize("maintains", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_storage_knows_of_the_open_segment_of_its_buffer(maintains: bool, on_disk: bool, tmp_path: Path) -> None:
    path = tmp_path / "a" if on_disk else None
    for cls in [PackedStorage, *(storage_classes() if on_disk else [ListStorage])]:
        place = None if path is None else path / cls.__name__ / str(maintains)
        if place is not None and place.exists():
            continue
        rb = ReplayBuffer.create(cls, BOX, capacity=4, cache_path=place, maintain_segment_metadata=maintains)
        assert not rb.storage.has_open_segment
        for count in (1, 2):
            rb.append(ROWS[count])
            assert (rb.storage.has_open_segment, rb.storage.pending_segment_length) == (True, count)
        if rb.storage.has_open_segment:
            rb.mark_segment_end()
        assert (rb.storage.has_open_segment, rb.storage.pending_segment_length) == (False, 0)
        if maintains:
            assert rb.get_segments() == [(0, 2)]
        rb.append(ROWS[0])
        storage = rb.storage
        rb.clear()
        assert not storage.has_open_segment
        rb.append(ROWS[0])
        rb.close()
        assert not storage.has_open_segment


def test_the_open_segments_of_lanes_are_counted_together() -> None:
    rb = ReplayBuffer.create(BOX, capacity=8, lanes=2)
    rb.extend_lanes(ROWS[:2], np.array([True, False]))
    assert (rb.storage.has_open_segment, rb.storage.pending_segment_length) == (True, 1)
    rb.extend_lanes(ROWS[2:4])
    assert rb.storage.pending_segment_length == 3
    rb.mark_segment_end()
    assert not rb.storage.has_open_segment


def test_a_storage_that_outlives_its_buffer_or_is_pickled_has_none_open() -> None:
    rb = ReplayBuffer.create(ListStorage, BOX, capacity=4)
    rb.append(ROWS[0])
    storage = rb.storage
    assert not pickle.loads(pickle.dumps(storage)).has_open_segment
    del rb
    assert not storage.has_open_segment


def test_append_flattened_opens_a_segment_as_append_does(tmp_path: Path) -> None:
    for cls in (PackedStorage, FlattenedStorage):
        rb = ReplayBuffer.create(cls, PAIR, capacity=8, maintain_segment_metadata=True)
        rb.append_flattened(np.array([1, 2, 3, 4], np.float32))
        with pytest.raises(RuntimeError, match="call mark_segment_end first"):
            rb.extend_flattened(np.ones((2, 4), np.float32))
        with pytest.raises(RuntimeError, match="call mark_segment_end first"):
            rb.dumps(tmp_path / cls.__name__)
        rb.append_flattened(np.array([5, 6, 7, 8], np.float32))
        rb.mark_segment_end()
        rb.extend_flattened(np.ones((2, 4), np.float32))
        rb.dumps(tmp_path / cls.__name__)
        assert rb.get_segments() == [(0, 2), (2, 4)]
        assert rb.get_at(1)["other"].tolist() == [7, 8]
