"""Transitions whose observations are stored once.

A row stores `next_obs`. Its `obs` is the `next_obs` of the previous row in the same lane. So the newest row is
complete, also at the end of an episode. If the two differ, as in the first sample of an episode, of a buffer or of a
writer, `obs` lies in a separate storage beside the rows, and the row has its slot there.

A write compares the bytes of the two observations to find out which case holds. So reads return what was written, for
any episodes.

The oldest samples need the row before them. So a ring has one more slot for each lane than its capacity, and a row is
overwritten only after the next sample of its lane was dropped.

A slot of the separate storage is free if the row that it was taken for no longer names it. So no list of free slots is
kept, which a kill or another writer could leave wrong.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends import BackendLike
from unienv_interface.space import BoxSpace, Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_space, get_at, register_json_reader
from unienv_interface.space.spaces import DictSpace

from ..base.files import format_version, json_field, new_folder, read_json, sync_folder, write_json
from ..base.index import resolve_index
from ..base.nested import nested_item
from ..base.row_storage import ROW_WRONG, RowStorage
from ..base.storage import StorageCorruptedError
from ._column_view import ColumnView
from ._options import checks_options
from ._packed_column import take_column
from .packed import PackedStorage
from .registry import register_storage

PathLike = str | os.PathLike[str]

_OBS, _NEXT = "obs", "next_obs"
_FILE, _ROWS, _FIRSTS = "shared_next_obs.json", "rows", "first_obs"
_FORMAT_VERSION = 1
_COPY_BYTES = 2**20
_NO_PLACES = np.zeros(0, np.int64)


class SharedNextObsSpace(DictSpace):
    """The space of a transition for buffers that store each observation once.

    It is equal to the `DictSpace` with the same keys, which is what a buffer made of it has as its space.

    Examples
    --------
    >>> space = transition_space(env, next_obs="shared")
    >>> type(space).__name__, space == transition_space(env)
    ('SharedNextObsSpace', True)
    """

    def plain(self) -> DictSpace:
        """The same space without the wish."""
        return DictSpace(self.backend, list(self.spaces.items()), self.device)

    def with_children(self, children: Iterable[Space], backend: BackendLike | None = None) -> SharedNextObsSpace:
        """A space with the same keys and other children, whose observations are shared, too."""
        other = super().with_children(children, backend)
        return SharedNextObsSpace(other.backend, list(other.spaces.items()))

    def __eq__(self, other: object) -> bool:
        return self.plain() == (other.plain() if isinstance(other, SharedNextObsSpace) else other)

    def __hash__(self) -> int:
        return hash(self.plain())


@register_json_reader("SharedNextObsSpace")
def _(node: Any) -> Space:
    children = [(key, node.child(child, key)) for key, child in node.field("spaces", Mapping).items()]
    return SharedNextObsSpace(node.backend, children, node.device)


@register_storage("shared_next_obs")
class SharedNextObsStorage(RowStorage):
    """Transitions with the keys `obs` and `next_obs`, each observation stored once; see the module's docstring.

    In memory, in a folder of mapped files, or in shared memory, like `PackedStorage`, in which the rows lie. A buffer
    over it adds samples and drops the oldest; samples in its middle can neither be overwritten nor removed, since the
    one after needs them.

    Examples
    --------
    >>> buffer = ReplayBuffer.create(transition_space(envs, next_obs="shared"), capacity=1_000_000, lanes=8)
    """

    has_column_access = True
    shares_next_obs = True

    def __init__(
        self,
        single_instance_space: Space,
        rows: PackedStorage,
        firsts: PackedStorage,
        *,
        capacity: int | None,
        lanes: int,
        path: Path | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__(single_instance_space)
        self.capacity, self.lanes, self.cache_filename = capacity, lanes, path
        self.spare_slots = lanes
        self.is_mutable = rows.is_mutable
        self.is_multiprocessing_safe = rows.is_multiprocessing_safe
        self.survives_kill = rows.survives_kill
        self.has_row_sums = rows.has_row_sums and firsts.has_row_sums
        self._rows, self._firsts, self._is_shared = rows, firsts, shared
        leaves = self.layout.leaves
        self._obs = [index for index, leaf in enumerate(leaves) if leaf.path[0] == _OBS]
        self._next = [index for index, leaf in enumerate(leaves) if leaf.path[0] == _NEXT]
        self._stored = [index for index, leaf in enumerate(leaves) if leaf.path[0] != _OBS]
        own = dict(zip(self._stored, rows.layout.leaves[1:], strict=True))
        # Which leaf of the rows each leaf of a sample is read from, and whether from the row before.
        self._sources = [
            (own[self._next[self._obs.index(index)]], True) if index in self._obs else (own[index], False)
            for index in range(len(leaves))
        ]
        self._number_name = rows.layout.leaves[0].name
        self._plan = [(leaf.name, leaf.placement == "block", is_before) for leaf, is_before in self._sources]
        self._reads_records_before = any(is_before and leaf.placement == "row" for leaf, is_before in self._sources)
        self._follows: tuple[int, int] | None = None  # the number and the slot that come after what was written last
        self._free = _NO_PLACES  # places for first observations, reserved
        self._needed = 0  # how many of them the sample that was encoded last may take
        self._columns: dict[tuple[Any, ...], _Column] = {}

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        lanes: int = 1,
    ) -> SharedNextObsStorage:
        """Create a new storage.

        Parameters
        ----------
        single_instance_space
            The space of one transition, with the keys `obs` and `next_obs`.
        capacity, multiprocessing
            As for every storage.
        cache_path
            The folder of its files; by default it is in memory.
        lanes
            How many environments record side by side.

        Returns
        -------
        SharedNextObsStorage
            The storage.

        Raises
        ------
        ValueError
            `capacity` is below 1.
        """
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1, or None to grow")
        spaces = _part_spaces(single_instance_space)
        ring = None if capacity is None else capacity + lanes

        def compose(folder: Path | None) -> SharedNextObsStorage:
            rows, firsts = (
                PackedStorage.create(
                    space,
                    capacity=slots,
                    cache_path=None if folder is None else folder / name,
                    multiprocessing=multiprocessing,
                )
                for space, name, slots in zip(spaces, (_ROWS, _FIRSTS), (ring, None), strict=True)
            )
            options: Any = {"capacity": capacity, "lanes": lanes, "path": folder, "shared": multiprocessing}
            return cls(single_instance_space, rows, firsts, **options)

        if cache_path is None:
            return compose(None)
        with new_folder(cache_path) as folder:
            storage = compose(folder)
            content = {"storage_type": cls.registered_name, "format_version": _FORMAT_VERSION, "lanes": lanes}
            write_json(folder / _FILE, content)
            sync_folder(folder)
        return storage

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        accept_damaged: bool = False,
        **kwargs: Any,
    ) -> SharedNextObsStorage:
        """Load the storage in a folder.

        Parameters
        ----------
        path, single_instance_space, capacity, read_only, multiprocessing
            As for every storage.
        accept_damaged
            As for `PackedStorage`.
        **kwargs
            Arguments of other storages; ignored.

        Returns
        -------
        SharedNextObsStorage
            The storage.
        """
        folder = Path(path)
        content = read_json(folder / _FILE, checksum=False)
        format_version(content, folder / _FILE, _FORMAT_VERSION)
        lanes = json_field(content, "lanes", int, folder / _FILE, least=1)
        options: Any = {"read_only": read_only, "multiprocessing": multiprocessing, "accept_damaged": accept_damaged}
        row_space, first_space = _part_spaces(single_instance_space)
        ring = None if capacity is None else capacity + lanes
        rows = PackedStorage.load_from(folder / _ROWS, row_space, capacity=ring, **options)
        try:
            firsts = PackedStorage.load_from(folder / _FIRSTS, first_space, **options)
        except BaseException:
            rows.close()
            raise
        more: Any = {"capacity": capacity, "lanes": lanes, "path": folder, "shared": multiprocessing}
        return cls(single_instance_space, rows, firsts, **more)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows) if self.capacity is None else min(len(self._rows), self.capacity)

    @property
    def slots_there(self) -> int:
        return len(self._rows)

    @property
    def row_nbytes(self) -> int:
        """The bytes of a row; a first observation comes on top."""
        return self._rows.layout.nbytes

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._firsts.nbytes

    def get(self, index: Any) -> Any:
        length = len(self)
        return self.gather(resolve_index(self.backend, index, length), len(self._rows))

    def extend_length(self, length: int) -> None:
        if self.capacity is None:
            self._rows.extend_length(length)

    def shrink_length(self, length: int) -> None:
        if self.capacity is None:
            self._rows.shrink_length(length)

    def clear(self) -> None:
        self._check_mutable()
        self._rows.clear()
        if self.capacity is None:
            self._firsts.clear()
        self._follows, self._free = None, _NO_PLACES

    def set(self, index: Any, value: Any) -> None:
        self._check_mutable()
        slots = resolve_index(self.backend, index, len(self))
        if isinstance(slots, int):
            one = self.layout.empty(1)
            self.layout.pack(one, 0, value)
            slots, value = np.array([slots]), self.layout.unpack(one)
        self.layout.check(value, (len(slots),))
        if not len(slots):
            return
        kept = len(slots) - 1 - np.unique(slots[::-1], return_index=True)[1]  # of duplicates the last
        value, slots = get_at(batch_space(self.single_instance_space, len(slots)), value, kept), slots[kept]
        after = slots + self.lanes
        after = after[after < len(self._rows)] if self.ring is None else after % self.ring
        after = np.setdiff1d(after[self._rows.rows.columns[0][after] == 0], slots)
        self._follows = None
        self._make_free(len(after) + len(slots))
        if len(after):  # whose observations are about to be overwritten
            places, rows = self._keep_first(after, self.get_column((_OBS,)).gather(after, len(self._rows))), after
            stored = self._rows.get(rows)
            self._rows.set(rows, {**stored, "first": self._as_column(places + 1)})
        places = self._keep_first(slots, value[_OBS])
        sample = {key: child for key, child in value.items() if key != _OBS}
        self._rows.set(slots, {"first": self._as_column(places + 1), "sample": sample})

    def _keep_first(self, slots: np.ndarray, observations: Any) -> np.ndarray:
        """Write first observations of the rows in these slots, and return their places."""
        places, self._free = self._free[: len(slots)], self._free[len(slots) :]
        self._firsts.set(places, {"holder": self._as_column(slots), "obs": observations})
        return places

    def _as_column(self, numbers: np.ndarray) -> Any:
        return self.backend.from_numpy(numbers.astype(np.int32), device=self.device)

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self.cache_filename} was opened read-only: open it with read_only=False to write")

    # -- reading ---------------------------------------------------------------------------------------------

    def gather(self, slots: Any, length: int) -> Any:
        self._map_slots(length)
        if type(slots) is int:
            return self.layout.assemble([column[0, ...] for column in self._read_all(np.array([slots]))])
        return self.layout.assemble_gathered(self._read_all(slots))

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self.gather(slots, length)

    def _map_slots(self, length: int) -> None:
        """Map `length` slots where the storage grows and another process has added some."""
        if self.capacity is None and length > len(self._rows.rows):
            self._rows.adopt_length(length)

    def _slots_before(self, slots: np.ndarray) -> np.ndarray:
        """The slots of the previous rows; of first samples their own where the row was perhaps never written.

        To read a hole of a file takes room on a tmpfs, where none may be left.
        """
        before = slots - self.lanes
        if before.size and before.item(before.argmin()) < 0:
            around = before < 0
            is_first = take_column(self._rows.rows, self._rows.layout.leaves[0], slots[around]) != 0
            before[around] = np.where(is_first, slots[around], before[around])
        return before

    def _read_all(self, slots: np.ndarray) -> list[np.ndarray]:
        """The columns of the samples in these slots, in memory of their own; all records are read in one piece."""
        rows, count, before = self._rows.rows, len(slots), self._slots_before(slots)
        both = np.concatenate((slots, before)) if self._reads_records_before else slots
        records = rows.records.take(both, 0, None, "wrap")
        pieces, blocks = (records[:count], records[count:]), rows.blocks
        columns = [
            blocks[name].take(before if is_before else slots, 0, None, "wrap") if is_block else pieces[is_before][name]
            for name, is_block, is_before in self._plan
        ]
        self._put_firsts(pieces[0][self._number_name], [(index, columns[index]) for index in self._obs])
        return columns

    def read_columns(self, leaf_indices: Sequence[int], slots: np.ndarray) -> list[np.ndarray]:
        """Some of the columns of the samples in these slots, by the places of their leaves."""
        rows, before, columns = self._rows.rows, self._slots_before(slots), []
        for leaf_index in leaf_indices:
            leaf, is_before = self._sources[leaf_index]
            columns.append(take_column(rows, leaf, before if is_before else slots))
        observed = [
            (leaf_index, column)
            for leaf_index, column in zip(leaf_indices, columns, strict=True)
            if leaf_index in self._obs
        ]
        if observed:
            self._put_firsts(take_column(rows, self._rows.layout.leaves[0], slots), observed)
        return columns

    def _put_firsts(self, numbers: np.ndarray, columns: Iterable[tuple[int, np.ndarray]]) -> None:
        """Put first observations in their places in columns, by what the rows say of these samples."""
        own = numbers.nonzero()
        if not len(own[0]):
            return
        places, firsts = numbers[own] - 1, self._firsts
        if places.item(places.argmax()) >= len(firsts.rows):
            firsts.adopt_all()
            if places.max() >= len(firsts.rows):
                raise StorageCorruptedError(f"{self.cache_filename}: there is no first observation {places.max()}")
        for place, column in columns:
            column[own] = firsts.rows.columns[1 + self._obs.index(place)][places]

    def get_column(self, nested_keys: Sequence[Any]) -> RowStorage:
        keys = tuple(nested_keys)
        if keys not in self._columns:
            self._columns[keys] = _Column(self, keys)
        return self._columns[keys]

    # -- how a replay buffer writes --------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> list[Any]:
        """The leaves of a sample or of a batch, and which of them do not follow on the one before, booleans (count,).

        Of the first of each lane that is not known yet.
        """
        leaves = list(self.layout.encode(value, () if count is None else (count,)))
        starts = np.ones(count or 1, np.bool_) if count != 0 else np.zeros(0, np.bool_)
        lanes = self.lanes
        if count is not None and count > lanes:
            starts[lanes:] = False
            for obs, following in zip(self._obs, self._next, strict=True):
                starts[lanes:] |= _differ(
                    self._bytes_of(obs, leaves[obs], count)[lanes:],
                    self._bytes_of(following, leaves[following], count)[:-lanes],
                )
        self._needed = int(np.count_nonzero(starts))
        return [*leaves, starts]

    def part(self, encoded: Sequence[Any], count: int, start: int, stop: int) -> list[Any]:
        return [leaf[start:stop] for leaf in encoded]

    @property
    def reserved(self) -> tuple[int, int]:  # type: ignore[override]
        """The slots [start, stop) that a buffer may write without asking again."""
        return self._rows.reserved if self._needed <= len(self._free) else (0, 0)

    def reserve(self, start: int, stop: int) -> None:
        self._rows.reserve(start, stop)
        if self._needed > len(self._free):
            self._make_free(self._needed)

    def write(self, slots: int | slice, encoded: Sequence[Any], number: int) -> None:
        *leaves, starts = encoded
        start, stop = (slots, slots + 1) if type(slots) is int else (slots.start, slots.stop)  # type: ignore[union-attr]
        count, lanes = stop - start, min(self.lanes, stop - start)
        starts = starts.copy()
        starts[:lanes] = True
        if self._follows == (number, start):
            before = np.arange(start - self.lanes, start - self.lanes + lanes)
            starts[:lanes] = False
            for obs, following in zip(self._obs, self._next, strict=True):
                one = leaves[obs] if type(slots) is int else leaves[obs][:lanes]
                stored = take_column(self._rows.rows, self._sources[following][0], before)
                starts[:lanes] |= _differ(self._bytes_of(obs, one, lanes), _as_bytes(stored))
        elif self._is_shared:
            self._free = _NO_PLACES  # another process may have taken them
        chosen = starts.nonzero()[0]
        numbers = np.zeros(count, np.int32)
        if len(chosen):
            numbers[chosen] = self._write_firsts(leaves, type(slots) is int, chosen, start, number) + 1
        first = numbers[0] if type(slots) is int else numbers
        self._rows.write(slots, [first, *(leaves[place] for place in self._stored)], number)
        self._follows = (number + count, stop if self.ring is None else stop % self.ring)

    def _write_firsts(
        self, leaves: Sequence[Any], is_one: bool, chosen: np.ndarray, start: int, number: int
    ) -> np.ndarray:
        """Write the observations of the samples `chosen` beside the rows, and return their places."""
        if len(chosen) > len(self._free):
            self._make_free(len(chosen))
        places, self._free = self._free[: len(chosen)], self._free[len(chosen) :]
        observations = [np.asarray(leaves[place])[None] if is_one else leaves[place][chosen] for place in self._obs]
        self._firsts.write_at(places, [(start + chosen).astype(np.int32), *observations], number + chosen)
        return places

    def _make_free(self, count: int) -> None:
        """Have at least `count` free places, with room for what comes there."""
        firsts, rows = self._firsts, self._rows
        if self._is_shared:
            firsts.adopt_all()
        total, named, holders = len(firsts), rows.rows.columns[0], firsts.column_with_holes(0)
        slots = np.clip(holders, 0, max(0, len(rows) - 1))
        in_use = np.zeros(total, np.bool_)
        if len(rows):
            in_use = (named[slots] == np.arange(1, total + 1)) & (slots == holders)
        free = np.flatnonzero(~in_use)
        wanted = max(count, total // 8)  # so that it is seldom looked for
        if len(free) < wanted:
            firsts.extend_length(wanted - len(free))
            free = np.concatenate([free, np.arange(total, len(firsts))])
        free = free[:wanted]
        firsts.reserve_at(free)
        self._free = free

    def _bytes_of(self, place: int, leaf: Any, count: int) -> np.ndarray:
        """What `count` encoded values of a leaf are in their column, (count, bytes)."""
        codec = self.layout.leaves[place].codec
        column = np.zeros(count, codec.dtype)
        codec.write(column, slice(None), leaf)
        return _as_bytes(column)

    def check_rewritable(self, slots: np.ndarray) -> None:
        raise PermissionError(
            "the observations of a sample are stored once, with its neighbours: samples cannot be overwritten or "
            "moved; copy them into a buffer that stores next_obs in every row (extend_from), and change them there; "
            "the oldest samples can be removed"
        )

    # -- durability ------------------------------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        return zlib.crc32(json.dumps([self._rows.sizes(), self._firsts.sizes()]).encode()), 0

    def fit_to(self, length: int, sizes: tuple[int, int] | None) -> None:
        if sizes is not None and sizes != self.sizes():
            raise StorageCorruptedError(f"{self.cache_filename}: its files have not the sizes that they were left with")
        self._rows.fit_to(length, None if sizes is None else self._rows.sizes())
        if sizes is not None:
            self._firsts.fit_to(len(self._firsts), self._firsts.sizes())

    def trim(self) -> None:
        self._rows.trim()
        self._firsts.trim()
        self._free = _NO_PLACES

    def flush(self) -> None:
        self._firsts.flush()
        self._rows.flush()

    def forget_rows(self, head: int) -> bool:
        were_any = [part.forget_rows(head) for part in (self._rows, self._firsts)]
        return any(were_any)

    def check_rows(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool = False) -> np.ndarray:
        """As of every storage; a sample is whole if its row is, and what its observation lies in."""
        rows, firsts = self._rows, self._firsts
        states = rows.check_rows(slots, numbers, numbers_only=numbers_only)
        if not len(slots):
            return states
        there = np.flatnonzero(slots < len(rows.rows))
        named = rows.rows.columns[0][slots[there]].astype(np.int64)
        own, before = there[named > 0], there[named == 0]
        earlier = slots[before] - self.lanes
        if self.ring is not None:
            earlier %= self.ring
        for which, part, places, wanted in (
            (own, firsts, named[named > 0] - 1, numbers[own]),
            (before, rows, earlier, numbers[before] - self.lanes),
        ):
            checked = part.check_rows(np.maximum(places, 0), wanted, numbers_only=numbers_only)
            checked[(places < 0) | (places >= len(part.rows))] = ROW_WRONG
            states[which] = np.maximum(states[which], checked)
        states[there[named < 0]] = ROW_WRONG
        return states

    def verify(self) -> list[str]:
        return [*self._rows.verify(), *self._firsts.verify()]

    def dumps(self, path: PathLike) -> None:
        own = self.cache_filename
        if own is not None and os.path.exists(path) and os.path.samefile(path, own):
            self.flush()
        else:
            self.snapshot(path, [(0, len(self._rows))])

    def snapshot(self, path: PathLike, slots: Sequence[tuple[int, int]], number: int = 0) -> None:
        copy = self.create(self.single_instance_space, capacity=self.capacity, cache_path=path, lanes=self.lanes)
        size = max(1, _COPY_BYTES // self.layout.nbytes) * self.lanes
        try:
            if self.capacity is None:
                copy.extend_length(max((stop for _, stop in slots), default=0))
            for first, last in slots:
                for start in range(first, last, size):
                    stop = min(start + size, last)
                    places, numbers = np.arange(start, stop), np.arange(number, number + stop - start)
                    encoded = copy.encode(self.gather(places, len(self._rows)), stop - start)
                    copy.reserve(start, stop)
                    copy.write(slice(start, stop), encoded, number)
                    if self.has_row_sums:
                        copy._rows.call_wrong(places[self.check_rows(places, numbers) == ROW_WRONG])
                    number += stop - start
            copy.flush()
        finally:
            copy.close()

    def close(self) -> None:
        self._rows.close()
        self._firsts.close()


class _Column(ColumnView):
    """One field of the samples of a `SharedNextObsStorage`."""

    def __init__(self, storage: SharedNextObsStorage, keys: tuple[Any, ...]) -> None:
        super().__init__(nested_item(storage.single_instance_space, keys))
        self.capacity, self._storage = storage.capacity, storage
        self.layout = RowLayout(self.single_instance_space)
        leaves = storage.layout.leaves
        self._leaf_indices = [index for index, leaf in enumerate(leaves) if leaf.path[: len(keys)] == keys]

    @property
    def ring(self) -> int | None:
        return self._storage.ring

    def __len__(self) -> int:
        return len(self._storage)

    def gather(self, slots: Any, length: int) -> Any:
        self._storage._map_slots(length)
        index = np.array([slots]) if type(slots) is int else slots
        columns = self._storage.read_columns(self._leaf_indices, index)
        return self.layout.assemble([column[0, ...] for column in columns] if type(slots) is int else columns)

    def gather_windows(self, slots: np.ndarray, length: int) -> Any:
        return self.gather(slots, length)


def _part_spaces(space: Space) -> tuple[DictSpace, DictSpace]:
    """The spaces of the rows and of the first observations; a ValueError if it is not a space of transitions."""
    way_out = "store next_obs in every row instead, with transition_space(env, next_obs=True)"
    spaces: Any = space.spaces if isinstance(space, DictSpace) else {}
    if _OBS not in spaces or _NEXT not in spaces:
        raise ValueError(f"{space}: observations are stored once in a DictSpace with the keys {_OBS!r} and {_NEXT!r}")
    if spaces[_OBS] != spaces[_NEXT]:
        raise ValueError(f"{_OBS} is of {spaces[_OBS]}, {_NEXT} of {spaces[_NEXT]}: to be stored once, they must agree")
    heap = RowLayout(space).heap_leaves
    if heap:
        raise ValueError(f"{heap[0].name}: {heap[0].space} has no fixed size, which a shared next_obs wants; {way_out}")
    backend, device = space.backend, space.device
    number = BoxSpace(backend, 0, 2**31 - 1, backend.dtype_from_name("int32"), device, ())
    rest = DictSpace(backend, [(key, child) for key, child in spaces.items() if key != _OBS], device)
    return (
        DictSpace(backend, {"first": number, "sample": rest}, device),
        DictSpace(backend, {"holder": number, "obs": spaces[_OBS]}, device),
    )


def _as_bytes(column: np.ndarray) -> np.ndarray:
    """The bytes of the values of a column that lies in one piece, (count, bytes)."""
    count = len(column)
    size = column.nbytes // max(count, 1)
    return np.ndarray((count, size), np.uint8, column) if size else np.zeros((count, 0), np.uint8)


def _differ(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which of some values, as bytes, are not the same as the others."""
    differ: np.ndarray = (some != others).any(axis=1)
    return differ
