from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import backend_cases
from envs import CountEnv, DictEnv, mask_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.env import Env, merge_masked, parse_mask
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import BoxSpace, TextSpace


def test_env_takes_eight_type_parameters() -> None:
    assert Env[np.ndarray, Any, np.ndarray, np.ndarray, Any, Any, np.dtype, np.random.Generator] is not None


def test_reset_step_and_render_must_be_written() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Env()  # type: ignore[abstract]


@pytest.mark.parametrize("backend", backend_cases())
def test_sampling_advances_rng(backend: ComputeBackend) -> None:
    env = CountEnv(backend, with_context=True)
    first, second = env.sample_action(), env.sample_action()
    assert first in env.action_space
    assert not np.array_equal(backend.to_host(first), backend.to_host(second))
    assert env.sample_observation() in env.observation_space
    assert env.sample_context() in env.context_space


def test_sampling_makes_a_generator_where_there_is_none() -> None:
    env = CountEnv(NumpyComputeBackend)
    env.rng = None
    assert env.sample_action() in env.action_space
    assert isinstance(env.rng, np.random.Generator)


def test_sample_context_is_none_without_a_context_space() -> None:
    assert CountEnv(NumpyComputeBackend).sample_context() is None


def test_leaving_the_with_block_closes() -> None:
    with CountEnv(NumpyComputeBackend) as env:
        assert not env.closed
    assert env.closed == 1


def test_an_environment_is_its_own_only_layer() -> None:
    env = CountEnv(NumpyComputeBackend)
    assert env.unwrapped is env
    assert env.prev_wrapper_layer is None
    assert env.has_wrapper_attr("steps")
    assert not env.has_wrapper_attr("speed")
    env.set_wrapper_attr("speed", 3)
    assert env.get_wrapper_attr("speed") == env.speed == 3


def test_repr_tells_backend_and_batch_size() -> None:
    assert repr(CountEnv(NumpyComputeBackend)) == "CountEnv(backend=numpy)"
    assert repr(CountEnv(NumpyComputeBackend, 3)) == "CountEnv(backend=numpy, batch_size=3)"


# -- masked resets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backend_cases())
def test_merging_replaces_the_rows_of_the_mask_in_a_copy(backend: ComputeBackend) -> None:
    env = CountEnv(backend, 3, with_context=True)
    context, observation, _ = env.reset(seed=0)
    before = (backend.to_host(context).copy(), backend.to_host(observation).copy())
    mask = mask_of(env, True, False, True)
    new_context, new_observation, _ = env.reset(mask=mask)
    merged = backend.to_host(env.update_observation_post_reset(observation, new_observation, mask))
    merged_context = backend.to_host(env.update_context_post_reset(context, new_context, mask))
    assert np.array_equal(merged[[0, 2]], backend.to_host(new_observation))
    assert np.array_equal(merged[1], before[1][1])
    assert np.array_equal(merged_context[[0, 2]], backend.to_host(new_context))
    assert np.array_equal(backend.to_host(context), before[0])
    assert np.array_equal(backend.to_host(observation), before[1])


def test_merging_no_rows_gives_an_equal_copy() -> None:
    env = DictEnv(NumpyComputeBackend, 3)
    _, observation, _ = env.reset(seed=0)
    nothing = mask_of(env, False, False, False)
    _, rows, _ = env.reset(mask=nothing)
    merged = env.update_observation_post_reset(observation, rows, nothing)
    assert np.array_equal(merged["pose"], observation["pose"])
    assert not np.shares_memory(merged["pose"], observation["pose"])


def test_merging_takes_texts() -> None:
    space = batch_utils.batch_space(TextSpace(NumpyComputeBackend, 5), 3)
    old, new = np.array(["a", "b", "c"], object), np.array(["x"], object)
    merged = merge_masked(space, 3, old, new, np.array([False, True, False]))
    assert merged.tolist() == ["a", "x", "c"]
    assert old.tolist() == ["a", "b", "c"]


def test_merging_wants_a_row_for_each_slot() -> None:
    space = BoxSpace(NumpyComputeBackend, 0, 9, "int32", shape=(3, 2))
    old = np.zeros((3, 2), np.int32)
    with pytest.raises(ValueError, match="1 rows for the 2 slots of the mask"):
        merge_masked(space, 3, old, old[:1], np.array([True, True, False]))


def test_a_single_environment_has_nothing_to_merge() -> None:
    env = CountEnv(NumpyComputeBackend)
    _, observation, _ = env.reset()
    with pytest.raises(ValueError, match="not batched, so a mask has nothing to select"):
        env.update_observation_post_reset(observation, observation, np.array([True]))
    for new in (None, np.zeros(1)):
        assert env.update_context_post_reset(None, new, np.array([True])) is None


@pytest.mark.parametrize("backend", backend_cases())
def test_masks_are_parsed_to_the_host(backend: ComputeBackend) -> None:
    slots = np.array([True, False])
    assert parse_mask(backend.from_numpy(slots), 2, backend).tolist() == [True, False]
    assert parse_mask([True, False], 2, backend).tolist() == [True, False]


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (np.array([True]), r"dtype bool and shape \(1,\)"),
        (np.array([[True, False]]), r"dtype bool and shape \(1, 2\)"),
        (np.array([1, 0]), r"dtype int64 and shape \(2,\)"),
        (True, r"dtype bool and shape \(\)"),
    ],
)
def test_a_mask_must_have_a_boolean_per_slot(mask: Any, found: str) -> None:
    with pytest.raises(ValueError, match=f"{found}, it must be one boolean per slot: shape"):
        parse_mask(mask, 2, NumpyComputeBackend)
