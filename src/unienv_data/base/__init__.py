"""The base classes of batches, samplers and storages."""

from .common import BatchBase, BatchT, IndexableType
from .sampling import (
    BatchSampler,
    SamplerArrayType,
    SamplerBatchT,
    SamplerDeviceType,
    SamplerDtypeType,
    SamplerRNGType,
)
from .storage import SpaceStorage, StorageCorruptedError
from .windows import Padding, UnknownEpisodesWarning

__all__ = [
    "BatchBase",
    "BatchSampler",
    "BatchT",
    "IndexableType",
    "SamplerArrayType",
    "SamplerBatchT",
    "SamplerDeviceType",
    "SamplerDtypeType",
    "SamplerRNGType",
    "SpaceStorage",
    "StorageCorruptedError",
    "Padding",
    "UnknownEpisodesWarning",
]
