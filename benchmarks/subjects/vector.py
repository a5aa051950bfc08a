"""Vector environments with random actions: 8 and 64 of CartPole, Pendulum and HalfCheetah, 16 that give images.

Ours are told with a mask which episodes to begin anew, and that is timed with the rest. Gymnasium's and EnvPool's spend
the step after an episode's end on that, which is no transition and is not counted; the workers of ours can do so, too.

A learner works on the same cores as a rule, so there are works with busy processes beside the contenders, too.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from harness import Contender, Work, floor, ours, peer, unable

from ._peers import SB3, TIANSHOU

STEPS = 64  # vector steps in a call
ENVIRONMENTS = (
    ("CartPole-v1", 8),
    ("CartPole-v1", 64),
    ("Pendulum-v1", 8),
    ("Pendulum-v1", 64),
    ("HalfCheetah-v5", 8),
    ("HalfCheetah-v5", 64),
    ("images", 16),
)
# With how many busy processes beside, on any number of cores.
BUSY = (("CartPole-v1", 8, 2), ("CartPole-v1", 8, 4), ("HalfCheetah-v5", 8, 2), ("HalfCheetah-v5", 8, 4))
BUSY_MANY = ("HalfCheetah-v5", 64, 4)


def works() -> list[Work]:
    idle = [work for name, count in ENVIRONMENTS for work in _works(name, count)]
    return [*idle, *(_busy_work(*setting) for setting in (*BUSY, BUSY_MANY))]


def _works(name: str, count: int) -> tuple[Work, Work]:
    make = Makers(name, count)
    here = (make.sync(), make.one_environment(1), make.gymnasium_sync(), make.sb3_dummy(), make.tianshou_dummy())
    apart = (
        make.asynchronous(),
        make.restarting(),
        make.one_environment(None),
        make.gymnasium_async(),
        make.gymnasium_sync(),
        make.sb3_subprocesses(),
        make.tianshou_shared_memory(),
        make.envpool(),
    )
    return (
        Work("vector", f"{count} {name}, one process", "transitions/s", here, per_call=None),
        Work("vector", f"{count} {name}, workers", "transitions/s", apart, per_call=None),
    )


def _busy_work(name: str, count: int, busy: int) -> Work:
    make, others = Makers(name, count), BusyProcesses(busy)
    contenders = (
        make.asynchronous(),
        make.sync("unienv, one process"),
        make.gymnasium_async(),
        make.gymnasium_sync(),
        make.envpool(),
    )
    beside = tuple([others.beside(contender) for contender in contenders])
    return Work("vector", f"{count} {name}, workers, {busy} busy beside", "transitions/s", beside, per_call=None)


class BusyProcesses:
    """Processes that compute without pause for as long as any contender of a work is set up."""

    def __init__(self, count: int) -> None:
        self._count, self._users = count, 0
        self._processes: list[subprocess.Popen] = []

    def beside(self, contender: Contender) -> Contender:
        @contextlib.contextmanager
        def make() -> Iterator[Any]:
            with contender.make() as made, self._running():
                yield made

        return replace(contender, make=make)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        if not self._users:
            command = [sys.executable, "-c", "while True: pass"]
            self._processes = [subprocess.Popen(command) for _ in range(self._count)]
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                for process in self._processes:
                    process.kill()
                    process.wait()


def make_env(name: str) -> Any:
    import gymnasium

    return _frames() if name == "images" else gymnasium.make(name)


def _frames() -> Any:
    """84x84x4 bytes a step and next to no work: what remains is the cost of carrying them."""
    import gymnasium

    class Frames(gymnasium.Env):
        def __init__(self) -> None:
            self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
            self.action_space = gymnasium.spaces.Discrete(6)
            self.frames = np.random.default_rng(0).integers(0, 256, (8, 84, 84, 4), np.uint8)
            self.count = 0

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            super().reset(seed=seed)
            self.count = 0
            return self.frames[0], {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
            self.count += 1
            return self.frames[self.count % 8], 1.0, False, self.count >= 1000, {}

    return Frames()


def actions_for(name: str, count: int) -> list[np.ndarray]:
    env = make_env(name)
    space, rng = env.action_space, np.random.default_rng(0)
    env.close()
    if hasattr(space, "n"):
        return list(rng.integers(0, space.n, (STEPS, count)))
    return list(rng.uniform(-1, 1, (STEPS, count, *space.shape)).astype(space.dtype))


def stepping(step: Callable[[Any], int], actions: list[np.ndarray]) -> Callable[[], int]:
    """Takes `STEPS` vector steps; gives how many transitions they were."""

    def run() -> int:
        return sum([step(action) for action in actions])

    return run


class Makers:
    """The ways of stepping so many environments of a name."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.needs = ("gymnasium", "mujoco") if name == "HalfCheetah-v5" else ("gymnasium",)

    @property
    def functions(self) -> list[Callable[[], Any]]:
        return [lambda: make_env(self.name)] * self.count

    # -- ours ----------------------------------------------------------------------------------------------

    def sync(self, name: str = "unienv") -> Contender:
        @ours(name, "SyncVecEnv of FromGymnasiumEnv", *self.needs)
        def run() -> Iterator[Callable]:
            from unienv_interface import SyncVecEnv

            yield from self._ours(SyncVecEnv)

        return run

    def asynchronous(self) -> Contender:
        @ours("unienv", "AsyncVecEnv of FromGymnasiumEnv, a worker per core", *self.needs)
        def run() -> Iterator[Callable]:
            from unienv_interface import AsyncVecEnv

            yield from self._ours(AsyncVecEnv)

        return run

    def restarting(self) -> Contender:
        setting = 'AsyncVecEnv of AutoresetWrapper(env, "next_step"): restarts as Gymnasium does'

        @ours("unienv, restarting", setting, *self.needs)
        def run() -> Iterator[Callable]:
            from unienv_interface import AsyncVecEnv
            from unienv_interface.wrapper import AutoresetWrapper
            from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

            def make() -> AutoresetWrapper:
                return AutoresetWrapper(FromGymnasiumEnv(make_env(self.name)), "next_step")

            yield from self._restarts_by_itself(AsyncVecEnv([make] * self.count))

        return run

    def _ours(self, kind: Any) -> Iterator[Callable]:
        from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

        env = kind([lambda: FromGymnasiumEnv(make_env(self.name))] * self.count)
        env.reset(seed=0)

        def step(action: np.ndarray) -> int:
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated | truncated
            if ended.any():
                env.reset(mask=ended)
            return self.count

        try:
            yield stepping(step, actions_for(self.name, self.count))
        finally:
            env.close()

    # -- floor ---------------------------------------------------------------------------------------------

    def one_environment(self, processes: int | None) -> Contender:
        """One environment without anything around it, times the processes there could be."""
        setting = "one environment, nothing around it" + (", times cores" if processes is None else "")

        @floor("bare step", setting, *self.needs)
        def run() -> Iterator[Callable]:
            from record import cores

            env, times = make_env(self.name), processes or cores()
            env.reset(seed=0)

            def step(action: np.ndarray) -> int:
                _, _, terminated, truncated, _ = env.step(action[0])
                if terminated or truncated:
                    env.reset()
                return times

            yield stepping(step, actions_for(self.name, 1))
            env.close()

        return run

    # -- peers ---------------------------------------------------------------------------------------------

    def gymnasium_sync(self) -> Contender:
        @peer("gymnasium Sync", "SyncVectorEnv", *self.needs)
        def run() -> Iterator[Callable]:
            from gymnasium.vector import SyncVectorEnv

            yield from self._restarts_by_itself(SyncVectorEnv(self.functions))

        return run

    def gymnasium_async(self) -> Contender:
        @peer("gymnasium Async", "AsyncVectorEnv, shared memory", *self.needs)
        def run() -> Iterator[Callable]:
            from gymnasium.vector import AsyncVectorEnv

            yield from self._restarts_by_itself(AsyncVectorEnv(self.functions, shared_memory=True))

        return run

    def _restarts_by_itself(self, env: Any) -> Iterator[Callable]:
        """The loop over environments that restart in the step after an end, which is not counted."""
        env.reset(seed=0)

        def step(action: np.ndarray) -> int:
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated | truncated
            return self.count - int(ended.sum()) if ended.any() else self.count

        try:
            yield stepping(step, actions_for(self.name, self.count))
        finally:
            env.close()

    def envpool(self) -> Contender:
        if self.name == "images":
            return unable("envpool", "environments are its own, in C++")

        @peer("envpool", "make_gymnasium, a thread per core", "envpool", "gymnasium")
        def run() -> Iterator[Callable]:
            import envpool
            from record import cores

            env = envpool.make_gymnasium(self.name, num_envs=self.count, num_threads=min(cores(), self.count), seed=0)
            actions = [action.astype(env.action_space.dtype) for action in actions_for(self.name, self.count)]
            env.reset()

            def step(action: np.ndarray) -> int:
                _, _, terminated, truncated, _ = env.step(action)
                ended = terminated | truncated
                return self.count - int(ended.sum()) if ended.any() else self.count

            try:
                yield stepping(step, actions)
            finally:
                env.close()

        return run

    def sb3_dummy(self) -> Contender:
        @peer("stable-baselines3", "DummyVecEnv", *SB3, *self.needs)
        def run() -> Iterator[Callable]:
            from stable_baselines3.common.vec_env import DummyVecEnv

            yield from self._sb3(DummyVecEnv(self.functions))

        return run

    def sb3_subprocesses(self) -> Contender:
        @peer("stable-baselines3", "SubprocVecEnv, start_method fork", *SB3, *self.needs)
        def run() -> Iterator[Callable]:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            yield from self._sb3(SubprocVecEnv(self.functions, start_method="fork"))

        return run

    def _sb3(self, env: Any) -> Iterator[Callable]:
        env.seed(0)
        env.reset()

        def step(action: np.ndarray) -> int:
            env.step(action)
            return self.count

        try:
            yield stepping(step, actions_for(self.name, self.count))
        finally:
            env.close()

    def tianshou_dummy(self) -> Contender:
        @peer("tianshou", "DummyVectorEnv", *TIANSHOU, *self.needs)
        def run() -> Iterator[Callable]:
            from tianshou.env import DummyVectorEnv

            yield from self._tianshou(DummyVectorEnv(self.functions))

        return run

    def tianshou_shared_memory(self) -> Contender:
        @peer("tianshou", "ShmemVectorEnv", *TIANSHOU, *self.needs)
        def run() -> Iterator[Callable]:
            from tianshou.env import ShmemVectorEnv

            yield from self._tianshou(ShmemVectorEnv(self.functions))

        return run

    def _tianshou(self, env: Any) -> Iterator[Callable]:
        env.reset(seed=0)

        def step(action: np.ndarray) -> int:
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated | truncated
            if ended.any():
                env.reset(np.flatnonzero(ended))
            return self.count

        try:
            yield stepping(step, actions_for(self.name, self.count))
        finally:
            env.close()
