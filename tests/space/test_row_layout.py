"""Rows: every value comes out of them bit by bit as it went in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, DTYPES, assert_same, boxes, sample, samples, space_cases
from hypothesis import given
from hypothesis import strategies as st
from row_cases import JAX, MUTABLE, NUMPY, box, zeroed

from unienv_interface.backends import ComputeBackend, dtypes
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_space, concatenate
from unienv_interface.space.spaces import BinarySpace, CompositeSpace, DictSpace, GraphSpace, TextSpace, TupleSpace

ON_JAX = ("box_bfloat16", "dict_nested", "graph_fixed")


def is_read_as_written(space: Space) -> bool:
    """Not so for a batch of no graphs, which keeps none of its filling."""
    return not (isinstance(space, GraphSpace) and 0 in space.batch_shape)


every_space = pytest.mark.parametrize(
    "space", space_cases(backends=MUTABLE, where=is_read_as_written) + space_cases(*ON_JAX, backends=JAX)
)


# -- exact -------------------------------------------------------------------------------------------------


@every_space
def test_one_value_comes_out_as_it_went_in(space: Space) -> None:
    layout = RowLayout(space)
    value, other = samples(space, 2)
    alone, line = layout.empty(()), layout.empty(5)
    layout.pack(alone, (), value)
    layout.pack(line, 3, other)
    layout.pack(line, -2, value)
    assert_same(space, layout.unpack(alone), value)
    for rows in (line[3], line[-2], line[np.int64(3)], line.take(3), line[2:4][1]):
        assert rows.shape == ()
        assert_same(space, layout.unpack(rows), value)
    assert_same(space, layout.gather(line, 3), value)


# Indices of five rows that stand for three.
INDICES: list[Any] = [
    slice(1, 4),
    slice(-3, None),
    slice(None, None, 2),
    slice(None, 1, -1),
    np.array([4, 0, 2]),
    np.array([-1, 1, -5]),
    np.array([3, 1, 0], np.uint8),
    np.array([True, False, True, True, False]),
    [1, 0, 4],
]


@every_space
def test_batches_come_out_as_they_went_in(space: Space) -> None:
    layout, batched = RowLayout(space), batch_space(space, 3)
    batch = concatenate(space, samples(space, 3))
    indices = INDICES if space.backend not in JAX else INDICES[:1]
    for index in indices:
        rows = layout.empty(5)
        layout.pack(rows, index, batch)
        assert rows[index].shape == (3,)
        assert_same(batched, layout.unpack(rows[index]), batch)
        if isinstance(index, np.ndarray) and index.dtype != bool:
            assert_same(batched, layout.unpack(rows.take(index)), batch)
            assert_same(batched, layout.gather(rows, index), batch)
    whole = layout.empty(3)
    layout.pack(whole, ..., batch)
    assert_same(batched, layout.unpack(whole), batch)


@pytest.mark.parametrize("space", space_cases(backends=MUTABLE, where=is_read_as_written))
def test_grids_come_out_as_they_went_in(space: Space) -> None:
    layout = RowLayout(space)
    items = samples(space, 6)
    lines = [concatenate(space, items[:3]), concatenate(space, items[3:])]
    grid, grid_space = concatenate(batch_space(space, 3), lines), batch_space(batch_space(space, 3), 2)
    rows = layout.empty((2, 4))
    layout.pack(rows, (slice(None), slice(1, 4)), grid)
    assert_same(grid_space, layout.unpack(rows[:, 1:]), grid)
    assert_same(batch_space(space, 3), layout.unpack(rows[1, 1:]), lines[1])
    assert_same(batch_space(space, 3), layout.unpack(rows[1][1:]), lines[1])
    assert_same(space, layout.unpack(rows[0, 2]), items[1])
    column = concatenate(space, [items[2], items[0]])
    layout.pack(rows, (..., 0), column)  # the axes of the rows, not those of their leaves
    assert_same(batch_space(space, 2), layout.unpack(rows[..., 0]), column)
    assert_same(batch_space(space, 2), layout.unpack(rows.take([1, 0])[..., 0]), concatenate(space, items[0:3:2]))
    mask = np.array([[False, True, False, False], [True, False, False, False]])
    layout.pack(rows, mask, column)
    assert_same(batch_space(space, 2), layout.unpack(rows[mask]), column)


@pytest.mark.parametrize("space", space_cases(backends=MUTABLE))
def test_no_rows_are_a_batch_of_none(space: Space) -> None:
    layout = RowLayout(space)
    for rows in (layout.empty(0), layout.empty(4)[2:2], layout.empty(4).take(np.zeros(0, int))):
        nothing = layout.unpack(rows)
        assert nothing in batch_space(space, 0)
        layout.pack(rows, slice(None), nothing)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_indices_of_the_same_library_are_taken_too(backend: ComputeBackend) -> None:
    layout = RowLayout(TupleSpace(backend, [box(3, backend=backend), TextSpace(backend, 3)]))
    values = (
        backend.reshape(backend.arange(6, dtype=backend.dtype_from_name("float32")), (2, 3)),
        np.array(["a", "b"], object),
    )
    rows, places = layout.empty(5), backend.asarray([3, 1])
    layout.pack(rows, places, values)
    assert_same(None, layout.gather(rows, places), values)
    assert_same(None, layout.unpack(rows[places]), values)


@pytest.mark.parametrize("space", space_cases("dict", "box_float32", "everything", backends=MUTABLE))
def test_gathered_rows_are_decoded_as_any_others(space: Space) -> None:
    layout = RowLayout(space)
    rows = layout.empty(4)
    layout.pack(rows, slice(None), concatenate(space, samples(space, 4)))
    index = np.array([[3, 0, 1], [2, 2, 0]])
    assert_same(None, layout.gather(rows, index), layout.unpack(rows.take(index)))
    if not layout.has_heap:
        assert_same(None, layout.unpack_gathered(rows.take(index)), layout.unpack(rows.take(index)))
        windows = rows.take(index)
        windows.rearrange(np.array([1]), np.array([[2, 0, 0]]))
        assert_same(None, layout.unpack(windows), layout.unpack(rows.take(np.array([[3, 0, 1], [0, 2, 2]]))))


@pytest.mark.parametrize("space", space_cases("dict", "box_float32", "union", "everything", backends=MUTABLE))
def test_the_steps_of_pack_and_unpack_one_by_one(space: Space) -> None:
    layout = RowLayout(space)
    rows, value = layout.empty(2), sample(space)
    encoded = layout.store(layout.encode(value, ()), rows.heap)
    layout.write(rows, 1, encoded)
    assert_same(space, layout.assemble(rows[1].columns, rows.heap), value)
    batch = concatenate(space, samples(space, 3))
    encoded = layout.store(layout.encode(batch, (3,)), rows.heap)
    layout.write(rows, slice(None), [leaf[1:] for leaf in encoded])
    assert_same(batch_space(space, 2), layout.unpack(rows), concatenate(space, samples(space, 3)[1:]))


def test_the_one_column_of_a_plain_array() -> None:
    layout = RowLayout(box(3))
    rows = zeroed(layout, 2)
    assert layout.plain_value == (np.dtype(np.float32), (3,))
    rows.columns[0][1] = 7
    assert layout.unpack(rows).tolist() == [[0, 0, 0], [7, 7, 7]]
    for space in (DictSpace(NUMPY, {"a": box(3)}), TextSpace(NUMPY, 3), box(3, dtype="bfloat16")):
        assert RowLayout(space).plain_value == (None, ())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (40, 40)], ids=str)
def test_every_bit_of_every_dtype_is_kept(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    raw = dtypes.raw_dtype(dtype)
    bits = np.frombuffer(rng.bytes(3 * int(np.prod(shape)) * raw.itemsize), raw).reshape(3, *shape)
    bits = bits.view(np.uint8) % 2 == 1 if dtype == "bool" else bits  # else NaN of all sorts, -0.0, subnormals
    for backend in MUTABLE:
        space = BinarySpace(backend, shape) if dtype == "bool" else box(*shape, dtype=dtype, backend=backend)
        layout = RowLayout(TupleSpace(backend, [space, BinarySpace(backend, ())]))
        flags = backend.asarray([True, False, True])
        rows = layout.empty(3)
        layout.pack(rows, slice(None), (backend.from_raw(bits.copy(), dtype), flags))
        values, _ = layout.unpack(rows)
        assert backend.dtype_name(values.dtype) == dtype
        assert np.ascontiguousarray(backend.to_raw(values)).tobytes() == bits.tobytes()


def spaces_of_boxes() -> st.SearchStrategy[Space]:
    keys = st.text(max_size=3)
    return st.recursive(
        boxes(),
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda spaces: TupleSpace(NUMPY, spaces))
            | st.dictionaries(keys, inner, max_size=3).map(lambda spaces: DictSpace(NUMPY, list(spaces.items())))
        ),
        max_leaves=6,
    )


@given(spaces_of_boxes(), st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_any_boxes_in_any_structure(space: Space, seed: int, size: int) -> None:
    layout = RowLayout(space)
    items = samples(space, size + 1, seed)
    rows = layout.empty(size + 3)
    for place, item in enumerate(items):
        layout.pack(rows, place, item)
    for place, item in enumerate(items):
        assert_same(space, layout.unpack(rows[place]), item)
    batch = concatenate(space, items)
    layout.pack(rows, slice(2, None), batch)
    assert_same(None, layout.gather(rows, np.arange(2, size + 3)), batch)


# -- texts -------------------------------------------------------------------------------------------------

TEXTS: list[tuple[str | None, list[str]]] = [
    ("ab", ["", "a", "ab", "ba"]),
    ("a\0", ["", "a", "\0", "a\0", "\0a", "\0\0\0"]),
    ("aä", ["", "ä", "aä"]),
    ("ä\0", ["", "\0", "ä\0\0", "\0ä"]),
    (None, ["", "a", "\0", "漢\0", "🙂", "\ud800", "\udfff\ud800", "\0\ud800\0", "\U0010ffff", "a b"]),
]


@pytest.mark.parametrize(("charset", "texts"), TEXTS, ids=[ascii(charset) for charset, _ in TEXTS])
@pytest.mark.parametrize("size", [3, 2000], ids=["row", "block"])
def test_texts_are_kept_to_the_last_character(charset: str | None, texts: list[str], size: int) -> None:
    layout = RowLayout(DictSpace(NUMPY, {"t": TextSpace(NUMPY, size, charset=charset), "b": BinarySpace(NUMPY, ())}))
    rows = layout.empty(len(texts))
    for place, text in enumerate(texts):
        layout.pack(rows, place, {"t": text, "b": np.asarray(True)})
        found = layout.unpack(rows[place])["t"]
        assert (type(found), found) == (str, text)
    assert layout.unpack(rows)["t"].tolist() == texts
    longest = [text * (size // max(len(text), 1)) for text in texts]
    layout.pack(rows, slice(None), {"t": np.array(longest, object), "b": np.ones(len(texts), bool)})
    assert layout.unpack(rows)["t"].tolist() == longest


def test_a_slot_that_was_never_written_is_not_a_text() -> None:
    layout = RowLayout(TextSpace(NUMPY, 3))
    rows = zeroed(layout, 2)
    assert layout.unpack(rows).tolist() == ["", ""]
    rows.records["value"]["length"] = 2**32 - 1
    with pytest.raises(ValueError, match=r"^a text of 4294967295 characters in a slot of 3: the row was never written"):
        layout.unpack(rows)


# -- a kind of composite space of one's own ----------------------------------------------------------------


class Point:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class AttributeSpace(CompositeSpace):
    """Objects with the attributes x and y."""

    def __init__(self, x: Space, y: Space) -> None:
        super().__init__(x.backend)
        self.spaces = (x, y)

    def child_items(self) -> Sequence[tuple[Any, Space]]:
        return list(zip("xy", self.spaces, strict=True))

    def with_children(self, children: Iterable[Space], backend: Any = None) -> AttributeSpace:
        return AttributeSpace(*children)

    def child_values(self, data: Point) -> Sequence[Any]:
        return (data.x, data.y)

    def build_value(self, values: Iterable[Any]) -> Point:
        return Point(*values)

    def structure_mismatch(self, x: Any, path: str) -> str | None:
        return None if isinstance(x, Point) else f"{path}: {type(x).__name__}, the space wants a Point"

    def get_repr(self, *args: Any, **kwargs: Any) -> str:
        return "AttributeSpace"


def test_a_composite_space_of_ones_own_has_rows() -> None:
    layout = RowLayout(DictSpace(NUMPY, {"p": AttributeSpace(box(2), DictSpace(NUMPY, {"t": TextSpace(NUMPY, 3)}))}))
    assert layout.names == ["p/x", "p/y/t"]
    rows = layout.empty(2)
    layout.pack(rows, 1, {"p": Point(np.ones(2, np.float32), {"t": "a"})})
    found = layout.unpack(rows[1])["p"]
    assert (found.x.tolist(), found.y) == ([1, 1], {"t": "a"})
    with pytest.raises(ValueError, match=r"^p: int, the space wants a Point$"):
        layout.pack(rows, 1, {"p": 3})
    with pytest.raises(ValueError, match=r"^p/x: shape \(3,\), the space wants \(2,\)$"):
        layout.pack(rows, 1, {"p": Point(np.ones(3, np.float32), {"t": "a"})})


def test_layouts_are_equal_when_their_spaces_are() -> None:
    assert RowLayout(box(2)) == RowLayout(box(2)) != RowLayout(box(3))
    assert RowLayout(box(2)) != box(2)
    assert repr(RowLayout(box(2))) == "RowLayout(Box([-inf, inf], (2,), backend=numpy), itemsize=8)"
    assert len(RowLayout(box(2)).empty(np.int64(4))) == 4
