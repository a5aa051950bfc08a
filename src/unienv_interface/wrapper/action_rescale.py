"""`ActionRescaleWrapper`: actions with other bounds."""

from __future__ import annotations

from typing import Any

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame
from ..transformations.rescale import RescaleTransformation
from .transformation import ActionTransformWrapper


class ActionRescaleWrapper(
    ActionTransformWrapper[
        ActType, BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType
    ]
):
    """Takes actions between `new_low` and `new_high` and maps them linearly to the bounds of the environment below.

    Integer actions become floats on this layer and are rounded for the environment below.

    Parameters
    ----------
    env
        The environment below, whose action space is a box with finite bounds.
    new_low, new_high
        Numbers, or arrays that broadcast to the shape of the actions.

    Examples
    --------
    >>> env = ActionRescaleWrapper(unienv.make("Pendulum-v1", seed=0))  # torques of [-2, 2]
    >>> float(env.action_space.low[0]), float(env.action_space.high[0])
    (-1.0, 1.0)
    """

    def __init__(self, env: Env, new_low: Any = -1.0, new_high: Any = 1.0) -> None:
        outward = RescaleTransformation(new_low, new_high)
        super().__init__(
            env, outward.direction_inverse(env.action_space), outward.get_target_space_from_source(env.action_space)
        )
