"""Rows and the values in them: whose memory it is, and which memory will do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from catalogue import assert_same, sample, space_cases
from row_cases import MUTABLE, NUMPY, box, contents, zeroed

from unienv_interface.backends import ComputeBackend, dtypes
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.spaces import ArraySpace, BinarySpace, DictSpace, TupleSpace

array_space = pytest.mark.parametrize("space", space_cases("box", "binary", backends=MUTABLE))
mutable_backend = pytest.mark.parametrize("backend", MUTABLE, ids=str)


# -- whose memory ------------------------------------------------------------------------------------------


@array_space
def test_columns_are_views_of_the_rows(space: ArraySpace) -> None:
    layout = RowLayout(TupleSpace(space.backend, [BinarySpace(space.backend, ()), space]))
    rows = zeroed(layout, 4)
    _, column = layout.unpack(rows)
    if 0 in column.shape:
        return
    start, end = rows.records.ctypes.data, rows.records.ctypes.data + rows.records.nbytes
    address = column.ctypes.data if space.backend is NUMPY else column.data_ptr()
    assert start <= address < end
    element = dtypes.raw_dtype(space.dtype_name).itemsize
    assert address % element == 0
    assert all(stride % element == 0 for stride in rows.records["1"].strides)
    before = rows.records.tobytes()
    column[1] = space.backend.asarray(sample(space, seed=3), dtype=space.dtype)
    assert_same(None, layout.unpack(rows)[1], column)
    assert_same(space, layout.unpack(rows[1])[1], column[1])
    rows.records["1"][...] = np.zeros((), rows.records["1"].dtype)
    assert rows.records.tobytes() == before
    assert not np.any(space.backend.to_raw(column))


@mutable_backend
def test_blocks_ints_and_slices_are_views_too(backend: ComputeBackend) -> None:
    layout = RowLayout(DictSpace(backend, {"image": box(64, 64, backend=backend), "reward": box(backend=backend)}))
    rows = zeroed(layout, (3, 2))
    layout.unpack(rows)["image"][0, 0, 0, 0] = 1
    layout.unpack(rows[1:])["image"][1, 1, 0, 0] = 2
    layout.unpack(rows[1])["reward"][1] = 3
    layout.unpack(rows[2, 0])["reward"][...] = 4
    layout.pack(rows[2], 1, layout.unpack(rows[2, 0]))
    assert rows.blocks["image"][..., 0, 0].tolist() == [[1, 0], [0, 0], [0, 0]]
    assert rows.records["reward"].tolist() == [[0, 0], [0, 3], [4, 4]]


@mutable_backend
def test_rows_that_were_taken_are_copies(backend: ComputeBackend) -> None:
    layout = RowLayout(DictSpace(backend, {"image": box(64, 64, backend=backend), "reward": box(backend=backend)}))
    rows = zeroed(layout, 4)
    before = contents(rows)
    mask = np.array([True, False, True, False])
    for taken in (rows.take([1, 2]), rows.take(1), rows[np.array([1, 2])], rows[mask], rows.copy(), rows[1].copy()):
        for column in layout.unpack(taken).values():
            column[...] = 1
    for column in layout.gather(rows, [1, 2]).values():
        column[...] = 1
    assert contents(rows) == before


@pytest.mark.parametrize("space", space_cases("box", "binary", "dict_flat", "dict_all", backends=MUTABLE))
def test_read_only_rows_never_come_out_writable(space: Space) -> None:
    layout = RowLayout(space)
    rows = zeroed(layout, 3)
    frozen = layout.wrap(rows.records.copy())
    frozen.records.flags.writeable = False
    frozen = layout.wrap(frozen.records)
    before = contents(frozen)
    for part in (frozen, frozen[1:], frozen[1]):
        value = layout.unpack(part)
        for column in value.values() if isinstance(value, dict) else [value]:
            if isinstance(column, np.ndarray):
                assert not column.flags.writeable
            else:
                column[...] = True  # a copy: PyTorch has no tensors that cannot be written to
    assert contents(frozen) == before
    with pytest.raises(ValueError, match="read-only"):
        layout.pack(frozen, 0, sample(space))


def test_a_plain_structured_array_is_taken_where_there_are_no_blocks() -> None:
    space = DictSpace(NUMPY, {"a": box(2), "b": BinarySpace(NUMPY, ())})
    layout = RowLayout(space)
    records = np.zeros(3, layout.dtype)
    value = sample(space)
    layout.pack(records, 1, value)
    assert_same(space, layout.unpack(records[1:2][0, ...]), value)
    assert records["a"][1].tolist() == value["a"].tolist()
    layout.unpack(records)["a"][0] = 7
    assert records["a"][0].tolist() == [7, 7]


def test_memory_that_is_not_in_the_layout_is_refused() -> None:
    layout = RowLayout(DictSpace(NUMPY, {"image": box(64, 64), "reward": box()}))
    records, image = np.zeros(2, layout.dtype), np.zeros((2, 64, 64), np.float32)
    layout.wrap(records, {"image": image})
    for wrong, blocks, text in (
        ([1], {}, r"^records are list, the layout wants an array of dtype"),
        (np.zeros(2, np.float32), {}, r"^records of dtype float32, the layout wants"),
        (records, {}, r"^block 'image' is missing: this leaf is not part of the records$"),
        (records, None, r"^block 'image' is missing"),
        (records, {"image": image[:1]}, r"^block 'image' of dtype float32 and shape \(1, 64, 64\), .* \(2, 64, 64\)$"),
        (records, {"image": image.astype(np.float64)}, r"^block 'image' of dtype float64 and shape"),
    ):
        with pytest.raises(TypeError, match=text):
            layout.wrap(wrong, blocks)
    with pytest.raises(TypeError, match="block 'image' is missing"):
        layout.unpack(records)


def test_the_layout_of_another_space_is_refused() -> None:
    rows = RowLayout(DictSpace(NUMPY, {"a": box(2), "b": box(3)})).empty(1)
    with pytest.raises(TypeError, match="the layout wants"):
        RowLayout(DictSpace(NUMPY, {"a": box(3), "b": box(2)})).unpack(rows.records)


# -- many rows at once: vectors are copied as a whole ------------------------------------------------------

MANY = 200


def _as_they_are(values: np.ndarray) -> np.ndarray:
    return values


def _in_the_other_byte_order(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder())


def _with_numbers_apart(values: np.ndarray) -> np.ndarray:
    return np.repeat(values, 2, axis=-1)[..., ::2]


def _with_rows_apart(values: np.ndarray) -> np.ndarray:
    return np.repeat(values, 2, axis=0)[::2]


def _backwards(values: np.ndarray) -> np.ndarray:
    return values[::-1].copy()[::-1]


@pytest.mark.parametrize(
    "laid_out", [_as_they_are, _in_the_other_byte_order, _with_numbers_apart, _with_rows_apart, _backwards]
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int16", "uint8"])
def test_many_rows_are_written_as_few_are(
    laid_out: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], dtype: str
) -> None:
    if not shape and laid_out is _with_numbers_apart:
        return  # a number has no other beside it
    wide = box(*shape, dtype=dtype)
    space = DictSpace(NUMPY, {"x": wide, "next": wide, "n": box(dtype="int64")})
    layout, rng = RowLayout(space), np.random.default_rng(0)
    batch = {
        "x": laid_out(rng.integers(0, 2, (MANY, *shape)).astype(dtype)),
        "next": laid_out(rng.integers(0, 2, (MANY, *shape)).astype(dtype)),
        "n": rng.integers(0, 10, MANY),
    }
    rows = layout.empty(3 * MANY)
    rows.records.view(np.uint8)[:] = 255
    layout.pack(rows, slice(MANY, 2 * MANY), batch)
    found = layout.unpack(rows[MANY : 2 * MANY])
    for key, values in batch.items():
        assert found[key].dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[key], values)
    for rest in (rows[:MANY], rows[2 * MANY :]):  # not a byte beside them
        assert (rest.records.view(np.uint8) == 255).all()


@pytest.mark.parametrize("count", [10, MANY])
def test_rows_that_are_written_from_each_other(count: int) -> None:
    """Moved on by one place, beside a column that has to be written number by number."""
    layout = RowLayout(DictSpace(NUMPY, {"a": box(3), "b": box(3)}))
    rows = zeroed(layout, count + 1)
    columns = layout.unpack(rows)
    columns["a"][...] = np.arange(count + 1)[:, None]
    wanted = columns["a"][:-1].copy()
    layout.pack(
        rows, slice(1, count + 1), {"a": columns["a"][:-1], "b": np.asfortranarray(np.ones((count, 3), np.float32))}
    )
    np.testing.assert_array_equal(columns["a"][1:], wanted)
    assert (columns["b"][1:] == 1).all()
