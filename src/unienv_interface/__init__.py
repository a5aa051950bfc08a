"""UniEnv's interfaces: spaces, environments and what lies between them."""

from .env_base import (
    ActionWrapper,
    AsyncVecEnv,
    ContextObservationWrapper,
    Env,
    FuncEnv,
    FuncEnvBasedEnv,
    FuncEnvWrapper,
    SyncVecEnv,
    Wrapper,
)
from .space import Space

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
    "Wrapper",
]
