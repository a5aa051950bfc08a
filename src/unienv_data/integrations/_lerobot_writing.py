"""Writing the files of a v3.0 LeRobot dataset: tables, videos, episodes and tasks."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.utils.optional import need

from ._lerobot_meta import CHUNK_SIZE, V3_VIDEO

_EPISODES = "meta/episodes/chunk-000/file-000.parquet"
_EPISODES_AT_A_TIME = 500
_GOP = 2  # as in LeRobot: a frame is at most one frame behind a key frame

# By codec, the encoder of FFmpeg and its options.
_ENCODERS = {
    "h264": ("libx264", {"crf": "23", "g": str(_GOP)}),
    "av1": ("libsvtav1", {"crf": "30", "g": str(_GOP), "preset": "12"}),
}


class FilePosition(NamedTuple):
    """The file of an episode, and for a video the second at which the episode starts."""

    chunk: int
    file: int
    start: float = 0.0


class Cursor:
    """Numbers the files of a dataset, a thousand per folder."""

    DATA_BYTES, VIDEO_BYTES = 100 * 2**20, 200 * 2**20

    def __init__(self, root: Path, template: str, **names: str) -> None:
        self._root, self._template, self._names = root, template, names
        self._number = -1

    def advance(self) -> Path:
        """Return the path of the next file, and create its folder."""
        self._number += 1
        position = self.position()
        path = self._root / self._template.format(chunk_index=position.chunk, file_index=position.file, **self._names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def position(self, start: float = 0.0) -> FilePosition:
        return FilePosition(*divmod(self._number, CHUNK_SIZE), start)


class TableWriter:
    """Writes the samples of episodes, one row group per episode and several episodes per file."""

    def __init__(self, root: Path, template: str) -> None:
        self._cursor = Cursor(root, template)
        self._writer: Any = None
        self._written = 0

    def add(self, columns: dict[str, np.ndarray]) -> FilePosition:
        table = as_arrow_table(columns)
        if self._writer is not None and self._written + table.nbytes > Cursor.DATA_BYTES:
            self.close()
        if self._writer is None:
            self._writer, self._written = _table_writer(self._cursor.advance(), table.schema), 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._written += table.nbytes
        return self._cursor.position()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    abandon = close


def _table_writer(path: Path, schema: Any) -> Any:
    """Open a table for writing, with checksums of pages."""
    return need("pyarrow.parquet", extra="lerobot").ParquetWriter(path, schema, write_page_checksum=True)


class EpisodeTable:
    """Writes the table of episodes, some hundred rows at a time."""

    def __init__(self, root: Path) -> None:
        self._path = root / _EPISODES
        self._rows: list[dict[str, Any]] = []
        self._writer: Any = None

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append({**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if len(self._rows) >= _EPISODES_AT_A_TIME:
            self._write()

    def _write(self) -> None:
        pa = need("pyarrow", extra="lerobot")
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist(self._rows)
            self._writer = _table_writer(self._path, table.schema)
        else:
            table = pa.Table.from_pylist(self._rows, schema=self._writer.schema)
        self._writer.write_table(table)
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._write()
        self.abandon()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class VideoWriter:
    """Encodes the frames of one camera, several consecutive episodes per file."""

    def __init__(self, root: Path, key: str, shape: tuple[int, ...], fps: float, codec: str) -> None:
        if codec not in _ENCODERS:
            raise ValueError(f"codec is {codec!r}, it must be one of {list(_ENCODERS)}")
        self._cursor = Cursor(root, V3_VIDEO, video_key=key)
        self._key, self._shape, self._fps, self._codec = key, shape, fps, codec
        self._rate = Fraction(fps).limit_denominator(1001)
        has_odd_side = bool(shape[0] % 2 or shape[1] % 2)
        if has_odd_side and codec == "av1":
            raise ValueError(f"feature {key!r}: frames of shape {shape}, AV1 needs even sides: give codec='h264'")
        self._pixel_format = "yuv444p" if has_odd_side else "yuv420p"
        self._container: Any = None
        self._stream: Any = None
        self._path = root
        self._frames = self._begun = self._bytes = 0  # of the open file; `_begun`: frames before this episode

    def add(self, frames: np.ndarray) -> None:
        av = need("av", extra="lerobot")
        if self._container is None:
            self._open(av)
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = self._frames, 1 / self._rate
            if self._frames == self._begun:
                frame.pict_type = av.video.frame.PictureType.I  # episodes can be split without encoding
            self._mux(self._stream.encode(frame))
            self._frames += 1

    def _mux(self, packets: list[Any]) -> None:
        self._bytes += sum(packet.size for packet in packets)
        self._container.mux(packets)

    def _open(self, av: Any) -> None:
        encoder, options = _ENCODERS[self._codec]
        self._path = self._cursor.advance()
        self._container = av.open(os.fspath(self._path), "w")
        self._stream = self._container.add_stream(encoder, rate=self._rate, options=options)
        self._stream.height, self._stream.width = self._shape[:2]
        self._stream.pix_fmt = self._pixel_format
        self._frames = self._begun = self._bytes = 0

    def end_episode(self, count: int) -> FilePosition:
        position = self._cursor.position(float(self._begun / self._rate))
        if self._frames - self._begun != count:
            raise RuntimeError(f"feature {self._key!r}: {self._frames - self._begun} frames for {count} samples")
        self._begun = self._frames
        if self._bytes >= Cursor.VIDEO_BYTES:
            self.close()
        return position

    def close(self) -> None:
        """Finish the file, and check the number of its frames."""
        if self._container is None:
            return
        self._mux(self._stream.encode())
        self.abandon()
        av = need("av", extra="lerobot")
        with av.open(os.fspath(self._path)) as written:
            count = sum(packet.pts is not None for packet in written.demux(video=0))
        if count != self._frames:
            raise RuntimeError(f"{self._path}: the file has {count} frames, {self._frames} were written")

    def abandon(self) -> None:
        if self._container is not None:
            container, self._container = self._container, None
            container.close()

    def info(self) -> dict[str, Any]:
        return video_info(self._shape, self._fps, self._codec, self._pixel_format)


def video_info(shape: tuple[int, ...], fps: float, codec: str, pixel_format: str) -> dict[str, Any]:
    """Return the entries of a camera in `info.json`."""
    return {
        "video.height": shape[0],
        "video.width": shape[1],
        "video.codec": codec,
        "video.pix_fmt": pixel_format,
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }


def write_tasks(path: Path, tasks: dict[str, int]) -> None:
    """Write the table of tasks, with the texts as the index of a pandas frame."""
    pa, pq = need("pyarrow", extra="lerobot"), need("pyarrow.parquet", extra="lerobot")
    text = "__index_level_0__"
    table = pa.table({"task_index": pa.array(list(tasks.values()), pa.int64()), text: pa.array(list(tasks))})
    column = {"field_name": text, "name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    index = {"field_name": "task_index", "name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    described = {
        "index_columns": [text],
        "column_indexes": [],
        "columns": [{**index, "metadata": None}, column],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": None,
    }
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(described)}), path)


def as_arrow_table(columns: dict[str, np.ndarray]) -> Any:
    """Convert columns to a table in LeRobot's form."""
    pa = need("pyarrow", extra="lerobot")
    return pa.table({name: _as_arrow(values) for name, values in columns.items()})


def _as_arrow(values: np.ndarray) -> Any:
    """Convert a column to LeRobot's form: numbers of shape (1,) without an axis, vectors as lists of fixed size.

    Objects are texts, or images: dicts of `bytes` and `path`.
    """
    pa = need("pyarrow", extra="lerobot")
    if values.dtype == object:
        are_images = len(values) > 0 and isinstance(values[0], dict)
        image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        return pa.array(values.tolist(), image if are_images else pa.string())
    shape = values.shape[1:] if values.shape[1:] != (1,) else ()
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, shape[0])
    for size in reversed(shape):
        ends = np.arange(0, len(column) + 1, size, dtype=np.int32)
        column = pa.ListArray.from_arrays(ends, column)
    return column
