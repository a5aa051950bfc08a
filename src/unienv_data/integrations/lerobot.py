"""LeRobot datasets as batches, in the layouts v2.0, v2.1 and v3.0, and batches written as LeRobot datasets.

Neither `lerobot` nor PyTorch is needed: tables are read with pyarrow, videos with PyAV.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import BackendLike, NumpyComputeBackend, parse_backend
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space, TextSpace
from unienv_interface.space.space_utils import batch_space, get_at
from unienv_interface.utils.optional import need

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.encoded_frames import EncodedFrames
from ..base.files import PathLike
from ..base.nested import columns_under, nested_item
from ..base.windows import Episodes as EpisodeBounds
from ..base.windows import split_axis
from ..storages.video_frames import FrameReader, FrameRequest, FrameTimestampError, VideoBackend
from ._lerobot_export import export_lerobot
from ._lerobot_meta import IMAGE, STRING, VIDEO, DatasetMeta, load_meta, load_stats
from ._lerobot_tables import Tables

__all__ = ["FrameTimestampError", "LeRobotAsUniEnvDataset", "LeRobotWindows", "export_lerobot"]

TASK = "task"
TOLERANCE = 1e-4


class LeRobotAsUniEnvDataset(BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A LeRobot dataset as a read-only batch of dicts, with an entry per feature, and `task`, the task in words.

    Entries have the names of the dataset, such as `observation.state`, and LeRobot's values: a feature of shape (1,) is
    a number without axes. Images are uint8 with the channels last, as in the files. The samples of an episode are
    consecutive, so that windows (`SliceStackedBatch`, `windows`) never cross an episode.

    Single columns can be read without the others. The video frames of a call are grouped by file and group of pictures,
    so that each frame is decoded once.

    Examples
    --------
    >>> dataset = LeRobotAsUniEnvDataset.from_local("pick", "numpy")
    >>> batch, metadata = dataset.windows({"action": [0.0, 0.1, 0.2]}).get_at_with_metadata([3, 8])
    >>> batch["action"].shape
    (2, 3, 6)
    """

    is_mutable = False
    is_segment_aware = True
    single_space: DictSpace

    def __init__(
        self,
        meta: DatasetMeta,
        space: DictSpace,
        tolerance_s: float = TOLERANCE,
        video_backend: VideoBackend = "auto",
    ) -> None:
        super().__init__(space)
        self.meta = meta
        self.tolerance_s = tolerance_s
        self._tables = Tables(meta.episodes)
        self._frames = FrameReader(backend=video_backend)

    @staticmethod
    def from_local(
        dataset_dir: PathLike,
        backend: BackendLike,
        device: Any = None,
        include_features: Sequence[str] | None = None,
        exclude_features: Sequence[str] | None = None,
        decode_video: bool = True,
        video_backend: VideoBackend = "auto",
        tolerance_s: float = TOLERANCE,
    ) -> LeRobotAsUniEnvDataset:
        """The dataset in a folder.

        Parameters
        ----------
        dataset_dir
            The folder that `meta/info.json` lies in.
        backend, device
            The backend and device of the samples.
        include_features, exclude_features
            The names of the features that samples have; by default all of them, and `task`.
        decode_video
            Without it samples have no features of videos.
        video_backend
            What decodes videos: "pyav", which "auto" stands for, or "torchcodec", where that and its FFmpeg are
            installed; their pixels differ by up to two levels.
        tolerance_s
            The largest difference in seconds between a video frame and the timestamp of its sample.

        Raises
        ------
        FileNotFoundError
            There is no dataset in the folder, or a recording that was never finalized.
        ValueError
            The metadata contradicts itself, or names a version or a kind of feature that is not known; or there is no
            such `video_backend`.
        ImportError
            `video_backend` is "torchcodec", and that or its FFmpeg is not installed.
        """
        meta = load_meta(Path(dataset_dir))
        space = _space(meta, include_features, exclude_features, decode_video)
        return LeRobotAsUniEnvDataset(meta, space.to(parse_backend(backend), device), tolerance_s, video_backend)

    @staticmethod
    def from_meta(meta: DatasetMeta) -> LeRobotAsUniEnvDataset:
        """The dataset whose metadata this is, with all features, on NumPy."""
        return LeRobotAsUniEnvDataset(meta, _space(meta, None, None, decode_video=True))

    @staticmethod
    def from_hub(
        repo_id: str,
        backend: BackendLike,
        device: Any = None,
        revision: str | None = None,
        local_dir: PathLike | None = None,
        **kwargs: Any,
    ) -> LeRobotAsUniEnvDataset:
        """The dataset of a repository of the Hugging Face Hub, which is downloaded as far as it is not there yet.

        Parameters
        ----------
        repo_id
            The name of the repository.
        backend, device
            Where the arrays of samples are to be.
        revision
            The branch, tag or commit; by default the newest.
        local_dir
            Where the files go; by default the cache of the Hub.
        **kwargs
            As for `from_local`.

        Returns
        -------
        LeRobotAsUniEnvDataset
            The dataset.

        Raises
        ------
        ImportError
            `huggingface_hub` is not installed.
        """
        hub = need("huggingface_hub", extra="lerobot")
        skipped = None if kwargs.get("decode_video", True) else ["videos/**"]
        folder = hub.snapshot_download(
            repo_id, repo_type="dataset", revision=revision, local_dir=local_dir, ignore_patterns=skipped
        )
        return LeRobotAsUniEnvDataset.from_local(folder, backend, device, **kwargs)

    # -- metadata of the dataset -----------------------------------------------------------------------------

    @property
    def num_episodes(self) -> int:
        """The number of episodes of the dataset."""
        return len(self.meta.episodes.numbers)

    @property
    def fps(self) -> float:
        """Samples per second, the same for all features."""
        return self.meta.info["fps"]

    @property
    def schema(self) -> dict[str, dict[str, Any]]:
        """The features as in `info.json`: `dtype`, `shape`, `names`."""
        return self.meta.features

    @property
    def tasks(self) -> dict[int, str]:
        """The tasks in words, by `task_index`."""
        return self.meta.tasks

    @property
    def stats(self) -> dict[str, dict[str, np.ndarray]]:
        """The statistics in the dataset, by feature: `min`, `max`, `mean`, `std`, `count`, quantiles."""
        return load_stats(self.meta.root)

    @property
    def episode_metadata(self) -> list[dict[str, Any]]:
        """The metadata of each episode, such as `episode_index`, `length` and `tasks`."""
        return self.meta.episodes.metadata

    @property
    def may_grow(self) -> bool:
        return False

    def __len__(self) -> int:
        return int(self.meta.episodes.starts[-1])

    def get_segments(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise(self.meta.episodes.starts.tolist()))

    def episodes_of(self, positions: np.ndarray) -> EpisodeBounds:
        starts = self.meta.episodes.starts
        number = np.searchsorted(starts, positions, side="right") - 1
        return EpisodeBounds(starts[number], starts[number + 1], 1)

    # -- reading ---------------------------------------------------------------------------------------------

    def get_episode(self, episode_index: int) -> Any:
        """All samples of the episode of that place, counted from 0; a negative one counts from the end."""
        number = resolve_index(NumpyComputeBackend, int(episode_index), self.num_episodes)
        start, stop = self.meta.episodes.starts[number : number + 2].tolist()
        return self.get_at(slice(start, stop))

    def windows(
        self, delta_timestamps: Mapping[str, Sequence[float]], tolerance_s: float = TOLERANCE
    ) -> LeRobotWindows:
        """A view in which some features are windows.

        Parameters
        ----------
        delta_timestamps, tolerance_s
            As for `LeRobotWindows`.

        Returns
        -------
        LeRobotWindows
            The view.
        """
        return LeRobotWindows(self, delta_timestamps, tolerance_s)

    def get_at(self, idx: Any) -> Any:
        return self._read(list(self.single_space.spaces), idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        if not nested_keys:
            return self.get_at(idx)
        nested_item(self.single_space, nested_keys)
        return nested_item(self._read(_names_under(nested_keys), idx), nested_keys)

    def encoded_frames(self, nested_keys: Sequence[Any], idx: Any) -> EncodedFrames | None:
        if len(nested_keys) != 1 or self._kind(nested_keys[0]) != VIDEO:
            return None
        positions = np.atleast_1d(np.asarray(resolve_index(self.backend, idx, len(self))))
        frames = self._frame_request(nested_keys[0], positions)
        return EncodedFrames(list(frames.paths), frames.seconds, self.fps)

    def _read(self, names: Sequence[str], idx: Any) -> Any:
        index = resolve_index(self.backend, idx, len(self))
        positions = np.atleast_1d(np.asarray(index))
        samples = self.read_columns(dict.fromkeys(names, positions))
        if isinstance(index, int):
            space = DictSpace(self.backend, {name: self.single_space[name] for name in names}, self.device)
            return get_at(space, samples, 0)
        return samples

    def read_columns(self, wanted: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Each of some columns at positions of its own, as batches; all their video frames are decoded together."""
        videos = [name for name in wanted if self._kind(name) == VIDEO]
        frames = self._frames.read([self._frame_request(name, wanted[name]) for name in videos])
        decoded = dict(zip(videos, frames, strict=True))
        return {
            name: self._as_batch_of(name, decoded[name] if name in decoded else self._values(name, positions))
            for name, positions in wanted.items()
        }

    def _kind(self, name: str) -> str:
        return STRING if name == TASK and TASK not in self.schema else self.schema[name]["dtype"]

    def _frame_request(self, name: str, positions: np.ndarray) -> FrameRequest:
        """Find the frames of a camera by LeRobot's timestamps; a video may contain several episodes."""
        episodes = self.meta.episodes
        number = np.searchsorted(episodes.starts, positions, side="right") - 1
        if "timestamp" in self.schema:
            times = self._tables.read("timestamp", positions).reshape(-1)
            rounding = np.spacing(np.abs(times)).astype(np.float64)
        else:
            times = (positions - episodes.starts[number]) / self.fps
            rounding = np.zeros(len(positions))
        spans = episodes.videos[name]
        paths = [spans.paths[i] for i in number.tolist()]
        return FrameRequest(
            paths, spans.starts[number] + times, self.tolerance_s + rounding, tuple(self.single_space[name].shape)
        )

    def _values(self, name: str, positions: np.ndarray) -> np.ndarray:
        """Read a column with its stored values."""
        if not len(positions):
            return np.empty(0)
        if name == TASK and TASK not in self.schema:
            return np.array([self._task(int(i)) for i in self._tables.read("task_index", positions)], object)
        values = self._tables.read(name, positions)
        if self._kind(name) != IMAGE:
            return values.reshape(len(positions), *self.single_space[name].shape) if values.dtype != object else values
        return np.stack([_image(value, self.meta.root, self.single_space[name].shape, name) for value in values])

    def _task(self, index: int) -> str:
        try:
            return self.tasks[index]
        except KeyError:
            raise ValueError(
                f"{self.meta.root}: task_index {index} is not among the tasks {sorted(self.tasks)}"
            ) from None

    def _as_batch_of(self, name: str, values: np.ndarray) -> Any:
        space = self.single_space[name]
        if not len(values):
            return batch_space(space, 0).create_empty()
        if isinstance(space, TextSpace):
            return values
        return self.backend.from_numpy(values, dtype=space.dtype, device=space.device)

    def close(self) -> None:
        self._frames.close()
        self._tables.close()


class LeRobotWindows(BatchBase):
    """A LeRobot dataset in which some features are windows, as LeRobot's `delta_timestamps` gives them.

    A frame beyond the episode is the first or the last of the episode, and true in `NAME_is_pad` of the metadata. Other
    features have the values of the sample.

    Parameters
    ----------
    batch
        The dataset.
    delta_timestamps
        For some features the seconds from a sample to the frames of its window, in any order.
    tolerance_s
        By how many seconds they may differ from multiples of the time between two frames.

    Raises
    ------
    ValueError
        There is no such feature, or there are no seconds of it, or they are no multiples of the time between two
        frames.

    Examples
    --------
    >>> dataset = LeRobotAsUniEnvDataset.from_local("pick", "numpy")
    >>> windows = dataset.windows({"action": [0.0, 0.1, 0.2]})
    >>> batch, metadata = windows.get_at_with_metadata([3, 8])
    >>> metadata["action_is_pad"].shape
    (2, 3)
    """

    is_mutable = False
    is_segment_aware = True
    single_space: DictSpace

    def __init__(
        self,
        batch: LeRobotAsUniEnvDataset,
        delta_timestamps: Mapping[str, Sequence[float]],
        tolerance_s: float = TOLERANCE,
    ) -> None:
        self.batch = batch
        self.delta_timestamps = {name: list(seconds) for name, seconds in delta_timestamps.items()}
        self._offsets = {
            name: _offsets(batch, name, seconds, tolerance_s) for name, seconds in self.delta_timestamps.items()
        }
        spaces = {
            name: batch_space(space, len(self._offsets[name])) if name in self._offsets else space
            for name, space in batch.single_space.items()
        }
        pads = {
            f"{name}_is_pad": BinarySpace(batch.backend, (len(offsets),), device=batch.device)
            for name, offsets in self._offsets.items()
        }
        super().__init__(DictSpace(batch.backend, spaces, batch.device), DictSpace(batch.backend, pads, batch.device))

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def may_grow(self) -> bool:
        return False

    def get_segments(self) -> list[tuple[int, int]]:
        return self.batch.get_segments()

    def episodes_of(self, positions: np.ndarray) -> EpisodeBounds:
        return self.batch.episodes_of(positions)

    def get_at(self, idx: Any) -> Any:
        return self._read(list(self.single_space.spaces), idx)[0]

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(list(self.single_space.spaces), idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self.get_column_at_with_metadata(nested_keys, idx)[0]

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any]]:
        if not nested_keys:
            return self._read(list(self.single_space.spaces), idx)
        nested_item(self.single_space, nested_keys)
        data, metadata = self._read(_names_under(nested_keys), idx)
        return nested_item(data, nested_keys), metadata

    def _read(self, names: Sequence[str], idx: Any) -> tuple[Any, dict[str, Any]]:
        index = resolve_index(self.backend, idx, len(self))
        positions = np.atleast_1d(np.asarray(index))
        start, stop, _ = self.batch.episodes_of(positions)
        wanted, pads = dict.fromkeys(names, positions), {}
        for name, offsets in self._offsets.items():
            frames = positions[:, None] + offsets
            filled = np.clip(frames, start[:, None], stop[:, None] - 1)
            pads[f"{name}_is_pad"] = self.backend.from_numpy(filled != frames, device=self.device)
            if name in wanted:
                wanted[name] = filled.reshape(-1)
        data = self.batch.read_columns(wanted)
        for name in names:
            if name in self._offsets:
                data[name] = split_axis(self.backend, data[name], (len(positions), len(self._offsets[name])))
        if isinstance(index, int):
            space = DictSpace(self.backend, {name: self.single_space[name] for name in names}, self.device)
            return get_at(space, data, 0), get_at(self.single_metadata_space, pads, 0)
        return data, pads


def _names_under(keys: Sequence[Any]) -> list[str]:
    """Return the features that contain the fields under these keys, which may end in `Columns`."""
    above, columns = columns_under(keys)
    return [above[0]] if above or columns is None else [key for key, _ in columns.fields]


def _offsets(batch: LeRobotAsUniEnvDataset, name: str, seconds: Sequence[float], tolerance_s: float) -> np.ndarray:
    """Convert seconds from a sample to numbers of samples."""
    spaces = batch.single_space.spaces
    if name not in spaces or isinstance(spaces[name], TextSpace):
        known = [key for key, space in spaces.items() if not isinstance(space, TextSpace)]
        raise ValueError(f"delta_timestamps: there is no feature {name!r} that windows can be made of, only {known}")
    exact = np.asarray(seconds, np.float64) * batch.fps
    if exact.ndim != 1 or not exact.size:
        raise ValueError(f"delta_timestamps: {name!r} has {seconds!r}, wanted a list of seconds")
    offsets = np.rint(exact)
    error = np.abs(exact - offsets) / batch.fps
    if (error > tolerance_s).any():
        worst = int(error.argmax())
        raise ValueError(
            f"delta_timestamps: {name!r} has {seconds[worst]} s, which is no multiple of 1/{batch.fps} s: the nearest "
            f"is {offsets[worst] / batch.fps:g} s, and the tolerance {tolerance_s} s"
        )
    return offsets.astype(np.int64)


# -- the space ---------------------------------------------------------------------------------------------


def _space(
    meta: DatasetMeta, include: Sequence[str] | None, exclude: Sequence[str] | None, decode_video: bool
) -> DictSpace:
    features = meta.features
    names = [*features, *([TASK] if "task_index" in features and TASK not in features else [])]
    for option, listed in (("include_features", include), ("exclude_features", exclude)):
        unknown = sorted(set(listed or ()) - set(names))
        if unknown:
            raise ValueError(f"{option}: there is no feature {unknown[0]!r}, only {names}")
    chosen = [name for name in names if (include is None or name in include) and name not in (exclude or ())]
    if not decode_video:
        chosen = [name for name in chosen if name not in features or features[name]["dtype"] != VIDEO]
    if not chosen:
        raise ValueError("no feature is left: include_features, exclude_features and decode_video leave out all")
    return DictSpace(NumpyComputeBackend, {name: _feature_space(meta, name) for name in chosen})


def _feature_space(meta: DatasetMeta, name: str) -> Space:
    backend = NumpyComputeBackend
    if name not in meta.features:
        return TextSpace(backend, max(map(len, meta.tasks.values()), default=0))
    feature = meta.features[name]
    kind, shape = feature["dtype"], tuple(feature["shape"])
    if kind in (VIDEO, IMAGE):
        return BoxSpace(backend, 0, 255, "uint8", shape=_image_shape(shape, feature.get("names"), name))
    if kind == STRING:
        return TextSpace(backend, Tables(meta.episodes).longest_text(name))
    shape = () if shape == (1,) else shape
    if kind == "bool":
        return BinarySpace(backend, shape)
    try:
        dtype = np.dtype(kind)
    except TypeError:
        raise ValueError(
            f"feature {name!r} has dtype {kind!r}, which is not known: name it in exclude_features"
        ) from None
    return BoxSpace(backend, -np.inf, np.inf, dtype.name, shape=shape)


def _image_shape(shape: tuple[int, ...], names: Any, name: str) -> tuple[int, ...]:
    """Return height, width and channels of frames; some datasets have the channels first."""
    if len(shape) != 3:
        raise ValueError(f"feature {name!r} has shape {shape}, an image has height, width and channels")
    named = [str(axis).startswith("channel") for axis in names] if isinstance(names, (list, tuple)) else []
    first = named[0] if any(named) else shape[2] not in (1, 3, 4)
    return (shape[1], shape[2], 3) if first else (shape[0], shape[1], 3)


def _image(value: Mapping[str, Any], root: Path, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Decode an image in a table, or in a file beside it."""
    image = need("PIL.Image", extra="lerobot")
    if value.get("bytes") is not None:
        source: Any = io.BytesIO(value["bytes"])
    else:
        relative = Path(value["path"])
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"feature {name!r} names the image {relative}, which lies outside of the dataset's folder")
        source = root / relative
    with image.open(source) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    if pixels.shape != shape:
        raise ValueError(f"feature {name!r} has an image of shape {pixels.shape}, the features say {shape}")
    return pixels
