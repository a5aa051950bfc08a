"""BinarySpace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import backend_cases, sample

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BinarySpace, BoxSpace

every_backend = pytest.mark.parametrize("backend", backend_cases())


@every_backend
def test_members_are_boolean_arrays_of_the_shape(backend: ComputeBackend) -> None:
    space = BinarySpace(backend, (2, 3))
    assert space.dtype == backend.dtype_from_name("bool")
    assert backend.zeros((2, 3), dtype=space.dtype) in space
    assert backend.zeros((3, 2), dtype=space.dtype) not in space
    assert backend.zeros((2, 3), dtype=backend.dtype_from_name("uint8")) not in space
    assert [[False] * 3] * 2 not in space


@every_backend
def test_both_values_come_up_equally_often(backend: ComputeBackend) -> None:
    drawn = backend.to_numpy(sample(BinarySpace(backend, (4000,))))
    assert abs(drawn.mean() - 0.5) < 0.04


@every_backend
def test_is_always_bounded(backend: ComputeBackend) -> None:
    assert BinarySpace(backend, ()).is_bounded()


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    space = BinarySpace(backend, (3,))
    assert space.is_subspaceeq(BinarySpace(backend, [3], backend.dtype_from_name("bool")))
    assert not space.is_subspaceeq(BinarySpace(backend, (1, 3)))
    assert not space.is_subspaceeq(BoxSpace(backend, 0, 1, "uint8", shape=(3,)))


def test_mismatches_in_words() -> None:
    space = BinarySpace(NumpyComputeBackend, (3,))
    assert describe_mismatch(space, np.zeros(3), "done") == "done: dtype float64, the space wants bool"
    assert describe_mismatch(space, np.zeros(2, bool)) == "shape (2,), the space wants (3,)"
    assert describe_mismatch(space, None, "done") == "done: NoneType, the space wants an array of numpy"


CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "dtype": (
        ValueError,
        "dtype is uint8, a BinarySpace holds booleans: use BoxSpace for numbers",
        {"dtype": "uint8"},
    ),
    "shape_negative": (ValueError, "shape (-3,) has a negative size", {"shape": (-3,)}),
    "shape_number": (TypeError, "shape is 3, it wants a sequence of integers", {"shape": 3}),
    "shape_missing": (TypeError, "shape is None, it wants a sequence of integers", {"shape": None}),
    "backend": (
        TypeError,
        "backend is None, wanted a ComputeBackend such as NumpyComputeBackend",
        {"backend": None},
    ),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, changes = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        BinarySpace(**{"backend": NumpyComputeBackend, "shape": (3,)} | changes)
    assert str(error.value) == text


def test_the_text_of_a_binary_space() -> None:
    space = BinarySpace(NumpyComputeBackend, (2,))
    assert repr(space) == "BinarySpace(shape=(2,), backend=numpy)"
    assert str(space) == "Binary((2,), backend=numpy)"
