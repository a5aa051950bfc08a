"""Samples on one backend in a storage on another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number_space, numbers
from catalogue import BACKENDS

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.base.files import write_json
from unienv_data.storages.backend_compat import ToBackendOrDeviceStorage, data_to
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace

NUMPY = NumpyComputeBackend
OTHERS = [backend for backend in BACKENDS if backend is not NUMPY]


@pytest.mark.parametrize("inner", OTHERS, ids=lambda backend: backend.simplified_name)
@pytest.mark.parametrize("turned", [False, True], ids=["numpy outside", "numpy inside"])
def test_samples_are_moved_on_the_way(inner: ComputeBackend, turned: bool, tmp_path: Path) -> None:
    outer, inner = (inner, NUMPY) if turned else (NUMPY, inner)
    options = {"backend": inner, "inner_storage_cls": FlattenedStorage, "cache_path": tmp_path / "a"}
    space = number_space(outer)
    with ReplayBuffer.create(ToBackendOrDeviceStorage, space, capacity=4, **options) as buffer:
        buffer.extend(numbers(range(3), outer))
        buffer.extend(numbers(range(3, 6), outer))
        storage: Any = buffer.storage
        assert (storage.inner_backend, storage.current_backend) == (inner, outer)
        assert inner.is_backendarray(storage.inner_storage.get(0)["number"])
        assert outer.is_backendarray(buffer.get_at(0)["number"])
        assert contents(buffer) == [2, 3, 4, 5]
        buffer.dumps(tmp_path / "b")
    for path in (tmp_path / "a", tmp_path / "b"):
        with ReplayBuffer.load_from(path, backend=outer) as loaded:
            assert loaded.storage.inner_backend is inner
            assert contents(loaded) == [2, 3, 4, 5]


def test_a_column_is_read_by_itself(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(ToBackendOrDeviceStorage, number_space(), capacity=4, backend=BACKENDS[-1])
    buffer.extend(numbers(range(3)))
    assert buffer.storage.has_column_access
    column = buffer.storage.get_column(["inner", "copies"])
    assert type(column.inner_storage).__name__ == "PackedColumn"
    assert column.get([2, 0]).tolist() == [[2, 2, 2], [0, 0, 0]]
    column.close()
    assert buffer.get_column_at(["number"], ...).tolist() == [0, 1, 2]
    without = ToBackendOrDeviceStorage.create(number_space(), ListStorage, capacity=3)
    assert not without.has_column_access


def test_a_backend_with_fewer_bits_is_refused() -> None:
    jax = pytest.importorskip("jax")
    from unienv_interface.backends.jax import JaxComputeBackend

    assert not jax.config.jax_enable_x64
    space = BoxSpace(NUMPY, -1.0, 1.0, "float64", shape=(3,))
    with pytest.raises(ValueError, match="with fewer bits"):
        ToBackendOrDeviceStorage.create(space, capacity=3, backend=JaxComputeBackend)


def test_without_a_backend_it_stays_where_it_is() -> None:
    storage = ToBackendOrDeviceStorage.create(number_space(), capacity=3)
    assert storage.inner_backend is storage.current_backend is NUMPY
    storage.set(0, {"number": 3, "inner": {"copies": np.full(3, 3, np.int32)}})
    assert storage.get(0)["number"] == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"backend": "os"}, "unknown backend 'os'"),
        ({"backend": None}, "'backend' is None"),
        ({"device": 3}, "'device' is 3"),
        ({"device": "nowhere:7"}, "nowhere:7"),
    ],
    ids=str,
)
def test_metadata_that_makes_no_sense_is_refused(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    options = {"backend": BACKENDS[1] if OTHERS else NUMPY, "cache_path": tmp_path / "a"}
    ReplayBuffer.create(ToBackendOrDeviceStorage, number_space(), capacity=4, **options).close()
    path = tmp_path / "a" / "storage" / "backend_metadata.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    write_json(path, {**content, **change})
    with pytest.raises(StorageCorruptedError, match=text):
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)


def test_nested_data_is_moved_by_itself() -> None:
    moved = data_to({"a": [np.arange(3)], "b": "text"}, NUMPY, BACKENDS[-1])
    assert BACKENDS[-1].is_backendarray(moved["a"][0])
    assert moved["b"] == "text"


TWO_DEVICES = """
import sys
import jax
from unienv_data import ReplayBuffer
from unienv_data.storages.backend_compat import ToBackendOrDeviceStorage
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.space.spaces import BoxSpace

first, second = jax.devices()
space = BoxSpace(JaxComputeBackend, -1.0, 1.0, "float32", shape=(3,))
options = {"device": second, "cache_path": sys.argv[1]}
with ReplayBuffer.create(ToBackendOrDeviceStorage, space, capacity=4, **options) as buffer:
    buffer.extend(jax.numpy.zeros((3, 3)))
    assert buffer.storage.inner_storage.get([0]).devices() == {second}
    assert buffer.get_at([0, 2]).devices() == buffer.get_at(0).devices() == {first}
with ReplayBuffer.load_from(sys.argv[1], backend=JaxComputeBackend) as loaded:
    assert loaded.storage.inner_device == second
    assert loaded.get_at(...).devices() == {first}
"""


def test_samples_come_back_to_the_device_they_came_from(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    source = str(Path(__file__).parent.parent.parent / "src")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu", "PYTHONPATH": source}
    command = [sys.executable, "-W", "error", "-c", TWO_DEVICES, str(tmp_path / "a")]
    result = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
