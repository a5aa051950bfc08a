"""An environment for Gymnasium that counts, registered as `recordings_gym:Odd-v0`."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import gymnasium
import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space import BoxSpace
from unienv_interface.wrapper.gym_compat import ToGymnasiumEnv

BACKEND = NumpyComputeBackend


class OddEnv(Env):
    """Counts its steps up to seven, with a context drawn at each reset and infos of several kinds."""

    backend = BACKEND

    def __init__(self) -> None:
        self.action_space = BoxSpace(BACKEND, 0, 1, "int64", shape=())
        self.observation_space = BoxSpace(BACKEND, 0.0, 10.0, "float32", shape=(1,))
        self.context_space = BoxSpace(BACKEND, 0.0, 1.0, "float32", shape=())
        self._steps = 0

    def _observation(self) -> np.ndarray:
        return np.array([self._steps], np.float32)

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        if seed is not None:
            self.rng = BACKEND.random.random_number_generator(seed)
        self._steps = 0
        return self.sample_context(), self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        steps = self._steps
        half = (steps - 1) // 2 if steps % 2 else (steps - 1) / 2  # an int at first, a float next
        info: dict[str, Any] = {"steps": steps, "half": half, "is_even": steps % 2 == 0, "words": "some"}
        if steps % 3 == 0:
            info["odd"] = np.array([1, 2]) * steps
        return self._observation(), 1.0, steps == 7, False, info

    def render(self) -> None:
        return None


class TiredEnv(gymnasium.Env):
    """Fails in its fifth step."""

    observation_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 5:
            raise ValueError("motor on fire")
        return np.zeros(1, np.float32), 1.0, False, False, {}


class LeavingEnv(TiredEnv):
    """Ends the program in its third step, as some do when their window is closed."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._steps == 2:
            sys.exit(0)
        return super().step(action)


class UnmadeEnv(TiredEnv):
    def __init__(self, error: str) -> None:
        raise getattr(builtins, error)("no such part")


class TalkingEnv(TiredEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        print("here I am", flush=True)
        return super().reset()


class BlindEnv(OddEnv):
    """Observes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = BoxSpace(BACKEND, 0.0, 1.0, "float32", shape=(0,))
        self.context_space = None

    def _observation(self) -> np.ndarray:
        return np.zeros(0, np.float32)

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        self._steps = 0
        return None, self._observation(), {}


gymnasium.register("Tired-v0", entry_point=TiredEnv)
gymnasium.register("Leaving-v0", entry_point=LeavingEnv)
gymnasium.register("Unmade-v0", entry_point=UnmadeEnv)
gymnasium.register("Talking-v0", entry_point=TalkingEnv)
gymnasium.register("Blind-v0", entry_point=lambda: ToGymnasiumEnv(BlindEnv()), disable_env_checker=True)
gymnasium.register("Odd-v0", entry_point=lambda: ToGymnasiumEnv(OddEnv()), disable_env_checker=True)
