"""Encoding episodes in the background, and the pieces of raw frames that come and go meanwhile.

The writer and the threads share `places` and the list of videos, under one lock that nobody holds while a file system
works: it may take a third of a second to give room, to rename or to delete.
"""

from __future__ import annotations

import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from unienv_interface.utils.channel import no_interrupt

from ..base.files import sync_folder
from ..base.row_storage import ROW_WHOLE
from ..base.storage import StorageCorruptedError
from ..base.threads import Changes
from ._frame_places import ENCODED, NOTHING, RAW, FramePlaces
from ._raw_frames import RawFrames
from ._video_clips import Clip, VideoClips
from ._video_encoding import VideoSettings, crc_of, encode_video, verify_video

_POOLS: dict[str, ThreadPoolExecutor] = {}  # for all videos of this process


def _threads(task: str, count: int) -> ThreadPoolExecutor:
    if task not in _POOLS:
        _POOLS[task] = ThreadPoolExecutor(count, f"unienv-{task}")
    return _POOLS[task]


os.register_at_fork(after_in_child=_POOLS.clear)


class _Job:
    """Frames to encode: those in these slots, of consecutive samples from `number` on."""

    def __init__(self, slots: np.ndarray, number: int) -> None:
        self.slots, self.number = slots, number
        self.is_wanted = np.ones(len(slots), bool)  # False for frames that were overwritten or dropped since
        self.is_running = False
        self.encoded = 0  # frames so far
        self._bounds = int(slots.min()), int(slots.max()) + 1

    def overwrite(self, start: int, stop: int) -> None:
        """Leave out the frames in slots [start, stop)."""
        if start < self._bounds[1] and self._bounds[0] < stop:
            self.is_wanted[(self.slots >= start) & (self.slots < stop)] = False


class _UnwantedError(Exception):
    """All frames of a job were overwritten or dropped while it was running."""


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
        self.name = str(folder)  # what warnings call the storage
        self._folder, self._settings, (self._format, self._shape) = folder, settings, pixels
        self._places, self._raw, self._clips = state
        self._capacity, self._bound = capacity, bound
        self._process = os.getpid()
        self._changes = Changes()
        self._lock = self._changes.lock
        self._jobs: list[_Job] = []  # that wait or run
        self._failed: list[_Job] = []  # that the next flush tries again
        self._failure: BaseException | None = None  # the newest of theirs
        self._unreported: BaseException | None = None
        self._has_warned = False
        self._temporaries = itertools.count()
        self._begun: tuple[int, int] | None = None  # slot and number of the first frame that no job has
        # Of the pieces: the one that was reserved last, those that are to be written yet, those being deleted.
        self._last_piece, self._reserved, self._dropping = -1, set[int](), set[int]()
        self._is_making = False  # whether a thread makes the next piece

    # -- pieces ----------------------------------------------------------------------------------------------

    def reserve(self, start: int, stop: int) -> None:
        """Have pieces for the slots [start, stop), the next ones; this waits while too many frames wait to be encoded.

        The frames in the slots before `start` count by now.
        """
        pieces = range(start // self._raw.piece_slots, -(-stop // self._raw.piece_slots))
        if len(pieces) == 1 and pieces[0] == self._last_piece:
            self._reserved.add(pieces[0])  # others may be reserved before it is written to
            return
        self.await_piece()
        before = self._last_piece
        try:
            with self._lock:  # from here on they are not deleted
                self._reserved.update(pieces)
                self._last_piece = pieces[-1]
            self._changes.wait_for(lambda: self._dropping.isdisjoint(pieces))
            for number in pieces:
                self._wait_for_room(start)
                if not self._raw.has(number):
                    self._raw.make(number)
        except BaseException:
            self._last_piece = -1  # the next try begins anew
            raise
        self.prepare(pieces.stop * self._raw.piece_slots, before)

    def prepare(self, slot: int, before: int = -1) -> None:
        """Make the piece of a slot, which is written to next, and look whether the one `before` can go."""
        number = (slot if self._capacity is None else slot % self._capacity) // self._raw.piece_slots

        def make() -> None:
            try:
                if before >= 0:
                    self._drop_if_empty(before)
                if not self._raw.has(number):
                    self._raw.make(number)
            except (OSError, MemoryError):
                pass  # refused when it is needed
            finally:
                self._has_made()

        with no_interrupt():  # what is waited for is being made
            self._is_making = True
            try:
                _threads("reserve", 1).submit(make)
            except RuntimeError:  # the interpreter is shutting down
                self._is_making = False

    def _has_made(self) -> None:
        with self._lock:
            self._is_making = False
            self._changes.notify()

    def reserve_at(self, slots: np.ndarray) -> None:
        """Have pieces for any slots, of samples that are written again."""
        self.await_piece()
        for number, _, _ in self._raw.parts(slots):
            if not self._raw.has(number):
                self._raw.make(number)

    def await_piece(self) -> None:
        """Wait until the piece that `prepare` makes is there, or could not be made."""
        if self._process == os.getpid():
            self._changes.wait_for(lambda: not self._is_making)

    def _drop_if_empty(self, number: int, *, at_the_end: bool = False) -> None:
        """Delete a piece if no frame in it is needed, and none is to come unless it is `at_the_end`."""
        start, stop = self._raw.bounds(number)
        with self._lock:
            places = self._places.array[start:stop]
            is_over = bool((places[-1:] >= ENCODED).all()) and number not in (*self._reserved, self._last_piece)
            is_empty = bool((places != RAW).all()) and (at_the_end or is_over)
            if is_empty:
                self._dropping.add(number)
        if is_empty:
            try:
                gone = self._raw.drop(number)
            finally:
                with self._lock:
                    self._dropping.discard(number)
                    self._changes.notify()
            if gone is not None:
                shutil.rmtree(gone, ignore_errors=True)

    def drop_empty_pieces(self) -> None:
        """Delete all pieces in which no frame is needed; nobody is writing."""
        self.await_piece()
        self._last_piece = -1
        self._reserved.clear()
        with no_interrupt():  # a piece that is being deleted is waited for
            for number in self._raw.numbers():
                self._drop_if_empty(number, at_the_end=True)

    def _wait_for_room(self, slot: int) -> None:
        """Wait while more raw frames are kept than may be; frames that cannot be encoded are an OSError then.

        `slot` is the next one to be written.
        """
        if 2 * self._raw.nbytes >= self._bound and not self._jobs:
            self._split_open_episode(slot)
        has_retried = False
        while self._raw.nbytes >= self._bound:
            if self._failed:
                if has_retried:
                    raise OSError(f"{self.name}: frames cannot be encoded, and no more may wait: {self._failure}")
                self._retry()
                has_retried = True
            if not self._jobs and not self._split_open_episode(slot):
                return
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self.name}: frames are written faster than they are encoded, so the writer waits: "
                    f"{self._bound:,} bytes of frames wait to be encoded, which is the bound (raw_bytes); a larger "
                    f"one, smaller frames, or codec='h264' helps",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._await_a_job()

    def _await_a_job(self) -> None:
        """Wait until one of the jobs has ended, at most a second."""
        count = len(self._jobs)
        self._changes.wait_for(lambda: len(self._jobs) < count or not count, 1.0)

    # -- episodes --------------------------------------------------------------------------------------------

    def wrote(self, start: int, stop: int, number: int) -> None:
        """Frames in slots [start, stop) were written, of samples from `number` on."""
        size = self._raw.piece_slots
        with self._lock:
            self._places.array[start:stop] = RAW
            if self._reserved:
                self._reserved.difference_update(range(start // size, -(-stop // size)))
            if self._begun is None:
                self._begun = (start, number)
            for job in (*self._jobs, *self._failed):
                job.overwrite(start, stop)
        clips = self._clips.all
        oldest = 0 if self._capacity is None else number + stop - start - self._capacity
        if clips and clips[0].stop <= oldest:  # its samples were all overwritten
            self._delete_clips(lambda clip: clip.stop <= oldest)

    def wrote_at(self, slots: np.ndarray) -> None:
        """Frames in any slots were written again."""
        with self._lock:
            self._places.array[slots] = RAW

    def forget(self, head: int) -> bool:
        """Drop the frames of samples with numbers from `head` on; whether there were any in a video."""
        with self._lock:
            for job in (*self._jobs, *self._failed):
                job.is_wanted[max(0, head - job.number) :] = False
            self._failed = [job for job in self._failed if job.is_wanted.any()]
            if self._begun is not None and self._begun[1] >= head:
                self._begun = None
        # A job stops at its next frame; no other one may have its numbers before.
        self._changes.wait_for(lambda: not any(job.is_running and not job.is_wanted.any() for job in self._jobs))
        with self._lock:
            array = self._places.array
            is_dropped = array >= np.uint64(head + ENCODED)
            has_dropped = bool(is_dropped.any())
            if has_dropped:
                array[is_dropped] = NOTHING
        self._delete_clips(lambda clip: clip.first >= head)
        return has_dropped

    def _delete_clips(self, is_unwanted: Callable[[Clip], bool]) -> None:
        with self._lock:
            unwanted = [clip for clip in self._clips.all if is_unwanted(clip)]
            self._clips.all = [clip for clip in self._clips.all if not is_unwanted(clip)]
        self._clips.delete(unwanted)

    def is_closed(self, slots: np.ndarray) -> bool:
        """Whether frames in these slots are of episodes that have ended."""
        with self._lock:
            waiting = self._waiting()
            return bool((self._places.array[slots] >= ENCODED).any() or np.isin(slots, waiting).any())

    def _waiting(self) -> np.ndarray:
        jobs = [*self._jobs, *self._failed]
        return np.concatenate([np.zeros(0, np.int64), *(job.slots[job.is_wanted] for job in jobs)])

    def end_episode(self, slots: np.ndarray, number: int) -> None:
        """Encode what of these frames is not yet; `number` is that of the first sample. May be repeated."""
        with self._lock:
            is_new = (self._places.array[slots] == RAW) & ~np.isin(slots, self._waiting())
            self._begun = None
        edges = np.flatnonzero(np.diff(is_new, prepend=False, append=False)).reshape(-1, 2)
        for start, stop in edges.tolist():
            self._submit(_Job(slots[start:stop], number + start))

    def _split_open_episode(self, stop: int) -> bool:
        """Encode the frames of the open episode up to slot `stop`; False if there are none."""
        with self._lock:
            begun, self._begun = self._begun, None
            if begun is None:
                return False
            slot, number = begun
            if self._capacity is None or stop >= slot:
                slots = np.arange(slot, stop)
            else:  # around the end of the ring
                slots = np.concatenate([np.arange(slot, self._capacity), np.arange(stop)])
            is_raw = self._places.array[slots] == RAW
        states = self._raw.check(slots, number + np.arange(len(slots)), numbers_only=True)
        slots = slots[: _leading(is_raw & (states == ROW_WHOLE))]
        if len(slots):
            self._submit(_Job(slots, number))
        return len(slots) > 0

    # -- encoding --------------------------------------------------------------------------------------------

    def _submit(self, job: _Job) -> None:
        with no_interrupt():  # a job that is waited for is one that a thread has
            with self._lock:
                self._jobs.append(job)
            try:
                # half as many as there are cores, so that the others can record
                _threads("encode", max(1, (os.cpu_count() or 2) // 2)).submit(self._run, job)
            except RuntimeError as error:  # the interpreter is shutting down: the next writer encodes these frames
                self._finish(job, error)

    def _retry(self) -> None:
        """Try once more what could not be encoded."""
        with no_interrupt():
            with self._lock:
                failed, self._failed, self._unreported = self._failed, [], None
            for job in failed:
                if job.is_wanted.any():
                    self._submit(job)

    def _run(self, job: _Job) -> None:
        failure: BaseException | None = None
        with self._lock:
            job.encoded, job.is_running = 0, bool(job.is_wanted.any())
        try:
            if job.is_running:
                self._encode(job)
        except _UnwantedError:
            pass
        except BaseException as error:  # nobody would see it in a thread of a pool
            failure = error
        self._finish(job, failure)

    def _finish(self, job: _Job, failure: BaseException | None) -> None:
        with self._lock:
            job.is_running = False
            self._jobs.remove(job)
            if failure is not None:
                self._failed.append(job)
                self._failure = self._unreported = failure
            self._changes.notify()

    def _encode(self, job: _Job) -> None:
        """Encode frames, and drop the raw ones once the video has been verified and counts."""
        count = len(job.slots)
        temporary = self._folder / f".{job.number}-{next(self._temporaries)}.{os.getpid()}.tmp"
        try:
            encode_video(temporary, self._raw_frames(job), self._settings, self._format)
            verify_video(temporary, count)
            clip = Clip.named(self._folder, job.number, count, crc_of(temporary), self._settings.extension)
            temporary.rename(clip.path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)
        numbers = job.number + np.arange(count)
        with self._lock:
            kept = job.is_wanted
            self._clips.add(clip)
            self._places.array[job.slots[kept]] = (numbers[kept] + ENCODED).astype(np.uint64)
        self._places.file.sync()
        if kept.any():  # a process that was killed may have left another video of these frames
            self._delete_clips(lambda other: other != clip and clip.first <= other.first and other.stop <= clip.stop)
        else:
            self._delete_clips(lambda other: other == clip)
        for number in np.unique(job.slots // self._raw.piece_slots).tolist():
            self._drop_if_empty(number)

    def _raw_frames(self, job: _Job) -> Iterator[np.ndarray]:
        frame = np.empty((1, *self._raw.shape), self._raw.dtype)
        for slot in job.slots:
            if not job.is_wanted.any():
                raise _UnwantedError
            if self._raw.read(slot[None], frame).any():
                raise StorageCorruptedError(f"{self._folder}: the frame in slot {slot} is gone, and was to be encoded")
            yield frame.reshape(self._shape)
            job.encoded += 1

    def settle(self, timeout: float | None = None) -> int:
        """Wait until all episodes that have ended are encoded, at most so many seconds; how many frames are left.

        Without a timeout, what could not be encoded before is tried once more, and a warning says if it cannot be.
        """
        if self._process != os.getpid():  # a fork, whose parent encodes
            return 0
        if timeout is not None:
            return self._wait_for_jobs(timeout)
        self._retry()
        self._wait_for_jobs()
        self._warn_of_failure()
        return 0

    def _wait_for_jobs(self, timeout: float | None = None) -> int:
        self._changes.wait_for(lambda: not self._jobs, timeout)
        with self._lock:
            return sum(len(job.slots) - job.encoded for job in self._jobs)

    def _warn_of_failure(self) -> None:
        failure, self._unreported = self._unreported, None
        if failure is not None:
            warnings.warn(
                f"{self.name}: frames could not be encoded, and are kept as they are until flush(), or whoever "
                f"opens the folder to write, can encode them: {failure}",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        if self._process == os.getpid():
            self._wait_for_jobs()
            self._warn_of_failure()
        self.await_piece()


def _leading(flags: np.ndarray) -> int:
    """How many flags are set before the first one that is not."""
    return len(flags) if flags.all() else int(flags.argmin())
