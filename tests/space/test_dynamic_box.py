"""DynamicBoxSpace: sizes that vary, padding and its inverse, and what its constructor refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, FLOATS, INF, SPACES, assert_same, backend_cases, sample, samples, shapes, space_cases
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BoxSpace, DynamicBoxSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())
every_dynamic_box = pytest.mark.parametrize("space", space_cases("dynamic_box"))


def dynamic(backend: ComputeBackend = np_backend, **changes: Any) -> DynamicBoxSpace:
    arguments: dict[str, Any] = {
        "low": 0,
        "high": 1,
        "shape_low": (1, 2),
        "shape_high": (3, 2),
        "dtype": "float32",
    } | changes
    return DynamicBoxSpace(backend, **arguments)


# -- sizes -------------------------------------------------------------------------------------------------


@every_backend
def test_members_have_a_shape_between_the_limits(backend: ComputeBackend) -> None:
    space = dynamic(backend, shape_high=(None, 2))
    assert space.shape is None
    for shape, member in (
        ((1, 2), True),
        ((7, 2), True),
        ((0, 2), False),
        ((1, 3), False),
        ((1,), False),
        ((1, 2, 1), False),
    ):
        assert space.shape_contains(shape) is member
        assert (backend.zeros(shape, dtype=space.dtype) in space) is member


@pytest.mark.parametrize("space", space_cases("dynamic_box", backends=BACKENDS[:2]))
def test_samples_reach_the_ends_of_every_axis(space: DynamicBoxSpace) -> None:
    found = [tuple(value.shape) for value in samples(space, 80)]
    for axis, (least, most) in enumerate(zip(space.shape_low, space.shape_high, strict=True)):
        sizes = {shape[axis] for shape in found}
        assert min(sizes) == least
        assert (len(sizes) > 2) if most is None else (max(sizes) == most)


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if str(backend) != "jax"], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int64", "uint64"])
def test_the_whole_range_of_a_dtype_is_sampled(backend: ComputeBackend, dtype: str) -> None:
    limits = np.iinfo(dtype)
    whole = DynamicBoxSpace(backend, -INF, INF, (300,), (400,), dtype)
    drawn = backend.to_numpy(sample(whole))
    assert len(np.unique(drawn)) > 100
    top = DynamicBoxSpace(backend, int(limits.max) - 1, int(limits.max), (300,), (400,), dtype)
    assert set(backend.to_numpy(sample(top)).tolist()) == {int(limits.max) - 1, int(limits.max)}


@every_dynamic_box
def test_create_empty_has_the_smallest_shape(space: DynamicBoxSpace) -> None:
    empty = space.create_empty()
    assert tuple(empty.shape) == space.shape_low
    assert empty.dtype == space.dtype


@every_backend
def test_bounds_hold_along_a_varying_axis_and_per_entry_along_others(backend: ComputeBackend) -> None:
    space = dynamic(backend, low=[[0.0, -1.0]], high=[1.0, INF])
    assert tuple(space.low.shape) == tuple(space.high.shape) == (1, 2)
    assert backend.to_numpy(space.get_low((3, 2))).tolist() == [[0, -1]] * 3
    assert backend.to_numpy(space.get_high((2, 2))).tolist() == [[1, INF]] * 2
    assert space.of_shape((2, 2)) == BoxSpace(backend, [0, -1], [1, INF], "float32", shape=(2, 2))
    good = backend.from_numpy(np.array([[0, -1], [1, 50]], np.float32))
    assert good in space
    assert -good not in space


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    space = dynamic(backend)
    assert dynamic(backend, shape_low=(2, 2)).is_subspace(space)
    assert dynamic(backend, shape_high=(2, 2)).is_subspace(space)
    assert dynamic(backend, high=0.5).is_subspace(space)
    assert space.is_subspace(dynamic(backend, shape_high=(None, 2)))
    assert space.is_subspace(dynamic(backend, shape_low=(1, 0), shape_high=(3, 4)))
    assert space.is_subspace(dynamic(backend, low=-INF, high=INF))
    assert space.is_subspaceeq(dynamic(backend, fill_value=7))
    assert not dynamic(backend, shape_high=(None, 2)).is_subspaceeq(space)
    assert not dynamic(backend, shape_low=(0, 2)).is_subspaceeq(space)
    assert not dynamic(backend, shape_low=(1,), shape_high=(3,)).is_subspaceeq(space)
    assert not dynamic(backend, dtype="float16").is_subspaceeq(space)
    assert not dynamic(backend, high=[[1, 2]]).is_subspaceeq(space)
    assert not space.of_shape((2, 2)).is_subspaceeq(space)


@given(shapes, st.integers(1, 3), st.data())
def test_samples_of_any_dynamic_box_are_members_and_in_larger_ones(shape: Any, more: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape)))
    least = (*shape[:axis], 1, *shape[axis:])
    most = (*shape[:axis], 1 + more, *shape[axis:])
    space = dynamic(shape_low=least, shape_high=most)
    larger = dynamic(shape_low=least, shape_high=(*most[:axis], None, *most[axis + 1 :]), high=2)
    for value in samples(space, 3):
        assert value in space
        assert value in larger
    assert space.is_subspace(larger)


# -- padding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", space_cases("dynamic_box", where=lambda space: None not in space.shape_high))
def test_padding_is_undone_exactly_with_the_shape(space: DynamicBoxSpace) -> None:
    for value in samples(space, 2 if space.backend.simplified_name == "jax" else 20):
        padded = space.pad_data(value)
        assert tuple(padded.shape) == space.shape_high
        assert padded.dtype == value.dtype
        assert_same(space, space.unpad_data(padded, shape=value.shape), value)


@pytest.mark.parametrize("name", ["dynamic_box_axes", "dynamic_box_int", "dynamic_box_bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
def test_padding_outside_the_bounds_is_undone_without_the_shape(backend: ComputeBackend, name: str) -> None:
    space = SPACES[name](backend)
    for value in samples(space, 20):
        if 0 not in value.shape:  # what has no entries cannot be told from padding
            assert_same(space, space.unpad_data(space.pad_data(value)), value)


@every_backend
def test_padding_that_could_be_data_is_never_stripped(backend: ComputeBackend) -> None:
    space = dynamic(backend)
    value = backend.zeros((2, 2), dtype=space.dtype)
    padded = space.pad_data(value)
    with pytest.raises(ValueError) as error:
        space.unpad_data(padded)
    assert str(error.value) == (
        "fill_value 0 lies within the bounds, so padding cannot be told from data: pass shape=, "
        "or give the space a fill_value outside its bounds"
    )
    assert_same(space, space.unpad_data(padded, shape=(2, 2)), value)


@every_backend
def test_the_helpers_of_one_axis(backend: ComputeBackend) -> None:
    data = backend.from_numpy(np.array([[1, 2], [3, 0]], np.int32))
    padded = DynamicBoxSpace.pad_array_on_axis(backend, data, -1, 4, 0)
    assert backend.to_numpy(padded).tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert DynamicBoxSpace.get_array_axis_length(backend, padded, -1, 0) == 2
    assert DynamicBoxSpace.get_array_axis_length(backend, padded, 1, 7) == 4
    assert_same(None, DynamicBoxSpace.unpad_array_on_axis(backend, padded, -1, 0), data)
    with pytest.raises(ValueError, match="axis 1 has size 2, it cannot be padded to 1"):
        DynamicBoxSpace.pad_array_on_axis(backend, data, 1, 1)


def test_only_the_axes_asked_for_are_padded() -> None:
    space = dynamic(shape_low=(1, 1), shape_high=(3, 4))
    value = np.ones((2, 2), np.float32)
    assert space.pad_data(value, 1).shape == (2, 4)
    assert space.pad_data(value, 0, 1).shape == (3, 2)
    with pytest.raises(ValueError, match="axis 0 has no limit, so there is no size to pad it to"):
        dynamic(shape_high=(None, 2)).pad_data(value)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_fill_value_is_rounded_to_the_dtype(dtype: str) -> None:
    space = dynamic(low=1, high=2, dtype=dtype, fill_value=0.1)
    held = np_backend.to_host(np_backend.from_host(np.array(0.1), space.dtype))
    assert space.fill_value == held.item()
    value = sample(space.of_shape((2, 2)))
    assert_same(space, space.unpad_data(space.pad_data(value)), value)


# -- errors and text ---------------------------------------------------------------------------------------

MISMATCHES: dict[str, tuple[Any, str]] = {
    "list": ([[0, 0]], "x: list, the space wants an array of numpy"),
    "dtype": (np.zeros((1, 2)), "x: dtype float64, the space wants float32"),
    "shape": (np.zeros((4, 2), np.float32), "x: shape (4, 2), the space wants (1, 2) to (3, 2)"),
    "value": (np.full((2, 2), 5, np.float32), "x: value 5.0 at (0, 0) is outside [0.0, 1.0]"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatches_in_words(case: str) -> None:
    value, text = MISMATCHES[case]
    assert describe_mismatch(dynamic(), value, "x") == text


CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "fixed": (ValueError, "shape (1, 2) does not vary: use BoxSpace", {"shape_high": (1, 2)}),
    "lengths": (ValueError, "shape_low (1, 2) and shape_high (3,) differ in length", {"shape_high": (3,)}),
    "crossed": (ValueError, "axis 0: sizes from 1 to 0, they want 0 <= low <= high", {"shape_high": (0, 2)}),
    "negative": (ValueError, "shape_low (-1, 2) has a negative size", {"shape_low": (-1, 2)}),
    "none_below": (
        TypeError,
        "shape_low is (None, 2), it wants a sequence of integers",
        {"shape_low": (None, 2)},
    ),
    "float": (TypeError, "shape_high is (3.5, 2), it wants a sequence of integers", {"shape_high": (3.5, 2)}),
    "dtype_missing": (TypeError, "dtype is None, an array space wants a dtype, such as 'float32'", {"dtype": None}),
    "dtype_bool": (ValueError, "dtype is bool, a dynamic box holds real numbers", {"dtype": "bool"}),
    "dtype_complex": (ValueError, "dtype is complex64, a dynamic box holds real numbers", {"dtype": "complex64"}),
    "bounds_along_a_varying_axis": (
        ValueError,
        "low has shape (3, 2), which does not broadcast to (1, 2)",
        {"low": np.zeros((3, 2))},
    ),
    "crossed_bounds": (ValueError, "low 0.0 is above high -1.0 at (0, 0), low must not exceed high", {"high": -1}),
    "fill_value": (
        ValueError,
        "fill_value nan is not an integer from -128 to 127, the range of int8",
        {"dtype": "int8", "fill_value": np.nan},
    ),
    "fill_value_fraction": (
        ValueError,
        "fill_value 0.5 is not an integer from -128 to 127, the range of int8",
        {"dtype": "int8", "fill_value": 0.5},
    ),
    "fill_value_large": (ValueError, "fill_value 1e+39 is beyond the range of float32", {"fill_value": 1e39}),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, changes = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        dynamic(**changes)
    assert str(error.value) == text


def test_the_text_of_a_dynamic_box() -> None:
    space = dynamic(shape_high=(None, 2))
    assert repr(space) == (
        "DynamicBoxSpace(low=0.0, high=1.0, shape_low=(1, 2), shape_high=(None, 2), fill_value=0, "
        "dtype=float32, backend=numpy)"
    )
    assert str(space) == "DynamicBox([0.0, 1.0], (1, 2)..(None, 2), backend=numpy)"
