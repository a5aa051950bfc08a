"""Episode statistics, normalization and clipped actions: against Gymnasium's wrappers and against plain NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from catalogue import BACKENDS
from counted_gym_env import CountedGymEnv, counts_restarts, gym_actions, makers
from envs import CountEnv, DictEnv, actions_of, mask_of
from gymnasium import wrappers as single_wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import Env, SyncVecEnv
from unienv_interface.space.spaces import BinarySpace, BoxSpace
from unienv_interface.wrapper import (
    AutoresetWrapper,
    ClipActionWrapper,
    EpisodeStatisticsWrapper,
    FromGymnasiumEnv,
    NormalizeObservationWrapper,
    NormalizeRewardWrapper,
)

NUMPY = NumpyComputeBackend
on_backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)
COUNT, STEPS = 3, 40
MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}


def batch(backend: ComputeBackend = NUMPY) -> Env:
    return SyncVecEnv([lambda make=make: FromGymnasiumEnv(make(), backend=backend) for make in makers(COUNT)], seed=0)


def host(env: Env, value: Any) -> np.ndarray:
    return env.backend.to_host(value) if env.backend.is_backendarray(value) else np.asarray(value)


def play(env: Env, steps: int = STEPS) -> list[tuple[Any, ...]]:
    """Steps of a batch that is reset by masks, with the observations of the resets."""
    seen: list[tuple[Any, ...]] = [(env.reset()[1],)]
    for actions in gym_actions(COUNT, steps):
        result = env.step(env.backend.from_numpy(actions.copy()))
        ended = host(env, result[2]) | host(env, result[3])
        first = env.reset(mask=mask_of(env, *ended))[1] if ended.any() else None
        seen.append((*result, ended, first))
    return seen


def play_single(env: Any, steps: int = STEPS) -> list[tuple[Any, ...]]:
    """Steps of one environment, ours or Gymnasium's, that is reset where it ends."""
    env.reset()
    seen = []
    for action in gym_actions(1, steps)[:, 0]:
        result = env.step(action)
        seen.append(result)
        if result[2] or result[3]:
            seen.append((env.reset()[-2],))
    return seen


# -- episode statistics ------------------------------------------------------------------------------------


@counts_restarts
@pytest.mark.parametrize("mode", MODES)
@on_backends
def test_statistics_are_gymnasiums(mode: Any, backend: ComputeBackend) -> None:
    our = EpisodeStatisticsWrapper(AutoresetWrapper(batch(backend), mode))
    their = vector_wrappers.RecordEpisodeStatistics(SyncVectorEnv(makers(COUNT), autoreset_mode=MODES[mode]))
    our.reset(), their.reset()
    for actions in gym_actions(COUNT, STEPS):
        *_, info = our.step(backend.from_numpy(actions.copy()))
        *_, wanted = their.step(actions)
        assert ("episode" in info) == ("episode" in wanted)
        if "episode" in info:
            np.testing.assert_allclose(host(our, info["episode"]["r"]), wanted["episode"]["r"], rtol=1e-5)
            np.testing.assert_array_equal(host(our, info["episode"]["l"]), wanted["episode"]["l"])
            np.testing.assert_array_equal(host(our, info["_episode"]), wanted["_episode"])
    assert our.episode_count == their.episode_count > 20
    assert list(our.return_queue) == pytest.approx(list(their.return_queue), rel=1e-5)


def test_statistics_below_a_restart_are_in_the_final_infos() -> None:
    below = EpisodeStatisticsWrapper(batch())
    over = EpisodeStatisticsWrapper(AutoresetWrapper(batch(), "same_step"))
    env = AutoresetWrapper(below, "same_step")
    env.reset(), over.reset()
    for actions in gym_actions(COUNT, STEPS):
        *_, info = env.step(actions)
        *_, wanted = over.step(actions)
        assert ("final_info" in info) == ("episode" in wanted)
        if "episode" in wanted:
            assert info["final_info"]["episode"]["r"].tolist() == wanted["episode"]["r"].tolist()
    assert list(below.return_queue) == list(over.return_queue)


def test_statistics_with_resets_by_the_caller() -> None:
    env = EpisodeStatisticsWrapper(batch())
    returns, wanted = np.zeros(COUNT), []
    for _, reward, _, _, _, ended, _ in play(env)[1:]:
        returns += reward
        wanted += returns[ended].tolist()
        returns[ended] = 0.0
    assert list(env.return_queue) == pytest.approx(wanted)
    assert sum(env.length_queue) + env.state_dict()["lengths"].sum() == COUNT * STEPS


def test_statistics_of_one() -> None:
    our = EpisodeStatisticsWrapper(FromGymnasiumEnv(CountedGymEnv(0)))
    their = single_wrappers.RecordEpisodeStatistics(CountedGymEnv(0))
    for one, other in zip(play_single(our), play_single(their), strict=True):
        if len(one) > 1 and "episode" in other[-1]:
            assert one[-1]["episode"]["r"] == pytest.approx(other[-1]["episode"]["r"])
            assert one[-1]["episode"]["l"] == other[-1]["episode"]["l"]
    assert our.episode_count == their.episode_count > 5


def test_an_episode_that_is_given_up_is_no_episode() -> None:
    env = EpisodeStatisticsWrapper(CountEnv(NUMPY, 2, length=3))
    env.reset(seed=0)
    actions = actions_of(env, 4)
    env.step(actions[0]), env.step(actions[1])
    env.reset(mask=mask_of(env, True, False))
    *_, info = env.step(actions[2])
    assert info["_episode"].tolist() == [False, True]
    assert info["episode"]["l"].tolist() == [0, 3]
    assert list(env.length_queue) == [3]


def test_durations_and_the_length_of_the_queues() -> None:
    ticks = itertools.count()
    env = EpisodeStatisticsWrapper(CountEnv(NUMPY, length=1), 2, clock=lambda: float(next(ticks)))
    for action in actions_of(env, 3):
        env.reset()
        *_, info = env.step(action)
        assert info["episode"]["t"] == 1.0
    assert list(env.time_queue) == [1.0, 1.0]
    assert env.episode_count == 3


def test_a_key_that_is_taken() -> None:
    env = EpisodeStatisticsWrapper(CountEnv(NUMPY, length=1), stats_key="steps")
    env.reset()
    with pytest.raises(ValueError, match="the infos have a key 'steps' already: pass another stats_key"):
        env.step(actions_of(env, 1)[0])


# -- normalized observations -------------------------------------------------------------------------------


@on_backends
def test_observations_are_gymnasiums(backend: ComputeBackend) -> None:
    our = NormalizeObservationWrapper(AutoresetWrapper(batch(backend), "next_step"))
    their = vector_wrappers.NormalizeObservation(SyncVectorEnv(makers(COUNT), autoreset_mode=AutoresetMode.NEXT_STEP))
    np.testing.assert_allclose(host(our, our.reset()[1]), their.reset()[0], atol=1e-4)
    for actions in gym_actions(COUNT, STEPS):
        observation = our.step(backend.from_numpy(actions.copy()))[0]
        np.testing.assert_allclose(host(our, observation), their.step(actions)[0], rtol=1e-3, atol=1e-4)
        assert observation in our.observation_space
    assert backend.dtype_name(observation.dtype) == "float32"


@on_backends
def test_observations_of_masked_resets_are_those_of_numpy(backend: ComputeBackend) -> None:
    env, plain = NormalizeObservationWrapper(batch(backend)), batch(NUMPY)
    rows = np.zeros((0, 3))
    for index, (found, raw) in enumerate(zip(play(env), play(plain), strict=True)):
        news = [(found[0], raw[0])] if found[-1] is None or index == 0 else [(found[0], raw[0]), (found[-1], raw[-1])]
        for scaled, values in news:
            rows = np.concatenate([rows, values])
            wanted = (values - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-8)
            np.testing.assert_allclose(host(env, scaled), wanted, rtol=2e-2, atol=2e-2)
    assert env.moments["observation"].count == pytest.approx(len(rows), abs=1e-3)
    np.testing.assert_allclose(host(env, env.moments["observation"].mean), rows.mean(axis=0), rtol=1e-4, atol=1e-4)


def test_observations_of_one_are_gymnasiums() -> None:
    our = NormalizeObservationWrapper(FromGymnasiumEnv(CountedGymEnv(1)))
    their = single_wrappers.NormalizeObservation(CountedGymEnv(1))
    for one, other in zip(play_single(our), play_single(their), strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_only_boxes_of_floats_are_scaled(batch_size: int | None) -> None:
    env = NormalizeObservationWrapper(DictEnv(NUMPY, batch_size, with_context=True))
    assert list(env.moments) == ["observation/pose"]
    assert env.observation_space["image"] == env.env.observation_space["image"]
    env.reset(seed=0)
    for action in actions_of(env, 3):
        observation = env.step(action)[0]
    assert observation in env.observation_space
    below = env.reverse_map_observation(observation)
    assert below in env.env.observation_space
    assert np.allclose(below["pose"][..., 0], 3.0)
    assert np.all(below["image"] == 3)


def test_moments_may_stand_still() -> None:
    train = NormalizeObservationWrapper(batch())
    play(train)
    evaluation = NormalizeObservationWrapper(CountEnv(NUMPY), update_running_mean=False)
    evaluation.load_state_dict(train.state_dict())
    first = evaluation.reset(seed=1)[1]
    np.testing.assert_array_equal(evaluation.reset(seed=1)[1], first)
    raw = evaluation.env.reset(seed=1)[1]
    np.testing.assert_allclose(first, train.moments["observation"].normalize(raw), rtol=1e-6)
    assert evaluation.moments["observation"].count == train.moments["observation"].count


def test_errors_of_normalized_observations() -> None:
    env = CountEnv(NUMPY)
    with pytest.raises(ValueError, match=r"epsilon is 0\.0, wanted a number above 0"):
        NormalizeObservationWrapper(env, epsilon=0.0)
    wrapped = NormalizeObservationWrapper(env)
    with pytest.raises(ValueError, match=r"the state has moments of \['x'\], this wrapper of \['observation'\]"):
        wrapped.load_state_dict({"moments": {"x": {}}})
    env.observation_space = BinarySpace(NUMPY, (3,))
    with pytest.raises(ValueError, match="has no box of a floating dtype, so there is nothing to scale"):
        NormalizeObservationWrapper(env)


# -- normalized rewards ------------------------------------------------------------------------------------


@counts_restarts
@pytest.mark.parametrize("mode", MODES)
@on_backends
def test_rewards_are_gymnasiums(mode: Any, backend: ComputeBackend) -> None:
    our = NormalizeRewardWrapper(AutoresetWrapper(batch(backend), mode), gamma=0.9)
    their = vector_wrappers.NormalizeReward(SyncVectorEnv(makers(COUNT), autoreset_mode=MODES[mode]), gamma=0.9)
    our.reset(), their.reset()
    for actions in gym_actions(COUNT, STEPS):
        reward = our.step(backend.from_numpy(actions.copy()))[1]
        np.testing.assert_allclose(host(our, reward), their.step(actions)[1], rtol=1e-4)


@on_backends
def test_rewards_with_resets_by_the_caller_are_those_of_numpy(backend: ComputeBackend) -> None:
    """Restarts in the same step and masked resets are the same thing to it."""
    env, plain = NormalizeRewardWrapper(batch(backend), gamma=0.9), batch(NUMPY)
    returns, seen = np.zeros(COUNT), np.zeros((0,))
    for found, raw in zip(play(env)[1:], play(plain)[1:], strict=True):
        returns = returns * 0.9 * ~raw[2] + raw[1]
        seen = np.concatenate([seen, returns])
        returns[raw[-2]] = 0.0
        np.testing.assert_allclose(host(env, found[1]), raw[1] / np.sqrt(seen.var() + 1e-8), rtol=2e-2)
    assert env.moments.count == pytest.approx(COUNT * STEPS, abs=1e-3)
    assert float(env.moments.var) == pytest.approx(seen.var(), rel=1e-4)


@pytest.mark.parametrize("make", [lambda: CountedGymEnv(1), lambda: gymnasium.make("CartPole-v1")])
def test_rewards_of_one_are_gymnasiums(make: Callable[[], gymnasium.Env]) -> None:
    our, their = NormalizeRewardWrapper(FromGymnasiumEnv(make())), single_wrappers.NormalizeReward(make())
    is_cartpole = our.action_space.shape == ()
    our.reset(seed=3), their.reset(seed=3)
    for index, action in enumerate(gym_actions(1, 100)[:, 0]):
        one, other = (
            our.step(np.array(index % 2) if is_cartpole else action),
            their.step(index % 2 if is_cartpole else action),
        )
        assert one[1] == pytest.approx(float(np.asarray(other[1]).item()), rel=1e-6)
        assert type(one[1]) is float
        if one[2] or one[3]:
            our.reset(), their.reset()


def test_rewards_of_integers_become_floats() -> None:
    env = CountEnv(NUMPY, 2)
    step = env.step
    env.step = lambda action: (lambda r: (r[0], np.array([3, 4]), *r[2:]))(step(action))  # type: ignore[method-assign]
    wrapped = NormalizeRewardWrapper(env)
    wrapped.reset(seed=0)
    assert wrapped.step(actions_of(env, 1)[0])[1].dtype.kind == "f"


@pytest.mark.parametrize(
    "wrap", [NormalizeRewardWrapper, NormalizeObservationWrapper, EpisodeStatisticsWrapper], ids=lambda w: w.__name__
)
def test_a_saved_state_goes_on(wrap: Callable[[Env], Any]) -> None:
    def stepped(env: Any, actions: np.ndarray) -> list[Any]:
        return [env.step(action) for action in actions]

    clock = {"clock": lambda: 0.0} if wrap is EpisodeStatisticsWrapper else {}
    first = wrap(AutoresetWrapper(batch(), "next_step"), **clock)
    actions = gym_actions(COUNT, 20)
    first.reset()
    stepped(first, actions[:9])
    second = wrap(first.env, **clock)
    second.load_state_dict(first.state_dict())
    reference = wrap(AutoresetWrapper(batch(), "next_step"), **clock)
    reference.reset()
    wanted = stepped(reference, actions)[9:]
    for one, other in zip(stepped(second, actions[9:]), wanted, strict=True):
        for found, expected in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(found, expected)
    if wrap is EpisodeStatisticsWrapper:
        assert second.state_dict()["return_queue"] == reference.state_dict()["return_queue"]
        assert second.episode_count == reference.episode_count


def test_a_state_of_another_batch_size_brings_what_was_learnt() -> None:
    many = NormalizeRewardWrapper(batch())
    play(many)
    one = NormalizeRewardWrapper(FromGymnasiumEnv(CountedGymEnv(0)))
    one.load_state_dict(many.state_dict())
    assert float(one.moments.var) == float(many.moments.var)
    statistics = EpisodeStatisticsWrapper(CountEnv(NUMPY))
    source = EpisodeStatisticsWrapper(batch())
    play(source)
    statistics.load_state_dict(source.state_dict())
    assert statistics.return_queue == source.return_queue


def test_errors_of_normalized_rewards() -> None:
    with pytest.raises(ValueError, match=r"gamma is 1\.5, a discount lies between 0 and 1"):
        NormalizeRewardWrapper(CountEnv(NUMPY), gamma=1.5)
    with pytest.raises(ValueError, match="epsilon is -1, wanted a number above 0"):
        NormalizeRewardWrapper(CountEnv(NUMPY), epsilon=-1)


# -- clipped actions ---------------------------------------------------------------------------------------


@on_backends
@pytest.mark.parametrize("batch_size", [None, 2])
def test_actions_are_clipped(backend: ComputeBackend, batch_size: int | None) -> None:
    below = CountEnv(backend, batch_size)
    env = ClipActionWrapper(below)
    assert env.action_space == BoxSpace(backend, -np.inf, np.inf, "float32", shape=below.action_space.shape)
    env.reset(seed=0)
    action = np.broadcast_to(np.array([5.0, -0.05], np.float32), env.action_space.shape)
    _, reward, *_ = env.step(backend.from_numpy(action.copy()))
    np.testing.assert_allclose(host(env, reward), 0.95, rtol=1e-6)


def test_actions_in_dicts_are_clipped() -> None:
    env = ClipActionWrapper(DictEnv(NUMPY))
    action = actions_of(env, 1)[0]
    action["move"] = np.array([7.0, -0.5], np.float32)
    mapped = env.map_action(action)
    assert mapped["move"].tolist() == [1.0, -0.5]
    assert mapped["hand"] is action["hand"] or mapped["hand"] == action["hand"]
    assert action["move"].tolist() == [7.0, -0.5]
    assert env.action_space["hand"] == env.env.action_space["hand"]


def test_nothing_to_clip() -> None:
    env = CountEnv(NUMPY)
    env.action_space = BinarySpace(NUMPY, (3,))
    with pytest.raises(ValueError, match="has no box of floats with bounds to clip to"):
        ClipActionWrapper(env)
