"""Environments by their Gymnasium id."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from typing import Any

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, deserialize_backend
from unienv_interface.env_base.env import Env
from unienv_interface.env_base.wrapper import Wrapper
from unienv_interface.space import DictSpace
from unienv_interface.utils.optional import need

from ._errors import CommandError, UsageError, in_one_line
from ._modules import import_module


def backend_for(fmt: str) -> ComputeBackend:
    """The backend that samples are on which are recorded in a format."""
    return deserialize_backend("pytorch") if fmt == "pt" else NumpyComputeBackend


def parse_env_kwargs(text: str) -> dict[str, Any]:
    """Keywords for `gymnasium.make` as they are given on the command line."""
    way_out = """it must be a JSON object, such as '{"gravity": 5.0}'"""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"env-kwargs is {text!r}, which is no JSON ({error}): {way_out}") from None
    if not isinstance(found, dict):
        raise UsageError(f"env-kwargs is {text!r}: {way_out}")
    return found


def env_factory(env_id: str, env_kwargs: Mapping[str, Any], *, with_context: bool) -> Callable[[], Env]:
    """A function that makes an environment, in whatever process; a CommandError if there is none of that id.

    `with_context` tells the context from the observation, where there is one.
    """
    gymnasium: Any = need("gymnasium", extra="gymnasium")
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module, f"environment {env_id!r}")  # which registers it
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise CommandError(f"environment {env_id!r}: {in_one_line(error)}") from error

    def make() -> Env:
        from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

        if multiprocessing.parent_process() is not None:
            # Who ends a group of processes tells each of them; it is for the command to end its workers.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            made = gymnasium.make(env_id, **env_kwargs)
        except (TypeError, ValueError, gymnasium.error.Error) as error:
            given = f" with env-kwargs {env_kwargs}" if env_kwargs else ""
            raise CommandError(f"environment {env_id!r}{given}: {in_one_line(error)}") from error
        env = FromGymnasiumEnv(made)
        return ContextWrapper(env) if with_context else env

    return make


class ContextWrapper(Wrapper):
    """An environment whose context was made part of its observation, as `ToGymnasiumEnv` does, with both apart."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, DictSpace) or set(space.spaces) != {"context", "observation"}:
            raise CommandError(
                f"context: the observation is {space}, so there is none to record; an environment of UniEnv that has "
                f"one gives Gymnasium a dict of 'context' and 'observation'"
            )
        self.context_space, self.observation_space = space["context"], space["observation"]

    def reset(self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any) -> Any:
        _, both, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        return both["context"], both["observation"], info

    def step(self, action: Any) -> Any:
        both, *rest = self.env.step(action)
        return (both["observation"], *rest)
