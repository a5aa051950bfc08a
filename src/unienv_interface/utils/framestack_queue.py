"""The documented path of `unienv_interface.space.framestack_queue`."""

from ..space.framestack_queue import (
    BArrayType,
    BDeviceType,
    BDtypeType,
    BRNGType,
    DataT,
    FuncSpaceDataQueue,
    SpaceDataQueue,
    SpaceDataQueueState,
)

__all__ = [
    "BArrayType",
    "BDeviceType",
    "BDtypeType",
    "BRNGType",
    "DataT",
    "FuncSpaceDataQueue",
    "SpaceDataQueue",
    "SpaceDataQueueState",
]
