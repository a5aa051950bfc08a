"""The bars: what the issues promise, as `bars.toml` has it, and how a run stands against them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness import Outcome, Result, more_than, times_better, times_the_cost
from record import Run
from text_tables import number

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BARS = Path(__file__).parent / "bars.toml"


@dataclass(frozen=True)
class Bar:
    """A promise about a contender of a work, and with `against` about another one of the same work.

    `at_least`: ours is so many times as fast (or as small). `at_most`: ours takes so many times the time (or the room),
    or without `against` its figure is so much, in the unit of the work. `adds_at_most`: its figure is so much above
    the other's. `missed` is why a bar is known not to be met; it is printed, and the bar counts all the same.
    """

    issue: int
    subject: str
    work: str
    ours: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    adds_at_most: float | None = None
    missed: str | None = None

    def __post_init__(self) -> None:
        given = [self.at_least, self.at_most, self.adds_at_most]
        if sum(value is not None for value in given) != 1:
            raise ValueError(f"{self.what}: a bar has one of at_least, at_most and adds_at_most")
        if self.against is None and self.at_most is None:
            raise ValueError(f"{self.what}: at_least and adds_at_most want `against`, the contender they refer to")

    @property
    def what(self) -> str:
        beside = "" if self.against is None else f" against {self.against}"
        return f"{self.subject}: {self.work}: {self.ours}{beside}"

    def is_met_by(self, figure: float) -> bool:
        if self.at_least is not None:
            return figure >= self.at_least
        most = self.at_most if self.adds_at_most is None else self.adds_at_most
        return most is not None and figure <= most

    def promise(self, unit: str) -> str:
        """The bar in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g} x"
        if self.adds_at_most is not None:
            return f"at most {self.adds_at_most:g} {unit} more"
        return f"at most {self.at_most:g} {unit}" if self.against is None else f"at most {self.at_most:g} x the cost"


State = Literal["ok", "MISSED", "no figure"]


@dataclass(frozen=True)
class Verdict:
    """How a bar stands. It has no figure where the other one could not be measured, which is no fault of ours."""

    bar: Bar
    state: State
    text: str

    def line(self) -> str:
        reason = f" (known: {self.bar.missed})" if self.bar.missed else ""
        return f"{self.state:9} #{self.bar.issue} {self.bar.what}: {self.text}{reason}"


def load_bars(path: Path = BARS) -> list[Bar]:
    with path.open("rb") as file:
        entries: list[dict[str, Any]] = tomllib.load(file)["bar"]
    return [_bar(path, entry) for entry in entries]


def _bar(path: Path, entry: dict[str, Any]) -> Bar:
    try:
        return Bar(**entry)
    except TypeError as error:
        raise ValueError(f"{path}: {entry}: {error}") from error


def contenders_named(bars: Iterable[Bar]) -> dict[tuple[str, str], list[str]]:
    """The contenders that bars are about, by subject and work."""
    named: dict[tuple[str, str], list[str]] = {}
    for bar in bars:
        names = named.setdefault((bar.subject, bar.work), [])
        names += [name for name in (bar.ours, bar.against) if name is not None and name not in names]
    return named


def judge(bars: Sequence[Bar], run: Run) -> list[Verdict]:
    """How the bars stand in a run. One about a work or a contender of ours that was not measured is missed."""
    return [_judge(bar, run.of(bar.subject, bar.work)) for bar in bars]


def _judge(bar: Bar, result: Result | None) -> Verdict:
    if result is None:
        return Verdict(bar, "MISSED", "not measured")
    ours = result.of(bar.ours)
    other = None if bar.against is None else result.of(bar.against)
    for outcome in (ours, other):
        if outcome is not None and not outcome.is_measured:
            state: State = "no figure" if outcome.kind == "peer" else "MISSED"
            return Verdict(bar, state, f"{outcome.name} {outcome.state}")
    figure = _figure(bar, result, ours, other)
    text = f"{number(figure)}, {bar.promise(result.unit)}"
    return Verdict(bar, "ok" if bar.is_met_by(figure) else "MISSED", text)


def _figure(bar: Bar, result: Result, ours: Outcome, other: Outcome | None) -> float:
    if other is None:
        return ours.median
    if bar.adds_at_most is not None:
        return more_than(ours, other)
    return times_the_cost(result, ours, other) if bar.at_least is None else times_better(result, ours, other)
