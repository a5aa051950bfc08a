"""Errors that the command reports in one line, also those of the user's own code."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from collections.abc import Iterator
from types import ModuleType

from ..checking.reading import in_one_line


class CommandError(Exception):
    """A command that cannot be done; its text is all that the user sees."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text  # as it was, also when a worker process has added its traceback


class UsageError(CommandError):
    """The command line is wrong, whatever is on disk."""


class Stopped(KeyboardInterrupt):
    """A command was stopped at once, by this signal; the text says what that leaves."""

    def __init__(self, number: int | None, text: str) -> None:
        super().__init__(text)
        self.signal = signal.SIGINT if number is None else number


#: Errors that are reported in one line. Any other exception is a defect of ours, and its traceback is wanted.
KNOWN_ERRORS = (CommandError, OSError, ValueError, ImportError, MemoryError, RuntimeError)


#: What code of the user's may raise; SystemExit is an error like the others, and does not end the command.
THEIR_ERRORS = (Exception, SystemExit)


@contextlib.contextmanager
def reporting_user_errors() -> Iterator[None]:
    """Report errors of the user's own code in one line."""
    try:
        yield
    except CommandError as error:
        raise CommandError(error.text) from error  # without the traceback that a worker has added
    except THEIR_ERRORS as error:
        raise CommandError(with_its_type(error)) from error


def with_its_type(error: BaseException) -> str:
    """What went wrong in somebody else's code, with the type of the error, which may tell more than its text."""
    is_told = isinstance(error, (CommandError, ImportError)) or hasattr(error, "in_words")
    return in_one_line(error) if is_told else f"{type(error).__name__}: {in_one_line(error)}"


def import_module(name: str, what: str) -> ModuleType:
    """A module of the user's, from the folder that the command runs in or any that is installed.

    `what` says in errors what it is wanted for: a policy, or an environment that it registers.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`
    try:
        return importlib.import_module(name)
    except THEIR_ERRORS as error:  # whatever a module does when it is imported
        raise CommandError(f"{what}: {with_its_type(error)}") from error


# -- printing ------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Text in which what a terminal would act on, or not show, stands as an escape such as \\x1b or \\n.

    Names of columns, texts and paths come from data that anybody may have written.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def complain(line: str) -> None:
    """Print a line on standard error."""
    print(printable(line), file=sys.stderr)
