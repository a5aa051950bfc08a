"""The documented path of `unienv_interface.space.framestack_queue`."""

from ..space.framestack_queue import FuncSpaceDataQueue, SpaceDataQueue, SpaceDataQueueState

__all__ = ["FuncSpaceDataQueue", "SpaceDataQueue", "SpaceDataQueueState"]
