"""PytorchTensorStorage: the file, devices, what is shared, and files that are not what they should be."""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number_space, numbers

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BoxSpace, DictSpace, TextSpace

torch = pytest.importorskip("torch")
PytorchTensorStorage: Any = pytest.importorskip("unienv_data.storages.pytorch").PytorchTensorStorage

TORCH: Any = deserialize_backend("pytorch")
BOX = BoxSpace(TORCH, -1e6, 1e6, "float32", shape=(2, 3))
PAIR = DictSpace(TORCH, {"a": BoxSpace(TORCH, 0, 9, "uint16", shape=(5,)), "b": {"c": BOX}})
ROWS = torch.arange(24, dtype=torch.float32).reshape(4, 2, 3)


def filled(path: Path | None, **options: Any) -> Any:
    storage = PytorchTensorStorage.create(BOX, capacity=4, cache_path=path, **options)
    storage.set(..., ROWS)
    return storage


def load(path: Path, **options: Any) -> Any:
    return PytorchTensorStorage.load_from(path, BOX, **{"capacity": 4, **options})


# -- the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_memmap", [True, False])
def test_the_file_of_one_array_is_its_tensor(is_memmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.memmap"
    storage = filled(path, is_memmap=is_memmap)
    assert storage.is_memmap is is_memmap
    assert storage.survives_kill
    assert path.read_bytes() == ROWS.numpy().tobytes()  # before anything was flushed
    storage.close()
    ROWS.numpy().tofile(tmp_path / "b.memmap")  # as the reference writes it
    assert torch.equal(load(tmp_path / "b.memmap").get(...), ROWS)
    assert len(load(tmp_path / "b.memmap", capacity=None)) == 4


def test_the_file_of_several_arrays_has_one_after_the_other(tmp_path: Path) -> None:
    storage = PytorchTensorStorage.create(PAIR, capacity=4, cache_path=tmp_path / "a.memmap")
    first = torch.arange(20, dtype=torch.int32).to(torch.uint16).reshape(4, 5)
    storage.set(..., {"a": first, "b": {"c": ROWS}})
    storage.close()
    data = (tmp_path / "a.memmap").read_bytes()
    assert data[:40] == first.numpy().tobytes()
    assert data[4096:] == ROWS.numpy().tobytes()
    with pytest.raises(ValueError, match="give the capacity"):
        PytorchTensorStorage.load_from(tmp_path / "a.memmap", PAIR)


@pytest.mark.parametrize("change", [1, -1, -96], ids=["longer", "shorter", "empty"])
def test_a_file_of_another_size_is_refused(change: int, tmp_path: Path) -> None:
    path = tmp_path / "a.memmap"
    filled(path).close()
    data = path.read_bytes()
    path.write_bytes(data + b"x" if change > 0 else data[:change])
    for read_only in (True, False):
        with pytest.raises(StorageCorruptedError, match=r"a\.memmap: \d+ bytes, it must have 96"):
            load(path, read_only=read_only)
    with pytest.raises(StorageCorruptedError, match=r"a\.memmap"):
        load(path, capacity=None)


def test_a_file_that_is_there_is_taken_over_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.memmap"
    filled(path).close()
    with pytest.raises(FileExistsError, match=r"a\.memmap is there"):
        PytorchTensorStorage.create(BOX, capacity=4, cache_path=path)
    again = PytorchTensorStorage.create(BOX, capacity=4, cache_path=path, memmap_existok=True)
    assert torch.equal(again.get(...), ROWS)
    with pytest.raises(StorageCorruptedError, match="it must have 120"):
        PytorchTensorStorage.create(BOX, capacity=5, cache_path=path, memmap_existok=True)
    with pytest.raises(FileExistsError):
        again.dumps(filled(tmp_path / "b.memmap").cache_filename or "")


def test_a_reader_sees_what_is_written_and_writes_nothing(tmp_path: Path) -> None:
    storage = filled(tmp_path / "a.memmap")
    reader = load(tmp_path / "a.memmap")
    storage.set(1, ROWS[0])
    assert torch.equal(reader.get(1), ROWS[0])
    reader.data[0] = 7.0  # whoever insists does it to a copy
    assert torch.equal(storage.get(0), ROWS[0])
    with pytest.raises(PermissionError, match="read_only=False"):
        reader.set(0, ROWS[1])


def test_a_copy_in_memory_is_of_the_moment_it_was_loaded(tmp_path: Path) -> None:
    with ReplayBuffer.create(
        PytorchTensorStorage, number_space(TORCH), capacity=4, cache_path=tmp_path / "a"
    ) as buffer:
        buffer.extend(numbers(range(3), TORCH))
        buffer.flush()
        with ReplayBuffer.load_from(tmp_path / "a", backend=TORCH, is_memmap=False) as copy:
            assert not copy.storage.survives_kill
            buffer.extend(numbers([3], TORCH))
            assert contents(copy) == [0, 1, 2]
        buffer.extend(numbers([4], TORCH))
        with pytest.raises(StorageCorruptedError, match="since the last flush"):
            ReplayBuffer.load_from(tmp_path / "a", backend=TORCH, is_memmap=False)
        with ReplayBuffer.load_from(tmp_path / "a", backend=TORCH) as mapped:
            assert contents(mapped) == [1, 2, 3, 4]


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "bfloat16", "float16", "complex64", "int8"])
def test_every_dtype_is_kept_to_the_bit(dtype: str, tmp_path: Path) -> None:
    bits = torch.arange(3, 67, dtype=torch.uint8)
    column = bits.view(getattr(torch, dtype)).reshape(-1, 2)
    space = BoxSpace(TORCH, -np.inf, np.inf, dtype, shape=(2,))
    storage = PytorchTensorStorage.create(space, capacity=len(column), cache_path=tmp_path / "a.memmap")
    order = torch.arange(len(column) - 1, -1, -1)
    storage.set(order, torch.stack([column[slot] for slot in order]))
    assert _bytes(storage.get(...)) == _bytes(column)
    assert _bytes(storage.get([1, 0, 1])) == _bytes(torch.stack([column[slot] for slot in (1, 0, 1)]))
    assert _bytes(storage.get(-1)) == _bytes(column[-1])


def _bytes(tensor: Any) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_numbers_and_narrower_dtypes_do_and_wider_ones_do_not() -> None:
    space = BoxSpace(TORCH, -9, 9, "float32", shape=())
    storage = PytorchTensorStorage.create(space, capacity=3, is_memmap=False)
    storage.set(0, 2.5)
    storage.set(1, torch.tensor(1.5, dtype=torch.float16))
    assert storage.get([0, 1]).tolist() == [2.5, 1.5]
    with pytest.raises(ValueError, match="float64, the space wants float32"):
        storage.set(0, torch.tensor(1.0, dtype=torch.float64))
    storage.set(2, torch.tensor(3.0, requires_grad=True))
    assert not storage.get(2).requires_grad


def test_what_is_read_is_no_view() -> None:
    storage = filled(None, is_memmap=False)
    one, some, all_of_it = storage.get(0), storage.get(slice(0, 2)), storage.get(...)
    storage.set(..., torch.zeros_like(ROWS))
    assert torch.equal(one, ROWS[0])
    assert torch.equal(some, ROWS[:2])
    assert torch.equal(all_of_it, ROWS)


def test_tensors_of_the_callers_are_the_storage() -> None:
    data = ROWS.clone()
    storage = PytorchTensorStorage(BOX, data)
    storage.set(0, ROWS[3])
    assert torch.equal(data[0], ROWS[3])
    assert (len(storage), storage.capacity, storage.get_segments()) == (4, 4, None)
    assert not storage.is_multiprocessing_safe
    assert PytorchTensorStorage(BOX, data.share_memory_()).is_multiprocessing_safe
    with pytest.raises(ValueError, match="float64"):
        PytorchTensorStorage(BOX, data.double())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"capacity": None}, "does not grow"),
        ({"capacity": 4}, "needs a cache_path; is_memmap=False"),
        ({"capacity": 4, "cache_path": "a.pt"}, "is_memmap=False"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        PytorchTensorStorage.create(BOX, **options)


def test_other_spaces_are_refused_with_a_way_out(tmp_path: Path) -> None:
    for space, match in (
        (BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(2,)), "ToBackendOrDeviceStorage"),
        (DictSpace(TORCH, {"task": TextSpace(TORCH, 3)}), "task: .* PackedStorage keeps it"),
        (DictSpace(TORCH), "no leaves"),
    ):
        with pytest.raises(ValueError, match=match):
            PytorchTensorStorage.create(space, capacity=2, cache_path=tmp_path / "a.memmap")
    with pytest.raises(ValueError, match="a space on the CPU, not on meta"):
        PytorchTensorStorage.create(
            BoxSpace(TORCH, 0, 1, "float32", shape=(2,), device="meta"), capacity=2, cache_path=tmp_path / "a.memmap"
        )


# -- processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_file", [True, False])
def test_what_is_sent_to_another_process_is_the_same_memory(in_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.memmap" if in_file else None
    storage = filled(path, is_memmap=in_file, multiprocessing=True)
    assert storage.is_multiprocessing_safe
    received = pickle.loads(ForkingPickler.dumps(storage))
    received.set(2, ROWS[0])
    storage.set(3, ROWS[1])
    assert torch.equal(received.get([2, 3]), ROWS[:2])
    assert torch.equal(storage.get([2, 3]), ROWS[:2])


def test_a_copy_in_memory_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="map it in the other one"):
        pickle.dumps(filled(tmp_path / "a.memmap", is_memmap=False))


# -- what torch.save writes --------------------------------------------------------------------------------


def test_pt_files_are_written_and_read(tmp_path: Path) -> None:
    filled(tmp_path / "a.memmap").dumps(tmp_path / "b.pt")
    storage = load(tmp_path / "b.pt", read_only=False)
    assert not storage.is_memmap
    assert torch.equal(storage.get(...), ROWS)
    storage.set(0, ROWS[3])
    storage.close()
    assert torch.equal(load(tmp_path / "b.pt").get(0), ROWS[3])
    shared = filled(tmp_path / "c.pt", is_memmap=False, multiprocessing=True)
    assert not shared.survives_kill
    assert not shared.is_memmap
    shared.close()
    assert torch.equal(load(tmp_path / "c.pt").get(...), ROWS)


class Bomb:
    exploded = False

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    Bomb.exploded = True


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _content(**tensors: Any) -> dict[str, Any]:
    return {"format_version": 1, "tensors": tensors}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: b"", id="nothing"),
        pytest.param(lambda: b"nonsense", id="nonsense"),
        pytest.param(lambda: saved(_content(value=ROWS))[:-50], id="cut"),
        pytest.param(lambda: saved(Bomb()), id="code"),
        pytest.param(lambda: saved({**_content(value=ROWS), "more": Bomb()}), id="code beside"),
        pytest.param(lambda: pickle.dumps(Bomb()), id="a plain pickle"),
        pytest.param(lambda: saved([ROWS]), id="a list"),
        pytest.param(lambda: saved(_content(other=ROWS)), id="another name"),
        pytest.param(lambda: saved(_content(value=ROWS.double())), id="another dtype"),
        pytest.param(lambda: saved(_content(value=ROWS[:3])), id="another length"),
        pytest.param(lambda: saved(_content(value="text")), id="no tensor"),
    ],
)
def test_a_pt_file_that_is_not_what_it_should_be_is_refused(data: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(data())
    with pytest.raises(StorageCorruptedError, match=r"a\.pt: "):
        load(tmp_path / "a.pt")
    assert not Bomb.exploded


def test_a_pt_file_of_a_later_release_is_refused_and_not_called_corrupted(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(saved({**_content(value=ROWS), "format_version": 9}))
    with pytest.raises(ValueError, match=r"a\.pt: format version 9, this release reads up to 1") as refused:
        load(tmp_path / "a.pt")
    assert not isinstance(refused.value, StorageCorruptedError)
