"""Storages, replay buffers, samplers and datasets over the spaces of `unienv_interface`.

The names here are those of the packages below, which are imported when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from .base import *  # noqa: F403
    from .batches import *  # noqa: F403
    from .checking import check as check
    from .checking import repair as repair
    from .on_policy import *  # noqa: F403
    from .replay_buffer import *  # noqa: F403
    from .samplers import *  # noqa: F403

_HOMES = {
    ".base": (
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
    ),
    ".batches": (
        "CombinedBatch",
        "FrameStackedBatch",
        "SliceStackedBatch",
        "SubIndexedBatch",
        "SubItemBatch",
        "ToBackendOrDeviceBatch",
        "TransformedBatch",
    ),
    ".checking": ("check", "repair"),
    ".replay_buffer": (
        "BufferStats",
        "FuncReplayBuffer",
        "ReplayBuffer",
        "ReplayBufferCollectionWrapper",
        "transition_space",
    ),
    ".on_policy": ("Advantages", "Rollout", "discounted_returns", "gae", "rollout"),
    ".samplers": (
        "IndexBatch",
        "IndexSampler",
        "LinearSchedule",
        "MultiprocessingSampler",
        "PrioritizedSampler",
        "RandomSampler",
        "SamplerWithoutReplacement",
        "SliceSampler",
        "StepSampler",
    ),
}

__all__ = [name for names in _HOMES.values() for name in names]

__getattr__ = lazy_exports(__name__, _HOMES)
