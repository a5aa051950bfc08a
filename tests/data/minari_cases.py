"""Minari datasets recorded with `minari.DataCollector` over small environments, one for each kind of space."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Minari's own
    import minari
    from minari.data_collector import EpisodeBuffer

Space = spaces.Space
COLOURS = "red green blue"
TEXT = spaces.Text(24, charset="".join(sorted({*COLOURS, *"tohe "})))  # each once: older Gymnasium counts them

# name: observation space, action space, further options of the collector
CASES: dict[str, tuple[Space, Space, dict[str, Any]]] = {
    "box": (spaces.Box(-9, 9, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float64), {}),
    "goal": (
        spaces.Dict(
            {
                "observation": spaces.Box(-9, 9, (4,), np.float64),
                "achieved_goal": spaces.Box(-9, 9, (2,), np.float64),
                "desired_goal": spaces.Box(-9, 9, (2,), np.float64),
            }
        ),
        spaces.Box(-1, 1, (2,), np.float32),
        {},
    ),
    "discrete": (spaces.Discrete(7, start=-2), spaces.Discrete(3), {}),
    "image": (spaces.Box(0, 255, (32, 40, 3), np.uint8), spaces.Discrete(4), {}),
    "raw image": (spaces.Box(0, 255, (32, 40), np.uint8), spaces.Discrete(4), {"jpeg_encoding": False}),
    "text": (
        spaces.Dict(
            {"image": spaces.Box(0, 255, (5, 5, 3), np.uint8), "mission": TEXT, "direction": spaces.Discrete(4)}
        ),
        spaces.Discrete(7),
        {},
    ),
    "tuple": (
        spaces.Tuple((spaces.Discrete(5), spaces.Dict({"x": spaces.Box(-1, 1, (2, 2), np.float16)}))),
        spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.Box(-1, 1, (), np.float32))),
        {},
    ),
    "multi": (spaces.MultiDiscrete([[2, 3], [4, 5]]), spaces.MultiBinary(5), {}),
    "integers": (spaces.Box(-100, 100, (3,), np.int16), spaces.Box(0, 200, (1,), np.uint8), {}),
}


class ScriptedEnv(gymnasium.Env):
    """Episodes of given lengths, which end as given: "terminated", "truncated", or not by themselves."""

    def __init__(self, observation_space: Space, action_space: Space, script: list[tuple[int, str]]) -> None:
        self.observation_space, self.action_space, self.script = observation_space, action_space, script
        self._episode, self._rng = -1, np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        self.observation_space.seed(self._episode)
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        length, ending = self.script[self._episode]
        is_end = self._step == length
        ends = (is_end and ending == "terminated", is_end and ending == "truncated")
        return self.observation_space.sample(), float(self._rng.normal()), *ends, self._info()

    def _info(self) -> dict[str, Any]:
        return {
            "count": self._step,
            "where": self._rng.normal(size=2).astype(np.float32),
            "inner": {"is_even": self._step % 2 == 0, "word": "ab" * (self._step % 3)},
        }


SCRIPT = [(3, "terminated"), (1, "truncated"), (5, "truncated"), (1, "terminated"), (2, ""), (4, "terminated")]


@contextmanager
def quiet() -> Iterator[None]:
    """Minari warns of everything that a published dataset should say about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def minari_folder(path: Path) -> Iterator[None]:
    """Have Minari keep its datasets here."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def record(
    case: str, dataset_id: str, *, infos: bool = False, script: list[tuple[int, str]] = SCRIPT, **options: Any
) -> minari.MinariDataset:
    """Record a dataset in the folder that Minari keeps its datasets in."""
    observation_space, action_space, further = CASES[case]
    with quiet():
        env = minari.DataCollector(
            ScriptedEnv(observation_space, action_space, script), record_infos=infos, **further, **options
        )
        action_space.seed(0)
        for number, (length, _) in enumerate(script):
            env.reset(seed=number)
            for _ in range(length):
                env.step(action_space.sample())
        dataset = env.create_dataset(dataset_id)
        env.close()
        env._tmp_dir.cleanup()  # or it warns of having to do so itself
    return dataset


def write(dataset_id: str, episodes: list[dict[str, Any]], observation_space: Space, action_space: Space) -> Path:
    """Write episodes as they are given; the folder of the data."""
    with quiet():
        minari.create_dataset_from_buffers(
            dataset_id,
            [EpisodeBuffer(id=number, **episode) for number, episode in enumerate(episodes)],
            observation_space=observation_space,
            action_space=action_space,
        )
    return Path(os.environ["MINARI_DATASETS_PATH"]) / dataset_id / "data"


def boxes(steps: int, *, seed: int = 0, **further: Any) -> dict[str, Any]:
    """One episode of numbers, which fits `BOXES`."""
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(steps + 1, 3)),
        "actions": rng.normal(size=(steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=steps),
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, bool),
        **further,
    }


BOXES = (spaces.Box(-np.inf, np.inf, (3,), np.float64), spaces.Box(-np.inf, np.inf, (2,), np.float32))
