"""The space of a transition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from unienv_interface.env_base.env import Env
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.space.space_utils import unbatch_spaces

from ...storages.shared_next_obs import SharedNextObsSpace
from .precision import with_dtype

#: Columns that may have another precision; that of `next_obs` is that of `obs`.
_OF_ANY_PRECISION = ("obs", "action", "reward", "context", "env_index", "episode_id", "step")


def transition_space(
    env: Env,
    *,
    next_obs: bool | Literal["shared"] = True,
    done: bool = False,
    context: bool = False,
    env_index: bool = False,
    episode_id: bool = False,
    step: bool = False,
    timestamp: bool = False,
    info: Mapping[str, Space] | None = None,
    extras: Mapping[str, Space] | None = None,
    dtype: Mapping[str, Any] | None = None,
) -> DictSpace:
    """The space of one transition: obs, action, reward, terminated, truncated, and optional columns.

    Of a batched environment this is the transition of one slot.

    Parameters
    ----------
    env
        The environment that is recorded.
    next_obs
        The observation that the step led to. Without it, the last observation of an episode is not kept. "shared": a
        buffer of this space stores each observation once, and reads the same (see `SharedNextObsStorage`).
    done
        Terminated or truncated.
    context
        The context of the last reset.
    env_index
        The slot of a batched environment.
    episode_id
        The number of the episode, counted over all slots from 0.
    step
        The number of the step in its episode, from 0.
    timestamp
        When the step returned, in seconds since the epoch.
    info
        Keys of the infos to be recorded, with the space of each. A key that is missing in the infos of a step is
        refused, unless the key "_" + name, a BinarySpace, is asked for too: it says where the info is there.
    extras
        Columns of the learner's, with the space of each, which it hands to the recorder at every step:
        `recorder.step(action, extras={"logp": logp, "value": value})`.
    dtype
        Another precision than the environment's, by key: `{"obs": "float32", "reward": "float64"}`, in a dict of
        observations also `{"obs": {"state": "float16"}}`. A step is converted once, when it is written; what the
        environment returns stays as it is. Floats become other floats and integers other integers; a number that the
        dtype cannot hold is refused at the write. `next_obs` is as `obs`.

    Returns
    -------
    DictSpace
        The space, with these keys.

    Raises
    ------
    ValueError
        The environment does not have what is asked for, such as a context or slots.
    KeyError
        `dtype` names no column.
    TypeError
        `info` or `extras` is no mapping.

    Examples
    --------
    >>> space = transition_space(env, episode_id=True)
    >>> sorted(space.spaces)
    ['action', 'episode_id', 'next_obs', 'obs', 'reward', 'terminated', 'truncated']
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
    if next_obs not in (True, False, "shared"):
        raise ValueError(f"next_obs is {next_obs!r}, it must be True, False or 'shared'")
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
    chosen: Any
    for field, chosen, example in (("info", info, "x_position"), ("extras", extras, "logp")):
        if chosen is None:
            continue
        if not isinstance(chosen, Mapping):
            rule = f"wanted the space of each {field.rstrip('s')} by its name: {{{example!r}: space}}"
            raise TypeError(f"{field} is {chosen!r:.80}, {rule}")
        spaces[field] = DictSpace(backend, chosen, device)
    for name, chosen in ({} if dtype is None else dtype).items():
        if name not in _OF_ANY_PRECISION or name not in spaces:
            allowed = ", ".join(key for key in _OF_ANY_PRECISION if key in spaces)
            raise KeyError(f"dtype of {name}: wanted one of these columns: {allowed}")
        spaces[name] = with_dtype(spaces[name], chosen, name)
        if name == "obs" and next_obs:
            spaces["next_obs"] = spaces["obs"]
    return (SharedNextObsSpace if next_obs == "shared" else DictSpace)(backend, spaces, device)


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
