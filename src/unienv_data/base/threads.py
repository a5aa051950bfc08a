"""Calls in threads and waiting for them, safe when Ctrl-C comes at any instant.

Futures and `threading.Condition` acquire locks in Python code: Ctrl-C can interrupt that code and leave a lock held, so
that other threads block for ever. This module acquires and waits for locks in C.
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
    """A function call in a thread, with its result or its error."""

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
        except BaseException as error:  # `result` raises it
            self._error = error
        finally:
            self._is_running.release()

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return not self._is_running.locked()

    def result(self) -> ResultT:
        """Wait for the end of the call, and return its result or raise its error."""
        with self._is_running:
            pass
        if self._error is not None:
            raise self._error
        return self._results[0]

    def cancel(self) -> None:
        """Skip the call if it has not begun. `result` must not be called afterwards."""
        self._is_cancelled = True


class Changes:
    """A lock, and a condition on the state that it guards."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: list[threading.Lock] = []

    def notify(self) -> None:
        """Wake all threads in `wait_for`, which check their conditions again. The caller holds the lock."""
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake.release()

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until `holds()`, called with the lock held, is true; return whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            wake = threading.Lock()
            wake.acquire()
            with self.lock:
                if holds():
                    return True
                self._waiting.append(wake)
            if not wake.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
                return False


def call_each(threads: Executor, work: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Call `work` for every item in the threads, and return the results in the order of the items."""
    calls = [ThreadCall(threads, functools.partial(work, item)) for item in items]
    return [call.result() for call in calls]
