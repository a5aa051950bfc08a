"""Reading a stored buffer from one end to the other, a bounded number of bytes at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, deserialize_backend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import ArraySpace, DynamicBoxSpace

from ..base.nested import nested_item
from ..base.storage import StorageCorruptedError
from ..replay_buffer import ReplayBuffer
from ..replay_buffer._metadata import FILE_NAME, read_metadata
from ._errors import CommandError
from ._progress import Advance, unwatched

CHUNK_BYTES = 4 * 2**20
MOST_ROWS = 65_536
_ATTEMPTS = 20
#: Storages whose samples are on NumPy without further ado; others may hold tensors.
OF_HOST_ARRAYS = frozenset({"packed", "npz", "hdf5", "parquet"})


def open_buffer(path: Path) -> ReplayBuffer:
    """The buffer in a folder, to read; on NumPy unless its storage wants PyTorch."""
    if not path.is_dir():
        raise CommandError(f"{path}: there is no such folder")
    if not (path / FILE_NAME).exists():
        raise CommandError(f"{path}: not a replay buffer, it has no {FILE_NAME}")
    try:
        return ReplayBuffer.load_from(path, backend=NumpyComputeBackend)
    except StorageCorruptedError:
        backend = tensor_backend(read_metadata(path).storage)
        if backend is None:
            raise
        return ReplayBuffer.load_from(path, backend=backend)


def tensor_backend(storage: str) -> ComputeBackend | None:
    """The backend for a storage that does not open on NumPy; None if there is no other, or it is not installed."""
    if storage in OF_HOST_ARRAYS:
        return None
    try:
        return deserialize_backend("pytorch")
    except ImportError:
        return None


@dataclass(frozen=True)
class Column:
    """One leaf of the samples."""

    name: str  # the keys that lead to it, such as "obs/rgb"
    keys: tuple[Any, ...]
    space: Space

    @property
    def is_array(self) -> bool:
        """Whether its values are arrays of one shape; else they are texts, graphs and the like."""
        return isinstance(self.space, ArraySpace)

    @property
    def is_numbers(self) -> bool:
        """Whether its values are arrays of numbers, of one shape or of several."""
        return isinstance(self.space, (ArraySpace, DynamicBoxSpace))

    def pick(self, data: Any) -> Any:
        """The values of this column in a sample or a batch of samples."""
        return nested_item(data, self.keys)


def columns_of(space: Space) -> list[Column]:
    """The leaves of a space in canonical order."""
    return [Column(leaf.name, leaf.path, leaf.space) for leaf in RowLayout(space).leaves]


def find_column(columns: Sequence[Column], *names: str) -> Column | None:
    """The first column that has one of these names, the names in order of preference."""
    by_name = {column.name: column for column in columns}
    return next((by_name[name] for name in names if name in by_name), None)


@dataclass(frozen=True)
class Chunk:
    """Samples one after the other.

    `before` of them, in front, were the last ones of the chunk before. `episode` has for each sample where its episode
    starts; None if episodes are not kept. Samples of an episode lie `stride` apart.
    """

    start: int  # the index of the first sample
    count: int
    before: int
    data: Any
    episode: np.ndarray | None
    stride: int
    _arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def array(self, column: Column) -> np.ndarray:
        """The values of an array column on the host."""
        if column.name not in self._arrays:
            values = column.pick(self.data)
            backend = column.space.backend
            self._arrays[column.name] = values if isinstance(values, np.ndarray) else backend.to_numpy(values)
        return self._arrays[column.name]

    def each(self, column: Column) -> list[np.ndarray]:
        """The values of a column of arrays that differ in shape, one by one, without the samples in front."""
        return [np.asarray(column.space.backend.to_numpy(value)) for value in column.pick(self.data)[self.before :]]

    def fresh(self, column: Column) -> np.ndarray:
        """The values of an array column without the samples in front."""
        return self.array(column)[self.before :]

    def pairs(self) -> np.ndarray:
        """For each sample from number `stride` on, whether the one `stride` before it is of the same episode."""
        if self.count <= self.stride:
            return np.zeros(0, bool)
        if self.episode is None:
            return np.ones(self.count - self.stride, bool)
        return self.episode[self.stride :] == self.episode[: -self.stride]


class ChunkReader:
    """Reads a buffer in chunks.

    `overlap` samples of the chunk before come again in front of each. Of a ring that is being written meanwhile, what
    is overwritten before it is read is left out.
    """

    def __init__(self, buffer: ReplayBuffer, *, overlap: int = 0, with_episodes: bool = False) -> None:
        self._buffer, self._overlap, self._with_episodes = buffer, overlap, with_episodes
        self.numbers = buffer.sample_numbers
        lanes = buffer.lanes
        self.rows = max(rows_per_chunk(buffer) // lanes, 2) * lanes  # whole vector steps

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The chunks as ranges [first, stop) of sample numbers."""
        for first in range(self.numbers.start, self.numbers.stop, self.rows):
            yield first, min(first + self.rows, self.numbers.stop)

    def read(self, first: int, stop: int, *, after: int = 0) -> Chunk:
        """The samples with these numbers, as far as they are there, and in front of them none before `after`."""
        buffer = self._buffer
        for _ in range(_ATTEMPTS):
            tail = buffer.sample_numbers.start
            own = max(first, tail)
            begin = max(min(own, max(own - self._overlap, after)), tail, self.numbers.start)
            end = max(own, stop)
            positions = np.arange(begin, end) - tail
            data = buffer.get_at(slice(begin - tail, end - tail))
            found = buffer.episodes_of(positions) if self._with_episodes else None
            if buffer.sample_numbers.start == tail:
                start = begin - self.numbers.start
                episode = None if found is None else found.start + tail - self.numbers.start
                return Chunk(start, end - begin, own - begin, data, episode, buffer.lanes)
        raise CommandError(
            f"{buffer.cache_path}: samples are overwritten faster than they can be read; wait until nobody writes, or "
            f"look at a copy (ReplayBuffer.dumps)"
        )

    def __iter__(self) -> Iterator[Chunk]:
        for first, stop in self.ranges():
            yield self.read(first, stop)


def chunks(buffer: ReplayBuffer, advance: Advance = unwatched) -> Iterator[Chunk]:
    """All samples of a buffer, chunk by chunk."""
    reader = ChunkReader(buffer)
    advance.expect(len(reader.numbers))
    for chunk in reader:
        yield chunk
        advance(chunk.count)


def rows_per_chunk(buffer: ReplayBuffer) -> int:
    """How many samples take a few megabytes."""
    nbytes = RowLayout(buffer.single_space).nbytes
    if len(buffer) and buffer.capacity is None and buffer.storage.nbytes is not None:
        nbytes = max(nbytes, buffer.storage.nbytes // len(buffer))  # with what lies in a heap
    return min(max(CHUNK_BYTES // nbytes, 1), MOST_ROWS)


def by_sample(values: np.ndarray) -> np.ndarray:
    """The entries of each sample side by side: an array of two axes."""
    return values.reshape(len(values), math.prod(values.shape[1:]))
