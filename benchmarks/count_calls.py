"""Count the functions of ours that run between a user's call and its end, and the files they are in.

    python benchmarks/count_calls.py [recording | sampling]

`recording` is a step of one environment into a buffer on disk, from `step` of the recorder to the end of the write;
what the environment itself does is not counted. `sampling` is a batch of PyTorch, from `StepSampler.sample`. Time that
depends on the machine has bars as ratios; how much code lies on the way has these.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from subjects._data import filled, folder

import unienv_data
from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, StepSampler, transition_space
from unienv_interface import Env
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace

SRC = Path(unienv_data.__file__).parents[1]
# Python 3.12 and later run these within the function they stand in.
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
WARM_UP, COUNTED = 20, 21


def calls_of(call: Callable[[], object], *not_counted: Callable[..., object]) -> list[CodeType]:
    """The functions of ours that a call runs, in order, but for what `not_counted` run."""
    left_out = {function.__code__ for function in not_counted}
    seen: list[CodeType] = []
    depth = 0  # of functions that are not counted

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        code = frame.f_code
        if code in left_out:
            depth += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not depth and is_ours(code) and code.co_name not in COMPREHENSIONS:
            seen.append(code)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


def is_ours(code: CodeType) -> bool:
    return SRC in Path(code.co_filename).parents


def files_of(calls: list[CodeType]) -> set[str]:
    return {Path(code.co_filename).relative_to(SRC).as_posix() for code in calls}


def usual_calls(call: Callable[[], object], *not_counted: Callable[..., object]) -> list[CodeType]:
    """The calls of the run with the middle number of them: now and then one makes room, or ends an episode."""
    for _ in range(WARM_UP):
        call()
    runs = sorted((calls_of(call, *not_counted) for _ in range(COUNTED)), key=len)
    return runs[COUNTED // 2]


# -- what is counted -----------------------------------------------------------------------------------------


class Still(Env):
    """An environment like CartPole that does nothing."""

    def __init__(self) -> None:
        self.backend = NumpyComputeBackend
        self.observation_space = BoxSpace(NumpyComputeBackend, -np.inf, np.inf, "float32", shape=(4,))
        self.action_space = BoxSpace(NumpyComputeBackend, 0, 1, "int64", shape=())
        self.observation = np.zeros(4, np.float32)

    def reset(self, **_: Any) -> tuple[None, np.ndarray, dict[str, Any]]:
        return None, self.observation.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.observation.copy(), 1.0, False, False, {}

    def render(self) -> None:
        return None


@contextlib.contextmanager
def recording() -> Iterator[list[CodeType]]:
    """A step of one environment, written to disk when it returns."""
    env = Still()
    space, action = transition_space(env), env.sample_action()
    options: dict[str, Any] = {"capacity": 10_000, "keep_episodes": True}
    with (
        folder() as path,
        ReplayBuffer.create(space, cache_path=path / "buffer", **options) as buffer,
        ReplayBufferCollectionWrapper(env, buffer) as recorder,
    ):
        recorder.reset(seed=0)
        yield usual_calls(lambda: recorder.step(action), Still.step)


@contextlib.contextmanager
def sampling() -> Iterator[list[CodeType]]:
    """A batch of PyTorch out of a buffer in memory."""
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with filled(10_000, PyTorchComputeBackend) as buffer:
        yield usual_calls(StepSampler(buffer, 256, seed=0).sample)


COUNTS = {"recording": recording, "sampling": sampling}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=COUNTS, help="one of the two (default: both)")
    wanted = parser.parse_args().what
    for name in COUNTS if wanted is None else (wanted,):
        with COUNTS[name]() as calls:
            print(f"{name}: {len(calls)} calls in {len(files_of(calls))} files")
            counts = Counter(calls)
            for code, count in counts.items():
                where = f"{Path(code.co_filename).relative_to(SRC).as_posix()}:{code.co_firstlineno}"
                print(f"  {count:3} {code.co_name:32} {where}")


if __name__ == "__main__":
    main()
