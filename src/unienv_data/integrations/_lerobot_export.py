"""Export of batches as LeRobot datasets, in the layout v3.0."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import dtypes
from unienv_interface.space import Space, TextSpace
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import ArraySpace, BinarySpace

from ..base.common import BatchBase
from ..base.files import PathLike, remove_leftovers, replace_folder
from ..batches.statistics import ColumnStatistics, summarize
from ..replay_buffer import ReplayBuffer
from ..storages.columns import column_rules
from ..storages.video_storage import Video
from ._lerobot_copying import VideoCopier, encoded_episodes
from ._lerobot_meta import (
    CHUNK_SIZE,
    INFO,
    QUANTILES,
    STATS,
    STRING,
    TASKS,
    V3_DATA,
    V3_VIDEO,
    VERSION,
    VIDEO,
    load_meta,
    merge_stats,
)
from ._lerobot_writing import Cursor, EpisodeTable, TableWriter, VideoWriter, write_tasks

TASK = "task"
RESERVED = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_OBSERVATION = ("obs", "observation")
_NEXT_OBSERVATION = (("next_obs",), ("next", "observation"))
_NAMES = {"reward": "next.reward", "terminated": "next.terminated", "truncated": "next.truncated"}
_CHUNK_BYTES = 32 * 2**20
_MOST_IMAGES, _IMAGE_SIZE = 100, 150  # of an episode, for statistics

ProgressCallback = Callable[[int, int], object]


@dataclass(frozen=True)
class LeRobotExport:
    """The result of `export_lerobot`.

    Attributes
    ----------
    path
        The folder.
    episodes, frames
        How many of them were written.
    features
        The names of the features.
    """

    path: str
    episodes: int
    frames: int
    features: list[str]


def export_lerobot(
    batch: BatchBase,
    path: PathLike,
    *,
    mapping: Mapping[str, str | Sequence[Any]] | None = None,
    fps: float | None = None,
    task: str | Sequence[str] | None = None,
    robot_type: str | None = None,
    codec: str = "h264",
    progress: ProgressCallback | None = None,
) -> LeRobotExport:
    """Write the episodes of a batch as a LeRobot dataset of v3.0: tables, videos, tasks and statistics.

    Images (uint8 with three channels, first or last) are encoded as videos. Existing videos of this `fps` are copied
    without encoding: columns of `Video` with H.264, HEVC or AV1, and the videos of a LeRobot dataset, also through
    `select`, `split` and `CombinedBatch`. The folder appears when it is complete, or not at all. Memory is bounded.

    Parameters
    ----------
    batch
        A batch that knows its episodes. Open episodes are written, too.
    path
        The new folder.
    mapping
        The column for each feature, by its path, such as `{"observation.state": "obs/joints"}`. By default all columns
        but the next observation: `obs/NAME` becomes `observation.NAME`, or `observation.images.NAME`, an observation
        that is one array `observation.state`, `reward` becomes `next.reward`, and others keep their names.
    fps
        Samples per second; by default those of the LeRobot dataset, or of the buffer's columns of `Video`.
    task
        The task in words, one for all episodes or one for each; by default the text column `task`.
    robot_type
        The name of the robot.
    codec
        The codec for images: "h264" or "av1".
    progress
        Called as ``progress(done, total)`` with numbers of samples.

    Returns
    -------
    LeRobotExport
        What was written.

    Raises
    ------
    FileExistsError
        There is something at `path`.
    ValueError
        The batch does not know its episodes, a column cannot be exported, or `fps` or `task` is missing.
    RuntimeError
        What was written does not read back.

    Examples
    --------
    >>> export_lerobot(buffer, "pick", fps=30, task="pick the cube")  # doctest: +SKIP
    """
    target = Path(path)
    if os.path.lexists(target):
        raise FileExistsError(f"{target}: it exists already, give another path")
    source = _Source(batch, mapping, fps, task)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    try:
        _write(source, temporary, robot_type, codec, progress or (lambda done, total: None))
        written = load_meta(temporary).episodes
        if (len(written.numbers), written.starts[-1]) != (len(source.episodes), source.total):
            raise RuntimeError(f"{target}: the written episodes do not read back")
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return LeRobotExport(str(target), len(source.episodes), source.total, list(source.features))


# -- features, episodes and tasks --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Feature:
    """One feature, and its column in the batch."""

    name: str
    keys: tuple[Any, ...]
    space: Any  # an ArraySpace or a TextSpace
    is_image: bool

    @property
    def shape(self) -> tuple[int, ...]:
        if isinstance(self.space, TextSpace):
            return (1,)
        shape = tuple(self.space.shape)
        if self.is_image and shape[2] != 3:
            return (shape[1], shape[2], 3)
        return shape or (1,)

    @property
    def dtype(self) -> str:
        if isinstance(self.space, TextSpace):
            return STRING
        return VIDEO if self.is_image else self.space.backend.dtype_name(self.space.dtype)

    def on_host(self, values: Any) -> np.ndarray:
        """Convert values of the column to LeRobot's form: images with the channels last, numbers with an axis."""
        if self.dtype == STRING:
            return np.asarray(values, object)
        array = self.space.backend.to_numpy(values)
        if self.is_image and self.space.shape[2] != 3:
            array = np.moveaxis(array, 1, -1)
        return array.reshape(len(array), *self.shape)


def _rate_of(batch: BatchBase) -> float | None:
    """The samples per second of a LeRobot dataset, or of a buffer whose columns of video have one rate."""
    from .lerobot import LeRobotAsUniEnvDataset

    if isinstance(batch, LeRobotAsUniEnvDataset):
        return batch.fps
    rules = column_rules(batch.storage) if isinstance(batch, ReplayBuffer) else {}
    rates = {rule.fps for rule in rules.values() if isinstance(rule, Video)}
    return rates.pop() if len(rates) == 1 else None


class _Source:
    """The batch to export: its features, episodes and tasks."""

    def __init__(
        self,
        batch: BatchBase,
        mapping: Mapping[str, str | Sequence[Any]] | None,
        fps: float | None,
        task: str | Sequence[str] | None,
    ) -> None:
        self.batch = batch
        rate = _rate_of(batch) if fps is None else fps
        if rate is None or not rate > 0:
            raise ValueError(f"fps is {rate}, it must be the number of samples per second: give fps (--fps)")
        self.fps = int(rate) if float(rate).is_integer() else float(rate)
        leaves = {leaf.name: leaf for leaf in RowLayout(batch.single_space).leaves}
        if mapping is None:
            mapping = {
                _feature_name(leaf.path, leaf.space): leaf.name for leaf in leaves.values() if _is_wanted(leaf.path)
            }
        self.features = {name: _feature(name, column, leaves) for name, column in mapping.items()}
        if not self.features:
            raise ValueError("there is no column to export")
        self.episodes = _episodes(batch)
        self.total = sum(len(indices) for indices in self.episodes)
        self.task_keys: tuple[Any, ...] | None = None
        self._tasks: Sequence[str] = ()
        if isinstance(task, str):
            self._tasks = [task] * len(self.episodes)
        elif task is not None:
            self._tasks = list(task)
            if len(self._tasks) != len(self.episodes):
                raise ValueError(f"task has {len(self._tasks)} texts, and there are {len(self.episodes)} episodes")
        elif TASK in leaves and isinstance(leaves[TASK].space, TextSpace):
            self.task_keys = leaves[TASK].path
        else:
            raise ValueError(
                "task is None and there is no text column 'task': describe the task, such as 'pick the cube'"
            )

    def tasks_of(self, episode: int) -> list[str]:
        """Return the task of each sample of an episode."""
        indices = self.episodes[episode]
        if self.task_keys is None:
            return [self._tasks[episode]] * len(indices)
        return [str(text) for text in self.batch.get_column_at(self.task_keys, indices)]

    def chunks(self, feature: _Feature, episode: int) -> Iterator[np.ndarray]:
        """Yield the values of a feature in an episode, in chunks of bounded size."""
        indices = self.episodes[episode]
        nbytes = 8 * int(np.prod(feature.shape)) if not feature.is_image else int(np.prod(feature.shape))
        rows = max(1, _CHUNK_BYTES // max(nbytes, 1))
        for start in range(0, len(indices), rows):
            chunk = indices[start : start + rows]
            values = self.batch.get_column_at(feature.keys, chunk) if feature.keys else self.batch.get_at(chunk)
            yield feature.on_host(values)


def _is_wanted(path: tuple[Any, ...]) -> bool:
    """Whether a column is exported by default: the next observation is the observation of the next sample."""
    is_next = any(path[: len(keys)] == keys for keys in _NEXT_OBSERVATION)
    return not is_next and (len(path) != 1 or path[0] not in (*RESERVED, TASK))


def _feature_name(path: tuple[Any, ...], space: Space) -> str:
    keys = [str(key).replace("/", ".") for key in path]
    if not keys:
        return "observation.image" if _is_image(space) else "observation.state"
    if keys[0] in _OBSERVATION:
        images = ["images"] if _is_image(space) else []
        return ".".join(["observation", *images, *(keys[1:] or ["main" if images else "state"])])
    return _NAMES.get(keys[0], keys[0]) if len(keys) == 1 else ".".join(keys)


def _feature(name: str, column: str | Sequence[Any], leaves: Mapping[str, Any]) -> _Feature:
    if "/" in name or name in RESERVED or name == TASK or not name:
        raise ValueError(f"feature {name!r}: {[*RESERVED, TASK]} are reserved, and names must not have a slash")
    leaf = leaves.get(column) if isinstance(column, str) else None
    if leaf is None:
        leaf = next(
            (leaf for leaf in leaves.values() if not isinstance(column, str) and leaf.path == tuple(column)), None
        )
    if leaf is None:
        raise ValueError(f"feature {name!r}: there is no column {column!r}, only {list(leaves)}")
    space = leaf.space
    is_array = isinstance(space, ArraySpace) and space.backend.dtype_name(space.dtype) not in (
        dtypes.COMPLEX | {"bfloat16"}
    )
    if not is_array and not isinstance(space, TextSpace):
        raise ValueError(
            f"column {leaf.name!r} holds {space}, LeRobot has arrays of one shape and texts: leave it out of `mapping`"
        )
    return _Feature(name, leaf.path, space, _is_image(space))


def _is_image(space: Space) -> bool:
    """Whether a column is exported as video: colour images of uint8."""
    if not isinstance(space, ArraySpace) or isinstance(space, BinarySpace):
        return False
    shape = space.shape
    return len(shape) == 3 and 3 in (shape[0], shape[2]) and space.backend.dtype_name(space.dtype) == "uint8"


def _episodes(batch: BatchBase) -> list[np.ndarray]:
    """Return the indices of each episode, in the order of their starts."""
    bounds = batch.episodes_of(np.arange(len(batch)))
    if bounds is None:
        raise ValueError(
            f"a LeRobot dataset consists of episodes, and {type(batch).__name__} does not know them: record with "
            "keep_episodes=True"
        )
    starts, first = np.unique(bounds.start, return_index=True)
    if not len(starts):
        raise ValueError("there is no episode to export")
    strides = np.broadcast_to(bounds.stride, len(bounds.start))[first]
    ranges = zip(starts.tolist(), bounds.stop[first].tolist(), strides.tolist(), strict=True)
    return [np.arange(*ends) for ends in ranges]


# -- writing -----------------------------------------------------------------------------------------------


def _write(source: _Source, root: Path, robot_type: str | None, codec: str, progress: ProgressCallback) -> None:
    (root / "meta").mkdir(parents=True)
    videos: dict[str, VideoWriter | VideoCopier] = {}
    for feature in source.features.values():
        if feature.is_image:
            encoded = encoded_episodes(source.batch, feature.keys, source.episodes, source.fps)
            videos[feature.name] = (
                VideoWriter(root, feature.name, feature.shape, source.fps, codec)
                if encoded is None
                else VideoCopier(root, feature.name, encoded, source.fps)
            )
    tasks: dict[str, int] = {}
    by_feature: dict[str, list[dict[str, np.ndarray]]] = {}
    done = 0
    tables, table = TableWriter(root, V3_DATA), EpisodeTable(root)
    try:
        progress(0, source.total)
        for number, indices in enumerate(source.episodes):
            count = len(indices)
            texts = source.tasks_of(number)
            columns: dict[str, np.ndarray] = {}
            row: dict[str, Any] = {
                "episode_index": number,
                "tasks": list(dict.fromkeys(texts)),
                "length": count,
                "dataset_from_index": done,
                "dataset_to_index": done + count,
            }
            stats: dict[str, dict[str, np.ndarray]] = {}
            for name, feature in source.features.items():
                if feature.is_image:
                    stats[name], video_entries = _write_video(source, feature, number, videos[name])
                    row |= video_entries
                    continue
                columns[name] = np.concatenate(list(source.chunks(feature, number)))
                if feature.dtype != STRING:
                    stats[name] = _as_dict(summarize(columns[name]), columns[name].dtype, count)
            counters: dict[str, np.ndarray] = {
                "timestamp": (np.arange(count) / source.fps).astype(np.float32),
                "frame_index": np.arange(count),
                "episode_index": np.full(count, number),
                "index": np.arange(done, done + count),
                "task_index": np.array([tasks.setdefault(text, len(tasks)) for text in texts], np.int64),
            }
            for name, values in counters.items():
                stats[name] = _as_dict(summarize(values[:, None]), values.dtype, count)
            position = tables.add({**columns, **counters})
            row |= {"data/chunk_index": position.chunk, "data/file_index": position.file}
            row |= {
                f"stats/{name}/{key}": value.tolist()
                for name, figures in stats.items()
                for key, value in figures.items()
            }
            table.add(row)
            for name, figures in stats.items():
                by_feature.setdefault(name, []).append(figures)
            done += count
            progress(done, source.total)
        for video in videos.values():
            video.close()
        tables.close()
        table.close()
    except BaseException:
        for writer in (*videos.values(), tables, table):
            writer.abandon()
        raise
    write_tasks(root / TASKS, tasks)
    merged = {name: merge_stats(stats) for name, stats in by_feature.items()}
    _write_json(root / STATS, {name: {k: v.tolist() for k, v in stats.items()} for name, stats in merged.items()})
    _write_json(root / INFO, _info(source, robot_type, videos, len(tasks)))


def _write_video(
    source: _Source, feature: _Feature, number: int, video: VideoWriter | VideoCopier
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Write an episode of a camera; return its statistics, and its entries in the table of episodes."""
    count = len(source.episodes[number])
    sampled = np.unique(np.linspace(0, count - 1, min(count, _MOST_IMAGES)).astype(np.int64))
    step = max(1, max(feature.shape[:2]) // _IMAGE_SIZE)
    kept = []
    if isinstance(video, VideoWriter):
        first = 0
        for frames in source.chunks(feature, number):
            video.add(frames)
            in_chunk = sampled[(sampled >= first) & (sampled < first + len(frames))] - first
            kept.append(frames[in_chunk, ::step, ::step])
            first += len(frames)
    else:
        frames = source.batch.get_column_at(feature.keys, source.episodes[number][sampled])
        kept.append(feature.on_host(frames)[:, ::step, ::step])
    position = video.end_episode(count)
    pixels = np.concatenate(kept).reshape(-1, 3)
    figures = _as_dict(summarize(pixels), np.dtype(np.float64), len(sampled))
    stats = {key: value if key == "count" else value.reshape(3, 1, 1) / 255 for key, value in figures.items()}
    prefix = f"videos/{feature.name}"
    return stats, {
        f"{prefix}/chunk_index": position.chunk,
        f"{prefix}/file_index": position.file,
        f"{prefix}/from_timestamp": position.start,
        f"{prefix}/to_timestamp": position.start + count / source.fps,
    }


def _as_dict(stats: ColumnStatistics, dtype: np.dtype, count: int) -> dict[str, np.ndarray]:
    """Convert statistics to LeRobot's form, with one count for all dimensions."""
    extremes = {name: getattr(stats, name) for name in ("min", "max")}
    if dtype == np.bool_:
        extremes = {name: value.astype(bool) for name, value in extremes.items()}
    figures = {name: getattr(stats, name) for name in ("mean", "std")}
    return {**extremes, **figures, "count": np.array([count]), **{name: getattr(stats, name) for name in QUANTILES}}


def _info(
    source: _Source, robot_type: str | None, videos: Mapping[str, VideoWriter | VideoCopier], tasks: int
) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, feature in source.features.items():
        names = ["height", "width", "channels"] if feature.is_image else None
        features[name] = {"dtype": feature.dtype, "shape": list(feature.shape), "names": names}
        if name in videos:
            features[name]["info"] = videos[name].info()
    for name in RESERVED:
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    count = len(source.episodes)
    return {
        "codebase_version": VERSION,
        "robot_type": robot_type,
        "total_episodes": count,
        "total_frames": source.total,
        "total_tasks": tasks,
        "chunks_size": CHUNK_SIZE,
        "data_files_size_in_mb": Cursor.DATA_BYTES // 2**20,
        "video_files_size_in_mb": Cursor.VIDEO_BYTES // 2**20,
        "fps": source.fps,
        "splits": {"train": f"0:{count}"},
        "data_path": V3_DATA,
        "video_path": V3_VIDEO if videos else None,
        "features": features,
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")
