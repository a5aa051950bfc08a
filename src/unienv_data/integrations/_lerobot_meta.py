"""The `meta` folder of a LeRobot dataset: features, episodes, tasks, statistics; v2.0, v2.1, v3.0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

VERSION = "v3.0"
CHUNK_SIZE = 1000
V3_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
V3_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
V2_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
VIDEO, IMAGE, STRING = "video", "image", "string"


@dataclass(frozen=True)
class VideoSpans:
    """The positions of episodes in the videos of one camera: the file of each episode, and its first second there."""

    paths: list[Path]
    starts: np.ndarray


@dataclass(frozen=True)
class Episodes:
    """The episodes in order, and the positions of their rows.

    The samples of episode i are [starts[i], starts[i + 1]). They are rows of the file `files[file_of[i]]`, from the row
    with the `index` `from_index[i]` on, or from the first row on if `from_index` is None.
    """

    numbers: np.ndarray
    starts: np.ndarray
    files: list[Path]
    file_of: np.ndarray
    from_index: np.ndarray | None
    videos: Mapping[str, VideoSpans]
    metadata: list[dict[str, Any]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


@dataclass(frozen=True)
class DatasetMeta:
    """The metadata of a LeRobot dataset."""

    root: Path
    info: Mapping[str, Any]
    episodes: Episodes
    tasks: dict[int, str]

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        return self.info["features"]


def load_meta(root: Path) -> DatasetMeta:
    """Load the metadata of the dataset in a folder.

    Raises
    ------
    FileNotFoundError
        A file of `meta` is missing: the folder has no dataset, or its recording was never finalized.
    ValueError
        The version is unknown, or the metadata contradicts itself.
    """
    info = read_json_of(root, INFO)
    version = str(info.get("codebase_version", ""))
    missing = [key for key in ("features", "fps") if key not in info]
    if missing:
        raise ValueError(f"{root / INFO}: there is no {missing[0]!r} in it")
    videos = [key for key, feature in info["features"].items() if feature["dtype"] == VIDEO]
    if version.startswith("v3."):
        return DatasetMeta(root, info, _episodes_v3(root, info, videos), load_tasks(root))
    if version.startswith("v2."):
        tasks = {
            int(row["task_index"]): str(row["task"]) for row in _read_lines(root, "meta/tasks.jsonl", needed=False)
        }
        return DatasetMeta(root, info, _episodes_v2(root, info, videos), tasks)
    raise ValueError(f"{root / INFO}: codebase_version is {version!r}, v2.0, v2.1 and v3.0 can be read")


# -- v3.0 --------------------------------------------------------------------------------------------------


def _episodes_v3(root: Path, info: Mapping[str, Any], videos: Sequence[str]) -> Episodes:
    pq = need("pyarrow.parquet", extra="lerobot")
    folder = root / "meta" / "episodes"
    paths = sorted(folder.glob("**/*.parquet"))
    if not paths:
        raise FileNotFoundError(
            f"{folder}: there is no table of episodes in it; a recording that was ended before finalize() has none"
        )
    rows: list[dict[str, Any]] = []
    for path in paths:
        names = [name for name in pq.read_schema(path).names if not name.startswith("stats/")]
        rows += pq.read_table(path, columns=names, page_checksum_verification=True).to_pylist()
    rows.sort(key=lambda row: row["episode_index"])
    starts, ends = (np.array([row[f"dataset_{side}_index"] for row in rows], np.int64) for side in ("from", "to"))
    lengths = _check_lengths(folder, rows, ends - starts)
    template = info.get("data_path") or V3_DATA

    def file_at(prefix: str, template: str, row: Mapping[str, Any], **names: str) -> Path:
        indices = {f"{level}_index": row[f"{prefix}/{level}_index"] for level in ("chunk", "file")}
        return inside(root, template, **indices, **names)

    files, file_of = _unique([file_at("data", template, row) for row in rows])
    template = info.get("video_path") or V3_VIDEO
    spans = {
        key: VideoSpans(
            [file_at(f"videos/{key}", template, row, video_key=key) for row in rows],
            np.array([row[f"videos/{key}/from_timestamp"] for row in rows], np.float64),
        )
        for key in videos
    }
    return Episodes(_numbers(rows), _starts(lengths), files, file_of, starts, spans, rows)


def load_tasks(root: Path) -> dict[int, str]:
    """Load the tasks of a v3.0 dataset in words, by their index."""
    pq = need("pyarrow.parquet", extra="lerobot")
    if not (root / TASKS).exists():
        return {}
    table = pq.read_table(root / TASKS)
    texts = [name for name in table.column_names if name != "task_index"]
    if len(texts) != 1:
        raise ValueError(f"{root / TASKS}: columns {table.column_names}, wanted task_index and the text of the task")
    return dict(zip(table["task_index"].to_pylist(), map(str, table[texts[0]].to_pylist()), strict=True))


# -- v2.0 and v2.1 -----------------------------------------------------------------------------------------


def _episodes_v2(root: Path, info: Mapping[str, Any], videos: Sequence[str]) -> Episodes:
    rows = sorted(_read_lines(root, "meta/episodes.jsonl"), key=lambda row: row["episode_index"])
    lengths = np.array([row["length"] for row in rows], np.int64)
    size = int(info.get("chunks_size") or CHUNK_SIZE)

    def paths(template: str, **names: str) -> list[Path]:
        numbers = [int(row["episode_index"]) for row in rows]
        return [inside(root, template, episode_chunk=i // size, episode_index=i, **names) for i in numbers]

    files = paths(info.get("data_path") or V2_DATA)
    template = info.get("video_path") or V2_VIDEO
    spans = {key: VideoSpans(paths(template, video_key=key), np.zeros(len(rows))) for key in videos}
    return Episodes(_numbers(rows), _starts(lengths), files, np.arange(len(rows)), None, spans, rows)


# -- statistics --------------------------------------------------------------------------------------------


def load_stats(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Load the statistics of the whole dataset by feature; the statistics per episode of v2.1 are merged."""
    if (root / STATS).exists():
        return _as_arrays(read_json_of(root, STATS))
    rows = [_as_arrays(row["stats"]) for row in _read_lines(root, "meta/episodes_stats.jsonl", needed=False)]
    features = {key: None for stats in rows for key in stats}
    return {key: merge_stats([stats[key] for stats in rows if key in stats]) for key in features}


def merge_stats(episodes: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Merge the statistics of several episodes; a quantile becomes the weighted mean, as in LeRobot."""
    counts = np.array([np.asarray(stats["count"]).reshape(-1)[0] for stats in episodes], np.float64)
    shares = counts / counts.sum()

    def weighted(values: Iterable[Any]) -> np.ndarray:
        return np.tensordot(shares, np.stack([np.asarray(value, np.float64) for value in values]), axes=1)

    mean = weighted(stats["mean"] for stats in episodes)
    squares = weighted(np.square(stats["std"]) + np.square(stats["mean"] - mean) for stats in episodes)
    merged = {
        "min": np.min(np.stack([stats["min"] for stats in episodes]), axis=0),
        "max": np.max(np.stack([stats["max"] for stats in episodes]), axis=0),
        "mean": mean,
        "std": np.sqrt(squares),
        "count": np.array([int(counts.sum())]),
    }
    kept = [name for name in QUANTILES if all(name in stats for stats in episodes)]
    return {**merged, **{name: weighted(stats[name] for stats in episodes) for name in kept}}


def _as_arrays(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    return {key: {name: np.array(value) for name, value in entry.items()} for key, entry in stats.items()}


# -- shared ------------------------------------------------------------------------------------------------


def inside(root: Path, template: str, **names: Any) -> Path:
    """Fill in a path template of `info.json`; the path must stay inside the dataset's folder."""
    try:
        relative = PurePosixPath(template.format(**names))
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"{root / INFO}: the path template {template!r} cannot be filled in: {error}") from None
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"{root / INFO}: the path template {template!r} leads out of the dataset's folder")
    return root / relative


def read_json_of(root: Path, name: str) -> Any:
    path = root / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file, so {root} is not a LeRobot dataset")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None


def _read_lines(root: Path, name: str, *, needed: bool = True) -> list[dict[str, Any]]:
    path = root / name
    if not path.exists():
        if needed:
            raise FileNotFoundError(f"{path}: there is no such file, a v2 dataset needs it")
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: a line is not JSON: {error}") from None


def _check_lengths(folder: Path, rows: Sequence[Mapping[str, Any]], lengths: np.ndarray) -> np.ndarray:
    for row, length in zip(rows, lengths.tolist(), strict=True):
        if length < 0 or row.get("length", length) != length:
            raise ValueError(
                f"{folder}: episode {row['episode_index']} has length {row.get('length')}, and the range "
                f"[{row['dataset_from_index']}, {row['dataset_to_index']}) has {length}"
            )
    return lengths


def _numbers(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    return np.array([row["episode_index"] for row in rows], np.int64)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _unique(paths: Sequence[Path]) -> tuple[list[Path], np.ndarray]:
    """Return the unique paths, and for each entry the index of its path."""
    numbers: dict[Path, int] = {}
    indices = [numbers.setdefault(path, len(numbers)) for path in paths]
    return list(numbers), np.array(indices, np.int64)
