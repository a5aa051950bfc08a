"""The layout of observations with past frames and actions, for `FrameStackWrapper` and `FuncFrameStackWrapper`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..space import BinarySpace, BoxSpace, DictSpace, Space, validate
from ..space.framestack_queue import FuncSpaceDataQueue, SpaceDataQueue
from ..space.space import parse_integer
from ..space.space_utils import batch_utils
from ..space.spaces import CompositeSpace

Queue = FuncSpaceDataQueue | SpaceDataQueue

OBSERVATION = "observation"
PAST_ACTIONS = "past_actions"


def parse_stack_size(value: Any, name: str) -> int:
    """Check a number of frames: an integer of at least 0."""
    size = parse_integer(value, name)
    if size < 0:
        raise ValueError(f"{name} is {value}, it must not be negative")
    return size


def parse_default_action(space: Space, value: Any) -> Any:
    """The action to fill the history with at a reset: `value` after a check, or by default the action nearest to 0."""
    if value is None:
        return _nearest_to_zero(space)
    validate(space, value, "action_default_value")
    return value


def _nearest_to_zero(space: Space) -> Any:
    if isinstance(space, BoxSpace):
        values = np.clip(np.zeros((), space.bounds.low.dtype), space.bounds.low, space.bounds.high)
        return space.backend.from_host(np.broadcast_to(values, space.shape), space.dtype, device=space.device)
    if isinstance(space, BinarySpace):
        return space.backend.zeros(space.shape, dtype=space.dtype, device=space.device)
    if isinstance(space, CompositeSpace):
        return space.build_value(_nearest_to_zero(child) for child in space.children)
    raise ValueError(f"{space} has no action that is nearest to zero: pass action_default_value")


def history_space(observation_space: Space, obs_queue: Queue | None, action_queue: Queue | None) -> Space:
    """The space of `history_value`."""
    stacked = observation_space if obs_queue is None else obs_queue.output_space
    if action_queue is None:
        return stacked
    return DictSpace(stacked.backend, {OBSERVATION: stacked, PAST_ACTIONS: action_queue.output_space})


def history_value(observation: Any, obs_frames: Any, action_frames: Any) -> Any:
    """Combine the observation with the frames of the queues; None for a missing queue."""
    stacked = observation if obs_frames is None else obs_frames
    return stacked if action_frames is None else {OBSERVATION: stacked, PAST_ACTIONS: action_frames}


def newest_observation(value: Any, obs_queue: Queue | None, action_queue: Queue | None) -> Any:
    """The newest observation in the result of `history_value`."""
    stacked = value if action_queue is None else value[OBSERVATION]
    return stacked if obs_queue is None else obs_queue.newest(stacked)


def rows_of(space: Space, data: Any, mask: Any) -> Any:
    """Take the slots of a mask from batched data; returns the data if the mask is None."""
    return data if mask is None else batch_utils.get_at(space, data, mask)
