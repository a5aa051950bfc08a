"""Which rows of a step go to which buffer, and where episodes end.

One environment is a batch of one slot without an axis, and a recorder is made for each set of buffers: what does not
change from step to step is worked out then.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unienv_interface.env_base.env import Env
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.transformations import DataTransformation

from ._deferred import Share, StepBlock, block_length
from ._recording_modes import ReplayMode
from ._transition import COUNTED, FIELDS, OF_ENV_SPACES, Builder, Setting, make_builder
from .replay_buffer import ReplayBuffer

TransitionBuilder = Callable[..., Any] | DataTransformation
#: If buffers are looked at before so many steps could be written at once, the next ones are written as they come.
_FEW_STEPS, _DIRECT_STEPS = 10, 128


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
        recorder: _SlotRecorder | _BatchRecorder = _SlotRecorder(env, buffers, builders, is_per_env)
    else:
        kind = _LaneRecorder if mode == "interleaved" else _BatchRecorder
        recorder = kind(env, buffers[0], builder(buffers[0], slots, True), slots)
    length, staging = block_length(buffers, slots), recorder.staging
    return recorder if length == 1 or staging is None else _DeferringRecorder(recorder, staging, buffers, length)


class _OneRecorder(Recorder):
    """An environment that is not batched, and its buffer."""

    def __init__(self, buffer: ReplayBuffer, builder: Builder) -> None:
        super().__init__(builder.needs)
        self._buffer, self._build, self._leaves = buffer, builder.build, builder.leaves

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        staged = None if self._leaves is None else self._buffer.storage.stage_leaves(self._leaves(data), None)
        if staged is None:
            self._buffer.append(self._build(data))
        else:
            self._buffer.append_staged(staged)
        if ended:
            self._buffer.mark_segment_end()


class _Staging:
    """The leaves of a step of several slots, as a storage takes them."""

    def __init__(self, buffer: ReplayBuffer, builder: Builder, count: int) -> None:
        self._leaves, self._stage, self._count = builder.leaves, buffer.storage.stage_leaves, count

    def leaves(self, data: Sequence[Any]) -> Sequence[Any] | None:
        """Those of a step, in the order of `RowLayout`; None if they have to be converted."""
        return None if self._leaves is None else self._stage(self._leaves(data), self._count)


class _SlotRecorder(Recorder):
    """A batch, and a buffer for each of its slots."""

    def __init__(
        self, env: Env, buffers: Sequence[ReplayBuffer], builders: Sequence[Builder], has_env_index: bool
    ) -> None:
        super().__init__(frozenset().union(*(builder.needs for builder in builders)))
        self._buffers, self._builds = list(buffers), [builder.build for builder in builders]
        self._backend = env.backend
        self.env_index = _slot_numbers(env) if has_env_index else None
        first, *others = buffers
        is_one_kind = all(type(other.storage) is type(first.storage) for other in others)
        is_one_space = all(other.single_space == first.single_space for other in others)
        is_uniform = is_one_kind and is_one_space
        self.staging = _Staging(first, builders[0], len(buffers)) if is_uniform else None
        self._scratch = first.storage.scratch(len(buffers)) if is_uniform else None
        spaces = {"context": env.context_space, "action": env.action_space}
        self._spaces = {name: spaces.get(name, env.observation_space) for name in OF_ENV_SPACES}
        infos = [_children(buffer.single_space).get("info") for buffer in buffers]
        self._info_names = sorted({name for space in infos for name in _children(space)})

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        staging, scratch = self.staging, self._scratch
        leaves = None if staging is None or scratch is None else staging.leaves(data)
        if scratch is None or leaves is None:
            self._record_each(data, ended)
            return
        for buffer, sample in zip(self._buffers, scratch.fill(leaves), strict=True):
            buffer.append_staged(sample)
        for place in ended:
            self._buffers[place].mark_segment_end()

    def shares(self, block: StepBlock) -> list[Share]:
        """What each buffer gets of a block."""
        return [Share(block, slot, keeps_episodes=True) for slot in range(len(self._buffers))]

    def _record_each(self, data: Sequence[Any], ended: list[int]) -> None:
        """Record values that have to be converted, slot by slot."""
        columns = [self._split(field, value) for field, value in zip(FIELDS, data, strict=True)]
        steps = zip(self._buffers, self._builds, zip(*columns, strict=True), strict=True)
        for place, (buffer, build, row) in enumerate(steps):
            buffer.append(build(row))
            if place in ended:
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

    _keeps_episodes = False
    may_be_open = False

    def __init__(self, env: Env, buffer: ReplayBuffer, builder: Builder, count: int) -> None:
        super().__init__(builder.needs)
        self._buffer, self._build, self._count = buffer, builder.build, count
        self.staging = _Staging(buffer, builder, count)
        self.env_index = _slot_numbers(env)

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        leaves = self.staging.leaves(data)
        if leaves is None:
            self._buffer.extend(self._build(data))
        else:
            self._buffer.extend_staged(leaves, self._count)

    def shares(self, block: StepBlock) -> list[Share]:
        """What the buffer gets of a block."""
        return [Share(block, None, self._keeps_episodes)]


class _LaneRecorder(_BatchRecorder):
    """A batch, and one buffer with a lane for each of its slots."""

    _keeps_episodes = True

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        leaves = self.staging.leaves(data)
        if leaves is None:
            flags = np.zeros(self._count, np.bool_)
            flags[ended] = True
            self._buffer.extend_lanes(self._build(data), flags)
        else:
            self._buffer.extend_lanes_staged(leaves, ended)


class _DeferringRecorder(Recorder):
    """Stages the steps of a batch, to have many written at once; what cannot be staged another recorder writes.

    That one also takes over for a while if the buffers are looked at so often that few steps are written at once.
    """

    def __init__(
        self, direct: _SlotRecorder | _BatchRecorder, staging: _Staging, buffers: Sequence[ReplayBuffer], length: int
    ) -> None:
        super().__init__(direct.needs)
        self._direct, self._staging, self._buffers, self._length = direct, staging, list(buffers), length
        self.env_index = direct.env_index
        self._block: StepBlock | None = None  # from the first step on
        self._shares: list[Share] = []
        self._awaited_at = -_FEW_STEPS  # how many steps had been staged when the buffers began to await more
        self._direct_steps = 0  # so many are yet to be written as they come

    @property
    def may_be_open(self) -> bool:  # type: ignore[override]
        return self._direct.may_be_open and (self._block is None or not self._block.is_awaited)

    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        if self._direct_steps:
            self._direct_steps -= 1
            self._direct.record(data, ended)
            return
        leaves, block = self._staging.leaves(data), self._block
        if leaves is None:
            self._direct.record(data, ended)
            return
        if block is None:
            block = StepBlock(leaves, self._length)
            shares = self._direct.shares(block)
            self._shares, self._block = shares, block  # both or, if this is interrupted, none
        if block.count % self._length == 0:
            self._keep_up()
        if not block.is_awaited:  # somebody has looked
            if any(buffer._state.has_copies for buffer in self._buffers):
                self._direct.record(data, ended)
                return
            if block.count - self._awaited_at < _FEW_STEPS:
                self._direct_steps, self._awaited_at = _DIRECT_STEPS, block.count - _FEW_STEPS
                self._direct.record(data, ended)
                return
            self._await_steps(block)
        block.add(leaves, ended)
        if not block.is_awaited:  # just now
            try:
                self._await_steps(block)
            except BaseException:
                self._write_all()  # else it would be written later, into an episode that is not its own
                raise

    def _keep_up(self) -> None:
        """Have every buffer write its share of what is staged."""
        for share, buffer in zip(self._shares, self._buffers, strict=True):
            share.keep_up(buffer)

    def _write_all(self) -> None:
        """The same for what is staged alone, as far as it can be written: an error is on its way already."""
        for share, buffer in zip(self._shares, self._buffers, strict=True):
            with contextlib.suppress(Exception):
                share.keep_up(buffer, for_more=False)

    def _await_steps(self, block: StepBlock) -> None:
        """Have every buffer await its share of the block, or, where one has been copied meanwhile, at least have it."""
        self._awaited_at = block.count
        try:
            while not block.is_awaited:
                block.is_awaited = True
                shares = zip(self._shares, self._buffers, strict=True)
                awaiting = [share.await_steps(buffer) for share, buffer in shares]  # also after one that does not
                if not all(awaiting):
                    block.is_awaited = False
                    return
        except BaseException:
            block.is_awaited = False
            raise


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
