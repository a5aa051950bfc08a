"""What a replay buffer does, in memory and on disk, in a ring and growing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers, read
from catalogue import SPACES, assert_same, samples

from unienv_data import BufferStats, ReplayBuffer, StorageCorruptedError
from unienv_data.storages import registry
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import concatenate
from unienv_interface.space.spaces import BoxSpace

NUMPY = NumpyComputeBackend
PLACES = ("memory", "shared", "disk", "shared disk")


@pytest.fixture(params=PLACES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that makes a buffer of numbers in one of the places."""
    made: list[ReplayBuffer] = []

    def make(**options: Any) -> ReplayBuffer:
        place = {"cache_path": tmp_path / f"buffer{len(made)}"} if "disk" in request.param else {}
        options = {"multiprocessing": "shared" in request.param, **place, **options}
        made.append(ReplayBuffer.create(number_space(), **options))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()


def reopened(buffer: ReplayBuffer, tmp_path: Path, **options: Any) -> ReplayBuffer:
    """The buffer as loaded from its own folder, or from a snapshot if it has none."""
    path = buffer.cache_path
    if path is None:
        path = tmp_path / "snapshot"
        buffer.dumps(path)
    return ReplayBuffer.load_from(path, backend=NUMPY, **options)


# -- the ring ----------------------------------------------------------------------------------------------


def test_offsets_are_those_of_the_reference(make: Any, tmp_path: Path) -> None:
    buffer = make(capacity=8)
    buffer.extend(numbers(range(7)))
    buffer.extend(numbers([7]))
    assert (buffer.offset, buffer.count) == (0, 8)
    buffer.clear()
    assert (buffer.offset, buffer.count) == (0, 0)
    buffer.extend(numbers(range(6)))
    buffer.extend(numbers(range(6, 11)))
    assert (buffer.offset, buffer.count, contents(buffer)) == (3, 8, list(range(3, 11)))
    with reopened(buffer, tmp_path) as loaded:
        assert (loaded.offset, loaded.count, loaded.capacity) == (3, 8, 8)
        assert contents(loaded) == list(range(3, 11))
        assert loaded.single_space == buffer.single_space
    buffer.extend(numbers(range(20, 29)))
    assert (buffer.offset, contents(buffer)) == (0, list(range(21, 29)))
    buffer.extend(numbers(range(40, 48)))
    assert (buffer.offset, contents(buffer)) == (0, list(range(40, 48)))


def test_extending_by_nothing_does_nothing(make: Any) -> None:
    buffer = make(capacity=4, maintain_segment_metadata=True)
    buffer.extend(numbers([]))
    assert (len(buffer), buffer.get_segments()) == (0, [])


def test_a_growing_buffer_grows(make: Any, tmp_path: Path) -> None:
    buffer = make(capacity=None)
    for start in range(0, 3000, 500):
        buffer.extend(numbers(range(start, start + 500)))
    assert contents(buffer) == list(range(3000))
    buffer.remove_at(slice(0, 1000))
    with reopened(buffer, tmp_path) as loaded:
        assert contents(loaded) == list(range(1000, 3000))
        assert (loaded.offset, loaded.count) == (buffer.offset, buffer.count)
    buffer.clear()
    buffer.extend(numbers([5]))
    assert (buffer.offset, contents(buffer)) == (0, [5])


# -- episodes ----------------------------------------------------------------------------------------------


def test_overwriting_clips_and_rebases_segments(make: Any, tmp_path: Path) -> None:
    buffer = make(capacity=4, maintain_segment_metadata=True)
    assert buffer.get_segments() == []
    buffer.extend(numbers([0, 1, 2]))
    buffer.extend(numbers([3, 4, 5]))
    assert buffer.get_segments() == [(0, 1), (1, 4)]
    with reopened(buffer, tmp_path) as loaded:
        assert loaded.get_segments() == [(0, 1), (1, 4)]
    buffer.extend(numbers(range(9)))
    assert buffer.get_segments() == [(0, 4)]


def test_appended_samples_are_a_segment_once_it_ends(make: Any) -> None:
    buffer = make(capacity=3, maintain_segment_metadata=True)
    for value in range(5):
        buffer.append(number(value))
    assert buffer.get_segments() == []
    assert buffer.segment_of(0) is None
    buffer.mark_segment_end()
    assert buffer.get_segments() == [(0, 3)]
    buffer.mark_segment_end()
    assert buffer.get_segments() == [(0, 3)]
    buffer.append(number(5))
    assert buffer.get_segments() == [(0, 2)]
    assert [buffer.segment_of(index) for index in (0, 1, 2, -1)] == [(0, 2), (0, 2), None, None]
    with pytest.raises(IndexError):
        buffer.segment_of(3)


def test_without_metadata_there_are_no_segments(make: Any) -> None:
    buffer = make(capacity=3, keep_episodes=False)
    buffer.extend(numbers([1]))
    assert buffer.get_segments() is None
    assert buffer.segment_of(0) is None
    assert not buffer.is_segment_aware


def test_an_open_segment_forbids_extend_and_dumps(make: Any, tmp_path: Path) -> None:
    buffer = make(capacity=3)
    buffer.append(number(1))
    with pytest.raises(RuntimeError, match="mark_segment_end"):
        buffer.extend(numbers([2]))
    with pytest.raises(RuntimeError, match="mark_segment_end"):
        buffer.dumps(tmp_path / "copy")
    buffer.mark_segment_end()
    buffer.extend(numbers([2]))
    buffer.dumps(tmp_path / "copy")
    buffer.append(number(3))
    buffer.clear()
    buffer.extend(numbers([4]))
    assert contents(buffer) == [4]


# -- changing ----------------------------------------------------------------------------------------------


def test_samples_are_overwritten_in_place(make: Any) -> None:
    buffer = make(capacity=5)
    buffer.extend(numbers(range(4)))
    buffer.extend(numbers(range(4, 7)))
    before = buffer.get_at(...)
    buffer.set_at(0, number(20))
    buffer.set_at(-1, number(60))
    buffer.set_at([1, 2, 1], numbers([30, 40, 31]))
    buffer[np.array([False, False, False, True, False])] = numbers([50])
    assert contents(buffer) == [20, 31, 40, 50, 60]
    assert read(before) == [2, 3, 4, 5, 6]
    with pytest.raises(IndexError):
        buffer.set_at(5, number(1))


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize(
    "removed", [[0], [0, 1, 2], [6], [3], [0, 6], [1, 2, 5], [-1, -2], list(range(7)), []], ids=str
)
@pytest.mark.parametrize("capacity", [7, None])
def test_removing_keeps_order_and_splits_segments(
    make: Any, capacity: int | None, removed: list[int], join: bool, tmp_path: Path
) -> None:
    buffer = make(capacity=capacity, maintain_segment_metadata=True)
    buffer.extend(numbers([-3, -2, -1]))
    buffer.remove_at(slice(0, 3))
    buffer.extend(numbers([0, 1, 2]))
    buffer.extend(numbers([3, 4]))
    buffer.append(number(5))
    buffer.append(number(6))
    buffer.remove_at(removed, join=join)
    gone = {index % 7 for index in removed}
    kept = [value for value in range(7) if value not in gone]
    assert contents(buffer) == kept
    buffer.mark_segment_end()
    parts = [[0, 1, 2], [3, 4], [5, 6]] if 1 not in gone or join else [[0], [2], [3, 4], [5, 6]]
    episodes = [[value for value in episode if value not in gone] for episode in parts]
    starts = np.cumsum([0, *map(len, episodes)]).tolist()
    wanted = [(start, start + len(episode)) for start, episode in zip(starts[:-1], episodes, strict=True) if episode]
    assert buffer.get_segments() == wanted
    buffer.extend(numbers([100, 101]))
    assert contents(buffer) == [*kept, 100, 101][-7:] if capacity else [*kept, 100, 101]
    with reopened(buffer, tmp_path) as loaded:
        assert contents(loaded) == contents(buffer)
        assert loaded.get_segments() == buffer.get_segments()
        assert loaded.verify() == []


def test_deleting_is_removing(make: Any) -> None:
    buffer = make(capacity=5)
    buffer.extend(numbers(range(5)))
    del buffer[1::2]
    assert contents(buffer) == [0, 2, 4]


@pytest.mark.parametrize(
    ("misfit", "text"),
    [
        ({"number": np.int32(1)}, "inner"),
        ({"number": np.zeros(2, np.int32), "inner": {"copies": np.zeros(3, np.int32)}}, "number: shape"),
        ({"number": np.int32(1), "inner": {"copies": np.zeros(3, np.float64)}}, "inner/copies: dtype float64"),
        (None, "None"),
    ],
)
def test_a_misfit_leaves_the_buffer_as_it_was(make: Any, misfit: Any, text: str) -> None:
    buffer = make(capacity=3, maintain_segment_metadata=True)
    buffer.extend(numbers([1, 2, 3]))
    before = buffer.stats()
    with pytest.raises(ValueError, match=text):
        buffer.append(misfit)
    with pytest.raises(ValueError, match=text):
        buffer.set_at(0, misfit)
    with pytest.raises(ValueError):
        buffer.extend(misfit)
    with pytest.raises(ValueError):
        buffer.extend({**numbers([1, 2]), "number": np.zeros(3, np.int32)})
    assert (contents(buffer), buffer.stats(), buffer.get_segments()) == ([1, 2, 3], before, [(0, 3)])


def test_extend_from_copies_in_chunks(make: Any) -> None:
    source = ReplayBuffer.create(number_space(), capacity=20)
    source.extend(numbers(range(19)))
    buffer = make(capacity=10)
    buffer.extend_from(source)
    assert contents(buffer) == list(range(9, 19))
    buffer.extend_from(source, chunk_size=1000, tqdm=True)
    with pytest.raises(ValueError, match="chunk_size is 0"):
        buffer.extend_from(source, chunk_size=0)


def test_stats_tell_what_is_there(make: Any) -> None:
    buffer = make(capacity=3, maintain_segment_metadata=True)
    buffer.extend(numbers([1, 2]))
    buffer.extend(numbers([3, 4]))
    assert buffer.stats() == BufferStats(count=3, capacity=3, written=4, nbytes=3 * 16, segments=2)


def test_data_handed_out_does_not_change(make: Any) -> None:
    buffer = make(capacity=4)
    buffer.extend(numbers(range(4)))
    taken = [buffer.get_at(0), buffer.get_at(slice(0, 2)), buffer.get_at([0, 1]), buffer.get_column(["number"])[0]]
    buffer.extend(numbers(range(10, 14)))
    assert read(taken[0]) == 0
    assert [read(part) for part in taken[1:3]] == [[0, 1], [0, 1]]
    assert taken[3] == 0


# -- values of every kind ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["everything", "dict_all_dtypes", "text_nul", "graph_edges", "box_zero_size"])
@pytest.mark.parametrize("place", PLACES)
def test_samples_of_every_kind_come_back(name: str, place: str, tmp_path: Path) -> None:
    space = SPACES[name](NUMPY)
    options = {"cache_path": tmp_path / "buffer"} if "disk" in place else {}
    buffer = ReplayBuffer.create(space, capacity=4, multiprocessing="shared" in place, **options)
    values = samples(space, 9)
    for value in values[:3]:
        buffer.append(value)
    buffer.mark_segment_end()
    buffer.extend(concatenate(space, values[3:6]))
    buffer.set_at(0, values[6])
    buffer.set_at([1, 2], concatenate(space, values[7:9]))
    buffer.remove_at(2)
    wanted = [values[6], values[7], values[5]]
    for index, value in enumerate(wanted):
        assert_same(space, buffer.get_at(index), value)
    buffer.dumps(tmp_path / "copy")
    buffer.close()
    paths = [tmp_path / "copy", *([tmp_path / "buffer"] if options else [])]
    for path in paths:
        with ReplayBuffer.load_from(path, backend=NUMPY, single_instance_space=space) as loaded:
            assert len(loaded) == 3
            assert loaded.verify() == []
            for index, value in enumerate(wanted):
                assert_same(space, loaded.get_at(index), value)


def test_memory_of_overwritten_values_is_given_back() -> None:
    space = SPACES["dynamic_box"](NUMPY)
    buffer = ReplayBuffer.create(space, capacity=4)
    values = samples(space, 3)
    for turn in range(200):
        buffer.append(values[turn % 3])
        buffer.set_at(0, values[turn % 3])
    assert len(buffer.storage._memory.heap._values) == 4  # type: ignore[attr-defined]
    buffer.remove_at([1])
    for value in values * 4:
        buffer.append(value)
    for index, value in enumerate((values * 4)[-4:]):
        assert_same(space, buffer.get_at(index), value)
    buffer.clear()
    assert not buffer.storage._memory.heap._values  # type: ignore[attr-defined]


# -- making and asking -------------------------------------------------------------------------------------


def test_create_takes_a_class_or_only_a_space(tmp_path: Path) -> None:
    for buffer in (
        ReplayBuffer.create(PackedStorage, number_space(), capacity=2),
        ReplayBuffer.create(number_space(), capacity=2),
        ReplayBuffer.create(single_instance_space=number_space(), capacity=2),
    ):
        assert isinstance(buffer.storage, PackedStorage)
    with pytest.raises(TypeError, match="wants the space of one sample"):
        ReplayBuffer.create(capacity=2)
    with pytest.raises(
        TypeError, match=r"class of the storage before the space: create\(<class '.*PackedStorage'>, space"
    ):
        ReplayBuffer.create(number_space(), PackedStorage, capacity=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity is 0"):
        ReplayBuffer.create(number_space(), capacity=0, cache_path=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match="capacty"):
        ReplayBuffer.create(number_space(), capacty=2)


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    with pytest.raises(FileExistsError, match=r"it exists already: give another path: '.*mine'"):
        ReplayBuffer.create(number_space(), capacity=2, cache_path=tmp_path / "mine")
    ReplayBuffer.create(number_space(), cache_path=tmp_path / "ours").close()
    with pytest.raises(FileExistsError, match=r"open its buffer with ReplayBuffer.load_from\(.*'.*ours'"):
        ReplayBuffer.create(number_space(), cache_path=tmp_path / "ours")
    with pytest.raises(TypeError, match="backend is 3, wanted a ComputeBackend"):
        ReplayBuffer.load_from(tmp_path / "ours", backend=3)  # type: ignore[arg-type]
    buffer = ReplayBuffer.create(number_space(), capacity=2)
    with pytest.raises(FileExistsError, match="not a replay buffer"):
        buffer.dumps(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").read_text() == "keep"


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_a_capacity_beyond_memory_is_refused(multiprocessing: bool) -> None:
    with pytest.raises(MemoryError, match=r"\d+ bytes are needed, \d+ are available"):
        ReplayBuffer.create(number_space(), capacity=10**13, multiprocessing=multiprocessing)


def test_a_capacity_beyond_the_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"\d+ bytes are needed, \d+ are free"):
        ReplayBuffer.create(number_space(), capacity=10**13, cache_path=tmp_path / "huge")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_asked_without_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    assert not ReplayBuffer.is_loadable_from(path)
    assert ReplayBuffer.get_length_from_path(path) is None
    assert ReplayBuffer.get_capacity_from_path(path) is None
    assert ReplayBuffer.get_space_from_path(path, backend=NUMPY) is None
    (tmp_path / "file").touch()
    assert ReplayBuffer.get_length_from_path(tmp_path / "file") is None
    with ReplayBuffer.create(number_space(), capacity=4, cache_path=path) as buffer:
        buffer.extend(numbers(range(6)))
        for _ in range(2):
            assert ReplayBuffer.is_loadable_from(path)
            assert ReplayBuffer.get_length_from_path(path) == 4
            assert ReplayBuffer.get_capacity_from_path(path) == 4
            assert ReplayBuffer.get_space_from_path(path, backend=NUMPY) == number_space()
            buffer.close()


def test_a_given_space_must_be_the_stored_one(tmp_path: Path) -> None:
    ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / "a").close()
    space = number_space()
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, single_instance_space=space) as loaded:
        assert loaded.single_space is space
    box = BoxSpace(NUMPY, 0, 1, "float32", shape=(2,))
    with pytest.raises(ValueError, match="not of the given"):
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, single_instance_space=box)


def test_it_is_loadable_from_the_moment_it_is_created(tmp_path: Path) -> None:
    with ReplayBuffer.create(
        number_space(), capacity=4, cache_path=tmp_path / "a", maintain_segment_metadata=True
    ) as writer:
        reader = ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)
        assert len(reader) == 0
        assert not reader.is_mutable
        assert reader.is_multiprocessing_safe
        writer.extend(numbers([1, 2, 3]))
        writer.append(number(4))
        assert (contents(reader), reader.get_segments()) == ([1, 2, 3, 4], [(0, 3)])
        writer.remove_at(1)
        writer.set_at(0, number(9))
        assert contents(reader) == [9, 3, 4]
        with pytest.raises(PermissionError, match="read-only"):
            reader.append(number(5))
        reader.close()


def test_a_closed_buffer_says_so(make: Any) -> None:
    buffer = make(capacity=2)
    buffer.close()
    for act in (lambda: buffer.append(number(1)), lambda: buffer.get_at(...), lambda: buffer.flush()):
        with pytest.raises(RuntimeError, match="closed"):
            act()


# -- snapshots and the reference's format ------------------------------------------------------------------


def test_a_snapshot_replaces_the_one_before(make: Any, tmp_path: Path) -> None:
    buffer = make(capacity=4, maintain_segment_metadata=True)
    for first in (0, 10):
        buffer.extend(numbers(range(first, first + 3)))
        buffer.dumps(tmp_path / "there" / "copy")
    with ReplayBuffer.load_from(tmp_path / "there" / "copy", backend=NUMPY, read_only=False) as copy:
        assert (contents(copy), copy.get_segments()) == ([2, 10, 11, 12], [(0, 1), (1, 4)])
        with pytest.raises(PermissionError, match="being written"):
            buffer.dumps(tmp_path / "there" / "copy")
        copy.extend(numbers([7]))
        assert contents(copy) == [10, 11, 12, 7]
    assert contents(buffer) == [2, 10, 11, 12]
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["copy"]


def test_what_killed_processes_left_of_snapshots_is_removed(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=4)
    gone, mine = tmp_path / ".copy.4194304999.tmp", tmp_path / ".other.4194304999.tmp"
    gone.mkdir()
    mine.mkdir()
    buffer.dumps(tmp_path / "copy")
    assert not gone.exists()
    assert mine.exists()


def test_a_storage_on_disk_must_be_registered(tmp_path: Path) -> None:
    class Mine(PackedStorage):
        pass

    with pytest.raises(ValueError, match="Mine is not registered"):
        ReplayBuffer.create(Mine, number_space(), capacity=4, cache_path=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    buffer = ReplayBuffer.create(Mine, number_space(), capacity=4)
    with pytest.raises(ValueError, match="the name 'packed' is taken"):
        registry.register_storage("packed")(Mine)
    registry.register_storage("mine")(Mine)
    buffer.extend(numbers([1]))
    buffer.dumps(tmp_path / "a")
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as loaded:
        assert type(loaded.storage) is Mine
        assert contents(loaded) == [1]
    del registry._registered["mine"]


def test_a_snapshot_carries_the_fields_of_the_reference(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=4, maintain_segment_metadata=True)
    buffer.extend(numbers([0, 1, 2]))
    buffer.extend(numbers([3, 4, 5]))
    buffer.dumps(tmp_path / "copy")
    content = json.loads((tmp_path / "copy" / "metadata.json").read_text())
    assert content["type"] == "ReplayBuffer"
    assert (content["count"], content["offset"], content["capacity"]) == (4, 2, 4)
    assert content["storage_path_relative"] == "storage"
    assert content["physical_segments"] == [[2, 2], [3, 1]]
    assert content["single_instance_space"]["type"] == "DictSpace"
    assert not [key for key in content if key.startswith("active_segment")]


def _as_the_reference_writes(folder: Path, **changes: Any) -> None:
    """Make of one of our snapshots what the reference would have written."""
    for name in ("header.bin", "segments.bin", "journal.bin", "lock"):
        (folder / name).unlink()
    content = json.loads((folder / "metadata.json").read_text())
    for key in ("format_version", "checksum", "maintain_segment_metadata", "durable"):
        del content[key]
    (folder / "metadata.json").write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    ("segments", "wanted"), [([[2, 2], [3, 1]], [(0, 1), (1, 4)]), ([[2, 1]], [(0, 4)]), ([], []), (None, None)]
)
def test_a_folder_of_the_reference_is_read(tmp_path: Path, segments: Any, wanted: Any) -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=4)
    buffer.extend(numbers([0, 1, 2]))
    buffer.extend(numbers([3, 4, 5]))
    buffer.dumps(tmp_path / "copy")
    _as_the_reference_writes(tmp_path / "copy", physical_segments=segments)
    assert ReplayBuffer.get_length_from_path(tmp_path / "copy") == 4
    with ReplayBuffer.load_from(tmp_path / "copy", backend=NUMPY) as loaded:
        assert (contents(loaded), loaded.offset, loaded.get_segments()) == ([2, 3, 4, 5], 2, wanted)
        loaded.dumps(tmp_path / "again")
    with ReplayBuffer.load_from(tmp_path / "again", backend=NUMPY) as again:
        assert (contents(again), again.get_segments()) == ([2, 3, 4, 5], wanted)
    with ReplayBuffer.load_from(tmp_path / "copy", backend=NUMPY) as loaded:
        loaded.dumps(tmp_path / "copy")  # its own path: there is nothing to do
    assert not (tmp_path / "copy" / "header.bin").exists()


def test_a_growing_folder_of_the_reference_must_hold_what_it_counts(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(number_space())
    buffer.extend(numbers(range(10)))
    buffer.dumps(tmp_path / "copy")
    _as_the_reference_writes(tmp_path / "copy", count=10**9)
    with pytest.raises(StorageCorruptedError, match="1000000000 samples from slot 0 on, storage has 10 slots"):
        ReplayBuffer.load_from(tmp_path / "copy", backend=NUMPY)


def test_samples_written_to_disk_are_read_on_another_backend(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / "a") as buffer:
        buffer.extend(numbers(range(3)))
    with ReplayBuffer.load_from(tmp_path / "a", backend=PyTorchComputeBackend) as loaded:
        found = loaded.get_at([2, 0])["number"]
        assert torch.equal(found, torch.tensor([2, 0], dtype=torch.int32))
