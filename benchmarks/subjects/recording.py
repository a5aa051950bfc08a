"""What recording adds to stepping: CartPole-v1 with and without it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Contender, Work, floor, ours, peer

from ._data import folder
from ._peers import SB3, TIANSHOU, TORCHRL

SLOTS, CAPACITY, STEPS = 8, 80_000, 64


def works() -> list[Work]:
    shared = recorded("unienv", "shared: one buffer")
    interleaved = recorded("unienv, interleaved", "interleaved: one buffer with a lane per slot", lanes=SLOTS)
    per_env = recorded("unienv, per_env", "per_env: a buffer per slot", buffers=SLOTS)
    on_disk = recorded("unienv, on disk", "interleaved, each step survives a kill", lanes=SLOTS, on_disk=True)
    eight_peers = (
        sb3_recorded,
        sb3_bare,
        torchrl_serial,
        torchrl_parallel,
        torchrl_bare,
        tianshou_recorded,
        tianshou_random,
        tianshou_bare,
    )
    return [
        Work(
            "recording",
            "one environment",
            "us",
            (one_recorded, one_on_disk, one_bare, minari_collector),
            per_call=STEPS,
        ),
        Work(
            "recording",
            "8 environments",
            "us",
            (shared, interleaved, per_env, on_disk, bare, *eight_peers),
            per_call=STEPS * SLOTS,
        ),
    ]


def cart_pole() -> Any:
    import gymnasium

    from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

    return FromGymnasiumEnv(gymnasium.make("CartPole-v1"))


def recording(env: Any, buffers: int = 1, **options: Any) -> Any:
    """The environment with buffers around it, in memory unless `cache_path` says where."""
    from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space

    space = transition_space(env)
    options = {"capacity": CAPACITY, "keep_episodes": False, **options}
    made = [ReplayBuffer.create(space, **options) for _ in range(buffers)]
    return ReplayBufferCollectionWrapper(env, made, episodes="ignore")


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
    yield from stepping_one(recording(cart_pole(), keep_episodes=True))


@ours("unienv, on disk", "the same, each step survives a kill", "gymnasium")
def one_on_disk() -> Iterator[Callable]:
    with folder() as path:
        yield from stepping_one(recording(cart_pole(), keep_episodes=True, cache_path=path / "buffer"))


@floor("not recorded", "the same environment", "gymnasium")
def one_bare() -> Iterator[Callable]:
    yield from stepping_one(cart_pole())


@peer("minari", "DataCollector over the Gymnasium environment", "minari", "gymnasium")
def minari_collector() -> Iterator[Callable]:
    import gymnasium
    import minari

    yield from stepping_one(minari.DataCollector(gymnasium.make("CartPole-v1")))


# -- eight -------------------------------------------------------------------------------------------------


def recorded(name: str, setting: str, buffers: int = 1, lanes: int = 1, *, on_disk: bool = False) -> Contender:
    @ours(name, f"SyncVecEnv, {setting}", "gymnasium")
    def run() -> Iterator[Callable]:
        from unienv_interface import SyncVecEnv

        options: dict[str, Any] = {"lanes": lanes} if lanes > 1 else {"keep_episodes": buffers > 1}
        with folder() as path:
            if on_disk:
                options["cache_path"] = path / "buffer"
            yield from stepping_batch(recording(SyncVecEnv([cart_pole] * SLOTS), buffers, **options))

    return run


@floor("not recorded", "SyncVecEnv", "gymnasium")
def bare() -> Iterator[Callable]:
    from unienv_interface import SyncVecEnv

    yield from stepping_batch(SyncVecEnv([cart_pole] * SLOTS))


def _sb3(*, records: bool) -> Iterator[Callable]:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    env: Any = DummyVecEnv(_gymnasium_makers())
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


def _gymnasium_makers() -> list[Callable[[], Any]]:
    import gymnasium

    return [lambda: gymnasium.make("CartPole-v1")] * SLOTS


def _torchrl_makers() -> list[Callable[[], Any]]:
    from torchrl.envs import GymEnv

    return [lambda: GymEnv("CartPole-v1", categorical_action_encoding=True)] * SLOTS


def _torchrl_policy() -> Callable[[Any], Any]:
    """What acts for TorchRL: it gives the actions that all are given, one after the other."""
    import torch

    action = itertools.cycle([torch.from_numpy(each) for each in _actions(SLOTS)]).__next__
    return lambda tensordict: tensordict.set("action", action())


def _torchrl_collecting(env: Any) -> Iterator[Callable]:
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(CAPACITY, ndim=2))
    frames = STEPS * SLOTS
    collector = Collector(env, _torchrl_policy(), frames_per_batch=frames, replay_buffer=buffer, trust_policy=True)
    yield iter(collector).__next__
    collector.shutdown()


@peer(
    "torchrl", "Collector over SerialEnv of GymEnv into ReplayBuffer, LazyTensorStorage(ndim=2)", *TORCHRL, "gymnasium"
)
def torchrl_serial() -> Iterator[Callable]:
    from torchrl.envs import SerialEnv

    yield from _torchrl_collecting(SerialEnv(SLOTS, _torchrl_makers()))


@peer("torchrl, workers", "the same over ParallelEnv, a process per environment", *TORCHRL, "gymnasium")
def torchrl_parallel() -> Iterator[Callable]:
    from torchrl.envs import ParallelEnv

    yield from _torchrl_collecting(ParallelEnv(SLOTS, _torchrl_makers()))


@peer("torchrl, not recorded", "SerialEnv.step_and_maybe_reset", *TORCHRL, "gymnasium")
def torchrl_bare() -> Iterator[Callable]:
    from torchrl.envs import SerialEnv

    env, policy = SerialEnv(SLOTS, _torchrl_makers()), _torchrl_policy()
    current = env.reset()

    def run() -> None:
        nonlocal current
        for _ in range(STEPS):
            _, current = env.step_and_maybe_reset(policy(current))

    yield run
    env.close()


def _tianshou_collecting(*, random: bool) -> Iterator[Callable]:
    from tianshou.algorithm.algorithm_base import Policy
    from tianshou.data import Batch, Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    env = DummyVectorEnv(_gymnasium_makers())
    action = itertools.cycle(_actions(SLOTS)).__next__

    class Given(Policy):
        """Gives the actions that all are given, one after the other."""

        def forward(self, batch: Any, state: Any = None) -> Any:
            return Batch(act=action())

    collector: Any = Collector(Given(env.action_space[0]), env, VectorReplayBuffer(CAPACITY, SLOTS))
    collector.reset()
    yield lambda: collector.collect(n_step=STEPS * SLOTS, random=random)
    collector.close()


@peer("tianshou", "Collector over DummyVectorEnv into VectorReplayBuffer", *TIANSHOU, "gymnasium")
def tianshou_recorded() -> Iterator[Callable]:
    yield from _tianshou_collecting(random=False)


@peer("tianshou, random", "the same, collect(random=True): actions it draws itself", *TIANSHOU, "gymnasium")
def tianshou_random() -> Iterator[Callable]:
    yield from _tianshou_collecting(random=True)


@peer("tianshou, not recorded", "DummyVectorEnv", *TIANSHOU, "gymnasium")
def tianshou_bare() -> Iterator[Callable]:
    from tianshou.env import DummyVectorEnv

    env, actions = DummyVectorEnv(_gymnasium_makers()), _actions(SLOTS)
    env.reset(seed=0)

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated | truncated
            if ended.any():
                env.reset(np.flatnonzero(ended))

    yield run
    env.close()
