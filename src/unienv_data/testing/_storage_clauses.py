"""The clauses of the storage contract: functions that check storages from a `Maker`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from unienv_interface.space.space_utils import batch_size_data, batch_space, flatten_data, get_at
from unienv_interface.space.spaces import DictSpace
from unienv_interface.testing.clauses import require
from unienv_interface.testing.snapshots import snapshot

from ..base.row_storage import rows_of
from ..base.storage import SpaceStorage
from ._storage_probe import SLOTS, Maker, clause, require_error, require_same


def _require_samples(storage: SpaceStorage, values: list[Any], what: str) -> None:
    for slot, value in enumerate(values):
        require_same(storage.get(slot), value, f"{what} in slot {slot}")


@clause
def it_has_as_many_slots_as_were_asked_for(maker: Maker) -> None:
    storage = maker.make()
    require(len(storage) == SLOTS, f"a length of {len(storage)}", f"{SLOTS}")
    require(storage.capacity == SLOTS, f"a capacity of {storage.capacity}", f"{SLOTS}")
    require(storage.single_instance_space == maker.space, f"{storage.single_instance_space}", f"{maker.space}")
    require(storage.is_mutable, "a new storage that is not mutable", "one that is")
    storage.extend_length(3)
    storage.shrink_length(1)
    require(len(storage) == SLOTS, "that a fixed capacity grows or shrinks", "that the call is ignored")


@clause
def what_was_set_is_got(maker: Maker) -> None:
    storage, values = maker.make(), maker.values(SLOTS)
    for slot, value in enumerate(values):
        storage.set(slot, value)
    _require_samples(storage, values, "a sample")
    require_same(storage.get(slice(0, SLOTS)), maker.batch(values), "a batch")


@clause
def every_kind_of_index_reads_the_same(maker: Maker) -> None:
    storage, values = maker.filled()
    mask = np.array([True, False, True, True, False])
    for index, slots in (
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -2), [4, 2, 0]),
        (slice(2, 2), []),
        (Ellipsis, [0, 1, 2, 3, 4]),
        ([3, 0, 3], [3, 0, 3]),
        (np.array([-1, 1]), [4, 1]),
        (mask, [0, 2, 3]),
        (np.array([], np.int64), []),
    ):
        samples = storage.get(index)
        if slots:
            require_same(samples, maker.batch([values[slot] for slot in slots]), f"what {index!r} reads")
        else:
            require(batch_size_data(samples) == 0, f"{samples!r:.80} for {index!r}", "an empty batch")
    for single, slot in ((-1, 4), (np.int64(2), 2)):
        require_same(storage.get(single), values[slot], f"what {single!r} reads")


@clause
def every_kind_of_index_writes_the_same(maker: Maker) -> None:
    storage, values = maker.filled()
    others = maker.values(8, seed=1)
    storage.set(-1, others[0])
    storage.set(slice(0, 2), maker.batch(others[1:3]))
    storage.set(np.array([3, 2]), maker.batch(others[3:5]))
    _require_samples(storage, [others[1], others[2], others[4], others[3], others[0]], "a sample")
    storage.set(np.array([False, True, False, True, False]), maker.batch(others[5:7]))
    storage.set([2], maker.batch([others[7]]))
    _require_samples(storage, [others[1], others[5], others[7], others[6], others[0]], "a sample")
    storage.set(Ellipsis, maker.batch(values))
    storage.set([], get_at(batch_space(maker.space, SLOTS), maker.batch(values), slice(0, 0)))
    _require_samples(storage, values, "a sample")


@clause
def the_last_of_duplicates_stays(maker: Maker) -> None:
    storage, values = maker.filled()
    first, second = maker.values(2, seed=1)
    storage.set([1, 1], maker.batch([first, second]))
    _require_samples(storage, [values[0], second, *values[2:]], "a sample")


@clause
def what_was_read_does_not_change(maker: Maker) -> None:
    storage, _ = maker.filled()
    taken = [storage.get(0), storage.get(slice(0, 3)), storage.get([0, 1]), storage.get(...)]
    before = snapshot(taken)
    storage.set(slice(0, SLOTS), maker.batch(maker.values(SLOTS, seed=1)))
    require_same(taken, before, "data handed out before a write")


@clause
def what_was_written_is_a_copy(maker: Maker) -> None:
    storage = maker.make()
    values = [_writable(value) for value in maker.values(SLOTS)]
    batch = _writable(maker.batch(values))
    kept = snapshot(values)
    storage.set(slice(0, SLOTS), batch)
    storage.set(0, values[0])
    _spoil(batch)
    _spoil(values[0])
    for slot in range(SLOTS):
        require_same(storage.get(slot), kept[slot], f"slot {slot} after the caller changed its own arrays")


def _writable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _writable(child) for key, child in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _spoil(value: Any) -> None:
    if isinstance(value, Mapping):
        for child in value.values():
            _spoil(child)
    elif isinstance(value, np.ndarray) and value.dtype != object and value.size:
        value[...] = ~value if value.dtype == bool else -value


@clause
def an_index_out_of_range_is_refused(maker: Maker) -> None:
    storage, values = maker.filled()
    for index in (SLOTS, -SLOTS - 1, [0, SLOTS], np.array([-SLOTS - 1]), np.ones(SLOTS + 1, bool)):
        require_error(partial(storage.get, index), IndexError, f"reading {index!r}")
    require_error(lambda: storage.set(SLOTS, values[0]), IndexError, f"writing {SLOTS}")
    require_error(lambda: storage.set([0, SLOTS], maker.batch(values[:2])), IndexError, f"writing [0, {SLOTS}]")
    _require_samples(storage, values, "a sample")


@clause
def a_misfit_is_refused_and_changes_nothing(maker: Maker) -> None:
    storage, values = maker.filled()
    fresh = maker.values(3, seed=1)
    misfits = [None, "text", object()]
    if isinstance(maker.space, DictSpace):
        some_key = next(iter(maker.space.spaces))
        misfits.append({key: child for key, child in fresh[0].items() if key != some_key})
        misfits.append({**fresh[0], "a key that is not there": 0})
    for misfit in misfits:
        require_error(partial(storage.set, 1, misfit), ValueError, f"setting {misfit!r:.80}")
    require_error(lambda: storage.set([0, 1], maker.batch(fresh)), ValueError, "setting 3 samples to 2 slots")
    require_error(lambda: storage.set(1, maker.batch(fresh)), ValueError, "setting a batch to one slot")
    _require_samples(storage, values, "a sample after a misfit")


@clause
def it_grows_and_shrinks(maker: Maker) -> None:
    if not maker.grows:
        return
    storage, values = maker.make(capacity=None), maker.values(8)
    require(len(storage) == 0, f"a length of {len(storage)}", "that a growing storage begins empty")
    require_error(lambda: storage.get(0), IndexError, "reading from an empty storage")
    storage.extend_length(3)
    storage.set(slice(0, 3), maker.batch(values[:3]))
    storage.extend_length(5)
    storage.set(slice(3, 8), maker.batch(values[3:]))
    _require_samples(storage, values, "a sample")
    storage.shrink_length(2)
    require(len(storage) == 6, f"a length of {len(storage)} after 8 and 2 less", "6")
    require_error(lambda: storage.get(6), IndexError, "reading what was shrunk away")
    _require_samples(storage, values[:6], "a sample")
    storage.clear()
    require(len(storage) == 0, f"a length of {len(storage)} after clear", "0")


@clause
def segments_are_appended(maker: Maker) -> None:
    storage, values = maker.make(), maker.values(3)
    require(not storage.has_open_segment, "an open segment in a new storage", "none")
    require_error(lambda: storage.append(values[0]), RuntimeError, "append without an open segment")
    storage.mark_segment_start(3)
    require_error(lambda: storage.mark_segment_start(0), RuntimeError, "opening a second segment")
    for value in values:
        storage.append(value)
    require(storage.pending_segment_length == 3, f"{storage.pending_segment_length} pending samples", "3")
    storage.mark_segment_end()
    require(not storage.has_open_segment, "an open segment after its end", "none")
    for slot, value in zip((3, 4, 0), values, strict=True):
        require_same(storage.get(slot), value, f"the sample in slot {slot}")
    known = storage.get_segments() is not None
    require(known == storage.is_segment_aware, f"get_segments() known: {known}", "what is_segment_aware says")


@clause
def encoding_changes_nothing_and_writing_does(maker: Maker) -> None:
    filled, values = maker.filled()
    storage, others = rows_of(filled), maker.values(4, seed=1)
    sample, batch = storage.encode(others[0], None), storage.encode(maker.batch(others[1:]), 3)
    require_error(lambda: storage.encode(None, None), ValueError, "encoding None")
    require_error(lambda: storage.encode(maker.batch(others), 3), ValueError, "encoding 4 samples as 3")
    _require_samples(storage, values, "a sample after encoding")
    storage.reserve(0, 3)
    storage.write(0, sample, 0)
    storage.write(slice(1, 3), storage.part(batch, 3, 1, 3), 1)
    _require_samples(storage, [others[0], others[2], others[3], *values[3:]], "a sample")
    require_same(storage.gather(2, SLOTS), others[3], "a gathered sample")
    ring = storage.ring or SLOTS
    wrapped = storage.gather(np.array([4, ring]), ring)
    require_same(wrapped, maker.batch([values[4], others[0]]), "gathered samples around the end")


@clause
def raw_rows_can_be_moved(maker: Maker) -> None:
    filled, values = maker.filled()
    storage = rows_of(filled)
    storage.write_raw_rows(np.array([4, 0]), storage.raw_rows(np.array([1, 2])), np.array([4, 0]))
    _require_samples(storage, [values[2], values[1], values[2], values[3], values[1]], "a sample")
    if storage.has_raw_rows:
        raw = storage.raw_rows(np.array([0, 3]))
        require(isinstance(raw, bytes), f"raw rows of type {type(raw).__name__}", "bytes, as has_raw_rows says")
        require(len(raw) == 2 * storage.row_nbytes, f"{len(raw)} bytes for 2 rows", f"{2 * storage.row_nbytes}")
        others = maker.values(3, seed=1)
        encoded = storage.encode(maker.batch(others[:2]), 2)
        storage.write_raw_rows(np.array([0, 1]), storage.encoded_as_raw_rows(encoded, 2), np.array([0, 1]))
        storage.write_raw_rows(
            np.array([2]), storage.encoded_as_raw_rows(storage.encode(others[2], None), None), np.array([2])
        )
        _require_samples(storage, [*others, values[3], values[1]], "a sample")


@clause
def a_column_is_that_of_the_samples(maker: Maker) -> None:
    storage, values = maker.filled()
    if not storage.has_column_access or not isinstance(maker.space, DictSpace):
        return
    for key in maker.space.spaces:
        column = storage.get_column([key])
        require_same(column.get(2), values[2][key], f"column {key!r}")
        require_same(column.get([3, 0]), maker.batch([values[3], values[0]])[key], f"column {key!r}")
        column.close()
    _require_samples(storage, values, "a sample after its columns were closed")


@clause
def flat_samples_are_the_samples(maker: Maker) -> None:
    storage, values = maker.filled()
    if not storage.has_flattened_access:
        return
    require_same(storage.get_flattened(2), flatten_data(maker.space, values[2]), "a flat sample")
    others = maker.values(2, seed=1)
    batched = batch_space(maker.space, 2)
    flat = flatten_data(batched, maker.batch(others), start_dim=1)
    storage.set_flattened([0, 2], flat)
    require_same(storage.get_flattened([0, 2]), flat, "flat samples")
    _require_samples(storage, [others[0], values[1], others[1], *values[3:]], "a sample")


@clause
def a_dump_is_loaded_equal(maker: Maker) -> None:
    storage, values = maker.filled()
    path = maker.new_path()
    storage.dumps(path)
    _require_samples(storage, values, "a sample after dumps")
    loaded = maker.load(path)
    _require_samples(loaded, values, "a loaded sample")
    loaded.close()  # some formats do not allow a writer beside a reader
    other = maker.load(path, read_only=False)
    changed = maker.values(1, seed=1)[0]
    other.set(0, changed)
    _require_samples(other, [changed, *values[1:]], "a sample written after loading")
    require_same(storage.get(0), values[0], "a sample after its copy was changed")


@clause
def read_only_is_read_only(maker: Maker) -> None:
    storage, values = maker.filled()
    path = maker.new_path()
    storage.dumps(path)
    loaded = maker.load(path)
    require(not loaded.is_mutable, "a read-only storage that calls itself mutable", "is_mutable False")
    require_error(lambda: loaded.set(0, values[1]), PermissionError, "writing to a read-only storage")
    _require_samples(loaded, values, "a sample")
    require_error(lambda: maker.load(maker.new_path()), (OSError, ValueError), "loading what is not there")


@clause
def what_was_flushed_is_loaded(maker: Maker) -> None:
    for verb, flush in (("flush", _flush), ("dumps to its own path", _dump_to_own_path)):
        path = maker.new_path()
        storage, values = maker.filled(path)
        if storage.cache_filename is None:
            return
        flush(storage)
        loaded = maker.load(path)
        _require_samples(loaded, values, f"a sample loaded after {verb}")
        findings = storage.verify()
        require(not findings, f"{findings} about sound data", "that verify finds nothing")
        loaded.close()
        storage.close()
        _require_samples(maker.load(path), values, f"a sample loaded after {verb} and close")


def _flush(storage: SpaceStorage) -> None:
    storage.flush()


def _dump_to_own_path(storage: SpaceStorage) -> None:
    storage.dumps(storage.cache_filename)  # type: ignore[arg-type]


@clause
def a_path_in_use_is_refused(maker: Maker) -> None:
    path = maker.new_path()
    storage, values = maker.filled(path)
    if storage.cache_filename is None:
        return
    require_error(lambda: maker.make(path=path), (OSError, ValueError), "creating where something is")
    _require_samples(storage, values, "a sample after another storage was created at its path")


@clause
def it_may_be_closed_twice(maker: Maker) -> None:
    storage, _ = maker.filled()
    storage.close()
    storage.close()
