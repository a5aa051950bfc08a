"""A training loop of TD3 on 8 Pendulum-v1: act, step, record, sample 256, update, a learner of two threads.

Of each turn of the loop the step, the recording and the sample are timed, beside a learner that is the same for all:
its threads wait for work on the same cores as the environments. The second work is the time of the whole turn.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from harness import Contender, Work, ours, peer

from ._data import BATCH
from ._peers import SB3, TORCHRL

ID, SLOTS, CAPACITY, TURNS, THREADS, WIDTH = "Pendulum-v1", 8, 100_000, 20, 2, 256
OBSERVATION, ACTION, LARGEST = 3, 1, 2.0


class Loop(Protocol):
    """What a library does in a turn."""

    observation: Any

    def step(self, action: Any) -> None:
        """Step all environments, record that, and have the next observation at hand."""

    def sample(self) -> tuple[Any, ...]:
        """A batch as tensors: obs, action, reward, next_obs, terminated."""

    def close(self) -> None: ...


def works() -> list[Work]:
    makers: tuple[tuple[Any, ...], ...] = (
        (ours, "unienv", "unienv.make(num_envs=8), recorder, StepSampler, PyTorch backend", Ours, "tqdm"),
        (ours, "unienv, workers", "the same with workers=2", lambda: Ours(workers=2), "tqdm"),
        (peer, "gymnasium and sb3", "AsyncVectorEnv, ReplayBuffer of Stable-Baselines3", lambda: WithSB3(), *SB3),
        (peer, "gymnasium Sync and sb3", "SyncVectorEnv, the same buffer", lambda: WithSB3("SyncVectorEnv"), *SB3),
        (
            peer,
            "gymnasium and torchrl",
            "AsyncVectorEnv, ReplayBuffer(LazyTensorStorage)",
            lambda: WithTorchRL(),
            *TORCHRL,
        ),
    )

    def work(name: str, unit: str, *, whole: bool) -> Work:
        contenders = tuple(_contender(*maker, whole=whole) for maker in makers)
        return Work("training", name, unit, contenders, rounds=9)

    return [
        work("TD3: step, record and sample", "us a turn", whole=False),
        work("TD3: a whole turn", "us a turn", whole=True),
    ]


def _contender(kind: Any, name: str, setting: str, make: Callable[[], Loop], *needs: str, whole: bool) -> Contender:
    @kind(name, setting, *needs, "torch", "gymnasium")
    def run() -> Iterator[Callable]:
        import torch

        torch.manual_seed(0)
        before = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        loop, learner = make(), _learner()
        try:
            _turns(loop, learner, whole=whole, count=2 * BATCH // SLOTS)
            yield lambda: _turns(loop, learner, whole=whole)
        finally:
            loop.close()
            torch.set_num_threads(before)

    made: Contender = run
    return made


def _turns(loop: Loop, learner: Any, *, whole: bool, count: int = TURNS) -> float:
    """Microseconds that a turn of the loop takes, all of it or without the learner."""
    spent, start = 0.0, time.perf_counter()
    for _ in range(count):
        action = learner.act(loop.observation)
        begun = time.perf_counter()
        loop.step(action)
        batch = loop.sample()
        spent += time.perf_counter() - begun
        learner.update(*batch)
    return 1e6 * (time.perf_counter() - start if whole else spent) / count


# -- the learner -------------------------------------------------------------------------------------------


def _learner() -> Any:
    import torch
    from torch import nn

    def network(inputs: int, *last: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), *last)

    class TD3:
        """As published, with a policy that is updated at every second step."""

        def __init__(self) -> None:
            self.actor = network(OBSERVATION, nn.Linear(WIDTH, ACTION), nn.Tanh())
            self.critics = nn.ModuleList(network(OBSERVATION + ACTION, nn.Linear(WIDTH, 1)) for _ in range(2))
            self.old_actor, self.old_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
            self.optimizers = [torch.optim.Adam(each.parameters(), 1e-3) for each in (self.actor, self.critics)]
            self.steps = 0

        @torch.no_grad()
        def act(self, observation: Any) -> Any:
            action = self.actor(torch.as_tensor(observation))
            return LARGEST * (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

        def update(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any) -> None:
            self.steps += 1
            with torch.no_grad():
                noise = (0.2 * torch.randn(len(obs), ACTION)).clamp(-0.5, 0.5)
                following = torch.cat([next_obs, (self.old_actor(next_obs) + noise).clamp(-1, 1)], 1)
                value = torch.min(*(critic(following) for critic in self.old_critics))
                wanted = reward.reshape(-1, 1) + 0.99 * (1 - terminated.reshape(-1, 1).float()) * value
            both = torch.cat([obs, action / LARGEST], 1)
            self._descend(1, sum(nn.functional.mse_loss(critic(both), wanted) for critic in self.critics))
            if self.steps % 2 == 0:
                self._descend(0, -self.critics[0](torch.cat([obs, self.actor(obs)], 1)).mean())
                with torch.no_grad():
                    for old, new in ((self.old_actor, self.actor), (self.old_critics, self.critics)):
                        for kept, parameter in zip(old.parameters(), new.parameters(), strict=True):
                            kept.lerp_(parameter, 0.005)

        def _descend(self, place: int, loss: Any) -> None:
            self.optimizers[place].zero_grad()
            loss.backward()
            self.optimizers[place].step()

    return TD3()


# -- ours --------------------------------------------------------------------------------------------------


class Ours:
    """As the recipes in `examples/` do it."""

    def __init__(self, workers: int | None = None) -> None:
        import unienv
        from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, StepSampler, transition_space
        from unienv_interface.wrapper import AutoresetWrapper

        env = unienv.make(ID, num_envs=SLOTS, workers=workers, backend="torch")
        buffer = ReplayBuffer.create(transition_space(env), capacity=CAPACITY, lanes=SLOTS)
        self.env = AutoresetWrapper(ReplayBufferCollectionWrapper(env, buffer), mode="same_step")
        self.sampler = StepSampler(buffer, BATCH, seed=0)
        self.observation = self.env.reset(seed=0)[1]

    def step(self, action: Any) -> None:
        self.observation = self.env.step(action)[0]

    def sample(self) -> tuple[Any, ...]:
        batch = self.sampler.sample()
        return batch["obs"], batch["action"], batch["reward"], batch["next_obs"], batch["terminated"]

    def close(self) -> None:
        self.env.close()


# -- peers -------------------------------------------------------------------------------------------------


class OverGymnasium:
    """Gymnasium's vector environment; `record` and `sample` are a library's."""

    def __init__(self, kind: str = "AsyncVectorEnv") -> None:
        import gymnasium
        from gymnasium import vector

        makers = [lambda: gymnasium.make(ID)] * SLOTS
        self.env = getattr(vector, kind)(makers, autoreset_mode=vector.AutoresetMode.SAME_STEP)
        self.observation = self.env.reset(seed=0)[0]

    def step(self, action: Any) -> None:
        action = action.numpy()
        observation, reward, terminated, truncated, info = self.env.step(action)
        following = observation
        if "final_obs" in info:
            following = observation.copy()
            for slot in np.flatnonzero(info["_final_obs"]):
                following[slot] = info["final_obs"][slot]
        self.record(self.observation, action, reward, following, terminated, truncated)
        self.observation = observation

    def record(self, *columns: np.ndarray) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.env.close()


class WithSB3(OverGymnasium):
    def __init__(self, kind: str = "AsyncVectorEnv") -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        super().__init__(kind)
        spaces = self.env.single_observation_space, self.env.single_action_space
        self.buffer = ReplayBuffer(CAPACITY, *spaces, device="cpu", n_envs=SLOTS)

    def record(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any) -> None:
        infos = [{"TimeLimit.truncated": flag} for flag in (truncated & ~terminated).tolist()]
        self.buffer.add(obs, next_obs, action, reward, terminated | truncated, infos)

    def sample(self) -> tuple[Any, ...]:
        batch = self.buffer.sample(BATCH)
        return batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.dones


class WithTorchRL(OverGymnasium):
    def __init__(self) -> None:
        from torchrl.data import LazyTensorStorage, ReplayBuffer

        super().__init__()
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)

    def record(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any) -> None:
        import torch
        from tensordict import TensorDict

        columns = {
            "observation": obs,
            "action": action,
            "reward": reward.astype(np.float32),
            "next_observation": next_obs,
            "terminated": terminated,
            "truncated": truncated,
        }
        self.buffer.extend(TensorDict({name: torch.from_numpy(x) for name, x in columns.items()}, [SLOTS]))

    def sample(self) -> tuple[Any, ...]:
        batch = self.buffer.sample()
        return tuple(batch[name] for name in ("observation", "action", "reward", "next_observation", "terminated"))
