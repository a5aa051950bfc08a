"""Values as bytes: exact both ways; bytes that are cut off, changed or made up are refused, never misread."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, FLOATS, INF, assert_same, move_cases, sample, samples, space_cases
from hypothesis import given, settings
from hypothesis import strategies as st

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.dtypes import raw_dtype
from unienv_interface.space import Space
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphInstance,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)
from unienv_interface.space.value_bytes import value_from_bytes, value_to_bytes

NUMPY = NumpyComputeBackend
JAX = [backend for backend in BACKENDS if backend.simplified_name == "jax"]
MUTABLE = [backend for backend in BACKENDS if backend not in JAX]
ON_JAX = ("box_bfloat16", "box_complex64", "dict_nested", "union", "graph_fixed")

every_space = pytest.mark.parametrize(
    "space", space_cases(backends=MUTABLE) + space_cases(*ON_JAX, backends=JAX)
)  # fmt: skip
on_numpy = pytest.mark.parametrize("space", space_cases(backends=[NUMPY]))


def object_array(*items: Any) -> np.ndarray:
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = item
    return array


# -- exact -------------------------------------------------------------------------------------------------


@every_space
def test_bytes_give_the_value_back(space: Space) -> None:
    for value in samples(space, 2):
        data = value_to_bytes(space, value)
        assert isinstance(data, bytes)
        assert_same(space, value_from_bytes(space, data), value)
        off_by_one = memoryview(b"?" + data + b"?")[1:-1]  # where no number is aligned
        assert_same(space, value_from_bytes(space, off_by_one), value)


@pytest.mark.parametrize("space", space_cases("box", "dict", "graph", "dynamic", backends=MUTABLE))
def test_what_was_read_is_memory_of_its_own(space: Space) -> None:
    data = bytearray(value_to_bytes(space, sample(space)))
    value = value_from_bytes(space, memoryview(data))
    before = value_to_bytes(space, value)
    data[:] = b"\xff" * len(data)
    assert value_to_bytes(space, value) == before


@pytest.mark.parametrize(("space", "backend"), [case for case in move_cases() if "jax" not in case.id])
def test_the_bytes_are_the_same_on_every_backend(space: Space, backend: Any) -> None:
    value = sample(space)
    moved = space.data_to(value, backend)
    assert value_to_bytes(space.to(backend), moved) == value_to_bytes(space, value)


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
def test_every_bit_of_a_float_is_kept(dtype: str) -> None:
    space = BoxSpace(NUMPY, -INF, INF, dtype, shape=(64,))
    bits = np.random.default_rng(0).bytes(64 * raw_dtype(dtype).itemsize)  # NaN of all sorts, -0.0, subnormals
    assert value_to_bytes(space, value_from_bytes(space, bits)) == bits


def test_golden_bytes() -> None:
    """Files hold these: what was written once must be read for ever."""
    space = DictSpace(
        NUMPY,
        {
            "u": UnionSpace(NUMPY, [BinarySpace(NUMPY, (2,)), TextSpace(NUMPY, 5)]),
            "d": DynamicBoxSpace(NUMPY, 0, 999, (0, 1), (None, 1), "int16"),
        },
    )
    value = {"u": (1, "ä\0"), "d": np.array([[1], [258]], np.int16)}
    data = (
        b"\x0c\0\0\0\0\0\0\0" + b"\2\0\0\0\1\0\0\0" + b"\1\0\2\1"  # 12 bytes: shape (2, 1), the entries
        b"\x0b\0\0\0\0\0\0\0" + b"\1\0\0\0" + b"\2\0\0\0" + b"\xc3\xa4\0"  # 11: alternative, length, UTF-8
    )
    assert value_to_bytes(space, value) == data
    assert_same(space, value_from_bytes(space, data), value)


def test_golden_bytes_of_a_graph() -> None:
    space = GraphSpace(NUMPY, BoxSpace(NUMPY, 0, 9, "uint8", shape=()), is_edge=True, max_nodes=3)
    graph = GraphInstance(np.asarray(2), np.asarray(1), np.array([7, 8], np.uint8), None, np.array([[0, 1]]))
    one, two = struct.pack("<q", 1), struct.pack("<q", 2)
    parts = [two, one, b"\2\0\0\0" + b"\7\x08", b"", b"\1\0\0\0\2\0\0\0" + struct.pack("<q", 0) + one]
    data = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    assert value_to_bytes(space, graph) == data
    assert_same(space, value_from_bytes(space, data), graph)


def test_values_of_a_narrower_dtype_are_widened() -> None:
    for dtype in ("int32", "float64", "bfloat16", "complex64"):
        space = BoxSpace(NUMPY, -INF, INF, dtype, shape=(3,))
        data = value_to_bytes(space, np.array([1, -2, 3], np.int8))
        assert np.array_equal(value_from_bytes(space, data).astype(np.complex64), [1, -2, 3])


# -- damaged -----------------------------------------------------------------------------------------------


@on_numpy
def test_bytes_that_are_cut_off_or_too_many_are_refused(space: Space) -> None:
    data = value_to_bytes(space, sample(space))
    for length in range(len(data)):
        with pytest.raises(ValueError):
            value_from_bytes(space, data[:length])
    for surplus in (b"\0", b"\0" * 8, b"\1" * 8, data):
        if surplus:
            with pytest.raises(ValueError):
                value_from_bytes(space, data + surplus)


@pytest.mark.parametrize("space", space_cases("dict_nested", "graph_fixed", backends=JAX))
def test_cut_off_on_jax(space: Space) -> None:
    data = value_to_bytes(space, sample(space))
    for length in (0, len(data) // 2, len(data) - 1):
        with pytest.raises(ValueError):
            value_from_bytes(space, data[:length])


@pytest.mark.parametrize("space", space_cases("graph_fixed", backends=JAX))
def test_edges_that_jax_cannot_hold_are_refused(space: Space) -> None:
    data = value_to_bytes(space, sample(space))
    with pytest.raises(ValueError, match="an edge ends at a node that no graph has"):
        value_from_bytes(space, data[:-1] + b"\x7f")


def assert_read_right_or_refused(space: Space, data: bytes) -> None:
    try:
        value = value_from_bytes(space, data)
    except ValueError:
        return
    assert value_to_bytes(space, value) == data


@on_numpy
def test_changed_bytes_are_read_right_or_refused(space: Space) -> None:
    rng = np.random.default_rng(0)
    data = value_to_bytes(space, sample(space))
    for _ in range(60 if data else 0):
        changed = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[place] = rng.choice([0, 1, 2, 127, 128, 255, changed[place] ^ 1])
        assert_read_right_or_refused(space, bytes(changed))


NUMPY_SPACES = [case.values[0] for case in space_cases(backends=[NUMPY])]


@settings(max_examples=150)
@given(st.sampled_from(NUMPY_SPACES), st.binary(max_size=80) | st.integers(0, 60).map(bytes))
def test_made_up_bytes_are_read_right_or_refused(space: Space, data: bytes) -> None:
    assert_read_right_or_refused(space, data)


ANY_SIZE = DynamicBoxSpace(NUMPY, 0, 1, (0, 0), (None, None), "float64")
GRAPH = GraphSpace(NUMPY, BoxSpace(NUMPY, 0, 9, "uint8", shape=(2,)), is_edge=True, batch_shape=(1,))


def graph_bytes(n_nodes: int = 1, n_edges: int = 1, node_shape: Any = (1, 1, 2), ends: Any = (0, 0)) -> bytes:
    nodes = struct.pack(f"<{len(node_shape)}I", *node_shape) + bytes(int(np.prod(node_shape)) % 100)
    parts = [
        struct.pack("<Iq", 1, n_nodes),
        struct.pack("<Iq", 1, n_edges),
        nodes,
        b"",
        struct.pack("<3I2q", 1, 1, 2, *ends),
    ]
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


DAMAGED: list[tuple[Space, bytes, str]] = [
    (BoxSpace(NUMPY, 0, 1, "float32", shape=(3,)), b"123", "3 bytes, an array of float32 and shape (3,) has 12"),
    (BinarySpace(NUMPY, (2,)), b"\0\2", "byte 2 in an array of booleans"),
    (ANY_SIZE, b"123", "3 bytes, the 2 numbers in front alone have 8"),
    (
        ANY_SIZE,
        b"\xff" * 8,
        "0 bytes, an array of float64 and shape (4294967295, 4294967295) has 147573952520956936200",
    ),
    (
        DynamicBoxSpace(NUMPY, 0, 1, (0,), (3,), "int8"),
        b"\4\0\0\0abcd",
        "shape (4,), the space wants (0,) to (3,)",
    ),
    (TextSpace(NUMPY, 3), b"\4\0\0\0abcd", "4 characters, the space wants at most 3"),
    (TextSpace(NUMPY, 3), b"\2\0\0\0abc", "3 characters, not 2 as was written"),
    (
        TextSpace(NUMPY, 3),
        b"\1\0\0\0\xff",
        "not the bytes of a text: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    (UnionSpace(NUMPY, [BinarySpace(NUMPY, ())]), b"\1\0\0\0\0", "alternative 1, the space has 0 to 0"),
    (UnionSpace(NUMPY, [BinarySpace(NUMPY, ())]), b"\0\0\0\0", "0: 0 bytes, an array of bool and shape () has 1"),
    (DictSpace(NUMPY, {"a": BinarySpace(NUMPY, ())}), b"", "0 chunks, the space wants 1"),
    (DictSpace(NUMPY, {"a": BinarySpace(NUMPY, ())}), b"\1\0\0", "3 bytes left over"),
    (
        DictSpace(NUMPY, {"a": BinarySpace(NUMPY, ())}),
        b"\xff" * 8 + b"\1",
        "a chunk of 18446744073709551615 bytes, but only 1 are left",
    ),
    (
        DictSpace(NUMPY, {"a": TupleSpace(NUMPY, [BinarySpace(NUMPY, ())])}),
        struct.pack("<QQ", 9, 1) + b"\5",
        "a/0: byte 5 in an array of booleans",
    ),
    (
        BatchedSpace(TextSpace(NUMPY, 3), (None, None)),
        b"\xff" * 8,
        "0 chunks, the space wants 18446744065119617025",
    ),
    (BatchedSpace(TextSpace(NUMPY, 3), (2,)), b"\1\0\0\0", "shape (1,), the space wants a batch of (2,)"),
    (
        BatchedSpace(BinarySpace(NUMPY, ()), (1,)),
        b"\1\0\0\0" + struct.pack("<Q", 1) + b"\2",
        "[0]: byte 2 in an array of booleans",
    ),
    (GRAPH, graph_bytes(n_nodes=2), "counts from 2 to 2 of 1 nodes or edges"),
    (GRAPH, graph_bytes(n_nodes=-1), "counts from -1 to -1 of 1 nodes or edges"),
    (GRAPH, graph_bytes(n_edges=2**62), "counts from 4611686018427387904 to 4611686018427387904 of 1 nodes or edges"),
    (GRAPH, graph_bytes(node_shape=(2, 1, 2)), "nodes_features: shape (2, 1, 2), the space wants (1, 1, 2)"),
    (GRAPH, graph_bytes(node_shape=(1, 1, 3)), "nodes_features: shape (1, 1, 3), the space wants (1, 1, 2)"),
    (
        GraphSpace(NUMPY, None),
        graph_bytes().replace(struct.pack("<QIq", 12, 1, 1), struct.pack("<Qq", 8, 1)),
        "8 bytes of an array that the space has not",
    ),
]


@pytest.mark.parametrize(("space", "data", "text"), DAMAGED, ids=[text for _, _, text in DAMAGED])
def test_what_is_wrong_with_the_bytes(space: Space, data: bytes, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        value_from_bytes(space, data)
    assert str(caught.value) == text
    with pytest.raises(ValueError) as caught:
        value_from_bytes(space, memoryview(data), "obs")
    inner = any(text.startswith(start) for start in ("0: ", "a/0", "[0]", "nodes_features"))
    assert str(caught.value) == (f"obs/{text}" if inner else f"obs: {text}")


# -- values that do not fit --------------------------------------------------------------------------------

BOX = BoxSpace(NUMPY, 0, 1, "float32", shape=(3,))
GOOD = np.zeros(3, np.float32)
NODES = GraphSpace(NUMPY, BOX, max_nodes=5)

REFUSED: list[tuple[Space, Any, str]] = [
    (BOX, [0, 0, 0], "list, the space wants an array of numpy"),
    (BOX, GOOD.astype(np.float64), "dtype float64, the space wants float32"),
    (BOX, GOOD[:2], "shape (2,), the space wants (3,)"),
    (BOX, GOOD[None], "shape (1, 3), the space wants (3,)"),
    (
        DynamicBoxSpace(NUMPY, 0, 1, (0, 3), (2, 3), "int8"),
        np.zeros((3, 3), np.int8),
        "shape (3, 3), the space wants (0, 3) to (2, 3)",
    ),
    (
        DynamicBoxSpace(NUMPY, 0, 1, (0, 3), (2, 3), "int8"),
        np.zeros(3, np.int8),
        "shape (3,), the space wants (0, 3) to (2, 3)",
    ),
    (DynamicBoxSpace(NUMPY, 0, 1, (0,), (3,), "int8"), GOOD, "dtype float32, the space wants int8"),
    (TextSpace(NUMPY, 3), b"ab", "bytes, the space wants a string"),
    (TextSpace(NUMPY, 3), "abcd", "4 characters, the space wants at most 3"),
    (UnionSpace(NUMPY, [BOX]), GOOD, "ndarray, the space wants a pair of an index and a value"),
    (UnionSpace(NUMPY, [BOX]), (1, GOOD), "alternative 1, the space has 0 to 0"),
    (UnionSpace(NUMPY, [BOX]), (-1, GOOD), "alternative -1, the space has 0 to 0"),
    (UnionSpace(NUMPY, [BOX]), (False, GOOD), "alternative False, the space has 0 to 0"),
    (UnionSpace(NUMPY, [BOX]), (0, GOOD[:1]), "0: shape (1,), the space wants (3,)"),
    (TupleSpace(NUMPY, [BOX]), [GOOD], "list, the space wants a tuple of 1"),
    (DictSpace(NUMPY, {"a": BOX}), {"b": GOOD}, "key 'a' is missing, the space wants ['a']"),
    (DictSpace(NUMPY, {"a": {"b": BOX}}), {"a": {"b": 0}}, "a/b: int, the space wants an array of numpy"),
    (BatchedSpace(BOX, (1,)), [GOOD], "list, the space wants a NumPy array of objects"),
    (BatchedSpace(BOX, (1,)), object_array(GOOD, GOOD), "shape (2,), the space wants a batch of (1,)"),
    (BatchedSpace(BOX, (2,)), object_array(GOOD, 3), "[1]: int, the space wants an array of numpy"),
    (NODES, GOOD, "ndarray, the space wants a GraphInstance"),
    (NODES, GraphInstance(np.asarray(1)), "nodes_features: NoneType, the space wants an array of numpy"),
    (NODES, GraphInstance(np.asarray(2), None, GOOD[None]), "counts from 2 to 2 of 1 nodes or edges"),
    (NODES, GraphInstance(np.zeros(1, np.int64), None, GOOD[None]), "n_nodes: shape (1,), the space wants ()"),
    (NODES, GraphInstance(np.asarray(1), None, GOOD), "nodes_features: shape (3,), the space wants (3, 3)"),
    (NODES, GraphInstance(np.asarray(1), np.asarray(0), GOOD[None]), "an array is given that the space has not"),
    (NODES, GraphInstance(1, None, GOOD[None]), "n_nodes: int, the space wants an array of numpy"),
]


@pytest.mark.parametrize(("space", "value", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_what_is_wrong_with_the_value(space: Space, value: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        value_to_bytes(space, value)
    assert str(caught.value) == text


def test_bounds_are_not_checked() -> None:
    space = TupleSpace(NUMPY, [BOX, TextSpace(NUMPY, 3, min_length=2, charset="ab")])
    value = (np.array([np.nan, -5, np.inf], np.float32), "x")
    assert_same(None, value_from_bytes(space, value_to_bytes(space, value)), value)


def test_a_miss_says_what_to_register() -> None:
    with pytest.raises(TypeError, match=r"^value_to_bytes has no rule for int"):
        value_to_bytes(3, 4)
    with pytest.raises(TypeError, match=r"^value_from_bytes has no rule for int"):
        value_from_bytes(3, b"")
