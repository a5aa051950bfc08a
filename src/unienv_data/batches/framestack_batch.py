"""Windows of samples before and after each sample."""

from __future__ import annotations

from typing import Literal

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space.space import parse_integer

from ..base.common import BatchBase, BatchT
from .slicestack_batch import MaskFunction, SliceStackedBatch


class FrameStackedBatch(SliceStackedBatch[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A view of windows: each sample with the samples before and after it.

    Each sample becomes the window from `prefetch_horizon` samples before it to `postfetch_horizon` samples after it,
    for models that need temporal context, such as Diffusion Policy or ACT. The view is read-only: to change the data,
    write to the batch under it.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    prefetch_horizon
        The number of samples before the sample in its window.
    postfetch_horizon
        The number of samples after the sample in its window.
    get_valid_mask_function, fill_invalid_data, stack_metadata, episodes, padding
        As of `SliceStackedBatch`.

    Raises
    ------
    ValueError
        A horizon is negative.

    Examples
    --------
    >>> windows = FrameStackedBatch(buffer, prefetch_horizon=1, postfetch_horizon=14)
    >>> data, metadata = StepSampler(windows, 64).sample_with_metadata()
    >>> metadata["slice_valid_mask"].shape
    (64, 16)
    """

    def __init__(
        self,
        batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        prefetch_horizon: int = 0,
        postfetch_horizon: int = 0,
        get_valid_mask_function: MaskFunction | None = None,
        fill_invalid_data: bool = True,
        stack_metadata: bool = False,
        *,
        episodes: Literal["respect", "ignore"] = "respect",
        padding: bool = False,
    ) -> None:
        self.prefetch_horizon = _parse_horizon(prefetch_horizon, "prefetch_horizon")
        self.postfetch_horizon = _parse_horizon(postfetch_horizon, "postfetch_horizon")
        offsets = np.arange(-self.prefetch_horizon, self.postfetch_horizon + 1)
        super().__init__(
            batch,
            offsets,
            get_valid_mask_function,
            fill_invalid_data,
            stack_metadata,
            episodes=episodes,
            padding=padding,
        )


def _parse_horizon(value: int, name: str) -> int:
    horizon = parse_integer(value, name)
    if horizon < 0:
        raise ValueError(f"{name} is {value}, it must not be negative")
    return horizon
