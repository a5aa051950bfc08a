"""Spaces found from data: everything that was looked at lies in the space."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    Space,
    TextSpace,
    TupleSpace,
    UnionSpace,
    describe_mismatch,
)
from unienv_interface.space.space_utils.construct_utils import (
    construct_space_from_data,
    construct_space_from_data_stream,
    reshape_to_broadcastable,
)

NUMPY, TORCH, JAX = NumpyComputeBackend, PyTorchComputeBackend, JaxComputeBackend
BACKENDS = [pytest.param(NUMPY, id="numpy"), pytest.param(TORCH, id="pytorch")]
INF = np.inf


def as_value(data: Any, space: Any) -> Any:
    """The data with Python numbers as the NumPy arrays that they stand for."""
    if isinstance(data, dict):
        return {key: as_value(value, space[key]) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(as_value(value, child) for value, child in zip(data, space.spaces, strict=True))
    return np.asarray(data, space.dtype) if isinstance(data, (int, float)) else data


def assert_all_inside(stream: list[Any], space: Space) -> None:
    for item in stream:
        assert describe_mismatch(space, as_value(item, space)) is None


# -- one value ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_kinds(backend: Any) -> None:
    data = {
        "image": backend.zeros((4, 3), dtype=backend.dtype_from_name("uint8")),
        "state": (backend.ones((2,), dtype=backend.dtype_from_name("float32")), "go", {}),
        "done": backend.zeros((3,), dtype=backend.dtype_from_name("bool")),
    }
    expected = DictSpace(
        backend,
        {
            "image": BoxSpace(backend, 0, 255, "uint8", shape=(4, 3)),
            "state": TupleSpace(
                backend,
                [
                    BoxSpace(backend, -INF, INF, "float32", shape=(2,)),
                    TextSpace(backend, 2),
                    DictSpace(backend, {}),
                ],
            ),
            "done": BinarySpace(backend, (3,)),
        },
    )
    space = construct_space_from_data(data, backend)
    assert space == expected
    assert data in space


def test_add_bounds_reaches_children() -> None:
    data = {"a": (np.array([1, 2]), {"b": np.float32(0.5), "t": "hello"})}
    space = construct_space_from_data(data, NUMPY, add_bounds=True)
    assert space["a"][0] == BoxSpace(NUMPY, np.array([1, 2]), np.array([1, 2]), "int64")
    assert space["a"][1]["b"] == BoxSpace(NUMPY, 0.5, 0.5, "float32", shape=())
    assert space["a"][1]["t"] == TextSpace(NUMPY, 5, min_length=5, charset="helo")
    assert construct_space_from_data_stream([data], NUMPY) == space


@pytest.mark.parametrize(
    ("backend", "integer", "floating"),
    [(NUMPY, "int64", "float64"), (TORCH, "int32", "float32"), (JAX, "int32", "float32")],
)
def test_python_numbers_take_the_default_dtypes(backend: Any, integer: str, floating: str) -> None:
    data = {"i": 3, "f": 0.5, "b": True, "l": [[1, 2], [3, 4]], "e": []}
    space = construct_space_from_data(data, backend)
    assert space == DictSpace(
        backend,
        {
            "i": BoxSpace(backend, -INF, INF, integer, shape=()),
            "f": BoxSpace(backend, -INF, INF, floating, shape=()),
            "b": BinarySpace(backend, ()),
            "l": BoxSpace(backend, -INF, INF, integer, shape=(2, 2)),
            "e": BoxSpace(backend, -INF, INF, floating, shape=(0,)),
        },
    )


def test_python_numbers_beyond_the_default_dtypes() -> None:
    assert construct_space_from_data(2**40, TORCH).dtype_name == "int64"
    assert construct_space_from_data(2**63, NUMPY).dtype_name == "uint64"
    assert construct_space_from_data(1e300, TORCH).dtype_name == "float64"
    assert construct_space_from_data(1j, TORCH).dtype_name == "complex128"
    for value in (2**40, 1e300):
        with pytest.raises(ValueError, match=r"^a: value .* does not fit (int32|float32) of jax$"):
            construct_space_from_data({"a": value}, JAX)


def test_numpy_arrays_stand_for_those_of_the_backend() -> None:
    space = construct_space_from_data(np.zeros((2,), np.float16), TORCH, add_bounds=True)
    assert space == BoxSpace(TORCH, 0.0, 0.0, "float16", shape=(2,))


def test_bfloat16() -> None:
    one = TORCH.from_host(np.array([1.5, INF], np.float32), TORCH.dtype_from_name("bfloat16"))
    other = TORCH.from_host(np.array([-2.0, -INF], np.float32), TORCH.dtype_from_name("bfloat16"))
    space = construct_space_from_data_stream([one, other], TORCH)
    assert space.dtype_name == "bfloat16"
    assert one in space
    assert other in space


def test_device_of_the_data() -> None:
    data = TORCH.zeros((2,), dtype=TORCH.dtype_from_name("float32"), device="cpu")
    assert construct_space_from_data(data, TORCH).device == TORCH.deserialize_device("cpu")
    assert construct_space_from_data(np.zeros(2), NUMPY).device is None


@pytest.mark.parametrize("add_bounds", [True, False])
def test_infinite_values_lie_in_the_space(add_bounds: bool) -> None:
    data = np.array([INF, -INF, 1.0])
    assert data in construct_space_from_data(data, NUMPY, add_bounds=add_bounds)
    assert_all_inside([data, -data, np.zeros(3)], construct_space_from_data_stream([data, -data, np.zeros(3)], NUMPY))


# -- several values ----------------------------------------------------------------------------------------


def test_a_second_value_of_the_same_shape_keeps_the_space() -> None:
    first, second = {"x": np.zeros(2), "t": ("a", True)}, {"x": np.ones(2), "t": ("b", False)}
    space = construct_space_from_data(first, NUMPY)
    assert construct_space_from_data(second, NUMPY, space) is space


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounds_of_a_stream(backend: Any) -> None:
    stream = [backend.from_numpy(np.array(row, np.int32)) for row in ([1, 5], [-3, 6], [0, 7])]
    space = construct_space_from_data_stream(iter(stream), backend)
    assert space == BoxSpace(backend, np.array([-3, 5]), np.array([1, 7]), "int32")
    free = construct_space_from_data_stream(stream, backend, add_bounds=False)
    assert free == BoxSpace(backend, -INF, INF, "int32", shape=(2,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_vary(backend: Any) -> None:
    arrays = [np.array([[1.0, 5.0]]), np.empty((0, 2)), np.array([[2.0, 4.0], [9.0, 6.0], [0.0, 7.0]])]
    stream = [backend.from_numpy(array) for array in arrays]
    space = construct_space_from_data_stream(stream, backend)
    low, high = np.array([[0.0, 4.0]]), np.array([[9.0, 7.0]])
    assert space == DynamicBoxSpace(backend, low, high, (0, 2), (3, 2), "float64")
    assert all(item in space for item in stream)
    free = construct_space_from_data_stream(stream, backend, add_bounds=False)
    assert free == DynamicBoxSpace(backend, -INF, INF, (0, 2), (3, 2), "float64")


def test_an_empty_array_says_nothing_about_bounds() -> None:
    stream = [np.empty((0,)), np.array([5.0, 6.0])]
    for order in (stream, stream[::-1]):
        assert construct_space_from_data_stream(order, NUMPY) == DynamicBoxSpace(NUMPY, 5.0, 6.0, (0,), (2,), "float64")
    assert_all_inside(
        [np.empty((2, 0)), np.empty((0, 3))],
        construct_space_from_data_stream([np.empty((2, 0)), np.empty((0, 3))], NUMPY),
    )


def test_texts() -> None:
    assert construct_space_from_data_stream(["ab", "", "c"], NUMPY) == TextSpace(NUMPY, 2, charset="abc")
    assert construct_space_from_data_stream(["ab", "c"], NUMPY, add_bounds=False) == TextSpace(NUMPY, 2)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("int32", "int64", "int64"),
        ("uint8", "int8", "int16"),
        ("int32", "uint32", "int64"),
        ("int32", "float32", "float64"),
        ("float16", "float32", "float32"),
        ("float32", "complex64", "complex64"),
        ("int32", "complex64", "complex128"),
    ],
)
@pytest.mark.parametrize("add_bounds", [True, False])
def test_common_dtype(one: str, other: str, common: str, add_bounds: bool) -> None:
    for stream in ([np.ones(2, one), np.zeros(2, other)], [np.ones(2, other), np.zeros(2, one)]):
        space = construct_space_from_data_stream(stream, NUMPY, add_bounds=add_bounds)
        assert space.dtype_name == common
        assert_all_inside(stream, space)
        if not add_bounds:
            assert space == BoxSpace(NUMPY, -INF, INF, common, shape=(2,))


def test_no_common_dtype() -> None:
    for other in ("float64", "uint64", "complex128"):
        with pytest.raises(ValueError, match=f"dtype {other} after int64, numpy has none that holds both"):
            construct_space_from_data_stream([np.ones(2, np.int64), np.ones(2, other)], NUMPY)


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param(JAX, id="jax")])
def test_python_integers_become_floats_beside_floats(backend: Any) -> None:
    floating = backend.dtype_name(backend.default_floating_dtype)
    expected = BoxSpace(backend, 0.5, 2.0, floating, shape=())
    for stream in ([1, 0.5, 2], [0.5, 1, 2], [1, 2, 0.5]):
        assert construct_space_from_data_stream(stream, backend) == expected
    free = construct_space_from_data_stream([[1, 2], [0.5]], backend, add_bounds=False)
    assert free == DynamicBoxSpace(backend, -INF, INF, (1,), (2,), floating)


def test_python_numbers_take_the_dtype_of_the_space_so_far() -> None:
    byte = BoxSpace(NUMPY, 0, 9, "uint8", shape=())
    assert construct_space_from_data(9, NUMPY, byte) is byte
    assert construct_space_from_data(99, NUMPY, byte, add_bounds=True) == BoxSpace(NUMPY, 0, 99, "uint8", shape=())
    assert construct_space_from_data(-1, NUMPY, byte, add_bounds=True) == BoxSpace(NUMPY, -1, 9, "int64", shape=())
    half = BoxSpace(NUMPY, 0.0, 0.5, "float16", shape=())
    assert construct_space_from_data(0.1, NUMPY, half) is half
    assert construct_space_from_data(2, NUMPY, half, add_bounds=True) == BoxSpace(NUMPY, 0.0, 2.0, "float16", shape=())
    assert construct_space_from_data(1e300, NUMPY, half).dtype_name == "float64"
    with pytest.raises(ValueError, match="dtype int64 after float16"):
        construct_space_from_data(70_000, NUMPY, half)


def test_places_are_told_apart_whatever_their_keys() -> None:
    stream = [{"": {"a": 0}, "a": 0, "b/c": 0, "b": {"c": 0}}, {"": {"a": 0.5}, "a": 0.5, "b/c": 0.5, "b": {"c": 0.5}}]
    space = construct_space_from_data_stream(stream, NUMPY)
    assert_all_inside(stream, space)
    assert space["a"] == space[""]["a"] == space["b/c"] == space["b"]["c"]


def test_integers_of_an_array_do_not_become_floats() -> None:
    candidate = BoxSpace(NUMPY, 0, 5, "int64", shape=())
    with pytest.raises(ValueError, match="dtype float64 after int64"):
        construct_space_from_data(0.5, NUMPY, candidate)
    with pytest.raises(ValueError, match="item 2: dtype float64 after int64"):
        construct_space_from_data_stream([1, np.int64(2), 0.5], NUMPY)


def test_no_common_dtype_on_jax() -> None:
    stream = [{"a": np.ones(2, np.int32)}, {"a": np.ones(2, np.float32)}]
    with pytest.raises(ValueError, match=r"^item 1: a: dtype float32 after int32, jax has none that holds both$"):
        construct_space_from_data_stream(stream, JAX)


# -- a candidate of the caller's ---------------------------------------------------------------------------


def test_a_bound_moves_or_falls_only_where_it_is_broken() -> None:
    candidate = BoxSpace(NUMPY, -1.0, 1.0, "float64", shape=(2,))
    inside, outside = np.array([0.5, -1.0]), np.array([0.5, 3.0])
    assert construct_space_from_data(inside, NUMPY, candidate) is candidate
    moved = construct_space_from_data(outside, NUMPY, candidate, add_bounds=True)
    assert moved == BoxSpace(NUMPY, -1.0, np.array([1.0, 3.0]), "float64")
    fallen = construct_space_from_data(outside, NUMPY, candidate)
    assert fallen == BoxSpace(NUMPY, -1.0, np.array([1.0, INF]), "float64")
    longer = construct_space_from_data(np.zeros(3), NUMPY, candidate)
    assert longer == DynamicBoxSpace(NUMPY, -1.0, 1.0, (2,), (3,), "float64")


def test_text_candidate() -> None:
    candidate = TextSpace(NUMPY, 3, min_length=2, charset="ab")
    assert construct_space_from_data("ab", NUMPY, candidate) is candidate
    assert construct_space_from_data("c", NUMPY, candidate) == TextSpace(NUMPY, 3)
    assert construct_space_from_data("abba", NUMPY, candidate) == TextSpace(NUMPY, 4, min_length=2, charset="ab")
    wider = construct_space_from_data("c", NUMPY, candidate, add_bounds=True)
    assert wider == TextSpace(NUMPY, 3, min_length=1, charset="abc")
    free = TextSpace(NUMPY, 1)
    assert construct_space_from_data("xyz", NUMPY, free, add_bounds=True) == TextSpace(NUMPY, 3)


def test_dynamic_candidate_keeps_its_fill_value_and_open_axis() -> None:
    candidate = DynamicBoxSpace(NUMPY, 0.0, 1.0, (1, 2), (None, 2), "float64", fill_value=-1)
    space = construct_space_from_data(np.empty((0, 2)), NUMPY, candidate)
    assert space == DynamicBoxSpace(NUMPY, 0.0, 1.0, (0, 2), (None, 2), "float64")
    assert space.fill_value == -1


def test_a_kind_that_data_do_not_tell_is_not_widened() -> None:
    union = UnionSpace(NUMPY, [TextSpace(NUMPY, 3), BinarySpace(NUMPY, ())])
    candidate = DictSpace(NUMPY, {"u": union, "n": BoxSpace(NUMPY, 0, 1, "int64", shape=())})
    wider = construct_space_from_data({"u": (0, "abc"), "n": 5}, NUMPY, candidate, add_bounds=True)
    assert wider["u"] is union
    assert wider["n"] == BoxSpace(NUMPY, 0, 5, "int64", shape=())
    with pytest.raises(ValueError, match=r"^u/0: 4 characters, the space wants 0 to 3$"):
        construct_space_from_data({"u": (0, "abcd"), "n": 0}, NUMPY, candidate)
    for other in (GraphSpace(NUMPY, None), BatchedSpace(TextSpace(NUMPY, 3), (2,))):
        value = other.sample(np.random.default_rng(0))[1]
        assert construct_space_from_data(value, NUMPY, other) is other


def test_candidate_on_another_backend() -> None:
    with pytest.raises(ValueError, match="candidate_space has the backend pytorch, the data numpy"):
        construct_space_from_data(1, NUMPY, BinarySpace(TORCH, ()))


# -- what cannot be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": {"b": np.array([1.0, np.nan])}}, r"^a/b: NaN, which no space contains"),
        ({"a": float("nan")}, r"^a: NaN, which no space contains"),
        ({"a": np.array([1 + 1j, complex("nan")])}, r"^a: NaN, which no space contains"),
        ({"a": [[1, 2], [3]]}, r"^a: list is no array of one shape: "),
        ({"a": np.array([1, None])}, r"^a: ndarray of dtype object, a space wants numbers"),
        ({"a": (1, None)}, r"^a/1: NoneType of dtype object, a space wants numbers"),
        ({"a": ["x", "y"]}, r"^a: list of dtype <U1, a space wants numbers"),
        ({"a": b"raw"}, r"^a: bytes of dtype \|S3, a space wants numbers"),
        ({"a": np.array(["x"])}, r"^a: dtype str32, an array of a space holds numbers or booleans$"),
        ({"a": 2**70}, r"^a: int of dtype object, a space wants numbers"),
        ({"a": {1: 2}}, r"^a: key 1 is int, keys are strings$"),
        (object(), r"^object of dtype object, a space wants numbers"),
    ],
)
def test_data_without_a_space(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        construct_space_from_data(data, NUMPY)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": 1}, {"b": 1}, r"^item 1: x: key 'a' is missing, the space wants \['a'\]$"),
        ({"a": 1}, {"a": 1, "b": 1}, r"^item 1: x: key 'b' is not in the space, which has \['a'\]$"),
        ((1, 2), (1,), r"^item 1: x: a tuple of 1, the space wants 2$"),
        ((1, (2, "t")), (1, (2, 3)), r"^item 1: x/1/1: int, but the space so far is Text\(.*\): no space holds both$"),
        ("t", {"a": 1}, r"^item 1: x: dict, but the space so far is Text"),
        (1, True, r"^item 1: x: bool, but the space so far is Box"),
        (np.zeros(2, bool), np.zeros(2), r"^item 1: x: ndarray, but the space so far is Binary"),
        (np.zeros(2), np.zeros((2, 2)), r"^item 1: x: 2 axes after 1, no space holds arrays of both$"),
        (np.zeros(2, bool), np.zeros(3, bool), r"^item 1: x: shape \(3,\) after \(2,\), booleans .*: make them uint8$"),
        (np.zeros(2, complex), np.zeros(3, complex), r"^item 1: x: shape \(3,\) of complex numbers varies"),
    ],
)
def test_values_that_no_space_holds_together(first: Any, second: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        construct_space_from_data_stream([{"x": first}, {"x": second}], NUMPY)


def test_empty_stream() -> None:
    with pytest.raises(ValueError, match="the stream is empty"):
        construct_space_from_data_stream([], NUMPY)


# -- reshape_to_broadcastable ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param(JAX, id="jax")])
def test_reshape_to_broadcastable(backend: Any) -> None:
    array = backend.from_numpy(np.array([[1, 5, 3], [4, 2, 6]], np.int32))
    reduced = reshape_to_broadcastable(backend, (2, 1), array, "max")
    assert backend.to_numpy(reduced).tolist() == [[5], [6]]
    reduced = reshape_to_broadcastable(backend, (3,), array)
    assert backend.to_numpy(reduced).tolist() == [1, 2, 3]


def test_reshape_leaves_what_broadcasts() -> None:
    array = np.zeros((1, 3))
    assert reshape_to_broadcastable(NUMPY, (4, 3), array) is array
    assert reshape_to_broadcastable(NUMPY, (2, 4, 3), array) is array
    assert reshape_to_broadcastable(NUMPY, (0, 3), np.zeros((0, 3))).shape == (0, 3)


def test_reshape_errors() -> None:
    with pytest.raises(ValueError, match="method is 'mean', it must be 'min' or 'max'"):
        reshape_to_broadcastable(NUMPY, (1,), np.zeros(2), "mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(0, 3\) has no entries to reduce to \(1, 3\)"):
        reshape_to_broadcastable(NUMPY, (1, 3), np.zeros((0, 3)))


@given(hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)), hnp.array_shapes(max_side=3))
def test_reshape_always_broadcasts(array: np.ndarray, target: tuple[int, ...]) -> None:
    smallest = reshape_to_broadcastable(NUMPY, target, array, "min")
    largest = reshape_to_broadcastable(NUMPY, target, array, "max")
    assert np.broadcast_shapes(smallest.shape, target) == target
    assert smallest.min() == array.min()
    assert largest.max() == array.max()
    assert np.all(smallest <= array)
    assert np.all(array <= largest)


# -- the law -----------------------------------------------------------------------------------------------

# dtypes that one dtype holds all values of
MIXABLE = (("int64", "int8", "uint8"), ("uint64",), ("int32", "float16", "float32", "float64"), ("float32", "uint8"))


@st.composite
def arrays_of(draw: Any, dtypes: tuple[str, ...], ndim: int, sides: st.SearchStrategy[int]) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = tuple(draw(sides) for _ in range(ndim))
    elements = hnp.from_dtype(dtype, allow_nan=False) if dtype.kind == "f" else hnp.from_dtype(dtype)
    return draw(hnp.arrays(dtype, shape, elements=elements))


@st.composite
def leaves(draw: Any) -> Any:
    """A strategy of values that some one space holds."""
    kind = draw(st.sampled_from(("array", "bits", "text", "number", "empty")))
    if kind == "array":
        dtypes = draw(st.sampled_from(MIXABLE))
        sides = draw(st.sampled_from((st.just(2), st.integers(0, 3))))
        return arrays_of(dtypes, draw(st.integers(0, 2)), sides)
    if kind == "bits":
        return hnp.arrays(bool, (2,))
    if kind == "text":
        return st.text(max_size=4)
    if kind == "number":
        return st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
    return st.just({})


streams = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", max_size=2), inner, max_size=3).map(st.fixed_dictionaries),
        st.lists(inner, max_size=3).map(lambda parts: st.tuples(*parts)),
    ),
    max_leaves=4,
).flatmap(lambda values: st.lists(values, min_size=1, max_size=4))


@given(streams, st.booleans())
def test_everything_seen_lies_in_the_space(stream: list[Any], add_bounds: bool) -> None:
    space = construct_space_from_data_stream(stream, NUMPY, add_bounds=add_bounds)
    assert_all_inside(stream, space)
    again: Space | None = space
    for item in stream:
        again = construct_space_from_data(item, NUMPY, again, add_bounds=add_bounds)
    assert again is space


@given(streams, streams)
def test_a_candidate_stays_inside(one: list[Any], other: list[Any]) -> None:
    candidate = construct_space_from_data_stream(one, NUMPY)
    for add_bounds in (True, False):
        try:
            space = construct_space_from_data(other[0], NUMPY, candidate, add_bounds=add_bounds)
        except ValueError:
            continue  # of another structure, which the tests above look at
        assert_all_inside([*one, other[0]], space)
