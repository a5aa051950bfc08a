"""Episodes that are video already go to a LeRobot dataset as they are: streams are copied, not encoded again."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ..base.common import BatchBase
from ..base.encoded_frames import EncodedFrames
from ._lerobot_meta import V3_VIDEO
from ._lerobot_writing import Cursor, Place, video_info


class Piece(NamedTuple):
    """Frames that follow one another in a video: from which second of it, and how many."""

    path: Path
    start: float
    length: int


def encoded_episodes(
    batch: BatchBase, keys: Sequence[Any], episodes: Sequence[np.ndarray], fps: float
) -> list[list[Piece]] | None:
    """The pieces of video that each episode consists of; None unless all frames of a column can be copied."""
    found = []
    for indices in episodes:
        frames = batch.encoded_frames(keys, indices)
        if frames is None or frames.fps != fps or any(path.suffix != ".mp4" for path in frames.paths):
            return None
        pieces = _pieces(frames)
        if len(pieces) > 1 and not _can_be_joined(pieces, fps):
            return None
        found.append(pieces)
    return found


def _pieces(frames: EncodedFrames) -> list[Piece]:
    goes_on = np.abs(np.diff(frames.seconds) * frames.fps - 1) < 0.5
    goes_on &= np.array([path == after for path, after in itertools.pairwise(frames.paths)], bool)
    starts = np.flatnonzero(np.append(True, ~goes_on)).tolist()
    ends = [*starts[1:], len(frames.paths)]
    return [
        Piece(frames.paths[start], float(frames.seconds[start]), end - start)
        for start, end in zip(starts, ends, strict=True)
    ]


def _can_be_joined(pieces: Sequence[Piece], fps: float) -> bool:
    """Whether videos of one kind follow one another, of which each is wanted to its end and the next from its start."""
    av, kinds = need("av", extra="lerobot"), set()
    for number, piece in enumerate(pieces):
        with av.open(os.fspath(piece.path)) as container:
            stream = container.streams.video[0]
            context = stream.codec_context
            kinds.add((context.name, context.width, context.height, stream.time_base, context.extradata))
            first = round(piece.start * fps)
            if number and first != 0:
                return False
            if number < len(pieces) - 1 and first + piece.length != stream.frames:
                return False
    return len(kinds) == 1


class VideoCopier:
    """Copies the videos of one camera as they are; those that make up one episode are joined."""

    def __init__(self, root: Path, key: str, episodes: Sequence[Sequence[Piece]], fps: float) -> None:
        self._cursor = Cursor(root, V3_VIDEO, video_key=key)
        self._episodes, self._fps = iter(episodes), fps
        self._copied: dict[tuple[Path, ...], Place] = {}

    def end_episode(self, count: int) -> Place:
        pieces = next(self._episodes)
        paths = tuple(piece.path for piece in pieces)
        if paths not in self._copied:
            target = self._cursor.advance()
            if len(paths) == 1:
                shutil.copyfile(paths[0], target)
            else:
                _join(paths, target)
            self._copied[paths] = self._cursor.place()
        return self._copied[paths]._replace(start=pieces[0].start)

    def close(self) -> None:
        """Nothing is open between two episodes."""

    abandon = close

    def info(self) -> dict[str, Any]:
        av = need("av", extra="lerobot")
        with av.open(os.fspath(next(iter(self._copied))[0])) as container:
            context = container.streams.video[0].codec_context
            shape = (context.height, context.width, 3)
            return video_info(shape, self._fps, context.codec.canonical_name, context.pix_fmt)


def _join(paths: Sequence[Path], target: Path) -> None:
    """Write a video with the packets of several, one after the other."""
    av = need("av", extra="lerobot")
    with av.open(os.fspath(target), "w") as joined:
        stream: Any = None
        end = 0
        for path in paths:
            with av.open(os.fspath(path)) as container:
                source, shift = container.streams.video[0], end
                stream = stream or joined.add_stream_from_template(source, opaque=True)
                for packet in container.demux(source):
                    if packet.pts is None:  # the end of the stream
                        continue
                    end = max(end, shift + packet.pts + packet.duration)
                    packet.pts, packet.dts = shift + packet.pts, shift + packet.dts
                    packet.stream = stream
                    joined.mux(packet)
