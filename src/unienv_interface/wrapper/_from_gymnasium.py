"""`FromGymnasiumEnv`: environments of Gymnasium as environments of UniEnv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.numpy import NumpyComputeBackend
from ..backends.serialization import BackendLike, parse_backend
from ..env_base.env import ActType, Env, ObsType, RenderFrame, parse_mask
from ..space.space_utils import batch_utils
from ..space.space_utils.gym_utils import from_gym_space
from ..utils.optional import need
from ._gym_values import (
    batched_from_gym,
    owned_info,
    reader,
    rows_of_info,
    signal_reader,
    writer,
)

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = need("gymnasium", extra="gymnasium")

_ADVICE = (
    "make it with autoreset_mode=AutoresetMode.DISABLED (in gymnasium.make_vec: vectorization_mode='sync' or 'async' "
    "and vector_kwargs={'autoreset_mode': AutoresetMode.DISABLED})"
)


class FromGymnasiumEnv(Env[Any, None, ObsType, ActType, RenderFrame, Any, Any, Any]):
    """A `gymnasium.Env`, or a `gymnasium.vector.VectorEnv` as a batch, on any backend.

    Observations are copies: the environment cannot change them later. A single environment returns rewards and flags as
    float and bool, a batch as arrays of the backend. Infos keep Gymnasium's format, with NumPy arrays; the infos of a
    batch are a dict of arrays with masks `_key`. The context is None. Seeds are passed on unchanged, so a seed gives
    the same episode as without the bridge; the seed of `rng`, which only sampling uses, is derived from them.

    A batch never restarts episodes, in any autoreset mode of the vector environment: stepping a slot whose episode has
    ended raises a RuntimeError; reset the slot with a mask first. A vector environment that resets in the same step
    (`AutoresetMode.SAME_STEP`) hides the last observation and raises a ValueError. A vector environment that can only
    reset all slots, such as CartPoleVectorEnv, raises a ValueError at a reset with a mask of some slots.

    Parameters
    ----------
    env
        The environment of Gymnasium.
    backend, device
        The backend and the device of observations and actions, and of the rewards and flags of a batch.

    Raises
    ------
    TypeError
        `env` is not an environment of Gymnasium, or one of its spaces has no counterpart.
    ValueError
        `env` resets in the step that ends an episode, which hides the last observation.

    Examples
    --------
    >>> env = FromGymnasiumEnv(gymnasium.make("Pendulum-v1"), backend="torch")
    >>> context, observation, info = env.reset(seed=0)
    >>> type(observation).__name__
    'Tensor'
    """

    context_space = None

    def __init__(
        self,
        env: gymnasium.Env | gymnasium.vector.VectorEnv,
        *,
        backend: BackendLike = NumpyComputeBackend,
        device: Any = None,
    ) -> None:
        if not isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
            raise TypeError(f"env is {type(env).__qualname__}, wanted a gymnasium.Env or gymnasium.vector.VectorEnv")
        self.env: Any = env
        self.backend = parse_backend(backend)
        self.device = device
        self._sampling: list[Any] = [None, None]  # the generator, made on first use, and its seed
        self._closed = False
        if isinstance(env, gymnasium.vector.VectorEnv):
            self._init_batch(env)
        else:
            self._init_single(env)

    def _init_single(self, env: gymnasium.Env) -> None:
        self.batch_size = None
        self.action_space = from_gym_space(env.action_space, self.backend, device=self.device)
        self.observation_space = from_gym_space(env.observation_space, self.backend, device=self.device)
        self._write_action = writer(env.action_space, self.action_space, "action")
        self._read_observation = reader(env.observation_space, self.observation_space, "observation")

    def _init_batch(self, env: gymnasium.vector.VectorEnv) -> None:
        self.batch_size = env.num_envs
        actions, observations = env.single_action_space, env.single_observation_space
        backend_and_device = self.backend, self.device
        self.action_space = batched_from_gym(actions, env.action_space, *backend_and_device, "action")
        self.observation_space = batched_from_gym(
            observations, env.observation_space, *backend_and_device, "observation"
        )
        self._write_action = writer(actions, self.action_space, "action", batched=True)
        self._read_observation = reader(observations, self.observation_space, "observation", batched=True)
        self._read_reward = signal_reader(*backend_and_device, self.backend.default_floating_dtype)
        self._read_flag = signal_reader(*backend_and_device, self.backend.default_boolean_dtype)
        self._resets_some = _resets_some(env)
        self._ended: np.ndarray | None = None  # the slots that need a reset; None before the first reset

    @property
    def rng(self) -> Any:
        """The generator for sampling, made on first use: most resets are not followed by sampling."""
        rng, seed = self._sampling
        if rng is None:
            seed = None if seed is None else _independent_seed(seed)
            rng = self._sampling[0] = self.backend.random.random_number_generator(seed, device=self.device)
        return rng

    @rng.setter
    def rng(self, value: Any) -> None:
        self._sampling[0] = value

    # -- reset, step, render, close ------------------------------------------------------------------------

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.batch_size is not None:
            return self._step_batch(action)
        observation, reward, terminated, truncated, info = self.env.step(self._write_action(action))
        return (
            self._read_observation(observation),
            float(reward),
            bool(terminated),
            bool(truncated),
            owned_info(info) if info else {},
        )

    def _step_batch(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._ended is None:
            raise RuntimeError("step before reset: there is no state to step from")
        if self._ended.any():
            raise RuntimeError(f"the episodes of slots {np.flatnonzero(self._ended)} have ended: reset(mask=...) first")
        observation, reward, terminated, truncated, info = self.env.step(self._write_action(action))
        self._ended = np.logical_or(terminated, truncated)
        return (
            self._read_observation(observation),
            self._read_reward(reward),
            self._read_flag(terminated),
            self._read_flag(truncated),
            owned_info(info),
        )

    def reset(
        self, *, mask: Any = None, seed: int | None = None, options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> tuple[None, Any, dict[str, Any]]:
        """Begin a new episode, as in `Env.reset`. Other keywords are added to Gymnasium's `options`."""
        if options is not None or kwargs:
            options = {**(options or {}), **kwargs}
        chosen = None if mask is None else parse_mask(mask, self.batch_size, self.backend)
        if seed is not None:
            self._sampling[:] = None, seed
        if chosen is not None and not chosen.all():
            return self._reset_some(chosen, seed, options or {})
        observation, info = self.env.reset(seed=seed, options=options)
        if self.batch_size is not None:
            self._ended = np.zeros(self.batch_size, bool)
        return None, self._read_observation(observation), owned_info(info) if info else {}

    def _reset_some(
        self, mask: np.ndarray, seed: int | None, options: Mapping[str, Any]
    ) -> tuple[None, Any, dict[str, Any]]:
        if self._ended is None:
            raise RuntimeError("reset with a mask before any reset: there are no other slots to keep yet")
        space, rows = self.observation_space, self.backend.from_numpy(mask, device=self.device)
        if not mask.any():
            return None, batch_utils.get_at(space, space.create_empty(), rows), {}
        if not self._resets_some:
            raise ValueError(f"{self.env} can only be reset as a whole, not slots {np.flatnonzero(mask)}: {_ADVICE}")
        observation, info = self.env.reset(seed=seed, options={**options, "reset_mask": mask.copy()})
        self._ended = self._ended & ~mask
        return (
            None,
            batch_utils.get_at(space, self._read_observation(observation), rows),
            rows_of_info(info, mask),
        )

    def render(self) -> Any:
        """Gymnasium's frame, or None without a render mode. Frames of a batch of one shape become one array."""
        if self.render_mode is None:
            return None
        frame = self.env.render()
        if isinstance(frame, np.ndarray):
            return frame.copy()
        if not isinstance(frame, (tuple, list)) or not all(isinstance(image, np.ndarray) for image in frame):
            return frame
        is_alike = len({image.shape for image in frame}) == 1
        return np.stack(frame) if is_alike and self.batch_size is not None else [image.copy() for image in frame]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()

    # -- metadata of Gymnasium's environment ---------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """The `metadata` of the Gymnasium environment."""
        return self.env.metadata

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self.env.metadata = value

    @property
    def render_mode(self) -> str | None:
        """The `render_mode` of the Gymnasium environment."""
        return self.env.render_mode

    @render_mode.setter
    def render_mode(self, value: str | None) -> None:
        self.env.unwrapped.render_mode = value  # it is read-only in wrappers

    @property
    def render_fps(self) -> int | None:
        """The frames per second in `metadata["render_fps"]`, or None."""
        return self.metadata.get("render_fps")

    @render_fps.setter
    def render_fps(self, value: int | None) -> None:
        self.metadata = {**self.metadata, "render_fps": value}

    # -- layers --------------------------------------------------------------------------------------------

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether the bridge, or a layer of the Gymnasium environment below it, has the attribute."""
        return any(hasattr(layer, name) for layer in self._layers())

    def get_wrapper_attr(self, name: str) -> Any:
        for layer in self._layers():
            if hasattr(layer, name):
                return getattr(layer, name)
        raise AttributeError(f"neither {type(self).__name__} nor a layer of {self.env} below it has {name!r}")

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set the attribute on the outermost layer that has it, or on the bottom layer."""
        layers = list(self._layers())
        setattr(next((layer for layer in layers if hasattr(layer, name)), layers[-1]), name, value)

    def _layers(self) -> Iterator[Any]:
        yield self
        layer = self.env
        while isinstance(layer, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
            yield layer
            layer = layer.env
        yield layer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env}, backend={self.backend})"


def _resets_some(env: gymnasium.vector.VectorEnv) -> bool:
    """Whether a vector environment can reset some slots; raises a ValueError if it restarts in the same step."""
    declared = env.metadata.get("autoreset_mode")
    mode = getattr(declared, "value", declared)  # some declare the value of the enum
    if mode == "SameStep":
        raise ValueError(f"{env} resets in the step that ends an episode, which hides its last observation: {_ADVICE}")
    if mode == "Disabled":
        return True
    # In NEXT_STEP, Gymnasium's two classes do not restart a slot that was reset before the next step, except workers
    # without shared memory. Gymnasium before 1.1 has no modes and no masks.
    base = env.unwrapped
    if isinstance(base, gymnasium.vector.AsyncVectorEnv) and not base.shared_memory:
        return False
    known = isinstance(base, (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv))
    return known and hasattr(base, "autoreset_mode")


def _independent_seed(seed: int) -> int:
    """Derive a seed for `rng` whose draws are independent of the environment with the same seed."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
