"""BatchedSpace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, SPACES, backend_cases, sample, samples

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BatchedSpace, BoxSpace, TextSpace, TupleSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())


def objects(*items: Any) -> np.ndarray:
    array = np.empty(len(items), object)
    for position, item in enumerate(items):
        array[position] = item
    return array


def test_members_are_object_arrays_of_values() -> None:
    space = BatchedSpace(TextSpace(np_backend, 3), (2,))
    assert objects("a", "") in space
    assert objects("a", "abcd") not in space
    assert objects("a") not in space
    assert objects("a", "b").reshape(2, 1) not in space
    assert np.array(["a", "b"]) not in space
    assert ["a", "b"] not in space


def test_every_entry_is_asked() -> None:
    space = BatchedSpace(TextSpace(np_backend, 3), (4,))
    for position in range(4):
        value = objects("a", "b", "c", "d")
        value[position] = 5
        assert describe_mismatch(space, value, "task") == f"task/[{position}]: int, the space wants a string"


def test_a_size_of_none_stands_for_any() -> None:
    space = BatchedSpace(TextSpace(np_backend, 3), (None, 2))
    assert space.shape is None
    assert BatchedSpace(TextSpace(np_backend, 3), (3, 2)).shape == (3, 2)
    assert {value.shape[0] for value in samples(space, 50)} >= {0, 1, 2}
    assert {value.shape[1] for value in samples(space, 50)} == {2}
    assert space.create_empty().shape == (0, 2)
    assert np.empty((0, 2), object) in space
    assert np.empty((0, 3), object) not in space


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
@pytest.mark.parametrize("name", ["batched_text", "dict_nested", "box_scalar", "tuple_mixed", "dynamic_box"])
def test_values_of_any_kind_are_kept_whole(backend: ComputeBackend, name: str) -> None:
    space = BatchedSpace(SPACES[name](backend), (2,))
    value = sample(space)
    assert value.shape == (2,)
    assert all(item in space.single_space for item in value)
    assert value in space


def test_moving_data_makes_a_new_array() -> None:
    for backend in BACKENDS:
        space = BatchedSpace(TextSpace(np_backend, 3), (2,))
        value = sample(space)
        moved = space.data_to(value, backend)
        moved[0] = "changed"
        assert value in space


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    short, long = TextSpace(backend, 2), TextSpace(backend, 3)
    space = BatchedSpace(long, (2,))
    assert BatchedSpace(short, (2,)).is_subspace(space)
    assert space.is_subspace(BatchedSpace(long, (None,)))
    assert not BatchedSpace(long, (None,)).is_subspaceeq(space)
    assert not BatchedSpace(short, (3,)).is_subspaceeq(space)
    assert not BatchedSpace(short, (2, 1)).is_subspaceeq(space)
    assert not BatchedSpace(BatchedSpace(short, (2,)), ()).is_subspaceeq(space)
    assert not short.is_subspaceeq(space)


def test_mismatches_in_words() -> None:
    space = BatchedSpace(TextSpace(np_backend, 3), (None, 2))
    assert describe_mismatch(space, "abc", "t") == "t: str, the space wants a NumPy array of objects"
    assert describe_mismatch(space, np.empty(2, object), "t") == "t: shape (2,), the space wants a batch of (None, 2)"


DEFAULTS: dict[str, Any] = {"single_space": TextSpace(np_backend, 3), "batch_shape": (2,)}
CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "single": (TypeError, "single_space is int, a BatchedSpace wants a space", {"single_space": 3}),
    "negative": (ValueError, "batch_shape (2, -1) has a negative size", {"batch_shape": (2, -1)}),
    "number": (TypeError, "batch_shape is 3, it wants a sequence of integers", {"batch_shape": 3}),
    "float": (TypeError, "batch_shape is (0.5,), it wants a sequence of integers", {"batch_shape": (0.5,)}),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, changes = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        BatchedSpace(**DEFAULTS | changes)
    assert str(error.value) == text


def test_the_text_of_a_batched_space() -> None:
    space = BatchedSpace(TupleSpace(np_backend, []), (2, None))
    assert repr(space) == "BatchedSpace(TupleSpace((), backend=numpy), batch_shape=(2, None))"
    free = BatchedSpace(BoxSpace(np_backend, -np.inf, np.inf, "float32"), (2,))
    assert not free.is_bounded()
