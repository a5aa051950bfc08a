"""Errors that the command reports in one line, including errors of user code."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from collections.abc import Iterator
from types import ModuleType

from ..checking.reading import in_one_line


class CommandError(Exception):
    """A command has failed; the user sees only the text of this error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text  # without the traceback that a worker process may add


class UsageError(CommandError):
    """The command line is wrong."""


class Stopped(KeyboardInterrupt):
    """A command was stopped at once by a signal; the text describes the state on disk."""

    def __init__(self, number: int | None, text: str) -> None:
        super().__init__(text)
        self.signal = signal.SIGINT if number is None else number


#: Errors that are reported in one line. Any other exception is a bug of UniEnv and prints its traceback.
KNOWN_ERRORS = (CommandError, OSError, ValueError, ImportError, MemoryError, RuntimeError)


#: Errors of user code. SystemExit from user code is reported as an error.
USER_ERRORS = (Exception, SystemExit)


@contextlib.contextmanager
def reporting_user_errors() -> Iterator[None]:
    """Report errors of user code in one line."""
    try:
        yield
    except CommandError as error:
        raise CommandError(error.text) from error  # without the traceback of a worker process
    except USER_ERRORS as error:
        raise CommandError(with_type(error)) from error


def with_type(error: BaseException) -> str:
    """Describe an error of user code by its type and text."""
    is_clear = isinstance(error, (CommandError, ImportError)) or hasattr(error, "in_words")
    return in_one_line(error) if is_clear else f"{type(error).__name__}: {in_one_line(error)}"


def import_module(name: str, purpose: str) -> ModuleType:
    """Import a module of the user, from the current folder or an installed package.

    `purpose` begins the error message: the policy or environment in this module.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`
    try:
        return importlib.import_module(name)
    except USER_ERRORS as error:  # a module may do anything on import
        raise CommandError(f"{purpose}: {with_type(error)}") from error


# -- printing ------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Escape characters that a terminal would interpret, or not show, as \\x1b or \\n.

    Names of columns, texts and paths come from data that is not trusted.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def complain(line: str) -> None:
    """Print a line on standard error."""
    print(printable(line), file=sys.stderr)
