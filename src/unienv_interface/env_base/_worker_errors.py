"""How an error in an environment gets from its worker to the caller."""

from __future__ import annotations

import contextlib
import pickle
import traceback
import types
from typing import Any, NamedTuple

from ._channel import pickled


class ErrorReport(NamedTuple):
    """What a worker says of an error in one of its environments."""

    env_index: int
    command: str
    traceback: str
    words: str  # type and text
    error: bytes  # type, arguments and attributes, pickled as far as they can be

    @classmethod
    def of(cls, error: BaseException, env_index: int, command: str) -> ErrorReport:
        """What of the error cannot be pickled is left out, but never the report."""
        text = "".join(traceback.format_exception(error))
        words = "".join(traceback.format_exception_only(error)).strip()
        kind = type(error)
        for what in ((kind, error.args, vars(error)), (kind, error.args, {}), (kind, (), {})):
            with contextlib.suppress(Exception):
                sent = pickled(what)
                pickle.loads(sent)
                return cls(env_index, command, text, words, sent)
        return cls(env_index, command, text, words, b"")

    def rebuild(self, where: str | None = None) -> BaseException:
        """The error as one of the same type, its text naming environment and command, or `where`, and the traceback.

        It is a RuntimeError if its type cannot be had in this process. `in_words` of it is short, without traceback.
        """
        where = where or f"environment {self.env_index}, {self.command}"
        text = f"{where}: in its worker process\n\n{self.traceback}"
        try:
            error: Any = _with_text(text, *pickle.loads(self.error))
        except Exception:
            error = RuntimeError(text)
        error.in_words = f"{where}: {self.words}"
        return error


def _with_text(text: str, kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    is_plain = (
        kind.__str__ is BaseException.__str__
        and isinstance(kind.__init__, types.WrapperDescriptorType)
        and isinstance(kind.__new__, types.BuiltinFunctionType)
    )
    if is_plain:
        error = kind(text)
    else:
        # A type with a constructor or a text of its own cannot be made with ours: a subclass of the same name can.
        told = type(kind.__name__, (kind,), {"__str__": lambda self: text, "__module__": kind.__module__})
        builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        error = builtin.__new__(told, *args)
        builtin.__init__(error, *args)
        error.args = args
    error.__dict__.update(attributes)
    return error
