"""Where episodes are not kept: which buffers keep them, and who says that windows will mix them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from buffers import number_space, numbers
from recording_envs import TallyEnv, vector

from unienv_data import (
    CombinedBatch,
    FrameStackedBatch,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    SliceStackedBatch,
    UnknownEpisodesWarning,
    WindowedBatch,
    seconds,
    transition_space,
)
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.packed import PackedStorage
from unienv_interface.space import DictSpace


@pytest.mark.parametrize(
    ("given", "options", "keeps"),
    [
        ((), {}, True),
        ((), {"keep_episodes": True}, True),
        ((), {"keep_episodes": False}, False),
        ((), {"keep_episodes": False, "lanes": 2}, True),
        ((PackedStorage,), {}, False),
        (("packed",), {}, False),
        ((None,), {}, False),
        ((PackedStorage,), {"keep_episodes": True}, True),
        ((PackedStorage,), {"maintain_segment_metadata": True}, True),
    ],
)
def test_which_buffers_keep_episodes(given: tuple[Any, ...], options: dict[str, Any], keeps: bool) -> None:
    with ReplayBuffer.create(*given, number_space(), **options) as buffer:
        assert buffer.maintain_segment_metadata == keeps
        assert (buffer.get_segments() is not None) == keeps


def stacks(buffer: Any, **options: Any) -> list[SliceStackedBatch]:
    return [SliceStackedBatch(buffer, [-1, 0], **options), FrameStackedBatch(buffer, 1, **options)]


def unaware() -> ReplayBuffer:
    buffer = ReplayBuffer.create(PackedStorage, number_space())
    buffer.extend(numbers(range(3)))
    buffer.extend(numbers(range(3, 6)))
    return buffer


def test_windows_of_unknown_episodes_warn_at_the_line_that_makes_them() -> None:
    buffer = unaware()
    aware = ReplayBuffer.create(number_space())
    for batch in (buffer, buffer.get_slice([0, 1, 5]), buffer.get_column(["number"]), CombinedBatch([buffer, aware])):
        kinds: list[tuple[Any, Any]] = [(SliceStackedBatch, {"fixed_offset": [-1, 0]}), (FrameStackedBatch, {})]
        if isinstance(batch.single_space, DictSpace):
            kinds.append((WindowedBatch, {"windows": {"number": [-1, 0]}}))
        for kind, options in kinds:
            with pytest.warns(UnknownEpisodesWarning, match=rf'{kind.__name__}\(\.\.\., episodes="ignore"\)') as seen:
                stack = kind(batch, **options)
            assert [warning.filename for warning in seen] == [__file__]
            with warnings.catch_warnings():  # once, and not at every read
                warnings.simplefilter("error")
                stack.get_at_with_metadata([0, 1])


def test_windows_do_not_warn_where_it_is_known_or_meant() -> None:
    buffer, aware = unaware(), ReplayBuffer.create(number_space())
    for _ in range(2):
        aware.extend(numbers(range(3)))
    mask = SliceStackedBatch.get_valid_mask_function_with_episodeid_key("number")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stack in (*stacks(buffer, episodes="ignore"), *stacks(aware, episodes="ignore")):
            metadata = stack.get_at_with_metadata([0, 3])[1]
            assert metadata["slice_valid_mask"].tolist() == [[False, True], [True, True]]
        for stack in (*stacks(aware), *stacks(CombinedBatch([aware, aware])), *stacks(aware.get_slice([3, 4, 5, 0]))):
            assert stack.get_at_with_metadata(3)[1]["slice_valid_mask"].tolist() == [False, True]
        for stack in (*stacks(buffer, get_valid_mask_function=mask), *stacks(ReplayBuffer.create(number_space()))):
            assert stack.fixed_offset.tolist() == [-1, 0]
        windows = WindowedBatch(aware, {"number": [-1, 0]}).get_at_with_metadata([0, 3])[1]["slice_valid_mask"]
        assert windows["number"].tolist() == [[False, True], [False, True]]
        for batch in (buffer, aware):
            mixed = WindowedBatch(batch, {"number": [-1, 0], ("inner",): seconds([-1], 0, "number")}, episodes="ignore")
            masks = mixed.get_at_with_metadata([0, 3])[1]["slice_valid_mask"]
            assert masks["number"].tolist() == [[False, True], [True, True]]
            assert masks["inner"].tolist() == [[False], [batch is buffer]]
    for make in (
        lambda: FrameStackedBatch(buffer, episodes="no"),
        lambda: WindowedBatch(buffer, {"number": [0]}, episodes="no"),
    ):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="episodes is 'no', it must be 'respect' or 'ignore'"):
            make()


# -- recording ----------------------------------------------------------------------------------------------


def test_a_recorder_warns_of_environments_that_it_mixes() -> None:
    env = vector("sync", 3)
    space = transition_space(env)
    mixed = ReplayBuffer.create(space, keep_episodes=False)
    for mode in ("auto", "shared"):
        with pytest.warns(
            UnknownEpisodesWarning, match=r"3 environments are mixed.*lanes=3.*episodes=\"ignore\""
        ) as seen:
            wrapper = ReplayBufferCollectionWrapper(env, mixed, mode)  # type: ignore[arg-type]
        assert [warning.filename for warning in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBufferCollectionWrapper(env, mixed, episodes="ignore")
        laned = ReplayBufferCollectionWrapper(env, ReplayBuffer.create(space, lanes=3))
        ReplayBufferCollectionWrapper(env, [ReplayBuffer.create(space) for _ in range(3)])
        for slots in (None, 1):
            alone = TallyEnv() if slots is None else vector("sync", 1)
            ReplayBufferCollectionWrapper(alone, ReplayBuffer.create(DictStorage, transition_space(alone)))
        with pytest.raises(UnknownEpisodesWarning):
            laned.set_replay_buffers(mixed, replay_mode="shared")
    assert wrapper.replay_mode == "shared"
    with pytest.raises(ValueError, match="episodes is 'no'"):
        ReplayBufferCollectionWrapper(env, mixed, episodes="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_a_batch_in_the_short_form_is_told_to_take_lanes(mode: Any) -> None:
    env = vector("sync", 3)
    with pytest.raises(ValueError, match=r"lanes=3.*keep_episodes=False"):
        ReplayBufferCollectionWrapper(env, ReplayBuffer.create(transition_space(env)), mode)


# -- slots that have ended ----------------------------------------------------------------------------------


def actions(*slots: int) -> np.ndarray:
    return np.zeros((*slots, 2), np.float32)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("mode", ["shared", "per_env", "interleaved"])
def test_slots_that_have_ended_must_be_reset_before_they_step(mode: Any, kind: str) -> None:
    env = vector(kind, 3)  # in the first episode, slot i takes 1 + (i + 2) % 5 steps
    made = [ReplayBuffer.create(transition_space(env), keep_episodes=mode == "per_env", lanes=3 ** (mode[0] == "i"))]
    made += [ReplayBuffer.create(transition_space(env)) for _ in range(2 * (mode == "per_env"))]
    with ReplayBufferCollectionWrapper(env, made, mode) as wrapper:
        wrapper.reset()
        for _ in range(4):
            *_, terminated, truncated, _ = wrapper.step(actions(3))
            if (terminated | truncated)[0]:
                break
        assert (terminated | truncated).tolist() == [True, False, False]
        count = sum(map(len, made))
        for step in (wrapper.step, wrapper.step_async):
            with pytest.raises(RuntimeError, match=r"slots \[0\], whose episodes have ended.*on_ended='ignore'"):
                step(actions(3))
        if mode != "interleaved":
            with pytest.raises(RuntimeError, match=r"slots \[0\], whose"):
                wrapper.step_async(actions(2), index=[2, 0])
            wrapper.step_async(actions(1), index=[2])
            wrapper.step_wait()
            count += 1
        assert sum(map(len, made)) == count
        wrapper.reset(mask=np.array([True, False, mode != "interleaved"]))
        wrapper.step(actions(3))
        assert sum(map(len, made)) == count + 3


def test_an_environment_that_has_ended_must_be_reset_before_it_steps() -> None:
    env = TallyEnv(4)  # its first episode has two steps
    buffer = ReplayBuffer.create(transition_space(env))
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    for _ in range(2):
        wrapper.step(actions())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"an episode that has ended: call reset\(\)"):
            wrapper.step(actions())
    assert (env.total, len(buffer)) == (2, 2)
    wrapper.reset()
    wrapper.step(actions())
    assert buffer.get_segments() == [(0, 2)]
    with pytest.raises(ValueError, match="on_ended is 'no', it must be 'raise' or 'ignore'"):
        ReplayBufferCollectionWrapper(env, buffer, on_ended="no")  # type: ignore[arg-type]
