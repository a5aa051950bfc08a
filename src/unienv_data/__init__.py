"""Storages, replay buffers, samplers and datasets over the spaces of `unienv_interface`.

Subpackages are imported when one of their names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from .base import (
        BatchBase,
        BatchSampler,
        BatchT,
        IndexableType,
        Padding,
        SamplerArrayType,
        SamplerBatchT,
        SamplerDeviceType,
        SamplerDtypeType,
        SamplerRNGType,
        SpaceStorage,
        StorageCorruptedError,
        UnknownEpisodesWarning,
    )
    from .batches import (
        CombinedBatch,
        FrameStackedBatch,
        HindsightBatch,
        NStepBatch,
        SliceStackedBatch,
        StackedObservationBatch,
        SubIndexedBatch,
        SubItemBatch,
        ToBackendOrDeviceBatch,
        TransformedBatch,
        WindowedBatch,
        seconds,
    )
    from .batches.split import split, without_cut_episodes
    from .batches.statistics import ColumnStatistics, column_stats
    from .checking import check, repair
    from .integrations.lerobot import export_lerobot
    from .on_policy import Advantages, Rollout, discounted_returns, gae, rollout
    from .replay_buffer import (
        BufferStats,
        FuncReplayBuffer,
        ReplayBuffer,
        ReplayBufferCollectionWrapper,
        transition_space,
    )
    from .samplers import (
        IndexBatch,
        IndexSampler,
        LinearSchedule,
        MultiprocessingSampler,
        PrioritizedSampler,
        RandomSampler,
        SamplerWithoutReplacement,
        SliceSampler,
        StepSampler,
    )
    from .storages.image_storage import Image
    from .storages.video_storage import Decode, Video
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".base": [
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
            ],
            ".batches": [
                "CombinedBatch",
                "FrameStackedBatch",
                "HindsightBatch",
                "NStepBatch",
                "SliceStackedBatch",
                "StackedObservationBatch",
                "SubIndexedBatch",
                "SubItemBatch",
                "ToBackendOrDeviceBatch",
                "TransformedBatch",
                "WindowedBatch",
                "seconds",
            ],
            ".batches.split": ["split", "without_cut_episodes"],
            ".batches.statistics": ["ColumnStatistics", "column_stats"],
            ".checking": ["check", "repair"],
            ".integrations.lerobot": ["export_lerobot"],
            ".on_policy": ["Advantages", "Rollout", "discounted_returns", "gae", "rollout"],
            ".replay_buffer": [
                "BufferStats",
                "FuncReplayBuffer",
                "ReplayBuffer",
                "ReplayBufferCollectionWrapper",
                "transition_space",
            ],
            ".samplers": [
                "IndexBatch",
                "IndexSampler",
                "LinearSchedule",
                "MultiprocessingSampler",
                "PrioritizedSampler",
                "RandomSampler",
                "SamplerWithoutReplacement",
                "SliceSampler",
                "StepSampler",
            ],
            ".storages.image_storage": ["Image"],
            ".storages.video_storage": ["Decode", "Video"],
        },
    )

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
    "CombinedBatch",
    "FrameStackedBatch",
    "HindsightBatch",
    "NStepBatch",
    "SliceStackedBatch",
    "StackedObservationBatch",
    "SubIndexedBatch",
    "SubItemBatch",
    "ToBackendOrDeviceBatch",
    "TransformedBatch",
    "Decode",
    "Image",
    "Video",
    "WindowedBatch",
    "seconds",
    "split",
    "without_cut_episodes",
    "ColumnStatistics",
    "column_stats",
    "check",
    "repair",
    "export_lerobot",
    "Advantages",
    "Rollout",
    "discounted_returns",
    "gae",
    "rollout",
    "BufferStats",
    "FuncReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferCollectionWrapper",
    "transition_space",
    "IndexBatch",
    "IndexSampler",
    "LinearSchedule",
    "MultiprocessingSampler",
    "PrioritizedSampler",
    "RandomSampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "StepSampler",
]
