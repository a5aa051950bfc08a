"""Mini-batches: what they hold, in every form, on every backend; and that a state goes on with the very next one."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.extend.core
import numpy as np
import pytest
from buffers import contents, number_space, numbers, read
from hypothesis import given
from hypothesis import strategies as st

import unienv_data
from unienv_data import (
    BatchBase,
    BatchSampler,
    CombinedBatch,
    MultiprocessingSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    StepSampler,
)
from unienv_data.base import tracing
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
BACKENDS = [NumpyComputeBackend, PyTorchComputeBackend, JaxComputeBackend]
SAMPLE_FORMS = ["sample", "sample_with_metadata", "sample_flat", "sample_flat_with_metadata"]
EPOCH_FORMS = ["epoch_iter", "epoch_iter_with_metadata", "epoch_flat_iter", "epoch_flat_iter_with_metadata"]


def filled(length: int, backend: Any = NUMPY, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(number_space(backend), **options)
    buffer.extend(numbers(range(length), backend))
    return buffer


class WithMetadata(BatchBase):
    """A view that says of each sample which one it is, and counts its reads."""

    is_mutable = False

    def __init__(self, batch: BatchBase) -> None:
        index = BoxSpace(batch.backend, -(2**30), 2**30, "int32", shape=())
        super().__init__(batch.single_space, DictSpace(batch.backend, {"copy": index}))
        self.batch, self.reads = batch, 0
        self.fails_at: set[int] = set()

    def __len__(self) -> int:
        return len(self.batch)

    def get_at(self, idx: Any) -> Any:
        self.reads += 1
        found = self.batch.get_at(idx)
        if self.fails_at & set(np.atleast_1d(self.backend.to_numpy(found["number"])).tolist()):
            raise ArithmeticError("of all samples, this one")
        return found

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        found = self.get_at(idx)
        return found, {"copy": found["number"]}


class Billion(BatchBase):
    """More samples than there is memory for."""

    def __init__(self) -> None:
        super().__init__(BoxSpace(NUMPY, 0, 10**9, "int64", shape=()))

    def __len__(self) -> int:
        return 10**9

    def get_at(self, idx: Any) -> Any:
        return idx


def parts(batch: Any, backend: Any = NUMPY) -> tuple[list[int], list[int] | None]:
    """The numbers of a batch in any form, and those its metadata have."""
    data, metadata = batch if isinstance(batch, tuple) else (batch, None)
    if isinstance(data, dict):
        values = read(data, backend)
    else:  # copies lie before the number
        values = backend.to_numpy(data)[:, -1].astype(int).tolist()
    shows_copies = metadata is not None and "copy" in metadata
    return values, backend.to_numpy(metadata["copy"]).tolist() if shows_copies else None


# -- what is in a batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_batches_of_every_form_lie_in_their_spaces(backend: Any) -> None:
    sampler = StepSampler(WithMetadata(filled(20, backend, capacity=50)), 5, seed=0)
    assert sampler.backend is backend
    assert len(sampler) == 20
    twins = [StepSampler(sampler.data, 5, seed=0) for _ in SAMPLE_FORMS]
    drawn = [parts(getattr(twin, form)(), backend) for twin, form in zip(twins, SAMPLE_FORMS, strict=True)]
    assert len({tuple(values) for values, _ in drawn}) == 1  # the same samples in every form
    assert all(copies is None or copies == values for values, copies in drawn)
    batch, metadata = sampler.sample_with_metadata()
    space: Any = sampler.sampled_metadata_space
    assert sampler.sampled_space.contains(batch)
    assert space.contains(metadata)
    index = sampler.sample_index()
    assert backend.is_backendarray(index)
    assert index.shape == (5,)


@pytest.mark.parametrize("form", EPOCH_FORMS)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_epoch_has_every_sample_once(form: str, prefetch: int) -> None:
    sampler = StepSampler(WithMetadata(filled(23, capacity=30)), 5, seed=0, prefetch=prefetch)
    orders = []
    for _ in range(3):
        batches = [parts(batch) for batch in getattr(sampler, form)()]
        assert [len(values) for values, _ in batches] == [5, 5, 5, 5, 3]
        assert all(copies is None or copies == values for values, copies in batches)
        orders.append([value for values, _ in batches for value in values])
        assert sorted(orders[-1]) == list(range(23))
    assert len({tuple(order) for order in orders}) == 3
    sampler.manual_seed(0)
    assert [value for batch in getattr(sampler, form)() for value in parts(batch)[0]] == orders[0]
    sampler.close()


def test_each_batch_is_one_read() -> None:
    data = WithMetadata(filled(100, capacity=100))
    sampler = StepSampler(data, 50, seed=0)
    for form in SAMPLE_FORMS:
        data.reads = 0
        getattr(sampler, form)()
        assert data.reads == 1


def test_new_samples_are_seen() -> None:
    buffer = filled(3, capacity=5)
    sampler = StepSampler(buffer, 50, seed=0)
    assert set(read(sampler.sample())) == {0, 1, 2}
    buffer.extend(numbers(range(3, 8)))
    assert set(read(sampler.sample())) == {3, 4, 5, 6, 7}
    assert sorted(value for batch in sampler.epoch_iter() for value in read(batch)) == [3, 4, 5, 6, 7]


def test_a_billion_samples_begin_at_once() -> None:
    sampler = StepSampler(Billion(), 256, seed=0)
    batches = sampler.epoch_iter()
    found = np.concatenate([next(batches) for _ in range(20)])
    assert len(np.unique(found)) == 20 * 256
    assert sampler.sample().max() < 10**9


@pytest.mark.parametrize("backend", [NumpyComputeBackend, JaxComputeBackend], ids=lambda b: b.simplified_name)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_draw_while_jax_traces_is_refused(backend: Any, prefetch: int) -> None:
    sampler = StepSampler(filled(20, backend), 4, seed=0, prefetch=prefetch)
    epoch = sampler.epoch_iter()
    draws: list[Any] = [getattr(sampler, form) for form in SAMPLE_FORMS]
    draws += [sampler.sample_index, MultiprocessingSampler(sampler, n_workers=0).sample, lambda: next(epoch)]
    for draw in draws:
        draw()  # what is fetched in advance must not come out of a trace either
        for trace in (jax.jit, jax.eval_shape, lambda f: jax.lax.scan(lambda c, _: (c, f()), 0, None, length=2)):
            with pytest.raises(RuntimeError, match=r"JAX traces a function.*pass the batch in.*FuncReplayBuffer"):
                trace(draw)() if trace is jax.jit else trace(draw)
        draw()


def test_the_first_draw_of_a_process_is_refused_while_jax_traces() -> None:
    sampler = StepSampler(filled(20, JaxComputeBackend), 4, seed=0)
    tracing._outside.cache_clear()
    with pytest.raises(RuntimeError, match="JAX traces a function"):
        jax.jit(sampler.sample)()
    sampler.sample()


def test_a_draw_where_jax_computes_at_once_is_allowed() -> None:
    sampler = StepSampler(filled(20), 4, seed=0)
    drawn: list[list[int]] = []

    def loss(scale: Any) -> Any:
        drawn.append(read(sampler.sample()))
        return scale * sum(drawn[-1])

    for _ in range(3):
        jax.grad(loss)(1.0)
        jax.vmap(loss)(np.ones(2))
    assert len(drawn) == 6
    assert len({tuple(numbers) for numbers in drawn}) == 6


# -- samples that go while an epoch is under way ------------------------------------------------------------


def _overwrite(buffer: ReplayBuffer) -> None:
    buffer.extend(numbers(range(100, 115)))


def _remove_oldest(buffer: ReplayBuffer) -> None:
    buffer.remove_at(range(15))
    buffer.extend(numbers(range(100, 110)))


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("change", [_overwrite, _remove_oldest, lambda buffer: buffer.clear()])
def test_an_epoch_goes_on_with_what_is_left(change: Any, resumes: bool) -> None:
    """Each sample that was there when it began and is still there comes once, in batches that are full."""
    buffer = filled(40, capacity=40)
    sampler = StepSampler(buffer, 6, seed=0)
    epoch = sampler.epoch_iter()
    found = [*read(next(epoch)), *read(next(epoch))]
    if resumes:
        state, sampler = sampler.state_dict(), StepSampler(buffer, 6)
        sampler.load_state_dict(state)
        epoch = sampler.epoch_iter()
    change(buffer)
    left = set(range(40)) & set(contents(buffer))
    batches = [read(batch) for batch in epoch]
    assert all(len(batch) == 6 for batch in batches[:-1])
    found += [value for batch in batches for value in batch]
    assert len(set(found)) == len(found)
    assert left <= set(found) <= set(range(40))


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("removed", [[3, 4], [17, 18]])
def test_an_epoch_ends_where_samples_were_moved(removed: list[int], place: str, tmp_path: Path) -> None:
    """Also if as many were added since, and where the state comes from before."""
    path = tmp_path / "buffer" if place == "disk" else None
    buffer = ReplayBuffer.create(number_space(), cache_path=path)
    buffer.extend(numbers(range(20)))
    sampler = StepSampler(buffer, 4, seed=0)
    epoch = sampler.epoch_iter()
    next(epoch)
    state = saved(sampler)
    buffer.remove_at(removed)
    with pytest.raises(ValueError, match=r"samples have got other numbers|over 20 samples, 18 are left"):
        next(epoch)
    buffer.extend(numbers([30, 31]))
    twin = StepSampler(buffer, 4)
    twin.load_state_dict(state)
    with pytest.raises(ValueError, match="samples have got other numbers since the epoch began"):
        next(twin.epoch_iter())
    assert len(list(twin.epoch_iter())) == 5
    if path is None:
        return
    buffer.close()
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as reader:
        twin = StepSampler(reader, 4)
        twin.load_state_dict(state)
        with pytest.raises(ValueError, match="samples have got other numbers since the epoch began"):
            next(twin.epoch_iter())


def test_an_epoch_over_a_combination_ends_where_its_batches_move() -> None:
    first, last = filled(10), filled(10)
    for batches, moves in (([first, last], True), ([last, first], False)):
        epoch = StepSampler(CombinedBatch(batches), 4, seed=0).epoch_iter()
        next(epoch)
        first.extend(numbers([50]))
        if moves:
            with pytest.raises(ValueError, match="one of several combined batches has changed"):
                next(epoch)
        else:
            assert len(list(epoch)) == 5


def test_it_is_read_only() -> None:
    sampler = StepSampler(filled(3, capacity=5), 2)
    assert not sampler.is_mutable
    for call in (
        lambda: sampler.extend(numbers([1])),
        lambda: sampler.set_at(0, numbers([1])),
        lambda: sampler.remove_at(0),
    ):
        with pytest.raises(TypeError, match="StepSampler is read-only"):
            call()
    assert read(sampler.get_at(1)) == 1
    assert read(sampler[[2, 0]]) == [2, 0]
    assert len(list(sampler)) == 2  # batches of an epoch


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size is 0, it must be at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size is 2.5, it wants an integer"),
        ({"batch_size": 2, "prefetch": -1}, ValueError, "prefetch is -1"),
        ({"batch_size": 2, "pin_memory": True}, ValueError, "pin_memory is for PyTorch"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        StepSampler(filled(3, capacity=5), **arguments)


def test_an_empty_batch_gives_empty_epochs_and_no_samples() -> None:
    sampler = StepSampler(ReplayBuffer.create(number_space(), capacity=5), 2)
    assert list(sampler.epoch_iter()) == []
    with pytest.raises(ValueError, match="no samples to draw from"):
        sampler.sample()


# -- index samplers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_what_an_index_sampler_says_is_in_the_metadata(backend: Any) -> None:
    buffer = ReplayBuffer.create(number_space(backend), capacity=20, maintain_segment_metadata=True)
    buffer.extend(numbers(range(20), backend))
    for index_sampler in (PrioritizedSampler(seed=0), SliceSampler(3, seed=0), RandomSampler(0)):
        sampler = StepSampler(WithMetadata(buffer) if index_sampler.info_fields() else buffer, 6, sampler=index_sampler)
        if isinstance(index_sampler, SliceSampler):
            sampler = StepSampler(buffer, 6, sampler=index_sampler)
        batch, metadata = sampler.sample_with_metadata()
        space: Any = sampler.sampled_metadata_space
        assert set(metadata) >= {"index", *index_sampler.info_fields()}
        assert space.contains(metadata), (space, metadata)
        assert read(batch, backend) == backend.to_numpy(metadata["index"]).tolist()


def test_a_sampler_of_ones_own_keeps_its_seed_unless_another_is_given() -> None:
    data = filled(50, capacity=50)
    expected = RandomSampler(5).sample(data, 8).index.tolist()
    assert read(StepSampler(data, 8, sampler=RandomSampler(5)).sample()) == expected
    assert read(StepSampler(data, 8, seed=5, sampler=RandomSampler(9)).sample()) == expected
    assert read(StepSampler(data, 8, seed=5).sample()) == expected


def test_a_subclass_chooses_its_own_indices() -> None:
    class Own(BatchSampler):
        def __init__(self, data: BatchBase) -> None:
            super().__init__(data.single_space, None, 4)
            self.data = data

    sampler = Own(filled(9, capacity=9))
    sampler.manual_seed(0)
    state = sampler.state_dict()
    batches = [read(sampler.sample()) for _ in range(3)]
    twin = Own(sampler.data)
    twin.load_state_dict(state)
    assert [read(twin.sample()) for _ in range(3)] == batches
    assert sorted(value for batch in twin for value in read(batch)) == list(range(9))
    with MultiprocessingSampler(Own(sampler.data), 0) as wrapped:
        wrapped.load_state_dict(state)
        assert [read(wrapped.sample()) for _ in range(3)] == batches


# -- states --------------------------------------------------------------------------------------------------

SAMPLERS: dict[str, Any] = {
    "default": lambda: None,
    "prioritized": lambda: PrioritizedSampler(seed=2),
    "without_replacement": lambda: SamplerWithoutReplacement(seed=2),
}


def saved(sampler: Any) -> Any:
    return json.loads(json.dumps(sampler.state_dict(), default=np.ndarray.tolist))


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_state_at_any_point_gives_the_very_next_batches(kind: str, prefetch: int) -> None:
    data = filled(30, capacity=30)

    def make(ahead: int) -> StepSampler:
        return StepSampler(data, 4, seed=1, sampler=SAMPLERS[kind](), prefetch=ahead)

    with make(prefetch) as sampler:
        for batch in range(12):
            state = saved(sampler)
            with make(0) as twin, make(2) as other:
                twin.load_state_dict(state)
                other.load_state_dict(twin.state_dict())
                expected = [read(twin.sample()) for _ in range(7)]
                assert [read(other.sample()) for _ in range(7)] == expected
            form = SAMPLE_FORMS[batch % 4]  # in another form each time
            assert parts(getattr(sampler, form)() if kind == "default" else sampler.sample())[0] == expected[0]


@given(
    length=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=6),
    steps=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    prefetch=st.sampled_from([0, 2]),
)
def test_an_epoch_goes_on_with_other_batch_sizes(
    length: int, sizes: list[int], steps: list[int], prefetch: int
) -> None:
    data = filled(length, capacity=40)
    reference = StepSampler(data, 7, seed=3)
    epochs = [[value for batch in reference.epoch_iter() for value in read(batch)] for _ in range(7)]
    state, found = None, []
    for size, count in zip(sizes, steps, strict=False):
        with StepSampler(data, size, seed=3, prefetch=prefetch) as sampler:
            if state is not None:
                sampler.load_state_dict(state)
            iterator = sampler.epoch_iter()
            for _, batch in zip(range(count), iterator, strict=False):
                found += read(batch)
            state = saved(sampler)
    with StepSampler(data, 5) as sampler:
        if state is not None:
            sampler.load_state_dict(state)
        rest = [value for batch in sampler.epoch_iter() for value in read(batch)]
    # when an epoch is over, the next one comes
    assert found + rest in [[*itertools.chain(*epochs[:count])] for count in range(1, 8)]


def test_a_state_between_epochs_gives_the_next_epoch() -> None:
    data = filled(10, capacity=10)
    sampler = StepSampler(data, 3, seed=0)
    epochs = [[read(batch) for batch in sampler.epoch_iter()] for _ in range(3)]
    sampler.manual_seed(0)
    list(sampler.epoch_iter())
    twin = StepSampler(data, 3)
    twin.load_state_dict(saved(sampler))
    assert [[read(batch) for batch in twin.epoch_iter()] for _ in range(2)] == epochs[1:]


def test_an_epoch_that_is_given_up_is_not_gone_on_with() -> None:
    sampler = StepSampler(filled(10, capacity=10), 3, seed=0)
    first = next(sampler.epoch_iter())
    assert sorted(value for batch in sampler.epoch_iter() for value in read(batch)) == list(range(10))
    assert len(read(first)) == 3


def test_a_state_that_does_not_fit_is_refused() -> None:
    sampler = StepSampler(filled(10, capacity=10), 3, seed=0)
    next(sampler.epoch_iter())
    state = saved(sampler)
    other = StepSampler(filled(5, capacity=10), 3)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="the epoch began over 10 samples, 5 are left"):
        next(other.epoch_iter())
    assert len(list(other.epoch_iter())) == 2
    with pytest.raises(ValueError, match="the sampler state is of version 99"):
        other.load_state_dict({**state, "version": 99})
    with pytest.raises(ValueError, match="the state is of a 'RandomSampler'"):
        StepSampler(filled(5, capacity=10), 3, sampler=PrioritizedSampler()).load_state_dict(state)


# -- in advance ----------------------------------------------------------------------------------------------


def test_prefetch_overlaps_with_use() -> None:
    reached, proceed = threading.Semaphore(0), threading.Semaphore(0)

    class Gated(WithMetadata):
        def get_at(self, idx: Any) -> Any:
            reached.release()
            assert proceed.acquire(timeout=10)
            return super().get_at(idx)

    with StepSampler(Gated(filled(30, capacity=30)), 4, seed=0, prefetch=2) as sampler:
        proceed.release()
        sampler.sample()
        assert reached.acquire(timeout=10)
        assert reached.acquire(timeout=10)  # the second batch is being fetched though nobody has asked for it
        for _ in range(10):
            proceed.release()
        sampler.sample()


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_error_is_raised_in_the_place_of_its_batch(prefetch: int) -> None:
    data = WithMetadata(filled(20, capacity=20))
    data.fails_at = {7}
    with StepSampler(data, 4, seed=0, prefetch=prefetch) as sampler:
        expected = [value for batch in StepSampler(data.batch, 4, seed=0).epoch_iter() for value in read(batch)]
        iterator, found, errors = sampler.epoch_iter(), [], 0
        for _ in range(5):
            try:
                found += read(next(iterator))
            except ArithmeticError:
                errors += 1
        assert errors == 1
        assert found == [value for value in expected if value in found]
        assert len(found) == 16
        assert sampler.state_dict()["epoch"]["position"] == 20
        with pytest.raises(StopIteration):
            next(iterator)


def test_a_thread_is_ended_by_close_and_the_sampler_goes_on() -> None:
    data = filled(30, capacity=30)
    expected = StepSampler(data, 4, seed=0)
    sampler = StepSampler(data, 4, seed=0, prefetch=3)
    before = threading.active_count()
    for _ in range(3):
        assert read(sampler.sample()) == read(expected.sample())
        assert threading.active_count() == before + 1
        sampler.close()
        assert threading.active_count() == before
    copy = pickle.loads(pickle.dumps(sampler))
    assert read(copy.sample()) == read(expected.sample())
    copy.close()


# -- devices -------------------------------------------------------------------------------------------------


def test_batches_are_moved_to_the_device_as_rows() -> None:
    """PyTorch's device "meta" stands for one that the data does not lie on: it has shapes and dtypes, no values."""
    data = WithMetadata(filled(20, PyTorchComputeBackend, capacity=20))
    sampler = StepSampler(data, 4, seed=0, device="meta")
    assert sampler.device.type == "meta" if hasattr(sampler.device, "type") else sampler.device == "meta"
    for form in SAMPLE_FORMS:
        found = getattr(sampler, form)()
        batch, metadata = found if isinstance(found, tuple) else (found, None)
        leaves = [batch] if not isinstance(batch, dict) else [batch["number"], batch["inner"]["copies"]]
        leaves += [] if metadata is None else [metadata["copy"]]
        assert all(leaf.device.type == "meta" and leaf.shape[0] == 4 for leaf in leaves)
    assert sampler.get_at(3)["number"].shape == ()
    same = StepSampler(data, 4, seed=0, device="cpu")
    assert read(same.sample(), PyTorchComputeBackend) == read(
        StepSampler(data, 4, seed=0).sample(), PyTorchComputeBackend
    )


def test_rows_that_are_moved_hold_what_was_read() -> None:
    import torch

    from unienv_data.samplers._pytorch_rows import RowMover

    boxes = {
        name: BoxSpace(PyTorchComputeBackend, 0, 100, name, shape=shape)
        for name, shape in (("float32", (3,)), ("float64", ()), ("int16", (2, 2)), ("uint8", (70, 70)), ("int64", (0,)))
    }
    space = DictSpace(PyTorchComputeBackend, {**boxes, "nested": {"x": boxes["int16"]}})
    buffer = ReplayBuffer.create(space, capacity=9)
    rng = torch.Generator().manual_seed(0)
    for _ in range(9):
        buffer.append(space.sample(rng)[1])
    mover: Any = RowMover.for_space(space, None, pinned=False)
    batch = buffer.get_at([3, 1, 4, 1])
    for moved in (mover.move(batch, 4), mover.move_rows(buffer.read_rows(np.array([3, 1, 4, 1])))):
        for name in boxes:
            assert torch.equal(moved[name], batch[name])
            assert moved[name].dtype == batch[name].dtype
        assert torch.equal(moved["nested"]["x"], batch["nested"]["x"])
    rows = {
        leaf.untyped_storage().data_ptr() for name, leaf in moved.items() if name in ("float32", "float64", "int16")
    }
    assert len(rows) == 1  # views of one copy


# -- how much stands between a sampler and its batch -----------------------------------------------------------


@pytest.mark.parametrize("backend", [NumpyComputeBackend, PyTorchComputeBackend], ids=str)
def test_a_batch_takes_few_calls(backend: Any) -> None:
    """Of our own functions, however many samples and columns the batch has."""
    columns = {name: BoxSpace(backend, -1e9, 1e9, "float32", shape=(3,)) for name in "abcdef"}
    buffer = ReplayBuffer.create(DictSpace(backend, columns), capacity=1000)
    buffer.extend({name: backend.zeros((1000, 3), dtype=space.dtype) for name, space in columns.items()})
    sampler = StepSampler(buffer, 256, seed=0)
    sampler.sample()
    ours, calls = str(Path(unienv_data.__file__).parents[1]), []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        sampler.sample()
    finally:
        sys.setprofile(None)
    asks_jax = not hasattr(jax.extend.core, "get_opaque_trace_state")  # an older JAX: see `refuse_trace`
    assert len(calls) <= 18 + asks_jax, calls


# -- which samples they are ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_the_metadata_has_the_index_and_number_of_each_sample(backend: Any, prefetch: int) -> None:
    ring = filled(20, backend, capacity=20, maintain_segment_metadata=True)
    ring.extend(numbers(range(20, 26), backend))
    for data in (ring, ring.get_slice(slice(4, None)), ring.get_column(["number"])):
        sampler = StepSampler(data, 8, seed=0, prefetch=prefetch)
        found = [sampler.sample_with_metadata(), *sampler.epoch_iter_with_metadata()]
        assert found[0][1] in sampler.sampled_metadata_space
        for batch, metadata in found:
            values = backend.to_numpy(batch["number"] if isinstance(batch, dict) else batch)
            index, number = (backend.to_numpy(metadata[key]) for key in ("index", "number"))
            assert number.tolist() == values.tolist()  # a sample's value is its number here
            assert index.tolist() == (values - data.sample_numbers.start).tolist()
