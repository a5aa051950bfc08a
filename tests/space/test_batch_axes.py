"""The leading axes of batches reshaped and exchanged, in spaces and in data alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batch_cases import NUMPY, batch_of, cases
from catalogue import assert_same, sample, samples

from unienv_interface.space import Space
from unienv_interface.space.space_utils.batch_utils import (
    batch_space,
    reshape_batch_size,
    reshape_batch_size_in_data,
    swap_batch_dims,
    swap_batch_dims_in_data,
)
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    GraphSpace,
    TextSpace,
    UnionSpace,
)

# -- the batch axes ----------------------------------------------------------------------------------------

rearranged = pytest.mark.parametrize("space", cases("box_scalar", "text_ascii"))


@rearranged
def test_reshape_of_spaces_and_data(space: Space) -> None:
    grid = batch_space(batch_space(space, 3), 2)
    items = samples(space, 6)
    rows = [batch_of(space, items[:3]), batch_of(space, items[3:])]
    data = batch_of(batch_space(space, 3), rows)
    flat_space = reshape_batch_size(grid, (2, 3), (6,))
    flat = reshape_batch_size_in_data(space.backend, data, (2, 3), (6,))
    assert flat_space == batch_space(space, 6)
    assert_same(flat_space, flat, batch_of(space, items))
    assert reshape_batch_size(flat_space, [6], [2, 3]) == grid
    assert_same(grid, reshape_batch_size_in_data(space.backend, flat, [6], [2, 3]), data)


@rearranged
def test_swap_of_spaces_and_data(space: Space) -> None:
    grid = batch_space(batch_space(space, 3), 2)
    items = samples(space, 6)
    data = batch_of(batch_space(space, 3), [batch_of(space, items[:3]), batch_of(space, items[3:])])
    swapped = swap_batch_dims_in_data(space.backend, data, 0, 1)
    assert swap_batch_dims(grid, 0, 1) == batch_space(batch_space(space, 2), 3)
    pairs = [batch_of(space, list(pair)) for pair in zip(items[:3], items[3:], strict=True)]
    assert_same(swap_batch_dims(grid, 0, 1), swapped, batch_of(batch_space(space, 2), pairs))
    assert_same(grid, swap_batch_dims_in_data(space.backend, swapped, 1, 0), data)


def test_bounds_move_with_their_axes() -> None:
    low = np.arange(6.0).reshape(2, 3)
    space = BoxSpace(NUMPY, low, 9, "float32")
    assert swap_batch_dims(space, 0, 1).low.tolist() == low.T.tolist()
    assert reshape_batch_size(space, (2, 3), (3, 2)).low.tolist() == low.reshape(3, 2).tolist()
    assert reshape_batch_size(space, (2,), (2, 1)).low.tolist() == low.reshape(2, 1, 3).tolist()
    partly = BoxSpace(NUMPY, [[0.0], [1.0]], 9, "float32", shape=(2, 3))
    assert reshape_batch_size(partly, (2, 3), (6,)).low.tolist() == [0, 0, 0, 1, 1, 1]


REFUSED = {
    "another start": ((3,), (3,), r"^the leading axes are \(2, 3\), they do not start with \(3,\)$"),
    "too many axes": ((2, 3, 4), (24,), r"^the leading axes are \(2, 3\), they do not start with \(2, 3, 4\)$"),
    "another number": ((2, 3), (7,), r"^\(2, 3\) and \(7,\) hold different numbers of values$"),
}


@pytest.mark.parametrize(("old", "new", "text"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize(
    "space",
    [
        BoxSpace(NUMPY, 0, 1, "float32", shape=(2, 3)),
        BinarySpace(NUMPY, (2, 3)),
        BatchedSpace(TextSpace(NUMPY, 1), (2, 3)),
        GraphSpace(NUMPY, None, batch_shape=(2, 3)),
        DictSpace(NUMPY, {"a": BinarySpace(NUMPY, (2, 3))}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_reshape_is_refused(space: Space, old: Any, new: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        reshape_batch_size(space, old, new)
    with pytest.raises(ValueError, match=text):
        reshape_batch_size_in_data(NUMPY, sample(space), old, new)


@pytest.mark.parametrize("axes", [(0, 2), (-1, 0), (5, 0)])
@pytest.mark.parametrize(
    "space",
    [
        BinarySpace(NUMPY, (2, 3)),
        BatchedSpace(TextSpace(NUMPY, 1), (2, 3)),
        # the arrays of graphs have more axes than the batch, the last of which are never to be exchanged
        GraphSpace(NUMPY, BoxSpace(NUMPY, 0, 1, "float32", shape=(4,)), batch_shape=(2, 3)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_swap_is_refused(space: Space, axes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"are not both among the 2 axes of"):
        swap_batch_dims(space, *axes)
    with pytest.raises(ValueError, match=r"are not both among the 2 axes of"):
        swap_batch_dims_in_data(NUMPY, sample(space), *axes)


@pytest.mark.parametrize("space", [TextSpace(NUMPY, 3), UnionSpace(NUMPY, [BinarySpace(NUMPY, ())])], ids=str)
def test_single_values_have_no_batch_axes_to_rearrange(space: Space) -> None:
    with pytest.raises(ValueError, match=r"has no batch axes to reshape$"):
        reshape_batch_size(space, (3,), (3, 1))
    with pytest.raises(ValueError, match=r"has no batch axes to exchange$"):
        swap_batch_dims(space, 0, 1)
    with pytest.raises(TypeError, match="is not batched data: it must be a dict, tuple, graph or array"):
        swap_batch_dims_in_data(NUMPY, "text", 0, 1)
