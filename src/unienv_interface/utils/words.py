"""Suggestions for misspelled words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of an error message that names the valid word nearest to `word`; empty if none is near.

    Examples
    --------
    >>> did_you_mean("nunpy", ["numpy", "jax"])
    ", did you mean 'numpy'?"
    """
    by_case = {known.lower(): known for known in words}
    near = difflib.get_close_matches(word.lower(), by_case, n=1)
    return f", did you mean {by_case[near[0]]!r}?" if near else ""
