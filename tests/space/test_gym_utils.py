"""The bridge to Gymnasium: every space of theirs and every kind of ours, spaces and values, both ways."""

import string
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gs
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
    GraphInstance,
    GraphSpace,
    Space,
    TextSpace,
    TupleSpace,
    UnionSpace,
    describe_mismatch,
)
from unienv_interface.space.space_utils.gym_utils import from_gym_data, from_gym_space, to_gym_data, to_gym_space

NUMPY, TORCH, JAX = NumpyComputeBackend, PyTorchComputeBackend, JaxComputeBackend
INF = np.inf
#: Gymnasium before 1.4 draws edges of a graph without their start, and its `Discrete` overflows at the end of int64.
IS_OLD = tuple(int(part) for part in gymnasium.__version__.split(".")[:2]) < (1, 4)

# Gymnasium spaces that come back as themselves.
EXACT = {
    "box": gs.Box(-1.0, 1.0, (3,)),
    "box of float16": gs.Box(-1.0, 1.0, (3,), np.float16),
    "box of float64": gs.Box(np.array([-0.1, -INF]), np.array([0.1, 3.0]), dtype=np.float64),
    "box without bounds": gs.Box(-INF, INF, (2, 2)),
    "box of shape ()": gs.Box(0.0, 1.0, ()),
    "box of no entries": gs.Box(0.0, 1.0, (0, 3)),
    "image": gs.Box(0, 255, (4, 4, 3), np.uint8),
    "box of int32": gs.Box(-5, 5, (2,), np.int32),
    "discrete": gs.Discrete(5),
    "discrete from below 0": gs.Discrete(4, start=-7),
    "discrete of one": gs.Discrete(1, start=9),
    "multi-binary": gs.MultiBinary(4),
    "multi-binary of two axes": gs.MultiBinary((2, 3)),
    "text": gs.Text(6),
    "text of unicode": gs.Text(4, min_length=0, charset="aé漢🙂 "),
    "tuple": gs.Tuple((gs.Discrete(3), gs.Box(0.0, 1.0, (2,)))),
    "empty tuple": gs.Tuple(()),
    "dict": gs.Dict({"b": gs.Discrete(3), "a": gs.Dict({"x": gs.Text(3), "y": gs.MultiBinary(2)})}),
    "dict in its own order": gs.Dict([("b", gs.Discrete(3)), ("a", gs.Discrete(2))]),
    "one of": gs.OneOf((gs.Discrete(3), gs.Box(0.0, 1.0, (2,)), gs.Text(3))),
    "graph": gs.Graph(gs.Box(-1.0, 1.0, (3,)), gs.Discrete(4, start=0 if IS_OLD else 1)),
    "graph without edges": gs.Graph(gs.Discrete(3), None),
    "sequence of boxes": gs.Sequence(gs.Box(0.0, 1.0, (2,))),
    "sequence of scalars": gs.Sequence(gs.Box(0.0, 1.0, ())),
    "sequence of discrete": gs.Sequence(gs.Discrete(5, start=2)),
    "sequence of text": gs.Sequence(gs.Text(3)),
    "sequence of dicts": gs.Sequence(gs.Dict({"a": gs.Box(0.0, 1.0, (2,)), "b": gs.Text(2)})),
    "sequence of sequences": gs.Sequence(gs.Sequence(gs.Discrete(3))),
    "sequence of bits": gs.Sequence(gs.MultiBinary(2)),
}
# Gymnasium spaces that come back as another one; values keep going both ways.
CHANGED = {
    "box of one integer": (gs.Box(0, 9, (), np.int64), gs.Discrete(10)),
    "multi-discrete": (gs.MultiDiscrete([3, 1, 5]), gs.Box(np.zeros(3, int), np.array([2, 0, 4]), dtype=np.int64)),
    "multi-discrete with starts": (
        gs.MultiDiscrete(np.array([[3, 2], [1, 4]]), start=np.array([[-1, 0], [5, 2]])),
        gs.Box(np.array([[-1, 0], [5, 2]]), np.array([[1, 1], [5, 5]]), dtype=np.int64),
    ),
    "stacked boxes": (gs.Sequence(gs.Box(0.0, 1.0, (2,)), stack=True), gs.Sequence(gs.Box(0.0, 1.0, (2,)))),
    "stacked discrete": (gs.Sequence(gs.Discrete(3), stack=True), gs.Sequence(gs.Discrete(3))),
}
SPACES = EXACT | {name: space for name, (space, _) in CHANGED.items()}
# JAX compiles for each shape, so it gets one space with a leaf of each sort.
JAX_SPACE = gs.Dict(
    {"a": gs.Box(-0.1, 0.1, (2,), np.float64), "n": gs.Discrete(5, start=-2), "m": gs.MultiBinary(2), "t": gs.Text(3)}
)
BACKENDS = [pytest.param(NUMPY, id="numpy"), pytest.param(TORCH, id="pytorch")]


def seeded(space: gymnasium.Space) -> gymnasium.Space:
    space.seed(7)
    return space


def assert_same(one: Any, other: Any) -> None:
    """Equal in structure, dtype of the arrays, shape and every value."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, (np.ndarray, np.generic)):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.array_equal(one, other)
    else:
        assert type(one) is type(other)
        assert one == other


# -- Gymnasium's spaces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", EXACT)
def test_space_comes_back(name: str, backend: Any) -> None:
    space = EXACT[name]
    back = to_gym_space(from_gym_space(space, backend))
    assert back == space
    assert from_gym_space(back, backend) == from_gym_space(space, backend)
    if isinstance(space, gs.Dict):
        assert list(back.spaces) == list(space.spaces)
    if isinstance(space, gs.Box):
        assert back.low.tobytes() == space.low.tobytes()
        assert back.high.tobytes() == space.high.tobytes()


@pytest.mark.parametrize("name", CHANGED)
def test_space_comes_back_as_the_documented_one(name: str) -> None:
    space, expected = CHANGED[name]
    assert to_gym_space(from_gym_space(space, NUMPY)) == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SPACES)
def test_samples_of_gymnasium_come_back_value_for_value(name: str, backend: Any) -> None:
    theirs = seeded(SPACES[name])
    ours = from_gym_space(theirs, backend)
    for _ in range(5):
        value = theirs.sample()
        here = from_gym_data(ours, value)
        assert describe_mismatch(ours, here) is None
        there = to_gym_data(ours, here)
        assert there in to_gym_space(ours)
        if isinstance(theirs, gs.Sequence) and theirs.stack:
            there = np.stack(there)
        if isinstance(theirs, gs.Box):  # their samples of a Box of shape () are scalars, which it does not hold
            value, there = np.asarray(value), np.asarray(there)
        assert there in theirs
        assert_same(_with_int64_links(value), _with_int64_links(there))


def _with_int64_links(value: Any) -> Any:
    if isinstance(value, gs.GraphInstance) and value.edge_links is not None:
        return value._replace(edge_links=value.edge_links.astype(np.int64))
    return value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SPACES)
def test_our_samples_lie_in_the_gymnasium_space(name: str, backend: Any) -> None:
    ours = from_gym_space(SPACES[name], backend)
    theirs = to_gym_space(ours)
    rng = backend.random.random_number_generator(3)
    for _ in range(5):
        rng, value = ours.sample(rng)
        there = to_gym_data(ours, value)
        assert there in theirs
        assert describe_mismatch(ours, from_gym_data(ours, there)) is None


def test_jax_round_trip() -> None:
    theirs = seeded(JAX_SPACE)
    ours = from_gym_space(theirs, JAX)
    assert ours["n"] == BoxSpace(JAX, -2, 2, "int32", shape=())
    value = theirs.sample()
    here = from_gym_data(ours, value)
    assert describe_mismatch(ours, here) is None
    there = to_gym_data(ours, here)
    assert there in theirs
    assert there in to_gym_space(ours)
    assert there["n"] == value["n"]
    assert np.array_equal(there["a"], value["a"].astype(np.float32))


def test_jax_keeps_a_value_at_a_bound_that_float32_cannot_hold() -> None:
    theirs = gs.Box(np.float64(-0.1), np.float64(0.1), (2,), np.float64)
    ours = from_gym_space(theirs, JAX)
    at_bounds = from_gym_data(ours, np.array([-0.1, 0.1]))
    assert describe_mismatch(ours, at_bounds) is None
    assert to_gym_data(ours, at_bounds) in theirs


def test_jax_refuses_a_discrete_beyond_32_bits() -> None:
    with pytest.raises(ValueError, match=r"n: high 4294967295 does not fit int32"):
        from_gym_space(gs.Dict({"n": gs.Discrete(2**32)}), JAX)
    with pytest.raises(ValueError, match=r"high 4294967295 does not fit int32"):
        from_gym_space(gs.MultiDiscrete([2**32]), JAX)


# -- what section 11 of BEHAVIOUR.md lists -----------------------------------------------------------------


def test_discrete_has_exactly_n_values() -> None:
    space = from_gym_space(gs.Discrete(3), NUMPY)
    assert space == BoxSpace(NUMPY, 0, 2, "int64", shape=())
    assert np.asarray(3) not in space


def test_union_data_keeps_its_index() -> None:
    space = from_gym_space(gs.OneOf((gs.Discrete(3), gs.Discrete(5))), NUMPY)
    assert from_gym_data(space, (np.int64(1), np.int64(2))) == (1, 2)
    index, value = to_gym_data(space, (1, np.asarray(2)))
    assert (index, value) == (1, 2)
    assert type(index) is type(value) is np.int64


@pytest.mark.parametrize("value", [2, np.int64(2), np.int32(2), np.uint8(2), np.asarray(2), True + True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_discrete_takes_any_integer(value: Any, backend: Any) -> None:
    space = from_gym_space(gs.Discrete(5), backend)
    here = from_gym_data(space, value)
    assert here in space
    assert int(here) == 2


# -- our spaces --------------------------------------------------------------------------------------------


def our_spaces(backend: Any) -> dict[str, Space]:
    def box(*args: Any, **kwargs: Any) -> BoxSpace:
        return BoxSpace(backend, *args, **kwargs)

    return {
        "box": box(-1.0, 1.0, "float32", shape=(3,)),
        "int8": box(-128, 127, "int8", shape=()),
        "int64 ends": box(-INF, INF, "int64", shape=(2,)),
        "int64 one-sided": box(np.array([-(2**63), 5]), np.array([0, 2**63 - 1]), "int64"),
        "uint64 ends": box(0, INF, "uint64", shape=(2,)),
        "uint64 scalar": box(2**63, 2**64 - 1, "uint64", shape=()),
        "binary": BinarySpace(backend, (2, 3)),
        "binary scalar": BinarySpace(backend, ()),
        "binary of no entries": BinarySpace(backend, (0, 2)),
        "text": TextSpace(backend, 5, charset=string.ascii_lowercase),
        "text without a charset": TextSpace(backend, 5, min_length=2),
        "tuple": TupleSpace(backend, [box(0, 3, "int32", shape=()), BinarySpace(backend, (2,))]),
        "dict": DictSpace(backend, [("z", BinarySpace(backend, ())), ("a", box(0.0, 1.0, "float64", shape=()))]),
        "union": UnionSpace(backend, [BinarySpace(backend, (2,)), TextSpace(backend, 3)]),
        "graph": GraphSpace(backend, box(0.0, 1.0, "float32", shape=(2,))),
        "graph of links": GraphSpace(backend, None, is_edge=True, min_edges=0),
        "graph with limits": GraphSpace(
            backend, box(0, 3, "int64", shape=()), box(0.0, 1.0, "float32", shape=(2,)), True, 2, 4, 1, 3
        ),
        "dynamic": DynamicBoxSpace(backend, 0.0, 1.0, (0, 2), (None, 2), "float32"),
        "dynamic scalars": DynamicBoxSpace(backend, -INF, INF, (0,), (None,), "float64"),
        "dynamic integers": DynamicBoxSpace(backend, -2, 7, (0,), (None,), "int16"),
        "batched": BatchedSpace(TextSpace(backend, 3), (None,)),
    }


OUR_NAMES = list(our_spaces(NUMPY))
# These come back with less or more in them: numbers of nodes, charsets and booleans of shape () are lost.
NOT_EXACT = {"graph", "graph of links", "graph with limits", "text without a charset", "union", "batched"}
NOT_EXACT |= {"binary scalar", "binary of no entries", "dict"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OUR_NAMES)
def test_our_values_come_back(name: str, backend: Any) -> None:
    ours = our_spaces(backend)[name]
    theirs = to_gym_space(ours)
    if name not in NOT_EXACT:
        assert from_gym_space(theirs, backend) == ours
    if name.startswith("graph"):
        assert describe_mismatch(ours, from_gym_data(ours, to_gym_data(ours, ours.create_empty()))) is None
    rng = backend.random.random_number_generator(11)
    for _ in range(5):
        rng, value = ours.sample(rng)
        there = to_gym_data(ours, value)
        assert there in theirs
        back = from_gym_data(ours, there)
        assert describe_mismatch(ours, back) is None
        assert_same(there, to_gym_data(ours, back))


# Gymnasium knows no limits on the numbers of nodes and edges
@pytest.mark.parametrize("name", [name for name in OUR_NAMES if name != "graph with limits"])
def test_gymnasium_samples_lie_in_our_space(name: str) -> None:
    ours = our_spaces(NUMPY)[name]
    theirs = seeded(to_gym_space(ours))
    for _ in range(5):
        assert describe_mismatch(ours, from_gym_data(ours, theirs.sample())) is None


def test_gymnasium_draws_sensible_64_bit_integers() -> None:
    """Gymnasium draws one value only if it is told that the end of the dtype is a bound."""
    spaces = our_spaces(NUMPY)
    for name in ("int64 ends", "int64 one-sided", "uint64 ends"):
        theirs = seeded(to_gym_space(spaces[name]))
        assert len({theirs.sample().tobytes() for _ in range(30)}) > 1


def test_bfloat16_is_float32_in_gymnasium() -> None:
    ours = BoxSpace(TORCH, -1.0, 1.0, "bfloat16", shape=(2,))
    theirs = seeded(to_gym_space(ours))
    assert theirs == gs.Box(-1.0, 1.0, (2,), np.float32)
    here = from_gym_data(ours, theirs.sample())
    assert describe_mismatch(ours, here) is None
    there = to_gym_data(ours, here)
    assert there in theirs
    assert from_gym_data(ours, there).tolist() == here.tolist()


def test_scalar_of_booleans() -> None:
    ours = BinarySpace(NUMPY, ())
    assert to_gym_space(ours) == gs.Discrete(2)
    assert type(to_gym_data(ours, np.asarray(True))) is np.int64
    assert from_gym_data(ours, 1) == np.asarray(True)
    assert from_gym_data(ours, np.int64(0)).dtype == bool


def test_filling_of_a_graph_stays_behind() -> None:
    ours = GraphSpace(NUMPY, BoxSpace(NUMPY, 0.0, 1.0, "float32", shape=(1,)), is_edge=True, min_edges=0)
    filled = GraphInstance(
        n_nodes=np.asarray(2),
        n_edges=np.asarray(1),
        nodes_features=np.array([[0.5], [1.0], [9.0]], np.float32),
        edges=np.array([[0, 1], [7, 7]]),
    )
    assert describe_mismatch(ours, filled) is None
    there = to_gym_data(ours, filled)
    assert there in to_gym_space(ours)
    assert there.nodes.tolist() == [[0.5], [1.0]]
    assert there.edge_links.tolist() == [[0, 1]]


def test_box_of_bool() -> None:
    try:
        theirs = gs.Box(0, 1, (2,), np.bool_)
    except (AssertionError, ValueError):
        pytest.skip("this Gymnasium has no Box of bool")
    assert from_gym_space(theirs, NUMPY) == BinarySpace(NUMPY, (2,))
    with pytest.raises(ValueError, match="leaves out False or True"):
        from_gym_space(gs.Box(1, 1, (2,), np.bool_), NUMPY)


def test_stacked_dicts() -> None:
    feature = gs.Dict(
        {"a": gs.Box(0.0, 1.0, (2,)), "t": gs.Tuple((gs.Text(2), gs.Discrete(3))), "m": gs.MultiBinary(2)}
    )
    theirs = seeded(gs.Sequence(feature, stack=True))
    ours = from_gym_space(theirs, NUMPY)
    stacked = theirs.sample()
    here = from_gym_data(ours, stacked)
    assert describe_mismatch(ours, here) is None
    assert np.array_equal(np.stack([item["a"] for item in here]), stacked["a"])
    assert [item["t"][0] for item in here] == list(stacked["t"][0])
    assert to_gym_data(ours, here) in to_gym_space(ours)


def test_stacked_bits_and_text() -> None:
    for feature in (gs.MultiBinary(2), gs.Text(3)):
        theirs = seeded(gs.Sequence(feature, stack=True))
        ours = from_gym_space(theirs, NUMPY)
        stacked = theirs.sample()
        here = from_gym_data(ours, stacked)
        assert describe_mismatch(ours, here) is None
        assert np.array_equal(np.array(to_gym_data(ours, here)), np.array(stacked))


# -- arguments ---------------------------------------------------------------------------------------------


def test_dtype_replaces_that_of_float_boxes_only() -> None:
    theirs = gs.Dict(
        {"f": gs.Box(-0.1, 0.1, (2,), np.float64), "i": gs.Box(0, 255, (2,), np.uint8), "n": gs.Discrete(3)}
    )
    for dtype in ("float16", NUMPY.dtype_from_name("float16")):
        ours = from_gym_space(theirs, NUMPY, dtype=dtype)
        assert [ours[key].dtype_name for key in "fin"] == ["float16", "uint8", "int64"]
        assert to_gym_data(ours["f"], ours["f"].high) in theirs["f"]
    here = from_gym_data(ours["f"], np.array([0.1, -0.1]))
    assert describe_mismatch(ours["f"], here) is None
    wide = from_gym_space(gs.Box(-1.0, 1.0, (2,)), TORCH, dtype="float64")
    assert wide == BoxSpace(TORCH, -1.0, 1.0, "float64", shape=(2,))
    assert from_gym_space(gs.Box(-1.0, 1.0, ()), TORCH, dtype="bfloat16").dtype_name == "bfloat16"
    with pytest.raises(ValueError, match="dtype is int32, it replaces the dtype of float boxes"):
        from_gym_space(gs.Box(-1.0, 1.0, (2,)), NUMPY, dtype="int32")


def test_device_reaches_every_leaf() -> None:
    device = TORCH.deserialize_device("meta")
    ours = from_gym_space(SPACES["dict"], TORCH, device=device)
    assert ours.device == device
    assert ours["a"]["y"].device == device
    for name in ("box", "tuple", "one of", "graph", "sequence of boxes", "sequence of dicts", "multi-discrete"):
        assert from_gym_space(SPACES[name], TORCH, device=device).device == device, name


# -- values that need no work or cannot be taken -----------------------------------------------------------


def test_what_fits_on_numpy_is_handed_through() -> None:
    box = BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(3,))
    array = np.zeros(3, np.float32)
    assert from_gym_data(box, array) is array
    assert to_gym_data(box, array) is array
    number, space = np.int64(2), from_gym_space(gs.Discrete(5), NUMPY)
    assert from_gym_data(space, number) is number


def test_torch_shares_the_memory_of_numpy() -> None:
    box = BoxSpace(TORCH, -1.0, 1.0, "float32", shape=(3,))
    array = np.zeros(3, np.float32)
    assert np.shares_memory(from_gym_data(box, array).numpy(), array)


def test_sloppy_data_is_cast_where_that_keeps_the_value() -> None:
    box = BoxSpace(NUMPY, -10.0, 10.0, "float32", shape=(2,))
    assert from_gym_data(box, np.array([0.1, 1.0])).dtype == np.float32
    assert from_gym_data(box, [1, 2]).tolist() == [1.0, 2.0]
    small = BoxSpace(NUMPY, 0, 255, "uint8", shape=(2,))
    assert from_gym_data(small, np.array([0.0, 255.0])).dtype == np.uint8
    assert from_gym_data(TupleSpace(NUMPY, [small]), [np.array([1, 2])])[0].tolist() == [1, 2]
    swapped = np.array([1.5, 2.5], ">f4")
    assert from_gym_data(box, swapped).dtype.isnative


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", [0, 256]),
        ("uint8", [0, -1]),
        ("int64", np.array([0, 2**63], np.uint64)),
        ("uint64", np.array([0, -1])),
        ("int32", [0.5, 1.0]),
        ("int64", [0.0, np.nan]),
        ("int64", [0.0, 2.0**63]),
        ("float32", np.array([0, 2**24 + 1])),
        ("float64", np.array([0, 2**53 + 1])),
        ("float32", [0.0, 1e300]),
    ],
)
def test_a_value_is_never_changed_silently(dtype: str, value: Any) -> None:
    space = BoxSpace(NUMPY, -INF if not dtype.startswith("u") else 0, INF, dtype, shape=(2,))
    with pytest.raises(ValueError, match=rf"does not fit {dtype}, which the space wants"):
        from_gym_data(space, value)


NESTED = DictSpace(NUMPY, {"obs": {"rgb": BoxSpace(NUMPY, 0, 255, "uint8", shape=(2,))}})
PAIR = TupleSpace(NUMPY, [BinarySpace(NUMPY, (2,)), TextSpace(NUMPY, 3)])
EITHER = UnionSpace(NUMPY, [PAIR, TextSpace(NUMPY, 3)])
TEXTS = BatchedSpace(TextSpace(NUMPY, 3), (None,))
GRAPH = from_gym_space(EXACT["graph"], NUMPY)
ROWS = DynamicBoxSpace(NUMPY, 0.0, 1.0, (0, 2), (None, 2), "float32")


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (NESTED, {"obs": {"rgb": np.zeros(3, np.uint8)}}, r"^obs/rgb: shape \(3,\), the space wants \(2,\)$"),
        (NESTED, {"obs": {"rgb": ["a", "b"]}}, r"^obs/rgb: dtype <U1, the space wants uint8$"),
        (NESTED, {"obs": {}}, r"^obs: key 'rgb' is missing, the space wants \['rgb'\]$"),
        (NESTED, {"obs": {"rgb": 0}, "more": 1}, r"^key 'more' is not in the space"),
        (NESTED, None, r"^NoneType, the space wants a dict"),
        (PAIR, (np.array([2, 0]), "a"), r"^0: value 2 of int64 does not fit bool"),
        (PAIR, (np.array([1, 0]), 5), r"^1: int, the space wants a string$"),
        (PAIR, (1,), r"^a tuple of 1, the space wants 2$"),
        (EITHER, (2, "a"), r"^alternative 2, the space has 0 to 1$"),
        (EITHER, (-1, "a"), r"^alternative -1, the space has 0 to 1$"),
        (EITHER, "a", r"^str, the space wants a pair"),
        (EITHER, (0, (np.array([1, 0]), 5)), r"^0/1: int, the space wants a string$"),
        (TEXTS, ("a", 5), r"^1: int, the space wants a string$"),
        (TEXTS, 5, r"^int, the space wants a sequence$"),
        (GRAPH, {"nodes": 1}, r"^dict, the space wants a GraphInstance of Gymnasium$"),
        (NESTED, {"obs": {"rgb": np.zeros((4, 5))}}, r"^obs/rgb: shape \(4, 5\), the space wants \(2,\)$"),
        (ROWS, np.zeros((3, 4)), r"^shape \(3, 4\), the space wants \(3, 2\)$"),
        (ROWS, np.zeros(2, np.float32), r"^shape \(2,\), the space wants \(2, 2\)$"),
        (ROWS, np.float32(0), r"^shape \(\), the space wants \(None, 2\)$"),
    ],
)
def test_wrong_data_from_gymnasium(space: Space, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gym_data(space, value)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (NESTED, {"obs": {"rgb": [1, 2]}}, r"^obs/rgb: list, the space wants an array of numpy$"),
        (NESTED, {"obs": {"rgb": np.zeros(3, np.uint8)}}, r"^obs/rgb: shape \(3,\), the space wants \(2,\)$"),
        (PAIR, [np.zeros(2, bool), "a"], r"^list, the space wants a tuple of 2$"),
        (TEXTS, ("a", "b"), r"^tuple, the space wants a NumPy array of objects$"),
        (GRAPH, None, r"^NoneType, the space wants a GraphInstance$"),
        (EITHER, (True, "a", 1), r"^tuple, the space wants a pair"),
    ],
)
def test_wrong_data_of_ours(space: Space, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_gym_data(space, value)


def test_graph_with_edges_that_the_space_lacks() -> None:
    value = gs.GraphInstance(np.zeros((2, 3), np.float32), np.array([1]), np.array([[0, 1]]))
    space = GraphSpace(NUMPY, BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(3,)))
    with pytest.raises(ValueError, match="the graph has edges, the space has none"):
        from_gym_data(space, value)
    with pytest.raises(ValueError, match=r"shape \(1, 3\), the space wants \(1, 2\)"):
        from_gym_data(GRAPH, value._replace(edge_links=np.array([[0, 1, 1]])))


# -- spaces without a counterpart --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        DynamicBoxSpace(NUMPY, 0.0, 1.0, (1, 2), (None, 2), "float32"),
        DynamicBoxSpace(NUMPY, 0.0, 1.0, (0, 2), (5, 2), "float32"),
        DynamicBoxSpace(NUMPY, 0.0, 1.0, (0, 2), (None, 3), "float32"),
        DynamicBoxSpace(NUMPY, 0.0, 1.0, (2, 0), (2, None), "float32"),
        BatchedSpace(TextSpace(NUMPY, 3), (4,)),
        BatchedSpace(TextSpace(NUMPY, 3), (None, None)),
        GraphSpace(NUMPY, None, batch_shape=(2,)),
    ],
    ids=str,
)
def test_no_counterpart(space: Space) -> None:
    for convert in (to_gym_space, lambda s: to_gym_data(s, s.create_empty()), lambda s: from_gym_data(s, ())):
        with pytest.raises(TypeError, match=r"^Gymnasium has no counterpart of .*: .*"):
            convert(space)
    with pytest.raises(TypeError, match=r"^a/b: Gymnasium has no counterpart"):
        to_gym_space(DictSpace(NUMPY, {"a": {"b": space}}))


def test_complex_numbers_have_no_counterpart() -> None:
    space = TupleSpace(NUMPY, [BoxSpace(NUMPY, -INF, INF, "complex64", shape=(2,))])
    with pytest.raises(TypeError, match=r"^0: Gymnasium has no counterpart.*real and an imaginary box"):
        to_gym_space(space)


def test_gymnasium_spaces_that_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^a: key 1 is int, the keys of a DictSpace are strings$"):
        from_gym_space(gs.Dict({"a": gs.Dict({1: gs.Discrete(2)})}), NUMPY)
    with pytest.raises(TypeError, match="use stack=False"):
        from_gym_space(gs.Sequence(gs.Tuple((gs.Discrete(2), gs.Discrete(2))), stack=True), NUMPY)
    with pytest.raises(ValueError, match=r"^a: high 9223372036854775816 does not fit int64"):
        from_gym_space(gs.Dict({"a": gs.Discrete(10, start=2**63 - 1)}), NUMPY)


def test_a_miss_says_what_to_register() -> None:
    class Odd(gymnasium.Space):
        pass

    with pytest.raises(
        TypeError, match=r"from_gym_space has no rule for Odd: register one with @from_gym_space.register"
    ):
        from_gym_space(Odd(), NUMPY)
    for convert in (to_gym_space, lambda x: to_gym_data(x, 0), lambda x: from_gym_data(x, 0)):
        with pytest.raises(TypeError, match="has no rule for int: register one with @"):
            convert(3)


def test_gymnasium_is_imported_by_this_module_alone() -> None:
    program = "import sys, unienv_interface.space.space_utils; assert 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_gymnasium_the_import_names_the_extra() -> None:
    program = "import sys; sys.modules['gymnasium'] = None; import unienv_interface.space.space_utils.gym_utils"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "gymnasium is not installed; get it with: pip install 'unienv[gymnasium]'" in ran.stderr


# -- at random ---------------------------------------------------------------------------------------------

INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")


@st.composite
def boxes(draw: Any) -> gs.Box:
    dtype = np.dtype(draw(st.sampled_from(("float16", "float32", "float64", *INTEGERS))))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    numbers = hnp.from_dtype(dtype, **finite)
    one, other = (draw(hnp.arrays(dtype, shape, elements=numbers)) for _ in range(2))
    low, high = np.minimum(one, other), np.maximum(one, other)
    if dtype.kind == "f":
        low = np.where(draw(hnp.arrays(bool, shape)), -np.inf, low)
        high = np.where(draw(hnp.arrays(bool, shape)), np.inf, high)
    return gs.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


@given(boxes(), st.sampled_from((NUMPY, TORCH)))
def test_any_box(theirs: gs.Box, backend: Any) -> None:
    ours = from_gym_space(theirs, backend)
    back = to_gym_space(ours)
    assert from_gym_space(back, backend) == ours
    if isinstance(back, gs.Box):
        assert (back.dtype, back.shape) == (theirs.dtype, theirs.shape)
        assert np.array_equal(back.low, theirs.low)
        assert np.array_equal(back.high, theirs.high)
    for corner in (theirs.low, theirs.high):
        if np.all(np.isfinite(corner)):
            here = from_gym_data(ours, corner)
            assert describe_mismatch(ours, here) is None
            there = to_gym_data(ours, here)
            assert np.array_equal(there, corner)
            assert there in back
            assert np.asarray(there) in theirs


@given(st.integers(1, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.data())
def test_any_discrete(count: int, start: int, data: Any) -> None:
    start = min(start, 2**63 - count)
    theirs = gs.Discrete(count, start=start)
    ours = from_gym_space(theirs, NUMPY)
    assert to_gym_space(ours) == theirs
    value = data.draw(st.integers(start, start + count - 1))
    here = from_gym_data(ours, value)
    assert describe_mismatch(ours, here) is None
    there = to_gym_data(ours, here)
    assert type(there) is np.int64
    assert int(there) == value
    if not IS_OLD or start + count < 2**63:
        assert there in theirs


@given(st.data())
def test_any_multi_discrete(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=3))
    counts = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(1, 2**62)))
    starts = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(-(2**63), 2**61)))
    theirs = gs.MultiDiscrete(counts, start=starts)
    ours = from_gym_space(theirs, NUMPY)
    assert ours.shape == shape
    for corner in (starts, starts + (counts - 1)):
        here = from_gym_data(ours, corner)
        assert describe_mismatch(ours, here) is None
        assert to_gym_data(ours, here) in theirs
    assert starts + (counts - 1) + 1 not in ours
