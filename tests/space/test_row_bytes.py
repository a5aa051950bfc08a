"""Values as the bytes of their row: just those that `pack` writes, or None where only `pack` can say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import space_cases
from hypothesis import given
from hypothesis import strategies as st
from row_cases import NUMPY, box, zeroed

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_space, batch_utils
from unienv_interface.space.spaces import BinarySpace, DictSpace, TextSpace, TupleSpace


def number_space(dtype: str) -> Space:
    return BinarySpace(NUMPY, ()) if dtype == "bool" else box(dtype=dtype)


SPACE = DictSpace(
    NUMPY,
    {
        "flag": number_space("bool"),
        "byte": number_space("uint8"),
        "count": number_space("int64"),
        "half": number_space("float16"),
        "reward": number_space("float32"),
        "time": number_space("float64"),
        "nested": DictSpace(NUMPY, {"obs": box(3), "empty": box(0)}),
        "pair": TupleSpace(NUMPY, [box(2, 2, dtype="int16"), box(dtype="uint32")]),
    },
)


def packed(layout: RowLayout, value: Any) -> bytes:
    rows = layout.wrap(np.zeros(1, layout.dtype))  # with nothing between the fields
    layout.pack(rows, 0, value)
    return rows.records.tobytes()


@pytest.mark.parametrize("space", space_cases(backends=[NUMPY]))
def test_the_bytes_of_a_sample_are_those_of_its_row(space: Space) -> None:
    layout = RowLayout(space)
    _, value = space.sample(NUMPY.random.random_number_generator(0))
    found = layout.encode_row(value)
    if found is not None:
        assert found == packed(layout, value)


numbers = st.fixed_dictionaries(
    {
        "flag": st.booleans() | st.booleans().map(np.bool_),
        "byte": st.integers(0, 255) | st.integers(0, 255).map(np.uint8),
        "count": st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**63), 2**63 - 1).map(np.int64),
        "half": st.floats(-65504, 65504) | st.floats(width=16) | st.floats(width=16).map(np.float16),
        "reward": st.floats(-1e30, 1e30) | st.floats(width=32).map(np.float32),
        "time": st.floats() | st.floats().map(np.float64),
    }
)


@given(numbers)
def test_numbers_of_numpy_and_of_python_are_packed(value: dict[str, Any]) -> None:
    layout = RowLayout(SPACE)
    whole = {
        **value,
        "nested": {"obs": np.arange(3, dtype=np.float32), "empty": np.zeros(0, np.float32)},
        "pair": (np.arange(8, dtype=np.int16).reshape(2, 4)[:, ::2], np.uint32(7)),  # not contiguous
    }
    found = layout.encode_row(whole)
    assert found is not None
    rows = zeroed(layout, 1)
    rows.records.view(np.uint8)[:] = np.frombuffer(found, np.uint8)
    expected = zeroed(layout, 1)
    layout.pack(expected, 0, whole)
    for ours, theirs in zip(rows.columns, expected.columns, strict=True):
        np.testing.assert_array_equal(ours, theirs)


FITTING = {"a": np.zeros(2, np.float32), "b": 1.0, "c": 3}
OTHERS = {
    "another_dtype": {**FITTING, "a": np.zeros(2)},
    "another_shape": {**FITTING, "a": np.zeros((2, 1), np.float32)},
    "a_list": {**FITTING, "a": [0.0, 0.0]},
    "a_fraction_for_an_integer": {**FITTING, "c": 3.5},
    "an_integer_for_a_float": {**FITTING, "b": 1},
    "a_bool_for_an_integer": {**FITTING, "c": True},
    "too_large_for_an_integer": {**FITTING, "c": 2**40},
    "too_large_for_a_float": {**FITTING, "b": 1e300},
    "just_too_large_for_a_float": {**FITTING, "b": 3.4028235e38},
    "an_array_for_a_number": {**FITTING, "b": np.float32(1)[None]},
    "a_matrix": {**FITTING, "a": np.zeros((1, 2), np.float32).view(np.matrix)},
    "a_key_too_few": {"a": FITTING["a"], "b": 1.0},
    "a_key_too_many": {**FITTING, "d": 1},
    "no_dict": (1, 2, 3),
    "nothing": None,
}


@pytest.mark.parametrize("value", OTHERS.values(), ids=OTHERS)
def test_what_is_not_just_so_is_left_to_encode(value: Any) -> None:
    layout = RowLayout(DictSpace(NUMPY, {"a": box(2), "b": box(), "c": box(dtype="int32")}))
    assert layout.encode_row(FITTING) == packed(layout, FITTING)
    assert layout.encode_row(value) is None
    assert layout.encode_row(FITTING) is not None  # and it is not remembered as good


def test_the_shapes_of_arrays_are_looked_at_every_time() -> None:
    layout = RowLayout(box(2))
    assert layout.encode_row(np.zeros(2, np.float32)) is not None
    assert layout.encode_row(np.zeros(3, np.float32)) is None
    assert layout.encode_row(np.zeros(2, np.float64)) is None


def test_layouts_with_more_than_plain_records_have_no_such_bytes() -> None:
    for space in (TextSpace(NUMPY, 5), box(2000), DictSpace(NUMPY, {}), box(2, dtype="complex64")):
        layout = RowLayout(space)
        _, value = space.sample(NUMPY.random.random_number_generator(0))
        assert layout.encode_row(value) is None


@pytest.mark.parametrize("space", space_cases(backends=[NUMPY]))
def test_leaves_of_a_batch_are_those_that_encode_gives(space: Space) -> None:
    layout = RowLayout(space)
    _, value = batch_space(space, 3).sample(NUMPY.random.random_number_generator(0))
    if not layout.has_plain_records:
        assert layout.encode_leaves([None] * len(layout.leaves), 3) is None
        return
    encoded = layout.encode(value, (3,))
    found = layout.encode_leaves(encoded, 3)
    assert found is not None
    assert all(ours is theirs for ours, theirs in zip(found, encoded, strict=True))
    if encoded:
        assert layout.encode_leaves(encoded, 4) is None
        assert layout.encode_leaves([None, *encoded[1:]], 3) is None


@pytest.mark.parametrize("space", space_cases(backends=[NUMPY]))
def test_rows_of_a_scratch_are_those_of_each_value(space: Space) -> None:
    layout, rng = RowLayout(space), NUMPY.random.random_number_generator(0)
    scratch = layout.scratch(3)
    if not layout.leaves:
        assert scratch is None
        return
    for _ in range(2):  # it is used again and again
        rng, batch = batch_space(space, 3).sample(rng)
        singles = [layout.encode_row(value) for value in batch_utils.iterate(batch_space(space, 3), batch)]
        if scratch is None:
            assert singles == [None] * 3
        else:
            assert [bytes(row) for row in scratch.fill(layout.encode(batch, (3,)))] == singles
