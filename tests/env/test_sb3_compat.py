"""ToSB3VecEnv beside DummyVecEnv of Stable-Baselines3, and its algorithms on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from catalogue import BACKENDS
from counted_gym_env import gym_actions, makers
from envs import CountEnv, DictEnv, UnevenEnv

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import AsyncVecEnv, SyncVecEnv
from unienv_interface.wrapper import AutoresetWrapper, EpisodeStatisticsWrapper, FromGymnasiumEnv, TimeLimitWrapper

sb3 = pytest.importorskip("stable_baselines3")
sb3_vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
from unienv_interface.wrapper import ToSB3VecEnv  # noqa: E402 - after what it needs

NUMPY = NumpyComputeBackend
COUNT = 3


@pytest.fixture(autouse=True)
def logs_go_to_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))


def counted(backend: ComputeBackend = NUMPY) -> SyncVecEnv:
    return SyncVecEnv([lambda make=make: FromGymnasiumEnv(make(), backend=backend) for make in makers(COUNT)], seed=0)


def of_task(task: str, count: int = 2) -> ToSB3VecEnv:
    return ToSB3VecEnv(SyncVecEnv([lambda: FromGymnasiumEnv(gymnasium.make(task))] * count, seed=0))


def assert_alike(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key in wanted:
            assert_alike(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert np.asarray(found).dtype.kind == np.asarray(wanted).dtype.kind


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
def test_it_does_what_dummy_vec_env_does(backend: ComputeBackend) -> None:
    our, their = ToSB3VecEnv(counted(backend)), sb3_vec_env.DummyVecEnv(makers(COUNT))
    assert (our.observation_space, our.action_space) == (their.observation_space, their.action_space)
    assert_alike(our.reset(), their.reset())
    assert_alike(our.reset_infos, their.reset_infos)
    cut = 0
    for actions in gym_actions(COUNT, 40):
        found, wanted = our.step(actions), their.step(actions)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
        assert_alike(our.reset_infos, their.reset_infos)
        assert found[1].dtype == np.float32
        cut += sum(info["TimeLimit.truncated"] for info in wanted[-1])
    assert cut > 5


@pytest.mark.parametrize(
    ("algorithm", "task", "settings"),
    [
        ("PPO", "CartPole-v1", {"n_steps": 64, "batch_size": 64, "n_epochs": 1}),
        ("DQN", "CartPole-v1", {"learning_starts": 50, "train_freq": 8, "buffer_size": 1000}),
        ("SAC", "Pendulum-v1", {"learning_starts": 50, "train_freq": 16, "buffer_size": 1000}),
    ],
)
def test_algorithms_train_on_it(algorithm: str, task: str, settings: dict[str, Any]) -> None:
    env = of_task(task)
    model = getattr(sb3, algorithm)("MlpPolicy", env, device="cpu", seed=1, **settings)
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(256)
    assert model.num_timesteps >= 256
    changed = [not bool((one == other).all()) for one, other in zip(before, model.policy.parameters(), strict=True)]
    assert any(changed)
    env.close()


def test_its_wrappers_lie_over_it() -> None:
    env = sb3_vec_env.VecNormalize(sb3_vec_env.VecMonitor(of_task("Pendulum-v1")))
    env.reset()
    for _ in range(200):
        _, _, dones, infos = env.step(np.zeros((2, 1), np.float32))
    assert dones.all()
    assert infos[0]["episode"]["l"] == 200
    assert infos[0]["TimeLimit.truncated"]


def test_our_statistics_are_read_by_its_loggers() -> None:
    env = ToSB3VecEnv(EpisodeStatisticsWrapper(counted()))
    env.reset()
    for actions in gym_actions(COUNT, 3):
        _, _, dones, infos = env.step(actions)
        for done, info in zip(dones, infos, strict=True):
            assert ("episode" in info) == bool(done)
    assert float(infos[0]["episode"]["l"]) == 3


def test_seeds_and_options_are_for_the_next_reset() -> None:
    env = ToSB3VecEnv(CountEnv(NUMPY, 2))
    env.seed(5)
    first = env.reset()
    assert (env.reset() != first).any()
    env.seed(5)
    np.testing.assert_array_equal(env.reset(), first)
    seen: list[dict[str, Any]] = []
    below, reset = env.env, env.env.reset
    below.reset = lambda **kwargs: (seen.append(kwargs), reset(**kwargs))[1]  # type: ignore[method-assign]
    env.set_options({"goal": 3})
    env.reset(), env.reset()
    assert seen == [{"seed": None, "goal": 3}, {"seed": None}]
    env.set_options([{"goal": 3}, {"goal": 4}])
    with pytest.raises(ValueError, match="the options of the slots differ"):
        env.reset()


@pytest.mark.parametrize("kind", [SyncVecEnv, AsyncVecEnv])
def test_attributes_of_the_environments_and_of_the_layers(kind: Callable[..., Any]) -> None:
    workers = {} if kind is SyncVecEnv else {"num_workers": 1}
    base = kind([lambda make=make: FromGymnasiumEnv(make()) for make in makers(2)], **workers)
    env = ToSB3VecEnv(TimeLimitWrapper(base, 7))
    env.reset()
    assert env.get_attr("number") == [0, 1]
    assert env.get_attr("number", 1) == env.get_attr("number", [1]) == [1]
    assert env.get_attr("time_limit") == [7, 7]
    assert env.has_attr("episode")
    assert not env.has_attr("nowhere")
    env.set_attr("number", 8, indices=[1])
    assert env.get_attr("number") == [0, 8]
    env.set_attr("number", [1, 2])
    assert env.get_attr("number") == [[1, 2], [1, 2]]
    env.set_attr("time_limit", 9)
    assert env.env.env.time_limit == 9
    env.set_attr("brand_new", 1)
    assert env.get_attr("brand_new", 0) == [1]
    assert env.env_method("get_wrapper_attr", "t", indices=0) == [0]
    with pytest.raises(AttributeError, match="nowhere"):
        env.get_attr("nowhere")
    with pytest.raises(AttributeError, match="nowhere"):
        env.env_method("nowhere")
    assert env.env_is_wrapped(TimeLimitWrapper) == [True, True]
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit, 0) == [False]
    env.close()


def test_attributes_of_a_batch_are_those_of_every_slot() -> None:
    below = CountEnv(NUMPY, 2, render_mode="rgb_array")
    env = ToSB3VecEnv(below)
    assert env.render_mode == "rgb_array"
    assert env.get_attr("length") == [None, None]
    env.set_attr("length", 2, indices=[0])
    assert below.length == 2
    assert len(env.env_method("sample_action", indices=[1])) == 1
    with pytest.raises(AttributeError, match="nowhere"):
        env.get_attr("nowhere")


def test_images_are_tiled() -> None:
    env = ToSB3VecEnv(SyncVecEnv([lambda: CountEnv(NUMPY, render_mode="rgb_array")] * 2, seed=0))
    env.reset()
    assert [image.shape for image in env.get_images()] == [(4, 4, 3)] * 2
    assert env.render().shape == (8, 4, 3)
    assert ToSB3VecEnv(CountEnv(NUMPY, 2)).get_images() == [None, None]
    assert [frame.shape for frame in ToSB3VecEnv(CountEnv(NUMPY, 2, render_mode="rgb_array")).get_images()] == [
        (4, 4, 3)
    ]


def test_dicts_and_contexts() -> None:
    env = ToSB3VecEnv(CountEnv(NUMPY, 2, length=1, with_context=True))
    first = env.reset()
    assert set(first) == {"context", "observation"}
    observation, _, dones, infos = env.step(np.zeros((2, 2), np.float32))
    assert dones.all()
    np.testing.assert_array_equal(infos[1]["terminal_observation"]["context"], first["context"][1])
    np.testing.assert_allclose(observation["context"], env.env.unwrapped.goal, rtol=1e-6)
    assert isinstance(ToSB3VecEnv(DictEnv(NUMPY, 2)).observation_space, gymnasium.spaces.Dict)


def test_training_is_recorded() -> None:
    below = counted()
    buffer = ReplayBuffer.create(transition_space(below), capacity=300, lanes=COUNT)
    env = ToSB3VecEnv(ReplayBufferCollectionWrapper(below, buffer))
    sb3.PPO("MlpPolicy", env, device="cpu", n_steps=20, batch_size=30, n_epochs=1).learn(60)
    rows = buffer.get_at(slice(0, len(buffer)))
    assert len(buffer) == 60
    np.testing.assert_array_equal(rows["next_obs"][:, 2], rows["obs"][:, 2] + 1)
    np.testing.assert_array_equal(rows["next_obs"][:, :2], rows["obs"][:, :2])


def test_errors() -> None:
    with pytest.raises(ValueError, match="is not batched: make it a batch of one with BatchifyWrapper"):
        ToSB3VecEnv(CountEnv(NUMPY))
    with pytest.raises(ValueError, match="restarts in the mode 'next_step', Stable-Baselines3 wants 'same_step'"):
        ToSB3VecEnv(AutoresetWrapper(CountEnv(NUMPY, 2), "next_step"))
    with pytest.raises(ValueError, match="action_space: the slots have different spaces"):
        ToSB3VecEnv(UnevenEnv(NUMPY, 2))
    env = ToSB3VecEnv(CountEnv(NUMPY, 2))
    env.reset()
    with pytest.raises(ValueError, match=r"^action"):
        env.step(np.zeros((3, 2), np.float32))
