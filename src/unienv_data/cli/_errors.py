"""Errors that are the user's business."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class CommandError(Exception):
    """What was asked for cannot be done; the text is all that the user sees of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text  # as it was, also when a worker process has added its traceback


class UsageError(CommandError):
    """What stands on the command line is wrong, whatever there is on disk."""


#: What is told in one line. Any other exception is a defect of ours, and its traceback is wanted.
KNOWN_ERRORS = (CommandError, OSError, ValueError, ImportError, MemoryError, RuntimeError)


#: What code of the user's may raise. One that exits ends itself, and not the command with it.
THEIR_ERRORS = (Exception, SystemExit)


@contextlib.contextmanager
def telling_of_theirs() -> Iterator[None]:
    """Make what code of the user's raises an error that is told in one line."""
    try:
        yield
    except CommandError as error:
        raise CommandError(error.text) from error  # without the traceback that a worker has added
    except THEIR_ERRORS as error:
        raise CommandError(with_its_type(error)) from error


def in_one_line(error: BaseException) -> str:
    """What went wrong, without line breaks, and without the traceback of a worker process."""
    text = " ".join((getattr(error, "in_words", "") or str(error)).split())
    return text or type(error).__name__


def with_its_type(error: BaseException) -> str:
    """The same of an error in somebody else's code, of which the type may tell more than the text."""
    is_told = isinstance(error, (CommandError, ImportError)) or hasattr(error, "in_words")
    return in_one_line(error) if is_told else f"{type(error).__name__}: {in_one_line(error)}"
