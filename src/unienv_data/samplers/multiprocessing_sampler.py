"""Mini-batches that worker processes fetch."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.env_base._starting import default_context
from unienv_interface.space import DictSpace, Space

from ..base.common import BatchBase, BatchT
from ..base.epoch_order import Epoch
from ..base.sampling import (
    BatchSampler,
    Direct,
    Draw,
    Form,
    IndexBatch,
    Pipeline,
    SamplerArrayType,
    SamplerBatchT,
    SamplerDeviceType,
    SamplerDtypeType,
    SamplerRNGType,
    drawn_state,
)
from ._ahead import Ahead
from ._batch_blocks import BatchPlan
from ._fetch_pool import Fetch, FetchPool


class MultiprocessingSampler(
    BatchSampler[
        SamplerBatchT,
        SamplerArrayType,
        SamplerDeviceType,
        SamplerDtypeType,
        SamplerRNGType,
        BatchT,
        BArrayType,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ]
):
    """The batches of another sampler, fetched by `n_workers` processes.

    Which samples come is drawn in this process: the same seed gives the same batches in the same order with any number
    of workers, with none (0) too, and states can be exchanged between them and with the sampler itself. Up to
    `n_buffers` batches are fetched in advance; they are as the data was then, and so is what an index sampler knew.

    Batches come through shared memory. One that was handed out is the caller's: its memory is used again when the last
    array of it is gone. While the caller holds all `n_buffers` of them, further ones are copied through a pipe, and
    nothing is fetched in advance. So are samples without a fixed size.

    Workers start with the first batch. They see what is added to the data later if it lies in shared memory or on disk,
    as of a replay buffer with `multiprocessing=True`; otherwise each has a copy, and a RuntimeError says so. With fork
    (the default on Linux, but not once JAX is in the process) a copy costs memory only where it is written to. A worker
    that raises gives its error in the place of that batch; one that dies gives a `WorkerDied` to the next call, and
    another takes its place. `close` ends the workers; so does the end of the program.

    `ctx` is a context of `multiprocessing`; `doze_time` is how often, in seconds, one who waits looks whether the
    workers are still there; `daemon` processes (the default) end with this one.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        n_workers: int = 4,
        n_buffers: int = 8,
        ctx: BaseContext | None = None,
        doze_time: float = 0.005,
        daemon: bool | None = None,
    ) -> None:
        for name, value, least in (("n_workers", n_workers, 0), ("n_buffers", n_buffers, 1)):
            if value < least:
                raise ValueError(f"{name} is {value}, it must be at least {least}")
        if doze_time <= 0:
            raise ValueError(f"doze_time is {doze_time}, it must be more than 0")
        self.sampler = sampler
        self.n_workers, self.n_buffers, self.doze_time = n_workers, n_buffers, doze_time
        self.daemon = True if daemon is None else daemon
        self.mp_ctx = ctx
        self.closed = False
        self._pool: FetchPool | None = None
        self._ahead = self._new_ahead()
        super().__init__(sampler.single_space, sampler.single_metadata_space, sampler.batch_size)
        sampler.take_back()

    # -- what it shares with the sampler ---------------------------------------------------------------------

    @property
    def data(self) -> BatchBase:  # type: ignore[override]
        return self.sampler.data

    @property
    def rng(self) -> Any:
        return self.sampler.rng

    @rng.setter
    def rng(self, rng: Any) -> None:
        self.sampler.rng = rng

    @property
    def data_rng(self) -> Any:
        return self.sampler.data_rng

    @data_rng.setter
    def data_rng(self, rng: Any) -> None:
        self.sampler.data_rng = rng

    @property
    def sampled_space(self) -> Space:
        return self.sampler.sampled_space

    @property
    def sampled_metadata_space(self) -> DictSpace | None:
        return self.sampler.sampled_metadata_space

    def __len__(self) -> int:
        return len(self.sampler)

    def get_at(self, idx: Any) -> Any:
        return self.sampler.get_at(idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.sampler.get_at_with_metadata(idx)

    def get_flattened_at(self, idx: Any) -> Any:
        return self.sampler.get_flattened_at(idx)

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.sampler.get_flattened_at_with_metadata(idx)

    @property
    def reader(self) -> BatchBase:
        return self.sampler.reader

    def finish(self, batch: Any, drawn: IndexBatch, form: Form) -> Any:
        return self.sampler.finish(batch, drawn, form)

    # -- drawing ---------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        self._ahead.clear()
        self.sampler.manual_seed(seed)

    def draw(self) -> IndexBatch:
        self.take_back()
        return self.sampler.draw()

    def begin_epoch(self) -> Epoch:
        return self.sampler.begin_epoch()

    def end_epoch(self, epoch: Epoch) -> None:
        self.sampler.end_epoch(epoch)

    # -- fetching --------------------------------------------------------------------------------------------

    def _sample(self, form: Form) -> Any:
        if not self.n_workers:
            return self.fetch(self.sampler.draw(), form)
        self._leave_workers_of_parent()
        drawn, batch = self._ahead.next(self.sampler.draw, form)  # type: ignore[misc] # draws never end
        return self.finish(batch, drawn, form)

    def make_pipeline(self) -> Pipeline:
        return _Finishing(self, self._new_ahead()) if self.n_workers else Direct(self)

    def _new_ahead(self) -> Ahead:
        return Ahead(self._submit, self.n_buffers, self._has_room)

    def _submit(self, drawn: IndexBatch, form: Form) -> Fetch:
        return self._workers().submit(drawn.index, form)

    def _leave_workers_of_parent(self) -> None:
        """After a fork, have workers of our own fetch what those of the other process were asked for."""
        if self._pool is not None and self._pool.owner != os.getpid():
            self.put_back(self._ahead.drawn())
            self._ahead, self._pool = self._new_ahead(), None

    def _has_room(self) -> bool:
        return self._workers().blocks.has_free

    def _workers(self) -> FetchPool:
        if self.closed:
            raise RuntimeError("the sampler is closed")
        self._leave_workers_of_parent()
        if self._pool is None:
            ctx = self.mp_ctx or default_context()
            if multiprocessing.current_process().daemon:
                raise RuntimeError("this is a daemonic process, which may have no workers: use n_workers=0")
            self._pool = FetchPool(
                self.reader,
                BatchPlan(self.reader, self.batch_size),
                n_workers=self.n_workers,
                n_buffers=self.n_buffers,
                ctx=ctx,
                daemon=self.daemon,
                doze_time=self.doze_time,
                seed=self.sampler._seed,
            )
            weakref.finalize(self, self._pool.close)
        return self._pool

    # -- state and end ---------------------------------------------------------------------------------------

    def put_back(self, drawn: Sequence[IndexBatch]) -> None:
        self.sampler.put_back(drawn)

    def take_back(self) -> None:
        self.put_back(self._ahead.drawn())
        self._ahead.clear()

    def state_dict(self) -> dict[str, Any]:
        state = self.sampler.state_dict()
        state["undelivered"] = [*map(drawn_state, self._ahead.drawn()), *state["undelivered"]]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ahead.clear()
        self.sampler.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        self.take_back()
        return {**self.__dict__, "_pool": None, "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ahead = self._new_ahead()

    def close(self) -> None:
        """End the workers, within two seconds. The sampler and its data stay open. May be called more than once."""
        if not self.closed:
            self.take_back()
            self.closed = True
            if self._pool is not None:
                self._pool.close()
                self._pool = None


class _Finishing:
    """Batches that come from workers, made what the caller gets of them."""

    def __init__(self, sampler: MultiprocessingSampler, ahead: Ahead) -> None:
        self._sampler, self._ahead = sampler, ahead

    def next(self, draw: Draw, form: Form) -> tuple[IndexBatch, Any] | None:
        found = self._ahead.next(draw, form)
        if found is None:
            return None
        drawn, batch = found
        return drawn, self._sampler.finish(batch, drawn, form)
