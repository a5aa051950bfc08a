"""GraphSpace: counts, features, edges, batches and what its constructor refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, INF, SPACES, as_host, assert_same, backend_cases, sample, samples, space_cases

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BoxSpace, GraphInstance, GraphSpace, TextSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())


def graph_space(backend: ComputeBackend = np_backend, **changes: Any) -> GraphSpace:
    arguments: dict[str, Any] = {
        "node_feature_space": BoxSpace(backend, 0, 1, "float32", shape=(2,)),
        "edge_feature_space": BoxSpace(backend, 0, 9, "int32"),
        "is_edge": True,
        "min_nodes": 2,
        "max_nodes": 4,
        "min_edges": 0,
        "max_edges": 3,
    }
    return GraphSpace(backend, **arguments | changes)


def graph() -> GraphInstance:
    """A value of `graph_space()`: three nodes, two edges."""
    return GraphInstance(
        n_nodes=np.array(3),
        n_edges=np.array(2),
        nodes_features=np.zeros((3, 2), np.float32),
        edges_features=np.array([4, 5], np.int32),
        edges=np.array([[0, 1], [2, 2]]),
    )


# -- sampling and structure --------------------------------------------------------------------------------


@pytest.mark.parametrize("space", space_cases("graph", backends=BACKENDS[:2]))
def test_samples_reach_the_limits_of_the_counts(space: GraphSpace) -> None:
    if 0 in space.batch_shape:
        return
    drawn = [as_host(value) for value in samples(space, 60)]
    nodes = np.stack([value.n_nodes for value in drawn])
    assert nodes.min() == space.min_nodes
    assert (nodes.max() > space.min_nodes + 1) if space.max_nodes is None else (nodes.max() == space.max_nodes)
    if space.is_edge:
        edges = np.stack([value.n_edges for value in drawn])
        assert edges[nodes > 0].min() == space.min_edges
        assert (edges.max() > space.min_edges) if space.max_edges is None else (edges.max() == space.max_edges)
        assert (edges[nodes == 0] == 0).all()


@pytest.mark.parametrize("space", space_cases("graph"))
def test_create_empty_is_the_smallest_graph(space: GraphSpace) -> None:
    empty = space.create_empty()
    host = as_host(empty)
    assert (host.n_nodes == space.min_nodes).all()
    assert host.n_nodes.shape == space.batch_shape
    if space.node_feature_space is not None:
        assert host.nodes_features.shape == (*space.batch_shape, space.min_nodes, *space.node_feature_space.shape)
    if space.is_edge:
        count = space.min_edges if space.min_nodes else 0
        assert (host.n_edges == count).all()
        assert host.edges.shape == (*space.batch_shape, count, 2)
    free = {
        name: None if old is None else BoxSpace(space.backend, -INF, INF, old.dtype, shape=old.shape)
        for name, old in (
            ("node_feature_space", space.node_feature_space),
            ("edge_feature_space", space.edge_feature_space),
        )
    }
    assert describe_mismatch(space.replace(**free), empty) is None


@every_backend
def test_everything_has_a_default(backend: ComputeBackend) -> None:
    space = GraphSpace(backend, None)
    assert (space.min_nodes, space.max_nodes, space.is_edge, space.batch_shape) == (1, None, False, ())
    value = sample(space)
    assert value in space
    assert value == GraphInstance(value.n_nodes)


def test_batches_are_filled_up_to_the_largest_graph() -> None:
    space = SPACES["graph_grid"](np_backend)
    value = sample(space)
    assert value.n_nodes.shape == (2, 3)
    assert value.nodes_features.shape == (2, 3, value.n_nodes.max(), 3)
    for place in np.ndindex(2, 3):
        filling = value.nodes_features[place][value.n_nodes[place] :]
        filling[...] = np.nan  # nobody looks at it
    assert value in space


# -- membership --------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "n_nodes_type": ({"n_nodes": 3}, "g/n_nodes: int, the space wants an array of numpy"),
    "n_nodes_shape": ({"n_nodes": np.array([3])}, "g/n_nodes: shape (1,), the space wants ()"),
    "n_nodes_dtype": ({"n_nodes": np.array(3.0)}, "g/n_nodes: dtype float64, the space wants int64"),
    "too_few_nodes": ({"n_nodes": np.array(1)}, "g/n_nodes: 1, the space wants 2 to 4"),
    "too_many_nodes": ({"n_nodes": np.array(5)}, "g/n_nodes: 5, the space wants 2 to 4"),
    "too_many_edges": ({"n_edges": np.array(4)}, "g/n_edges: 4, the space wants 0 to 3"),
    "negative_edges": ({"n_edges": np.array(-1)}, "g/n_edges: -1, the space wants 0 to 3"),
    "no_edges": ({"n_edges": None}, "g/n_edges: NoneType, the space wants an array of numpy"),
    "no_features": ({"nodes_features": None}, "g/nodes_features: NoneType, the space wants an array of numpy"),
    "features_too_few": (
        {"nodes_features": np.zeros((2, 2), np.float32)},
        "g/nodes_features: shape (2, 2), the space and the counts want (3, 2)",
    ),
    "features_without_axis": (
        {"edges_features": np.array(1, np.int32)},
        "g/edges_features: shape (), the space and the counts want (2,)",
    ),
    "features_dtype": (
        {"nodes_features": np.zeros((3, 2))},
        "g/nodes_features: dtype float64, the space wants float32",
    ),
    "features_value": (
        {"edges_features": np.array([4, 10], np.int32)},
        "g/edges_features: value 10 at (1,) is outside [0, 9]",
    ),
    "edges_shape": (
        {"edges": np.zeros((2, 3), np.int64)},
        "g/edges: shape (2, 3), the space and the counts want (2, 2)",
    ),
    "edges_out_of_graph": (
        {"edges": np.array([[0, 1], [2, 3]])},
        "g/edges: an edge ends at a node that the graph does not have",
    ),
    "edges_negative": (
        {"edges": np.array([[0, -1], [2, 2]])},
        "g/edges: an edge ends at a node that the graph does not have",
    ),
    "edges_float": ({"edges": np.zeros((2, 2))}, "g/edges: dtype float64, the space wants int64"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_mismatches_in_words(case: str) -> None:
    changes, text = BROKEN[case]
    assert graph() in graph_space()
    assert describe_mismatch(graph_space(), replace(graph(), **changes), "g") == text


def test_what_lies_past_the_counts_is_not_looked_at() -> None:
    longer = replace(
        graph(),
        nodes_features=np.pad(graph().nodes_features, ((0, 2), (0, 0)), constant_values=np.nan),
        edges=np.pad(graph().edges, ((0, 1), (0, 0)), constant_values=99),
        edges_features=np.array([4, 5, -7], np.int32),
    )
    assert longer in graph_space()


def test_surplus_parts_are_refused() -> None:
    bare = graph_space(edge_feature_space=None, is_edge=False)
    for name in ("n_edges", "edges", "edges_features"):
        value = GraphInstance(graph().n_nodes, nodes_features=graph().nodes_features)
        assert value in bare
        setattr(value, name, getattr(graph(), name))
        assert describe_mismatch(bare, value) == f"{name} is given, the space has no edges"
    featureless = graph_space(node_feature_space=None)
    assert describe_mismatch(featureless, graph()) == "nodes_features: is given, the space has no such features"
    assert describe_mismatch(featureless, vars(graph())) == "dict, the space wants a GraphInstance"


def test_a_graph_without_nodes_has_no_edges() -> None:
    space = GraphSpace(np_backend, None, is_edge=True, min_nodes=0, max_nodes=3, min_edges=2, max_edges=2)
    nothing = GraphInstance(np.array(0), np.array(0), edges=np.zeros((0, 2), np.int64))
    assert nothing in space
    assert replace(nothing, n_nodes=np.array(1)) not in space


# -- other backends and subspaces --------------------------------------------------------------------------


def test_data_keeps_its_parts_on_other_backends() -> None:
    space = graph_space(batch_shape=(2,))
    value = sample(space)
    for backend in BACKENDS[1:]:
        moved = space.data_to(value, backend)
        assert moved in space.to(backend)
        for name, array in vars(value).items():
            np.testing.assert_array_equal(backend.to_numpy(getattr(moved, name)), array)


def test_features_are_kept_within_narrower_bounds() -> None:
    space = GraphSpace(np_backend, BoxSpace(np_backend, 0.1, 0.3, "float64"), max_nodes=2)
    value = GraphInstance(np.array(2), nodes_features=np.array([0.1, 0.3]))
    for backend in BACKENDS[1:]:
        moved = space.data_to(value, backend)
        assert moved in space.to(backend)
        assert space.to(backend).data_to(moved, np_backend) in space


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    space = graph_space(backend)
    narrow = BoxSpace(backend, 0, 0.5, "float32", shape=(2,))
    assert graph_space(backend, node_feature_space=narrow).is_subspace(space)
    assert graph_space(backend, min_nodes=3).is_subspace(space)
    assert graph_space(backend, max_edges=2).is_subspace(space)
    assert space.is_subspace(graph_space(backend, max_nodes=None))
    assert space.is_subspace(graph_space(backend, max_edges=None))
    assert not graph_space(backend, max_nodes=None).is_subspaceeq(space)
    assert not graph_space(backend, min_nodes=1).is_subspaceeq(space)
    assert not graph_space(backend, is_edge=False, edge_feature_space=None).is_subspaceeq(space)
    assert not graph_space(backend, edge_feature_space=None).is_subspaceeq(space)
    assert not space.is_subspaceeq(graph_space(backend, edge_feature_space=None))
    assert not graph_space(backend, batch_shape=(2,)).is_subspaceeq(space)
    assert graph_space(backend, batch_shape=(2,)) != space


def test_limits_of_edges_do_not_count_without_edges() -> None:
    bare: dict[str, Any] = {"is_edge": False, "edge_feature_space": None}
    assert graph_space(**bare, min_edges=0, max_edges=1) == graph_space(**bare, min_edges=2, max_edges=7)


def test_is_bounded_asks_both_kinds_of_features() -> None:
    free = BoxSpace(np_backend, -INF, INF, "float32")
    assert graph_space().is_bounded()
    assert not graph_space(node_feature_space=free).is_bounded()
    assert not graph_space(edge_feature_space=free).is_bounded()
    assert GraphSpace(np_backend, None).is_bounded()


@every_backend
def test_a_device_reaches_the_features(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    space = graph_space(backend, device=device)
    for features in (space.node_feature_space, space.edge_feature_space):
        assert features is not None
        assert backend.same_device(features.device, device)
    assert backend.same_device(graph_space(backend).to(device=device).device, device)


def test_replace_changes_what_is_named() -> None:
    space = graph_space(batch_shape=(2,))
    assert space.replace() == space
    assert space.replace(batch_shape=(5,)).batch_shape == (5,)
    with pytest.raises(TypeError, match="batch_size"):
        space.replace(batch_size=3)
    assert_same(space, sample(space.replace()), sample(space))


# -- errors and text ---------------------------------------------------------------------------------------

CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "features": (
        TypeError,
        "node_feature_space is TextSpace, it wants a BoxSpace or None",
        {"node_feature_space": TextSpace(np_backend, 3)},
    ),
    "edge_features": (TypeError, "edge_feature_space is int, it wants a BoxSpace or None", {"edge_feature_space": 3}),
    "no_edges": (
        ValueError,
        "edge_feature_space is given, but is_edge is False: a graph without edges has no features",
        {"is_edge": False},
    ),
    "nodes": (ValueError, "nodes from 2 to 1, they want 0 <= min_nodes <= max_nodes", {"max_nodes": 1}),
    "edges": (ValueError, "edges from -1 to 3, they want 0 <= min_edges <= max_edges", {"min_edges": -1}),
    "float": (TypeError, "max_nodes is 2.5, it wants an integer", {"max_nodes": 2.5}),
    "none": (TypeError, "min_nodes is None, it wants an integer", {"min_nodes": None}),
    "batch_shape": (ValueError, "batch_shape (-1,) has a negative size", {"batch_shape": (-1,)}),
    "batch_number": (TypeError, "batch_shape is 2, it wants a sequence of integers", {"batch_shape": 2}),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, changes = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        graph_space(**changes)
    assert str(error.value) == text


def test_features_of_another_backend_are_refused() -> None:
    for other in BACKENDS[1:]:
        with pytest.raises(ValueError, match=f"node_feature_space: backend {other}, the GraphSpace wants numpy"):
            graph_space(node_feature_space=BoxSpace(other, 0, 1, "float32"))


def test_the_text_of_a_graph() -> None:
    assert repr(GraphSpace(np_backend, None)) == "GraphSpace(nodes=1..None, node_features=None, backend=numpy)"
    space = GraphSpace(np_backend, None, is_edge=True, max_nodes=2, batch_shape=(2,))
    assert str(space) == (
        "Graph(nodes=1..2, node_features=None, edges=1..None, edge_features=None, batch_shape=(2,), backend=numpy)"
    )
