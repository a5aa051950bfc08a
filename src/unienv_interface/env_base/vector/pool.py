"""The parent's side of the worker processes: starting them, giving commands, waiting, and ending them."""

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

# Seconds that the parent blocks before it looks whether the workers are alive: a process that an environment has
# started may hold a worker's pipe open after the worker's death.
_SLICE = 0.1
#: Seconds that workers have to close their environments when they are asked to. The rest of `close` takes 0.7.
CLOSE_GRACE = 1.0
_HUNG = "it hangs, or `timeout` is too short for it"


class Command(NamedTuple):
    """A command that was given to a worker: its number there, and what it is called in errors."""

    worker: int
    number: int
    what: str


class Answer(NamedTuple):
    """What a worker has answered to a command."""

    code: int
    payload: bytes


_WITHOUT_PAYLOAD = {code: Answer(code, b"") for code in (DONE, FAILED, INFOS_IN_ROWS)}


class _Worker(WorkerProcess):
    """A worker process, the commands that it was given, and the answers that nobody has taken yet."""

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
        self.last_number = 0  # of the commands given
        self.last_seen = 0  # of the answers that are noted here, if they are awaited
        self.answers: dict[int, int | None] = {}  # to the commands whose answers are awaited; None until there is one
        self.payloads: dict[int, bytes] = {}
        self.is_mute = False  # nothing more comes through its pipe

    def note_answers(self) -> None:
        """Note the answers in the ring, whose places are needed again."""
        for number in range(self.last_seen + 1, self.ring.answered + 1):
            if number in self.answers:
                self.answers[number] = self.ring.answer_to(number)
            self.last_seen = number  # last, so that an interrupt loses no answer

    def note_payloads(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.number in self.answers:
                self.payloads[message.number] = message.payload

    def has_answered(self, number: int) -> bool:
        """Whether all of the answer to a command has come."""
        self.note_answers()
        code = self.answers.get(number)
        return code is not None and (not code & PAYLOAD or number in self.payloads)

    def take_answer(self, number: int) -> Answer:
        """The answer to a command that has come; it is awaited no longer."""
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

    Several commands may be given to a worker; it answers them in order. `wait` waits for answers, and answers that
    nobody awaits any more are thrown away. The workers belong to the process that has made the pool: in a fork of that
    process, nothing is done to them.
    """

    def __init__(
        self, factories: Sequence[Callable[[], Any]], ranges: Sequence[range], ctx: BaseContext | None, daemon: bool
    ) -> None:
        self.ranges = list(ranges)
        self.errors: SimpleQueue[ErrorReport] = SimpleQueue()
        self._ctx = ctx
        self._daemon = daemon
        self._owner = os.getpid()
        self._factories = [_portable(factories, own, ctx) for own in self.ranges]
        self._workers: list[_Worker] = []
        self._attachment: bytes | None = None
        self._closed = False
        self._size = len(self.ranges), len(factories)
        self.block = SharedBlock.create(Control.nbytes(*self._size))
        self.control = Control(self.block, *self._size)
        self._poll = select.poll()
        self._worker_at: dict[int, _Worker] = {}  # by the descriptors of its pipe and of its event
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
        """Start a worker, at the end of the list or in the place of one that is gone; its first command is to build."""
        ring = self.control.rings[index]
        with no_interrupt():  # a worker that was started is in the list, and ignores Ctrl-C
            ring.clear()
            own = self.ranges[index]
            self.control.turns[own.start : own.stop] = 0
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
            self.give(index, BUILD, "construction", None)

    def build(self, workers: Iterable[int], timeout: float | None) -> list[Any]:
        """Wait until workers that were just started have built their environments; returns the specs of these."""
        answers = self.results([Command(worker, 1, "construction") for worker in workers], timeout)
        return [spec for answer in answers for spec in pickle.loads(answer.payload)]

    def attach(self, plan: MemoryPlan, in_block: bool, timeout: float | None) -> None:
        """Tell all workers, and those that are started later, which memory they write to: the block or their own."""
        if in_block:
            self.block.grow(plan.nbytes)
        self._attachment = pickled((plan, plan.nbytes if in_block else 0))
        self._attach(range(len(self.ranges)), timeout)

    def _attach(self, workers: Iterable[int], timeout: float | None) -> None:
        if self._attachment is not None:
            what = "attaching the shared memory"
            self.results([self.give(w, ATTACH, what, timeout, self._attachment) for w in workers], timeout)

    def restart(self, index: int, timeout: float | None, *, is_responsive: bool) -> None:
        """End a worker and start another in its place; a responsive one closes its environments first."""
        worker = self._workers[index]
        worker.answers.clear()
        self._end([worker], CLOSE_GRACE if is_responsive else 0.0)
        self._stop_listening(worker)
        self._poll.unregister(worker.done.fd)
        worker.close()
        self._start(index)
        self.build([index], timeout)
        self._attach([index], timeout)

    def end(self, index: int) -> None:
        """End a worker, without asking. Commands to it are answered by its death."""
        self._end([self._workers[index]], 0.0)

    # -- giving commands -----------------------------------------------------------------------------------

    def give(
        self,
        index: int,
        code: int,
        what: str,
        timeout: float | None,
        payload: bytes | None = None,
        envs: Sequence[int] | None = None,
    ) -> Command:
        """Give a worker a command, one for some environments together with the indices of these.

        Raises
        ------
        TimeoutError
            If the worker takes no more commands, or does not read the payload in time.
        WorkerDied
            If the worker is dead and that is found out here.
        """
        worker = self._workers[index]
        if worker.last_number - worker.last_seen >= DEPTH:
            self._await_place(worker, what, timeout)
        if worker.channel.has_unsent:  # the rest of a payload that took too long
            self._flush(worker, what, timeout)
        # the number is taken first: if Ctrl-C comes before the command is in the ring, it is left out
        worker.last_number = number = worker.last_number + 1
        worker.answers[number] = None
        if envs is not None:
            self.control.turns[envs] = number
        if payload is None:
            worker.ring.give(number, code)
            worker.wake.set()
        else:
            try:
                with no_interrupt():  # a worker that has the command waits for the payload
                    worker.ring.give(number, code | PAYLOAD)
                    worker.wake.set()
                    worker.channel.send(number, code, payload)
                if worker.channel.has_unsent:
                    self._flush(worker, what, timeout)
            except ChannelClosedError:
                raise self._death(worker, what) from None
        return Command(index, number, what)

    def _await_place(self, worker: _Worker, what: str, timeout: float | None) -> None:
        """Wait until there is a place in the ring."""
        deadline = _deadline(timeout)
        worker.ring.skip_to(worker.last_number)
        worker.wake.set()
        worker.note_answers()
        while worker.last_number - worker.last_seen >= DEPTH:
            self._listen(_slice(deadline))
            worker.note_answers()
            self._check_progress(worker, what, deadline)

    def _flush(self, worker: _Worker, what: str, timeout: float | None) -> None:
        """Send the rest of a payload."""
        deadline = _deadline(timeout)
        try:
            while not worker.channel.flush(_slice(deadline)):
                self._check_progress(worker, what, deadline)
        except ChannelClosedError:
            raise self._death(worker, what) from None
        finally:
            worker.note_payloads(worker.channel.read_already())

    def _check_progress(self, worker: _Worker, what: str, deadline: float | None) -> None:
        """Raise if a worker that is to take something is dead or has had time enough."""
        if not worker.is_running():
            raise self._death(worker, what)
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: {self._describe(worker)} takes no commands, {_HUNG}")

    # -- waiting -------------------------------------------------------------------------------------------

    def wait(
        self, commands: Collection[Command], deadline: float | None, least: int | None = None
    ) -> dict[Command, Answer | BaseException]:
        """Wait for the answers to commands.

        Returns the outcomes of all of them, or of those that have one as soon as there are `least`, or one that
        failed. An outcome is the answer, or the exception to raise for it: the error of an environment, the death of
        the worker, or a TimeoutError at the deadline. Commands with an outcome are awaited no longer.
        """
        wanted = len(commands) if least is None else min(least, len(commands))
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
            if failures or len(outcomes) >= wanted:
                break
            silent = [command for command in silent if command not in outcomes]
            seconds = _slice(deadline)
            # where all are wanted, the parent blocks on the worker that was asked last: the others are done by then
            last = self._workers[silent[-1].worker] if least is None else None
            if not self._listen(seconds, last) and not self._listen(0):
                failures = self._missing(silent, is_late=seconds == 0)
        self.abandon(failures)
        outcomes.update(failures)  # last, so that the caller takes what went well first
        return outcomes

    def _missing(self, silent: Iterable[Command], is_late: bool) -> dict[Command, BaseException]:
        """What to raise for commands whose workers are dead, or for all if it is too late."""
        failures: dict[Command, BaseException] = {}
        for command in silent:
            worker = self._workers[command.worker]
            is_gone = worker.is_mute or (not worker.is_running() and not worker.channel.has_unread)
            if worker.has_answered(command.number):
                continue  # its last words
            if is_gone:
                failures[command] = self._death(worker, command.what)
            elif is_late:
                told = f"{command.what}: no answer from {self._describe(worker)}, {_HUNG}"
                failures[command] = TimeoutError(told)
        return failures

    def results(self, commands: Sequence[Command], timeout: float | None) -> list[Answer]:
        """The answers to these commands, in order. The first thing that goes wrong is raised, at once."""
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
        """Await these commands no longer; an answer that still comes is thrown away."""
        for command in commands:
            self._workers[command.worker].abandon(command.number)

    def _listen(self, seconds: float, worker: _Worker | None = None) -> bool:
        """Block until a worker, by default any, has something to say, at most so long; returns whether one had."""
        events = (self._poll if worker is None else worker.poll).poll(seconds * 1000)
        for fd, _ in events:
            speaker = self._worker_at[fd]
            if fd == speaker.done.fd:
                speaker.done.wait()  # which does not block now
            else:
                self._read(speaker)
        return bool(events)

    def _read(self, worker: _Worker) -> None:
        """Read what a worker has sent."""
        with no_interrupt():  # which could come between reading a payload and noting it
            try:
                worker.note_payloads(worker.channel.arrived())
            except ChannelClosedError:
                self._stop_listening(worker)  # the end of its pipe would wake us without pause

    def _stop_listening(self, worker: _Worker) -> None:
        if not worker.is_mute:
            worker.is_mute = True
            self._poll.unregister(worker.channel.fd)
            worker.poll.unregister(worker.channel.fd)

    # -- what went wrong -----------------------------------------------------------------------------------

    def _describe(self, worker: _Worker) -> str:
        index = self._workers.index(worker)
        own = self.ranges[index]
        envs = f"environment {own[0]}" if len(own) == 1 else f"environments {own[0]} to {own[-1]}"
        at_work = "" if len(own) == 1 else f"at environment {worker.ring.at_work[0]}, "
        return f"{envs} ({at_work}worker {index}, pid {worker.process.pid})"

    def _death(self, worker: _Worker, what: str) -> WorkerDied:
        await_ends([worker], KILL_GRACE, self._listen_briefly)  # its pipe ends a moment before itself
        if what == "construction":
            ended = worker.how_its_start_ended(self._ctx or default_context())
        else:
            ended = worker.how_it_ended()
        return WorkerDied(f"{self._describe(worker)} died at {what}: {ended}")

    def _report(self, payload: bytes) -> ErrorReport:
        report = ErrorReport(*pickle.loads(payload))
        self.errors.put(report)
        return report

    # -- ending --------------------------------------------------------------------------------------------

    def close(self, grace: float = CLOSE_GRACE) -> list[ErrorReport]:
        """End all workers: asked first, then by SIGTERM, then by SIGKILL. Returns within two seconds, always.

        Returns what their environments have raised while they were closed.
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
            # the memory goes with the last array over it
            self._workers, self._worker_at = [], {}
            del self.block, self.control

    def _end(self, workers: Sequence[_Worker], grace: float) -> list[ErrorReport]:
        """End some workers; with a grace they close their environments first, and may report an error of that."""
        asked: list[_Worker] = []
        try:
            for worker in workers if grace else ():
                worker.note_answers()
                if worker.last_number - worker.last_seen < DEPTH and not worker.channel.has_unsent:
                    self.give(self._workers.index(worker), CLOSE, "close", None)
                    asked.append(worker)
        finally:
            end_workers(workers, grace, self._listen_briefly)
        for worker in workers:
            while not worker.is_mute and worker.channel.has_unread:
                self._read(worker)  # its last words
        answers = [w.take_answer(w.last_number) for w in asked if w.has_answered(w.last_number)]
        return [self._report(answer.payload) for answer in answers if answer.code == FAILED]

    def _listen_briefly(self) -> None:
        self._listen(0.002)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _slice(deadline: float | None) -> float:
    """How long the parent blocks before it looks again."""
    return _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - time.monotonic()))


def _portable(factories: Sequence[Callable[[], Any]], own: range, ctx: BaseContext | None) -> Factories:
    """The factories of a worker as they get there; only a fork can do with ones that cannot be pickled."""
    chosen = [factories[index] for index in own]
    try:
        return cloudpickle.dumps(chosen)
    except Exception as error:
        if (ctx or default_context()).get_start_method() == "fork":
            return chosen
        raise TypeError(
            f"the factories of environments {own.start} to {own[-1]} cannot be sent to another process: {error}"
        ) from error
