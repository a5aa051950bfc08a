"""The check of a recording: the folder, the episodes, and every sample."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unienv_interface.utils.words import did_you_mean

from ..base.files import PathLike, local_path
from ..base.row_storage import rows_of
from ..integrations.lerobot_check import dataset_problems, is_dataset
from ..replay_buffer import ReplayBuffer
from ..replay_buffer.inspection import HEADER_FILE, METADATA_FILE, is_being_written, lost_checksums, slots_of
from ._content import KINDS, Finding, content_checks
from .reading import (
    Chunk,
    ChunkReader,
    EpisodeTable,
    PatientReader,
    ProgressCallback,
    columns_of,
    describe_range,
    episode_table,
    in_one_line,
    is_damage,
    lengths_of,
    open_whole,
    unwatched,
)

# A single episode of this many samples is probably a mistake.
_MEGA = 5_000
_SHOWN = 5
# After this many failed reads, ranges of samples are reported as unreadable without further bisection.
_MOST_TRIES = 1_000


@dataclass(frozen=True)
class CheckReport:
    """The result of `check`.

    Attributes
    ----------
    path : str
        The folder that was checked.
    samples : int or None
        The number of samples, all of which were read; None if the folder cannot be opened.
    findings : list of Finding
        The faults, without the ignored kinds.
    cut_episodes : list of tuple of int
        The episodes that were closed before their end, as in `ReplayBuffer.cut_episodes`. They are no finding: every
        recording that was stopped has some.
    is_sound : bool
        Whether `findings` is empty.

    Examples
    --------
    >>> report = unienv.check("data/")
    >>> report.is_sound
    True
    """

    path: str
    samples: int | None
    findings: list[Finding]
    cut_episodes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether `findings` is empty."""
        return not self.findings


def check(path: PathLike, *, ignore: Collection[str] = (), progress: ProgressCallback | None = None) -> CheckReport:
    """Check the recording in a folder for damage and likely mistakes, as `unienv check` does.

    The files are compared with the counters and checksums, the episodes with each other, and every sample with its
    space and the previous sample. The folder is not written, and may be written by another process. Memory is bounded.

    Parameters
    ----------
    path : str or path-like
        The folder of a replay buffer, or of a LeRobot dataset.
    ignore : collection of str, optional
        The kinds of findings to leave out, keys of `unienv_data.checking.KINDS`.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of samples, every few megabytes.

    Returns
    -------
    CheckReport
        The findings, none for a sound recording. Damage is reported, not raised.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, or has no replay buffer.
    ValueError
        `ignore` contains a name that is not a kind of finding.
    OSError, ImportError
        The folder cannot be read: for lack of permissions, or of a package that its storage needs.

    Examples
    --------
    >>> report = unienv_data.check("data/", ignore=["unfinished-episode"])
    >>> if not report.is_sound:
    ...     raise SystemExit("\\n".join(finding.text for finding in report.findings))
    """
    path = local_path(path)
    for kind in ignore:
        if kind not in KINDS:
            near = did_you_mean(kind, KINDS)
            raise ValueError(f"{kind!r} is no kind of finding, the kinds are {', '.join(KINDS)}{near}")
    if is_dataset(path):
        samples, problems = dataset_problems(path, progress or unwatched)
        wanted = [Finding(problem.kind, problem.text) for problem in problems if problem.kind not in ignore]
        return CheckReport(str(path), samples, wanted)
    try:
        buffer = _open(path)
    except Exception as error:
        if not is_damage(error):
            raise
        return CheckReport(str(path), None, [Finding("unreadable", in_one_line(error))])
    with buffer:
        findings = [*_folder_findings(buffer), *_contents(buffer, progress or unwatched)]
        kept = [finding for finding in findings if finding.kind not in ignore]
        return CheckReport(str(path), len(buffer), kept, buffer.cut_episodes() or [])


def _open(path: Path) -> ReplayBuffer:
    if (path / HEADER_FILE).exists() and not (path / METADATA_FILE).exists():
        raise ValueError(f"{path / METADATA_FILE}: the file is missing")
    return open_whole(path)


def _contents(buffer: ReplayBuffer, progress: ProgressCallback) -> list[Finding]:
    try:
        return [*_episode_findings(buffer), *_sample_findings(buffer, progress)]
    except Exception as error:  # such as episodes that cannot be read
        if not is_damage(error):
            raise
        return [Finding("unreadable", in_one_line(error))]


def _folder_findings(buffer: ReplayBuffer) -> Iterator[Finding]:
    try:
        for verify in (buffer.verify, functools.partial(lost_checksums, buffer)):
            yield from (Finding("checksum", text) for text in verify())
    except Exception as error:
        yield Finding("checksum", f"comparing checksums failed: {in_one_line(error)}")
    if not len(buffer):
        yield Finding("empty", "the recording has no samples")


# -- episodes ------------------------------------------------------------------------------------------------


def _episode_findings(buffer: ReplayBuffer) -> Iterator[Finding]:
    table = episode_table(buffer)
    if table is None:
        return
    yield from _misplaced(table, len(buffer))
    for gap in table.gaps[:_SHOWN]:
        yield Finding("episodes", f"{describe_range(gap, table.stride)}: in no episode, between two episodes")
    if len(table.gaps) > _SHOWN:
        yield Finding("episodes", f"{len(table.gaps) - _SHOWN} more ranges of samples are in no episode")
    if len(table.unfinished) and not (buffer.cache_path is not None and is_being_written(buffer.cache_path)):
        yield _unfinished(table)
    episodes = table.all
    if 0 < len(episodes) <= table.stride and lengths_of(episodes, table.stride).mean() >= _MEGA:
        subject = "all samples are" if table.stride == 1 else "all samples of every environment are"
        yield Finding("mega-episode", f"{subject} one episode, {lengths_of(episodes, table.stride).max():,} long")


def _misplaced(table: EpisodeTable, count: int) -> Iterator[Finding]:
    for start, stop in table.closed[(table.closed[:, 0] < 0) | (table.closed[:, 1] > count)][:_SHOWN].tolist():
        yield Finding("episodes", f"an episode from {start} to {stop - 1}: there are {count} samples")
    lanes = table.closed[:, 0] % table.stride
    closed = table.closed[np.lexsort((table.closed[:, 0], lanes))]
    overlaps = (closed[1:, 0] < closed[:-1, 1]) & (np.diff(np.sort(lanes)) == 0)
    for index in np.flatnonzero(overlaps)[:_SHOWN].tolist():
        first, second = (describe_range(closed[row], table.stride) for row in (index, index + 1))
        yield Finding("episodes", f"episodes overlap: {first} and {second}")


def _unfinished(table: EpisodeTable) -> Finding:
    lengths = lengths_of(table.unfinished, table.stride)
    first = describe_range(table.unfinished[0], table.stride)
    if len(lengths) == 1:
        return Finding("unfinished-episode", f"{first}: the episode was never closed")
    return Finding("unfinished-episode", f"{len(lengths)} episodes were never closed, the first is {first}")


# -- samples -------------------------------------------------------------------------------------------------


def _sample_findings(buffer: ReplayBuffer, progress: ProgressCallback) -> Iterator[Finding]:
    checks = content_checks(columns_of(buffer.single_space))
    reader = ChunkReader(buffer, overlap=buffer.lanes, with_episodes=True)
    numbers = reader.numbers
    unread: list[tuple[int, int, str]] = []  # ranges [start, stop) of samples, and the errors of reading them

    def read(chosen: np.ndarray) -> Chunk:
        return reader.read(int(chosen[0]), int(chosen[-1]) + 1, after=numbers.start + unread[-1][1] if unread else 0)

    size = rows_of(buffer.storage).slots_read_as_one
    patient = PatientReader(read, lambda chosen: slots_of(buffer, chosen) // size, _MOST_TRIES)
    progress(0, len(numbers))
    for first, last in reader.ranges():
        for chosen, chunk, error in patient.read(np.arange(first, last)):
            if not error:
                for check in checks:
                    check.visit(chunk)
                continue
            start, stop = int(chosen[0]) - numbers.start, int(chosen[-1]) + 1 - numbers.start
            if unread and unread[-1][1] == start:
                start, _, error = unread.pop()
            unread.append((start, stop, error))
        progress(last - numbers.start, len(numbers))
    for start, stop, error in unread[:_SHOWN]:
        yield Finding("unreadable-samples", f"{describe_range((start, stop), 1)}: {error}")
    if len(unread) > _SHOWN:
        yield Finding("unreadable-samples", f"{len(unread) - _SHOWN} more ranges cannot be read")
    for check in checks:
        yield from check.findings()
