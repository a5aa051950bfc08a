"""The parent's side of the worker processes that fetch batches."""

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

from unienv_interface.utils.channel import ChannelClosedError, Message, Portable, no_interrupt
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
from ._fetch_worker import CLOSE, FAILED, FETCH, READY, BatchPlan, BlockRing, request, worker_main

# The seconds that workers have to end after `CLOSE`. The rest of `close` takes 0.7.
_CLOSE_GRACE = 0.8
# A batch whose fetch has killed this many workers is not fetched again.
_MOST_DEATHS = 2


class WorkerFetch:
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
        """Return the block to the ring, when no process uses it any more."""
        block, self.block = self.block, -1
        self._pool.blocks.give_back(block)

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.index[:8].tolist()))
        return f"a batch of {len(self.index)} samples ({shown}{', ...' if len(self.index) > 8 else ''})"


class _Worker(WorkerProcess):
    """A process, its connection, and its unanswered requests, oldest first."""

    def __init__(self, process: Any, connection: Connection, is_adopted: bool) -> None:
        super().__init__(process, connection, is_adopted)
        self.is_ready = False
        self.todo: deque[WorkerFetch] = deque()


class FetchPool:
    """Worker processes that fetch batches from a source, into blocks of shared memory while blocks are free.

    An error in a worker is the result of its batch. The next call of `result` raises the death of a worker, once, and
    another worker takes over its batches. A batch whose fetch has killed two workers is not fetched again: its result
    is the second death.
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
        self._broken: WorkerDied | None = None  # the reason why no worker can be started
        self._closed = False
        self._poll = select.poll()
        self._workers: dict[int, _Worker] = {}  # by the descriptor of its channel
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
        with no_interrupt():  # Ctrl-C must not lose a started worker; the worker inherits that it ignores Ctrl-C
            started = start_worker(
                self._ctx,
                worker_main,
                (given, self.blocks.shared, self.blocks.nbytes, (self._seed, number)),
                siblings=[worker.channel.connection for worker in self._workers.values()],
                name=f"unienv-sampler-{number}",
                daemon=self._daemon,
            )
            worker = _Worker(*started)
            self._workers[worker.channel.fd] = worker
            self._poll.register(worker.channel.fd, select.POLLIN)

    # -- fetching ------------------------------------------------------------------------------------------

    def submit(self, index: np.ndarray, form: Form) -> WorkerFetch:
        """Assign a batch to a worker. `result` raises errors."""
        if self._closed:
            raise RuntimeError("the sampler is closed")
        self._numbers += 1
        fetch = WorkerFetch(self, self._numbers, np.ascontiguousarray(index, np.int64), form, self.blocks.take())
        self._assign(fetch)
        return fetch

    def _assign(self, fetch: WorkerFetch) -> None:
        """Assign a batch to the worker with the fewest requests."""
        payload = request(fetch.form, fetch.block, self._source.sample_numbers.stop, fetch.index)
        while self._broken is None:
            worker = min(self._workers.values(), key=lambda worker: len(worker.todo))
            try:
                worker.channel.send(fetch.number, FETCH, payload)
            except ChannelClosedError:
                self._replace_dead(worker)
            else:
                worker.todo.append(fetch)
                return
        fetch.error = self._broken

    def result(self, fetch: WorkerFetch) -> Any:
        """Wait for a batch; a `WorkerDied` if a worker has died."""
        if os.getpid() != self.owner:
            raise RuntimeError("this epoch was begun in another process, before a fork: begin one here")
        self._receive_all(0)
        while not fetch.is_done and not self._deaths:
            if self._closed:
                raise RuntimeError("the sampler is closed")
            self._receive_all(self._doze_time)
        if self._deaths:
            raise self._deaths.pop(0)
        with no_interrupt():  # Ctrl-C must not lose a block
            return self._take(fetch)

    def _take(self, fetch: WorkerFetch) -> Any:
        """Return the batch of an answered request, or raise its error."""
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

    def _receive_all(self, seconds: float) -> None:
        """Receive answers for at most `seconds`, and replace dead workers."""
        events = self._poll.poll(seconds * 1000)
        with no_interrupt():  # Ctrl-C must not lose an answer that was read
            for fd, _ in events:
                worker = self._workers.get(fd)
                if worker is not None:
                    self._receive(worker)
            for worker in list(self._workers.values()):
                if worker.channel.has_unsent:
                    self._send_rest(worker)
                elif not events and seconds and not worker.is_running() and not worker.channel.has_unread:
                    self._replace_dead(worker)  # another process holds its connection open

    def _send_rest(self, worker: _Worker) -> None:
        try:
            worker.channel.flush(0.0)
        except ChannelClosedError:
            self._replace_dead(worker)
            return
        self._note_answers(worker, worker.channel.read_already())

    def _receive(self, worker: _Worker) -> None:
        try:
            messages = worker.channel.arrived()
        except ChannelClosedError:
            self._replace_dead(worker)
        else:
            self._note_answers(worker, messages)

    def _note_answers(self, worker: _Worker, messages: list[Message]) -> None:
        for message in messages:
            if message.number == READY:
                worker.is_ready = True
                continue
            fetch = worker.todo.popleft()  # a worker answers in order
            fetch.answer = message
            if not fetch.is_wanted:
                fetch.free_block()

    # -- dead workers --------------------------------------------------------------------------------------

    def _replace_dead(self, worker: _Worker) -> None:
        """Record the death of a worker, start another worker and reassign the batches."""
        fd = worker.channel.fd
        if self._workers.pop(fd, None) is None:
            return
        self._poll.unregister(fd)
        worker.process.join(KILL_GRACE)  # its connection ends a moment before the process
        if worker.is_running():
            worker.process.kill()  # else the worker could still write to blocks
            worker.process.join(KILL_GRACE)
        self._receive_last(worker)
        worker.channel.close()
        occasion = f"at {worker.todo[0]}" if worker.todo else "while it had nothing to do"
        ended = worker.how_it_ended()
        if not worker.is_ready:
            occasion, ended = "when it was started", worker.how_its_start_ended(self._ctx)
        text = f"worker {worker.process.name} (pid {worker.process.pid}) died {occasion}: {ended}"
        death = WorkerDied(text)
        if worker.is_ready:
            try:
                self._start()
            except Exception as error:
                death = self._broken = WorkerDied(f"{text}; no other worker could be started: {error}")
        else:
            self._broken = death  # the worker died before its first batch, and another worker would too
        for position, fetch in enumerate(worker.todo):
            fetch.deaths += position == 0
            if not fetch.is_wanted:
                fetch.free_block()
            elif fetch.deaths < _MOST_DEATHS:
                self._assign(fetch)
            else:
                fetch.error = death
        if not any(fetch.error is death and fetch.is_wanted for fetch in worker.todo):
            self._deaths.append(death)  # else the death is the result of a batch

    def _receive_last(self, worker: _Worker) -> None:
        """Receive the answers that a worker sent before it died."""
        with contextlib.suppress(ChannelClosedError):
            while worker.channel.has_unread:
                self._note_answers(worker, worker.channel.arrived())

    # -- closing -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers: by `CLOSE`, then by SIGTERM, then by SIGKILL. Always returns within two seconds."""
        if self._closed:
            return
        self._closed = True
        workers = list(self._workers.values())
        self._workers = {}
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
        """Read and discard answers of workers for some milliseconds."""
        for fd, _ in self._poll.poll(2):
            for worker in workers:
                if worker.channel.fd == fd:
                    self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        try:
            worker.channel.arrived()
        except ChannelClosedError:
            self._poll.unregister(worker.channel.fd)
