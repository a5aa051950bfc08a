"""Measures contenders side by side: ours, the peers and the floor take turns on the same work in the same run.

A *work* is one thing that is measured, a *contender* one way of doing it. Every contender is set up before any is
measured; then each does a round in turn, over and over, so that what else the machine does meets all of them. Every
round is kept. One that is not installed or cannot do the work stays in the results, with the reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

Kind = Literal["ours", "peer", "floor"]
Call = Callable[[], Any]

LEAST_ROUNDS = 7
MEASURED = "measured"
NOT_IN_QUICK_FORM = "not in the quick form"


@dataclass(frozen=True)
class Unit:
    """What a figure counts. `seconds_scale` turns seconds into it; without one, calls return the figure."""

    seconds_scale: float | None
    more_is_better: bool = False


UNITS = {
    "us": Unit(1e6),
    "ms": Unit(1e3),
    "s": Unit(1.0),
    "transitions/s": Unit(1.0, more_is_better=True),
    "MB": Unit(None),
    "bytes": Unit(None),
    "us a turn": Unit(None),
    "ms of p99": Unit(None),
    "calls": Unit(None),
    "files": Unit(None),
}


@dataclass(frozen=True)
class Ready:
    """A contender that is set up.

    `call` does the work, `repeats` times over. `prepare` and `finish` come around each call, and are not timed.
    """

    call: Call
    prepare: Call | None = None
    finish: Call | None = None
    repeats: int = 1


def fetching_ahead(fetch: Call, ahead: int, repeats: int) -> Ready:
    """A contender that fetches up to `ahead` batches in threads or processes of its own.

    What it fetched during the turns of others is used up before its own, and after it there is time to fetch again: so
    it neither gains from their turns nor disturbs them.
    """

    def fetch_many(count: int) -> None:
        for _ in range(count):
            fetch()

    return Ready(lambda: fetch_many(repeats), lambda: fetch_many(ahead), lambda: time.sleep(0.05), repeats)


@dataclass(frozen=True)
class Contender:
    """One way of doing a work.

    `setting` says how it is used, and stands beside its figure. `needs` are the modules that must be there. `make` sets
    it up for as long as its context is open; it may give a bare callable where nothing is to be prepared. `rows` is
    for works in which the same is done at several sizes.
    """

    name: str
    kind: Kind
    setting: str
    make: Callable[[], AbstractContextManager[Call | Ready]]
    needs: tuple[str, ...] = ()
    rows: int | None = None


Maker = Callable[[], Iterator[Call | Ready]]


def ours(name: str, setting: str, *needs: str) -> Callable[[Maker], Contender]:
    """Makes a contender of a generator that sets up, yields the call, and cleans up."""
    return lambda maker: Contender(name, "ours", setting, contextlib.contextmanager(maker), needs)


def peer(name: str, setting: str, *needs: str) -> Callable[[Maker], Contender]:
    """The same for another library, which `needs` has the modules of."""
    return lambda maker: Contender(name, "peer", setting, contextlib.contextmanager(maker), needs)


def floor(name: str, setting: str, *needs: str) -> Callable[[Maker], Contender]:
    """The same for the bare operation, below which nothing can be."""
    return lambda maker: Contender(name, "floor", setting, contextlib.contextmanager(maker), needs)


class UnableError(Exception):
    """The work is not among the things a library does."""


def unable(name: str, why: str) -> Contender:
    """A peer that cannot do the work: it is in the table, with the reason."""

    def refuse() -> NoReturn:
        raise UnableError(why)

    return Contender(name, "peer", "", refuse)


@dataclass(frozen=True)
class Work:
    """What is measured, and by whom. Figures are in `unit`, per one of the `per_call` things that a call does.

    With `per_call=None` each call returns how many it did. With `rounds` a round is one call, and none goes ahead: for
    calls that take seconds, and for figures that are the same every time, such as bytes in memory.
    """

    subject: str
    name: str
    unit: str
    contenders: tuple[Contender, ...]
    per_call: float | None = 1
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"{self.subject}, {self.name}: unit {self.unit!r}, wanted one of {', '.join(UNITS)}")
        if UNITS[self.unit].seconds_scale is None and not self.rounds:
            raise ValueError(f"{self.subject}, {self.name}: calls that return {self.unit} want a number of rounds")
        names = [contender.name for contender in self.contenders]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{self.subject}, {self.name}: two contenders are called {', '.join(twice)}")


@dataclass
class Outcome:
    """What came of a contender: the figure of each round, or in `state` why there is none."""

    name: str
    kind: Kind
    setting: str
    rows: int | None = None
    state: str = MEASURED
    calls: int = 0
    rounds: list[float] = field(default_factory=list)

    @property
    def is_measured(self) -> bool:
        return self.state == MEASURED

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.rounds) == 1:
            return self.rounds[0], self.rounds[0]
        first, _, third = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return first, third


@dataclass
class Result:
    """What came of a work."""

    subject: str
    name: str
    unit: str
    outcomes: list[Outcome]

    def of(self, name: str) -> Outcome:
        """The outcome of a contender. One that was not there when the work was measured has no figure."""
        missing = Outcome(name, "ours", "", state="not measured")
        return next((outcome for outcome in self.outcomes if outcome.name == name), missing)

    @property
    def ours(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.kind == "ours"]

    def counterpart(self, outcome: Outcome) -> Outcome:
        """The one of ours that another is compared with: the first, or where sizes differ the first of its size."""
        same_size = [mine for mine in self.ours if mine.rows == outcome.rows and outcome.kind != "ours"]
        return (same_size or self.ours)[0]


def times_better(result: Result, ours: Outcome, other: Outcome) -> float:
    """How many times as fast (or as small) `ours` is as `other`: the median over the turns they took side by side."""
    upside_down = UNITS[result.unit].more_is_better
    pairs = zip(ours.rounds, other.rounds, strict=True)
    return statistics.median(_ratio(mine, theirs) if upside_down else _ratio(theirs, mine) for mine, theirs in pairs)


def _ratio(number: float, of: float) -> float:
    return number / of if of else math.inf


def times_the_cost(result: Result, ours: Outcome, other: Outcome) -> float:
    """How many times the time (or the room) of `other` ours takes, over the turns they took side by side."""
    return times_better(result, other, ours)


def more_than(ours: Outcome, other: Outcome) -> float:
    """By how much the figure of `ours` is above that of `other`, over the turns they took side by side."""
    return statistics.median(mine - theirs for mine, theirs in zip(ours.rounds, other.rounds, strict=True))


# -- measuring ---------------------------------------------------------------------------------------------


def measure(
    work: Work, rounds: int = LEAST_ROUNDS, seconds_per_round: float = 0.2, only: Sequence[str] | None = None
) -> Result:
    """Measure the contenders of a work, or those named in `only`, in turn.

    A round is as many calls as fit `seconds_per_round`, one at least.
    """
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds is {rounds}, it must be at least {LEAST_ROUNDS}")
    outcomes = blank_outcomes(work)
    with contextlib.ExitStack() as stack:
        running = []
        for contender, outcome in zip(work.contenders, outcomes, strict=True):
            if only is not None and contender.name not in only:
                outcome.state = NOT_IN_QUICK_FORM
                continue
            with _written_down(outcome):
                ready = _set_up(contender, stack)
                outcome.calls = 1 if work.rounds else _calibrated(ready, seconds_per_round)
                running.append((ready, outcome))
        for _ in range(work.rounds or rounds):
            for ready, outcome in running:
                if outcome.is_measured:
                    with _written_down(outcome):
                        outcome.rounds.append(_round(work, ready, outcome.calls))
    return Result(work.subject, work.name, work.unit, outcomes)


def blank_outcomes(work: Work, state: str = MEASURED) -> list[Outcome]:
    """The outcomes of a work, without rounds."""
    return [Outcome(each.name, each.kind, each.setting, each.rows, state) for each in work.contenders]


class _MissingError(Exception):
    """A module that a contender needs is not installed."""


@contextlib.contextmanager
def _written_down(outcome: Outcome) -> Iterator[None]:
    """What goes wrong with one contender is its own result, and stops none of the others."""
    try:
        yield
    except _MissingError as missing:
        outcome.state = f"not installed: {missing}"
    except UnableError as reason:
        outcome.state = f"cannot: {reason}"
    except Exception as error:
        outcome.state = f"cannot: {one_line(error)}"
    if not outcome.is_measured:
        outcome.rounds.clear()


def _set_up(contender: Contender, stack: contextlib.ExitStack) -> Ready:
    for module in contender.needs:
        if importlib.util.find_spec(module) is None:
            raise _MissingError(module)
    made = stack.enter_context(_closing(contender))
    return made if isinstance(made, Ready) else Ready(made)


@contextlib.contextmanager
def _closing(contender: Contender) -> Iterator[Call | Ready]:
    """The contender, set up. What goes wrong when it is closed is told, and costs no figure: they are all taken."""
    context = contender.make()
    made = context.__enter__()
    try:
        yield made
    finally:
        try:
            context.__exit__(None, None, None)
        except Exception as error:
            print(f"{contender.name} could not be closed: {one_line(error)}", file=sys.stderr)


def _calibrated(ready: Ready, seconds: float) -> int:
    """How many calls take about so long. The first call of all, which may compile or allocate, does not count."""
    _timed(ready, 1)
    calls = 1
    while (spent := _timed(ready, calls)) < seconds / 4:
        calls *= max(2, min(10, int(seconds / 4 / max(spent, 1e-9))))
    return max(1, round(calls * seconds / spent))


def _timed(ready: Ready, calls: int) -> float:
    """Seconds that so many calls take."""
    call = ready.call
    if ready.prepare is None and ready.finish is None:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    spent = 0.0
    for _ in range(calls):
        with around(ready):
            start = time.perf_counter()
            call()
            spent += time.perf_counter() - start
    return spent


@contextlib.contextmanager
def around(ready: Ready) -> Iterator[None]:
    """Prepares a contender for a call, and finishes after it."""
    if ready.prepare is not None:
        ready.prepare()
    try:
        yield
    finally:
        if ready.finish is not None:
            ready.finish()


def _round(work: Work, ready: Ready, calls: int) -> float:
    """The figure of one round."""
    unit = UNITS[work.unit]
    if unit.seconds_scale is None:
        with around(ready):
            return float(ready.call())
    if work.per_call is None:
        counts: list[float] = []
        counting = replace(ready, call=lambda: counts.append(ready.call()))
        seconds = _timed(counting, calls)
        done = sum(counts)
    else:
        seconds, done = _timed(ready, calls), work.per_call * calls * ready.repeats
    return done / seconds if unit.more_is_better else seconds / done * unit.seconds_scale


_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+){2,}[/\\]?")


def one_line(error: BaseException) -> str:
    """An error in one line without paths, which would tell about the machine."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _PATH.sub("<path>", text)[:200]
