from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catalogue import as_host, assert_same, backend_cases
from envs import CountEnv, DictEnv, actions_of, mask_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import Env
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import BoxSpace, DictSpace, TextSpace
from unienv_interface.wrapper import FrameStackWrapper

np_backend = NumpyComputeBackend


class Model:
    """What one slot should show, kept in plain deques."""

    def __init__(self, obs_frames: int, action_frames: int) -> None:
        self.observations, self.actions = deque[Any](maxlen=obs_frames), deque[Any](maxlen=action_frames)

    def start(self, observation: Any, action: Any) -> None:
        self.observations.extend([observation] * (self.observations.maxlen or 0))
        self.actions.extend([action] * (self.actions.maxlen or 0))

    def go_on(self, observation: Any, action: Any) -> None:
        self.observations.append(observation)
        self.actions.append(action)


def _check(env: FrameStackWrapper, models: list[Model], shown: Any) -> None:
    """Compare what the wrapper returned with a model for each row of it."""
    below = env.env
    for row, model in enumerate(models):
        mine = shown if env.batch_size is None else batch_utils.get_at(env.observation_space, shown, row)
        observation = mine["observation"] if env.action_stack_size else mine
        wanted = list(model.observations) if env.obs_stack_size else model.observations[-1]
        if env.obs_stack_size:
            wanted = batch_utils.concatenate(below.observation_space, wanted)
        assert_same(None, as_host(observation), as_host(wanted))
        if env.action_stack_size:
            actions = batch_utils.concatenate(below.action_space, list(model.actions))
            assert_same(None, as_host(mine["past_actions"]), as_host(actions))


def _row(space: Any, value: Any, slot: int | None) -> Any:
    return value if slot is None else batch_utils.get_at(space, value, slot)


@pytest.mark.parametrize("sizes", [(2, 0), (0, 2), (1, 3)])
@pytest.mark.parametrize("make", [CountEnv, DictEnv])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_it_shows_what_a_deque_would(
    make: Callable[..., CountEnv], batch_size: int | None, sizes: tuple[int, int]
) -> None:
    below, twin = make(np_backend, batch_size), make(np_backend, batch_size)
    env = FrameStackWrapper(below, *sizes)
    slots = [None] if batch_size is None else list(range(batch_size))
    models = [Model(sizes[0] + 1, sizes[1]) for _ in slots]
    default = env.action_default_value

    def start(chosen: list[Any], mask: Any, seed: int) -> None:
        _, shown, _ = env.reset(mask=mask, seed=seed)
        _, observation, _ = twin.reset(mask=mask, seed=seed)
        for row, slot in enumerate(chosen):
            place = None if slot is None else row
            initial = None if default is None else _row(below.action_space, default, slot)
            models[slot or 0].start(_row(below.observation_space, observation, place), initial)
        _check(env, [models[slot or 0] for slot in chosen], shown)

    start(slots, None, seed=0)
    for count, action in enumerate(actions_of(below, 7)):
        shown, *_ = env.step(action)
        observation, *_ = twin.step(action)
        for slot, model in zip(slots, models, strict=True):
            model.go_on(_row(below.observation_space, observation, slot), _row(below.action_space, action, slot))
        assert shown in env.observation_space
        _check(env, models, shown)
        assert_same(below.observation_space, env.reverse_map_observation(shown), observation)
        if batch_size is not None and count in (2, 4, 5):
            mask = np.array([count == 2, count != 5, False])
            start(np.flatnonzero(mask).tolist(), mask, seed=count)


@pytest.mark.parametrize("backend", backend_cases())
def test_masked_resets_start_the_stack_again_in_these_slots(backend: ComputeBackend) -> None:
    env = FrameStackWrapper(CountEnv(backend, 3), 1, 1)
    env.reset(seed=0)
    for action in actions_of(env, 2):
        shown, *_ = env.step(action)
    assert backend.to_host(shown["observation"])[:, :, 0].tolist() == [[1, 2]] * 3
    mask = mask_of(env, True, False, True)
    _, rows, _ = env.reset(mask=mask)
    assert backend.to_host(rows["observation"])[:, :, 0].tolist() == [[0, 0]] * 2
    assert backend.to_host(rows["past_actions"]).tolist() == [[[0, 0]]] * 2
    merged = env.update_observation_post_reset(shown, rows, mask)
    assert backend.to_host(merged["observation"])[:, :, 0].tolist() == [[0, 0], [1, 2], [0, 0]]
    shown, *_ = env.step(action)
    assert backend.to_host(shown["observation"])[:, :, 0].tolist() == [[0, 1], [2, 3], [0, 1]]
    _, nothing, _ = env.reset(mask=mask_of(env, False, False, False))
    assert nothing["observation"].shape == (0, 2, 3)


def test_nothing_it_returns_is_shared() -> None:
    env = FrameStackWrapper(CountEnv(np_backend, 3), 2, 2)
    kept = [env.reset(seed=0)[1]]
    kept += [env.step(action)[0] for action in actions_of(env, 3)]
    kept += [env.reset(mask=mask_of(env, True, False, False))[1]]
    arrays = [array for value in kept for array in value.values()]
    for position, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[position + 1 :])
    for value in kept:
        value["observation"][:] = 77.0
        value["past_actions"][:] = 77.0
    shown, *_ = env.step(actions_of(env, 1)[0])
    assert not np.any(shown["observation"] == 77.0)
    assert not np.any(shown["past_actions"] == 77.0)


def test_a_caller_may_write_to_its_actions() -> None:
    env = FrameStackWrapper(CountEnv(np_backend), action_stack_size=2)
    env.reset(seed=0)
    action = np.array([0.5, 0.25], np.float32)
    env.step(action)
    action[:] = 0.0
    shown, *_ = env.step(action)
    assert shown["past_actions"].tolist() == [[0.5, 0.25], [0.0, 0.0]]


def test_without_sizes_it_changes_nothing() -> None:
    below = CountEnv(np_backend)
    env = FrameStackWrapper(below)
    assert env.observation_space is below.observation_space
    assert env.reset(seed=0)[1].tolist() == below.reset(seed=0)[1].tolist()
    assert (env.obs_deque, env.action_deque, env.action_default_value) == (None, None, None)


def test_the_layout_of_the_space() -> None:
    env = FrameStackWrapper(CountEnv(np_backend, 3), 3, 2)
    assert isinstance(env.observation_space, DictSpace)
    assert env.observation_space["observation"].shape == (3, 4, 3)
    assert env.observation_space["past_actions"].shape == (3, 2, 2)
    assert FrameStackWrapper(CountEnv(np_backend), 3).observation_space.shape == (4, 3)


def test_the_default_action_is_the_one_nearest_to_zero() -> None:
    env = FrameStackWrapper(DictEnv(np_backend), action_stack_size=1)
    default = env.action_default_value
    assert default in env.action_space
    assert default["move"].tolist() == [0.0, 0.0]
    assert default["hand"]["gear"] == 1
    assert default["hand"]["grip"].tolist() == [False]


def test_a_default_action_may_be_given() -> None:
    given = np.array([0.5, 0.25], np.float32)
    env = FrameStackWrapper(CountEnv(np_backend), 0, 2, given)
    assert env.reset(seed=0)[1]["past_actions"].tolist() == [[0.5, 0.25]] * 2
    with pytest.raises(ValueError, match=r"action_default_value: value 3\.0 at \(0,\) is outside"):
        FrameStackWrapper(CountEnv(np_backend), 0, 1, given * 6)


def test_an_action_without_a_zero_must_be_given() -> None:
    env: Env = CountEnv(np_backend)
    env.action_space = TextSpace(np_backend, 3)
    with pytest.raises(ValueError, match="has no action that is nearest to zero: pass action_default_value"):
        FrameStackWrapper(env, action_stack_size=1)
    assert FrameStackWrapper(env, 0, 1, "go").reset(seed=0)[1]["past_actions"].tolist() == ["go"]


def test_the_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="obs_stack_size is -1, it must not be negative"):
        FrameStackWrapper(CountEnv(np_backend), -1)
    with pytest.raises(TypeError, match=r"action_stack_size is 0\.5"):
        FrameStackWrapper(CountEnv(np_backend), 0, 0.5)  # type: ignore[arg-type]


def test_a_mask_is_checked_before_anything_moves() -> None:
    below = CountEnv(np_backend, 3)
    env = FrameStackWrapper(below, 1)
    env.reset(seed=0)
    env.step(actions_of(env, 1)[0])
    with pytest.raises(ValueError, match="it must be one boolean per slot"):
        env.reset(mask=np.array([True]))
    assert below.steps.tolist() == [1, 1, 1]


def test_bounds_per_slot_reach_the_stack() -> None:
    below = CountEnv(np_backend, 2)
    below.observation_space = BoxSpace(np_backend, [[0.0], [-1.0]], [[1.0], [9.0]], "float32", shape=(2, 3))
    space = FrameStackWrapper(below, 1).observation_space
    assert space.high[:, 0, 0].tolist() == space.high[:, 1, 0].tolist() == [1.0, 9.0]
