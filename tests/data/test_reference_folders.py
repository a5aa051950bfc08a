"""Folders that the reference implementation wrote, built by hand as its format is documented."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.replay_buffer import _folder
from unienv_data.replay_buffer.replay_buffer import index_with_offset
from unienv_data.storages import registry
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend

NUMPY = NumpyComputeBackend
# A ring of five slots that has wrapped: samples 3 to 7, the oldest in slot 3. Sample n is [n, n + 0.5].
CAPACITY, OFFSET = 5, 3
SLOTS = np.array([[value, value + 0.5] for value in (5, 6, 7, 3, 4)], np.float32)
SAMPLES = [3, 4, 5, 6, 7]
# episodes 3 to 5, of which the first samples were overwritten, and 6 to 7
SEGMENTS = [[3, 0], [1, 2]]

BOX = {"type": "BoxSpace", "shape": [2], "low": [-float("inf")], "high": [float("inf")], "dtype": "float32"}
DICT = {
    "type": "DictSpace",
    "spaces": {"obs": BOX, "more": {"type": "DictSpace", "spaces": {"twice": {**BOX, "shape": [2]}}}},
}


def write_metadata(folder: Path, storage_cls: str, ext: str, space: Any = BOX, **changes: Any) -> Path:
    content = {
        "type": "ReplayBuffer",
        "count": CAPACITY,
        "offset": OFFSET,
        "capacity": CAPACITY,
        "storage_cls": f"unienv_data.storages.{storage_cls}",
        "storage_path_relative": f"storage{ext}",
        "single_instance_space": space,
        "physical_segments": SEGMENTS,
        **changes,
    }
    (folder / "metadata.json").write_text(json.dumps(content))
    return folder


def hdf5_folder(folder: Path, **changes: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    folder.mkdir()
    with h5py.File(folder / "storage.hdf5", "w") as file:
        file.create_dataset("data", data=SLOTS)
    return write_metadata(folder, "hdf5.HDF5Storage", ".hdf5", **changes)


def hdf5_dict_folder(folder: Path, **changes: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    folder.mkdir()
    with h5py.File(folder / "storage.hdf5", "w") as file:
        file.create_dataset("obs", data=SLOTS)
        file.create_dataset("more/twice", data=2 * SLOTS)
    return write_metadata(folder, "hdf5.HDF5Storage", ".hdf5", DICT, **changes)


def npz_folder(folder: Path, **changes: Any) -> Path:
    (folder / "storage").mkdir(parents=True)
    for slot, row in enumerate(SLOTS):
        np.savez_compressed(folder / "storage" / f"{slot}.npz", data=row)
    about = {"compressed": True, "capacity": CAPACITY, "length": CAPACITY}
    about["storage_type"] = "unienv_data.storages.npz_storage.NPZStorage"
    (folder / "storage" / "npz_metadata.json").write_text(json.dumps(about))
    return write_metadata(folder, "npz_storage.NPZStorage", "", **changes)


def flattened_folder(folder: Path, **changes: Any) -> Path:
    """Flat samples, the fields in the order of their keys, in one HDF5 dataset."""
    h5py = pytest.importorskip("h5py")
    (folder / "storage").mkdir(parents=True)
    with h5py.File(folder / "storage" / "inner_storage.hdf5", "w") as file:
        file.create_dataset("data", data=np.concatenate([2 * SLOTS, SLOTS], axis=1))
    about = {
        "storage_type": "unienv_data.storages.flattened.FlattenedStorage",
        "inner_storage_type": "unienv_data.storages.hdf5.HDF5Storage",
        "inner_storage_path": "inner_storage.hdf5",
    }
    (folder / "storage" / "flattened_metadata.json").write_text(json.dumps(about))
    return write_metadata(folder, "common.FlattenedStorage", "", DICT, **changes)


def tensor_folder(folder: Path, **changes: Any) -> Path:
    """The raw tensor, as it is in memory."""
    pytest.importorskip("torch")
    folder.mkdir()
    (folder / "storage.memmap").write_bytes(SLOTS.tobytes())
    return write_metadata(folder, "pytorch.PytorchTensorStorage", ".memmap", **changes)


FOLDERS: dict[str, Callable[..., Path]] = {
    "hdf5": hdf5_folder,
    "hdf5 dict": hdf5_dict_folder,
    "npz": npz_folder,
    "flattened": flattened_folder,
    "tensors": tensor_folder,
}


def backend_of(name: str) -> Any:
    return deserialize_backend("pytorch") if name == "tensors" else NUMPY


def found_in(buffer: ReplayBuffer) -> list[int]:
    """The numbers of the samples, once it is known that every one is whole."""
    batch = buffer.get_at(...)
    values = batch["obs"] if isinstance(batch, dict) else batch
    values = buffer.backend.to_numpy(values)
    if isinstance(batch, dict):
        assert np.array_equal(buffer.backend.to_numpy(batch["more"]["twice"]), 2 * values)
    assert np.array_equal(values[:, 1], values[:, 0] + 0.5)
    return values[:, 0].astype(int).tolist()


def samples_like(buffer: ReplayBuffer, numbers: list[int]) -> Any:
    values = np.array([[number, number + 0.5] for number in numbers], np.float32)
    one, two = (buffer.backend.from_numpy(part, copy=True) for part in (values, 2 * values))
    return {"obs": one, "more": {"twice": two}} if "obs" in repr(buffer.single_space) else one


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_read_in_order(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / "a")
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert ReplayBuffer.is_loadable_from(folder)
    assert ReplayBuffer.get_length_from_path(folder) == ReplayBuffer.get_capacity_from_path(folder) == CAPACITY
    with ReplayBuffer.load_from(folder, backend=backend_of(name)) as buffer:
        assert (buffer.count, buffer.offset, buffer.capacity) == (5, 3, 5)
        assert ReplayBuffer.get_space_from_path(folder, backend=buffer.backend) == buffer.single_space
        assert found_in(buffer) == SAMPLES
        assert buffer.get_flattened_at([0, -1])[:, -1].tolist() == [3.5, 7.5]
        assert buffer.get_segments() == [(0, 3), (3, 5)]
        assert buffer.maintain_segment_metadata
        assert not buffer.is_mutable
        with pytest.raises(PermissionError):
            buffer.append(buffer.get_at(0))
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", FOLDERS)
def test_opened_to_write_it_becomes_one_of_ours(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / "a")
    backend = backend_of(name)
    with ReplayBuffer.load_from(folder, backend=backend, read_only=False) as buffer:
        assert (found_in(buffer), buffer.get_segments()) == (SAMPLES, [(0, 3), (3, 5)])
        buffer.extend(samples_like(buffer, [8, 9]))
        assert (found_in(buffer), buffer.get_segments()) == ([5, 6, 7, 8, 9], [(0, 1), (1, 3), (3, 5)])
    content = json.loads((folder / "metadata.json").read_text())
    assert content["format_version"] == 2
    for read_only in (True, False):
        with ReplayBuffer.load_from(folder, backend=backend, read_only=read_only) as buffer:
            assert (found_in(buffer), buffer.get_segments()) == ([5, 6, 7, 8, 9], [(0, 1), (1, 3), (3, 5)])
            assert buffer.verify() == []
    assert ReplayBuffer.get_length_from_path(folder) == 5


@pytest.mark.parametrize("name", FOLDERS)
def test_a_snapshot_of_it_is_one_of_ours(name: str, tmp_path: Path) -> None:
    folder, backend = FOLDERS[name](tmp_path / "a"), backend_of(name)
    with ReplayBuffer.load_from(folder, backend=backend) as buffer:
        buffer.dumps(tmp_path / "b")
    content = json.loads((tmp_path / "b" / "metadata.json").read_text())
    assert content["type"] == "ReplayBuffer"
    assert (content["count"], content["offset"], content["capacity"]) == (5, 3, 5)
    assert content["physical_segments"] == SEGMENTS
    with ReplayBuffer.load_from(tmp_path / "b", backend=backend) as copy:
        assert (found_in(copy), copy.get_segments()) == (SAMPLES, [(0, 3), (3, 5)])


@pytest.mark.parametrize(
    ("changes", "numbers", "segments"),
    [
        ({"count": 2, "offset": 0, "physical_segments": [[0, 0]]}, [5, 6], [(0, 1)]),
        ({"count": 0, "offset": 0, "physical_segments": []}, [], []),
        ({"physical_segments": None}, SAMPLES, None),
        ({"physical_segments": [[3, 2]]}, SAMPLES, [(0, 5)]),
        ({"count": 3, "physical_segments": [[4, 0]]}, [3, 4, 5], [(1, 3)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("read_only", [True, False])
def test_every_state_of_the_ring_is_understood(
    changes: Any, numbers: list[int], segments: Any, read_only: bool, tmp_path: Path
) -> None:
    folder = npz_folder(tmp_path / "a", **changes)
    with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=read_only) as buffer:
        assert (found_in(buffer), buffer.get_segments()) == (numbers, segments)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.simplified_name)
def test_it_is_read_on_every_backend(backend: Any, tmp_path: Path) -> None:
    with ReplayBuffer.load_from(npz_folder(tmp_path / "a"), backend=backend) as buffer:
        assert found_in(buffer) == SAMPLES


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"physical_segments": [[3, 0], [0, 2]]}, "episodes overlap"),
        ({"physical_segments": [[3]]}, "wanted \\[start, end\\]"),
        ({"count": 6}, "do not fit a capacity of 5"),
        ({"offset": 5}, "do not fit a capacity of 5"),
        ({"capacity": 50, "count": 50}, "npz_metadata.json"),
        ({"storage_path_relative": "../outside"}, "leads out of the folder"),
    ],
    ids=str,
)
def test_metadata_that_does_not_fit_is_refused(changes: Any, text: str, tmp_path: Path) -> None:
    folder = npz_folder(tmp_path / "a", **changes)
    before = sorted(path.name for path in folder.rglob("*"))
    for read_only in (True, False):
        with pytest.raises(ValueError, match=text):
            ReplayBuffer.load_from(folder, backend=NUMPY, read_only=read_only)
    assert sorted(set(before) | {"lock"}) == sorted({path.name for path in folder.rglob("*")} | {"lock"})
    assert "format_version" not in json.loads((folder / "metadata.json").read_text())


# -- faults while it becomes one of ours -------------------------------------------------------------------


KILLED = """
import os, signal, sys
from unienv_data import ReplayBuffer
from unienv_data.replay_buffer import _folder
from unienv_interface.backends import NumpyComputeBackend

_folder.write_description = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ReplayBuffer.load_from(sys.argv[1], backend=NumpyComputeBackend, read_only=False)
"""


def test_killed_on_the_way_it_is_as_before(tmp_path: Path) -> None:
    folder = npz_folder(tmp_path / "a")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent / "src")}
    result = subprocess.run([sys.executable, "-c", KILLED, str(folder)], env=environment)
    assert result.returncode == -signal.SIGKILL
    assert (folder / "header.bin").exists()
    assert ReplayBuffer.get_length_from_path(folder) == CAPACITY
    for read_only in (True, False):
        with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=read_only) as buffer:
            assert (found_in(buffer), buffer.get_segments()) == (SAMPLES, [(0, 3), (3, 5)])


def test_one_that_was_taken_over_meanwhile_is_not_taken_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = npz_folder(tmp_path / "a")
    read_space = _folder.read_space

    def overtaken(*args: Any) -> Any:
        """Somebody else opens the folder, writes and is gone, after its metadata was read here."""
        monkeypatch.setattr(_folder, "read_space", read_space)
        with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False) as other:
            other.extend(samples_like(other, [8]))
        return read_space(*args)

    monkeypatch.setattr(_folder, "read_space", overtaken)
    with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False) as buffer:
        assert found_in(buffer) == [4, 5, 6, 7, 8]


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    folder = npz_folder(tmp_path / "a")
    writer = ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False)
    with pytest.raises(PermissionError, match=f"pid {os.getpid()}"):
        ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False)
    writer.close()


# -- folders that the reference wrote ------------------------------------------------------------------------

WRITTEN = Path(__file__).parent / "reference_folders"
INDEX: dict[str, dict[str, Any]] = json.loads((WRITTEN / "index.json").read_text())
# How far what the reference kept is from the samples it was given, where it kept them with less precision.
TOLERANCE = {"trans_rescale_ring": 1e-5, "jpegtrans_ring": 2, "image_jpeg_ring": 2, "image_jpeg_grow": 2}
TOLERANCE.update(video_ring=6, video_grow=6)
NEEDED = {"hdf5": "h5py", "parquet": "pyarrow", "rescale": "h5py", "flatdict": "h5py", "jpegtrans": "h5py"}
NEEDED.update(jpeg="PIL", image="PIL", video="av", torch="torch", toback="torch")


def open_written(name: str, folder: Path, **options: Any) -> ReplayBuffer:
    for part, package in NEEDED.items():
        if part in name:
            pytest.importorskip(package)
    backend = deserialize_backend("pytorch" if INDEX[name]["backend"] == "torch" else "numpy")
    return ReplayBuffer.load_from(folder, backend=backend, **options)


def columns_of(buffer: ReplayBuffer, batch: Any) -> dict[str, np.ndarray]:
    """The leaves of a batch by their joined keys, as the expected values have them."""
    if not isinstance(batch, dict):
        return {"value": buffer.backend.to_numpy(batch)}
    flat: dict[str, np.ndarray] = {}
    for key, value in batch.items():
        inner = columns_of(buffer, value)
        flat.update({key if end == "value" else f"{key}|{end}": part for end, part in inner.items()})
    return flat


def check_samples(name: str, buffer: ReplayBuffer) -> None:
    expected = dict(np.load(WRITTEN / f"{name}.expected.npz"))
    found = columns_of(buffer, buffer.get_at(...))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert (found[key].dtype, found[key].shape) == (values.dtype, values.shape)
        tolerance = TOLERANCE.get(name, 0)
        assert np.max(np.abs(found[key].astype(np.float64) - values.astype(np.float64))) <= tolerance
        backwards = columns_of(buffer, buffer.get_at(list(range(len(buffer)))[::-1]))[key]
        assert np.array_equal(backwards[::-1], found[key])
    segments = INDEX[name]["segments"]
    assert buffer.get_segments() == (None if segments is None else [tuple(pair) for pair in segments])


@pytest.mark.parametrize("name", INDEX)
def test_what_the_reference_wrote_is_read(name: str) -> None:
    before = {path: path.read_bytes() for path in (WRITTEN / name).rglob("*") if path.is_file()}
    with open_written(name, WRITTEN / name) as buffer:
        check_samples(name, buffer)
    assert {path: path.read_bytes() for path in (WRITTEN / name).rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", [name for name in INDEX if not name.startswith(("image", "video"))])
def test_what_the_reference_wrote_is_copied_and_written_to(name: str, tmp_path: Path) -> None:
    with open_written(name, WRITTEN / name) as buffer:
        buffer.dumps(tmp_path / "copy")
    with open_written(name, tmp_path / "copy") as copy:
        check_samples(name, copy)
    shutil.copytree(WRITTEN / name, tmp_path / "a")
    for path in (tmp_path / "a").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with open_written(name, tmp_path / "a", read_only=False) as buffer:
        check_samples(name, buffer)
        first, length = columns_of(buffer, buffer.get_at(slice(0, 1))), len(buffer)
        buffer.extend(buffer.get_at(slice(0, 1)))
        assert len(buffer) == (length if buffer.capacity else length + 1)
    with open_written(name, tmp_path / "a") as buffer:
        last = columns_of(buffer, buffer.get_at(slice(-1, None)))
        tolerance = TOLERANCE.get(name, 0)
        assert all(np.allclose(last[key], first[key], atol=tolerance, rtol=0) for key in first)


@pytest.mark.parametrize("name", ["image_png_ring", "image_jpeg_grow", "video_ring"])
def test_frames_are_read_and_not_written(name: str, tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / name, tmp_path / "a")  # for a writer takes a lock
    with pytest.raises(PermissionError, match="only read: load it with read_only=True"):
        open_written(name, tmp_path / "a", read_only=False)
    with open_written(name, WRITTEN / name) as buffer:
        with pytest.raises(NotImplementedError, match="copy the samples into a buffer with another storage"):
            buffer.dumps(tmp_path / "copy")
        with ReplayBuffer.create(buffer.single_space, capacity=8) as copy:
            copy.extend_from(buffer)
            assert np.array_equal(copy.get_at(...), buffer.get_at(...))


def edited(name: str, folder: Path, file: str, **changes: Any) -> Path:
    """A copy of a folder in which fields of a JSON file are changed."""
    shutil.copytree(WRITTEN / name, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    content = json.loads((folder / "storage" / file).read_text())
    (folder / "storage" / file).write_text(json.dumps({**content, **changes}))
    return folder


@pytest.mark.parametrize(
    ("name", "file", "changes", "text"),
    [
        ("npz_ring", "npz_metadata.json", {"storage_type": "os.system"}, "of type 'os.system', wanted 'npz'"),
        ("image_png_ring", "image_metadata.json", {"format": "../png"}, "field 'format' is '../png'"),
        ("image_png_ring", "image_metadata.json", {"storage_type": "NPZStorage"}, "wanted 'ImageStorage'"),
        ("image_png_ring", "image_metadata.json", {"capacity": 4}, "capacity 4, wanted 5"),
        ("video_ring", "video_metadata.json", {"file_ext": "/x"}, "field 'file_ext' is '/x'"),
        ("video_ring", "episode_index.json", {"file_ranges": [[0, 2]]}, r"names the videos \[\[0, 2\]\]"),
        ("video_ring", "episode_index.json", {"file_ranges": [[0, 2], "os.system"]}, "names the videos"),
        ("dict_torch_ring", "dict_storage_metadata.json", {"storage_map": {"*": {"type": "os.system"}}}, "os.system"),
        ("toback_ring", "backend_metadata.json", {"inner_backend": "os"}, "unknown backend 'os'"),
    ],
)
def test_what_is_wrong_in_such_a_folder_is_named(name: str, file: str, changes: Any, text: str, tmp_path: Path) -> None:
    folder = edited(name, tmp_path / "a", file, **changes)
    with pytest.raises(ValueError, match=text):
        open_written(name, folder)


def test_a_folder_from_before_there_were_other_separators(tmp_path: Path) -> None:
    folder = edited("dict_torch_ring", tmp_path / "a", "dict_storage_metadata.json")
    path = folder / "storage" / "dict_storage_metadata.json"
    content = json.loads(path.read_text())
    del content["nested_separator"]
    path.write_text(json.dumps(content))
    with open_written("dict_torch_ring", folder) as buffer:
        check_samples("dict_torch_ring", buffer)


def test_a_space_that_no_memory_holds_is_an_error(tmp_path: Path) -> None:
    folder = edited("flat_hdf5_ring", tmp_path / "a", "flattened_metadata.json")
    metadata = json.loads((folder / "metadata.json").read_text())
    metadata["single_instance_space"]["spaces"]["act"]["shape"] = [10**14]
    (folder / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(StorageCorruptedError, match="no memory for a flat sample"):
        open_written("flat_hdf5_ring", folder)


def test_a_frame_of_another_size_or_none_at_all_is_an_error(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = edited("image_png_ring", tmp_path / "a", "image_metadata.json")
    image.fromarray(np.zeros((8, 16, 3), np.uint8)).save(folder / "storage" / "0.png")
    (folder / "storage" / "1.png").write_bytes(b"no image")
    (folder / "storage" / "2.png").unlink()
    with open_written("image_png_ring", folder) as buffer:
        for index, text in (
            (2, "it is 8 high and 16 wide"),
            (3, "1.png: not a PNG"),
            (4, "2.png: the file is missing"),
        ):
            with pytest.raises(StorageCorruptedError, match=text):
                buffer.get_at(index)


def test_videos_are_found_without_an_index_and_around_the_end_of_a_ring(tmp_path: Path) -> None:
    pytest.importorskip("av")
    folder = edited("video_ring", tmp_path / "a", "video_metadata.json")
    storage = folder / "storage"
    (storage / "episode_index.json").unlink()
    with open_written("video_ring", folder) as buffer:
        check_samples("video_ring", buffer)
    (storage / "0_2.mp4").rename(storage / "4_1.mp4")  # its frames are in slots 4, 0 and 1
    (storage / "3_4.mp4").rename(storage / "2_3.mp4")
    (storage / "video_metadata.json").rename(storage / "image_metadata.json")  # as it was called once
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, "offset": 2}))
    with open_written("video_ring", folder) as buffer:
        check_samples("video_ring", buffer)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_flat_samples_in_a_narrower_dtype_stay_exact(library: str, tmp_path: Path) -> None:
    name = {"numpy": "flat_hdf5_ring", "torch": "flat_torch_ring"}[library]
    folder = edited(name, tmp_path / "a", "flattened_metadata.json")
    with open_written(name, folder, read_only=False) as buffer:
        space, sample = buffer.single_space, buffer.get_at(0)
        flat = buffer.get_flattened_at(0)
        assert buffer.backend.dtype_name(flat.dtype) == "float64"
        buffer.set_flattened_at(0, flat)
        assert buffer.get_at(0)["act"].tolist() == sample["act"].tolist()
    if library == "torch":
        (box,) = [child for key, child in space.spaces.items() if key == "act"]
        wide = type(box)(box.backend, 0, 2**40, box.dtype, shape=(1,))
        spaces = {**space.spaces, "act": wide}
        from unienv_data.storages.flattened import FlattenedStorage

        storage = FlattenedStorage.load_from(
            tmp_path / "a" / "storage", type(space)(space.backend, spaces), capacity=5, read_only=False
        )
        value = storage.get(0)
        value["act"] = value["act"] * 0 + 2**24 + 1
        with pytest.raises(ValueError, match=r"no exact value in float32.*extend_from"):
            storage.set(0, value)
        storage.close()


def test_joined_keys_are_found_in_files_of_other_kinds(tmp_path: Path) -> None:
    """The reference joins keys with the separator as it is; a key of ours that holds a slash is escaped."""
    h5py = pytest.importorskip("h5py")
    for separator in ("/", "."):
        folder = hdf5_folder(tmp_path / f"a{ord(separator)}")
        (folder / "storage").mkdir()
        with h5py.File(folder / "storage" / "inner.hdf5", "w") as file:
            file.create_dataset("obs", data=SLOTS)
            file.create_dataset(f"more{separator}twice", data=2 * SLOTS)
        about = {
            "storage_type": "TransformedStorage",
            "inner_storage_type": "unienv_data.storages.hdf5.HDF5Storage",
            "inner_storage_path": "inner.hdf5",
            "data_transformation": {
                "type": "unienv_interface.transformations.flatten_dict_transform.FlattenDictTransformation",
                "nested_separator": separator,
            },
        }
        (folder / "storage" / "transformed_metadata.json").write_text(json.dumps(about))
        write_metadata(folder, "transformation.TransformedStorage", "", DICT)
        with ReplayBuffer.load_from(folder, backend=NUMPY) as buffer:
            assert found_in(buffer) == SAMPLES
            buffer.dumps(tmp_path / f"b{ord(separator)}")
        with ReplayBuffer.load_from(tmp_path / f"b{ord(separator)}", backend=NUMPY) as buffer:
            assert found_in(buffer) == SAMPLES


# -- names of the reference's ------------------------------------------------------------------------------


def test_every_class_name_of_the_reference_is_known() -> None:
    for name, short in registry._LEGACY.items():
        assert name.startswith("unienv_data.storages.")
        assert short in registry._OURS
    with pytest.raises(ValueError, match=r"no storage is registered as 'os\.system'"):
        registry.storage_by_name("os.system")


@pytest.mark.parametrize(
    ("index", "wanted"),
    [(0, 3), (-1, 2), (slice(None), [3, 4, 0, 1, 2]), ([4, 1], [2, 4]), (..., [3, 4, 0, 1, 2]), ([], [])],
    ids=str,
)
def test_slots_follow_from_an_index_and_the_offset(index: Any, wanted: Any) -> None:
    found = index_with_offset(NUMPY, index, CAPACITY, OFFSET)
    assert (found if isinstance(found, int) else found.tolist()) == wanted
    with pytest.raises(IndexError):
        index_with_offset(NUMPY, CAPACITY, CAPACITY, OFFSET)


# -- links -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata.json", "header.bin", "segments.bin", "rows.bin", "sums.bin"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_hard_link_is_refused(name: str, read_only: bool, tmp_path: Path) -> None:
    from buffers import number_space, numbers

    folder = tmp_path / "a"
    with ReplayBuffer.create(number_space(), capacity=4, cache_path=folder) as buffer:
        buffer.extend(numbers(range(3)))
    (file,) = folder.rglob(name)
    outside = tmp_path / "outside"
    os.link(file, outside)
    before = outside.read_bytes()
    with pytest.raises(StorageCorruptedError, match=f"{name}: the file has another name elsewhere"):
        ReplayBuffer.load_from(folder, backend=NUMPY, read_only=read_only)
    assert outside.read_bytes() == before
    shutil.copytree(folder, tmp_path / "copy")
    ReplayBuffer.load_from(tmp_path / "copy", backend=NUMPY, read_only=read_only).close()
