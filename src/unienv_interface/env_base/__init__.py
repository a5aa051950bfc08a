"""Environments. The vector environments, and multiprocessing with them, are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..utils.lazy import lazy_exports
from .env import Env
from .funcenv import FuncEnv, FuncEnvBasedEnv
from .funcenv_wrapper import FuncEnvWrapper
from .wrapper import ActionWrapper, ContextObservationWrapper, Wrapper

if TYPE_CHECKING:
    from .vec_env import AsyncVecEnv, SyncVecEnv, WorkerDied
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".vec_env": ["AsyncVecEnv", "SyncVecEnv", "WorkerDied"],
        },
    )

__all__ = [
    "ActionWrapper",
    "AsyncVecEnv",
    "ContextObservationWrapper",
    "Env",
    "FuncEnv",
    "FuncEnvBasedEnv",
    "FuncEnvWrapper",
    "SyncVecEnv",
    "WorkerDied",
    "Wrapper",
]
