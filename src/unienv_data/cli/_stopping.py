"""Being asked to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self


class Stopped(KeyboardInterrupt):
    """A command was stopped at once, by this signal; the text says what that leaves."""

    def __init__(self, number: int | None, text: str) -> None:
        super().__init__(text)
        self.signal = signal.SIGINT if number is None else number


class StopRequest:
    """While a `with` block runs, Ctrl-C or a request to end only sets `signal`; a second one is a KeyboardInterrupt.

    So that work is stopped where it can be gone on with. Outside the main thread signals are left as they are.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
