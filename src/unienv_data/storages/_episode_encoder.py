"""Encoding episodes in the background, and the pieces of raw frames that come and go meanwhile.

The writer and the threads share `places` and the list of videos, under one lock that nobody holds while a file system
works: it may take a third of a second to give room, to rename or to delete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.files import sync_folder
from ..base.storage import ROW_WHOLE, StorageCorruptedError
from ._frame_places import ENCODED, RAW, FramePlaces
from ._raw_frames import RawFrames
from ._video_clips import Clip, VideoClips
from ._video_encoding import VideoSettings, crc_of, encode_video, verify_video

_POOLS: dict[str, ThreadPoolExecutor] = {}  # for all videos of this process


def _threads(task: str, count: int) -> ThreadPoolExecutor:
    if task not in _POOLS:
        _POOLS[task] = ThreadPoolExecutor(count, f"unienv-{task}")
    return _POOLS[task]


os.register_at_fork(after_in_child=_POOLS.clear)


class _Job(NamedTuple):
    """Frames to be encoded: those in these slots, which are of consecutive samples from `number` on."""

    slots: np.ndarray
    number: int


class EpisodeEncoder:
    """What a storage of video does in the background. Its methods are for the one writer."""

    def __init__(
        self,
        folder: Path,
        settings: VideoSettings,
        pixels: tuple[str, tuple[int, ...]],
        state: tuple[FramePlaces, RawFrames, VideoClips],
        *,
        capacity: int | None,
        bound: int,
    ) -> None:
        """`pixels` are the pixel format and the shape of raw frames, `bound` the bytes of them that may wait."""
        self._folder, self._settings, (self._format, self._shape) = folder, settings, pixels
        self._places, self._raw, self._clips = state
        self._capacity, self._bound = capacity, bound
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._jobs: dict[Future[None], _Job] = {}
        self._failure: BaseException | None = None
        self._has_warned = False
        self._begun: tuple[int, int] | None = None  # slot and number of the first frame that no job has
        # Of the pieces: the one that was reserved last, those that are to be written yet, those being deleted.
        self._last_piece, self._reserved, self._dropping = -1, set[int](), set[int]()
        self._coming: Future[None] | None = None  # makes the next piece

    # -- pieces ----------------------------------------------------------------------------------------------

    def reserve(self, start: int, stop: int) -> None:
        """Have pieces for the slots [start, stop); this waits while too many frames wait to be encoded."""
        pieces = range(start // self._raw.piece_slots, -(-stop // self._raw.piece_slots))
        if len(pieces) == 1 and pieces[0] == self._last_piece:
            self._reserved.add(pieces[0])  # others may be reserved before it is written to
            return
        self._await_piece()
        before = self._last_piece
        with self._changed:  # from here on they are not deleted
            self._reserved.update(pieces)
            self._last_piece = pieces[-1]
            while not self._dropping.isdisjoint(pieces):
                self._changed.wait()
        for number in pieces:
            self._wait_for_room()
            if not self._raw.has(number):
                self._raw.make(number)
        self.prepare(pieces.stop * self._raw.piece_slots, before)

    def prepare(self, slot: int, before: int = -1) -> None:
        """Make the piece of a slot, which is written to next, and look whether the one `before` can go."""
        number = (slot if self._capacity is None else slot % self._capacity) // self._raw.piece_slots

        def make() -> None:
            if before >= 0:
                self._drop_if_empty(before)
            with contextlib.suppress(OSError, MemoryError):  # refused when it is needed
                if not self._raw.has(number):
                    self._raw.make(number)

        self._coming = _threads("reserve", 1).submit(make)

    def reserve_at(self, slots: np.ndarray) -> None:
        """Have pieces for any slots, of samples that are written again."""
        self._await_piece()
        for number, _, _ in self._raw.parts(slots):
            if not self._raw.has(number):
                self._raw.make(number)

    def _await_piece(self) -> None:
        if self._coming is not None and self._process == os.getpid():
            self._coming.result()
        self._coming = None

    def _drop_if_empty(self, number: int, *, at_the_end: bool = False) -> None:
        """Delete a piece if no frame in it is needed, and none is to come unless it is `at_the_end`."""
        start, stop = self._raw.bounds(number)
        with self._changed:
            places = self._places.array[start:stop]
            is_over = bool((places[-1:] >= ENCODED).all()) and number not in (*self._reserved, self._last_piece)
            is_empty = bool((places != RAW).all()) and (at_the_end or is_over)
            if is_empty:
                self._dropping.add(number)
        if is_empty:
            gone = self._raw.drop(number)
            with self._changed:
                self._dropping.discard(number)
                self._changed.notify_all()
            if gone is not None:
                shutil.rmtree(gone, ignore_errors=True)

    def drop_empty_pieces(self) -> None:
        """Delete all pieces in which no frame is needed; nobody is writing."""
        self._await_piece()
        self._last_piece = -1
        self._reserved.clear()
        for number in self._raw.numbers():
            self._drop_if_empty(number, at_the_end=True)

    def _wait_for_room(self) -> None:
        """Wait while more raw frames are kept than may be; frames that cannot be encoded are an OSError then."""
        if 2 * self._raw.nbytes >= self._bound and not self._jobs:
            self._split_open_episode()
        while self._raw.nbytes >= self._bound:
            if self._failure is not None:
                raise OSError(f"{self._folder}: frames cannot be encoded, and no more may wait: {self._failure}")
            if not self._jobs and not self._split_open_episode():
                return
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self._folder}: frames are written faster than they are encoded, so the writer waits: "
                    f"{self._bound:,} bytes of frames wait to be encoded, which is the bound (raw_bytes); a larger "
                    f"one, smaller frames, or codec='h264' helps",
                    RuntimeWarning,
                    stacklevel=2,
                )
            with self._changed:
                if self._jobs:
                    self._changed.wait(1.0)

    # -- episodes --------------------------------------------------------------------------------------------

    def wrote(self, start: int, stop: int, number: int) -> None:
        """Frames in slots [start, stop) were written, of samples from `number` on."""
        size = self._raw.piece_slots
        with self._changed:
            self._places.array[start:stop] = RAW
            if self._reserved:
                self._reserved.difference_update(range(start // size, -(-stop // size)))
            if self._begun is None:
                self._begun = (start, number)
        clips = self._clips.all
        oldest = 0 if self._capacity is None else number + stop - start - self._capacity
        if clips and clips[0].stop <= oldest:  # its samples were all overwritten
            with self._changed:
                self._clips.remove([clip for clip in self._clips.all if clip.stop <= oldest])

    def wrote_at(self, slots: np.ndarray) -> None:
        """Frames in any slots were written again."""
        with self._changed:
            self._places.array[slots] = RAW

    def is_closed(self, slots: np.ndarray) -> bool:
        """Whether frames in these slots are of episodes that have ended."""
        with self._changed:
            waiting = self._waiting()
            return bool((self._places.array[slots] >= ENCODED).any() or np.isin(slots, waiting).any())

    def _waiting(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *(job.slots for job in self._jobs.values())])

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        """Encode what of these frames is not yet; `number` is that of the first sample."""
        with self._changed:
            is_new = (self._places.array[slots] == RAW) & ~np.isin(slots, self._waiting())
            self._begun = None
        edges = np.flatnonzero(np.diff(is_new, prepend=False, append=False)).reshape(-1, 2)
        for start, stop in edges.tolist():
            self._submit(_Job(slots[start:stop], number + start))

    def _split_open_episode(self) -> bool:
        """Encode what there is of a long episode that is still open; False if there is nothing."""
        with self._changed:
            begun, self._begun = self._begun, None
            if begun is None:
                return False
            slot, number = begun
            is_raw = self._places.array == RAW
            slots = slot + np.arange(_leading(is_raw[slot:]))
            if self._capacity is not None and slot + len(slots) == self._capacity:  # around the end of the ring
                slots = np.concatenate([slots, np.arange(_leading(is_raw[:slot]))])
        states = self._raw.check(slots, number + np.arange(len(slots)), numbers_only=True)
        slots = slots[: _leading(states == ROW_WHOLE)]
        if len(slots):
            self._submit(_Job(slots, number))
        return len(slots) > 0

    def forget_open_episode(self) -> None:
        self._begun = None

    def _submit(self, job: _Job) -> None:
        with self._changed:
            # half as many as there are cores, so that the others can record
            future = _threads("encode", max(1, (os.cpu_count() or 2) // 2)).submit(self._encode, job)
            self._jobs[future] = job
        future.add_done_callback(self._finished)

    def _finished(self, future: Future[None]) -> None:
        with self._changed:
            self._jobs.pop(future)
            self._failure = self._failure or (None if future.cancelled() else future.exception())
            self._changed.notify_all()

    def _encode(self, job: _Job) -> None:
        """Encode frames, and drop the raw ones once the video has been verified and counts."""
        count = len(job.slots)
        temporary = self._folder / f".{job.number}.{os.getpid()}.tmp"
        try:
            encode_video(temporary, self._raw_frames(job.slots), self._settings, self._format)
            verify_video(temporary, count)
            clip = Clip.named(self._folder, job.number, count, crc_of(temporary), self._settings.extension)
            temporary.rename(clip.path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)
        numbers = job.number + np.arange(count)
        with self._changed:
            kept = self._places.array[job.slots] == RAW
            if self._capacity is not None:  # some of the slots may hold newer frames by now
                kept &= self._raw.check(job.slots, numbers, numbers_only=True) == ROW_WHOLE
            self._clips.add(clip)
            self._places.array[job.slots[kept]] = (numbers[kept] + ENCODED).astype(np.uint64)
        self._places.file.sync()
        for number in np.unique(job.slots // self._raw.piece_slots).tolist():
            self._drop_if_empty(number)

    def _raw_frames(self, slots: np.ndarray) -> Iterator[np.ndarray]:
        frame = np.empty((1, *self._raw.shape), self._raw.dtype)
        for slot in slots:
            if self._raw.read(slot[None], frame).any():
                raise StorageCorruptedError(f"{self._folder}: the frame in slot {slot} is gone, and was to be encoded")
            yield frame.reshape(self._shape)

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

    def close(self) -> None:
        self.settle()
        self._await_piece()


def _leading(flags: np.ndarray) -> int:
    """How many flags are set before the first one that is not."""
    return len(flags) if flags.all() else int(flags.argmin())
