"""Writing the images of an episode as a video, or as a sheet of frames."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.utils.optional import need

from ..base.common import BatchBase
from ..base.files import PathLike
from ..batches.statistics import is_image, usable_columns
from ..integrations.lerobot import LeRobotAsUniEnvDataset
from ..integrations.lerobot_check import is_dataset
from ..replay_buffer import ReplayBuffer
from ..storages.columns import column_rules
from ..storages.video_storage import Video
from .reading import ProgressCallback, columns_of, open_folder, unwatched

_CHUNK_FRAMES = 32
# Pixels of a sheet: its width, the width of a tile, the gap between tiles, the line of numbers above tiles.
_SHEET_WIDTH, _TILE_WIDTH, _GAP, _LINE = 1600, 320, 4, 14


@dataclass(frozen=True)
class ShowReport:
    """The result of `show`.

    Attributes
    ----------
    path : str
        The folder of the recording.
    episode : int
        The episode, as given to `show`.
    samples : int
        The number of its samples.
    columns : list of str
        The columns of images that are shown.
    files : list of str
        The files that were written.

    Examples
    --------
    >>> report = unienv_data.checking.show("data/", mp4="episode.mp4")  # doctest: +SKIP
    >>> report.samples, report.files  # doctest: +SKIP
    (212, ['episode.mp4'])
    """

    path: str
    episode: int
    samples: int
    columns: list[str]
    files: list[str]


def show(
    path: PathLike,
    *,
    episode: int = 0,
    mp4: PathLike | None = None,
    png: PathLike | None = None,
    columns: Sequence[str] = (),
    fps: float | None = None,
    frames: int = 24,
    progress: ProgressCallback | None = None,
) -> ShowReport:
    """Write the images of an episode as a video, as a sheet of frames, or as both.

    Parameters
    ----------
    path
        The folder of a replay buffer or of a LeRobot dataset.
    episode
        The number of the episode, counted from 0; a negative number counts from the end.
    mp4, png
        The files to write. Existing files are replaced.
    columns
        The columns of images to show side by side; by default all.
    fps
        Frames per second of the video; by default as in the LeRobot dataset or the columns of video, else 30.
    frames
        The number of frames in the sheet, spread over the episode.
    progress
        Called as ``progress(done, total)`` with numbers of frames of the video.

    Returns
    -------
    ShowReport
        The episode and the written files.

    Raises
    ------
    ValueError
        Neither `mp4` nor `png` is given, the recording or a column has no images, the episode does not exist, or
        `frames` is below 1.
    FileNotFoundError
        The folder does not exist, or has no recording.
    StorageCorruptedError
        The recording cannot be opened, or a frame cannot be read.

    Examples
    --------
    >>> unienv_data.checking.show("data/", episode=-1, png="last_episode.png")  # doctest: +SKIP
    """
    if mp4 is None and png is None:
        raise ValueError("nothing to write: give a file for the video (mp4), for the sheet of frames (png), or both")
    if frames < 1:
        raise ValueError(f"frames is {frames}, it must be at least 1")
    folder = Path(path)
    dataset = LeRobotAsUniEnvDataset.from_local(folder, NumpyComputeBackend) if is_dataset(folder) else None
    with dataset if dataset is not None else open_folder(folder) as batch:
        indices = _episode(batch, episode)
        reader = _Cameras(batch, columns)
        rate = fps if fps is not None else _rate(batch, reader.names)
        show_done = progress or unwatched
        if mp4 is not None:
            _write_video(Path(mp4), reader, indices, rate, lambda done: show_done(done, len(indices)))
        if png is not None:
            _write_sheet(Path(png), reader, indices, frames)
        written = [str(file) for file in (mp4, png) if file is not None]
        return ShowReport(str(path), episode, len(indices), reader.names, written)


def _episode(batch: BatchBase, number: int) -> np.ndarray:
    """Return the indices of an episode."""
    bounds = batch.episodes_of(np.arange(len(batch)))
    if bounds is None:
        starts = np.zeros(min(1, len(batch)), np.int64)
        stops, strides = np.full(len(starts), len(batch)), np.ones(len(starts), np.int64)
    else:
        starts, first = np.unique(bounds.start, return_index=True)
        stops, strides = bounds.stop[first], np.broadcast_to(bounds.stride, bounds.start.shape)[first]
    if not -len(starts) <= number < len(starts):
        raise ValueError(f"there is no episode {number}: there are {len(starts)}, counted from 0")
    return np.arange(starts[number], stops[number], strides[number])


def _rate(batch: BatchBase, names: Sequence[str]) -> float:
    """Return the frames per second of a recording, 30 if it has none."""
    if isinstance(batch, LeRobotAsUniEnvDataset):
        return float(batch.fps)
    rules = column_rules(batch.storage) if isinstance(batch, ReplayBuffer) else {}
    rates = [rule.fps for name, rule in rules.items() if name in names and isinstance(rule, Video)]
    return rates[0] if rates else 30.0


class _Cameras:
    """Reads columns of images, and places the images of a sample side by side."""

    def __init__(self, batch: BatchBase, wanted: Sequence[str]) -> None:
        images = {
            name: space
            for name, space in usable_columns(batch).items()
            if is_image(space) and space.backend.dtype_name(space.dtype) == "uint8"
        }
        unknown = [name for name in wanted if name not in images]
        if unknown or not images:
            problem = f"column {unknown[0]!r} holds no images" if unknown else "there are no images"
            raise ValueError(
                f"{problem}: images are uint8, grey or with 1, 3 or 4 channels; the columns of images are "
                f"{sorted(images)}"
            )
        self.names = list(wanted) or list(images)
        keys = {column.name: column.keys for column in columns_of(batch.single_space)}
        self._batch, self._keys = batch, [keys[name] for name in self.names]

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Read frames (N, height, width, 3), padded to the height of the highest camera."""
        to_numpy, batch = self._batch.backend.to_numpy, self._batch
        cameras = [_as_rgb(to_numpy(batch.get_column_at(keys, indices))) for keys in self._keys]
        height = max(images.shape[1] for images in cameras)
        padded = [np.pad(images, ((0, 0), (0, height - images.shape[1]), (0, 0), (0, 0))) for images in cameras]
        return np.concatenate(padded, axis=2)


def _as_rgb(images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[-1] not in (1, 3, 4):
        images = np.moveaxis(images, 1, -1)
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images[..., :3]


def _chunks(reader: _Cameras, indices: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(indices), _CHUNK_FRAMES):
        yield reader.read(indices[start : start + _CHUNK_FRAMES])


def _write_video(
    path: Path, reader: _Cameras, indices: np.ndarray, fps: float, progress: Callable[[int], object]
) -> None:
    av: Any = need("av", extra="video")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")
    done = 0
    try:
        with av.open(os.fspath(temporary), "w") as container:
            stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
            stream.pix_fmt = "yuv420p"
            for images in _chunks(reader, indices):
                _, height, width, _ = images.shape
                images = np.pad(images, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
                if not done:
                    stream.height, stream.width = images.shape[1:3]
                for image in images:
                    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
                    container.mux(stream.encode(frame))
                done += len(images)
                progress(done)
            container.mux(stream.encode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_sheet(path: Path, reader: _Cameras, indices: np.ndarray, count: int) -> None:
    image_module: Any = need("PIL.Image", extra="image")
    draw_module: Any = need("PIL.ImageDraw", extra="image")
    steps = np.unique(np.linspace(0, len(indices) - 1, min(count, len(indices))).astype(np.int64))
    tiles = [image_module.fromarray(np.ascontiguousarray(reader.read(indices[[step]])[0])) for step in steps]
    width, height = _tile_size(*tiles[0].size)
    columns = min(len(tiles), max(1, (_SHEET_WIDTH + _GAP) // (width + _GAP)))
    rows = math.ceil(len(tiles) / columns)
    sheet = image_module.new("RGB", (columns * (width + _GAP) - _GAP, rows * (height + _LINE)), "white")
    pen = draw_module.Draw(sheet)
    for number, (step, tile) in enumerate(zip(steps.tolist(), tiles, strict=True)):
        x, y = number % columns * (width + _GAP), number // columns * (height + _LINE)
        resampling = image_module.Resampling.NEAREST if tile.width <= width else image_module.Resampling.BICUBIC
        sheet.paste(tile.resize((width, height), resampling), (x, y + _LINE))
        pen.text((x + 2, y + 1), str(step), fill="black")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp.png")
    try:
        sheet.save(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _tile_size(width: int, height: int) -> tuple[int, int]:
    """Return the size of a sheet's tiles: small frames are enlarged by an integer, so that pixels stay sharp."""
    if width > _TILE_WIDTH:
        return _TILE_WIDTH, max(1, round(height * _TILE_WIDTH / width))
    factor = _TILE_WIDTH // width
    return width * factor, height * factor
