"""NPZStorage: a file per sample, what others wrote, and files that are not what they should be."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.base.files import write_json
from unienv_data.storages.npz_storage import NPZStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace, TextSpace

NUMPY = NumpyComputeBackend
BOX = BoxSpace(NUMPY, -1e6, 1e6, "float32", shape=(2, 3))
ROWS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


def filled(folder: Path, **options: Any) -> NPZStorage:
    storage = NPZStorage.create(BOX, **{"capacity": 4, "cache_path": folder, **options})
    storage.set(..., ROWS)
    storage.flush()
    return storage


def load(folder: Path, **options: Any) -> NPZStorage:
    return NPZStorage.load_from(folder, BOX, **{"capacity": 4, **options})


# -- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
def test_numpy_opens_the_files(compressed: bool, tmp_path: Path) -> None:
    filled(tmp_path / "a", compressed=compressed)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "0.npz", "1.npz", "2.npz", "3.npz", "npz_metadata.json",
    ]  # fmt: skip
    with np.load(tmp_path / "a" / "2.npz", allow_pickle=False) as file:
        assert np.array_equal(file["data"], ROWS[2])
    with zipfile.ZipFile(tmp_path / "a" / "2.npz") as archive:
        method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        assert [info.compress_type for info in archive.infolist()] == [method]
    content = json.loads((tmp_path / "a" / "npz_metadata.json").read_text())
    assert (content["storage_type"], content["compressed"]) == ("npz", compressed)
    assert (content["capacity"], content["length"]) == (4, 4)


def test_a_dictionary_has_an_array_per_leaf_and_a_column_reads_its_own(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"obs": {"file": BOX}, "task": TextSpace(NUMPY, 4)})
    storage = NPZStorage.create(space, capacity=2, cache_path=tmp_path / "a", compressed=False)
    storage.set(0, {"obs": {"file": ROWS[0]}, "task": "a\0\0"})
    with np.load(tmp_path / "a" / "0.npz", allow_pickle=False) as file:
        assert np.array_equal(file["obs/file"], ROWS[0])
    assert storage.get(0)["task"] == "a\0\0"
    path = tmp_path / "a" / "0.npz"
    sound = path.read_bytes()
    place = sound.index(ROWS[0].tobytes())
    path.write_bytes(sound[:place] + b"\xff" + sound[place + 1 :])
    assert storage.get_column(["task"]).get(0) == "a\0\0"
    with pytest.raises(StorageCorruptedError, match=r"0\.npz.*CRC"):
        storage.get(0)
    assert len(storage.verify()) == 1


def test_files_that_have_changed_places_are_found(tmp_path: Path) -> None:
    storage = filled(tmp_path / "a")
    one, other = tmp_path / "a" / "1.npz", tmp_path / "a" / "3.npz"
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    with pytest.raises(StorageCorruptedError, match=r"1\.npz: it was written as another file, b'slot 3'"):
        storage.get([0, 1])
    assert np.array_equal(storage.get([0, 2]), ROWS[[0, 2]])
    assert len(storage.verify()) == 2


def test_a_missing_file_is_an_error_and_never_zeros(tmp_path: Path) -> None:
    storage = filled(tmp_path / "a")
    (tmp_path / "a" / "2.npz").unlink()
    for index in (2, [0, 2], ...):
        with pytest.raises(StorageCorruptedError, match=r"2\.npz: the file is missing"):
            storage.get(index)
    assert np.array_equal(storage.get([0, 3]), ROWS[[0, 3]])
    unwritten = NPZStorage.create(BOX, capacity=4, cache_path=tmp_path / "b")
    unwritten.set(1, ROWS[1])
    with pytest.raises(StorageCorruptedError, match=r"0\.npz: the file is missing"):
        unwritten.get(0)
    unwritten.dumps(tmp_path / "c")
    assert np.array_equal(load(tmp_path / "c").get(1), ROWS[1])


def test_a_folder_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes").touch()
    with pytest.raises(FileExistsError, match="it exists already: give another path"):
        filled(tmp_path / "a")
    with pytest.raises(ValueError, match="cache_path"):
        NPZStorage.create(BOX, capacity=2)


def test_a_growing_one_has_as_many_slots_as_files(tmp_path: Path) -> None:
    storage = NPZStorage.create(BOX, capacity=None, cache_path=tmp_path / "a")
    storage.extend_length(3)
    storage.set(slice(0, 3), ROWS[:3])
    assert len(load(tmp_path / "a", capacity=None)) == 3  # as after a kill: nothing was flushed
    storage.shrink_length(1)
    assert len(load(tmp_path / "a", capacity=None)) == 2
    assert not (tmp_path / "a" / "2.npz").exists()


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    left = tmp_path / "a" / ".1.npz.123.tmp"
    left.write_bytes(b"half")
    load(tmp_path / "a").get(...)
    assert left.exists()
    load(tmp_path / "a", read_only=False)
    assert not left.exists()


def test_a_shared_buffer_appends_and_reads(tmp_path: Path) -> None:
    with ReplayBuffer.create(
        NPZStorage, number_space(), capacity=3, cache_path=tmp_path / "buffer", multiprocessing=True
    ) as buffer:
        assert buffer.is_multiprocessing_safe
        assert not buffer.maintain_segment_metadata
        for value in range(5):
            buffer.append(number(value))
        assert contents(buffer) == [2, 3, 4]


def test_a_reader_sees_samples_as_they_come(tmp_path: Path) -> None:
    with ReplayBuffer.create(NPZStorage, number_space(), cache_path=tmp_path / "buffer") as buffer:
        with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as reader:
            for value in range(3):
                buffer.append(number(value))
                assert contents(reader) == list(range(value + 1))
        buffer.mark_segment_end()
        buffer.dumps(tmp_path / "copy")
    with ReplayBuffer.load_from(tmp_path / "copy", backend=NUMPY, read_only=False) as copy:
        copy.extend(numbers([3]))
        assert contents(copy) == [0, 1, 2, 3]


def test_a_folder_of_the_reference_is_read(tmp_path: Path) -> None:
    for slot, row in enumerate(ROWS):
        np.savez_compressed(tmp_path / f"{slot}.npz", data=np.asfortranarray(row) if slot else row)
    name = "unienv_data.storages.npz_storage.NPZStorage"
    content = {"storage_type": name, "compressed": True, "capacity": None, "length": 4}
    (tmp_path / "npz_metadata.json").write_text(json.dumps(content))
    assert np.array_equal(load(tmp_path, capacity=None).get(...), ROWS)


# -- damage ------------------------------------------------------------------------------------------------


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


class Bomb:
    exploded = False

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    Bomb.exploded = True


LYING = npy(ROWS[0]).replace(b"(2, 3)", b"(9, 9)")
BAD = {
    "nothing": b"",
    "no archive": b"nonsense",
    "no member": archive({}),
    "another member": archive({"date.npy": npy(ROWS[0])}),
    "one more member": archive({"data.npy": npy(ROWS[0]), "more.npy": npy(ROWS[0])}),
    "objects": archive({"data.npy": npy(np.array([Bomb()] * 6, object).reshape(2, 3))}),
    "another dtype": archive({"data.npy": npy(ROWS[0].astype(np.int32))}),
    "another shape": archive({"data.npy": npy(ROWS[0].reshape(3, 2))}),
    "a lying header": archive({"data.npy": LYING}),
    "too few values": archive({"data.npy": npy(ROWS[0])[:-4]}),
    "a bomb": archive({"data.npy": npy(np.zeros(10**6, np.float32))}),
    "no array": archive({"data.npy": b"x" * 100}),
    "another compression": archive({"data.npy": npy(ROWS[0])}, zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_is_not_what_it_should_be_is_refused(what: str, tmp_path: Path) -> None:
    storage = filled(tmp_path / "a")
    (tmp_path / "a" / "1.npz").write_bytes(BAD[what])
    with pytest.raises(StorageCorruptedError, match=r"1\.npz: "):
        storage.get(1)
    assert len(storage.verify()) == 1
    assert not Bomb.exploded


@pytest.mark.parametrize("compressed", [True, False])
def test_no_flip_and_no_cut_gives_a_wrong_sample(compressed: bool, tmp_path: Path) -> None:
    storage = filled(tmp_path / "a", compressed=compressed)
    path = tmp_path / "a" / "1.npz"
    sound = path.read_bytes()
    for place in range(0, len(sound), 3):
        for damaged in (sound[:place], sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :]):
            path.write_bytes(damaged)
            try:
                found = storage.get(1)
            except StorageCorruptedError:
                continue
            assert np.array_equal(found, ROWS[1])  # a date, or what else has no say in the values


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format_version": 9}, "format version 9"),
        ({"storage_type": "os.system"}, "of type 'os.system'"),
        ({"compressed": 1}, "'compressed' is 1"),
        ({"capacity": 5}, "capacity 5, wanted 4"),
        ({"length": -3}, "'length' is -3"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    content = {"storage_type": "npz", "compressed": True, "capacity": 4, "length": 4, **change}
    write_json(tmp_path / "npz_metadata.json", content)
    with pytest.raises(ValueError, match=match) as caught:
        load(tmp_path)
    assert "npz_metadata.json" in str(caught.value)


def test_a_link_to_a_sample_is_not_followed(tmp_path: Path) -> None:
    storage = filled(tmp_path / "a")
    path = tmp_path / "a" / "1.npz"
    path.rename(tmp_path / "elsewhere.npz")
    path.symlink_to(tmp_path / "elsewhere.npz")
    with pytest.raises(StorageCorruptedError, match="not a plain file"):
        storage.get(1)


def test_what_has_no_fixed_size_is_refused(tmp_path: Path) -> None:
    from catalogue import SPACES

    with pytest.raises(ValueError, match="PackedStorage keeps it"):
        NPZStorage.create(SPACES["dynamic_box"](NUMPY), capacity=2, cache_path=tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
