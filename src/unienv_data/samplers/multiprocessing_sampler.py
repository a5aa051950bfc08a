"""A sampler whose mini-batches are fetched by worker processes."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import DictSpace, Space
from unienv_interface.utils.channel import no_interrupt
from unienv_interface.utils.worker_processes import default_context

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
from ._fetch_pool import FetchPool, WorkerFetch
from ._fetch_worker import BatchPlan
from ._prefetch import Prefetcher


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

    This process draws the indices: the same seed gives the same batches in the same order with any number of workers,
    and the state of one can be loaded into another, or into the inner sampler.

    Batches come through shared memory. A returned batch belongs to the caller: its memory is reused only when the last
    of its arrays is gone. While the caller holds all `n_buffers` batches, further batches are copied through a pipe,
    and nothing is fetched in advance. Samples without a fixed size are always copied through a pipe.

    Workers start with the first batch. They see samples that are added later if the data lie in shared memory or on
    disk, such as a replay buffer with `multiprocessing=True`. Otherwise each worker has a copy of the data, and a
    RuntimeError is raised once samples are added. With fork (the default on Linux, unless JAX is imported) a copy
    shares its memory until it is written to. `close` ends the workers, and so does the end of the program.

    Parameters
    ----------
    sampler
        Draws and reads the batches. It stays open when the `MultiprocessingSampler` is closed.
    n_workers
        The number of worker processes; with 0 this process fetches the batches.
    n_buffers
        The largest number of batches fetched in advance; they have the data of the time of the fetch.
    ctx
        A context of `multiprocessing`, by default the context of the platform.
    doze_time
        The seconds between two checks that the workers are alive, while the parent waits.
    daemon
        Whether the workers end with this process; they do by default.

    Raises
    ------
    ValueError
        A number is out of range.
    WorkerDied
        A worker has died, which the next call reports; a new worker takes over. An error that a worker raises is raised
        in place of its batch.

    Examples
    --------
    >>> with MultiprocessingSampler(StepSampler(buffer, 256, seed=0), n_workers=2) as workers:
    ...     for batch in workers.epoch_iter():
    ...         learn(batch)
    """

    def __init__(
        self,
        sampler: BatchSampler[
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
        ],
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
        self._prefetcher = self._new_prefetcher()
        super().__init__(sampler.single_space, sampler.single_metadata_space, sampler.batch_size)
        sampler.take_back()

    # -- delegated to the inner sampler ----------------------------------------------------------------------

    @property
    def data(self) -> BatchBase:  # type: ignore[override]
        """The batch that the inner sampler draws from."""
        return self.sampler.data

    @property
    def rng(self) -> Any:
        """The generator of the inner sampler."""
        return self.sampler.rng

    @rng.setter
    def rng(self, rng: Any) -> None:
        self.sampler.rng = rng

    @property
    def data_rng(self) -> Any:
        """The generator that draws the indices."""
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

    def read_as(self, idx: Any, form: Form) -> Any:
        return form.read(self.sampler, idx)

    @property
    def source(self) -> BatchBase:
        return self.sampler.source

    def finish(self, batch: Any, drawn: IndexBatch, form: Form) -> Any:
        return self.sampler.finish(batch, drawn, form)

    # -- drawing ---------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        self._prefetcher.clear()
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
        drawn, batch = self._prefetcher.next(self.sampler.draw, form)  # type: ignore[misc] # draws never end
        return self.finish(batch, drawn, form)

    def make_pipeline(self) -> Pipeline:
        return _Finishing(self, self._new_prefetcher()) if self.n_workers else Direct(self)

    def _new_prefetcher(self) -> Prefetcher:
        return Prefetcher(self._submit, self.n_buffers, self._has_room)

    def _submit(self, drawn: IndexBatch, form: Form) -> WorkerFetch:
        return self._running_pool().submit(drawn.index, form)

    def _leave_workers_of_parent(self) -> None:
        """After a fork, leave the workers to the parent and draw their requested batches again."""
        if self._pool is not None and self._pool.owner != os.getpid():
            self.put_back(self._prefetcher.drawn())
            self._prefetcher, self._pool = self._new_prefetcher(), None

    def _has_room(self) -> bool:
        return self._running_pool().blocks.has_free

    def _running_pool(self) -> FetchPool:
        if self.closed:
            raise RuntimeError("the sampler is closed")
        self._leave_workers_of_parent()
        if self._pool is None:
            ctx = self.mp_ctx or default_context()
            if multiprocessing.current_process().daemon:
                raise RuntimeError("a daemonic process cannot start workers: use n_workers=0")
            self._pool = FetchPool(
                self.source,
                BatchPlan(self.source, self.batch_size),
                n_workers=self.n_workers,
                n_buffers=self.n_buffers,
                ctx=ctx,
                daemon=self.daemon,
                doze_time=self.doze_time,
                seed=self.sampler._seed,
            )
            weakref.finalize(self, self._pool.close)
        return self._pool

    # -- state and closing -----------------------------------------------------------------------------------

    def put_back(self, drawn: Sequence[IndexBatch]) -> None:
        self.sampler.put_back(drawn)

    def take_back(self) -> None:
        with no_interrupt():  # Ctrl-C must not lose or duplicate a drawn batch
            self.put_back(self._prefetcher.drawn())
            self._prefetcher.clear()

    def state_dict(self) -> dict[str, Any]:
        state = self.sampler.state_dict()
        state["undelivered"] = [*map(drawn_state, self._prefetcher.drawn()), *state["undelivered"]]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._prefetcher.clear()
        self.sampler.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        self.take_back()
        return {**self.__dict__, "_pool": None, "_prefetcher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prefetcher = self._new_prefetcher()

    def close(self) -> None:
        """End the workers, within two seconds. The sampler and its data stay open. May be called more than once."""
        if not self.closed:
            self.take_back()
            self.closed = True
            if self._pool is not None:
                self._pool.close()
                self._pool = None


class _Finishing:
    """A pipeline that finishes batches from workers in the caller's process."""

    def __init__(self, sampler: MultiprocessingSampler, prefetcher: Prefetcher) -> None:
        self._sampler, self._prefetcher = sampler, prefetcher

    def next(self, draw: Draw, form: Form) -> tuple[IndexBatch, Any] | None:
        fetched = self._prefetcher.next(draw, form)
        if fetched is None:
            return None
        drawn, batch = fetched
        return drawn, self._sampler.finish(batch, drawn, form)
