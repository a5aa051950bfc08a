"""Stacks of frames in transitions: against stacks made of lists, as an agent sees them at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from recording_envs import vector
from transitions import Step, recorded, recorded_lanes

from unienv_data import (
    NStepBatch,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    StackedObservationBatch,
    StepSampler,
    transition_space,
)
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.wrapper import AutoresetWrapper, FrameStackWrapper

NUMPY = NumpyComputeBackend
EPISODES = [(5, "truncated"), (1, "terminated"), (9, "cut"), (2, "terminated")]


def stacks_of(held: list[Step], place: int, steps: int, frames: int) -> tuple[list[int], list[int]]:
    """The stack before a step, and the one after so many steps of its episode."""
    same = [step.obs for step in held if step.episode == held[place].episode]
    seen, at = [*same, same[-1] + 1], same.index(held[place].obs)
    padded = [seen[0]] * (frames - 1) + seen
    last = min(at + steps, len(same))
    return padded[at : at + frames], padded[last : last + frames]


# JAX, which compiles for every new shape, has one of them.
CASES = [(kind, backend) for backend in BACKENDS[:2] for kind in ("growing", "ring", "lanes")]


@pytest.mark.parametrize(("kind", "backend"), [*CASES, *(("ring", backend) for backend in BACKENDS[2:])])
def test_stacks_are_those_an_agent_sees(kind: str, backend: Any) -> None:
    if kind == "lanes":
        buffer, held = recorded_lanes(backend, 3, 13, 24)
    else:
        buffer, held = recorded(backend, EPISODES, 4, 17 if kind == "ring" else None)
    for frames in (1, 4):
        view = StackedObservationBatch(buffer, frames, obs="obs/number", next_obs="next_obs/number")
        for steps, batch in ((1, view), (3, NStepBatch(view, 3, 0.9))):
            data = batch.get_at(...)
            assert data in batch._batched_space(len(held))
            found = [backend.to_numpy(data[key]["number"]).tolist() for key in ("obs", "next_obs")]
            pairs = [stacks_of(held, place, steps, frames) for place in range(len(held))]
            assert found == [[before for before, _ in pairs], [after for _, after in pairs]]
        plain, several = buffer.get_at(...), NStepBatch(buffer, 3, 0.9).get_at(...)
        assert backend.to_numpy(view.get_at(...)["action"] == plain["action"]).all()
        assert backend.to_numpy(data["reward"] == several["reward"]).all()
        assert backend.to_numpy(data["discount"] == several["discount"]).all()
    single, order = view.get_at(2), [2, -1]
    assert single in view.single_space
    column = view.get_column("next_obs/number").get_at(order)
    assert backend.to_numpy(view.select(["next_obs"]).get_at(order)["next_obs"]["number"] == column).all()
    assert backend.to_numpy(view.get_at(order)["next_obs"]["number"] == column).all()


@pytest.mark.parametrize("next_obs", [True, "shared"])
def test_a_recording_of_frames_has_the_stacks_that_were_acted_on(next_obs: Any) -> None:
    envs = vector("sync", 3)
    buffer = ReplayBuffer.create(transition_space(envs, next_obs=next_obs), capacity=90, lanes=3)
    env = AutoresetWrapper(FrameStackWrapper(ReplayBufferCollectionWrapper(envs, buffer), obs_stack_size=3))
    stack, before, after = env.reset(seed=0)[1], [], []
    for _ in range(20):
        before.append(stack)
        stack, *_, info = env.step(env.sample_action())
        after.append(info.get("final_obs", stack))
    view = StackedObservationBatch(buffer, 4)
    rows = view.get_at(...)
    np.testing.assert_array_equal(rows["obs"], np.concatenate(before))
    np.testing.assert_array_equal(rows["next_obs"], np.concatenate(after))
    assert rows["terminated"].any() or rows["truncated"].any()
    sampler = StepSampler(NStepBatch(view, 3, 0.9), 8, seed=0, sampler=PrioritizedSampler(seed=0))
    batch, metadata = sampler.sample_with_metadata()
    np.testing.assert_array_equal(batch["obs"], rows["obs"][metadata["index"]])
    assert set(metadata) == {"index", "number", "weight"}


def test_what_it_refuses() -> None:
    buffer, _ = recorded(NUMPY, EPISODES, 0, None)
    with pytest.raises(ValueError, match="frames is 0, it must be at least 1"):
        StackedObservationBatch(buffer, 0, obs="obs/number", next_obs="next_obs/number")
    with pytest.raises(ValueError, match="wanted two columns of the same array space"):
        StackedObservationBatch(buffer, 2)
    with pytest.raises(ValueError, match=r"wanted two columns of the same array space"):
        StackedObservationBatch(buffer, 2, obs="obs/number", next_obs="reward")
    with pytest.raises(KeyError, match="there is no field 'frames'"):
        StackedObservationBatch(buffer, 2, obs="frames")
    plain = ReplayBuffer.create(buffer.single_space, keep_episodes=False)
    with pytest.raises(ValueError, match=r"StackedObservationBatch stays inside episodes.*keep_episodes=True"):
        StackedObservationBatch(plain, 2, obs="obs/number", next_obs="next_obs/number")
