"""Descriptions of why a value is not in a space."""

from __future__ import annotations

import functools
from typing import Any, cast

from .dispatch import SpaceFunction
from .space import Space


def join_path(path: str, key: object) -> str:
    """The path of a child, such as "obs/rgb"."""
    return f"{path}/{key}" if path else str(key)


def at_path(path: str, finding: str) -> str:
    """Put the path of a value in front of a finding."""
    return f"{path}: {finding}" if path else finding


def prepend_key(error: Exception, key: object) -> None:
    """Put the key of a child in front of the path in an error's message."""
    path, finding = getattr(error, "located", ("", str(error)))
    path = join_path(str(key), path) if path else str(key)
    error.args = (at_path(path, finding),)
    error.located = (path, finding)  # type: ignore[attr-defined]


def _guarded(rules: Any) -> SpaceFunction[str | None]:
    """Make the rules a function that never raises, also if reading an attribute of `x` raises."""

    @functools.wraps(rules)
    def describe(space: Space, x: Any, path: str = "") -> str | None:
        try:
            return rules(space, x, path)
        except Exception as error:
            return at_path(path, f"a value that cannot be looked at ({type(error).__name__})")

    return cast(SpaceFunction[str | None], describe)


@_guarded
@functools.singledispatch
def describe_mismatch(space: Space, x: Any, path: str = "") -> str | None:
    """Describe the first reason why `x` is not a value of `space`; None if it is a value.

    Never raises, whatever `x` is. Each kind of space registers a rule, and its `contains` calls this function. For a
    kind without a rule, the reason only says that `contains` is false.

    Parameters
    ----------
    space
        The space.
    x
        Any object.
    path
        The path of `x`, such as "obs/rgb", to put in front of the reason.

    Returns
    -------
    str or None
        The path and the reason, such as "obs/rgb: dtype float64, the space wants uint8"; None if the value fits.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,))
    >>> describe_mismatch(space, np.zeros(2, np.float32), "action")
    'action: shape (2,), the space wants (3,)'
    """
    return None if space.contains(x) else at_path(path, f"{type(x).__name__} is not a value of {space}")


def validate(space: Space, x: Any, path: str = "") -> None:
    """Raise an error unless `x` is a value of `space`.

    Parameters
    ----------
    space
        The space.
    x
        Any object.
    path
        The path of `x`, to put in front of the reason.

    Raises
    ------
    ValueError
        The reason of `describe_mismatch`.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,))
    >>> validate(space, np.zeros(3, np.float32))
    """
    finding = describe_mismatch(space, x, path)
    if finding is not None:
        raise ValueError(finding)
