"""Functions with one rule per kind of space."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def rule_per_space(fn: Function) -> Any:
    """A single-dispatch function on its first argument, a space; `fn` gives its name, signature and docstring.

    A kind of space without a rule is a TypeError that says what to register.
    """

    @functools.wraps(fn)
    def no_rule(space: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{fn.__name__} has no rule for {type(space).__name__}: register one with @{fn.__name__}.register, "
            f"of {fn.__module__}"
        )

    return functools.singledispatch(no_rule)
