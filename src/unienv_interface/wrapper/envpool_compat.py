"""EnvPool's environments as batches of ours. EnvPool needs Gymnasium, and so does this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.base import ComputeBackend
from ..backends.numpy import NumpyComputeBackend
from ..env_base.env import Env, parse_mask
from ..space.space_utils import batch_utils
from ..utils.optional import need
from ._gym_values import batched_from_gym, owned_info, reader, signal_reader, writer

if TYPE_CHECKING:
    import gymnasium.vector.utils as vector_utils
else:
    vector_utils = need("gymnasium.vector.utils", extra="gymnasium")


class FromEnvPool(Env):
    """An EnvPool of ``env_type="gymnasium"`` as a batched environment, on any backend.

    Slots are never restarted by themselves, whatever EnvPool would do: to step one whose episode has ended is a
    RuntimeError, so reset it with a mask. Observations, rewards and flags are arrays of the backend, in memory of
    their own; infos stay NumPy arrays. EnvPool takes seeds only when a pool is made, so ``reset(seed=...)`` makes the
    pool anew with that seed; a seed and a mask of some slots do not go together. ``rng``, which only sampling uses,
    follows the seeds.

    Parameters
    ----------
    env
        The pool, as `envpool.make` returns it with ``env_type="gymnasium"``; synchronous (its ``batch_size`` is
        ``num_envs``) and of one player.
    backend, device
        Where its values go.

    Raises
    ------
    TypeError
        If ``env`` is not a pool of ``env_type="gymnasium"``.
    ValueError
        If the pool is asynchronous or has several players.

    Examples
    --------
    >>> env = FromEnvPool(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=64, seed=0))
    >>> env = ReplayBufferCollectionWrapper(env, ReplayBuffer.create(transition_space(env), 100_000, lanes=64))
    """

    context_space = None

    def __init__(self, env: Any, *, backend: ComputeBackend = NumpyComputeBackend, device: Any = None) -> None:
        if not (hasattr(env, "spec") and hasattr(env, "config") and hasattr(env, "single_observation_space")):
            raise TypeError(
                f"env is {type(env).__qualname__}, wanted a pool of EnvPool with the spaces of Gymnasium: "
                'envpool.make(..., env_type="gymnasium")'
            )
        config = env.config
        if env.is_async:
            raise ValueError(
                f"the pool is asynchronous, with batch_size {config['batch_size']} of num_envs {config['num_envs']}: "
                "make it without batch_size, so that every step is one of all slots"
            )
        if config.get("max_num_players", 1) > 1:
            raise ValueError(f"the pool has max_num_players {config['max_num_players']}, only one player is supported")
        self.env: Any = env
        self.backend, self.device = backend, device
        self.batch_size: int = config["num_envs"]
        actions, observations = env.single_action_space, env.single_observation_space
        place = backend, device
        batches = [vector_utils.batch_space(space, self.batch_size) for space in (actions, observations)]
        self.action_space = batched_from_gym(actions, batches[0], *place, "action")
        self.observation_space = batched_from_gym(observations, batches[1], *place, "observation")
        self._write_action = writer(actions, self.action_space, "action", batched=True)
        self._read_observation = reader(observations, self.observation_space, "observation", batched=True)
        self._read_reward = signal_reader(*place, backend.default_floating_dtype)
        self._read_flag = signal_reader(*place, backend.default_boolean_dtype)
        self.render_mode = env.render_mode
        self.metadata = {"render_modes": list(env.metadata.get("render_modes", []))}
        self._seed_rng(config["seed"])
        self._ended: np.ndarray | None = None  # the slots that wait for a reset, once there was one
        self._is_closed = False

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[None, Any, dict[str, Any]]:
        """Begin new episodes, as in `Env.reset`; EnvPool takes no further keywords."""
        if kwargs:
            raise TypeError(f"reset got {sorted(kwargs)}, EnvPool's environments take no options")
        slots = None if mask is None else parse_mask(mask, self.batch_size, self.backend)
        if slots is not None and not slots.all():
            return self._reset_some(slots, seed)
        if seed is not None:
            self._make_anew(seed)
        observation, info = self.env.reset()
        self._ended = np.zeros(self.batch_size, bool)
        return None, self._read_observation(observation), owned_info(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
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

    def render(self) -> Any:
        """One array of the frames of all slots, or None without a render mode."""
        return None if self.render_mode is None else self.env.render(env_ids=np.arange(self.batch_size))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.env.close()

    def _reset_some(self, slots: np.ndarray, seed: int | None) -> tuple[None, Any, dict[str, Any]]:
        if seed is not None:
            raise ValueError("seed and a mask of some slots: EnvPool is seeded as a whole, reset all slots with a seed")
        if self._ended is None:
            raise RuntimeError("reset with a mask before any reset: there are no other slots to keep yet")
        space, rows = self.observation_space, self.backend.from_numpy(slots, device=self.device, copy=True)
        if not slots.any():
            return None, batch_utils.get_at(space, space.create_empty(), rows), {}
        observation, info = self.env.reset(np.flatnonzero(slots).astype(np.int32))
        self._ended = self._ended & ~slots
        whole = self._read_observation(_spread(observation, slots))
        return None, batch_utils.get_at(space, whole, rows), owned_info(info)

    def _make_anew(self, seed: int) -> None:
        """Replace the pool by one of the same settings with another seed."""
        old = self.env
        config = old.spec.config._replace(seed=seed % 2**31, env_seed=[])  # EnvPool's seeds are 32-bit integers
        self.env = type(old)(type(old.spec)(tuple(config)))
        for name, value in vars(old).items():
            if name.startswith("_render"):  # what envpool.make has set beside the settings
                setattr(self.env, name, value)
        old.close()
        self._seed_rng(seed)

    def _seed_rng(self, seed: int) -> None:
        self.rng = self.backend.random.random_number_generator(seed % 2**31, device=self.device)

    def __repr__(self) -> str:
        task = type(self.env).__name__
        return f"{type(self).__name__}({task}, backend={self.backend}, batch_size={self.batch_size})"


def _spread(observation: Any, slots: np.ndarray) -> Any:
    """The observations of the slots of a mask as those of all slots, with zeros for the others."""
    if isinstance(observation, Mapping):
        return {key: _spread(value, slots) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_spread(value, slots) for value in observation)
    whole = np.zeros((len(slots), *observation.shape[1:]), observation.dtype)
    whole[slots] = observation
    return whole
