from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import as_host, assert_same, backend_cases
from envs import CountFuncEnv, CountState, actions_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import FuncEnv, FuncEnvBasedEnv, FuncEnvWrapper
from unienv_interface.func_wrapper import FuncFrameStackWrapper, FuncFrameStackWrapperState, FuncTransformWrapper
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.testing import check_env
from unienv_interface.transformations import CropTransformation, RescaleTransformation
from unienv_interface.wrapper import FrameStackWrapper, TransformWrapper

np_backend = NumpyComputeBackend


# -- FuncEnv and FuncEnvBasedEnv ---------------------------------------------------------------------------


def test_funcenv_takes_ten_type_parameters_and_three_functions() -> None:
    assert FuncEnv[(Any,) * 10] is not None
    with pytest.raises(TypeError, match="initial"):
        FuncEnv()  # type: ignore[abstract]


def test_an_environment_keeps_the_state() -> None:
    func_env = CountFuncEnv(np_backend)
    env = FuncEnvBasedEnv(func_env)
    assert (env.backend, env.batch_size, env.context_space) == (np_backend, None, None)
    assert env.observation_space is func_env.observation_space
    _, observation, _ = env.reset(seed=4)
    assert isinstance(env.state, CountState)
    state, _, wanted, _ = func_env.initial(seed=4)
    assert np.array_equal(observation, wanted)
    for action in actions_of(env, 2):
        state, *expected, _ = func_env.step(state, action)
        *found, _ = env.step(action)
        assert_same(None, tuple(map(np.asarray, found)), tuple(map(np.asarray, expected)))


def test_a_second_reset_goes_on_from_the_state() -> None:
    env = FuncEnvBasedEnv(CountFuncEnv(np_backend))
    first, second = env.reset(seed=4)[1], env.reset()[1]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=4)[1], first)


def test_there_is_no_step_and_no_masked_reset_before_a_reset() -> None:
    env = FuncEnvBasedEnv(CountFuncEnv(np_backend, 2))
    with pytest.raises(RuntimeError, match="step before reset"):
        env.step(np.zeros((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="reset with a mask before any reset"):
        env.reset(mask=np.array([True, False]))


def test_rendering_starts_at_the_first_reset() -> None:
    env = FuncEnvBasedEnv(CountFuncEnv(np_backend), render_mode="rgb_array", render_kwargs={"size": 3})
    assert (env.render_mode, env.render_fps, env.render()) == ("rgb_array", None, None)
    env.reset(seed=0)
    assert env.render_fps == 15
    env.step(np.zeros(2, np.float32))
    assert env.render().max() == 1
    assert env.render_state == {"frames": 1, "size": 3}
    assert FuncEnvBasedEnv(CountFuncEnv(np_backend)).render() is None


def test_closing_hands_the_state_back_once() -> None:
    func_env = CountFuncEnv(np_backend)
    env = FuncEnvBasedEnv(func_env, render_mode="rgb_array")
    env.close()
    assert func_env.closed_states == []
    env.reset(seed=0)
    env.close()
    env.close()
    assert len(func_env.closed_states) == 1
    assert env.render_state is None
    with pytest.raises(RuntimeError, match="step before reset"):
        env.step(np.zeros(2, np.float32))


def test_a_functional_environment_that_does_not_render_says_so() -> None:
    class Blind(CountFuncEnv):
        render_init = FuncEnv.render_init

    with pytest.raises(NotImplementedError, match="Blind does not render"):
        FuncEnvBasedEnv(Blind(np_backend), render_mode="rgb_array").reset(seed=0)


def test_attributes_are_found_in_the_functional_environment() -> None:
    func_env = CountFuncEnv(np_backend)
    env = FuncEnvBasedEnv(FuncEnvWrapper(func_env))
    assert env.unwrapped is env
    assert env.has_wrapper_attr("closed_states")
    assert env.get_wrapper_attr("closed_states") is func_env.closed_states
    env.set_wrapper_attr("shape", (7,))
    env.set_wrapper_attr("metadata", {"render_modes": []})
    env.set_wrapper_attr("batch_size", 5)
    assert (func_env.shape, env.metadata, func_env.batch_size) == ((7,), {"render_modes": []}, 5)
    with pytest.raises(AttributeError):
        env.get_wrapper_attr("speed")
    with pytest.raises(AttributeError):
        env.set_wrapper_attr("render_mode", "ansi")


# -- FuncEnvWrapper ----------------------------------------------------------------------------------------


def test_a_wrapper_hands_everything_on() -> None:
    func_env = CountFuncEnv(np_backend, 2, with_context=True)
    wrapped = FuncEnvWrapper(FuncEnvWrapper(func_env))
    for name in ("metadata", "backend", "device", "batch_size", "action_space", "observation_space", "context_space"):
        assert getattr(wrapped, name) is getattr(func_env, name)
    assert wrapped.unwrapped is func_env
    assert wrapped.prev_wrapper_layer.prev_wrapper_layer is func_env
    wrapped.observation_space = wrapped.func_env.action_space
    assert wrapped.observation_space is func_env.action_space
    assert func_env.observation_space is not func_env.action_space
    state, _, _, _ = wrapped.initial(seed=1)
    state, context, observation, _ = wrapped.reset(state, mask=np.array([False, True]))
    assert (context.shape, observation.shape) == ((2, 1), (2, 3))
    state, render_state, info = wrapped.render_init(state, render_mode="rgb_array")
    frame, state, render_state = wrapped.render_image(state, render_state)
    wrapped.close(wrapped.render_close(state, render_state))
    assert info.render_fps == 15
    assert frame.shape == (2, 2, 3)
    assert len(func_env.closed_states) == 1


def test_masked_results_are_merged() -> None:
    func_env = CountFuncEnv(np_backend, 2, with_context=True)
    mask = np.array([False, True])
    old = np.zeros((2, 3), np.float32)
    assert func_env.update_observation_post_reset(old, old + 1, mask).tolist() == [[0] * 3, [1] * 3]
    assert func_env.update_observation_post_reset(old, old[:1] + 1, mask).tolist() == [[0] * 3, [1] * 3]
    assert func_env.update_context_post_reset(old[:, :1], old[:1, :1] + 1, mask).tolist() == [[0], [1]]
    assert CountFuncEnv(np_backend, 2).update_context_post_reset(None, None, mask) is None


# -- the wrappers ------------------------------------------------------------------------------------------


def _transformed(func_env: FuncEnv) -> FuncEnv:
    context = None if func_env.context_space is None else RescaleTransformation(-1.0, 1.0)
    outer = BoxSpace(func_env.backend, -4.0, 4.0, "float32", shape=func_env.action_space.shape)
    return FuncTransformWrapper(
        func_env, context, CropTransformation(0.0, 0.5), RescaleTransformation(-1.0, 1.0), outer
    )


WRAPPERS = {
    "plain": FuncEnvWrapper,
    "transform": _transformed,
    "no_transform": FuncTransformWrapper,
    "frame_stack": lambda func_env: FuncFrameStackWrapper(func_env, 2),
    "frame_stack_actions": lambda func_env: FuncFrameStackWrapper(func_env, 1, 2),
    "stack": lambda func_env: FuncFrameStackWrapper(_transformed(func_env), 1, 1),
}


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
@pytest.mark.parametrize("backend", [b for b in backend_cases() if b.id != "jax"])
def test_wrapped_functional_environments_keep_the_contract(
    backend: ComputeBackend, wrap: Any, batch_size: int | None
) -> None:
    check_env(FuncEnvBasedEnv(wrap(CountFuncEnv(backend, batch_size, with_context=True)), render_mode="rgb_array"))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_functional_wrappers_show_what_the_others_show(batch_size: int | None) -> None:
    outer = BoxSpace(np_backend, -4.0, 4.0, "float32", shape=(2,) if batch_size is None else (batch_size, 2))

    def env() -> FuncEnvBasedEnv:
        return FuncEnvBasedEnv(CountFuncEnv(np_backend, batch_size, with_context=True))

    plain = FrameStackWrapper(
        TransformWrapper(
            env(),
            RescaleTransformation(-1.0, 1.0),
            CropTransformation(0.0, 0.5),
            RescaleTransformation(-1.0, 1.0),
            outer,
        ),
        1,
        2,
    )
    functional = FuncEnvBasedEnv(
        FuncFrameStackWrapper(_transformed(CountFuncEnv(np_backend, batch_size, with_context=True)), 1, 2)
    )
    assert plain.observation_space == functional.observation_space
    results = [(each.reset(seed=0)) for each in (plain, functional)]
    for count, action in enumerate(actions_of(plain, 4)):
        results += [each.step(action) for each in (plain, functional)]
        if batch_size is not None and count == 1:
            results += [each.reset(mask=np.array([True, False, True])) for each in (plain, functional)]
    for mine, theirs in zip(results[::2], results[1::2], strict=True):
        assert_same(None, as_host(tuple(map(_array, mine[:-1]))), as_host(tuple(map(_array, theirs[:-1]))))


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def test_the_state_of_a_stack_is_not_changed() -> None:
    wrapped = FuncFrameStackWrapper(CountFuncEnv(np_backend), 1, 1)
    first, _, observation, _ = wrapped.initial(seed=0)
    actions = actions_of(FuncEnvBasedEnv(wrapped), 2)
    results = [wrapped.step(first, action) for action in (*actions, actions[0])]
    assert_same(None, results[0][1], results[2][1])
    assert isinstance(first, FuncFrameStackWrapperState)
    assert_same(wrapped.observation_space, wrapped.map_observation(first, observation), observation)
    assert np.array_equal(wrapped.reverse_map_observation(results[0][1]), [1.0, *observation["observation"][0, 1:2],
                                                                          actions[0].sum()])  # fmt: skip


def test_closing_and_rendering_a_stack_get_the_state_below() -> None:
    func_env = CountFuncEnv(np_backend)
    wrapped = FuncFrameStackWrapper(func_env, 1)
    state, *_ = wrapped.initial(seed=0)
    state, render_state, _ = wrapped.render_init(state, render_mode="rgb_array")
    _, state, render_state = wrapped.render_image(state, render_state)
    state = wrapped.render_close(state, render_state)
    wrapped.close(state)
    assert isinstance(state, FuncFrameStackWrapperState)
    assert func_env.closed_states == [state.env_state]


def test_action_stacking_needs_no_dict_and_checks_its_default() -> None:
    wrapped = FuncFrameStackWrapper(CountFuncEnv(np_backend), 0, 2)
    assert wrapped.observation_space["past_actions"].shape == (2, 2)
    with pytest.raises(ValueError, match="action_default_value: shape"):
        FuncFrameStackWrapper(CountFuncEnv(np_backend), 0, 2, np.zeros(3, np.float32))


def test_jax_compiles_a_wrapped_step() -> None:
    jax = pytest.importorskip("jax")
    backend = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend
    wrapped = FuncFrameStackWrapper(_transformed(CountFuncEnv(backend, 3)), 1, 1)
    state, _, observation, _ = wrapped.initial(seed=0)
    step = jax.jit(wrapped.step)
    action = backend.from_numpy(np.full((3, 2), 4.0, np.float32))
    for _ in range(3):
        state, observation, reward, *_ = step(state, action)
    assert backend.to_host(reward).tolist() == [6.0, 6.0, 6.0]
    assert observation in wrapped.observation_space
    assert backend.to_host(observation["past_actions"]).tolist() == [[[4.0, 4.0]]] * 3


# -- masks of changing values ------------------------------------------------------------------------------


@pytest.fixture
def compilations() -> Any:
    """A list that gets an entry whenever JAX compiles."""
    jax = pytest.importorskip("jax")
    seen: list[str] = []

    def listen(event: str, duration: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    if hasattr(jax.monitoring, "unregister_event_duration_listener"):
        jax.monitoring.unregister_event_duration_listener(listen)
    else:  # JAX before 0.7 only forgets all
        jax.monitoring.clear_event_listeners()


def test_jax_scans_over_steps_and_resets() -> None:
    """Episodes of two steps that begin anew inside a scan show what the stateful environment shows."""
    jax = pytest.importorskip("jax")
    backend = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend
    func_env = FuncFrameStackWrapper(_transformed(CountFuncEnv(backend, 3, with_context=True)), 1, 1)
    action = backend.from_numpy(np.full((3, 2), 0.5, np.float32))

    def step(state: Any, mask: Any) -> Any:
        state, *_ = func_env.step(state, action)
        reset_state, context, observation, _ = func_env.reset(state, mask=mask)
        # the seed and the number of resets are static in this state
        return reset_state.replace(env_state=reset_state.env_state.replace(resets=0)), (context, observation)

    masks = np.random.default_rng(0).random((6, 3)) < 0.4
    state, *_ = func_env.initial(seed=0)
    _, scanned = jax.jit(lambda state, masks: jax.lax.scan(step, state, masks))(state, backend.from_numpy(masks))
    for index, mask in enumerate(masks):
        state, shown = step(state, mask)
        found = jax.tree.map(lambda array, index=index: array[index], scanned)
        assert_same(None, as_host(found), as_host(shown))


def test_update_post_reset_may_be_traced() -> None:
    jax = pytest.importorskip("jax")
    backend = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend
    func_env = CountFuncEnv(backend, 3)
    old = backend.zeros((3, 3), dtype=func_env.dtype)
    mask = backend.from_numpy(np.array([True, False, True]))
    merged = jax.jit(func_env.update_observation_post_reset)(old, old + 1, mask)
    assert backend.to_host(merged)[:, 0].tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"the mask has dtype bool and shape \(2,\)"):
        jax.jit(func_env.update_observation_post_reset)(old, old + 1, mask[:2])


def test_jax_compiles_a_masked_reset_once(compilations: list[str]) -> None:
    backend = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend
    env = FuncEnvBasedEnv(CountFuncEnv(backend, 4, with_context=True))
    context, observation, _ = env.reset(seed=0)
    masks = [np.array([slot < count for slot in range(4)]) for count in (3, 2, 1, 0, 4)]
    for number, mask in enumerate(masks):
        if number == 1:
            compilations.clear()
        new_context, new_observation, _ = env.reset(mask=mask)
        assert len(new_observation) == mask.sum()
        merged = env.update_observation_post_reset(observation, new_observation, mask)
        merged_context = env.update_context_post_reset(context, new_context, mask)
        assert np.array_equal(np.asarray(merged)[mask], np.asarray(new_observation))
        assert np.array_equal(np.asarray(merged_context)[~mask], np.asarray(context)[~mask])
    assert compilations == []
