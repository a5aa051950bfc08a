"""Recordings with 64-bit columns on a backend that has 32 bits: the files are as they are, values are converted."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BoxSpace, DictSpace

pytest.importorskip("jax")
NUMPY, JAX = NumpyComputeBackend, deserialize_backend("jax")
# columns whose places in a row move when others are narrowed
SPACE = DictSpace(
    NUMPY,
    {
        "flag": BoxSpace(NUMPY, 0, 1, "uint8", shape=()),
        "step": BoxSpace(NUMPY, -np.inf, np.inf, "int64", shape=()),
        "x": BoxSpace(NUMPY, -1.0, 1.0, "float64", shape=(2,)),
        "y": BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(3,)),
    },
)
STORAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "packed": (PackedStorage, {}),
    "columns": (DictStorage, {"storage_cls_map": {"x": PackedStorage, "*": PackedStorage}}),
}


def sample(number: int) -> dict[str, Any]:
    return {
        "flag": np.uint8(number % 2),
        "step": np.int64(number),
        "x": np.full(2, number / 16),
        "y": np.full(3, number / 32, np.float32),
    }


@pytest.fixture(params=STORAGES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    storage_cls, options = STORAGES[request.param]
    with ReplayBuffer.create(storage_cls, SPACE, cache_path=tmp_path / "a", keep_episodes=True, **options) as buffer:
        for number in range(8):
            buffer.append(sample(number))
            if number % 4 == 3:
                buffer.mark_segment_end()
    return tmp_path / "a"


def check(buffer: ReplayBuffer) -> None:
    assert buffer.get_segments() == [(0, 4), (4, 8)]
    assert buffer.verify() == []
    batch = buffer.get_at([1, 6])
    assert {name: str(value.dtype) for name, value in batch.items()} == {
        "flag": "uint8",
        "step": "int32",
        "x": "float32",
        "y": "float32",
    }
    for name, value in batch.items():
        assert np.array_equal(np.asarray(value), np.stack([sample(1)[name], sample(6)[name]]))
    assert np.asarray(buffer.get_column(["x"]).get_at([6])).tolist() == [[6 / 16, 6 / 16]]


def test_values_are_narrowed_after_they_are_read(folder: Path) -> None:
    with ReplayBuffer.load_from(folder, backend=JAX) as buffer:
        check(buffer)
        check(pickle.loads(pickle.dumps(buffer)))
        assert buffer.single_space == ReplayBuffer.get_space_from_path(folder, backend=JAX)


def test_a_copy_has_all_the_bits(folder: Path) -> None:
    with ReplayBuffer.load_from(folder, backend=JAX) as buffer:
        buffer.dumps(folder.parent / "copy")
    with ReplayBuffer.load_from(folder.parent / "copy", backend=NUMPY) as copy:
        assert copy.single_space == SPACE
        assert copy.get_at(5)["x"].dtype == np.float64
        assert copy.get_segments() == [(0, 4), (4, 8)]


def test_what_does_not_fit_is_an_error_and_not_another_number(folder: Path) -> None:
    with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False) as buffer:
        buffer.append({**sample(0), "step": np.int64(2**33)})
    with ReplayBuffer.load_from(folder, backend=JAX) as buffer:
        assert int(buffer.get_at(0)["step"]) == 0
        with pytest.raises(OverflowError, match="jax_enable_x64"):
            buffer.get_at(8)


def test_it_is_not_written_with_fewer_bits(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has columns of 64 bits, which .* keeps with fewer: .*read_only=True"):
        ReplayBuffer.load_from(folder, backend=JAX, read_only=False)


def test_bounds_that_do_not_fit_are_said_so(tmp_path: Path) -> None:
    space = BoxSpace(NUMPY, 0, 2**40, "int64", shape=())
    ReplayBuffer.create(space, cache_path=tmp_path / "a").close()
    with pytest.raises(OverflowError, match=r"metadata\.json: bounds .* do not fit int32 .*jax_enable_x64"):
        ReplayBuffer.load_from(tmp_path / "a", backend=JAX)
