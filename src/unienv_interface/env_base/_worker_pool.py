"""The parent's side of the worker processes: starting, asking, waiting, and ending them whatever they do."""

from __future__ import annotations

import functools
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Any, NamedTuple

from ..utils.shared_block import SharedBlock
from ._channel import Channel, ChannelClosedError, Message, Waiter, pickled
from ._core_sharing import CoreSharing, part
from ._mailbox import CAPACITY, Mailbox
from ._starting import default_context, no_interrupt, portable, start_worker
from ._vec_memory import PROGRESS, MemoryPlan, mailboxes
from ._worker import ATTACH, CLOSE, FAILED, FIRST_REPORT, worker_main
from ._worker_errors import ErrorReport

# How long the parent waits on a silent pipe before it looks whether the worker is still there: a process that an
# environment has started may hold the pipe open after the worker's death.
_LIVENESS_PERIOD = 0.25
# How long a worker may take to end when it is asked, told and killed. Together less than two seconds.
CLOSE_GRACE, _TERMINATE_GRACE, _KILL_GRACE = 1.0, 0.3, 0.4
_HUNG = "it hangs, or `timeout` is too short for it"


class WorkerDied(RuntimeError):  # noqa: N818 - the name of what happened
    """A worker process has ended by itself; the text names its environments and how it ended."""


class Request(NamedTuple):
    """Something that a worker was asked to do, and that it has not answered yet."""

    worker: int
    what: str


_request = functools.lru_cache(maxsize=256)(Request)  # the same ones are made again and again


class WorkerPool:
    """Worker processes that each hold a contiguous share of the environments.

    Several requests may be sent to a worker; it answers them in order. `outcomes` waits for answers, and those that
    nobody awaits any more are thrown away. The workers belong to the process that has made the pool: in a copy of it
    made by a fork, nothing is done to them.
    """

    def __init__(
        self, factories: Sequence[Callable[[], Any]], shares: Sequence[range], ctx: BaseContext | None, daemon: bool
    ) -> None:
        self.shares = list(shares)
        self.processes: list[Any] = []
        self.channels: list[Channel] = []
        self.errors: SimpleQueue[ErrorReport] = SimpleQueue()
        self._ctx = ctx
        self._daemon = daemon
        self._owner = os.getpid()
        self._factories = [portable(factories, share, ctx) for share in self.shares]
        self._numbers = 0
        self._awaited: dict[int, Request] = {}
        self._answers: dict[int, Message] = {}
        self._failed: set[int] = set()  # those of the answers that report an error
        self._attachment: bytes | None = None
        self._closed = False
        self._adopted: set[int] = set()  # workers that are children of a fork server
        self._mute: set[int] = set()  # workers from which nothing more can come
        self._poll = select.poll()
        self._waiter = Waiter()
        self._sharing = CoreSharing(len(self.shares))
        self._inboxes: list[Mailbox] = []
        self._last_sent: list[int] = []  # the last request to each worker
        self._worker_at: dict[int, int] = {}  # by the descriptor of its channel
        self.block = SharedBlock.create(len(self.shares) * PROGRESS.itemsize)
        self._progress = self.block.array(PROGRESS, (len(self.shares),))["index"]
        self._progress[:] = [share.start for share in self.shares]
        try:
            for worker in range(len(self.shares)):
                self._start(worker)
        except BaseException:
            self.close()
            raise

    @property
    def connections(self) -> list[Connection]:
        return [channel.connection for channel in self.channels]

    # -- starting ------------------------------------------------------------------------------------------

    def _start(self, worker: int) -> None:
        """Start a worker, at the end of the list or in the place of one that is gone; it reports by itself."""
        with no_interrupt():  # neither here, where a started worker would be lost, nor there, where it is reported
            inbox, outbox = self._cleared_mailboxes(worker)
            process, connection, is_adopted = start_worker(
                self._ctx or default_context(),
                worker_main,
                (worker, self._factories[worker], self.shares[worker].start, self.block),
                siblings=self.connections,
                name=f"unienv-worker-{worker}",
                daemon=self._daemon,
            )
            channel = Channel(connection, inbox, outbox)
            self.channels[worker : worker + 1] = [channel]
            self.processes[worker : worker + 1] = [process]
            self._inboxes[worker : worker + 1] = [inbox]
            self._last_sent[worker : worker + 1] = [0]
            self._poll.register(channel.fd, select.POLLIN)
            self._worker_at[channel.fd] = worker
            self._mute.discard(worker)
            (self._adopted.add if is_adopted else self._adopted.discard)(worker)
            self._awaited[FIRST_REPORT - worker] = Request(worker, "construction")

    def _cleared_mailboxes(self, worker: int) -> tuple[Mailbox, Mailbox]:
        """The mailboxes of a worker that is not there yet: for what it says and for what it is told."""
        commands, answers = mailboxes(self.block, worker)
        commands.clear()
        answers.clear()
        return answers, commands

    def reports(self, workers: Sequence[int], timeout: float | None) -> list[Any]:
        """What workers that were just started say of their environments, in order."""
        answers = self.answers([FIRST_REPORT - worker for worker in workers], timeout)
        return [spec for answer in answers for spec in pickle.loads(answer.payload)]

    def attach(self, plan: MemoryPlan, in_block: bool, timeout: float | None) -> None:
        """Tell all workers, and those that are started later, the memory they write to: the block or their own."""
        if in_block:
            self.block.grow(plan.nbytes)
        self._attachment = pickled((plan, plan.nbytes if in_block else 0))
        self._attach(range(len(self.shares)), timeout)

    def _attach(self, workers: Sequence[int], timeout: float | None) -> None:
        if self._attachment is not None:
            what = "attaching the shared memory"
            self.answers([self.send(w, ATTACH, self._attachment, what, timeout) for w in workers], timeout)

    def restart(self, worker: int, timeout: float | None, *, is_responsive: bool) -> None:
        """End a worker and start another in its place; one that is responsive is asked first."""
        self.abandon([number for number, request in self._awaited.items() if request.worker == worker])
        self._stop([worker], CLOSE_GRACE if is_responsive else 0.0)
        self._stop_listening(worker)
        self.channels[worker].close()
        self._start(worker)
        self.reports([worker], timeout)
        self._attach([worker], timeout)

    def end(self, worker: int) -> None:
        """End a worker, without asking. Requests to it are answered by its death."""
        self._stop([worker], 0.0)

    # -- asking and waiting --------------------------------------------------------------------------------

    def send(self, worker: int, code: int, payload: bytes, what: str, timeout: float | None) -> int:
        """Send a request; returns its number. A TimeoutError if the worker does not even read it in time."""
        channel = self.channels[worker]
        self._numbers = number = self._numbers + 1
        may_leave = len(payload) <= CAPACITY and self._owes_nothing(worker)
        self._last_sent[worker] = number
        try:
            if may_leave:
                channel.leave(number, code, payload)
            else:
                if channel.has_unsent:  # the rest of a request that took too long
                    self._flush(worker, what, timeout)
                if not channel.send(number, code, payload):
                    self._flush(worker, what, timeout)
        except ChannelClosedError:
            raise self._death(worker, what) from None
        self._awaited[number] = _request(worker, what)
        return number

    def _owes_nothing(self, worker: int) -> bool:
        """Whether a worker has dealt with all that it was asked, so that it will see what is left in its mailbox next.

        What it has left in ours is taken then.
        """
        inbox = self._inboxes[worker]
        if inbox.served != self._last_sent[worker] or worker in self._mute:
            return False
        if inbox.is_full:
            self._take_out(worker)
        return True

    def _take_out(self, worker: int) -> None:
        """Take what a worker has left in its mailbox: out of it last, so that nothing is lost to an interrupt."""
        message = Message(*self._inboxes[worker].peek(), True)
        self._sort_in(worker, [message])
        self._inboxes[worker].take_out(message.number)

    def _flush(self, worker: int, what: str, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self.channels[worker].flush(_LIVENESS_PERIOD):
                if not self._is_running(worker):
                    raise ChannelClosedError("it has ended")
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"{what}: {self.describe(worker)} takes no commands, {_HUNG}")
        finally:
            self._sort_in(worker, self.channels[worker].read_already())

    def left_answers(self, numbers: Collection[int]) -> list[bytes] | None:
        """What workers have left in their mailboxes to these requests, one to each of them, if that is how all answer.

        None if some do not, or not soon: those are for `outcomes`.
        """
        if self._answers:
            return None  # while something else was waited for
        awaited = self._awaited
        inboxes = [self._inboxes[awaited[number].worker] for number in numbers]
        if not self._waiter.are_all_full(self._poll, inboxes):
            return None
        messages = [inbox.peek() for inbox in inboxes]
        for number, message in zip(numbers, messages, strict=True):
            if message[0] != number:
                return None
        for number, inbox in zip(numbers, inboxes, strict=True):
            del awaited[number]
            inbox.take_out(number)
        sharing = self._sharing  # which is seen to now, while all of them wait
        if sharing.is_possible and len(inboxes) == len(self._inboxes) and sharing.is_likely(self._waiter.was_alone):
            part([process.pid for process in self.processes])
        return [payload for _, _, payload in messages]

    def outcomes(
        self, numbers: Sequence[int], deadline: float | None, least: int | None = None
    ) -> dict[int, Message | BaseException]:
        """How these requests ended: all of them, or those that have once there are `least`, or one that failed.

        An outcome is the answer, or what is to be raised for it: the error of an environment, the death of the
        worker, or a TimeoutError at the deadline. Requests that are not in the result are still awaited.
        """
        answers, failures = self._answers, dict[int, BaseException]()
        allowed = 0 if least is None else max(0, len(numbers) - least)
        silent, since = [number for number in numbers if number not in answers], time.monotonic()
        while len(silent) > allowed and not failures and self._failed.isdisjoint(numbers):
            self._wait(silent, deadline, since, failures)
            silent = [number for number in silent if number not in answers]
        ended: dict[int, Message | BaseException] = {}
        for number in numbers:
            if number in answers:
                answer = answers[number]
                if answer.code == FAILED:
                    failures[number] = self._report(answer).rebuild()
                else:
                    ended[number] = answer
        ended.update(failures)  # last, so that what went well is taken in before
        self.abandon(ended)
        return ended

    def answers(self, numbers: Sequence[int], timeout: float | None) -> list[Message]:
        """The answers to these requests, in order. The first thing that goes wrong is raised, at once."""
        deadline = None if timeout is None else time.monotonic() + timeout
        answers: dict[int, Message] = {}
        try:
            while len(answers) < len(numbers):
                ended = self.outcomes([number for number in numbers if number not in answers], deadline, least=1)
                for number, outcome in ended.items():
                    if isinstance(outcome, BaseException):
                        raise outcome
                    answers[number] = outcome
        finally:
            self.abandon(numbers)
        return [answers[number] for number in numbers]

    def abandon(self, numbers: Iterable[int]) -> None:
        """Await these requests no longer; an answer that still comes is thrown away."""
        for number in numbers:
            self._awaited.pop(number, None)
            self._answers.pop(number, None)
            self._failed.discard(number)

    def _wait(
        self, silent: Sequence[int], deadline: float | None, since: float, failures: dict[int, BaseException]
    ) -> None:
        """Take in what arrives within the liveness period; note deaths and the passing of the deadline."""
        left = _LIVENESS_PERIOD if deadline is None else min(_LIVENESS_PERIOD, deadline - time.monotonic())
        events = self._waiter.wait(self._poll, self._inboxes, max(left, 0.0), since)
        for fd, _ in events:
            self._take_in(self._worker_at[fd])
        has_news = bool(events)
        for worker, inbox in enumerate(self._inboxes):
            if inbox.is_full:
                has_news = True
                self._take_out(worker)
        if has_news and not self._mute:
            return
        for number in silent:
            if number in self._answers:
                continue
            worker, what = self._awaited[number]
            if worker in self._mute or (not has_news and self._is_gone(worker)):
                failures[number] = self._death(worker, what)
            elif not has_news and left <= 0:
                failures[number] = TimeoutError(f"{what}: no answer from {self.describe(worker)}, {_HUNG}")

    def _take_in(self, worker: int) -> None:
        """Read what a worker has sent."""
        try:
            with no_interrupt():  # which could come between what is read and where it is kept
                self._sort_in(worker, self.channels[worker].arrived())
        except ChannelClosedError:
            self._stop_listening(worker)  # its end of stream would wake us up without pause

    def _sort_in(self, worker: int, messages: list[Message]) -> None:
        for message in messages:
            request = self._awaited.get(message.number)
            if request is not None and request.worker == worker:
                self._answers[message.number] = message
                if message.code == FAILED:
                    self._failed.add(message.number)

    def _stop_listening(self, worker: int) -> None:
        if worker not in self._mute:
            self._mute.add(worker)
            self._poll.unregister(self.channels[worker].fd)

    def _is_gone(self, worker: int) -> bool:
        """Whether a worker has ended and nothing that it has sent is left to be read."""
        return not self._is_running(worker) and not self.channels[worker].has_unread

    # -- what went wrong -----------------------------------------------------------------------------------

    def describe(self, worker: int) -> str:
        share = self.shares[worker]
        envs = f"environment {share[0]}" if len(share) == 1 else f"environments {share[0]} to {share[-1]}"
        at_work = "" if len(share) == 1 else f"at environment {self._progress[worker]}, "
        return f"{envs} ({at_work}worker {worker}, pid {self.processes[worker].pid})"

    def _death(self, worker: int, what: str) -> WorkerDied:
        process = self.processes[worker]
        self._await_ends([worker], _KILL_GRACE)  # its connection ends a moment before itself
        code = process.exitcode
        how = f"exit code {code}"
        if code is None:
            how = "it has closed its connection but still runs" if self._is_running(worker) else "exit code unknown"
        elif code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown signal"
            how = f"exit code {code}, {name}" + (" (killed, or out of memory)" if -code == signal.SIGKILL else "")
        return WorkerDied(f"{self.describe(worker)} died at {what}: {how}")

    def _report(self, answer: Message) -> ErrorReport:
        report = ErrorReport(*pickle.loads(answer.payload))
        self.errors.put(report)
        return report

    # -- ending --------------------------------------------------------------------------------------------

    def close(self, grace: float = CLOSE_GRACE) -> list[ErrorReport]:
        """End all workers: asked first, then told, then killed. Returns within two seconds, always.

        Returns what their environments have raised while they were closed.
        """
        if self._closed:
            return []
        self._closed = True
        workers = range(len(self.processes))
        try:
            return self._stop(workers, grace) if os.getpid() == self._owner else []
        finally:
            for channel in self.channels:
                channel.close()
            self.block.close()
            # what their memory and their processes keep open goes with the last who refers to them
            self.channels, self.processes, self._inboxes = [], [], []
            del self.block, self._progress

    def _stop(self, workers: Sequence[int], grace: float) -> list[ErrorReport]:
        """End some workers. They are asked if there is a grace, and it is waited for what they say to it."""
        numbers: list[int] = []
        try:
            if grace:
                numbers = [number for worker in workers if (number := self._ask_to_close(worker)) is not None]
                self._await_ends(workers, grace)
            for worker in self._running(workers):
                self.processes[worker].terminate()
            self._await_ends(workers, _TERMINATE_GRACE)
        finally:  # an interrupt is answered with force
            for worker in self._running(workers):
                self.processes[worker].kill()
            self._await_ends(workers, _KILL_GRACE)
        replies = [self._answers[number] for number in numbers if number in self._answers]
        self.abandon(numbers)
        return [self._report(reply) for reply in replies if reply.code == FAILED]

    def _ask_to_close(self, worker: int) -> int | None:
        self._numbers += 1
        try:
            self.channels[worker].send(self._numbers, CLOSE, b"")
        except ChannelClosedError:
            return None
        self._awaited[self._numbers] = Request(worker, "close")
        return self._numbers

    def _running(self, workers: Sequence[int]) -> list[int]:
        return [worker for worker in workers if self._is_running(worker)]

    def _is_running(self, worker: int) -> bool:
        process = self.processes[worker]
        if not process.is_alive():
            return False
        if worker in self._adopted:
            return True  # the fork server knows, and will say so
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:  # somebody else has reaped it, such as the kernel where SIGCHLD is ignored
            return False
        return True

    def _await_ends(self, workers: Sequence[int], seconds: float) -> None:
        """Wait for the end of some workers, and read what they say until then: else they might wait for us.

        Their sentinels are no help, since processes of their own may hold them open.
        """
        deadline = time.monotonic() + seconds
        while self._running(workers) and time.monotonic() < deadline:
            for fd, _ in self._poll.poll(2):
                self._take_in(self._worker_at[fd])
        for worker in workers:
            while worker not in self._mute and self.channels[worker].has_unread:
                self._take_in(worker)  # its last words
