"""Frames of video files by their time, decoded with PyAV."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

# A seek empties the decoder: about the cost of decoding this many frames.
_SEEK_COST = 2
_MOST_THREADS = 4


class FrameTimestampError(ValueError):
    """A video has no frame at a time that the data asks for."""


class VideoFile:
    """One open video, and where its decoder stands."""

    def __init__(self, path: Path) -> None:
        av = need("av", extra="lerobot")
        self.path = path
        self._container = av.open(os.fspath(path))
        if not self._container.streams.video:
            self._container.close()
            raise ValueError(f"{path}: there is no video stream in it")
        self._stream = self._container.streams.video[0]
        # Threads that work on several frames at once delay the first frame after each seek.
        self._stream.codec_context.thread_type = "SLICE"
        self._stream.codec_context.thread_count = 1
        # Nor may converting to RGB start threads: a forked process that frees the converter waits for them for ever.
        self._converter = av.video.reformatter.VideoReformatter()
        self._convert_options = {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}
        self._seconds_per_tick = float(self._stream.time_base)
        self._times, self._keys, self._key_seeks = self._index()
        if not len(self._times) or not len(self._keys):
            self._container.close()
            raise ValueError(f"{path}: the video has no frames")
        self._decoded: Iterator[Any] = iter(())
        self._current: Any = None  # the frame decoded last
        self._next = -1  # the number of the frame that the decoder gives next; -1 before the first seek

    def _index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The times of all frames in ticks, the numbers of the key frames, and the times to seek these at."""
        stream = self._stream
        entries = getattr(stream, "index_entries", None)  # PyAV 17; without it the packets are read once
        if entries is not None and len(entries):
            decoded = np.array([entry.timestamp for entry in entries], np.int64)
            keys = np.flatnonzero([entry.is_keyframe for entry in entries])
            # Each frame is decoded a constant delay before it is shown, but for those that are shown out of order.
            return decoded + ((stream.start_time or 0) - decoded[0]), keys, decoded[keys]
        packets = [(p.pts, p.dts, p.is_keyframe) for p in self._container.demux(stream) if p.pts is not None]
        table = np.array(sorted(packets), np.int64).reshape(-1, 3)
        keys = np.flatnonzero(table[:, 2])
        return table[:, 0], keys, table[keys, 1]

    def close(self) -> None:
        self._decoded = iter(())
        self._container.close()

    def read(self, seconds: np.ndarray, tolerances: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        """Decode the frames nearest to sorted times into `out[places]`; each group of pictures is decoded once."""
        ticks = seconds / self._seconds_per_tick
        numbers = np.clip(np.searchsorted(self._times, ticks + 0.5) - 1, 0, None)
        pixels: Any = None
        known: Any = None
        for second, tick, number, tolerance, place in zip(seconds, ticks, numbers, tolerances, places, strict=True):
            frame = self._frame_at(float(tick), int(number))
            apart = abs(frame.pts * self._seconds_per_tick - second)
            if apart > tolerance:
                raise FrameTimestampError(
                    f"{self.path}: no frame at {second:.6f} s, the nearest is {apart:.6f} s away and the tolerance is "
                    f"{tolerance:.6f} s: the timestamps of the data are not those of the video"
                )
            if frame is not known:
                known, pixels = frame, self._pixels(frame)
            if pixels.shape != out.shape[1:]:
                raise ValueError(f"{self.path}: frames of shape {pixels.shape}, the features say {out.shape[1:]}")
            out[place] = pixels

    def _pixels(self, frame: Any) -> np.ndarray:
        return self._converter.reformat(frame, format="rgb24", **self._convert_options).to_ndarray()

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
        self._container.seek(int(self._key_seeks[key]), stream=self._stream)
        self._decoded = self._container.decode(self._stream)
        self._current, self._next = None, number
        if not self._advance():
            raise ValueError(f"{self.path}: nothing can be decoded from frame {number} on: the file is damaged")

    def _advance(self) -> bool:
        frame = next(self._decoded, None)
        if frame is None:
            self._next = -1  # the decoder has ended, only a seek revives it
            return False
        self._current = frame
        self._next += 1
        return True


class FrameRequest(NamedTuple):
    """The frames wanted of one camera: of which file, at which second of it, how far off it may be."""

    paths: Sequence[Path]
    seconds: np.ndarray
    tolerances: np.ndarray
    shape: tuple[int, ...]  # (height, width, 3)


class FrameReader:
    """Reads frames from many videos, of which it keeps a few open.

    Requests are grouped by file, and the files read by a few threads. Open videos are left behind in pickles and in
    processes that are forked.
    """

    def __init__(self, most_open: int = 16) -> None:
        self._most_open = most_open
        self._open: OrderedDict[Path, VideoFile] = OrderedDict()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __getstate__(self) -> int:
        return self._most_open

    def __setstate__(self, most_open: int) -> None:
        self.__init__(most_open)  # type: ignore[misc]

    def read(self, requests: Sequence[FrameRequest]) -> list[np.ndarray]:
        """The frames of each request, as uint8 of shape (count, height, width, 3).

        Raises
        ------
        FrameTimestampError
            A file has no frame within the tolerance of a time.
        """
        results = [np.empty((len(request.paths), *request.shape), np.uint8) for request in requests]
        groups: dict[tuple[int, Path], list[int]] = {}
        for number, request in enumerate(requests):
            for place, path in enumerate(request.paths):
                groups.setdefault((number, path), []).append(place)

        def read_group(group: tuple[int, Path]) -> None:
            number, path = group
            request, places = requests[number], np.array(groups[group])
            places = places[np.argsort(request.seconds[places], kind="stable")]
            video = self._take(path)
            try:
                video.read(request.seconds[places], request.tolerances[places], results[number], places)
            except BaseException:
                video.close()
                raise
            self._give_back(video)

        if len(groups) == 1:
            read_group(next(iter(groups)))
        elif groups:
            workers = min(len(groups), _MOST_THREADS, os.cpu_count() or 1)
            with ThreadPoolExecutor(workers) as pool:  # one that is kept would not survive a fork
                list(pool.map(read_group, groups))
        return results

    def _take(self, path: Path) -> VideoFile:
        """A video for one caller alone: another that wants the same file at the same time opens it again."""
        with self._lock:
            if self._process != os.getpid():  # forked: the parent moves the offsets of these files
                self._open, self._process = OrderedDict(), os.getpid()
            video = self._open.pop(path, None)
        return VideoFile(path) if video is None else video

    def _give_back(self, video: VideoFile) -> None:
        with self._lock:
            surplus = [self._open.pop(video.path, None)]
            self._open[video.path] = video
            while len(self._open) > self._most_open:
                surplus.append(self._open.popitem(last=False)[1])
        for other in surplus:
            if other is not None:
                other.close()

    def close(self) -> None:
        """Close all videos; the next read opens them again."""
        with self._lock:
            videos, self._open = list(self._open.values()), OrderedDict()
        for video in videos:
            video.close()
