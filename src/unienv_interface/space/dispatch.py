"""Single-dispatch functions with one rule per kind of space."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, overload

Rule = TypeVar("Rule", bound=Callable[..., Any])
ResultT_co = TypeVar("ResultT_co", covariant=True)


class SpaceFunction(Protocol[ResultT_co]):
    """The type of a function that dispatches on its first argument, a space."""

    def __call__(self, space: Any, *args: Any, **kwargs: Any) -> ResultT_co: ...

    @overload
    def register(self, kind: type, /) -> Callable[[Rule], Rule]: ...

    @overload
    def register(self, rule: Rule, /) -> Rule: ...

    def dispatch(self, kind: type, /) -> Callable[..., ResultT_co]:
        """The rule of a kind of space."""


def rule_per_space(fn: Callable[..., Any]) -> SpaceFunction[Any]:
    """Make a function that dispatches on its first argument, a space; `fn` gives its name, signature and docstring.

    For a kind of space without a rule, the function raises a TypeError that says what to register.
    """

    @functools.wraps(fn)
    def no_rule(space: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{fn.__name__} has no rule for {type(space).__name__}: register one with @{fn.__name__}.register, "
            f"of {fn.__module__}"
        )

    return cast(SpaceFunction[Any], functools.singledispatch(no_rule))
