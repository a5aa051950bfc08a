"""The check of a LeRobot dataset, without decoding its videos."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ..batches.statistics import summarize
from ._lerobot_meta import INFO, STRING, VIDEO, DatasetMeta, load_meta, load_stats, merge_stats
from ._lerobot_tables import Tables

__all__ = ["Problem", "dataset_problems", "is_dataset"]

TOLERANCE = 1e-4
_COUNTERS = ("index", "frame_index", "episode_index", "timestamp", "task_index")
_FIGURES = ("min", "max", "mean", "std")
_SHOWN = 3


class Problem(NamedTuple):
    """One thing that is wrong with a dataset.

    Attributes
    ----------
    kind
        One of `unienv_data.checking.KINDS`.
    text
        What is wrong, and where, in one sentence.
    """

    kind: str
    text: str


def is_dataset(path: Path) -> bool:
    """Whether a folder holds a LeRobot dataset, or what is left of one.

    Parameters
    ----------
    path
        The folder.

    Returns
    -------
    bool
        Whether there is a `meta/info.json`.
    """
    return (path / INFO).exists()


def dataset_problems(root: Path, progress: Callable[[int, int], object]) -> tuple[int | None, list[Problem]]:
    """All that is wrong with a LeRobot dataset.

    Parameters
    ----------
    root
        The folder of the dataset.
    progress
        Called as ``progress(done, total)`` with numbers of samples.

    Returns
    -------
    tuple
        How many samples there are, None if the dataset cannot be opened; and the list of problems.
    """
    unreadable = [Problem("unreadable", text) for text in broken_tables(root)]
    try:
        meta = load_meta(root)
    except FileNotFoundError as error:
        return None, [*unreadable, Problem("unfinished-episode", str(error))]
    except (ValueError, OSError, KeyError) as error:
        return None, [*unreadable, *([] if unreadable else [Problem("unreadable", _in_words(error))])]
    episodes = meta.episodes
    total = int(episodes.starts[-1])
    problems = [*unreadable, *_wrong_totals(meta)]
    tables, seen = Tables(episodes), _Seen(meta)
    for number in range(len(episodes.numbers)):
        problems += episode_problems(meta, tables, number, seen)
        progress(int(episodes.starts[number + 1]), total)
    for key in episodes.videos:
        wrong = [*video_problems(meta, key).values(), *misplaced_episodes(meta, key)]
        problems += [Problem("videos", text) for text in wrong]
    if not any(problem.kind in ("unreadable", "unreadable-samples") for problem in problems):
        problems += _wrong_statistics(meta, seen)
    return total, _few_of_each(problems)


def broken_tables(root: Path) -> Iterator[str]:
    """Yield one sentence for each table without a footer."""
    pq = need("pyarrow.parquet", extra="lerobot")
    for path in sorted([*root.glob("data/**/*.parquet"), *root.glob("meta/**/*.parquet")]):
        try:
            pq.read_metadata(path)
        except (OSError, ValueError, NotImplementedError):  # the last of a footer with damaged types
            yield f"{path}: the table has no footer: the recording was ended before finalize(), or the file was cut"


def _in_words(error: BaseException) -> str:
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _few_of_each(problems: Sequence[Problem]) -> list[Problem]:
    """Keep a few problems of each kind, and the number of the others."""
    shown: list[Problem] = []
    for kind in dict.fromkeys(problem.kind for problem in problems):
        same = [problem for problem in problems if problem.kind == kind]
        shown += same[:_SHOWN]
        if len(same) > _SHOWN:
            shown.append(Problem(kind, f"{len(same) - _SHOWN} more of this kind"))
    return shown


def _wrong_totals(meta: DatasetMeta) -> Iterator[Problem]:
    counts = {
        "total_episodes": len(meta.episodes.numbers),
        "total_frames": int(meta.episodes.starts[-1]),
        "total_tasks": len(meta.tasks),
    }
    for name, count in counts.items():
        if meta.info.get(name, count) != count:
            yield Problem("episodes", f"{meta.root / INFO}: {name} is {meta.info[name]}, the dataset has {count}")
    if not meta.episodes.starts[-1]:
        yield Problem("empty", f"{meta.root}: the dataset has no samples")


# -- samples ---------------------------------------------------------------------------------------------------


class _Seen:
    """Collects the statistics of episodes, by feature."""

    def __init__(self, meta: DatasetMeta) -> None:
        self.names = [
            name for name, feature in meta.features.items() if feature["dtype"] not in (VIDEO, STRING, "image")
        ]
        self.stats: dict[str, list[dict[str, np.ndarray]]] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        flat = values.reshape(len(values), -1)
        stats = summarize(flat)
        figures = {key: getattr(stats, key).astype(np.float64) for key in _FIGURES}
        self.stats.setdefault(name, []).append({**figures, "count": np.array([len(values)])})


def episode_problems(meta: DatasetMeta, tables: Tables, number: int, seen: _Seen | None = None) -> list[Problem]:
    """Find the problems of the rows of one episode."""
    episodes = meta.episodes
    start, stop = episodes.starts[number : number + 2].tolist()
    episode, count = f"episode {episodes.numbers[number]}", stop - start
    names = _Seen(meta).names if seen is None else seen.names
    columns: dict[str, np.ndarray] = {}
    for name, feature in meta.features.items():
        if feature["dtype"] == VIDEO:
            continue
        try:
            values = tables.read(name, np.arange(start, stop))  # images, too: the pages may have checksums
            if name in names:
                columns[name] = values
        except (ValueError, OSError, KeyError) as error:
            return [Problem("unreadable-samples", f"{episode}: {_in_words(error)}")]
    if rows_are_mixed(columns):
        numbers = sorted(set(columns["episode_index"].reshape(-1).tolist()))
        text = f"{episode}: its rows are of the episodes {numbers}: the column 'index' and the table of episodes differ"
        return [Problem("unreadable-samples", text)]
    problems = []
    steps = np.arange(count)
    for name, expected in (
        ("frame_index", steps),
        ("index", start + steps),
        ("episode_index", np.full(count, episodes.numbers[number])),
    ):
        if name in columns and not np.array_equal(columns[name].reshape(-1), expected):
            first = int(np.argmax(columns[name].reshape(-1) != expected))
            value = columns[name].reshape(-1)[first]
            problems.append(
                Problem("episodes", f"{episode}, frame {first}: {name} is {value}, it must be {expected[first]}")
            )
    if "timestamp" in columns:
        stamps = columns["timestamp"].reshape(-1).astype(np.float64)
        errors = np.abs(stamps - steps / meta.info["fps"])
        wrong = ~(errors <= TOLERANCE + np.spacing(np.abs(stamps).astype(np.float32)))
        if wrong.any():
            first = int(np.argmax(wrong))
            problems.append(
                Problem(
                    "timestamps",
                    f"{episode}: {int(wrong.sum())} timestamps are off the grid of {meta.info['fps']} fps by more than "
                    f"{TOLERANCE} s, the first is {stamps[first]:.6f} at frame {first}",
                )
            )
    if "task_index" in columns:
        unknown = sorted(set(columns["task_index"].reshape(-1).tolist()) - set(meta.tasks))
        if unknown:
            problems.append(
                Problem("tasks", f"{episode}: task_index {unknown[0]} is not among the tasks {sorted(meta.tasks)}")
            )
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            first = int(np.argmax(~np.isfinite(values.reshape(count, -1)).all(axis=1)))
            text = f"{episode}: {name} has NaN or infinite values, the first at {first}"
            problems.append(Problem("not-finite", text))
        if seen is not None:
            seen.add(name, values)
    return problems


def rows_are_mixed(columns: Mapping[str, np.ndarray]) -> bool:
    """Whether the rows of one episode have different episode numbers."""
    numbers = columns.get("episode_index", np.zeros(0))
    return bool((numbers != numbers[:1]).any())


def _wrong_statistics(meta: DatasetMeta, seen: _Seen) -> Iterator[Problem]:
    """Find the features whose statistics differ from their data."""
    try:
        known = load_stats(meta.root)
    except (ValueError, OSError, KeyError) as error:
        yield Problem("statistics", f"{meta.root}: the statistics cannot be read: {_in_words(error)}")
        return
    for name, stats in seen.stats.items():
        if name in _COUNTERS:
            continue
        merged = merge_stats(stats)
        if name not in known:
            yield Problem("statistics", f"there are no statistics of {name!r}")
            continue
        spread = float(np.max(merged["max"] - merged["min"], initial=0.0)) or 1.0
        for figure in _FIGURES:
            stored = np.asarray(known[name].get(figure, np.nan), np.float64).reshape(-1)
            actual = merged[figure].reshape(-1)
            if stored.shape != actual.shape or not (np.abs(stored - actual) <= 2e-3 * spread).all():
                yield Problem(
                    "statistics", f"the {figure} of {name!r} is {_short(stored)}, and {_short(actual)} in the data"
                )
                break


def _short(values: np.ndarray) -> str:
    return np.array2string(values, precision=4, threshold=6, edgeitems=2)


# -- videos ----------------------------------------------------------------------------------------------------


def video_problems(meta: DatasetMeta, key: str, *, spare: bool = True) -> dict[int, str]:
    """Find the episodes whose frames a camera lacks, with the reasons; with `spare` also frames of no episode."""
    episodes, fps = meta.episodes, float(meta.info["fps"])
    spans = episodes.videos[key]
    faults: dict[int, str] = {}
    by_path: dict[Path, list[int]] = {}
    for number, path in enumerate(spans.paths):
        by_path.setdefault(path, []).append(number)
    for path, numbers in by_path.items():
        times: np.ndarray | None = None
        is_key = np.zeros(0, bool)
        reason = f"{path}: there is no such file" if not path.exists() else ""
        if not reason:
            try:
                times, is_key = frame_times(path)
            except Exception as error:  # decoders raise many kinds of errors
                reason = f"{path}: the video cannot be opened: {error}"
        for number in numbers:
            episode = f"episode {episodes.numbers[number]}, {key!r}"
            if times is None:
                faults[number] = f"{episode}: {reason}"
                continue
            start, count = float(spans.starts[number]), int(episodes.lengths[number])
            inside = (times > start - 0.5 / fps) & (times < start + (count - 0.5) / fps)
            if int(inside.sum()) != count:
                faults[number] = f"{episode}: {path} has {int(inside.sum())} frames for {count} samples"
        if spare and times is not None and not faults:
            is_unused = np.ones(len(times), bool)
            for number in numbers:
                first = int(np.searchsorted(times, spans.starts[number] - 0.5 / fps))
                keys = np.flatnonzero(is_key[: first + 1])  # decoding an episode starts at the last key frame
                is_unused[keys[-1] if len(keys) else 0 : first + int(episodes.lengths[number])] = False
            if is_unused.any():
                faults[numbers[-1]] = f"{path}: {int(is_unused.sum())} frames belong to no episode"
    return faults


def misplaced_episodes(meta: DatasetMeta, key: str) -> Iterator[str]:
    """Yield one sentence for each episode whose span of video in the table has another length."""
    episodes, fps = meta.episodes, float(meta.info["fps"])
    for number, row in enumerate(episodes.metadata):
        start, stop = (row.get(f"videos/{key}/{end}_timestamp") for end in ("from", "to"))
        if start is None or stop is None:
            continue
        count = int(episodes.lengths[number])
        if abs((stop - start) * fps - count) > 0.5:
            yield (
                f"episode {episodes.numbers[number]}, {key!r}: {start:.6f} s to {stop:.6f} s is not the length of "
                f"{count} frames at {fps:g} fps"
            )


def frame_times(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted display times of a video's frames in seconds, and which are key frames, without decoding."""
    av = need("av", extra="lerobot")
    with av.open(os.fspath(path)) as container:
        stream = container.streams.video[0]
        packets = sorted(
            (packet.pts, packet.is_keyframe) for packet in container.demux(stream) if packet.pts is not None
        )
        table = np.array(packets, np.float64).reshape(-1, 2)
        return table[:, 0] * float(stream.time_base), table[:, 1] > 0
