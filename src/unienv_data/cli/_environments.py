"""Environments by their Gymnasium id, and the spaces of their infos, which Gymnasium does not declare."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, deserialize_backend
from unienv_interface.env_base.env import Env
from unienv_interface.env_base.wrapper import Wrapper
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.utils.optional import need

from ..checking.reading import in_one_line
from ._errors import CommandError, UsageError, import_module

# The first value of an info is searched in this many steps; it determines the space of the info.
_STEPS_TO_LOOK = 500


def backend_for(fmt: str) -> ComputeBackend:
    """Return the backend of samples in a format."""
    return deserialize_backend("pytorch") if fmt == "pt" else NumpyComputeBackend


def parse_env_kwargs(text: str) -> dict[str, Any]:
    """Parse the keyword arguments of `gymnasium.make` from the command line."""
    way_out = """it must be a JSON object, such as '{"gravity": 5.0}'"""
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise UsageError(f"env-kwargs is {text!r}, which is not JSON ({error}): {way_out}") from None
    if not isinstance(kwargs, dict):
        raise UsageError(f"env-kwargs is {text!r}: {way_out}")
    return kwargs


def env_factory(env_id: str, env_kwargs: Mapping[str, Any], *, with_context: bool) -> Callable[[], Env]:
    """Return a function that makes an environment, in any process; a CommandError for an unknown id.

    `with_context` separates the context from the observation.
    """
    gymnasium: Any = need("gymnasium", extra="gymnasium")
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module, f"environment {env_id!r}")  # registers the environment
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise CommandError(f"environment {env_id!r}: {in_one_line(error)}") from error

    def make() -> Env:
        from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

        if multiprocessing.parent_process() is not None:
            # A signal to the process group reaches workers too, but the parent ends them.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            gym_env = gymnasium.make(env_id, **env_kwargs)
        except (TypeError, ValueError, gymnasium.error.Error) as error:
            arguments = f" with env-kwargs {env_kwargs}" if env_kwargs else ""
            raise CommandError(f"environment {env_id!r}{arguments}: {in_one_line(error)}") from error
        env = FromGymnasiumEnv(gym_env)
        return ContextWrapper(env) if with_context else env

    return make


class ContextWrapper(Wrapper):
    """Separates the context from the observation, which `ToGymnasiumEnv` has put into one dict."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, DictSpace) or set(space.spaces) != {"context", "observation"}:
            raise CommandError(
                f"context: the observation is {space}, it must be a dict of 'context' and 'observation', as "
                f"ToGymnasiumEnv makes it"
            )
        self.context_space, self.observation_space = space["context"], space["observation"]

    def reset(self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any) -> Any:
        _, both, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        return both["context"], both["observation"], info

    def step(self, action: Any) -> Any:
        both, *rest = self.env.step(action)
        return (both["observation"], *rest)


# -- infos ---------------------------------------------------------------------------------------------------


def info_spaces(env: Env, names: Sequence[str]) -> dict[str, Space]:
    """Determine the spaces of infos of a batched environment from the values in random steps.

    If "_x" is requested beside "x", the info x may be missing, and "_x" marks the environments that have it. Reset the
    environment afterwards.
    """
    flags = {name for name in names if name.startswith("_") and name[1:] in names}
    values = _first_values(env, [name for name in names if name not in flags], {name[1:] for name in flags})
    flag = BinarySpace(env.backend, (), device=env.device)
    return {name: flag if name in flags else _space_of(env, name, values[name]) for name in names}


def _first_values(env: Env, names: Sequence[str], may_be_missing: set[str]) -> Mapping[str, Any]:
    """Return the infos in the first step that has them; a CommandError if a required info is missing in a step."""
    env.reset(seed=0)
    values: dict[str, Any] = {}
    present: set[str] = set()
    for _ in range(_STEPS_TO_LOOK):
        _, _, terminated, truncated, info = env.step(env.sample_action())
        present.update(map(str, info))
        values = {**{name: info[name] for name in names if name in info}, **values}
        for name in names:
            if name not in may_be_missing and (name not in info or f"_{name}" in info):
                raise CommandError(
                    f"info {name!r}: missing in some environments or steps (present: "
                    f"{', '.join(sorted(present)) or 'none'}); if it is optional, add --info _{name}, which marks "
                    f"the steps that have it"
                )
        if len(values) == len(names):
            return values
        if np.any(env.backend.to_numpy(terminated | truncated)):
            env.reset()
    missing = ", ".join(repr(name) for name in names if name not in values)
    raise CommandError(
        f"info {missing}: missing in {_STEPS_TO_LOOK} random steps, which have {', '.join(sorted(present)) or 'none'}"
    )


def _space_of(env: Env, name: str, values: Any) -> Space:
    """Return the space of one entry of batched values."""
    backend, device = env.backend, env.device
    if not backend.is_backendarray(values) or backend.dtype_is_complex(values.dtype):
        raise CommandError(
            f"info {name!r} is {type(values).__name__} of {values!r:.60}, it must be a number or an array of one shape"
        )
    shape = tuple(values.shape[1:])
    if backend.dtype_is_boolean(values.dtype):
        return BinarySpace(backend, shape, device=device)
    # An integer may be a float in later steps.
    is_float = backend.dtype_is_real_floating(values.dtype)
    dtype = values.dtype if is_float else backend.dtype_from_name("float64")
    return BoxSpace(backend, -float("inf"), float("inf"), dtype, device, shape)
