"""Replay buffers over the storages that are files or tensors: what holds for all of them."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import Model, contents, number, number_space, numbers, read
from catalogue import SPACES
from file_storages import KINDS, Kind, kinds, need, record, run

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.storages import registry
from unienv_data.testing import check_storage
from unienv_data.testing.storage_contract import default_spaces
from unienv_interface.backends import deserialize_backend
from unienv_interface.space.spaces import BoxSpace

OPERATIONS = ["append", "end", "extend", "set", "remove", "clear", "reload"]


@pytest.fixture(params=kinds())
def kind(request: pytest.FixtureRequest) -> Kind:
    need(request.param)
    return request.param


# -- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds("torch_memmap", "torch_file", "npz", "hdf5", "hdf5_chunked", "parquet"))
def test_it_keeps_the_contract(kind: Kind, tmp_path: Path) -> None:
    need(kind)
    check_storage(kind.storage_cls, tmp_path, spaces=default_spaces(kind.backend), grows=kind.grows, **kind.options)


@pytest.mark.parametrize("backend_name", ["pytorch", "jax"])
@pytest.mark.parametrize("kind", kinds("npz", "hdf5", "parquet"))
def test_formats_of_numpy_serve_other_backends(kind: Kind, backend_name: str, tmp_path: Path) -> None:
    need(kind)
    pytest.importorskip({"pytorch": "torch", "jax": "jax"}[backend_name])
    backend = deserialize_backend(backend_name)
    with kind.create(number_space(backend), 4, tmp_path / "buffer") as buffer:
        buffer.extend(numbers(range(6), backend))
        assert contents(buffer) == [2, 3, 4, 5]
        assert read(buffer.get_at(np.array([3, 0, 3])), backend) == [5, 2, 5]
        assert backend.is_backendarray(buffer.get_at(0)["number"])


def spaces_of(kind: Kind) -> list[str]:
    names = [name for name in SPACES if name.startswith(("box", "binary"))]
    if kind.storage != "pytorch":
        names += [name for name in SPACES if name.startswith(("text", "dict", "tuple"))]
    return names


@pytest.mark.parametrize("kind", kinds("torch_memmap", "npz", "hdf5", "hdf5_chunked", "parquet"))
def test_every_space_of_the_catalogue_is_kept_or_refused_with_a_reason(kind: Kind, tmp_path: Path) -> None:
    need(kind)
    kept, refusals = 0, {}
    for name in spaces_of(kind):
        space = SPACES[name](kind.backend)
        rng, value = space.sample(kind.backend.random.random_number_generator(0))
        try:
            storage = kind.storage_cls.create(space, capacity=2, cache_path=tmp_path / name, **kind.options)
            storage.set(1, value)
            storage.set(0, space.sample(rng)[1])
        except ValueError as error:
            refusals[name] = str(error)
            continue
        found = storage.get(1)
        assert space.contains(found), name
        assert pickle.dumps(_plain(kind, found)) == pickle.dumps(_plain(kind, value)), name
        storage.close()
        kept += 1
    assert kept > 30
    reasons = ("PackedStorage", "no elements", "no leaves")
    assert [name for name, text in refusals.items() if not any(reason in text for reason in reasons)] == []


def _plain(kind: Kind, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(kind, value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(_plain(kind, child) for child in value)
    if kind.backend.is_backendarray(value) and value.dtype != object:
        raw = kind.backend.to_raw(value)
        return raw.shape, raw.dtype.str, raw.tobytes()
    return value.tolist() if isinstance(value, np.ndarray) else value


# -- rings and growing buffers -----------------------------------------------------------------------------


def test_the_ring_turns_as_the_reference_says(kind: Kind, tmp_path: Path) -> None:
    backend = kind.backend
    with kind.create(number_space(backend), 6, tmp_path / "buffer") as buffer:
        buffer.extend(numbers(range(5), backend))
        buffer.extend(numbers([5], backend))
        assert (buffer.offset, buffer.count, contents(buffer)) == (0, 6, [0, 1, 2, 3, 4, 5])
        buffer.clear()
        assert len(buffer) == 0
        buffer.extend(numbers(range(4), backend))
        buffer.extend(numbers(range(4, 9), backend))
        assert (buffer.offset, buffer.count, contents(buffer)) == (3, 6, [3, 4, 5, 6, 7, 8])
        assert read(buffer.get_at([-1, 0, 0]), backend) == [8, 3, 3]
        mask = np.array([True, False, False, False, True, False])
        assert read(buffer.get_at(mask), backend) == [3, 7]
        buffer.dumps(tmp_path / "copy")
        with ReplayBuffer.load_from(tmp_path / "copy", backend=backend) as loaded:
            assert (loaded.offset, loaded.count, loaded.capacity) == (3, 6, 6)
            assert contents(loaded) == [3, 4, 5, 6, 7, 8]
            assert not loaded.is_mutable
            with pytest.raises(PermissionError, match="read_only=False"):
                loaded.append(number(0, backend))
        buffer.extend(numbers(range(20), backend))
        assert (buffer.offset, contents(buffer)) == (0, list(range(14, 20)))


@pytest.mark.parametrize("capacity", [7, None])
def test_it_does_what_a_list_does(kind: Kind, capacity: int | None, tmp_path: Path) -> None:
    if capacity is None and not kind.grows:
        pytest.skip("it does not grow")
    chance, model, path, backend = random.Random(4), Model(capacity), tmp_path / "0", kind.backend
    buffer = kind.create(number_space(backend), capacity, path, maintain_segment_metadata=True)
    fresh = iter(range(10_000))
    for step in range(60):
        verb = chance.choices(OPERATIONS, [8, 4, 6, 4, 4, 0.5, 2])[0]
        if verb == "append":
            value = next(fresh)
            buffer.append(number(value, backend))
            model.is_open = True
            model.add([value])
        elif verb == "end" or (verb in ("extend", "reload") and model.is_open):
            buffer.mark_segment_end()
            model.end()
        elif verb == "extend":
            values = [next(fresh) for _ in range(chance.choice([1, 2, 5, 9]))]
            buffer.extend(numbers(values, backend))
            model.add(values)
            model.end()
        elif verb == "set" and model.samples:
            indices = [chance.randrange(len(model.samples)) for _ in range(3)]
            values = [next(fresh) for _ in indices]
            buffer.set_at(indices, numbers(values, backend))
            for index, value in zip(indices, values, strict=True):
                model.samples[index] = value
        elif verb == "remove" and model.samples:
            indices = chance.sample(range(len(model.samples)), min(2, len(model.samples)))
            buffer.remove_at(indices)
            model.remove(set(indices))
        elif verb == "clear":
            buffer.clear()
            model.remove(set(range(len(model.samples))))
            model.end()
        elif verb == "reload":
            path = path if kind.on_disk and chance.random() < 0.5 else tmp_path / f"{step}"
            buffer.dumps(path)
            buffer.close()
            buffer = ReplayBuffer.load_from(path, backend=backend, read_only=False)
        assert contents(buffer) == model.samples, f"step {step}, {verb}"
        assert buffer.get_segments() == model.segments(), f"step {step}, {verb}"
        column = buffer.get_column_at(["inner", "copies"], ...)
        assert backend.to_numpy(column)[:, 1].tolist() == model.samples
    assert buffer.verify() == []
    buffer.close()


def test_a_value_that_does_not_fit_changes_nothing(kind: Kind, tmp_path: Path) -> None:
    backend = kind.backend
    with kind.create(number_space(backend), 3, tmp_path / "buffer") as buffer:
        buffer.extend(numbers([1, 2, 3], backend))
        wrong = {"number": number(0, backend)["number"], "inner": {"copies": number(0, backend)["number"]}}
        with pytest.raises(ValueError, match="inner/copies"):
            buffer.append(wrong)
        assert contents(buffer) == [1, 2, 3]


def test_what_is_handed_out_does_not_change(kind: Kind, tmp_path: Path) -> None:
    backend = kind.backend
    with kind.create(number_space(backend), 3, tmp_path / "buffer") as buffer:
        buffer.extend(numbers([1, 2, 3], backend))
        one, some, column = buffer.get_at(0), buffer.get_at([0, 1]), buffer.get_column_at(["number"], ...)
        buffer.extend(numbers([4, 5, 6], backend))
        assert read(one, backend) == 1
        assert read(some, backend) == [1, 2]
        assert backend.to_numpy(column).tolist() == [1, 2, 3]


# -- processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.survives_kill])
def test_what_was_acknowledged_survives_a_kill(name: str, tmp_path: Path) -> None:
    record(name, tmp_path / "buffer", 7, 5, 4)
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=KINDS[name].backend) as buffer:
        assert buffer.storage.survives_kill
        assert contents(buffer) == [2, 3, 4, 5, 6, 7, 8]


LOSING = [name for name, kind in KINDS.items() if kind.on_disk and not kind.survives_kill and kind.storage != "hdf5"]


@pytest.mark.parametrize("name", LOSING)
def test_after_a_kill_what_was_flushed_is_there_and_nothing_else(name: str, tmp_path: Path) -> None:
    record(name, tmp_path / "buffer", 20, 5, 4)
    for read_only in (True, False):
        with ReplayBuffer.load_from(tmp_path / "buffer", backend=KINDS[name].backend, read_only=read_only) as buffer:
            assert not buffer.storage.survives_kill
            assert contents(buffer) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", LOSING)
def test_after_a_kill_a_ring_that_was_overwritten_since_the_flush_is_refused(name: str, tmp_path: Path) -> None:
    record(name, tmp_path / "buffer", 7, 5, 4)
    with pytest.raises(StorageCorruptedError, match="since the last flush"):
        ReplayBuffer.load_from(tmp_path / "buffer", backend=KINDS[name].backend)


@pytest.mark.parametrize("kind", kinds("parquet", "hdf5"))
def test_a_reader_beside_a_writer_sees_what_was_flushed(kind: Kind, tmp_path: Path) -> None:
    need(kind)
    backend = kind.backend
    with kind.create(number_space(backend), 6, tmp_path / "buffer") as buffer:
        buffer.extend(numbers(range(4), backend))
        buffer.flush()
        with ReplayBuffer.load_from(tmp_path / "buffer", backend=backend) as reader:
            assert contents(reader) == [0, 1, 2, 3]
            buffer.extend(numbers(range(4, 6), backend))
            assert contents(reader) == [0, 1, 2, 3]
        buffer.extend(numbers(range(6, 9), backend))
        with pytest.raises(StorageCorruptedError, match="since the last flush"):
            ReplayBuffer.load_from(tmp_path / "buffer", backend=backend)
        buffer.flush()
        with ReplayBuffer.load_from(tmp_path / "buffer", backend=backend) as reader:
            assert contents(reader) == [3, 4, 5, 6, 7, 8]


def test_npz_survives_kills_at_random_instants() -> None:
    assert "25 kills" in run("kill_loop.py", "--kills", "25", "--seed", "1", "--storage", "npz")


@pytest.mark.soak
def test_npz_survives_many_kills() -> None:
    assert "1000 kills" in run("kill_loop.py", "--kills", "1000", "--seed", "7", "--storage", "npz")


@pytest.mark.parametrize("kind", kinds("torch_memmap", "npz", "hdf5", "hdf5_chunked", "parquet"))
def test_a_read_only_buffer_travels_to_other_processes(kind: Kind, tmp_path: Path) -> None:
    need(kind)
    backend = kind.backend
    with kind.create(number_space(backend), 4, tmp_path / "buffer") as buffer:
        buffer.extend(numbers(range(4), backend))
    loaded = ReplayBuffer.load_from(tmp_path / "buffer", backend=backend)
    assert loaded.is_multiprocessing_safe
    received = pickle.loads(pickle.dumps(loaded))
    loaded.close()
    assert contents(received) == [0, 1, 2, 3]
    received.close()


@pytest.mark.parametrize("name", ["hdf5", "hdf5_chunked", "parquet"])
def test_without_room_nothing_is_lost_and_with_room_it_goes_on(name: str, tmp_path: Path) -> None:
    need(KINDS[name])
    assert "then room again" in run("fill_up.py", name, str(tmp_path / "buffer"))


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds("torch_memmap", "npz", "hdf5", "parquet"))
def test_the_reference_names_its_classes_and_they_are_found(kind: Kind) -> None:
    need(kind)
    cls = kind.storage_cls
    assert registry.storage_by_name(f"{cls.__module__}.{cls.__qualname__}") is cls
    assert registry.name_of(cls) == kind.storage


def test_a_dotted_name_that_is_not_in_the_map_is_not_imported() -> None:
    with pytest.raises(ValueError, match="no storage is registered"):
        registry.storage_by_name("unienv_data.storages.npz_storage.os")


@pytest.mark.parametrize("kind", kinds("hdf5", "parquet", "torch_memmap"))
def test_without_its_package_the_extra_is_named(kind: Kind) -> None:
    package = {"hdf5": "h5py", "parquet": "pyarrow", "pytorch": "torch"}[kind.storage]
    extra = {"pytorch": "torch"}.get(kind.storage, kind.storage)
    program = f"""
import sys
sys.modules[{package!r}] = None
from unienv_data.storages.registry import storage_by_name
try:
    storage_by_name({kind.storage!r})
except ImportError as error:
    assert "unienv[{extra}]" in str(error), error
else:
    raise SystemExit("imported")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("kind", kinds("hdf5", "npz_stored", "torch_memmap"))
def test_a_capacity_that_cannot_fit_leaves_nothing_behind(kind: Kind, tmp_path: Path) -> None:
    need(kind)
    space = BoxSpace(kind.backend, 0, 1, "float32", shape=(1000,))
    with pytest.raises(OSError, match="bytes are needed"):
        kind.create(space, 10**12, tmp_path / "buffer")
    assert list(tmp_path.iterdir()) == []
