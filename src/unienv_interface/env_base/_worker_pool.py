"""The parent's side of the worker processes: starting, asking, waiting, and ending them whatever they do."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from ..utils.shared_block import SharedBlock
from ._channel import Channel, ChannelClosedError, Message
from ._worker import ATTACH, CLOSE, COMMAND_NAMES, FAILED, FIRST_REPORT, MAP, worker_main

# How long the parent waits on a silent pipe before it looks whether the worker is still there: a process that an
# environment has started may hold the pipe open after the worker's death.
_LIVENESS_PERIOD = 0.25
_CLOSE_GRACE, _TERMINATE_GRACE = 1.0, 0.4


class WorkerDied(RuntimeError):  # noqa: N818 - the name of what happened
    """A worker process has ended by itself; the text names its environments and how it ended."""


class ErrorReport(NamedTuple):
    """What a worker says of an error in one of its environments."""

    env_index: int
    command: str
    traceback: str
    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]


class WorkerPool:
    """Worker processes that each hold a contiguous share of the environments.

    Several requests may be sent to a worker; it answers them in order. `outcomes` waits for answers, and those that
    nobody awaits any more are thrown away.
    """

    def __init__(
        self, factories: Sequence[Callable[[], Any]], shares: Sequence[range], ctx: BaseContext, daemon: bool
    ) -> None:
        self.shares = list(shares)
        self.processes: list[Any] = []
        self.channels: list[Channel] = []
        self.errors: SimpleQueue[ErrorReport] = SimpleQueue()
        self._ctx = ctx
        self._daemon = daemon
        self._pickled = [cloudpickle.dumps([factories[index] for index in share]) for share in self.shares]
        self._selector = selectors.DefaultSelector()
        self._numbers = 0
        self._awaited: dict[int, int] = {}  # the number of a request, and its worker
        self._answers: dict[int, Message] = {}
        self._attachment: tuple[bytes, SharedBlock | None] | None = None
        self._progress: np.ndarray | None = None
        self._commands = ["construction"] * len(self.shares)
        self._closed = False
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
        ours, theirs = self._ctx.Pipe(duplex=True)
        is_fork = self._ctx.get_start_method() == "fork"
        inherited = [*self.connections, ours] if is_fork else []
        is_main_thread = threading.current_thread() is threading.main_thread()
        process = self._ctx.Process(  # type: ignore[attr-defined]
            target=worker_main,
            args=(worker, theirs, inherited, self._pickled[worker], self.shares[worker].start, is_main_thread),
            name=f"unienv-worker-{worker}",
            daemon=self._daemon,
        )
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        channel = Channel(ours)
        if worker < len(self.channels):
            self.channels[worker], self.processes[worker] = channel, process
        else:
            self.channels.append(channel)
            self.processes.append(process)
        self._selector.register(channel.fd, selectors.EVENT_READ, worker)
        self._awaited[FIRST_REPORT - worker] = worker

    def started(self, workers: Sequence[int], timeout: float | None) -> list[Any]:
        """What workers that were just started say of their environments."""
        reports = []
        for worker in workers:
            (answer,) = self.answers([FIRST_REPORT - worker], timeout, "construction")
            reports.append(cloudpickle.loads(answer.payload))
        return reports

    def attach(self, plan: Any, block: SharedBlock | None, progress: np.ndarray | None, timeout: float | None) -> None:
        """Give all workers, and those that are started later, the memory they write to.

        `progress` is where each of them notes the environment it is at work on.
        """
        self._progress = progress
        nbytes = 0 if block is None else block.size
        self._attachment = (cloudpickle.dumps((plan, nbytes)), block)
        for worker in range(len(self.shares)):
            self._attach(worker, timeout)

    def _attach(self, worker: int, timeout: float | None) -> None:
        if self._attachment is None:
            return
        payload, block = self._attachment
        self.answers([self.send(worker, ATTACH, payload, timeout)], timeout, "attaching the shared memory")
        if block is not None:
            self.channels[worker].send_descriptor(block.fd)
        self.answers([self.send(worker, MAP, b"", timeout)], timeout, "mapping the shared memory")

    def restart(self, worker: int, timeout: float | None) -> Any:
        """End a worker, whatever state it is in, and start another in its place; returns its report."""
        self.abandon([number for number, whose in self._awaited.items() if whose == worker])
        with contextlib.suppress(KeyError):
            self._selector.unregister(self.channels[worker].fd)
        self.channels[worker].close()
        _end(self.processes[worker], _TERMINATE_GRACE)
        self._start(worker)
        (report,) = self.started([worker], timeout)
        self._attach(worker, timeout)
        return report

    # -- asking and waiting --------------------------------------------------------------------------------

    def send(self, worker: int, code: int, payload: bytes = b"", timeout: float | None = None) -> int:
        """Send a request; returns its number."""
        self._numbers += 1
        try:
            self.channels[worker].send(Message(self._numbers, code, payload), timeout)
        except ChannelClosedError:
            raise self._death(worker) from None
        except TimeoutError:
            raise TimeoutError(f"{self.describe(worker)} takes no commands: it has not come back in time") from None
        self._awaited[self._numbers] = worker
        self._commands[worker] = COMMAND_NAMES[code]
        return self._numbers

    def outcomes(
        self, numbers: Sequence[int], deadline: float | None, what: str, least: int | None = None
    ) -> dict[int, Message | BaseException]:
        """How these requests ended: all of them, or those that have once there are at least `least`.

        An outcome is the answer, or what is to be raised for it: the error of an environment, the death of the
        worker, or a TimeoutError at the deadline. Requests that are not in the result are still awaited.
        """
        wanted = len(numbers) if least is None else least
        failures: dict[int, BaseException] = {}
        while sum(number in self._answers or number in failures for number in numbers) < wanted:
            silent = [number for number in numbers if number not in self._answers and number not in failures]
            self._wait(silent, deadline, what, failures)
        ended: dict[int, Message | BaseException] = {}
        for number in numbers:
            if number in failures:
                ended[number] = failures[number]
            elif number in self._answers:
                answer = self._answers[number]
                ended[number] = self._error(answer) if answer.code == FAILED else answer
        self.abandon(list(ended))
        return ended

    def answers(self, numbers: Sequence[int], timeout: float | None, what: str) -> list[Message]:
        """The answers to these requests, in order; the first thing that went wrong is raised."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ended = self.outcomes(numbers, deadline, what)
        answers = []
        for number in numbers:
            outcome = ended[number]
            if isinstance(outcome, BaseException):
                raise outcome
            answers.append(outcome)
        return answers

    def abandon(self, numbers: Sequence[int]) -> None:
        """Await these requests no longer; an answer that still comes is thrown away."""
        for number in numbers:
            self._awaited.pop(number, None)
            self._answers.pop(number, None)

    def _wait(
        self, silent: Sequence[int], deadline: float | None, what: str, failures: dict[int, BaseException]
    ) -> None:
        """Take in what arrives within the liveness period; note deaths and the passing of the deadline."""
        left = _LIVENESS_PERIOD if deadline is None else min(_LIVENESS_PERIOD, deadline - time.monotonic())
        if left <= 0:
            for number in silent:
                where = self.describe(self._awaited[number])
                failures[number] = TimeoutError(f"{what}: no answer within the timeout from {where}")
            return
        events = self._selector.select(left)
        dead = {key.data for key, _ in events if not self._take_in(key.data)}
        if not events:
            asked = {self._awaited[number] for number in silent}
            dead = {worker for worker in asked if not self.processes[worker].is_alive() and not self._take_in(worker)}
        for number in silent:
            if self._awaited[number] in dead and number not in self._answers:
                failures[number] = self._death(self._awaited[number])

    def _take_in(self, worker: int) -> bool:
        """Read what a worker has sent; False once there is nothing more to come from it."""
        try:
            messages = self.channels[worker].arrived()
        except ChannelClosedError:
            # Its end of stream would wake us up without pause. It is found dead when it is asked next.
            with contextlib.suppress(KeyError):
                self._selector.unregister(self.channels[worker].fd)
            return False
        for message in messages:
            if self._awaited.get(message.number) == worker:
                self._answers[message.number] = message
        return bool(messages) or self.processes[worker].is_alive()

    # -- what went wrong -----------------------------------------------------------------------------------

    def describe(self, worker: int) -> str:
        share = self.shares[worker]
        envs = f"environment {share[0]}" if len(share) == 1 else f"environments {share[0]} to {share[-1]}"
        at_work = "" if self._progress is None or len(share) == 1 else f"at environment {self._progress[worker]}, "
        return f"{envs} ({at_work}worker {worker}, pid {self.processes[worker].pid})"

    def _death(self, worker: int) -> WorkerDied:
        process = self.processes[worker]
        process.join(1.0)
        code = process.exitcode
        how = f"exit code {code}"
        if code is None:
            how = "no exit code yet"
        elif code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown signal"
            how = f"exit code {code}, {name}" + (" (killed, or out of memory)" if -code == signal.SIGKILL else "")
        return WorkerDied(f"{self.describe(worker)} died at {self._commands[worker]}: {how}")

    def _error(self, answer: Message) -> BaseException:
        report = ErrorReport(*pickle.loads(answer.payload))
        self.errors.put(report)
        return rebuild(report)

    # -- ending --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all workers: asked first, then told, then killed. Returns within two seconds, always."""
        if self._closed:
            return
        self._closed = True
        for channel in self.channels:
            with contextlib.suppress(ChannelClosedError, TimeoutError, OSError):
                channel.send(Message(0, CLOSE), timeout=0.0)
        deadline = time.monotonic() + _CLOSE_GRACE
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        alive = [process for process in self.processes if process.is_alive()]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + _TERMINATE_GRACE
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
            _end(process, 0.0)
        for channel in self.channels:
            channel.close()
        self._selector.close()
        if self._attachment is not None and self._attachment[1] is not None:
            self._attachment[1].close()
        for process in self.processes:
            with contextlib.suppress(ValueError):
                process.close()


def _end(process: Any, grace: float) -> None:
    """End a process, with force if it does not go by itself."""
    if grace and process.is_alive():
        process.terminate()
        process.join(grace)
    if process.is_alive():
        process.kill()
        process.join(2.0)


def rebuild(report: ErrorReport) -> BaseException:
    """The error of an environment as one of the same type, its text naming environment, command and traceback."""
    text = f"environment {report.env_index}, {report.command}: in its worker process\n\n{report.traceback}"
    kind = report.kind
    if kind.__init__ is Exception.__init__ or kind in _PLAIN:
        return kind(text)
    # A type with a constructor or a text of its own cannot be made with ours: a subclass of the same name can.
    told = type(kind.__name__, (kind,), {"__str__": lambda self: text, "__module__": kind.__module__})
    error = told.__new__(told, *report.args)
    error.args = report.args
    error.__dict__.update(report.attributes)
    return error


_PLAIN = {ValueError, TypeError, RuntimeError, ArithmeticError, ZeroDivisionError, NotImplementedError, IndexError}


def default_context() -> BaseContext:
    """The start method to use where none is asked for.

    Python's own choice, but not fork once JAX is in the process: JAX runs threads whose locks a fork copies as they
    are, and its first use in the child may then wait for ever.
    """
    import sys

    ctx = multiprocessing.get_context()
    if ctx.get_start_method() == "fork" and "jax" in sys.modules:
        return multiprocessing.get_context("forkserver")
    return ctx
