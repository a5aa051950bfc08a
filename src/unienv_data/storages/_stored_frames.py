"""Reading frames by their slots, wherever they are: in a piece of raw frames or in a video."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unienv_interface.space.spaces import ArraySpace, BoxSpace

from ..base.encoded_frames import EncodedFrames
from ..base.row_storage import ROW_WHOLE, ROW_WRONG
from ..base.storage import StorageCorruptedError
from ._frame_places import ENCODED, NOTHING, RAW, FramePlaces
from ._image_codec import pixel_shape
from ._raw_frames import RawFrames
from ._video_clips import Clip, VideoClips
from .video_frames import FrameConverter, FrameForm

_ATTEMPTS = 5


class StoredFrames:
    """The frames of the slots of one storage, in the form that is wanted; None stands for frames as they are stored."""

    def __init__(
        self,
        folder: Path,
        space: ArraySpace,
        form: FrameForm | None,
        parts: tuple[FramePlaces, RawFrames, VideoClips],
    ) -> None:
        self._folder, self._form = folder, form
        self._places, self._raw, self._clips = parts
        self._stored_shape = pixel_shape(space)
        self._shape = self._stored_shape if form is None else pixel_shape(form_space(space, form))

    def read(self, slots: np.ndarray) -> np.ndarray:
        """The frames in these slots, which are in order and without duplicates."""
        out = np.zeros((len(slots), *self._shape), self._raw.dtype)
        pending = np.arange(len(slots))
        for _ in range(_ATTEMPTS):
            places = self._places.array[slots[pending]]
            raw, encoded = pending[places == RAW], pending[places >= ENCODED]
            missing = [self._read_raw(slots, raw, out)]
            if len(encoded):
                numbers = (places[places >= ENCODED] - ENCODED).astype(np.int64)
                frames = np.empty((len(encoded), *out.shape[1:]), out.dtype)
                is_missing = self._clips.read(numbers, frames)
                out[encoded] = frames
                missing.append(encoded[is_missing])
            pending = np.concatenate(missing)
            if not len(pending):
                return out
            # else they were encoded meanwhile, or written again
        raise StorageCorruptedError(f"{self._folder}: the frame in slot {slots[pending[0]]} is in no file")

    def _read_raw(self, slots: np.ndarray, wanted: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Read the frames that are in pieces into `out[wanted]`; the indices of those that are in none."""
        if not len(wanted):
            return wanted
        frames = np.empty((len(wanted), *self._raw.shape), out.dtype)
        is_missing = self._raw.read(slots[wanted], frames)
        frames = frames.reshape(len(wanted), *self._stored_shape)
        if self._form is None:
            out[wanted] = frames
        else:
            converter = FrameConverter(self._form)
            for index, frame in zip(wanted.tolist(), frames, strict=True):
                out[index] = converter.fit(frame)
        return wanted[is_missing]

    def encoded(self, slots: np.ndarray) -> EncodedFrames | None:
        """Where the frames in these slots lie in videos; None unless all of them do."""
        places = self._places.array[slots]
        return self._clips.where((places - ENCODED).astype(np.int64)) if (places >= ENCODED).all() else None

    def check(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool) -> np.ndarray:
        """Of each slot whether its frame is whole, as of `SpaceStorage.check_rows`."""
        states = np.full(len(slots), ROW_WRONG, np.int8)
        places = np.full(len(slots), NOTHING, np.uint64)
        is_known = slots < len(self._places.array)
        places[is_known] = self._places.array[slots[is_known]]
        is_raw = places == RAW
        states[is_raw] = self._raw.check(slots[is_raw], numbers[is_raw], numbers_only=numbers_only)
        self._clips.look()
        sound: dict[Clip, bool] = {}
        for index in np.flatnonzero(places == (numbers + ENCODED).astype(np.uint64)).tolist():
            clip = self._clips.find(int(numbers[index]))
            if clip is not None:
                if clip not in sound:
                    sound[clip] = clip.path.exists() if numbers_only else clip.is_sound()
                states[index] = ROW_WHOLE if sound[clip] else ROW_WRONG
        return states


def form_space(space: ArraySpace, form: FrameForm) -> ArraySpace:
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
