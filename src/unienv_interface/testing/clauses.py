"""What every contract has in common: clauses by name, and how a breach of one is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Clause = Callable[[Any], None]


class BreachError(Exception):
    """What a clause has found, before it is known by name."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"found {found}; wanted {wanted}")


def require(condition: Any, found: str, wanted: str) -> None:
    if not condition:
        raise BreachError(found, wanted)


def registering_in(clauses: dict[str, Clause], error_type: type[Exception]) -> Callable[[Clause], Clause]:
    """A decorator for checks: what one finds, and whatever its subject raises, becomes an error of that type."""

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
