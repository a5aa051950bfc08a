"""Writing a recording anew in another format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ._episodes import as_ranges, episode_table
from ._errors import CommandError
from ._info import bytes_on_disk
from ._new_recording import NewRecording
from ._progress import Advance, unwatched
from ._reading import ChunkReader, open_buffer


@dataclass(frozen=True)
class ConvertReport:
    """What was written where; `episodes` is None where they are not kept."""

    source: str
    target: str
    format: str
    samples: int
    episodes: int | None
    bytes_on_disk: int


def convert(source: Path, target: Path, fmt: str, advance: Advance = unwatched) -> ConvertReport:
    """Copy all samples and episodes to a new recording in a format (see `FORMATS`); memory stays bounded.

    Samples keep their order. An episode that was never closed is closed in the copy.
    """
    with open_buffer(source) as buffer:
        table = episode_table(buffer)
        ends = as_ranges([]) if table is None else table.all
        ends = ends[np.argsort(ends[:, 1], kind="stable")]
        count, reader = len(buffer), ChunkReader(buffer)
        advance.expect(count)
        with NewRecording(
            target, fmt, buffer.single_space, capacity=count, keeps_episodes=table is not None, lanes=buffer.lanes
        ) as new:
            for chunk in reader:
                first, stop = np.searchsorted(ends[:, 1], [new.written, new.written + chunk.count], side="right")
                new.add(chunk.data, chunk.count, ends[first:stop])
                advance(chunk.count)
            if new.written != count:
                raise CommandError(
                    f"{source}: samples were dropped while they were copied; convert it when nobody writes to it"
                )
    episodes = None if table is None else len(ends)
    return ConvertReport(str(source), str(target), fmt, count, episodes, bytes_on_disk(target))
