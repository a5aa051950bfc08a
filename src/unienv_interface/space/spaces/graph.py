"""`GraphSpace`: graphs with features of nodes and edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import at_path, describe_mismatch, join_path
from ..space import BoundedManner, Space, parse_integer, parse_shape
from .array import array_mismatch
from .box import BoxSpace
from .dynamic_box import sample_size


@dataclass
class GraphInstance(Generic[BArrayType]):
    """One graph, or a batch of graphs.

    In a batch, entries beyond the number of nodes or edges of a graph are padding.

    Attributes
    ----------
    n_nodes, n_edges
        The numbers of nodes and edges: integer arrays of the batch shape.
    nodes_features
        An array of shape (*batch shape, largest number of nodes, *shape of the features of one node).
    edges_features
        The same for edges.
    edges
        The two end nodes of each edge: an integer array of shape (*batch shape, largest number of edges, 2).

    Examples
    --------
    >>> space = GraphSpace("numpy", BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,)), max_nodes=5)
    >>> rng, graph = space.sample(np.random.default_rng(0))
    >>> len(graph.nodes_features) == int(graph.n_nodes)
    True
    """

    n_nodes: Any
    n_edges: Any = None
    nodes_features: Any = None
    edges_features: Any = None
    edges: Any = None


class GraphSpace(Space[GraphInstance[BArrayType], BDeviceType, BDtypeType, BRNGType]):
    """Graphs with features of nodes and edges. Edges are directed pairs of nodes.

    Parameters
    ----------
    backend
        The library of the arrays.
    node_feature_space, edge_feature_space
        The box of the features of one node, and of one edge; None for no features.
    is_edge
        Whether the graphs have edges.
    min_nodes, max_nodes, min_edges, max_edges
        Limits, both inclusive; a maximum of None means no limit. A graph without nodes has no edges.
    batch_shape
        The leading axes of a batch of graphs.
    device
        The device of the arrays; None for any.

    Raises
    ------
    ValueError
        The features are on another backend, edges have features without `is_edge`, or a limit is negative or
        above its maximum.
    TypeError
        The features are no boxes, or a limit is no integer.

    Examples
    --------
    >>> space = GraphSpace("numpy", BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,)), is_edge=True, max_nodes=5)
    >>> rng, graph = space.sample(np.random.default_rng(0))
    >>> graph.nodes_features.shape[1]
    3
    """

    def __init__(
        self,
        backend: BackendLike,
        node_feature_space: BoxSpace | None,
        edge_feature_space: BoxSpace | None = None,
        is_edge: bool = False,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        min_edges: int = 1,
        max_edges: int | None = None,
        batch_shape: Sequence[int] = (),
        device: Any = None,
    ) -> None:
        backend = parse_backend(backend)
        for name, features in (("node_feature_space", node_feature_space), ("edge_feature_space", edge_feature_space)):
            if features is not None and not isinstance(features, BoxSpace):
                raise TypeError(f"{name} is {type(features).__name__}, it wants a BoxSpace or None")
            if features is not None and features.backend is not backend:
                raise ValueError(f"{name}: backend {features.backend}, the GraphSpace wants {backend}")
        if edge_feature_space is not None and not is_edge:
            raise ValueError("edge_feature_space is given, but is_edge is False: a graph without edges has no features")
        self.min_nodes, self.min_edges = parse_integer(min_nodes, "min_nodes"), parse_integer(min_edges, "min_edges")
        self.max_nodes = None if max_nodes is None else parse_integer(max_nodes, "max_nodes")
        self.max_edges = None if max_edges is None else parse_integer(max_edges, "max_edges")
        for name, least, most in (("nodes", min_nodes, max_nodes), ("edges", min_edges, max_edges)):
            if least < 0 or (most is not None and most < least):
                raise ValueError(f"{name} from {least} to {most}, they want 0 <= min_{name} <= max_{name}")
        if device is not None:
            node_feature_space = None if node_feature_space is None else node_feature_space.to(device=device)
            edge_feature_space = None if edge_feature_space is None else edge_feature_space.to(device=device)
        features_device = self.abbr_device(s for s in (node_feature_space, edge_feature_space) if s is not None)
        super().__init__(backend, device=device if device is not None else features_device)
        self.node_feature_space = node_feature_space
        self.edge_feature_space = edge_feature_space
        self.is_edge = is_edge
        self.batch_shape = parse_shape(batch_shape, "batch_shape")

    def replace(self, **changes: Any) -> GraphSpace:
        """Return a copy with some of the constructor's arguments replaced."""
        arguments: dict[str, Any] = {
            "backend": self.backend,
            "node_feature_space": self.node_feature_space,
            "edge_feature_space": self.edge_feature_space,
            "is_edge": self.is_edge,
            "min_nodes": self.min_nodes,
            "max_nodes": self.max_nodes,
            "min_edges": self.min_edges,
            "max_edges": self.max_edges,
            "batch_shape": self.batch_shape,
            "device": self._device,
        }
        return GraphSpace(**arguments | changes)

    def to(self, backend: BackendLike | None = None, device: Any = None) -> GraphSpace:
        backend = None if backend is None else parse_backend(backend)
        if self._is_on(backend, device):
            return self
        moved = {
            name: None if features is None else features.to(backend, device)
            for name, features in (
                ("node_feature_space", self.node_feature_space),
                ("edge_feature_space", self.edge_feature_space),
            )
        }
        return self.replace(backend=backend or self.backend, device=device, **moved)

    def data_to(self, data: GraphInstance, backend: BackendLike | None = None, device: Any = None) -> GraphInstance:
        target = self.backend if backend is None else parse_backend(backend)

        def move(array: Any, features: BoxSpace | None = None) -> Any:
            if array is None:
                return None
            if features is not None:
                low, high = features.bounds
                array_space = BoxSpace(self.backend, low, high, features.dtype, features.device, array.shape)
                return array_space.data_to(array, backend, device)
            return target.to_device(target.from_other_backend(self.backend, array), device)

        return GraphInstance(
            move(data.n_nodes),
            move(data.n_edges),
            move(data.nodes_features, self.node_feature_space),
            move(data.edges_features, self.edge_feature_space),
            move(data.edges),
        )

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, GraphInstance]:
        if 0 in self.batch_shape:
            return rng, self.create_empty()
        graphs = []
        for _ in range(int(np.prod(self.batch_shape, dtype=np.int64))):
            rng, graph = self._sample_graph(rng)
            graphs.append(graph)
        if self.batch_shape == ():
            return rng, graphs[0]
        return rng, stack_graphs(self, graphs, self.batch_shape)

    def _sample_graph(self, rng: Any) -> tuple[Any, GraphInstance]:
        rng, n_nodes = sample_size(self.backend, rng, self.min_nodes, self.max_nodes)
        graph = GraphInstance(self._count(n_nodes))
        if self.node_feature_space is not None:
            rng, graph.nodes_features = self._sample_features(rng, self.node_feature_space, n_nodes)
        if self.is_edge:
            rng, n_edges = sample_size(self.backend, rng, self.min_edges, self.max_edges) if n_nodes else (rng, 0)
            graph.n_edges = self._count(n_edges)
            rng, graph.edges = self.backend.random.random_discrete_uniform(
                (n_edges, 2), 0, max(n_nodes, 1), rng=rng, dtype=self.index_dtype, device=self.device
            )
            if self.edge_feature_space is not None:
                rng, graph.edges_features = self._sample_features(rng, self.edge_feature_space, n_edges)
        return rng, graph

    def _sample_features(self, rng: Any, space: BoxSpace, count: int) -> tuple[Any, Any]:
        return space.bounds.sample(self.backend, rng, (count, *space.shape), space.dtype, self.device)

    @property
    def index_dtype(self) -> Any:
        """The dtype of `n_nodes`, `n_edges` and `edges`."""
        return self.backend.default_index_dtype

    def _count(self, value: Any) -> Any:
        return self.backend.from_host(np.asarray(value), self.index_dtype, device=self.device)

    def create_empty(self) -> GraphInstance:
        min_edges = self.min_edges if self.min_nodes else 0

        def empty(space: BoxSpace | None, count: int) -> Any:
            if space is None:
                return None
            shape = (*self.batch_shape, count, *space.shape)
            return self.backend.zeros(shape, dtype=space.dtype, device=self.device)

        graph = GraphInstance(self._count(np.full(self.batch_shape, self.min_nodes)))
        graph.nodes_features = empty(self.node_feature_space, self.min_nodes)
        if self.is_edge:
            graph.n_edges = self._count(np.full(self.batch_shape, min_edges))
            graph.edges_features = empty(self.edge_feature_space, min_edges)
            shape = (*self.batch_shape, min_edges, 2)
            graph.edges = self.backend.zeros(shape, dtype=self.index_dtype, device=self.device)
        return graph

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        spaces = (self.node_feature_space, self.edge_feature_space)
        return all(space is None or space.is_bounded(manner) for space in spaces)

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        if not isinstance(other, GraphSpace) or self.backend is not other.backend:
            return False
        if self.is_edge != other.is_edge or self.batch_shape != other.batch_shape:
            return False
        ranges = [(self.min_nodes, self.max_nodes, other.min_nodes, other.max_nodes)]
        if self.is_edge:
            ranges.append((self.min_edges, self.max_edges, other.min_edges, other.max_edges))
        if not all(
            least <= mine_least and (most is None or (mine_most is not None and mine_most <= most))
            for mine_least, mine_most, least, most in ranges
        ):
            return False
        features = (
            (self.node_feature_space, other.node_feature_space),
            (self.edge_feature_space, other.edge_feature_space),
        )
        return all(
            mine is theirs if mine is None or theirs is None else mine.is_subspaceeq(theirs)
            for mine, theirs in features
        )

    def _key(self) -> tuple[Any, ...]:
        edges = (self.min_edges, self.max_edges, self.edge_feature_space) if self.is_edge else None
        return (self.node_feature_space, self.min_nodes, self.max_nodes, edges, self.batch_shape)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        def features(space: BoxSpace | None) -> str:
            return "None" if space is None else space.get_repr(abbreviate, False, False, include_dtype)

        texts = [f"nodes={self.min_nodes}..{self.max_nodes}", f"node_features={features(self.node_feature_space)}"]
        if self.is_edge:
            texts += [
                f"edges={self.min_edges}..{self.max_edges}",
                f"edge_features={features(self.edge_feature_space)}",
            ]
        if self.batch_shape:
            texts.append(f"batch_shape={self.batch_shape}")
        suffix = self._backend_repr(include_backend, include_device)
        return f"{'Graph' if abbreviate else 'GraphSpace'}({', '.join(texts)}{suffix})"


def fields_of(graph: GraphInstance) -> Iterator[Any]:
    """The five arrays of a graph, in the order of its constructor."""
    return iter((graph.n_nodes, graph.n_edges, graph.nodes_features, graph.edges_features, graph.edges))


def stack_graphs(space: GraphSpace, graphs: Sequence[GraphInstance], batch_shape: Sequence[int]) -> GraphInstance:
    """Stack graphs, or batches of graphs, along new leading axes of `batch_shape`; pads them to one size."""
    backend, batch_ndim = space.backend, len(space.batch_shape) - len(batch_shape)
    stacked: list[Any] = []
    for position, arrays in enumerate(zip(*(fields_of(graph) for graph in graphs), strict=True)):
        if arrays[0] is None:
            stacked.append(None)
            continue
        if position >= 2:  # features and edges: pad to the largest graph
            most = max(array.shape[batch_ndim] for array in arrays)
            arrays = tuple(backend.pad_dim(array, batch_ndim, most) for array in arrays)
        joined = backend.stack(list(arrays), axis=0)
        stacked.append(backend.reshape(joined, (*batch_shape, *joined.shape[1:])))
    return GraphInstance(*stacked)


def trim_graphs(backend: ComputeBackend, graphs: GraphInstance) -> GraphInstance:
    """Strip the padding that no graph in a batch needs."""

    def trim(array: Any, counts: Any) -> Any:
        if array is None:
            return None
        host_counts = backend.to_host(counts)
        return array[(slice(None),) * host_counts.ndim + (slice(0, int(host_counts.max()) if host_counts.size else 0),)]

    features = trim(graphs.nodes_features, graphs.n_nodes)
    edges_features, edges = (trim(array, graphs.n_edges) for array in (graphs.edges_features, graphs.edges))
    return GraphInstance(graphs.n_nodes, graphs.n_edges, features, edges_features, edges)


@describe_mismatch.register
def _(space: GraphSpace, x: Any, path: str = "") -> str | None:
    if not isinstance(x, GraphInstance):
        return at_path(path, f"{type(x).__name__}, the space wants a GraphInstance")
    nodes, finding = _counts_mismatch(space, x.n_nodes, space.min_nodes, space.max_nodes, join_path(path, "n_nodes"))
    if finding is None:
        finding = _features_mismatch(space, space.node_feature_space, x.nodes_features, nodes, path, "nodes_features")
    if finding is not None:
        return finding
    if not space.is_edge:
        surplus = [name for name in ("n_edges", "edges_features", "edges") if getattr(x, name) is not None]
        return at_path(path, f"{surplus[0]} is given, the space has no edges") if surplus else None
    least = np.where(nodes > 0, space.min_edges, 0)
    edges, finding = _counts_mismatch(space, x.n_edges, least, space.max_edges, join_path(path, "n_edges"))
    if finding is None:
        finding = _features_mismatch(space, space.edge_feature_space, x.edges_features, edges, path, "edges_features")
    if finding is None:
        finding = _ends_mismatch(space, x.edges, nodes, edges, join_path(path, "edges"))
    return finding


def _counts_mismatch(
    space: GraphSpace, counts: Any, least: Any, most: int | None, path: str
) -> tuple[np.ndarray, str | None]:
    nothing = np.zeros(space.batch_shape, np.int64)
    finding = array_mismatch(
        space.backend, space.backend.dtype_name(space.index_dtype), counts, path, space.batch_shape
    )
    if finding is not None:
        return nothing, finding
    host_counts = space.backend.to_host(counts)
    outside = (host_counts < least) | (host_counts > (np.inf if most is None else most))
    if np.any(outside):
        worst = host_counts[outside].flat[0] if host_counts.ndim else host_counts
        return nothing, at_path(path, f"{worst}, the space wants {np.min(least) if np.size(least) else 0} to {most}")
    return host_counts, None


def _features_mismatch(
    space: GraphSpace, features: BoxSpace | None, x: Any, counts: np.ndarray, path: str, name: str
) -> str | None:
    path = join_path(path, name)
    if features is None:
        return None if x is None else at_path(path, "is given, the space has no such features")
    finding = array_mismatch(space.backend, features.dtype_name, x, path, None)
    if finding is not None:
        return finding
    ndim = len(space.batch_shape)
    shape = tuple(x.shape)
    most = int(counts.max()) if counts.size else 0
    if (
        len(shape) <= ndim
        or shape[:ndim] != space.batch_shape
        or shape[ndim + 1 :] != features.shape
        or shape[ndim] < most
    ):
        expected = (*space.batch_shape, most, *features.shape)
        return at_path(path, f"shape {shape}, the space and the counts want {expected}")
    used = _used_entries(space.backend.to_host(x), counts)
    violation = features.bounds.violation(used)
    return None if violation is None else at_path(path, violation)


def _ends_mismatch(space: GraphSpace, x: Any, nodes: np.ndarray, edges: np.ndarray, path: str) -> str | None:
    finding = array_mismatch(space.backend, space.backend.dtype_name(space.index_dtype), x, path, None)
    if finding is not None:
        return finding
    ndim, most = len(space.batch_shape), int(edges.max()) if edges.size else 0
    shape = tuple(x.shape)
    if len(shape) != ndim + 2 or shape[:ndim] != space.batch_shape or shape[-1] != 2 or shape[ndim] < most:
        return at_path(path, f"shape {shape}, the space and the counts want {(*space.batch_shape, most, 2)}")
    ends = space.backend.to_host(x)
    limit = np.broadcast_to(np.expand_dims(nodes, (-1, -2)), ends.shape)
    used, limit = _used_entries(ends, edges), _used_entries(limit, edges)
    if np.any((used < 0) | (used >= limit)):
        return at_path(path, "an edge ends at a node that the graph does not have")
    return None


def _used_entries(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The entries of a padded array that are not padding."""
    positions = np.arange(values.shape[counts.ndim])
    return values[positions < np.expand_dims(counts, -1)]
