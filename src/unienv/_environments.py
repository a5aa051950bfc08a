"""`make`: environments from an id or a function, or an existing one."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from unienv_interface import AsyncVecEnv, Env, SyncVecEnv
from unienv_interface.backends import BackendLike, parse_backend
from unienv_interface.space.space import parse_integer
from unienv_interface.utils.optional import need
from unienv_interface.utils.words import did_you_mean
from unienv_interface.wrapper import ToBackendOrDeviceWrapper

_POOL = "envpool:"


def make(
    source: str | Callable[[], Any] | Any,
    num_envs: int | None = None,
    workers: int | None = None,
    backend: BackendLike = "numpy",
    seed: int | None = None,
    *,
    device: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Env:
    """Make one environment, or a batch of `num_envs`.

    Parameters
    ----------
    source
        The id of a Gymnasium environment; "envpool:ID" for an environment of EnvPool; a function or class that makes
        an environment; or an environment of UniEnv or Gymnasium.
    num_envs
        Environments in the batch; None for a single environment.
    workers
        The number of processes that step the batch, each a share of it. With None, 0 or 1, this process steps it.
    backend, device
        The backend and device of observations, rewards and flags.
    seed
        The seed of the environments and of `sample_action`. A single environment is reset with it.
    env_kwargs
        Keyword arguments for the environment, if `source` is an id or a function.

    Returns
    -------
    Env
        The environment or batch.

    Raises
    ------
    ValueError
        `num_envs` or `workers` are not possible with this source.
    gymnasium.error.Error
        Gymnasium has no environment of this id; the message names the nearest one.
    ModuleNotFoundError
        The module before the colon of an id does not exist.
    TypeError
        `source` is no environment, and does not make one.
    ImportError
        The backend, Gymnasium or EnvPool is not installed.

    Examples
    --------
    >>> env = unienv.make("CartPole-v1", seed=0)
    >>> envs = unienv.make("CartPole-v1", num_envs=8, workers=2, backend="torch", seed=0)
    >>> envs = unienv.make(MyEnv, num_envs=8)
    """
    backend = parse_backend(backend)
    if num_envs is not None and parse_integer(num_envs, "num_envs") < 1:
        raise ValueError(f"num_envs is {num_envs}, it must be at least 1, or None for a single environment")
    if workers is not None and parse_integer(workers, "workers") < 0:
        raise ValueError(f"workers is {workers}, it must not be negative")
    env_kwargs = dict(env_kwargs or {})
    if isinstance(source, str) and source.startswith(_POOL):
        env = _pool(source.removeprefix(_POOL), num_envs, workers, env_kwargs)
    elif isinstance(source, str) or (callable(source) and not isinstance(source, Env)):
        factory = _by_id(source, env_kwargs) if isinstance(source, str) else functools.partial(source, **env_kwargs)
        env = _made(functools.partial(_as_env, factory), num_envs, workers, seed)
    else:
        env = _given(source, num_envs, workers, env_kwargs)
    if backend is not env.backend or device is not None:
        env = ToBackendOrDeviceWrapper(env, backend, device)
    if seed is not None and not isinstance(env.unwrapped, (SyncVecEnv, AsyncVecEnv)):
        env.reset(seed=seed)  # vector environments got the seed in their constructor
    return env


def _by_id(env_id: str, env_kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that makes the environment of an id; raises if Gymnasium does not know the id."""
    gymnasium: Any = need("gymnasium", extra="gymnasium")
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)  # registers the environment
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0] and error.name != module:
                raise
            near = did_you_mean(module, [_POOL.removesuffix(":")])
            raise ModuleNotFoundError(f"{env_id!r}: there is no module {module!r}{near}", name=error.name) from error
    gymnasium.spec(name)
    return functools.partial(gymnasium.make, env_id, **env_kwargs)


def _as_env(factory: Callable[[], Any]) -> Env:
    """Call a function and wrap its result as a UniEnv environment; also runs in workers."""
    env = factory()
    if isinstance(env, Env):
        return env
    from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

    return FromGymnasiumEnv(env)


def _made(factory: Callable[[], Env], num_envs: int | None, workers: int | None, seed: int | None) -> Env:
    is_parallel = workers is not None and workers > 1
    if num_envs is None:
        if is_parallel:
            raise ValueError(f"workers is {workers} without num_envs: give the number of environments as num_envs")
        return factory()
    if is_parallel:
        return AsyncVecEnv([factory] * num_envs, seed=seed, num_workers=workers)
    return SyncVecEnv([factory] * num_envs, seed=seed)


def _given(source: Any, num_envs: int | None, workers: int | None, env_kwargs: dict[str, Any]) -> Env:
    """Return an existing environment, wrapped if needed."""
    try:
        env = _as_env(lambda: source)
    except TypeError as error:
        raise TypeError(f"source: {error}; it may also be an id or a function that makes an environment") from error
    if env_kwargs or workers or num_envs not in (None, env.batch_size):
        raise ValueError(
            f"{env!r} exists already, with {env.batch_size or 1} environments: to choose num_envs, workers or "
            f"env_kwargs, give a function that makes one, such as make(lambda: MyEnv(), num_envs=8)"
        )
    return env


def _pool(task: str, num_envs: int | None, workers: int | None, env_kwargs: dict[str, Any]) -> Env:
    envpool: Any = need("envpool", extra="envpool")
    from unienv_interface.wrapper import FromEnvPool

    known = envpool.list_all_envs()
    if task not in known:
        raise ValueError(f"EnvPool has no environment {task!r}{did_you_mean(task, known)}")
    if workers:
        env_kwargs = {"num_threads": workers, **env_kwargs}
    return FromEnvPool(envpool.make(task, env_type="gymnasium", num_envs=num_envs or 1, **env_kwargs))
