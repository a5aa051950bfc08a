"""How a batch may be indexed, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from buffers import number_space, numbers, read
from catalogue import backend_cases

from unienv_data import ReplayBuffer

pytestmark = pytest.mark.parametrize("backend", backend_cases())
WRAPPED = [2, 3, 4, 5, 6]


@pytest.fixture
def buffer(backend: Any) -> ReplayBuffer:
    """Five samples, 2 to 6, that lie across the end of the ring."""
    made = ReplayBuffer.create(number_space(backend), capacity=5)
    made.extend(numbers([0, 1, 2, 3], backend))
    made.extend(numbers([4, 5, 6], backend))
    return made


@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(1, 3),
        slice(-2, None),
        slice(None, None, -1),
        slice(3, 100),
        slice(4, 1),
        Ellipsis,
        [0, -1, 2],
        [],
        (1, 1),
        np.array([4, 0]),
        np.array([1, 2], np.uint8),
        np.array([-5, -1], np.int32),
        np.array([True, False, True, False, True]),
        [True, False, False, False, True],
    ],
    ids=repr,
)
def test_a_batch_is_what_a_list_would_give(backend: Any, buffer: ReplayBuffer, index: Any) -> None:
    wanted = np.array(WRAPPED)[_as_numpy(index)].tolist()
    assert read(buffer.get_at(index), backend) == wanted
    assert read(buffer[index], backend) == wanted


def _as_numpy(index: Any) -> Any:
    if isinstance(index, (list, tuple)):
        return np.array(index) if index else np.array([], int)
    return index


@pytest.mark.parametrize("index", [0, 4, -1, -5, np.int64(2), np.uint8(3), np.array(1)], ids=repr)
def test_an_int_gives_one_sample(backend: Any, buffer: ReplayBuffer, index: Any) -> None:
    found = buffer.get_at(index)
    assert tuple(found["number"].shape) == ()
    assert read(found, backend) == WRAPPED[int(index)]


def test_arrays_of_the_backend_are_indices(backend: Any, buffer: ReplayBuffer) -> None:
    assert read(buffer.get_at(backend.asarray([3, -1, 0])), backend) == [5, 6, 2]
    assert read(buffer.get_at(backend.asarray([True, False, True, False, False])), backend) == [2, 4]


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (5, IndexError, "index 5 is out of range for a length of 5"),
        (-6, IndexError, "index -6 is out of range for a length of 5"),
        ([0, 7], IndexError, "index 7 is out of range for a length of 5"),
        (np.array([0, -9]), IndexError, "index -9 is out of range for a length of 5"),
        (np.array([2**62]), IndexError, "out of range for a length of 5"),
        (np.ones(4, bool), IndexError, r"mask of shape \(4,\), it wants shape \(5,\)"),
        (np.zeros((2, 2), int), IndexError, r"shape \(2, 2\)"),
        (True, TypeError, "index of type bool"),
        (1.0, TypeError, "dtype float64"),
        ("a", TypeError, "dtype <U1"),
        (None, TypeError, "dtype object"),
    ],
    ids=repr,
)
def test_what_is_no_index_is_refused(
    backend: Any, buffer: ReplayBuffer, index: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        buffer.get_at(index)


def test_flat_reads_have_the_order_of_structured_ones(backend: Any, buffer: ReplayBuffer) -> None:
    flat = backend.to_numpy(buffer.get_flattened_at([0, -1]))
    assert flat.tolist() == [[2, 2, 2, 2], [6, 6, 6, 6]]
    assert backend.to_numpy(buffer.get_flattened_at(-1)).tolist() == [6, 6, 6, 6]
    assert backend.to_numpy(buffer.get_flattened_at(...))[:, 0].tolist() == WRAPPED
    data, metadata = buffer.get_flattened_at_with_metadata([1, 2])
    assert backend.to_numpy(data)[:, 0].tolist() == [3, 4]
    assert metadata is None


def test_flat_writes_are_writes(backend: Any, buffer: ReplayBuffer) -> None:
    buffer.set_flattened_at([0, 1], backend.asarray(np.full((2, 4), 7, np.int32)))
    buffer.append_flattened(backend.asarray(np.full(4, 8, np.int32)))
    buffer.mark_segment_end()
    buffer.extend_flattened(backend.asarray(np.full((1, 4), 9, np.int32)))
    assert read(buffer.get_at(...), backend) == [4, 5, 6, 8, 9]


def test_views_are_lazy_and_leave_the_buffer_open(backend: Any, buffer: ReplayBuffer) -> None:
    view = buffer.get_slice([4, 0, 2])
    assert len(view) == 3
    assert read(view.get_at(...), backend) == [6, 2, 4]
    assert read(view.get_at(-1), backend) == 4
    assert read(view.get_slice(slice(1, None)).get_at(...), backend) == [2, 4]
    column = buffer.get_column(["inner", "copies"])
    assert backend.to_numpy(column.get_at([1]))[:, 0].tolist() == [3]
    assert tuple(column.get_at(0).shape) == (3,)
    assert backend.to_numpy(view.get_column(["number"]).get_at(...)).tolist() == [6, 2, 4]
    view.set_at(0, buffer.get_at(0))
    view.close()
    column.close()
    del view, column
    assert read(buffer.get_at(...), backend) == [2, 3, 4, 5, 2]
    with pytest.raises(KeyError, match="no field 'inner/nothing'"):
        buffer.get_column(["inner", "nothing"])
    assert backend.to_numpy(buffer.get_column("inner/copies").get_at(0)).tolist() == [2, 2, 2]
    with pytest.raises(KeyError, match="no field 'inner/nothing'"):
        buffer.get_column("inner/nothing")


def test_iterating_gives_the_samples(backend: Any, buffer: ReplayBuffer) -> None:
    assert [read(sample, backend) for sample in buffer] == WRAPPED
