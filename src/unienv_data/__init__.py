"""Storages, replay buffers, samplers and datasets over the spaces of `unienv_interface`."""

from .base import BatchBase, BatchT, IndexableType, SpaceStorage, StorageCorruptedError
from .batches import SubIndexedBatch, SubItemBatch
from .replay_buffer import BufferStats, ReplayBuffer

__all__ = [
    "BatchBase",
    "BatchT",
    "IndexableType",
    "SpaceStorage",
    "StorageCorruptedError",
    "SubIndexedBatch",
    "SubItemBatch",
    "BufferStats",
    "ReplayBuffer",
]
