"""Columns of the learner's, recorded with the step that they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recording_envs import TallyEnv, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace
from unienv_interface.wrapper import AutoresetWrapper, FrameStackWrapper

NUMPY = NumpyComputeBackend
SLOTS = 3
EXTRAS = {
    "logp": BoxSpace(NUMPY, -np.inf, 0, "float32", shape=()),
    "latent": BoxSpace(NUMPY, -np.inf, np.inf, "float64", shape=(2,)),
}


def recorder_for(mode: str, env: Any, extras: Any = EXTRAS) -> tuple[ReplayBufferCollectionWrapper, list[ReplayBuffer]]:
    space, count = transition_space(env, extras=extras), SLOTS if mode == "per_env" else 1
    options: Any = {"lanes": SLOTS} if mode == "interleaved" else {"keep_episodes": mode != "shared"}
    buffers = [ReplayBuffer.create(space, **options) for _ in range(count)]
    replay_mode: Any = "shared" if mode == "one" else mode
    recorder = ReplayBufferCollectionWrapper(env, buffers, replay_mode, on_ended="ignore")
    recorder.reset(seed=0)
    return recorder, buffers


def env_for(mode: str) -> Any:
    return TallyEnv() if mode == "one" else vector("sync", SLOTS)


def values(mode: str, step: int) -> dict[str, Any]:
    """Those of one step: numbers of Python for one environment, an entry for each slot of a batch."""
    if mode == "one":
        return {"logp": -float(step), "latent": [step, 0.5]}
    slots = np.arange(SLOTS)
    return {"logp": -10.0 * slots - step, "latent": np.stack([slots + step, slots / 2], axis=1)}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("mode", ["one", "shared", "per_env", "interleaved"])
def test_extras_lie_beside_the_transition(mode: str, is_async: bool) -> None:
    if mode == "one" and is_async:
        return
    recorder, buffers = recorder_for(mode, env_for(mode))
    for step in range(4):
        given = values(mode, step)
        if is_async:
            recorder.step_async(recorder.sample_action(), extras=given)
            given["latent"] *= 0  # they were taken over
            recorder.step_wait()
        else:
            recorder.step(recorder.sample_action(), extras=given)
    wanted = [values(mode, step) for step in range(4)]
    if mode == "per_env":
        for slot, buffer in enumerate(buffers):
            found = buffer.get_at(...)["extras"]
            assert found["logp"].tolist() == [row["logp"][slot] for row in wanted]
            assert found["latent"].tolist() == [row["latent"][slot].tolist() for row in wanted]
        return
    found = buffers[0].get_at(...)["extras"]
    assert found["logp"].dtype == np.float32
    np.testing.assert_array_equal(found["logp"], np.ravel([row["logp"] for row in wanted]))
    np.testing.assert_array_equal(found["latent"], np.reshape([row["latent"] for row in wanted], (-1, 2)))


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_extras_pass_through_wrappers_around_the_recorder(mode: Any) -> None:
    recorder, [buffer] = recorder_for("interleaved", vector("sync", SLOTS))
    env = AutoresetWrapper(FrameStackWrapper(recorder, obs_stack_size=1), mode)
    env.reset(seed=0)
    for step in range(8):
        env.step(env.sample_action(), extras=values("interleaved", step))
    rows = buffer.get_at(...)
    steps = -rows["extras"]["logp"].reshape(-1, SLOTS)
    np.testing.assert_array_equal(steps - steps[:, :1], np.tile(10.0 * np.arange(SLOTS), (len(steps), 1)))
    assert rows["terminated"].any() or rows["truncated"].any()
    with pytest.raises(TypeError, match="unexpected keyword argument 'extras'"):
        AutoresetWrapper(vector("sync", SLOTS), mode).step(env.sample_action(), extras={})


def test_extras_that_do_not_fit_are_refused_before_the_step() -> None:
    env = TallyEnv()
    recorder, (buffer,) = recorder_for("one", env)
    action = recorder.sample_action()
    with pytest.raises(KeyError, match=r"extras/latent: the buffer has this column, give its value at each step"):
        recorder.step(action, extras={"logp": 0.0})
    with pytest.raises(KeyError, match=r"extras/latent: the buffer has this column"):
        recorder.step(action)
    with pytest.raises(KeyError, match=r"extras/value: the buffer has no such column, it has \['latent', 'logp'\]"):
        recorder.step(action, extras={**values("one", 0), "value": 1.0})
    recorder.step(action, extras=values("one", 0))  # none of them has stepped the environment
    assert len(buffer) == 1
    plain = ReplayBufferCollectionWrapper(TallyEnv(), ReplayBuffer.create(transition_space(env)))
    plain.reset(seed=0)
    with pytest.raises(KeyError, match=r"transition_space\(env, extras=\{'logp': space\}\)"):
        plain.step(action, extras={"logp": 0.0})
    with pytest.raises(TypeError, match=r"extras is \['logp'\], wanted the space of each extra by its name"):
        transition_space(env, extras=["logp"])  # type: ignore[arg-type]


def test_extras_that_come_and_go() -> None:
    space = {"value": EXTRAS["logp"], "_value": BinarySpace(NUMPY, ())}
    recorder, (buffer,) = recorder_for("one", TallyEnv(), space)
    for given in ({"value": -2.0}, None, {}):
        recorder.step(recorder.sample_action(), extras=given)
    found = buffer.get_at(...)["extras"]
    assert (found["value"].tolist(), found["_value"].tolist()) == ([-2, 0, 0], [True, False, False])


def test_steps_of_some_slots_take_none() -> None:
    recorder, _ = recorder_for("shared", env_for("shared"))
    action = recorder.sample_action()
    with pytest.raises(ValueError, match="extras: they are recorded with steps of all slots only"):
        recorder.step_async(action[:1], index=[0])


def test_a_builder_of_the_callers_gets_them() -> None:
    env, seen = TallyEnv(), []
    buffer = ReplayBuffer.create(BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=()))

    def build(*, reward: Any, extras: Any = None, **others: Any) -> Any:
        seen.append(extras)
        return np.float32(reward)

    recorder = ReplayBufferCollectionWrapper(env, buffer, transition_builder=build)
    recorder.reset(seed=0)
    recorder.step(recorder.sample_action(), extras={"anything": 1})
    recorder.step(recorder.sample_action())
    assert seen == [{"anything": 1}, None]
