"""Spaces as JSON: exact both ways, and whatever else is read is a ValueError that says where."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, DTYPES, INF, backend_cases, boxes, move_cases, names_on, space_cases
from catalogue import SPACES as CATALOGUE
from hypothesis import given, settings
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.space_utils import serialization_utils
from unienv_interface.space.space_utils.serialization_utils import (
    FORMAT_VERSION,
    MAX_DEPTH,
    json_to_space,
    register_json_reader,
    space_fields,
    space_node,
    space_to_json,
)
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)

NUMPY = NumpyComputeBackend


def through_text(space: Space) -> Any:
    return json.loads(json.dumps(space_to_json(space)))


# -- exact -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", space_cases())
def test_json_gives_the_space_back(space: Space) -> None:
    text = json.dumps(space_to_json(space))
    again = json_to_space(json.loads(text), space.backend)
    assert again == space
    assert hash(again) == hash(space)
    assert repr(again) == repr(space)  # the order of keys and the filling, which equality leaves aside
    assert json.dumps(space_to_json(again)) == text


@pytest.mark.parametrize(("space", "backend"), move_cases())
def test_reading_on_another_backend_is_the_same_as_to(space: Space, backend: ComputeBackend) -> None:
    assert json_to_space(through_text(space), backend) == space.to(backend)


@given(boxes())
def test_any_box(space: BoxSpace) -> None:
    assert json_to_space(through_text(space), NUMPY) == space


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_bounds_of_every_dtype_are_exact(dtype: str) -> None:
    bounds: list[Any] = [-INF, INF]
    if dtype.startswith(("int", "uint")):
        bounds = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) - 1]
    elif "float" in dtype:
        bounds = [-0.1, 1 / 3]
    space = BoxSpace(NUMPY, *bounds, dtype, shape=(2,))
    again = json_to_space(through_text(space), NUMPY)
    assert again.bounds.key() == space.bounds.key()
    assert again.dtype_name == dtype


@pytest.mark.parametrize("fill_value", [np.nan, INF, -1, 2**63 - 1, 0.1])
def test_filling_is_exact(fill_value: float) -> None:
    dtype = "float64" if isinstance(fill_value, float) else "int64"
    space = DynamicBoxSpace(NUMPY, 0, 1, (0,), (4,), dtype, fill_value=fill_value)
    again = json_to_space(through_text(space), NUMPY)
    assert again == space
    assert repr(again.fill_value) == repr(fill_value)


@pytest.mark.parametrize("charset", ["\ud83d\ude42", "\ud800", "\udbff\udc00a", '"\\\0\n\u2028', ""])
def test_characters_are_exact(charset: str) -> None:
    space = TextSpace(NUMPY, 3, charset=charset)
    assert json_to_space(through_text(space), NUMPY).charset == frozenset(charset)


def test_bounds_are_as_short_as_they_are_kept() -> None:
    space = BoxSpace(NUMPY, 0, [[[255]], [[128]]], "uint8", shape=(2, 480, 640))
    assert space_to_json(space) == {
        "version": 1,
        "type": "BoxSpace",
        "shape": [2, 480, 640],
        "low": [[[0]]],
        "high": [[[255]], [[128]]],
        "dtype": "uint8",
    }


def test_the_form_of_every_kind() -> None:
    box = {"type": "BoxSpace", "shape": [], "low": -INF, "high": INF, "dtype": "float32"}
    space = DictSpace(
        NUMPY,
        [
            ("z", BoxSpace(NUMPY, -INF, INF, "float32", shape=())),
            ("a", BinarySpace(NUMPY, (2,))),
            ("t", TupleSpace(NUMPY, [TextSpace(NUMPY, 3, charset="ba")])),
            ("u", UnionSpace(NUMPY, [TextSpace(NUMPY, 3, min_length=1)])),
            ("b", BatchedSpace(TextSpace(NUMPY, 0), (None, 2))),
            ("d", DynamicBoxSpace(NUMPY, 0, 1, (0, 1), (None, 1), "int8", fill_value=-1)),
            ("g", CATALOGUE["graph_batched"](NUMPY)),
        ],
    )
    assert space_to_json(space) == {
        "version": 1,
        "type": "DictSpace",
        "spaces": {
            "z": box,
            "a": {"type": "BinarySpace", "shape": [2], "dtype": "bool"},
            "t": {
                "type": "TupleSpace",
                "spaces": [{"type": "TextSpace", "min_length": 0, "max_length": 3, "charset": "ab"}],
            },
            "u": {
                "type": "UnionSpace",
                "spaces": [{"type": "TextSpace", "min_length": 1, "max_length": 3, "charset": None}],
            },
            "b": {
                "type": "BatchedSpace",
                "single_space": {"type": "TextSpace", "min_length": 0, "max_length": 0, "charset": None},
                "batch_shape": [None, 2],
            },
            "d": {
                "type": "DynamicBoxSpace",
                "low": [[0]],
                "high": [[1]],
                "shape_low": [0, 1],
                "shape_high": [None, 1],
                "dtype": "int8",
                "fill_value": -1,
            },
            "g": {
                "type": "GraphSpace",
                "min_nodes": 1,
                "max_nodes": 3,
                "min_edges": 1,
                "max_edges": 2,
                "is_edge": True,
                "node_feature_space": {**box, "low": -1.0, "high": 1.0},
                "edge_feature_space": None,
                "batch_shape": [2],
            },
        },
    }


@pytest.mark.parametrize("backend", backend_cases())
def test_a_device_reaches_every_part(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    for name in names_on(backend):
        space = json_to_space(space_to_json(CATALOGUE[name](backend)), backend, device)
        assert backend.same_device(space.device, device), name


# -- versions and kinds ------------------------------------------------------------------------------------


def test_json_without_a_version_is_of_the_first() -> None:
    node = space_to_json(BinarySpace(NUMPY, (2,)))
    del node["version"]
    assert json_to_space(node, NUMPY) == BinarySpace(NUMPY, (2,))


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, -1, "1", 1.0, None, True, [1]])
def test_a_version_of_the_future_is_refused(version: Any) -> None:
    node = {**space_to_json(BinarySpace(NUMPY, (2,))), "version": version}
    with pytest.raises(ValueError) as caught:
        json_to_space(node, NUMPY)
    assert str(caught.value) == f"format version {version!r} of a space, this release reads up to {FORMAT_VERSION}"


@pytest.mark.parametrize(
    "kind", ["os.system", "builtins.exec", "Space", "numpy.array", "", "boxspace", None, 3, ["BoxSpace"]]
)
def test_an_unknown_type_is_named(kind: Any) -> None:
    node = {"type": "DictSpace", "spaces": {"a": {"type": "TupleSpace", "spaces": [{"type": kind}]}}}
    with pytest.raises(ValueError) as caught:
        json_to_space(node, NUMPY)
    text = str(caught.value)  # other packages may register more kinds
    assert text.startswith(
        f"a/0: unknown type {kind!r} of a space, known are ['BatchedSpace', 'BinarySpace', 'BoxSpace', "
    )
    assert all(
        f"'{known}'" in text for known in ("DictSpace", "DynamicBoxSpace", "GraphSpace", "TextSpace", "UnionSpace")
    )


def test_nothing_is_imported_by_a_name_in_the_data() -> None:
    script = """
import sys, json
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import json_to_space
before = set(sys.modules)
for kind in ("antigravity", "torch.Tensor", "jax", "unienv_interface.world"):
    for node in ({"type": kind}, {"type": "BoxSpace", "dtype": kind, "low": 0, "high": 1, "shape": []}):
        try:
            json_to_space(node, NumpyComputeBackend)
        except ValueError:
            continue
        raise SystemExit("read " + kind)
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


class Angle(TextSpace):
    """A kind of space of one's own."""


def test_a_kind_of_ones_own_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization_utils, "_readers", dict(serialization_utils._readers))
    angle = Angle(NUMPY, 7)
    node = space_to_json(TupleSpace(NUMPY, [angle]))
    assert node["spaces"][0]["type"] == "Angle"
    with pytest.raises(ValueError, match=r"^0: unknown type 'Angle' of a space"):
        json_to_space(node, NUMPY)

    @space_fields.register
    def _(space: Angle) -> dict[str, Any]:
        return {"turns": space.max_length, "inner": space_node(BinarySpace(NUMPY, ()))}

    @register_json_reader("Angle")
    def read(json: Any) -> Space:
        json.child(json.field("inner"), "inner")
        return Angle(json.backend, json.field("turns"))

    assert json_to_space(through_text(TupleSpace(NUMPY, [angle])), NUMPY) == TupleSpace(NUMPY, [angle])
    assert register_json_reader("Angle")(read) is read
    with pytest.raises(ValueError, match=r"^there is a reader for 'Angle' already$"):
        register_json_reader("Angle")(lambda json: angle)
    for field, wrong, text in (
        ("turns", None, "0: not the JSON of a Angle: max_length is None, it wants an integer"),
        ("inner", {"type": "BoxSpace"}, "0/inner: field 'low' is missing"),
    ):
        spaces = [{**space_node(angle), field: wrong}]
        with pytest.raises(ValueError, match=f"^{text}$"):
            json_to_space({"type": "TupleSpace", "spaces": spaces}, NUMPY)


def test_a_kind_without_a_rule_says_what_to_register() -> None:
    with pytest.raises(
        TypeError,
        match=r"^space_fields has no rule for int: register one with @space_fields.register, of unienv_interface",
    ):
        space_to_json(3)  # type: ignore[arg-type]


# -- malformed ---------------------------------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "TupleSpace", "spaces": []}
    for _ in range(depth - 1):
        node = {"type": "TupleSpace", "spaces": [node]}
    return node


def test_spaces_nested_too_deeply() -> None:
    deepest = json_to_space(nested(MAX_DEPTH), NUMPY)
    assert json_to_space(through_text(deepest), NUMPY) == deepest
    text = rf"^0(/0){{{MAX_DEPTH - 1}}}: nested deeper than {MAX_DEPTH} levels$"
    for depth in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(ValueError, match=text):
            json_to_space(nested(depth), NUMPY)
    space: Space = deepest
    for wrap in (1, 1000):  # what could not be read again is not written either
        for _ in range(wrap):
            space = TupleSpace(NUMPY, [space])
        with pytest.raises(ValueError, match=rf"^the space is nested deeper than {MAX_DEPTH} levels"):
            space_to_json(space)


def deep_list() -> list[Any]:
    entries: list[Any] = []
    for _ in range(10_000):
        entries = [entries]
    return entries


BOX = {"type": "BoxSpace", "shape": [3], "low": [0], "high": [1], "dtype": "float32"}
TEXT = {"type": "TextSpace", "min_length": 0, "max_length": 3, "charset": "ab"}
DYNAMIC = {"type": "DynamicBoxSpace", "low": 0, "high": 1, "dtype": "int8", "shape_low": [0], "shape_high": [3]}
DYNAMIC["fill_value"] = 0
GRAPH = {"type": "GraphSpace", "min_nodes": 1, "max_nodes": 3, "min_edges": 0, "max_edges": 2, "is_edge": True}
GRAPH |= {"node_feature_space": BOX, "edge_feature_space": None, "batch_shape": []}
BATCHED = {"type": "BatchedSpace", "single_space": TEXT, "batch_shape": [2]}

# What is wrong, and what the error says after the path.
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"type": "BoxSpace"}, "field 'low' is missing"),
    ({}, "field 'type' is missing"),
    (BOX | {"low": "0"}, "not the JSON of a BoxSpace: bound '0' is not a number"),
    (BOX | {"low": [None]}, "not the JSON of a BoxSpace: bound [None] is not a number"),
    (BOX | {"low": ["0", "1", "2"]}, "not the JSON of a BoxSpace: bound ['0', '1', '2'] is not a number"),
    (BOX | {"low": {"a": 1}}, "not the JSON of a BoxSpace: bound {'a': 1} is not a number"),
    (BOX | {"low": float("nan")}, "not the JSON of a BoxSpace: low holds NaN"),
    (BOX | {"high": [1, float("nan"), 1]}, "not the JSON of a BoxSpace: high holds NaN"),
    (BOX | {"low": 2}, "not the JSON of a BoxSpace: low 2.0 is above high 1.0"),
    (BOX | {"low": [0, 0]}, "not the JSON of a BoxSpace: low has shape (2,)"),
    (BOX | {"low": [[0], [0, 0]]}, "not the JSON of a BoxSpace: bound"),
    (BOX | {"low": deep_list()}, "not the JSON of a BoxSpace: "),
    (BOX | {"high": 10**400}, "not the JSON of a BoxSpace: "),
    (BOX | {"high": 1e300}, "not the JSON of a BoxSpace: high 1e+300 is beyond the range of float32"),
    (BOX | {"dtype": "uint8", "high": 256}, "not the JSON of a BoxSpace: high 256 does not fit uint8"),
    (BOX | {"dtype": "uint8", "high": 1.5}, "not the JSON of a BoxSpace: high 1.5 is not a whole number"),
    (BOX | {"dtype": "complex64"}, "not the JSON of a BoxSpace: low is finite"),
    (BOX | {"dtype": "bool"}, "not the JSON of a BoxSpace: dtype is bool"),
    (BOX | {"dtype": "float128"}, "unknown dtype 'float128'"),
    (BOX | {"dtype": "object"}, "unknown dtype 'object'"),
    (BOX | {"dtype": None}, "field 'dtype' is None, which is of the wrong type"),
    (BOX | {"dtype": ["float32"]}, "field 'dtype' is ['float32'], which is of the wrong type"),
    (BOX | {"shape": 3}, "field 'shape' is 3, which is of the wrong type"),
    (BOX | {"shape": None}, "field 'shape' is None, which is of the wrong type"),
    (BOX | {"shape": {"3": 3}}, "field 'shape' is {'3': 3}, which is of the wrong type"),
    (BOX | {"shape": [-1]}, "not the JSON of a BoxSpace: shape (-1,) has a negative size"),
    (BOX | {"shape": [1.5]}, "not the JSON of a BoxSpace: shape is [1.5]"),
    (BOX | {"shape": ["3"]}, "not the JSON of a BoxSpace: shape is ['3']"),
    (BOX | {"shape": [10**30]}, "not the JSON of a BoxSpace: "),
    (BOX | {"shape": [1] * 1000}, "not the JSON of a BoxSpace: "),
    ({"type": "BinarySpace", "shape": "3", "dtype": "bool"}, "field 'shape' is '3', which is of the wrong type"),
    ({"type": "BinarySpace", "shape": [3]}, "field 'dtype' is missing"),
    ({"type": "BinarySpace", "shape": [3], "dtype": "int8"}, "not the JSON of a BinarySpace: dtype is int8"),
    (DYNAMIC | {"shape_high": [0]}, "not the JSON of a DynamicBoxSpace: shape (0,) does not vary"),
    (DYNAMIC | {"shape_low": [0, 0]}, "not the JSON of a DynamicBoxSpace: shape_low (0, 0) and shape_high (3,)"),
    (DYNAMIC | {"fill_value": "0"}, "field 'fill_value' is '0', which is of the wrong type"),
    (DYNAMIC | {"fill_value": float("nan")}, "not the JSON of a DynamicBoxSpace: fill_value"),
    (DYNAMIC | {"dtype": "float32", "fill_value": 10**400}, "not the JSON of a DynamicBoxSpace: "),
    (TEXT | {"charset": 3}, "field 'charset' is 3, which is of the wrong type"),
    (TEXT | {"charset": ["ab"]}, "not the JSON of a TextSpace: charset holds 'ab'"),
    (TEXT | {"charset": [["a"]]}, "not the JSON of a TextSpace: "),
    (TEXT | {"max_length": "3"}, "field 'max_length' is '3', which is of the wrong type"),
    (TEXT | {"max_length": -1}, "not the JSON of a TextSpace: lengths from 0 to -1"),
    (TEXT | {"min_length": 1.0}, "field 'min_length' is 1.0, which is of the wrong type"),
    ({"type": "TupleSpace", "spaces": {"0": BOX}}, "field 'spaces' is "),
    ({"type": "TupleSpace", "spaces": "ab"}, "field 'spaces' is 'ab', which is of the wrong type"),
    ({"type": "TupleSpace", "spaces": [3]}, "0: int, the JSON of a space is an object"),
    ({"type": "UnionSpace", "spaces": []}, "not the JSON of a UnionSpace: a UnionSpace wants at least one alternative"),
    ({"type": "DictSpace", "spaces": [["a", BOX]]}, "field 'spaces' is "),
    ({"type": "DictSpace", "spaces": {3: BOX}}, "not the JSON of a DictSpace: key 3 is int"),
    ({"type": "DictSpace", "spaces": {"k": None}}, "k: NoneType, the JSON of a space is an object"),
    (GRAPH | {"is_edge": "no"}, "field 'is_edge' is 'no', which is of the wrong type"),
    (GRAPH | {"max_nodes": 0}, "not the JSON of a GraphSpace: nodes from 1 to 0"),
    (GRAPH | {"min_nodes": None}, "not the JSON of a GraphSpace: min_nodes is None, it wants an integer"),
    (GRAPH | {"node_feature_space": TEXT}, "not the JSON of a GraphSpace: node_feature_space is TextSpace"),
    (GRAPH | {"node_feature_space": []}, "node_feature_space: list, the JSON of a space is an object"),
    (GRAPH | {"edge_feature_space": BOX, "is_edge": False}, "not the JSON of a GraphSpace: edge_feature_space"),
    (GRAPH | {"batch_shape": [None]}, "not the JSON of a GraphSpace: batch_shape is [None]"),
    (BATCHED | {"single_space": 0}, "single_space: int, the JSON of a space is an object"),
    (BATCHED | {"batch_shape": ["2"]}, "not the JSON of a BatchedSpace: batch_shape is ['2']"),
    (BATCHED | {"batch_shape": 2}, "field 'batch_shape' is 2, which is of the wrong type"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "text"), MALFORMED, ids=[text for _, text in MALFORMED])
def test_malformed_json_says_where_and_what(node: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        json_to_space(node, NUMPY)
    assert str(caught.value).startswith(text)
    with pytest.raises(ValueError) as caught:
        json_to_space({"type": "DictSpace", "spaces": {"obs": {"type": "TupleSpace", "spaces": [BOX, node]}}}, NUMPY)
    below = text if text.split(":")[0] in ("0", "k", "single_space", "node_feature_space") else f" {text}"
    assert str(caught.value).startswith(f"obs/1:{below}" if below != text else f"obs/1/{text}")


@pytest.mark.parametrize(
    "data", [None, 3, "BoxSpace", [], [BOX], b"{}", object()], ids=lambda data: type(data).__name__
)
def test_what_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{type(data).__name__}, the JSON of a space is an object$"):
        json_to_space(data, NUMPY)


@pytest.mark.parametrize("name", ["box_uint64_top", "box_int64_bottom"])
def test_what_a_backend_cannot_hold_is_a_value_error(name: str) -> None:
    for backend in (backend for backend in BACKENDS if backend.simplified_name == "jax"):
        with pytest.raises(ValueError, match=r"^a: not the JSON of a BoxSpace: "):
            json_to_space({"type": "DictSpace", "spaces": {"a": space_to_json(CATALOGUE[name](NUMPY))}}, backend)


# -- mutated -----------------------------------------------------------------------------------------------

scalars: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, 10**30, 10**400, -1, 0, 1, 3]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["float32", "uint8", "bool", "int64", "BoxSpace", "DictSpace", "GraphSpace", "os.system"]),
)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "spaces", "low"]), inner),
    max_leaves=6,
)
Place = tuple[Any, ...]
NODES = [space_to_json(build(NUMPY)) for build in CATALOGUE.values()]


def places_in(node: Any, above: Place = ()) -> list[Place]:
    if not isinstance(node, (dict, list)):
        return [above]
    items = node.items() if isinstance(node, dict) else enumerate(node)
    return [above] + [place for key, child in items for place in places_in(child, (*above, key))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """The JSON of a space of the catalogue with one to three places changed."""
    node = copy.deepcopy(draw(st.sampled_from(NODES)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places_in(node)))
        if not place:
            return draw(junk)
        holder = node
        for key in place[:-1]:
            holder = holder[key]
        if draw(st.integers(0, 3)) == 0:
            del holder[place[-1]]
        else:
            holder[place[-1]] = copy.deepcopy(draw(junk | st.sampled_from(NODES)))
    return node


@settings(max_examples=300)
@given(mutated())
def test_mutated_json_is_a_space_or_a_value_error(node: Any) -> None:
    try:
        space = json_to_space(node, NUMPY)
    except ValueError:
        return
    assert isinstance(space, Space)
    assert json_to_space(through_text(space), NUMPY) == space
