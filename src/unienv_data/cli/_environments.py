"""Environments by their Gymnasium id."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, deserialize_backend
from unienv_interface.env_base.env import Env
from unienv_interface.utils.optional import need

from ._errors import CommandError, in_one_line


def backend_for(fmt: str) -> ComputeBackend:
    """The backend that environments are on which are recorded in a format."""
    return deserialize_backend("pytorch") if fmt == "pt" else NumpyComputeBackend


def env_factory(env_id: str, backend: ComputeBackend) -> Callable[[], Env]:
    """A function that makes an environment, in whatever process; a CommandError if there is none of that id."""
    gymnasium: Any = need("gymnasium", extra="gymnasium")
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)  # which registers it
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise CommandError(f"environment {env_id!r}: {in_one_line(error)}") from error

    def make() -> Env:
        from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

        return FromGymnasiumEnv(gymnasium.make(env_id), backend=backend)

    return make
