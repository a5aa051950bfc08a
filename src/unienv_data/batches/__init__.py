"""Views: batches over other batches. Closing a view leaves the batch under it open."""

from .backend_compat import ToBackendOrDeviceBatch
from .combined_batch import CombinedBatch
from .framestack_batch import FrameStackedBatch
from .hindsight_batch import HindsightBatch
from .nstep_batch import NStepBatch
from .slicestack_batch import SliceStackedBatch
from .stacked_observation_batch import StackedObservationBatch
from .subindex_batch import SubIndexedBatch
from .subitem_batch import SubItemBatch
from .transformations import TransformedBatch
from .windowed_batch import Seconds, WindowedBatch, seconds

__all__ = [
    "ToBackendOrDeviceBatch",
    "CombinedBatch",
    "SliceStackedBatch",
    "FrameStackedBatch",
    "HindsightBatch",
    "NStepBatch",
    "StackedObservationBatch",
    "SubIndexedBatch",
    "SubItemBatch",
    "TransformedBatch",
    "Seconds",
    "WindowedBatch",
    "seconds",
]
