"""A pipeline that fetches batches in advance."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol

from unienv_interface.utils.channel import no_interrupt

from ..base.sampling import Draw, Form, IndexBatch
from ..base.threads import ThreadCall


class Fetch(Protocol):
    """A batch that is being fetched."""

    #: Whether `result` has returned the batch, or raised the error of its fetch.
    is_taken: bool

    def result(self) -> Any:
        """Wait for the batch. An error that leaves `is_taken` false has another cause than this fetch."""

    def cancel(self) -> None:
        """Drop the batch; the fetch may still run."""


class ThreadFetch:
    """A batch that a thread fetches. After a fork, which copies no threads, the child fetches in its own thread."""

    def __init__(self, threads: Executor, fetch: Callable[[], Any]) -> None:
        self._fetch, self._call = fetch, ThreadCall(threads, fetch)
        self._process = os.getpid()
        self.is_taken = False

    def result(self) -> Any:
        if os.getpid() != self._process:
            self.is_taken = True
            return self._fetch()
        try:
            return self._call.result()
        finally:
            self.is_taken = self._call.is_over

    def cancel(self) -> None:
        if os.getpid() == self._process:
            self._call.cancel()


class _Pending(NamedTuple):
    drawn: IndexBatch
    form: Form
    fetch: Fetch


class Prefetcher:
    """A pipeline that fetches up to `depth` batches in advance, in the order of the draws.

    `submit` begins to fetch a batch and returns at once. While `has_room` is False, only the next batch is fetched.
    """

    def __init__(
        self,
        submit: Callable[[IndexBatch, Form], Fetch],
        depth: int,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._submit, self._depth, self._has_room = submit, depth, has_room
        self._pending: deque[_Pending] = deque()
        # A caller may abandon an epoch: pending batches would keep their memory.
        weakref.finalize(self, _cancel, self._pending).atexit = False

    def next(self, draw: Draw, form: Form) -> tuple[IndexBatch, Any] | None:
        self._fill(draw, form)
        if not self._pending:
            return None
        drawn, fetched_form, fetch = self._pending[0]
        if fetched_form is not form:
            with no_interrupt():
                fetch.cancel()
                fetch = self._submit(drawn, form)
                self._pending[0] = _Pending(drawn, form, fetch)
        try:
            batch = fetch.result()
        finally:
            if fetch.is_taken:
                self._pending.popleft()
        with contextlib.suppress(Exception):  # the next call raises the error
            self._fill(draw, form)
        return drawn, batch

    def _fill(self, draw: Draw, form: Form) -> None:
        while len(self._pending) < self._depth and (self._has_room() or not self._pending):
            drawn = draw()
            if drawn is None:
                return
            with no_interrupt():  # a fetch that is not in the queue would keep its memory
                self._pending.append(_Pending(drawn, form, self._submit(drawn, form)))

    def drawn(self) -> list[IndexBatch]:
        """Return the batches that were drawn and not handed out, oldest first."""
        return [pending.drawn for pending in self._pending]

    def clear(self) -> None:
        """Drop the pending batches."""
        with no_interrupt():
            _cancel(self._pending)


def _cancel(pending: deque[_Pending]) -> None:
    while pending:
        pending.popleft().fetch.cancel()
