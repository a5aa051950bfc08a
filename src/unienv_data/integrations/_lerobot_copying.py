"""Copying the video streams of episodes to a LeRobot dataset, without encoding them again."""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ..base.common import BatchBase
from ..base.encoded_frames import EncodedFrames
from ._lerobot_meta import V3_VIDEO
from ._lerobot_writing import Cursor, FilePosition, video_info


class Piece(NamedTuple):
    """Consecutive frames of a video: the path, the first second, and the number of frames."""

    path: Path
    start: float
    length: int


def encoded_episodes(
    batch: BatchBase, keys: Sequence[Any], episodes: Sequence[np.ndarray], fps: float
) -> list[list[Piece]] | None:
    """Find the pieces of video of each episode; None unless all frames of a column can be copied."""
    by_episode = []
    for indices in episodes:
        frames = batch.encoded_frames(keys, indices)
        if frames is None or frames.fps != fps or any(path.suffix != ".mp4" for path in frames.paths):
            return None
        pieces = _pieces(frames)
        if len(pieces) > 1 and not _can_be_joined(pieces, fps):
            return None
        by_episode.append(pieces)
    return by_episode


def _pieces(frames: EncodedFrames) -> list[Piece]:
    continues = np.abs(np.diff(frames.seconds) * frames.fps - 1) < 0.5
    continues &= np.array([path == after for path, after in itertools.pairwise(frames.paths)], bool)
    starts = np.flatnonzero(np.append(True, ~continues)).tolist()
    ends = [*starts[1:], len(frames.paths)]
    return [
        Piece(frames.paths[start], float(frames.seconds[start]), end - start)
        for start, end in zip(starts, ends, strict=True)
    ]


def _can_be_joined(pieces: Sequence[Piece], fps: float) -> bool:
    """Whether videos have equal encodings, and each piece ends with its video and the next begins with its video."""
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
    """Copies the videos of one camera: a complete video as a file, else the packets of its pieces."""

    def __init__(self, root: Path, key: str, episodes: Sequence[Sequence[Piece]], fps: float) -> None:
        self._cursor = Cursor(root, V3_VIDEO, video_key=key)
        self._episodes, self._fps = iter(episodes), fps
        self._wanted: Counter[Path] = Counter()  # the number of frames
        for piece in itertools.chain.from_iterable(episodes):
            self._wanted[piece.path] += piece.length
        self._copied: dict[Path, FilePosition] = {}
        self._info: dict[str, Any] = {}

    def end_episode(self, count: int) -> FilePosition:
        pieces = next(self._episodes)
        path = pieces[0].path
        if len(pieces) == 1 and path in self._copied:
            return self._copied[path]._replace(start=pieces[0].start)
        target = self._cursor.advance()
        av = need("av", extra="lerobot")
        with av.open(os.fspath(path)) as container:
            stream = container.streams.video[0]
            context = stream.codec_context
            shape, is_whole = (context.height, context.width, 3), stream.frames == self._wanted[path]
            self._info = video_info(shape, self._fps, context.codec.canonical_name, context.pix_fmt)
        if len(pieces) == 1 and is_whole:
            shutil.copyfile(path, target)
            self._copied[path] = self._cursor.position()
            return self._cursor.position(pieces[0].start)
        return self._cursor.position(_copy_packets(pieces, target, self._fps))

    def close(self) -> None:
        """Do nothing: no file is open between two episodes."""

    abandon = close

    def info(self) -> dict[str, Any]:
        return self._info


def _copy_packets(pieces: Sequence[Piece], target: Path, fps: float) -> float:
    """Concatenate pieces of videos in a new video; return the second at which the first piece begins.

    A piece that does not begin with a key frame is copied from the previous key frame on.
    """
    av = need("av", extra="lerobot")
    begin, end = 0.0, 0
    with av.open(os.fspath(target), "w") as joined:
        stream: Any = None
        for number, piece in enumerate(pieces):
            with av.open(os.fspath(piece.path)) as container:
                source = container.streams.video[0]
                stream = stream or joined.add_stream_from_template(source, opaque=True)
                first = (piece.start - 0.5 / fps) / source.time_base
                container.seek(round(piece.start / source.time_base), stream=source)
                key, shown, start = None, list[int](), end
                for packet in container.demux(source):
                    if packet.pts is None or len(shown) == piece.length:  # later packets are not needed
                        break
                    key = packet.pts if key is None else key
                    if packet.pts < key:  # of the previous group of pictures
                        continue
                    if packet.pts > first:
                        shown.append(packet.pts)
                    packet.pts, packet.dts = start + packet.pts - key, start + packet.dts - key
                    end = max(end, packet.pts + packet.duration)
                    packet.stream = stream
                    joined.mux(packet)
                if key is None or len(shown) < piece.length:
                    raise RuntimeError(f"{piece.path}: {len(shown)} frames from {piece.start} s on, not {piece.length}")
                if number == 0:
                    begin = float((min(shown) - key) * source.time_base)
    return begin
