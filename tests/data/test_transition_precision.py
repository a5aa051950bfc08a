"""Columns of another precision than the environment's: converted once, when a step is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import NStepBatch, ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface import Env, SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

LENGTH = 4


class ThirdsEnv(Env):
    """Its numbers are thirds, which each precision rounds in its own way; the last of an episode is `last`."""

    def __init__(self, backend: Any = NumpyComputeBackend, *, nested: bool = False, last: float = 1 / 3) -> None:
        self.backend, self.last, self.time = backend, last, 0
        widest = "float32" if str(backend) == "jax" else "float64"
        state, pixels = BoxSpace(backend, -1e6, 1e6, widest, shape=(2,)), BoxSpace(backend, 0, 255, "uint8", shape=(3,))
        self.observation_space = DictSpace(backend, {"state": state, "pixels": pixels}) if nested else state
        self.action_space = BoxSpace(backend, 0, 9, "int32", shape=())
        self.context_space = None

    def observe(self) -> Any:
        value = self.last if self.time == LENGTH else self.time / 3
        whole = self.observation_space
        space = whole.spaces["state"] if isinstance(whole, DictSpace) else whole
        state = self.backend.from_host(np.full(2, value), space.dtype)
        if not isinstance(whole, DictSpace):
            return state
        return {"state": state, "pixels": self.backend.from_numpy(np.full(3, self.time, np.uint8))}

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        self.time = 0
        return None, self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observe(), 1 / 3, self.time == LENGTH, False, {}

    def render(self) -> None:
        return None


def record(env: Env, buffers: Any, steps: int = LENGTH, **options: Any) -> list[Any]:
    """Record an episode and more; returns the observations that the environment gave."""
    recorder = ReplayBufferCollectionWrapper(env, buffers, **options)
    seen = [recorder.reset()[1]]
    for _ in range(steps):
        observation, _, terminated, *_ = recorder.step(recorder.sample_action())
        seen.append(observation)
        if env.backend.to_numpy(terminated).all() if env.batch_size else terminated:
            recorder.reset()
    recorder.close()
    return seen


def dtypes_of(backend: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: dtypes_of(backend, value) for key, value in batch.items()}
    return backend.dtype_name(batch.dtype)


@pytest.mark.parametrize("next_obs", [True, "shared"])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_steps_are_converted_where_they_are_written(backend: Any, next_obs: Any) -> None:
    env = ThirdsEnv(backend)
    space = transition_space(env, next_obs=next_obs, dtype={"obs": "float16", "action": "int8"})
    buffer = ReplayBuffer.create(space, capacity=20, keep_episodes=True)
    seen = record(env, buffer)
    assert {backend.dtype_name(observation.dtype) for observation in seen} == {env.observation_space.dtype_name}
    batch = buffer.get_at(...)
    assert batch in buffer._batched_space(LENGTH)
    wanted = np.array([np.full(2, time / 3) for time in range(LENGTH)], np.float16)
    np.testing.assert_array_equal(backend.to_numpy(batch["obs"]), wanted)
    np.testing.assert_array_equal(backend.to_numpy(batch["next_obs"])[:-1], wanted[1:])
    assert backend.dtype_name(batch["action"].dtype) == "int8"
    steps = NStepBatch(buffer, LENGTH, 1.0).get_at(0)
    np.testing.assert_array_equal(backend.to_numpy(steps["next_obs"]), np.full(2, 1 / 3, np.float16))


@pytest.mark.parametrize("mode", ["per_env", "interleaved", "shared"])
@pytest.mark.parametrize("validates", [False, True])
def test_every_mode_converts_dicts_too(mode: Any, validates: bool) -> None:
    env = SyncVecEnv([lambda: ThirdsEnv(nested=True)] * 3)
    dtype = {"obs": {"state": np.float32}, "reward": "float16"}
    space = transition_space(env, dtype=dtype, next_obs=True if mode == "shared" else "shared")
    keeps = {"per_env": {"keep_episodes": True}, "interleaved": {"lanes": 3}, "shared": {"keep_episodes": False}}[mode]
    buffers = [ReplayBuffer.create(space, capacity=30, **keeps) for _ in range(3 if mode == "per_env" else 1)]
    record(env, buffers, replay_mode=mode, validate_transition=validates, episodes="ignore")
    for buffer in buffers:
        batch = buffer.get_at(...)
        obs = {"state": "float32", "pixels": "uint8"}
        flags = {"terminated": "bool", "truncated": "bool"}
        wanted = {"obs": obs, "next_obs": obs, "action": "int32", "reward": "float16", **flags}
        assert dtypes_of(buffer.backend, batch) == wanted
        assert set(batch["obs"]["state"][:, 0].tolist()) == {float(np.float32(time / 3)) for time in range(LENGTH)}
        assert set(batch["reward"].tolist()) == {float(np.float16(1 / 3))}


def test_a_recording_goes_on_after_it_was_loaded(tmp_path: Any) -> None:
    env = ThirdsEnv()
    space = transition_space(env, dtype={"obs": "float32"}, next_obs="shared")
    with ReplayBuffer.create(space, cache_path=tmp_path / "buffer", keep_episodes=True) as buffer:
        record(env, buffer)
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NumpyComputeBackend, read_only=False) as buffer:
        assert buffer.single_space == space
        record(env, buffer)
        assert (len(buffer), buffer.get_at(-1)["next_obs"].dtype) == (2 * LENGTH, np.float32)
        assert buffer.verify() == []


def test_what_the_dtype_cannot_hold_is_refused() -> None:
    env = ThirdsEnv(last=1e5)
    buffer = ReplayBuffer.create(transition_space(env, dtype={"obs": "float16"}), capacity=20)
    with pytest.raises(ValueError, match=r"next_obs: .*100000.* holds a value beyond the range of float16.*wider"):
        record(env, buffer)
    assert len(buffer) == LENGTH - 1
    for value in (np.inf, np.nan):  # which every float can hold
        env = ThirdsEnv(last=value)
        with_odd = ReplayBuffer.create(transition_space(env, dtype={"obs": "float16"}), capacity=20)
        record(env, with_odd)
        np.testing.assert_array_equal(with_odd.get_at(-1)["next_obs"], np.full(2, value, np.float16))
    env = ThirdsEnv()
    env.action_space = BoxSpace(NumpyComputeBackend, -(2**31), 2**31 - 1, "int32", shape=(1,))
    recorder = ReplayBufferCollectionWrapper(
        env, ReplayBuffer.create(transition_space(env, dtype={"action": "int8"}), capacity=20)
    )
    recorder.reset()
    with pytest.raises(ValueError, match=r"action: .*300.* holds a value beyond the range of int8"):
        recorder.step(np.array([300], np.int32))


def test_values_that_were_rounded_are_in_bounds() -> None:
    """Rounding moves values and bounds alike."""
    env = ThirdsEnv()
    env.observation_space = BoxSpace(NumpyComputeBackend, -1 / 3, 0.7, "float64", shape=(2,))
    for name in ("float32", "float16"):
        space = transition_space(env, dtype={"obs": name})["obs"]
        for bound in (-1 / 3, 0.7):
            assert np.full(2, bound).astype(name) in space
    env.observation_space = BoxSpace(NumpyComputeBackend, -1e300, 1.0, "float64", shape=(2,))
    assert transition_space(env, dtype={"obs": "float32"})["obs"].low.tolist() == [-np.inf] * 2


@pytest.mark.parametrize(
    ("dtype", "error", "text"),
    [
        ({"terminated": "float32"}, KeyError, "dtype of terminated: wanted one of these columns: obs, action, reward"),
        ({"next_obs": "float32"}, KeyError, "dtype of next_obs: wanted one of"),
        ({"context": "float32"}, KeyError, "dtype of context: wanted one of"),
        ({"obs": "int8"}, ValueError, "dtype of obs is int8, but obs is Box.*floats become other floats"),
        ({"obs": "bool"}, ValueError, "dtype of obs is bool, wanted one of floats or of integers"),
        ({"obs": {"state": "float16"}}, ValueError, "dtype of obs is by key, .*: give one dtype"),
        ({"obs": "floot"}, TypeError, "no dtype 'floot'"),
    ],
)
def test_what_has_no_such_precision(dtype: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        transition_space(ThirdsEnv(), dtype=dtype)


def test_a_key_that_is_not_there_and_bounds_that_do_not_fit() -> None:
    with pytest.raises(KeyError, match="dtype of obs/camera: obs has no such key, it has"):
        transition_space(ThirdsEnv(nested=True), dtype={"obs": {"camera": "float16"}})
    env = ThirdsEnv()
    env.action_space = BoxSpace(NumpyComputeBackend, 0, 1000, "int32", shape=())
    with pytest.raises(ValueError, match=r"dtype of action is int8: bounds .* do not fit int8"):
        transition_space(env, dtype={"action": "int8"})
