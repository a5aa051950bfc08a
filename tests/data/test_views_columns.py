"""Windows by column and selections, against plain lists; and that nothing else is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import number_space, numbers
from catalogue import BACKENDS
from hypothesis import given, settings
from hypothesis import strategies as st
from views import SOURCES, Held, Watched, source_cases

from unienv_data import (
    BatchBase,
    CombinedBatch,
    FrameStackedBatch,
    MultiprocessingSampler,
    PrioritizedSampler,
    ReplayBuffer,
    SliceStackedBatch,
    StepSampler,
    ToBackendOrDeviceBatch,
    TransformedBatch,
    WindowedBatch,
    seconds,
)
from unienv_data.base.nested import Columns, join_keys, nested_item
from unienv_data.storages.packed import PackedColumn, PackedStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.transformations import (
    ChainedTransformation,
    DataTransformation,
    DictExcludeKeyTransformation,
    DictIncludeKeyTransformation,
    DictTransformation,
    IdentityTransformation,
    IterativeTransformation,
    RescaleTransformation,
)

NUMPY = NumpyComputeBackend
sources = pytest.mark.parametrize(("backend", "source"), source_cases())


def _frames(held: Held, positions: Any, offsets: list[int]) -> tuple[list[list[int]], list[list[bool]]]:
    """Windows with offsets in any order, with 0 or without: by way of all of them and 0."""
    every = sorted({0, *offsets})
    frames, valid = held.windows(positions, every)
    places = [every.index(offset) for offset in offsets]
    return [[row[i] for i in places] for row in frames], [[row[i] for i in places] for row in valid]


WINDOWS = {"number": [-1, 0], "inner": [5, 2, -3]}


@sources
def test_windows_by_column_are_those_of_a_list(backend: Any, source: str) -> None:
    batch, held = SOURCES[source](backend)
    windows = WindowedBatch(batch, WINDOWS)
    order = np.random.default_rng(0).permutation(len(batch))
    data, metadata = windows.get_at_with_metadata(order)
    assert metadata is not None
    for name, values in (("number", data["number"]), ("inner", data["inner"]["copies"][..., 0])):
        frames, valid = _frames(held, order.tolist(), WINDOWS[name])
        assert backend.to_numpy(values).tolist() == frames
        assert backend.to_numpy(metadata["slice_valid_mask"][name]).tolist() == valid
    one, its_metadata = windows.get_at_with_metadata(int(order[2]))
    assert one in windows.single_space
    assert its_metadata in windows.single_metadata_space
    assert backend.to_numpy(one["number"]).tolist() == backend.to_numpy(data["number"])[2].tolist()
    column = windows.get_column("inner/copies")
    assert backend.to_numpy(column.get_at(order))[..., 0].tolist() == _frames(held, order.tolist(), [5, 2, -3])[0]
    if source == "combined":
        assert backend.to_numpy(metadata["batch_index"]).tolist() == [int(held.episodes[i][0]) for i in order]


@settings(max_examples=60)
@given(st.data(), st.sampled_from(list(SOURCES)))
def test_any_offsets_over_any_view(data: Any, source: str) -> None:
    batch, held = SOURCES[source](NUMPY)
    if data.draw(st.booleans()):
        start, step = data.draw(st.integers(0, len(batch) - 1)), data.draw(st.sampled_from([1, 2]))
        indices = list(range(start, len(batch), step))
        batch, held = batch.get_slice(slice(start, None, step)), held.part(indices, step)
    if data.draw(st.booleans()):
        batch = ToBackendOrDeviceBatch(batch, BACKENDS[1])
    offsets = data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=6))
    windows = WindowedBatch(batch, {"inner/copies": offsets})
    found, metadata = windows.get_at_with_metadata(...)
    frames, valid = _frames(held, range(len(batch)), offsets)
    to_numpy = batch.backend.to_numpy
    assert to_numpy(found["inner"]["copies"])[..., 0].tolist() == frames
    assert to_numpy(metadata["slice_valid_mask"]["inner/copies"]).tolist() == valid


def test_offsets_as_in_the_other_window_views() -> None:
    batch, _ = SOURCES["ring"](NUMPY)
    for offsets in ([-4, -2, 0], [0], list(range(16))):
        whole, metadata = SliceStackedBatch(batch, offsets).get_at_with_metadata(...)
        found, masks = WindowedBatch(batch, {"number": offsets}).get_at_with_metadata(...)
        assert np.array_equal(found["number"], whole["number"])
        assert np.array_equal(masks["slice_valid_mask"]["number"], metadata["slice_valid_mask"])


def test_the_longest_path_names_a_column() -> None:
    windows = WindowedBatch(_images(), {"obs": [-1, 0], "obs/cam": [0], ("action",): range(3)})
    shapes = {"cam": (1, 96, 128, 3), "state": (2, 14)}
    assert {key: space.shape for key, space in windows.single_space["obs"].items()} == shapes
    assert windows.single_space["action"].shape == (3, 14)
    assert "number" not in windows.single_space.keys()  # noqa: SIM118
    assert set(windows.single_metadata_space["slice_valid_mask"].keys()) == {"obs", "obs/cam", "action"}


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"nothing": [0]}, "no field 'nothing'"),
        ({"obs": [0], "obs/cam": [0], "obs/state": [0]}, "'obs' has no columns left, longer paths name all of them"),
        ({"action": [0.5]}, "'action': offsets of shape .* wanted integers"),
        ({"action": []}, "wanted integers along one axis"),
        ({"action": [0], ("action",): [0]}, "and only once"),
        ({"action": seconds([0], timestamp="clock")}, "no field 'clock'"),
        ({"action": seconds([0], timestamp="action")}, "wanted one number per sample"),
    ],
)
def test_windows_that_are_refused(windows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WindowedBatch(_images(), windows)


def test_the_two_window_views_name_each_other() -> None:
    with pytest.raises(TypeError, match=r"WindowedBatch\(batch, {'action': \[0\]}\)"):
        SliceStackedBatch(_images(), {"action": [0]})
    with pytest.raises(TypeError, match="SliceStackedBatch"):
        WindowedBatch(_images(), [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SliceStackedBatch"):
        WindowedBatch(_images().get_column("action"), {"action": [0]})


# -- samplers and processes ------------------------------------------------------------------------------------


def test_under_every_sampler_and_in_workers(tmp_path: Path) -> None:
    buffer = _images(cache_path=tmp_path / "buffer")
    buffer.flush()
    windows = WindowedBatch(buffer, {"obs/state": [-1, 0], "action": range(4)})
    for sampler in (None, PrioritizedSampler()):
        steps = StepSampler(windows, 8, seed=0, sampler=sampler)
        data, metadata = steps.sample_with_metadata()
        assert data["obs"]["state"].shape == (8, 2, 14)
        assert metadata["slice_valid_mask"]["action"].shape == (8, 4)
        assert len(list(steps.epoch_iter())) > 0
    buffer.close()
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as loaded:
        windows = WindowedBatch(loaded, {"obs/state": [-1, 0], "action": range(4)})
        alone = StepSampler(windows, 8, seed=3)
        with MultiprocessingSampler(StepSampler(windows, 8, seed=3), n_workers=2) as workers:
            for _ in range(3):
                one, other = alone.sample_with_metadata(), workers.sample_with_metadata()
                assert np.array_equal(one[0]["action"], other[0]["action"])
                assert np.array_equal(
                    one[1]["slice_valid_mask"]["obs/state"], other[1]["slice_valid_mask"]["obs/state"]
                )
        copied = pickle.loads(pickle.dumps(windows))
        assert np.array_equal(copied.get_at([0, 5])["action"], windows.get_at([0, 5])["action"])


def test_all_columns_are_read_at_one_instant() -> None:
    """A writer that comes between the columns is noticed: all of them are read again."""
    buffer = ReplayBuffer.create(number_space(), capacity=8, maintain_segment_metadata=True)
    buffer.extend(numbers(list(range(8))))
    windows = WindowedBatch(buffer, {"number": [0], "inner": [-1, 0]})
    pending, gather = [100], PackedColumn.gather

    def overtaken(self: PackedColumn, slots: Any, length: int) -> Any:
        found = gather(self, slots, length)
        if pending:
            buffer.extend(numbers([pending.pop()]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedColumn, "gather", overtaken)
        data = windows.get_at([0, 1, 6])
    assert data["number"][:, 0].tolist() == data["inner"]["copies"][:, 1, 0].tolist() == [1, 2, 7]


# -- by time ---------------------------------------------------------------------------------------------------


def _timed(dtype: str = "float64", lanes: int = 1) -> tuple[ReplayBuffer, list[list[float]]]:
    """Episodes with irregular timestamps; value i is sample i."""
    space = DictSpace(
        NUMPY,
        {
            "timestamp": BoxSpace(NUMPY, 0, np.inf, dtype, shape=(1,)),
            "value": BoxSpace(NUMPY, 0, 1000, "int64", shape=()),
        },
    )
    buffer = ReplayBuffer.create(space, capacity=64, maintain_segment_metadata=True)
    rng, stamps = np.random.default_rng(1), []
    for length in (20, 1, 40):
        own = np.cumsum(rng.choice([0.1, 0.1, 0.1, 0.35], length)).astype(dtype)
        first = sum(map(len, stamps))
        buffer.extend({"timestamp": own[:, None], "value": np.arange(first, first + length)})
        stamps.append(own.tolist())
    return buffer, stamps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_windows_by_time_are_the_nearest_samples(dtype: str) -> None:
    buffer, stamps = _timed(dtype)
    deltas = [0.2, -0.1, 0, 5.0]
    windows = WindowedBatch(buffer, {"value": seconds(deltas, tolerance=0.01)})
    data, metadata = windows.get_at_with_metadata(...)
    row = 0
    for own in stamps:
        for stamp in own:
            apart = [[abs(other - (stamp + delta)) for other in own] for delta in deltas]
            first = row - own.index(stamp)
            found = [data["value"][row, frame] - first for frame in range(len(deltas))]
            for frame, distances in enumerate(apart):
                assert distances[found[frame]] == pytest.approx(min(distances), abs=1e-6)
                assert metadata["slice_valid_mask"]["value"][row, frame] == (min(distances) <= 0.0101)
            row += 1
    assert metadata["slice_valid_mask"]["value"][:, 2].all()


def test_times_that_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        seconds([])
    with pytest.raises(ValueError, match="0 or more"):
        seconds([0], tolerance=-1)


# -- selection -------------------------------------------------------------------------------------------------


def _image_space() -> DictSpace:
    return DictSpace(
        NUMPY,
        {
            "obs": DictSpace(
                NUMPY,
                {
                    "cam": BoxSpace(NUMPY, 0, 255, "uint8", shape=(96, 128, 3)),
                    "state": BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=(14,)),
                },
            ),
            "action": BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=(14,)),
            "number": BoxSpace(NUMPY, 0, 2**30, "int64", shape=()),
        },
    )


def _images(count: int = 30, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(_image_space(), capacity=count, maintain_segment_metadata=True, **options)
    rng = np.random.default_rng(0)
    for start in range(0, count, 10):
        buffer.extend(
            {
                "obs": {
                    "cam": rng.integers(0, 255, (10, 96, 128, 3), np.uint8),
                    "state": rng.normal(size=(10, 14)).astype(np.float32),
                },
                "action": rng.normal(size=(10, 14)).astype(np.float32),
                "number": np.arange(start, start + 10),
            }
        )
    return buffer


class _Doubles(IdentityTransformation):
    """Of unknown needs: it takes all of its source."""

    def narrow(self, source_space: Any, paths: Any) -> None:
        return None


VIEWS: dict[str, Any] = {
    "buffer": lambda batch: batch,
    "combined": lambda batch: CombinedBatch([batch, batch]),
    "slice": lambda batch: batch.get_slice(slice(3, 25)),
    "backend": lambda batch: ToBackendOrDeviceBatch(batch, NUMPY),
    "windows": lambda batch: FrameStackedBatch(batch, 1, 1),
    "by_column": lambda batch: WindowedBatch(batch, {"obs": [0, 1], "action": [3], "number": [0]}),
    "select": lambda batch: batch.select(["obs", "action"]),
    "identity": lambda batch: TransformedBatch(batch, IdentityTransformation()),
    "rescaled": lambda batch: TransformedBatch(
        batch, DictTransformation({"number": RescaleTransformation(0, 2**29, "int64")})
    ),
    "iterated": lambda batch: TransformedBatch(batch, IterativeTransformation(IdentityTransformation())),
    "chained": lambda batch: TransformedBatch(
        batch,
        ChainedTransformation(
            [DictExcludeKeyTransformation(["number"]), DictTransformation({"obs/state": IdentityTransformation()})]
        ),
    ),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("storage", ["packed", "hdf5"])
def test_nothing_but_the_selected_columns_is_read(
    view: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if storage == "hdf5":
        pytest.importorskip("h5py")
        batch: BatchBase = ReplayBuffer.create(
            "hdf5", _image_space(), capacity=10, cache_path=tmp_path / "b", keep_episodes=True
        )
        batch.extend(_images(10).get_at(...))
    else:
        batch = _images()
    seen = VIEWS[view](batch)
    small = seen.select(["action", "obs/st*"])
    assert {*small.single_space.keys(), *small.single_space["obs"].keys()} == {"action", "obs", "state"}
    every = np.arange(6)
    whole = seen.get_at(every)
    _refuse_images(monkeypatch)
    mine, metadata = small.get_at_with_metadata(every)
    found = [small.get_at(every), mine, {"obs": small.get_column("obs").get_at(every), "action": whole["action"]}]
    if view not in ("windows", "by_column"):
        stacked = SliceStackedBatch(small, [0]).get_at(every)
        found.append({"obs": {"state": stacked["obs"]["state"][:, 0]}, "action": stacked["action"][:, 0]})
    for data in found:
        assert data["obs"].keys() == {"state"}
        assert np.array_equal(data["obs"]["state"], whole["obs"]["state"])
        assert np.array_equal(data["action"], whole["action"])
    assert small.get_at(2) in small.single_space
    assert (metadata is None) == (small.single_metadata_space is None)


def _refuse_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a read of an image, by packed rows or HDF5, be an error."""
    from unienv_data.storages import _packed_column
    from unienv_data.storages._column_storage import ColumnStorage

    take, gather = _packed_column.take_column, ColumnStorage._gather_columns

    def watched_take(rows: Any, leaf: Any, slots: Any) -> Any:
        assert leaf.name != "obs/cam", "an image was read"
        return take(rows, leaf, slots)

    def watched_gather(self: ColumnStorage, slots: Any, places: Any) -> Any:
        assert all(self.layout.leaves[place].name != "obs/cam" for place in places), "an image was read"
        return gather(self, slots, places)

    def whole(*args: Any) -> Any:
        raise AssertionError("whole rows were read")

    monkeypatch.setattr(_packed_column, "take_column", watched_take)
    monkeypatch.setattr(ColumnStorage, "_gather_columns", watched_gather)
    for name in ("gather", "gather_rows", "gather_spans", "gather_windows"):
        monkeypatch.setattr(PackedStorage, name, whole)


@pytest.mark.parametrize(
    "transformation",
    [
        DictIncludeKeyTransformation(["action", "obs/state"]),
        DictExcludeKeyTransformation(["obs/cam", "number"]),
        ChainedTransformation([IdentityTransformation(), DictExcludeKeyTransformation(["obs/cam"]), _Doubles()]),
    ],
    ids=["include", "exclude", "chained"],
)
def test_a_key_filter_reads_nothing_of_what_it_drops(
    transformation: DataTransformation, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = _images()
    whole = transformation.transform(batch.single_space, batch.get_at(3))
    view = TransformedBatch(batch, transformation)
    _refuse_images(monkeypatch)
    assert view.get_at(3).keys() == whole.keys()
    assert np.array_equal(view.get_at(3)["obs"]["state"], whole["obs"]["state"])
    assert FrameStackedBatch(view, 1).get_at([0, 3])["action"].shape == (2, 2, 14)


def test_a_filter_keeps_a_dict_that_it_leaves_empty() -> None:
    view = TransformedBatch(_images(), DictExcludeKeyTransformation(["obs/cam", "obs/state"]))
    assert view.get_at([0, 1])["obs"] == {}
    assert view.get_at(0) in view.single_space


def test_a_transformation_of_unknown_needs_reads_all() -> None:
    batch = Watched(NUMPY)
    small = TransformedBatch(batch, _Doubles()).select("number")
    assert small.get_at([0, 3])["number"].tolist() == [0, 3]
    assert batch.reads == [((), [0, 3])]


def test_selections_of_selections_and_columns() -> None:
    batch = _images()
    small = batch.select(["obs", "number"])
    assert small.select("obs/state").get_at(4).keys() == {"obs"}
    assert np.array_equal(small.get_column("obs/cam").get_at([4]), batch.get_column(["obs", "cam"]).get_at([4]))
    assert small.select("obs/state").get_column("obs").get_at(4).keys() == {"state"}
    for columns, message in (
        ("nothing", "no column 'nothing'"),
        ("obs/stat", r"no column 'obs/stat', .*, did you mean 'obs/state'\?"),
        ([], "at least one"),
        (["obs/nothing*"], "no column 'obs/nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.select(columns)
    with pytest.raises(KeyError, match="no field 'action'"):
        small.get_column("action")
    with pytest.raises(ValueError, match="no columns to select"):
        batch.get_column("action").select("action")


def test_a_key_with_a_slash_and_tuples_have_paths() -> None:
    box = BoxSpace(NUMPY, 0, 9, "int64", shape=())
    space = DictSpace(NUMPY, {"obs/cam": box, "obs": DictSpace(NUMPY, {"a": box}), "x*": box, "xy": box})
    buffer = ReplayBuffer.create(space, capacity=2)
    buffer.append({"obs/cam": np.int64(1), "obs": {"a": np.int64(2)}, "x*": np.int64(3), "xy": np.int64(4)})
    assert buffer.get_column("obs/cam").get_at(0) == 1
    assert buffer.get_column("obs/a").get_at(0) == 2
    assert buffer.select("obs/cam").get_at(0) == {"obs/cam": 1}
    assert buffer.select("x*").get_at(0) == {"x*": 3}


@given(st.sets(st.sampled_from(["a", "b/c", "b/d", "e/f/g"]), min_size=1), st.data())
def test_keys_joined_lead_to_the_same(paths: set[str], data: Any) -> None:
    value = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": {"g": 4}}}
    chosen = sorted(tuple(path.split("/")) for path in paths)
    columns = Columns.of_paths(chosen)
    picked = columns.of(value)
    path = data.draw(st.sampled_from(chosen))
    for depth in range(1, len(path) + 1):
        found: Any = picked
        for key in path[:depth]:
            found = found[key]
        assert nested_item(value, join_keys((columns,), path[:depth])) == found
    assert sorted(columns.paths()) == chosen


def test_the_disk_reads_all_frames_of_a_batch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are wanted, before they are touched one page after the other."""
    from unienv_data.base import mapped

    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(mapped, "_ADVISE", lambda fd, offset, size, advice: advised.append((offset, size)))
    frame = 96 * 128 * 3
    with _images(cache_path=tmp_path / "b") as buffer:
        buffer.select(["obs/state", "action"]).get_at([3, 4])
        assert advised == []
        for read in (buffer.get_at, buffer.get_column("obs/cam").get_at):
            read([7, 2, 7])
            assert advised == [(7 * frame, frame), (2 * frame, frame), (7 * frame, frame)]
            advised.clear()
        FrameStackedBatch(buffer, 0, 9).get_at([10])
        assert sum(size for _, size in advised) == 10 * frame
