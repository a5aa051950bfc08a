from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, assert_same, backend_cases, samples
from envs import CountEnv, DictEnv, UnevenEnv, actions_of, mask_of
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import Env
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.transformations import (
    CropTransformation,
    DictTransformation,
    IdentityTransformation,
    RescaleTransformation,
)
from unienv_interface.wrapper import (
    ActionRescaleWrapper,
    ActionTransformWrapper,
    ContextObservationTransformWrapper,
    FlattenActionWrapper,
    FlattenContextObservationWrapper,
    TransformWrapper,
)

np_backend = NumpyComputeBackend


class Recorder(CountEnv):
    """Keeps the actions it is given."""

    def __init__(self, backend: ComputeBackend, action_space: BoxSpace) -> None:
        super().__init__(backend)
        self.action_space, self.actions = action_space, list[Any]()

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        self.actions.append(self.backend.to_host(action).copy())
        return super().step(self.backend.zeros((2,), dtype=self.backend.dtype_from_name("float32")))


# -- action rescaling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backend_cases())
def test_actions_are_rescaled(backend: ComputeBackend) -> None:
    below = Recorder(backend, BoxSpace(backend, [-2.0, 0.0], [2.0, 0.5], "float32"))
    env = ActionRescaleWrapper(below)
    assert env.action_space == BoxSpace(backend, -1.0, 1.0, "float32", shape=(2,))
    env.reset(seed=0)
    for action in ([-1.0, -1.0], [1.0, 1.0], [0.0, 0.5]):
        env.step(backend.from_numpy(np.array(action, np.float32)))
    assert [action.tolist() for action in below.actions] == [[-2.0, 0.0], [2.0, 0.5], [0.0, 0.375]]
    back = env.reverse_map_action(backend.from_numpy(np.array([2.0, 0.25], np.float32)))
    assert backend.to_host(back).tolist() == [1.0, 0.0]


finite = st.floats(-1e6, 1e6, width=32).filter(lambda number: number == 0 or abs(number) > 1e-6)
spans = st.tuples(finite, finite).map(sorted).filter(lambda ends: ends[1] - ends[0] > 1e-3 * max(map(abs, ends)))
dtypes = st.sampled_from(["float32", "float64"])


@given(inner=st.lists(finite.map(abs).filter(bool), min_size=1, max_size=4), dtype=dtypes)
def test_the_ends_are_mapped_exactly(inner: list[float], dtype: str) -> None:
    below = Recorder(np_backend, BoxSpace(np_backend, -np.array(inner), np.array(inner), dtype))
    env = ActionRescaleWrapper(below)
    assert env.map_action(env.action_space.low).tolist() == below.action_space.low.tolist()
    assert env.map_action(env.action_space.high).tolist() == below.action_space.high.tolist()


@given(inner=st.lists(spans, min_size=1, max_size=4), outer=spans, dtype=dtypes)
def test_the_ends_of_any_bounds_are_mapped_to_the_last_bit(
    inner: list[list[float]], outer: list[float], dtype: str
) -> None:
    low, high = np.array(inner).T
    below = Recorder(np_backend, BoxSpace(np_backend, low, high, dtype))
    env = ActionRescaleWrapper(below, *outer)
    assert env.map_action(env.action_space.low).tolist() == below.action_space.low.tolist()
    assert env.map_action(env.action_space.high).tolist() == below.action_space.high.tolist()


def test_integer_actions_become_floats_and_are_rounded_on_their_way_in() -> None:
    below = Recorder(np_backend, BoxSpace(np_backend, 0, 10, "int32", shape=(2,)))
    env = ActionRescaleWrapper(below)
    env.reset(seed=0)
    env.step(np.array([-1.0, 1.0]))
    env.step(np.array([0.0, 0.09]))
    assert [action.tolist() for action in below.actions] == [[0, 10], [5, 5]]


def test_the_new_bounds_may_be_arrays() -> None:
    below = UnevenEnv(np_backend, 3)
    env = ActionRescaleWrapper(below, [0.0, -5.0], [1.0, 5.0])
    assert env.action_space.high.tolist() == [[1.0, 5.0]] * 3
    assert np.allclose(env.map_action(env.action_space.low), below.action_space.low)
    for action in actions_of(env, 3):
        assert env.map_action(action) in below.action_space


def test_actions_without_bounds_cannot_be_rescaled() -> None:
    with pytest.raises(ValueError, match="rescaling wants finite bounds"):
        ActionRescaleWrapper(Recorder(np_backend, BoxSpace(np_backend, -np.inf, 1.0, "float32", shape=(2,))))
    with pytest.raises(TypeError, match="wants a BoxSpace"):
        ActionRescaleWrapper(DictEnv(np_backend))


# -- action transformations --------------------------------------------------------------------------------


def test_the_target_action_space_is_the_one_of_the_wrapper() -> None:
    below = Recorder(np_backend, BoxSpace(np_backend, 0.0, 1.0, "float32", shape=(2,)))
    wide = BoxSpace(np_backend, -9.0, 9.0, "float32", shape=(2,))
    env = ActionTransformWrapper(below, CropTransformation(0.0, 1.0), wide)
    assert env.action_space is wide
    env.reset(seed=0)
    env.step(np.array([-3.0, 0.5], np.float32))
    assert below.actions[0].tolist() == [0.0, 0.5]


def test_without_a_target_it_follows_from_the_inverse() -> None:
    env = ActionTransformWrapper(CountEnv(np_backend), IdentityTransformation())
    assert env.action_space == env.env.action_space
    with pytest.raises(ValueError, match="does not determine its action space: pass target_action_space"):
        ActionTransformWrapper(CountEnv(np_backend), RescaleTransformation())


def test_an_action_transformation_must_end_in_the_space_below() -> None:
    below = CountEnv(np_backend)
    with pytest.raises(ValueError, match=r"which does not lie in BoxSpace.*pass another target_action_space"):
        ActionTransformWrapper(below, RescaleTransformation(-2.0, 2.0), below.action_space)


def test_an_action_transformation_can_be_replaced_and_taken_away() -> None:
    env = ActionRescaleWrapper(CountEnv(np_backend))
    env.set_action_transformation(IdentityTransformation(), env.env.action_space)
    assert isinstance(env.action_transformation, IdentityTransformation)
    env.set_action_transformation()
    assert env.action_transformation is None
    assert env.action_space is env.env.action_space
    action = np.zeros(2, np.float32)
    assert env.map_action(action) is env.reverse_map_action(action) is action
    with pytest.raises(ValueError, match="given without the action_transformation"):
        env.set_action_transformation(None, env.env.action_space)


# -- context and observation transformations ---------------------------------------------------------------


def _both(env: Env) -> ContextObservationTransformWrapper:
    return ContextObservationTransformWrapper(env, RescaleTransformation(-1.0, 1.0), CropTransformation(0.0, 0.5))


@pytest.mark.parametrize("backend", backend_cases())
def test_contexts_and_observations_are_transformed(backend: ComputeBackend) -> None:
    below = CountEnv(backend, 3, with_context=True)
    context, observation, _ = below.reset(seed=0)
    env = _both(below)
    assert env.observation_space == BoxSpace(backend, 0.0, 0.5, "float32", shape=(3, 3))
    assert env.context_space == BoxSpace(backend, -1.0, 1.0, "float32", shape=(3, 2))
    new_context, new_observation, _ = env.reset(seed=0)
    assert np.allclose(backend.to_host(new_context), backend.to_host(context) * 2 - 1, atol=1e-6)
    assert np.allclose(backend.to_host(new_observation), np.clip(backend.to_host(observation), 0.0, 0.5))
    assert np.allclose(backend.to_host(env.reverse_map_context(new_context)), backend.to_host(context), atol=1e-6)
    assert env.step(actions_of(env, 1)[0])[0] in env.observation_space


@pytest.mark.parametrize("wrap", [_both, lambda env: TransformWrapper(env, RescaleTransformation(-1.0, 1.0))])
def test_slots_of_a_masked_reset_are_transformed_by_their_own_bounds(wrap: Any) -> None:
    """Slot i has contexts from -i to 1 + i, so the same context is another one after rescaling."""
    below = UnevenEnv(np_backend, 3, with_context=True)
    env = wrap(below)
    env.reset(seed=0)
    context, _, _ = env.reset(mask=mask_of(env, False, True, True))
    wanted = [(below.goal[slot] + slot) / (1 + 2 * slot) * 2 - 1 for slot in (1, 2)]
    assert np.allclose(context, wanted, atol=1e-6)
    assert env.reset(mask=mask_of(env, False, False, False))[0].shape == (0, 2)


def test_no_transformation_hides_nothing() -> None:
    below = CountEnv(np_backend, with_context=True)
    for env in (ContextObservationTransformWrapper(below), TransformWrapper(below)):
        assert env.context_space is below.context_space
        assert env.observation_space is below.observation_space
        context, observation, _ = env.reset(seed=0)
        assert context in below.context_space
        assert env.reverse_map_context(context) is context
        assert env.reverse_map_observation(observation) is observation


def test_transformations_can_be_replaced_and_taken_away() -> None:
    env = _both(CountEnv(np_backend, with_context=True))
    env.observation_transformation = CropTransformation(-7.0, 7.0)
    assert env.observation_space.is_bounded()
    env.observation_transformation = env.context_transformation = None
    assert env.observation_space is env.env.observation_space
    assert env.context_space is env.env.context_space
    assert env.context_transformation is None


def test_a_context_that_is_not_there_cannot_be_transformed() -> None:
    with pytest.raises(ValueError, match="has no context_space, so there is nothing for"):
        TransformWrapper(CountEnv(np_backend), IdentityTransformation())


def test_all_three_at_once() -> None:
    below = CountEnv(np_backend, with_context=True)
    low, high = below.action_space.bounds
    env = TransformWrapper(
        below,
        RescaleTransformation(0.0, 2.0),
        CropTransformation(0.0, 1.0),
        CropTransformation(low, high),
        BoxSpace(np_backend, -5.0, 5.0, "float32", shape=(2,)),
    )
    env.reset(seed=0)
    observation, *_ = env.step(np.array([5.0, 5.0], np.float32))
    assert below.total == pytest.approx([1.3])
    assert observation.tolist()[2] == 1.0


# -- flattening --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "batch_size"),
    [(backend, size) for backend in BACKENDS for size in (None, 3) if size is None or backend.simplified_name != "jax"],
    ids=str,
)
def test_flattening_is_undone_by_its_reverse(backend: ComputeBackend, batch_size: int | None) -> None:
    below = DictEnv(backend, batch_size, with_context=True)
    env = FlattenContextObservationWrapper(FlattenActionWrapper(below), flatten_context=True)
    leading = () if batch_size is None else (batch_size,)
    assert env.action_space.shape == (*leading, 4)
    assert env.observation_space.shape == (*leading, 9)
    context, observation, _ = env.reset(seed=0)
    assert context in env.context_space
    assert observation in env.observation_space
    twin = below.reset(seed=0)
    assert_same(below.context_space, env.reverse_map_context(context), twin[0])
    assert_same(below.observation_space, env.reverse_map_observation(observation), twin[1])
    for action in samples(below.action_space, 2):
        flat = env.env.reverse_map_action(action)  # type: ignore[attr-defined]
        assert flat in env.action_space
        assert_same(below.action_space, env.env.map_action(flat), action)  # type: ignore[attr-defined]
        env.reset(seed=0)
        observation, *_ = env.step(flat)
        below.reset(seed=0)
        assert_same(below.observation_space, env.reverse_map_observation(observation), below.step(action)[0])


def test_rows_of_a_masked_reset_are_flattened() -> None:
    env = FlattenContextObservationWrapper(DictEnv(np_backend, 3, with_context=True), True)
    env.reset(seed=0)
    context, observation, _ = env.reset(mask=mask_of(env, True, False, True))
    assert context.shape == (2, 2)
    assert observation.shape == (2, 9)


@pytest.mark.parametrize(("context", "observation"), [(False, True), (True, False), (False, False)])
def test_what_is_not_to_be_flattened_stays(context: bool, observation: bool) -> None:
    below = DictEnv(np_backend, with_context=True)
    env = FlattenContextObservationWrapper(below, context, observation)
    shown = env.reset(seed=0)
    assert isinstance(shown[0], dict) is not context
    assert isinstance(shown[1], dict) is not observation
    assert env.reverse_map_context(shown[0]).keys() == below.context_space.keys()
    assert env.reverse_map_observation(shown[1]).keys() == below.observation_space.keys()


def test_flattening_a_context_that_is_not_there_does_nothing() -> None:
    env = FlattenContextObservationWrapper(CountEnv(np_backend), flatten_context=True)
    assert not env.flatten_context
    assert env.reset(seed=0)[0] is None


def test_a_dict_transformation_reaches_one_key() -> None:
    below = DictEnv(np_backend, 3)
    env = ContextObservationTransformWrapper(below, None, DictTransformation({"state/steps": RescaleTransformation()}))
    env.reset(seed=0)
    assert batch_utils.batch_size(env.observation_space) == 3
    observation, *_ = env.step(actions_of(env, 1)[0])
    assert observation in env.observation_space
    assert observation["state"]["steps"] == pytest.approx([-0.998] * 3)
