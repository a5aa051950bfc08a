"""Transitions of several steps: against a plain loop over lists, at every end that an episode can have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from hypothesis import given
from hypothesis import strategies as st
from transitions import Step, recorded, recorded_lanes

from unienv_data import (
    CombinedBatch,
    FrameStackedBatch,
    NStepBatch,
    PrioritizedSampler,
    ReplayBuffer,
    StackedObservationBatch,
    StepSampler,
    ToBackendOrDeviceBatch,
    WindowedBatch,
)
from unienv_data.batches import nstep_batch
from unienv_interface.backends import NumpyComputeBackend, get_backend_from_tensor
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
ENDS = st.sampled_from(["terminated", "truncated", "cut"])


def plain_loop(held: list[Step], place: int, n: int, gamma: float) -> tuple[int, float, int, bool, bool, float]:
    """First observation, return, last observation, how it ended, and the discount, step by step."""
    first, total, discount = held[place], 0.0, 1.0
    followers = [step for step in held[place:] if step.episode == first.episode]
    for step in followers[:n]:
        total += discount * step.reward
        discount *= gamma
        if step.terminated or step.truncated:
            break
    return first.obs, total, step.obs + 1, step.terminated, step.truncated, 0.0 if step.terminated else discount


def assert_is_as_the_loop_says(view: NStepBatch, held: list[Step], order: Any) -> None:
    batch, to_numpy = view.get_at(order), view.backend.to_numpy
    columns = [
        batch["obs"]["number"],
        batch["reward"],
        batch["next_obs"]["number"],
        batch["terminated"],
        batch["truncated"],
        batch["discount"],
    ]
    found = list(zip(*(to_numpy(column).tolist() for column in columns), strict=True))
    for place, row in zip(np.arange(len(held))[order].tolist(), found, strict=True):
        assert row == pytest.approx(plain_loop(held, place, view.n, view.gamma), rel=1e-5, abs=1e-6)
    assert to_numpy(batch["action"]).tolist() == (10 * to_numpy(columns[0])).tolist()


@given(
    episodes=st.lists(st.tuples(st.integers(1, 7), ENDS), max_size=8),
    open_length=st.integers(0, 4),
    capacity=st.none() | st.integers(5, 30),
    n=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    data=st.data(),
)
def test_any_episodes_in_any_ring(
    episodes: list[tuple[int, str]], open_length: int, capacity: int | None, n: int, gamma: float, data: st.DataObject
) -> None:
    if not episodes and not open_length:
        open_length = 1
    buffer, held = recorded(NUMPY, episodes, open_length, capacity)
    view = NStepBatch(buffer, n, gamma)
    assert len(view) == len(held)
    assert_is_as_the_loop_says(view, held, ...)
    order = data.draw(st.lists(st.integers(-len(held), len(held) - 1), min_size=1, max_size=10))
    assert_is_as_the_loop_says(view, held, order)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(held))] * 2)))
    if start < stop:  # a slice ends windows, too
        assert_is_as_the_loop_says(NStepBatch(buffer.get_slice(slice(start, stop)), n, gamma), held[start:stop], ...)
        sliced = view.get_slice(slice(start, stop)).get_at(...)
        np.testing.assert_array_equal(sliced["reward"], view.get_at(slice(start, stop))["reward"])


@pytest.mark.parametrize("capacity", [None, 24])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_lanes_are_followed_each_for_itself(n: int, capacity: int | None) -> None:
    buffer, held = recorded_lanes(NUMPY, 3, 13, capacity)
    assert_is_as_the_loop_says(NStepBatch(buffer, n, 0.9), held, ...)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_every_backend_and_combinations(backend: Any) -> None:
    one, first = recorded(backend, [(5, "truncated"), (4, "terminated")], 3, None)
    other, second = recorded(backend, [(6, "cut"), (7, "truncated")], 2, 10)
    held = [*first, *(Step(s.obs, ("other", s.episode), s.reward, s.terminated, s.truncated) for s in second)]
    view = NStepBatch(CombinedBatch([one, other]), 3, 0.9)
    assert_is_as_the_loop_says(view, held, [0, 21, 4, 3, 11, 12, 13])
    batch, metadata = view.get_at_with_metadata([1, 14])
    assert batch in view._batched_space(2)
    assert backend.to_numpy(metadata["batch_index"]).tolist() == [0, 1]
    single, single_metadata = view.get_at_with_metadata(4)
    assert single in view.single_space
    assert single_metadata in view.single_metadata_space
    assert float(single["discount"]) == pytest.approx(0.9)


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=str)
def test_nothing_goes_from_the_device_to_the_host(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator, which stands behind no array here: the results are those of the host."""
    buffer, held = recorded(backend, [(5, "truncated"), (1, "terminated"), (6, "cut"), (7, "terminated")], 3, 15)
    parts = [recorded(backend, [(4, end)], 0, None)[0].get_at(...) for end in ("truncated", "terminated", "cut")]
    several = ReplayBuffer.create(buffer.single_space, keep_episodes=True)  # episodes in one segment
    several.extend({key: _joined([part[key] for part in parts]) for key in parts[0]})
    on_host = [NStepBatch(one, 3, 0.5).get_at(...) for one in (buffer, several)]
    monkeypatch.setattr(nstep_batch, "_is_on_host", lambda backend, array: False)
    views = [NStepBatch(one, 3, 0.5) for one in (buffer, several)]
    with monkeypatch.context() as patch:
        for name in ("to_numpy", "to_host", "to_raw"):
            patch.setattr(type(backend), name, lambda self, data: pytest.fail("an array went to the host"))
        for view in views:
            view._to_numpy = view._to_host = backend.to_numpy
        found = [view._folded(*view.batch.read_windows(np.arange(len(view)), view._query)[:2]) for view in views]
    for one, other in zip(on_host, found, strict=True):
        for key in ("reward", "discount", "terminated", "truncated", "action"):
            assert one[key].dtype == other[key].dtype
            np.testing.assert_allclose(backend.to_numpy(one[key]), backend.to_numpy(other[key]), rtol=1e-5, atol=1e-6)
        assert backend.to_numpy(one["next_obs"]["number"] == other["next_obs"]["number"]).all()
    assert_is_as_the_loop_says(views[0], held, ...)


def test_a_truncation_or_termination_inside_a_segment_stops_too() -> None:
    """As of recordings whose segments are several episodes in one."""
    buffer, _ = recorded(NUMPY, [], 0, None)
    parts = [recorded(NUMPY, [(4, end)], 0, None)[0].get_at(...) for end in ("truncated", "terminated", "cut")]
    buffer.extend({key: _joined([part[key] for part in parts]) for key in parts[0]})
    batch = NStepBatch(buffer, 3, 0.5).get_at([1, 2, 3, 5, 6, 7, 9, 10, 11])
    assert batch["next_obs"]["number"].tolist() == [104] * 9
    assert batch["discount"].tolist() == [0.125, 0.25, 0.5, 0, 0, 0, 0.125, 0.25, 0.5]
    assert batch["truncated"].tolist() == [True] * 3 + [False] * 6
    assert batch["terminated"].tolist() == [False] * 3 + [True] * 3 + [False] * 3


def _joined(columns: list[Any]) -> Any:
    if isinstance(columns[0], dict):
        return {key: _joined([column[key] for column in columns]) for key in columns[0]}
    return get_backend_from_tensor(columns[0]).concat(columns)


def test_priorities_stay_with_the_samples_and_windows_go_over_it() -> None:
    buffer, held = recorded(NUMPY, [(30, "terminated"), (20, "truncated")], 0, 40)
    view = NStepBatch(buffer, 3, 0.9)
    sampler = StepSampler(view, 16, seed=0, sampler=PrioritizedSampler(seed=0))
    batch, metadata = sampler.sample_with_metadata()
    np.testing.assert_array_equal(batch["reward"], view.get_at(metadata["index"])["reward"])
    assert metadata["number"].tolist() == (metadata["index"] + 10).tolist()
    stacked = FrameStackedBatch(view, prefetch_horizon=1).get_at([1, 25])
    np.testing.assert_array_equal(stacked["reward"][:, 0], view.get_at([0, 24])["reward"])
    elsewhere = ToBackendOrDeviceBatch(view, backend=BACKENDS[1])
    assert float(elsewhere.get_at(3)["reward"]) == pytest.approx(plain_loop(held, 3, 3, 0.9)[1], rel=1e-5)


def test_one_column_is_read_without_the_others_where_it_may_be() -> None:
    buffer, held = recorded(NUMPY, [(6, "terminated")], 0, None)
    view = NStepBatch(buffer, 2, 1.0)
    assert view.get_column_at(("action",), [0, 1]).tolist() == [1000, 1010]
    assert view.get_column_at(("next_obs", "number"), [0, 5]).tolist() == [102, 106]
    assert view.get_column_at(("discount",), [0, 5]).tolist() == [1, 0]
    assert view.get_column(["reward"]).get_at(0) == pytest.approx(held[0].reward + held[1].reward, rel=1e-5)


def test_selections_and_windows_by_column_have_several_steps_too() -> None:
    buffer, _ = recorded(NUMPY, [(6, "terminated"), (4, "truncated")], 0, None)
    view = NStepBatch(buffer, 3, 0.9)
    whole = view.get_at(...)
    for columns in (["reward"], ["reward", "discount"], ["next_obs"], ["next_obs/number", "action"], ["terminated"]):
        selected = view.select(columns).get_at(...)
        windows = WindowedBatch(view, {column: [0] for column in columns}).get_at(...)
        for column in columns:
            keys = column.split("/")
            wanted, one, other = (_item(data, keys) for data in (whole, selected, windows))
            for key, value in wanted.items() if isinstance(wanted, dict) else [(None, wanted)]:
                np.testing.assert_array_equal(one if key is None else one[key], value)
                np.testing.assert_array_equal((other if key is None else other[key])[:, 0], value)


def _item(data: Any, keys: list[str]) -> Any:
    for key in keys:
        data = data[key]
    return data


def test_columns_of_other_names_and_shapes() -> None:
    """In the form of TorchRL: nested, and flags with an axis of one; whole numbers for rewards."""
    flag = BinarySpace(NUMPY, (1,))
    reward = BoxSpace(NUMPY, -5, 5, "int32", shape=(1,))
    number = BoxSpace(NUMPY, 0, 99, "int32", shape=())
    following = {"observation": number, "reward": reward, "terminated": flag, "done": flag}
    buffer = ReplayBuffer.create(DictSpace(NUMPY, {"observation": number, "next": following}), keep_episodes=True)
    ends = np.array([[False], [False], [True]])
    rows = {"observation": np.arange(1, 4, dtype=np.int32), "reward": np.full((3, 1), 2, np.int32)}
    buffer.extend({"observation": np.arange(3, dtype=np.int32), "next": {**rows, "terminated": ends, "done": ends}})
    names = {key: ("next", key) for key in ("reward", "terminated", "truncated", "done")}
    view = NStepBatch(buffer, 2, 0.5, next_obs=("next", "observation"), discount="gamma", **names)
    batch = view.get_at(...)
    assert batch in view._batched_space(3)
    assert batch["observation"].tolist() == [0, 1, 2]
    assert batch["next"]["observation"].tolist() == [2, 3, 3]
    assert batch["next"]["reward"].tolist() == [[3], [3], [2]]
    assert batch["next"]["gamma"].tolist() == [[0.25], [0], [0]]
    assert batch["next"]["done"].tolist() == [[False], [True], [True]]


def with_images(source: ReplayBuffer, *, in_one_segment: bool = False, **options: Any) -> ReplayBuffer:
    """The transitions of another buffer, with an image for each number."""
    backend, image = source.backend, BoxSpace(source.backend, 0, 255, "uint8", shape=(64, 64))
    spaces = {**source.single_space.spaces, "obs": {"image": image}, "next_obs": {"image": image}}
    buffer = ReplayBuffer.create(DictSpace(backend, spaces), keep_episodes=True, lanes=source.lanes, **options)

    def rows_of(index: Any) -> dict[str, Any]:
        rows = source.get_at(index)
        for key in ("obs", "next_obs"):
            numbers = backend.to_numpy(rows[key]["number"]) % 256
            images = np.ones((1, 64, 64), np.uint8) * numbers.astype(np.uint8)[:, None, None]
            rows[key] = {"image": backend.from_numpy(images)}
        return rows

    if source.lanes > 1:
        for first in range(0, len(source), source.lanes):
            rows = rows_of(np.arange(first, first + source.lanes))
            ended = backend.to_numpy(rows["terminated"] | rows["truncated"])
            buffer.extend_lanes(rows, ended)
        return buffer
    ends = [(0, len(source))] if in_one_segment else [*(source.get_segments() or []), (len(source) - 2, len(source))]
    for start, stop in ends:
        buffer.extend(rows_of(np.arange(start, stop)))
    return buffer


@pytest.mark.parametrize("kind", ["lanes", "growing", "ring", "in one segment"])
@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
def test_of_images_only_those_that_are_given_are_read(backend: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "lanes":
        source, _ = recorded_lanes(backend, 3, 13, None)
    else:
        source, _ = recorded(backend, [(5, "truncated"), (1, "terminated"), (6, "cut"), (7, "terminated")], 2, None)
    buffer = with_images(source, in_one_segment=kind == "in one segment", capacity=15 if kind == "ring" else None)
    batch = buffer.get_slice(slice(1, len(buffer)))
    stacks = StackedObservationBatch(buffer, 2, obs="obs/image", next_obs="next_obs/image")
    for view in (NStepBatch(buffer, 3, 0.9), NStepBatch(batch, 2, 0.5), NStepBatch(stacks, 3, 0.9)):
        assert view._by_column
        found, one = view.get_at(...), view.get_at(4)
        with monkeypatch.context() as patch:
            patch.setattr(view, "_by_column", False)
            for mine, other in ((found, view.get_at(...)), (one, view.get_at(4))):
                assert mine.keys() == other.keys()
                for key in mine:
                    left, right = (data[key]["image"] if "obs" in key else data[key] for data in (mine, other))
                    assert left.dtype == right.dtype
                    np.testing.assert_array_equal(backend.to_numpy(left), backend.to_numpy(right))
        assert found in view._batched_space(len(view))


def test_what_it_refuses() -> None:
    buffer, _ = recorded(NUMPY, [(6, "terminated")], 0, None)
    with pytest.raises(ValueError, match="n is 0, it must be at least 1"):
        NStepBatch(buffer, 0, 0.9)
    with pytest.raises(ValueError, match=r"gamma is 1.5, it must be from 0 to 1"):
        NStepBatch(buffer, 2, 1.5)
    with pytest.raises(KeyError, match="there is no field 'final_obs'"):
        NStepBatch(buffer, 2, 0.9, next_obs="final_obs")
    with pytest.raises(ValueError, match="'action': name the new one by discount="):
        NStepBatch(buffer, 2, 0.9, discount="action")
    with pytest.raises(ValueError, match=r"terminated: .*, wanted one flag for each sample"):
        NStepBatch(FrameStackedBatch(buffer, 1), 2, 0.9)
    with pytest.raises(TypeError, match="extend: NStepBatch is read-only: change the ReplayBuffer under it"):
        NStepBatch(buffer, 2, 0.9).extend(buffer.get_at(...))
    plain = ReplayBuffer.create(buffer.single_space, capacity=10, keep_episodes=False)
    with pytest.raises(ValueError, match=r"NStepBatch stays inside episodes.*keep_episodes=True.*lanes=N"):
        NStepBatch(plain, 2, 0.9)
    plain.extend(buffer.get_at(...))
    assert NStepBatch(plain, 1, 0.9).get_at(...)["discount"].tolist() == pytest.approx([0.9] * 5 + [0])
