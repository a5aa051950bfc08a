"""The small environments that the tests of this folder run on.

They count, on the host, so that JAX has little to compile: the observation tells how many steps the episode has,
where it started (drawn at reset) and what the actions add up to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from catalogue import BACKENDS

from unienv_interface.backends import ComputeBackend
from unienv_interface.env_base.env import Env, parse_mask
from unienv_interface.env_base.funcenv import FuncEnv, FuncEnvBasedEnv, FuncEnvCommonRenderInfo
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import BinarySpace, BoxSpace, CompositeSpace, DictSpace, Space
from unienv_interface.utils.stateclass import StateClass, field

INF = np.inf


class CountEnv(Env):
    """Arrays as observations and actions; one world or a batch, with a context or without, all on the host."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        backend: ComputeBackend,
        batch_size: int | None = None,
        *,
        length: int | None = None,
        with_context: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.backend, self.batch_size, self.length = backend, batch_size, length
        self.render_mode, self.render_fps = render_mode, 20
        self.action_space = self._batched(self._action_space())
        self.observation_space = self._batched(self._observation_space())
        self.context_space = self._batched(self._context_space()) if with_context else None
        self.rng = backend.random.random_number_generator(0)
        self.host_rng = np.random.default_rng(0)
        slots = batch_size or 1
        self.steps = np.zeros(slots, np.int64)
        self.start, self.total = np.zeros(slots), np.zeros(slots)
        self.goal = np.zeros((slots, 2))
        self.closed = 0

    # -- what the environments of this kind differ in

    def _action_space(self) -> Space:
        return BoxSpace(self.backend, [-1.0, -0.1], [1.0, 0.3], "float32")

    def _observation_space(self) -> Space:
        return BoxSpace(self.backend, -INF, INF, "float32", shape=(3,))

    def _context_space(self) -> Space:
        return BoxSpace(self.backend, 0.0, 1.0, "float32", shape=(2,))

    def _effect(self, action: Any) -> np.ndarray:
        """What an action adds to the total of each slot."""
        return self.backend.to_host(action).reshape(-1, 2).sum(axis=-1)

    def _observe(self, slots: np.ndarray) -> Any:
        return np.stack([self.steps, self.start, self.total], axis=-1)[slots]

    def _describe(self, slots: np.ndarray) -> Any:
        """The context."""
        return self.goal[slots]

    # -- what they share

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        slots = np.ones(len(self.steps), bool) if mask is None else parse_mask(mask, self.batch_size, self.backend)
        if seed is not None:
            self.rng = self.backend.random.random_number_generator(seed)
            self.host_rng = np.random.default_rng(seed)
        self.steps[slots], self.total[slots] = 0, 0.0
        self.start[slots] = self.host_rng.random(slots.sum())
        self.goal[slots] = self.host_rng.random((slots.sum(), 2))
        context = None if self.context_space is None else self._native(self.context_space, self._describe(slots))
        return context, self._native(self.observation_space, self._observe(slots)), self._info(slots)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        self.total += self._effect(action)
        every = np.ones(len(self.steps), bool)
        ended = self.steps >= (self.length or INF)
        observation = self._native(self.observation_space, self._observe(every))
        signals = (self.total.copy(), ended, np.zeros_like(ended))
        if self.batch_size is None:
            reward, terminated, truncated = (signal[0].item() for signal in signals)
        else:
            reward, terminated, truncated = (self.backend.from_numpy(signal) for signal in signals)
        return observation, reward, terminated, truncated, self._info(every)

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        return np.full((4, 4, 3), self.steps[0] % 256, np.uint8)

    def close(self) -> None:
        self.closed += 1

    def _info(self, slots: np.ndarray) -> dict[str, Any]:
        if self.batch_size is None:
            return {"steps": int(self.steps[0])}
        return {"steps": self.backend.from_numpy(self.steps[slots].astype(np.int32))}

    def _batched(self, space: Space) -> Space:
        return space if self.batch_size is None else batch_utils.batch_space(space, self.batch_size)

    def _native(self, space: Space, rows: Any) -> Any:
        """Host rows as a value of the space."""
        if isinstance(space, CompositeSpace):
            return {key: self._native(space[key], rows[key]) for key in space}
        return self.backend.from_host(rows if self.batch_size is not None else rows[0], space.dtype)


class DictEnv(CountEnv):
    """Nested dicts of several dtypes as observations, actions and contexts."""

    def _action_space(self) -> Space:
        return DictSpace(
            self.backend,
            {
                "move": BoxSpace(self.backend, -1.0, 1.0, "float32", shape=(2,)),
                "hand": {
                    "grip": BinarySpace(self.backend, (1,)),
                    "gear": BoxSpace(self.backend, 1, 3, "int32", shape=()),
                },
            },
        )

    def _observation_space(self) -> Space:
        return DictSpace(
            self.backend,
            {
                "pose": BoxSpace(self.backend, -INF, INF, "float32", shape=(3,)),
                "image": BoxSpace(self.backend, 0, 255, "uint8", shape=(2, 2, 1)),
                "state": {
                    "odd": BinarySpace(self.backend, ()),
                    "steps": BoxSpace(self.backend, 0, 1000, "int32", shape=()),
                },
            },
        )

    def _context_space(self) -> Space:
        return DictSpace(self.backend, {"goal": BoxSpace(self.backend, 0.0, 1.0, "float32", shape=(2,))})

    def _effect(self, action: Any) -> np.ndarray:
        host = {key: np.atleast_1d(self.backend.to_host(value)) for key, value in action["hand"].items()}
        move = self.backend.to_host(action["move"]).reshape(-1, 2)
        return move.sum(axis=-1) * host["gear"] + host["grip"].reshape(-1)

    def _observe(self, slots: np.ndarray) -> Any:
        steps = self.steps[slots]
        return {
            "pose": super()._observe(slots),
            "image": np.broadcast_to((steps % 256).reshape(-1, 1, 1, 1), (len(steps), 2, 2, 1)),
            "state": {"odd": steps % 2 == 1, "steps": steps},
        }

    def _describe(self, slots: np.ndarray) -> Any:
        return {"goal": super()._describe(slots)}


class UnevenEnv(CountEnv):
    """A batch whose slots have bounds of their own, for observations, contexts and actions."""

    def _batched(self, space: Space) -> Space:
        if self.batch_size is None:
            return space
        low, high = (np.nan_to_num(bound, posinf=1000.0, neginf=-1000.0) for bound in space.bounds)
        wider = [
            BoxSpace(self.backend, low - i, high + i, space.dtype, shape=space.shape) for i in range(self.batch_size)
        ]
        return batch_utils.batch_differing_spaces(wider)


class CountState(StateClass):
    """The state of `CountFuncEnv`. Where an episode starts follows from the seed and the number of resets."""

    seed: int = field(pytree_node=False)
    resets: int = field(pytree_node=False)
    steps: Any
    start: Any
    total: Any


class CountFuncEnv(FuncEnv):
    """The same as functions of a state, with the operations of the backend: JAX can trace them."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, backend: ComputeBackend, batch_size: int | None = None, *, with_context: bool = False) -> None:
        self.backend, self.batch_size = backend, batch_size
        self.dtype = backend.dtype_from_name("float32")
        shape = () if batch_size is None else (batch_size,)
        self.shape = shape
        self.action_space = BoxSpace(backend, -1.0, 1.0, "float32", shape=(*shape, 2))
        self.observation_space = BoxSpace(backend, -INF, INF, "float32", shape=(*shape, 3))
        self.context_space = BoxSpace(backend, 0.0, 1.0, "float32", shape=(*shape, 1)) if with_context else None
        self.closed_states: list[Any] = []

    def initial(self, *, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        zeros = self.backend.zeros(self.shape, dtype=self.dtype)
        return self.reset(CountState(0, 0, zeros, zeros, zeros), seed=seed)

    def reset(
        self, state: CountState, *, seed: int | None = None, mask: Any = None, **kwargs: Any
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        seed, resets = (state.seed, state.resets + 1) if seed is None else (seed, 0)
        start = self.backend.from_host(np.random.default_rng([seed, resets]).random(self.shape), self.dtype)
        zeros = self.backend.zeros(self.shape, dtype=self.dtype)
        fresh = {"steps": zeros, "start": start, "total": zeros}
        if mask is not None:
            fresh = {name: self.backend.where(mask, new, getattr(state, name)) for name, new in fresh.items()}
        state = CountState(seed, resets, **fresh)
        observation = self._observe(state)
        context = None if self.context_space is None else state.start[..., None]
        return state, context, observation, {}

    def step(self, state: CountState, action: Any) -> tuple[Any, Any, Any, Any, Any, dict[str, Any]]:
        total = state.total + self.backend.sum(action, axis=-1, dtype=self.dtype)
        state = state.replace(steps=state.steps + 1, total=total)
        ended = state.steps >= 100
        return state, self._observe(state), state.total, ended, ~ended & ended, {}

    def _observe(self, state: CountState) -> Any:
        return self.backend.stack([state.steps, state.start, state.total], axis=-1)

    def close(self, state: CountState) -> None:
        self.closed_states.append(state)

    def render_init(
        self, state: CountState, *, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> tuple[Any, Any, FuncEnvCommonRenderInfo]:
        return state, {"frames": 0, **kwargs}, FuncEnvCommonRenderInfo(render_mode, 15)

    def render_image(self, state: CountState, render_state: Any) -> tuple[Any, Any, Any]:
        steps = int(self.backend.to_host(state.steps).reshape(-1)[0])
        return np.full((2, 2, 3), steps, np.uint8), state, {**render_state, "frames": render_state["frames"] + 1}

    def render_close(self, state: CountState, render_state: Any) -> CountState:
        return state


EnvMaker = Callable[[], Env]


def _makers(backend: ComputeBackend) -> dict[str, EnvMaker]:
    return {
        "count": lambda: CountEnv(backend),
        "count_render": lambda: CountEnv(backend, with_context=True, length=3, render_mode="rgb_array"),
        "count_batch": lambda: CountEnv(backend, 3, with_context=True),
        "count_batch_of_one": lambda: CountEnv(backend, 1, with_context=True),
        "dict": lambda: DictEnv(backend, with_context=True),
        "dict_batch": lambda: DictEnv(backend, 3, with_context=True),
        "uneven": lambda: UnevenEnv(backend, 3, with_context=True),
        "func": lambda: FuncEnvBasedEnv(CountFuncEnv(backend, with_context=True), render_mode="rgb_array"),
        "func_batch": lambda: FuncEnvBasedEnv(CountFuncEnv(backend, 3)),
    }


# JAX compiles what it is shown for the first time: it gets one environment of each sort.
ON_JAX = ("count", "count_batch", "dict", "func_batch")

ENVS: dict[str, EnvMaker] = {
    f"{backend}-{name}": make
    for backend in BACKENDS
    for name, make in _makers(backend).items()
    if backend.simplified_name != "jax" or name in ON_JAX
}


def actions_of(env: Env, count: int, seed: int = 0) -> list[Any]:
    """Actions of an environment, the same for the same seed."""
    rng, drawn = env.backend.random.random_number_generator(seed), []
    for _ in range(count):
        rng, action = env.action_space.sample(rng)
        drawn.append(action)
    return drawn


def mask_of(env: Env, *slots: bool) -> Any:
    return env.backend.from_numpy(np.array(slots, bool))
