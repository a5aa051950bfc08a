"""The repair of a recording: a new recording with all sound samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.files import PathLike
from ..base.storage import StorageCorruptedError
from ..integrations.lerobot_check import is_dataset
from ..integrations.lerobot_repair import repair_dataset
from ._content import end_flags
from ._convert import NewRecording
from ._salvage import Salvage, runs, salvage
from .reading import PatientReader, ProgressCallback, as_ranges, by_sample, columns_of, unwatched


@dataclass(frozen=True)
class RepairReport:
    """The result of `repair`.

    Attributes
    ----------
    source, target : str
        The folder that was read, and the new folder.
    samples_before, samples : int
        The numbers of samples in the damaged and in the new recording.
    episodes : int or None
        The number of episodes in the new recording; None if it keeps none.
    split_episodes : int
        The number of episodes that have lost samples and were split into several.
    left_out : list of str
        The lost samples with the reasons, one sentence for each range.
    notes : list of str
        Further remarks, such as damage that cannot be located, or how damage was worked around.

    Examples
    --------
    >>> report = unienv.repair("data/", "sound/")
    >>> report.samples, report.left_out
    (2000, [])
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
    path: PathLike,
    output: PathLike,
    *,
    whole_episodes: bool = False,
    like: PathLike | None = None,
    progress: ProgressCallback | None = None,
) -> RepairReport:
    """Write the sound samples of a recording to a new recording, as `unienv repair` does.

    The damaged recording does not change. The new recording has the storage "packed"; columns of images or video stay
    images or video, and JPEG and video are encoded again. Episodes are in the order in which they began. An episode
    that has lost samples is split, so that no window reaches over the gap. The folder `output` appears when it is
    complete and was opened for a test; after an error it does not exist.

    From a LeRobot dataset, the sound episodes are written to a new LeRobot dataset, see `repair_dataset`.

    Parameters
    ----------
    path : str or path-like
        The folder of the damaged recording: a replay buffer or a LeRobot dataset.
    output : str or path-like
        The folder to write, which must not exist.
    whole_episodes : bool, optional
        Whether episodes that have lost samples are left out instead of split.
    like : str or path-like, optional
        A recording that was made in the same way. Its space is used if `metadata.json` of the damaged recording is
        lost; files that contradict it are an error.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of samples. Each sample counts twice, when it is checked and
        when it is written; `total` decreases when samples are left out.

    Returns
    -------
    RepairReport
        The numbers of samples, and the samples that were left out with the reasons.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, or has no replay buffer.
    FileExistsError
        `output` exists.
    StorageCorruptedError
        No sample can be kept; the message names the missing file.
    ValueError
        `like` is no sound recording, or does not fit the folder.

    Examples
    --------
    >>> report = unienv_data.repair("data/", "repaired/")
    >>> print(f"{report.samples} of {report.samples_before} samples are kept")
    """
    source, target, progress = Path(path), Path(output), progress or unwatched
    if is_dataset(source):
        saved = repair_dataset(source, target, progress=progress)
        counts = (saved.frames_before, saved.frames, saved.episodes, 0)
        return RepairReport(str(source), str(target), *counts, saved.left_out, saved.notes)
    old = salvage(source, None if like is None else Path(like))
    try:
        _find_unreadable(old, lambda done: progress(done, 2 * old.count))
        pieces, split = _pieces(old, whole_episodes)
        kept = sum(len(piece.positions) for piece in pieces)
        progress(old.count, old.count + kept)
        if not kept:
            reasons = [*old.lost, *old.notes, "it has none"]
            raise StorageCorruptedError(f"{source}: no sample can be kept, {reasons[0]}")
        keeps_episodes = old.episodes is not None
        options: Any = {"capacity": kept, "keeps_episodes": keeps_episodes, "columns": old.columns}
        options["shares_next_obs"] = old.shares_next_obs
        with NewRecording(target, "packed", old.space, **options) as new:
            for positions, ends, are_cut in _batches(pieces, old.rows_at_once):
                kept_ends = ends if keeps_episodes else as_ranges([])
                new.add(old.read(positions), len(positions), kept_ends, are_cut[: len(kept_ends)])
                progress(old.count + new.written, old.count + kept)
            new.settle(lambda done, total: progress(old.count + kept + done, old.count + kept + total))
        episodes = new.episodes if keeps_episodes else None
        paths = (str(source), str(target))
        return RepairReport(*paths, old.count, kept, episodes, split, old.lost, old.notes)
    finally:
        old.close()


# -- unreadable samples and unknown episodes -----------------------------------------------------------------


def _find_unreadable(old: Salvage, progress: Callable[[int], object]) -> None:
    """Read all samples once, mark unreadable ones as lost, and make episodes of samples outside known episodes."""
    flags, ended = end_flags(columns_of(old.space)), np.zeros(old.count, bool)
    unreadable: dict[str, list[np.ndarray]] = {}
    reader = PatientReader(old.read, lambda positions: old.blocks[positions])
    for start in range(0, old.count, old.rows_at_once):
        stop = min(start + old.rows_at_once, old.count)
        sound = start + np.flatnonzero(~old.is_lost[start:stop])
        for positions, batch, problem in reader.read(sound) if len(sound) else ():
            if problem:
                unreadable.setdefault(problem, []).append(positions)
                continue
            for flag in flags:
                values = flag.space.backend.to_numpy(flag.pick(batch))
                ended[positions] |= by_sample(values).astype(bool).any(axis=1)
        progress(stop)
    for problem, groups in unreadable.items():
        mask = np.zeros(old.count, bool)
        mask[np.concatenate(groups)] = True
        old.lose(mask, problem)
    if len(old.gaps):
        old.notes.append(_recover_episodes(old, ended, has_flags=bool(flags)))


def _recover_episodes(old: Salvage, ended: np.ndarray, *, has_flags: bool) -> str:
    """Make episodes of the samples in the gaps, which end at marked samples, and return a note about them."""
    recovered = []
    for start, stop in old.gaps.tolist():
        positions = np.arange(start, stop, old.stride)
        for episode in np.split(positions, np.flatnonzero(ended[positions]) + 1):
            if len(episode):
                recovered.append((int(episode[0]), int(episode[-1]) + 1))
    known = as_ranges([]) if old.episodes is None else old.episodes
    old.episodes = np.concatenate([known, as_ranges(recovered)])
    method = "split where samples are marked as the last" if has_flags else "each range is one episode now"
    ranges = "1 range" if len(old.gaps) == 1 else f"{len(old.gaps):,} ranges"
    return f"{ranges} of samples in no known episode; {method}"


# -- kept samples ------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Samples that become an episode of the new recording, and whether they lack the end of the old episode."""

    positions: np.ndarray
    is_cut: bool


def _pieces(old: Salvage, whole_episodes: bool) -> tuple[list[Piece], int]:
    """Return the samples to keep, episode by episode, and the number of split episodes."""
    if old.episodes is None:
        return [Piece(np.flatnonzero(~old.is_lost), False)], 0
    pieces, split, endless = [], 0, set(old.endless_stops.tolist())
    for start, stop in old.episodes[np.argsort(old.episodes[:, 0], kind="stable")].tolist():
        positions = np.arange(start, stop, old.stride)
        sound = ~old.is_lost[positions]
        if sound.all():
            pieces.append(Piece(positions, stop in endless))
        elif whole_episodes and sound.any():
            old.lost.append(f"{int(sound.sum())} sound samples of the episode from {start} to {stop - 1}: not whole")
        elif sound.any():
            split += 1
            ended = None if stop in endless else len(sound)
            pieces += [Piece(positions[first:last], last != ended) for first, last in runs(sound)]
    return pieces, split


def _batches(pieces: list[Piece], rows: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the samples of all pieces in batches of about `rows`, with the episodes that end in them.

    Episodes are ranges [start, stop) in the new recording, with a mask of the cut ones.
    """
    waiting: list[np.ndarray] = []
    ends: list[tuple[int, int]] = []
    are_cut: list[bool] = []
    held = written = 0
    for piece, is_cut in pieces:
        begun = written + held
        for start in range(0, len(piece), rows):
            waiting.append(piece[start : start + rows])
            held += len(waiting[-1])
            if start + rows >= len(piece):
                ends.append((begun, begun + len(piece)))
                are_cut.append(is_cut)
            if held >= rows:
                yield np.concatenate(waiting), as_ranges(ends), np.array(are_cut, bool)
                written, held, waiting, ends, are_cut = written + held, 0, [], [], []
    if held:
        yield np.concatenate(waiting), as_ranges(ends), np.array(are_cut, bool)
