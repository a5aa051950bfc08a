"""Environments that step one after the other in this process; see `vec_env`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..space.row_layout import RowLayout
from ._env_group import Access, EnvGroup, Slots
from ._info_table import INFO_ROW, AnyInfos, InfoRows, Infos, InfoTable
from ._vec_core import Call, VecEnv
from ._vec_memory import PartedHeap
from .env import ActType, ContextType, Env, ObsType, RenderFrame


class SyncVecEnv(VecEnv[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]):
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
        self._info_area = np.zeros(self._count, INFO_ROW)
        self._info_rows: InfoRows | None = None  # of the form that infos had last
        # of what was asked and not yet waited for: of all environments at once, or of some after others
        self._done: AnyInfos = []
        self._parts: Infos = []

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        positions = indices.tolist()
        if self._heap.parts:
            self._heap.drop(positions)
        self._done = self._group.reset(positions, seeds, args, kwargs, self._slots, positions)

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        positions = range(self._count) if indices is self._all else indices.tolist()
        if self._heap.parts:
            self._heap.drop(positions)
        infos = self._group.step(positions, self.action_space, action, self._slots, positions)
        if indices is self._all:
            self._done = self._tabulated(infos)
        else:
            self._parts += infos

    def _tabulated(self, infos: Infos) -> AnyInfos:
        """The infos of all environments as a table or in rows, which are quick to stack, if they are alike."""
        if not any(infos):
            return []
        rows = self._info_rows
        if rows is not None and rows.write(infos):
            return rows
        table = InfoTable.of(infos)
        self._info_rows = None if table is None else InfoRows.after(0, table, self._info_area, range(self._count))
        return infos if table is None else table

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, AnyInfos]:
        done, self._done, self._parts = self._parts or self._done, [], []
        return indices, done

    def _give_up(self) -> None:
        self._done, self._parts = [], []

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        return [self._group.access(verb, index, name, args, kwargs) for index, args, kwargs in calls]

    def close(self) -> None:
        """Close all environments, also where one of them fails to; then the first failure is raised."""
        self._closed = True
        self._resetting = self._stepping = None
        self._group.close()
