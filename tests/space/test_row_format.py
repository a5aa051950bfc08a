"""How leaves lie in a row: the same for ever, on every platform and for every way to write a space down."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from catalogue import DTYPES, assert_same, sample, space_cases
from catalogue import SPACES as CATALOGUE
from row_cases import MUTABLE, NUMPY, box

from unienv_interface.backends import ComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import PAGE_SIZE, RowLayout
from unienv_interface.space.space_utils import space_to_json
from unienv_interface.space.spaces import (
    ArraySpace,
    BatchedSpace,
    BinarySpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)

mutable_backend = pytest.mark.parametrize("backend", MUTABLE, ids=str)


# -- the layout --------------------------------------------------------------------------------------------


def described(dtype: np.dtype) -> Any:
    """Names, formats, offsets and size, which `==` of dtypes compares too, but does not show."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (described(base), shape)
    if dtype.names is None:
        return dtype.str
    fields = [(name, described(dtype.fields[name][0]), dtype.fields[name][1]) for name in dtype.names]
    return {"fields": fields, "itemsize": dtype.itemsize}


def scalar_dtypes(dtype: np.dtype) -> Iterable[np.dtype]:
    if dtype.subdtype is not None:
        yield from scalar_dtypes(dtype.base)
    elif dtype.names is None:
        yield dtype
    else:
        for name in dtype.names:
            yield from scalar_dtypes(dtype.fields[name][0])


@pytest.mark.parametrize("space", space_cases())
def test_the_layout_is_rebuilt_from_json(space: Space) -> None:
    layout = RowLayout(space)
    again = RowLayout.from_json(space_to_json(space), space.backend)
    assert again == layout
    assert hash(again) == hash(layout)
    assert described(again.dtype) == described(layout.dtype)
    assert again.names == layout.names
    assert [(leaf.name, leaf.placement) for leaf in again.leaves] == [
        (leaf.name, leaf.placement) for leaf in layout.leaves
    ]


@pytest.mark.parametrize("space", space_cases())
def test_the_layout_is_little_endian_and_aligned(space: Space) -> None:
    layout = RowLayout(space)
    assert layout.itemsize == layout.dtype.itemsize > 0
    for leaf in layout.leaves:
        for dtype in scalar_dtypes(leaf.codec.dtype):
            assert dtype.str[0] in "<|"
        if leaf.placement == "block":
            assert leaf.codec.dtype.itemsize >= PAGE_SIZE
            continue
        assert leaf.codec.dtype.itemsize < PAGE_SIZE
        offset = layout.dtype.fields[leaf.name][1]
        assert offset % leaf.codec.alignment == layout.itemsize % leaf.codec.alignment == 0
        if isinstance(leaf.space, ArraySpace):
            assert leaf.codec.alignment == leaf.codec.dtype.base.itemsize
    assert layout.nbytes == layout.itemsize + sum(leaf.codec.dtype.itemsize for leaf in layout.block_leaves)


def test_fields_do_not_overlap() -> None:
    dtype = RowLayout(CATALOGUE["everything"](NUMPY)).dtype
    ranges = sorted((offset, offset + field.itemsize) for field, offset, *_ in dtype.fields.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert ranges[-1][1] <= dtype.itemsize


def test_the_order_of_the_keys_does_not_matter() -> None:
    pairs: list[Any] = [("b", box(2)), ("a", TextSpace(NUMPY, 3)), ("c", [("y", box()), ("x", BinarySpace(NUMPY, ()))])]

    def build(flip: int) -> DictSpace:
        return DictSpace(
            NUMPY,
            [
                (key, DictSpace(NUMPY, child[::flip]) if isinstance(child, list) else child)
                for key, child in pairs[::flip]
            ],
        )

    one, other = build(1), build(-1)
    assert RowLayout(one) == RowLayout(other)
    assert described(RowLayout(one).dtype) == described(RowLayout(other).dtype)
    rows = RowLayout(one).empty(2)
    value = sample(one)
    RowLayout(one).pack(rows, 1, value)
    found = RowLayout(other).unpack(RowLayout(other).wrap(rows.records)[1])
    assert_same(other, found, value)
    assert list(found) == ["c", "a", "b"]


@mutable_backend
def test_layouts_of_one_space_are_the_same_on_every_backend(backend: ComputeBackend) -> None:
    for name, build in CATALOGUE.items():
        assert described(RowLayout(build(backend)).dtype) == described(RowLayout(build(NUMPY)).dtype), name


def test_leaves_of_a_page_or_more_have_blocks_of_their_own() -> None:
    space = DictSpace(
        NUMPY,
        {
            "below": box(PAGE_SIZE - 1, dtype="uint8"),
            "page": box(PAGE_SIZE // 4),
            "image": box(64, 64, 3, dtype="uint8"),
            "text": TextSpace(NUMPY, 1024),
            "word": TextSpace(NUMPY, 1022),
            "small": box(),
        },
    )
    layout = RowLayout(space)
    assert {leaf.name: leaf.placement for leaf in layout.leaves} == {
        "below": "row",
        "image": "block",
        "page": "block",
        "small": "row",
        "text": "block",
        "word": "row",
    }
    rows = layout.empty((2, 3))
    assert {name: block.shape for name, block in rows.blocks.items()} == {
        "image": (2, 3, 64, 64, 3),
        "page": (2, 3, 1024),
        "text": (2, 3),
    }
    value = sample(space)
    layout.pack(rows, (1, 2), value)
    assert_same(space, layout.unpack(rows[1, 2]), value)
    assert_same(space, layout.unpack(rows.take([0, 1]).take(1)[2]), value)
    assert "blocks=['image', 'page', 'text']" in repr(layout)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (box(), ["value"]),
        (DictSpace(NUMPY, {"a/b": box(), "a": {"b": box()}}), ["a/b", "a~1b"]),
        (DictSpace(NUMPY, {"a~1b": box(), "a/b": box()}), ["a~1b", "a~01b"]),
        (DictSpace(NUMPY, {"": box(), "value": box(), "~": box()}), ["~", "value", "~0"]),
        (DictSpace(NUMPY, {"": {"": box()}, "/": box()}), ["/", "~1"]),
        (TupleSpace(NUMPY, [box(), DictSpace(NUMPY, {"0": box()})]), ["0", "1/0"]),
        (DictSpace(NUMPY, {"\0": box(), "a\0": box(), "a": box()}), ["\0", "a", "a\0"]),
    ],
    ids=str,
)
def test_no_two_leaves_share_a_name(space: Space, names: list[str]) -> None:
    layout = RowLayout(space)
    assert layout.names == names
    assert set(layout.dtype.names or ()) == set(names)
    value = sample(space)
    rows = layout.empty(1)
    layout.pack(rows, 0, value)
    assert_same(space, layout.unpack(rows[0]), value)


GOLDEN: dict[str, tuple[Space, Any]] = {
    "transition": (
        DictSpace(
            NUMPY,
            {
                "obs": {"pose": box(17, dtype="float64"), "rgb": box(2, 2, 3, dtype="uint8")},
                "action": box(6),
                "reward": box(),
                "step": box(dtype="int16"),
                "terminated": BinarySpace(NUMPY, ()),
                "half": box(3, dtype="bfloat16"),
            },
        ),
        {
            "fields": [
                ("obs/pose", ("<f8", (17,)), 0),
                ("action", ("<f4", (6,)), 136),
                ("reward", "<f4", 160),
                ("half", ("<u2", (3,)), 164),
                ("step", "<i2", 170),
                ("obs/rgb", ("|u1", (2, 2, 3)), 172),
                ("terminated", "|b1", 184),
            ],
            "itemsize": 192,
        },
    ),
    "texts and references": (
        TupleSpace(
            NUMPY,
            [
                TextSpace(NUMPY, 5, charset="ab"),
                TextSpace(NUMPY, 5),
                TextSpace(NUMPY, 5, charset="a\0"),
                BatchedSpace(TextSpace(NUMPY, 2, charset="ä"), (2,)),
                UnionSpace(NUMPY, [box(), TextSpace(NUMPY, 3)]),
                DynamicBoxSpace(NUMPY, 0, 1, (0,), (None,), "float32"),
                BatchedSpace(UnionSpace(NUMPY, [box()]), (3,)),
                GraphSpace(NUMPY, box(), batch_shape=(2,)),
            ],
        ),
        {
            "fields": [
                *((name, {"fields": [("offset", "<u8", 0), ("length", "<u8", 8)], "itemsize": 16}, offset)
                  for name, offset in (("4", 0), ("5", 16))),
                ("6", ({"fields": [("offset", "<u8", 0), ("length", "<u8", 8)], "itemsize": 16}, (3,)), 32),
                ("7", {"fields": [("offset", "<u8", 0), ("length", "<u8", 8)], "itemsize": 16}, 80),
                ("1", {"fields": [("length", "<u4", 0), ("characters", "<U5", 4)], "itemsize": 24}, 96),
                ("2", {"fields": [("length", "<u4", 0), ("characters", "|S5", 4)], "itemsize": 12}, 120),
                ("3", ({"fields": [("characters", "<U2", 0)], "itemsize": 8}, (2,)), 132),
                ("0", {"fields": [("characters", "|S5", 0)], "itemsize": 5}, 148),
            ],
            "itemsize": 160,
        },
    ),
    "dtypes": (
        DictSpace(NUMPY, {name: box(1, dtype=name) for name in DTYPES if name != "bool"} | {"nothing": box(0)}),
        {
            "fields": [
                ("complex128", ("<c16", (1,)), 0),
                ("complex64", ("<c8", (1,)), 16),
                ("float64", ("<f8", (1,)), 24),
                ("int64", ("<i8", (1,)), 32),
                ("uint64", ("<u8", (1,)), 40),
                ("float32", ("<f4", (1,)), 48),
                ("int32", ("<i4", (1,)), 52),
                ("nothing", ("<f4", (0,)), 56),
                ("uint32", ("<u4", (1,)), 56),
                ("bfloat16", ("<u2", (1,)), 60),
                ("float16", ("<f2", (1,)), 62),
                ("int16", ("<i2", (1,)), 64),
                ("uint16", ("<u2", (1,)), 66),
                ("int8", ("|i1", (1,)), 68),
                ("uint8", ("|u1", (1,)), 69),
            ],
            "itemsize": 80,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(("space", "golden"), GOLDEN.values(), ids=GOLDEN.keys())
def test_golden_layouts(space: Space, golden: Any) -> None:
    """Files hold rows in these layouts: what was written once must be read for ever."""
    assert described(RowLayout(space).dtype) == golden


def test_an_empty_space_has_rows_too() -> None:
    layout = RowLayout(DictSpace(NUMPY))
    assert (layout.itemsize, layout.names) == (1, [])
    rows = layout.empty(3)
    layout.pack(rows, 1, {})
    assert layout.unpack(rows[1]) == layout.gather(rows, [0, 2]) == {}


@pytest.mark.parametrize("space", space_cases("dict_nested", "everything", "box_image", backends=MUTABLE))
def test_layouts_pickle(space: Space) -> None:
    layout = pickle.loads(pickle.dumps(RowLayout(space)))
    assert layout == RowLayout(space)
    rows = layout.empty(1)
    value = sample(space)
    layout.pack(rows, 0, value)
    assert_same(space, layout.unpack(pickle.loads(pickle.dumps(rows))[0]), value)
