"""HDF5Storage: the file, what others wrote, and files that mean harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number_space, numbers
from file_storages import record

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace, TextSpace

h5py = pytest.importorskip("h5py")
HDF5Storage: Any = pytest.importorskip("unienv_data.storages.hdf5").HDF5Storage

NUMPY = NumpyComputeBackend
BOX = BoxSpace(NUMPY, -1e6, 1e6, "float32", shape=(3,))
PAIR = DictSpace(NUMPY, {"obs": {"rgb": BoxSpace(NUMPY, 0, 255, "uint8", shape=(40, 30))}, "action": BOX})


def filled(path: Path, space: Any = BOX, capacity: int | None = 20, **options: Any) -> tuple[Any, Any]:
    storage = HDF5Storage.create(space, capacity, path, **options)
    count = capacity or 20
    rng, batch = NUMPY.random.random_number_generator(3), []
    for _ in range(count):
        rng, value = space.sample(rng)
        batch.append(value)
    if capacity is None:
        storage.extend_length(count)
    for slot, value in enumerate(batch):
        storage.set(slot, value)
    return storage, batch


# -- the file ----------------------------------------------------------------------------------------------


def test_the_file_has_a_dataset_per_leaf(tmp_path: Path) -> None:
    filled(tmp_path / "box.hdf5")[0].close()
    filled(tmp_path / "pair.hdf5", PAIR)[0].close()
    with h5py.File(tmp_path / "box.hdf5") as file:
        assert list(file) == ["data"]
        assert (file["data"].shape, file["data"].dtype) == ((20, 3), np.float32)
    with h5py.File(tmp_path / "pair.hdf5") as file:
        assert file["obs/rgb"].shape == (20, 40, 30)
        assert all(file[name].fletcher32 for name in ("obs/rgb", "action"))


@pytest.mark.parametrize("space", [BOX, PAIR], ids=["box", "dict"])
def test_compression_and_chunks_reach_every_dataset(space: Any, tmp_path: Path) -> None:
    storage, batch = filled(tmp_path / "a.hdf5", space, compression="gzip", compression_level=7, chunks=4)
    datasets = HDF5Storage.call_function_on_every_dataset(storage.root, lambda dataset: dataset)
    assert {(dataset.compression, dataset.compression_opts, dataset.chunks[0]) for dataset in datasets} == {
        ("gzip", 7, 4)
    }
    assert all(dataset.fletcher32 for dataset in datasets)
    storage.dumps(tmp_path / "b.hdf5")
    storage.close()
    with h5py.File(tmp_path / "b.hdf5") as file:
        assert HDF5Storage.call_function_on_first_dataset(file, lambda dataset: dataset.compression) == "gzip"
    loaded = HDF5Storage.load_from(tmp_path / "b.hdf5", space, capacity=20)
    loaded.dumps(tmp_path / "c.hdf5")
    loaded.close()
    with h5py.File(tmp_path / "c.hdf5") as file:
        assert HDF5Storage.call_function_on_first_dataset(file, lambda dataset: dataset.chunks[0]) == 4
    assert len(batch) == 20


def test_compression_by_leaf_and_its_misspelling(tmp_path: Path) -> None:
    storage, _ = filled(tmp_path / "a.hdf5", PAIR, compression={"obs/rgb": "lzf"})
    assert storage.root["obs/rgb"].compression == "lzf"
    assert storage.root["action"].compression is None
    storage.close()
    with pytest.raises(ValueError, match=r"compression of 'obs/rgbb', the datasets are \['action', 'obs/rgb'\]"):
        HDF5Storage.create(PAIR, 5, tmp_path / "b.hdf5", compression={"obs/rgbb": "lzf"})
    assert not (tmp_path / "b.hdf5").exists()


def test_a_copy_of_a_file_has_chunks_that_fit_each_dataset(tmp_path: Path) -> None:
    large = BoxSpace(NUMPY, 0, 255, "uint8", shape=(600, 600))
    space = DictSpace(NUMPY, {"large": large, "small": BoxSpace(NUMPY, 0, 9, "int64", shape=())})
    filled(tmp_path / "a.hdf5", space, None)[0].close()
    loaded = HDF5Storage.load_from(tmp_path / "a.hdf5", space)
    loaded.dumps(tmp_path / "b.hdf5")
    loaded.close()
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.hdf5") as file:
            assert file["large"].chunks == (1, 600, 600)
            assert file["small"].chunks[0] >= 1024


@pytest.mark.parametrize("capacity", [20, None])
def test_a_file_is_no_longer_than_its_content_once_it_is_flushed(capacity: int | None, tmp_path: Path) -> None:
    storage, batch = filled(tmp_path / "a.hdf5", PAIR, capacity)
    storage.flush()
    assert (tmp_path / "a.hdf5").stat().st_size < 2**18
    storage.set(0, batch[1])
    storage.close()
    assert (tmp_path / "a.hdf5").stat().st_size < 2**18
    loaded = HDF5Storage.load_from(tmp_path / "a.hdf5", PAIR, capacity=capacity)
    for slot in range(20):
        assert np.array_equal(loaded.get(slot)["obs"]["rgb"], batch[slot or 1]["obs"]["rgb"])
    loaded.close()


@pytest.mark.parametrize("reduce_io", [True, False])
@pytest.mark.parametrize("chunks", [None, (7, 3), (1, 2)], ids=["without chunks", "chunks", "small chunks"])
def test_every_index_reads_what_numpy_reads(reduce_io: bool, chunks: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:  # without chunks, as other programs write
        file.create_dataset("data", (300, 3), np.float32, chunks=chunks)
        storage = HDF5Storage(BOX, file, 300, reduce_io=reduce_io)
        values = np.arange(900, dtype=np.float32).reshape(300, 3)
        chance = np.random.default_rng(0)
        scattered = chance.permutation(300)
        for slots in (scattered[:100], scattered[100:], np.array([5, 6, 200]), slice(40, 50)):
            storage.set(slots, values[slots])
        for index in (scattered[:40], scattered[:5], np.array([7, 7, 3]), slice(290, 10, -13), values[:, 0] % 2 == 0):
            assert np.array_equal(storage.get(index), values[index])


def test_a_column_reads_its_own_dataset_and_never_closes_the_file(tmp_path: Path) -> None:
    storage, batch = filled(tmp_path / "a.hdf5", PAIR, chunks=4)
    place, size = _first_chunk(storage.root["obs/rgb"])
    storage.close()
    flip(tmp_path / "a.hdf5", place + size // 2)
    storage = HDF5Storage.load_from(tmp_path / "a.hdf5", PAIR, capacity=20)
    column = storage.get_column(["action"])
    assert np.array_equal(column.get([3, 0]), np.stack([batch[3]["action"], batch[0]["action"]]))
    column.close()
    del column
    with pytest.raises(StorageCorruptedError, match=r"a\.hdf5"):
        storage.get(0)
    assert any("rgb" in finding for finding in storage.verify())
    assert np.array_equal(storage.get_column(["obs", "rgb"]).get(19), batch[19]["obs"]["rgb"])
    storage.close()


def _first_chunk(dataset: Any) -> tuple[int, int]:
    info = dataset.id.get_chunk_info(0)
    return info.byte_offset, info.size


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_texts_are_strings_and_what_is_none_is_refused(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"task": TextSpace(NUMPY, 6)})
    storage = HDF5Storage.create(space, 3, tmp_path / "a.hdf5")
    storage.set(slice(0, 3), {"task": np.array(["grasp", "", "äß🙂"], object)})
    for text in ("a\0", "\ud800"):
        with pytest.raises(ValueError, match=r"task: text .* cannot keep"):
            storage.set(0, {"task": text})
    assert storage.get(...)["task"].tolist() == ["grasp", "", "äß🙂"]
    storage.close()
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["task"].asstr()[...].tolist() == ["grasp", "", "äß🙂"]


def test_a_growing_one_begins_empty(tmp_path: Path) -> None:
    storage = HDF5Storage.create(BOX, None, tmp_path / "a.hdf5", initial_capacity=10)
    assert len(storage) == 0
    storage.clear()
    assert storage.get([]).shape == (0, 3)
    storage.extend_length(2)
    storage.set([0, 1], np.ones((2, 3), np.float32))
    storage.close()
    assert len(HDF5Storage.load_from(tmp_path / "a.hdf5", BOX)) == 2
    with pytest.raises(OSError, match="bytes are needed"):
        HDF5Storage.create(BOX, None, tmp_path / "b.hdf5", initial_capacity=10**15)


def test_unknown_keywords_are_refused_when_it_is_made_and_not_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        HDF5Storage.create(BOX, 2, tmp_path / "a.hdf5", compresion="gzip")
    filled(tmp_path / "a.hdf5")[0].close()
    HDF5Storage.load_from(tmp_path / "a.hdf5", BOX, compressed=False).close()


# -- writers and readers -----------------------------------------------------------------------------------


def test_after_a_kill_the_file_is_refused_and_what_was_flushed_can_be_had(tmp_path: Path) -> None:
    record("hdf5", tmp_path / "buffer", 0, 5, 4)
    with pytest.raises(StorageCorruptedError, match="accept_unclean=True"):
        ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY)
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY, accept_unclean=True) as buffer:
        assert contents(buffer) == [0, 1, 2, 3, 4]


def test_a_file_that_was_flushed_before_the_kill_is_as_it_was(tmp_path: Path) -> None:
    record("hdf5", tmp_path / "buffer", 7, 5, 0)
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY, read_only=False) as buffer:
        assert contents(buffer) == [0, 1, 2, 3, 4]
        buffer.extend(numbers([5]))
        assert contents(buffer) == [0, 1, 2, 3, 4, 5]


def test_no_other_process_opens_a_file_that_is_written(tmp_path: Path) -> None:
    storage, _ = filled(tmp_path / "a.hdf5")
    program = f"""
from unienv_data.storages.hdf5 import HDF5Storage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace
space = BoxSpace(NumpyComputeBackend, -1e6, 1e6, "float32", shape=(3,))
try:
    HDF5Storage.load_from({str(tmp_path / "a.hdf5")!r}, space)
except BlockingIOError as error:
    assert "a.hdf5" in str(error) and "one writer" in str(error), error
else:
    raise SystemExit("opened")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    storage.close()


def test_one_process_writes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one writer"):
        HDF5Storage.create(BOX, 3, tmp_path / "a.hdf5", multiprocessing=True)
    storage, _ = filled(tmp_path / "a.hdf5")
    with pytest.raises(TypeError, match="one writer"):
        storage.__getstate__()
    storage.close()


def test_a_fork_reads_with_a_handle_of_its_own(tmp_path: Path) -> None:
    storage, batch = filled(tmp_path / "a.hdf5")
    storage.close()
    loaded = HDF5Storage.load_from(tmp_path / "a.hdf5", BOX, capacity=20)
    theirs, loaded._pid = loaded.root, loaded._pid + 1  # as it is after a fork
    assert np.array_equal(loaded.get(4), batch[4])
    assert loaded.root is not theirs
    loaded.close()
    theirs.close()


# -- files that others wrote -------------------------------------------------------------------------------


def test_a_plain_file_is_a_buffer(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.hdf5", "w") as file:
        file["obs/pose"] = np.arange(8, dtype=np.float64).reshape(4, 2)
        file["done"] = np.array([False, False, True, False])
        file.create_dataset("task", data=["a", "bcd", "", "ef"], dtype=h5py.string_dtype())
    with h5py.File(tmp_path / "raw.hdf5") as file:
        capacity, count, space = HDF5Storage.build_space_from_hdf5_file(file)
    assert (capacity, count) == (4, 4)
    assert isinstance(space, DictSpace)
    assert space.spaces["task"].max_length == 3
    with HDF5Storage.load_replay_buffer_from_raw_hdf5(tmp_path / "raw.hdf5") as buffer:
        assert not buffer.is_mutable
        assert buffer.get_at(-1)["task"] == "ef"
        assert buffer.get_at([2, 1])["obs"]["pose"].tolist() == [[4.0, 5.0], [2.0, 3.0]]
        assert buffer.get_at([2, 1])["done"].tolist() == [True, False]


def test_datasets_of_different_lengths_are_no_buffer(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.hdf5", "w") as file:
        file["a"], file["b"] = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError, match="datasets of one length are wanted"):
        HDF5Storage.load_replay_buffer_from_raw_hdf5(tmp_path / "raw.hdf5")


# -- files that are not what they should be ----------------------------------------------------------------


def _other_dtype(file: Any, folder: Path) -> None:
    file["data"] = np.zeros((5, 3), np.float64)


def _other_length(file: Any, folder: Path) -> None:
    file["data"] = np.zeros((6, 3), np.float32)


def _missing(file: Any, folder: Path) -> None:
    file["date"] = np.zeros((5, 3), np.float32)


def _group(file: Any, folder: Path) -> None:
    file.create_group("data")


def _soft_link(file: Any, folder: Path) -> None:
    file["other"] = np.zeros((5, 3), np.float32)
    file["data"] = h5py.SoftLink("/other")


def _external_link(file: Any, folder: Path) -> None:
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["data"] = np.zeros((5, 3), np.float32)
    file["data"] = h5py.ExternalLink(str(folder / "other.hdf5"), "data")


def _external_storage(file: Any, folder: Path) -> None:
    file.create_dataset("data", (5, 3), "f4", external=[("/etc/passwd", 0, 60)])


def _virtual(file: Any, folder: Path) -> None:
    layout = h5py.VirtualLayout((5, 3), "f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "data", (5, 3))
    file.create_virtual_dataset("data", layout)


def _version_of_the_future(file: Any, folder: Path) -> None:
    file["data"] = np.zeros((5, 3), np.float32)
    file.attrs["unienv_format_version"] = 99


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (_other_dtype, "float64 .* the space wants float32"),
        (_other_length, "length"),
        (_missing, "'data' is missing"),
        (_group, "is a group"),
        (_soft_link, "SoftLink, which is not followed"),
        (_external_link, "ExternalLink, which is not followed"),
        (_external_storage, "data in other files"),
        (_virtual, "data in other files"),
        (_version_of_the_future, "format version 99"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(make: Any, match: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        make(file, tmp_path)
    with pytest.raises(ValueError, match=match) as caught:
        HDF5Storage.load_from(tmp_path / "a.hdf5", BOX, capacity=5)
    assert "a.hdf5" in str(caught.value)
    os.rename(tmp_path / "a.hdf5", tmp_path / "b.hdf5")  # nothing holds it open


@pytest.mark.parametrize("cut", [0, 7, 100, 1000, -1])
def test_a_file_that_was_cut_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    filled(path, PAIR)[0].close()
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StorageCorruptedError, match=r"a\.hdf5"):
        HDF5Storage.load_from(path, PAIR, capacity=20)


def test_a_link_to_a_file_is_not_followed(tmp_path: Path) -> None:
    filled(tmp_path / "a.hdf5")[0].close()
    (tmp_path / "b.hdf5").symlink_to(tmp_path / "a.hdf5")
    with pytest.raises(StorageCorruptedError, match="not a plain file"):
        HDF5Storage.load_from(tmp_path / "b.hdf5", BOX, capacity=20)
    with pytest.raises(StorageCorruptedError, match="missing"):
        HDF5Storage.load_from(tmp_path / "c.hdf5", BOX, capacity=20)


def test_a_key_that_hdf5_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rename it or use PackedStorage"):
        HDF5Storage.create(DictSpace(NUMPY, {".": BOX}), 2, tmp_path / "a.hdf5")
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_the_callers_is_not_closed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["runs/first/data"] = np.zeros((5, 3), np.float32)
        storage = HDF5Storage(BOX, file["runs/first"], 5)
        storage.set(2, np.ones(3, np.float32))
        storage.close()
        assert file["runs/first/data"][2].tolist() == [1, 1, 1]


def test_several_buffers_in_memory() -> None:
    buffers = [ReplayBuffer.create(HDF5Storage, number_space(), capacity=4) for _ in range(3)]
    for place, buffer in enumerate(buffers):
        buffer.extend(numbers([place]))
    assert [contents(buffer) for buffer in buffers] == [[0], [1], [2]]


def test_a_buffer_in_memory_is_dumped(tmp_path: Path) -> None:
    with ReplayBuffer.create(HDF5Storage, number_space(), capacity=4) as buffer:
        buffer.extend(numbers(range(6)))
        buffer.dumps(tmp_path / "buffer")
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as loaded:
        assert contents(loaded) == [2, 3, 4, 5]
