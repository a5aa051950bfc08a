"""Which mode is meant, what fits it, and buffers that take the place of others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_envs import TallyEnv, as_rows, buffers_for, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env

SLOTS = 3


def batch(slots: int = SLOTS) -> Env:
    return vector("sync", slots)


def plain(env: Env, count: int = 1, **options: Any) -> list[ReplayBuffer]:
    return [ReplayBuffer.create(transition_space(env), **{"keep_episodes": False, **options}) for _ in range(count)]


def tracking(env: Env, count: int = 1, **options: Any) -> list[ReplayBuffer]:
    return plain(env, count, keep_episodes=True, **options)


def act(wrapper: Env, times: int = 1) -> Any:
    shape = (2,) if wrapper.batch_size is None else (wrapper.batch_size, 2)
    for _ in range(times):
        result = wrapper.step(np.zeros(shape, np.float32))
    return result


# -- modes --------------------------------------------------------------------------------------------------


def test_auto() -> None:
    one, single, several = TallyEnv(), batch(1), batch()
    for env, buffers, mode in [
        (one, plain(one), "shared"),
        (one, tracking(one), "shared"),
        (single, tracking(single), "shared"),
        (several, plain(several), "shared"),
        (several, tracking(several, SLOTS), "per_env"),
        (several, plain(several, SLOTS), "per_env"),
        (several, plain(several, lanes=SLOTS), "interleaved"),
    ]:
        assert ReplayBufferCollectionWrapper(env, buffers).replay_mode == mode
    wrapper = ReplayBufferCollectionWrapper(one, buffers := plain(one)[0])
    assert wrapper.replay_buffers == [buffers]


@pytest.mark.parametrize("slots", [None, SLOTS])
def test_a_builder_that_is_none(slots: int | None) -> None:
    env = TallyEnv() if slots is None else batch(slots)
    with pytest.raises(TypeError, match="transition_builder is 'x', wanted a function or a DataTransformation"):
        ReplayBufferCollectionWrapper(env, plain(env), transition_builder="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["shared", "per_env", "interleaved"])
def test_episodes_end_where_recording_does(mode: str) -> None:
    env = TallyEnv() if mode == "shared" else batch()
    with ReplayBufferCollectionWrapper(env, buffers_for(mode, env)) as wrapper:
        wrapper.reset()
        buffers = wrapper.replay_buffers
        while not any(buffer.has_open_segment for buffer in buffers):
            wrapper.reset()
            act(wrapper)
    for buffer in buffers:
        episodes = buffer.get_segments() or []
        assert sum(len(range(*bounds, buffer.lanes)) for bounds in episodes) == len(buffer)
    wrapper.close()


def test_closing_goes_on_after_a_buffer_that_fails() -> None:
    env = batch()
    wrapper = ReplayBufferCollectionWrapper(env, buffers := tracking(env, SLOTS))
    wrapper.reset()
    act(wrapper)
    assert all(buffer.has_open_segment for buffer in buffers[1:])
    buffers[1]._writer._fail(OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="a flush has failed"):
        wrapper.close()
    assert [buffer.has_open_segment for buffer in buffers] == [False, True, False]


def test_closing_after_a_buffer_was_closed() -> None:
    env = batch()
    wrapper = ReplayBufferCollectionWrapper(env, buffers := tracking(env, SLOTS))
    wrapper.reset()
    act(wrapper)
    buffers[0].close()
    assert buffers[0].is_closed
    wrapper.close()
    assert not any(buffer.has_open_segment for buffer in buffers[1:])


@pytest.mark.parametrize(
    ("mode", "slots", "make", "text"),
    [
        ("auto", SLOTS, lambda env: tracking(env), "segment-aware"),
        ("auto", SLOTS, lambda env: plain(env, 2), "Cannot auto-resolve"),
        ("auto", None, lambda env: plain(env, 2), "Cannot auto-resolve"),
        ("auto", SLOTS, lambda env: [], "Cannot auto-resolve"),
        ("auto", SLOTS, lambda env: plain(env, lanes=2), "a lane for each of 3 slots, it has 2"),
        ("auto", None, lambda env: plain(env, lanes=2), "has 2 lanes"),
        ("shared", SLOTS, lambda env: plain(env, 2), "exactly 1 replay buffer"),
        ("shared", SLOTS, lambda env: tracking(env), "segment-unaware"),
        ("per_env", None, lambda env: plain(env), r"batch_size > 1"),
        ("per_env", 1, lambda env: plain(env), r"batch_size > 1"),
        ("per_env", SLOTS, lambda env: plain(env, 2), "exactly one replay buffer per"),
        ("per_env", SLOTS, lambda env: plain(env, SLOTS, lanes=3), "has 3 lanes"),
        ("per_env", SLOTS, lambda env: plain(env) * SLOTS, "one buffer twice"),
        ("interleaved", None, lambda env: plain(env), r"batch_size > 1"),
        ("interleaved", SLOTS, lambda env: plain(env), "a lane for each of 3 slots, it has 1"),
        ("interleaved", SLOTS, lambda env: plain(env, 2, lanes=3), "exactly 1 replay buffer"),
        ("mixed", SLOTS, lambda env: plain(env), "it must be one of auto, shared, per_env, interleaved"),
    ],
)
def test_what_does_not_fit_is_refused(mode: Any, slots: int | None, make: Any, text: str) -> None:
    env = TallyEnv() if slots is None else batch(slots)
    with pytest.raises(ValueError, match=text):
        ReplayBufferCollectionWrapper(env, make(env), mode)


def test_shortcuts() -> None:
    env = batch()
    assert ReplayBufferCollectionWrapper.shared(env, plain(env)[0]).replay_mode == "shared"
    per_env = ReplayBufferCollectionWrapper.per_env(env, plain(env, SLOTS), validate_transition=True)
    assert per_env.replay_mode == "per_env"
    assert ReplayBufferCollectionWrapper.interleaved(env, plain(env, lanes=3)[0]).replay_mode == "interleaved"


def test_other_things_that_are_no_buffers(tmp_path: Path) -> None:
    env = TallyEnv()
    with pytest.raises(TypeError, match=r"replay_buffers\[1\] is str"):
        ReplayBufferCollectionWrapper(env, [*plain(env), "buffer"])  # type: ignore[list-item]
    plain(env, cache_path=tmp_path / "buffer")[0].close()
    reader = ReplayBuffer.load_from(tmp_path / "buffer", backend=NumpyComputeBackend)
    with reader, pytest.raises(PermissionError, match=r"buffer\) is read-only"):
        ReplayBufferCollectionWrapper(env, reader)
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with pytest.raises(ValueError, match="the buffer is on pytorch, the environment on numpy"):
        ReplayBufferCollectionWrapper(env, plain(TallyEnv(backend=PyTorchComputeBackend)))


# -- what is legal when -------------------------------------------------------------------------------------


def test_steps_before_a_reset_are_refused() -> None:
    env = TallyEnv()
    wrapper = ReplayBufferCollectionWrapper(env, plain(env))
    with pytest.raises(RuntimeError, match="Cannot call step"):
        act(wrapper)
    assert env.total == 0
    several = batch()
    wrapper = ReplayBufferCollectionWrapper(several, plain(several))
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step_async(np.zeros((SLOTS, 2), np.float32))
    with pytest.raises(RuntimeError, match=r"reset of slots .1. alone"):
        wrapper.reset(mask=np.array([False, True, False]))
    with pytest.raises(ValueError, match="one boolean per slot"):
        wrapper.reset(mask=np.array([True]))
    wrapper.reset(mask=np.ones(SLOTS, bool))
    act(wrapper)


def test_the_asynchronous_verbs_are_those_of_the_environment() -> None:
    env = TallyEnv()
    wrapper = ReplayBufferCollectionWrapper(env, plain(env))
    wrapper.reset()
    for call in (
        wrapper.reset_async,
        wrapper.reset_wait,
        lambda: wrapper.step_async(np.zeros(2, np.float32)),
        wrapper.step_wait,
    ):
        with pytest.raises(AttributeError, match=r"TallyEnv.* has no"):
            call()
    act(wrapper)
    several = batch()
    wrapper = ReplayBufferCollectionWrapper(several, plain(several))
    with pytest.raises(RuntimeError, match="reset_wait without reset_async"):
        wrapper.reset_wait()
    wrapper.reset()
    with pytest.raises(RuntimeError, match="step_wait without step_async"):
        wrapper.step_wait()
    wrapper.step_async(np.zeros((SLOTS, 2), np.float32))
    with pytest.raises(RuntimeError, match="under way"):
        wrapper.set_replay_buffers(plain(several))
    wrapper.step_wait()
    assert len(wrapper.replay_buffers[0]) == SLOTS


# -- other buffers ------------------------------------------------------------------------------------------


def test_swapping_between_episodes() -> None:
    env = TallyEnv(0)
    old, new = tracking(env), tracking(env)
    wrapper = ReplayBufferCollectionWrapper(env, old)
    wrapper.reset()
    act(wrapper, 3)  # that was the last step of the episode
    assert wrapper.set_replay_buffers(new) == old
    assert wrapper.buffer_swap(old) == new
    assert wrapper.set_replay_buffers(new[0]) == old
    wrapper.reset()
    act(wrapper, 2)
    assert (len(old[0]), len(new[0])) == (3, 2)


@pytest.mark.parametrize("mode", ["single", "per_env", "interleaved"])
def test_swapping_in_the_middle(mode: str, tmp_path: Path) -> None:
    env: Env = TallyEnv(4) if mode == "single" else batch()

    def fresh() -> list[ReplayBuffer]:
        if mode == "interleaved":
            return plain(env, lanes=SLOTS)
        return tracking(env, SLOTS if mode == "per_env" else 1)

    def begun() -> tuple[ReplayBufferCollectionWrapper, list[ReplayBuffer]]:
        buffers = fresh()
        wrapper = ReplayBufferCollectionWrapper(env, buffers)
        wrapper.reset()
        act(wrapper)
        return wrapper, buffers

    wrapper, old = begun()
    with pytest.raises(RuntimeError, match="open segments"):
        wrapper.set_replay_buffers(fresh())
    assert wrapper.replay_buffers == old
    wrapper.set_replay_buffers(fresh(), allow_mid_episode=True)
    assert any(buffer.has_open_segment for buffer in old)
    wrapper, old = begun()
    wrapper.set_replay_buffers(fresh(), finalize_old_segments=True)
    assert not any(buffer.has_open_segment for buffer in old)
    wrapper, old = begun()
    with pytest.raises(ValueError, match="dump_path must be provided"):
        wrapper.set_replay_buffers(fresh(), dump_old=True)
    assert wrapper.replay_buffers == old
    wrapper.dump_path = tmp_path / "dump"
    wrapper.set_replay_buffers(fresh(), dump_old=True)
    assert not any(buffer.has_open_segment for buffer in old)
    folders = [tmp_path / "dump"] if len(old) == 1 else [tmp_path / "dump" / f"env_{slot}" for slot in range(SLOTS)]
    for folder, buffer in zip(folders, old, strict=True):
        with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend) as copy:
            assert as_rows(copy) == as_rows(buffer)
            assert copy.get_segments() == buffer.get_segments() != []


def test_old_buffers_are_dumped_also_when_no_segment_is_open(tmp_path: Path) -> None:
    env = TallyEnv(0)
    wrapper = ReplayBufferCollectionWrapper(env, tracking(env), dump_path=tmp_path / "dump")
    wrapper.reset()
    act(wrapper, 3)
    wrapper.set_replay_buffers(tracking(env), dump_old=True)
    assert ReplayBuffer.get_length_from_path(tmp_path / "dump") == 3


def test_a_split_episode_is_not_joined_to_what_a_buffer_had_open() -> None:
    env = batch()
    first, second = (buffers_for("interleaved", env) for _ in range(2))
    wrapper = ReplayBufferCollectionWrapper(env, first)
    wrapper.reset()
    act(wrapper)
    wrapper.set_replay_buffers(second, allow_mid_episode=True)
    act(wrapper)
    wrapper.set_replay_buffers(first, allow_mid_episode=True)
    act(wrapper)
    segments = first.get_segments()
    assert segments is not None
    assert (0, 1) in segments
    assert (1, 2) in segments
    assert (2, 3) in segments
    assert first.get_at(...)["step"].tolist()[:3] == [0, 0, 0]
    assert all(step > 0 for step in second.get_at(...)["step"].tolist()[1:])


def test_episode_numbers_are_not_used_twice_after_a_swap() -> None:
    env = TallyEnv(0)
    used, fresh = (buffers_for("shared", env) for _ in range(2))
    wrapper = ReplayBufferCollectionWrapper(env, used, first_episode_id=40)
    wrapper.reset()
    act(wrapper, 3)
    wrapper = ReplayBufferCollectionWrapper(env, fresh)
    wrapper.reset()
    act(wrapper, 5)
    wrapper.set_replay_buffers(used)
    wrapper.reset()
    act(wrapper)
    assert used.get_at(...)["episode_id"].tolist() == [40, 40, 40, 41]


@pytest.mark.parametrize("how", ["allow_mid_episode", "finalize_old_segments"])
def test_the_rest_of_a_split_episode_has_no_number_that_the_other_buffer_knows(how: str) -> None:
    env = TallyEnv(4)
    used, fresh = (buffers_for("shared", env) for _ in range(2))
    wrapper = ReplayBufferCollectionWrapper(env, used)
    wrapper.reset()
    act(wrapper)
    wrapper.reset()
    wrapper = ReplayBufferCollectionWrapper(TallyEnv(4), fresh)  # whose first episode has two steps
    wrapper.reset()
    act(wrapper)
    wrapper.set_replay_buffers(used, **{how: True})
    act(wrapper)
    wrapper.reset()
    act(wrapper)
    assert used.get_at(...)["episode_id"].tolist() == [0, 1, 2]
    assert used.get_at(...)["step"].tolist() == [0, 1, 0]


def test_a_closed_buffer_is_refused_before_anything_has_happened() -> None:
    env = TallyEnv()
    wrapper = ReplayBufferCollectionWrapper(env, buffers := plain(env))
    closed = plain(env)[0]
    closed.close()
    with pytest.raises(RuntimeError, match=r"replay_buffers\[0\] \(in memory\) is closed"):
        wrapper.set_replay_buffers(closed)
    assert wrapper.replay_buffers == buffers
    wrapper.reset()
    act(wrapper)
    assert len(buffers[0]) == 1


def test_copies_of_one_buffer_are_one_buffer_twice() -> None:
    env = batch(2)
    (buffer,) = tracking(env)
    with pytest.raises(ValueError, match="one buffer twice"):
        ReplayBufferCollectionWrapper(env, [buffer, copy.copy(buffer)])


def test_buffers_for_another_mode_want_it_said() -> None:
    wrapper = ReplayBufferCollectionWrapper(env := batch(), plain(env, lanes=SLOTS))
    text = "exactly 1 replay buffer, there are 3; the mode stays as it is unless replay_mode is given, such as 'auto'"
    with pytest.raises(ValueError, match=text):
        wrapper.set_replay_buffers(tracking(env, SLOTS))
    wrapper.set_replay_buffers(tracking(env, SLOTS), replay_mode="auto")
    assert wrapper.replay_mode == "per_env"


def test_another_space() -> None:
    env = TallyEnv(0)
    wrapper = ReplayBufferCollectionWrapper(env, plain(env))
    other = ReplayBuffer.create(transition_space(env, next_obs=False), keep_episodes=False)
    with pytest.raises(ValueError, match="different single_space"):
        wrapper.set_replay_buffers(other)
    wrapper.set_replay_buffers(other, require_same_space=False)
    wrapper.reset()
    act(wrapper)
    assert "next_obs" not in other.get_at(0)


def test_the_mode_after_a_swap() -> None:
    env = batch()
    wrapper = ReplayBufferCollectionWrapper(env, plain(env))
    with pytest.raises(ValueError, match="exactly 1 replay buffer"):
        wrapper.set_replay_buffers(plain(env, SLOTS))
    wrapper.set_replay_buffers(plain(env, SLOTS), replay_mode="auto")
    assert wrapper.replay_mode == "per_env"
    wrapper.set_replay_buffers(plain(env, lanes=SLOTS), replay_mode="auto")
    assert wrapper.replay_mode == "interleaved"
    with pytest.raises(ValueError, match="exactly one replay buffer per"):
        wrapper.set_replay_buffers(plain(env), replay_mode="per_env")
    assert wrapper.replay_mode == "interleaved"
