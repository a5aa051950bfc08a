"""Progress bars."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

from typing_extensions import Self

from ._errors import printable

# Seconds of work before the bar appears: quick commands show none.
_PATIENCE = 0.5


class ProgressBar:
    """A progress bar on standard error during a `with` block; called as ``bar(done, total)``.

    The bar appears after half a second of work, and never without a terminal. With a `total` of None the first call may
    be late, so a thread shows the bar. Otherwise no thread starts before the first call, and processes can fork until
    then.
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

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._bar is None:
            if not self._is_wanted or self._timer is not None or time.monotonic() - self._begun < _PATIENCE:
                return
            self._start()
        self._bar.update(self._task, completed=done, total=total)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.table import Column
        from rich.text import Text

        unit = self._unit

        class DoneColumn(ProgressColumn):
            """The work done, and the total if known."""

            def render(self, task: Task) -> Text:
                total = "" if task.total is None else f" of {task.total:,.0f}"
                return Text(f"{task.completed:,.0f}{total} {unit}")

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DoneColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = bar.add_task(printable(self._title), total=self._total, completed=self._done)
        bar.start()
        self._bar = bar  # from here on, calls update the bar
        bar.update(self._task, completed=self._done, total=self._total)  # for a call before this line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()
