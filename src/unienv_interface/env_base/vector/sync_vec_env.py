"""`SyncVecEnv`: environments that step one after the other in this process; see `vec_env`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env import ActType, ContextType, Env, ObsType, RenderFrame
from .base import Call, VecEnv
from .env_group import Access, EnvGroup
from .infos import AnyInfos, InfoForm, InfoRows, Infos
from .memory import ChunkedHeap, MemoryPlan


class SyncVecEnv(VecEnv[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]):
    """Run multiple non-batched environments synchronously in one process.

    Parameters
    ----------
    env_fn
        A factory for each environment.
    seed
        The seed of `rng`, which draws the seeds of resets without a seed.
    copy
        Whether to return copies; with False the next step overwrites the returned observations.
    validate
        Whether to check every action against the action space before any environment moves.

    Raises
    ------
    ValueError
        `env_fn` is empty, or the spaces cannot be batched.

    Examples
    --------
    >>> envs = SyncVecEnv([lambda: unienv.make("CartPole-v1")] * 4, seed=0)
    >>> _, observation, _ = envs.reset()
    >>> observation.shape
    (4, 4)
    """

    def __init__(
        self,
        env_fn: Iterable[Callable[[], Env]],
        seed: int | None = None,
        *,
        copy: bool = True,
        validate: bool = False,
    ) -> None:
        self._copies = copy
        self._group = EnvGroup()
        self._group.build(list(env_fn))
        self.envs = self._group.envs
        try:
            self._set_up(self._group.specs, seed, validate)
        except BaseException:
            self._group.close(quiet=True)
            raise
        self._heap = ChunkedHeap(self._group.at_work)
        areas = MemoryPlan.of(self._spec, self._count, 0).lay_out(None, self._heap, self._heap)
        self._results, self._info_area = areas.results, areas.infos
        self._info_rows: InfoRows | None = None  # rows of the form that infos had last
        # infos that were not waited for yet: of a command for all environments, of commands for some
        self._all_infos: AnyInfos = []
        self._some_infos: Infos = []

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        chosen = indices.tolist()
        self._heap.drop(chosen)
        self._all_infos = self._group.reset(chosen, seeds, args, kwargs, self._results)

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        chosen = range(self._count) if indices is self._all else indices.tolist()
        self._heap.drop(chosen)
        infos = self._group.step(chosen, self.action_space, action, self._results)
        if indices is self._all:
            self._all_infos = self._in_rows(infos)
        else:
            self._some_infos += infos

    def _in_rows(self, infos: Infos) -> AnyInfos:
        """Write the infos of all environments to rows, which stack fast, if they have the form of the last infos."""
        if not any(infos):
            return []
        if self._info_rows is not None and self._info_rows.write(infos):
            return self._info_rows
        form = InfoForm.of(infos)
        self._info_rows = None if form is None else InfoRows(form, self._info_area, range(self._count))
        return infos

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, AnyInfos]:
        infos, self._all_infos, self._some_infos = self._some_infos or self._all_infos, [], []
        return indices, infos

    def _give_up(self) -> None:
        self._all_infos, self._some_infos = [], []

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        return [self._group.access(verb, index, name, args, kwargs) for index, args, kwargs in calls]

    def close(self) -> None:
        """Close all environments, also after one fails to close; then raise the first error."""
        self._closed = True
        self._resetting = self._stepping = None
        self._group.close()
