"""Wrappers of environments, and bridges to other libraries.

Wrappers that need an optional package, or that few users need, are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..utils.lazy import lazy_exports
from .action_rescale import ActionRescaleWrapper
from .autoreset import AutoresetWrapper, autoreset_mode
from .backend_compat import ToBackendOrDeviceWrapper, ToBackendWrapper, ToDeviceWrapper
from .batch_and_unbatch import BatchifyWrapper, UnBatchifyWrapper
from .clip_action import ClipActionWrapper
from .control_frequency_limit import ControlFrequencyLimitWrapper
from .episode_statistics import EpisodeStatisticsWrapper
from .flatten import FlattenActionWrapper, FlattenContextObservationWrapper
from .frame_stack import FrameStackWrapper
from .normalize import NormalizeObservationWrapper, NormalizeRewardWrapper
from .running_moments import RunningMoments
from .time_limit import TimeLimitWrapper
from .transformation import ActionTransformWrapper, ContextObservationTransformWrapper, TransformWrapper

if TYPE_CHECKING:
    from .envpool_compat import FromEnvPool
    from .gym_compat import FromGymnasiumEnv, ToGymnasiumEnv, ToGymnasiumVectorEnv
    from .sb3_compat import ToSB3VecEnv
    from .video_record import EpisodeRenderStackWrapper, EpisodeVideoWrapper, EpisodeWandbVideoWrapper
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".envpool_compat": ["FromEnvPool"],
            ".gym_compat": ["FromGymnasiumEnv", "ToGymnasiumEnv", "ToGymnasiumVectorEnv"],
            ".sb3_compat": ["ToSB3VecEnv"],
            ".video_record": ["EpisodeRenderStackWrapper", "EpisodeVideoWrapper", "EpisodeWandbVideoWrapper"],
        },
    )

__all__ = [
    "ActionRescaleWrapper",
    "ActionTransformWrapper",
    "AutoresetWrapper",
    "BatchifyWrapper",
    "ClipActionWrapper",
    "ContextObservationTransformWrapper",
    "ControlFrequencyLimitWrapper",
    "EpisodeRenderStackWrapper",
    "EpisodeStatisticsWrapper",
    "EpisodeVideoWrapper",
    "EpisodeWandbVideoWrapper",
    "FlattenActionWrapper",
    "FlattenContextObservationWrapper",
    "FrameStackWrapper",
    "FromEnvPool",
    "FromGymnasiumEnv",
    "NormalizeObservationWrapper",
    "NormalizeRewardWrapper",
    "RunningMoments",
    "TimeLimitWrapper",
    "ToBackendOrDeviceWrapper",
    "ToBackendWrapper",
    "ToDeviceWrapper",
    "ToGymnasiumEnv",
    "ToGymnasiumVectorEnv",
    "ToSB3VecEnv",
    "TransformWrapper",
    "UnBatchifyWrapper",
    "autoreset_mode",
]
