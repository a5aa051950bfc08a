"""Write docs/benchmarks.md with its plots, and the full tables under build/, from a run.

    python benchmarks/report.py [--from FILE] [--docs FOLDER] [--tables FOLDER]

The page has medians, and only what bars are about: the medians in git give the same page, byte for byte. The tables
have everything, with quartiles where the whole run of `make bench` is at hand.
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

ROOT = Path(__file__).parent.parent
COLOURS = {"ours": "#3b6fb6", "peer": "#d1603d", "floor": "#7a7a7a"}
PLOTTED = ("sampling", "writing", "vector", "growth")  # on the page; the tables have a plot of each subject
#: The sections of the page and their subjects; a new subject goes into one of them.
SECTIONS = {
    "Sampling": (
        *("rows", "sampling", "images", "cameras", "windows", "shared", "nstep", "hindsight", "imitation"),
        *("prioritized", "functional"),
    ),
    "Writing and files": ("writing", "files", "memory"),
    "Environments and recording": ("vector", "recording", "training"),
    "Processes, datasets and size": ("multiprocess", "minari", "growth", "calls"),
}

METHOD = """\
All contenders do the same work on the same data in one run and take turns. A figure is the median of at least seven
rounds; bytes and memory hardly vary and are measured once. A *peer* is another library, used in the fastest way that
its documentation describes. A *floor* is the bare operation, such as one gather, without the checks of a library.

*Ours is N x* means that UniEnv is N times as fast, or as small, as the other: below 1 the other is ahead. *N x the
cost* means that UniEnv takes N times the time, or memory, of the other. A *bar* is a limit on such a ratio, or on our
own figure, that the project has set itself; MISSED marks a bar that this run does not reach.
"""

PAGE = f"""\
---
hide: [navigation]
---

# Benchmarks

Time and memory of stepping environments, recording, sampling and storing, compared with other libraries and with bare
NumPy.

{METHOD}
`make bench` measures everything in about twenty minutes. `make bench-check` measures the rows with a bar in three
minutes, and fails if a bar is missed. `make bench-report` writes this page from the medians in
`benchmarks/results/latest.json`, and the full tables, which say how each contender is used, to `build/benchmarks.md`.
"""

TABLES = f"""\
# Benchmarks: all figures

{METHOD}
A ratio is the median of the ratios of neighbouring rounds, so that what else the machine does cancels out; where the
medians alone are at hand, it is theirs. A peer that is not installed or cannot do the work is listed with the reason.
"""


def page(run: Run, verdicts: Sequence[Verdict]) -> str:
    """The page: where peers are ahead comes first, then what the bars are about, by section and subject."""
    parts = [PAGE, _machine(run), _ahead(run)]
    parts += [_section(title, names, run, verdicts) for title, names in SECTIONS.items()]
    return "\n".join(part for part in parts if part)


def tables(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Everything that was measured."""
    parts = [TABLES, _machine(run), _ahead(run), _bars(verdicts)]
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
    """The works in which peers are ahead, each in one row with all of these."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for result in run.results:
        for outcome in result.outcomes:
            ratio = standing(result, outcome)
            if outcome.kind == "peer" and ratio is not None and ratio < 1:
                ours = _figure(result, result.counterpart(outcome))
                peer = f"{outcome.name}: {_figure(result, outcome)}, ours is {number(ratio)} x"
                rows.setdefault((result.subject, result.name, ours), []).append(peer)
    if not rows:
        return "## Where a peer is ahead of us\n\nNowhere in this run.\n"
    table = _table(("subject", "work", "ours", "ahead"), [(*cells, "; ".join(peers)) for cells, peers in rows.items()])
    return f"## Where a peer is ahead of us\n\n{table}"


def _section(title: str, names: Iterable[str], run: Run, verdicts: Iterable[Verdict]) -> str:
    """The bars of some subjects, in one row those about the same contender. Nothing where there are none."""
    compared: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        for verdict in (verdict for verdict in verdicts if verdict.bar.subject == name):
            bar = verdict.bar
            against = "" if bar.against is None else f"{bar.against}: "
            missed = "" if verdict.state == "ok" else f" ({verdict.state})"
            compared.setdefault((name, bar.work, bar.ours), []).append(f"{against}{verdict.text}{missed}")
    if not compared:
        return ""
    shown = dict.fromkeys(name for name, _, _ in compared)
    meanings = "".join(f"- *{name}*: {subjects.title_of(name)}\n" for name in shown)
    plots = "".join(
        f"![{name}](benchmarks/{name}.svg)\n\n" for name in _subjects(run) if name in names and name in PLOTTED
    )
    rows = [
        (name, work, _ours(run, name, work, ours), "; ".join(cells)) for (name, work, ours), cells in compared.items()
    ]
    heads = ("subject", "work", "ours", "compared with: measured, bar")
    return f"## {title}\n\n{meanings}\n{plots}{_table(heads, rows)}"


def _ours(run: Run, subject: str, work: str, ours: str) -> str:
    result = run.of(subject, work)
    return f"{ours}: {_figure(result, result.of(ours))}" if result is not None else ours


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
    ratio = standing(result, outcome)
    shown = "" if ratio is None else f"{number(ratio)} x"
    spread = " to ".join(number(end) for end in outcome.quartiles) if len(outcome.rounds) > 1 else ""
    return outcome.kind, outcome.name, number(outcome.median), spread, shown, outcome.setting


def standing(result: Result, outcome: Outcome) -> float | None:
    """How many times as good ours is as another; None where there is no other or no figure."""
    ours = result.counterpart(outcome)
    if outcome is ours or not (ours.is_measured and outcome.is_measured):
        return None
    return times_better(result, ours, outcome)


def _figure(result: Result, outcome: Outcome) -> str:
    return f"{number(outcome.median)} {result.unit}" if outcome.is_measured else outcome.state


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# -- plots -------------------------------------------------------------------------------------------------


def plots(run: Run, names: Sequence[str]) -> dict[str, str]:
    """An SVG for each of these subjects that was measured, by the name of its file."""
    import matplotlib

    settings: Any = {"svg.hashsalt": "unienv", "svg.fonttype": "none", "font.size": 9.0, "axes.axisbelow": True}
    with matplotlib.rc_context(settings):
        return {f"{name}.svg": _plot(name, run) for name in _subjects(run) if name in names}


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
    low, high = (limit([1.0, *(ratio for _, _, ratio in entries)]) for limit in (min, max))
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
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="the run (default: the last)")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", metavar="FOLDER", help="where the page goes")
    parser.add_argument("--tables", type=Path, default=ROOT / "build", metavar="FOLDER", help="where the tables go")
    arguments = parser.parse_args()
    medians = record.medians_of(record.load_run(arguments.source or record.MEDIANS))
    whole = record.load_run(arguments.source or (record.LATEST if record.LATEST.exists() else record.MEDIANS))
    wanted = bars.load_bars()
    _write(arguments.docs, page(medians, bars.judge(wanted, medians)), plots(medians, PLOTTED))
    _write(arguments.tables, tables(whole, bars.judge(wanted, whole)), plots(whole, subjects.SUBJECTS))


def _write(folder: Path, text: str, drawn: dict[str, str]) -> None:
    (folder / "benchmarks").mkdir(parents=True, exist_ok=True)
    for name, plot in drawn.items():
        (folder / "benchmarks" / name).write_text(plot, encoding="utf-8")
    (folder / "benchmarks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
