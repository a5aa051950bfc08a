"""Batches of every space of the catalogue: what goes in comes out, and what was handed over is not written to."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from batch_cases import JAX, MUTABLE, NUMPY, assert_holds, batch_of, cases
from catalogue import INF, assert_same, backend_cases, sample, samples, space_cases

from unienv_interface.backends import ComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.space_utils.batch_utils import (
    batch_size,
    batch_space,
    concatenate,
    get_at,
    iterate,
    merge_slots,
    set_at,
    split,
    take_slots,
    unbatch_spaces,
)
from unienv_interface.space.spaces import BatchedSpace, BoxSpace, DictSpace, GraphInstance, GraphSpace, TextSpace

every_space = pytest.mark.parametrize("space", cases("box_scalar", "dict_nested", "graph_fixed"))
every_backend = pytest.mark.parametrize("backend", backend_cases())

# Indices of four values, with the places they stand for.
INDICES: dict[str, tuple[Any, list[int]]] = {
    "slice": (slice(1, 3), [1, 2]),
    "open slice": (slice(2, None), [2, 3]),
    "stepped slice": (slice(0, None, 2), [0, 2]),
    "negative slice": (slice(-3, -1), [1, 2]),
    "index array": (np.array([3, 1]), [3, 1]),
    "negative index array": (np.array([-1, 0]), [3, 0]),
    "mask": (np.array([True, False, False, True]), [0, 3]),
}


def on_backend(backend: ComputeBackend, index: Any) -> Any:
    return backend.from_numpy(index) if isinstance(index, np.ndarray) else index


# -- a batch and the values in it --------------------------------------------------------------------------


@every_space
def test_batch_then_iterate_gives_back(space: Space) -> None:
    items = samples(space, 4)
    batch = batch_of(space, items)
    assert_holds(space, batch, items)
    for found, item in zip(split(batch_space(space, 4), batch), items, strict=True):
        assert_same(space, found, item)


@every_space
def test_concatenate_takes_the_single_or_the_batched_space(space: Space) -> None:
    items = samples(space, 3)
    assert_same(batch_space(space, 3), concatenate(space, items), concatenate(batch_space(space, 3), iter(items)))


@every_space
def test_batch_of_none_is_a_batch(space: Space) -> None:
    batched = batch_space(space, 0)
    assert batch_size(batched) == 0
    assert list(unbatch_spaces(batched)) == []
    assert list(iterate(batched, batched.create_empty())) == []
    assert list(split(batched, batched.create_empty())) == []
    assert batched.create_empty() in batched


@pytest.mark.parametrize("space", cases("box_scalar"))
def test_batches_can_be_batched(space: Space) -> None:
    pairs = [batch_of(space, items) for items in (samples(space, 2, seed=1), samples(space, 2, seed=2))]
    assert_holds(batch_space(space, 2), batch_of(batch_space(space, 2), pairs), pairs)


# -- part of a batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", cases())
def test_get_at(space: Space) -> None:
    items = samples(space, 4)
    batch = batch_of(space, items)
    for index, places in INDICES.values():
        wanted = [items[place] for place in places]
        assert_holds(space, get_at(space, batch, index), wanted)
        assert_holds(space, get_at(batch_space(space, 4), batch, on_backend(space.backend, index)), wanted)


@pytest.mark.parametrize("space", cases())
def test_set_at_merges_and_leaves_its_input_alone(space: Space) -> None:
    items, news = samples(space, 4), samples(space, 2, seed=7)
    batch, new = batch_of(space, items), batch_of(space, news)
    before, new_before = copy.deepcopy(batch), copy.deepcopy(new)
    for index, places in INDICES.values():
        wanted = [news[places.index(place)] if place in places else items[place] for place in range(4)]
        assert_holds(space, set_at(space, batch, index, new), wanted)
        assert_holds(space, set_at(batch_space(space, 4), batch, on_backend(space.backend, index), new), wanted)
    assert_same(batch_space(space, 4), batch, before)
    assert_same(batch_space(space, 2), new, new_before)


@pytest.mark.parametrize("space", [*cases(), *space_cases("box_scalar", "dict_nested", "text_ascii", backends=JAX)])
def test_slots_of_a_mask_are_taken_and_merged(space: Space) -> None:
    items, news = samples(space, 4), samples(space, 4, seed=7)
    batch, rows, every = batch_of(space, items), batch_of(space, [news[0], news[3]]), batch_of(space, news)
    before = copy.deepcopy((batch, rows, every))
    mask, places = INDICES["mask"]
    assert_holds(space, take_slots(space, batch, mask), [items[place] for place in places])
    for value in (rows, every):
        merged = merge_slots(space, batch, on_backend(space.backend, mask), value)
        assert_holds(space, merged, [news[i] if i in places else items[i] for i in range(4)])
    assert_same(None, (batch, rows, every), before)


def test_a_mask_of_the_host_merges_tensors_of_another_device() -> None:
    torch = pytest.importorskip("torch")
    backend = pytest.importorskip("unienv_interface.backends.pytorch").PyTorchComputeBackend
    space = BoxSpace(backend, -1.0, 1.0, "float32", device="meta", shape=(4, 2))
    batch, mask = torch.zeros(4, 2, device="meta"), torch.tensor(INDICES["mask"][0])
    assert merge_slots(space, batch, mask, batch + 1).device.type == "meta"


@pytest.mark.parametrize("space", space_cases("box_scalar", "text_ascii", "graph_fixed", backends=JAX))
@pytest.mark.parametrize("kind", ["index array", "mask", "slice"])
def test_get_and_set_on_jax(space: Space, kind: str) -> None:
    index, places = INDICES[kind]
    items, news = samples(space, 4), samples(space, 2, seed=7)
    batch, index = batch_of(space, items), on_backend(space.backend, index)
    assert_holds(space, get_at(space, batch, index), [items[place] for place in places])
    merged = set_at(space, batch, index, batch_of(space, news))
    assert_holds(space, merged, [news[places.index(i)] if i in places else items[i] for i in range(4)])


@every_space
def test_ints_drop_the_batch_axis_and_count_from_the_end_if_negative(space: Space) -> None:
    items, new = samples(space, 4), sample(space, seed=7)
    batch = batch_of(space, items)
    for index, place in ((1, 1), (-1, 3), (np.int64(2), 2), (-4, 0)):
        assert_same(space, get_at(space, batch, index), items[place])
        merged = set_at(space, batch, index, new)
        assert_holds(space, merged, [new if position == place else items[position] for position in range(4)])


@every_space
def test_an_int_beyond_the_batch_is_an_index_error(space: Space) -> None:
    items = samples(space, 4)
    batch = batch_of(space, items)
    for index in (4, -5):
        with pytest.raises(IndexError):
            get_at(space, batch, index)
        with pytest.raises(IndexError):
            set_at(space, batch, index, items[0])


@every_backend
def test_the_index_error_names_the_index_and_the_batch(backend: ComputeBackend) -> None:
    space = DictSpace(backend, {"a": BoxSpace(backend, 0, 1, "float32", shape=(3,))})
    with pytest.raises(IndexError, match=r"^index 7 is out of range for a batch of 3$"):
        get_at(space, {"a": backend.zeros((3, 3))}, 7)


@pytest.mark.parametrize("backend", MUTABLE, ids=str)
def test_ints_and_slices_give_views(backend: ComputeBackend) -> None:
    space = BoxSpace(backend, -INF, INF, "float32", shape=(3,))
    batch = backend.zeros((4, 3), dtype=space.dtype)
    get_at(space, batch, 2)[...] = 1
    get_at(space, batch, slice(0, 2))[...] = 2
    assert backend.to_numpy(batch)[:, 0].tolist() == [2, 2, 1, 0]


def test_a_graph_that_replaces_a_smaller_one_widens_the_batch() -> None:
    space = GraphSpace(NUMPY, BoxSpace(NUMPY, -9, 9, "float32", shape=()), is_edge=True, max_nodes=9)

    def line(length: int) -> GraphInstance:
        ends = np.stack([np.arange(length - 1), np.arange(1, length)], axis=-1)
        return GraphInstance(
            np.asarray(length), np.asarray(length - 1), np.arange(length, dtype=np.float32), None, ends.astype(np.int64)
        )

    batch = batch_of(space, [line(2), line(3)])
    assert_holds(space, set_at(space, batch, 0, line(5)), [line(5), line(3)])
    assert_holds(space, set_at(space, batch, slice(0, 1), batch_of(space, [line(2)])), [line(2), line(3)])


# -- stacking ----------------------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 3, 4)), (1, (3, 2, 4)), (-1, (3, 4, 2))])
def test_arrays_are_stacked_along_any_axis(backend: ComputeBackend, axis: int, shape: tuple[int, ...]) -> None:
    space = DictSpace(backend, {"a": BoxSpace(backend, 0, 2, "float32", shape=(3, 4))})
    items = [{"a": backend.full((3, 4), value, dtype=space["a"].dtype)} for value in (0, 1)]
    for described in (space, batch_space(space, 2)):
        stacked = concatenate(described, items, axis=axis)["a"]
        assert tuple(stacked.shape) == shape
        assert np.array_equal(backend.to_numpy(stacked), np.stack([np.zeros((3, 4)), np.ones((3, 4))], axis))


def test_batches_of_objects_are_stacked_along_any_axis() -> None:
    space = BatchedSpace(TextSpace(NUMPY, 1), (3,))
    items = [np.array(list(text), object) for text in ("abc", "xyz")]
    assert concatenate(space, items, axis=1).tolist() == [["a", "x"], ["b", "y"], ["c", "z"]]


@pytest.mark.parametrize("space", space_cases("text_ascii", "union", "dynamic_box", "graph", backends=[NUMPY]))
def test_what_has_no_axes_is_stacked_along_the_first(space: Space) -> None:
    with pytest.raises(ValueError, match=r"^axis is 1, values of .* can only be stacked along axis 0$"):
        concatenate(space, samples(space, 2), axis=1)


@pytest.mark.parametrize("space", space_cases(backends=[NUMPY]))
def test_nothing_cannot_be_stacked(space: Space) -> None:
    with pytest.raises(ValueError, match=r"^there are no values to stack$"):
        concatenate(space, [])
