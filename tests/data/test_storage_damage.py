"""Damaged and hostile folders of every storage: one kind of error, which names the path, and bounded memory."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import composed
import file_storages
import numpy as np
import pytest
from buffers import contents, number_space, numbers
from power_cut import batch, space_of

import unienv_data
from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.base import mapped
from unienv_data.replay_buffer import _state
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.registry import storage_by_name
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BoxSpace, DictSpace, DynamicBoxSpace, TextSpace

NUMPY = NumpyComputeBackend
REFERENCE = Path(__file__).parent / "reference_folders"
LENGTH = 6

# -- every file of every storage, damaged in any way -----------------------------------------------------------


def makers() -> dict[str, Callable[[Path], Any]]:
    """How each folder is made; each returns the backend to load it with."""

    def of_files(kind: file_storages.Kind) -> Callable[[Path], Any]:
        def make(folder: Path) -> Any:
            with kind.create(number_space(kind.backend), LENGTH, folder, maintain_segment_metadata=True) as buffer:
                buffer.extend(numbers(range(LENGTH), kind.backend))
            return kind.backend

        return make

    def of_storages(kind: composed.Kind) -> Callable[[Path], Any]:
        def make(folder: Path) -> Any:
            with ReplayBuffer.create(kind.storage_cls, number_space(), cache_path=folder, **kind.options) as buffer:
                buffer.extend(numbers(range(LENGTH)))
            return NUMPY

        return make

    def of_rows(leaves: str, capacity: int | None) -> Callable[[Path], Any]:
        def make(folder: Path) -> Any:
            options: Any = {"capacity": capacity, "cache_path": folder, "maintain_segment_metadata": True}
            with ReplayBuffer.create(space_of(leaves), **options) as buffer:
                buffer.extend(batch(list(range(LENGTH)), leaves))
            return NUMPY

        return make

    def of_reference(name: str) -> Callable[[Path], Any]:
        def make(folder: Path) -> Any:
            shutil.copytree(REFERENCE / name, folder)
            is_tensor = "torch" in name or "toback" in name
            return deserialize_backend("pytorch") if is_tensor else NUMPY

        return make

    def of_frames(storage: str) -> Callable[[Path], Any]:
        def make(folder: Path) -> Any:
            space = BoxSpace(NUMPY, 0, 255, "uint8", shape=(16, 16, 3))
            with ReplayBuffer.create(storage, space, capacity=6, cache_path=folder, keep_episodes=True) as buffer:
                buffer.extend(np.arange(LENGTH * 768).reshape(LENGTH, 16, 16, 3).astype(np.uint8))
            return NUMPY

        return make

    found = {
        f"rows {leaves} {capacity}": of_rows(leaves, capacity) for leaves in ("small", "heap") for capacity in (None, 6)
    }
    absent = {name for name, package in file_storages._PACKAGE.items() if importlib.util.find_spec(package) is None}
    kinds = {name: kind for name, kind in file_storages.KINDS.items() if kind.on_disk and kind.storage not in absent}
    found |= {name: of_files(kind) for name, kind in kinds.items()}
    packages = {"image": "PIL", "video": "av"}
    found |= {name: of_frames(name) for name, package in packages.items() if importlib.util.find_spec(package)}
    found |= {name: of_storages(composed.KINDS[name]) for name in composed.ON_DISK}
    return found | {path.name: of_reference(path.name) for path in sorted(REFERENCE.iterdir()) if path.is_dir()}


def damage(path: Path, chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    kind = chance.choice(["missing", "cut", "flip", "flip", "byte", "some", "garbage", "zeros", "longer"])
    at, count = chance.randrange(len(content) or 1), chance.choice([1, 4, 8, 64])
    if kind == "missing":
        path.unlink()
        return kind
    if kind == "cut":
        del content[at:]
    elif kind == "longer":
        content += chance.randbytes(50)
    elif kind == "flip" and content:
        content[at] ^= 1 << chance.randrange(8)
    elif kind == "zeros":
        content = bytearray(len(content))
    elif kind == "garbage":
        content = bytearray(chance.randbytes(len(content)))
    elif content:
        count = 1 if kind == "byte" else count
        content[at : at + count] = chance.randbytes(len(content[at : at + count]))
    path.write_bytes(content)
    return kind


def use(folder: Path, backend: Any, *, read_only: bool) -> None:
    """Read all there is; a sample that cannot be read is damage that the error names."""
    with ReplayBuffer.load_from(folder, backend=backend, read_only=read_only) as buffer:
        for index in [*range(len(buffer)), ...]:
            finding = error_of(lambda index=index: buffer.get_at(index))
            if finding is not None:
                check_error(finding, folder, "a sample")
        buffer.verify()


def error_of(act: Callable[[], Any]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


def check_error(error: Exception, folder: Path, what: str) -> None:
    kinds: Any = (StorageCorruptedError, FileNotFoundError, PermissionError)
    # without a checksum nobody can tell that a name or a version was another one
    is_other = "no storage is registered as" in str(error) or "format version" in str(error)
    if not (isinstance(error, kinds) or is_other) or str(folder) not in str(error):
        raise AssertionError(f"{what}: {error!r}") from error


def attack(folder: Path, count: int, seed: int) -> None:
    chance, known = random.Random(seed), makers()
    backends = {name: make(folder / name) for name, make in known.items()}
    for _ in range(count):
        name, work = chance.choice(sorted(backends)), folder / "work"
        shutil.copytree(folder / name, work)
        path = chance.choice([path for path in sorted(work.rglob("*")) if path.is_file() and path.name != "lock"])
        what = f"seed {seed}, {name}: {path.relative_to(work)}, {damage(path, chance)}"
        acts: list[Callable[[], Any]] = [
            functools.partial(use, work, backends[name], read_only=True),
            functools.partial(unienv_data.check, work),
        ]
        if not (REFERENCE / name).exists():
            acts.append(functools.partial(use, work, backends[name], read_only=False))
        for error in map(error_of, acts):
            if error is not None:
                check_error(error, work, what)
        shutil.rmtree(work)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_a_damaged_file_is_one_kind_of_error(tmp_path: Path) -> None:
    attack(tmp_path, 60, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_many_damaged_files_are_one_kind_of_error(tmp_path: Path) -> None:
    attack(tmp_path, 10_000, seed=1)


def is_reported(folder: Path, backend: Any) -> bool:
    try:
        with ReplayBuffer.load_from(folder, backend=backend) as buffer:
            return bool(buffer.verify())
    except (StorageCorruptedError, ValueError):
        return True


@pytest.mark.parametrize("name", [name for name in makers() if not (REFERENCE / name).exists()])
def test_files_that_have_changed_places_are_reported(name: str, tmp_path: Path) -> None:
    backend = makers()[name](tmp_path / "a")
    assert not is_reported(tmp_path / "a", backend)
    files = [path for path in sorted((tmp_path / "a").rglob("*")) if path.is_file() and path.name != "lock"]
    pairs = [pair for pair in itertools.combinations(files, 2) if pair[0].suffix == pair[1].suffix]
    contents_of = {path: path.read_bytes() for path in files}
    pairs = [(one, other) for one, other in pairs if contents_of[one] != contents_of[other]]
    for one, other in random.Random(0).sample(pairs, min(8, len(pairs))):
        one.write_bytes(contents_of[other])
        other.write_bytes(contents_of[one])
        assert is_reported(tmp_path / "a", backend), (one.name, other.name)
        for path in (one, other):
            path.write_bytes(contents_of[path])


# -- the heap ----------------------------------------------------------------------------------------------


def heap_space() -> DictSpace:
    return DictSpace(NUMPY, {"a": DynamicBoxSpace(NUMPY, 0, 255, (1,), (2**32,), "uint8")})


def test_a_value_is_read_in_as_many_calls_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"a": np.arange(1000, dtype=np.uint8)}
    with ReplayBuffer.create(heap_space(), cache_path=tmp_path / "a") as buffer:
        buffer.append(value)
        pread = os.pread
        # what the system does with more than 2 GiB
        monkeypatch.setattr(mapped.os, "pread", lambda fd, count, offset: pread(fd, min(count, 300), offset))
        assert np.array_equal(buffer.get_at(0)["a"], value["a"])
        assert buffer.verify() == []


@pytest.mark.soak
def test_a_value_of_more_than_two_gibibytes_is_read(tmp_path: Path) -> None:
    value = {"a": np.zeros(2**31 + 5000, np.uint8)}
    value["a"][-1] = 7
    with ReplayBuffer.create(heap_space(), cache_path=tmp_path / "a") as buffer:
        buffer.append(value)
        found = buffer.get_at(0)["a"]
        assert found.shape == value["a"].shape
        assert found[-1] == 7


def test_rows_that_share_bytes_of_the_heap_do_not_multiply(tmp_path: Path) -> None:
    with ReplayBuffer.create(heap_space(), cache_path=tmp_path / "a") as buffer:
        for number in range(20):
            buffer.append({"a": np.full(1000, number, np.uint8)})
    rows = tmp_path / "a" / "storage" / "rows.bin"
    content = np.frombuffer(rows.read_bytes(), "<u8").reshape(-1, 2).copy()
    content[:] = (0, 20_000)  # each of them refers to the whole heap
    rows.write_bytes(content.tobytes())
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
        with pytest.raises(StorageCorruptedError, match=r"storage: 20 rows refer to 400000 bytes, the heap has \d+"):
            loaded.get_at(...)
        with pytest.raises(StorageCorruptedError, match="rows refer to"):
            loaded.get_column(["a"]).get_at([1, 2])


# -- sizes that files claim ----------------------------------------------------------------------------------


def test_a_parquet_file_is_read_by_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from unienv_data.storages import _parquet_file
    from unienv_data.storages.parquet import ParquetStorage

    values = np.arange(1000)
    texts = [f"text {number % 7}" for number in values]
    pq.write_table(pa.table({"a": values, "t": texts}), tmp_path / "raw.parquet", row_group_size=300)
    groups: list[Any] = []
    read = _parquet_file.RowFile.column

    def column(self: Any, name: str, leaf: Any, group: Any = None) -> Any:
        groups.append(group)
        return read(self, name, leaf, group)

    monkeypatch.setattr(_parquet_file.RowFile, "column", column)
    with ParquetStorage.load_replay_buffer_from_raw_parquet(tmp_path / "raw.parquet") as buffer:
        assert buffer.get_at(650)["a"] == 650
        assert groups == [2, 2]
        found = buffer.get_at([999, 0, 300, 299])
        assert found["a"].tolist() == [999, 0, 300, 299]
        assert found["t"].tolist() == [texts[999], texts[0], texts[300], texts[299]]
        assert buffer.get_at(...)["a"].tolist() == values.tolist()
        assert buffer.verify() == []


def test_a_parquet_file_does_not_claim_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from unienv_data.storages import _parquet_file
    from unienv_data.storages.parquet import ParquetStorage

    monkeypatch.setattr(_parquet_file, "MOST_COLUMN_BYTES", 2**20)
    path = tmp_path / "a.parquet"
    for column, claim in (
        (np.zeros(200_000, np.int64), "1600000"),  # a few hundred bytes
        (pa.FixedSizeListArray.from_arrays(np.zeros(400_000, np.float32), 2), "1600000"),
        (pa.array(["x" * 30] * 70_000), "1120000"),
    ):
        pq.write_table(pa.table({"a": column}), path)
        assert path.stat().st_size < 5000
        with pytest.raises(
            StorageCorruptedError, match=rf"a\.parquet: column 'a' says that it has {claim} bytes in one"
        ):
            ParquetStorage.load_replay_buffer_from_raw_parquet(path)
        pq.write_table(pa.table({"a": column}), path, row_group_size=5_000)
        with ParquetStorage.load_replay_buffer_from_raw_parquet(path) as buffer:
            buffer.get_at([0, len(buffer) - 1])


def test_a_piece_of_gigabytes_is_refused_when_it_is_made(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    image = BoxSpace(NUMPY, 0, 255, "uint8", shape=(2000, 1000))
    with pytest.raises(ValueError, match=r"a piece of 1024 rows has 2048000000 bytes.*smaller piece_size"):
        ReplayBuffer.create(storage_by_name("parquet"), image, cache_path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_hdf5_chunks_have_a_largest_size(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from unienv_data.storages.hdf5 import HDF5Storage

    image = BoxSpace(NUMPY, 0, 255, "uint8", shape=(1000, 1000))
    with pytest.raises(ValueError, match=r"'data': chunks of shape \(1000, 1000, 1000\) have 1000000000 bytes"):
        HDF5Storage.create(image, None, tmp_path / "a.hdf5", chunks=1000)
    for name, shape, chunks in (
        ("chunk", (1000, 1000, 1000), (1000, 1000, 1000)),
        ("row", (3, 2**20, 2**14), (1, 2**10, 2**10)),
    ):
        path = tmp_path / f"{name}.hdf5"
        with h5py.File(path, "x") as file:
            file.create_dataset("data", shape, "u1", chunks=chunks)
        assert path.stat().st_size < 10**5
        with pytest.raises(
            StorageCorruptedError, match=rf"{name}\.hdf5: dataset '/data' has (chunks|samples) of \d+ bytes"
        ):
            HDF5Storage.load_replay_buffer_from_raw_hdf5(path)


def test_an_hdf5_group_inside_itself_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from unienv_data.storages.hdf5 import HDF5Storage

    with h5py.File(tmp_path / "a.hdf5", "x") as file:
        group = file.create_group("a")
        group["a"] = np.zeros(3)
        group["b"] = group
    with pytest.raises(StorageCorruptedError, match=r"a\.hdf5: group '.*' is in the file more than once"):
        HDF5Storage.load_replay_buffer_from_raw_hdf5(tmp_path / "a.hdf5")


def test_long_texts_of_others_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py")
    from unienv_data.storages import _hdf5_file
    from unienv_data.storages.hdf5 import HDF5Storage

    texts = [f"{number} " * 10 for number in range(30)]
    with h5py.File(tmp_path / "a.hdf5", "x") as file:
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
    monkeypatch.setattr(_hdf5_file, "MOST_CHUNK_BYTES", 4 * (tmp_path / "a.hdf5").stat().st_size)
    with HDF5Storage.load_replay_buffer_from_raw_hdf5(tmp_path / "a.hdf5") as buffer:
        assert buffer.storage._rows_at_once == [4]  # type: ignore[attr-defined]
        assert buffer.single_space["text"].max_length == 30  # type: ignore[index]
        assert buffer.get_at(...)["text"].tolist() == texts
        assert buffer.get_at([29, 3])["text"].tolist() == [texts[29], texts[3]]


def test_pieces_that_metadata_claims_must_be_there(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from unienv_data.base.files import read_json
    from unienv_data.storages.parquet import ParquetStorage

    space = BoxSpace(NUMPY, 0, 9, "int64", shape=())
    storage = ParquetStorage.create(space, cache_path=tmp_path / "a")
    storage.close()
    file = tmp_path / "a" / "_metadata.json"
    content = read_json(file, checksum=True)
    for name in ("generations", "format_version"):
        del content[name]
    file.write_text(json.dumps({**content, "num_rows": 2**61, "piece_size": 1}))  # as the reference writes it
    with pytest.raises(StorageCorruptedError, match=r"_metadata\.json: 2305843009213693952 pieces, there are 0 files"):
        ParquetStorage.load_from(tmp_path / "a", space)


# -- journals ------------------------------------------------------------------------------------------------


def forge_journal(folder: Path, slots: list[int], segments: list[tuple[int, int]], counters: dict[int, int]) -> None:
    """Have the edit in a journal change other places; its checksum is right."""
    file = folder / "journal.bin"
    _, mark, *_ = struct.unpack_from("<QQqqq", file.read_bytes())
    flat = [*slots, *itertools.chain(*segments), *itertools.chain(*counters.items())]
    body = np.array(flat, "<i8").tobytes() + bytes(16 * len(slots))
    head = (len(body), mark >> 32 << 32 | zlib.crc32(body), len(slots), len(segments), len(counters))
    file.write_bytes(struct.pack("<QQqqq", *head) + body)


HEAD, TAIL, BASE, CLOSED, SEGMENTS, EDIT = range(6)


@pytest.mark.parametrize(
    "edit",
    [
        ([10**6], [], {}),
        ([2**62], [], {}),
        ([-1], [], {}),
        ([], [], {99: 1}),
        ([], [], {-1: 1}),
        ([], [], {HEAD: 2**60, SEGMENTS: 0}),
        ([], [], {HEAD: -5, SEGMENTS: 0}),
        ([], [], {TAIL: 100, SEGMENTS: 0}),
        ([], [], {BASE: -100, SEGMENTS: 0}),
        ([], [], {CLOSED: -9, SEGMENTS: 0}),
        ([], [], {SEGMENTS: 2**50}),
        ([], [], {EDIT: 2**62, SEGMENTS: 0}),
        ([], [(0, 10**9)], {SEGMENTS: 1}),
        ([], [(8, 2)], {SEGMENTS: 1}),
    ],
)
@pytest.mark.parametrize("capacity", [None, 20])
def test_an_edit_that_reaches_out_of_the_buffer_is_refused(
    capacity: int | None, edit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    buffer = ReplayBuffer.create(number_space(), capacity=capacity, cache_path=path, keep_episodes=True)
    assert buffer.storage.row_nbytes == 16  # type: ignore[attr-defined]
    buffer.extend(numbers(range(6)))

    def cut(*arguments: Any) -> None:
        raise GeneratorExit  # the edit is written down, and not made

    monkeypatch.setattr(_state, "finish", cut)
    with pytest.raises(GeneratorExit):
        buffer.remove_at([2])
    buffer._state.folder_lock.release()
    monkeypatch.undo()
    forge_journal(path, *edit)
    refusal = r"journal\.bin: the unfinished edit in it is damaged: .*`unienv repair`"
    with pytest.raises(StorageCorruptedError, match=refusal):
        ReplayBuffer.load_from(path, backend=NUMPY, read_only=False)
    with (
        ReplayBuffer.load_from(path, backend=NUMPY) as reader,
        pytest.raises(StorageCorruptedError, match=r"damaged as well: .*`unienv repair`"),
    ):
        reader.get_at(...)
    (finding,) = unienv_data.check(path).findings
    assert finding.kind == "unreadable"
    assert unienv_data.repair(path, tmp_path / "b").samples == 6
    with ReplayBuffer.load_from(tmp_path / "b", backend=NUMPY) as repaired:
        assert contents(repaired) == [0, 1, 2, 3, 4, 5]


# -- files that are somebody else's ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "turns"])
def test_a_lock_that_is_a_link_is_not_written_to(name: str, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "a"
    ReplayBuffer.create(number_space(), cache_path=folder, multiprocessing=True).close()
    for link in (os.link, os.symlink):
        victim.write_bytes(b"precious")
        (folder / name).unlink()
        link(victim, folder / name)
        with pytest.raises(StorageCorruptedError, match=name):
            ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False, multiprocessing=True)
        assert victim.read_bytes() == b"precious"
        ReplayBuffer.load_from(folder, backend=NUMPY).close()


def test_texts_without_the_characters_that_they_claim_name_the_file(tmp_path: Path) -> None:
    space = DictSpace(NUMPY, {"t": TextSpace(NUMPY, 5, charset="a\0")})
    storage = PackedStorage.create(space, capacity=2, cache_path=tmp_path / "a")
    storage.set(0, {"t": "aa"})
    storage.close()
    (tmp_path / "a" / "rows.bin").write_bytes(b"\xff" * (tmp_path / "a" / "rows.bin").stat().st_size)
    with pytest.raises(StorageCorruptedError, match=r"a: .*can't decode"):
        PackedStorage.load_from(tmp_path / "a", space, capacity=2).get(0)
