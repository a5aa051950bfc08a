from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from catalogue import assert_same, backend_cases, sample, samples, space_cases

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import BoxSpace, DictSpace, DynamicBoxSpace, TextSpace
from unienv_interface.utils.framestack_queue import FuncSpaceDataQueue, SpaceDataQueue

np_backend = NumpyComputeBackend


def _frames(queue: SpaceDataQueue, output: Any) -> list[Any]:
    """What was handed out as a list of frames, oldest first, by axis moves of NumPy alone."""
    stacked = output if queue.batch_size is None else batch_utils.swap_batch_dims_in_data(queue.backend, output, 0, 1)
    return list(batch_utils.iterate(queue.stacked_space, stacked))


def _can_be_taken_apart(space: Space) -> bool:
    """Whether the frames in a stack can be told by it: not those without arrays, nor batches of no graphs at all."""
    return batch_utils.batch_size(batch_utils.batch_space(space, 3)) == 3 and batch_utils.batch_size(space) != 0


@pytest.mark.parametrize("space", space_cases(backends=[np_backend], where=_can_be_taken_apart))
def test_it_is_a_deque(space: Space) -> None:
    queue, model = SpaceDataQueue(space, None, 3), deque[Any](maxlen=3)
    first, *others = samples(space, 5)
    queue.reset(first)
    model.extend([first] * 3)
    for value in others:
        assert queue.get_output_data() in queue.output_space
        for found, wanted in zip(_frames(queue, queue.get_output_data()), model, strict=True):
            assert_same(space, found, wanted)
        queue.add(value)
        model.append(value)
    assert_same(space, queue.newest(queue.get_output_data()), others[-1])


BATCHED = [
    *space_cases("box_float32", "box_image", "dict_nested", "tuple_mixed", "union", backends=[np_backend]),
    *space_cases("graph_fixed", "graph_nodes", "text_ascii", "dynamic_box_int", backends=[np_backend]),
]


@pytest.mark.parametrize("single", BATCHED)
def test_every_slot_of_a_batch_is_a_deque(single: Space) -> None:
    space = batch_utils.batch_space(single, 3)
    queue = SpaceDataQueue(space, 3, 2)
    models = [deque[Any](maxlen=2) for _ in range(3)]
    values = iter(samples(space, 6))
    generator = np.random.default_rng(0)

    def check() -> None:
        output = queue.get_output_data()
        assert output in queue.output_space
        for slot, model in enumerate(models):
            mine = batch_utils.get_at(queue.output_space, output, slot)
            found = list(batch_utils.iterate(batch_utils.batch_space(single, 2), mine))
            for one, wanted in zip(found, model, strict=True):
                assert_same(single, one, wanted)

    first = next(values)
    queue.reset(first)
    for slot, model in enumerate(models):
        model.extend([batch_utils.get_at(space, first, slot)] * 2)
    check()
    for value in values:
        queue.add(value)
        for slot, model in enumerate(models):
            model.append(batch_utils.get_at(space, value, slot))
        check()
        mask = generator.random(3) < 0.5
        start = sample(space, seed=int(generator.integers(1000)))
        queue.reset(batch_utils.get_at(space, start, mask), mask)
        for slot in np.flatnonzero(mask):
            models[slot].extend([batch_utils.get_at(space, start, int(slot))] * 2)
        check()


@pytest.mark.parametrize("backend", backend_cases())
def test_the_batch_axis_comes_first(backend: ComputeBackend) -> None:
    space = BoxSpace(backend, [[0], [10]], [[9], [19]], "int32", shape=(2, 1))
    queue = SpaceDataQueue(space, 2, 3)
    assert queue.stacked_space.shape == (3, 2, 1)
    assert queue.output_space.shape == (2, 3, 1)
    assert backend.to_host(queue.output_space.high)[:, :, 0].tolist() == [[9, 9, 9], [19, 19, 19]]
    queue.reset(backend.from_numpy(np.array([[0], [10]], np.int32)))
    queue.add(backend.from_numpy(np.array([[1], [11]], np.int32)))
    output = queue.get_output_data()
    assert output in queue.output_space
    assert backend.to_host(output)[:, :, 0].tolist() == [[0, 0, 1], [10, 10, 11]]


def test_nothing_handed_out_or_in_is_shared() -> None:
    space = DictSpace(
        np_backend,
        {
            "array": BoxSpace(np_backend, 0, 9, "int32", shape=(2,)),
            "ragged": DynamicBoxSpace(np_backend, 0, 9, (1,), (3,), "int32"),
        },
    )
    queue = SpaceDataQueue(space, None, 2)
    given = {"array": np.array([1, 2], np.int32), "ragged": np.array([1], np.int32)}
    queue.reset(given)
    queue.add(given)
    given["array"][:], given["ragged"][:] = 9, 9
    output = queue.get_output_data()
    output["array"][:], output["ragged"][0][:] = 8, 8
    fresh = queue.get_output_data()
    assert fresh["array"].tolist() == [[1, 2], [1, 2]]
    assert [frame.tolist() for frame in fresh["ragged"]] == [[1], [1]]


def test_output_before_a_reset_stays_as_it_was() -> None:
    queue = SpaceDataQueue(BoxSpace(np_backend, 0, 9, "int32", shape=(2, 1)), 2, 2)
    queue.reset(np.ones((2, 1), np.int32))
    before = queue.get_output_data()
    queue.reset(np.full((1, 1), 7, np.int32), np.array([True, False]))
    queue.reset(np.full((2, 1), 8, np.int32))
    assert before.tolist() == [[[1], [1]], [[1], [1]]]


def test_functions_leave_their_state() -> None:
    queue = FuncSpaceDataQueue(BoxSpace(np_backend, 0, 9, "int32", shape=(2,)), 2, 2)
    first = queue.init(np.array([1, 2], np.int32))
    second = queue.add(first, np.array([3, 4], np.int32))
    third = queue.reset(second, np.array([5], np.int32), np.array([False, True]))
    assert queue.get_output_data(first).tolist() == [[1, 1], [2, 2]]
    assert queue.get_output_data(second).tolist() == [[1, 3], [2, 4]]
    assert queue.get_output_data(third).tolist() == [[1, 3], [5, 5]]
    assert queue.get_output_data(queue.reset(third, np.array([6, 7], np.int32))).tolist() == [[6, 6], [7, 7]]
    assert first.replace(data=None).data is None


def test_a_mask_needs_frames_and_a_batch() -> None:
    space = BoxSpace(np_backend, 0, 9, "int32", shape=(2,))
    with pytest.raises(RuntimeError, match="the queue holds no frames yet"):
        SpaceDataQueue(space, 2, 2).reset(np.zeros(1, np.int32), np.array([True, False]))
    single = FuncSpaceDataQueue(space, None, 2)
    with pytest.raises(ValueError, match="the queue is not batched"):
        single.reset(single.init(np.zeros(2, np.int32)), np.zeros(1, np.int32), np.array([True, False]))


def test_the_arguments_are_checked() -> None:
    space = TextSpace(np_backend, 3)
    with pytest.raises(ValueError, match="maxlen is 0, a queue holds at least one frame"):
        SpaceDataQueue(space, None, 0)
    with pytest.raises(TypeError, match=r"maxlen is 1\.5"):
        SpaceDataQueue(space, None, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a batch of 2: the space of a batch holds the batch axis"):
        SpaceDataQueue(space, 2, 1)
    queue = SpaceDataQueue(space, None, 2)
    assert (queue.maxlen, queue.batch_size, queue.backend, queue.device) == (2, None, np_backend, None)
    assert queue.single_space is space
    for call in (lambda: queue.add("a"), queue.get_output_data):
        with pytest.raises(RuntimeError, match="reset it with a first frame"):
            call()
