"""UniEnv's interfaces: spaces, environments, and the mappings between spaces."""

from . import transformations
from .env_base import (
    ActionWrapper,
    AsyncVecEnv,
    ContextObservationWrapper,
    Env,
    FuncEnv,
    FuncEnvBasedEnv,
    FuncEnvWrapper,
    SyncVecEnv,
    WorkerDied,
    Wrapper,
)
from .space import Space
from .transformations import *  # noqa: F403 - its public names are ours

__all__ = [
    "ActionWrapper",
    "AsyncVecEnv",
    "ContextObservationWrapper",
    "Env",
    "FuncEnv",
    "FuncEnvBasedEnv",
    "FuncEnvWrapper",
    "Space",
    "SyncVecEnv",
    "WorkerDied",
    "Wrapper",
    *transformations.__all__,
]
