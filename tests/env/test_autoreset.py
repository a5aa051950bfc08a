"""AutoresetWrapper: what its steps return, on every backend, for one environment and for batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from counted_gym_env import makers
from envs import CountEnv, DictEnv, actions_of, mask_of

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import AsyncVecEnv, Env, SyncVecEnv, Wrapper
from unienv_interface.space import describe_mismatch
from unienv_interface.transformations import CropTransformation
from unienv_interface.wrapper import (
    AutoresetWrapper,
    ContextObservationTransformWrapper,
    EpisodeRenderStackWrapper,
    FlattenContextObservationWrapper,
    FrameStackWrapper,
    NormalizeObservationWrapper,
    TimeLimitWrapper,
    ToBackendWrapper,
    TransformWrapper,
    autoreset_mode,
)
from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

NUMPY = NumpyComputeBackend
on_backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)
modes = pytest.mark.parametrize("mode", ["same_step", "next_step"])


def host(env: Env, data: Any) -> Any:
    """The data with arrays of the backend as lists."""
    return env.backend.map_fn_over_arrays(data, lambda array: env.backend.to_host(array).tolist())


class StrictEnv(Wrapper):
    """Refuses to step an episode that has ended, and remembers which slots were reset."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[Any] = []
        self.ended = np.zeros(env.batch_size or 1, bool)

    def reset(self, *args: Any, mask: Any = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        slots = np.ones_like(self.ended) if mask is None else self.backend.to_host(mask)
        self.resets.append(slots.tolist())
        self.ended = self.ended & ~slots
        return self.env.reset(*args, mask=mask, **kwargs)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert not self.ended.any()
        result = self.env.step(action)
        flags = result[2] if self.batch_size is None else self.backend.to_host(result[2])
        self.ended = self.ended | flags
        return result


def offset_batch(backend: ComputeBackend, mode: Any, **kwargs: Any) -> tuple[AutoresetWrapper, StrictEnv]:
    """A batch of three whose episodes have three steps, the middle one being a step behind."""
    below = StrictEnv(CountEnv(backend, 3, length=3, **kwargs))
    env = AutoresetWrapper(below, mode)
    env.reset(seed=0)
    env.step(actions_of(env, 1)[0])
    env.reset(mask=mask_of(env, False, True, False))
    below.resets.clear()
    return env, below


@on_backends
def test_same_step_of_one(backend: ComputeBackend) -> None:
    env = AutoresetWrapper(StrictEnv(CountEnv(backend, length=2, with_context=True)), "same_step")
    first_context, *_ = env.reset(seed=0)
    first, second, third = actions_of(env, 3)
    *_, info = env.step(first)
    assert info == {"steps": 1}
    observation, reward, terminated, truncated, info = env.step(second)
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(host(env, info["final_obs"])[2])
    assert host(env, observation)[0] == 0
    assert host(env, info["final_obs"])[0] == 2
    assert (info["steps"], info["final_info"]) == (0, {"steps": 2})
    assert host(env, info["context"]) != host(env, first_context)
    assert not [key for key in info if key.startswith("_")]
    assert host(env, env.step(third)[0])[0] == 1


@on_backends
def test_same_step_of_a_batch(backend: ComputeBackend) -> None:
    env, below = offset_batch(backend, "same_step", with_context=True)
    actions = actions_of(env, 3, seed=1)
    *_, info = env.step(actions[0])
    assert set(info) == {"steps"}
    observation, _, terminated, _, info = env.step(actions[1])
    assert host(env, observation[:, 0]) == [0, 2, 0]
    assert host(env, terminated) == [True, False, True]
    final = host(env, info["final_obs"])
    assert [row[0] for row in final] == [3, 2, 3]
    assert final[1] == host(env, observation)[1]
    assert host(env, info["steps"]) == [0, 2, 0]
    assert host(env, info["final_info"]) == {"steps": [3, 2, 3]}
    for key in ("_final_obs", "_final_info", "_context"):
        assert host(env, info[key]) == [True, False, True]
    assert host(env, info["context"]) == pytest.approx(env.unwrapped.goal)
    assert below.resets == [[True, False, True]]
    assert host(env, env.step(actions[2])[0][:, 0]) == [1, 0, 1]


@on_backends
def test_next_step_of_one(backend: ComputeBackend) -> None:
    below = StrictEnv(CountEnv(backend, length=2, with_context=True))
    env = AutoresetWrapper(below, "next_step")
    env.reset(seed=0)
    actions = actions_of(env, 4)
    env.step(actions[0])
    observation, _, terminated, _, info = env.step(actions[1])
    assert (host(env, observation)[0], terminated, info) == (2, True, {"steps": 2})
    observation, reward, terminated, truncated, info = env.step(actions[2])
    assert host(env, observation)[::2] == [0, 0]
    assert (reward, terminated, truncated, info["steps"]) == (0.0, False, False, 0)
    assert type(reward) is float
    assert host(env, info["context"]) == pytest.approx(below.unwrapped.goal[0])
    assert host(env, env.step(actions[3])[0])[0] == 1
    assert len(below.resets) == 2


@on_backends
def test_next_step_of_a_batch(backend: ComputeBackend) -> None:
    env, _ = offset_batch(backend, "next_step", with_context=True)
    actions = actions_of(env, 5, seed=1)
    seen = [env.step(action) for action in actions]
    assert [host(env, step[0][:, 0]) for step in seen] == [[2, 1, 2], [3, 2, 3], [0, 3, 0], [1, 0, 1], [2, 1, 2]]
    assert [host(env, step[2]) for step in seen[:4]] == [
        [False] * 3,
        [True, False, True],
        [False, True, False],
        [False] * 3,
    ]
    observation, reward, *_, info = seen[2]
    assert host(env, reward)[0] == host(env, reward)[2] == 0.0
    assert host(env, reward)[1] == pytest.approx(host(env, observation)[1][2])
    assert host(env, info["steps"]) == [0, 3, 0]
    assert host(env, info["_context"]) == [True, False, True]
    for value, like in zip(seen[2][1:4], seen[0][1:4], strict=True):
        assert (value.dtype, value.shape) == (like.dtype, like.shape)


@modes
def test_all_slots_may_end_together(mode: Any) -> None:
    below = StrictEnv(CountEnv(NUMPY, 2, length=1))
    env = AutoresetWrapper(below, mode)
    env.reset(seed=0)
    for index, action in enumerate(actions_of(env, 4)):
        observation, reward, terminated, *_ = env.step(action)
        is_restart = mode == "next_step" and index % 2 == 1
        assert terminated.tolist() == [not is_restart] * 2
        assert observation[:, 0].tolist() == [0 if mode == "same_step" or is_restart else 1] * 2
        assert (reward == 0).all() == is_restart


def test_the_reset_of_an_ended_slot_by_the_caller_is_enough() -> None:
    env, below = offset_batch(NUMPY, "next_step")
    for action in actions_of(env, 2):
        env.step(action)
    env.reset(mask=mask_of(env, True, False, True))
    below.resets.clear()
    assert env.step(actions_of(env, 1)[0])[0][:, 0].tolist() == [1, 3, 1]
    assert below.resets == []


def test_disabled_leaves_restarts_to_the_caller() -> None:
    env = AutoresetWrapper(CountEnv(NUMPY, 2, length=1), "disabled")
    env.reset(seed=0)
    for steps, action in enumerate(actions_of(env, 2), 1):
        observation, *_, info = env.step(action)
        assert observation[:, 0].tolist() == [steps, steps]
        assert set(info) == {"steps"}


@modes
@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)  # JAX has much to compile, and nothing of its own here
def test_observations_of_any_kind_restart(backend: ComputeBackend, mode: Any) -> None:
    env = AutoresetWrapper(DictEnv(backend, 3, length=2, with_context=True), mode)
    env.reset(seed=0)
    env.reset(mask=mask_of(env, True, False, False))
    for index, action in enumerate(actions_of(env, 5)):
        if index == 1:
            env.reset(mask=mask_of(env, True, False, False))
        observation, *_, info = env.step(action)
        assert describe_mismatch(env.observation_space, observation) is None
        if "final_obs" in info:
            assert describe_mismatch(env.observation_space, info["final_obs"]) is None


@pytest.mark.parametrize(
    ("kind", "key_at_end"), [(SyncVecEnv, True), (SyncVecEnv, False), (AsyncVecEnv, True)], ids=str
)
def test_vector_environments_restart_without_a_second_reset(kind: Callable[..., Env], key_at_end: bool) -> None:
    fns = [lambda make=make: FromGymnasiumEnv(make()) for make in makers(3, key_at_end=key_at_end)]
    env = AutoresetWrapper(kind(fns, seed=0), "next_step")
    env.reset()
    for action in actions_of(env, 20):
        observation, reward, *_, info = env.step(action)
        assert ((reward == 0) == (observation[:, 2] == 0)).all()
        assert "env_index" not in info
        assert info["t"].tolist() == observation[:, 2].tolist()
    # the wrapper resets each episode once, so that their numbers are without a gap
    assert env.unwrapped.get_attr("episode") == observation[:, 1].tolist()
    env.close()


@pytest.mark.parametrize("kind", [SyncVecEnv, AsyncVecEnv])
def test_environments_of_a_batch_restart_where_they_step(kind: Callable[..., Env]) -> None:
    fns = [lambda make=make: AutoresetWrapper(FromGymnasiumEnv(make()), "next_step") for make in makers(3)]
    env = kind(fns, seed=0)
    env.reset()
    for action in actions_of(env, 20):
        observation, reward, *_ = env.step(action)
        assert ((reward == 0) == (observation[:, 2] == 0)).all()
    assert observation[:, 1].min() > 1
    assert autoreset_mode(Wrapper(env)) == "next_step"
    with pytest.raises(ValueError, match="restarts by itself already, in the mode 'next_step'"):
        AutoresetWrapper(env, "same_step")
    with pytest.raises(ValueError, match=r"all lanes advance together: .* or record into one buffer per slot"):
        ReplayBufferCollectionWrapper(env, ReplayBuffer.create(transition_space(env), lanes=3))
    env.close()


def test_what_was_returned_stays() -> None:
    env, _ = offset_batch(NUMPY, "same_step", with_context=True)
    actions = actions_of(env, 4)
    env.step(actions[0])
    first, *_, info = env.step(actions[1])
    kept = [array.copy() for array in (first, info["final_obs"], info["context"], info["_final_obs"])]
    *_, later = env.step(actions[2])
    assert "context" in later
    for before, array in zip(kept, (first, info["final_obs"], info["context"], info["_final_obs"]), strict=True):
        np.testing.assert_array_equal(before, array)
    info["context"][:] = 7.0
    later["context"][:] = 7.0
    env.step(actions[3])
    *_, info = env.step(actions[3])
    assert not (info["context"] == 7.0).any()


# -- order -------------------------------------------------------------------------------------------------


def test_the_mode_is_seen_through_layers() -> None:
    env = CountEnv(NUMPY, 2)
    assert autoreset_mode(env) == "disabled"
    assert autoreset_mode(AutoresetWrapper(env, "disabled")) == "disabled"
    assert autoreset_mode(Wrapper(AutoresetWrapper(env, "next_step"))) == "next_step"


def test_errors() -> None:
    with pytest.raises(ValueError, match="mode is 'never', the modes are 'same_step', 'next_step', 'disabled'"):
        AutoresetWrapper(CountEnv(NUMPY), "never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="restarts by itself already, in the mode 'next_step'"):
        AutoresetWrapper(AutoresetWrapper(CountEnv(NUMPY), "next_step"), "same_step")


WRONG_ORDERS: dict[str, tuple[Callable[[Env], Env], set[str]]] = {
    "TimeLimitWrapper": (lambda env: TimeLimitWrapper(env, 3), {"same_step", "next_step"}),
    "FrameStackWrapper": (lambda env: FrameStackWrapper(env, 1), {"same_step", "next_step"}),
    "EpisodeRenderStackWrapper": (EpisodeRenderStackWrapper, {"same_step", "next_step"}),
    "FlattenContextObservationWrapper": (FlattenContextObservationWrapper, {"same_step"}),
    "TransformWrapper": (lambda env: TransformWrapper(env, None, CropTransformation(-1.0, 1.0)), {"same_step"}),
    "ContextObservationTransformWrapper": (
        lambda env: ContextObservationTransformWrapper(env, None, CropTransformation(-1.0, 1.0)),
        {"same_step"},
    ),
    "NormalizeObservationWrapper": (NormalizeObservationWrapper, {"same_step"}),
}


def test_wrappers_that_leave_observations_alone_may_lie_over_it() -> None:
    env = AutoresetWrapper(CountEnv(NUMPY, 2))
    assert TransformWrapper(env, None, None, CropTransformation(-1.0, 1.0), env.action_space).batch_size == 2
    assert FlattenContextObservationWrapper(env, flatten_observation=False).batch_size == 2


@modes
@pytest.mark.parametrize("name", WRONG_ORDERS)
def test_wrappers_that_would_miss_a_restart_refuse(name: str, mode: Any) -> None:
    wrap, refused = WRONG_ORDERS[name]
    wrap(AutoresetWrapper(CountEnv(NUMPY, 2), "disabled"))
    env = AutoresetWrapper(CountEnv(NUMPY, 2), mode)
    if mode not in refused:
        wrap(env)
        return
    with pytest.raises(ValueError, match=rf"swap them, AutoresetWrapper\({name}\(env\), mode='{mode}'\)"):
        wrap(env)


def test_another_backend_over_it_moves_what_was_last() -> None:
    if len(BACKENDS) < 2:
        pytest.skip("one backend only")
    env = ToBackendWrapper(AutoresetWrapper(CountEnv(BACKENDS[1], 2, length=1)), NUMPY)
    env.reset(seed=0)
    *_, info = env.step(actions_of(env, 1)[0])
    assert isinstance(info["final_obs"], np.ndarray)
    assert isinstance(info["_final_info"], np.ndarray)


# -- recording ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "batch_size"), [("same_step", None), ("next_step", None), ("same_step", 3)])
def test_the_recorder_below_it_records_each_transition(mode: Any, batch_size: int | None) -> None:
    below = CountEnv(NUMPY, batch_size, length=3)
    lanes = {} if batch_size is None else {"lanes": batch_size}
    buffer = ReplayBuffer.create(transition_space(below), capacity=60, **lanes, maintain_segment_metadata=True)
    env = AutoresetWrapper(ReplayBufferCollectionWrapper(below, buffer), mode)
    env.reset(seed=0)
    seen = 0
    for action in actions_of(env, 12):
        _, reward, *_ = env.step(action)
        seen += np.count_nonzero(reward)
    rows = buffer.get_at(slice(0, len(buffer)))
    np.testing.assert_array_equal(rows["next_obs"][:, 0], rows["obs"][:, 0] + 1)
    np.testing.assert_array_equal(rows["next_obs"][:, 1], rows["obs"][:, 1])
    np.testing.assert_allclose(
        rows["next_obs"][:, 2], rows["obs"][:, 2] + rows["action"].sum(axis=-1), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(rows["terminated"], rows["next_obs"][:, 0] == 3)
    assert len(buffer) == seen


@modes
def test_statistics_and_time_limits_below_it(mode: Any) -> None:
    env = AutoresetWrapper(TimeLimitWrapper(CountEnv(NUMPY, 2), 2), mode)
    env.reset(seed=0)
    truncations = [env.step(action)[3].tolist() for action in actions_of(env, 6)]
    period = [[False] * 2, [True] * 2] + ([[False] * 2] if mode == "next_step" else [])
    assert truncations == (period * 3)[:6]
