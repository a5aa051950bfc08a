"""Signals at any point of some code, one after the other."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from typing_extensions import Self


class Interrupter:
    """Calls something at the n-th point in some modules at which Python runs signal handlers; for n = 0 it only counts.

    These are behind calls, where functions begin, and where loops do again. There, too, threads take turns. With
    `and_after`, it is called at every point from there on.
    """

    def __init__(
        self, modules: Sequence[ModuleType], at: int, call: Callable[[], None], *, and_after: bool = False
    ) -> None:
        self.at, self.count, self._call, self._and_after = at, 0, call, and_after
        self._files = {module.__file__ for module in modules}
        self._last: dict[Any, str] = {}  # the instruction that each frame is at

    def __enter__(self) -> Self:
        sys._getframe().f_trace_opcodes = True  # else Python 3.12 has no such events before the next `settrace`
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)
        self._last.clear()

    def _enter(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace = self._trace  # else Python 3.12 and later do not heed the next line in time
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if event != "opcode":
            return self._trace
        last = self._last.get(frame, "RESUME")  # with which it has begun, unseen
        self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if last.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
            self.count += 1
            if self.count == self.at and not self._and_after:
                sys.settrace(None)
                self._call()
            elif self._and_after and self.count >= self.at:
                self._call()
        return self._trace


def interrupt() -> None:
    raise KeyboardInterrupt
