"""The bridge to Gymnasium, both ways. Importing this module imports gymnasium.

    env = FromGymnasiumEnv(gymnasium.make("CartPole-v1"), backend=PyTorchComputeBackend)
    gym_env = ToGymnasiumEnv(env)

Spaces and values are converted as `unienv_interface.space.space_utils.gym_utils` says.
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
