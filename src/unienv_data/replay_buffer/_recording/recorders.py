"""Recorders, which write the rows of a step to buffers and end episodes.

One environment is a batch of one slot without an axis. A recorder is made for each set of buffers, and prepares
everything that does not change from step to step.
"""

from __future__ import annotations

import abc
import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_jax_array, is_torch_array

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import ArraySpace
from unienv_interface.transformations import DataTransformation

from ..replay_buffer import ReplayBuffer
from .builders import COUNTED, DONE, FIELDS, OF_ENV_SPACES, Builder, Setting, make_builder
from .modes import ReplayMode

TransitionBuilder = Callable[..., Any] | DataTransformation


class Recorder(abc.ABC):
    """Writes the steps of an environment into buffers."""

    #: The value of the field `env_index`, the same at every step.
    env_index: Any = None
    #: Whether other code may have added samples since the last step.
    may_be_open: bool = True

    def __init__(self, needs: frozenset[str]) -> None:
        """`needs` are the fields that have to be given; the others may be None."""
        self.needs = needs
        self.needs_counts = not needs.isdisjoint(COUNTED)

    @abc.abstractmethod
    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        """Write one step, in the order of `FIELDS`, and end the episodes of the rows `ended`, in ascending order."""


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
    """Records an environment that is not batched into one buffer."""

    def __init__(self, buffer: ReplayBuffer, builder: Builder) -> None:
        super().__init__(builder.needs)
        self._buffer, self._build = buffer, builder.build

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        self._buffer.append(self._build(data))
        if ended:
            self._buffer.mark_segment_end()


class _SlotRecorder(Recorder):
    """Records a batch into a buffer for each slot."""

    def __init__(
        self, env: Env, buffers: Sequence[ReplayBuffer], builders: Sequence[Builder], has_env_index: bool
    ) -> None:
        super().__init__(frozenset().union(*(builder.needs for builder in builders)))
        self._buffers, self._builds = list(buffers), [builder.build for builder in builders]
        self._backend = env.backend
        self.env_index = _slot_numbers(env) if has_env_index else None
        spaces = {"context": env.context_space, "action": env.action_space}
        self._spaces = {name: spaces.get(name, env.observation_space) for name in OF_ENV_SPACES}
        self._names = {field: sorted(names_of(field, buffers)) for field in ("info", "extras")}

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        columns = [self._split(field, value) for field, value in zip(FIELDS, data, strict=True)]
        steps = zip(self._buffers, self._builds, zip(*columns, strict=True), strict=True)
        for slot, (buffer, build, row) in enumerate(steps):
            buffer.append(build(row))
            if slot in ended:
                buffer.mark_segment_end()

    def _split(self, field: str, value: Any) -> Sequence[Any]:
        """The value of a field for each slot."""
        count = len(self._buffers)
        if value is None or field not in self.needs:
            return [value] * count
        if field in self._spaces:
            space = self._spaces[field]
            return [value] * count if space is None else batch_utils.split(space, value)
        if field in self._names:
            return [_info_of_slot(value, self._names[field], slot, count) for slot in range(count)]
        if isinstance(value, list):
            return value
        return (self._backend.to_numpy(value) if self._backend.is_backendarray(value) else value).tolist()


def names_of(field: str, buffers: Sequence[ReplayBuffer]) -> set[str]:
    """The names under a field of several values, in any of these buffers."""
    return {name for buffer in buffers for name in _children(_children(buffer.single_space).get(field))}


def check_extras(extras: Mapping[str, Any] | None, names: set[str]) -> None:
    """Raise a KeyError unless the extras of a step have just the names of the buffers' columns."""
    given = {} if extras is None else extras
    missing = [name for name in names if name not in given]
    missing = [name for name in missing if f"_{name}" not in names and not (name[:1] == "_" and name[1:] in names)]
    if missing:
        name = min(missing)
        given_so = f"step(action, extras={{{name!r}: ...}})"
        raise KeyError(f"extras/{name}: the buffer has this column, give its value at each step: {given_so}")
    for name in given:
        if name not in names:
            raise KeyError(
                f"extras/{name}: the buffer has no such column, it has {sorted(names)}: make its space with "
                f"transition_space(env, extras={{{name!r}: space}})"
            )


def _children(space: Space | None) -> Mapping[str, Space]:
    """The spaces under the keys of a dict space; none of any other."""
    return space.spaces if isinstance(space, DictSpace) else {}


def _slot_numbers(env: Env) -> Any:
    """The slot of each row of a step, as an array of the environment's backend."""
    backend = env.backend
    numbers = np.arange(env.batch_size or 1, dtype=backend.dtype_name(backend.default_integer_dtype))
    return backend.from_numpy(numbers, device=env.device)


def _info_of_slot(info: dict[str, Any], names: Iterable[str], slot: int, count: int) -> dict[str, Any]:
    """The infos with these names that one slot has; of infos with an entry per slot, the entry of the slot."""
    infos = {}
    for name in names:
        if name not in info:
            continue
        value, flags = info[name], info.get(f"_{name}")
        if _has_one_each(flags, count) and not flags[slot]:  # type: ignore[index]
            continue
        if isinstance(value, dict):
            infos[name] = _info_of_slot(value, value, slot, count)
        else:
            infos[name] = value[slot] if _has_one_each(value, count) else value
    return infos


def _has_one_each(value: Any, count: int) -> bool:
    """Whether an info has an entry for each slot."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape[:1]) == (count,)
    return isinstance(value, (list, tuple)) and len(value) == count


class _BatchRecorder(Recorder):
    """Records a batch into one buffer without episodes, row after row."""

    may_be_open = False

    def __init__(self, env: Env, buffer: ReplayBuffer, builder: Builder) -> None:
        super().__init__(builder.needs)
        self._buffer, self._build = buffer, builder.build
        self.env_index = _slot_numbers(env)

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        self._buffer.extend(self._build(data))


class _LaneRecorder(_BatchRecorder):
    """Records a batch into one buffer with a lane for each slot."""

    may_be_open = True

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        self._buffer.extend_lanes(self._build(data), data[DONE] if ended else None)


class EpisodeCounts:
    """Counts the episodes and the steps of each slot. It costs time only where an episode begins.

    Episodes are numbered in the order of their first steps, and within one step in that of the slots.
    """

    def __init__(self, slots: int, first_id: int) -> None:
        self.recorded = 0  # steps of all slots; the caller counts
        self._next_id = first_id
        self._begun = [-1] * slots
        self._ids: list[int | None] = [None] * slots

    def begin(self, slots: Sequence[int]) -> bool:
        """Begin an episode in each of these slots that does not begin one already; whether there was any."""
        begun, recorded, cuts = self._begun, self.recorded, False
        for slot in slots:
            if begun[slot] != recorded:
                begun[slot], self._ids[slot], cuts = recorded, None, True
        return cuts

    def skip_to(self, number: int) -> None:
        """Give the episodes to come, and those under way, no smaller number than this."""
        self._next_id = max(self._next_id, number)
        self._ids = [None if own is None or own < number else own for own in self._ids]

    def doubt(self) -> None:
        """Count a step that may have been recorded in part; all slots begin anew after it."""
        self.recorded += 1

    def advance(self, slots: Sequence[int]) -> None:
        """Count a step of these slots alone, by moving the begin of their episodes one step back."""
        for slot in slots:
            self._begun[slot] -= 1

    def ids(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """The episode of the next step of each slot, or of each of these slots."""
        ids = self._ids
        chosen = range(len(ids)) if slots is None else slots
        for slot in chosen:
            if ids[slot] is None:
                ids[slot], self._next_id = self._next_id, self._next_id + 1
        return np.array(ids if slots is None else [ids[slot] for slot in slots])

    def steps(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """The number, in its episode, of the next step of each slot, or of each of these slots."""
        begun = self._begun if slots is None else [self._begun[slot] for slot in slots]
        return self.recorded - np.array(begun)


def next_episode_id(buffers: Sequence[ReplayBuffer]) -> int:
    """The first episode number that no episode in these buffers has, if a recorder has written them."""
    return 1 + max(map(_newest_episode, buffers), default=-1)


def _newest_episode(buffer: ReplayBuffer) -> int:
    """The largest episode number in a buffer; -1 if there is none.

    Since the newest episode began, no other lane has begun one. So the rows after its last row belong to one episode of
    each other lane, and the newest episode is among the last different episodes, as many as there are lanes. Where
    episodes are not kept, the number of recorded slots is unknown, and all rows are read.
    """
    newest: set[int] = set()
    wanted = buffer.lanes if buffer.maintain_segment_metadata else len(buffer)
    start, size = len(buffer), buffer.lanes
    if "episode_id" not in _children(buffer.single_space):
        return -1
    while start and len(newest) < wanted:
        stop, start = start, max(start - size, 0)
        ids = buffer.get_column_at(("episode_id",), slice(start, stop))
        newest.update(np.unique(buffer.backend.to_numpy(ids)).tolist())
        size = min(2 * size, _ROWS_AT_ONCE)
    return max(newest, default=-1)


_ROWS_AT_ONCE = 65536


# -- steps of some slots ------------------------------------------------------------------------------------------


class StepOfSome(NamedTuple):
    """A step of some slots: their recorder, and the observations and contexts before it, one row for each."""

    slots: list[int]
    recorder: Recorder
    observation: Any
    context: Any


class PendingSteps:
    """The slots that are stepping, with the action of each."""

    def __init__(self, action_space: Space) -> None:
        """`action_space` is that of the whole batch."""
        self.is_sound = True  # whether the observations of the slots that are not stepping are known
        self._space = action_space
        self._actions: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._actions)

    def actions_for(self, slots: Sequence[int], action: Any) -> dict[int, Any]:
        """The action of each of these slots, out of a batch; an error if one of them is stepping already."""
        busy = sorted(self._actions.keys() & set(slots))
        if busy:
            raise RuntimeError(f"environments {busy} are stepping already: call step_wait first")
        rows = batch_utils.split(self._space, action)
        if len(rows) != len(slots):
            raise ValueError(f"{len(rows)} actions for the {len(slots)} environments {list(slots)}")
        return dict(zip(slots, rows, strict=True))

    def add(self, actions: dict[int, Any]) -> None:
        """Add slots that have begun to step."""
        self._actions.update(actions)

    def take(self, slots: Sequence[int]) -> Any:
        """Remove slots that have finished their step, and return their actions as a batch in this order."""
        return batch_utils.concatenate(self._space, [self._actions.pop(slot) for slot in slots])

    @contextlib.contextmanager
    def in_doubt(self) -> Iterator[None]:
        """Mark the observations of the slots as unknown if the block fails."""
        was_sound, self.is_sound = self.is_sound, False
        yield
        self.is_sound = was_sound


class PartialRecorders:
    """Makes recorders for some slots of a batch, into the buffers of the whole batch."""

    def __init__(
        self,
        mode: ReplayMode,
        env: Env,
        buffers: Sequence[ReplayBuffer],
        chosen: TransitionBuilder | None,
        validate: bool,
    ) -> None:
        self._env, self._buffers, self._is_per_env = env, list(buffers), mode == "per_env"
        self._of_slots = self._is_per_env or env.batch_size == 1

        @cache
        def builder(index: int, count: int | None) -> Builder:
            has_env_index = count is not None or self._is_per_env
            return make_builder(Setting(env, buffers[index].single_space, count, has_env_index), chosen, validate)

        self._builder = builder

    def of(self, slots: list[int]) -> Recorder:
        """The recorder for rows of these slots, in this order."""
        if self._of_slots:
            buffers, builders = [self._buffers[slot] for slot in slots], [self._builder(slot, None) for slot in slots]
            recorder: Recorder = _SlotRecorder(self._env, buffers, builders, self._is_per_env)
            if self._is_per_env:
                recorder.env_index = slots
        else:
            recorder = _BatchRecorder(self._env, self._buffers[0], self._builder(0, len(slots)))
            recorder.env_index = recorder.env_index[np.array(slots)]
        return recorder


def check_steps_of_some(mode: ReplayMode, slots: int, what: str) -> None:
    """Raise a ValueError for a mode that cannot record some slots without the others."""
    if mode == "interleaved":
        raise ValueError(
            f"{what}: in replay_mode='interleaved' all {slots} lanes advance together (sample s belongs to lane "
            f"s % {slots}), so a step must be of all slots. Steps of some are recorded with replay_mode='per_env' and "
            f"a buffer per slot, which keeps episodes, or 'shared' and one buffer without"
        )


# -- data of environments that is kept after a call ---------------------------------------------------------------


def owned_copy(value: Any) -> Any:
    """A copy that only this module can change: environments reuse their arrays, and callers write to theirs."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if value is None or is_jax_array(value):  # which never changes
        return value
    if isinstance(value, dict):
        return {key: owned_copy(child) for key, child in value.items()}
    if type(value) in (tuple, list):
        return type(value)(owned_copy(child) for child in value)
    if is_torch_array(value):
        return value.clone()
    return copy.deepcopy(value)


def is_plain(env: Env) -> bool:
    """Whether a batch of observations is a NumPy array that is merged after a reset in the usual way."""
    usual = type(env).update_observation_post_reset is Env.update_observation_post_reset
    return usual and env.backend is NumpyComputeBackend and isinstance(env.observation_space, ArraySpace)
