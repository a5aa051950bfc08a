"""Calls in the threads of a pool, whose ends are waited for while Ctrl-C may come at any instant.

The futures of `concurrent.futures` wait in Python code: Ctrl-C there can leave the lock of a future taken, and its
thread then waits for ever. Here the main thread waits for one lock, in C.
"""

from __future__ import annotations

import functools
import threading
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


def call_each(threads: Executor, work: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """The results of `work` for each item, in their order."""
    calls = [ThreadCall(threads, functools.partial(work, item)) for item in items]
    return [call.result() for call in calls]
