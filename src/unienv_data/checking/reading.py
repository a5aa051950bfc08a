"""Reading a recording sequentially, in chunks of bounded size."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, deserialize_backend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import ArraySpace, DynamicBoxSpace

from ..base.files import did_you_mean_path, local_path
from ..base.nested import nested_item
from ..base.storage import StorageCorruptedError
from ..integrations.lerobot_check import is_dataset
from ..replay_buffer import ReplayBuffer
from ..replay_buffer.inspection import METADATA_FILE, read_metadata, wait_for_edit

CHUNK_BYTES = 4 * 2**20
MOST_ROWS = 65_536
_ATTEMPTS = 20
#: Storages that open on NumPy; others may hold tensors.
OF_HOST_ARRAYS = frozenset({"packed", "npz", "hdf5", "parquet"})

#: Called with the work done and the work in all.
ProgressCallback = Callable[[int, int], object]


def unwatched(done: int, total: int) -> None:
    """Ignore the progress."""


def open_folder(path: Path) -> ReplayBuffer:
    """Open the buffer in a folder for reading, on NumPy unless its storage needs PyTorch.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, or has no buffer.
    StorageCorruptedError
        The buffer cannot be opened.
    """
    if not local_path(path).is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder{did_you_mean_path(path)}")
    if not (path / METADATA_FILE).exists():
        if is_dataset(path):
            raise FileNotFoundError(
                f"{path}: a LeRobot dataset and no replay buffer: check, repair, show and convert --to lerobot take "
                f"it, and unienv.load opens it"
            )
        raise FileNotFoundError(f"{path}: not a replay buffer, it has no {METADATA_FILE}")
    try:
        return ReplayBuffer.load_from(path, backend=NumpyComputeBackend)
    except StorageCorruptedError:
        backend = tensor_backend(read_metadata(path).storage)
        if backend is None:
            raise
        return ReplayBuffer.load_from(path, backend=backend)


def open_whole(path: Path) -> ReplayBuffer:
    """Open a folder after any edit of samples in place; a StorageCorruptedError if a writer was killed in an edit."""
    buffer = open_folder(path)
    try:
        wait_for_edit(buffer)
    except BaseException:
        buffer.close()
        raise
    return buffer


def tensor_backend(storage: str) -> ComputeBackend | None:
    """Return the backend for a storage that does not open on NumPy; None if no other fits or is installed."""
    if storage in OF_HOST_ARRAYS:
        return None
    try:
        return deserialize_backend("pytorch")
    except ImportError:
        return None


def in_one_line(error: BaseException) -> str:
    """Return the text of an error without line breaks, and without the traceback of a worker process."""
    text = " ".join((getattr(error, "in_words", "") or str(error)).split())
    return text or type(error).__name__


def is_damage(error: Exception) -> bool:
    """Whether damaged files caused an error, and not permissions, memory, or a missing package."""
    if isinstance(error, OSError):
        return error.errno == errno.EIO  # a defect of the disk
    return not isinstance(error, (ImportError, MemoryError))


# -- columns -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One leaf of the samples."""

    name: str  # its path, such as "obs/rgb"
    keys: tuple[Any, ...]
    space: Space

    @property
    def is_array(self) -> bool:
        """Whether the values are arrays of one shape, not texts, graphs and so on."""
        return isinstance(self.space, ArraySpace)

    @property
    def is_numbers(self) -> bool:
        """Whether the values are arrays of numbers, of one shape or of several."""
        return isinstance(self.space, (ArraySpace, DynamicBoxSpace))

    def pick(self, data: Any) -> Any:
        """Return the values of this column in a sample or a batch of samples."""
        return nested_item(data, self.keys)


def columns_of(space: Space) -> list[Column]:
    """Return the leaves of a space in canonical order."""
    return [Column(leaf.name, leaf.path, leaf.space) for leaf in RowLayout(space).leaves]


def by_sample(values: np.ndarray) -> np.ndarray:
    """Reshape values to two axes: samples and their entries."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


# -- samples -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples.

    The first `before` samples repeat the last samples of the previous chunk. `episode` has the start of each sample's
    episode; None if the recording keeps no episodes. The samples of an episode are `stride` apart.
    """

    start: int  # the index of the first sample
    count: int
    before: int
    data: Any
    episode: np.ndarray | None
    stride: int
    _arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def array(self, column: Column) -> np.ndarray:
        """Return the values of an array column on the host."""
        if column.name not in self._arrays:
            values = column.pick(self.data)
            backend = column.space.backend
            self._arrays[column.name] = values if isinstance(values, np.ndarray) else backend.to_numpy(values)
        return self._arrays[column.name]

    def each(self, column: Column) -> list[np.ndarray]:
        """Return the values of a column of arrays of several shapes, without the repeated samples."""
        return [np.asarray(column.space.backend.to_numpy(value)) for value in column.pick(self.data)[self.before :]]

    def fresh(self, column: Column) -> np.ndarray:
        """Return the values of an array column without the repeated samples."""
        return self.array(column)[self.before :]

    def pairs(self) -> np.ndarray:
        """Return for each sample from index `stride` on whether its predecessor is of the same episode."""
        if self.count <= self.stride:
            return np.zeros(0, bool)
        if self.episode is None:
            return np.ones(self.count - self.stride, bool)
        return self.episode[self.stride :] == self.episode[: -self.stride]


class ChunkReader:
    """Reads a buffer in chunks.

    Each chunk begins with the last `overlap` samples of the previous chunk. A ring may be written meanwhile: samples
    that are overwritten before they are read are left out.
    """

    def __init__(self, buffer: ReplayBuffer, *, overlap: int = 0, with_episodes: bool = False) -> None:
        self._buffer, self._overlap, self._with_episodes = buffer, overlap, with_episodes
        self.numbers = buffer.sample_numbers
        lanes = buffer.lanes
        self.rows = max(rows_per_chunk(buffer) // lanes, 2) * lanes  # complete vector steps

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the chunks as ranges [first, stop) of sample numbers."""
        for first in range(self.numbers.start, self.numbers.stop, self.rows):
            yield first, min(first + self.rows, self.numbers.stop)

    def read(self, first: int, stop: int, *, after: int = 0) -> Chunk:
        """Read the present samples with these numbers, and repeat no sample with a number below `after`."""
        buffer = self._buffer
        for _ in range(_ATTEMPTS):
            tail = buffer.sample_numbers.start
            fresh = max(first, tail)
            begin = max(min(fresh, max(fresh - self._overlap, after)), tail, self.numbers.start)
            end = max(fresh, stop)
            positions = np.arange(begin, end) - tail
            data = buffer.get_at(slice(begin - tail, end - tail))
            episodes = buffer.episodes_of(positions) if self._with_episodes else None
            if buffer.sample_numbers.start == tail:
                start = begin - self.numbers.start
                episode = None if episodes is None else episodes.start + tail - self.numbers.start
                return Chunk(start, end - begin, fresh - begin, data, episode, buffer.lanes)
        raise TimeoutError(
            f"{buffer.cache_path}: samples are overwritten faster than they can be read; wait until no process "
            f"writes, or read a copy (ReplayBuffer.dumps)"
        )

    def __iter__(self) -> Iterator[Chunk]:
        for first, stop in self.ranges():
            yield self.read(first, stop)


class PatientReader:
    """Reads all readable samples by bisection, and reports the errors of the others.

    `blocks` returns a block number for each sample; the samples of a block can be read all together or not at all.
    After `tries` failures, ranges that fail are not split any more.
    """

    def __init__(
        self,
        read: Callable[[np.ndarray], Any],
        blocks: Callable[[np.ndarray], np.ndarray],
        tries: float = math.inf,
    ) -> None:
        self._read, self._blocks, self._tries = read, blocks, tries

    def read(self, samples: np.ndarray) -> Iterator[tuple[np.ndarray, Any, str]]:
        """Yield samples with their data and an empty text, or with None and the error, in order."""
        try:
            data, problem = self._read(samples), ""
        except Exception as error:
            if not is_damage(error):
                raise
            data, problem, self._tries = None, in_one_line(error), self._tries - 1
        is_split = bool(problem) and self._tries > 0
        edges = np.flatnonzero(np.diff(self._blocks(samples))) + 1 if is_split else np.zeros(0, int)
        if len(edges):
            for half in np.split(samples, edges[[len(edges) // 2]]):
                yield from self.read(half)
        else:
            yield samples, data, problem


def chunks(buffer: ReplayBuffer, progress: ProgressCallback = unwatched) -> Iterator[Chunk]:
    """Yield all samples of a buffer, chunk by chunk."""
    reader = ChunkReader(buffer)
    done, total = 0, len(reader.numbers)
    progress(done, total)
    for chunk in reader:
        yield chunk
        done += chunk.count
        progress(done, total)


def rows_per_chunk(buffer: ReplayBuffer) -> int:
    """Return the number of samples in a few megabytes."""
    nbytes = RowLayout(buffer.single_space).nbytes
    if len(buffer) and buffer.capacity is None and buffer.storage.nbytes is not None:
        nbytes = max(nbytes, buffer.storage.nbytes // len(buffer))  # with the heap
    return rows_of_size(nbytes)


def rows_of_size(nbytes: int) -> int:
    """Return the number of samples of `nbytes` each in a few megabytes."""
    return min(max(CHUNK_BYTES // nbytes, 1), MOST_ROWS)


# -- episodes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a buffer as arrays of [start, stop); an episode is the samples range(start, stop, stride).

    `unfinished` are the last episodes, which were never closed; `gaps` are samples between episodes. `cut_stops` are
    the stops of episodes that were closed before their end.
    """

    closed: np.ndarray
    unfinished: np.ndarray
    gaps: np.ndarray
    stride: int
    cut_stops: np.ndarray

    @property
    def endless_stops(self) -> np.ndarray:
        """The stops of episodes whose end was not recorded."""
        return np.concatenate([self.cut_stops, self.unfinished[:, 1]])

    @property
    def all(self) -> np.ndarray:
        """Closed and unfinished episodes, by their start."""
        both = np.concatenate([self.closed, self.unfinished])
        return both[np.argsort(both[:, 0], kind="stable")]


def episode_table(buffer: ReplayBuffer) -> EpisodeTable | None:
    """Return the episodes of a buffer; None if it keeps none."""
    segments = buffer.get_segments()
    if segments is None:
        return None
    cut_stops = as_ranges(buffer.cut_episodes() or [])[:, 1]
    return table_of(as_ranges(segments), len(buffer), buffer.lanes, cut_stops)


def table_of(closed: np.ndarray, count: int, stride: int, cut_stops: np.ndarray) -> EpisodeTable:
    """Make the table for closed episodes among `count` samples."""
    unfinished: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    for lane in range(stride):
        in_lane = closed[closed[:, 0] % stride == lane]
        in_lane = in_lane[np.argsort(in_lane[:, 0], kind="stable")]
        ends = np.concatenate([[lane], in_lane[:, 1] - 1 + stride])  # expected starts of the next episodes in the lane
        starts = np.concatenate([in_lane[:, 0], [count + lane]])
        for start, stop in zip(ends.tolist(), starts.tolist(), strict=True):
            if start < min(stop, count):
                (gaps if stop < count else unfinished).append((start, stop - stride + 1))
    return EpisodeTable(closed, as_ranges(unfinished), as_ranges(gaps), stride, cut_stops)


def as_ranges(pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Convert pairs [start, stop) to an array of shape (N, 2)."""
    return np.array(pairs, np.int64).reshape(-1, 2)


def lengths_of(ranges: np.ndarray, stride: int) -> np.ndarray:
    """Return the numbers of samples of episodes."""
    return -(-(ranges[:, 1] - ranges[:, 0]) // stride)


def describe_range(ranges: Sequence[int], stride: int) -> str:
    """Describe a range of samples in words."""
    start, stop = (int(end) for end in ranges)
    if stop - start <= stride:
        return f"sample {start}"
    return f"samples {start} to {stop - 1}" + ("" if stride == 1 else f", one in {stride}")
