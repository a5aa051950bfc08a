"""Rollouts: steps of a policy in an environment, as arrays with time first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.backends import get_backend_from_tensor
from unienv_interface.backends.base import ComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.wrapper.autoreset import autoreset_mode


class Rollout(NamedTuple):
    """Steps of an environment: (T, N, ...) of a batched one, (T, ...) of a single one.

    Attributes
    ----------
    obs, action, reward, terminated, truncated
        The inputs and results of each step.
    next_obs
        The observation after each step: at the end of an episode its last one, not the first of the next episode.
    extras
        The extras of the policy, by name.
    context
        The context of each step; None without a `context_space`.
    last_obs, last_context
        The current observation and context, after the reset of ended episodes: the next rollout begins with them.

    Examples
    --------
    >>> steps = rollout(envs, policy, 16, seed=0)
    >>> steps.obs.shape, steps.reward.shape, steps.last_obs.shape
    ((16, 8, 4), (16, 8), (8, 4))
    """

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Any
    extras: dict[str, Any]
    context: Any
    last_obs: Any
    last_context: Any


def rollout(
    env: Env,
    policy: Callable[..., tuple[Any, Mapping[str, Any]]],
    steps: int,
    *,
    after: Rollout | None = None,
    seed: int | None = None,
    record_extras: bool = False,
) -> Rollout:
    """Step an environment with a policy, and reset episodes that have ended.

    Parameters
    ----------
    env
        A single environment or a batch, which does not reset itself. Ended slots of a batch are reset with a mask; the
        others continue.
    policy
        `policy(observation)`, or `policy(observation, context)` if the environment has a `context_space`, returns the
        action and a dict of extras, such as {"logp": ..., "value": ...}. The rollout keeps both until its end: a policy
        must not write into them at a later step.
    steps
        The number of steps T, in every slot.
    after
        An earlier rollout of the environment, which this rollout continues. Without it the environment is reset.
    seed
        The seed of the reset.
    record_extras
        Whether the policy's extras are passed to each step, for a recorder with columns for extras.

    Returns
    -------
    Rollout
        The steps, on the environment's backend; extras stay on the backend of the policy.

    Raises
    ------
    ValueError
        `steps` is below 1, `seed` is given with `after`, or the environment restarts by itself.

    Examples
    --------
    >>> batch = rollout(envs, policy, 128, seed=0)  # policy returns actions and a dict of extras
    >>> batch.reward.shape
    (128, 8)
    >>> batch = rollout(envs, policy, 128, after=batch)
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}, it must be at least 1")
    if after is not None and seed is not None:
        raise ValueError("seed is given with after: a rollout that continues another one does not reset")
    if (mode := autoreset_mode(env)) != "disabled":
        raise ValueError(
            f"{env} restarts in the mode {mode!r}, and a rollout resets ended episodes itself: give it the "
            f"environment under the AutoresetWrapper"
        )
    if after is None:
        context, observation, _ = env.reset(seed=seed)
    else:
        context, observation = after.last_context, after.last_obs
    rows: list[tuple[Any, ...]] = []
    for _ in range(steps):
        arguments = (observation,) if env.context_space is None else (observation, context)
        action, extras = policy(*arguments)
        options = {"extras": extras} if record_extras else {}
        next_obs, reward, terminated, truncated, _ = env.step(action, **options)
        rows.append((observation, action, reward, terminated, truncated, next_obs, extras, context))
        context, observation = _begin_ended(env, context, next_obs, terminated, truncated)
    columns = [list(column) for column in zip(*rows, strict=True)]
    spaces: list[Space | None] = [env.observation_space, env.action_space, None, None, None, env.observation_space]
    obs, action, reward, terminated, truncated, next_obs = (
        _stack(column, name, env.backend, env.device) if space is None else batch_utils.concatenate(space, column)
        for name, space, column in zip(Rollout._fields, spaces, columns, strict=False)
    )
    return Rollout(
        obs,
        action,
        reward,
        terminated,
        truncated,
        next_obs,
        _stack(columns[6], "extras", env.backend, env.device),
        None if env.context_space is None else batch_utils.concatenate(env.context_space, columns[7]),
        observation,
        context,
    )


def _begin_ended(env: Env, context: Any, next_obs: Any, terminated: Any, truncated: Any) -> tuple[Any, Any]:
    """Reset the ended episodes; return context and observation for the next step."""
    ended = terminated | truncated
    if env.batch_size is None:
        return env.reset()[:2] if ended else (context, next_obs)
    if not env.backend.to_numpy(ended).any():
        return context, next_obs
    new_context, new_obs, _ = env.reset(mask=ended)
    context = env.update_context_post_reset(context, new_context, ended)
    return context, env.update_observation_post_reset(next_obs, new_obs, ended)


def _stack(values: list[Any], name: str, backend: ComputeBackend, device: Any) -> Any:
    """Stack the numbers, arrays or dicts of all steps along a new first axis, time."""
    if isinstance(values[0], Mapping):
        keys = values[0].keys()
        for step, value in enumerate(values):
            if value.keys() != keys:
                raise ValueError(f"{name}: the keys {list(value)} at step {step}, {list(keys)} at step 0")
        return {key: _stack([value[key] for value in values], f"{name}/{key}", backend, device) for key in keys}
    if isinstance(values[0], (bool, int, float, np.generic)):
        return backend.from_numpy(np.asarray(values), device=device)
    return get_backend_from_tensor(values[0]).stack(values)
