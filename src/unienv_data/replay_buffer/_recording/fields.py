"""The fields of a step, and how their values become those of a buffer's columns.

The data of a step is a tuple in the order of `FIELDS`, of one slot or of a whole batch. For each column, a function is
prepared once that converts the value of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_space, concatenate
from unienv_interface.space.spaces import ArraySpace

from .precision import precision_converter
from .transition_space import single_space

FIELDS = (
    "obs",
    "context",
    "action",
    "next_obs",
    "reward",
    "terminated",
    "truncated",
    "done",
    "env_index",
    "episode_id",
    "step",
    "timestamp",
    "info",
    "extras",
)
DONE, NEXT_OBS = FIELDS.index("done"), FIELDS.index("next_obs")
#: Fields that are values of the environment's spaces; of the others, all but `info` and `extras` are numbers.
OF_ENV_SPACES = ("obs", "context", "action", "next_obs")
#: Fields that the environment knows nothing of.
COUNTED = ("episode_id", "step", "timestamp")

StepData = Sequence[Any]
Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Setting:
    """An environment, the space of a sample, and the form of the data of a step."""

    env: Env
    space: Space
    count: int | None  # of samples to build; None for one sample without a leading axis
    has_env_index: bool

    @property
    def target(self) -> Space:
        """The space of the sample, or batch of samples, to build."""
        return self.space if self.count is None else batch_space(self.space, self.count)

    def env_space(self, field: str) -> Space:
        """The environment's space of a field in the data of a step."""
        env = self.env
        spaces = {"context": env.context_space, "action": env.action_space}
        space = spaces.get(field, env.observation_space)
        if space is None:
            raise KeyError(f"{field}: the buffer wants it, but {env!r} has no {field}_space")
        if self.count == env.batch_size:
            return space
        single = single_space(env, space)
        return single if self.count is None else batch_space(single, self.count)


def known_field(setting: Setting, key: str) -> str:
    """Return the key; a KeyError if no field of a step has this name."""
    if key not in FIELDS:
        raise KeyError(
            f"{key}: the buffer's space has this key, and no field of a step has this name; those are "
            f"{', '.join(FIELDS)}. For other keys, pass a function as transition_builder"
        )
    if key == "env_index" and not setting.has_env_index:
        raise KeyError(f"{key}: the buffer wants it, but in shared mode one environment has no slots")
    if key in OF_ENV_SPACES:
        setting.env_space(key)
    return key


def plain_form(setting: Setting, space: Space) -> tuple[np.dtype | None, tuple[int, ...]]:
    """Dtype and shape of a NumPy array that needs no conversion; dtype None if every value needs one."""
    if not isinstance(space, ArraySpace) or space.backend is not NumpyComputeBackend:
        return None, ()
    return space.dtype, tuple(space.shape) if setting.count is None else (setting.count, *space.shape)


def converter(setting: Setting, key: str, space: Space, as_arrays: bool) -> Convert | None:
    if key in OF_ENV_SPACES:
        target = space if setting.count is None else batch_space(space, setting.count)
        return precision_converter(setting.env_space(key), target, key)
    if key in ("info", "extras"):
        return _InfoReader(setting, space, as_arrays, key).read
    return number_converter(space, setting.count, as_arrays, key)


def number_converter(space: Space, count: int | None, as_arrays: bool, path: str) -> Convert:
    """A function that converts numbers or arrays to values of a space, or to a batch of `count` values.

    For a column of integers, a fraction or a number out of its range is a ValueError.
    """
    if not isinstance(space, ArraySpace):
        return _unchanged if count is None else lambda value: _as_batch(space, value)
    shape = tuple(space.shape) if count is None else (count, *space.shape)
    backend, dtype, device = space.backend, space.dtype, space.device
    is_numpy, is_integer = backend.simplified_name == "numpy", backend.dtype_is_real_integer(dtype)

    def check_whole(value: Any) -> None:
        host = backend.to_numpy(value) if backend.is_backendarray(value) else np.asarray(value)
        with np.errstate(invalid="ignore"):  # non-finite values fail the comparison
            if not (host.astype(backend.dtype_name(dtype)) == host).all():
                raise ValueError(f"{path}: {host!r:.100} is no value of {space}, give the buffer a dtype that holds it")

    def whole(value: Any) -> int:
        if type(value) is not int:  # the storage checks the range of integers
            check_whole(value)
        return int(value)

    if not shape and not as_arrays:
        scalar = _python_type(space)  # storages write Python numbers fastest
        if scalar is not None:
            return whole if is_integer else scalar

    def convert(value: Any) -> Any:
        if is_numpy and type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
            return value
        if is_integer:
            check_whole(value)
        if is_numpy:
            try:
                return np.asarray(value, dtype).reshape(shape)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}: {value!r:.100} is no value of {space}: {error}") from None
        if not backend.is_backendarray(value):
            value = backend.from_host(np.asarray(value), dtype, device=device)
        elif value.dtype != dtype:
            value = backend.astype(value, dtype)
        return value if tuple(value.shape) == shape else backend.reshape(value, shape)

    return convert


def _unchanged(value: Any) -> Any:
    return value


def _as_batch(space: Space, value: Any) -> Any:
    """A batch of values other than arrays, such as texts: vector environments return a list."""
    return concatenate(space, value) if isinstance(value, list) else value


def _python_type(space: ArraySpace) -> type | None:
    backend, dtype = space.backend, space.dtype
    for kind, is_of_kind in (
        (bool, backend.dtype_is_boolean),
        (int, backend.dtype_is_real_integer),
        (float, backend.dtype_is_real_floating),
    ):
        if is_of_kind(dtype):
            return kind
    return None


class _InfoReader:
    """Reads the infos that a dict space has keys for."""

    def __init__(self, setting: Setting, space: Space, as_arrays: bool, path: str) -> None:
        if not isinstance(space, DictSpace):
            raise KeyError(f"{path}: the buffer has {space}, it must have a DictSpace with the keys to be recorded")
        names, self._count, self._path, self._backend = set(space.spaces), setting.count, path, space.backend
        self._flags = {name for name in names if name.startswith("_") and name[1:] in names}
        self._plan: list[tuple[str, Convert, Any]] = []
        for name, child in space.spaces.items():
            own_path = f"{path}/{name}"
            if isinstance(child, DictSpace):
                convert: Convert = _InfoReader(setting, child, as_arrays, own_path).read
            else:
                convert = number_converter(child, setting.count, as_arrays, own_path)
            blank = self._blank(name, child) if f"_{name}" in self._flags else None
            self._plan.append((name, convert, blank))

    def _blank(self, name: str, space: Space) -> Any:
        """The value recorded for a missing info."""
        if not isinstance(space, ArraySpace):
            path = self._path
            raise KeyError(f"{path}/_{name}: only arrays and numbers may be missing, {path}/{name} is of {space}")
        shape = tuple(space.shape) if self._count is None else (self._count, *space.shape)
        return space.backend.zeros(shape, dtype=space.dtype, device=space.device)

    def read(self, info: dict[str, Any]) -> dict[str, Any]:
        values = {}
        for name, convert, blank in self._plan:
            if name in self._flags:
                values[name] = convert(self._is_there(info, name[1:]))
            elif name in info and blank is not None:
                values[name] = self._where_there(info, name, convert, blank)
            elif name in info and self._is_everywhere(info, name):
                values[name] = convert(info[name])
            elif blank is not None:
                values[name] = blank
            else:
                where = "" if name not in info else f" of slots {np.flatnonzero(~np.asarray(info[f'_{name}']))}"
                raise KeyError(
                    f"{self._path}/{name}: it is not in the infos{where} of this step (they have "
                    f"{sorted(map(str, info))}): add a BinarySpace '{self._path}/_{name}' to record where it is there"
                )
        return values

    def _is_there(self, info: dict[str, Any], name: str) -> Any:
        flag = info.get(f"_{name}", name in info)
        return flag if self._count is None or type(flag) is not bool else np.full(self._count, flag)

    def _is_everywhere(self, info: dict[str, Any], name: str) -> bool:
        return self._count is None or f"_{name}" not in info or bool(info[f"_{name}"].all())

    def _where_there(self, info: dict[str, Any], name: str, convert: Convert, blank: Any) -> Any:
        """An info in the slots that have it, by its flags; zeros in the other slots."""
        flags, backend = info.get(f"_{name}", True), self._backend
        there = backend.to_numpy(flags) if backend.is_backendarray(flags) else np.asarray(flags)
        if there.all():
            return convert(info[name])
        if not there.any():
            return blank
        value = convert(info[name])
        mask = backend.from_numpy(there.reshape(-1, *(1,) * (len(value.shape) - 1)), device=backend.device(value))
        return backend.where(mask, value, blank)
