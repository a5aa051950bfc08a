"""Printing of results: tables and trees for people, JSON for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from unienv_interface.space import GraphInstance

from ..checking import (
    CheckReport,
    ColumnInfo,
    ColumnStats,
    ConvertReport,
    Head,
    InfoReport,
    RepairReport,
    ShowReport,
    StatsReport,
    Summary,
)
from ._bench import BenchReport
from ._collect import CollectReport
from ._demo import DemoReport
from ._errors import printable

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-~=+*#"  # for an output in ASCII
_UNITS = ("B", "kB", "MB", "GB", "TB")
# The width without a terminal, so that nothing is cut.
_UNBOUNDED = 1000
_MOST_ENTRIES = 16
# Columns with more dimensions are printed in one row; --json has all dimensions.
_MOST_DIMENSIONS = 64
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


def console() -> Console:
    """Make a console for standard output, which may be redirected between calls."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(highlight=False, width=width)


def words(*spans: str | tuple[str, str]) -> Text:
    """Make a line from texts with or without a style, and escape characters that a terminal would interpret."""
    styled = [(span, "") if isinstance(span, str) else span for span in spans]
    return Text.assemble(*((printable(text), style) for text, style in styled))


def say(*lines: str) -> None:
    """Print lines."""
    out = console()
    for line in lines:
        out.print(words(line), soft_wrap=True)


@contextlib.contextmanager
def output_for_the_result() -> Iterator[None]:
    """Redirect standard output to standard error, for the output of environments and their libraries."""
    sys.stdout.flush()
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError):  # the descriptors may be closed
            kept = os.dup(1)
            undo.callback(os.close, kept)
            os.dup2(2, 1)
            undo.callback(os.dup2, kept, 1)
            undo.callback(sys.stdout.flush)
        yield


def show(report: Any, *, as_json: bool) -> None:
    """Print the data class that a command returns: as JSON for programs, or as text for people."""
    if as_json:
        _print_json(report)
    else:
        print_report(report)


def _print_json(report: Any) -> None:
    print(json.dumps(dataclasses.asdict(report), indent=2, default=_jsonable, allow_nan=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return _jsonable_numbers(value.tolist())
    return str(value)


def _jsonable_numbers(value: Any) -> Any:
    """Convert numbers without a JSON form, such as NaN, to texts in nested lists."""
    if isinstance(value, list):
        return [_jsonable_numbers(item) for item in value]
    is_number = isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number else str(value)


# -- words -------------------------------------------------------------------------------------------------


def in_bytes(count: float) -> str:
    """Format a number of bytes with a unit."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def number(value: float | int | None) -> str:
    """Format a number in a few characters; empty for None."""
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1e6:  # six digits are too few for timestamps
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.6g}"
    return f"{value:.6g}"


def many(count: int, noun: str) -> str:
    """Format a count with its noun in the singular or plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sparkline(values: Sequence[float]) -> str:
    """Draw a curve in one line of text."""
    bars = _BARS if _can_print(_BARS) else _PLAIN_BARS
    low, high = min(values), max(values)
    span = high - low
    if not math.isfinite(span):  # the difference overflows
        return ""
    top = len(bars) - 1
    return "".join(bars[round((value - low) / span * top) if span else top // 2] for value in values)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def print_facts(rows: Iterable[tuple[str, str]], out: Console) -> None:
    """Print names and values in two columns."""
    pairs = [(printable(name), value) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        out.print(words((name.ljust(width), "bold"), "  ", value), soft_wrap=True)


def print_columns(header: Sequence[str] | None, rows: Sequence[Sequence[str]], out: Console) -> None:
    """Print a table, the first column aligned to the left and the others to the right."""
    table = [[printable(cell) for cell in row] for row in [*([] if header is None else [header]), *rows]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = [row[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]]
        style = "bold" if header is not None and number == 0 else ""
        out.print(words(("  ".join(cells).rstrip(), style)), soft_wrap=True)


# -- results -----------------------------------------------------------------------------------------------


@functools.singledispatch
def print_report(report: Any) -> None:
    """Print a data class for people, by the function that is registered for its class."""
    raise TypeError(f"{type(report).__name__}: no function is registered with `print_report`")


@print_report.register
def print_info(info: InfoReport) -> None:
    out = console()
    out.print(words((info.path, "bold")), soft_wrap=True)
    print_facts(_info_rows(info), out)
    out.print(_space_tree(info.columns))


def _info_rows(info: InfoReport) -> Iterable[tuple[str, str]]:
    room = "grows" if info.capacity is None else f"of {info.capacity:,}, {info.written:,} ever written"
    yield "samples", f"{info.samples:,} ({room})"
    if info.episodes is None:
        yield "episodes", "not kept"
    else:
        unfinished = f", and {info.unfinished_episodes} unfinished" if info.unfinished_episodes else ""
        lanes = "" if info.lanes == 1 else f", of {info.lanes} environments in parallel"
        yield "episodes", f"{info.episodes:,}{unfinished}{lanes}"
    for name, summary in (("lengths", info.lengths), ("returns", info.returns)):
        if summary is not None:
            yield name, _summary_words(summary)
            if summary.curve:
                yield "", sparkline(summary.curve)
    once = ", each observation stored once" if info.shares_next_obs else ""
    yield "bytes", f"{in_bytes(info.bytes_on_disk)} on disk, {info.bytes_per_sample:,} a sample{once}"
    yield "storage", f"{info.storage}{', durable' if info.is_durable else ''}, format version {info.format_version}"
    writing = ", being written now" if info.is_being_written else ""
    yield "last written", f"{info.last_written}{writing}"


def _summary_words(summary: Summary) -> str:
    if summary.min is None:
        return f"NaN or infinite in all {many(summary.not_finite, 'episode')}"
    others = f"; NaN or infinite in {many(summary.not_finite, 'other')}" if summary.not_finite else ""
    return f"{number(summary.min)} to {number(summary.max)}, mean {number(summary.mean)}{others}"


def _space_tree(columns: Sequence[ColumnInfo]) -> Tree:
    root = Tree(words(("space", "bold")))
    branches: dict[tuple[str, ...], Tree] = {(): root}
    for column in columns:
        for depth in range(1, len(column.keys)):
            path = tuple(column.keys[:depth])
            if path not in branches:
                branches[path] = branches[path[:-1]].add(words(path[-1]))
        name = column.keys[-1] if column.keys else "value"
        branches[tuple(column.keys[:-1])].add(words(f"{name}: {column.space}"))
    return root


@print_report.register
def print_head(head: Head) -> None:
    if not head.shown:
        say(f"{head.path}: no samples to show, of {head.samples:,}")
        return
    out = console()
    for sample in head.shown:
        episode = ""
        if sample.episode is not None:
            episode = f", of the episode from {sample.episode[0]} to {sample.episode[1] - 1}"
        out.print(words((f"sample {sample.index}", "bold"), episode))
        print_facts(((f"  {name}", _value_words(value)) for name, value in sample.values.items()), out)


def _value_words(value: Any) -> str:
    if isinstance(value, GraphInstance):
        return f"graph, {many(int(value.n_nodes), 'node')}, {many(int(value.n_edges or 0), 'edge')}"
    if isinstance(value, tuple) and len(value) == 2:  # of a union
        return f"alternative {value[0]}: {_value_words(value[1])}"
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.ndim == 0:
        return str(value)  # with all digits, for timestamps
    if value.size > _MOST_ENTRIES:
        shape = "x".join(map(str, value.shape))
        if value.dtype.kind in "biuf":
            return f"{value.dtype} {shape}, {number(value.min().item())} to {number(value.max().item())}"
        return f"{value.dtype} {shape}"
    return np.array2string(value, precision=5, separator=", ").replace("\n", "")


@print_report.register
def print_stats(stats: StatsReport) -> None:
    say(f"{stats.path}: {stats.samples:,} samples")
    rows = [row for column in stats.columns for row in _stats_rows(column)]
    figures = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99", "NaN", "infinite")
    print_columns(("column", *figures), rows, console())


def _stats_rows(column: ColumnStats) -> list[tuple[Any, ...]]:
    """Make a row for the column, and one for each dimension or channel up to `_MOST_DIMENSIONS`."""
    figures = column.dimensions or {}
    whole = (number(value) for value in (column.min, column.max, column.mean, column.std))
    flat = {name: np.array(values).reshape(-1).tolist() for name, values in figures.items()}
    count = len(flat.get("mean", ()))
    quantiles = [number(flat[name][0]) if count == 1 else "" for name in _QUANTILES]
    rows: list[tuple[Any, ...]] = [(column.name, *whole, *quantiles, number(column.nan), number(column.infinite))]
    if 1 < count <= _MOST_DIMENSIONS:
        shape = np.array(figures["mean"]).shape
        for entry in range(count):
            index = [i for i, size in zip(np.unravel_index(entry, shape), shape, strict=True) if size > 1]
            name = f"  [{', '.join(map(str, index))}]"
            names = ("min", "max", "mean", "std", *_QUANTILES)
            rows.append((name, *(number(flat[figure][entry]) for figure in names), "", ""))
    return rows


@print_report.register
def print_findings(report: CheckReport) -> None:
    out = console()
    for finding in report.findings:
        out.print(words((finding.kind, "bold red"), f": {finding.text}"), soft_wrap=True)
    if report.cut_episodes:
        start, stop = report.cut_episodes[0]
        position = (
            f"samples {start} to {stop - 1}" if len(report.cut_episodes) == 1 else f"the first from sample {start} on"
        )
        say(f"cut episodes: {len(report.cut_episodes):,} closed before they had ended, {position}")
    if report.is_sound:
        say(f"{report.path}: no findings in {report.samples:,} samples")


def _rate(value: float) -> str:
    return f"{value:,.0f}"


@print_report.register
def print_bench(report: BenchReport) -> None:
    samples = f"random samples, {report.batch_size} a batch"
    windows = f"random windows of {report.window}, {report.windows} a batch"
    rows = [
        (samples, f"{_rate(report.samples_per_second)} samples/s", f"{_rate(report.samples_mb_per_second)} MB/s"),
        (windows, f"{_rate(report.windows_per_second)} windows/s", f"{_rate(report.windows_mb_per_second)} MB/s"),
        ("all samples in order", "", f"{_rate(report.scan_mb_per_second)} MB/s"),
    ]
    say(f"{report.path}: {report.samples:,} samples")
    print_columns(None, rows, console())


@print_report.register
def print_collected(report: CollectReport) -> None:
    before = report.samples - report.recorded
    earlier = f" (and {before:,} before)" if before else ""
    say(
        f"{report.path}: {many(report.recorded, 'step')} of {report.env_id} recorded{earlier}, "
        f"{many(report.episodes, 'episode')} in all, {_rate(report.steps_per_second)} steps/s"
    )


@print_report.register
def print_shown(report: ShowReport) -> None:
    content = f"episode {report.episode}, {many(report.samples, 'sample')}, {', '.join(report.columns)}"
    for file in report.files:
        say(f"{file}: {content}")


@print_report.register
def print_converted(report: ConvertReport) -> None:
    episodes = "" if report.episodes is None else f" in {many(report.episodes, 'episode')}"
    size = in_bytes(report.bytes_on_disk)
    say(f"{report.target}: {many(report.samples, 'sample')}{episodes} as {report.format}, {size}")


@print_report.register
def print_repaired(report: RepairReport) -> None:
    for note in report.notes:
        say(f"note: {note}")
    for text in report.left_out:
        say(f"left out: {text}")
    if report.split_episodes:
        split = many(report.split_episodes, "episode")
        say(f"note: samples of {split} are lost, the remaining samples were split into new episodes")
    episodes = "" if report.episodes is None else f" in {many(report.episodes, 'episode')}"
    kept = f"{report.samples:,} of {many(report.samples_before, 'sample')}{episodes} are kept"
    say(f"{report.target}: {kept}{'' if report.left_out else ', nothing was left out'}")


@print_report.register
def print_demo(report: DemoReport) -> None:
    info, collected, rates = report.info, report.collected, report.bench
    path = info.path
    say(f"{collected.env_id}, {info.samples:,} steps recorded, opened again and sampled from:")
    table = Table(header_style="bold")
    table.add_column("what")
    table.add_column("figure", justify="right")
    rows = [
        ("steps/s, recorded to disk", _rate(collected.steps_per_second)),
        (f"samples/s, {rates.batch_size} a batch", _rate(rates.samples_per_second)),
        (f"windows/s of {rates.window}, {rates.windows} a batch", _rate(rates.windows_per_second)),
        ("bytes on disk", in_bytes(info.bytes_on_disk)),
        ("episodes", f"{info.episodes or 0:,}"),
        ("mean return", number(None if info.returns is None else info.returns.mean)),
    ]
    for row in rows:
        table.add_row(*row)
    console().print(table)
    say(
        f"The recording is in {path}",
        "",
        f"Try next{_where_the_command_is()}:",
        f"  unienv info {path}",
        f"  unienv check {path}",
        f"  unienv bench {path}",
        "  unienv collect CartPole-v1 --policy my_agent:act --out mine/",
        "and in Python:",
        "  from unienv_data import ReplayBuffer, StepSampler",
        "  from unienv_interface.backends import NumpyComputeBackend",
        f"  buffer = ReplayBuffer.load_from({path!r}, backend=NumpyComputeBackend)",
        "  batch = StepSampler(buffer, batch_size=256, seed=0).sample()",
    )


def _where_the_command_is() -> str:
    """Return the path of the command if `unienv` is not on the path, as in an inactive environment."""
    if shutil.which("unienv") is not None:
        return ""
    return f" (here `unienv` is {os.path.relpath(Path(sys.executable).parent / 'unienv')})"
