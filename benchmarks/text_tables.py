"""Results as plain text, 120 columns wide."""

from __future__ import annotations

import textwrap

from harness import Outcome, Result, times_better

WIDTH = 120
_SETTING = 81  # the column at which settings begin


def number(value: float) -> str:
    """Three or four digits, whatever the size."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def table(result: Result) -> str:
    """One work: a line per contender, in full where one has no figure."""
    lines = [f"{result.name} [{result.unit}]"]
    for outcome in result.outcomes:
        lines += _lines(result, outcome)
    return "\n".join(lines)


def header() -> str:
    return f"  {'':5} {'':26} {'median':>10} {'quartiles':>23} {'ours is':>9}"


def _lines(result: Result, outcome: Outcome) -> list[str]:
    start = f"  {outcome.kind:5} {outcome.name:26} "
    if not outcome.is_measured:
        return textwrap.wrap(outcome.state, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    low, high = outcome.quartiles
    figures = f"{number(outcome.median):>10} {f'{number(low)} to {number(high)}':>23} {_standing(result, outcome):>9}"
    settings = textwrap.wrap(outcome.setting, WIDTH - _SETTING, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{start}{figures}  {settings[0]}", *(" " * _SETTING + line for line in settings[1:])]


def _standing(result: Result, outcome: Outcome) -> str:
    """How many times as good ours is as this one."""
    ours = result.counterpart(outcome)
    if outcome is ours or not ours.is_measured:
        return ""
    return f"{number(times_better(result, ours, outcome))} x"
