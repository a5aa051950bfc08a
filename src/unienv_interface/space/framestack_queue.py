"""Queues of the last frames of a space, stacked along a time axis, oldest first.

`FuncSpaceDataQueue` has functions of a state, for functional environments; `SpaceDataQueue` keeps the state. In a
batch every slot has its own frames. The state has time as the first axis; returned data has the batch axis first, like
all batched data, and time second. Frames are copied when they are added and when they are returned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic

import numpy as np
from typing_extensions import TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ..utils.stateclass import StateClass
from .space import Space, parse_integer
from .space_utils import batch_utils
from .spaces import CompositeSpace, GraphSpace

__all__ = [
    "BArrayType",
    "BDeviceType",
    "BDtypeType",
    "BRNGType",
    "DataT",
    "FuncSpaceDataQueue",
    "SpaceDataQueue",
    "SpaceDataQueueState",
]

DataT = TypeVar("DataT", default=Any)


class SpaceDataQueueState(StateClass, Generic[DataT]):
    """The state of a `FuncSpaceDataQueue`.

    Attributes
    ----------
    data
        The frames: a value of the queue's `stacked_space`, never written to.
    """

    data: DataT


class FuncSpaceDataQueue(Generic[DataT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A queue of the last frames of a space, as functions of its state.

    A queue is always full: it begins with copies of the first frame.

    Parameters
    ----------
    space
        The space of one frame, with the batch axis if there is a `batch_size`.
    batch_size
        The size of the batch; None for single values.
    maxlen
        The number of frames in the queue, at least 1.

    Raises
    ------
    ValueError
        `maxlen` is below 1, or `space` is not a batch of `batch_size`.
    TypeError
        `maxlen` is no integer.
    """

    single_space: Space  # of one frame: `space`
    stacked_space: Space  # of the state's data: time first
    output_space: Space  # of returned data: batch first, then time

    def __init__(self, space: Space, batch_size: int | None, maxlen: int) -> None:
        self._maxlen = parse_integer(maxlen, "maxlen")
        if self._maxlen < 1:
            raise ValueError(f"maxlen is {maxlen}, a queue holds at least one frame")
        if batch_size is not None and batch_utils.batch_size(space) != batch_size:
            raise ValueError(f"{space} is not a batch of {batch_size}: the space of a batch holds the batch axis")
        self._batch_size = batch_size
        self.single_space = space
        self.stacked_space = batch_utils.batch_space(space, self._maxlen)
        self.output_space = (
            self.stacked_space if batch_size is None else batch_utils.swap_batch_dims(self.stacked_space, 0, 1)
        )

    @property
    def maxlen(self) -> int:
        return self._maxlen

    @property
    def batch_size(self) -> int | None:
        return self._batch_size

    @property
    def backend(self) -> ComputeBackend:
        return self.single_space.backend

    @property
    def device(self) -> Any:
        return self.single_space.device

    def init(self, initial_data: Any) -> SpaceDataQueueState:
        """Make the state of a queue that is full of the first frame."""

        def fill(leaf: Space, frame: Any) -> Any:
            return _stack(leaf, [frame] * self._maxlen)

        return SpaceDataQueueState(_leafwise(self.single_space, fill, initial_data))

    def reset(self, state: SpaceDataQueueState, initial_data: Any, mask: Any = None) -> SpaceDataQueueState:
        """Fill the queue with a first frame again; with a mask only its slots, as in `merge_slots`."""
        if mask is None:
            return self.init(initial_data)
        if self._batch_size is None:
            raise ValueError("the queue is not batched, so a mask has nothing to select")

        def refill(leaf: Space, stacked: Any, rows: Any) -> Any:
            frames = self._frames(leaf, stacked)
            return _stack(leaf, [batch_utils.merge_slots(leaf, frame, mask, rows) for frame in frames])

        return SpaceDataQueueState(_leafwise(self.single_space, refill, state.data, initial_data))

    def add(self, state: SpaceDataQueueState, data: Any) -> SpaceDataQueueState:
        """Append a frame and drop the oldest one."""

        def push(leaf: Space, stacked: Any, frame: Any) -> Any:
            return _stack(leaf, [*self._frames(leaf, stacked)[1:], frame])

        return SpaceDataQueueState(_leafwise(self.single_space, push, state.data, data))

    def get_output_data(self, state: SpaceDataQueueState) -> Any:
        """Return all frames as a new value of `output_space`."""
        time_axis = 0 if self._batch_size is None else 1

        def lay_out(leaf: Space, stacked: Any) -> Any:
            return _stack(leaf, self._frames(leaf, stacked), time_axis)

        return _leafwise(self.single_space, lay_out, state.data)

    def newest(self, output_data: Any) -> Any:
        """The newest frame in a value that `get_output_data` returned."""
        if self._batch_size is not None:
            output_data = batch_utils.swap_batch_dims_in_data(self.backend, output_data, 0, 1)
        return batch_utils.get_at(self.stacked_space, output_data, -1)

    def _frames(self, leaf: Space, stacked: Any) -> list[Any]:
        return [batch_utils.get_at(leaf, stacked, position) for position in range(self._maxlen)]


class SpaceDataQueue(Generic[DataT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A `FuncSpaceDataQueue` that keeps its state.

    Parameters
    ----------
    space, batch_size, maxlen
        As for `FuncSpaceDataQueue`.
    """

    def __init__(self, space: Space, batch_size: int | None, maxlen: int) -> None:
        self.func_queue = FuncSpaceDataQueue(space, batch_size, maxlen)
        self.state: SpaceDataQueueState | None = None

    @property
    def single_space(self) -> Space:
        return self.func_queue.single_space

    @property
    def stacked_space(self) -> Space:
        return self.func_queue.stacked_space

    @property
    def output_space(self) -> Space:
        return self.func_queue.output_space

    @property
    def maxlen(self) -> int:
        return self.func_queue.maxlen

    @property
    def batch_size(self) -> int | None:
        return self.func_queue.batch_size

    @property
    def backend(self) -> ComputeBackend:
        return self.func_queue.backend

    @property
    def device(self) -> Any:
        return self.func_queue.device

    def reset(self, initial_data: Any, mask: Any = None) -> None:
        """Fill the queue with a first frame; with a mask only its slots, whose rows are in `initial_data`."""
        if mask is None:
            self.state = self.func_queue.init(initial_data)
        else:
            self.state = self.func_queue.reset(self._need_state(), initial_data, mask)

    def add(self, data: Any) -> None:
        """Append a frame and drop the oldest one."""
        self.state = self.func_queue.add(self._need_state(), data)

    def get_output_data(self) -> Any:
        """Return all frames as a new value of `output_space`."""
        return self.func_queue.get_output_data(self._need_state())

    def newest(self, output_data: Any) -> Any:
        """The newest frame in a value that `get_output_data` returned."""
        return self.func_queue.newest(output_data)

    def _need_state(self) -> SpaceDataQueueState:
        if self.state is None:
            raise RuntimeError("the queue holds no frames yet: reset it with a first frame, without a mask")
        return self.state


def _leafwise(space: Space, fn: Callable[..., Any], *values: Any) -> Any:
    """Apply `fn` to each leaf space and the values of this leaf."""
    if not isinstance(space, CompositeSpace):
        return fn(space, *values)
    children = zip(space.children, *(space.child_values(value) for value in values), strict=True)
    return space.build_value(_leafwise(child, fn, *leaf_values) for child, *leaf_values in children)


def _stack(leaf: Space, frames: list[Any], axis: int = 0) -> Any:
    """Stack frames along a new axis, as a copy."""
    if axis == 1 and isinstance(leaf, GraphSpace):  # `concatenate` stacks graphs along the first axis only
        return batch_utils.swap_batch_dims_in_data(leaf.backend, batch_utils.concatenate(leaf, frames), 0, 1)
    stacked = batch_utils.concatenate(leaf, frames, axis)
    # an array of objects holds references to objects that the caller may change
    return copy.deepcopy(stacked) if isinstance(stacked, np.ndarray) and stacked.dtype == object else stacked
