"""The commands: their arguments, their calls, and their exit status."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from unienv_interface.utils.words import did_you_mean

from .. import checking
from . import _render
from ._bench import bench as measure
from ._collect import CollectReport, Plan
from ._collect import collect as record
from ._demo import STEPS, demo_plan, read_back
from ._environments import parse_env_kwargs
from ._errors import CommandError, UsageError, complain
from ._progress import ProgressBar
from ._render import many
from .app import command

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of the recording.", show_default=False)]
Source = Annotated[Path, typer.Argument(metavar="SRC", help="The folder of the recording.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
_FORMATS, _TARGETS, _KINDS = (", ".join(names) for names in (checking.FORMATS, checking.TARGETS, checking.KINDS))


# -- commands that only read ---------------------------------------------------------------------------------


@command()
def info(path: Folder, as_json: AsJson = False) -> None:
    """Describe a recording.

    Print its space, samples, episodes with their lengths and returns (oldest to newest), bytes, storage, and the time
    of the last write. Only the rewards are read, so this is quick for large recordings, too. It may run while
    another process writes.

    Example: unienv info data/
    """
    with ProgressBar("reading rewards", None) as bar:
        report = checking.info(path, progress=bar)
    _render.show(report, as_json=as_json)


@command()
def head(
    path: Folder,
    count: Annotated[int, typer.Option("-n", "--count", help="The number of samples.", min=0)] = 5,
    start: Annotated[int, typer.Option(help="The first sample; a negative number counts from the end.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a few samples.

    Print the first samples, or the samples from --start on. Long arrays are abbreviated; --json prints all entries.

    Example: unienv head data/ -n 2 --start -2
    """
    report = checking.head(path, count, start)
    _render.show(report, as_json=as_json)


@command()
def stats(path: Folder, as_json: AsJson = False) -> None:
    """Print statistics of each column.

    Print minimum, maximum, mean and standard deviation of the finite entries, and the number of entries that are NaN or
    infinite. Takes one pass over all samples, and little memory.

    Example: unienv stats data/ --json > stats.json
    """
    with ProgressBar("reading", None) as bar:
        report = checking.stats(path, progress=bar)
    _render.show(report, as_json=as_json)


@command()
def show(
    path: Folder,
    episode: Annotated[int, typer.Option(help="Its number, from 0; a negative number counts from the end.")] = 0,
    mp4: Annotated[Path | None, typer.Option(help="The video to write.", show_default=False)] = None,
    png: Annotated[Path | None, typer.Option(help="The sheet of frames to write.", show_default=False)] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column of images, may be repeated; by default all.", show_default=False),
    ] = None,
    fps: Annotated[float | None, typer.Option(help="Frames per second of the video.", show_default=False)] = None,
    frames: Annotated[int, typer.Option(help="The number of frames on the sheet.", min=1)] = 24,
    as_json: AsJson = False,
) -> None:
    """Write the images of an episode as a video or a sheet of frames.

    Shows all cameras side by side, of a recording or a LeRobot dataset.

    Example: unienv show data/ --episode 3 --mp4 out.mp4

    Example: unienv show pick/ --episode -1 --png sheet.png --column observation.images.top
    """
    if mp4 is None and png is None:
        raise UsageError("nothing to write: give --mp4 FILE, --png FILE, or both")
    with ProgressBar("writing", None, "frames") as bar:
        report = checking.show(
            path, episode=episode, mp4=mp4, png=png, columns=column or (), fps=fps, frames=frames, progress=bar
        )
    _render.show(report, as_json=as_json)


@command(failure=2)
def check(
    path: Folder,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help=f"A kind of finding to leave out, may be repeated. Kinds: {_KINDS}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a recording for damage and likely mistakes.

    Compares files with counters and checksums, and finds NaN and values outside the space, frozen or duplicated frames,
    missed ends of episodes, and time that runs backwards. Prints one line per finding. The exit status is 0 without
    findings, 1 with findings, and 2 if the recording could not be examined.

    The videos and images of LeRobot datasets have no checksums, and are not decoded: repair decodes them.

    Example: unienv check data/ && python train.py data/
    """
    with ProgressBar("checking", None) as bar:
        report = checking.check(path, ignore=ignore or (), progress=bar)
    _render.show(report, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(1)


@command()
def bench(
    path: Folder,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.", min=1)] = 256,
    window: Annotated[int, typer.Option(help="Samples in a window.", min=1)] = 16,
    windows: Annotated[int, typer.Option(help="Windows in a batch.", min=1)] = 64,
    seconds: Annotated[float, typer.Option(help="The duration of each measurement.", min=0.01)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure the speed of sampling from a recording.

    Measures random samples, random windows within episodes, and all samples in order, on this machine.

    Example: unienv bench data/ --batch-size 512 --window 32
    """
    with ProgressBar("measuring", None, "parts") as bar:
        report = measure(path, batch_size=batch_size, window=window, windows=windows, seconds=seconds, progress=bar)
    _render.show(report, as_json=as_json)


# -- commands that write a new folder ------------------------------------------------------------------------


def _column(name: str, text: str, metavar: str | None = None) -> Any:
    """Make an option that adds a column. Its default is None: --resume then uses the value of the earlier run."""
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel="Columns", show_default=False)


@command()
def collect(
    env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder of the recording, new or empty.", show_default=False)],
    steps: Annotated[int, typer.Option(help="The number of steps to record, over all environments.", min=1)] = 100_000,
    num_envs: Annotated[int, typer.Option(help="The number of environments.", min=1)] = 8,
    workers: Annotated[int, typer.Option(help="The number of worker processes; 0: none.", min=0)] = 2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.", min=0)] = 0,
    policy: Annotated[str, typer.Option(help="random, zero, or module:function of (obs, rng).")] = "random",
    storage: Annotated[str, typer.Option(help=f"One of {_FORMATS}; only packed survives every crash.")] = "packed",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the recording in the folder.")] = False,
    env_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="Keyword arguments of the environment, a JSON object.")
    ] = None,
    episode_id: Annotated[
        bool | None, _column("--episode-id", "Also record the number of the episode, from 0.")
    ] = None,
    step: Annotated[
        bool | None, _column("--step", "Also record the number of the step in its episode, from 0.")
    ] = None,
    timestamp: Annotated[
        bool | None, _column("--timestamp", "Also record the time of the step, in seconds since the epoch.")
    ] = None,
    info: Annotated[
        list[str] | None, _column("--info", "Also record the info of this name; may be repeated.", metavar="NAME")
    ] = None,
    context: Annotated[bool | None, _column("--context", "Also record the context of the episode.")] = None,
    as_json: AsJson = False,
) -> None:
    """Record a Gymnasium environment into a folder.

    Records observation, action, reward, next observation, terminated and truncated of every step. Each environment has
    its own episodes. Recorded steps survive a crash of this program. Ctrl-C ends the recording cleanly. --resume
    continues it until there are --steps in all, with the columns and keywords of the first run.

    Example: unienv collect CartPole-v1 --steps 100000 --out data/

    Example: unienv collect HalfCheetah-v5 --policy my_agent:act --out cheetah/ --resume

    Example: unienv collect Ant-v5 --env-kwargs '{"healthy_reward": 0.5}' --step --info x_position --out ant/
    """
    plan = Plan(
        env_id,
        steps,
        out,
        num_envs,
        workers,
        seed,
        policy,
        storage,
        resume,
        env_kwargs=None if env_kwargs is None else parse_env_kwargs(env_kwargs),
        episode_id=episode_id,
        step=step,
        timestamp=timestamp,
        context=context,
        info=info or None,
    )
    redirected = _render.output_for_the_result() if as_json else contextlib.nullcontext()
    with redirected, ProgressBar(f"recording {env_id}", plan.target, "steps") as bar:
        report = record(plan, bar)
    _render.show(report, as_json=as_json)
    _end_as_asked(report, ", continue with --resume")


def _end_as_asked(report: CollectReport, way_on: str = "") -> None:
    """After a signal, print how to continue the recording, and exit with the status of the signal."""
    if report.stopped_by is not None:
        kept = f"{many(report.samples, 'sample')} in {many(report.episodes, 'episode')} are kept in {report.path}"
        complain(f"unienv: interrupted; {kept}{way_on}")
        raise typer.Exit(128 + report.stopped_by)


@command()
def convert(
    source: Source,
    target: Annotated[Path, typer.Argument(metavar="DST", help="The new folder.", show_default=False)],
    to: Annotated[str, typer.Option(help=f"The format: {_TARGETS}.", show_default=False)],
    fps: Annotated[float | None, typer.Option(help="For lerobot: samples per second.", show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help="For lerobot: the task, in words.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a recording to another format.

    Samples keep their order and their episodes. The new folder appears when it is complete and was opened for a test.

    The format lerobot stores images as videos. It needs --fps unless the recording has columns of video, and --task
    unless it has a text column "task". A LeRobot dataset can be converted to v3.0, too; its videos are copied
    unchanged.

    Example: unienv convert data/ data-hdf5/ --to hdf5

    Example: unienv convert data/ pick/ --to lerobot --fps 30 --task "pick the cube"
    """
    if to not in checking.TARGETS:
        raise UsageError(f"{to!r} is no format, it must be one of {_TARGETS}{did_you_mean(to, checking.TARGETS)}")
    with ProgressBar("converting", None) as bar:
        report = checking.convert(source, target, to, fps=fps, task=task, progress=bar)
    _render.show(report, as_json=as_json)


@command()
def repair(
    source: Source,
    out: Annotated[Path, typer.Option(help="The new folder.", show_default=False)],
    whole_episodes: Annotated[
        bool, typer.Option("--whole-episodes", help="Leave out episodes that have lost samples.")
    ] = False,
    like: Annotated[
        Path | None,
        typer.Option(help="A recording made in the same way, to be used if metadata.json is lost.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the sound samples of a damaged recording to a new one.

    Prints what was left out. The damaged recording is only read. An episode that has lost samples becomes several, so
    that no window reaches over the gap.

    If metadata.json is lost, the space of the samples is unknown: give a recording that was made in the same way as
    --like.

    Example: unienv repair data/ --out repaired/

    Example: unienv repair data/ --out repaired/ --like yesterday/
    """
    with ProgressBar("repairing", None) as bar:
        report = checking.repair(source, out, whole_episodes=whole_episodes, like=like, progress=bar)
    _render.show(report, as_json=as_json)


@command()
def demo(
    out: Annotated[Path | None, typer.Option(help="The folder to record into; by default a temporary one.")] = None,
    steps: Annotated[int, typer.Option(help="Steps to record.", min=1)] = STEPS,
    as_json: AsJson = False,
) -> None:
    """Record CartPole and sample from the recording.

    Records CartPole-v1 from 8 environments on 2 workers into a crash-safe buffer on disk, opens it again, samples
    transitions and windows of 16 steps, and prints the speed of each part. Takes a few seconds.

    Example: unienv demo
    """
    if out is not None and os.path.lexists(out):
        raise CommandError(f"{out}: it exists already, give another path")
    plan = demo_plan(out or Path(tempfile.mkdtemp(prefix="unienv-demo-")) / "cartpole", steps)
    with ProgressBar(f"recording {plan.env_id}", plan.target, "steps") as bar:
        collected = record(plan, bar)
    _end_as_asked(collected)
    with ProgressBar("sampling", None, "parts") as bar:
        report = read_back(collected, bar)
    _render.show(report, as_json=as_json)
