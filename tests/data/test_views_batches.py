"""Views one by one: what each gives and takes, its metadata, its episodes, and what lies under it staying open."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers, read
from catalogue import BACKENDS
from views import SOURCES, Watched, growing, read_windows, wrapped_ring

from unienv_data import (
    BatchBase,
    CombinedBatch,
    FrameStackedBatch,
    ReplayBuffer,
    SliceStackedBatch,
    SubIndexedBatch,
    ToBackendOrDeviceBatch,
    TransformedBatch,
)
from unienv_data.batches.combined_batch import convert_index_to_batch, convert_single_index_to_batch
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.transformations import DictTransformation, IdentityTransformation, RescaleTransformation

NUMPY = NumpyComputeBackend
backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)


# -- some samples ------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Any, int]] = {
    "all": (..., 1),
    "slice": (slice(2, 9), 1),
    "every_other": (slice(1, None, 2), 2),
    "every_third": (slice(None, None, 3), 3),
    "backwards": (slice(None, None, -1), 1),
    "some": ([2, 3, 4, 7, 8, 1, 1, 2, -2, -1], 1),
    "one": (3, 1),
    "none": ([], 1),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("source", SOURCES)
def test_windows_of_some_samples_keep_to_what_is_there_without_a_break(source: str, part: str) -> None:
    batch, held = SOURCES[source](NUMPY)
    index, step = PARTS[part]
    view = batch.get_slice(index)
    indices = np.atleast_1d(np.arange(len(batch))[index]).tolist()
    assert view.sub_indexes.tolist() == indices
    expected = held.part(indices, step)
    for offsets in ([-1, 0, 1], [-3, 0, 2]):
        assert read_windows(SliceStackedBatch(view, offsets), ...) == expected.windows(range(len(view)), offsets)


@backends
def test_some_samples_can_be_overwritten_but_not_added_to(backend: Any) -> None:
    buffer, held = wrapped_ring(backend)
    view = buffer.get_slice([3, 1])
    view.set_at([0, 1], numbers([103, 101], backend))
    view.set_flattened_at(0, backend.asarray(np.full(4, 203, np.int32)))
    assert contents(buffer) == [held.samples[0], 101, held.samples[2], 203, *held.samples[4:]]
    with pytest.raises(
        TypeError, match="extend: SubIndexedBatch does not support it: change the ReplayBuffer under it"
    ):
        view.append(number(1, backend))
    assert not view.may_grow


def test_closed_episodes_of_some_samples() -> None:
    buffer, _ = growing(NUMPY)  # episodes of 4, 1, 6, and an open one of 2
    assert buffer.get_slice(...).get_segments() == [(0, 4), (4, 5), (5, 11)]
    assert buffer.get_slice(slice(2, 8)).get_segments() == [(0, 2), (2, 3), (3, 6)]
    assert buffer.get_slice([0, 1, 3, 5, 6]).get_segments() == [(0, 2), (2, 3), (3, 5)]
    assert buffer.get_slice(slice(-4, None)).get_segments() == [(0, 2)]
    assert SubIndexedBatch(Watched(NUMPY), ...).get_segments() is None
    assert SubIndexedBatch(Watched(NUMPY), ...).episodes_of(np.arange(3)) is None


def test_samples_keep_their_numbers() -> None:
    ring, held = wrapped_ring(NUMPY)
    assert ring.sample_numbers == range(6, 26)
    for view in (
        ring.get_column(["number"]),
        FrameStackedBatch(ring, 1),
        ToBackendOrDeviceBatch(ring),
        ring.get_slice(...),
    ):
        assert view.sample_numbers == range(6, 26)
    assert ring.get_slice(slice(2, 5)).sample_numbers == range(8, 11)
    for view in (
        ring.get_slice([3, 1]),
        ring.get_slice(slice(None, None, 10)),
        CombinedBatch([ring.get_slice([1, 2])]),
    ):
        assert view.sample_numbers == range(2), "they are no range of numbers of the ring"
    assert len(held.samples) == 20


# -- a combination -----------------------------------------------------------------------------------------


@backends
def test_a_combination_is_what_a_list_would_give(backend: Any) -> None:
    batch, held = SOURCES["combined"](backend)
    count = len(held.samples)
    assert len(batch) == count
    indices = [[5, count - 1, 0, 20, 5], [1, 2], ..., slice(None, None, -7), np.arange(count) % 5 == 0, []]
    for index in indices[:1] if backend.simplified_name == "jax" else indices:  # JAX compiles for every new shape
        expected = np.array(held.samples)[np.array(index, int) if isinstance(index, list) else index].tolist()
        assert read(batch.get_at(index), backend) == expected
        data, metadata = batch.get_at_with_metadata(index)
        assert read(data, backend) == expected
        assert backend.to_numpy(metadata["batch_index"]).tolist() == [value // 1000 for value in expected]
        assert backend.to_numpy(batch.get_flattened_at(index))[:, 0].tolist() == expected
        assert backend.to_numpy(batch.get_column_at(["number"], index)).tolist() == expected
    for index in (0, count - 1, -1, 15):
        data, metadata = batch.get_at_with_metadata(index)
        assert read(data, backend) == held.samples[index]
        assert metadata in batch.single_metadata_space
        assert int(metadata["batch_index"]) == held.samples[index] // 1000
        assert read(batch.get_at(index), backend) == held.samples[index]
    with pytest.raises(IndexError, match=f"index {count} is out of range"):
        batch.get_at(count)


def test_sources_that_change_are_seen() -> None:
    first, second = (ReplayBuffer.create(number_space()) for _ in range(2))
    batch = CombinedBatch([first, second])
    assert len(batch) == 0
    assert batch.may_grow
    second.extend(numbers([10, 11]))
    assert contents(batch) == [10, 11]
    first.extend(numbers([1]))
    assert contents(batch) == [1, 10, 11]
    assert read(batch.get_at(-1)) == 11
    second.remove_at(0)
    assert contents(batch) == [1, 11]


def test_sources_that_are_finished_are_not_asked_again(tmp_path: Any) -> None:
    for name in ("a", "b"):
        with ReplayBuffer.create(number_space(), cache_path=tmp_path / name) as buffer:
            buffer.extend(numbers([1, 2]))
    finished = [ReplayBuffer.load_from(tmp_path / name, backend=NUMPY) for name in ("a", "b")]
    asked = []

    class Counted(SubIndexedBatch):
        def __len__(self) -> int:
            asked.append(self)
            return super().__len__()

    batch = CombinedBatch([*finished, Counted(finished[0], ...)])
    asked.clear()
    assert not batch.may_grow
    assert contents(batch) == [1, 2, 1, 2, 1, 2]
    assert len(asked) <= 1, "to resolve the index in the source that is hit, and not to map it"
    writer = ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, read_only=False)
    assert writer.may_grow
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as beside:
        assert beside.may_grow, "somebody is writing it"
    writer.close()


def test_each_source_is_asked_once_and_only_if_it_is_hit() -> None:
    sources = [Watched(NUMPY) for _ in range(4)]
    batch = CombinedBatch(sources)
    batch.get_at([35, 2, 33, 1, 2])
    assert [source.reads for source in sources] == [[((), [2, 1, 2])], [], [], [((), [5, 3])]]


@backends
def test_a_combination_is_written_to_where_the_samples_lie(backend: Any) -> None:
    first, second = (ReplayBuffer.create(number_space(backend)) for _ in range(2))
    first.extend(numbers([0, 1, 2], backend))
    second.extend(numbers([10, 11], backend))
    batch = CombinedBatch([first, second])
    batch.set_at([4, 0, 3], numbers([111, 100, 110], backend))
    batch.set_at(1, number(101, backend))
    batch.set_flattened_at([2], backend.asarray(np.full((1, 4), 102, np.int32)))
    assert (contents(first), contents(second)) == ([100, 101, 102], [110, 111])
    with pytest.raises(ValueError, match="set_at: 2 indices and 3 samples"):
        batch.set_at([0, 1], numbers([1, 2, 3], backend))
    batch.remove_at([1, -1])
    assert (contents(first), contents(second)) == ([100, 102], [110])
    with pytest.raises(TypeError, match="extend: CombinedBatch has several batches: change a batch"):
        batch.append(number(1, backend))


def test_what_cannot_be_combined_is_refused() -> None:
    with pytest.raises(ValueError, match="batches is empty"):
        CombinedBatch([])
    other = ReplayBuffer.create(BoxSpace(NUMPY, 0, 1, "float32", shape=(2,)))
    with pytest.raises(ValueError, match=r"batch 1 is of .* their spaces must be equal"):
        CombinedBatch([growing(NUMPY)[0], other])


def test_metadata_of_a_combination_is_what_all_sources_have() -> None:
    class Fewer(Watched):
        def __init__(self) -> None:
            super().__init__(NUMPY)
            assert self.single_metadata_space is not None
            kept = {key: space for key, space in self.single_metadata_space.spaces.items() if key != "end"}
            self.single_metadata_space = DictSpace(NUMPY, kept)

        def _sample(self, keys: Any, idx: Any) -> Any:
            data, metadata = super()._sample(keys, idx)
            return data, {key: value for key, value in metadata.items() if key != "end"}

    batch = CombinedBatch([Watched(NUMPY), Fewer(), Watched(NUMPY)])
    _, metadata = batch.get_at_with_metadata([25, 12, 3])
    assert sorted(metadata) == ["batch_index", "id", "tenfold"]
    assert metadata["tenfold"][:, 0].tolist() == [50, 20, 30]
    assert metadata["batch_index"].tolist() == [2, 1, 0]
    assert batch.get_at_with_metadata(12)[1] in batch.single_metadata_space
    outer = CombinedBatch([batch, batch])
    assert outer.get_at_with_metadata([31])[1]["batch_index"].tolist() == [1]
    assert outer.get_at_with_metadata([41])[1]["inner_batch_index"].tolist() == [1]
    windows = FrameStackedBatch(batch, 1, stack_metadata=True).get_at_with_metadata([11, 10])[1]
    assert windows["batch_index"].tolist() == [[1, 1], [1, 1]]
    assert windows["tenfold"][..., 0].tolist() == [[0, 10], [0, 0]]


def test_threads_give_the_same_and_end_with_close() -> None:
    sources = [growing(NUMPY, 1000 * place)[0] for place in range(6)]
    plain, pooled = CombinedBatch(sources), CombinedBatch(sources, use_thread_pool=True)
    index = np.random.default_rng(0).permutation(len(plain))
    before = threading.active_count()
    assert read(pooled.get_at(index)) == read(plain.get_at(index))
    assert read_windows(FrameStackedBatch(pooled, 2, 2), index) == read_windows(FrameStackedBatch(plain, 2, 2), index)
    assert threading.active_count() > before
    again = pickle.loads(pickle.dumps(pooled))
    assert read(again.get_at(index)) == read(plain.get_at(index))
    for batch in (pooled, again):
        batch.close()
        batch.close()
    assert threading.active_count() == before
    assert len(contents(sources[0])) == len(sources[0])
    assert read(pooled.get_at(index)) == read(plain.get_at(index)), "a view can be used on"
    pooled.close()


def test_an_error_in_a_thread_is_the_callers() -> None:
    class Broken(Watched):
        def get_at(self, idx: Any) -> Any:
            raise OSError("the disk is gone")

    with (
        CombinedBatch([Watched(NUMPY), Broken(NUMPY)], use_thread_pool=True) as batch,
        pytest.raises(OSError, match="gone"),
    ):
        batch.get_at([1, 11])


def test_tens_of_thousands_of_sources() -> None:
    source = Watched(NUMPY)
    many = CombinedBatch([SubIndexedBatch(source, slice(place % 9, place % 9 + 2)) for place in range(20_000)])
    assert len(many) == 40_000
    index = np.array([39_999, 0, 1, 20_001, 39_998])
    assert many.get_at(index)["number"].tolist() == [int(i) // 2 % 9 + int(i) % 2 for i in index]
    assert many.get_at_with_metadata(index)[1]["batch_index"].tolist() == (index // 2).tolist()


def test_looking_up_by_hand() -> None:
    assert convert_single_index_to_batch(NUMPY, np.array([0, 3, 3, 5]), 9, -1) == (3, 3)
    sources, local = convert_index_to_batch(NUMPY, np.array([0, 3, 3, 5]), 9, slice(2, 6))
    assert (sources.tolist(), local.tolist()) == ([0, 2, 2, 3], [2, 0, 1, 0])


# -- transformed -------------------------------------------------------------------------------------------


def _scaled(backend: Any) -> tuple[ReplayBuffer, TransformedBatch]:
    """Numbers from 0 to 100 that are seen as -1 to 1."""
    box = BoxSpace(backend, 0, 100, "float32", shape=())
    buffer = ReplayBuffer.create(DictSpace(backend, {"x": box}), maintain_segment_metadata=True)
    buffer.extend({"x": backend.from_numpy(np.array([0, 25, 100], np.float32))})
    view = TransformedBatch(buffer, DictTransformation({"x": RescaleTransformation(-1.0, 1.0)}))
    return buffer, view


def _x(backend: Any, batch: BatchBase, index: Any = ...) -> Any:
    return backend.to_numpy(batch.get_at(index)["x"]).tolist()


@backends
def test_what_is_written_goes_through_the_inverse(backend: Any) -> None:
    buffer, view = _scaled(backend)

    def as_array(values: Any) -> dict[str, Any]:
        return {"x": backend.from_numpy(np.asarray(values, np.float32))}

    assert _x(backend, view) == [-1.0, -0.5, 1.0]
    assert _x(backend, view, 1) == -0.5
    assert view.get_at(1) in view.single_space
    view.extend(as_array([1.0, -1.0]))
    view.append(as_array(0.0))
    view.set_at(0, as_array(0.5))
    view.set_at([1, 2], as_array([0.0, -1.0]))
    assert _x(backend, buffer) == [75.0, 50.0, 0.0, 100.0, 0.0, 50.0]
    assert buffer.get_segments() == [(0, 3), (3, 5)], "append goes to the open segment, extend is one of its own"
    view.remove_at([0, 1])
    assert _x(backend, buffer) == [0.0, 100.0, 0.0, 50.0]
    flat = view.get_flattened_at([0, 1])
    view.set_flattened_at([1, 0], flat)
    assert _x(backend, view) == [1.0, -1.0, -1.0, 0.0]
    assert _x(backend, FrameStackedBatch(view, 1), [1]) == [[-1.0, -1.0]], "of the episode that has one sample left"


def test_without_an_inverse_a_transformed_batch_is_read_only() -> None:
    buffer, _ = _scaled(NUMPY)

    class OneWay(RescaleTransformation):
        has_inverse = False

    view = TransformedBatch(buffer, DictTransformation({"x": OneWay(-1.0, 1.0)}))
    assert not view.is_mutable
    with pytest.raises(TypeError, match=r"append: .* has no inverse: change the ReplayBuffer under it"):
        view.append(view.get_at(0))
    assert _x(NUMPY, buffer) == [0.0, 25.0, 100.0]


@backends
def test_metadata_is_transformed_too(backend: Any) -> None:
    batch = Watched(backend)
    halved = RescaleTransformation(0, 5000)
    view = TransformedBatch(batch, IdentityTransformation(), DictTransformation({"tenfold": halved}))
    for index in ([3, 4], 3):
        _, metadata = view.get_at_with_metadata(index)
        assert backend.to_numpy(metadata["tenfold"])[..., 0].tolist() == ([15, 20] if index != 3 else 15)
    assert metadata in view.single_metadata_space
    windows = FrameStackedBatch(view, 1, stack_metadata=True).get_at_with_metadata([4])[1]
    assert backend.to_numpy(windows["tenfold"])[..., 0].tolist() == [[15, 20]]
    plain = TransformedBatch(batch, IdentityTransformation())
    assert plain.single_metadata_space == batch.single_metadata_space
    without = TransformedBatch(growing(backend)[0], IdentityTransformation(), DictTransformation({"tenfold": halved}))
    assert without.metadata_transformation is None
    assert without.get_at_with_metadata(0)[1] is None


# -- another backend ---------------------------------------------------------------------------------------


@backends
@pytest.mark.parametrize("home", BACKENDS, ids=lambda backend: f"from_{backend}")
def test_a_batch_on_another_backend(backend: Any, home: Any) -> None:
    buffer, held = wrapped_ring(home)
    view = ToBackendOrDeviceBatch(buffer, backend)
    assert view.backend is backend
    assert read(view.get_at([0, -1]), backend) == [held.samples[0], held.samples[-1]]
    assert view.get_at(3) in view.single_space
    assert read(view.get_at(backend.asarray([1, 2])), backend) == held.samples[1:3]
    assert backend.to_numpy(view.get_flattened_at([2]))[0].tolist() == [held.samples[2]] * 4
    assert backend.to_numpy(view.get_column(["number"]).get_at([2])).tolist() == [held.samples[2]]
    assert read_windows(FrameStackedBatch(view, 2), [4, 9]) == held.windows([4, 9], [-2, -1, 0])
    view.set_at([0], numbers([500], backend))
    view.set_flattened_at(1, backend.asarray(np.full(4, 501, np.int32)))
    view.append(number(502, backend))
    buffer.mark_segment_end()
    view.extend(numbers([503], backend))
    view.extend_flattened(backend.asarray(np.full((1, 4), 504, np.int32)))
    view.remove_at([-2])
    assert contents(buffer) == [*held.samples[3:], 502, 504]


@backends
def test_metadata_moves_along(backend: Any) -> None:
    view = ToBackendOrDeviceBatch(Watched(NUMPY), backend)
    data, metadata = view.get_at_with_metadata([1])
    assert backend.is_backendarray(metadata["tenfold"])
    assert view.get_flattened_at_with_metadata([1])[1] is not None
    assert view.get_column(["number"]).get_at_with_metadata(1)[1] in view.single_metadata_space
    device_only = ToBackendOrDeviceBatch(Watched(backend), device=backend.device(data["number"]))
    assert device_only.backend is backend
    assert device_only.get_at(0) in device_only.single_space


# -- what lies underneath ----------------------------------------------------------------------------------


def test_no_view_closes_what_lies_under_it() -> None:
    batch = Watched(NUMPY)
    views: list[BatchBase] = [
        batch.get_slice([0, 1]),
        batch.get_column(["number"]),
        CombinedBatch([batch, batch], use_thread_pool=True),
        FrameStackedBatch(batch, 1),
        ToBackendOrDeviceBatch(batch, NUMPY),
        TransformedBatch(batch, IdentityTransformation()),
    ]
    for view in views:
        view.get_at([0, 1])
        view.close()
    del view, views
    assert not batch.closed


def test_limits_of_one_source_are_not_those_of_another_over_the_same_buffer() -> None:
    """A buffer and a part of it side by side: windows of the first reach as far as ever, however often one reads."""
    space = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, -1e9, 1e9, "float64", shape=())})
    buffer = ReplayBuffer.create(space, capacity=100)
    buffer.extend({"x": np.arange(100.0)})
    stack = FrameStackedBatch(CombinedBatch([buffer, buffer.get_slice(slice(40, 60))]), 2)
    for _ in range(3):
        data, metadata = stack.get_at_with_metadata(np.array([45, 99, 100, 101]))
        assert data["x"].tolist() == [[43, 44, 45], [97, 98, 99], [40, 40, 40], [40, 40, 41]]
        assert metadata["slice_valid_mask"].sum(axis=1).tolist() == [3, 3, 1, 2]
