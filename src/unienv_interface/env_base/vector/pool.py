"""The parent's side of the worker processes: start them, post commands, wait for answers, end them."""

from __future__ import annotations

import os
import pickle
import select
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Any, NamedTuple

import cloudpickle

from ...utils.channel import ChannelClosedError, Message, no_interrupt, pickled
from ...utils.shared_block import SharedBlock, SharedEvent
from ...utils.worker_processes import (
    KILL_GRACE,
    ErrorReport,
    WorkerDied,
    WorkerProcess,
    await_ends,
    default_context,
    end_workers,
    start_worker,
)
from .memory import DEPTH, PAYLOAD, CommandRing, Control, MemoryPlan
from .worker import ATTACH, BUILD, CLOSE, DONE, FAILED, INFOS_IN_ROWS, Factories, worker_main

# Seconds that the parent blocks before it checks that the workers are alive: the pipe of a dead worker may stay open
# in a process that an environment has started.
_SLICE = 0.1
#: Seconds that workers have to close their environments. SIGTERM and SIGKILL take up to 0.7 more.
CLOSE_GRACE = 1.0
_HUNG = "it hangs, or `timeout` is too short for it"


class Command(NamedTuple):
    """A posted command: its worker, its number in the ring of the worker, and its label in errors."""

    worker: int
    number: int
    label: str


class Answer(NamedTuple):
    """The answer of a worker to a command."""

    code: int
    payload: bytes


_WITHOUT_PAYLOAD = {code: Answer(code, b"") for code in (DONE, FAILED, INFOS_IN_ROWS)}


class _Worker(WorkerProcess):
    """A worker process, its posted commands, and its answers that were not taken yet."""

    def __init__(
        self,
        process: Any,
        connection: Connection,
        is_adopted: bool,
        ring: CommandRing,
        wake: SharedEvent,
        done: SharedEvent,
    ) -> None:
        super().__init__(process, connection, is_adopted)
        self.ring, self.wake, self.done = ring, wake, done
        self.poll = select.poll()
        for fd in (done.fd, self.channel.fd):
            self.poll.register(fd, select.POLLIN)
        self.last_posted = 0  # the number of the last posted command
        self.last_seen = 0  # the number of the last answer that `note_answers` has seen
        self.answers: dict[int, int | None] = {}  # number of an awaited command: the code of its answer, None before
        self.payloads: dict[int, bytes] = {}
        self.is_at_end = False  # whether the pipe has reached its end

    def note_answers(self) -> None:
        """Note the answers in the ring, so that their slots can be used again."""
        for number in range(self.last_seen + 1, self.ring.answered + 1):
            if number in self.answers:
                self.answers[number] = self.ring.answer_to(number)
            self.last_seen = number  # after the answer is noted: Ctrl-C in between loses none

    def note_payloads(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.number in self.answers:
                self.payloads[message.number] = message.payload

    def has_answered(self, number: int) -> bool:
        """Whether the answer to a command has come, with its payload."""
        self.note_answers()
        code = self.answers.get(number)
        return code is not None and (not code & PAYLOAD or number in self.payloads)

    def take_answer(self, number: int) -> Answer:
        """Take the answer to a command; `has_answered` must be true."""
        code = self.answers.pop(number) or 0
        return Answer(code & ~PAYLOAD, self.payloads.pop(number)) if code & PAYLOAD else _WITHOUT_PAYLOAD[code]

    def abandon(self, number: int) -> None:
        self.answers.pop(number, None)
        self.payloads.pop(number, None)

    def close(self) -> None:
        self.channel.close()
        self.wake.close()
        self.done.close()


class WorkerPool:
    """Worker processes that each hold a contiguous range of the environments.

    A worker may have several commands; it answers them in order. `wait` blocks for answers; the answers to abandoned
    commands are dropped. The process that made the pool owns the workers: a fork of it never ends them.
    """

    def __init__(
        self, factories: Sequence[Callable[[], Any]], ranges: Sequence[range], ctx: BaseContext | None, daemon: bool
    ) -> None:
        self.ranges = list(ranges)
        self.errors: SimpleQueue[ErrorReport] = SimpleQueue()
        self._ctx = ctx
        self._daemon = daemon
        self._owner = os.getpid()
        self._factories = [_portable(factories, env_range, ctx) for env_range in self.ranges]
        self._workers: list[_Worker] = []
        self._attachment: bytes | None = None
        self._closed = False
        self._size = len(self.ranges), len(factories)
        self.block = SharedBlock.create(Control.nbytes(*self._size))
        self.control = Control(self.block, *self._size)
        self._poll = select.poll()
        self._worker_at: dict[int, _Worker] = {}  # descriptor of a pipe or an event: its worker
        try:
            for worker in range(len(self.ranges)):
                self._start(worker)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[Any]:
        return [worker.process for worker in self._workers]

    @property
    def connections(self) -> list[Connection]:
        return [worker.channel.connection for worker in self._workers]

    # -- starting ------------------------------------------------------------------------------------------

    def _start(self, index: int) -> None:
        """Start a worker, in place of the one at this index if any, and post `BUILD` to it."""
        ring = self.control.rings[index]
        with no_interrupt():  # Ctrl-C must not come before the started worker is in the list
            ring.clear()
            env_range = self.ranges[index]
            self.control.turns[env_range.start : env_range.stop] = 0
            wake, done = SharedEvent.create(), SharedEvent.create()
            try:
                started = start_worker(
                    self._ctx or default_context(),
                    worker_main,
                    (index, self._factories[index], self.ranges[index], self.block, self._size, wake, done),
                    siblings=self.connections,
                    name=f"unienv-worker-{index}",
                    daemon=self._daemon,
                )
            except BaseException:
                wake.close()
                done.close()
                raise
            worker = _Worker(*started, ring, wake, done)
            self._workers[index : index + 1] = [worker]
            for fd in (worker.channel.fd, done.fd):
                self._poll.register(fd, select.POLLIN)
                self._worker_at[fd] = worker
            self.post(index, BUILD, "construction", None)

    def build(self, workers: Iterable[int], timeout: float | None) -> list[Any]:
        """Wait until newly started workers have built their environments; returns the specs of the environments."""
        answers = self.results([Command(worker, 1, "construction") for worker in workers], timeout)
        return [spec for answer in answers for spec in pickle.loads(answer.payload)]

    def attach(self, plan: MemoryPlan, in_block: bool, timeout: float | None) -> None:
        """Make all workers, also restarted ones, write their results to the block, or to memory of their own."""
        if in_block:
            self.block.grow(plan.nbytes)
        self._attachment = pickled((plan, plan.nbytes if in_block else 0))
        self._attach(range(len(self.ranges)), timeout)

    def _attach(self, workers: Iterable[int], timeout: float | None) -> None:
        if self._attachment is not None:
            label = "attaching the shared memory"
            self.results([self.post(w, ATTACH, label, timeout, self._attachment) for w in workers], timeout)

    def restart(self, index: int, timeout: float | None, *, is_responsive: bool) -> None:
        """Replace a worker by a new one; a responsive worker closes its environments before it ends."""
        worker = self._workers[index]
        worker.answers.clear()
        self._end([worker], CLOSE_GRACE if is_responsive else 0.0)
        self._unregister(worker)
        self._poll.unregister(worker.done.fd)
        worker.close()
        self._start(index)
        self.build([index], timeout)
        self._attach([index], timeout)

    def end(self, index: int) -> None:
        """End a worker without closing its environments; waiting for its commands then fails with `WorkerDied`."""
        self._end([self._workers[index]], 0.0)

    # -- posting commands ----------------------------------------------------------------------------------

    def post(
        self,
        index: int,
        code: int,
        label: str,
        timeout: float | None,
        payload: bytes | None = None,
        envs: Sequence[int] | None = None,
    ) -> Command:
        """Post a command to a worker; `envs` are the environments of a command for some environments.

        Raises
        ------
        TimeoutError
            The ring has no free slot in time, or the worker does not read the payload in time.
        WorkerDied
            The worker is dead, as far as posting the command shows.
        """
        worker = self._workers[index]
        if worker.last_posted - worker.last_seen >= DEPTH:
            self._await_slot(worker, label, timeout)
        if worker.channel.has_unsent:  # a payload whose command has timed out
            self._flush(worker, label, timeout)
        # first: if Ctrl-C comes before the command is in the ring, this number is skipped
        worker.last_posted = number = worker.last_posted + 1
        worker.answers[number] = None
        if envs is not None:
            self.control.turns[envs] = number
        if payload is None:
            worker.ring.post(number, code)
            worker.wake.set()
        else:
            try:
                with no_interrupt():  # a worker that has the command waits for the payload
                    worker.ring.post(number, code | PAYLOAD)
                    worker.wake.set()
                    worker.channel.send(number, code, payload)
                if worker.channel.has_unsent:
                    self._flush(worker, label, timeout)
            except ChannelClosedError:
                raise self._death(worker, label) from None
        return Command(index, number, label)

    def _await_slot(self, worker: _Worker, label: str, timeout: float | None) -> None:
        """Wait until the ring has a free slot."""
        deadline = _deadline(timeout)
        worker.ring.skip_to(worker.last_posted)
        worker.wake.set()
        worker.note_answers()
        while worker.last_posted - worker.last_seen >= DEPTH:
            self._listen(_slice(deadline))
            worker.note_answers()
            self._check_progress(worker, label, deadline)

    def _flush(self, worker: _Worker, label: str, timeout: float | None) -> None:
        """Send the rest of a payload."""
        deadline = _deadline(timeout)
        try:
            while not worker.channel.flush(_slice(deadline)):
                self._check_progress(worker, label, deadline)
        except ChannelClosedError:
            raise self._death(worker, label) from None
        finally:
            worker.note_payloads(worker.channel.read_already())

    def _check_progress(self, worker: _Worker, label: str, deadline: float | None) -> None:
        """Raise if the worker is dead or the deadline has passed."""
        if not worker.is_running():
            raise self._death(worker, label)
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{label}: {self._describe(worker)} takes no commands, {_HUNG}")

    # -- waiting -------------------------------------------------------------------------------------------

    def wait(
        self, commands: Collection[Command], deadline: float | None, least: int | None = None
    ) -> dict[Command, Answer | BaseException]:
        """Wait for the answers to commands.

        Returns as soon as `least` commands (None: all) have an outcome, or one has failed. An outcome is the answer,
        or the exception to raise: the error of an environment, the death of the worker, or a TimeoutError at the
        deadline. A command with an outcome is no longer awaited.
        """
        min_outcomes = len(commands) if least is None else min(least, len(commands))
        outcomes: dict[Command, Answer | BaseException] = {}
        failures: dict[Command, BaseException] = {}
        silent = list(commands)
        while True:
            for command in silent:
                worker = self._workers[command.worker]
                if worker.has_answered(command.number):
                    answer = worker.take_answer(command.number)
                    if answer.code == FAILED:
                        failures[command] = self._report(answer.payload).rebuild()
                    else:
                        outcomes[command] = answer
            if failures or len(outcomes) >= min_outcomes:
                break
            silent = [command for command in silent if command not in outcomes]
            seconds = _slice(deadline)
            # if all must answer, block on the worker of the last command: the others have mostly answered by then
            last = self._workers[silent[-1].worker] if least is None else None
            if not self._listen(seconds, last) and not self._listen(0):
                failures = self._failures_of(silent, is_late=seconds == 0)
        self.abandon(failures)
        outcomes.update(failures)  # last, so that the caller handles the answers first
        return outcomes

    def _failures_of(self, silent: Iterable[Command], is_late: bool) -> dict[Command, BaseException]:
        """The exceptions for commands whose workers are dead, or for all commands at the deadline."""
        failures: dict[Command, BaseException] = {}
        for command in silent:
            worker = self._workers[command.worker]
            is_gone = worker.is_at_end or (not worker.is_running() and not worker.channel.has_unread)
            if worker.has_answered(command.number):
                continue  # the worker has answered, then died
            if is_gone:
                failures[command] = self._death(worker, command.label)
            elif is_late:
                text = f"{command.label}: no answer from {self._describe(worker)}, {_HUNG}"
                failures[command] = TimeoutError(text)
        return failures

    def results(self, commands: Sequence[Command], timeout: float | None) -> list[Answer]:
        """Wait for the answers to all commands and return them in order; raises the first failure at once."""
        deadline = _deadline(timeout)
        answers: dict[Command, Answer] = {}
        try:
            while len(answers) < len(commands):
                silent = [command for command in commands if command not in answers]
                for command, outcome in self.wait(silent, deadline, least=1).items():
                    if isinstance(outcome, BaseException):
                        raise outcome
                    answers[command] = outcome
        finally:
            self.abandon(commands)
        return [answers[command] for command in commands]

    def abandon(self, commands: Iterable[Command]) -> None:
        """Stop awaiting commands; an answer that comes later is dropped."""
        for command in commands:
            self._workers[command.worker].abandon(command.number)

    def _listen(self, seconds: float, worker: _Worker | None = None) -> bool:
        """Block until an event or a message of a worker (None: of any) arrives; returns False after `seconds`."""
        events = (self._poll if worker is None else worker.poll).poll(seconds * 1000)
        for fd, _ in events:
            sender = self._worker_at[fd]
            if fd == sender.done.fd:
                sender.done.wait()  # does not block: the event is set
            else:
                self._read(sender)
        return bool(events)

    def _read(self, worker: _Worker) -> None:
        """Read the messages that a worker has sent."""
        with no_interrupt():  # Ctrl-C between reading a payload and noting it would lose the payload
            try:
                worker.note_payloads(worker.channel.arrived())
            except ChannelClosedError:
                self._unregister(worker)  # `poll` would return at once for a pipe at its end

    def _unregister(self, worker: _Worker) -> None:
        if not worker.is_at_end:
            worker.is_at_end = True
            self._poll.unregister(worker.channel.fd)
            worker.poll.unregister(worker.channel.fd)

    # -- errors --------------------------------------------------------------------------------------------

    def _describe(self, worker: _Worker) -> str:
        index = self._workers.index(worker)
        env_range = self.ranges[index]
        envs = (
            f"environment {env_range[0]}" if len(env_range) == 1 else f"environments {env_range[0]} to {env_range[-1]}"
        )
        at_work = "" if len(env_range) == 1 else f"at environment {worker.ring.at_work[0]}, "
        return f"{envs} ({at_work}worker {index}, pid {worker.process.pid})"

    def _death(self, worker: _Worker, label: str) -> WorkerDied:
        await_ends([worker], KILL_GRACE, self._listen_briefly)  # the pipe closes just before the process ends
        if label == "construction":
            ended = worker.how_its_start_ended(self._ctx or default_context())
        else:
            ended = worker.how_it_ended()
        return WorkerDied(f"{self._describe(worker)} died at {label}: {ended}")

    def _report(self, payload: bytes) -> ErrorReport:
        report = ErrorReport(*pickle.loads(payload))
        self.errors.put(report)
        return report

    # -- ending --------------------------------------------------------------------------------------------

    def close(self, grace: float = CLOSE_GRACE) -> list[ErrorReport]:
        """End all workers: by `CLOSE`, then SIGTERM, then SIGKILL. Always returns within two seconds.

        Returns the errors that environments have raised in their `close`.
        """
        if self._closed:
            return []
        self._closed = True
        try:
            return self._end(self._workers, grace) if os.getpid() == self._owner else []
        finally:
            for worker in self._workers:
                worker.close()
            self.block.close()
            # the shared memory is freed with the last array over it
            self._workers, self._worker_at = [], {}
            del self.block, self.control

    def _end(self, workers: Sequence[_Worker], grace: float) -> list[ErrorReport]:
        """End workers; with a grace they close their environments first. Returns the errors of closing them."""
        asked: list[_Worker] = []
        try:
            for worker in workers if grace else ():
                worker.note_answers()
                if worker.last_posted - worker.last_seen < DEPTH and not worker.channel.has_unsent:
                    self.post(self._workers.index(worker), CLOSE, "close", None)
                    asked.append(worker)
        finally:
            end_workers(workers, grace, self._listen_briefly)
        for worker in workers:
            while not worker.is_at_end and worker.channel.has_unread:
                self._read(worker)  # an error of `CLOSE` may be in the pipe
        answers = [w.take_answer(w.last_posted) for w in asked if w.has_answered(w.last_posted)]
        return [self._report(answer.payload) for answer in answers if answer.code == FAILED]

    def _listen_briefly(self) -> None:
        self._listen(0.002)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _slice(deadline: float | None) -> float:
    """The seconds to block before the next check that the workers are alive."""
    return _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - time.monotonic()))


def _portable(factories: Sequence[Callable[[], Any]], env_range: range, ctx: BaseContext | None) -> Factories:
    """Pickle the factories of a worker; a fork inherits factories that cannot be pickled."""
    chosen = [factories[index] for index in env_range]
    try:
        return cloudpickle.dumps(chosen)
    except Exception as error:
        if (ctx or default_context()).get_start_method() == "fork":
            return chosen
        raise TypeError(
            f"the factories of environments {env_range.start} to {env_range[-1]} cannot be pickled for their worker "
            f"process: {error}"
        ) from error
