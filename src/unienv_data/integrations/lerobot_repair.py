"""The repair of a LeRobot dataset: a new dataset with all sound episodes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

from ..base.files import PathLike
from ..base.storage import StorageCorruptedError
from ._lerobot_export import export_lerobot
from ._lerobot_meta import INFO, TASKS, VIDEO, DatasetMeta, Episodes, VideoSpans, load_meta, load_tasks, read_json_of
from ._lerobot_tables import Tables
from ._lerobot_writing import as_arrow_table
from ._parquet_footer import one_row_of, restore_footer
from .lerobot import LeRobotAsUniEnvDataset
from .lerobot_check import (
    broken_tables,
    episode_problems,
    frame_times,
    misplaced_episodes,
    rows_are_mixed,
    video_problems,
)

__all__ = ["SavedDataset", "repair_dataset"]

#: The kinds of problems that the new dataset does not have, so that they are no reason to leave an episode out.
_MENDED = ("timestamps", "episodes", "not-finite")
_DECODED_AT_ONCE = 16


@dataclass(frozen=True)
class SavedDataset:
    """The result of `repair_dataset`.

    Attributes
    ----------
    frames_before, frames
        How many frames there were, and how many of them are in the new dataset.
    episodes
        How many episodes the new dataset has.
    left_out
        Which episodes are lost, and why, one sentence each.
    notes
        Further remarks, such as what was worked around, and how.
    """

    frames_before: int
    frames: int
    episodes: int
    left_out: list[str]
    notes: list[str]


def repair_dataset(
    source: PathLike, target: PathLike, *, progress: Callable[[int, int], object] | None = None
) -> SavedDataset:
    """Write the sound episodes of a dataset to a new one of v3.0; the damaged one is only read.

    Of a recording that was killed before `finalize` the rows are read without the footers of their tables, and the
    episodes are taken from the rows. Timestamps, counters, statistics and footers are made anew, videos are copied as
    they are. An episode is left out if rows or frames of it are missing, if a frame cannot be decoded, or if its task
    is not known.

    Parameters
    ----------
    source
        The folder of the damaged dataset.
    target
        The folder to write, which must not be there yet.
    progress
        Called as ``progress(done, total)`` with numbers of samples.

    Returns
    -------
    SavedDataset
        What was kept, and what was left out and why.

    Raises
    ------
    FileNotFoundError
        `meta/info.json`, which describes the features, is missing.
    ValueError
        No episode can be kept.
    FileExistsError
        There is something at `target`.
    """
    root = Path(source)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="unienv-lerobot-") as restored:
        meta = _load(root, Path(restored), notes)
        if not meta.tasks:
            meta = replace(meta, tasks=_tasks_of_episodes(meta, notes))
        sound, left_out = _sound_episodes(meta, notes)
        sound = _decodable_episodes(meta, sound, left_out)
        if not sound:
            reasons = [*left_out, *notes, "it has none"]
            raise ValueError(f"{root}: no episode can be kept, {reasons[0]}")
        kept = LeRobotAsUniEnvDataset.from_meta(_only(meta, sound))
        try:
            export = export_lerobot(kept, target, robot_type=meta.info.get("robot_type"), progress=progress)
        finally:
            kept.close()
    before = int(meta.info.get("total_frames") or 0)
    return SavedDataset(max(before, int(meta.episodes.starts[-1])), export.frames, export.episodes, left_out, notes)


def _load(root: Path, restored: Path, notes: list[str]) -> DatasetMeta:
    """Load the metadata of a dataset; missing metadata is derived from the rows and videos."""
    broken = list(broken_tables(root))
    if not broken:
        try:
            return _checked_places(load_meta(root), notes)
        except (FileNotFoundError, ValueError, KeyError) as error:
            notes.append(f"{error}; the episodes are taken from the rows")
    info = read_json_of(root, INFO)
    if not str(info.get("codebase_version", "")).startswith("v3."):
        return load_meta(root)  # each episode has its own file
    notes += broken
    files = _readable_tables(root, info, restored, notes)
    tasks = load_tasks(root)
    return DatasetMeta(root, info, _episodes_of_rows(root, info, files, notes), tasks)


def _checked_places(meta: DatasetMeta, notes: list[str]) -> DatasetMeta:
    """Correct the positions of rows and frames if the table of episodes has wrong ones."""
    if not str(meta.info["codebase_version"]).startswith("v3."):
        return meta
    episodes, tables = meta.episodes, Tables(meta.episodes)
    for start, stop in itertools.pairwise(episodes.starts.tolist()):
        try:
            is_mixed = rows_are_mixed({"episode_index": tables.read("episode_index", np.arange(start, stop))})
        except (ValueError, OSError, KeyError):
            continue  # `_sound_episodes` reports the error
        if is_mixed:
            notes.append(f"{meta.root}: rows and the table of episodes contradict each other; the rows are used")
            return replace(meta, episodes=_episodes_of_rows(meta.root, meta.info, episodes.files, notes))
    spans = dict(episodes.videos)
    for key in spans:
        wrong = list(misplaced_episodes(meta, key))
        if wrong:
            notes.append(f"{wrong[0]}; the episodes of this camera are assumed to be consecutive")
            spans[key] = _spans(meta.root, key, episodes.lengths.tolist(), float(meta.info["fps"]), notes)
    return replace(meta, episodes=replace(episodes, videos=spans))


def _tasks_of_episodes(meta: DatasetMeta, notes: list[str]) -> dict[int, str]:
    """Collect the tasks from the table of episodes, where an episode has one task."""
    tables = Tables(meta.episodes)
    tasks: dict[int, str] = {}
    for (start, stop), row in zip(
        itertools.pairwise(meta.episodes.starts.tolist()), meta.episodes.metadata, strict=True
    ):
        texts = row.get("tasks") or []
        if len(texts) == 1 and start < stop:
            index = tables.read("task_index", np.arange(start, start + 1)).item()
            tasks.setdefault(index, str(texts[0]))
    notes.append(f"{meta.root / TASKS}: there are no tasks; the table of episodes has {sorted(tasks)}")
    return tasks


def _readable_tables(root: Path, info: dict[str, Any], restored: Path, notes: list[str]) -> list[Path]:
    """Return the tables of samples; tables without a footer are copied and get one."""
    pq = need("pyarrow.parquet", extra="lerobot")
    files = []
    for number, path in enumerate(sorted(root.glob("data/**/*.parquet"))):
        try:
            pq.read_metadata(path)
        except (OSError, ValueError, NotImplementedError):
            copy = restored / f"{number}.parquet"
            rows = restore_footer(path, copy, as_arrow_table(one_row_of(info["features"])))
            if not rows:
                notes.append(f"{path}: the file has no complete row group")
                continue
            notes.append(f"{path}: {rows} rows were read without a footer")
            path = copy
        files.append(path)
    return files


def _episodes_of_rows(root: Path, info: Mapping[str, Any], files: Sequence[Path], notes: list[str]) -> Episodes:
    """Derive the episodes from the episode numbers of the rows, with their positions in the videos."""
    pq = need("pyarrow.parquet", extra="lerobot")
    numbers, lengths, file_of, first = [], [], [], []
    for file_index, path in enumerate(files):
        table = pq.read_table(path, columns=["episode_index", "index"])
        of_row, index = (table[name].to_numpy() for name in ("episode_index", "index"))
        starts = np.flatnonzero(np.diff(of_row, prepend=of_row[:1] - 1))
        for start, stop in zip(starts, [*starts[1:], len(of_row)], strict=True):
            numbers.append(int(of_row[start]))
            lengths.append(int(stop - start))
            file_of.append(file_index)
            first.append(int(index[start]))
    spans = {}
    for key, feature in info["features"].items():
        if feature["dtype"] == VIDEO:
            spans[key] = _spans(root, key, lengths, float(info["fps"]), notes)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = [{"episode_index": number, "length": length} for number, length in zip(numbers, lengths, strict=True)]
    files_of = np.array(file_of, np.int64)
    return Episodes(np.array(numbers, np.int64), ends, list(files), files_of, np.array(first, np.int64), spans, rows)


def _spans(root: Path, key: str, lengths: Sequence[int], fps: float, notes: list[str]) -> VideoSpans:
    """Compute the positions of consecutive episodes in the videos of a camera."""
    paths, starts = [], []
    videos = iter(sorted((root / "videos" / key).glob("**/*.mp4")))
    path, remaining, start = root / "videos" / key / "missing.mp4", 0, 0.0
    for length in lengths:
        while remaining == 0 and (following := next(videos, None)) is not None:
            try:
                remaining, path, start = len(frame_times(following)[0]), following, 0.0
            except Exception as error:  # decoders raise many kinds of errors
                notes.append(f"{following}: the video cannot be opened: {error}")
        paths.append(path)
        starts.append(start)
        start += length / fps
        remaining = max(0, remaining - length)
    return VideoSpans(paths, np.array(starts, np.float64))


def _sound_episodes(meta: DatasetMeta, notes: list[str]) -> tuple[list[int], list[str]]:
    """Return the sound episodes, and the reasons against the others."""
    without_frames: dict[int, str] = {}
    for key in meta.episodes.videos:
        without_frames |= video_problems(meta, key, spare=False)
    sound, left_out = [], []
    tables = Tables(meta.episodes)
    for number in range(len(meta.episodes.numbers)):
        problems = episode_problems(meta, tables, number)
        notes += [problem.text for problem in problems if problem.kind in _MENDED]
        reasons = [problem.text for problem in problems if problem.kind not in _MENDED]
        reasons += [without_frames[number]] if number in without_frames else []
        if reasons:
            left_out.append(f"{int(meta.episodes.lengths[number])} samples: {reasons[0]}")
        elif meta.episodes.lengths[number]:
            sound.append(number)
    return sound, left_out


def _decodable_episodes(meta: DatasetMeta, sound: Sequence[int], left_out: list[str]) -> list[int]:
    """Return the episodes whose frames can all be decoded; append the reasons against the others to `left_out`."""
    kept = []
    with LeRobotAsUniEnvDataset.from_meta(_only(meta, sound)) as dataset:
        for number, (first, end) in zip(sound, dataset.get_segments(), strict=True):
            try:
                for key in meta.episodes.videos:
                    for start in range(first, end, _DECODED_AT_ONCE):
                        dataset.get_column_at([key], slice(start, min(end, start + _DECODED_AT_ONCE)))
            except (StorageCorruptedError, ValueError) as error:
                left_out.append(f"{end - first} samples: episode {meta.episodes.numbers[number]}, {key!r}: {error}")
            else:
                kept.append(number)
    return kept


def _only(meta: DatasetMeta, sound: Sequence[int]) -> DatasetMeta:
    """Select some episodes of a dataset, with frames by index instead of the stored timestamps."""
    old = meta.episodes
    lengths = old.lengths[list(sound)]
    episodes = Episodes(
        old.numbers[list(sound)],
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        old.files,
        old.file_of[list(sound)],
        None if old.from_index is None else old.from_index[list(sound)],
        {
            key: VideoSpans([spans.paths[number] for number in sound], spans.starts[list(sound)])
            for key, spans in old.videos.items()
        },
        [old.metadata[number] for number in sound],
    )
    features = {name: feature for name, feature in meta.features.items() if name != "timestamp"}
    return replace(meta, info={**meta.info, "features": features}, episodes=episodes)
