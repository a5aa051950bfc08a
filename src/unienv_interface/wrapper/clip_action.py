"""`ClipActionWrapper`: clip actions to the bounds of the action space."""

from __future__ import annotations

from typing import Any

from ..env_base.env import Env
from ..env_base.wrapper import ActionWrapper
from ..space.spaces import BoxSpace
from ._floating_boxes import map_boxes, unbounded


class ClipActionWrapper(ActionWrapper):
    """Clips actions to the bounds of the environment below.

    The boxes of a floating dtype in the action space have no bounds on this layer; other leaves do not change.

    Parameters
    ----------
    env
        The environment to wrap.

    Raises
    ------
    ValueError
        The action space has no box of a floating dtype with bounds.

    Examples
    --------
    >>> env = ClipActionWrapper(unienv.make("Pendulum-v1", seed=0))
    >>> _ = env.reset()
    >>> result = env.step(np.array([5.0], np.float32))  # acts as [2.0]
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.action_space = unbounded(env.action_space)
        if self.action_space == env.action_space:
            raise ValueError(f"the action space {env.action_space} has no box of floats with bounds to clip to")

    def map_action(self, action: Any) -> Any:
        def clip(path: str, box: BoxSpace, values: Any) -> Any:
            return box.clip(values)

        return map_boxes(self.env.action_space, "action", action, clip)

    def reverse_map_action(self, action: Any) -> Any:
        return action
