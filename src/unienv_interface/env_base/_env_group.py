"""Several environments stepped one after the other: what a vector environment does in each of its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..backends.base import ComputeBackend
from ..space import Space
from ..space.row_layout import Heap, RowLayout, Rows
from ..space.space_utils import batch_utils
from .env import Env

# What a step says besides the observation: reward, terminated, truncated.
SIGNAL_DTYPES = (np.dtype(np.float64), np.dtype(np.bool_), np.dtype(np.bool_))

Access = Literal["call", "get_attr", "set_attr"]
_WHOLE = slice(None)
# Of infos, what nobody can change: numbers and texts.
_UNCHANGING = frozenset(
    {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()} - {np.void, np.object_}
)


@dataclass(frozen=True)
class EnvSpec:
    """What a vector environment has to know of one of its environments."""

    backend: ComputeBackend
    device: Any
    metadata: dict[str, Any]
    render_mode: str | None
    render_fps: int | None
    action_space: Space
    observation_space: Space
    context_space: Space | None

    @classmethod
    def of(cls, env: Env) -> EnvSpec:
        if env.batch_size is not None:
            raise ValueError(f"{env!r} is batched, a vector environment takes environments that are not")
        return cls(
            env.backend,
            env.device,
            dict(env.metadata),
            env.render_mode,
            env.render_fps,
            env.action_space,
            env.observation_space,
            env.context_space,
        )


class Slots:
    """The memory that results are written to, a row for each environment; every result overwrites the one before."""

    def __init__(
        self,
        observations: Rows,
        contexts: Rows | None,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        self.observations = observations
        self.contexts = contexts
        self.rewards = rewards
        self.terminated = terminated
        self.truncated = truncated
        # The same memory again, in the form that small values are quickest to write to one by one.
        self.signals = rewards.data, terminated.data, truncated.data
        self.fitting = _fitting(observations)

    def __reduce__(self) -> tuple[type[Slots], tuple[Any, ...]]:
        return Slots, (self.observations, self.contexts, self.rewards, self.terminated, self.truncated)

    @classmethod
    def empty(
        cls, observation_layout: RowLayout, context_layout: RowLayout | None, count: int, heap: Heap | None
    ) -> Slots:
        contexts = None if context_layout is None else context_layout.empty(count, heap)
        signals = [np.zeros(count, dtype) for dtype in SIGNAL_DTYPES]
        return cls(observation_layout.empty(count, heap), contexts, *signals)


class EnvGroup:
    """Environments of one process, by their index in the group."""

    def __init__(self, first_index: int = 0, progress: list[int] | memoryview | None = None) -> None:
        """`progress` is where the number of the environment at work is noted: shared memory if the parent watches."""
        self.envs: list[Env] = []
        self.specs: list[EnvSpec] = []
        self.first_index = first_index
        self.progress: list[int] | memoryview = [0] if progress is None else progress
        self.command = "construction"
        self._borrowed_form: tuple[Any, tuple[int, ...]] | None = None
        self.turn_to(0)

    @property
    def at_work(self) -> tuple[int, str]:
        """Which environment does what, for the report of an error."""
        return int(self.progress[0]), self.command

    def turn_to(self, position: int) -> None:
        """Note which environment is at work now."""
        self.progress[0] = self.first_index + position

    def build(self, factories: Sequence[Callable[[], Env]]) -> None:
        """Make the environments; where one cannot be made, the others are closed again."""
        try:
            for position, factory in enumerate(factories):
                self.turn_to(position)
                self.envs.append(factory())
                self.specs.append(EnvSpec.of(self.envs[-1]))
            self._borrowed_form = _borrowed_form(self.envs)
        except BaseException:
            self.close(quiet=True)
            raise

    def reset(
        self,
        positions: Sequence[int],
        seeds: Sequence[int | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        slots: Slots,
        rows: Sequence[int],
    ) -> list[dict[str, Any]]:
        """Reset the environments at these positions into these rows; returns their infos."""
        infos = []
        self.command = "reset"
        observations, contexts = slots.observations, slots.contexts
        for position, seed, row in zip(positions, seeds, rows, strict=True):
            self.turn_to(position)
            context, observation, info = self.envs[position].reset(*args, seed=seed, **kwargs)
            observations.layout.pack(observations, row, observation)
            if contexts is not None:
                contexts.layout.pack(contexts, row, context)
            infos.append(info)
        return infos

    def step(
        self, positions: Sequence[int], action_space: Space, actions: Any, slots: Slots, rows: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Step the environments at these positions, with one action each, into these rows; returns their infos.

        Actions, unless they `can_borrow`, must be in memory that nobody writes to.
        """
        infos = []
        observations, fitting = slots.observations, slots.fitting
        rewards, terminations, truncations = slots.signals
        envs, first, progress = self.envs, self.first_index, self.progress
        self.command = "step"
        steps: list[Any] = []
        if self.can_borrow(actions, len(positions)):
            steps = [envs[position].lender.step for position in positions]
        is_borrowed = bool(steps) and all(steps)  # one of them may have been replaced meanwhile
        if is_borrowed:
            singles: Iterable[Any] = actions if actions.ndim == 1 else actions.copy()  # numbers are copies as they come
        else:
            steps = [envs[position].step for position in positions]
            singles = _split(action_space, actions, len(positions))
        # All of them are as many. Not to ask whether an array of actions has more saves the time of an exception.
        for position, row, step, action in zip(positions, rows, steps, singles):  # noqa: B905
            progress[0] = first + position
            observation, reward, terminated, truncated, info = step(action)
            try:
                fitting[row][_WHOLE] = observation
            except (TypeError, ValueError, BufferError):
                value = envs[position].read_borrowed(observation) if is_borrowed else observation
                observations.layout.pack(observations, row, value)
            rewards[row], terminations[row], truncations[row] = reward, terminated, truncated
            if info and is_borrowed:
                is_plain = _UNCHANGING.issuperset(map(type, info.values()))
                info = dict(info) if is_plain else envs[position].read_borrowed_info(info)
            infos.append(info)
        return infos

    def can_borrow(self, actions: Any, count: int) -> bool:
        """Whether all environments, as they were made, lend a step that takes these actions; `step` copies those."""
        if self._borrowed_form is None or type(actions) is not np.ndarray:
            return False
        dtype, shape = self._borrowed_form
        return actions.dtype == dtype and actions.shape == (count, *shape)

    def access(self, verb: Access, position: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, get or set an attribute of one environment, found through its wrappers."""
        self.command = name if verb == "call" else f"{verb} {name}"
        self.turn_to(position)
        env = self.envs[position]
        if verb == "set_attr":
            return env.set_wrapper_attr(name, *args)
        found = env.get_wrapper_attr(name)
        return found(*args, **kwargs) if verb == "call" else found

    def close(self, quiet: bool = False) -> None:
        """Close all the environments, also where one of them fails to; then the first failure is raised."""
        first: BaseException | None = None
        for position, env in enumerate(self.envs):
            try:
                env.close()
            except BaseException as error:
                if first is None and not quiet:
                    first, self.command = error, "close"
                    self.turn_to(position)
        self.envs = []
        if first is not None:
            raise first


class _FittingArray:
    """The memory of one array, to which nothing can be assigned but an array of just its dtype and shape."""

    __slots__ = ("_array", "_form")

    def __init__(self, array: np.ndarray) -> None:
        self._array, self._form = array, (array.dtype, array.shape)

    def __setitem__(self, whole: slice, value: Any) -> None:
        if type(value) is not np.ndarray or (value.dtype, value.shape) != self._form:
            raise TypeError("another form")
        self._array[whole] = value


def _fitting(rows: Rows) -> list[Any]:
    """Of every row something that takes its value if that is an array which just fits, and raises if it is not.

    Of a vector that is a memoryview, which is the quickest there is. Rows that are no plain arrays take nothing.
    """
    dtype, shape = rows.layout.plain_value
    if dtype is None or not shape:
        return [None] * len(rows)
    return [array.data if len(shape) == 1 else _FittingArray(array) for array in rows.columns[0]]


def _borrowed_form(envs: Sequence[Env]) -> tuple[Any, tuple[int, ...]] | None:
    """Dtype and shape of the actions that the borrowed steps of all of them take; None if some have none."""
    if any(env.lender.step is None for env in envs):
        return None
    forms = {(env.action_space.dtype, env.action_space.shape or ()) for env in envs}
    return forms.pop() if len(forms) == 1 else None


def _split(action_space: Space, actions: Any, count: int) -> Sequence[Any]:
    """One action for each of the environments."""
    singles = batch_utils.split(action_space, actions)
    if len(singles) != count:
        if batch_utils.batch_size_data(actions) is not None:  # before any of them moves
            raise ValueError(f"{len(singles)} actions for {count} environments, each wants one")
        singles = [actions] * count  # a dict or tuple of nothing, the same for all
    return singles
