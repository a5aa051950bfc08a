"""The space of one transition of an environment, for the buffer it is recorded into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unienv_interface.env_base.env import Env
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.space.space_utils import unbatch_spaces


def transition_space(
    env: Env,
    *,
    next_obs: bool = True,
    done: bool = False,
    context: bool = False,
    env_index: bool = False,
    episode_id: bool = False,
    step: bool = False,
    timestamp: bool = False,
    info: Mapping[str, Space] | None = None,
) -> DictSpace:
    """The space of one transition: obs, action, reward, terminated, truncated, and what else is asked for.

    - `next_obs`: the observation that the step led to. Without it, the last observation of an episode is not kept.
    - `done`: terminated or truncated.
    - `context`: that of the last reset.
    - `env_index`: the slot of a batched environment.
    - `episode_id`, `step`: which episode, counted on over all slots, and which step of it; from 0.
    - `timestamp`: when the step returned, in seconds since the epoch.
    - `info`: keys of the infos to be recorded, with the space of each. A key that is not in the infos of every step
      is refused when it is missing, unless the key "_" + name, a BinarySpace, is asked for too: it says where it is.

    Of a batched environment this is the transition of one slot.
    """
    backend, device = env.backend, env.device
    flag = BinarySpace(backend, (), device=device)
    index = BoxSpace(backend, 0, float("inf"), backend.default_integer_dtype, device, ())
    number = backend.default_floating_dtype
    spaces: dict[str, Space] = {
        "obs": single_space(env, env.observation_space),
        "action": single_space(env, env.action_space),
        "reward": BoxSpace(backend, -float("inf"), float("inf"), number, device, ()),
        "terminated": flag,
        "truncated": flag,
    }
    if next_obs:
        spaces["next_obs"] = spaces["obs"]
    if done:
        spaces["done"] = flag
    if context:
        if env.context_space is None:
            raise ValueError(f"context: {env!r} has no context_space, so there is none to record")
        spaces["context"] = single_space(env, env.context_space)
    if env_index:
        if env.batch_size is None or env.batch_size == 1:
            raise ValueError(f"env_index: {env!r} is one environment, so there is no slot to record")
        spaces["env_index"] = index
    for name, wanted in (("episode_id", episode_id), ("step", step)):
        if wanted:
            spaces[name] = index
    if timestamp:
        spaces["timestamp"] = _timestamp_space(backend, device)
    if info is not None:
        if not isinstance(info, Mapping):
            raise TypeError(f"info is {info!r:.80}, wanted the space of each info by its name: {{'x_position': space}}")
        spaces["info"] = DictSpace(backend, info, device)
    return DictSpace(backend, spaces, device)


def single_space(env: Env, space: Space) -> Any:
    """The space of one slot, for one of an environment's spaces."""
    return space if env.batch_size is None else next(iter(unbatch_spaces(space)))


def _timestamp_space(backend: Any, device: Any) -> BoxSpace:
    double = backend.dtype_from_name("float64")
    if backend.dtype_name(backend.zeros((), dtype=double).dtype) != "float64":
        raise ValueError(
            f"timestamp: {backend} has no 64-bit floats here, and 32 bits tell times apart only by minutes: record "
            f"into a buffer on another backend, or enable them (jax.config.update('jax_enable_x64', True))"
        )
    return BoxSpace(backend, -float("inf"), float("inf"), double, device, ())
