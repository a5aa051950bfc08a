"""Wrappers: environments that change one thing about another. The bridges to Gymnasium are in `gym_compat`."""

from __future__ import annotations

import importlib
from typing import Any

from .action_rescale import ActionRescaleWrapper
from .backend_compat import ToBackendOrDeviceWrapper, ToBackendWrapper, ToDeviceWrapper
from .batch_and_unbatch import BatchifyWrapper, UnBatchifyWrapper
from .control_frequency_limit import ControlFrequencyLimitWrapper
from .flatten import FlattenActionWrapper, FlattenContextObservationWrapper
from .frame_stack import FrameStackWrapper
from .time_limit import TimeLimitWrapper
from .transformation import ActionTransformWrapper, ContextObservationTransformWrapper, TransformWrapper

# Loaded on first use: recording is for few, and brings what others do not need.
_IN_VIDEO_RECORD = ("EpisodeRenderStackWrapper", "EpisodeVideoWrapper", "EpisodeWandbVideoWrapper")

__all__ = [
    "ActionRescaleWrapper",
    "ActionTransformWrapper",
    "BatchifyWrapper",
    "ContextObservationTransformWrapper",
    "ControlFrequencyLimitWrapper",
    "EpisodeRenderStackWrapper",
    "EpisodeVideoWrapper",
    "EpisodeWandbVideoWrapper",
    "FlattenActionWrapper",
    "FlattenContextObservationWrapper",
    "FrameStackWrapper",
    "TimeLimitWrapper",
    "ToBackendOrDeviceWrapper",
    "ToBackendWrapper",
    "ToDeviceWrapper",
    "TransformWrapper",
    "UnBatchifyWrapper",
]


def __getattr__(name: str) -> Any:
    if name in _IN_VIDEO_RECORD:
        return getattr(importlib.import_module(".video_record", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
