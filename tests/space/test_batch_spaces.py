"""The spaces of batches: of one space or of several that differ, and those of the single values again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batch_cases import NUMPY, cases
from catalogue import INF, backend_cases, boxes, sample, samples, space_cases
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.space_utils.batch_utils import (
    batch_differing_spaces,
    batch_size,
    batch_size_data,
    batch_space,
    concatenate,
    iterate,
    unbatch_spaces,
)
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphInstance,
    TextSpace,
    TupleSpace,
)

BOX3 = BoxSpace(NUMPY, 0, 1, "float32", shape=(3,))
every_space = pytest.mark.parametrize("space", cases("box_scalar", "dict_nested", "graph_fixed"))
every_backend = pytest.mark.parametrize("backend", backend_cases())


@every_space
def test_batch_size_and_unbatched_spaces(space: Space) -> None:
    batched = batch_space(space, 4)
    assert batch_size(batched) == 4
    assert list(unbatch_spaces(batched)) == [space] * 4
    assert batch_size_data(concatenate(space, samples(space, 4))) == 4


@pytest.mark.parametrize("space", space_cases(where=lambda space: not isinstance(space, (BoxSpace, BinarySpace))))
def test_batch_of_equal_spaces_is_the_batch_of_one(space: Space) -> None:
    assert batch_differing_spaces([space, space]) == batch_space(space, 2)


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (BOX3, 3),
        (BoxSpace(NUMPY, 0, 1, "float32", shape=()), None),
        (TextSpace(NUMPY, 3), None),
        (DictSpace(NUMPY, {}), None),
        (DictSpace(NUMPY, {"a": BOX3, "b": BinarySpace(NUMPY, (3, 2))}), 3),
        (DictSpace(NUMPY, {"a": BOX3, "b": BinarySpace(NUMPY, (2, 3))}), None),
        (DictSpace(NUMPY, {"a": BOX3, "b": {}, "c": TupleSpace(NUMPY, ())}), 3),
        (DictSpace(NUMPY, {"a": BOX3, "b": TextSpace(NUMPY, 3)}), None),
        (BatchedSpace(TextSpace(NUMPY, 3), (None, 2)), None),
    ],
    ids=str,
)
def test_batch_size(space: Space, size: int | None) -> None:
    assert batch_size(space) == size
    if size is None:
        with pytest.raises(ValueError, match=r"has no batch axis that all its leaves share$"):
            unbatch_spaces(space)
        with pytest.raises(ValueError, match=r"has no batch axis that all its leaves share$"):
            iterate(space, None)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (np.zeros((4, 2)), 4),
        (np.zeros(()), None),
        ({"a": {}, "b": (np.zeros((5, 1)),)}, 5),
        (GraphInstance(np.zeros(6, np.int64)), 6),
        (["text", np.zeros(7)], 7),
        ("text", None),
        ({}, None),
        (3, None),
    ],
    ids=str,
)
def test_batch_size_of_data(data: Any, size: int | None) -> None:
    assert batch_size_data(data) == size


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        batch_space(BOX3, -1)
    with pytest.raises(TypeError, match="integers"):
        batch_space(BOX3, 1.5)


# -- batches of differing spaces ---------------------------------------------------------------------------


@every_backend
def test_bounds_are_kept_apart_for_each_place(backend: ComputeBackend) -> None:
    spaces = [BoxSpace(backend, -1.0, 1.0, "float32", shape=(3,)), BoxSpace(backend, 0.0, [2, 3, 4], "float32")]
    batched = batch_differing_spaces(spaces)
    assert batched.shape == (2, 3)
    assert backend.to_numpy(batched.low).tolist() == [[-1, -1, -1], [0, 0, 0]]
    assert backend.to_numpy(batched.high).tolist() == [[1, 1, 1], [2, 3, 4]]
    assert list(unbatch_spaces(batched)) == spaces


def test_bounds_are_kept_apart_in_nested_spaces() -> None:
    spaces = [
        DictSpace(NUMPY, [("b", BoxSpace(NUMPY, 0, size, "int32", shape=())), ("a", {"x": BinarySpace(NUMPY, (2,))})])
        for size in (5, 7)
    ]
    spaces[1] = DictSpace(NUMPY, dict(spaces[1].items()))  # the same keys in another order
    batched = batch_differing_spaces(spaces)
    assert list(batched.keys()) == ["b", "a"]
    assert batched["b"].high.tolist() == [5, 7]
    assert list(unbatch_spaces(batched)) == spaces


def test_dynamic_boxes_are_batched_in_the_smallest_that_holds_all() -> None:
    one = DynamicBoxSpace(NUMPY, [[0, 1, 2]], 9, (0, 3), (4, 3), "int32", fill_value=-1)
    other = DynamicBoxSpace(NUMPY, -5, [[3], [4]], (2, 2), (2, None), "int32", fill_value=-1)
    batched = batch_differing_spaces([one, other])
    assert batched == BatchedSpace(DynamicBoxSpace(NUMPY, -5, 9, (0, 2), (4, None), "int32"), (2,))
    assert batched.single_space.fill_value == -1
    for space in (one, other):
        assert sample(space) in batched.single_space


def test_dynamic_boxes_filled_with_nan_are_alike() -> None:
    space = DynamicBoxSpace(NUMPY, 0, 1, (0,), (4,), "float32", fill_value=np.nan)
    assert batch_differing_spaces([space, space]) == batch_space(space, 2)


def _dynamic(**changes: Any) -> DynamicBoxSpace:
    return DynamicBoxSpace(
        NUMPY, 0, 1, **{"shape_low": (0,), "shape_high": (4,), "dtype": "float32", "fill_value": 0} | changes
    )


@pytest.mark.parametrize(
    ("spaces", "text"),
    [
        ([], "there are no spaces to batch"),
        (
            [BOX3, BoxSpace(NUMPY, 0, 1, "float64", shape=(3,))],
            "space 1 has dtype_name float64, space 0 has dtype_name float32: they must agree",
        ),
        (
            [BOX3, BOX3, BoxSpace(NUMPY, 0, 1, "float32", shape=(2,))],
            "space 2 has shape (2,), space 0 has shape (3,): they must agree",
        ),
        (
            [BOX3, BinarySpace(NUMPY, (3,))],
            "space 1 is Binary((3,), backend=numpy), space 0 is Box([0.0, 1.0], (3,), backend=numpy): "
            "they must be of one kind and backend",
        ),
        (
            [DictSpace(NUMPY, {"a": BOX3}), DictSpace(NUMPY, {"b": BOX3})],
            "space 1 has the keys ['b'], space 0 has the keys ['a']: they must agree",
        ),
        (
            [TupleSpace(NUMPY, [BOX3]), TupleSpace(NUMPY, [BOX3, BOX3])],
            "space 1 has the keys [0, 1], space 0 has the keys [0]: they must agree",
        ),
        (
            [DictSpace(NUMPY, {"a": {"b": BinarySpace(NUMPY, (n,))}}) for n in (1, 2)],
            "a/b: space 1 is Binary((2,), backend=numpy), space 0 is Binary((1,), backend=numpy): they must be equal",
        ),
        (
            [DictSpace(NUMPY, {"a": TextSpace(NUMPY, n)}) for n in (1, 2)],
            "a: space 1 is Text(0..2, any, backend=numpy), space 0 is Text(0..1, any, backend=numpy): "
            "they must be equal",
        ),
        (
            [_dynamic(), _dynamic(fill_value=1)],
            "space 1 has fill_value 1, space 0 has fill_value 0: they must agree",
        ),
        (
            [TupleSpace(NUMPY, [_dynamic()]), TupleSpace(NUMPY, [_dynamic(shape_low=(0, 1), shape_high=(4, 1))])],
            "0: space 1 has a number of axes of 2, space 0 has a number of axes of 1: they must agree",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_batched_says_where_and_why(spaces: list[Space], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        batch_differing_spaces(spaces)
    assert str(caught.value) == text


@given(st.data())
def test_batched_boxes_come_apart_again(data: st.DataObject) -> None:
    first = data.draw(boxes())
    others = [
        BoxSpace(NUMPY, first.bounds.low, first.bounds.high, first.dtype, shape=first.shape),
        BoxSpace(NUMPY, -INF, INF, first.dtype, shape=first.shape),
    ]
    spaces = [first, *data.draw(st.lists(st.sampled_from(others), max_size=3))]
    batched = batch_differing_spaces(spaces)
    assert batched.shape == (len(spaces), *first.shape)
    assert list(unbatch_spaces(batched)) == spaces
    values = [sample(space) for space in spaces]
    batch = concatenate(batched, values)
    assert batch in batched
    assert all(np.array_equal(a, b) for a, b in zip(iterate(batched, batch), values, strict=True))


# -- a kind of space of one's own --------------------------------------------------------------------------


class Unknown(TextSpace):
    """A kind that has rules through its base class, but for what it registers itself."""


def test_a_kind_registers_its_own_rules() -> None:
    @batch_size.register
    def _(space: Unknown) -> int:
        return 42

    assert batch_size(Unknown(NUMPY, 1)) == 42
    assert batch_space(Unknown(NUMPY, 1), 2) == BatchedSpace(Unknown(NUMPY, 1), (2,))


def test_a_miss_says_what_to_register() -> None:
    with pytest.raises(
        TypeError,
        match=r"^batch_space has no rule for int: register one with @batch_space.register, of unienv_interface",
    ):
        batch_space(3)
