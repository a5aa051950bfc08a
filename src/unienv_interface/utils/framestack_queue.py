"""The last frames of something that a space describes, stacked along a time axis, oldest first.

`FuncSpaceDataQueue` is a set of functions of a state, for functional environments; `SpaceDataQueue` keeps the state.
In a batch every slot has frames of its own. Inside, time is the first axis; what is handed out has the batch axis
first, as all batched data, and time second. Frames are copied on their way in and on their way out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..space import GraphSpace, Space
from ..space.space import parse_integer
from ..space.space_utils import batch_utils
from ..space.spaces import CompositeSpace
from .stateclass import StateClass

__all__ = ["FuncSpaceDataQueue", "SpaceDataQueue", "SpaceDataQueueState"]


class SpaceDataQueueState(StateClass):
    """The frames: a value of the queue's `stacked_space`, never written to."""

    data: Any


class FuncSpaceDataQueue:
    """The last `maxlen` frames of `space`, which already holds the batch axis if there is a `batch_size`.

    A queue is full from the start: the first frame stands for all that would have been before it.
    """

    single_space: Space  # of one frame, as it is given
    stacked_space: Space  # of the state's data: time first
    output_space: Space  # of what is handed out: batch first, then time

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
        """A queue full of the first frame."""
        return self._state_of([initial_data] * self._maxlen)

    def reset(self, state: SpaceDataQueueState, initial_data: Any, mask: Any = None) -> SpaceDataQueueState:
        """Start again with a first frame; with a mask only in these slots, for which `initial_data` has the rows."""
        if mask is None:
            return self.init(initial_data)
        if self._batch_size is None:
            raise ValueError("the queue is not batched, so a mask has nothing to select")
        return self._state_of(
            [batch_utils.set_at(self.single_space, frame, mask, initial_data) for frame in self._frames(state)]
        )

    def add(self, state: SpaceDataQueueState, data: Any) -> SpaceDataQueueState:
        """Drop the oldest frame and take in a new one."""
        return self._state_of([*self._frames(state)[1:], data])

    def get_output_data(self, state: SpaceDataQueueState) -> Any:
        """All the frames as a value of `output_space`; new memory each time."""
        return self._stack(self._frames(state), time_axis=0 if self._batch_size is None else 1)

    def newest(self, output_data: Any) -> Any:
        """The newest frame in what was handed out."""
        if self._batch_size is not None:
            output_data = batch_utils.swap_batch_dims_in_data(self.backend, output_data, 0, 1)
        return batch_utils.get_at(self.stacked_space, output_data, -1)

    def _frames(self, state: SpaceDataQueueState) -> list[Any]:
        return [batch_utils.get_at(self.stacked_space, state.data, i) for i in range(self._maxlen)]

    def _state_of(self, frames: list[Any]) -> SpaceDataQueueState:
        return SpaceDataQueueState(self._stack(frames, time_axis=0))

    def _stack(self, frames: list[Any], time_axis: int) -> Any:
        return _own_objects(_stack(self.single_space, frames, time_axis))


class SpaceDataQueue:
    """A `FuncSpaceDataQueue` that keeps its state."""

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
        """Start with a first frame; with a mask start again in these slots, for which `initial_data` has the rows."""
        if mask is None:
            self.state = self.func_queue.init(initial_data)
        else:
            self.state = self.func_queue.reset(self._need_state(), initial_data, mask)

    def add(self, data: Any) -> None:
        """Drop the oldest frame and take in a new one."""
        self.state = self.func_queue.add(self._need_state(), data)

    def get_output_data(self) -> Any:
        """All the frames as a value of `output_space`; new memory each time."""
        return self.func_queue.get_output_data(self._need_state())

    def newest(self, output_data: Any) -> Any:
        """The newest frame in what was handed out."""
        return self.func_queue.newest(output_data)

    def _need_state(self) -> SpaceDataQueueState:
        if self.state is None:
            raise RuntimeError("the queue holds no frames yet: reset it with a first one, without a mask")
        return self.state


def _stack(space: Space, frames: list[Any], axis: int) -> Any:
    """Frames along a new axis, which for graphs too may be the second."""
    if isinstance(space, CompositeSpace):
        columns = zip(*(space.child_values(frame) for frame in frames), strict=True)
        return space.build_value(
            _stack(child, list(column), axis) for child, column in zip(space.children, columns, strict=True)
        )
    if isinstance(space, GraphSpace) and axis == 1:
        return batch_utils.swap_batch_dims_in_data(space.backend, batch_utils.concatenate(space, frames), 0, 1)
    return batch_utils.concatenate(space, frames, axis)


def _own_objects(data: Any) -> Any:
    """The data with what lies in arrays of objects copied too: stacking copies only their references."""
    if isinstance(data, Mapping):
        return {key: _own_objects(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_own_objects(value) for value in data)
    return copy.deepcopy(data) if isinstance(data, np.ndarray) and data.dtype == object else data
