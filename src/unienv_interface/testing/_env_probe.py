"""Helpers of the clauses: they reset and step an environment and check the returned values."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..env_base.env import Env
from ..space import Space, describe_mismatch
from ..space.space_utils.row_spaces import RowSpaces
from .clauses import Clause, registering_in, require
from .snapshots import snapshot

# Name: clause, in the order of the checks. A later clause relies on an earlier one.
CLAUSES: dict[str, Clause] = {}

_ACTION_SEED = 20_731
STEPS = 4


class EnvContractError(AssertionError):
    """An environment breaks a clause; the text names the clause, what was found and what is wanted.

    Examples
    --------
    >>> class OffByTen(Wrapper):
    ...     def reset(self, **kwargs):
    ...         context, observation, info = self.env.reset(**kwargs)
    ...         return context, observation + 10, info
    >>> check_env(OffByTen(env))
    Traceback (most recent call last):
        ...
    unienv_interface.testing._env_probe.EnvContractError: ...
    """


clause = registering_in(CLAUSES, EnvContractError)


# -- driving an environment --------------------------------------------------------------------------------


def reset(env: Env, **kwargs: Any) -> tuple[Any, Any, Any]:
    result = env.reset(**kwargs)
    is_triple = isinstance(result, tuple) and len(result) == 3
    require(is_triple, f"{_shape_of(result)} from reset", "a tuple of context, observation and infos")
    return result


def step(env: Env, action: Any) -> tuple[Any, Any, Any, Any, Any]:
    result = env.step(action)
    is_five = isinstance(result, tuple) and len(result) == 5
    require(is_five, f"{_shape_of(result)} from step", "a tuple of observation, reward, terminated, truncated, infos")
    return result


def _shape_of(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"


def has_ended(env: Env, terminated: Any, truncated: Any) -> bool:
    if env.batch_size is None:
        return bool(terminated) or bool(truncated)
    return bool(env.backend.any(terminated | truncated))


def sample_actions(env: Env, count: int) -> list[Any]:
    """The same actions in every run, whatever the state of the environment's generator."""
    rng, sampled = env.backend.random.random_number_generator(_ACTION_SEED, device=env.device), []
    for _ in range(count):
        rng, action = env.action_space.sample(rng)
        sampled.append(action)
    return sampled


def episode(env: Env, seed: int | None) -> Any:
    """A snapshot of the values that an episode returns in its first `STEPS` steps."""
    context, observation, _ = reset(env, seed=seed)
    seen: list[Any] = [{"context": context, "observation": observation}]
    for action in sample_actions(env, STEPS):
        observation, reward, terminated, truncated, _ = step(env, action)
        seen.append({"observation": observation, "reward": reward, "ended": (terminated, truncated)})
        if has_ended(env, terminated, truncated):
            break
    return snapshot(seen)


def every_other(batch_size: int) -> np.ndarray:
    return np.arange(batch_size) % 2 == 0


def mask_of(env: Env, slots: np.ndarray) -> Any:
    return env.backend.from_numpy(slots, device=env.device, copy=True)


def rows_of(space: Space | None, slots: np.ndarray) -> Space | None:
    return None if space is None else RowSpaces(space).of(slots)


def overwrite(backend: ComputeBackend, target: Any, source: Any) -> None:
    """Write the arrays of one action into the memory of another, except into read-only arrays."""
    if isinstance(target, dict):
        for key in target:
            overwrite(backend, target[key], source[key])
    elif isinstance(target, tuple):
        for child, source_child in zip(target, source, strict=True):
            overwrite(backend, child, source_child)
    elif backend.is_backendarray(target):
        memory = backend.to_numpy(target)
        if memory.flags.writeable and memory.dtype != object:
            memory[...] = backend.to_numpy(source)


# -- checking values ---------------------------------------------------------------------------------------


def require_value(space: Space | None, value: Any, name: str) -> None:
    if space is None:
        require(value is None, f"{name} is a {type(value).__name__}", "None, since there is no context_space")
        return
    require(value is not None, f"{name} is None", f"a value of {space}")
    mismatch = describe_mismatch(space, value)
    require(mismatch is None, f"{name} is wrong: {mismatch}", f"a value of {space}")


def require_info(info: Any, name: str) -> None:
    require(isinstance(info, dict), f"infos of type {type(info).__name__} from {name}", "a dict")
    invalid = [key for key in info if not isinstance(key, str)]
    require(not invalid, f"the key {invalid[:1]} in the infos of {name}", "strings as keys")


def require_signal(env: Env, value: Any, name: str, *, is_flag: bool) -> None:
    backend = env.backend
    shape = () if env.batch_size is None else (env.batch_size,)
    kind = "boolean" if is_flag else "real number"
    expected = (
        f"a {kind}" if env.batch_size is None else f"an array of {env.backend} with a {kind} for each slot, {shape}"
    )
    if backend.is_backendarray(value):
        dtype = backend.dtype_name(value.dtype)
        fits = backend.dtype_is_boolean(value.dtype) if is_flag else _is_real(backend, value.dtype)
        described = f"{name} of dtype {dtype} and shape {tuple(value.shape)}"
        require(fits and tuple(value.shape) == shape, described, expected)
    else:
        scalar = isinstance(value, (bool, np.bool_)) if is_flag else isinstance(value, numbers.Real)
        require(scalar and env.batch_size is None, f"{name} of type {type(value).__name__}", expected)


def _is_real(backend: ComputeBackend, dtype: Any) -> bool:
    return backend.dtype_is_real_floating(dtype) or backend.dtype_is_real_integer(dtype)
