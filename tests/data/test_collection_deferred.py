"""Steps that are yet to be written: nobody can tell, whatever he looks at and whenever."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deferred_play import MODES, Recording, contents
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_envs import Log, as_rows, buffers_for, check_recording, vector
from test_collection_recording import drive

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, StepSampler
from unienv_data.batches import CombinedBatch, FrameStackedBatch
from unienv_data.replay_buffer import _deferred, _recording
from unienv_data.replay_buffer._deferred import AwaitingBuffer
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

SLOTS = 3


@pytest.fixture(params=[0, 10], ids=["always", "unless looked at often"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(_recording, "_FEW_STEPS", request.param)
    return request.param


# -- against what the caller saw, and against buffers that are written as steps come --------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_all_is_recorded_as_it_was_seen(mode: str, kind: str, few: int) -> None:
    env = vector(kind, SLOTS)
    wrapper = ReplayBufferCollectionWrapper(env, buffers_for(mode, env, infos=False, capacity=3000), mode)  # type: ignore[arg-type]
    with wrapper:
        log = drive(wrapper, 200, is_async=kind == "async")
        assert few or wrapper._recorder._block.count == 200, "some steps were not deferred"
        check_recording(mode, wrapper.replay_buffers, log)


OPERATIONS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 90)),
    st.tuples(st.just("reset"), st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS)),
    st.tuples(st.just("look"), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("clear"), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("remove"), st.integers(0, SLOTS - 1)),
)


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    capacity=st.sampled_from([6, 12, 21, 60, 1500, None]),
    few=st.sampled_from([0, 10]),
    operations=st.lists(OPERATIONS, min_size=1, max_size=8),
)
def test_buffers_are_the_same_as_if_every_step_was_written_at_once(
    mode: str, capacity: int | None, few: int, operations: list[tuple[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_recording, "_FEW_STEPS", few)
        ours, plain = (
            Recording(mode, SLOTS, capacity=capacity),
            Recording(mode, SLOTS, capacity=capacity, is_direct=True),
        )
        for name, value in operations:
            for recording in (ours, plain):
                _operate(recording, name, value)
            if name == "look":
                place = value % len(ours.buffers)
                assert contents(ours.buffers[place]) == contents(plain.buffers[place])
        assert not plain.is_awaiting
        assert list(map(contents, ours.buffers)) == list(map(contents, plain.buffers))


def _operate(recording: Recording, name: str, value: Any) -> None:
    if name == "step":
        recording.step(value)
    elif name == "reset":
        recording.reset(np.array(value))
    elif name in ("clear", "remove"):
        buffer = recording.buffers[value % len(recording.buffers)]
        if name == "clear":
            buffer.clear()
        elif len(buffer) >= buffer.lanes:
            buffer.remove_at(range(buffer.lanes))


# -- every way to look ---------------------------------------------------------------------------------------

LOOKS: dict[str, Callable[[ReplayBuffer, Path], Any]] = {
    "len": lambda buffer, _: len(buffer),
    "count": lambda buffer, _: buffer.count,
    "item": lambda buffer, _: buffer[-1]["obs"].tolist(),
    "all": lambda buffer, _: buffer.get_at(...)["obs"].tolist(),
    "flattened": lambda buffer, _: buffer.get_flattened_at(-1).tolist(),
    "column": lambda buffer, _: buffer.get_column_at(("obs",), -1).tolist(),
    "stats": lambda buffer, _: buffer.stats(),
    "segments": lambda buffer, _: buffer.get_segments(),
    "segment of": lambda buffer, _: buffer.segment_of(0),
    "open": lambda buffer, _: buffer.has_open_segment,
    "numbers": lambda buffer, _: buffer.sample_numbers,
    "episodes": lambda buffer, _: str(buffer.episodes_of(np.array([0]))),
    "iteration": lambda buffer, _: [row["obs"].tolist() for row in buffer],
    "storage": lambda buffer, _: buffer.storage.get(0)["obs"].tolist(),
    "verify": lambda buffer, _: (buffer.verify(), len(buffer)),
    "pickle": lambda buffer, _: contents(pickle.loads(pickle.dumps(buffer))),
    "copy": lambda buffer, _: contents(copy.copy(buffer)),
    "deep copy": lambda buffer, _: contents(copy.deepcopy(buffer)),
    "dumps": lambda buffer, path: _dumped(buffer, path),
    "type": lambda buffer, _: (buffer.__class__.__name__, len(buffer)),
    "repr": lambda buffer, _: repr(buffer),
}


def _dumped(buffer: ReplayBuffer, path: Path) -> Any:
    buffer.mark_segment_end()
    buffer.dumps(path)
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as found:
        return found.get_at(...)["obs"].tolist(), found.get_segments()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("look", LOOKS)
def test_whatever_is_looked_at_first(look: str, mode: str, tmp_path: Path) -> None:
    ours, plain = Recording(mode, SLOTS), Recording(mode, SLOTS, is_direct=True)
    for recording in (ours, plain):
        recording.step(13)
    assert type(ours.buffers[0]) is AwaitingBuffer
    found = LOOKS[look](ours.buffers[0], tmp_path / "ours")
    plain.buffers[0].__class__ = ReplayBuffer
    assert found == LOOKS[look](plain.buffers[0], tmp_path / "plain")


@pytest.mark.parametrize("name", [name for name in dir(ReplayBuffer) if not name.startswith("__")])
def test_every_name_of_a_buffer_is_a_look(name: str) -> None:
    recording = Recording("shared", SLOTS)
    recording.step(5)
    buffer = recording.buffers[0]
    assert type(buffer) is AwaitingBuffer
    getattr(buffer, name)
    assert type(buffer) is ReplayBuffer
    assert buffer._counters.head == 5 * SLOTS


def test_what_was_made_of_a_buffer_before_sees_it_as_it_is() -> None:
    recording = Recording("per_env", SLOTS)
    recording.step(20)
    view = FrameStackedBatch(recording.buffers[0], 2)
    combined = CombinedBatch(recording.buffers)
    sampler = StepSampler(recording.buffers[1], batch_size=256, seed=0)
    recording.step(15)
    assert recording.is_awaiting
    assert len(view) == 35
    assert len(combined) == 35 * SLOTS
    assert sampler.sample()["obs"].shape == (256, 3)
    assert sampler.sample()["step"].max() >= 0


def test_a_buffer_is_written_to_by_hand_in_between() -> None:
    recording = Recording("shared", 2)
    buffer = recording.buffers[0]
    recording.step(3)
    row = buffer[0]
    row["obs"][:] = 99.0
    recording.step(2)
    buffer.extend({key: np.stack([value, value]) for key, value in row.items()})
    recording.step(2)
    found = buffer.get_at(...)["obs"][:, 0].tolist()
    assert found == [0, 1] * 5 + [99, 99] + [0, 1] * 2


# -- when steps are written as they come ---------------------------------------------------------------------


def test_a_buffer_that_is_looked_at_after_every_step_is_written_at_once_for_a_while() -> None:
    recording = Recording("shared", 2)
    buffer = recording.buffers[0]
    for steps in range(1, 6):
        recording.step()
        assert len(buffer) == 2 * steps
    recording.step(100)
    assert not recording.is_awaiting
    recording.step(50)
    assert recording.is_awaiting
    assert len(buffer) == 2 * 155


@pytest.mark.parametrize("is_early", [True, False], ids=["before", "meanwhile"])
def test_a_copy_of_a_buffer_has_every_step_in_order(is_early: bool) -> None:
    recording = Recording("shared", 2)
    (buffer,) = recording.buffers
    if is_early:
        other = copy.copy(buffer)
    recording.step(12)
    if not is_early:
        other = copy.copy(buffer)
    recording.step(20)
    assert len(other) == 2 * 32
    other.extend({key: value[None] for key, value in buffer[0].items()})
    recording.step(5)
    assert len(other) == len(buffer) == 2 * 37 + 1
    assert as_rows(other) == as_rows(buffer)
    assert as_rows(buffer)[2 * 32] == as_rows(buffer)[0]


def test_a_copy_that_is_made_just_when_steps_are_about_to_be_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recording, "_FEW_STEPS", 0)
    recording = Recording("interleaved", 2)
    (buffer,) = recording.buffers
    copies: list[ReplayBuffer] = []
    original = _recording._DeferringRecorder._await_steps

    def after_a_copy(self: Any, block: Any) -> None:
        if not copies:
            copies.append(copy.copy(buffer))  # as another thread may
        original(self, block)

    monkeypatch.setattr(_recording._DeferringRecorder, "_await_steps", after_a_copy)
    for steps in range(1, 10):
        recording.step()
        assert len(copies[0]) == 2 * steps
    assert as_rows(copies[0]) == as_rows(buffer)


def test_lanes_of_a_buffer_that_was_copied() -> None:
    recording = Recording("interleaved", 2)
    (buffer,) = recording.buffers
    other = copy.copy(buffer)
    recording.step(1)
    other.mark_segment_end()
    recording.step(1)
    recording.reset()
    assert buffer.get_segments() == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_buffers_that_are_written_as_steps_come(tmp_path: Path) -> None:
    """On disk, shared between processes, of another storage, too small, or of rows that are large."""
    env = vector("sync", 2)
    options: list[dict[str, Any]] = [
        {"capacity": 100, "cache_path": tmp_path / "disk"},
        {"capacity": 100, "multiprocessing": True},
        {"capacity": 100, "storage_cls": ListStorage},
        {"capacity": 6},
    ]
    for chosen in options:
        storage_cls = chosen.pop("storage_cls", None)
        space = buffers_for("shared", env, infos=False).single_space
        with ReplayBuffer.create(storage_cls, space, **chosen) as buffer:
            wrapper = ReplayBufferCollectionWrapper(env, buffer)
            wrapper.reset()
            for _ in range(3):
                wrapper.step(np.zeros((2, 2), np.float32))
            assert type(buffer) is ReplayBuffer
            assert len(buffer) == 6


def test_a_buffer_whose_counters_alone_are_shared_is_written_as_steps_come() -> None:
    env = vector("sync", 2)
    storage = PackedStorage.create(buffers_for("shared", env, infos=False).single_space, capacity=100)
    with ReplayBuffer(storage, "storage", multiprocessing=True) as buffer:
        assert _deferred.block_length([buffer], 2) == 1


def test_large_rows_are_not_staged() -> None:
    space = BoxSpace(NumpyComputeBackend, 0.0, 1.0, "float32", shape=(20_000,))
    buffer = ReplayBuffer.create(DictSpace(NumpyComputeBackend, {"obs": space}), capacity=100)
    assert _deferred.block_length([buffer], 2) == 1


def test_buffers_of_different_spaces() -> None:
    env = vector("sync", 2)
    first, second = buffers_for("per_env", env, infos=False, capacity=100)
    keys = dict(second.single_space.spaces)
    del keys["context"]
    other = ReplayBuffer.create(DictSpace(NumpyComputeBackend, keys), capacity=100, maintain_segment_metadata=True)
    wrapper, log = ReplayBufferCollectionWrapper(env, [first, other]), Log(env)
    log.reset(wrapper.reset())
    action = np.ones((2, 2), np.float32)
    log.step(action, wrapper.step(action))
    assert first[0]["context"] == log.rows_of(0)[0]["context"]
    assert other[0]["obs"].tolist() == log.rows_of(1)[0]["obs"]


# -- what a buffer refuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_buffer_refuses_the_step_itself(mode: str) -> None:
    recording = Recording(mode, 2)
    recording.step(3)
    recording.buffers[-1].close()
    with pytest.raises(RuntimeError, match="the buffer is closed"):
        recording.step()
    assert recording.returned == 3


def test_an_open_segment_refuses_the_step_itself() -> None:
    recording = Recording("shared", 2)
    buffer = recording.buffers[0]
    recording.step(12)
    buffer.append(buffer[0])
    with pytest.raises(RuntimeError, match="while a segment of append is open"):
        recording.step()
    buffer.mark_segment_end()
    recording.reset()
    recording.step(11)
    assert len(buffer) == 2 * 23 + 1


def test_a_step_of_another_form_is_an_error() -> None:
    block = _deferred.StepBlock([np.zeros((2, 3), np.float32)], 4)
    block.add([np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))], ())
    (leaf,), ended = block.between(0, 1)
    assert leaf.tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert ended == []
    with pytest.raises(ValueError, match="its form has changed"):
        block.add([np.zeros((2, 3), np.float64)], ())
    assert block.count == 1


# -- who keeps what alive ------------------------------------------------------------------------------------


def test_steps_outlive_the_environment_and_nothing_else_does() -> None:
    recording = Recording("per_env", 2)
    recording.step(7)
    first, second = recording.buffers
    gone = weakref.ref(second)
    gc.disable()
    try:
        recording.buffers.clear()
        del recording, second
        assert gone() is None, "a buffer that awaits steps is in a cycle"
    finally:
        gc.enable()
    assert type(first) is AwaitingBuffer
    assert len(first) == 7


def test_a_copy_of_the_wrapper_records_into_copies() -> None:
    recording = Recording("interleaved", 2)
    recording.step(9)
    other = copy.deepcopy(recording)
    recording.step(11)
    other.step(30)
    assert len(recording.buffers[0]) == 2 * 20
    assert len(other.buffers[0]) == 2 * 39
