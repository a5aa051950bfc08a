"""UnionSpace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, SPACES, backend_cases, sample, samples

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BoxSpace, TextSpace, TupleSpace, UnionSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())


def test_members_are_pairs_of_an_index_and_a_value() -> None:
    space = UnionSpace(np_backend, [TextSpace(np_backend, 3), TupleSpace(np_backend, [])])
    assert (0, "ab") in space
    assert (np.int8(1), ()) in space
    wrong = [
        (1, "ab"),
        (0, ()),
        (2, ()),
        (-1, ()),
        (True, ()),
        (1.0, ()),
        ("0", "ab"),
        [0, "ab"],
        (0,),
        (0, "a", 1),
        "ab",
    ]
    assert all(value not in space for value in wrong)


@every_backend
def test_alternatives_are_drawn_evenly(backend: ComputeBackend) -> None:
    space = UnionSpace(backend, [TextSpace(backend, 0)] * 3)
    indices = [index for index, _ in samples(space, 300)]
    assert all(type(index) is int for index in indices)
    assert np.bincount(indices, minlength=3).min() > 60


def test_create_empty_is_of_the_first_alternative() -> None:
    index, value = SPACES["union"](np_backend).create_empty()
    assert index == 0
    assert value.shape == (3,)


def test_is_bounded_if_all_alternatives_are() -> None:
    free, bounded = SPACES["box_free"](np_backend), SPACES["box_float32"](np_backend)
    assert UnionSpace(np_backend, [bounded, bounded]).is_bounded()
    assert not UnionSpace(np_backend, [bounded, free]).is_bounded("below")


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    small, large = (BoxSpace(backend, 0, high, "float32") for high in (1, 2))
    text = TextSpace(backend, 3)
    space = UnionSpace(backend, [large, text])
    assert UnionSpace(backend, [small, text]).is_subspace(space)
    assert not UnionSpace(backend, [text, small]).is_subspaceeq(space)  # by position
    assert not UnionSpace(backend, [small]).is_subspaceeq(space)
    assert not UnionSpace(backend, [small, text, text]).is_subspaceeq(space)
    assert not large.is_subspaceeq(space)


@every_backend
def test_a_device_reaches_the_alternatives(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    space = UnionSpace(backend, SPACES["union"](backend), device=device)
    assert all(backend.same_device(child.device, device) for child in space)
    assert backend.same_device(UnionSpace(backend, space).device, device)


def test_is_read_like_a_sequence() -> None:
    space = SPACES["union"](np_backend)
    assert len(space) == len([*space]) == 4
    assert space[1] == SPACES["text_ascii"](np_backend)


def test_mismatches_in_words() -> None:
    space = SPACES["union_same"](np_backend)
    value = sample(space[0])
    assert describe_mismatch(space, value, "u") == "u: ndarray, the space wants a pair of an index and a value"
    assert describe_mismatch(space, (2, value), "u") == "u: alternative 2, the space has 0 to 1"
    assert describe_mismatch(space, (1, value + 9), "u") == f"u/1: value {value[0] + 9} at (0,) is outside [-1, 2]"


CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, Any]] = {
    "empty": (ValueError, "a UnionSpace wants at least one alternative", []),
    "child": (TypeError, "1: int, the alternatives of a UnionSpace are spaces", [TextSpace(np_backend, 3), 5]),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, spaces = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        UnionSpace(np_backend, spaces)
    assert str(error.value) == text


def test_alternatives_of_another_backend_are_refused() -> None:
    for other in BACKENDS[1:]:
        with pytest.raises(ValueError, match=f"0: backend {other}, the UnionSpace wants numpy"):
            UnionSpace(np_backend, [TextSpace(other, 3)])


def test_the_text_of_a_union() -> None:
    space = UnionSpace(np_backend, [TupleSpace(np_backend, []), TextSpace(np_backend, 1)])
    assert str(space) == "Union(Tuple(()) | Text(0..1, any), backend=numpy)"
