"""Environments."""

from .env import Env
from .funcenv import FuncEnv, FuncEnvBasedEnv
from .funcenv_wrapper import FuncEnvWrapper
from .vec_env import AsyncVecEnv, SyncVecEnv, WorkerDied
from .wrapper import ActionWrapper, ContextObservationWrapper, Wrapper

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
