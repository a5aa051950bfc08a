"""FromEnvPool beside the pool it wraps: one that is built like EnvPool's, and EnvPool's own where it is installed."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import fake_envpool
import numpy as np
import pytest
from catalogue import BACKENDS

import unienv
from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import ComputeBackend
from unienv_interface.env_base import Env
from unienv_interface.testing import check_env
from unienv_interface.wrapper import AutoresetWrapper, FromEnvPool, ToGymnasiumVectorEnv

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    try:
        import envpool
    except ImportError:
        envpool = None

# EnvPool's own spaces have bounds of float64
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")

COUNT = 3
needs_envpool = pytest.mark.skipif(envpool is None, reason="envpool is not installed")
on_pools = pytest.mark.parametrize(
    "library", [fake_envpool, pytest.param(envpool, marks=needs_envpool)], ids=["fake", "envpool"]
)


def pool(library: Any, task: str = "CartPole-v1", seed: int = 7, **kwargs: Any) -> Any:
    return library.make(task, env_type="gymnasium", num_envs=COUNT, seed=seed, **kwargs)


@on_pools
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_pools_keep_the_contract(library: Any, backend: ComputeBackend) -> None:
    check_env(FromEnvPool(pool(library), backend=backend))


@needs_envpool
@pytest.mark.parametrize("task", ["Pendulum-v1", "FrozenLake-v1"])
def test_other_spaces_keep_the_contract(task: str) -> None:
    check_env(FromEnvPool(pool(envpool, task)))


@needs_envpool
def test_images() -> None:
    env = FromEnvPool(pool(envpool, "Pong-v5"))
    _, observation, _ = env.reset()
    assert observation in env.observation_space
    assert (observation.shape, observation.dtype) == ((COUNT, 4, 84, 84), np.uint8)
    assert (env.step(env.sample_action())[0] != observation).any()
    assert env.reset(mask=np.array([False, True, True]))[1].shape == (2, 4, 84, 84)


@on_pools
def test_values_are_those_of_the_pool(library: Any) -> None:
    env, plain = FromEnvPool(pool(library, seed=1, max_episode_steps=9)), pool(library, seed=5, max_episode_steps=9)
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


@on_pools
def test_seeds_make_the_pool_anew_with_the_same_settings(library: Any) -> None:
    env = FromEnvPool(pool(library, max_episode_steps=3, render_mode="rgb_array"))
    first = env.reset(seed=2)[1]
    assert (env.reset()[1] != first).any()
    np.testing.assert_array_equal(env.reset(seed=2)[1], first)
    assert (env.reset(seed=3)[1] != first).any()
    for _ in range(3):
        *_, truncated, _ = env.step(np.zeros(COUNT, np.int64))
    assert truncated.all()
    assert env.render_mode == "rgb_array"
    assert env.render().shape[0] == COUNT


@on_pools
def test_no_slot_restarts_by_itself(library: Any) -> None:
    env = FromEnvPool(pool(library, max_episode_steps=1))
    with pytest.raises(RuntimeError, match="step before reset"):
        env.step(np.zeros(COUNT, np.int64))
    with pytest.raises(RuntimeError, match="reset with a mask before any reset"):
        env.reset(mask=np.array([True, False, False]))
    env.reset()
    env.step(np.zeros(COUNT, np.int64))
    env.reset(mask=np.array([True, False, True]))
    with pytest.raises(RuntimeError, match=r"the episodes of slots \[1\] have ended: reset\(mask=...\) first"):
        env.step(np.zeros(COUNT, np.int64))


@on_pools
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_it_is_recorded_like_any_other(library: Any, mode: Any) -> None:
    base = FromEnvPool(pool(library, max_episode_steps=9))
    space = transition_space(base)
    if mode == "same_step":
        buffers = [ReplayBuffer.create(space, capacity=300, lanes=COUNT)]
        env: Env = AutoresetWrapper(ReplayBufferCollectionWrapper(base, buffers), mode)
    else:
        buffers = [ReplayBuffer.create(space, capacity=100) for _ in range(COUNT)]
        env = ReplayBufferCollectionWrapper(AutoresetWrapper(base, mode), buffers)
    env.reset(seed=0)
    ends = 0
    for _ in range(40):
        _, _, terminated, truncated, _ = env.step(env.sample_action())
        ends += int((terminated | truncated).sum())
    recorded = 0
    for buffer in buffers:
        rows, segments = buffer.get_at(...), buffer.get_segments()
        done = rows["terminated"] | rows["truncated"]
        recorded += len(segments)
        for start, stop in segments:
            episode = slice(start, stop, buffer.lanes)
            np.testing.assert_array_equal(rows["next_obs"][episode][:-1], rows["obs"][episode][1:])
            assert done[episode][-1]
            assert not done[episode][:-1].any()
    assert recorded == ends > 5


@on_pools
def test_gymnasiums_view_of_it(library: Any) -> None:
    env = ToGymnasiumVectorEnv(FromEnvPool(pool(library, max_episode_steps=2)), "same_step")
    env.reset(seed=0)
    for _ in range(2):
        *_, info = env.step(env.action_space.sample())
    assert [last.shape for last in info["final_obs"]] == [env.single_observation_space.shape] * COUNT


@on_pools
def test_errors(library: Any) -> None:
    with pytest.raises(TypeError, match="env is object, wanted a pool of EnvPool with the spaces of Gymnasium"):
        FromEnvPool(object())
    with pytest.raises(ValueError, match="the pool is asynchronous, with batch_size 2 of num_envs 3"):
        FromEnvPool(pool(library, batch_size=2))
    with pytest.raises(ValueError, match="the pool has max_num_players 2, only one player is supported"):
        FromEnvPool(pool(library, max_num_players=2))
    env = FromEnvPool(pool(library))
    with pytest.raises(ValueError, match=r"options \['speed'\]: EnvPool's environments take none"):
        env.reset(speed=2)
    env.reset()
    with pytest.raises(ValueError, match="seed with a mask: EnvPool is seeded as a whole"):
        env.reset(seed=1, mask=np.array([True, False, False]))
    with pytest.raises(ValueError, match=r"^action"):
        env.step(np.zeros(5, np.int64))


@needs_envpool
def test_a_pool_of_the_other_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="wanted a pool of EnvPool"):
        FromEnvPool(envpool.make("CartPole-v1", env_type="dm", num_envs=COUNT))


def test_a_pool_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_envpool, "list_all_envs", lambda: ["CartPole-v1"], raising=False)
    monkeypatch.setitem(sys.modules, "envpool", fake_envpool)
    first, again = (unienv.make("envpool:CartPole-v1", num_envs=COUNT, backend="torch", seed=3) for _ in range(2))
    assert (first.batch_size, str(first.backend)) == (COUNT, "pytorch")
    assert (first.reset()[1] == again.reset()[1]).all()
    with pytest.raises(ValueError, match=r"EnvPool has no environment 'CartPol-v1', did you mean 'CartPole-v1'\?"):
        unienv.make("envpool:CartPol-v1", num_envs=COUNT)
