"""Waiting for threads while Ctrl-C may come at any instant.

Futures and `threading.Condition` take and wait for locks in Python code: Ctrl-C there can leave a lock taken, and other
threads then wait for ever. Here locks are entered, and waited for, in C.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from unienv_interface.utils.channel import no_interrupt

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class ThreadCall(Generic[ResultT]):
    """A call that a thread makes, or the error that it ended with."""

    def __init__(self, threads: Executor, call: Callable[[], ResultT]) -> None:
        self._call, self._is_cancelled = call, False
        self._results: list[ResultT] = []
        self._error: BaseException | None = None
        self._is_running = threading.Lock()
        self._is_running.acquire()
        with no_interrupt():
            threads.submit(self._run)

    def _run(self) -> None:
        try:
            if not self._is_cancelled:
                self._results.append(self._call())
        except BaseException as error:  # raised where the result is asked for
            self._error = error
        finally:
            self._is_running.release()

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return not self._is_running.locked()

    def result(self) -> ResultT:
        """Wait for the end of the call; its result, or its error is raised."""
        with self._is_running:
            pass
        if self._error is not None:
            raise self._error
        return self._results[0]

    def cancel(self) -> None:
        """Leave the call out if it has not begun; nobody asks for its result then."""
        self._is_cancelled = True


class Changes:
    """A lock, and word of changes to what it guards."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: list[threading.Lock] = []

    def notify(self) -> None:
        """Have all who wait look again; for who holds the lock."""
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.release()

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `holds()`, which is called with the lock held, at most so many seconds; whether it does."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            turn = threading.Lock()
            turn.acquire()
            with self.lock:
                if holds():
                    return True
                self._waiting.append(turn)
            if not turn.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
                return False


def call_each(threads: Executor, work: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """The results of `work` for each item, in their order."""
    calls = [ThreadCall(threads, functools.partial(work, item)) for item in items]
    return [call.result() for call in calls]
