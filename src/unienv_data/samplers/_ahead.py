"""Batches that are fetched before they are asked for."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Any, NamedTuple, Protocol

from ..base.sampling import Draw, Form, IndexBatch


class Ticket(Protocol):
    """A batch that is being fetched."""

    #: Whether its result was taken: the batch, or the error of its fetch.
    is_taken: bool

    def result(self) -> Any:
        """The batch, once it is there. An error that leaves it as not taken is not that of this batch."""

    def cancel(self) -> None:
        """Do without it. It may be fetched all the same."""


class InThread:
    """A batch that a thread fetches; after a fork, which copies no threads, the child fetches it itself."""

    def __init__(self, threads: Executor, fetch: Callable[[], Any]) -> None:
        self._fetch, self._future = fetch, threads.submit(fetch)
        self._process = os.getpid()
        self.is_taken = False

    def result(self) -> Any:
        if os.getpid() != self._process:
            self.is_taken = True
            return self._fetch()
        wait([self._future])
        self.is_taken = True
        return self._future.result()

    def cancel(self) -> None:
        if os.getpid() == self._process:
            self._future.cancel()


class _Coming(NamedTuple):
    drawn: IndexBatch
    form: Form
    ticket: Ticket


class Ahead:
    """Has up to `depth` batches fetched in advance, and hands them out in the order in which they were drawn.

    `submit` begins to fetch a batch and returns at once. While `has_room` says no, only what is asked for is fetched.
    """

    def __init__(
        self,
        submit: Callable[[IndexBatch, Form], Ticket],
        depth: int,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._submit, self._depth, self._has_room = submit, depth, has_room
        self._coming: deque[_Coming] = deque()
        # an epoch may be given up in the middle: what is on its way then occupies memory
        weakref.finalize(self, _cancel, self._coming).atexit = False

    def next(self, draw: Draw, form: Form) -> tuple[IndexBatch, Any] | None:
        self._fill(draw, form)
        if not self._coming:
            return None
        drawn, asked, ticket = self._coming[0]
        if asked != form:
            ticket.cancel()
            ticket = self._submit(drawn, form)
            self._coming[0] = _Coming(drawn, form, ticket)
        try:
            batch = ticket.result()
        finally:
            if ticket.is_taken:
                self._coming.popleft()
        with contextlib.suppress(Exception):  # what is wrong with the next one is said when it is asked for
            self._fill(draw, form)
        return drawn, batch

    def _fill(self, draw: Draw, form: Form) -> None:
        while len(self._coming) < self._depth and (self._has_room() or not self._coming):
            drawn = draw()
            if drawn is None:
                return
            self._coming.append(_Coming(drawn, form, self._submit(drawn, form)))

    def drawn(self) -> list[IndexBatch]:
        """What was drawn and not handed out, oldest first."""
        return [coming.drawn for coming in self._coming]

    def clear(self) -> None:
        """Do without what is coming."""
        _cancel(self._coming)


def _cancel(coming: deque[_Coming]) -> None:
    while coming:
        coming.popleft().ticket.cancel()
