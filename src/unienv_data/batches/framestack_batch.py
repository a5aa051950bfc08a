"""Windows of samples before and after each sample."""

from __future__ import annotations

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space.space import parse_integer

from ..base.common import BatchBase, BatchT
from .slicestack_batch import MaskFunction, SliceStackedBatch


class FrameStackedBatch(SliceStackedBatch[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A batch that stacks frames in a sliding window manner.

    Each sample becomes the window from `prefetch_horizon` samples before it to `postfetch_horizon` samples after it,
    which can be useful for training models that require temporal context (e.g. Diffusion Policy, ACT, etc.). This is
    a read-only batch, since it is a view of the original batch. If you want to change the data, you should mutate the
    containing batch instead.
    """

    def __init__(
        self,
        batch: BatchBase,
        prefetch_horizon: int = 0,
        postfetch_horizon: int = 0,
        get_valid_mask_function: MaskFunction | None = None,
        fill_invalid_data: bool = True,
        stack_metadata: bool = False,
    ) -> None:
        self.prefetch_horizon = _parse_horizon(prefetch_horizon, "prefetch_horizon")
        self.postfetch_horizon = _parse_horizon(postfetch_horizon, "postfetch_horizon")
        offsets = np.arange(-self.prefetch_horizon, self.postfetch_horizon + 1)
        super().__init__(batch, offsets, get_valid_mask_function, fill_invalid_data, stack_metadata)


def _parse_horizon(value: int, name: str) -> int:
    horizon = parse_integer(value, name)
    if horizon < 0:
        raise ValueError(f"{name} is {value}, it must not be negative")
    return horizon
