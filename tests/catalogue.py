"""The one catalogue of spaces that every law is checked on, times the backends that are installed.

    @pytest.mark.parametrize("space", space_cases())
    def test_sample_is_member(space): assert sample(space) in space

A new space goes into `SPACES`, and into `ON_JAX` if it brings something JAX has to be shown: JAX compiles every
new shape and dtype, so few of its entries differ in these.
"""

from __future__ import annotations

import importlib.util
import itertools
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from unienv_interface.backends import (
    ComputeBackend,
    NumpyComputeBackend,
    deserialize_backend,
    get_backend_from_tensor,
)
from unienv_interface.space.spaces import (
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
)

INF = np.inf
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

_LIBRARIES = {"numpy": "numpy", "pytorch": "torch", "jax": "jax"}
BACKENDS: list[ComputeBackend] = [
    deserialize_backend(name) for name, library in _LIBRARIES.items() if importlib.util.find_spec(library)
]

Builder = Callable[[ComputeBackend], Any]  # a Space; Any, so that a test may use what only its kind has


def _box(low: Any, high: Any, dtype: str, shape: tuple[int, ...] | None = None) -> Builder:
    return lambda backend: BoxSpace(backend, low, high, dtype, shape=shape)


def _text(max_length: int, charset: Iterable[str] | None = None, min_length: int = 0) -> Builder:
    return lambda backend: TextSpace(backend, max_length, min_length=min_length, charset=charset)


def _build(name: str, backend: ComputeBackend) -> Any:
    return SPACES[name](backend)


def _whole(dtype: str) -> float:
    return float(np.finfo(dtype).max)


SPACES: dict[str, Builder] = {
    # -- boxes of floats
    "box_float32": _box(-1.0, 1.0, "float32", (3,)),
    "box_float64": _box(0.1, 0.3, "float64", (2, 3)),
    "box_float16": _box(-2.0, 3.0, "float16", (3,)),
    "box_bfloat16": _box(-2.0, 3.0, "bfloat16", (3,)),
    "box_scalar": _box(-1.0, 1.0, "float32", ()),
    "box_free": _box(-INF, INF, "float32", (3,)),
    "box_free_bfloat16": _box(-INF, INF, "bfloat16", ()),
    "box_from_below": _box(2.5, INF, "float64", (3,)),
    "box_from_above": _box(-INF, -2.5, "float32", (3,)),
    "box_mixed": _box([-INF, -INF, 0.0, -1.0], [INF, 0.0, INF, 1.0], "float32"),
    "box_per_row": _box([[0.0], [-5.0]], [[1.0], [5.0]], "float32", (2, 3)),
    "box_point": _box(0.7, 0.7, "float32", (3,)),
    "box_widest_float32": _box(-_whole("float32"), _whole("float32"), "float32", (3,)),
    "box_widest_float64": _box(-_whole("float64"), _whole("float64"), "float64", (2,)),
    "box_widest_float16": _box(-65504.0, 65504.0, "float16", (3,)),
    "box_tiny": _box(0.0, 1e-40, "float32", (3,)),
    "box_zero_size": _box(-1.0, 1.0, "float32", (0,)),
    "box_zero_inside": _box(0, 9, "int16", (2, 0, 3)),
    "box_image": _box(0, 255, "uint8", (4, 5, 3)),
    # -- boxes of integers
    **{f"box_{name}": _box(-INF, INF, name, (3,)) for name in INTEGERS},
    "box_small_int": _box(-1, 2, "int32", (3,)),
    "box_int_scalar": _box(3, 7, "int64", ()),
    "box_int_per_entry": _box([-128, 0, 5], [127, 0, 6], "int8"),
    "box_uint64_top": _box(2**64 - 3, 2**64 - 1, "uint64", (3,)),
    "box_int64_bottom": _box(-(2**63), -(2**63) + 2, "int64", (3,)),
    "box_int64_ends": _box([-(2**63), 0], [2**63 - 1, 2**63 - 1], "int64"),
    # -- boxes of complex numbers, booleans
    "box_complex64": _box(-INF, INF, "complex64", (3,)),
    "box_complex128": _box(-INF, INF, "complex128", ()),
    "binary": lambda backend: BinarySpace(backend, (3,)),
    "binary_scalar": lambda backend: BinarySpace(backend, ()),
    "binary_zero_size": lambda backend: BinarySpace(backend, (0, 2)),
    # -- texts
    "text_any": _text(5),
    "text_ascii": _text(3, string.ascii_lowercase, min_length=1),
    "text_unicode": _text(3, "äß€漢🙂\u0301"),
    "text_nul": _text(4, "\0a\n"),
    "text_surrogate": _text(3, "\ud800a"),
    "text_quotes": _text(4, "'\"\\/"),
    "text_empty_charset": _text(3, ""),
    "text_fixed": _text(6, "01", min_length=6),
    "text_nothing": _text(0),
    # -- dictionaries
    "dict_empty": lambda backend: DictSpace(backend),
    "dict_flat": lambda backend: DictSpace(
        backend, {"rgb": _build("box_uint8", backend), "on": _build("binary", backend)}
    ),
    "dict_nested": lambda backend: DictSpace(
        backend,
        {
            "obs": {"pose": _build("box_float32", backend), "inner": {"gripper": _build("binary", backend)}},
            "reward": _build("box_scalar", backend),
            "task": _build("text_ascii", backend),
        },
    ),
    "dict_from_pairs": lambda backend: DictSpace(
        backend, [("z", _build("box_float32", backend)), ("a", _build("box_scalar", backend))]
    ),
    "dict_odd_keys": lambda backend: DictSpace(
        backend,
        {key: BinarySpace(backend, (size,)) for size, key in enumerate(["", "a/b", "a", "ключ🗝", "\0", " ", "."])},
    ),
    "dict_of_empty": lambda backend: DictSpace(backend, {"a": {}, "b": TupleSpace(backend, ())}),
    "dict_all_dtypes": lambda backend: DictSpace(
        backend, {name: BoxSpace(backend, -INF, INF, name, shape=(2,)) for name in DTYPES if name != "bool"}
    ),
    # -- tuples
    "tuple_empty": lambda backend: TupleSpace(backend, ()),
    "tuple_mixed": lambda backend: TupleSpace(
        backend, [_build(name, backend) for name in ("box_float32", "binary", "text_ascii")]
    ),
    "tuple_nested": lambda backend: TupleSpace(
        backend, [_build("tuple_mixed", backend), _build("dict_nested", backend), _build("tuple_empty", backend)]
    ),
    # -- unions
    "union_one": lambda backend: UnionSpace(backend, [_build("box_scalar", backend)]),
    "union": lambda backend: UnionSpace(
        backend, [_build(name, backend) for name in ("box_float32", "text_ascii", "dict_nested", "tuple_empty")]
    ),
    "union_nested": lambda backend: UnionSpace(backend, [_build("union", backend), _build("union_one", backend)]),
    "union_same": lambda backend: UnionSpace(backend, [_build("box_small_int", backend)] * 2),
    # -- graphs
    "graph_bare": lambda backend: GraphSpace(backend, None, max_nodes=3),
    "graph_nodes": lambda backend: GraphSpace(backend, _build("box_float32", backend), max_nodes=3),
    "graph_edges": lambda backend: GraphSpace(
        backend,
        _build("box_float32", backend),
        _build("box_int_per_entry", backend),
        is_edge=True,
        min_nodes=2,
        max_nodes=4,
        max_edges=5,
    ),
    "graph_fixed": lambda backend: GraphSpace(  # one size of everything
        backend,
        _build("box_float32", backend),
        _build("box_small_int", backend),
        is_edge=True,
        min_nodes=2,
        max_nodes=2,
        min_edges=3,
        max_edges=3,
    ),
    "graph_bare_edges": lambda backend: GraphSpace(
        backend, None, is_edge=True, min_nodes=0, max_nodes=2, min_edges=1, max_edges=3
    ),
    "graph_unlimited": lambda backend: GraphSpace(
        backend, _build("box_scalar", backend), _build("box_float64", backend), is_edge=True
    ),
    "graph_batched": lambda backend: GraphSpace(
        backend, _build("box_scalar", backend), None, is_edge=True, max_nodes=3, max_edges=2, batch_shape=(2,)
    ),
    "graph_grid": lambda backend: GraphSpace(
        backend, _build("box_float32", backend), min_nodes=0, max_nodes=3, batch_shape=(2, 3)
    ),
    "graph_no_batch": lambda backend: GraphSpace(
        backend, _build("box_scalar", backend), is_edge=True, batch_shape=(0, 2)
    ),
    # -- dynamic boxes
    "dynamic_box": lambda backend: DynamicBoxSpace(backend, -1.0, 1.0, (1, 3), (2, 3), "float32"),
    "dynamic_box_unlimited": lambda backend: DynamicBoxSpace(backend, 0, 255, (0, 2), (None, 2), "uint8"),
    "dynamic_box_axes": lambda backend: DynamicBoxSpace(
        backend, [[[-1.0], [-2.0]]], [[[1.0], [INF]]], (0, 2, 1), (3, 2, 3), "float64", fill_value=np.nan
    ),
    "dynamic_box_int": lambda backend: DynamicBoxSpace(backend, 0, 9, (0,), (4,), "int64", fill_value=-1),
    "dynamic_box_bfloat16": lambda backend: DynamicBoxSpace(backend, 1.0, 2.0, (1,), (3,), "bfloat16", fill_value=0.1),
    # -- batches of what is no array
    "batched_text": lambda backend: BatchedSpace(_build("text_ascii", backend), (3,)),
    "batched_union": lambda backend: BatchedSpace(_build("union", backend), (2, 2)),
    "batched_dynamic": lambda backend: BatchedSpace(_build("dynamic_box", backend), (2,)),
    "batched_scalar": lambda backend: BatchedSpace(_build("box_scalar", backend), (2,)),
    "batched_any_size": lambda backend: BatchedSpace(_build("text_ascii", backend), (None, 2)),
    "batched_none": lambda backend: BatchedSpace(_build("union_one", backend), (0, 2)),
    "batched_without_axes": lambda backend: BatchedSpace(_build("text_any", backend), ()),
    # -- all at once
    "deep": lambda backend: _nest(_build("box_scalar", backend), 12),
    "everything": lambda backend: DictSpace(
        backend,
        {
            name: _build(name, backend)
            for name in ("tuple_nested", "union_nested", "graph_edges", "dynamic_box", "batched_union", "text_unicode")
        },
    ),
}


def _nest(space: Space, depth: int) -> Space:
    for level in range(depth):
        wrap = DictSpace(space.backend, {f"level {level}": space})
        space = wrap if level % 2 else TupleSpace(space.backend, [space])
    return space


# The values of these need 64 bits, which JAX does not have by default.
NEEDS_64_BITS = frozenset(
    """box_int64 box_uint64 box_uint64_top box_int64_bottom box_int64_ends box_widest_float64
    dict_all_dtypes""".split()  # noqa: SIM905
)

ON_JAX = frozenset(
    """box_float32 box_bfloat16 box_scalar box_mixed box_point box_zero_size box_uint8 box_int64 box_uint32
    box_small_int box_complex64 binary text_ascii text_unicode text_empty_charset dict_empty dict_nested
    dict_from_pairs tuple_mixed union graph_fixed dynamic_box batched_text""".split()  # noqa: SIM905
)


def names_on(backend: ComputeBackend) -> list[str]:
    return [name for name in SPACES if backend.simplified_name != "jax" or name in ON_JAX]


def space_cases(
    *prefixes: str,
    backends: Iterable[ComputeBackend] = BACKENDS,
    where: Callable[[Any], bool] = lambda space: True,
) -> list[Any]:
    """One pytest parameter per backend and space, with an id such as "numpy-box_float32".

    `prefixes` keep the spaces whose name starts with one of them, `where` those it is true for.
    """
    return [
        pytest.param(space, id=f"{backend}-{name}")
        for backend in backends
        for name in names_on(backend)
        if not prefixes or name.startswith(prefixes)
        if where(space := _build(name, backend))
    ]


def move_cases(*prefixes: str) -> list[Any]:
    """One pytest parameter (space, backend) for every other backend that can hold the values of a space."""
    return [
        pytest.param(SPACES[name](source), target, id=f"{source}-{name}-to-{target}")
        for source, target in itertools.permutations(BACKENDS, 2)
        for name in names_on(source)
        if not prefixes or name.startswith(prefixes)
        if target.simplified_name != "jax" or name not in NEEDS_64_BITS
    ]


def backend_cases() -> list[Any]:
    """One pytest parameter per backend."""
    return [pytest.param(backend, id=backend.simplified_name) for backend in BACKENDS]


def rng_of(backend: ComputeBackend, seed: int = 0) -> Any:
    return backend.random.random_number_generator(seed)


def sample(space: Space, seed: int = 0) -> Any:
    """One value, drawn with a fresh generator of that seed."""
    return space.sample(rng_of(space.backend, seed))[1]


def samples(space: Space, count: int, seed: int = 0) -> list[Any]:
    """Values drawn one after the other."""
    rng, values = rng_of(space.backend, seed), []
    for _ in range(count):
        rng, value = space.sample(rng)
        values.append(value)
    return values


def as_host(value: Any) -> Any:
    """A value of any space with its arrays on the host, as NumPy computes with them."""
    if isinstance(value, Mapping):
        return {key: as_host(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(as_host(child) for child in value)
    if isinstance(value, GraphInstance):
        return GraphInstance(*(as_host(array) for array in vars(value).values()))
    if isinstance(value, np.ndarray) and value.dtype == object:
        copied = np.empty(value.shape, object)
        for place in np.ndindex(value.shape):
            copied[place] = as_host(value[place])
        return copied
    if value is None or isinstance(value, (str, int)):
        return value
    return get_backend_from_tensor(value).to_host(value)


def assert_same(space: Space | None, a: Any, b: Any, path: str = "value") -> None:
    """Compare two values exactly: structure, backend, dtype, shape and every bit, that of NaN and of -0.0 too.

    With a space, both must be values of it.
    """
    if space is not None:
        assert space.contains(a), f"{a!r} is not in {space}"
        assert space.contains(b), f"{b!r} is not in {space}"
    if isinstance(a, Mapping):
        assert isinstance(b, Mapping), path
        assert set(a) == set(b), path
        for key in a:
            assert_same(None, a[key], b[key], f"{path}/{key}")
    elif isinstance(a, tuple):
        assert isinstance(b, tuple), path
        assert len(a) == len(b), path
        for position, (mine, theirs) in enumerate(zip(a, b, strict=True)):
            assert_same(None, mine, theirs, f"{path}/{position}")
    elif isinstance(a, GraphInstance):
        assert isinstance(b, GraphInstance), path
        assert_same(None, vars(a), vars(b), path)
    elif isinstance(a, np.ndarray) and a.dtype == object:
        assert isinstance(b, np.ndarray), path
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        assert_same(None, tuple(a.flat), tuple(b.flat), path)
    elif a is None or isinstance(a, (str, int)):
        assert type(a) is type(b), path
        assert a == b, path
    else:
        _assert_same_array(a, b, path)


def _assert_same_array(a: Any, b: Any, path: str) -> None:
    backend = get_backend_from_tensor(a)
    assert get_backend_from_tensor(b) is backend, path
    assert a.dtype == b.dtype, path
    assert tuple(a.shape) == tuple(b.shape), path
    mine, theirs = (np.ascontiguousarray(backend.to_raw(array)) for array in (a, b))
    assert mine.tobytes() == theirs.tobytes(), f"{path}: {a} is not {b}"


def same(a: Any, b: Any) -> bool:
    """Whether `assert_same` would pass."""
    try:
        assert_same(None, a, b)
    except AssertionError:
        return False
    return True


# -- for Hypothesis, on NumPy ------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, dtypes: Iterable[str] = (*INTEGERS, *FLOATS)) -> BoxSpace:
    """A box of any shape and dtype; its bounds are numbers, or arrays that broadcast to the shape."""
    dtype, shape = draw(st.sampled_from(tuple(dtypes))), draw(shapes)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        number: Any = st.integers(int(limits.min), int(limits.max))
    else:
        widest = {"float16": (65504.0, 16), "bfloat16": (1e38, 32), "float32": (_whole("float32"), 32)}
        limit, width = widest.get(dtype, (_whole("float64"), 64))
        limit = float(np.float32(limit)) if width == 32 else limit
        number = st.one_of(st.floats(-limit, limit, width=width), st.sampled_from([-INF, INF]))  # type: ignore[arg-type]
    some_axes = tuple(size if draw(st.booleans()) else 1 for size in shape)
    count = int(np.prod(some_axes, dtype=np.int64))
    pairs = draw(st.lists(st.tuples(number, number).map(sorted).filter(_leaves_room), min_size=count, max_size=count))
    host = np.dtype(np.float64 if dtype not in INTEGERS else dtype)
    low, high = (np.array([pair[end] for pair in pairs], host).reshape(some_axes) for end in (0, 1))
    return BoxSpace(NumpyComputeBackend, low, high, dtype, shape=shape)


def _leaves_room(pair: list[float]) -> bool:
    return pair[0] != INF and pair[1] != -INF
