"""Environments that step one after the other in this process; see `vec_env`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..space.row_layout import RowLayout
from ._env_group import Access, EnvGroup, Slots
from ._info_table import Infos
from ._vec_core import Call, VecEnv
from ._vec_memory import PartedHeap
from .env import Env


class SyncVecEnv(VecEnv):
    """Run multiple non-batched environments synchronously in one process."""

    def __init__(
        self,
        env_fn: Iterable[Callable[[], Env]],
        seed: int | None = None,
        *,
        copy: bool = True,
        validate: bool = False,
    ) -> None:
        """Instantiate every environment immediately and batch their interfaces.

        - `copy`: False hands out the memory that observations are written to, which the next step overwrites.
        - `validate`: check every action against the action space before any environment moves.
        """
        self._copies = copy
        self._group = EnvGroup()
        self._group.build(list(env_fn))
        self.envs = self._group.envs
        try:
            self._set_up(self._group.specs, seed, validate)
        except BaseException:
            self._group.close(quiet=True)
            raise
        context_space = self._spec.context_space
        self._heap = PartedHeap(self._group.progress)
        self._slots = Slots.empty(
            RowLayout(self._spec.observation_space),
            None if context_space is None else RowLayout(context_space),
            self._count,
            self._heap,
        )
        self._done: list[dict[str, Any]] = []  # infos of what was asked and not yet waited for

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        positions = indices.tolist()
        if self._heap.parts:
            self._heap.drop(positions)
        self._done += self._group.reset(positions, seeds, args, kwargs, self._slots, positions)

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        positions = range(self._count) if indices is self._all else indices.tolist()
        if self._heap.parts:
            self._heap.drop(positions)
        self._done += self._group.step(positions, self.action_space, action, self._slots, positions)

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, Infos]:
        done, self._done = self._done, []
        return indices, done

    def _give_up(self) -> None:
        self._done = []

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        return [self._group.access(verb, index, name, args, kwargs) for index, args, kwargs in calls]

    def close(self) -> None:
        """Close all environments, also where one of them fails to; then the first failure is raised."""
        self._closed = True
        self._resetting = self._stepping = None
        self._group.close()
