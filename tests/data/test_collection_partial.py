"""Steps of some slots: what came back is recorded as if each environment had been alone."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partial_play import Player, episodes_alone, in_order_of_coming, segments_of
from recording_envs import TallyEnv, as_rows, buffers_for, full_space, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_data.replay_buffer._recording.slots import next_episode_id
from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.env_base.env import Env
from unienv_interface.space import BoxSpace, DictSpace
from unienv_interface.transformations import IdentityTransformation

SLOTS = 4


def asynchronous(factories: Any, **options: Any) -> AsyncVecEnv:
    context = multiprocessing.get_context("spawn" if "jax" in sys.modules else "fork")
    return AsyncVecEnv(factories, ctx=context, **options)


def zeros(count: int) -> np.ndarray:
    return np.zeros((count, 2), np.float32)


def step_some(wrapper: Any, slots: list[int]) -> None:
    wrapper.step_async(zeros(len(slots)), index=slots)
    wrapper.step_wait()


def recording(mode: str, env: Env, space: DictSpace, **options: Any) -> tuple[Any, list[ReplayBuffer]]:
    """A wrapper whose clock counts the steps, and the buffers that it records into."""
    count = SLOTS if mode == "per_env" else 1
    buffers = [ReplayBuffer.create(space, keep_episodes=mode == "per_env") for _ in range(count)]
    clock = map(float, itertools.count()).__next__
    return ReplayBufferCollectionWrapper(env, buffers, mode, clock=clock, **options), buffers  # type: ignore[arg-type]


def check(buffers: list[ReplayBuffer], episodes: list[Any], player: Player) -> None:
    """Compare buffers with environments that were alone, value for value and episode for episode."""
    wanted = in_order_of_coming(episodes, player.came)
    assert len(wanted) == sum(map(len, buffers))
    if len(buffers) == 1:
        assert as_rows(buffers[0]) == [_recorded(row, buffers[0]) for row in wanted]
        return
    for slot, (buffer, own) in enumerate(zip(buffers, episodes, strict=True)):
        assert as_rows(buffer) == [_recorded(row, buffer) for row in wanted if row["env_index"] == slot]
        is_last_open = bool(player.asked[slot][-1][1]) and not own[-1][-1]["done"]
        assert buffer.get_segments() == segments_of(own, is_last_open)


def _recorded(row: dict[str, Any], buffer: ReplayBuffer) -> dict[str, Any]:
    return {key: row[key] for key in buffer.single_space.spaces}  # type: ignore[attr-defined]


# -- value for value ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["per_env", "shared"])
@pytest.mark.parametrize("workers", [2, 4])
def test_cartpole_in_workers_is_recorded_as_cartpole_alone(mode: str, workers: int) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

    def make() -> Env:
        return FromGymnasiumEnv(gymnasium.make("CartPole-v1", max_episode_steps=14))

    with asynchronous([make] * SLOTS, num_workers=workers) as env:
        space = transition_space(env, done=True, env_index=True, episode_id=True, step=True, timestamp=True)
        wrapper, buffers = recording(mode, env, space)
        player = Player(wrapper, workers, lambda rng, count: rng.integers(0, 2, count))
        player.play(400)
    alone = gymnasium.make("CartPole-v1", max_episode_steps=14)

    def step(action: int) -> dict[str, Any]:
        obs, reward, terminated, truncated, _ = alone.step(action)
        return {"next_obs": obs.tolist(), "reward": reward, "terminated": terminated, "truncated": truncated}

    episodes = [
        episodes_alone(lambda seed: {"obs": alone.reset(seed=seed)[0].tolist()}, step, asked) for asked in player.asked
    ]
    ends = {key for own in episodes for episode in own for key in ("terminated", "truncated") if episode[-1][key]}
    assert ends == {"terminated", "truncated"}
    assert any(len(slots) < SLOTS for slots in player.came)
    check(buffers, episodes, player)


@pytest.mark.parametrize("mode", ["per_env", "shared"])
@pytest.mark.parametrize("backend", ["numpy", "pytorch", "jax"])
def test_contexts_and_infos_on_all_backends(mode: str, backend: str) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(backend, backend))
    chosen = deserialize_backend(backend)
    env = vector("sync", SLOTS, backend=chosen)
    wrapper, buffers = recording(mode, env, full_space(env), validate_transition=True)
    player = Player(wrapper, 5, lambda rng, count: rng.integers(-1, 2, (count, 2)).astype(np.float32))
    player.play(60)
    check(buffers, [_tally_alone(slot, player.asked[slot]) for slot in range(SLOTS)], player)


def _tally_alone(index: int, asked: Any) -> Any:
    env = TallyEnv(index)

    def reset(seed: int) -> dict[str, Any]:
        context, obs, _ = env.reset(seed=seed)
        return {"context": context.tolist(), "obs": obs.tolist()}

    def step(action: Any) -> dict[str, Any]:
        obs, reward, terminated, truncated, info = env.step(np.array(action, np.float32))
        infos = {"steps": info["steps"], "odd": info.get("odd", 0.0), "_odd": "odd" in info}
        flags = {"terminated": terminated, "truncated": truncated}
        return {"next_obs": obs.tolist(), "reward": reward, "info": infos, **flags}

    return episodes_alone(reset, step, asked)


def test_functions_and_transformations_get_the_rows_that_came_back() -> None:
    env = vector("sync", SLOTS)
    space = full_space(env)
    seen = []

    def build(*, cached_obs: Any, action: Any, env_index: Any, **more: Any) -> Any:
        seen.append((len(cached_obs), len(action), env_index.tolist()))
        return cached_obs

    wrapper, (buffer,) = recording("shared", env, space["obs"], transition_builder=build)  # type: ignore[index]
    wrapper.reset()
    step_some(wrapper, [3, 1])
    step_some(wrapper, [2])
    wrapper.reset(mask=np.array([False, False, False, True]))
    wrapper.step(zeros(SLOTS))
    assert seen == [(2, 2, [3, 1]), (1, 1, [2]), (4, 4, [0, 1, 2, 3])]
    assert buffer.get_at(...)[:, 0].tolist() == [3, 1, 2, 0, 1, 2, 3]
    wrapper, (buffer,) = recording("shared", env, space, transition_builder=IdentityTransformation())
    player = Player(wrapper, 6, lambda rng, count: rng.integers(-1, 2, (count, 2)).astype(np.float32))
    player.play(10)
    assert buffer.get_at(...)["env_index"].tolist() == [slot for came in player.came for slot in came]


def test_one_slot_is_a_batch_too() -> None:
    env = vector("sync", 1)
    buffer = buffers_for("shared", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    for _ in range(2):
        wrapper.step_async(zeros(1), index=[0])
        wrapper.step_wait(min_envs=1)
        wrapper.reset()
    assert buffer.get_segments() == [(0, 1), (1, 2)]
    assert buffer.get_at(...)["obs"].tolist() == [[0, 1, 0], [0, 2, 0]]


# -- what is legal when ------------------------------------------------------------------------------------


def test_lanes_that_advance_together_are_refused_before_anything_moves() -> None:
    env = vector("sync", SLOTS)
    buffer = buffers_for("interleaved", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    with pytest.raises(ValueError, match=r"step_async with index: .*lane s % 4.* with replay_mode='per_env'"):
        wrapper.step_async(zeros(1), index=[0])
    assert [one.total for one in env.envs] == [0] * SLOTS  # type: ignore[attr-defined]
    wrapper.step_async(zeros(SLOTS))
    with pytest.raises(ValueError, match=r"step_wait with min_envs: .* or 'shared' and one buffer without"):
        wrapper.step_wait(min_envs=1)
    wrapper.step_wait()
    wrapper.reset(mask=np.array([False, False, False, True]))
    wrapper.step(zeros(SLOTS))
    assert buffer.get_at(...)["obs"][:, 2].tolist() == [0] * SLOTS + [1, 1, 1, 0]


def test_what_is_refused_leaves_everything_as_it_was() -> None:
    env = vector("sync", SLOTS)
    wrapper, buffers = recording("per_env", env, transition_space(env))
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step_async(zeros(1), index=[0])
    wrapper.reset()
    for index, error, text in (
        ([4], IndexError, "there are 4 environments"),
        ([1, 1], ValueError, "names an environment twice"),
        ([0, 1, 2], ValueError, r"2 actions for the 3 environments \[0, 1, 2\]"),
    ):
        with pytest.raises(error, match=text):
            wrapper.step_async(zeros(2), index=index)
    wrapper.step_async(zeros(2), index=[2, 0])
    with pytest.raises(RuntimeError, match=r"environments \[0\] are stepping already"):
        wrapper.step_async(zeros(2), index=[1, 0])
    for command in (lambda: wrapper.step(zeros(SLOTS)), lambda: wrapper.step_async(zeros(SLOTS))):
        with pytest.raises(RuntimeError, match="Cannot call step"):
            command()
    for command in (wrapper.reset, lambda: wrapper.set_replay_buffers(buffers)):
        with pytest.raises(RuntimeError, match="under way"):
            command()
    for least in (0, 3):
        with pytest.raises(ValueError, match=f"min_envs is {least}, it must be from 1 to 2, the stepping"):
            wrapper.step_wait(min_envs=least)
    wrapper.step_wait()
    with pytest.raises(RuntimeError, match="step_wait without step_async"):
        wrapper.step_wait(min_envs=1)
    assert list(map(len, buffers)) == [1, 0, 1, 0]
    wrapper.step(zeros(SLOTS))
    assert list(map(len, buffers)) == [2, 1, 2, 1]


class FragileEnv(TallyEnv):
    """Raises at a step."""

    def __init__(self, index: int, fails_at: int | None = None) -> None:
        super().__init__(index)
        self._fails_at = fails_at

    def step(self, action: Any) -> Any:
        if self.total + 1 == self._fails_at:
            self.total += 1
            raise ZeroDivisionError("fragile")
        return super().step(action)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_after_a_step_that_fails_all_slots_are_reset(kind: str) -> None:
    """What was under way is still waited for and recorded, then no episode goes on over the hole."""
    factories = [lambda i=i: FragileEnv(i + 4, 1 if i == 2 else None) for i in range(SLOTS)]
    with SyncVecEnv(factories) if kind == "sync" else asynchronous(factories, num_workers=SLOTS) as env:
        wrapper, buffers = recording("per_env", env, transition_space(env))
        wrapper.reset()
        wrapper.step_async(zeros(1), index=[0])
        with pytest.raises(ZeroDivisionError, match="fragile"):
            step_some(wrapper, [1, 2])
        if kind == "sync":  # where asking is all the work, the step before is still to be waited for
            with pytest.raises(RuntimeError, match="Cannot call step"):
                wrapper.step_async(zeros(1), index=[3])
            wrapper.step_wait()
            assert len(buffers[0]) == 1
        for command in (lambda: wrapper.step(zeros(SLOTS)), lambda: wrapper.step_async(zeros(1), index=[3])):
            with pytest.raises(RuntimeError, match="Cannot call step"):
                command()
        wrapper.reset()
        step_some(wrapper, [1, 0, 2])
        for buffer in buffers[:3]:
            assert buffer.get_at(-1)["obs"][2] == 0
            assert all(stop - start == 1 for start, stop in buffer.get_segments() or ())


def test_a_worker_that_is_restarted_under_some_slots() -> None:
    factories = [lambda: TallyEnv(0), lambda: TallyEnv(2, dies_at=2), lambda: TallyEnv(2)]
    with asynchronous(factories, num_workers=3, on_worker_error="restart") as env:
        buffers = [ReplayBuffer.create(transition_space(env), maintain_segment_metadata=True) for _ in range(3)]
        wrapper = ReplayBufferCollectionWrapper(env, buffers)
        wrapper.reset()
        for _ in range(2):
            step_some(wrapper, [2, 1])
    row = buffers[1].get_at(-1)
    assert (row["truncated"], row["terminated"], row["reward"]) == (True, False, 0.0)
    assert row["next_obs"].tolist() == row["obs"].tolist()
    assert [buffer.get_segments() for buffer in buffers] == [[], [(0, 2)], []]


# -- beside it ---------------------------------------------------------------------------------------------


def test_only_the_buffers_of_slots_that_ended_are_dumped(tmp_path: Path) -> None:
    env = vector("sync", SLOTS)  # in the first episode, slot i takes 1 + (i + 2) % 5 steps
    wrapper, _ = recording("per_env", env, transition_space(env), dump_on_episode_end=True, dump_path=tmp_path / "d")
    wrapper.reset()
    step_some(wrapper, [1, 3])
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["env_3"]
    assert ReplayBuffer.get_length_from_path(tmp_path / "d" / "env_3") == wrapper.replay_buffers[3].count


def test_episode_numbers_go_on_where_slots_ran_apart() -> None:
    """The newest episode may lie far back, if its slot has not stepped since."""
    env = vector("sync", 3)
    buffer = buffers_for("shared", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    for slot in (2, 0, 2, 2, 2):
        step_some(wrapper, [slot])
    again = ReplayBufferCollectionWrapper(env, buffer)
    again.reset()
    again.step(zeros(3))
    assert buffer.get_at(...)["episode_id"].tolist() == [0, 1, 0, 0, 0, 2, 3, 4]


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_the_newest_episode_is_found_however_slots_take_turns(slots: int) -> None:
    space = DictSpace(NumpyComputeBackend, {"episode_id": BoxSpace(NumpyComputeBackend, 0, 10**6, "int64", shape=())})
    rng = np.random.default_rng(slots)
    for _ in range(50):
        buffer = ReplayBuffer.create(space, keep_episodes=False)
        current, begun = [-1] * slots, 0
        speeds = rng.dirichlet(np.full(slots, 0.3))
        for slot in rng.choice(slots, size=rng.integers(0, 60), p=speeds).tolist():
            if current[slot] < 0 or rng.random() < 0.1:
                current[slot], begun = begun, begun + 1
            buffer.append({"episode_id": current[slot]})
        assert next_episode_id([buffer]) == begun
