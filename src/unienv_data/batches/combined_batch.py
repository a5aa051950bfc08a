"""A view of several batches as one batch, concatenated."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.backends import BackendLike, parse_backend
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from unienv_interface.space import BoxSpace, DictSpace, GraphInstance
from unienv_interface.space.space_utils import batch_size_data, batch_space, get_at
from unienv_interface.space.spaces.graph import fields_of

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.encoded_frames import EncodedFrames
from ..base.threads import call_each
from ..base.windows import EpisodeMarks, Episodes, Limits, WindowQuery, Windows
from ._view import with_space, with_value
from .backend_compat import ToBackendOrDeviceBatch

BATCH_INDEX = "batch_index"

DataAndMetadata = tuple[Any, dict[str, Any] | None]


class _SourceSlice(NamedTuple):
    """The samples of one source: its number, their positions in it, and their indices in the whole batch."""

    source: int
    positions: np.ndarray
    indices: np.ndarray


class CombinedBatch(BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Several batches of one space, the sources, as one batch: their samples are concatenated.

    The combination reads each source once for an index, and hands out samples in the order of the index. Episodes and
    windows never reach from one source into the next. Metadata are the fields that all sources have, and `batch_index`,
    the number of the source. Samples can be overwritten and removed; to add samples, extend a source.

    The lengths of sources that may grow or shrink (`BatchBase.may_grow`) are read at every use. A replay buffer that
    had been closed before it was opened for reading has a constant length, so tens of thousands of them cost nothing.

    Parameters
    ----------
    batches
        The sources, at least one; they stay open when the combination is closed.
    device
        The device of the samples, by default the device of the first source.
    use_thread_pool
        Whether threads read the sources in parallel, which is faster if reading waits for a disk or a decoder.

    Raises
    ------
    ValueError
        `batches` is empty, or the spaces of the batches differ.

    Examples
    --------
    >>> runs = CombinedBatch([buffer, buffer])
    >>> len(runs)
    3200
    >>> data, metadata = runs.get_at_with_metadata([0, 1600])
    >>> metadata["batch_index"]
    array([0, 1])
    """

    def __init__(
        self,
        batches: Sequence[BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]],
        device: Any = None,
        use_thread_pool: bool = False,
    ) -> None:
        self.batches = tuple(batches)
        if not self.batches:
            raise ValueError("batches is empty, wanted at least one batch")
        first = self.batches[0]
        for number, batch in enumerate(self.batches):
            if batch.single_space != first.single_space:
                space, first_space = batch.single_space, first.single_space
                raise ValueError(
                    f"batch {number} is of {space!r}, batch 0 of {first_space!r}: their spaces must be equal"
                )
        space = first.single_space if device is None else first.single_space.to(device=device)
        super().__init__(space, self._metadata_space(space.device))
        self.use_thread_pool = use_thread_pool
        self.is_segment_aware = all(batch.is_segment_aware for batch in self.batches)
        self._sources = [self._on_this_device(batch) for batch in self.batches]
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._lengths = np.fromiter(map(len, self.batches), np.int64, len(self.batches))
        self._growing = [number for number, batch in enumerate(self.batches) if batch.may_grow]
        self._known: tuple[list[int], tuple[np.ndarray, int]] = ([], _starts_and_total(self._lengths))

    def _metadata_space(self, device: Any) -> DictSpace:
        first = self.batches[0]
        spaces = [batch.single_metadata_space for batch in self.batches]
        known = dict(spaces[0].spaces) if spaces[0] is not None else {}
        shared = {
            key: space
            for key, space in known.items()
            if all(other is not None and other.spaces.get(key) == space for other in spaces)
        }
        self._shared_keys = tuple(shared)
        numbers = BoxSpace(first.backend, 0, len(self.batches) - 1, first.backend.default_index_dtype, shape=())
        space = with_space(DictSpace(first.backend, shared), first.single_space, BATCH_INDEX, numbers)
        return space.to(device=device)

    def _on_this_device(self, batch: BatchBase) -> BatchBase:
        backend = self.backend
        if backend.same_device(batch.device, self.device):
            return batch
        return ToBackendOrDeviceBatch(batch, device=self.device or backend.device(backend.empty((0,))))

    # -- positions in the sources -----------------------------------------------------------------------------

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        """Whether all batches can be written."""
        return all(batch.is_mutable for batch in self.batches)

    @property
    def may_grow(self) -> bool:
        return bool(self._growing)

    @property
    def renumbered(self) -> int:
        starts, _ = self._starts_and_total()
        moved = sum(batch.renumbered + batch.sample_numbers.start for batch in self.batches)
        return int(moved + starts.sum())  # the start of a batch moves when an earlier batch grows or shrinks

    def __len__(self) -> int:
        return self._starts_and_total()[1]

    def _starts_and_total(self) -> tuple[np.ndarray, int]:
        """Return the current position of each source's first sample, and the number of all samples."""
        known, result = self._known
        current = [len(self.batches[number]) for number in self._growing]
        if current != known:
            lengths = self._lengths.copy()
            lengths[self._growing] = current
            result = _starts_and_total(lengths)
            self._known = (current, result)
        return result

    def _slices(self, positions: np.ndarray, starts: np.ndarray) -> list[_SourceSlice]:
        """Group positions by source."""
        sources, local = locate(starts, positions)
        if len(sources) and np.count_nonzero(sources == sources[0]) == len(sources):
            return [_SourceSlice(int(sources[0]), local, np.arange(len(sources)))]
        order = np.argsort(sources, kind="stable")
        firsts = np.flatnonzero(np.diff(sources[order], prepend=-1)).tolist()
        groups = (order[first:end] for first, end in itertools.pairwise([*firsts, len(order)]))
        return [_SourceSlice(int(sources[indices[0]]), local[indices], indices) for indices in groups]

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> BatchT:
        return self._read(idx, lambda batch, index: (batch.get_at(index), None), with_metadata=False)[0]

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, lambda batch, index: batch.get_at_with_metadata(index))

    def get_flattened_at(self, idx: Any) -> Any:
        return self._read(idx, lambda batch, index: (batch.get_flattened_at(index), None), with_metadata=False)[0]

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, lambda batch, index: batch.get_flattened_at_with_metadata(index))

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        def fetch(batch: BatchBase, index: Any) -> DataAndMetadata:
            return batch.get_column_at(nested_keys, index), None

        return self._read(idx, fetch, with_metadata=False)[0]

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any]]:
        return self._read(idx, lambda batch, index: batch.get_column_at_with_metadata(nested_keys, index))

    def encoded_frames(self, nested_keys: Sequence[Any], idx: Any) -> EncodedFrames | None:
        """Return the positions of frames in video files if all samples are of one source; None otherwise."""
        starts, total = self._starts_and_total()
        slices = self._slices(np.atleast_1d(resolve_index(self.backend, idx, total)), starts)
        if len(slices) != 1:
            return None
        return self._sources[slices[0].source].encoded_frames(nested_keys, slices[0].positions)

    def _read(
        self, idx: Any, fetch: Callable[[BatchBase, Any], DataAndMetadata], *, with_metadata: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        starts, total = self._starts_and_total()
        position = resolve_index(self.backend, idx, total)
        if isinstance(position, int):
            source, local = (int(number[0]) for number in locate(starts, np.array([position])))
            data, metadata = fetch(self._sources[source], local)
            return data, self._shown(metadata, np.array(source)) if with_metadata else {}
        slices = self._slices(position, starts)
        if not slices:
            data, metadata = fetch(self._sources[0], position)
            return data, self._shown(metadata, position) if with_metadata else {}
        read = list(self._each(slices, lambda chosen: fetch(self._sources[chosen.source], chosen.positions)))
        data = self._together([data for data, _ in read], slices)
        if not with_metadata:
            return data, {}
        return data, self._joined_metadata(
            [metadata for _, metadata in read], slices, np.empty(len(position), np.int64)
        )

    def _joined_metadata(
        self, all_metadata: Sequence[dict[str, Any] | None], slices: Sequence[_SourceSlice], numbers: np.ndarray
    ) -> dict[str, Any]:
        for chosen in slices:
            numbers[chosen.indices] = chosen.source
        shared = [self._shared_metadata(metadata) for metadata in all_metadata]
        return with_value(self._together(shared, slices), BATCH_INDEX, self._numbers(numbers))

    def _shown(self, metadata: dict[str, Any] | None, numbers: np.ndarray) -> dict[str, Any]:
        return with_value(self._shared_metadata(metadata), BATCH_INDEX, self._numbers(numbers))

    def _shared_metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any]:
        return {} if metadata is None else {key: metadata[key] for key in self._shared_keys}

    def _numbers(self, numbers: np.ndarray) -> Any:
        return self.backend.from_numpy(numbers, dtype=self.backend.default_index_dtype, device=self.device)

    def _together(self, batches: Sequence[Any], slices: Sequence[_SourceSlice]) -> Any:
        """Concatenate the data of the sources in the order of the index."""
        if len(slices) == 1:  # in order already
            return batches[0]
        order = np.concatenate([chosen.indices for chosen in slices])
        if np.array_equal(order, np.arange(len(order))):
            return _concatenate(self.backend, batches, None)
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return _concatenate(self.backend, batches, inverse)

    def _each(self, slices: Sequence[_SourceSlice], work: Callable[[_SourceSlice], Any]) -> Iterator[Any]:
        if not self.use_thread_pool or len(slices) == 1:
            return map(work, slices)
        if self._pool is None or self._pool[0] != os.getpid():  # a forked process has no threads
            self._pool = (os.getpid(), ThreadPoolExecutor(thread_name_prefix="combined-batch"))
        return iter(call_each(self._pool[1], work, slices))

    # -- episodes --------------------------------------------------------------------------------------------

    def get_segments(self) -> list[tuple[int, int]] | None:
        ranges, (starts, _) = [], self._starts_and_total()
        for batch, shift in zip(self.batches, starts.tolist(), strict=True):
            segments = batch.get_segments()
            if segments is None:
                return None
            ranges += [(start + shift, stop + shift) for start, stop in segments]
        return ranges

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        return self._merged_episodes(positions, lambda batch, local: batch.episodes_of(local))

    def episode_marks(self, positions: np.ndarray) -> EpisodeMarks | None:
        merged = EpisodeMarks(*np.zeros((4, len(positions)), np.bool_))
        for chosen in self._slices(positions, self._starts_and_total()[0]):
            marks = self._sources[chosen.source].episode_marks(chosen.positions)
            if marks is None:
                return None
            for merged_mark, mark in zip(merged, marks, strict=True):
                merged_mark[chosen.indices] = mark
        return merged

    def episode_bounds(self, positions: np.ndarray, *, within_episodes: bool = True) -> Episodes:
        def find(batch: BatchBase, local: np.ndarray) -> Episodes:
            return batch.episode_bounds(local, within_episodes=within_episodes)

        bounds = self._merged_episodes(positions, find)
        return super().episode_bounds(positions, within_episodes=False) if bounds is None else bounds

    def _merged_episodes(
        self, positions: np.ndarray, find: Callable[[BatchBase, np.ndarray], Episodes | None]
    ) -> Episodes | None:
        """Return the episodes in positions of the combination; None if a source does not know its episodes."""
        starts, _ = self._starts_and_total()
        start, stop, stride = np.empty_like(positions), np.empty_like(positions), np.ones_like(positions)
        for chosen in self._slices(positions, starts):
            episodes = find(self._sources[chosen.source], chosen.positions)
            if episodes is None:
                return None
            shift = positions[chosen.indices[0]] - chosen.positions[0]
            start[chosen.indices], stop[chosen.indices] = episodes.start + shift, episodes.stop + shift
            stride[chosen.indices] = episodes.stride
        are_alike = not len(stride) or np.all(stride == stride[0])
        return Episodes(start, stop, int(stride[0] if len(stride) else 1) if are_alike else stride)

    def applies_mask(self, mask_keys: tuple[Any, ...]) -> bool:
        return all(batch.applies_mask(mask_keys) for batch in self._sources)

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        return self.read_column_windows(positions, (query,), limits)[0]

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        slices = self._slices(positions, self._starts_and_total()[0])
        if not slices:
            return [super(CombinedBatch, self).read_windows(positions, query, limits) for query in queries]

        def read(chosen: _SourceSlice) -> list[Windows]:
            local_limits = None
            if limits is not None:
                shift = positions[chosen.indices] - chosen.positions
                local_limits = Limits(limits.start[chosen.indices] - shift, limits.stop[chosen.indices] - shift)
            return self._sources[chosen.source].read_column_windows(chosen.positions, queries, local_limits)

        by_query = zip(*self._each(slices, read), strict=True)
        return [self._joined_windows(query, read, slices) for query, read in zip(queries, by_query, strict=True)]

    def _joined_windows(self, query: WindowQuery, read: Sequence[Windows], slices: Sequence[_SourceSlice]) -> Windows:
        data = self._together([windows.data for windows in read], slices)
        valid = np.empty((sum(len(chosen.indices) for chosen in slices), query.count), np.bool_)
        for chosen, windows in zip(slices, read, strict=True):
            valid[chosen.indices] = windows.valid
        padding = np.empty(valid.shape, np.uint8) if query.tells_padding else None
        for chosen, windows in zip(slices, read, strict=True):
            if padding is not None and windows.padding is not None:
                padding[chosen.indices] = windows.padding
        metadata = None
        if query.with_metadata:
            numbers = np.empty(valid.shape, np.int64)
            metadata = self._joined_metadata([windows.metadata for windows in read], slices, numbers)
        return Windows(data, valid, metadata, padding)

    # -- writing ---------------------------------------------------------------------------------------------

    def set_at(self, idx: Any, value: Any) -> None:
        starts, total = self._starts_and_total()
        position = resolve_index(self.backend, idx, total)
        if isinstance(position, int):
            source, local = (int(number[0]) for number in locate(starts, np.array([position])))
            self._sources[source].set_at(local, value)
            return
        count = batch_size_data(value)
        if count is not None and count != len(position):
            raise ValueError(f"set_at: {len(position)} indices and {count} samples")
        space = batch_space(self.single_space, len(position))
        for chosen in self._slices(position, starts):
            self._sources[chosen.source].set_at(chosen.positions, get_at(space, value, chosen.indices))

    def remove_at(self, idx: Any) -> None:
        starts, total = self._starts_and_total()
        positions = np.atleast_1d(np.asarray(resolve_index(self.backend, idx, total)))
        for chosen in self._slices(positions, starts):
            self._sources[chosen.source].remove_at(chosen.positions)

    def _unsupported(self, verb: str) -> TypeError:
        return TypeError(f"{verb}: {type(self).__name__} has several batches: change a batch in its `batches`")

    def close(self) -> None:
        """End the threads; the batches stay open."""
        if self._pool is not None and self._pool[0] == os.getpid():
            self._pool[1].shutdown()
        self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}


def _starts_and_total(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    stops = np.cumsum(lengths)
    return stops - lengths, int(stops[-1])


def locate(starts: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each sample and its position there; `starts` has the first position of each source."""
    sources = np.searchsorted(starts, positions, side="right") - 1
    return sources, positions - starts[sources]


def convert_single_index_to_batch(
    backend: BackendLike, index_starts: Any, total_length: int, idx: int, device: Any = None
) -> tuple[int, int]:
    """Return the number of the batch that contains a sample, and its index there; `index_starts` as in `locate`."""
    batches, indices = convert_index_to_batch(backend, index_starts, total_length, [idx], device)
    return int(batches[0]), int(indices[0])


def convert_index_to_batch(
    backend: BackendLike, index_starts: Any, total_length: int, idx: Any, device: Any = None
) -> tuple[Any, Any]:
    """Return the batch numbers and the indices there for an index of any kind, as two arrays of the backend."""
    backend = parse_backend(backend)
    starts = backend.to_numpy(index_starts) if backend.is_backendarray(index_starts) else np.asarray(index_starts)
    positions = np.atleast_1d(np.asarray(resolve_index(backend, idx, total_length)))
    sources, local = (
        backend.from_numpy(array, dtype=backend.default_index_dtype, device=device)
        for array in locate(starts, positions)
    )
    return sources, local


# -- concatenating data of several sources ----------------------------------------------------------------------


def _concatenate(backend: ComputeBackend, batches: Sequence[Any], order: np.ndarray | None) -> Any:
    """Concatenate batches along their first axis; with `order`, sample i of the result is sample order[i]."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _concatenate(backend, [batch[key] for batch in batches], order) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenate(backend, column, order) for column in zip(*batches, strict=True))
    if isinstance(first, GraphInstance):
        return _concatenate_graphs(backend, batches, order)
    return _concatenate_arrays(backend, batches, order)


def _concatenate_arrays(backend: ComputeBackend, arrays: Sequence[Any], order: np.ndarray | None) -> Any:
    if len(arrays) == 1:
        whole = arrays[0]
    else:
        whole = np.concatenate(arrays) if isinstance(arrays[0], np.ndarray) else backend.concat(arrays, axis=0)
    return whole if order is None else whole[order]


def _concatenate_graphs(
    backend: ComputeBackend, graphs: Sequence[GraphInstance], order: np.ndarray | None
) -> GraphInstance:
    batch_axes = graphs[0].n_nodes.ndim
    merged: list[Any] = []
    for field_index, fields in enumerate(zip(*map(fields_of, graphs), strict=True)):
        if fields[0] is None:
            merged.append(None)
            continue
        arrays = list(fields)
        if field_index >= 2:  # pad features and edges to the largest number of entries
            entries = max(array.shape[batch_axes] for array in arrays)
            arrays = [backend.pad_dim(array, batch_axes, entries) for array in arrays]
        merged.append(_concatenate_arrays(backend, arrays, order))
    return GraphInstance(*merged)
