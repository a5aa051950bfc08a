"""Samples with columns of frames that are set, removed, discarded and overwritten are those of a plain list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("PIL")

from frames import frame

from unienv_data import Image, ReplayBuffer, Video
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

CAPACITY = 12
# The smaller frames lie in the records of packed rows, the larger ones in a block of their own.
SHAPES = [(12, 16, 3), (36, 48, 3)]
RULES = {"ffv1": Video("ffv1"), "png": Image("png"), "webp": Image("webp")}


def space(shape: tuple[int, ...]) -> DictSpace:
    np_backend = NumpyComputeBackend
    spaces = {
        "cam": BoxSpace(np_backend, 0, 255, "uint8", shape=shape),
        "n": BoxSpace(np_backend, 0, 99, "int64", shape=()),
    }
    return DictSpace(np_backend, spaces)


def sample(number: int, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"cam": frame(number, shape), "n": np.int64(number)}


def samples(numbers: list[int], shape: tuple[int, ...]) -> dict[str, Any]:
    cams = np.zeros((len(numbers), *shape), np.uint8)
    for place, number in enumerate(numbers):
        cams[place] = frame(number, shape)
    return {"cam": cams, "n": np.array(numbers, np.int64)}


def assert_has(buffer: ReplayBuffer, numbers: list[int], shape: tuple[int, ...]) -> None:
    wanted, found = samples(numbers, shape), buffer.get_at(...)
    assert found["n"].tolist() == numbers
    assert np.array_equal(found["cam"], wanted["cam"])
    for index, number in enumerate(numbers):
        one = buffer.get_at(index)
        assert one["n"] == number
        assert np.array_equal(one["cam"], wanted["cam"][index])
    assert buffer.verify() == []


def set_one(buffer: ReplayBuffer, numbers: list[int], shape: tuple[int, ...]) -> None:
    buffer.set_at(9, sample(70, shape))
    numbers[9] = 70


def set_some(buffer: ReplayBuffer, numbers: list[int], shape: tuple[int, ...]) -> None:
    buffer.set_at([10, 2], samples([71, 72], shape))
    numbers[10], numbers[2] = 71, 72


def remove_some(buffer: ReplayBuffer, numbers: list[int], shape: tuple[int, ...]) -> None:
    buffer.remove_at([4, 9])
    del numbers[9], numbers[4]


def remove_oldest(buffer: ReplayBuffer, numbers: list[int], shape: tuple[int, ...]) -> None:
    buffer.remove_at(slice(0, 3))
    del numbers[:3]


def discard(buffer: ReplayBuffer, numbers: list[int], shape: tuple[int, ...]) -> None:
    del numbers[len(numbers) - buffer.discard_open_segment() :]


@pytest.mark.parametrize("edit", [set_one, set_some, remove_some, remove_oldest, discard])
@pytest.mark.parametrize("capacity", [None, CAPACITY])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", RULES)
def test_an_open_episode_is_edited(
    kind: str,
    shape: tuple[int, ...],
    capacity: int | None,
    edit: Callable[[ReplayBuffer, list[int], tuple[int, ...]], None],
    tmp_path: Path,
) -> None:
    options: Any = {"columns": {"cam": RULES[kind]}, "cache_path": tmp_path / "a", "keep_episodes": True}
    numbers = list(range(14))
    with ReplayBuffer.create(space(shape), capacity=capacity, **options) as buffer:
        for number in numbers:
            buffer.append(sample(number, shape))
        numbers = numbers[-(capacity or 14) :]
        edit(buffer, numbers, shape)
        assert_has(buffer, numbers, shape)
        for number in (14, 15):
            buffer.append(sample(number, shape))
        buffer.mark_segment_end()
        numbers = [*numbers, 14, 15][-(capacity or 99) :]
        buffer.storage.settle()
        assert_has(buffer, numbers, shape)
    with ReplayBuffer.load_from(tmp_path / "a", backend=NumpyComputeBackend) as buffer:
        assert_has(buffer, numbers, shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", RULES)
def test_after_an_episode_has_ended_only_images_are_set(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    options: Any = {"columns": {"cam": RULES[kind]}, "cache_path": tmp_path / "a", "keep_episodes": True}
    numbers = list(range(8))
    with ReplayBuffer.create(space(shape), **options) as buffer:
        buffer.extend(samples(numbers, shape))
        if kind == "ffv1":
            for change in (lambda: buffer.set_at(3, sample(70, shape)), lambda: buffer.remove_at(3)):
                with pytest.raises(PermissionError, match="cannot be overwritten"):
                    change()
        else:
            buffer.set_at(3, sample(70, shape))
            buffer.remove_at(5)
            numbers[3] = 70
            del numbers[5]
        buffer.remove_at(0)
        assert_has(buffer, numbers[1:], shape)
    with ReplayBuffer.load_from(tmp_path / "a", backend=NumpyComputeBackend) as buffer:
        assert_has(buffer, numbers[1:], shape)
