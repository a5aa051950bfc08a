"""Builders, which make samples of the data of a step, and recorders, which write them to buffers and end episodes.

One environment is a batch of one slot without an axis. A recorder is made for each set of buffers, and prepares
everything that does not change from step to step.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_jax_array, is_torch_array

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space import DictSpace, Space, describe_mismatch
from unienv_interface.space.space_utils import batch_space, batch_utils
from unienv_interface.space.spaces import ArraySpace
from unienv_interface.transformations import DataTransformation

from ..replay_buffer import ReplayBuffer
from .fields import (
    COUNTED,
    DONE,
    FIELDS,
    NEXT_OBS,
    OF_ENV_SPACES,
    Setting,
    StepData,
    converter,
    known_field,
    plain_form,
)
from .modes import ReplayMode
from .transition_space import transition_space

TransitionBuilder = Callable[..., Any] | DataTransformation


# -- builders ----------------------------------------------------------------------------------------------


class Builder:
    """Makes samples of step data."""

    needs: frozenset[str] = frozenset(FIELDS)

    def build(self, data: StepData) -> Any:
        raise NotImplementedError


def make_builder(setting: Setting, chosen: Callable[..., Any] | DataTransformation | None, validate: bool) -> Builder:
    """The builder for the caller's choice; a KeyError for a key of the space that it cannot fill."""
    if chosen is not None and not isinstance(chosen, DataTransformation):
        builder: Builder = CallableBuilder(setting, chosen)
    elif chosen is not None:
        builder = TransformingBuilder(setting, chosen)
    elif isinstance(setting.space, DictSpace):
        builder = DictBuilder(setting, setting.space, as_arrays=validate)
    else:
        builder = NextObservationBuilder()
    return ValidatingBuilder(setting, builder) if validate else builder


def check_builder(chosen: object) -> None:
    """A TypeError if the argument cannot build transitions."""
    if not (chosen is None or callable(chosen) or isinstance(chosen, DataTransformation)):
        raise TypeError(f"transition_builder is {chosen!r:.80}, wanted a function or a DataTransformation")


class DictBuilder(Builder):
    """Fills exactly the keys of a dict space."""

    def __init__(self, setting: Setting, keys: DictSpace, *, as_arrays: bool, keeps_precision: bool = False) -> None:
        """With `as_arrays` numbers become arrays of the backend instead of Python numbers, which storages write faster.

        With `keeps_precision` the environment's values keep their dtypes, whatever the columns' dtypes.
        """
        self._plan = [
            (
                key,
                FIELDS.index(known_field(setting, key)),
                None if keeps_precision and key in OF_ENV_SPACES else converter(setting, key, space, as_arrays),
                *plain_form(setting, space),
            )
            for key, space in keys.spaces.items()
        ]
        self.needs = frozenset(keys.spaces)

    def build(self, data: StepData) -> dict[str, Any]:
        transition = {}
        for key, index, convert, dtype, shape in self._plan:
            value = data[index]
            if convert is not None and not (
                type(value) is np.ndarray and value.dtype is dtype and value.shape == shape
            ):
                value = convert(value)
            transition[key] = value
        return transition


class NextObservationBuilder(Builder):
    """For a space other than a dict: the sample is the observation after the step."""

    needs = frozenset({"next_obs"})

    def build(self, data: StepData) -> Any:
        return data[NEXT_OBS]


class CallableBuilder(Builder):
    """Calls a function of the caller's with all fields, by keyword."""

    needs = frozenset({*OF_ENV_SPACES, "reward", "terminated", "truncated", "env_index", "extras"})

    def __init__(self, setting: Setting, function: Callable[..., Any]) -> None:
        self._function, self._space = function, setting.space

    def build(self, data: StepData) -> Any:
        obs, context, action, next_obs, reward, terminated, truncated, _, env_index, *_, extras = data
        given = {"extras": extras} if extras else {}
        return self._function(
            cached_obs=obs,
            cached_context=context,
            action=action,
            next_obs=next_obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            env_index=env_index,
            rb_single_space=self._space,
            **given,
        )


class TransformingBuilder(Builder):
    """Applies a transformation to the fields that the buffer has keys for, or to the usual fields."""

    def __init__(self, setting: Setting, transformation: DataTransformation) -> None:
        space = setting.space
        keys = space if isinstance(space, DictSpace) else transition_space(setting.env)
        self._inner = DictBuilder(setting, keys, as_arrays=True, keeps_precision=True)
        self._transformation, self.needs = transformation, self._inner.needs
        sources = {key: self._source_of(setting, key, child) for key, child in keys.spaces.items()}
        self._source = DictSpace(space.backend, sources, space.device)

    @staticmethod
    def _source_of(setting: Setting, key: str, child: Space) -> Space:
        if key in OF_ENV_SPACES:
            return setting.env_space(key)
        return child if setting.count is None else batch_space(child, setting.count)

    def build(self, data: StepData) -> Any:
        return self._transformation.transform(self._source, self._inner.build(data))


class ValidatingBuilder(Builder):
    """Checks the samples of another builder."""

    def __init__(self, setting: Setting, inner: Builder) -> None:
        self._inner, self._target, self.needs = inner, setting.target, inner.needs

    def build(self, data: StepData) -> Any:
        transition = self._inner.build(data)
        finding = describe_mismatch(self._target, transition, "")
        if finding is not None:
            raise ValueError(f"the transition does not match target space {self._target}: {finding}")
        return transition


# -- recorders ---------------------------------------------------------------------------------------------


class Recorder(abc.ABC):
    """Writes the steps of an environment into buffers."""

    #: The value of the field `env_index`, the same at every step.
    env_index: Any = None
    #: Whether other code may have added samples since the last step.
    may_be_open: bool = True

    def __init__(self, needs: frozenset[str]) -> None:
        """`needs` are the fields that `record` reads; the others may be None."""
        self.needs = needs
        self.needs_counts = not needs.isdisjoint(COUNTED)

    @abc.abstractmethod
    def record(self, data: Sequence[Any], ended: list[int]) -> None:
        """Write one step, its data in the order of `FIELDS`, and end the episodes of the rows `ended`, ascending."""


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


def _slot_numbers(env: Env) -> Any:
    """The slot of each row of a step, as an array of the environment's backend."""
    backend = env.backend
    numbers = np.arange(env.batch_size or 1, dtype=backend.dtype_name(backend.default_integer_dtype))
    return backend.from_numpy(numbers, device=env.device)


def _info_of_slot(info: dict[str, Any], names: Iterable[str], slot: int, count: int) -> dict[str, Any]:
    """The infos of one slot with these names; of infos with an entry per slot, the slot's entry."""
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


class StepOfSome(NamedTuple):
    """A step of a subset of slots: their recorder, and observations and contexts before it, one row for each."""

    slots: list[int]
    recorder: Recorder
    observation: Any
    context: Any


class PartialRecorders:
    """Makes recorders for subsets of the slots of a batch, into the buffers of the whole batch."""

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
        """The recorder for rows of these slots, in order."""
        if self._of_slots:
            buffers, builders = [self._buffers[slot] for slot in slots], [self._builder(slot, None) for slot in slots]
            recorder: Recorder = _SlotRecorder(self._env, buffers, builders, self._is_per_env)
            if self._is_per_env:
                recorder.env_index = slots
        else:
            recorder = _BatchRecorder(self._env, self._buffers[0], self._builder(0, len(slots)))
            recorder.env_index = recorder.env_index[np.array(slots)]
        return recorder


# -- fields of several values ------------------------------------------------------------------------------


def names_of(field: str, buffers: Sequence[ReplayBuffer]) -> set[str]:
    """The names under a field of several values, in all buffers together."""
    return {name for buffer in buffers for name in _children(_children(buffer.single_space).get(field))}


def check_extras(extras: Mapping[str, Any] | None, names: set[str]) -> None:
    """Raise a KeyError unless the extras of a step have exactly the names of the buffers' columns."""
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
    """The children of a dict space; none for other spaces."""
    return space.spaces if isinstance(space, DictSpace) else {}


# -- data of environments that is kept after a call ---------------------------------------------------------------


def owned_copy(value: Any) -> Any:
    """A copy for the recorder: environments reuse their arrays, and callers write to them."""
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
