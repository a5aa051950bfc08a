"""A new recording of all that is sound in one that is not."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._content_checks import end_flags
from ._episodes import as_ranges
from ._errors import CommandError, in_one_line
from ._new_recording import NewRecording
from ._progress import Advance, unwatched
from ._reading import by_sample, columns_of
from ._salvage import Salvage, runs, salvage


@dataclass(frozen=True)
class RepairReport:
    """What was kept of how many samples, and what was left out and why.

    `split_episodes` counts those that lost samples and of which the parts are kept, each as an episode.
    """

    source: str
    target: str
    samples_before: int
    samples: int
    episodes: int | None
    split_episodes: int
    left_out: list[str]
    notes: list[str]


def repair(
    source: Path,
    target: Path,
    *,
    whole_episodes: bool = False,
    like: Path | None = None,
    advance: Advance = unwatched,
) -> RepairReport:
    """Write what is sound in a recording to a new one, which is packed; the source is only read.

    Episodes come one after the other, in the order in which they began. One that has lost samples becomes several, so
    that no window of samples reaches over the gap; with `whole_episodes` it is left out. What the source's description
    should say is taken from the recording `like` if it cannot be read.
    """
    found = salvage(source, like)
    try:
        advance.expect(2 * found.count)
        _find_unreadable(found, advance)
        pieces, split = _pieces(found, whole_episodes)
        kept = sum(len(piece) for piece in pieces)
        advance.expect(found.count + kept)
        if not kept:
            why = [*found.lost, *found.notes, "it has none"]
            raise CommandError(f"{source}: no sample can be kept, {why[0]}")
        keeps_episodes = found.episodes is not None
        with NewRecording(target, "packed", found.space, capacity=kept, keeps_episodes=keeps_episodes) as new:
            for positions, ends in _batches(pieces, found.rows_at_once):
                new.add(found.read(positions), len(positions), ends if keeps_episodes else as_ranges([]))
                advance(len(positions))
        episodes = new.episodes if keeps_episodes else None
        paths = (str(source), str(target))
        return RepairReport(*paths, found.count, kept, episodes, split, found.lost, found.notes)
    finally:
        found.close()


# -- what can be read --------------------------------------------------------------------------------------


def _find_unreadable(found: Salvage, advance: Advance) -> None:
    """Read everything once, and leave out what cannot be; say where episodes end in stretches that have lost theirs."""
    flags, ended = end_flags(columns_of(found.space)), np.zeros(found.count, bool)
    unreadable: dict[str, list[np.ndarray]] = {}
    for start in range(0, found.count, found.rows_at_once):
        positions = np.arange(start, min(start + found.rows_at_once, found.count))
        for sound, batch in _readable(found, positions[~found.is_lost[positions]], unreadable):
            for flag in flags:
                values = flag.space.backend.to_numpy(flag.pick(batch))
                ended[sound] |= by_sample(values).astype(bool).any(axis=1)
        advance(len(positions))
    for why, parts in unreadable.items():
        which = np.zeros(found.count, bool)
        which[np.concatenate(parts)] = True
        found.lose(which, why)
    if len(found.loose):
        found.notes.append(_recover_episodes(found, ended, has_flags=bool(flags)))


def _readable(
    found: Salvage, positions: np.ndarray, unreadable: dict[str, list[np.ndarray]]
) -> Iterator[tuple[np.ndarray, Any]]:
    """What can be read of these samples; the rest, down to single ones or blocks, goes to `unreadable`, by reason."""
    if not len(positions):
        return
    try:
        batch = found.read(positions)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:  # that one is of a disk that fails in places
            raise
        blocks = found.blocks[positions]
        if (blocks == blocks[0]).all():
            unreadable.setdefault(in_one_line(error), []).append(positions)
            return
        # at the edge of a block, so that each of them is met as a whole
        middle = np.flatnonzero(np.diff(blocks)) + 1
        for half in np.split(positions, middle[[len(middle) // 2]]):
            yield from _readable(found, half, unreadable)
    else:
        yield positions, batch


def _recover_episodes(found: Salvage, ended: np.ndarray, *, has_flags: bool) -> str:
    """Make episodes of the samples that lie between episodes, which end where samples say so."""
    recovered = []
    for start, stop in found.loose.tolist():
        positions = np.arange(start, stop, found.stride)
        for part in np.split(positions, np.flatnonzero(ended[positions])[: len(positions)] + 1):
            if len(part):
                recovered.append((int(part[0]), int(part[-1]) + 1))
    known = as_ranges([]) if found.episodes is None else found.episodes
    found.episodes = np.concatenate([known, as_ranges(recovered)])
    how = "split where samples are marked as the last" if has_flags else "each stretch of them is one episode now"
    stretches = "1 stretch" if len(found.loose) == 1 else f"{len(found.loose):,} stretches"
    return f"{stretches} of samples in no episode that is known; {how}"


# -- what is kept ------------------------------------------------------------------------------------------


def _pieces(found: Salvage, whole_episodes: bool) -> tuple[list[np.ndarray], int]:
    """The samples to keep, episode by episode, and how many episodes have lost some."""
    if found.episodes is None:
        return [np.flatnonzero(~found.is_lost)], 0
    pieces, split = [], 0
    for start, stop in found.episodes[np.argsort(found.episodes[:, 0], kind="stable")].tolist():
        positions = np.arange(start, stop, found.stride)
        sound = ~found.is_lost[positions]
        if sound.all():
            pieces.append(positions)
        elif whole_episodes and sound.any():
            found.lost.append(f"{int(sound.sum())} sound samples of the episode from {start} to {stop - 1}: not whole")
        elif sound.any():
            split += 1
            pieces += [positions[first:last] for first, last in runs(sound)]
    return pieces, split


def _batches(pieces: list[np.ndarray], rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The samples of all pieces in batches of about `rows`, each with the episodes [start, stop) that end in it."""
    waiting: list[np.ndarray] = []
    ends: list[tuple[int, int]] = []
    held = written = 0
    for piece in pieces:
        begun = written + held
        for start in range(0, len(piece), rows):
            part = piece[start : start + rows]
            waiting.append(part)
            held += len(part)
            if start + rows >= len(piece):
                ends.append((begun, begun + len(piece)))
            if held >= rows:
                yield np.concatenate(waiting), as_ranges(ends)
                written, held, waiting, ends = written + held, 0, [], []
    if held:
        yield np.concatenate(waiting), as_ranges(ends)
