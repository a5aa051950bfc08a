"""What storages made of storages have in common: the contract, and a replay buffer over each of them."""

from __future__ import annotations

import inspect
import json
import multiprocessing as mp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import Model, contents, number, number_space, numbers, read
from catalogue import SPACES, backend_cases
from composed import KINDS, ON_DISK
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from test_replay_buffer_model import BufferMachine

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.storages import registry
from unienv_data.storages.backend_compat import ToBackendOrDeviceStorage
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.transformation import TransformedStorage
from unienv_data.testing import check_storage
from unienv_data.testing.storage_contract import default_spaces
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.transformations import IdentityTransformation

NUMPY = NumpyComputeBackend
HERE = Path(__file__).parent


def create(name: str, folder: Path | None = None, **options: Any) -> ReplayBuffer:
    storage_cls, own, _ = KINDS[name]
    return ReplayBuffer.create(storage_cls, number_space(), cache_path=folder, **own, **options)


# -- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_keeps_the_contract(name: str, tmp_path: Path) -> None:
    check_storage(KINDS[name].storage_cls, tmp_path, spaces=[number_space()], **KINDS[name].options)


@pytest.mark.parametrize("storage_cls", [FlattenedStorage, DictStorage, ListStorage], ids=lambda cls: cls.__name__)
def test_it_is_kept_with_nothing_said(storage_cls: Any, tmp_path: Path) -> None:
    check_storage(storage_cls, tmp_path)


@pytest.mark.parametrize("backend", backend_cases()[1:])
def test_it_is_kept_on_other_backends(backend: Any, tmp_path: Path) -> None:
    spaces = default_spaces(backend)[1:]
    maps = {"storage_cls_map": {"obs/rgb": FlattenedStorage, "*": TransformedStorage}}
    options = {"type_kwargs": {TransformedStorage: {"data_transformation": IdentityTransformation()}}}
    check_storage(DictStorage, tmp_path, spaces=spaces, **maps, **options)


@pytest.mark.parametrize("name", ["everything", "dynamic_box", "graph_edges"])
@pytest.mark.parametrize(
    ("storage_cls", "options"),
    [
        (ListStorage, {}),
        (DictStorage, {}),
        (TransformedStorage, {"data_transformation": IdentityTransformation()}),
    ],
    ids=["list", "dict", "transformed"],
)
def test_it_is_kept_with_samples_without_a_fixed_size(
    storage_cls: Any, options: Any, name: str, tmp_path: Path
) -> None:
    check_storage(storage_cls, tmp_path, spaces=[SPACES[name](NUMPY)], **options)


@pytest.mark.parametrize("inner", ["hdf5", "npz", "parquet"])
def test_it_is_kept_around_storages_of_other_formats(inner: str, tmp_path: Path) -> None:
    inner_cls = _storage(inner)
    check_storage(FlattenedStorage, tmp_path / "flat", spaces=[number_space()], inner_storage_cls=inner_cls)
    maps = {"number": inner_cls, "*": PackedStorage}
    check_storage(DictStorage, tmp_path / "dict", spaces=[number_space()], storage_cls_map=maps)


def test_it_is_kept_around_tensors(tmp_path: Path) -> None:
    inner_cls = _storage("pytorch")
    pytorch = deserialize_backend("pytorch")
    options = {"spaces": [number_space(pytorch)], "grows": False}
    check_storage(FlattenedStorage, tmp_path / "flat", inner_storage_cls=inner_cls, **options)
    check_storage(DictStorage, tmp_path / "dict", storage_cls_map={"inner/*": inner_cls, "*": inner_cls}, **options)
    options = {"spaces": [number_space()], "grows": False}
    check_storage(ToBackendOrDeviceStorage, tmp_path / "to", inner_storage_cls=inner_cls, backend=pytorch, **options)


def _storage(name: str) -> Any:
    try:
        return registry.storage_by_name(name)
    except (ImportError, ValueError):
        pytest.skip(f"there is no storage {name!r} here")


# -- a buffer over each of them ----------------------------------------------------------------------------


class ComposedMachine(BufferMachine):
    """Every operation on a buffer over such a storage and on the model."""

    @initialize(name=st.sampled_from(sorted(KINDS)), capacity=st.sampled_from([1, 7, None]), place=st.booleans())
    def make(self, name: str, capacity: int | None, place: bool) -> None:
        self.on_disk, self.shared = place and KINDS[name].on_disk, False
        self.model = Model(capacity)
        folder = self.folder / "buffer" if self.on_disk else None
        self.buffer = create(name, folder, capacity=capacity, maintain_segment_metadata=True)


TestModel = ComposedMachine.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=25)


@pytest.mark.soak
class TestModelAtLength(ComposedMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=1000, stateful_step_count=50, derandomize=False)


@pytest.mark.parametrize("name", KINDS)
def test_flat_reads_after_a_wrap_are_those_of_the_samples(name: str) -> None:
    buffer = create(name, capacity=4)
    buffer.extend(numbers(range(3)))
    assert buffer.get_flattened_at(-1).tolist() == [2, 2, 2, 2]
    assert buffer.get_flattened_at(...)[:, 0].tolist() == [0, 1, 2]
    buffer.extend(numbers(range(3, 6)))
    for index in (..., -1, 0, slice(1, 3), [3, 0, 3], np.array([True, False, False, True])):
        plain = read(buffer.get_at(index))
        flat = buffer.get_flattened_at(index)
        assert flat[..., 0].tolist() == plain, index
        assert flat[..., 3].tolist() == plain, index
    buffer.set_flattened_at([0, 2], np.array([[7] * 4, [8] * 4], np.int32))
    assert contents(buffer) == [7, 3, 8, 5]


@pytest.mark.parametrize("name", ON_DISK)
def test_a_reader_follows_a_buffer_that_grows(name: str, tmp_path: Path) -> None:
    with create(name, tmp_path / "a") as buffer:
        buffer.extend(numbers(range(3)))
        with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as reader:
            assert contents(reader) == [0, 1, 2]
            buffer.extend(numbers(range(3, 3000)))
            assert read(reader.get_at([2999, 3])) == [2999, 3]
            assert reader.get_flattened_at(-1).tolist() == [2999] * 4
            assert reader.get_column_at(["number"], [2998]).tolist() == [2998]


@pytest.mark.parametrize("name", KINDS)
def test_python_numbers_are_taken_for_scalars(name: str) -> None:
    buffer = create(name, capacity=4)
    buffer.append({"number": 5, "inner": {"copies": np.full(3, 5, np.int32)}})
    assert contents(buffer) == [5]
    with pytest.raises(ValueError, match="number: a Python float, the space wants int32"):
        buffer.append({"number": 0.5, "inner": {"copies": np.full(3, 5, np.int32)}})
    with pytest.raises(ValueError, match="inner/copies: shape"):
        buffer.append({"number": 5, "inner": {"copies": np.full(4, 5, np.int32)}})
    assert contents(buffer) == [5]


def _extend_by_ten(*buffers: ReplayBuffer) -> None:
    for buffer in buffers:
        buffer.extend(numbers([value + 10 for value in contents(buffer)]))


def test_processes_share_one_in_memory_and_one_that_grows_on_disk(tmp_path: Path) -> None:
    with (
        create("nested", None, capacity=8, multiprocessing=True) as in_memory,
        create("nested", tmp_path / "a", capacity=None, multiprocessing=True) as on_disk,
    ):
        for buffer in (in_memory, on_disk):
            assert buffer.is_multiprocessing_safe
            buffer.extend(numbers([1, 2, 3]))
        process = mp.get_context("spawn").Process(target=_extend_by_ten, args=(in_memory, on_disk))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert [contents(buffer) for buffer in (in_memory, on_disk)] == [[1, 2, 3, 11, 12, 13]] * 2


# -- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_DISK)
@pytest.mark.parametrize("capacity", [7, None])
def test_a_file_that_is_cut_or_longer_or_gone_is_found(name: str, capacity: int | None, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    with create(name, origin, capacity=capacity) as buffer:
        buffer.extend(numbers(range(5)))
    for number_, file in enumerate(sorted(path for path in (origin / "storage").rglob("*") if path.is_file())):
        for change in ("cut", "longer", "gone"):
            folder = tmp_path / f"{number_}{change}"
            shutil.copytree(origin, folder)
            _damage(folder / file.relative_to(origin), change)
            with pytest.raises(StorageCorruptedError):
                ReplayBuffer.load_from(folder, backend=NUMPY)
            shutil.rmtree(folder)


def _damage(path: Path, change: str) -> None:
    data = path.read_bytes()
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if change == "cut" else data + b"x")


@pytest.mark.parametrize("name", ON_DISK)
def test_a_flipped_bit_of_a_row_is_found(name: str, tmp_path: Path) -> None:
    with create(name, tmp_path / "a", capacity=5) as buffer:
        buffer.extend(numbers(range(5)))
    for file in (tmp_path / "a").rglob("rows.bin"):
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.write_bytes(data)
        with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
            (finding,) = loaded.verify()
            assert "do not match their checksum" in finding
            assert str(tmp_path / "a") in finding
        data[0] ^= 1
        file.write_bytes(data)


def test_nothing_is_lost_wherever_a_writer_is_killed() -> None:
    assert "nothing lost" in _sweep("dict", every=250)


@pytest.mark.soak
@pytest.mark.parametrize("storage", ["dict", "flattened"])
def test_nothing_is_lost_at_any_line(storage: str) -> None:
    assert "nothing lost" in _sweep(storage, every=1)


def _sweep(storage: str, every: int) -> str:
    folder = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    source = str(HERE.parent.parent / "src")
    command = [sys.executable, "-W", "error", str(HERE / "kill_sweep.py"), "--storage", storage]
    environment = {**os.environ, **folder, "PYTHONPATH": os.pathsep.join([source, str(HERE)])}
    options = ["--every", str(every), "--offset", str(every // 2)]
    result = subprocess.run([*command, *options], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


Change = Callable[[dict[str, Any]], None]


def _set(field: str, value: Any) -> Change:
    return lambda content: content.__setitem__(field, value)


HOSTILE: dict[str, Change] = {
    **{
        f"{field} {value!r:.40}": _set(field, value)
        for field in ("storage_type", "inner_storage_type")
        for value in ("os.system", "builtins.eval", "evil.Storage", "", 3, None, ["packed"], "unienv_data.base.storage")
    },
    **{
        f"path {value!r:.40}": _set("inner_storage_path", value)
        for value in ("..", "../outside", "/proc/self", "", ".", "a\0b", "a\\b", "link", 7, None, "é" * 300)
    },
    "another storage": _set("storage_type", "packed"),
    "itself inside": _set("inner_storage_type", "flattened"),
    "no field": lambda content: content.clear(),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("checked", [False, True], ids=["as the reference", "as ours"])
def test_hostile_metadata_is_refused(change: Change, checked: bool, tmp_path: Path) -> None:
    folder, outside = tmp_path / "a", tmp_path / "outside"
    with create("flattened", folder, capacity=4) as buffer:
        buffer.extend(numbers(range(4)))
    shutil.copytree(folder / "storage" / "inner_storage", outside)
    (folder / "storage" / "link").symlink_to(outside)
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    path = folder / "storage" / "flattened_metadata.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    change(content)
    if checked:
        from unienv_data.base.files import write_json

        write_json(path, content)
    else:
        path.write_text(json.dumps(content))
    for read_only in (True, False):
        with pytest.raises(ValueError, match=re.escape(str(folder))):
            ReplayBuffer.load_from(folder, backend=NUMPY, read_only=read_only)


def test_a_changed_byte_of_the_metadata_is_found(tmp_path: Path) -> None:
    create("flattened", tmp_path / "a", capacity=4).close()
    path = tmp_path / "a" / "storage" / "flattened_metadata.json"
    origin = path.read_bytes()
    for place in range(len(origin)):
        data = bytearray(origin)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(StorageCorruptedError):
            ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)


def test_storages_nested_without_end_are_refused(tmp_path: Path) -> None:
    create("flattened", tmp_path / "a", capacity=4).close()
    folder = tmp_path / "a" / "storage"
    text = json.dumps({"storage_type": "flattened", "inner_storage_type": "flattened", "inner_storage_path": "i"})
    for _ in range(60):
        (folder / "flattened_metadata.json").write_text(text)
        folder = folder / "i"
        folder.mkdir()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)  # as if there were many more of them
    try:
        with pytest.raises(StorageCorruptedError, match="recursion"):
            ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)
    finally:
        sys.setrecursionlimit(limit)


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        create("dict", tmp_path / "a", capacity=0)
    with pytest.raises(TypeError, match="nonsense"):
        create("flattened", tmp_path / "a", nonsense=1)
    assert list(tmp_path.iterdir()) == []


# -- episodes that the storage inside keeps ----------------------------------------------------------------


class Episodic(ListStorage):
    """A list that keeps episodes apart; what is appended is there when its segment ends."""

    is_segment_aware = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.closed: list[tuple[int, int]] = []
        self.appended: list[Any] = []

    def encode(self, value: Any, count: int | None) -> Any:
        super().encode(value, count)
        return value

    def append(self, value: Any) -> None:
        if not self.has_open_segment:
            raise RuntimeError("no open segment")
        self.appended.append(value)

    def mark_segment_end(self) -> None:
        start = self._next_slot or 0
        for place, value in enumerate(self.appended):
            self._samples[(start + place) % (self.capacity or 10**9)] = self._leaves_of(value)
        self.closed.append((start, (start + len(self.appended) - 1) % (self.capacity or 10**9)))
        self.appended = []
        super().mark_segment_end()

    def abort_segment(self) -> None:
        self.appended = []
        super().abort_segment()

    def get_segments(self) -> list[tuple[int, int]]:
        return self.closed


@pytest.mark.parametrize(
    ("storage_cls", "options"),
    [
        (FlattenedStorage, {"inner_storage_cls": Episodic}),
        (DictStorage, {"storage_cls_map": {"number": Episodic, "*": ListStorage}}),
        (DictStorage, {"storage_cls_map": {"number": Episodic, "*": Episodic}}),
    ],
    ids=["flattened", "dict of both", "dict"],
)
def test_episodes_are_those_of_the_storage_inside(storage_cls: Any, options: Any) -> None:
    buffer = ReplayBuffer.create(storage_cls, number_space(), capacity=6, **options)
    for value in range(2):
        buffer.append(number(value))
    buffer.mark_segment_end()
    for value in range(2, 5):
        buffer.append(number(value))
    buffer.mark_segment_end()
    assert contents(buffer) == [0, 1, 2, 3, 4]
    assert buffer.get_segments() == [(0, 2), (2, 5)]
    buffer.append(number(9))
    buffer.clear()
    assert not buffer.storage.has_open_segment
    storage = buffer.storage
    storage.mark_segment_start(0)
    storage.append(number(7))
    assert storage.pending_segment_length == 1
    storage.abort_segment()
    assert not storage.has_open_segment


def test_samples_are_moved_without_being_transformed() -> None:
    calls = []

    class Counting(IdentityTransformation):
        def transform(self, source_space: Any, data: Any) -> Any:
            calls.append(1)
            return data

        def direction_inverse(self, source_space: Any = None) -> Any:
            return self

    options = {"data_transformation": Counting(), "inner_storage_cls": ListStorage}
    buffer = ReplayBuffer.create(TransformedStorage, number_space(), capacity=6, **options)
    buffer.extend(numbers(range(6)))
    before = len(calls)
    buffer.remove_at([2, 3])
    assert len(calls) == before
    assert contents(buffer) == [0, 1, 4, 5]
