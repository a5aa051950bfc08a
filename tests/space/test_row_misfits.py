"""Values that do not fit a row: they are named, and leave the rows byte for byte as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import DTYPES, INF, assert_same, sample
from row_cases import MUTABLE, NUMPY, box, contents, zeroed

from unienv_interface.backends import dtypes
from unienv_interface.space.row_layout import MemoryHeap, RowLayout, Rows
from unienv_interface.space.space_utils import concatenate
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

# -- values that do not fit --------------------------------------------------------------------------------

SPACE = DictSpace(
    NUMPY,
    {
        "obs": {"rgb": box(2, 2, dtype="uint8"), "n": box(dtype="int32"), "x": box()},
        "pair": TupleSpace(NUMPY, [BinarySpace(NUMPY, ()), box(1, dtype="bfloat16")]),
        "task": TextSpace(NUMPY, 3, charset="abc"),
        "word": TextSpace(NUMPY, 3),
        "words": BatchedSpace(TextSpace(NUMPY, 3), (2,)),
        "big": box(64, 64),
        "any": DynamicBoxSpace(NUMPY, 0, 1, (0,), (3,), "int8"),
        "union": UnionSpace(NUMPY, [BinarySpace(NUMPY, ()), DictSpace(NUMPY, {"k": box(2)})]),
        "graph": GraphSpace(NUMPY, box(), max_nodes=3),
    },
)
GOOD: dict[str, Any] = {
    "obs": {"rgb": np.ones((2, 2), np.uint8), "n": np.asarray(1, np.int32), "x": np.asarray(1, np.float32)},
    "pair": (np.asarray(True), sample(box(1, dtype="bfloat16"))),
    "task": "abc",
    "word": "ä",
    "words": np.array(["x", "yz"], object),
    "big": np.ones((64, 64), np.float32),
    "any": np.ones(2, np.int8),
    "union": (1, {"k": np.ones(2, np.float32)}),
    "graph": GraphInstance(np.asarray(2), None, np.ones(2, np.float32)),
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good value with another one at a path of keys, "obs/rgb" say."""
    first, _, rest = path.partition("/")
    if rest and isinstance(GOOD[first], tuple):
        return {**GOOD, first: tuple(value if str(i) == rest else part for i, part in enumerate(GOOD[first]))}
    return {**GOOD, first: {**GOOD[first], rest: value} if rest else value}


def without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


KEYS = "['any', 'big', 'graph', 'obs', 'pair', 'task', 'union', 'word', 'words']"
MISFITS: list[tuple[Any, str]] = [
    (None, f"NoneType, the space wants a dict with the keys {KEYS}"),
    (tuple(GOOD.values()), f"tuple, the space wants a dict with the keys {KEYS}"),
    (without(GOOD, "task"), f"key 'task' is missing, the space wants {KEYS}"),
    ({**without(GOOD, "task"), "tusk": "abc"}, f"key 'task' is missing, the space wants {KEYS}"),
    ({**GOOD, "more": 1}, f"key 'more' is not in the space, which has {KEYS}"),
    (changed("obs", without(GOOD["obs"], "n")), "obs: key 'n' is missing, the space wants ['n', 'rgb', 'x']"),
    (changed("obs", 3), "obs: int, the space wants a dict with the keys ['n', 'rgb', 'x']"),
    (changed("pair", GOOD["pair"][:1]), "pair: a tuple of 1, the space wants 2"),
    (changed("pair", list(GOOD["pair"])), "pair: list, the space wants a tuple of 2"),
    (changed("pair", dict(enumerate(GOOD["pair"]))), "pair: dict, the space wants a tuple of 2"),
    (changed("obs/rgb", np.ones((2, 3), np.uint8)), "obs/rgb: shape (2, 3), the space wants (2, 2)"),
    (changed("obs/rgb", np.ones((1, 2), np.uint8)), "obs/rgb: shape (1, 2), the space wants (2, 2)"),
    (changed("obs/rgb", np.ones((), np.uint8)), "obs/rgb: shape (), the space wants (2, 2)"),
    (changed("obs/rgb", np.ones((1, 2, 2), np.uint8)), "obs/rgb: shape (1, 2, 2), the space wants (2, 2)"),
    (changed("obs/rgb", np.ones((2, 2))), "obs/rgb: dtype float64, the space wants uint8"),
    (changed("obs/rgb", np.ones((2, 2), np.int8)), "obs/rgb: dtype int8, the space wants uint8"),
    (changed("obs/rgb", [[1, 1], [1, 1]]), "obs/rgb: list, the space wants an array of numpy"),
    (changed("obs/rgb", 1), "obs/rgb: int, the space wants an array of numpy"),
    (changed("obs/rgb", np.array([["a", "b"]] * 2)), "obs/rgb: dtype str32, the space wants uint8"),
    (changed("obs/rgb", np.ones((2, 2), object)), "obs/rgb: ndarray, the space wants an array of numpy"),
    (changed("obs/n", 1.0), "obs/n: a Python float, the space wants int32"),
    (changed("obs/n", True), "obs/n: a Python bool, the space wants int32"),
    (changed("obs/n", 2**31), "obs/n: value 2147483648 does not fit int32"),
    (changed("obs/n", np.asarray(1)), "obs/n: dtype int64, the space wants int32"),
    (changed("obs/n", None), "obs/n: NoneType, the space wants an array of numpy"),
    (changed("obs/x", 1e39), "obs/x: value 1e+39 does not fit float32"),
    (changed("obs/x", 10**400), f"obs/x: value {10**400} does not fit float32"),
    (changed("obs/x", 1j), "obs/x: complex, the space wants an array of numpy"),
    (changed("obs/x", "1"), "obs/x: str, the space wants an array of numpy"),
    (changed("obs/x", np.float64(1)), "obs/x: dtype float64, the space wants float32"),
    (changed("pair/0", 1), "pair/0: a Python int, the space wants bool"),
    (changed("pair/1", np.ones(1, np.float32)), "pair/1: dtype float32, the space wants bfloat16"),
    (changed("pair/1", np.ones(1, np.uint16)), "pair/1: dtype uint16, the space wants bfloat16"),
    (changed("task", "abca"), "task: 4 characters, the space wants at most 3"),
    (changed("task", "ä"), "task: text 'ä' has characters outside the charset"),
    (changed("task", "a\0"), "task: text 'a\\x00' has characters outside the charset"),
    (changed("task", b"abc"), "task: bytes, the space wants a string"),
    (changed("task", None), "task: NoneType, the space wants a string"),
    (changed("words", "ab"), "words: shape (), the space wants (2,)"),
    (changed("words", ("a", "b")), "words: tuple, the space wants a NumPy array of strings as objects"),
    (changed("words", np.array(["a", 3], object)), "words: int, the space wants a string"),
    (changed("words", np.array(["a"], object)), "words: shape (1,), the space wants (2,)"),
    (changed("big", np.ones((64, 1), np.float32)), "big: shape (64, 1), the space wants (64, 64)"),
    (changed("any", np.ones(4, np.int8)), "any: shape (4,), the space wants (0,) to (3,)"),
    (changed("any", np.ones(2, np.float32)), "any: dtype float32, the space wants int8"),
    (changed("any", [1]), "any: list, the space wants an array of numpy"),
    (changed("union", (2, 0)), "union: alternative 2, the space has 0 to 1"),
    (changed("union", (1, {"k": np.ones(3, np.float32)})), "union/1/k: shape (3,), the space wants (2,)"),
    (changed("union", (1, {})), "union/1: key 'k' is missing, the space wants ['k']"),
    (changed("graph", 3), "graph: int, the space wants a GraphInstance"),
    (
        changed("graph", GraphInstance(np.asarray(3), None, np.ones(2, np.float32))),
        "graph: counts from 3 to 3 of 2 nodes or edges",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), MISFITS, ids=[f"{text[:60]} ({i})" for i, (_, text) in enumerate(MISFITS)])
def test_what_does_not_fit_is_named_and_nothing_is_written(value: Any, text: str) -> None:
    layout = RowLayout(SPACE)
    rows = layout.empty(3)
    layout.pack(rows, 1, GOOD)
    before = contents(rows)
    with pytest.raises(ValueError) as caught:
        layout.pack(rows, 1, value)
    assert str(caught.value) == text
    assert contents(rows) == before
    assert_same(SPACE, layout.unpack(rows[1]), GOOD)


BATCH = concatenate(SPACE, [GOOD, GOOD])
UNIONS = BATCH["union"].copy()
UNIONS[1] = 3


def changed_batch(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition("/")
    return {**BATCH, first: {**BATCH[first], rest: value} if rest else value}


BATCH_MISFITS: list[tuple[Any, Any, str]] = [
    (slice(0, 3), BATCH, "any: shape (2,), the space wants (3,)"),
    (slice(0, 1), BATCH, "any: shape (2,), the space wants (1,)"),
    (np.array([0, 1, 2]), BATCH, "any: shape (2,), the space wants (3,)"),
    (np.array([True, False, False]), BATCH, "any: shape (2,), the space wants (1,)"),
    (1, BATCH, "any: ndarray, the space wants an array of numpy"),
    (slice(0, 2), GOOD, "any: ndarray, a batch of this space is a NumPy array of objects"),
    (slice(0, 2), changed_batch("big", BATCH["big"][:1]), "big: shape (1, 64, 64), the space wants (2, 64, 64)"),
    (slice(0, 2), changed_batch("obs/n", BATCH["obs"]["n"][:1]), "obs/n: shape (1,), the space wants (2,)"),
    (slice(0, 2), changed_batch("obs/n", 3), "obs/n: int, the space wants an array of numpy"),
    (slice(0, 2), changed_batch("task", "abc"), "task: shape (), the space wants (2,)"),
    (slice(0, 2), changed_batch("task", ["abc"]), "task: list, the space wants a NumPy array of strings as objects"),
    (slice(0, 2), changed_batch("union", UNIONS), "union/[1]: int, the space wants a pair of an index and a value"),
    (slice(0, 2), changed_batch("graph", GOOD["graph"]), "graph: a batch of (), the rows want (2,)"),
    (slice(0, 2), changed_batch("graph", GraphInstance(1)), "graph: a batch of (), the rows want (2,)"),
]  # fmt: skip


@pytest.mark.parametrize(("index", "value", "text"), BATCH_MISFITS, ids=[text for *_, text in BATCH_MISFITS])
def test_a_batch_that_does_not_fit_is_named_and_nothing_is_written(index: Any, value: Any, text: str) -> None:
    layout = RowLayout(SPACE)
    rows = layout.empty(3)
    layout.pack(rows, slice(1, 3), BATCH)
    before = contents(rows)
    with pytest.raises(ValueError) as caught:
        layout.pack(rows, index, value)
    assert str(caught.value) == text
    assert contents(rows) == before


def test_nothing_is_broadcast_where_only_arrays_are() -> None:
    layout = RowLayout(DictSpace(NUMPY, {"a": box(2), "b": box()}))
    rows = zeroed(layout, (3, 2))
    before = contents(rows)
    for index, lead in ((slice(0, 2), (1, 2)), (slice(None), (2,)), ((0, 1), (1,)), (..., (1, 1))):
        value = {"a": np.ones((*lead, 2), np.float32), "b": np.ones(lead, np.float32)}
        with pytest.raises(ValueError, match=r"^a: shape \(.*, 2\), the space wants \(.*2,?\)$"):
            layout.pack(rows, index, value)
    assert contents(rows) == before


@pytest.mark.parametrize("index", [3, -4, np.array([0, 3]), np.array([-4, 0]), np.array([True, True])], ids=str)
def test_rows_that_are_not_there(index: Any) -> None:
    layout = RowLayout(SPACE)
    rows = layout.empty(3)
    layout.pack(rows, 1, GOOD)
    before = contents(rows)
    with pytest.raises(IndexError):
        layout.pack(rows, index, GOOD if isinstance(index, int) else BATCH)
    with pytest.raises(IndexError):
        rows[index]
    if not isinstance(index, np.ndarray) or index.dtype != bool:
        with pytest.raises(IndexError):
            layout.gather(rows, index)
    assert contents(rows) == before


def test_numbers_of_python_are_taken_for_scalars() -> None:
    names = [name for name in DTYPES if not name.startswith("complex")]
    for backend in MUTABLE:
        for name in names:
            space = BinarySpace(backend, ()) if name == "bool" else box(dtype=name, backend=backend)
            layout = RowLayout(space)
            rows = layout.empty(2)
            numbers: list[Any] = [True, False] if name == "bool" else [0, 1, 100]
            if name in dtypes.FLOATING:
                numbers += [0.5, -1.5, INF, -INF, 60000]
            elif name in dtypes.INTEGER:
                numbers += [int(np.iinfo(name).min), int(np.iinfo(name).max)]
            for number in numbers:
                layout.pack(rows, 1, number)
                found = backend.to_host(layout.unpack(rows[1]))
                assert found == backend.to_host(backend.asarray(number, dtype=space.dtype)), (name, number)
    layout = RowLayout(box())
    rows = layout.empty(1)
    layout.pack(rows, 0, float("nan"))
    assert np.isnan(layout.unpack(rows[0]))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("float16", 65520.0),
        ("bfloat16", 3.4e38),
        ("float32", 3.5e38),
        ("float64", 10**309),
        ("uint8", -1),
        ("int8", 128),
    ],
)
def test_numbers_of_python_beyond_the_dtype_are_refused(dtype: str, number: Any) -> None:
    for sign in (1, -1) if "float" in dtype else (1,):
        with pytest.raises(ValueError, match=rf"^value {sign * number!r} does not fit {dtype}$".replace("+", r"\+")):
            RowLayout(box(dtype=dtype)).pack(RowLayout(box(dtype=dtype)).empty(1), 0, sign * number)


def test_values_that_can_be_cast_safely_are_cast() -> None:
    for backend in MUTABLE:
        names = ("int64", "float32", "float64", "bfloat16", "complex128")
        space = TupleSpace(backend, [box(3, dtype=name, backend=backend) for name in names])
        narrow = backend.asarray([1, -2, 3], dtype=backend.dtype_from_name("int8"))
        layout = RowLayout(space)
        rows = layout.empty(1)
        layout.pack(rows, 0, (narrow,) * len(names))
        for name, found in zip(names, layout.unpack(rows[0]), strict=True):
            assert backend.dtype_name(found.dtype) == name
            assert backend.to_host(found).astype(np.complex64).tolist() == [1, -2, 3]
    swapped = np.array([1, 2, 3], ">f4")
    layout = RowLayout(box(3))
    rows = layout.empty(1)
    layout.pack(rows, 0, swapped)
    assert layout.unpack(rows[0]).tolist() == [1, 2, 3]


def test_bounds_are_not_checked() -> None:
    layout = RowLayout(
        DictSpace(NUMPY, {"a": BoxSpace(NUMPY, 0, 1, "float32", shape=()), "t": TextSpace(NUMPY, 3, min_length=2)})
    )
    rows = layout.empty(1)
    layout.pack(rows, 0, {"a": np.asarray(7, np.float32), "t": "x"})
    assert layout.unpack(rows[0]) == {"a": 7, "t": "x"}


# -- the heap ----------------------------------------------------------------------------------------------


class FullHeap(MemoryHeap):
    """A heap that takes so many writes and no more."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError("no space left on device")
        self.room -= 1
        return super().write(data)


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_heap_that_is_full_leaves_the_rows_alone(room: int) -> None:
    layout = RowLayout(SPACE)
    rows = layout.empty(2, heap=FullHeap(room))
    for memory in (rows.records, *rows.blocks.values()):
        memory[...] = np.zeros((), memory.dtype)
    before = contents(rows)
    with pytest.raises(OSError, match="no space left"):
        layout.pack(rows, 1, GOOD)
    assert contents(rows) == before


def test_values_in_the_heap_need_one() -> None:
    layout = RowLayout(SPACE)
    rows = zeroed(layout, 2)
    text = r"^the layout has leaves in a heap, but the rows have no heap: pass one$"
    with pytest.raises(TypeError, match=text):
        layout.wrap(rows.records, rows.blocks)
    bare = Rows(layout, rows.records, rows.blocks, None)
    before = contents(bare)
    with pytest.raises(TypeError, match=text):
        layout.pack(bare, 1, GOOD)
    with pytest.raises(TypeError, match=text):
        layout.unpack(bare)
    assert contents(bare) == before
    assert "heap=['any', 'graph', 'union']" in repr(layout)


def test_what_was_never_written_to_the_heap_is_not_a_value() -> None:
    layout = RowLayout(UnionSpace(NUMPY, [box(), TextSpace(NUMPY, 3)]))
    with pytest.raises(ValueError, match="0 bytes, the 1 numbers in front alone have 4"):
        layout.unpack(layout.empty(2))
    rows = layout.empty(1)
    rows.records["value"]["length"] = 2**62
    with pytest.raises(IndexError, match="are beyond the 0 bytes of the heap"):
        layout.unpack(rows)


def test_rows_that_share_a_heap_read_their_own_values() -> None:
    space = DynamicBoxSpace(NUMPY, 0, 9, (0,), (None,), "int32")
    layout, heap = RowLayout(space), MemoryHeap()
    one, other = layout.empty(2, heap), layout.empty(2, heap)
    values = [np.arange(size, dtype=np.int32) for size in (3, 0, 5, 1)]
    for value, (rows, index) in zip(values, ((one, 0), (other, 0), (one, 1), (other, 1)), strict=True):
        layout.pack(rows, index, value)
    for value, (rows, index) in zip(values, ((one, 0), (other, 0), (one, 1), (other, 1)), strict=True):
        assert_same(space, layout.unpack(rows[index]), value)
