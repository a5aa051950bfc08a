"""A batch divides into parts that share no episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer, SliceStackedBatch, split
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
SPACE = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, 0, 10_000, "int64", shape=())})


def recorded(lengths: list[int], **options: Any) -> ReplayBuffer:
    """Sample i of episode n is 100 n + i."""
    buffer = ReplayBuffer.create(SPACE, maintain_segment_metadata=True, **options)
    for number, length in enumerate(lengths):
        buffer.extend({"x": 100 * number + np.arange(length)})
        buffer.mark_segment_end()
    return buffer


def episodes_in(part: Any) -> set[int]:
    return set((part.get_at(...)["x"] // 100).tolist())


@pytest.mark.parametrize("seed", range(5))
def test_parts_are_whole_episodes_and_share_none(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 9, 40).tolist()
    with recorded(lengths) as buffer:
        parts = split(buffer, {"train": 0.75, "val": 0.2, "test": 0.05}, seed=seed)
        assert list(parts) == ["train", "val", "test"]
        inside = [episodes_in(part) for part in parts.values()]
        assert [len(found) for found in inside] == [30, 8, 2]
        assert set.union(*inside) == set(range(40))
        for part, found in zip(parts.values(), inside, strict=True):
            wanted = [100 * number + step for number in sorted(found) for step in range(lengths[number])]
            assert part.get_at(...)["x"].tolist() == wanted
            segments = part.get_segments()
            assert [stop - start for start, stop in segments] == [lengths[number] for number in sorted(found)]


def test_a_seed_gives_the_same_parts() -> None:
    with recorded([3] * 30) as buffer:
        one, two, other = (split(buffer, {"a": 0.5, "b": 0.5}, seed=seed)["a"] for seed in (1, 1, 2))
        assert episodes_in(one) == episodes_in(two) != episodes_in(other)


def test_windows_of_a_part_never_cross_an_episode() -> None:
    with recorded([4] * 20) as buffer:
        for part in split(buffer, {"a": 0.5, "b": 0.5}).values():
            windows = SliceStackedBatch(part, np.arange(-2, 3)).get_at(...)["x"]
            assert (windows // 100 == windows[:, 2:3] // 100).all()


def test_episodes_of_lanes_stay_whole() -> None:
    with ReplayBuffer.create(SPACE, maintain_segment_metadata=True, lanes=3) as buffer:
        for step in range(20):
            ended = np.array([(step + 2 * lane) % 5 == 4 for lane in range(3)])
            episode = np.array([(step + 2 * lane) // 5 for lane in range(3)])
            buffer.extend_lanes({"x": 1000 * np.arange(1, 4) + 100 * episode + step}, ended)
        whole = {tuple(buffer.get_at(np.arange(a, b, 3))["x"].tolist()) for a, b in buffer.get_segments() or []}
        closed, samples = set(), 0
        for part in split(buffer, {"a": 0.6, "b": 0.4}).values():
            samples += len(part)
            closed |= {tuple(part.get_at(slice(*ends))["x"].tolist()) for ends in part.get_segments() or []}
            data, metadata = SliceStackedBatch(part, np.arange(-1, 2)).get_at_with_metadata(...)
            assert (data["x"] // 100 == data["x"][:, 1:2] // 100).all()
            valid = metadata["slice_valid_mask"]
            inside = np.diff(data["x"], axis=1) == 1
            np.testing.assert_array_equal(valid[:, [0, 2]], inside)
            ends = part.episodes_of(np.arange(len(part)))
            np.testing.assert_array_equal(valid[:, 2], np.arange(len(part)) + 1 < ends.stop)
        assert closed == whole
        assert samples == len(buffer)


def test_an_episode_that_was_not_closed_is_in_a_part() -> None:
    with recorded([4] * 3) as buffer:
        buffer.extend({"x": 300 + np.arange(2)})
        parts = split(buffer, {"a": 0.5, "b": 0.5})
        assert sum(len(part) for part in parts.values()) == 14


def test_shares_that_leave_episodes_over() -> None:
    with recorded([2] * 10) as buffer:
        assert [len(part) for part in split(buffer, {"a": 0.5, "b": 0.2}).values()] == [10, 4]
        assert [len(part) for part in split(buffer, {"a": 0.97, "b": 0.03}).values()] == [18, 2]


def test_samples_can_be_divided_too() -> None:
    with ReplayBuffer.create(SPACE, capacity=50, keep_episodes=False) as buffer:
        buffer.extend({"x": np.arange(50)})
        parts = split(buffer, {"a": 0.8, "b": 0.2}, by="sample")
        found = [part.get_at(...)["x"].tolist() for part in parts.values()]
        assert [len(values) for values in found] == [40, 10]
        assert sorted(found[0] + found[1]) == list(range(50))
        with pytest.raises(ValueError, match="does not know its episodes: record with maintain_segment_metadata"):
            split(buffer, {"a": 0.8})


@pytest.mark.parametrize(
    ("parts", "options", "why"),
    [
        ({}, {}, "wanted positive shares that add up to 1 at most"),
        ({"a": 0.9, "b": 0.2}, {}, "wanted positive shares"),
        ({"a": 0.9, "b": 0.0}, {}, "wanted positive shares"),
        ({"a": 0.5, "b": 0.3, "c": 0.2}, {}, "the batch has 2 episodes for 3 parts, each part needs at least one"),
        ({"a": 0.5}, {"by": "task"}, "by is 'task', it must be 'episode' or 'sample'"),
    ],
)
def test_what_cannot_be_divided(parts: Any, options: Any, why: str) -> None:
    with recorded([3, 3]) as buffer, pytest.raises(ValueError, match=why):
        split(buffer, parts, **options)


def test_parts_without_names() -> None:
    parts: Any = [0.8, 0.2]
    with recorded([3, 3]) as buffer, pytest.raises(TypeError, match=r"parts are \[0.8, 0.2\], wanted a share by name"):
        split(buffer, parts)
