"""Which rows of a step go to which buffer, and where episodes end.

One environment is a batch of one slot without an axis, and a recorder is made for each set of buffers: what does not
change from step to step is worked out then.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unienv_interface.env_base.env import Env
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.transformations import DataTransformation

from ._recording_modes import ReplayMode
from ._transition import COUNTED, FIELDS, OF_ENV_SPACES, Builder, Setting, make_builder
from .replay_buffer import ReplayBuffer

TransitionBuilder = Callable[..., Any] | DataTransformation


class Recorder(abc.ABC):
    """Writes the steps of an environment into buffers."""

    #: What the field `env_index` is, the same at every step.
    env_index: Any = None
    #: Whether there may be samples that others have added since the last step.
    may_be_open: bool = True

    def __init__(self, needs: frozenset[str]) -> None:
        """`needs` are the fields that have to be given; the others may be None."""
        self.needs = needs
        self.needs_counts = not needs.isdisjoint(COUNTED)

    @abc.abstractmethod
    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        """Write one step, in the order of `FIELDS`, and end the episodes of these rows of it, in ascending order."""


def check_builder(chosen: object) -> None:
    """A TypeError unless this can build transitions."""
    if not (chosen is None or callable(chosen) or isinstance(chosen, DataTransformation)):
        raise TypeError(f"transition_builder is {chosen!r:.80}, wanted a function or a DataTransformation")


def make_recorder(
    mode: ReplayMode,
    env: Env,
    buffers: Sequence[ReplayBuffer],
    chosen: TransitionBuilder | None,
    validate: bool,
) -> Recorder:
    """The recorder of a resolved mode; a KeyError if the builder cannot fill a key of a buffer's space."""

    def builder(buffer: ReplayBuffer, count: int | None, has_env_index: bool) -> Builder:
        return make_builder(Setting(env, buffer.single_space, count, has_env_index), chosen, validate)

    slots = env.batch_size
    if slots is None:
        return _OneRecorder(buffers[0], builder(buffers[0], None, False))
    if mode == "per_env" or slots == 1:
        is_per_env = mode == "per_env"
        builders = [builder(buffer, None, is_per_env) for buffer in buffers]
        return _SlotRecorder(env, buffers, builders, is_per_env)
    kind = _LaneRecorder if mode == "interleaved" else _BatchRecorder
    return kind(env, buffers[0], builder(buffers[0], slots, True))


class _OneRecorder(Recorder):
    """An environment that is not batched, and its buffer."""

    def __init__(self, buffer: ReplayBuffer, builder: Builder) -> None:
        super().__init__(builder.needs)
        self._buffer, self._build = buffer, builder.build

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        self._buffer.append(self._build(data))
        if ended:
            self._buffer.mark_segment_end()


class _SlotRecorder(Recorder):
    """A batch, and a buffer for each of its slots."""

    def __init__(
        self, env: Env, buffers: Sequence[ReplayBuffer], builders: Sequence[Builder], has_env_index: bool
    ) -> None:
        super().__init__(frozenset().union(*(builder.needs for builder in builders)))
        self._buffers, self._builds = list(buffers), [builder.build for builder in builders]
        self._backend = env.backend
        self.env_index = _slot_numbers(env) if has_env_index else None
        spaces = {"context": env.context_space, "action": env.action_space}
        self._spaces = {name: spaces.get(name, env.observation_space) for name in OF_ENV_SPACES}
        infos = [_children(buffer.single_space).get("info") for buffer in buffers]
        self._info_names = sorted({name for space in infos for name in _children(space)})

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        columns = [self._split(field, value) for field, value in zip(FIELDS, data, strict=True)]
        steps = zip(self._buffers, self._builds, zip(*columns, strict=True), strict=True)
        for slot, (buffer, build, row) in enumerate(steps):
            buffer.append(build(row))
            if slot in ended:
                buffer.mark_segment_end()

    def _split(self, field: str, value: Any) -> Sequence[Any]:
        """What each slot has of a field."""
        count = len(self._buffers)
        if value is None or field not in self.needs:
            return [value] * count
        if field in self._spaces:
            space = self._spaces[field]
            return [value] * count if space is None else batch_utils.split(space, value)
        if field == "info":
            return [_info_of_slot(value, self._info_names, slot, count) for slot in range(count)]
        if isinstance(value, list):
            return value
        return (self._backend.to_numpy(value) if self._backend.is_backendarray(value) else value).tolist()


def _children(space: Space | None) -> Mapping[str, Space]:
    """The spaces under the keys of a dict space; none of any other."""
    return space.spaces if isinstance(space, DictSpace) else {}


def _slot_numbers(env: Env) -> Any:
    """Which slot each row of a step is of, as an array of the environment's backend."""
    backend = env.backend
    numbers = np.arange(env.batch_size or 1, dtype=backend.dtype_name(backend.default_integer_dtype))
    return backend.from_numpy(numbers, device=env.device)


def _info_of_slot(info: dict[str, Any], names: Iterable[str], slot: int, count: int) -> dict[str, Any]:
    """Of the infos with these names those that one slot has, and of what has one entry per slot its own."""
    found = {}
    for name in names:
        if name not in info:
            continue
        value, flags = info[name], info.get(f"_{name}")
        if _has_one_each(flags, count) and not flags[slot]:  # type: ignore[index]
            continue
        if isinstance(value, dict):
            found[name] = _info_of_slot(value, value, slot, count)
        else:
            found[name] = value[slot] if _has_one_each(value, count) else value
    return found


def _has_one_each(value: Any, count: int) -> bool:
    """Whether an info has an entry for each slot."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape[:1]) == (count,)
    return isinstance(value, (list, tuple)) and len(value) == count


class _BatchRecorder(Recorder):
    """A batch, and one buffer that takes its rows as they come, without episodes."""

    may_be_open = False

    def __init__(self, env: Env, buffer: ReplayBuffer, builder: Builder) -> None:
        super().__init__(builder.needs)
        self._buffer, self._build = buffer, builder.build
        self.env_index = _slot_numbers(env)

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        self._buffer.extend(self._build(data))


class _LaneRecorder(_BatchRecorder):
    """A batch, and one buffer with a lane for each of its slots."""

    may_be_open = True

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        flags = None
        if ended:
            flags = np.zeros(self._buffer.lanes, np.bool_)
            flags[ended] = True
        self._buffer.extend_lanes(self._build(data), flags)


class EpisodeCounts:
    """Which episode each slot is in, and at which step of it. Costs nothing but where an episode begins.

    Episodes are numbered in the order of their first steps, and within one step in that of the slots.
    """

    def __init__(self, slots: int, first_id: int) -> None:
        self.recorded = 0  # steps of all slots; the caller counts
        self._next_id = first_id
        self._begun = [-1] * slots
        self._ids: list[int | None] = [None] * slots

    def begin(self, slots: Sequence[int]) -> bool:
        """Begin episodes in these slots, but where one has just been begun; whether that cuts any short."""
        begun, recorded, cuts = self._begun, self.recorded, False
        for slot in slots:
            if begun[slot] != recorded:
                begun[slot], self._ids[slot], cuts = recorded, None, True
        return cuts

    def skip_to(self, number: int) -> None:
        """Give no step that is yet to come a smaller number than this; what an episode lacks has one of its own."""
        self._next_id = max(self._next_id, number)
        self._ids = [None if own is None or own < number else own for own in self._ids]

    def doubt(self) -> None:
        """Part of a step may have been recorded, after which all slots begin anew."""
        self.recorded += 1

    def advance(self, slots: Sequence[int]) -> None:
        """Count a step of these slots alone, which is the same as to have begun one step earlier."""
        for slot in slots:
            self._begun[slot] -= 1

    def ids(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """The episode that the next step of each slot, or of each of these, belongs to."""
        ids = self._ids
        chosen = range(len(ids)) if slots is None else slots
        for slot in chosen:
            if ids[slot] is None:
                ids[slot], self._next_id = self._next_id, self._next_id + 1
        return np.array(ids if slots is None else [ids[slot] for slot in slots])

    def steps(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """Which step of its episode the next step of each slot, or of each of these, is."""
        begun = self._begun if slots is None else [self._begun[slot] for slot in slots]
        return self.recorded - np.array(begun)


def next_episode_id(buffers: Sequence[ReplayBuffer]) -> int:
    """The first episode number that no episode in these buffers has, if this is how they were written."""
    return 1 + max(map(_newest_episode, buffers), default=-1)


def _newest_episode(buffer: ReplayBuffer) -> int:
    """The largest episode number in a buffer; -1 if there is none.

    Since the newest episode began, no other lane has begun one. So the rows after its last have episodes of the other
    lanes alone, one for each: among as many different episodes as there are lanes, from the end, it is found. Where
    episodes are not kept, nobody knows how many slots were recorded, and all rows are looked at.
    """
    newest: set[int] = set()
    wanted = buffer.lanes if buffer.maintain_segment_metadata else len(buffer)
    start, size = len(buffer), buffer.lanes
    if "episode_id" not in _children(buffer.single_space):
        return -1
    while start and len(newest) < wanted:
        stop, start = start, max(start - size, 0)
        found = buffer.get_column_at(("episode_id",), slice(start, stop))
        newest.update(np.unique(buffer.backend.to_numpy(found)).tolist())
        size = min(2 * size, _ROWS_AT_ONCE)
    return max(newest, default=-1)


_ROWS_AT_ONCE = 65536
