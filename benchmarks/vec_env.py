"""Vector environments against Gymnasium's and Stable-Baselines3's, on the same environments in the same run.

    python benchmarks/vec_env.py            # needs gymnasium[mujoco] and stable-baselines3

Rates are transitions per second with random actions. Ours and theirs take turns, the median of the rounds counts, and
the exit status is 1 where a bar is missed. Ours are told with a mask which episodes to begin anew, and that is timed
with the rest. Gymnasium's spend the step after an episode's end on that, which is no transition and is not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

ROUNDS = 7
WARM_UP = 20


class FrameEnv(gymnasium.Env):
    """84x84x4 bytes a step and next to no work: what remains is the cost of carrying frames."""

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


def make(name: str) -> gymnasium.Env:
    return FrameEnv() if name == "frames" else gymnasium.make(name)


class Subject:
    """One vector environment under test: how it is stepped, and how fast that was."""

    def __init__(self, env: Any, actions: Sequence[Any], kind: str) -> None:
        self.env, self.actions, self.kind = env, actions, kind
        self.rates: list[float] = []
        self.idle = 0  # steps of single environments that were no transitions
        self.step: Callable[[Any], None] = getattr(self, f"step_{kind}")
        self.reset()

    def reset(self) -> None:
        if self.kind == "sb3":
            self.env.seed(0)
            self.env.reset()
        else:
            self.env.reset(seed=0)

    def step_ours(self, action: Any) -> None:
        _, _, terminated, truncated, _ = self.env.step(action)
        ended = terminated | truncated
        if ended.any():
            self.env.reset(mask=ended)

    def step_gymnasium(self, action: Any) -> None:
        _, _, terminated, truncated, _ = self.env.step(action)
        ended = terminated | truncated
        if ended.any():
            self.idle += int(ended.sum())

    def step_sb3(self, action: Any) -> None:
        self.env.step(action)

    def run(self, seconds: float) -> None:
        for action in self.actions[:WARM_UP]:
            self.step(action)
        self.idle = 0
        steps, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            for action in self.actions:
                self.step(action)
            steps += len(self.actions)
        self.rates.append((steps * len(self.actions[0]) - self.idle) / spent)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def compare(name: str, count: int, bars: list[tuple[str, str, float]], seconds: float) -> int:
    """Measure what the bars name; returns how many are missed."""
    rng = np.random.default_rng(0)
    single = make(name).action_space
    discrete = isinstance(single, gymnasium.spaces.Discrete)
    shape = (64, count) if discrete else (64, count, *single.shape)
    actions = list(rng.integers(0, single.n, shape) if discrete else rng.uniform(-1, 1, shape).astype(single.dtype))
    gym_fns = [lambda: make(name)] * count
    our_fns = [lambda: FromGymnasiumEnv(make(name))] * count
    makers: dict[str, Callable[[], tuple[Any, str]]] = {
        "SyncVecEnv": lambda: (SyncVecEnv(our_fns), "ours"),
        "AsyncVecEnv": lambda: (AsyncVecEnv(our_fns), "ours"),
        "gymnasium Sync": lambda: (gymnasium.vector.SyncVectorEnv(gym_fns), "gymnasium"),
        "gymnasium Async": lambda: (gymnasium.vector.AsyncVectorEnv(gym_fns), "gymnasium"),
        "sb3 Subproc": lambda: (_subproc(gym_fns), "sb3"),
    }
    wanted = dict.fromkeys(side for bar in bars for side in bar[:2])
    subjects = {}
    for side in wanted:
        env, kind = makers[side]()
        subjects[side] = Subject(env, actions, kind)
    try:
        for _ in range(ROUNDS):
            for subject in subjects.values():
                subject.run(seconds)
    finally:
        for subject in subjects.values():
            subject.env.close()
    missed = 0
    for ours, theirs, bar in bars:
        pairs = zip(subjects[ours].rates, subjects[theirs].rates, strict=True)
        ratio = statistics.median(mine / other for mine, other in pairs)
        verdict = "ok" if ratio >= bar else "MISSED"
        missed += ratio < bar
        print(
            f"{count:3} {name:15} {ours:12} {subjects[ours].rate:9.0f}/s  {theirs:16} {subjects[theirs].rate:9.0f}/s"
            f"  {ratio:5.2f} times, at least {bar:g}: {verdict}",
            flush=True,
        )
    return missed


def _subproc(fns: Sequence[Callable[[], gymnasium.Env]]) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv(list(fns))  # its default start method, forkserver


def main() -> int:
    warnings.simplefilter("ignore")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    missed = compare("CartPole-v1", 8, [("SyncVecEnv", "gymnasium Sync", 1.0)], seconds)
    missed += compare("CartPole-v1", 8, [("AsyncVecEnv", "gymnasium Async", 4.0)], seconds)
    missed += compare("HalfCheetah-v5", 8, [("AsyncVecEnv", "gymnasium Async", 4.0)], seconds)
    missed += compare("HalfCheetah-v5", 64, [("AsyncVecEnv", "gymnasium Sync", 1.5)], seconds)
    missed += compare("frames", 16, [("AsyncVecEnv", "sb3 Subproc", 3.0)], seconds)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
