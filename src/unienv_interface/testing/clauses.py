"""Clauses of a contract, and the errors for a broken clause."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Clause = Callable[[Any], None]


class BreachError(Exception):
    """A broken clause, raised by `require`; the decorator of the clause adds its name."""

    def __init__(self, actual: str, expected: str) -> None:
        super().__init__(f"found {actual}; wanted {expected}")


def require(condition: Any, actual: str, expected: str) -> None:
    if not condition:
        raise BreachError(actual, expected)


def registering_in(clauses: dict[str, Clause], error_type: type[Exception]) -> Callable[[Clause], Clause]:
    """Make a decorator that registers a check in `clauses` and turns its errors into `error_type`."""

    def clause(check: Clause) -> Clause:
        @functools.wraps(check)
        def checked(subject: Any) -> None:
            context = f"{subject!r} breaks the clause {check.__name__!r}"
            try:
                check(subject)
            except BreachError as breach:
                raise error_type(f"{context}: {breach}") from None
            except Exception as error:
                raise error_type(
                    f"{context}: found {type(error).__name__}: {error}; wanted that nothing is raised"
                ) from error

        clauses[check.__name__] = checked
        return checked

    return clause
