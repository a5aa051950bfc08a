"""Bars for what takes longer than a moment."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Protocol

from typing_extensions import Self

# A bar that flashes by is worse than none.
_PATIENCE = 0.5


class Advance(Protocol):
    """Told how much there is to do, once that is known, and how much more of it is done."""

    def expect(self, total: int, /) -> None: ...

    def __call__(self, done: int, /) -> None: ...


class _Unwatched:
    """For when nobody wants to know."""

    def expect(self, total: int, /) -> None:
        pass

    def __call__(self, done: int, /) -> None:
        pass


unwatched = _Unwatched()


class ProgressBar:
    """A bar on standard error while a `with` block runs; call it with how much more is done.

    It shows up once the work has gone on for half a second, and never where there is no terminal. Work whose length
    is not known from the start may be silent for long, so its bar comes up by itself; otherwise no thread is started
    before the first call, and processes can be forked until then.
    """

    def __init__(self, title: str, total: int | None, unit: str = "samples") -> None:
        self._title, self._total, self._unit = title, total, unit
        self._is_wanted = sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._timer: threading.Timer | None = None
        self._done = 0

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        if self._is_wanted and self._total is None:
            self._timer = threading.Timer(_PATIENCE, self._start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def expect(self, total: int, /) -> None:
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def __call__(self, done: int, /) -> None:
        self._done += done
        if self._bar is None:
            if not self._is_wanted or self._timer is not None or time.monotonic() - self._begun < _PATIENCE:
                return
            self._start()
        self._bar.update(self._task, completed=self._done)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.table import Column
        from rich.text import Text

        unit = self._unit

        class DoneColumn(ProgressColumn):
            """How much is done, of how much if that is known."""

            def render(self, task: Task) -> Text:
                total = "" if task.total is None else f" of {task.total:,.0f}"
                return Text(f"{task.completed:,.0f}{total} {unit}")

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DoneColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = bar.add_task(self._title, total=self._total, completed=self._done)
        bar.start()
        self._bar = bar  # from here on it may be told
        bar.update(self._task, total=self._total)  # which may have become known meanwhile

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()
