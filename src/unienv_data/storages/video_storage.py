"""Frames as video: one stream per episode, encoded in the background from frames that are on disk already.

The folder of a storage has

- `raw-N`, pieces of frames as they are, which are packed rows with checksums: what `write` has written survives a kill;
- `FIRST-LAST-CRC.mp4`, the video of the samples with these numbers, and the CRC32 of the file;
- `places.bin`, for each slot where its frame is: nowhere, in a piece, or in the video of a sample's number.

When an episode has ended, a thread encodes its frames to a temporary file, makes that durable, decodes it to count its
frames, and renames it. Then the slots are said to be in the video, and this is made durable too. Only then pieces go of
which no frame is needed any more. A process that is killed in between leaves the raw frames, and who opens the folder
to write encodes them again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.spaces import ArraySpace, BoxSpace

from ..base._index import resolve_index
from ..base.files import json_field, new_folder, read_json, sync_file, sync_folder, write_json
from ..base.mapped import MappedFile
from ..base.storage import ROW_WHOLE, ROW_WRONG, SpaceStorage, StorageCorruptedError
from ._frame_cache import FrameCache, bytes_of
from ._image_codec import pixel_shape
from ._options import checks_options
from ._raw_frames import RawFrames
from ._reference_frames import IMAGE_METADATA, VIDEO_METADATA, PathLike, ReferenceVideos
from ._video_encoding import VideoSettings, array_format, crc_of, encode_video, settings_for, verify_video
from .registry import register_storage
from .video_frames import FrameConverter, FrameForm, FrameReader, FrameRequest

__all__ = ["Decode", "Video", "VideoStorage"]

_VERSION = 1
_PLACES = "places.bin"
# What stands for a slot: nothing was ever written there, its frame is in a piece, or in the video of sample n (n + 2).
_NOTHING, _RAW, _ENCODED = 0, 1, 2
_CLIP = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]{8})\.(?:mp4|avi)\Z")
_ATTEMPTS = 5
_RAW_BYTES = 2 * 2**30
_COPIED_AT_ONCE = 16


@dataclass(frozen=True)
class Video:
    """A rule for a column: the frames of each episode are kept as a video, in a `VideoStorage`.

    Parameters
    ----------
    codec : str
        "h264", "hevc", "av1", or "ffv1", which keeps every bit, of 16-bit depth too.
    fps : float
        Frames a second.
    gop : int
        Every so many frames one is encoded by itself. A frame is decoded from the last such one on, so more of them
        are read faster and take more room.
    crf : int, optional
        The constant rate factor: 0 is best, and 30 the default, as in LeRobot.
    pixel_format : str, optional
        The pixel format in the file; by default "yuv420p" for colours, and what keeps every bit for ffv1.
    raw_bytes : int
        How many bytes of frames may wait to be encoded, about. A writer that is ahead of that has to wait.

    Examples
    --------
    >>> ReplayBuffer.create(space, columns={"obs/cam_*": Video(fps=30)}, cache_path="data/")
    """

    codec: str = "h264"
    fps: float = 30.0
    gop: int = 4
    crf: int | None = None
    pixel_format: str | None = None
    raw_bytes: int = _RAW_BYTES

    def __str__(self) -> str:
        return f"{self.codec} video"

    def storage(self) -> tuple[type[SpaceStorage], dict[str, Any]]:
        """The storage of the column, and its options."""
        return VideoStorage, asdict(self)


_POOLS: dict[str, ThreadPoolExecutor] = {}  # for all videos of this process


def _threads(task: str, count: int) -> ThreadPoolExecutor:
    if task not in _POOLS:
        _POOLS[task] = ThreadPoolExecutor(count, f"unienv-{task}")
    return _POOLS[task]


os.register_at_fork(after_in_child=_POOLS.clear)


@dataclass(frozen=True)
class Decode:
    """How frames of a column of video are wanted when a buffer is loaded to be read.

    Parameters
    ----------
    resize : (height, width), optional
        Their size; what is cropped first.
    crop : (top, left, height, width), optional
        The part of them.

    Examples
    --------
    >>> wanted = {"obs/cam_*": Decode(resize=(96, 128))}
    >>> ReplayBuffer.load_from("data/", backend=backend, columns=wanted, frame_cache="20GB")
    """

    resize: tuple[int, int] | None = None
    crop: tuple[int, int, int, int] | None = None


class _Clip(NamedTuple):
    """A video: of the samples with numbers [first, stop)."""

    first: int
    stop: int
    crc: int
    path: Path


@dataclass
class _Job:
    """Frames to be encoded: those in these slots, which are of consecutive samples from `number` on."""

    slots: np.ndarray
    number: int


@register_storage("video")
class VideoStorage(SpaceStorage):
    """Frames as video, one stream per episode; see the module's docstring.

    A replay buffer says which samples are an episode. Until an episode is encoded its frames are read as they were
    written. Afterwards they are what the codec makes of them, and can no longer be overwritten.

    Folders that the reference implementation wrote are opened to be read.
    """

    survives_kill = True
    has_raw_rows = True
    has_row_sums = True
    wants_episodes = True
    decodes_frames = True

    def __init__(
        self,
        space: ArraySpace,
        folder: Path,
        settings: VideoSettings,
        places: MappedFile,
        *,
        capacity: int | None,
        raw_bytes: int,
        mutable: bool,
        form: FrameForm | None = None,
        cache_bytes: int = 0,
    ) -> None:
        super().__init__(space if form is None else _form_space(space, form))
        self.capacity, self.cache_filename, self.is_mutable = capacity, folder, mutable
        self.is_multiprocessing_safe = not mutable
        self.settings, self._folder, self._raw_bytes = settings, folder, raw_bytes
        self._source = space
        self._pixels = array_format(space)
        self._form = form or FrameForm(self._pixels)
        self._file = places
        self._places = places.map(places.length)
        self._used = places.length
        self._raw = RawFrames(_on_host(space), folder, capacity, raw_bytes, writable=mutable)
        self._clips: list[_Clip] = []
        self._look_for_clips()
        self._reader = FrameReader()
        self._cache_bytes, self._cache = cache_bytes, None
        if cache_bytes:
            name = "-".join(map(str, (*(self._form.crop or ()), *self._wanted_shape)))
            self._cache = FrameCache(folder, name, self._wanted_shape, self._raw.dtype, cache_bytes)
        # Of what the threads that encode share with the writer.
        self._changed = threading.Condition()
        self._jobs: dict[Future[None], _Job] = {}
        self._failure: BaseException | None = None
        self._process = os.getpid()
        self._begun: tuple[int, int] | None = None  # slot and number of the first frame that no job has
        self._has_warned = False
        self._last_piece = -1  # the piece that is written to
        self._dropping: set[int] = set()
        self._coming: Future[None] | None = None
        if mutable:
            self._remove_orphans()
            self._prepare(self._used if capacity is None else 0)

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        codec: str = "h264",
        fps: float = 30.0,
        gop: int = 4,
        crf: int | None = None,
        pixel_format: str | None = None,
        raw_bytes: int = _RAW_BYTES,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
    ) -> VideoStorage:
        """A new storage in the folder `cache_path`; the other parameters are those of `Video`.

        Raises
        ------
        ValueError
            The codec does not keep the frames of the space, or there is no folder.
        """
        pixel_shape(single_instance_space)
        assert isinstance(single_instance_space, ArraySpace)
        settings = settings_for(single_instance_space, codec, fps, gop, crf, pixel_format)
        if cache_path is None:
            raise ValueError("videos are files: give cache_path, or keep the frames in an ImageStorage")
        if multiprocessing:
            raise ValueError("one process encodes videos: create the buffer without multiprocessing=True")
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1, or None to grow")
        return cls._create(single_instance_space, Path(cache_path), settings, capacity, raw_bytes)

    @classmethod
    def _create(
        cls, space: ArraySpace, path: Path, settings: VideoSettings, capacity: int | None, raw_bytes: int
    ) -> VideoStorage:
        with new_folder(path) as folder:
            places = MappedFile.create(folder / _PLACES, "<u8", capacity or 0)
            content = {"storage_type": "video", "format_version": _VERSION, **asdict(settings), "raw_bytes": raw_bytes}
            write_json(folder / VIDEO_METADATA, content)
        return cls(space, path, settings, places, capacity=capacity, raw_bytes=raw_bytes, mutable=True)

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        accept_damaged: bool = False,
        resize: tuple[int, int] | None = None,
        crop: tuple[int, int, int, int] | None = None,
        frame_cache: int | str = 0,
        **kwargs: Any,
    ) -> VideoStorage | ReferenceVideos:
        """The storage in a folder.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only
            As of every storage. One process at a time may write.
        resize, crop
            To read only: frames come cropped to (top, left, height, width), and then resized to (height, width). The
            space is that of such frames.
        frame_cache
            Keep decoded frames on disk beside the videos, in at most so many bytes, such as "20GB". Processes share
            them, and they are found again the next time.
        """
        folder = Path(path)
        file = folder / VIDEO_METADATA
        if not file.exists() and (folder / IMAGE_METADATA).exists():
            return ReferenceVideos.load_from(path, single_instance_space, capacity=capacity, read_only=read_only)
        content = read_json(file, checksum=False)
        if "format_version" not in content:
            return ReferenceVideos.load_from(path, single_instance_space, capacity=capacity, read_only=read_only)
        version = json_field(content, "format_version", int, file)
        if version > _VERSION:
            raise ValueError(f"{file}: format version {version}, this release reads up to {_VERSION}")
        pixel_shape(single_instance_space)
        assert isinstance(single_instance_space, ArraySpace)
        names = {"codec": str, "fps": float, "gop": int, "crf": int, "pixel_format": str}
        settings = VideoSettings(**{name: json_field(content, name, kind, file) for name, kind in names.items()})
        form = None
        if resize is not None or crop is not None:
            if not read_only:
                raise ValueError("frames are resized and cropped to be read only: load with read_only=True")
            form = FrameForm(array_format(single_instance_space), crop, resize)
        places = MappedFile.open(folder / _PLACES, "<u8", writable=not read_only)
        if capacity is not None and not (accept_damaged and read_only):
            places.check_length(capacity, exactly=True)
        raw_bytes = json_field(content, "raw_bytes", int, file)
        return cls(
            single_instance_space,
            folder,
            settings,
            places,
            capacity=capacity,
            raw_bytes=raw_bytes,
            mutable=not read_only,
            form=form,
            cache_bytes=bytes_of(frame_cache),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_mutable:
            raise TypeError(f"{self._folder} has one writer, this process: load it with read_only=True in the other")
        return _loaded, (self._folder, self._source, self.capacity, self._form, self._cache_bytes)

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._used

    @property
    def nbytes(self) -> int:
        self._look_for_clips()
        raw = len(self._raw.numbers()) * self._raw.piece_nbytes
        return sum(clip.path.stat().st_size for clip in self._clips if clip.path.exists()) + raw

    def get(self, index: Any) -> Any:
        return self.gather(resolve_index(self.backend, index, self._used), self._used)

    def gather(self, slots: Any, length: int) -> Any:
        if self.capacity is None and length > len(self._places):
            self._map_places(length)
        if isinstance(slots, int):
            return self.layout.assemble([self._frames(np.array([slots]))[0]])
        wanted = slots.reshape(-1) if self.capacity is None else slots.reshape(-1) % self.capacity
        distinct, inverse = np.unique(wanted, return_inverse=True)
        frames = self._frames(distinct)
        if len(distinct) < len(wanted) or not np.array_equal(distinct, wanted):
            frames = frames[inverse]
        return self.layout.assemble([frames.reshape(*slots.shape, *frames.shape[1:])])

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self.gather(slots, length)

    def set(self, index: Any, value: Any) -> None:
        self._check_mutable()
        slots = resolve_index(self.backend, index, self._used)
        count = None if isinstance(slots, int) else len(slots)
        encoded = self.encode(value, count)
        numbers = np.atleast_1d(np.asarray(slots))
        self.check_rewritable(numbers)
        if count != 0:
            self.write_raw_rows(numbers, self.encoded_as_raw_rows(encoded, count), numbers)

    def extend_length(self, length: int) -> None:
        if self.capacity is None:
            self._check_mutable()
            self._map_places(self._used + length)
            self._used += length

    def shrink_length(self, length: int) -> None:
        if self.capacity is not None:
            return
        self._check_mutable()
        if not 0 <= length <= self._used:
            raise ValueError(f"cannot shrink by {length}, there are {self._used} slots")
        self.settle()
        with self._changed:
            self._used -= length
            self._places[self._used :] = _NOTHING
            self._begun = None

    def clear(self) -> None:
        self._check_mutable()
        self.settle()
        with self._changed:
            self._file.reserve(0, len(self._places))
            self._places[:] = _NOTHING
            self._begun = None
            self._used = 0 if self.capacity is None else self.capacity
        self._drop_empty_pieces()
        for clip in self._clips:
            self._remove(clip)
        self._clips = []

    def _map_places(self, length: int) -> None:
        """Have a place for so many slots."""
        if length <= len(self._places):
            return
        if self._file.writable and self._file.length < length:
            self._file.extend(max(length, 2 * len(self._places), 4096))
        present = self._file.length
        if present < length:
            raise StorageCorruptedError(f"{self._folder / _PLACES}: {present} slots, {length} are wanted")
        self._places = self._file.map(present)

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self._folder} was opened read-only: open it with read_only=False to write")

    # -- reading ---------------------------------------------------------------------------------------------

    def _frames(self, slots: np.ndarray) -> np.ndarray:
        """The frames in these slots, which are in order and without duplicates, as they are wanted."""
        out = np.zeros((len(slots), *self._wanted_shape), self._raw.dtype)
        pending = np.arange(len(slots))
        for _ in range(_ATTEMPTS):
            places = self._places[slots[pending]]
            is_raw = places == _RAW
            missing = self._read_raw(slots, pending[is_raw], out)
            encoded = places >= _ENCODED
            missing = np.concatenate([missing, self._read_encoded(places[encoded] - _ENCODED, pending[encoded], out)])
            if not len(missing):
                shape: tuple[int, ...] = self.layout.leaves[0].codec.shape
                return out.reshape(len(slots), *shape)
            pending = missing  # encoded meanwhile, or written again
        raise StorageCorruptedError(f"{self._folder}: the frame in slot {slots[pending[0]]} is in no file")

    @property
    def _wanted_shape(self) -> tuple[int, ...]:
        return pixel_shape(self.single_instance_space)

    def _read_raw(self, slots: np.ndarray, wanted: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Read those of the wanted that are in pieces; the others."""
        if not len(wanted):
            return wanted
        found = np.empty((len(wanted), *self._source.shape), out.dtype)
        is_missing = self._raw.read(slots[wanted], found)
        found = found.reshape(len(wanted), *pixel_shape(self._source))
        converter = None if self._form == FrameForm(self._pixels) else FrameConverter(self._form)
        for place, frame in zip(wanted.tolist(), found, strict=True):
            out[place] = frame if converter is None else converter.fit(frame)
        return wanted[is_missing]

    def _read_encoded(self, numbers: np.ndarray, wanted: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Decode the frames of samples with these numbers; those of the wanted whose video is not there."""
        if not len(wanted):
            return wanted
        clips = [self._clip_of(number) for number in numbers.tolist()]
        if None in clips:
            self._look_for_clips()
            clips = [self._clip_of(number) for number in numbers.tolist()]
        is_there = np.array([clip is not None for clip in clips])
        found, wanted_found = [clip for clip in clips if clip is not None], wanted[is_there]
        if found and not self._decode(numbers[is_there].astype(np.int64), found, wanted_found, out):
            return wanted
        return wanted[~is_there]

    def _decode(self, numbers: np.ndarray, clips: list[_Clip], wanted: np.ndarray, out: np.ndarray) -> bool:
        """Decode frames of videos, those that the cache does not have; False if a video is gone."""
        marks = np.array([clip.crc for clip in clips], np.int64)
        pending = np.arange(len(numbers))
        if self._cache is not None:
            cached = np.empty((len(numbers), *out.shape[1:]), out.dtype)
            is_cached = self._cache.get(numbers, marks, cached)
            out[wanted[is_cached]] = cached[is_cached]
            pending = np.flatnonzero(~is_cached)
            if not len(pending):
                return True
        paths, fps = [clips[index].path for index in pending.tolist()], self.settings.fps
        seconds = (numbers[pending] - np.array([clips[index].first for index in pending.tolist()])) / fps
        request = FrameRequest(paths, seconds, np.full(len(paths), 0.5 / fps), out.shape[1:], self._form)
        try:
            (decoded,) = self._reader.read([request])
        except FileNotFoundError:  # deleted since: what was there is overwritten
            self._look_for_clips()
            return False
        except (OSError, ValueError) as error:
            raise StorageCorruptedError(f"{self._folder}: a video cannot be read: {error}") from error
        out[wanted[pending]] = decoded
        if self._cache is not None:
            self._cache.put(numbers[pending], marks[pending], decoded)
        return True

    def _clip_of(self, number: int) -> _Clip | None:
        clips = self._clips
        place = bisect_right(clips, number, key=lambda clip: clip.first) - 1
        return clips[place] if place >= 0 and number < clips[place].stop else None

    def _look_for_clips(self) -> None:
        found = []
        for name in os.listdir(self._folder):
            match = _CLIP.match(name)
            if match is not None:
                first, last, crc = int(match[1]), int(match[2]), int(match[3], 16)
                found.append(_Clip(first, last + 1, crc, self._folder / name))
        self._clips = sorted(found)

    # -- how a replay buffer writes --------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> Sequence[Any]:
        return self.layout.encode(value, () if count is None else (count,))

    def part(self, encoded: Sequence[Any], count: int, start: int, stop: int) -> list[Any]:
        return [leaf[start:stop] for leaf in encoded]

    def reserve(self, start: int, stop: int) -> None:
        if self.capacity is None and stop > len(self._places):
            self._map_places(stop)
        self._file.reserve(start, stop)
        for number in range(start // self._raw.piece_slots, -(-stop // self._raw.piece_slots)):
            if number != self._last_piece:
                self._begin_piece(number)

    def _begin_piece(self, number: int) -> None:
        """Have a piece to write to, and the next one made meanwhile: the file system may take long to give room."""
        self._await_piece()
        with self._changed:  # from here on it is not deleted
            before, self._last_piece = self._last_piece, number
            while number in self._dropping:
                self._changed.wait()
        self._wait_for_room()
        if not self._raw.has(number):
            self._raw.make(number)
        self._prepare((number + 1) * self._raw.piece_slots, before)

    def _prepare(self, slot: int, before: int = -1) -> None:
        """Make the piece of a slot, which is written to next, and look whether the one `before` can go."""
        number = (slot if self.capacity is None else slot % self.capacity) // self._raw.piece_slots

        def prepare() -> None:
            if before >= 0:
                self._drop_if_empty(before)
            with contextlib.suppress(OSError, MemoryError):  # refused when it is needed
                if not self._raw.has(number):
                    self._raw.make(number)

        self._coming = _threads("reserve", 1).submit(prepare)

    def _await_piece(self) -> None:
        if self._coming is not None and self._process == os.getpid():
            self._coming.result()
        self._coming = None

    def write(self, slots: int | slice, encoded: Sequence[Any], number: int) -> None:
        first = slots if isinstance(slots, int) else slots.start
        stop = first + 1 if isinstance(slots, int) else slots.stop
        self._raw.write(slots, encoded, number)
        with self._changed:
            self._places[first:stop] = _RAW
            self._used = max(self._used, stop)
            if self._begun is None:
                self._begun = (first, number)
        if self.capacity is not None:
            while self._clips and self._clips[0].stop <= number + stop - first - self.capacity:
                self._remove(self._clips.pop(0))  # its samples were all overwritten

    def check_rewritable(self, slots: np.ndarray) -> None:
        with self._changed:
            wanted = set(slots.tolist())
            is_closed = bool((self._places[slots] >= _ENCODED).any())
            is_closed = is_closed or any(not wanted.isdisjoint(job.slots.tolist()) for job in self._jobs.values())
        if is_closed:
            raise PermissionError(
                f"{self._folder}: frames of an episode that has ended are video, and cannot be overwritten or moved: "
                f"copy the samples into a buffer whose columns are images or packed (extend_from), and change them "
                f"there; the oldest samples can be removed"
            )

    def raw_rows(self, slots: np.ndarray) -> bytes:
        return self._frames_of_any(slots).tobytes()

    def _frames_of_any(self, slots: np.ndarray) -> np.ndarray:
        distinct, inverse = np.unique(slots, return_inverse=True)
        return self._frames(distinct)[inverse]

    def encoded_as_raw_rows(self, encoded: Sequence[Any], count: int | None) -> bytes:
        return np.asarray(encoded[0]).tobytes()

    @property
    def row_nbytes(self) -> int:
        return self._raw.layout.leaves[0].codec.dtype.itemsize

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        self._await_piece()
        for number, _, _ in self._raw.parts(slots):
            if not self._raw.has(number):
                self._raw.make(number)
        self._file.reserve(int(slots.min()), int(slots.max()) + 1)
        self._raw.write_raw_rows(slots, raw, numbers)
        with self._changed:
            self._places[slots] = _RAW

    # -- encoding --------------------------------------------------------------------------------------------

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        with self._changed:
            waiting = {slot for job in self._jobs.values() for slot in job.slots.tolist()}
            is_new = self._places[slots] == _RAW
            if waiting:
                is_new &= ~np.isin(slots, list(waiting))
            self._begun = None
        edges = np.flatnonzero(np.diff(is_new, prepend=False, append=False)).reshape(-1, 2)
        for start, stop in edges.tolist():
            self._submit(_Job(slots[start:stop], number + start))

    def _submit(self, job: _Job) -> None:
        with self._changed:
            # half as many as there are cores, so that the others can record
            future = _threads("encode", max(1, (os.cpu_count() or 2) // 2)).submit(self._encode, job)
            self._jobs[future] = job
        future.add_done_callback(self._finished)

    def _finished(self, future: Future[None]) -> None:
        with self._changed:
            self._jobs.pop(future)
            error = None if future.cancelled() else future.exception()
            self._failure = self._failure or error
            self._changed.notify_all()

    def _encode(self, job: _Job) -> None:
        """Encode frames, and drop the raw ones once the video has been verified and counts."""
        count = len(job.slots)
        temporary = self._folder / f".{job.number}.{os.getpid()}.tmp"
        try:
            encode_video(temporary, self._raw_frames(job.slots), self.settings, self._pixels)
            verify_video(temporary, count)
            crc = crc_of(temporary)
            path = self._folder / f"{job.number}-{job.number + count - 1}-{crc:08x}.{self.settings.extension}"
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)
        numbers, clip = job.number + np.arange(count), _Clip(job.number, job.number + count, crc, path)
        with self._changed:
            kept = self._places[job.slots] == _RAW
            if self.capacity is not None:  # some of the slots may hold newer frames by now
                kept &= self._raw.check(job.slots, numbers, numbers_only=True) == ROW_WHOLE
            self._clips = sorted([*self._clips, clip])
            self._places[job.slots[kept]] = (numbers[kept] + _ENCODED).astype(np.uint64)
        self._file.sync()
        for number in np.unique(job.slots // self._raw.piece_slots).tolist():
            self._drop_if_empty(number)

    def _raw_frames(self, slots: np.ndarray) -> Iterator[np.ndarray]:
        shape = pixel_shape(self._source)
        frame = np.empty((1, *self._source.shape), self._raw.dtype)
        for slot in slots:
            if self._raw.read(slot[None], frame).any():
                raise StorageCorruptedError(
                    f"{self._folder}: the frame in slot {slot} was deleted before it was encoded"
                )
            yield frame.reshape(shape)

    def _drop_if_empty(self, number: int, *, at_the_end: bool = False) -> None:
        """Delete a piece if no frame in it is needed, and none is to come unless it is `at_the_end`."""
        start, stop = self._raw.bounds(number)
        with self._changed:
            stop = min(stop, len(self._places))
            places = self._places[start:stop]
            is_over = bool((places[-1:] >= _ENCODED).all()) and number != self._last_piece
            is_empty = bool((places != _RAW).all()) and (at_the_end or is_over)
            if is_empty:
                self._dropping.add(number)
        if is_empty:  # a file system may take long for that, and the writer must not wait
            gone = self._raw.drop(number)
            with self._changed:
                self._dropping.discard(number)
                self._changed.notify_all()
            if gone is not None:
                shutil.rmtree(gone, ignore_errors=True)

    def _drop_empty_pieces(self) -> None:
        self._await_piece()
        self._last_piece = -1
        for number in self._raw.numbers():
            self._drop_if_empty(number, at_the_end=True)

    def _wait_for_room(self) -> None:
        """Wait while more raw frames are kept than may be; a frame that cannot be encoded is an OSError then."""
        if 2 * len(self._raw.numbers()) * self._raw.piece_nbytes >= self._raw_bytes and not self._jobs:
            self._split_open_episode()
        while len(self._raw.numbers()) * self._raw.piece_nbytes >= self._raw_bytes:
            if self._failure is not None:
                raise OSError(f"{self._folder}: frames cannot be encoded, and no more may wait: {self._failure}")
            if not self._jobs and not self._split_open_episode():
                return
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self._folder}: frames are written faster than they are encoded, so the writer waits: "
                    f"{self._raw_bytes:,} bytes of frames wait to be encoded, which is the bound (raw_bytes); a larger "
                    f"one, a smaller frame, or codec='h264' helps",
                    RuntimeWarning,
                    stacklevel=2,
                )
            with self._changed:
                if self._jobs:
                    self._changed.wait(1.0)

    def _split_open_episode(self) -> bool:
        """Encode what there is of a long episode that is still open; False if there is nothing."""
        with self._changed:
            begun = self._begun
            self._begun = None
            if begun is None:
                return False
            slot, number = begun
            stop = len(self._places)
            raw = self._places[slot:stop] == _RAW
            count = int(raw.argmin()) if not raw.all() else len(raw)
            slots = slot + np.arange(count)
            if self.capacity is not None and slot + count == self.capacity:  # around the end of the ring
                before = self._places[:slot] == _RAW
                slots = np.concatenate([slots, np.arange(int(before.argmin()) if not before.all() else len(before))])
        states = self._raw.check(slots, number + np.arange(len(slots)), numbers_only=True)
        slots = slots[: int((states != ROW_WHOLE).argmax())] if (states != ROW_WHOLE).any() else slots
        if not len(slots):
            return False
        self._submit(_Job(slots, number))
        return True

    def column_rule(self) -> Video:
        return Video(**asdict(self.settings), raw_bytes=self._raw_bytes)

    def settle(self) -> None:
        """Wait until all episodes that have ended are encoded; a warning says if some could not be."""
        if self._process != os.getpid():  # a fork, whose parent encodes
            return
        with self._changed:
            while self._jobs:
                self._changed.wait()
            failure, self._failure = self._failure, None
        if failure is not None:
            warnings.warn(
                f"{self._folder}: frames could not be encoded, and are kept as they are until the folder is opened to "
                f"write again: {failure}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _remove(self, clip: _Clip) -> None:
        clip.path.unlink(missing_ok=True)
        self._reader.forget(clip.path)

    def _remove_orphans(self) -> None:
        """Remove what a process that was killed has left: temporary files, and videos that no slot is said to be in."""
        for path in self._folder.glob(".*.tmp"):
            path.unlink()
        places = self._places[self._places >= _ENCODED] - _ENCODED
        numbers = np.sort(places.astype(np.int64))
        for clip in list(self._clips):
            at = int(np.searchsorted(numbers, clip.first))
            if at == len(numbers) or numbers[at] >= clip.stop:
                self._clips.remove(clip)
                self._remove(clip)

    # -- durability ------------------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        return self._file.length, 0

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        if self.capacity is None:
            self._map_places(length)
            self._used = length
        if sizes is not None:
            self._file.check_length(sizes[0], exactly=True)

    def trim(self) -> None:
        if self.capacity is None:
            self._file.trim(self._used)
            self._places = self._file.map(self._used)
        self._drop_empty_pieces()

    def flush(self) -> None:
        if self.is_mutable:
            self._raw.flush()
            self._file.sync()
            sync_folder(self._folder)

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        states = np.full(len(slots), ROW_WRONG, np.int8)
        is_known = slots < len(self._places)
        places = np.where(is_known, self._places[np.where(is_known, slots, 0)] if len(self._places) else 0, _NOTHING)
        is_raw = places == _RAW
        states[is_raw] = self._raw.check(slots[is_raw], numbers[is_raw], numbers_only=numbers_only)
        is_encoded = places == (numbers + _ENCODED).astype(np.uint64)
        sound: dict[_Clip, bool] = {}
        self._look_for_clips()
        for place in np.flatnonzero(is_encoded).tolist():
            clip = self._clip_of(int(numbers[place]))
            if clip is not None:
                if clip not in sound:
                    sound[clip] = clip.path.exists() and (numbers_only or crc_of(clip.path) == clip.crc)
                states[place] = ROW_WHOLE if sound[clip] else ROW_WRONG
        return states

    def verify(self) -> list[str]:
        self._look_for_clips()
        return [
            f"{clip.path}: it does not match the checksum in its name"
            for clip in self._clips
            if clip.path.exists() and crc_of(clip.path) != clip.crc
        ]

    def dumps(self, path: PathLike) -> None:
        if os.path.exists(path) and os.path.samefile(path, self._folder):
            self.flush()
        else:
            self.snapshot(path, [(0, self._used)])

    def snapshot(self, path: PathLike, slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        if self._form != FrameForm(self._pixels):
            raise NotImplementedError(f"{self._folder} was loaded with resize or crop: load it without to copy it")
        self.settle()
        copy = self._create(self._source, Path(path), self.settings, self.capacity, self._raw_bytes)
        try:
            if self.capacity is None:
                copy.extend_length(max((stop for _, stop in slots), default=0))
            copy._places[:] = _NOTHING
            used: set[_Clip] = set()
            for first, last in slots:
                for start in range(first, last, _COPIED_AT_ONCE):
                    part = np.arange(start, min(start + _COPIED_AT_ONCE, last))
                    used |= self._copy_frames(copy, part, number + np.arange(len(part)))
                    number += len(part)
            for clip in used:
                shutil.copyfile(clip.path, copy._folder / clip.path.name)
                sync_file(copy._folder / clip.path.name)
            copy.flush()
        finally:
            copy.close()

    def _copy_frames(self, copy: VideoStorage, slots: np.ndarray, numbers: np.ndarray) -> Set[_Clip]:
        """Copy what is raw, and say of the rest where it is; the videos that this takes."""
        pending = slots
        for _ in range(_ATTEMPTS):
            places = self._places[pending]
            encoded = places >= _ENCODED
            copy._file.reserve(0, len(copy._places))
            copy._places[pending[encoded]] = places[encoded]
            raw = pending[places == _RAW]
            frames = np.empty((len(raw), *self._source.shape), self._raw.dtype)
            is_missing = self._raw.read(raw, frames)
            if not is_missing.all():
                kept = raw[~is_missing]
                copy.write_raw_rows(kept, frames[~is_missing].tobytes(), numbers[np.searchsorted(slots, kept)])
            pending = raw[is_missing]
            if not len(pending):
                break
        self._look_for_clips()
        found = self._places[slots]
        clips = [self._clip_of(number) for number in (found[found >= _ENCODED] - _ENCODED).tolist()]
        return {clip for clip in clips if clip is not None}

    def close(self) -> None:
        self.settle()
        self._await_piece()
        self._reader.close()
        if self._cache is not None:
            self._cache.close()
        self._raw.close()
        self._file.close()


def _on_host(space: ArraySpace) -> Space:
    """The space of the same arrays on NumPy, in which raw frames lie."""
    return space.to(NumpyComputeBackend)


def _form_space(space: ArraySpace, form: FrameForm) -> ArraySpace:
    """The space of frames that are cropped and resized."""
    height, width = pixel_shape(space)[:2]
    if form.crop is not None:
        top, left, rows, columns = form.crop
        if min(top, left) < 0 or min(rows, columns) < 1 or top + rows > height or left + columns > width:
            raise ValueError(f"crop is {form.crop} (top, left, height, width), the frames are {height} x {width}")
        height, width = rows, columns
    if form.resize is not None:
        height, width = form.resize
        if min(height, width) < 1:
            raise ValueError(f"resize is {form.resize}, it must be (height, width)")
    shape, backend = (height, width, *space.shape[2:]), space.backend
    high = 255 if space.dtype_name == "uint8" else 65535
    return BoxSpace(backend, 0, high, space.dtype, space.device, shape)


def _loaded(folder: Path, space: Space, capacity: int | None, form: FrameForm, cache_bytes: int) -> Any:
    options: Any = {"resize": form.resize, "crop": form.crop, "frame_cache": cache_bytes}
    return VideoStorage.load_from(folder, space, capacity=capacity, **options)
