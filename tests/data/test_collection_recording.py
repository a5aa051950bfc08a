"""What is recorded, against an independent log of everything that a caller saw."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_envs import Log, TallyEnv, buffers_for, check_recording, full_space, vector
from test_replay_buffer_processes import HERE, run

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.wrapper.backend_compat import ToBackendOrDeviceWrapper

SLOTS = 3
MODES = ["shared", "per_env", "interleaved"]


def torch() -> Any:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    return PyTorchComputeBackend


def drive(wrapper: Env, steps: int, seed: int = 0, *, is_async: bool = False) -> Log:
    """Step at random; reset what is done, now and then more than that, and sometimes everything."""
    chance, log, backend = np.random.default_rng(seed), Log(wrapper), wrapper.backend
    log.reset(_reset(wrapper, is_async))
    for _ in range(steps):
        shape = (2,) if wrapper.batch_size is None else (log.slots, 2)
        action = backend.from_numpy(chance.random(shape, np.float32), copy=True)
        kept = backend.from_numpy(backend.to_numpy(action).copy())
        if is_async:
            wrapper.step_async(action)  # type: ignore[attr-defined]
            if isinstance(action, np.ndarray):
                action[...] = -1.0  # it is the caller's
            result = wrapper.step_wait()  # type: ignore[attr-defined]
        else:
            result = wrapper.step(action)
        done = log.step(kept, result)
        _spoil(result[0])
        if chance.random() < 0.1:
            log.reset(_reset(wrapper, is_async))
        elif wrapper.batch_size is None:
            if done[0]:
                log.reset(_reset(wrapper, is_async))
        else:
            mask = done | (chance.random(log.slots) < 0.1)
            if mask.any():
                log.reset(_reset(wrapper, is_async, mask=backend.from_numpy(mask.copy())), mask)
    return log


def _reset(wrapper: Any, is_async: bool, **options: Any) -> Any:
    if not is_async:
        return wrapper.reset(**options)
    wrapper.reset_async(**options)
    return wrapper.reset_wait()


def _spoil(observation: Any) -> None:
    """Write to what was returned, as a caller may that normalises in place."""
    if isinstance(observation, np.ndarray) and observation.flags.writeable:
        observation[...] = -7.0


def check(env: Env, mode: str, steps: int = 60, *, infos: bool = True, **options: Any) -> None:
    buffers = buffers_for(mode, env, infos=infos)
    wrapper = ReplayBufferCollectionWrapper(env, buffers, mode)  # type: ignore[arg-type]
    with wrapper:
        log = drive(wrapper, steps, **options)
        assert sum(map(len, log.episodes)) > 5
        check_recording(mode, wrapper.replay_buffers, log)


# -- all modes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "waiting"])
@pytest.mark.parametrize("infos", [True, False], ids=["infos", "arrays"])
def test_a_batch_is_recorded_value_for_value(kind: str, mode: str, is_async: bool, infos: bool) -> None:
    check(vector(kind, SLOTS), mode, is_async=is_async, infos=infos)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_tensors_is_recorded_value_for_value(mode: str) -> None:
    check(vector("sync", SLOTS, backend=torch()), mode, steps=30)


@pytest.mark.parametrize("infos", [True, False], ids=["infos", "arrays"])
def test_one_environment_is_recorded_value_for_value(infos: bool) -> None:
    check(TallyEnv(1), "shared", infos=infos)


def test_times_are_looked_at_at_every_step() -> None:
    """They come from a clock, which is not of the environment."""
    env, times = vector("sync", SLOTS), iter([1, 2.75])
    space = transition_space(env, timestamp=True)
    space = DictSpace(
        NumpyComputeBackend, {**space.spaces, "timestamp": BoxSpace(NumpyComputeBackend, 0, 9, "int64", shape=())}
    )
    buffer = ReplayBuffer.create(space, keep_episodes=False)
    wrapper = ReplayBufferCollectionWrapper(env, buffer, clock=lambda: next(times))
    wrapper.reset()
    wrapper.step(np.zeros((SLOTS, 2), np.float32))
    with pytest.raises(ValueError, match="timestamp"):
        wrapper.step(np.zeros((SLOTS, 2), np.float32))
    assert buffer.get_at(...)["timestamp"].tolist() == [1] * SLOTS


@pytest.mark.parametrize("mode", ["shared", "interleaved"])
def test_actions_of_another_form_are_seen_at_any_step(mode: str) -> None:
    """What the environment gives is looked at once, but what the caller gives at every step."""
    env = vector("sync", SLOTS)
    (buffer,) = wrapper_buffers = [buffers_for(mode, env, infos=False)]
    with ReplayBufferCollectionWrapper(env, wrapper_buffers, mode, on_ended="ignore") as wrapper:  # type: ignore[arg-type]
        wrapper.reset()
        action = np.arange(2.0 * SLOTS, dtype=np.float32).reshape(SLOTS, 2)
        for given in (
            action,
            action + 1,
            action[::-1],
            np.asfortranarray(action),
            np.repeat(action, 2, axis=1)[:, ::2],
        ):
            wrapper.step(given)
            assert buffer.get_at(np.arange(-SLOTS, 0))["action"].tolist() == given.tolist()
        for given in (action.astype(np.float64), action.astype(np.int32), action.astype(">f8")):
            count = len(buffer)
            wrapper.reset()
            with pytest.raises(ValueError, match="action"):
                wrapper.step(given)
            assert len(buffer) == count
        wrapper.reset()
        wrapper.step(action)
        assert buffer.get_at(np.arange(-SLOTS, 0))["action"].tolist() == action.tolist()


@pytest.mark.parametrize("case", ["alike", "other reward", "other storage"])
def test_buffers_of_slots_may_differ(case: str) -> None:
    env = vector("sync", 2)
    space = full_space(env, infos=False)
    other = space
    if case == "other reward":
        reward = BoxSpace(env.backend, -np.inf, np.inf, dtype=np.float32, shape=())
        other = DictSpace(env.backend, {**space.spaces, "reward": reward})
    kind = ListStorage if case == "other storage" else PackedStorage
    pairs = ((PackedStorage, space), (kind, other))
    buffers = [ReplayBuffer.create(*pair, maintain_segment_metadata=True) for pair in pairs]
    wrapper = ReplayBufferCollectionWrapper.per_env(env, buffers)
    check_recording("per_env", buffers, drive(wrapper, 20))


def test_a_batch_of_one_is_recorded_value_for_value() -> None:
    check(vector("sync", 1), "shared")


@pytest.mark.parametrize("mode", ["shared", "interleaved"])
def test_jax_arrays_are_recorded_value_for_value(mode: str) -> None:
    pytest.importorskip("jax")
    from unienv_interface.backends.jax import JaxComputeBackend

    check(vector("sync", 2, backend=JaxComputeBackend), mode, steps=8)


def test_one_environment_of_tensors() -> None:
    check(TallyEnv(2, backend=torch()), "shared", steps=25)


def test_without_a_context() -> None:
    check(vector("sync", SLOTS, has_context=False), "interleaved", steps=20)


# -- observations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [NumpyComputeBackend, "torch"], ids=str)
def test_an_environment_that_reuses_its_array(backend: Any) -> None:
    """The log copies what it sees at once; the environment overwrites it in the next step."""
    check(TallyEnv(3, backend=torch() if backend == "torch" else backend, reuses=True), "shared", steps=30)


def test_shared_memory_that_is_handed_out_itself() -> None:
    """`copy=False`: the next step overwrites the batch that the last one has returned."""
    import multiprocessing

    from recording_envs import tallies

    from unienv_interface import AsyncVecEnv

    method = "spawn" if "jax" in sys.modules else "fork"
    env = AsyncVecEnv(tallies(SLOTS), num_workers=1, copy=False, ctx=multiprocessing.get_context(method))
    buffers = buffers_for("interleaved", env)
    with ReplayBufferCollectionWrapper(env, buffers) as wrapper:
        log = Log(wrapper)
        log.reset(wrapper.reset())
        for step in range(12):
            action = np.full((SLOTS, 2), step / 100, np.float32)
            done = log.step(action, wrapper.step(action))
            if done.any():
                log.reset(wrapper.reset(mask=done), done)
        check_recording("interleaved", [buffers], log)


def test_results_are_handed_on_as_they_are() -> None:
    env = TallyEnv()
    returned: list[Any] = []
    for name in ("reset", "step"):
        method = getattr(env, name)

        def keep(*args: Any, _method: Any = method, **kwargs: Any) -> Any:
            returned.append(_method(*args, **kwargs))
            return returned[-1]

        setattr(env, name, keep)
    wrapper = ReplayBufferCollectionWrapper(env, buffers_for("shared", env))
    assert wrapper.reset() is returned[-1]
    assert wrapper.step(np.zeros(2, np.float32)) is returned[-1]
    assert type(returned[-1][1]) is float


def test_an_environment_that_merges_in_its_own_way() -> None:
    """What a wrapper makes of a masked reset is what counts, not how the usual merge does it."""

    class Double(Env):
        """Two worlds of which one is reset at a time."""

        backend, batch_size = NumpyComputeBackend, 2

        def __init__(self) -> None:
            self._vector = vector("sync", 2)
            self.observation_space, self.action_space = self._vector.observation_space, self._vector.action_space
            self.context_space = self._vector.context_space
            self.reset, self.step, self.render = self._vector.reset, self._vector.step, self._vector.render

        def update_observation_post_reset(self, old_obs: Any, newobs_masked: Any, mask: Any) -> Any:
            return super().update_observation_post_reset(old_obs, newobs_masked, mask) + 1000

        def reset(self, **kwargs: Any) -> Any: ...
        def step(self, action: Any) -> Any: ...
        def render(self) -> Any: ...

    env = Double()
    buffer = buffers_for("interleaved", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    wrapper.reset(mask=np.array([True, False]))
    wrapper.step(np.zeros((2, 2), np.float32))
    assert buffer.get_at(...)["obs"].tolist() == [[1000, 1002, 1000], [1001, 1001, 1000]]


def test_masks_of_an_environment_that_merges_are_those_of_its_backend() -> None:
    env: Any = ToBackendOrDeviceWrapper(vector("sync", 2), torch())
    seen = []
    for name in ("update_observation_post_reset", "update_context_post_reset"):
        usual = getattr(env, name)
        setattr(env, name, lambda old, new, mask, usual=usual: seen.append(type(mask)) or usual(old, new, mask))
    wrapper = ReplayBufferCollectionWrapper(env, buffers_for("interleaved", env, infos=False))
    wrapper.reset()
    wrapper.reset(mask=torch().from_numpy(np.array([True, False])))
    assert [kind.__module__ for kind in seen] == ["torch", "torch"]


@pytest.mark.parametrize("dtype", ["int16", "float16"])
def test_observations_of_a_lesser_dtype_take_nothing_from_others(dtype: str) -> None:
    env: Any = vector("sync", 2)
    env.observation_space = BoxSpace(env.backend, -np.inf, np.inf, "float32", shape=(2, 3))
    fraction = np.float32(1) / 3

    def reset(mask: Any = None, **_: Any) -> tuple[Any, Any, dict[str, Any]]:
        rows = 2 if mask is None else int(mask.sum())
        observation = np.ones((rows, 3), dtype) if mask is None else np.full((rows, 3), fraction)
        return np.zeros(rows, np.float32), observation, {}

    env.reset, env.context_space = reset, None
    env.step = lambda action: (np.zeros((2, 3), np.float32), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {})
    buffer = ReplayBuffer.create(transition_space(env), lanes=2)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    wrapper.reset(mask=np.array([True, False]))
    wrapper.step(np.zeros((2, 2), np.float32))
    assert buffer.get_at(...)["obs"].tolist() == [[fraction] * 3, [1.0] * 3]


@pytest.mark.parametrize("more", [np.float64(3), np.array(3), None, True, "word", {"deep": np.float64(1)}])
@pytest.mark.parametrize("mode", ["per_env", "interleaved"])
def test_infos_that_nobody_has_asked_for_do_no_harm(mode: str, more: Any) -> None:
    env: Any = vector("sync", 2)
    space = transition_space(env, info={"tag": BoxSpace(env.backend, 0, 9, "float32", shape=())})
    step = env.step
    env.step = lambda action: (*step(action)[:4], {"tag": np.array([1, 2], np.float32), "more": more, "_more": True})
    if mode == "per_env":
        buffers = [ReplayBuffer.create(space, maintain_segment_metadata=True) for _ in range(2)]
    else:
        buffers = [ReplayBuffer.create(space, lanes=2)]
    wrapper = ReplayBufferCollectionWrapper(env, buffers)
    wrapper.reset()
    wrapper.step(np.zeros((2, 2), np.float32))
    assert [tag for buffer in buffers for tag in buffer.get_at(...)["info"]["tag"].tolist()] == [1, 2]


# -- episodes -----------------------------------------------------------------------------------------------


def test_stepping_on_after_the_end_gives_episodes_of_one_step() -> None:
    env = TallyEnv(0)  # its first episode has three steps
    buffer = buffers_for("shared", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer, on_ended="ignore")
    wrapper.reset()
    for _ in range(5):
        wrapper.step(np.zeros(2, np.float32))
    assert buffer.get_segments() == [(0, 3), (3, 4), (4, 5)]
    assert buffer.get_at(...)["episode_id"].tolist() == [0, 0, 0, 1, 2]
    assert buffer.get_at(...)["step"].tolist() == [0, 1, 2, 0, 0]


def test_a_reset_closes_the_episode_also_in_shared_mode() -> None:
    env = TallyEnv(4)  # its first episode has two steps
    buffer = buffers_for("shared", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    for _ in range(2):
        wrapper.reset()
        wrapper.step(np.zeros(2, np.float32))
    wrapper.reset()
    assert buffer.get_segments() == [(0, 1), (1, 2)]


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_reset_of_no_slot_ends_nothing(is_on_disk: bool, tmp_path: Path) -> None:
    env = vector("sync", 1)
    buffer = buffers_for("shared", env, infos=False, cache_path=tmp_path / "r" if is_on_disk else None)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    wrapper.reset()  # whose episode has three steps
    for _ in range(2):
        *_, terminated, truncated, _ = wrapper.step(np.zeros((1, 2), np.float32))
        wrapper.reset(mask=terminated | truncated)
    assert buffer.get_segments() == []


def test_a_second_reset_while_one_is_under_way() -> None:
    env = vector("sync", 2)
    wrapper = ReplayBufferCollectionWrapper(env, buffer := buffers_for("interleaved", env))
    wrapper.reset()
    wrapper.step(np.zeros((2, 2), np.float32))
    wrapper.reset_async(mask=np.array([True, False]))
    for mask in (None, np.array([True, False])):
        for reset in (wrapper.reset, wrapper.reset_async):
            with pytest.raises(RuntimeError, match="reset while a reset is under way: call reset_wait first"):
                reset(mask=mask)
    wrapper.reset_wait()
    wrapper.step(np.zeros((2, 2), np.float32))
    assert buffer.get_at(...)["step"].tolist() == [0, 0, 0, 1]
    assert buffer.get_at(...)["episode_id"].tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("slots", [None, 1, 2])
def test_a_reset_closes_what_the_caller_had_added_before_the_first_step(slots: int | None) -> None:
    env = TallyEnv(4) if slots is None else vector("sync", slots)
    made = buffers_for("per_env" if slots == 2 else "shared", env, infos=False)
    buffers = made if isinstance(made, list) else [made]
    wrapper = ReplayBufferCollectionWrapper(env, buffers)
    for buffer in buffers:
        buffer.append(buffer.single_space.create_empty())
    wrapper.reset()
    wrapper.step(np.zeros(2 if slots is None else (slots, 2), np.float32))
    wrapper.reset()
    assert all(buffer.get_segments() == [(0, 1), (1, 2)] for buffer in buffers)


@pytest.mark.parametrize("slots", [None, 1, 2])
def test_a_reset_closes_what_the_caller_has_added(slots: int | None) -> None:
    env = TallyEnv(4) if slots is None else vector("sync", slots)
    made = buffers_for("per_env" if slots == 2 else "shared", env, infos=False)
    buffers = made if isinstance(made, list) else [made]
    wrapper = ReplayBufferCollectionWrapper(env, buffers)
    action = np.zeros(2 if slots is None else (slots, 2), np.float32)
    wrapper.reset()
    wrapper.step(action)
    wrapper.reset()
    for buffer in buffers:
        buffer.append(buffer[0])
    wrapper.reset()
    assert not any(buffer.has_open_segment for buffer in buffers)
    wrapper.step(action)
    wrapper.reset()
    assert all(buffer.get_segments() == [(0, 1), (1, 2), (2, 3)] for buffer in buffers)


def test_episode_numbers_go_on_where_the_buffer_ends() -> None:
    env = vector("sync", SLOTS)
    buffer = buffers_for("interleaved", env)
    for _ in range(2):
        wrapper = ReplayBufferCollectionWrapper(env, buffer)
        wrapper.reset()
        for _ in range(3):
            done = wrapper.step(np.zeros((SLOTS, 2), np.float32))
            wrapper.reset(mask=done[2] | done[3])
    ids, segments = buffer.get_at(...)["episode_id"], buffer.get_segments()
    wrapper.reset()
    segments = buffer.get_segments()
    of_segments = [set(ids[start:stop:SLOTS].tolist()) for start, stop in segments]
    assert all(len(found) == 1 for found in of_segments)
    numbers = sorted(number for found in of_segments for number in found)
    assert numbers == list(range(len(segments)))
    again = ReplayBufferCollectionWrapper(env, buffer, first_episode_id=500)
    again.reset()
    again.step(np.zeros((SLOTS, 2), np.float32))
    assert buffer.get_at(slice(-SLOTS, None))["episode_id"].tolist() == [500, 501, 502]


@pytest.mark.parametrize("slots", [None, 2])
def test_episode_numbers_go_on_also_with_fewer_slots(slots: int | None) -> None:
    several = vector("sync", 4, has_context=False)
    buffer = ReplayBuffer.create(transition_space(several, episode_id=True), keep_episodes=False)
    wrapper = ReplayBufferCollectionWrapper(several, buffer, on_ended="ignore")
    wrapper.reset()
    for _ in range(4):
        wrapper.step(np.zeros((4, 2), np.float32))
        wrapper.reset(mask=np.array([True, True, False, False]))  # the others have the oldest numbers by then
    before = set(buffer.get_at(...)["episode_id"].tolist())
    fewer = TallyEnv(has_context=False) if slots is None else vector("sync", slots, has_context=False)
    again = ReplayBufferCollectionWrapper(fewer, buffer)
    again.reset()
    again.step(np.zeros(2 if slots is None else (slots, 2), np.float32))
    after = set(buffer.get_at(slice(16, None))["episode_id"].tolist())
    assert len(after) == (slots or 1)
    assert min(after) > max(before)


def test_what_was_open_before_is_not_continued() -> None:
    env = TallyEnv(4)
    buffer = buffers_for("shared", env)
    first = ReplayBufferCollectionWrapper(env, buffer)
    first.reset()
    first.step(np.zeros(2, np.float32))
    assert buffer.has_open_segment
    second = ReplayBufferCollectionWrapper(env, buffer)
    second.reset()
    second.step(np.zeros(2, np.float32))
    assert buffer.get_segments() == [(0, 1)]


def test_time_is_that_of_the_clock() -> None:
    from unienv_data import ReplayBuffer, transition_space

    env, times = vector("sync", 2), iter([1.7e9 + 0.25, 1.7e9 + 0.5])
    buffer = ReplayBuffer.create(transition_space(env, timestamp=True), lanes=2)
    wrapper = ReplayBufferCollectionWrapper(env, buffer, clock=lambda: next(times))
    wrapper.reset()
    for _ in range(2):
        wrapper.step(np.zeros((2, 2), np.float32))
    assert buffer.get_at(...)["timestamp"].tolist() == [1.7e9 + 0.25] * 2 + [1.7e9 + 0.5] * 2


# -- CartPole -----------------------------------------------------------------------------------------------


def test_cart_poles_move_as_physics_has_it() -> None:
    """Every recorded transition, taken again by itself from the recorded observation, leads to the recorded result."""
    gymnasium = pytest.importorskip("gymnasium")
    from unienv_data import ReplayBuffer, transition_space
    from unienv_interface import SyncVecEnv
    from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

    envs = SyncVecEnv([lambda: FromGymnasiumEnv(gymnasium.make("CartPole-v1"))] * 4)
    buffer = ReplayBuffer.create(transition_space(envs), capacity=400, lanes=4)
    wrapper = ReplayBufferCollectionWrapper(envs, buffer)
    wrapper.reset(seed=1)
    for _ in range(150):
        _, _, terminated, truncated, _ = wrapper.step(wrapper.sample_action())
        if (terminated | truncated).any():
            wrapper.reset(mask=terminated | truncated)
    rows, again = buffer.get_at(...), gymnasium.make("CartPole-v1").unwrapped
    again.reset(seed=0)
    for obs, action, next_obs, ended in zip(
        rows["obs"], rows["action"], rows["next_obs"], rows["terminated"], strict=True
    ):
        again.state, again.steps_beyond_terminated = obs.astype(float), None
        found, _, terminated, _, _ = again.step(int(action))
        assert np.allclose(found, next_obs, atol=1e-5)
        assert terminated == ended
    segments = buffer.get_segments()
    assert segments is not None
    assert len(segments) > 8
    for start, stop in segments:
        assert np.array_equal(rows["obs"][start:stop:4][1:], rows["next_obs"][start:stop:4][:-1])
        assert rows["terminated"][start:stop:4].tolist() == [False] * ((stop - start - 1) // 4) + [True]


def test_the_documented_example_runs() -> None:
    pytest.importorskip("gymnasium")
    text = (HERE.parents[1] / "docs" / "recording.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "8000 transitions," in run("-", given=code)
