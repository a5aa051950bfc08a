"""FromEnvPool beside the pool it wraps."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.testing import check_env
from unienv_interface.wrapper import AutoresetWrapper, FromEnvPool, ToGymnasiumVectorEnv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    envpool = pytest.importorskip("envpool")

# EnvPool's own spaces have bounds of float64
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")

COUNT = 3


def pool(task: str = "CartPole-v1", seed: int = 7, **kwargs: Any) -> Any:
    return envpool.make(task, env_type="gymnasium", num_envs=COUNT, seed=seed, **kwargs)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("task", ["Pendulum-v1", "FrozenLake-v1"])
def test_pools_keep_the_contract(backend: ComputeBackend, task: str) -> None:
    check_env(FromEnvPool(pool(task), backend=backend))


def test_images() -> None:
    env = FromEnvPool(pool("Pong-v5"))
    _, observation, _ = env.reset()
    assert observation in env.observation_space
    assert (observation.shape, observation.dtype) == ((COUNT, 4, 84, 84), np.uint8)
    assert (env.step(env.sample_action())[0] != observation).any()
    assert env.reset(mask=np.array([False, True, True]))[1].shape == (2, 4, 84, 84)


def test_values_are_those_of_the_pool() -> None:
    """Restarts by mask are the pool's own: they draw the same first observations as its restarts a step later."""
    env, plain = FromEnvPool(pool(seed=1)), pool(seed=5)
    observation, _ = plain.reset()
    _, first, _ = env.reset(seed=5)
    np.testing.assert_array_equal(first, observation)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        action = rng.integers(0, 2, COUNT)
        found, wanted = env.step(action), plain.step(action)
        for one, other in zip(found[:4], wanted[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found[4]["elapsed_step"], wanted[4]["elapsed_step"])
        ended = found[2] | found[3]
        if ended.any():
            ends += 1
            _, rows, info = env.reset(mask=ended)
            np.testing.assert_array_equal(rows, plain.reset(np.flatnonzero(ended).astype(np.int32))[0])
            assert info["env_id"].tolist() == np.flatnonzero(ended).tolist()
    assert ends > 3


def test_seeds_make_the_pool_anew_with_the_same_settings() -> None:
    env = FromEnvPool(pool(max_episode_steps=3, render_mode="rgb_array"))
    first = env.reset(seed=2)[1]
    assert (env.reset()[1] != first).any()
    np.testing.assert_array_equal(env.reset(seed=2)[1], first)
    assert (env.reset(seed=3)[1] != first).any()
    for _ in range(3):
        *_, truncated, _ = env.step(np.zeros(COUNT, np.int64))
    assert truncated.all()
    assert env.render().shape[0] == COUNT


def test_no_slot_restarts_by_itself() -> None:
    env = FromEnvPool(pool(max_episode_steps=1))
    with pytest.raises(RuntimeError, match="step before reset"):
        env.step(np.zeros(COUNT, np.int64))
    with pytest.raises(RuntimeError, match="reset with a mask before any reset"):
        env.reset(mask=np.array([True, False, False]))
    env.reset()
    env.step(np.zeros(COUNT, np.int64))
    env.reset(mask=np.array([True, False, True]))
    with pytest.raises(RuntimeError, match=r"the episodes of slots \[1\] have ended: reset\(mask=...\) first"):
        env.step(np.zeros(COUNT, np.int64))


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_it_is_recorded_like_any_other(mode: Any) -> None:
    base = FromEnvPool(pool("CartPole-v1", max_episode_steps=9))
    buffer = ReplayBuffer.create(transition_space(base), capacity=300, lanes=COUNT)
    env = AutoresetWrapper(ReplayBufferCollectionWrapper(base, buffer), mode)
    env.reset(seed=0)
    for _ in range(40):
        env.step(env.sample_action())
    rows = buffer.get_at(slice(0, len(buffer)))
    # CartPole's positions move by its velocities
    np.testing.assert_allclose(rows["next_obs"][:, 0], rows["obs"][:, 0] + 0.02 * rows["obs"][:, 1], atol=1e-5)
    ends = rows["terminated"] | rows["truncated"]
    assert ends.sum() > 5
    assert len(buffer.get_segments()) >= ends.sum()


def test_gymnasiums_view_of_it() -> None:
    env = ToGymnasiumVectorEnv(FromEnvPool(pool("Pendulum-v1", max_episode_steps=2)), "same_step")
    env.reset(seed=0)
    for _ in range(2):
        *_, info = env.step(env.action_space.sample())
    assert [last.shape for last in info["final_obs"]] == [(3,)] * COUNT


def test_errors() -> None:
    with pytest.raises(TypeError, match="env is object, wanted a pool of EnvPool with the spaces of Gymnasium"):
        FromEnvPool(object())
    with pytest.raises(TypeError, match="wanted a pool of EnvPool"):
        FromEnvPool(envpool.make("CartPole-v1", env_type="dm", num_envs=COUNT))
    with pytest.raises(ValueError, match="the pool is asynchronous, with batch_size 2 of num_envs 3"):
        FromEnvPool(pool(batch_size=2))
    env = FromEnvPool(pool())
    with pytest.raises(TypeError, match=r"reset got \['options'\], EnvPool's environments take no options"):
        env.reset(options={})
    env.reset()
    with pytest.raises(ValueError, match="seed and a mask of some slots: EnvPool is seeded as a whole"):
        env.reset(seed=1, mask=np.array([True, False, False]))
    with pytest.raises(ValueError, match=r"^action"):
        env.step(np.zeros(5, np.int64))
    assert env.backend is NumpyComputeBackend
