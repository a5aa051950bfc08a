"""Write docs/benchmarks.md and its plots from a run, and from what findings.md says about it.

    python benchmarks/report.py [--from FILE] [--docs FOLDER]

The same run and findings give the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import bars
import record
import subjects
from bars import Verdict
from harness import UNITS, Outcome, Result, times_better
from record import Run
from text_tables import number

DOCS = Path(__file__).parent.parent / "docs"
FINDINGS = Path(__file__).parent / "findings.md"
COLOURS = {"ours": "#3b6fb6", "peer": "#d1603d", "floor": "#7a7a7a"}

INTRODUCTION = """\
# Benchmarks

This page is written by `make bench-report` from `benchmarks/results/latest.json`, which `make bench` leaves behind.

Ours, the peers and the floor do the same work on the same data in the same run. They take turns, and the median of at
least seven rounds counts, with the quartiles beside it; bytes and memory, which hardly differ, are taken once. A ratio
is the median of the ratios of neighbouring rounds, so that what else the machine does cancels out. Each peer is used as
its documentation says is fastest, and how that is stands beside the figure. A peer that is not installed or cannot do
the work is listed with the reason.

*Ours is* N x says how many times as fast, or as small, ours is: below 1 the other is ahead. A *floor* is the bare
operation, which ours can come near to but, doing more, hardly beat.
"""


def page(run: Run, verdicts: Sequence[Verdict], findings: str) -> str:
    """The text of the page: where peers are ahead comes first, then the bars, what was found out, then everything."""
    parts = [INTRODUCTION, _machine(run), _ahead(run), _bars(verdicts), findings]
    parts += [_subject(name, run) for name in _subjects(run)]
    return "\n".join(parts)


def _machine(run: Run) -> str:
    machine = run.machine
    form = "quick form" if run.quick else "full form"
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"Measured on {run.date} ({form}): {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['system']}, Python {machine['python']}, {machine['threads']} thread(s) for array operations; "
        f"{versions}.\n"
    )


def _subjects(run: Run) -> list[str]:
    there = {result.subject for result in run.results}
    return [name for name in subjects.SUBJECTS if name in there]


# -- tables ------------------------------------------------------------------------------------------------


def _ahead(run: Run) -> str:
    rows = []
    for result in run.results:
        for outcome in result.outcomes:
            ratio = standing(result, outcome)
            if outcome.kind == "peer" and ratio is not None and ratio < 1:
                ours = result.counterpart(outcome)
                cells = (result.subject, result.name, f"{outcome.name}: {outcome.setting}")
                rows.append((*cells, _figure(result, outcome), _figure(result, ours), f"{number(ratio)} x"))
    if not rows:
        return "## Where a peer is ahead of us\n\nNowhere in this run.\n"
    return "## Where a peer is ahead of us\n\n" + _table(("subject", "work", "peer", "theirs", "ours", "ours is"), rows)


def _bars(verdicts: Iterable[Verdict]) -> str:
    order = ("MISSED", "no figure", "ok")
    rows = [
        (verdict.state, f"#{verdict.bar.issue}", verdict.bar.what, verdict.text, verdict.bar.missed or "")
        for verdict in sorted(verdicts, key=lambda verdict: order.index(verdict.state))
    ]
    return "## What was promised\n\n" + _table(("", "issue", "what", "figure and bar", "why it is missed"), rows)


def _subject(name: str, run: Run) -> str:
    lines = [f"## {name.capitalize()}", "", subjects.title_of(name), "", f"![{name}](benchmarks/{name}.svg)", ""]
    for result in run.results:
        if result.subject == name:
            rows = [_row(result, outcome) for outcome in result.outcomes]
            lines += [f"### {name}: {result.name}", ""]
            lines += [_table(("", "", result.unit, "quartiles", "ours is", "setting"), rows)]
    return "\n".join(lines)


def _row(result: Result, outcome: Outcome) -> tuple[str, ...]:
    if not outcome.is_measured:
        return outcome.kind, outcome.name, outcome.state, "", "", outcome.setting
    low, high = outcome.quartiles
    ratio = standing(result, outcome)
    shown = "" if ratio is None else f"{number(ratio)} x"
    spread = f"{number(low)} to {number(high)}"
    return outcome.kind, outcome.name, number(outcome.median), spread, shown, outcome.setting


def standing(result: Result, outcome: Outcome) -> float | None:
    """How many times as good ours is as another; None where there is no other or no figure."""
    ours = result.counterpart(outcome)
    if outcome is ours or not (ours.is_measured and outcome.is_measured):
        return None
    return times_better(result, ours, outcome)


def _figure(result: Result, outcome: Outcome) -> str:
    return f"{number(outcome.median)} {result.unit}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# -- plots -------------------------------------------------------------------------------------------------


def plots(run: Run) -> dict[str, str]:
    """An SVG for each subject, by the name of its file."""
    import matplotlib

    settings: Any = {"svg.hashsalt": "unienv", "svg.fonttype": "none", "font.size": 9.0, "axes.axisbelow": True}
    with matplotlib.rc_context(settings):
        return {f"{name}.svg": _plot(name, run) for name in _subjects(run)}


def _plot(name: str, run: Run) -> str:
    from matplotlib.figure import Figure

    results = [result for result in run.results if result.subject == name]
    figure = Figure(layout="constrained")
    has_sizes = any(outcome.rows is not None for result in results for outcome in result.outcomes)
    (_draw_growth if has_sizes else _draw_standing)(figure, results)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of lines
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _draw_standing(figure: Any, results: Sequence[Result]) -> None:
    """For each work, how many times as good ours is as each of the others."""
    from matplotlib.ticker import LogLocator, NullLocator

    entries = [
        (result.name, outcome, ratio)
        for result in results
        for outcome in result.outcomes
        if (ratio := standing(result, outcome)) is not None and math.isfinite(ratio)
    ]
    figure.set_size_inches(9, 1.2 + 0.22 * len(entries))
    axes = figure.subplots()
    places = range(len(entries), 0, -1)
    axes.barh(
        list(places),
        [ratio - 1 for _, _, ratio in entries],
        left=1,
        color=[COLOURS[outcome.kind] for _, outcome, _ in entries],
        height=0.7,
    )
    axes.set_yticks(list(places), [f"{work}: {outcome.name}" for work, outcome, _ in entries])
    axes.set_xscale("log")
    low, high = (limit(1.0, *(ratio for _, _, ratio in entries)) for limit in (min, max))
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("ours is so many times as good; left of 1 the other is ahead (grey: the floor)")
    axes.grid(axis="x", linewidth=0.3)


def _draw_growth(figure: Any, results: Sequence[Result]) -> None:
    """For each work, the figures of each library by the number of rows."""
    grown = [result for result in results if any(outcome.rows for outcome in result.outcomes)]
    figure.set_size_inches(9, 2.6 * len(grown))
    for axes, result in zip(figure.subplots(len(grown), squeeze=False)[:, 0], grown, strict=True):
        for line in _lines(result):
            axes.plot(
                [outcome.rows for outcome in line],
                [outcome.median for outcome in line],
                marker="o",
                label=line[0].name.rsplit(" ", 1)[0],
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(result.name)
        axes.set_ylabel(result.unit + (" (more is better)" if UNITS[result.unit].more_is_better else ""))
        axes.grid(linewidth=0.3)
        axes.legend()
    axes.set_xlabel("rows")


def _lines(result: Result) -> list[list[Outcome]]:
    """The outcomes of a work that differ only in the number of rows, together."""
    lines: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes:
        if outcome.rows is not None and outcome.is_measured:
            lines.setdefault(outcome.name.rsplit(" ", 1)[0], []).append(outcome)
    return list(lines.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, default=record.LATEST, metavar="FILE", help="the run")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="FOLDER", help="where the page goes")
    arguments = parser.parse_args()
    run = record.load_run(arguments.source)
    folder = arguments.docs / "benchmarks"
    folder.mkdir(exist_ok=True)
    for name, drawn in plots(run).items():
        (folder / name).write_text(drawn, encoding="utf-8")
    text = page(run, bars.judge(bars.load_bars(), run), FINDINGS.read_text(encoding="utf-8"))
    (arguments.docs / "benchmarks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
