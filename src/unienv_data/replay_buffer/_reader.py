"""Reading without a lock, beside a writer in another process or thread.

A reader looks at the counters before and after a read, and reads again if a writer has overwritten samples meanwhile.
The returned samples and episodes are therefore those of one instant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unienv_interface.space.row_layout import RowLayout, Rows

from ..base.index import resolve_index
from ..base.nested import columns_under, nested_item
from ..base.row_storage import RowStorage, rows_of
from ..base.windows import (
    ColumnMask,
    EpisodeMarks,
    Episodes,
    Limits,
    Spans,
    WindowQuery,
    Windows,
    nearest_valid,
    padding_of,
    window_frames,
    window_spans,
)
from ._segments import logical_segments
from ._state import BufferState

# After so many reads overtaken by a writer, a reader takes the write lock, or gives up.
_ATTEMPTS = 1000
# Seconds that a reader waits for a sample that a busy writer writes soon, and for one being written.
_SOON, _IN_GOOD_TIME = 0.002, 1.0

#: Reads slots, given how many of a growing storage are in use.
Gather = Callable[[Any, int], Any]
#: Reads samples by their positions, given tail, head and base of one instant.
ReadAt = Callable[[Any, int, int, int], Any]


class BufferReader:
    """Reads a buffer's samples, windows and episodes, each as at one instant."""

    def __init__(self, state: BufferState, *, maintains: bool) -> None:
        self._state, self._counters = state, state.counters
        self._ring, self._backend = state.storage.ring, state.storage.backend
        self.bounds = EpisodeBounds(state, maintains=maintains)

    def by_slots(self, gather: Gather) -> ReadAt:
        """A function that reads positions by the `gather` of their slots."""
        ring = self._ring

        def read_at(positions: Any, tail: int, head: int, base: int) -> Any:
            shift = tail - base if ring is None else (tail - base) % ring
            slots = positions + shift if shift else positions
            return gather(slots, head - base if ring is None else ring)

        return read_at

    def read(self, idx: Any, read_at: ReadAt, reach: int = 0) -> Any:
        """Call `read_at` for an index of any kind; `reach` is how many samples before each it reads, too."""
        counters = self._counters
        edit, head, tail, base = counters.edit, counters.head, counters.tail, counters.base
        try:  # nearly always, no writer interferes
            positions = resolve_index(self._backend, idx, head - tail)
            values = read_at(positions, tail, head, base)
            now = counters.tail
            if counters.edit == edit and not edit & 1 and (now == tail or _oldest(positions) - reach >= now - tail):
                return values
        except (ValueError, LookupError):
            pass  # a real error, or a row that was being overwritten: `_read_again` decides
        return self._read_again(idx, read_at, reach)

    def _read_again(self, idx: Any, read_at: ReadAt, reach: int) -> Any:
        """`read` beside a writer that interferes."""
        counters, ahead = self._counters, 0
        for _ in range(_ATTEMPTS):
            edit = self._settled_edit()
            head, tail, base = counters.head, counters.tail, counters.base
            if tail > head:
                continue  # a writer has moved them between the two loads
            try:
                positions = resolve_index(self._backend, idx, head - tail)
            except IndexError:
                if counters.head == head and counters.tail == tail and not self._is_coming(head):
                    raise
                continue  # in range once the write under way is committed
            if ahead:
                tail += ahead
                if not self._wait_for(tail + _newest(positions), _SOON):
                    ahead = 0
                    continue
                head = counters.head
            try:
                values = read_at(positions, tail, head, base)
            except (ValueError, LookupError):
                if counters.edit == edit and counters.tail <= tail:
                    raise
                values = None  # read from a row that was being overwritten
            now = counters.tail
            if counters.edit == edit and (now <= tail or max(0, _oldest(positions) - reach) + tail >= now):
                return values
            # Reads ahead: the samples behind a later tail are read before the writer overtakes them.
            ahead = max(2 * (now - tail + ahead), 2 * ahead)
        return self._read_alone(idx, read_at)

    def _settled_edit(self) -> int:
        """The counter of edits after a running edit has ended; at once in a signal handler of the editing thread."""
        while (edit := self._counters.edit) & 1 and not self._state.is_writing_here():
            self._state.wait_for_edit()
        return edit

    def _is_coming(self, head: int) -> bool:
        """Whether a writer that is overwriting samples moves the head soon."""
        return (
            self._counters.coming > head and not self._state.is_writing_here() and self._wait_for(head, _IN_GOOD_TIME)
        )

    def _wait_for(self, number: int, patience: float) -> bool:
        """Wait for a sample that a busy writer is about to write; False after `patience` seconds."""
        begun = time.perf_counter()
        while self._counters.head <= number:
            waited = time.perf_counter() - begun
            if waited > patience:
                return False
            if waited > _SOON:
                time.sleep(_SOON)
        return True

    def _read_alone(self, idx: Any, read_at: ReadAt) -> Any:
        """Read under the write lock, if this process can take it."""
        state, counters = self._state, self._counters
        if not state.storage.is_mutable:
            raise RuntimeError(f"samples were overwritten while they were read, {_ATTEMPTS} times in a row")

        def read() -> Any:
            head, tail = counters.head, counters.tail
            return read_at(resolve_index(self._backend, idx, head - tail), tail, head, counters.base)

        return read() if state.is_writing_here() else state.write_lock.run(read)

    # -- windows ---------------------------------------------------------------------------------------------

    def window_reader(self, query: WindowQuery, limits: Limits | None) -> WindowReader:
        """A reader of the windows that a query asks for."""
        return WindowReader(self, self._state, query, limits)

    # -- episodes --------------------------------------------------------------------------------------------

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        """The episodes of samples; None where episodes are not kept."""
        return self._snapshot(lambda tail, head: self.bounds.kept(positions, tail, head))[0]

    def episode_marks(self, positions: np.ndarray) -> EpisodeMarks:
        """The marks of the episodes of samples."""
        segments = self._state.segments
        marks: EpisodeMarks = self._snapshot(lambda tail, head: segments.marks_of(positions + tail, tail, head))[0]
        return marks

    def segments(self) -> list[tuple[int, int]]:
        """The closed episodes as ranges of indices."""
        ranges, tail = self._snapshot(self._state.segments.alive)
        closed = [(start - tail, stop - tail) for start, stop in ranges.tolist()]
        return closed if self._state.segments.lanes == 1 else sorted(closed)

    def cut_segments(self) -> list[tuple[int, int]]:
        """The closed episodes that were cut, sorted by their start."""
        (ranges, is_cut), tail = self._snapshot(self._state.segments.alive_and_cut)
        return sorted((start - tail, stop - tail) for start, stop in ranges[is_cut].tolist())

    def segment_of(self, index: int) -> tuple[int, int] | None:
        """The closed episode of a sample, as a range of indices; None if the sample is in none."""

        def find(tail: int, head: int) -> tuple[int, int] | None:
            position = int(resolve_index(self._backend, index, head - tail))
            return self._state.segments.of(tail + position, tail, head)

        segment, tail = self._snapshot(find)
        return None if segment is None else (segment[0] - tail, segment[1] - tail)

    def storage_segments(self) -> list[tuple[int, int]] | None:
        """The closed episodes as the storage knows them; None if the storage does not keep episodes."""
        head = self._counters.head  # read before tail, so that they never span more than the capacity
        return self.bounds.known_to_storage(self._counters.tail, head)

    def _snapshot(self, find: Callable[[int, int], Any]) -> tuple[Any, int]:
        """The result of `find(tail, head)` while no edit runs, and the tail."""
        counters = self._counters
        while True:
            edit = self._settled_edit()
            head, tail = counters.head, counters.tail
            result = find(tail, max(head, tail))
            if counters.edit == edit:
                return result, tail


class EpisodeBounds:
    """Where the windows of samples end, by the counters of one instant; all in positions."""

    def __init__(self, state: BufferState, *, maintains: bool) -> None:
        self._state, self._maintains = state, maintains

    def kept(self, positions: np.ndarray, tail: int, head: int) -> Episodes | None:
        """The episodes of samples, kept by the buffer or else by the storage; None if neither keeps episodes."""
        segments = self._state.segments
        if self._maintains:
            if not tail:
                return Episodes(*segments.bounds_of(positions, 0, head), segments.lanes)
            start, stop = segments.bounds_of(positions + tail, tail, head)
            return Episodes(start - tail, stop - tail, segments.lanes)
        ranges = self.known_to_storage(tail, head)
        return None if ranges is None else _among(np.array(ranges, np.int64).reshape(-1, 2), positions, head - tail)

    def known_to_storage(self, tail: int, head: int) -> list[tuple[int, int]] | None:
        """The storage's closed episodes as ranges of positions; None if the storage does not keep episodes."""
        storage = self._state.storage
        pairs = storage.get_segments() if storage.is_segment_aware else None
        if pairs is None:
            return None
        return logical_segments(pairs, self._state.slot(tail), max(0, head - tail), storage.capacity)

    def kept_or_all(self, positions: np.ndarray, tail: int, head: int) -> Episodes:
        """The episodes of samples; all samples of the lane where episodes are not kept."""
        kept = self.kept(positions, tail, head)
        return self.all(positions, tail, head) if kept is None else kept

    def all(self, positions: np.ndarray, tail: int, head: int) -> Episodes:
        """All samples of the lane of each sample."""
        lanes = self._state.segments.lanes  # only whole steps are dropped, so position 0 belongs to lane 0
        return Episodes(positions % lanes, np.full_like(positions, head - tail), lanes)


class WindowReader:
    """Reads the windows of samples by their positions, given the counters of one instant.

    Everything that depends on the query alone is prepared when the reader is made.
    """

    def __init__(self, reader: BufferReader, state: BufferState, query: WindowQuery, limits: Limits | None) -> None:
        storage = state.storage
        self.query, self._limits, self._backend, self._capacity = query, limits, storage.backend, storage.capacity
        self._bounds = reader.bounds.kept_or_all if query.within_episodes else reader.bounds.all
        self._marks_of = state.segments.marks_of if state.maintains else None
        #: How many samples a window may reach back.
        self.reach = -int(query.offsets[0]) * state.segments.lanes
        #: The reader returns whole samples, and `shown` takes the query's keys out of them.
        self.reads_whole = query.mask is not None or not (query.nested_keys and storage.has_column_access)
        source: Any = storage if self.reads_whole else column_source(storage, query.nested_keys)
        self._gather_spans: Callable[[Spans, int, int], Any] | None = None
        if query.mask is not None:
            self._read_at = reader.by_slots(source.gather_rows)
            self._layout = RowLayout(storage.single_instance_space)
            paths = [leaf.path for leaf in self._layout.leaves]
            self._mask_leaf = paths.index(query.mask_keys)
            self._decode_mask_column = self._layout.leaves[self._mask_leaf].codec.gathered_decoder()
        else:
            self._read_at = reader.by_slots(source.gather_windows)
            fills_one_piece = query.is_dense and query.fill and limits is None and query.take is None
            if fills_one_piece and isinstance(source, RowStorage) and source.can_gather_spans(len(query.offsets)):
                self._gather_spans = source.gather_spans

    def __call__(
        self, positions: np.ndarray, tail: int, head: int, base: int
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        """The data of the windows (B, T, ...), the mask of valid frames (B, T), and the padding (B, T)."""
        bounds = self._bounds(positions, tail, head)
        data, valid = self._read(positions, bounds, tail, head, base)
        if not self.query.tells_padding:
            return data, valid, None
        marks = None if self._marks_of is None else self._marks_of(positions + tail, tail, head)
        return data, valid, padding_of(self.query, bounds, self._limits, marks, valid)

    def _read(self, positions: np.ndarray, bounds: Episodes, tail: int, head: int, base: int) -> tuple[Any, np.ndarray]:
        if self._gather_spans is not None:
            spans = window_spans(positions, self.query, bounds, head - tail)
            if spans is not None:
                shift = tail - base if self._capacity is None else (tail - base) % self._capacity
                return self._gather_spans(spans, shift, self._capacity or head - base), spans.valid
        frames, valid = window_frames(positions, self.query, bounds, self._limits, head - tail)
        values = self._read_at(frames, tail, head, base)
        return (values, valid) if self.query.mask is None else self._masked(self.query.mask, values, valid)

    def shown(self, data: Any, valid: np.ndarray, padding: np.ndarray | None) -> Windows:
        """The windows of what was read, with the keys that the query asks for."""
        shown = nested_item(data, self.query.nested_keys) if self.reads_whole else data
        return Windows(shown, valid, padding=padding)

    def _masked(self, mask: ColumnMask, rows: Rows, valid: np.ndarray) -> tuple[Any, np.ndarray]:
        """Rows of windows as data, filled where the mask column makes frames invalid."""
        query, column = self.query, self._decode_mask_column(rows.columns[self._mask_leaf])
        values = self._backend.to_numpy(column) if self._backend.is_backendarray(column) else column
        valid &= mask.valid_frames(values, query.offsets, query.zero)
        if query.fill:
            cut = (~valid.all(axis=1)).nonzero()[0]
            if len(cut):
                rows.rearrange(cut, nearest_valid(valid[cut], query.zero))
        return self._layout.unpack_gathered(rows), valid


def _among(ranges: np.ndarray, positions: np.ndarray, length: int) -> Episodes:
    """For each position the range that holds it, of sorted ranges [start, stop), or else the gap between two."""
    starts, stops = np.append(ranges[:, 0], length), np.append(ranges[:, 1], length)
    ends = np.append(0, ranges[:, 1])
    after = np.searchsorted(ranges[:, 1], positions, side="right")
    inside = starts[after] <= positions
    return Episodes(np.where(inside, starts[after], ends[after]), np.where(inside, stops[after], starts[after]), 1)


def _oldest(position: Any) -> int:
    if isinstance(position, int):
        return position
    return position.item(position.argmin()) if position.size else 2**62  # quicker than min()


def _newest(position: Any) -> int:
    if isinstance(position, int):
        return position
    return int(position.max()) if position.size else -1


# -- columns of a storage ----------------------------------------------------------------------------------


def column_source(storage: RowStorage, keys: Sequence[Any]) -> Any:
    """An object with `gather` and `gather_windows` of the field under these keys, which may end in `Columns`."""
    above, columns = columns_under(keys)
    if columns is None or storage.takes_columns:
        return rows_of(storage.get_column(keys))
    return _ColumnByColumn({path: rows_of(storage.get_column((*above, *path))) for path in columns.paths()})


class _ColumnByColumn:
    """Several columns of a storage that reads them one at a time."""

    def __init__(self, columns: dict[tuple[Any, ...], RowStorage]) -> None:
        self._columns = columns

    def gather(self, slots: Any, length: int) -> Any:
        return self._together(lambda column: column.gather(slots, length))

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self._together(lambda column: column.gather_windows(slots, length))

    def _together(self, read: Callable[[RowStorage], Any]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for (*above, last), column in self._columns.items():
            parent = values
            for key in above:
                parent = parent.setdefault(key, {})
            parent[last] = read(column)
        return values
