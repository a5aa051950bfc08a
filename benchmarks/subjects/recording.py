"""What recording adds to stepping: CartPole-v1 with and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Contender, Work, floor, ours, peer

from ._peers import SB3

SLOTS, CAPACITY, STEPS = 8, 80_000, 64


def works() -> list[Work]:
    shared = recorded("unienv", "shared: one buffer")
    interleaved = recorded("unienv, interleaved", "interleaved: one buffer with a lane per slot", lanes=SLOTS)
    per_env = recorded("unienv, per_env", "per_env: a buffer per slot", buffers=SLOTS)
    return [
        Work("recording", "one environment", "us", (one_recorded, one_bare, minari_collector), per_call=STEPS),
        Work(
            "recording",
            "8 environments",
            "us",
            (shared, interleaved, per_env, bare, sb3_recorded, sb3_bare),
            per_call=STEPS * SLOTS,
        ),
    ]


def cart_pole() -> Any:
    import gymnasium

    from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

    return FromGymnasiumEnv(gymnasium.make("CartPole-v1"))


def recording(env: Any, buffers: int = 1, **options: Any) -> Any:
    """The environment with buffers in memory around it."""
    from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space

    space = transition_space(env)
    made = [ReplayBuffer.create(space, capacity=CAPACITY, **options) for _ in range(buffers)]
    return ReplayBufferCollectionWrapper(env, made)


def _actions(slots: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 2, (STEPS, slots)))


def stepping_one(env: Any) -> Iterator[Callable]:
    """The loop of a user of one environment, ours or Gymnasium's."""
    env.reset(seed=0)
    actions = [action[0] for action in _actions(1)]

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    yield run
    env.close()


def stepping_batch(env: Any) -> Iterator[Callable]:
    """The loop of a user of a vector environment of ours."""
    env.reset(seed=0)
    actions = _actions(SLOTS)

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated | truncated
            if ended.any():
                env.reset(mask=ended)

    yield run
    env.close()


# -- one environment ---------------------------------------------------------------------------------------


@ours("unienv", "ReplayBufferCollectionWrapper, buffer with segments", "gymnasium")
def one_recorded() -> Iterator[Callable]:
    yield from stepping_one(recording(cart_pole(), maintain_segment_metadata=True))


@floor("not recorded", "the same environment", "gymnasium")
def one_bare() -> Iterator[Callable]:
    yield from stepping_one(cart_pole())


@peer("minari", "DataCollector over the Gymnasium environment", "minari", "gymnasium")
def minari_collector() -> Iterator[Callable]:
    import gymnasium
    import minari

    yield from stepping_one(minari.DataCollector(gymnasium.make("CartPole-v1")))


# -- eight -------------------------------------------------------------------------------------------------


def recorded(name: str, setting: str, buffers: int = 1, lanes: int = 1) -> Contender:
    @ours(name, f"SyncVecEnv, {setting}", "gymnasium")
    def run() -> Iterator[Callable]:
        from unienv_interface import SyncVecEnv

        options: dict[str, Any] = {"lanes": lanes} if lanes > 1 else {"maintain_segment_metadata": buffers > 1}
        yield from stepping_batch(recording(SyncVecEnv([cart_pole] * SLOTS), buffers, **options))

    return run


@floor("not recorded", "SyncVecEnv", "gymnasium")
def bare() -> Iterator[Callable]:
    from unienv_interface import SyncVecEnv

    yield from stepping_batch(SyncVecEnv([cart_pole] * SLOTS))


def _sb3(*, records: bool) -> Iterator[Callable]:
    import gymnasium
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    env: Any = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * SLOTS)
    buffer = ReplayBuffer(CAPACITY, env.observation_space, env.action_space, device="cpu", n_envs=SLOTS)
    obs, actions = env.reset(), _actions(SLOTS)

    def run() -> None:
        nonlocal obs
        for action in actions:
            new_obs, rewards, dones, infos = env.step(action)
            if records:
                final = new_obs.copy()
                for slot in np.flatnonzero(dones):
                    final[slot] = infos[slot]["terminal_observation"]
                buffer.add(obs, final, action, rewards, dones, infos)
            obs = new_obs

    yield run
    env.close()


@peer("stable-baselines3", "DummyVecEnv and ReplayBuffer.add, as its algorithms do", *SB3)
def sb3_recorded() -> Iterator[Callable]:
    yield from _sb3(records=True)


@peer("sb3, not recorded", "DummyVecEnv", *SB3)
def sb3_bare() -> Iterator[Callable]:
    yield from _sb3(records=False)
