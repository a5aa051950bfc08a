"""Advantages against a plain loop, and rollouts that are right where episodes end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import as_host, backend_cases
from hypothesis import given
from hypothesis import strategies as st
from recording_envs import TallyEnv, tallies

from unienv_data import (
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    Rollout,
    discounted_returns,
    gae,
    rollout,
    transition_space,
)
from unienv_interface import SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import Env
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.wrapper import AutoresetWrapper

every_backend = pytest.mark.parametrize("backend", backend_cases())


# -- advantages and returns --------------------------------------------------------------------------------


def steps(seed: int, shape: tuple[int, ...], ends: float = 0.3) -> dict[str, np.ndarray]:
    """Random steps of which a share end their episodes, in either way or in both."""
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < ends
    return {
        "rewards": rewards,
        "values": values,
        "terminated": terminated,
        "truncated": truncated,
        "next_values": next_values,
    }


def gae_of_a_loop(
    *, rewards: Any, values: Any, terminated: Any, truncated: Any, next_values: Any, gamma: float, lam: float
) -> np.ndarray:
    advantages = np.zeros(rewards.shape)
    for slot in np.ndindex(rewards.shape[1:]):
        later = 0.0
        for t in reversed(range(len(rewards))):
            at = (t, *slot)
            expected = 0.0 if terminated[at] else float(next_values[at])
            if terminated[at] or truncated[at]:
                later = 0.0
            later = float(rewards[at]) + gamma * expected - float(values[at]) + gamma * lam * later
            advantages[at] = later
    return advantages


def returns_of_a_loop(
    *, rewards: Any, terminated: Any, truncated: Any, next_values: Any, gamma: float, **_: Any
) -> np.ndarray:
    returns = np.zeros(rewards.shape)
    for slot in np.ndindex(rewards.shape[1:]):
        later = float(next_values[(-1, *slot)])
        for t in reversed(range(len(rewards))):
            at = (t, *slot)
            if terminated[at]:
                later = 0.0
            elif truncated[at]:
                later = float(next_values[at])
            later = float(rewards[at]) + gamma * later
            returns[at] = later
    return returns


@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1,), (7,), (1, 3), (2, 3), (16, 2), (33, 1)]),
    ends=st.sampled_from([0.0, 0.1, 0.6]),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    lam=st.sampled_from([0.0, 0.95, 1.0]),
)
def test_advantages_and_returns_are_those_of_a_loop(
    seed: int, shape: tuple[int, ...], ends: float, gamma: float, lam: float
) -> None:
    given_steps = steps(seed, shape, ends)
    advantages, returns = gae(**given_steps, gamma=gamma, lam=lam)
    assert (advantages.dtype, advantages.shape) == (np.float32, shape)
    wanted = gae_of_a_loop(**given_steps, gamma=gamma, lam=lam)
    np.testing.assert_allclose(advantages, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(returns, wanted + given_steps["values"], rtol=1e-4, atol=1e-4)
    found = discounted_returns(**{name: array for name, array in given_steps.items() if name != "values"}, gamma=gamma)
    np.testing.assert_allclose(found, returns_of_a_loop(**given_steps, gamma=gamma), rtol=1e-4, atol=1e-4)


@every_backend
def test_the_backends_agree(backend: ComputeBackend) -> None:
    host = steps(1, (9, 4))
    there = {name: backend.from_numpy(array) for name, array in host.items()}
    for found, wanted in zip(gae(**there, gamma=0.9, lam=0.8), gae(**host, gamma=0.9, lam=0.8), strict=True):
        assert backend.is_backendarray(found)
        np.testing.assert_allclose(backend.to_numpy(found), wanted, rtol=1e-5, atol=1e-5)
    del there["values"], host["values"]
    found = backend.to_numpy(discounted_returns(**there, gamma=0.9))
    np.testing.assert_allclose(found, discounted_returns(**host, gamma=0.9), rtol=1e-5, atol=1e-5)


def test_jax_compiles_them() -> None:
    jax = pytest.importorskip("jax")
    host = steps(1, (9, 4))
    found = jax.jit(lambda given_steps: gae(**given_steps, gamma=0.9, lam=0.8))(host)
    np.testing.assert_allclose(found.advantages, gae(**host, gamma=0.9, lam=0.8).advantages, rtol=1e-5, atol=1e-5)
    del host["values"]
    found = jax.jit(lambda given_steps: discounted_returns(**given_steps, gamma=0.9))(host)
    np.testing.assert_allclose(found, discounted_returns(**host, gamma=0.9), rtol=1e-5, atol=1e-5)


def test_what_follows_a_termination_does_not_count() -> None:
    given_steps = steps(3, (4, 1), ends=0.0)
    given_steps["terminated"][1] = True
    given_steps["next_values"][1] = np.nan
    assert np.isfinite(gae(**given_steps, gamma=0.9, lam=0.9).advantages).all()


def test_results_have_the_dtype_of_the_values() -> None:
    given_steps = steps(3, (4, 1))
    given_steps["rewards"] = given_steps["rewards"].astype(np.float64)
    assert gae(**given_steps, gamma=0.9, lam=0.9).returns.dtype == np.float32
    del given_steps["values"]
    assert discounted_returns(**given_steps, gamma=0.9).dtype == np.float32


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        (
            {"rewards": np.zeros((3, 1), np.float32)},
            ValueError,
            r"rewards: shape \(3, 1\), it must be \(4, 1\) as of values",
        ),
        ({"terminated": np.zeros((4, 1))}, TypeError, "terminated: dtype float64, it must be booleans"),
        ({"values": np.zeros((4, 1), int)}, TypeError, "values: dtype int64, it must be floats"),
        ({"values": np.zeros((0, 1))}, ValueError, r"values: shape \(0, 1\), its first axis must be time"),
        ({"values": [0.0]}, TypeError, "builtins.list is not an array"),
    ],
)
def test_odd_arguments_are_named(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        gae(**{**steps(0, (4, 1)), **changed}, gamma=0.9, lam=0.9)


def test_backends_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    mixed = {**steps(0, (4, 1)), "next_values": torch.zeros(4, 1)}
    with pytest.raises(TypeError, match="next_values: an array of pytorch, values is of numpy; convert one"):
        gae(**mixed, gamma=0.9, lam=0.9)


# -- rollouts ----------------------------------------------------------------------------------------------


def numbering(env: Env) -> Any:
    """A policy whose extras tell which observation and context it saw."""

    def policy(observation: Any, *context: Any) -> Any:
        extras = {"saw": observation, "stats": {"step": observation[..., 2]}}
        if context:
            extras["context"] = context[0]
        return env.sample_action(), extras

    return policy


def check_ends(batch: Rollout, rows: int) -> int:
    """Every row follows on the one before it, or begins the next episode; returns how many episodes ended."""
    host = Rollout(*as_host(batch))
    obs, next_obs = host.obs.reshape(rows, -1, 3), host.next_obs.reshape(rows, -1, 3)
    ended = (host.terminated | host.truncated).reshape(rows, -1)
    last, ends = host.last_obs.reshape(1, -1, 3), 0
    for t, slot in np.ndindex(ended.shape):
        index, episode, step = obs[t, slot]
        assert next_obs[t, slot].tolist() == [index, episode, step + 1]
        assert ended[t, slot] == (step + 1 == 1 + (index + 2 * episode) % 5)
        ends += ended[t, slot]
        follows = np.concatenate([obs, last])[t + 1, slot]
        assert follows.tolist() == ([index, episode + 1, 0] if ended[t, slot] else [index, episode, step + 1])
    return ends


@pytest.mark.parametrize("has_context", [False, True])
@every_backend
def test_rollouts_are_right_where_episodes_end(backend: ComputeBackend, has_context: bool) -> None:
    env = SyncVecEnv(tallies(3, backend=backend, has_context=has_context))
    first = rollout(env, numbering(env), 6)
    second = rollout(env, numbering(env), 6, after=first)
    for batch in (first, second):
        assert check_ends(batch, 6) > 3
        assert batch.obs.shape == batch.next_obs.shape == batch.extras["saw"].shape == (6, 3, 3)
        assert batch.reward.shape == batch.terminated.shape == batch.extras["stats"]["step"].shape == (6, 3)
        host = Rollout(*as_host(batch))
        assert np.array_equal(host.extras["saw"], host.obs)
        np.testing.assert_allclose(host.reward, host.action.sum(-1), rtol=1e-6)
        assert batch.context is None or np.array_equal(host.context, 100 * host.obs[..., 0] + host.obs[..., 1])
        assert batch.context is None or np.array_equal(host.context, host.extras["context"])
    assert np.array_equal(as_host(second.obs[0]), as_host(first.last_obs))
    assert (first.context is None) == (not has_context)


@every_backend
def test_a_single_environment_gives_one_axis_of_time(backend: ComputeBackend) -> None:
    env = TallyEnv(2, backend=backend)
    first = rollout(env, numbering(env), 6)
    second = rollout(env, numbering(env), 6, after=first)
    assert check_ends(first, 6) + check_ends(second, 6) >= 3
    assert first.obs.shape == (6, 3)
    assert first.reward.shape == first.truncated.shape == (6,)
    assert all(backend.is_backendarray(array) for array in (first.reward, first.truncated, first.context))
    assert np.array_equal(as_host(second.obs[0]), as_host(first.last_obs))


def test_a_rollout_in_two_is_one_rollout() -> None:
    batches = []
    for parts in ((8,), (3, 5)):
        env = SyncVecEnv(tallies(2))
        env.reset(seed=0)
        after, done = None, []
        for count in parts:
            after = rollout(env, numbering(env), count, after=after, seed=0 if after is None else None)
            done.append(after)
        batches.append({name: np.concatenate([getattr(part, name) for part in done]) for name in ("obs", "action")})
    for name in ("obs", "action"):
        assert np.array_equal(batches[0][name], batches[1][name])


def test_advantages_of_a_rollout() -> None:
    env = SyncVecEnv(tallies(3))
    batch = rollout(env, lambda observation, context: (env.sample_action(), {"value": observation[:, 2]}), 12)
    flags = {"terminated": batch.terminated, "truncated": batch.truncated}
    values = {"values": batch.extras["value"], "next_values": batch.next_obs[..., 2]}
    found = gae(batch.reward, **values, **flags, gamma=0.9, lam=0.9)
    wanted = gae_of_a_loop(rewards=batch.reward, **values, **flags, gamma=0.9, lam=0.9)
    np.testing.assert_allclose(found.advantages, wanted, rtol=1e-4, atol=1e-4)


def test_odd_rollouts_are_refused() -> None:
    env = TallyEnv()
    with pytest.raises(ValueError, match="steps is 0, it must be at least 1"):
        rollout(env, numbering(env), 0)
    with pytest.raises(ValueError, match="seed is given with after"):
        rollout(env, numbering(env), 1, after=rollout(env, numbering(env), 1), seed=3)
    with pytest.raises(ValueError, match=r"restarts in the mode 'same_step'.*under the AutoresetWrapper"):
        rollout(AutoresetWrapper(env), numbering(env), 1)
    calls: list[int] = []

    def forgetful(observation: Any, context: Any) -> Any:
        calls.append(1)
        return env.sample_action(), {"value": 0.5, **({} if len(calls) > 1 else {"logp": 0.1})}

    with pytest.raises(ValueError, match=r"extras: the keys \['value'\] at step 1, \['value', 'logp'\] at step 0"):
        rollout(env, forgetful, 2)


def test_extras_of_a_rollout_are_recorded() -> None:
    envs = SyncVecEnv(tallies(3))
    value = BoxSpace(NumpyComputeBackend, -np.inf, np.inf, "float32", shape=())
    buffer = ReplayBuffer.create(transition_space(envs, extras={"value": value}), lanes=3)
    recorder = ReplayBufferCollectionWrapper(envs, buffer)

    def policy(observation: Any, context: Any) -> Any:
        return envs.sample_action(), {"value": observation[:, 2]}

    batch = rollout(recorder, policy, 7, record_extras=True)
    rows = buffer.get_at(...)
    assert check_ends(batch, 7) > 3
    np.testing.assert_array_equal(rows["extras"]["value"], rows["obs"][:, 2])
    np.testing.assert_array_equal(rows["obs"], batch.obs.reshape(-1, 3))
    with pytest.raises(KeyError, match="extras/value: the buffer has this column"):
        rollout(recorder, policy, 1, after=batch)


def test_extras_may_be_of_another_backend() -> None:
    torch = pytest.importorskip("torch")
    env = TallyEnv(backend=NumpyComputeBackend)
    batch = rollout(env, lambda *seen: (env.sample_action(), {"logp": torch.tensor(0.5), "number": 2}), 3)
    assert torch.equal(batch.extras["logp"], torch.full((3,), 0.5))
    assert batch.extras["number"].tolist() == [2, 2, 2]
