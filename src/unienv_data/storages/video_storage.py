"""Frames as video: one stream per episode, encoded in the background from raw frames on disk.

The folder of a storage has

- `raw-N`: pieces of raw frames in packed rows with checksums, so that written frames survive a kill;
- `FIRST-LAST-CRC.mp4`: the video of the samples with these numbers, and the CRC32 of the file;
- `places.bin`: for each slot whether its frame is nowhere, in a piece, or in the video of a sample's number.

When an episode has ended, a thread encodes its frames to a temporary file, makes the file durable, decodes it to count
its frames, and renames it. The thread then records that the slots are in the video, and makes this durable, too. Only
then it deletes the pieces that no frame needs any more. A process that is killed in between leaves the raw frames, and
the next process that opens the folder to write encodes them again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.spaces import ArraySpace

from ..base.encoded_frames import EncodedFrames
from ..base.files import json_field, new_folder, read_json, sync_file, sync_folder, write_json
from ..base.index import resolve_index
from ..base.row_storage import RowStorage
from ..base.storage import UnsupportedFormatError
from ._episode_encoder import EpisodeEncoder
from ._frame_cache import FrameCache, bytes_of
from ._frame_places import ENCODED, RAW, FramePlaces
from ._image_codec import frame_space, pixel_shape
from ._options import checks_options
from ._raw_frames import RawFrames
from ._reference_frames import IMAGE_METADATA, VIDEO_METADATA, PathLike, ReferenceVideos
from ._stored_frames import StoredFrames, form_space
from ._video_clips import Clip, VideoClips
from ._video_encoding import VideoSettings, array_format, settings_for
from ._video_rules import RAW_BYTES, Decode, Video
from .registry import register_storage
from .video_frames import FrameForm

__all__ = ["Decode", "Video", "VideoStorage"]

_VERSION = 1
_ATTEMPTS = 5
_COPIED_AT_ONCE = 16


@register_storage("video")
class VideoStorage(RowStorage[Any, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Frames as video, one stream per episode; see the module's docstring.

    A replay buffer says which samples are an episode. Until an episode is encoded its frames are read as they were
    written. Afterwards they are what the codec makes of them, and can no longer be overwritten.

    Folders that the reference implementation wrote are opened to be read.

    Examples
    --------
    >>> space = BoxSpace("numpy", 0, 255, np.uint8, shape=(64, 64, 3))
    >>> frames = ReplayBuffer.create("video", space, capacity=1_000, cache_path="video", fps=10.0)
    >>> frames.extend(np.zeros((8, 64, 64, 3), np.uint8))
    >>> frames.close()
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
        places: FramePlaces | None,
        *,
        capacity: int | None,
        raw_bytes: int,
        mutable: bool,
        form: FrameForm | None = None,
        cache_bytes: int = 0,
    ) -> None:
        """Without `places` they are rebuilt from the files that there are, to read."""
        super().__init__(space if form is None else form_space(space, form))
        self.capacity, self.cache_filename, self.is_mutable = capacity, folder, mutable
        self.is_multiprocessing_safe = not mutable
        self.settings, self._folder, self._raw_bytes = settings, folder, raw_bytes
        self._source, self._cache_bytes = space, cache_bytes
        self._is_as_stored = form is None
        self._form = form or FrameForm(array_format(space))
        shape = pixel_shape(self.single_instance_space)
        self._raw = RawFrames(space.to(NumpyComputeBackend), folder, capacity, raw_bytes, writable=mutable)
        cache = None
        if cache_bytes:
            name = "-".join(map(str, (*(self._form.crop or ()), *shape)))
            cache = FrameCache(folder, name, shape, self._raw.dtype, cache_bytes)
        self._clips = VideoClips(folder, settings.fps, self._form, cache)
        if places is None:
            pieces = [self._raw.bounds(number) for number in self._raw.numbers()]
            places = FramePlaces.rebuilt(
                folder, capacity, [(clip.first, clip.stop) for clip in self._clips.all], pieces
            )
        self._places, self._used = places, places.file.length
        parts = (places, self._raw, self._clips)
        self._frames = StoredFrames(folder, space, form, parts)
        pixels = (self._form.pixels, pixel_shape(space))
        self._encoder = EpisodeEncoder(folder, settings, pixels, parts, capacity=capacity, bound=raw_bytes)
        if mutable:  # what a process that was killed has left goes
            for path in folder.glob(".*.tmp"):
                path.unlink()
            self._encoder.prepare(0 if capacity is not None else self._used)
            self._encoder.await_piece()

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
        raw_bytes: int = RAW_BYTES,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
    ) -> VideoStorage:
        """Create a new storage.

        Parameters
        ----------
        single_instance_space
            The space of one frame.
        codec, fps, gop, crf, pixel_format, raw_bytes
            As for `Video`.
        capacity
            As for every storage.
        cache_path
            The folder of its files, which is needed.
        multiprocessing
            Must be False.

        Raises
        ------
        ValueError
            The codec does not keep the frames of the space, `cache_path` is missing, `multiprocessing` is True, or
            `capacity` is below 1.
        """
        space = frame_space(single_instance_space)
        settings = settings_for(space, codec, fps, gop, crf, pixel_format)
        if cache_path is None:
            raise ValueError("videos are files: give cache_path, or keep the frames in an ImageStorage")
        if multiprocessing:
            raise ValueError("one process encodes videos: create the buffer without multiprocessing=True")
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1, or None to grow")
        return cls._create(space, Path(cache_path), settings, capacity, raw_bytes)

    @classmethod
    def _create(
        cls, space: ArraySpace, path: Path, settings: VideoSettings, capacity: int | None, raw_bytes: int
    ) -> VideoStorage:
        with new_folder(path) as folder:
            places = FramePlaces.create(folder, capacity or 0)
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
        """Load the storage in a folder.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only, multiprocessing
            As for every storage. One process at a time may write.
        resize, crop
            To read only: frames come cropped to (top, left, height, width), and then resized to (height, width). The
            space is that of such frames.
        frame_cache
            Keep decoded frames on disk beside the videos, in at most so many bytes, such as "20GB". Processes share
            them, and they are found again the next time.
        accept_damaged
            To read only: rebuild the index of the frames from the video files that are whole.
        **kwargs
            Arguments of other storages; ignored.

        Returns
        -------
        VideoStorage
            The storage; a folder of the reference implementation is read-only.

        Raises
        ------
        UnsupportedFormatError
            A later release has written the folder.
        ValueError
            `resize` or `crop` is given without `read_only`.
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
            raise UnsupportedFormatError(f"{file}: format version {version}, this release reads up to {_VERSION}")
        space = frame_space(single_instance_space)
        names = {"codec": str, "fps": float, "gop": int, "crf": int, "pixel_format": str}
        settings = VideoSettings(**{name: json_field(content, name, kind, file) for name, kind in names.items()})
        form = None
        if resize is not None or crop is not None:
            if not read_only:
                raise ValueError("frames are resized and cropped to be read only: load with read_only=True")
            form = FrameForm(array_format(space), crop, resize)
        places = None
        if not (accept_damaged and read_only):
            places = FramePlaces.open(folder, writable=not read_only)
            if capacity is not None:
                places.file.check_length(capacity, exactly=True)
        raw_bytes = json_field(content, "raw_bytes", int, file)
        return cls(
            space,
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
        self._clips.look()
        return self._clips.nbytes() + self._raw.nbytes

    def get(self, index: Any) -> Any:
        return self.gather(resolve_index(self.backend, index, self._used), self._used)

    def gather(self, slots: Any, length: int) -> Any:
        if self.capacity is None:
            self._places.grow(length)
        else:
            slots = slots % self.capacity
        if isinstance(slots, int):
            return self.layout.assemble([self._read(np.array([slots]))[0]])
        frames = self._read(slots.reshape(-1))
        return self.layout.assemble([frames.reshape(*slots.shape, *frames.shape[1:])])

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self.gather(slots, length)

    def encoded_frames(self, nested_keys: tuple[Any, ...], slots: np.ndarray, length: int) -> EncodedFrames | None:
        if not self._is_as_stored:
            return None
        if self.capacity is None:
            self._places.grow(length)
        else:
            slots = slots % self.capacity
        return self._frames.encoded(slots)

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
            self._places.grow(self._used + length)
            self._used += length

    def shrink_length(self, length: int) -> None:
        if self.capacity is not None:
            return
        self._check_mutable()
        if not 0 <= length <= self._used:
            raise ValueError(f"cannot shrink by {length}, there are {self._used} slots")
        self._used -= length
        self._encoder.forget(self._used)
        self._places.forget(self._used)

    def clear(self) -> None:
        self._check_mutable()
        self._used = 0 if self.capacity is None else self.capacity
        self._encoder.forget(0)
        self._places.forget(0)
        self._encoder.drop_empty_pieces()

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self._folder} was opened read-only: open it with read_only=False to write")

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, slots: np.ndarray) -> np.ndarray:
        """The frames in any slots, in the shape of the space."""
        distinct, inverse = np.unique(slots, return_inverse=True)
        frames = self._frames.read(distinct)
        if not np.array_equal(distinct, slots):
            frames = frames[inverse]
        return frames.reshape(len(slots), *self.layout.leaves[0].codec.shape)

    # -- how a replay buffer writes --------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> Sequence[Any]:
        return self.layout.encode(value, () if count is None else (count,))

    def part(self, encoded: Sequence[Any], count: int, start: int, stop: int) -> list[Any]:
        return [leaf[start:stop] for leaf in encoded]

    def reserve(self, start: int, stop: int) -> None:
        if self.capacity is None:
            self._places.grow(stop)
        self._places.file.reserve(start, stop)
        self._encoder.reserve(start, stop)

    def write(self, slots: int | slice, encoded: Sequence[Any], number: int) -> None:
        start = slots if isinstance(slots, int) else slots.start
        stop = start + 1 if isinstance(slots, int) else slots.stop
        self._raw.write(slots, encoded, number)
        self._encoder.wrote(start, stop, number)
        self._used = max(self._used, stop)

    def check_rewritable(self, slots: np.ndarray) -> None:
        if self._encoder.is_closed(slots):
            raise PermissionError(
                f"{self._folder}: frames of an episode that has ended are video, and cannot be overwritten or moved: "
                f"copy the samples into a buffer whose columns are images or packed (extend_from), and change them "
                f"there; the oldest samples can be removed"
            )

    def raw_rows(self, slots: np.ndarray) -> bytes:
        return self._read(slots).tobytes()

    def encoded_as_raw_rows(self, encoded: Sequence[Any], count: int | None) -> bytes:
        return np.asarray(encoded[0]).tobytes()

    @property
    def row_nbytes(self) -> int:
        return self._raw.layout.leaves[0].codec.dtype.itemsize

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        if not len(slots):
            return
        self._encoder.reserve_at(slots)
        self._places.file.reserve(int(slots.min()), int(slots.max()) + 1)
        self._raw.write_raw_rows(slots, raw, numbers)
        self._encoder.wrote_at(slots)

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        self._encoder.end_episode(slots, number)

    def be_called(self, name: str) -> None:
        self._encoder.name = name

    def settle(self, timeout: float | None = None) -> int:
        return self._encoder.settle(timeout)

    def column_rule(self) -> Video:
        """Return the rule that makes such a storage for a column."""
        return Video(**asdict(self.settings), raw_bytes=self._raw_bytes)

    # -- durability ------------------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        return self._places.file.length, 0

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        if self.capacity is None:
            self._places.grow(length)
            self._used = length
        if sizes is not None:
            self._places.file.check_length(sizes[0], exactly=True)

    def trim(self) -> None:
        if self.capacity is None:
            self._places.trim(self._used)
        self._encoder.drop_empty_pieces()

    def flush(self) -> None:
        if self.is_mutable:
            self._raw.flush()
            self._places.file.sync()
            sync_folder(self._folder)

    def forget_rows(self, head: int) -> bool:
        in_videos, in_pieces = self._encoder.forget(head), self._raw.forget(head)
        return in_videos or in_pieces

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        return self._frames.check(slots, numbers, numbers_only=numbers_only)

    def verify(self) -> list[str]:
        self._clips.look()
        what = "it does not match the checksum in its name"
        return [f"{clip.path}: {what}" for clip in self._clips.all if not clip.is_sound()]

    def dumps(self, path: PathLike) -> None:
        if os.path.exists(path) and os.path.samefile(path, self._folder):
            self.flush()
        else:
            self.snapshot(path, [(0, self._used)])

    def snapshot(self, path: PathLike, slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        if not self._is_as_stored:
            raise NotImplementedError(f"{self._folder} was loaded with resize or crop: load it without to copy it")
        self._encoder.settle()
        copy = self._create(self._source, Path(path), self.settings, self.capacity, self._raw_bytes)
        try:
            if self.capacity is None:
                copy.extend_length(max((stop for _, stop in slots), default=0))
            used: set[Clip] = set()
            for first, last in slots:
                for start in range(first, last, _COPIED_AT_ONCE):
                    part = np.arange(start, min(start + _COPIED_AT_ONCE, last))
                    used |= self._copy_frames(copy, part, number + np.arange(len(part)))
                    number += len(part)
            for clip in used:
                with contextlib.suppress(FileNotFoundError):  # its samples were overwritten meanwhile
                    shutil.copyfile(clip.path, copy._folder / clip.path.name)
                    sync_file(copy._folder / clip.path.name)
            copy.flush()
        finally:
            copy.close()

    def _copy_frames(self, copy: VideoStorage, slots: np.ndarray, numbers: np.ndarray) -> Set[Clip]:
        """Copy what is raw, and say of the rest where it is; the videos that this takes."""
        ours, theirs, pending = self._places.array, copy._places, slots
        theirs.file.reserve(int(slots[0]), int(slots[-1]) + 1)
        for _ in range(_ATTEMPTS):
            places = ours[pending]
            theirs.array[pending[places >= ENCODED]] = places[places >= ENCODED]
            raw = pending[places == RAW]
            frames = np.empty((len(raw), *self._raw.shape), self._raw.dtype)
            is_missing = self._raw.read(raw, frames)
            kept = raw[~is_missing]
            copy.write_raw_rows(kept, frames[~is_missing].tobytes(), numbers[np.searchsorted(slots, kept)])
            pending = raw[is_missing]  # encoded meanwhile
        self._clips.look()
        places = theirs.array[slots]
        clips = [self._clips.find(number) for number in (places[places >= ENCODED] - ENCODED).tolist()]
        return {clip for clip in clips if clip is not None}

    def close(self) -> None:
        self._encoder.close()
        self._clips.close()
        self._raw.close()
        self._places.file.close()


def _loaded(folder: Path, space: Space, capacity: int | None, form: FrameForm, cache_bytes: int) -> Any:
    options: Any = {"resize": form.resize, "crop": form.crop, "frame_cache": cache_bytes}
    return VideoStorage.load_from(folder, space, capacity=capacity, **options)
