"""Bridges from and to Gymnasium. Importing this module imports gymnasium.

    env = FromGymnasiumEnv(gymnasium.make("CartPole-v1"), backend=PyTorchComputeBackend)
    gym_env = ToGymnasiumEnv(env)

`unienv_interface.space.space_utils.gym_utils` documents the conversion of spaces and values.
"""

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, ObsType, RenderFrame
from ._from_gymnasium import FromGymnasiumEnv
from ._to_gymnasium import ToGymnasiumEnv, ToGymnasiumVectorEnv

__all__ = [
    "ActType",
    "BArrayType",
    "BDeviceType",
    "BDtypeType",
    "BRNGType",
    "ContextType",
    "FromGymnasiumEnv",
    "ObsType",
    "RenderFrame",
    "ToGymnasiumEnv",
    "ToGymnasiumVectorEnv",
]
