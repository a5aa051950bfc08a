"""TupleSpace."""

from __future__ import annotations

import collections
import copy

import numpy as np
import pytest
from catalogue import SPACES, backend_cases, sample

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, TupleSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())


def box(backend: ComputeBackend = np_backend, high: float = 1) -> BoxSpace:
    return BoxSpace(backend, 0, high, "float32", shape=(3,))


def test_members_are_tuples_of_the_same_length() -> None:
    space = TupleSpace(np_backend, [box(), box()])
    value = sample(space)
    pair = collections.namedtuple("pair", "a b")
    assert value in space
    assert pair(*value) in space
    assert list(value) not in space
    assert value[:1] not in space
    assert (*value, value[0]) not in space
    assert np.stack(value) not in space
    assert () in TupleSpace(np_backend, [])


def test_is_read_like_a_sequence() -> None:
    space = SPACES["tuple_mixed"](np_backend)
    assert len(space) == 3
    assert [*space] == [space[0], space[1], space[2]]
    assert space[-1] == SPACES["text_ascii"](np_backend)
    assert TupleSpace(np_backend, (child for child in space)) == space
    copied = copy.copy(space)
    assert copied is not space
    assert copied[0] is space[0]


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    small, large = box(backend), box(backend, high=2)
    space = TupleSpace(backend, [large, large])
    assert TupleSpace(backend, [small, large]).is_subspace(space)
    assert space.is_subspaceeq(space)
    assert not TupleSpace(backend, [large]).is_subspaceeq(space)
    assert not TupleSpace(backend, []).is_subspaceeq(space)
    assert not TupleSpace(backend, [large, large, large]).is_subspaceeq(space)
    assert not TupleSpace(backend, [small, box(backend, high=3)]).is_subspaceeq(space)
    assert not space.is_subspaceeq(DictSpace(backend, {"0": large, "1": large}))


@every_backend
def test_a_device_reaches_the_children(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    space = TupleSpace(backend, [box(backend), TupleSpace(backend, [box(backend)])], device=device)
    assert backend.same_device(space[1][0].device, device)
    assert backend.same_device(TupleSpace(backend, space).device, device)


def test_mismatches_in_words() -> None:
    space = TupleSpace(np_backend, [box(), DictSpace(np_backend, {"x": BinarySpace(np_backend, (3,))})])
    good = np.zeros(3, np.float32)
    assert describe_mismatch(space, [good, good], "a") == "a: list, the space wants a tuple of 2"
    assert describe_mismatch(space, (good,), "a") == "a: a tuple of 1, the space wants 2"
    assert describe_mismatch(space, (good, {"x": good}), "a") == "a/1/x: dtype float32, the space wants bool"


def test_constructor_errors() -> None:
    with pytest.raises(TypeError) as error:
        TupleSpace(np_backend, [box(), 3])  # type: ignore[list-item]
    assert str(error.value) == "1: int, the children of a TupleSpace are spaces"
    with pytest.raises(TypeError, match="backend is 3, wanted a ComputeBackend"):
        TupleSpace(3, [])  # type: ignore[arg-type]


def test_the_text_of_a_tuple() -> None:
    space = TupleSpace(np_backend, [BinarySpace(np_backend, ()), TupleSpace(np_backend, [])])
    assert repr(space) == "TupleSpace((BinarySpace(shape=()), TupleSpace(())), backend=numpy)"
    assert str(space) == "Tuple((Binary(()), Tuple(())), backend=numpy)"
