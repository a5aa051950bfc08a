"""`FromEnvPool`: pools of EnvPool as batched environments. EnvPool and this module need Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.numpy import NumpyComputeBackend
from ..backends.serialization import BackendLike
from ..utils.optional import need
from ._from_gymnasium import FromGymnasiumEnv

if TYPE_CHECKING:
    import gymnasium
    import gymnasium.vector.utils as vector_utils
else:
    gymnasium = need("gymnasium", extra="envpool")
    vector_utils = need("gymnasium.vector.utils", extra="envpool")


class FromEnvPool(FromGymnasiumEnv):
    """An EnvPool of ``env_type="gymnasium"`` as a batched environment on any backend; else like `FromGymnasiumEnv`.

    Slots never restart by themselves: stepping a slot whose episode has ended raises a RuntimeError; reset it with a
    mask first. EnvPool takes a seed only when a pool is made, so ``reset(seed=...)`` makes a new pool with this seed,
    for all slots.

    Parameters
    ----------
    env
        The pool of `envpool.make` with ``env_type="gymnasium"``; synchronous (its ``batch_size`` is ``num_envs``) and
        with one player.
    backend, device
        The backend and the device of all values.

    Raises
    ------
    TypeError
        ``env`` is not a pool of ``env_type="gymnasium"``.
    ValueError
        The pool is asynchronous or has several players.

    Examples
    --------
    >>> env = FromEnvPool(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=64, seed=0))  # doctest: +SKIP
    >>> buffer = ReplayBuffer.create(transition_space(env), capacity=64_000, lanes=64)  # doctest: +SKIP
    >>> recorder = ReplayBufferCollectionWrapper(env, buffer)  # doctest: +SKIP
    """

    def __init__(self, env: Any, *, backend: BackendLike = NumpyComputeBackend, device: Any = None) -> None:
        super().__init__(PoolVectorEnv(env), backend=backend, device=device)


class PoolVectorEnv(gymnasium.vector.VectorEnv):
    """A pool as a vector environment of Gymnasium with ``AutoresetMode.DISABLED``."""

    pool: Any = None

    def __init__(self, pool: Any) -> None:
        if not all(hasattr(pool, name) for name in ("spec", "config", "single_observation_space")):
            raise TypeError(
                f"env is {type(pool).__qualname__}, wanted a pool of EnvPool with the spaces of Gymnasium: "
                'envpool.make(..., env_type="gymnasium")'
            )
        config = pool.config
        if pool.is_async:
            raise ValueError(
                f"the pool is asynchronous, with batch_size {config['batch_size']} of num_envs {config['num_envs']}: "
                "make it without batch_size, so that every step is one of all slots"
            )
        if config.get("max_num_players", 1) > 1:
            raise ValueError(f"the pool has max_num_players {config['max_num_players']}, only one player is supported")
        self.pool = pool
        self.num_envs = config["num_envs"]
        self.render_mode = pool.render_mode
        self.metadata = {**pool.metadata, "autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        self.single_action_space, self.single_observation_space = pool.action_space, pool.single_observation_space
        self.action_space = vector_utils.batch_space(self.single_action_space, self.num_envs)
        self.observation_space = vector_utils.batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or the slots of the option ``reset_mask``; the other slots then have zeros and no infos."""
        options = dict(options or {})
        slots = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"options {sorted(options)}: EnvPool's environments take none")
        if slots is not None:
            if seed is not None:
                raise ValueError("seed with a mask: EnvPool is seeded as a whole, reset all slots with a seed")
            observation, info = self.pool.reset(np.flatnonzero(slots).astype(np.int32))
            return _spread(observation, slots), info
        if seed is not None:
            self._remake(seed)
        return self.pool.reset()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.pool.step(actions)

    def render(self) -> Any:
        return self.pool.render(env_ids=np.arange(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        if self.pool is not None:  # Gymnasium closes refused ones, too
            self.pool.close()

    def _remake(self, seed: int) -> None:
        """Replace the pool by a new pool with the same settings and another seed."""
        old = self.pool
        config = old.spec.config._replace(seed=seed % 2**31, env_seed=[])  # EnvPool's seeds are 32-bit integers
        self.pool = type(old)(type(old.spec)(tuple(config)))
        for name, value in vars(old).items():
            if name.startswith("_render"):  # set by envpool.make outside of the settings
                setattr(self.pool, name, value)
        old.close()

    def __repr__(self) -> str:
        return f"{type(self.pool).__name__}(num_envs={self.num_envs})"


def _spread(observation: Any, slots: np.ndarray) -> Any:
    """Spread the observations of the slots of a mask to all slots, with zeros in the others."""
    if isinstance(observation, Mapping):
        return {key: _spread(value, slots) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_spread(value, slots) for value in observation)
    all_rows = np.zeros((len(slots), *observation.shape[1:]), observation.dtype)
    all_rows[slots] = observation
    return all_rows
