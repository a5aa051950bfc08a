"""Errors that are the user's business."""

from __future__ import annotations


class CommandError(Exception):
    """What was asked for cannot be done; the text is all that the user sees of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text  # as it was, also when a worker process has added its traceback


#: What is told in one line. Any other exception is a defect of ours, and its traceback is wanted.
KNOWN_ERRORS = (CommandError, OSError, ValueError, ImportError, MemoryError, RuntimeError)


def in_one_line(error: BaseException) -> str:
    """What went wrong, without line breaks."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
