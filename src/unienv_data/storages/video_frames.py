"""Frames of video files by their time, decoded with PyAV, or with torchcodec where that is asked for."""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ..base.storage import StorageCorruptedError
from ._threads import MOST_THREADS, map_in_threads

__all__ = ["FrameForm", "FrameReader", "FrameRequest", "FrameTimestampError", "VideoBackend", "VideoFile"]

VideoBackend = Literal["auto", "pyav", "torchcodec"]

# A seek empties the decoder: about the cost of decoding this many frames.
_SEEK_COST = 2
# So many frames at least are worth a thread of their own.
_FRAMES_PER_THREAD = 4
_MOST_TABLES = 1024
_CONTAINERS = {".mp4": "mp4", ".avi": "avi"}


class FrameTimestampError(ValueError):
    """A video has no frame at a time that the data asks for.

    Examples
    --------
    >>> dataset = LeRobotAsUniEnvDataset.from_local("pick", "numpy")  # doctest: +SKIP
    >>> dataset.get_at(40)  # a video was cut short  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    unienv_data.storages.video_frames.FrameTimestampError: ...
    """


class FrameForm(NamedTuple):
    """The form in which frames are wanted.

    Attributes
    ----------
    pixels
        A pixel format of FFmpeg that NumPy arrays have: "rgb24", "rgba", "gray", "gray16le".
    crop
        (top, left, height, width) of the part that is wanted; None for all.
    resize
        (height, width) to which that part is resized; None for as it is.
    """

    pixels: str = "rgb24"
    crop: tuple[int, int, int, int] | None = None
    resize: tuple[int, int] | None = None


class FrameConverter:
    """Brings decoded frames, or arrays, to a form."""

    def __init__(self, form: FrameForm) -> None:
        self._av, self._form = need("av", extra="video"), form
        # Converting must not start threads: a forked process that frees the converter waits for them for ever.
        self._reformatter = self._av.video.reformatter.VideoReformatter()
        self._options = {"threads": 1} if int(self._av.__version__.partition(".")[0]) >= 17 else {}

    def convert(self, frame: Any) -> np.ndarray:
        """A decoded frame as an array."""
        if self._form.crop is not None:
            return self.fit(self._to_array(frame, None))
        return self._to_array(frame, self._form.resize)

    def fit(self, pixels: np.ndarray) -> np.ndarray:
        """An array of all pixels, cropped and resized."""
        if self._form.crop is not None:
            top, left, height, width = self._form.crop
            pixels = pixels[top : top + height, left : left + width]
        if self._form.resize in (None, pixels.shape[:2]):
            return pixels
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=self._form.pixels)
        return self._to_array(frame, self._form.resize)

    def _to_array(self, frame: Any, size: tuple[int, int] | None) -> np.ndarray:
        options: dict[str, Any] = dict(self._options)
        if size is not None:
            options.update(height=size[0], width=size[1], interpolation="AREA")
        image: np.ndarray = self._reformatter.reformat(frame, format=self._form.pixels, **options).to_ndarray()
        return image


class FrameTable(NamedTuple):
    """The times at which frames are shown, in ticks and in order, and the numbers of the key frames among them."""

    times: np.ndarray
    keys: np.ndarray


class VideoFile:
    """One open video, and where its decoder stands.

    Parameters
    ----------
    path
        The file.
    form
        The form in which frames are wanted.
    table
        The `table` of an earlier `VideoFile` of the same file, which is then not searched again.

    Raises
    ------
    ValueError
        There is no video in the file, nothing decodes it, or it has no frames.
    ImportError
        PyAV is not installed.
    """

    def __init__(self, path: Path, form: FrameForm | None = None, table: FrameTable | None = None) -> None:
        av = need("av", extra="video")
        self.path = path
        # A file that is not what its name says may be a list of other files, or of addresses.
        options = {"protocol_whitelist": "file"}
        self._container = av.open(os.fspath(path), format=_CONTAINERS.get(path.suffix), options=options)
        if not self._container.streams.video:
            self._container.close()
            raise ValueError(f"{path}: there is no video stream in it")
        self._stream = self._container.streams.video[0]
        if self._stream.codec_context is None or self._stream.time_base is None:
            self._container.close()
            raise ValueError(f"{path}: there is no decoder for the video in it")
        # Threads that work on several frames at once delay the first frame after each seek.
        self._stream.codec_context.thread_type = "SLICE"
        self._stream.codec_context.thread_count = 1
        self._converter = FrameConverter(form or FrameForm())
        self._seconds_per_tick = float(self._stream.time_base)
        self.table = self._index() if table is None else table
        self._times, self._keys = self.table
        if not len(self._times) or not len(self._keys):
            self._container.close()
            raise ValueError(f"{path}: the video has no frames")
        self._decoded: Iterator[Any] = iter(())
        self._current: Any = None  # the frame decoded last
        self._next = -1  # the number of the frame that the decoder gives next; -1 before the first seek

    def _index(self) -> FrameTable:
        stream = self._stream
        entries = getattr(stream, "index_entries", None)  # PyAV 17; without it the packets are read once
        if entries is not None and stream.frames and len(entries) == stream.frames:
            decoded = np.array([entry.timestamp for entry in entries], np.int64)
            keys = np.flatnonzero([entry.is_keyframe for entry in entries])
            # Each frame is decoded a constant delay before it is shown, but for those that are shown out of order.
            return FrameTable(decoded + ((stream.start_time or 0) - decoded[0]), keys)
        packets = [
            (packet.pts, packet.is_keyframe) for packet in self._container.demux(stream) if packet.pts is not None
        ]
        table = np.array(sorted(packets), np.int64).reshape(-1, 2)
        return FrameTable(table[:, 0], np.flatnonzero(table[:, 1]))

    def close(self) -> None:
        self._decoded = iter(())
        self._container.close()

    def decoding_of(self, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of sorted times, which are the first of a group of pictures, and how many frames are decoded up to each."""
        numbers = self._numbers(seconds / self._seconds_per_tick)
        groups = np.maximum(np.searchsorted(self._keys, numbers, side="right") - 1, 0)
        is_first = np.diff(groups, prepend=-1) != 0
        before = np.where(is_first, self._keys[groups] - 1, np.append(0, numbers[:-1]))
        return is_first, np.cumsum(numbers - before)

    def _numbers(self, ticks: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(self._times, ticks + 0.5) - 1, 0, None)

    def read(self, seconds: np.ndarray, tolerances: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        """Decode the frames nearest to sorted times into `out[places]`; each group of pictures is decoded once.

        Raises
        ------
        StorageCorruptedError
            A frame cannot be decoded.
        FrameTimestampError
            There is no frame within the tolerance of a time.
        """
        try:
            self._read(seconds, tolerances, out, places)
        except need("av", extra="video").FFmpegError as error:
            raise StorageCorruptedError(f"{self.path}: a frame cannot be decoded: {error}") from error

    def _read(self, seconds: np.ndarray, tolerances: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        ticks = seconds / self._seconds_per_tick
        numbers = self._numbers(ticks)
        pixels: Any = None
        known: Any = None
        for second, tick, number, tolerance, place in zip(seconds, ticks, numbers, tolerances, places, strict=True):
            frame = self._frame_at(float(tick), int(number))
            self._check_time(second, frame.pts * self._seconds_per_tick, tolerance)
            if frame is not known:
                known, pixels = frame, self._converter.convert(frame)
            self._check_shape(pixels.shape, out.shape[1:])
            out[place] = pixels

    def _check_time(self, wanted: float, found: float, tolerance: float) -> None:
        if abs(found - wanted) > tolerance:
            raise FrameTimestampError(
                f"{self.path}: no frame at {wanted:.6f} s, the nearest is {abs(found - wanted):.6f} s away and the "
                f"tolerance is {tolerance:.6f} s: the timestamps of the data are not those of the video"
            )

    def _check_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise ValueError(f"{self.path}: frames of shape {found}, the features say {wanted}")

    def _frame_at(self, tick: float, number: int) -> Any:
        """The frame nearest to a time, which should be this number in the order shown."""
        key = int(np.searchsorted(self._keys, number, side="right")) - 1
        from_key = number - int(self._keys[max(key, 0)]) + _SEEK_COST
        is_behind = self._current is not None and self._current.pts > tick + 0.5
        if self._next < 0 or is_behind or number - self._next > from_key:
            while True:
                key = max(key, 0)
                self._seek(key)
                if key == 0 or self._current.pts <= tick + 0.5:
                    break
                key -= 1  # frames of an open group are shown before its key frame
        before = self._current
        while self._current.pts < tick - 0.5:
            before = self._current
            if not self._advance():
                break
        return min((before, self._current), key=lambda frame: abs(frame.pts - tick))

    def _seek(self, key: int) -> None:
        number = int(self._keys[key])
        self._container.seek(int(self._times[number]), stream=self._stream)
        self._decoded = self._container.decode(self._stream)
        self._current, self._next = None, number
        if not self._advance():
            raise StorageCorruptedError(f"{self.path}: nothing can be decoded from frame {number} on")

    def _advance(self) -> bool:
        frame = next(self._decoded, None)
        if frame is None:
            self._next = -1  # the decoder has ended, only a seek revives it
            return False
        self._current = frame
        self._next += 1
        return True


class TorchcodecFile(VideoFile):
    """A video that torchcodec decodes; PyAV says at which times its frames are."""

    def __init__(self, path: Path, form: FrameForm | None = None, table: FrameTable | None = None) -> None:
        super().__init__(path, form, table)
        decoder = _torchcodec().VideoDecoder
        self._decoder = decoder(os.fspath(path), dimension_order="NHWC", num_ffmpeg_threads=1)

    def _read(self, seconds: np.ndarray, tolerances: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        ticks = seconds / self._seconds_per_tick
        after = np.searchsorted(self._times, ticks).clip(max=len(self._times) - 1)
        before = (after - 1).clip(min=0)
        numbers = np.where(ticks - self._times[before] <= self._times[after] - ticks, before, after)
        for second, found, tolerance in zip(seconds, self._times[numbers], tolerances, strict=True):
            self._check_time(second, found * self._seconds_per_tick, tolerance)
        try:
            frames = self._decoder.get_frames_at(numbers.tolist()).data.numpy()
        except RuntimeError as error:
            raise StorageCorruptedError(f"{self.path}: a frame cannot be decoded: {error}") from error
        for frame, place in zip(frames, places, strict=True):
            pixels = self._converter.fit(frame)
            self._check_shape(pixels.shape, out.shape[1:])
            out[place] = pixels


def _torchcodec() -> Any:
    """The decoders of torchcodec; an ImportError that says what it needs where it, or its FFmpeg, is not there."""
    try:
        return importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            f"video_backend='torchcodec' needs torchcodec (pip install torchcodec) and an FFmpeg that it finds: take "
            f"'pyav', which brings its own ({str(error).partition(chr(10))[0]})"
        ) from error


_FILES: dict[str, type[VideoFile]] = {"auto": VideoFile, "pyav": VideoFile, "torchcodec": TorchcodecFile}


class FrameRequest(NamedTuple):
    """The frames wanted of one camera.

    Attributes
    ----------
    paths
        The file of each frame.
    seconds
        The time of each frame in its file.
    tolerances
        How many seconds each frame may be apart from its time.
    shape
        The shape of a frame as it is wanted, such as (height, width, 3).
    form
        The form of a frame.
    """

    paths: Sequence[Path]
    seconds: np.ndarray
    tolerances: np.ndarray
    shape: tuple[int, ...]
    form: FrameForm = FrameForm()


_READERS: weakref.WeakSet[FrameReader] = weakref.WeakSet()


def _renew_readers() -> None:
    for reader in list(_READERS):
        reader._begin()  # the parent moves the offsets of the files, and may hold the lock


os.register_at_fork(after_in_child=_renew_readers)


class FrameReader:
    """Reads frames from many videos, of which it keeps a few open.

    Requests are grouped by file and by group of pictures, each of which is decoded once, by a few threads. Open videos
    are left behind in pickles and in processes that are forked.

    Parameters
    ----------
    most_open
        How many videos are kept open.
    backend
        What decodes: "pyav", which "auto" stands for, or "torchcodec".

    Raises
    ------
    ValueError
        There is no such backend.
    ImportError
        The backend is torchcodec, and that or its FFmpeg is not installed.
    """

    def __init__(self, most_open: int = 16, backend: VideoBackend = "auto") -> None:
        if backend not in _FILES:
            raise ValueError(f"video_backend is {backend!r}, videos are decoded with one of {', '.join(_FILES)}")
        if backend == "torchcodec":
            _torchcodec()
        self._most_open, self._backend = most_open, backend
        self._begin()
        _READERS.add(self)

    def _begin(self) -> None:
        self._open: OrderedDict[tuple[Path, FrameForm], list[VideoFile]] = OrderedDict()
        self._tables: OrderedDict[Path, FrameTable] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameReader, (self._most_open, self._backend)

    def read(self, requests: Sequence[FrameRequest]) -> list[np.ndarray]:
        """The frames of each request, of shape (count, height, width, channels) or without channels.

        Raises
        ------
        FrameTimestampError
            A file has no frame within the tolerance of a time.
        StorageCorruptedError
            A frame cannot be decoded.
        """
        results = [
            np.empty((len(request.paths), *request.shape), np.uint16 if "16" in request.form.pixels else np.uint8)
            for request in requests
        ]
        by_file: dict[tuple[int, Path], list[int]] = {}
        for number, request in enumerate(requests):
            for place, path in enumerate(request.paths):
                by_file.setdefault((number, path), []).append(place)
        tasks: list[tuple[int, Path, np.ndarray]] = []
        for (number, path), frames in by_file.items():
            request, places = requests[number], np.array(frames)
            places = places[np.argsort(request.seconds[places], kind="stable")]
            tasks += [(number, path, part) for part in self._split(request, path, places, len(by_file))]

        def read_part(task: tuple[int, Path, np.ndarray]) -> None:
            number, path, places = task
            request = requests[number]
            video = self._take(path, request.form)
            try:
                video.read(request.seconds[places], request.tolerances[places], results[number], places)
            except BaseException:
                video.close()
                raise
            self._give_back(video, request.form)

        map_in_threads(read_part, tasks)
        return results

    def _split(self, request: FrameRequest, path: Path, places: np.ndarray, files: int) -> list[np.ndarray]:
        """The frames wanted of one file, in order, in as many parts as there are threads for; no group in two parts."""
        parts = min(MOST_THREADS, os.cpu_count() or 1) // files
        if parts < 2 or len(places) < 2 * _FRAMES_PER_THREAD:
            return [places]
        video = self._take(path, request.form)
        is_first, decoded = video.decoding_of(request.seconds[places])
        self._give_back(video, request.form)
        begins = np.flatnonzero(is_first)[1:]
        if not len(begins):
            return [places]
        wanted = np.arange(1, parts) * decoded[-1] / parts
        nearest = np.abs(decoded[begins - 1, None] - wanted).argmin(axis=0)
        return np.split(places, np.unique(begins[nearest]))

    def _take(self, path: Path, form: FrameForm) -> VideoFile:
        """A video for one caller alone: another that wants the same file at the same time opens it again."""
        with self._lock:
            videos, table = self._open.get((path, form)), self._tables.get(path)
            if videos:
                return videos.pop()
        return _FILES[self._backend](path, form, table)

    def _give_back(self, video: VideoFile, form: FrameForm) -> None:
        surplus: list[VideoFile] = []
        with self._lock:
            self._tables[video.path] = video.table
            self._tables.move_to_end(video.path)
            while len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
            self._open.setdefault((video.path, form), []).append(video)
            self._open.move_to_end((video.path, form))
            while sum(map(len, self._open.values())) > self._most_open:
                surplus += self._open.popitem(last=False)[1]
        for other in surplus:
            other.close()

    def forget(self, path: Path) -> None:
        """Close a video that is gone."""
        with self._lock:
            self._tables.pop(path, None)
            keys = [key for key in self._open if key[0] == path]
            videos = [video for key in keys for video in self._open.pop(key)]
        for video in videos:
            video.close()

    def close(self) -> None:
        """Close all videos; the next read opens them again."""
        with self._lock:
            videos = [video for group in self._open.values() for video in group]
            self._open = OrderedDict()
        for video in videos:
            video.close()
