"""Commands that only read: info, head, stats, check, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import checking
from . import _render
from ._bench import bench as measure
from ._progress import ProgressBar
from .app import command

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of the recording.", show_default=False)]
_KINDS = ", ".join(checking.KINDS)
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]


@command()
def info(path: Folder, as_json: AsJson = False) -> None:
    """Say what a recording holds.

    Its space, samples, episodes with their lengths and returns (oldest to newest), bytes, storage, and when it was last
    written. Of the samples only the rewards are read, so this is quick also where the recording is large, and it may be
    written at the same time.

    Example: unienv info data/
    """
    with ProgressBar("reading rewards", None) as bar:
        report = checking.info(path, progress=bar)
    if as_json:
        _render.print_json(report)
    else:
        _render.print_info(report)


@command()
def head(
    path: Folder,
    count: Annotated[int, typer.Option("-n", "--count", help="How many samples.", min=0)] = 5,
    start: Annotated[int, typer.Option(help="The first one; a negative number counts from the end.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a few samples.

    The first ones of a recording, or those from another place on. Long arrays are summed up; with --json they are
    whole.

    Example: unienv head data/ -n 2 --start -2
    """
    report = checking.head(path, count, start)
    if as_json:
        _render.print_json(report)
    else:
        _render.print_head(report)


@command()
def stats(path: Folder, as_json: AsJson = False) -> None:
    """Print statistics of each column.

    Least, greatest, mean and standard deviation of the finite entries, and how many are NaN or infinite: what
    normalisation needs, and a first look at whether the data is sane. One pass over all samples, a few megabytes at a
    time.

    Example: unienv stats data/ --json > stats.json
    """
    with ProgressBar("reading", None) as bar:
        report = checking.stats(path, progress=bar)
    if as_json:
        _render.print_json(report)
    else:
        _render.print_stats(report)


@command(failure=2)
def check(
    path: Folder,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help=f"A kind of finding to leave out; may be given more than once. Kinds: {_KINDS}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with a recording.

    As a doctor would, before days of training on it: files against counters, checksums, episodes, NaN and values
    outside the space, frozen or duplicated frames, episode ends that were missed, time that runs backwards. Prints one
    line per finding. The status is 0 without findings, 1 with, 2 if it could not look.

    Example: unienv check data/ && python train.py data/
    """
    with ProgressBar("checking", None) as bar:
        report = checking.check(path, ignore=ignore or (), progress=bar)
    if as_json:
        _render.print_json(report)
    else:
        _render.print_findings(report)
    if not report.is_sound:
        raise typer.Exit(1)


@command()
def bench(
    path: Folder,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.", min=1)] = 256,
    window: Annotated[int, typer.Option(help="Samples in a window.", min=1)] = 16,
    windows: Annotated[int, typer.Option(help="Windows in a batch.", min=1)] = 64,
    seconds: Annotated[float, typer.Option(help="How long each figure is measured.", min=0.01)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a recording gives batches.

    On this machine: random samples, random windows that stay within episodes, and all samples in order. The first two
    are what training waits for.

    Example: unienv bench data/ --batch-size 512 --window 32
    """
    with ProgressBar("measuring", None, "parts") as bar:
        report = measure(path, batch_size=batch_size, window=window, windows=windows, seconds=seconds, progress=bar)
    if as_json:
        _render.print_json(report)
    else:
        _render.print_bench(report)
