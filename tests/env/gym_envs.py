"""Small environments for the tests of the bridge to Gymnasium and of the wrappers that record."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gs

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.env import Env, parse_mask
from unienv_interface.space import BoxSpace

# Every kind of space that a value of ours has, and the forms of theirs that ours do not tell apart.
KINDS = gs.Dict(
    {
        "box": gs.Box(-1.0, 1.0, (2, 3)),
        "box64": gs.Box(-1.0, 1.0, (2,), np.float64),
        "number": gs.Box(-1.0, 1.0, ()),
        "whole number": gs.Box(-3, 3, (), np.int32),
        "image": gs.Box(0, 255, (4, 4, 3), np.uint8),
        "flags": gs.Box(0, 1, (3,), np.bool_),
        "discrete": gs.Discrete(5, start=-2),
        "multi-discrete": gs.MultiDiscrete([3, 4]),
        "multi-binary": gs.MultiBinary(4),
        "text": gs.Text(5),
        "tuple": gs.Tuple((gs.Discrete(3), gs.Dict({"x": gs.Box(0.0, 1.0, (1,))}))),
        "sequence": gs.Sequence(gs.Box(0.0, 1.0, (2,))),
        "stacked sequence": gs.Sequence(gs.Box(0.0, 1.0, (2,)), stack=True),
        "one of": gs.OneOf((gs.Discrete(3), gs.Box(0.0, 1.0, (2,)))),
        "graph": gs.Graph(gs.Box(-1.0, 1.0, (3,)), gs.Discrete(4)),
    }
)


class EveryKind(gymnasium.Env):
    """Observations and actions of every kind, or of those named; an action must be just what its space wants."""

    def __init__(self, *names: str) -> None:
        kinds = gs.Dict({name: KINDS[name] for name in names or KINDS})
        self.observation_space, self.action_space = copy.deepcopy(kinds), copy.deepcopy(kinds)  # spaces have generators
        self.received: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for key, space in self.action_space.items():
            value = action[key]
            if isinstance(space, gs.Box) and space.shape == ():
                value = np.asarray(value)  # Gymnasium's vector environments make a scalar of it
            assert value in space, (key, value)
            assert space.dtype is None or getattr(value, "dtype", space.dtype) == space.dtype, (key, value)
        self.received = action
        return self.observation_space.sample(), 0.5, False, False, {"kind": "step"}


class Reusing(gymnasium.Env):
    """Hands out the same observation, infos and frame every time, and works in the action it is given."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = gs.Dict({"a": gs.Box(-100.0, 100.0, (2,)), "b": gs.Tuple((gs.Box(0, 100, (1,), np.int64),))})
    action_space = gs.Box(-1.0, 1.0, (2,))

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        self.render_mode = render_mode
        self.observation = {"a": np.zeros(2, np.float32), "b": (np.zeros(1, np.int64),)}
        self.info: dict[str, Any] = {}
        self.frame = np.zeros((6, 8, 3), np.uint8)
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation["a"][:] = self.np_random.uniform(-1, 1, 2)
        self.observation["b"][0][:] = 0
        self.frame[:] = 0
        self.info["steps"] = np.zeros(1)
        self.info["nested"] = {"options": dict(options or {})}
        return self.observation, self.info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        action *= 2
        self.observation["a"] += action
        self.observation["b"][0][:] += 1
        self.frame += 1
        self.info["steps"] += 1
        self.info["nested"]["options"] = {}
        return self.observation, np.float32(1.5), np.bool_(False), np.bool_(self.frame[0, 0, 0] >= 5), self.info

    def render(self) -> np.ndarray:
        return self.frame

    def close(self) -> None:
        self.closed += 1


class Walk(Env):
    """One walker or a batch of them on a line, on any backend: the context is the goal, an episode ends past 1.

    Frames have one colour per walker, which counts the steps of its episode.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_fps = 10

    def __init__(
        self,
        backend: ComputeBackend = NumpyComputeBackend,
        batch_size: int | None = None,
        render_mode: str | None = None,
        has_context: bool = True,
    ) -> None:
        self.backend, self.batch_size, self.render_mode = backend, batch_size, render_mode
        self.shape = () if batch_size is None else (batch_size,)
        self.observation_space = BoxSpace(backend, -10.0, 10.0, "float32", shape=(*self.shape, 2))
        self.action_space = BoxSpace(backend, -1.0, 1.0, "float32", shape=(*self.shape, 1))
        if has_context:
            self.context_space = BoxSpace(backend, 0.0, 1.0, "float32", shape=(*self.shape, 1))
        self.rng = backend.random.random_number_generator()
        self.host_rng = np.random.default_rng()
        self.places = np.zeros((*self.shape, 2), np.float32)
        self.steps = np.zeros(self.shape, np.int64)
        self.options: dict[str, Any] = {}

    def reset(self, *, mask: Any = None, seed: int | None = None, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
        if seed is not None:
            self.rng, self.host_rng = self.backend.random.random_number_generator(seed), np.random.default_rng(seed)
        self.options = options
        slots = ... if mask is None else parse_mask(mask, self.batch_size, self.backend)
        self.places[slots] = self.host_rng.uniform(-0.5, 0.5, self.places[slots].shape)
        self.steps[slots] = 0
        goals = self.host_rng.random(self.places[slots][..., :1].shape, np.float32)
        context = None if self.context_space is None else self.ours(goals)
        return context, self.ours(self.places[slots]), self.infos(slots)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.places += self.backend.to_numpy(action)
        self.steps += 1
        terminated = abs(self.places[..., 0]) > 1
        truncated = self.steps >= 6
        if self.batch_size is None:
            return self.ours(self.places), float(self.places[0]), bool(terminated), bool(truncated), self.infos(...)
        signals = self.ours(self.places[:, 0]), self.ours(terminated), self.ours(truncated)
        return self.ours(self.places), *signals, self.infos(...)

    def infos(self, slots: Any) -> dict[str, Any]:
        names = "walker" if self.batch_size is None else ["walker"] * len(self.steps[slots])
        return {"steps": self.ours(self.steps[slots]), "names": names}

    def ours(self, values: np.ndarray) -> Any:
        return self.backend.from_numpy(np.asarray(values), copy=True)

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        colours = self.steps.astype(np.uint8)[..., None, None, None]
        return self.ours(np.broadcast_to(colours, (*self.shape, 6, 8, 3)))
