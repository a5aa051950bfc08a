"""Signals at any point of some code, one after the other."""

from __future__ import annotations

import dis
import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

from typing_extensions import Self


class Interrupter:
    """Calls something at the n-th point in some modules at which Python runs signal handlers; for n = 0 it only counts.

    These are behind calls, where functions begin, and where loops do again. There, too, threads take turns. A package
    stands for all of its modules. With `and_after`, it is called at every point from there on.
    """

    def __init__(
        self, modules: Sequence[ModuleType], at: int, call: Callable[[], None], *, and_after: bool = False
    ) -> None:
        self.at, self.count, self._call, self._and_after = at, 0, call, and_after
        self._files = {module.__file__ for module in modules}
        self._folders = tuple(os.path.join(folder, "") for module in modules for folder in _folders(module))

    def __enter__(self) -> Self:
        gc.disable()  # a finalizer that it ran at some point would be interrupted, which Python reports and swallows
        sys._getframe().f_trace_opcodes = True  # else Python 3.12 has no such events before the next `settrace`
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _enter(self, frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._files and not name.startswith(self._folders):
            return None
        leads_to_point, is_next = _points(frame.f_code), True  # a function begins with one

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal is_next
            if event == "opcode":
                is_point, is_next = is_next, leads_to_point[frame.f_lasti]
                if is_point:
                    self._pass()
            elif event == "exception":
                is_next = False  # handlers do not run between an error and what catches it
            return trace

        frame.f_trace = trace  # else Python 3.12 and later do not heed the next line in time
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    def _pass(self) -> None:
        self.count += 1
        if self.count == self.at and not self._and_after:
            sys.settrace(None)
            self._call()
        elif self._and_after and self.count >= self.at:
            self._call()


def _folders(module: ModuleType) -> Sequence[str]:
    return list(getattr(module, "__path__", ()))


@functools.cache
def _points(code: CodeType) -> bytes:
    """For each instruction, by its offset, whether Python runs signal handlers once it is done."""
    found = bytearray(len(code.co_code))
    for instruction in dis.get_instructions(code):
        found[instruction.offset] = instruction.opname.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
    return bytes(found)


def interrupt() -> None:
    raise KeyboardInterrupt


def press() -> None:
    """Ctrl-C, which the code may hold back."""
    signal.raise_signal(signal.SIGINT)
