"""Samplers, which draw indices and fetch mini-batches."""

from .index_sampler import IndexBatch, IndexSampler, Source
from .multiprocessing_sampler import MultiprocessingSampler
from .prioritized_sampler import LinearSchedule, PrioritizedSampler
from .slice_sampler import SliceSampler
from .step_sampler import StepSampler
from .uniform_samplers import RandomSampler, SamplerWithoutReplacement

__all__ = [
    "IndexBatch",
    "IndexSampler",
    "LinearSchedule",
    "MultiprocessingSampler",
    "PrioritizedSampler",
    "RandomSampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "Source",
    "StepSampler",
]
