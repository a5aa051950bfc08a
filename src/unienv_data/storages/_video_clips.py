"""The videos in a folder, by the numbers of the samples whose frames they have."""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ..base.encoded_frames import EncodedFrames
from ..base.storage import StorageCorruptedError
from ._frame_cache import FrameCache
from ._video_encoding import crc_of
from .video_frames import FrameForm, FrameReader, FrameRequest

_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]{8})\.(?:mp4|avi)\Z")


class Clip(NamedTuple):
    """A video: of the samples with numbers [first, stop)."""

    first: int
    stop: int
    crc: int
    path: Path

    @classmethod
    def named(cls, folder: Path, first: int, count: int, crc: int, extension: str) -> Clip:
        return cls(first, first + count, crc, folder / f"{first}-{first + count - 1}-{crc:08x}.{extension}")

    def is_sound(self) -> bool:
        """Whether the file is as it was written."""
        return self.path.exists() and crc_of(self.path) == self.crc


class VideoClips:
    """The videos in a folder, and frames of them in one form. The list of them is replaced, never changed."""

    def __init__(self, folder: Path, fps: float, form: FrameForm, cache: FrameCache | None) -> None:
        self._folder, self._fps, self._form, self._cache = folder, fps, form, cache
        self._reader = FrameReader()
        self.all: list[Clip] = []
        self.look()

    def look(self) -> None:
        """See which videos there are, as another process may have added and deleted some."""
        matches = filter(None, map(_NAME.match, os.listdir(self._folder)))
        named = ((int(match[1]), int(match[2]), int(match[3], 16), match[0]) for match in matches)
        self.all = sorted(Clip(first, last + 1, crc, self._folder / name) for first, last, crc, name in named)

    def find(self, number: int) -> Clip | None:
        """The video that has the frame of a sample."""
        clips = self.all
        place = bisect_right(clips, number, key=lambda clip: clip.first) - 1
        return clips[place] if place >= 0 and number < clips[place].stop else None

    def _find_all(self, numbers: np.ndarray) -> list[Clip | None]:
        clips = [self.find(number) for number in numbers.tolist()]
        if None in clips:
            self.look()
            clips = [self.find(number) for number in numbers.tolist()]
        return clips

    def where(self, numbers: np.ndarray) -> EncodedFrames | None:
        """Where the frames of samples are; None if one of them is in no video."""
        clips = [clip for clip in self._find_all(numbers) if clip is not None]
        if len(clips) < len(numbers):
            return None
        frames = numbers - np.array([clip.first for clip in clips], np.int64)
        return EncodedFrames([clip.path for clip in clips], frames / self._fps, self._fps)

    def add(self, clip: Clip) -> None:
        self.all = sorted([*self.all, clip])

    def delete(self, clips: Iterable[Clip]) -> None:
        """Delete videos, which are in the list no more."""
        for clip in clips:
            clip.path.unlink(missing_ok=True)
            self._reader.forget(clip.path)

    def read(self, numbers: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Read the frames of samples into `out`; of which of them there is no video."""
        clips = self._find_all(numbers)
        is_missing = np.array([clip is None for clip in clips], bool)
        wanted = np.flatnonzero(~is_missing)
        marks = np.array([0 if clip is None else clip.crc for clip in clips], np.int64)
        if self._cache is not None and len(wanted):
            cached = np.empty((len(wanted), *out.shape[1:]), out.dtype)
            is_cached = self._cache.get(numbers[wanted], marks[wanted], cached)
            out[wanted[is_cached]] = cached[is_cached]
            wanted = wanted[~is_cached]
        if not len(wanted):
            return is_missing
        known = [clip for index in wanted.tolist() if (clip := clips[index]) is not None]
        seconds = (numbers[wanted] - np.array([clip.first for clip in known])) / self._fps
        tolerances = np.full(len(wanted), 0.5 / self._fps)
        request = FrameRequest([clip.path for clip in known], seconds, tolerances, out.shape[1:], self._form)
        try:
            (decoded,) = self._reader.read([request])
        except FileNotFoundError:  # deleted since: what was there is overwritten
            self.look()
            is_missing[wanted] = True
            return is_missing
        except (OSError, EOFError, ValueError, need("av", extra="video").FFmpegError) as error:
            raise StorageCorruptedError(f"{self._folder}: a video cannot be read: {error}") from error
        out[wanted] = decoded
        if self._cache is not None:
            self._cache.put(numbers[wanted], marks[wanted], decoded)
        return is_missing

    def nbytes(self) -> int:
        total = 0
        for clip in self.all:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                total += clip.path.stat().st_size
        return total

    def close(self) -> None:
        self._reader.close()
        if self._cache is not None:
            self._cache.close()
