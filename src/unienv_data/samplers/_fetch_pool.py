"""The parent's side of the processes that fetch batches."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from unienv_interface.utils.channel import ChannelClosedError, Message, no_interrupt
from unienv_interface.utils.worker_processes import (
    KILL_GRACE,
    ErrorReport,
    WorkerDied,
    WorkerProcess,
    end_workers,
    start_worker,
)

from ..base.common import BatchBase
from ..base.sampling import Form
from ._batch_blocks import BatchPlan, BlockRing
from ._fetch_worker import CLOSE, FAILED, FETCH, READY, Portable, request, worker_main

# Seconds that workers have to end when they are asked. The rest of `close` takes 0.7.
_CLOSE_GRACE = 0.8
# A batch whose fetch has ended so many workers is not tried again.
_MOST_DEATHS = 2


class Fetch:
    """A batch that a worker fetches."""

    def __init__(self, pool: FetchPool, number: int, index: np.ndarray, form: Form, block: int) -> None:
        self._pool = pool
        self.number, self.index, self.form, self.block = number, index, form, block
        self.deaths = 0
        self.is_wanted = True
        self.is_taken = False
        self.answer: Message | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self) -> Any:
        return self._pool.result(self)

    def cancel(self) -> None:
        self.is_wanted = False
        if self.is_done:
            self.free_block()

    def free_block(self) -> None:
        """Give the block back: nobody writes to it any more, and nobody reads it."""
        block, self.block = self.block, -1
        self._pool.blocks.give_back(block)

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.index[:8].tolist()))
        return f"a batch of {len(self.index)} samples ({shown}{', ...' if len(self.index) > 8 else ''})"


class _Worker(WorkerProcess):
    """One process, its connection, and what it was asked for and has not answered, oldest first."""

    def __init__(self, process: Any, connection: Connection, is_adopted: bool) -> None:
        super().__init__(process, connection, is_adopted)
        self.is_ready = False
        self.todo: deque[Fetch] = deque()


class FetchPool:
    """Worker processes that fetch batches from a source, each in a block of shared memory while there are free ones.

    An error in a worker is the result of that batch. The death of one is raised by whoever waits next, once; another
    takes its place and does what it had to do, so that no batch is lost, but for one whose fetch has ended two workers:
    its result is the second death.
    """

    def __init__(
        self,
        source: BatchBase,
        plan: BatchPlan,
        *,
        n_workers: int,
        n_buffers: int,
        ctx: BaseContext,
        daemon: bool,
        doze_time: float,
        seed: int,
    ) -> None:
        self.owner = os.getpid()
        self._source, self._plan = source, plan
        self._ctx, self._daemon, self._doze_time, self._seed = ctx, daemon, doze_time, seed
        self.blocks = BlockRing(n_buffers, plan.nbytes)
        self._numbers = READY
        self._started = 0
        self._deaths: list[WorkerDied] = []
        self._broken: WorkerDied | None = None  # why no worker can be started
        self._closed = False
        self._poll = select.poll()
        self._at: dict[int, _Worker] = {}  # by the descriptor of its channel
        try:
            for _ in range(n_workers):
                self._start()
        except BaseException:
            self.close()
            raise

    # -- starting ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        number, self._started = self._started, self._started + 1
        given = Portable((self._source, self._plan))
        with no_interrupt():  # neither here, where a started worker would be lost, nor there, where it is ignored
            started = start_worker(
                self._ctx,
                worker_main,
                (given, self.blocks.shared, self.blocks.nbytes, (self._seed, number)),
                siblings=[worker.channel.connection for worker in self._at.values()],
                name=f"unienv-sampler-{number}",
                daemon=self._daemon,
            )
            worker = _Worker(*started)
            self._at[worker.channel.fd] = worker
            self._poll.register(worker.channel.fd, select.POLLIN)

    # -- fetching ------------------------------------------------------------------------------------------

    def submit(self, index: np.ndarray, form: Form) -> Fetch:
        """Have a batch fetched. What is wrong is said by its result."""
        if self._closed:
            raise RuntimeError("the sampler is closed")
        self._numbers += 1
        fetch = Fetch(self, self._numbers, np.ascontiguousarray(index, np.int64), form, self.blocks.take())
        self._assign(fetch)
        return fetch

    def _assign(self, fetch: Fetch) -> None:
        """Give a batch to the worker that has least to do."""
        payload = request(fetch.form, fetch.block, self._source.sample_numbers.stop, fetch.index)
        while self._broken is None:
            worker = min(self._at.values(), key=lambda worker: len(worker.todo))
            try:
                worker.channel.send(fetch.number, FETCH, payload)
            except ChannelClosedError:
                self._bury(worker)
            else:
                worker.todo.append(fetch)
                return
        fetch.error = self._broken

    def result(self, fetch: Fetch) -> Any:
        """The batch, once it is there; the death of a worker if one has died."""
        if os.getpid() != self.owner:
            raise RuntimeError("this epoch was begun in another process, before a fork: begin one here")
        self._look(0)
        while not fetch.is_done and not self._deaths:
            if self._closed:
                raise RuntimeError("the sampler is closed")
            self._look(self._doze_time)
        if self._deaths:
            raise self._deaths.pop(0)
        fetch.is_taken = True
        if fetch.error is not None:
            fetch.free_block()
            raise fetch.error
        answer: Any = fetch.answer
        if answer.code == FAILED:
            fetch.free_block()
            raise ErrorReport(*pickle.loads(answer.payload)).rebuild(str(fetch))
        block, fetch.block = fetch.block, -1
        return self._plan.read(self.blocks.hand_out(block), len(fetch.index), fetch.form, answer.payload)

    def _look(self, seconds: float) -> None:
        """Take in what arrives within that time, and note deaths."""
        events = self._poll.poll(seconds * 1000)
        for fd, _ in events:
            worker = self._at.get(fd)
            if worker is not None:
                self._take_in(worker)
        for worker in list(self._at.values()):
            if worker.channel.has_unsent:
                self._go_on_sending(worker)
            elif not events and seconds and not worker.is_running() and not worker.channel.has_unread:
                self._bury(worker)  # something else holds its connection open

    def _go_on_sending(self, worker: _Worker) -> None:
        try:
            worker.channel.flush(0.0)
        except ChannelClosedError:
            self._bury(worker)
            return
        self._sort_in(worker, worker.channel.read_already())

    def _take_in(self, worker: _Worker) -> None:
        try:
            messages = worker.channel.arrived()
        except ChannelClosedError:
            self._bury(worker)
        else:
            self._sort_in(worker, messages)

    def _sort_in(self, worker: _Worker, messages: list[Message]) -> None:
        for message in messages:
            if message.number == READY:
                worker.is_ready = True
                continue
            fetch = worker.todo.popleft()  # it answers in order
            fetch.answer = message
            if not fetch.is_wanted:
                fetch.free_block()

    # -- what went wrong -----------------------------------------------------------------------------------

    def _bury(self, worker: _Worker) -> None:
        """Note the death of a worker, and have another do what it had to do."""
        fd = worker.channel.fd
        if self._at.pop(fd, None) is None:
            return
        self._poll.unregister(fd)
        worker.process.join(KILL_GRACE)  # its connection ends a moment before itself
        if worker.is_running():
            worker.process.kill()  # or it might still write to blocks
            worker.process.join(KILL_GRACE)
        self._hear_out(worker)
        worker.channel.close()
        at_work = f"at {worker.todo[0]}" if worker.todo else "while it had nothing to do"
        if not worker.is_ready:
            at_work = "when it was started"
        told = f"worker {worker.process.name} (pid {worker.process.pid}) died {at_work}: {worker.how_it_ended()}"
        death = WorkerDied(told)
        if worker.is_ready:
            try:
                self._start()
            except Exception as error:
                death = self._broken = WorkerDied(f"{told}; none could be started in its place: {error}")
        else:
            self._broken = death  # it did not get as far as its first batch, and another would not either
        for place, fetch in enumerate(worker.todo):
            fetch.deaths += place == 0
            if not fetch.is_wanted:
                fetch.free_block()
            elif fetch.deaths < _MOST_DEATHS:
                self._assign(fetch)
            else:
                fetch.error = death
        if not any(fetch.error is death and fetch.is_wanted for fetch in worker.todo):
            self._deaths.append(death)  # else it is told in the place of that batch

    def _hear_out(self, worker: _Worker) -> None:
        """Take in what a worker had said before it died."""
        with contextlib.suppress(ChannelClosedError):
            while worker.channel.has_unread:
                self._sort_in(worker, worker.channel.arrived())

    # -- ending --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers: asked first, then told, then killed. Returns within two seconds, always."""
        if self._closed:
            return
        self._closed = True
        workers = list(self._at.values())
        self._at = {}
        try:
            if os.getpid() == self.owner:
                self._end(workers)
        finally:
            for worker in workers:
                worker.channel.close()
            self.blocks.close()

    def _end(self, workers: list[_Worker]) -> None:
        try:
            for worker in workers:
                with contextlib.suppress(ChannelClosedError):
                    worker.channel.send(0, CLOSE, b"")
        finally:
            end_workers(workers, _CLOSE_GRACE, lambda: self._listen(workers))

    def _listen(self, workers: list[_Worker]) -> None:
        """Read what workers still say, for some milliseconds."""
        for fd, _ in self._poll.poll(2):
            for worker in workers:
                if worker.channel.fd == fd:
                    self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        try:
            worker.channel.arrived()
        except ChannelClosedError:
            self._poll.unregister(worker.channel.fd)
