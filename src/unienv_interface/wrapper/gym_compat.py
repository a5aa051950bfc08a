"""The bridge to Gymnasium, both ways. Importing this module imports gymnasium.

    env = FromGymnasiumEnv(gymnasium.make("CartPole-v1"), backend=PyTorchComputeBackend)
    gym_env = ToGymnasiumEnv(env)

Spaces and values are converted as `unienv_interface.space.space_utils.gym_utils` says.
"""

from ._from_gymnasium import FromGymnasiumEnv
from ._to_gymnasium import ToGymnasiumEnv, ToGymnasiumVectorEnv

__all__ = ["FromGymnasiumEnv", "ToGymnasiumEnv", "ToGymnasiumVectorEnv"]
