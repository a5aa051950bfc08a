"""What recording costs: environments with and without it, in turn, in the same run.

    python benchmarks/recording.py            # needs gymnasium

The loop is that of a user: step, and reset the slots whose episodes have ended. Short rounds of both take turns, the
median of the ratios of neighbouring rounds counts, and the exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface import SyncVecEnv
from unienv_interface.env_base.env import Env
from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

SLOTS, CAPACITY = 8, 80_000
STEPS, ROUNDS = 150, 61

Run = Callable[[Env, Sequence[Any]], float]


def cart_pole() -> Env:
    return FromGymnasiumEnv(gymnasium.make("CartPole-v1"))


def recorded(env: Env, count: int = 1, **options: Any) -> Env:
    """The environment with buffers in memory around it."""
    space = transition_space(env)
    buffers = [ReplayBuffer.create(space, capacity=CAPACITY, **options) for _ in range(count)]
    return ReplayBufferCollectionWrapper(env, buffers)


def step_one(env: Env, actions: Sequence[Any]) -> float:
    """Seconds per step of one environment."""
    env.reset(seed=0)
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - start) / len(actions)


def step_batch(env: Env, actions: Sequence[Any]) -> float:
    """Seconds per vector step."""
    env.reset(seed=0)
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        ended = terminated | truncated
        if ended.any():
            env.reset(mask=ended)
    return (time.perf_counter() - start) / len(actions)


def compare(run: Run, bare: Env, recording: Env, actions: Sequence[Any]) -> tuple[float, float, float]:
    """Median microseconds without and with recording, and the median of the ratios of neighbouring rounds."""
    pairs = [(run(bare, actions), run(recording, actions)) for _ in range(ROUNDS)]
    without, with_it = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    return without, with_it, statistics.median(b / a for a, b in pairs)


def main() -> int:
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, SLOTS))
    missed = 0
    print(f"{'CartPole-v1':42} {'bare':>10} {'recorded':>10} {'ratio':>7} {'more':>9}")

    def report(name: str, figures: tuple[float, float, float], is_met: bool, bar: str) -> None:
        nonlocal missed
        without, with_it, ratio = figures
        missed += not is_met
        more = f"{without * (ratio - 1):6.1f} us"
        verdict = "ok" if is_met else "MISSED"
        print(f"{name:42} {without:7.1f} us {with_it:7.1f} us {ratio:7.3f} {more:>9}  {bar}: {verdict}", flush=True)

    figures = compare(step_one, cart_pole(), recorded(cart_pole(), maintain_segment_metadata=True), list(actions[:, 0]))
    report("one environment", figures, figures[0] * (figures[2] - 1) <= 10, "at most 10 us more")
    batches: list[tuple[str, int, dict[str, Any]]] = [
        ("8 in SyncVecEnv, shared", 1, {}),
        ("8 in SyncVecEnv, interleaved", 1, {"lanes": SLOTS}),
        ("8 in SyncVecEnv, per_env", SLOTS, {"maintain_segment_metadata": True}),
    ]
    for name, count, options in batches:
        bare, recording = SyncVecEnv([cart_pole] * SLOTS), recorded(SyncVecEnv([cart_pole] * SLOTS), count, **options)
        figures = compare(step_batch, bare, recording, list(actions))
        if count == 1:
            report(name, figures, figures[2] <= 1 / 0.85, "at most 15 % of the rate")
        else:
            report(name, figures, figures[0] * (figures[2] - 1) <= 10 * SLOTS, "at most 10 us a transition")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
