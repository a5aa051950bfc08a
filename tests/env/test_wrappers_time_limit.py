from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import backend_cases
from envs import CountEnv, CountFuncEnv, actions_of, mask_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import FuncEnvBasedEnv
from unienv_interface.wrapper import TimeLimitWrapper

np_backend = NumpyComputeBackend


def _truncated(env: TimeLimitWrapper, count: int) -> list[Any]:
    flags = [env.step(action)[3] for action in actions_of(env, count)]
    return [flag if isinstance(flag, bool) else env.backend.to_host(flag).tolist() for flag in flags]


def test_an_episode_is_truncated_at_its_last_step_and_after() -> None:
    env = TimeLimitWrapper(CountEnv(np_backend), 3)
    env.reset(seed=0)
    assert _truncated(env, 4) == [False, False, True, True]
    env.reset()
    assert _truncated(env, 3) == [False, False, True]


@pytest.mark.parametrize("backend", backend_cases())
def test_slots_are_counted_apart(backend: ComputeBackend) -> None:
    env = TimeLimitWrapper(CountEnv(backend, 3), 3)
    env.reset(seed=0)
    assert _truncated(env, 2) == [[False] * 3] * 2
    env.reset(mask=mask_of(env, False, True, False))
    assert _truncated(env, 2) == [[True, False, True], [True, False, True]]
    env.reset(mask=mask_of(env, True, False, False))
    assert _truncated(env, 1) == [[False, True, True]]
    env.reset()
    assert _truncated(env, 3) == [[False] * 3, [False] * 3, [True] * 3]


@pytest.mark.parametrize("backend", backend_cases())
def test_flags_without_axes_stay_arrays(backend: ComputeBackend) -> None:
    env = TimeLimitWrapper(FuncEnvBasedEnv(CountFuncEnv(backend)), 1)
    env.reset(seed=0)
    _, _, _, truncated, _ = env.step(actions_of(env, 1)[0])
    assert backend.is_backendarray(truncated)
    assert truncated.shape == ()
    assert bool(truncated)


def test_the_end_of_the_environment_itself_stays() -> None:
    env = TimeLimitWrapper(CountEnv(np_backend, 2, length=2), 3)
    env.reset(seed=0)
    ends = [env.step(action)[2:4] for action in actions_of(env, 3)]
    assert [terminated.tolist() for terminated, _ in ends] == [[False] * 2, [True] * 2, [True] * 2]
    assert [truncated.tolist() for _, truncated in ends] == [[False] * 2, [False] * 2, [True] * 2]


def test_flags_of_the_environment_are_not_written_to() -> None:
    below = CountEnv(np_backend, 2)
    flags = np.zeros(2, bool)
    step = below.step
    below.step = lambda action: (*step(action)[:3], flags, {})  # type: ignore[method-assign]
    env = TimeLimitWrapper(below, 1)
    env.reset(seed=0)
    assert _truncated(env, 1) == [[True, True]]
    assert flags.tolist() == [False, False]


def test_a_step_that_fails_is_not_counted() -> None:
    below = CountEnv(np_backend)
    env = TimeLimitWrapper(below, 2)
    env.reset(seed=0)
    with pytest.raises(AttributeError):
        env.step(None)
    assert _truncated(env, 2) == [False, True]


def test_the_arguments_are_checked() -> None:
    env = CountEnv(np_backend, 2)
    with pytest.raises(ValueError, match="time_limit is 0, an episode has at least one step"):
        TimeLimitWrapper(env, 0)
    with pytest.raises(TypeError, match=r"time_limit is 2\.5"):
        TimeLimitWrapper(env, 2.5)  # type: ignore[arg-type]
    limited = TimeLimitWrapper(env, 5)
    limited.reset(seed=0)
    with pytest.raises(ValueError, match="one boolean per slot"):
        limited.reset(mask=np.array([True, False, True]))
