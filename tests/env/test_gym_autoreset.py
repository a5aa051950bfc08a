"""ToGymnasiumVectorEnv in every mode of restarting, beside Gymnasium's own vector environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from catalogue import BACKENDS
from counted_gym_env import counts_restarts, gym_actions, makers
from envs import CountEnv, DictEnv, actions_of
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as gym_wrappers

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import SyncVecEnv
from unienv_interface.wrapper import AutoresetWrapper, FromGymnasiumEnv, ToGymnasiumEnv, ToGymnasiumVectorEnv

COUNT, STEPS = 3, 40
MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}


def ours(mode: Any, backend: ComputeBackend = NumpyComputeBackend, **kwargs: Any) -> ToGymnasiumVectorEnv:
    envs = [lambda make=make: FromGymnasiumEnv(make(), backend=backend) for make in makers(COUNT, **kwargs)]
    return ToGymnasiumVectorEnv(SyncVecEnv(envs), mode)


def theirs(mode: str, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv(makers(COUNT, **kwargs), autoreset_mode=MODES[mode])


def assert_alike(found: Any, wanted: Any, path: str = "") -> None:
    """Equal values of the same form; Gymnasium's masks may be left out where all slots have the key."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), path
        for key in wanted:
            assert_alike(found[key], wanted[key], f"{path}.{key}")
    elif wanted.dtype == object:
        assert found.dtype == object
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None), path
            if one is not None:
                assert_alike(one, other, path)
    else:
        assert found.dtype.kind == wanted.dtype.kind, path
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key_at_end", [True, False])
@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
def test_it_does_what_gymnasium_does(mode: str, key_at_end: bool, backend: ComputeBackend) -> None:
    our, their = ours(mode, backend, key_at_end=key_at_end), theirs(mode, key_at_end=key_at_end)
    assert our.metadata["autoreset_mode"] is MODES[mode]
    assert_alike(our.reset(seed=0)[0], their.reset(seed=0)[0])
    finals = 0
    for actions in gym_actions(COUNT, STEPS):
        found, wanted = our.step(actions), their.step(actions)
        for name, one, other in zip(("obs", "reward", "term", "trunc", "info"), found, wanted, strict=True):
            assert_alike(one, other, name)
        finals += "final_obs" in wanted[-1]
    assert (finals > 5) == (mode == "same_step")


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "statistics": gym_wrappers.RecordEpisodeStatistics,
    "reward": gym_wrappers.NormalizeReward,
    "observation": gym_wrappers.NormalizeObservation,
}


@pytest.mark.parametrize(
    ("mode", "name"),
    [(mode, name) for mode in MODES for name in WRAPPERS if (mode, name) != ("same_step", "observation")],
)
def test_gymnasiums_wrappers_do_the_same_on_it(mode: str, name: str) -> None:
    our, their = WRAPPERS[name](ours(mode)), WRAPPERS[name](theirs(mode))
    our.reset(seed=0), their.reset(seed=0)
    for actions in gym_actions(COUNT, STEPS):
        found, wanted = our.step(actions), their.step(actions)
        for info in (found[-1], wanted[-1]):
            info.get("episode", {}).pop("t", None)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    if name == "statistics":
        assert list(our.return_queue) == pytest.approx(list(their.return_queue))
        assert list(our.length_queue) == list(their.length_queue)
        assert our.episode_count == their.episode_count > 20
    if name == "reward":
        assert float(our.return_rms.var) == pytest.approx(float(their.return_rms.var))
    if name == "observation":
        np.testing.assert_allclose(our.obs_rms.mean, their.obs_rms.mean)


@counts_restarts
def test_gymnasiums_statistics_with_resets_by_the_caller() -> None:
    our = gym_wrappers.RecordEpisodeStatistics(ours(None))
    assert our.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    our.reset(seed=0)
    for actions in gym_actions(COUNT, STEPS):
        *_, terminated, truncated, _ = our.step(actions)
        if (terminated | truncated).any():
            our.reset(options={"reset_mask": terminated | truncated})
    same = gym_wrappers.RecordEpisodeStatistics(theirs("same_step"))
    same.reset(seed=0)
    for actions in gym_actions(COUNT, STEPS):
        same.step(actions)
    assert list(our.return_queue) == pytest.approx(list(same.return_queue))
    assert list(our.length_queue) == list(same.length_queue)


def test_cartpole_is_the_one_of_make_vec() -> None:
    """Masked resets of a Gymnasium vector environment draw from the same generators as its own restarts."""
    kwargs = {"num_envs": COUNT, "vectorization_mode": "sync"}
    base = gymnasium.make_vec("CartPole-v1", **kwargs, vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED})
    our = ToGymnasiumVectorEnv(FromGymnasiumEnv(base), AutoresetMode.SAME_STEP)
    their = gymnasium.make_vec("CartPole-v1", **kwargs, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    assert_alike(our.reset(seed=3)[0], their.reset(seed=3)[0])
    rng, ends = np.random.default_rng(0), 0
    for _ in range(100):
        actions = rng.integers(0, 2, COUNT)
        found, wanted = our.step(actions), their.step(actions)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
        ends += int((wanted[2] | wanted[3]).sum())
    assert ends > 5


@pytest.mark.parametrize("mode", MODES)
def test_contexts_follow_the_restarts(mode: Any) -> None:
    below = CountEnv(NumpyComputeBackend, 2, length=2, with_context=True)
    env = ToGymnasiumVectorEnv(below, mode)
    observation, _ = env.reset(seed=0)
    before = observation["context"].copy()
    for action in actions_of(below, 2 if mode == "same_step" else 3):
        observation, *_, info = env.step(action)
    np.testing.assert_allclose(observation["context"], below.goal, rtol=1e-6)
    assert not np.allclose(observation["context"], before)
    if mode == "same_step":
        np.testing.assert_allclose(info["final_obs"][1]["context"], before[1])
        assert info["final_obs"][1]["observation"][0] == 2


def test_a_single_environment_that_restarts_keeps_its_context_up_to_date() -> None:
    below = CountEnv(NumpyComputeBackend, length=1, with_context=True)
    env = ToGymnasiumEnv(AutoresetWrapper(below, "same_step"))
    env.reset(seed=0)
    observation, *_ = env.step(actions_of(below, 1)[0])
    np.testing.assert_allclose(observation["context"], below.goal[0], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # of Gymnasium before 1.2.3
def test_dicts_are_last_observations_slot_by_slot() -> None:
    below = DictEnv(NumpyComputeBackend, 2, length=1)
    env = ToGymnasiumVectorEnv(below, "same_step")
    env.reset(seed=0)
    *_, info = env.step(env.action_space.sample())
    assert [last["state"]["steps"] for last in info["final_obs"]] == [1, 1]
    assert info["final_obs"][0] in env.single_observation_space


def test_the_mode_is_that_of_the_environment() -> None:
    env = AutoresetWrapper(CountEnv(NumpyComputeBackend, 2), "next_step")
    assert ToGymnasiumVectorEnv(env).metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert ToGymnasiumVectorEnv(env, "next_step").env is env
    with pytest.raises(ValueError, match=r"autoreset_mode is 'same_step', but .* restarts in the mode 'next_step'"):
        ToGymnasiumVectorEnv(env, "same_step")
    with pytest.raises(ValueError, match="mode is 'sometimes', the modes are"):
        ToGymnasiumVectorEnv(CountEnv(NumpyComputeBackend, 2), "sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["same_step", "disabled"])  # TorchRL refuses the other for any vector environment
def test_torchrl_wraps_it(mode: Any) -> None:
    libs = pytest.importorskip("torchrl.envs")
    env = libs.GymWrapper(ours(mode, key_at_end=False, nested=False))
    env.set_seed(0)
    data = env.rollout(30, break_when_any_done=False)
    seen, after = data["observation"].numpy(), data["next", "observation"].numpy()
    np.testing.assert_array_equal(after[..., 2], seen[..., 2] + 1)  # of one episode, at its end as well
    np.testing.assert_array_equal(after[..., :2], seen[..., :2])
    done = data["next", "done"].numpy()[..., 0]
    assert done.sum() > 20
    assert (seen[:, 1:, 2][done[:, :-1]] == 0).all()
