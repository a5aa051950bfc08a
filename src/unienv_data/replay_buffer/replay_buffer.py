"""The replay buffer: samples in order, in a ring or growing, with episodes, in memory or on disk.

Durability has three levels. *Visible*: other processes see the sample. *Acknowledged* (append, extend or segment end
has returned): it survives a kill -9 of this process. *Durable* (`flush()` has returned, or the segment ended on a
buffer with `durable=True`): it survives a power cut. The last two levels hold for buffers on disk (`cache_path`) whose
storage supports them, as `PackedStorage` does.

One process writes to a buffer on disk, and any number of processes read it without a lock. With `multiprocessing=True`
several processes write to one buffer, one at a time.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import BackendLike, parse_backend
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import Space
from unienv_interface.space.row_layout import Rows

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.encoded_frames import EncodedFrames
from ..base.files import local_path
from ..base.row_storage import rows_of
from ..base.storage import SpaceStorage
from ..base.windows import EpisodeMarks, Episodes, Limits, WindowQuery, Windows
from ..storages.columns import ColumnRule, storages_of_columns
from ..storages.dict_storage import DictStorage
from ..storages.packed import PackedStorage
from ..storages.registry import storage_by_name
from ..storages.shared_next_obs import SharedNextObsSpace, SharedNextObsStorage
from . import _copies, _folder
from ._reader import BufferReader, WindowReader, column_source
from ._state import BufferOptions, BufferState
from ._writer import BufferWriter

PathLike = str | os.PathLike[str]
_VERIFY_ATTEMPTS = 5


@dataclass(frozen=True)
class BufferStats:
    """The result of `ReplayBuffer.stats`.

    Attributes
    ----------
    count
        How many samples the buffer holds.
    capacity
        How many samples it has room for; None if it grows.
    written
        How many samples were ever written.
    nbytes
        How many bytes the samples take; None if unknown.
    segments
        How many episodes are closed; None if the buffer keeps no episodes.

    Examples
    --------
    >>> stats = buffer.stats()
    >>> stats.count, stats.capacity
    (1600, 8000)
    """

    count: int
    capacity: int | None
    written: int
    nbytes: int | None
    segments: int | None


class ReplayBuffer(BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Samples in the order of recording, with their episodes: a ring or a growing buffer over a `SpaceStorage`.

    `create` makes a new buffer, `load_from` opens one on disk. Index 0 is the oldest sample. `append` adds one sample
    to the open episode (or begins one), and `mark_segment_end` closes the episode; each `extend` is a whole episode.
    With `maintain_segment_metadata` the buffer keeps its episodes, and `get_segments` returns them.

    A read returns samples from one state of the buffer, also while other processes or threads write.

    Examples
    --------
    >>> buffer = ReplayBuffer.create(buffer.single_space, capacity=1_000_000)
    >>> buffer.append(transition)
    >>> batch = buffer.get_at(np.array([0, -1]))
    >>> batch["obs"].shape
    (2, 4)
    """

    checks_positions = True

    def __init__(
        self,
        storage: SpaceStorage,
        storage_path_relative: str,
        count: int = 0,
        offset: int = 0,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        *,
        maintain_segment_metadata: bool = False,
        physical_segments: Sequence[tuple[int, int]] | None = None,
        active_segment_start_physical: int | None = None,
        active_segment_length: int = 0,
        durable: bool = False,
        lanes: int = 1,
        state: BufferState | None = None,
    ) -> None:
        """Wrap a storage; users call `create` or `load_from`.

        Parameters
        ----------
        storage
            The storage of the samples.
        storage_path_relative
            The path of the storage in the folder.
        count, offset
            How many samples the storage holds, and the slot of the oldest.
        cache_path
            The folder of the buffer; None in memory.
        multiprocessing
            Whether several processes write.
        maintain_segment_metadata
            Whether the buffer keeps episodes.
        physical_segments
            The closed episodes that the storage holds, as [start, stop) of slots.
        active_segment_start_physical, active_segment_length
            The first slot of the open episode, and how many samples it has.
        durable, lanes
            As for `create`.
        state
            The counters and the options of a buffer on disk; without it they are those above, in memory.

        Raises
        ------
        ValueError
            `active_segment_start_physical` is given without `active_segment_length`.
        """
        super().__init__(storage.single_instance_space)
        self.storage = rows_of(storage).original
        self._storage_path_relative = storage_path_relative
        self._cache_path = None if cache_path is None else Path(cache_path)
        self._closed = False
        self._storage_options: dict[str, Any] = {}  # given to `load_from`
        self._capacity = storage.capacity
        if state is None:
            options = BufferOptions(maintain_segment_metadata, durable, lanes)
            state = BufferState.in_memory(storage, options, shared=multiprocessing and storage.is_mutable)
            if active_segment_start_physical is not None and not active_segment_length:
                raise ValueError("active_segment_start_physical without active_segment_length")
            state.adopt(count, offset, physical_segments or (), active_segment_length)
        self._state, self._counters = state, state.counters
        self._lanes = state.segments.lanes
        self._maintains = state.maintains
        self._reader = BufferReader(state, maintains=state.maintains)
        self._writer, self._locked = BufferWriter(state), state.write_lock.run
        self._rows = state.storage
        self._read_samples = self._reader.by_slots(self._rows.gather)
        self._read_rows = self._reader.by_slots(self._rows.gather_rows)
        self._last_windows: WindowReader | None = None
        self._last_column_windows: list[WindowReader] = []
        self.is_segment_aware = state.maintains or storage.is_segment_aware
        storage.follow(state.open_length)

    # -- making ----------------------------------------------------------------------------------------------

    @staticmethod
    def create(
        storage_cls: type[SpaceStorage] | str | Space | None = None,
        single_instance_space: Space | None = None,
        *args: Any,
        cache_path: PathLike | None = None,
        capacity: int | None = None,
        multiprocessing: bool = False,
        maintain_segment_metadata: bool = False,
        keep_episodes: bool | None = None,
        durable: bool = False,
        lanes: int = 1,
        columns: Mapping[str, ColumnRule] | None = None,
        **kwargs: Any,
    ) -> ReplayBuffer:
        """Create a new replay buffer and its backing storage.

        Parameters
        ----------
        storage_cls
            The class of the storage, or its registered name, such as "hdf5"; by default `PackedStorage`. The short form
            `create(space, ...)` takes the space in its place, and keeps episodes unless `keep_episodes=False`.
        single_instance_space
            The space of one sample.
        *args, **kwargs
            Further arguments for the storage.
        cache_path
            A new or empty folder, which readers can open as soon as `create` has returned. By default the buffer lies
            in memory.
        capacity
            The number of samples after which a new sample overwrites the oldest; None for a buffer that grows.
        multiprocessing
            Whether several processes write.
        maintain_segment_metadata, keep_episodes
            Whether the buffer keeps episodes; two names for the same option.
        durable
            Whether an episode survives a power cut as soon as it has ended.
        lanes
            The number of environments that record side by side, each with its own episodes (see `extend_lanes`). With
            more than one, the buffer always keeps episodes.
        columns
            Rules for columns by a pattern, such as "obs/cam_*": still images (`Image`), or a video per episode
            (`Video`), which is encoded in the background. A buffer with `Video` keeps episodes. The storage has all
            other columns.

        Returns
        -------
        ReplayBuffer
            The buffer, empty.

        Raises
        ------
        ValueError
            Two options contradict each other, `capacity` is below 1 or no multiple of `lanes`, a pattern of `columns`
            names no column, or no storage has this name.
        TypeError
            There is no space, or the storage does not take an argument.
        FileExistsError
            There is something at `cache_path`.

        Examples
        --------
        >>> buffer = ReplayBuffer.create(transition_space(env), capacity=1_000_000)
        >>> on_disk = ReplayBuffer.create("hdf5", transition_space(env), cache_path="hdf5/", keep_episodes=True)
        """
        if maintain_segment_metadata and keep_episodes is False:
            raise ValueError(
                "maintain_segment_metadata=True contradicts keep_episodes=False: give one of the two names"
            )
        if isinstance(storage_cls, Space):  # create(space, ...), without a class
            if single_instance_space is not None:
                given = f"create({single_instance_space!r:.80}, space)"
                raise TypeError(f"create wants the class of the storage before the space: {given}")
            storage_cls, single_instance_space = None, storage_cls
            keep_episodes = keep_episodes is not False
        if single_instance_space is None:
            raise TypeError("create wants the space of one sample: create(PackedStorage, space) or create(space)")
        if isinstance(storage_cls, str):
            storage_cls = storage_by_name(storage_cls)
        if isinstance(single_instance_space, SharedNextObsSpace):
            if columns:
                raise ValueError(
                    "columns of frames and next_obs='shared' do not go together: make the space with next_obs=False, "
                    "or leave columns out"
                )
            if storage_cls not in (None, PackedStorage, SharedNextObsStorage):
                raise ValueError(
                    f"{storage_cls.__name__} cannot store observations once, as next_obs='shared' of transition_space "
                    f"asks: name no storage, or make the space with next_obs=True"
                )
            storage_cls, single_instance_space = SharedNextObsStorage, single_instance_space.plain()
        if columns:
            kwargs = storages_of_columns(single_instance_space, columns, storage_cls or PackedStorage, kwargs)
            storage_cls = DictStorage
        _check_lanes(lanes, capacity, storage_cls)
        if storage_cls is SharedNextObsStorage:
            kwargs["lanes"] = lanes
        return _folder.create(
            storage_cls,
            single_instance_space,
            args,
            None if cache_path is None else local_path(cache_path),
            {"capacity": capacity, "multiprocessing": multiprocessing, **kwargs},
            BufferOptions(maintain_segment_metadata or bool(keep_episodes) or lanes > 1, durable, lanes),
        )

    @staticmethod
    def load_from(
        path: PathLike,
        *,
        backend: BackendLike,
        device: Any = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        single_instance_space: Space | None = None,
        **storage_kwargs: Any,
    ) -> ReplayBuffer:
        """Load a replay buffer plus its backing storage from disk.

        Parameters
        ----------
        path
            The folder.
        backend, device
            The backend and device of the samples.
        read_only
            True to read only, while a writer in another process may add samples. False to write, as the only writer.
        multiprocessing
            Whether other processes write, too.
        single_instance_space
            A space object to use instead of the equal space on disk, so that buffers (e.g. for `CombinedBatch`) share
            one object.
        **storage_kwargs
            Further arguments for the storage. `columns` maps patterns of video columns to `Decode`, which crops and
            resizes frames; `frame_cache` keeps decoded frames on disk, in at most this many bytes, such as "20GB".

        Returns
        -------
        ReplayBuffer
            The buffer with all samples in the folder.

        Raises
        ------
        PermissionError
            Another process writes to the folder; the message names it.
        ValueError
            `single_instance_space` differs from the space on disk.
        FileNotFoundError
            There is no such folder, or no replay buffer in it.
        StorageCorruptedError
            A file is missing or damaged; the message names it.
        UnsupportedFormatError
            A later release has written the folder.

        Examples
        --------
        >>> buffer = ReplayBuffer.load_from("data/", backend="numpy")
        """
        target = (parse_backend(backend), device, single_instance_space)
        return _folder.load(local_path(path), target, read_only, multiprocessing, storage_kwargs)

    is_loadable_from = staticmethod(_folder.is_loadable_from)
    get_length_from_path = staticmethod(_folder.get_length_from_path)
    get_capacity_from_path = staticmethod(_folder.get_capacity_from_path)
    get_space_from_path = staticmethod(_folder.get_space_from_path)

    def __copy__(self) -> ReplayBuffer:
        """Another buffer over the same samples: a write to one shows in the other."""
        copied = _folder.received(self._storage_path_relative, self._cache_path, self._state)
        copied._writer = self._writer
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._state
        if state.folder is not None and not self.is_mutable:
            options = self._storage_options
            space = None if options else self.single_space  # some options change the space of the samples
            return _folder.load, (state.folder, (self.backend, self.device, space), True, False, options)
        if state.folder is not None and not state.shared:
            raise TypeError(
                f"{state.folder} has one writer, this process: create or load it with multiprocessing=True to write "
                f"from several, or load it with read_only=True in the other process"
            )
        return _folder.received, (self._storage_path_relative, self._cache_path, state)

    # -- properties ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        name, storage = self.__class__.__name__, type(self.storage).__name__
        if self._closed:
            return f"<{name}, closed>"
        room = "" if self._capacity is None else f" of {self._capacity}"
        return f"<{name}: {len(self)}{room} samples, {storage} {self._cache_path or 'in memory'}>"

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        """Whether samples can be written: False if the buffer was opened read-only."""
        return self.storage.is_mutable

    @property
    def is_multiprocessing_safe(self) -> bool:
        """Whether forked processes may use the buffer."""
        return self.storage.is_multiprocessing_safe and (self._state.shared or not self.is_mutable)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, of this buffer or of a copy that has its samples."""
        return self._closed or self._state.is_closed

    @property
    def cache_path(self) -> Path | None:
        """The folder of the buffer; None in memory."""
        return self._cache_path

    @property
    def storage_path_relative(self) -> str:
        """The path of the storage within the folder of the buffer."""
        return self._storage_path_relative

    @property
    def maintain_segment_metadata(self) -> bool:
        """Whether the buffer keeps the bounds of its episodes."""
        return self._maintains

    @property
    def lanes(self) -> int:
        """The number of environments recorded side by side; sample i belongs to lane i % lanes."""
        return self._lanes

    @property
    def has_open_segment(self) -> bool:
        """Whether any lane has an open episode with samples."""
        return self._state.has_open_segment()

    @property
    def is_durable(self) -> bool:
        """Whether episodes survive a power cut as soon as they have ended."""
        return self._state.durable

    @property
    def capacity(self) -> int | None:
        """The number of samples that fit; None if the buffer grows."""
        return self._capacity

    @property
    def count(self) -> int:
        """The number of samples in the buffer, as `len()` returns it."""
        return len(self)

    @property
    def offset(self) -> int:
        """The slot of the oldest sample."""
        return self._state.slot(self._counters.tail)

    def __len__(self) -> int:
        head = self._counters.head  # read before tail, so that the length never exceeds the capacity
        return max(0, head - self._counters.tail)

    @property
    def sample_numbers(self) -> range:
        head = self._counters.head  # read before tail, as above
        return range(min(self._counters.tail, head), head)

    @property
    def renumbered(self) -> int:
        return self._counters.renumbered

    def stats(self) -> BufferStats:
        """Return counts, bytes and the number of segments."""
        segments = self.get_segments()
        count = None if segments is None else len(segments)
        return BufferStats(len(self), self._capacity, self._counters.head, self.storage.nbytes, count)

    def fingerprint(self) -> str | None:
        if self._cache_path is None:
            return None
        counters = self._counters
        return f"{counters.head}-{counters.tail}-{counters.edit}-{zlib.crc32(repr(self.single_space).encode()):08x}"

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def edit_timeout(self) -> float:
        """Seconds that a read waits for a writer in the middle of `set_at` or `remove_at`, 30 by default; may be set.

        If the writer was stopped (by SIGSTOP or a debugger), the read then raises a TimeoutError with the number of the
        writer's process.

        Examples
        --------
        >>> reader = ReplayBuffer.load_from("data/", backend="numpy")
        >>> reader.edit_timeout = 5.0
        """
        return self._state.edit_timeout

    @edit_timeout.setter
    def edit_timeout(self, seconds: float) -> None:
        if not seconds > 0:  # refuses NaN, too
            raise ValueError(f"edit_timeout is {seconds}, it must be a number of seconds above 0")
        self._state.edit_timeout = float(seconds)

    @property
    def has_column_access(self) -> bool:  # type: ignore[override]
        """Whether the storage reads single columns without the rest."""
        return self.storage.has_column_access

    def get_at(self, idx: Any) -> BatchT:
        """Read samples into new arrays; index 0 is the oldest sample.

        Parameters
        ----------
        idx
            An integer, a slice, a list or array of integers, a boolean mask, or an ellipsis.

        Raises
        ------
        IndexError
            An index is out of range.
        TypeError
            The index is of another kind.

        Examples
        --------
        >>> newest, all_samples = buffer.get_at(-1), buffer.get_at(...)
        """
        return self._reader.read(idx, self._read_samples)

    def read_rows(self, positions: np.ndarray) -> Rows | None:
        rows: Rows | None = self._reader.read(positions, self._read_rows)
        return rows

    def get_flattened_at(self, idx: Any) -> Any:
        if not self.storage.has_flattened_access:
            return super().get_flattened_at(idx)
        return self._reader.read(idx, self._reader.by_slots(self._rows.gather_flattened))

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        if not self.storage.has_column_access:
            return super().get_column_at(nested_keys, idx)
        return self._reader.read(idx, self._reader.by_slots(column_source(self._rows, nested_keys).gather))

    def encoded_frames(self, nested_keys: Sequence[Any], idx: Any) -> EncodedFrames | None:
        keys = tuple(nested_keys)
        find = self._reader.by_slots(
            lambda slots, length: self._rows.encoded_frames(keys, np.atleast_1d(slots), length)
        )
        return self._reader.read(idx, find)

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        windows = self._last_windows
        if limits is not None:  # valid for these positions only
            windows = self._reader.window_reader(query, limits)
        elif windows is None or windows.query is not query:
            windows = self._last_windows = self._reader.window_reader(query, None)
        return windows.shown(*self._reader.read(positions, windows, windows.reach))

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        readers = self._last_column_windows
        are_known = len(readers) == len(queries) and all(
            reader.query is query for reader, query in zip(readers, queries, strict=True)
        )
        if limits is not None or not are_known:
            readers = [self._reader.window_reader(query, limits) for query in queries]
        if limits is None:
            self._last_column_windows = readers

        def read_all(*at: Any) -> list[tuple[Any, np.ndarray, np.ndarray | None]]:
            return [reader(*at) for reader in readers]

        columns = self._reader.read(positions, read_all, max((reader.reach for reader in readers), default=0))
        return [reader.shown(*windows) for reader, windows in zip(readers, columns, strict=True)]

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        return self._reader.episodes_of(positions)

    def episode_marks(self, positions: np.ndarray) -> EpisodeMarks | None:
        return self._reader.episode_marks(positions) if self._maintains else None

    def episode_bounds(self, positions: np.ndarray, *, within_episodes: bool = True) -> Episodes:
        episodes = self.episodes_of(positions) if within_episodes else None
        return self._reader.bounds.all(positions, 0, len(self)) if episodes is None else episodes

    def applies_mask(self, mask_keys: tuple[Any, ...]) -> bool:
        rows = self.read_rows(np.empty(0, np.int64))
        return rows is not None and any(leaf.path == mask_keys for leaf in rows.layout.leaves)

    @property
    def may_grow(self) -> bool:
        """Whether the number of samples may still change: False if the writer had closed the buffer before."""
        return self.is_mutable or self._state.header.closed_sizes is None

    def get_segments(self) -> list[tuple[int, int]] | None:
        """The closed episodes as ranges of indices [start, stop), sorted by start; None if the buffer keeps none.

        In a buffer with lanes, the samples of an episode are range(start, stop, lanes).
        """
        return self._reader.segments() if self._maintains else self._reader.storage_segments()

    def cut_episodes(self) -> list[tuple[int, int]] | None:
        """The episodes of `get_segments` that were closed before they had ended; None if the buffer keeps none.

        A recorder that is closed or fails in the middle of an episode cuts it. `without_cut_episodes` is a view without
        these episodes.
        """
        return self._reader.cut_segments() if self._maintains else None

    def segment_of(self, index: int) -> tuple[int, int] | None:
        """The closed episode of a sample as a range of indices [start, stop); None if it has none.

        In a buffer with lanes, the samples of the episode are range(start, stop, lanes).
        """
        if self._maintains:
            return self._reader.segment_of(index)
        position = int(resolve_index(self.backend, index, len(self)))
        return next((pair for pair in self.get_segments() or [] if pair[0] <= position < pair[1]), None)

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, value: Any) -> None:
        """Append one sample to the open segment, opening one if there is none."""
        self._locked(self._writer.append, value)

    def extend(self, value: Any) -> None:
        """Append a batch of samples, as a segment of its own."""
        self._locked(self._writer.extend, value)

    def extend_lanes(self, value: Any, ended: Any = None) -> None:
        """Append one vector step: a batch with one sample for each lane.

        Samples and ends of episodes become visible together or not at all.

        Parameters
        ----------
        value
            A batch of `lanes` samples, or a block of (steps, lanes).
        ended
            Whether the sample is the last of its episode: booleans of shape (lanes,) or (steps, lanes). By default no
            episode ends.
        """
        flags = None if ended is None else self._as_flags(ended)
        self._locked(self._writer.extend_lanes, value, flags)

    def extend_from(self, other: BatchBase, chunk_size: int = 8, tqdm: bool = False) -> None:
        """Copy all samples of another batch, with its episodes.

        Episodes of several lanes go to the lanes of this buffer if it has the same number, and one after the other into
        a buffer without lanes. A batch without episodes adds none, also as a part of a `CombinedBatch`. Samples between
        two episodes of the batch stay between them. An episode is cut in the copy (`cut_episodes`) if its end is not in
        the batch: because it is open, was cut, or a slice leaves the end out.

        Parameters
        ----------
        other
            The batch to copy from, of the same space.
        chunk_size
            The number of samples in memory at a time.
        tqdm
            Show a progress bar.

        Raises
        ------
        RuntimeError
            An episode of `append` is open.
        ValueError
            The batch has another number of lanes than this buffer, or is a view over several batches of which only
            some know their episodes.
        """
        if chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size}, it must be at least 1")
        if self._lanes == 1 and self.has_open_segment:
            raise RuntimeError("extend_from while a segment of append is open: call mark_segment_end first")
        _copies.extend_from(self, other, chunk_size, show_progress=tqdm)

    def mark_segment_end(self, lanes: Any = None, *, cut: bool = False) -> None:
        """Close the open episode, if there is one.

        In a buffer with lanes this closes the episodes of all lanes, or of `lanes` (booleans, one per lane).
        With `cut=True` the episode has not ended by itself; `cut_episodes` then lists it.
        """
        if self.lanes > 1:
            self._locked(self._writer.end_lanes, self._as_lanes(lanes, default=True), cut)
        elif lanes is None or self._as_lanes(lanes, default=True).all():
            self._locked(self._writer.end_segment, cut)

    def _as_lanes(self, flags: Any, default: bool) -> np.ndarray:
        """The caller's booleans, one per lane."""
        if flags is None:
            return np.full(self._lanes, default)
        by_lane = self._as_flags(flags)
        if by_lane.shape != (self._lanes,):
            raise ValueError(f"{flags!r:.100}: wanted one boolean for each of {self._lanes} lanes")
        return by_lane

    def _as_flags(self, flags: Any) -> np.ndarray:
        on_host = flags if type(flags) is np.ndarray else self._on_host(flags)
        if on_host.dtype.kind != "b":
            raise ValueError(f"{flags!r:.100}: wanted one boolean for each of {self._lanes} lanes")
        return on_host

    def _on_host(self, flags: Any) -> np.ndarray:
        return self.backend.to_numpy(flags) if self.backend.is_backendarray(flags) else np.asarray(flags)

    def set_at(self, idx: Any, value: Any) -> None:
        """Overwrite existing samples; a ValueError names the path of a value that does not fit the space."""
        self._locked(self._writer.set_at, idx, value)

    def remove_at(self, idx: Any, *, join: bool = False) -> None:
        """Remove samples; the others keep their order.

        Removing the oldest samples costs O(1). Otherwise the samples before or after the gap move. A buffer with lanes
        can only remove its oldest vector steps.

        Parameters
        ----------
        idx
            The samples to remove.
        join
            By default, removing samples from the middle of an episode splits it, so that no window reaches over the
            gap. True keeps it one episode.
        """
        self._locked(self._writer.remove_at, idx, join)

    def discard_open_segment(self) -> int:
        """Drop all samples of the open episode at once, and return their number."""
        dropped: int = self._locked(self._writer.discard_open_segment)
        return dropped

    def clear(self) -> None:
        """Drop all samples and episodes."""
        self._locked(self._writer.clear)

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all written samples durable, so that they survive a power cut."""
        self._locked(self._writer.flush)

    def verify(self) -> list[str]:
        """Check the stored samples and episodes; returns a sentence for each problem, an empty list if there is none.

        Each sample is compared with its checksum, and its number with its position.
        """
        state = self._state
        closed = state.header.closed_sizes is not None and not self.is_mutable
        for _ in range(_VERIFY_ATTEMPTS):
            state.wait_for_edit()
            before = self._counters.copy()
            findings = [*state.segments.verify(closed=closed), *state.find_wrong_rows()]
            if not findings or self._counters == before:  # else a writer may have caused the findings
                break
        is_covered = self._rows.has_row_sums
        return [*state.findings, *findings, *([] if is_covered else self.storage.verify())]

    def dumps(self, path: PathLike) -> None:
        """Write a snapshot to another path, or flush if it is the path of the buffer.

        A snapshot replaces an older buffer at the path atomically. Open episodes stay open in the snapshot.

        Parameters
        ----------
        path
            The folder of the snapshot.

        Raises
        ------
        RuntimeError
            The buffer is closed, has an open episode and no lanes, or lies in memory with its storage at `path`.
        """
        if self._closed:
            raise RuntimeError("the buffer is closed")
        if self.lanes == 1 and self._state.open_start() is not None:
            raise RuntimeError("dumps while a segment is open: call mark_segment_end first")
        own = self._cache_path
        if own is not None and os.path.exists(path) and os.path.samefile(path, own):
            if self._state.folder is None and self.is_mutable:
                raise RuntimeError(f"{own} holds only the storage: make the buffer with create(cache_path=...)")
            if self.is_mutable:
                self.flush()
                _folder.write_description(self, own)
            return
        if self.is_mutable:
            self._locked(_copies.write_snapshot, self, local_path(path))
        else:
            _copies.write_snapshot(self, local_path(path))

    def close(self) -> None:
        """Make all samples durable, and release files and memory. May be called more than once.

        The buffer is closed even if this raises: acknowledged samples are in its files, but may not be durable.
        """
        if self.is_mutable and not self._state.is_closed:
            with contextlib.suppress(OSError):  # from the repair after a failed write: `_state.close` raises it again
                self._locked(self._writer.close)  # threads blocked on the lock raise afterwards
            self._writer.close()
        self._closed = True
        self._reader = ClosedBuffer()  # type: ignore[assignment]
        self._state.close()


def _check_lanes(lanes: int, capacity: int | None, storage_cls: type[SpaceStorage] | None) -> None:
    if lanes < 1:
        raise ValueError(f"lanes is {lanes}, it must be at least 1")
    if lanes > 1 and capacity is not None and capacity % lanes:
        raise ValueError(
            f"capacity is {capacity}, with {lanes} lanes it must be a multiple of {lanes}, "
            f"such as {-(-capacity // lanes) * lanes}"
        )
    if lanes > 1 and storage_cls is not None and storage_cls.is_segment_aware:
        raise ValueError(f"{storage_cls.__name__} keeps one episode after the other, so lanes must be 1, not {lanes}")


class ClosedBuffer:
    """The reader of a closed buffer, which raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the buffer is closed")


def index_with_offset(backend: BackendLike, index: Any, len_transitions: int, offset: int, device: Any = None) -> Any:
    """The slots of an index into a full ring of `len_transitions` samples, the oldest of which is in slot `offset`.

    An int for an int, else an array of the backend.
    """
    backend = parse_backend(backend)
    position = resolve_index(backend, index, len_transitions)
    if isinstance(position, int):
        return (position + offset) % len_transitions
    slots = (position + offset) % max(len_transitions, 1)
    return backend.from_numpy(slots, dtype=backend.default_index_dtype, device=device, copy=True)
