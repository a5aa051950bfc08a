from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import backend_cases
from envs import CountEnv, actions_of, mask_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import ActionWrapper, ContextObservationWrapper, Env, Wrapper
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.wrapper import ActionRescaleWrapper

np_backend = NumpyComputeBackend


def _layers() -> tuple[CountEnv, Wrapper, Wrapper]:
    env = CountEnv(np_backend, 3, with_context=True, render_mode="rgb_array")
    inner = Wrapper(env)
    return env, inner, Wrapper(inner)


def test_wrapper_takes_sixteen_type_parameters() -> None:
    assert Wrapper[(Any,) * 16] is not None


HANDED_ON = ("render_mode", "render_fps", "backend", "device", "batch_size")
REPLACEABLE = ("metadata", "action_space", "observation_space", "context_space", "rng")


@pytest.mark.parametrize("name", [*HANDED_ON, *REPLACEABLE])
def test_attributes_are_those_below(name: str) -> None:
    env, _, outer = _layers()
    assert getattr(outer, name) is getattr(env, name)


@pytest.mark.parametrize("name", ["metadata", "action_space", "observation_space", "context_space"])
def test_an_assigned_attribute_hides_the_one_below(name: str) -> None:
    env, inner, outer = _layers()
    before, own = getattr(env, name), object()
    setattr(inner, name, own)
    assert getattr(outer, name) is getattr(inner, name) is own
    assert getattr(env, name) is before


def test_a_context_space_can_be_assigned_none() -> None:
    _, inner, outer = _layers()
    inner.context_space = None
    assert outer.context_space is None


def test_the_verbs_are_handed_on() -> None:
    env, _, outer = _layers()
    context, observation, info = outer.reset(seed=1)
    again = env.reset(seed=1)
    assert np.array_equal(context, again[0])
    assert np.array_equal(observation, again[1])
    assert info["steps"].tolist() == [0, 0, 0]
    assert outer.step(actions_of(env, 1)[0])[4]["steps"].tolist() == [1, 1, 1]
    assert outer.reset(mask=mask_of(env, False, True, False))[1].shape == (1, 3)
    assert env.steps.tolist() == [1, 0, 1]
    assert np.array_equal(outer.render(), env.render())
    outer.close()
    assert env.closed == 1


def test_layers_are_walked() -> None:
    env, inner, outer = _layers()
    assert outer.unwrapped is env
    assert outer.prev_wrapper_layer is inner
    assert inner.prev_wrapper_layer is env
    assert repr(outer) == "Wrapper(Wrapper(CountEnv(backend=numpy, batch_size=3)))"


@pytest.mark.parametrize("backend", backend_cases())
def test_the_generator_is_shared(backend: ComputeBackend) -> None:
    """A JAX key has no truth value, and is another object after every draw."""
    env = CountEnv(backend)
    outer = Wrapper(Wrapper(env))
    outer.reset(seed=1)
    first = outer.sample_action()
    assert outer.rng is env.rng
    outer.reset(seed=1)
    assert np.array_equal(backend.to_host(env.sample_action()), backend.to_host(first))


# -- attributes through the layers -------------------------------------------------------------------------


def test_the_outermost_layer_that_has_an_attribute_is_asked() -> None:
    env, inner, outer = _layers()
    inner.note = "inner"  # type: ignore[attr-defined]
    env.note = "env"  # type: ignore[attr-defined]
    assert outer.get_wrapper_attr("note") == "inner"
    assert outer.get_wrapper_attr("steps") is env.steps
    assert outer.has_wrapper_attr("steps")


def test_a_missing_attribute_is_an_error_that_names_it() -> None:
    _, _, outer = _layers()
    assert not outer.has_wrapper_attr("speed")
    with pytest.raises(AttributeError, match="neither Wrapper nor a layer below it has 'speed'"):
        outer.get_wrapper_attr("speed")


def test_an_attribute_is_set_where_it_is() -> None:
    env, inner, outer = _layers()
    inner.note = "inner"  # type: ignore[attr-defined]
    outer.set_wrapper_attr("note", "changed")
    outer.set_wrapper_attr("length", 7)
    outer.set_wrapper_attr("speed", 3)
    assert inner.__dict__["note"] == "changed"
    assert (env.length, env.speed) == (7, 3)
    assert not {"note", "length", "speed"} & set(vars(outer))


@pytest.mark.parametrize(("name", "value"), [("render_mode", None), ("render_fps", 5)])
def test_what_a_wrapper_only_hands_on_is_set_below(name: str, value: Any) -> None:
    env, _, outer = _layers()
    outer.set_wrapper_attr(name, value)
    assert getattr(env, name) == value


# -- the kinds of wrapper ----------------------------------------------------------------------------------


class Negate(ActionWrapper):
    def map_action(self, action: Any) -> Any:
        return -action


class Shift(ContextObservationWrapper):
    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.contexts = 0

    def map_context(self, context: Any) -> Any:
        self.contexts += 1
        return context + 1

    def map_observation(self, observation: Any) -> Any:
        return observation + 10


def test_action_wrappers_map_actions() -> None:
    env = CountEnv(np_backend)
    wrapped = Negate(env)
    wrapped.reset(seed=0)
    wrapped.step(np.array([0.5, 0.25], np.float32))
    assert env.total.tolist() == [-0.75]
    with pytest.raises(NotImplementedError, match="Negate cannot map actions back"):
        wrapped.reverse_map_action(np.zeros(2))
    with pytest.raises(TypeError, match="map_action"):
        ActionWrapper(env)  # type: ignore[abstract]


def test_context_observation_wrappers_map_both() -> None:
    env = CountEnv(np_backend, 3, with_context=True)
    plain = env.reset(seed=0)
    wrapped = Shift(env)
    context, observation, _ = wrapped.reset(seed=0)
    assert np.array_equal(context, plain[0] + 1)
    assert np.array_equal(observation, plain[1] + 10)
    assert wrapped.step(np.zeros((3, 2), np.float32))[0][:, 0].tolist() == [11, 11, 11]
    assert wrapped.reset(mask=mask_of(env, True, False, True))[1].shape == (2, 3)


def test_contexts_are_mapped_only_where_there_are_any() -> None:
    wrapped = Shift(CountEnv(np_backend))
    assert wrapped.reset(seed=0)[0] is None
    assert wrapped.contexts == 0


def test_the_default_mappings_change_nothing() -> None:
    wrapped = ContextObservationWrapper(CountEnv(np_backend, with_context=True))
    value = object()
    maps = (
        wrapped.map_context,
        wrapped.reverse_map_context,
        wrapped.map_observation,
        wrapped.reverse_map_observation,
    )
    assert all(map_value(value) is value for map_value in maps)


def test_masked_results_are_merged_in_the_space_of_the_wrapper() -> None:
    env = CountEnv(np_backend, 3)
    wrapped = Wrapper(env)
    wrapped.observation_space = BoxSpace(np_backend, 0, 9, "int32", shape=(3, 1))
    old, mask = np.zeros((3, 1), np.int32), mask_of(env, False, True, False)
    assert wrapped.update_observation_post_reset(old, old[:1] + 5, mask).tolist() == [[0], [5], [0]]


def test_what_no_layer_can_set_is_an_error() -> None:
    env = ActionRescaleWrapper(CountEnv(np_backend))
    with pytest.raises(AttributeError, match="action_transformation"):
        env.set_wrapper_attr("action_transformation", None)
