"""The history of an environment: the layout of past frames and actions beside the observation.

Shared by `FrameStackWrapper` and `FuncFrameStackWrapper`, which differ in who keeps the state of the queues.
"""

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
    """A number of frames as a user gives it."""
    size = parse_integer(value, name)
    if size < 0:
        raise ValueError(f"{name} is {value}, it must not be negative")
    return size


def parse_default_action(space: Space, value: Any) -> Any:
    """The action that stands for those before the first: the one given, or the one nearest to zero."""
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
    shown = observation_space if obs_queue is None else obs_queue.output_space
    if action_queue is None:
        return shown
    return DictSpace(shown.backend, {OBSERVATION: shown, PAST_ACTIONS: action_queue.output_space})


def history_value(observation: Any, obs_frames: Any, action_frames: Any) -> Any:
    """The observation with its history, given the frames of the queues; None for a missing queue."""
    shown = observation if obs_frames is None else obs_frames
    return shown if action_frames is None else {OBSERVATION: shown, PAST_ACTIONS: action_frames}


def newest_observation(value: Any, obs_queue: Queue | None, action_queue: Queue | None) -> Any:
    """The observation that `history_value` was made of."""
    shown = value if action_queue is None else value[OBSERVATION]
    return shown if obs_queue is None else obs_queue.newest(shown)


def rows_of(space: Space, data: Any, mask: Any) -> Any:
    """The slots of batched data that a mask selects, or all of it if the mask is None."""
    return data if mask is None else batch_utils.get_at(space, data, mask)
