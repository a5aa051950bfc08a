"""Flat values: exactly what went in comes out again, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import (
    BACKENDS,
    FLOATS,
    INF,
    INTEGERS,
    assert_same,
    backend_cases,
    boxes,
    sample,
    samples,
    space_cases,
)
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import Space, describe_mismatch
from unienv_interface.space.space_utils.batch_utils import batch_size, batch_space, concatenate
from unienv_interface.space.space_utils.flatten_utils import (
    flat_dim,
    flatten_data,
    flatten_space,
    is_flattenable,
    unflatten_data,
)
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)

NUMPY = NumpyComputeBackend
MUTABLE = [backend for backend in BACKENDS if backend.simplified_name != "jax"]

every_backend = pytest.mark.parametrize("backend", backend_cases())


def fits_a_float(space: Space) -> bool:
    """Whether the common dtype holds every value, which it does not where 64-bit integers lie beside floats."""
    return not (isinstance(space, DictSpace) and "int64" in space.keys() and "float64" in space.keys())  # noqa: SIM118


def assert_flattens(space: Space, value: Any, start_dim: int = 0) -> Any:
    flat_space, flat = flatten_space(space, start_dim), flatten_data(space, value, start_dim)
    assert describe_mismatch(flat_space, flat) is None
    assert space.backend.dtype_name(flat.dtype) == flat_space.dtype_name
    assert flat.shape[-1] == flat_dim(space, start_dim) == flat_space.shape[-1]
    assert_same(space, unflatten_data(space, flat, start_dim), value)
    return flat


# -- laws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", space_cases(backends=MUTABLE, where=lambda space: is_flattenable(space) and fits_a_float(space))
)
def test_flatten_then_unflatten_gives_back(space: Space) -> None:
    for value in samples(space, 3):
        assert assert_flattens(space, value).shape == (flat_dim(space),)


@pytest.mark.parametrize(
    "space",
    space_cases(
        "box_bfloat16", "box_int64", "box_complex64", "dict_nested", "union",
        backends=[backend for backend in BACKENDS if backend not in MUTABLE],
    ),
)  # fmt: skip
def test_flatten_then_unflatten_gives_back_on_jax(space: Space) -> None:
    assert_flattens(space, sample(space))


def is_flattenable_in_batches(space: Space) -> bool:
    batched = batch_space(space, 3)
    return batch_size(batched) is not None and is_flattenable(batched, 1) and fits_a_float(space)


@pytest.mark.parametrize("space", space_cases(backends=MUTABLE, where=is_flattenable_in_batches))
def test_a_batch_stays_a_batch(space: Space) -> None:
    items = samples(space, 3)
    batched, batch = batch_space(space, 3), concatenate(space, items)
    flat = assert_flattens(batched, batch, start_dim=1)
    assert flatten_space(batched, 1) == batch_space(flatten_space(space), 3)
    for row, item in zip(flat, items, strict=True):
        assert_same(None, row, flatten_data(space, item))


@pytest.mark.parametrize("space", space_cases(backends=MUTABLE, where=lambda space: not is_flattenable(space)))
def test_what_has_no_flat_form_says_so(space: Space) -> None:
    assert flat_dim(space) is None
    text = r"has no flat form that keeps the first 0 axes$"
    for refused in (
        lambda: flatten_space(space),
        lambda: flatten_data(space, sample(space)),
        lambda: unflatten_data(space, space.backend.zeros((3,))),
    ):
        with pytest.raises(ValueError, match=text):
            refused()


def test_which_kinds_have_no_flat_form() -> None:
    box = BoxSpace(NUMPY, 0, 1, "float32", shape=())
    for space in (
        TextSpace(NUMPY, 3),
        DynamicBoxSpace(NUMPY, 0, 1, (0,), (None,), "float32"),
        GraphSpace(NUMPY, box, max_nodes=3),
        BatchedSpace(TextSpace(NUMPY, 3, charset="ab"), (2,)),
    ):
        for holder in (space, UnionSpace(NUMPY, [box, space]), DictSpace(NUMPY, {"a": box, "b": {"c": space}})):
            assert not is_flattenable(holder)


@given(st.lists(boxes(), max_size=4), st.integers(0, 2**32 - 1))
def test_any_boxes_together(spaces: list[BoxSpace], seed: int) -> None:
    space = TupleSpace(NUMPY, spaces)
    value = sample(space, seed)
    try:
        flat = flatten_data(space, value)
    except OverflowError:
        assert any(box.dtype_name in ("int64", "uint64") for box in spaces)
        return
    assert flat in flatten_space(space)
    assert_same(space, unflatten_data(space, flat), value)


# -- order, length, leading axes ---------------------------------------------------------------------------


def test_the_order_of_the_keys_does_not_matter() -> None:
    box, flag = BoxSpace(NUMPY, 0, 9, "int32", shape=(2,)), BinarySpace(NUMPY, ())
    pairs = [("b", box), ("a", flag), ("c", {"z": flag, "y": box})]
    one, other = DictSpace(NUMPY, pairs), DictSpace(NUMPY, pairs[::-1])
    value = {
        "b": np.array([7, 8], np.int32),
        "a": np.asarray(True),
        "c": {"z": np.asarray(False), "y": np.array([1, 2], np.int32)},
    }
    assert flatten_data(one, value).tolist() == flatten_data(other, value).tolist() == [1, 7, 8, 1, 2, 0]
    assert flatten_space(one) == flatten_space(other)
    assert flatten_space(one).high.tolist() == [1, 9, 9, 9, 9, 1]


def test_a_union_has_as_many_numbers_whatever_the_alternative() -> None:
    space = UnionSpace(
        NUMPY,
        [BoxSpace(NUMPY, 3, 5, "int16", shape=(2,)), BinarySpace(NUMPY, ()), TupleSpace(NUMPY, ())],
    )
    assert flat_dim(space) == 3
    flat_space = flatten_space(space)
    assert (flat_space.low.tolist(), flat_space.high.tolist()) == ([0, 0, 0], [2, 5, 5])
    for value, flat in (
        ((0, np.array([3, 4], np.int16)), [0, 3, 4]),
        ((1, np.asarray(True)), [1, 1, 0]),
        ((2, ()), [2, 0, 0]),
    ):
        assert assert_flattens(space, value).tolist() == flat


@pytest.mark.parametrize(
    ("start_dim", "size"), [(0, 24), (1, 12), (2, 4), (3, 1), (4, None), (-1, None)]
)  # fmt: skip
def test_leading_axes(start_dim: int, size: int | None) -> None:
    space = BoxSpace(NUMPY, 0, np.arange(24.0).reshape(2, 3, 4), "float32")
    for nested in (space, DictSpace(NUMPY, {"a": space})):
        assert flat_dim(nested, start_dim) == size
        assert is_flattenable(nested, start_dim) == (size is not None)
    if size is None:
        with pytest.raises(ValueError, match=rf"has no flat form that keeps the first {start_dim} axes$"):
            flatten_data(space, sample(space), start_dim)
    else:
        flat = assert_flattens(space, sample(space), start_dim)
        assert flat.shape == (*space.shape[:start_dim], size)
        assert flatten_space(space, start_dim).high.tolist() == space.high.reshape(flat.shape).tolist()


def test_parts_must_share_their_leading_axes() -> None:
    space = DictSpace(NUMPY, {"a": BinarySpace(NUMPY, (2, 3)), "b": BinarySpace(NUMPY, (4, 3))})
    assert flat_dim(space) == 18
    assert not is_flattenable(space, 1)


def test_empty_parts_take_no_room_and_have_no_say() -> None:
    box = BoxSpace(NUMPY, 0, 9, "int8", shape=(3, 2))
    space = DictSpace(NUMPY, {"a": {}, "b": box, "c": (TupleSpace(NUMPY, [DictSpace(NUMPY)]))})
    assert flatten_space(space, 1) == flatten_space(box, 1)
    value = {"a": {}, "b": sample(box), "c": ({},)}
    for start_dim in (0, 1, 2):
        assert_flattens(space, value, start_dim)
    nothing = DictSpace(NUMPY, {"a": {}})
    assert (flat_dim(nothing), flat_dim(nothing, 1)) == (0, None)


def test_flat_data_of_another_length_is_refused() -> None:
    space = DictSpace(NUMPY, {"a": BinarySpace(NUMPY, (2,)), "b": BinarySpace(NUMPY, (3,))})
    for shape in ((4,), (6,), (2, 5), ()):
        with pytest.raises(ValueError, match=r"^shape \(.*\), flat values of .* want 5 along axis 0, the last$"):
            unflatten_data(space, np.zeros(shape, np.uint8))
    with pytest.raises(ValueError, match=r"want 3 along axis 1, the last$"):
        unflatten_data(BinarySpace(NUMPY, (2, 3)), np.zeros((2, 4), np.uint8), 1)


# -- dtypes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtypes", "common"),
    [
        (["float32", "int16"], "float32"),
        (["float32", "int32"], "float64"),
        (["uint8", "int8"], "int16"),
        (["float16", "bfloat16"], "float32"),
        (["bfloat16", "bfloat16"], "bfloat16"),
        (["int64", "uint64"], "float64"),
        (["complex64", "float32"], "complex64"),
        (["complex64", "int32", "float64"], "complex128"),
    ],
)
def test_the_common_dtype(dtypes: list[str], common: str) -> None:
    for backend in MUTABLE:
        space = TupleSpace(backend, [BoxSpace(backend, 0, 9, name, shape=(2,)) for name in dtypes if "c" not in name])
        free = [BoxSpace(backend, -INF, INF, name, shape=(1,)) for name in dtypes if "c" in name]
        space = TupleSpace(backend, [*space.spaces, *free])
        assert flatten_space(space).dtype_name == common
        assert_flattens(space, sample(space))


def test_bounds_are_those_of_the_parts_unless_there_are_complex_numbers() -> None:
    parts = [BoxSpace(NUMPY, -1, 1, "float32", shape=(2,)), BoxSpace(NUMPY, 0, [[3], [4]], "int8", shape=(2, 2))]
    mixed = flatten_space(TupleSpace(NUMPY, parts))
    assert (mixed.low.tolist(), mixed.high.tolist()) == ([-1, -1, 0, 0, 0, 0], [1, 1, 3, 3, 4, 4])
    complex_box = BoxSpace(NUMPY, -INF, INF, "complex64", shape=())
    for space in (TupleSpace(NUMPY, [*parts, complex_box]), UnionSpace(NUMPY, [*parts, complex_box])):
        assert not flatten_space(space).is_bounded("below")
        for value in samples(space, 5):
            assert_flattens(space, value)


@pytest.mark.parametrize("backend", MUTABLE, ids=str)
@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**62 + 1])
@pytest.mark.parametrize("other", ["float32", "complex64", "uint64"])
def test_an_integer_that_no_float_holds_is_an_overflow_error(backend: ComputeBackend, value: int, other: str) -> None:
    space = TupleSpace(
        backend, [BoxSpace(backend, -INF, INF, "int64", shape=(2,)), BoxSpace(backend, -INF, INF, other, shape=())]
    )
    integers = backend.from_numpy(np.array([0, value]))
    with pytest.raises(OverflowError, match=rf"^integer {value} of int64 has no exact value in (float64|complex128)$"):
        flatten_data(space, (integers, sample(space[1])))


@pytest.mark.parametrize("value", [2**64 - 1, 2**53 + 1, 2**63 + 1])
def test_an_unsigned_integer_that_no_float_holds_is_an_overflow_error(value: int) -> None:
    union = UnionSpace(NUMPY, [BoxSpace(NUMPY, -INF, INF, name, shape=(1,)) for name in ("uint64", "float32")])
    with pytest.raises(OverflowError, match=rf"^integer {value} of uint64 has no exact value in float64$"):
        flatten_data(union, (0, np.array([value], np.uint64)))


@pytest.mark.parametrize("value", [0, 2**53, -(2**53), 2**62, -(2**63), 3 * 2**60])
def test_large_integers_that_a_float_holds_are_kept(value: int) -> None:
    space = TupleSpace(NUMPY, [BoxSpace(NUMPY, -INF, INF, name, shape=(1,)) for name in ("int64", "float64")])
    assert_flattens(space, (np.array([value]), np.array([0.5])))


@every_backend
def test_data_of_a_narrower_dtype_comes_out_in_that_of_the_space(backend: ComputeBackend) -> None:
    space = DictSpace(backend, {"a": BoxSpace(backend, 0, 9, "int32", shape=(3,))})
    narrow = backend.asarray([1, 2, 3], dtype=backend.dtype_from_name("int8"))
    flat = flatten_data(space, {"a": narrow})
    assert backend.dtype_name(flat.dtype) == "int32"
    assert_same(space, unflatten_data(space, flat), {"a": backend.astype(narrow, space["a"].dtype)})


# -- arrays whose shape varies, texts ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_dynamic_boxes_of_every_dtype(dtype: str) -> None:
    for backend in MUTABLE:
        space = DynamicBoxSpace(backend, -INF, INF, (0, 2), (3, 2), dtype, fill_value=1)
        assert flat_dim(space) == 1 + 3 * 2
        for value in samples(space, 4):
            assert_flattens(space, value)


def test_the_sizes_come_first_and_the_filling_lies_in_the_box() -> None:
    space = DynamicBoxSpace(NUMPY, 5, 7, (0, 2), (3, 2), "int16", fill_value=-1)
    flat_space = flatten_space(space)
    assert (flat_space.low.tolist(), flat_space.high.tolist()) == ([0] + [-1] * 6, [3] + [7] * 6)
    value = np.array([[5, 6]], np.int16)
    assert assert_flattens(space, value).tolist() == [1, 5, 6, -1, -1, -1, -1]
    with pytest.raises(ValueError, match="cannot be padded to 3"):
        flatten_data(space, np.zeros((4, 2), np.int16))


def test_a_filling_of_nan_becomes_zero() -> None:
    space = DynamicBoxSpace(NUMPY, 5, 7, (0,), (3,), "float32", fill_value=np.nan)
    assert assert_flattens(space, np.array([6], np.float32)).tolist() == [1, 6, 0, 0]
    assert flatten_space(space).low.tolist() == [0, 0, 0, 0]


def test_sizes_that_need_more_bits_than_the_values() -> None:
    space = DynamicBoxSpace(NUMPY, 0, 1, (0,), (300,), "int8")
    assert flatten_space(space).dtype_name == "int32"
    assert_flattens(space, np.ones(299, np.int8))


def test_texts_become_the_places_of_their_characters() -> None:
    space = TextSpace(NUMPY, 4, charset="ba\0ä")
    assert assert_flattens(space, "ä\0").tolist() == [3, 0, 4, 4]
    assert (flatten_space(space).low.max(), flatten_space(space).high.min()) == (0, 4)
    assert_flattens(space, "")
    with pytest.raises(ValueError, match=r"^5 characters, the space wants at most 4$"):
        flatten_data(space, "aaaaa")
    with pytest.raises(ValueError, match=r"^character 'x' is not in the charset$"):
        flatten_data(space, "x")
    assert unflatten_data(space, np.array([-1, 1, 99, 2])) == "ab"  # as a network may put it


def test_a_union_of_many_alternatives() -> None:
    space = UnionSpace(NUMPY, [BinarySpace(NUMPY, ())] * 300)
    assert_flattens(space, (299, np.asarray(True)))
    with pytest.raises(ValueError, match=r"^alternative 300, the space has 0 to 299$"):
        unflatten_data(space, np.array([300, 0]))
    with pytest.raises(ValueError, match=r"^alternative -1, the space has 0 to 299$"):
        unflatten_data(space, np.array([-1, 0]))


def test_a_miss_says_what_to_register() -> None:
    with pytest.raises(
        TypeError,
        match=r"^flat_dim has no rule for str: register one with @flat_dim.register, of unienv_interface",
    ):
        flat_dim("space")
