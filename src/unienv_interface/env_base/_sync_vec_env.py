"""Environments that step one after the other in this process; see `vec_env`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..space.row_layout import MemoryHeap, RowLayout
from ._env_group import Access, EnvGroup, Slots
from ._info_table import Infos
from ._vec_core import Call, VecEnv
from ._vec_memory import export_rows, import_rows, result_arrays
from .env import Env


class SyncVecEnv(VecEnv):
    """Run multiple non-batched environments synchronously in one process."""

    def __init__(self, env_fn: Iterable[Callable[[], Env]], seed: int | None = None, *, validate: bool = False) -> None:
        """Instantiate every environment immediately and batch their interfaces.

        `validate` checks every action against the action space before any environment moves.
        """
        self._group = EnvGroup()
        self._group.build(list(env_fn))
        self.envs = self._group.envs
        try:
            self._set_up(self._group.specs, seed, validate)
        except BaseException:
            self._group.close(quiet=True)
            raise
        self._observation_layout = RowLayout(self._spec.observation_space)
        self._context_layout = None if self._spec.context_space is None else RowLayout(self._spec.context_space)
        has_heap = any(
            layout is not None and layout.has_heap for layout in (self._observation_layout, self._context_layout)
        )
        self._new_heap: Callable[[], MemoryHeap | None] = MemoryHeap if has_heap else lambda: None
        self._heap = self._new_heap()
        self._done: list[tuple[np.ndarray, Slots, Infos]] = []

    def _slots(self, count: int, heap: MemoryHeap | None) -> Slots:
        # made for one call: what is handed out of it is the caller's
        return Slots.empty(self._observation_layout, self._context_layout, count, heap)

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        slots = self._slots(len(indices), self._heap)
        infos = self._group.reset(indices.tolist(), seeds, args, kwargs, slots, range(len(indices)))
        self._done.append((indices, slots, infos))

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        count = len(indices)
        slots, rows = self._slots(count, self._heap), range(count)
        positions = rows if indices is self._all else indices.tolist()
        infos = self._group.step(positions, self.action_space, action, slots, rows)
        self._done.append((indices, slots, infos))

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, Slots, Infos]:
        done, self._done = self._done, []
        heap, self._heap = self._heap, self._new_heap()
        if len(done) == 1:
            return done[0]
        # several partial steps, waited for together
        slots = self._slots(sum(len(part) for part, _, _ in done), heap)
        start = 0
        for part, results, _ in done:
            rows = list(range(start, start + len(part)))
            import_rows(result_arrays(slots), rows, export_rows(result_arrays(results), list(range(len(part)))))
            start += len(part)
        ready = np.concatenate([part for part, _, _ in done])
        return ready, slots, [info for _, _, infos in done for info in infos]

    def _give_up(self) -> None:
        self._done = []

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        return [self._group.access(verb, index, name, args, kwargs) for index, args, kwargs in calls]

    def close(self) -> None:
        """Close all environments, also where one of them fails to; then the first failure is raised."""
        self._closed = True
        self._resetting = self._stepping = None
        self._group.close()
