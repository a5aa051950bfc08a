"""Looking a recording over as a doctor would: the folder first, then the episodes, then every sample."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..replay_buffer import ReplayBuffer
from ..replay_buffer._locks import is_locked
from ..replay_buffer._metadata import FILE_NAME
from ..replay_buffer._state import HEADER, LOCK
from ._content_checks import content_checks
from ._episodes import EpisodeTable, describe_range, episode_table, lengths_of
from ._errors import CommandError, in_one_line
from ._findings import KINDS, Finding
from ._progress import Advance, unwatched
from ._reading import Chunk, ChunkReader, columns_of, open_buffer
from ._salvage import lost_checksums

# A recording of so many samples that is one single episode was hardly meant to be.
_MEGA = 5_000
_SHOWN = 5
# To find out which of many samples cannot be read, reading is tried so often; then stretches are named as a whole.
_MOST_TRIES = 1_000


@dataclass(frozen=True)
class CheckReport:
    """The findings about a folder; `samples` is None if it cannot be opened."""

    path: str
    samples: int | None
    findings: list[Finding]


def check(path: Path, ignore: Collection[str] = (), advance: Advance = unwatched) -> CheckReport:
    """Look for everything that can be wrong with the buffer in a folder, but for the kinds to `ignore`."""
    for kind in ignore:
        if kind not in KINDS:
            raise CommandError(f"{kind!r} is no kind of finding, those are: {', '.join(KINDS)}")
    try:
        buffer = _open(path)
    except (CommandError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # whatever damage makes of a file, it is to be reported
        return CheckReport(str(path), None, [Finding("unreadable", in_one_line(error))])
    with buffer:
        findings = [*_folder_findings(buffer), *_contents(buffer, advance)]
        kept = [finding for finding in findings if finding.kind not in ignore]
        return CheckReport(str(path), len(buffer), kept)


def _open(path: Path) -> ReplayBuffer:
    if (path / HEADER).exists() and not (path / FILE_NAME).exists():
        raise ValueError(f"{path / FILE_NAME}: the file is missing")
    return open_buffer(path)


def _contents(buffer: ReplayBuffer, advance: Advance) -> list[Finding]:
    try:
        return [*_episode_findings(buffer), *_sample_findings(buffer, advance)]
    except (CommandError, OSError, MemoryError):
        raise
    except Exception as error:  # episodes that cannot be looked up, for one
        return [Finding("unreadable", in_one_line(error))]


def _folder_findings(buffer: ReplayBuffer) -> Iterator[Finding]:
    try:
        for text in buffer.verify():
            yield Finding("checksum", text)
        if buffer._state.header.closed_sizes is not None:
            lost = list(lost_checksums(buffer))
            if buffer._state.counters.is_closed():  # still: else somebody has gone on with it
                yield from (Finding("checksum", text) for text in lost)
    except Exception as error:
        yield Finding("checksum", f"comparing checksums failed: {in_one_line(error)}")
    if not len(buffer):
        yield Finding("empty", "there are no samples")


# -- episodes ----------------------------------------------------------------------------------------------


def _episode_findings(buffer: ReplayBuffer) -> Iterator[Finding]:
    table = episode_table(buffer)
    if table is None:
        return
    yield from _misplaced(table, len(buffer))
    for ranges in table.loose[:_SHOWN]:
        yield Finding("episodes", f"{describe_range(ranges, table.stride)}: in no episode, between two of them")
    if len(table.loose) > _SHOWN:
        yield Finding("episodes", f"{len(table.loose) - _SHOWN} more stretches of samples are in no episode")
    if len(table.unfinished) and not _is_being_written(buffer):
        yield _unfinished(table)
    episodes = table.all
    if 0 < len(episodes) <= table.stride and lengths_of(episodes, table.stride).mean() >= _MEGA:
        what = "all samples are" if table.stride == 1 else "all samples of every environment are"
        yield Finding("mega-episode", f"{what} one episode, {lengths_of(episodes, table.stride).max():,} long")


def _misplaced(table: EpisodeTable, count: int) -> Iterator[Finding]:
    for start, stop in table.closed[(table.closed[:, 0] < 0) | (table.closed[:, 1] > count)][:_SHOWN].tolist():
        yield Finding("episodes", f"an episode from {start} to {stop - 1}: there are {count} samples")
    lanes = table.closed[:, 0] % table.stride
    closed = table.closed[np.lexsort((table.closed[:, 0], lanes))]
    overlaps = (closed[1:, 0] < closed[:-1, 1]) & (np.diff(np.sort(lanes)) == 0)
    for place in np.flatnonzero(overlaps)[:_SHOWN].tolist():
        one, other = (describe_range(closed[at], table.stride) for at in (place, place + 1))
        yield Finding("episodes", f"episodes overlap: {one} and {other}")


def _unfinished(table: EpisodeTable) -> Finding:
    lengths = lengths_of(table.unfinished, table.stride)
    which = describe_range(table.unfinished[0], table.stride)
    if len(lengths) == 1:
        return Finding("unfinished-episode", f"{which}: the episode was never closed")
    return Finding("unfinished-episode", f"{len(lengths)} episodes were never closed, one of them {which}")


def _is_being_written(buffer: ReplayBuffer) -> bool:
    return buffer.cache_path is not None and is_locked(buffer.cache_path / LOCK)


# -- samples -----------------------------------------------------------------------------------------------


def _sample_findings(buffer: ReplayBuffer, advance: Advance) -> Iterator[Finding]:
    checks = content_checks(columns_of(buffer.single_space))
    reading = _Reading(buffer)
    advance.expect(len(reading.reader.numbers))
    for first, stop in reading.reader.ranges():
        for chunk in reading.readable(first, stop):
            for each in checks:
                each.look(chunk)
        advance(stop - first)
    unread = reading.unread
    for stretch in unread[:_SHOWN]:
        yield Finding("unreadable-samples", f"{describe_range(stretch[:2], 1)}: {stretch.why}")
    if len(unread) > _SHOWN:
        yield Finding("unreadable-samples", f"{len(unread) - _SHOWN} more stretches cannot be read")
    for each in checks:
        yield from each.findings()


class _Unread(NamedTuple):
    """Samples [start, stop), and why they cannot be read."""

    start: int
    stop: int
    why: str


class _Reading:
    """Reads all that can be read, and notes what cannot."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.reader = ChunkReader(buffer, overlap=buffer.lanes, with_episodes=True)
        self.unread: list[_Unread] = []
        self._buffer, self._tries = buffer, _MOST_TRIES

    def readable(self, first: int, stop: int) -> Iterator[Chunk]:
        """What can be read of the samples with these numbers; the others, down to single ones, go to `unread`."""
        offset = self.reader.numbers.start
        try:
            chunk = self.reader.read(first, stop, after=offset + self.unread[-1].stop if self.unread else 0)
        except (CommandError, OSError, MemoryError):
            raise
        except Exception as error:
            self._tries -= 1
            middle = self._middle(first, stop) if self._tries > 0 else None
            if middle is not None:
                yield from self.readable(first, middle)
                yield from self.readable(middle, stop)
            else:
                self._note(_Unread(first - offset, stop - offset, in_one_line(error)))
        else:
            yield chunk

    def _middle(self, first: int, stop: int) -> int | None:
        """Where to part samples of which some can be read; None if either all can be or none."""
        blocks = self._buffer._state.slots(np.arange(first, stop)) // self._buffer.storage.slots_read_as_one
        edges = np.flatnonzero(np.diff(blocks)) + 1
        return first + int(edges[len(edges) // 2]) if len(edges) else None

    def _note(self, found: _Unread) -> None:
        if self.unread and self.unread[-1].stop == found.start:
            found = self.unread.pop()._replace(stop=found.stop)
        self.unread.append(found)
