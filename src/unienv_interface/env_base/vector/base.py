"""`VecEnv`, the base class of `SyncVecEnv` and `AsyncVecEnv`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ...backends.numpy import NumpyComputeBackend
from ...space import Space, validate
from ...space.row_layout import Rows
from ...space.space_utils import batch_utils
from ...utils.seed_util import next_seed_rng
from ..env import ActType, ContextType, Env, ObsType, RenderFrame, parse_index, parse_mask
from ..stacking import stack_infos
from .env_group import SIGNAL_DTYPES, Access, EnvSpec, ResultRows
from .infos import AnyInfos, InfoRows

Call = tuple[int, tuple[Any, ...], dict[str, Any]]  # the index of an environment, args, kwargs


class VecEnv(Env[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]):
    """A batch of environments. Subclasses implement beginning a command and waiting for it; see `vec_env`."""

    _closed = False
    _copies = True  # whether returned observations are copies
    _results: ResultRows  # written by the time `_finish` returns

    def _set_up(self, specs: Sequence[EnvSpec], seed: int | None, validate_actions: bool) -> None:
        """Set the spaces, backend, device and generator from the specs of the environments."""
        if not specs:
            raise ValueError("env_fn gives no environments, a vector environment wants at least one")
        first = specs[0]
        for index, spec in enumerate(specs):
            if spec.backend is not first.backend:
                raise ValueError(f"environment {index} is on {spec.backend}, environment 0 on {first.backend}")
            if (spec.context_space is None) != (first.context_space is None):
                raise ValueError(f"only one of environment {index} and environment 0 has a context space")
        self._count = len(specs)
        self._action_spaces = [spec.action_space for spec in specs]
        self.action_space = _join("action_space", self._action_spaces, first.device)
        self.observation_space = _join("observation_space", [spec.observation_space for spec in specs], first.device)
        self.context_space = None
        if first.context_space is not None:
            contexts = [spec.context_space for spec in specs if spec.context_space is not None]
            self.context_space = _join("context_space", contexts, first.device)
        self._spec = replace(
            first,
            action_space=_single(self.action_space, first.action_space),
            observation_space=_single(self.observation_space, first.observation_space),
            context_space=None if self.context_space is None else _single(self.context_space, first.context_space),
        )
        self.rng = first.backend.random.random_number_generator(seed, device=first.device)
        self._validates = validate_actions
        self._all = np.arange(self._count)
        self._backend, self._device = first.backend, first.device
        reward, flag, _ = SIGNAL_DTYPES
        self._read_reward = _signal_reader(first.backend, first.device, reward, first.backend.default_floating_dtype)
        self._read_flag = _signal_reader(first.backend, first.device, flag, first.backend.default_boolean_dtype)
        self._resetting: np.ndarray | None = None
        self._stepping: np.ndarray | None = None

    # -- implemented by subclasses -------------------------------------------------------------------------

    @abc.abstractmethod
    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Begin to reset the environments `indices`, which are in ascending order."""

    @abc.abstractmethod
    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        """Begin to step the environments `indices`, with one action each; `_all` itself stands for all."""

    @abc.abstractmethod
    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, AnyInfos]:
        """Block until `least` environments (None: all) have results; returns their indices and their infos.

        The results are in `_results`. If all are ready, the returned indices are `indices` itself.
        """

    @abc.abstractmethod
    def _give_up(self) -> None:
        """Abandon the command under way, if any."""

    @abc.abstractmethod
    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        """Call, get or set an attribute of environments, with arguments for each; returns the results in order."""

    # -- reset and step ------------------------------------------------------------------------------------

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reset all environments, or the slots of `mask`; returns their context, observation and infos."""
        resetting = self._resetting
        try:
            self.reset_async(*args, mask=mask, seed=seed, **kwargs)
            return self.reset_wait()
        except BaseException:
            if resetting is None:
                self._resetting = None  # no `reset_wait` will follow
            raise

    def reset_async(self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        """Begin a reset; `reset_wait` completes it."""
        self._check_idle("reset")
        self._give_up()  # Ctrl-C may have left a command under way
        indices = self._all if mask is None else parse_mask(mask, self._count, self._backend).nonzero()[0]
        if seed is None:
            seeds = self._drawn_seeds(indices)
        else:
            all_seeds = derive_seeds(seed, self._count)
            seeds = [all_seeds[index] for index in indices]
            if mask is None:
                self.rng = self.backend.random.random_number_generator(seed, device=self.device)
        self._begin_reset(indices, seeds, args, kwargs)
        self._resetting = indices

    def reset_wait(self) -> tuple[Any, Any, dict[str, Any]]:
        """Wait for the reset that `reset_async` began; returns what `reset` returns."""
        indices, self._resetting = self._resetting, None
        if indices is None:
            raise RuntimeError("reset_wait without reset_async: there is no reset to wait for")
        ready, infos = self._finish(indices, None)
        contexts = self._results.contexts
        context = None if contexts is None else self._values(contexts, ready, True)
        return context, self._values(self._results.observations, ready, self._copies), self._stacked(infos)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; returns observation, reward, terminated, truncated and infos."""
        stepping = self._stepping
        try:
            self.step_async(action)
            return self.step_wait()
        except BaseException:
            if stepping is None:
                self._stepping = None  # as in `reset`
            raise

    def step_async(self, action: Any, index: Any = None) -> None:
        """Begin a step; `step_wait` completes it.

        With `index` (an array or list of indices) only these environments step; `action` has one action for each of
        them, in this order. Other environments may still be stepping.
        """
        if index is None:
            self._check_idle("step")
            indices = self._all
        else:
            indices = self._checked_indices(index)
        if self._stepping is None:
            self._give_up()  # Ctrl-C may have left a command under way
        if self._validates:
            self._validate(action, indices)
        self._begin_step(indices, action)
        busy = self._stepping
        self._stepping = indices if busy is None else np.concatenate([busy, indices])

    def step_wait(self, min_envs: int | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Wait for the step that `step_async` began; returns what `step` returns.

        With `min_envs`, wait only until this many environments are ready. Returns the results of the ready
        environments, whose indices are `info["env_index"]`; a later call waits for the others.
        """
        pending = self._stepping
        if pending is None:
            raise RuntimeError("step_wait without step_async: there is no step to wait for")
        if min_envs is not None and not 1 <= min_envs <= len(pending):
            raise ValueError(f"min_envs is {min_envs}, it must be from 1 to {len(pending)}, the stepping environments")
        self._stepping = None  # so that a reset is legal after an error here
        ready, infos = self._finish(pending, min_envs)
        if ready is not pending:
            self._stepping = pending[~np.isin(pending, ready)]
        results, read_flag = self._results, self._read_flag
        rewards, terminated, truncated = results.rewards, results.terminated, results.truncated
        if ready is not self._all:
            rewards, terminated, truncated = rewards[ready], terminated[ready], truncated[ready]
        info = self._stacked(infos)
        if min_envs is not None or pending is not self._all:
            info["env_index"] = self._backend.from_numpy(ready, device=self._device, copy=True)
        observation = self._values(results.observations, ready, self._copies)
        return observation, self._read_reward(rewards), read_flag(terminated), read_flag(truncated), info

    def _values(self, rows: Rows, ready: np.ndarray, copies: bool) -> Any:
        """The values of the ready environments in `rows`; with `copies=False` all rows are returned without a copy."""
        if ready is not self._all:
            return rows.layout.gather(rows, ready)
        return rows.layout.copy_out(rows) if copies else rows.layout.unpack(rows)

    def _stacked(self, infos: AnyInfos) -> dict[str, Any]:
        if isinstance(infos, InfoRows):
            return infos.stacked(self._backend, self._device)
        return stack_infos(infos, self._backend, self._device) if any(infos) else {}

    # -- checks --------------------------------------------------------------------------------------------

    def _check_open(self, command: str) -> None:
        if self._closed:
            raise RuntimeError(f"{command} after close: the environments are closed, make a new vector environment")

    def _check_idle(self, command: str) -> None:
        if self._closed or self._resetting is not None or self._stepping is not None:
            self._check_open(command)
            pending = "reset" if self._resetting is not None else "step"
            raise RuntimeError(f"{command} while a {pending} is under way: call {pending}_wait first")

    def _checked_indices(self, index: Any) -> np.ndarray:
        self._check_open("step")
        indices = parse_index(index, self._count, self.backend)
        if self._resetting is not None:
            raise RuntimeError("step while a reset is under way: call reset_wait first")
        if self._stepping is not None and np.isin(indices, self._stepping).any():
            twice = indices[np.isin(indices, self._stepping)].tolist()
            raise RuntimeError(f"environments {twice} are stepping already: call step_wait first")
        return indices

    def _validate(self, action: Any, indices: np.ndarray) -> None:
        """Raise a ValueError if the action is not in the action space, before any environment steps."""
        space = self.action_space
        if indices is not self._all:
            space = _join("action_space", [self._action_spaces[index] for index in indices], self.device)
        validate(space, action, "action")

    def _drawn_seeds(self, indices: np.ndarray) -> list[int]:
        """A distinct seed for each environment, from one draw of the generator."""
        self.rng, base = next_seed_rng(self.rng, self._backend)
        odd = 0x9E3779B1  # multiples of an odd number are distinct modulo 2**32
        return [(base + index * odd) % 2**32 for index in indices.tolist()]

    # -- attributes of the environments --------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        return self._spec.metadata

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        return self._spec.render_mode

    @property
    def render_fps(self) -> int | None:  # type: ignore[override]
        return self._spec.render_fps

    @property
    def backend(self) -> ComputeBackend:  # type: ignore[override]
        return self._backend

    @property
    def device(self) -> Any:
        return self._device

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self._count

    @property
    def single_action_space(self) -> Space:
        """The action space of one environment; of the first, where their bounds differ."""
        return self._spec.action_space

    @property
    def single_observation_space(self) -> Space:
        """The observation space of one environment; of the first, where their bounds differ."""
        return self._spec.observation_space

    @property
    def single_context_space(self) -> Space | None:
        """The context space of one environment, or None; of the first environment, where their bounds differ."""
        return self._spec.context_space

    # -- calls of all or some environments -----------------------------------------------------------------

    def call(self, name: str, *args: Any, index: Iterable[int] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of every environment, or of the environments `index`; returns the results in order."""
        return self._access("call", name, [(target, args, kwargs) for target in self._targets(name, index)])

    def get_attr(self, name: str, index: Iterable[int] | None = None) -> list[Any]:
        """Get an attribute of every environment, or of the environments `index`, as a list."""
        return self._access("get_attr", name, [(target, (), {}) for target in self._targets("get_attr", index)])

    def set_attr(self, name: str, value: Any, index: Iterable[int] | None = None) -> None:
        """Set an attribute of all environments, or of the environments `index`: one value for all, or a list."""
        targets = self._targets("set_attr", index)
        values = self._values_for(value, targets)
        calls: list[Call] = [(target, (new,), {}) for target, new in zip(targets, values, strict=True)]
        self._access("set_attr", name, calls)

    def render(self) -> Sequence[Any] | None:
        """The frames of all environments that return one, or None if none does."""
        frames = [frame for frame in self.call("render") if frame is not None]
        return frames or None

    def _targets(self, command: str, index: Iterable[int] | None) -> list[int]:
        """The checked indices of the environments that a command is for."""
        self._check_idle(command)
        targets = list(range(self._count)) if index is None else [int(i) for i in index]
        for target in targets:
            self._check_index(target)
        return targets

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self._count:
            raise IndexError(f"index {index} is out of range: there are {self._count} environments")

    def _values_for(self, value: Any, targets: list[int]) -> list[Any]:
        if not isinstance(value, list):
            return [value] * len(targets)
        if len(value) != len(targets):
            raise ValueError(f"{len(value)} values for {len(targets)} environments: a list needs one value for each")
        return value


def _signal_reader(backend: ComputeBackend, device: Any, stored: np.dtype, dtype: Any) -> Callable[[np.ndarray], Any]:
    """A function that copies rewards or flags, stored with one dtype, to an array of the backend with another."""
    if backend is NumpyComputeBackend and dtype == stored:
        return np.ndarray.copy
    return lambda values: backend.from_numpy(values, dtype=dtype, device=device, copy=True)


def _join(name: str, spaces: list[Space], device: Any) -> Space:
    try:
        return batch_utils.batch_differing_spaces(spaces, device=device)
    except ValueError as error:
        raise ValueError(f"{name}: the environments' spaces cannot be batched: {error}") from None


def _single(joined: Space, first: Any) -> Any:
    """The space of one slot of the joined space, so that a row can hold a value of any environment."""
    return first if batch_utils.batch_size(joined) is None else next(iter(batch_utils.unbatch_spaces(joined)))


def derive_seeds(seed: int, count: int) -> list[int]:
    """Distinct 32-bit seeds, the i-th of which depends on `seed` and i alone."""
    draws = count
    while True:
        drawn = np.random.SeedSequence(seed).generate_state(draws).tolist()
        distinct = list(dict.fromkeys(drawn))
        if len(distinct) >= count:
            return distinct[:count]
        draws += count
