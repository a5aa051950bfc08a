"""What a recorder writes of environments that restart: the same episodes in every mode and order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.wrapper import AutoresetWrapper, FrameStackWrapper

NUMPY = NumpyComputeBackend
SLOTS = 3
Episode = list[dict[str, Any]]


class RandomEnv(Env):
    """Episodes of random values and lengths, each known by its number: 1 to 5 steps, terminated or truncated."""

    def __init__(self, index: int = 0, backend: ComputeBackend = NUMPY) -> None:
        self.backend, self.index, self.episode = backend, index, 0
        self.action_space = BoxSpace(backend, -1.0, 1.0, "float32", shape=(1,))
        self.observation_space = BoxSpace(backend, -1e3, 1e3, "float32", shape=(4,))
        self.context_space = BoxSpace(backend, 0.0, 1e3, "float32", shape=())
        self.left, self.steps, self.is_terminal = 0, 0, False

    def _array(self, *values: float) -> Any:
        return self.backend.from_numpy(np.array(values, np.float32))

    def _observation(self) -> Any:
        return self._array(self.index, self.episode, self.steps, self.random.normal())

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        self.episode, self.steps = self.episode + 1, 0
        self.random = np.random.default_rng([self.index, self.episode])
        self.left, self.is_terminal = int(self.random.choice([1, 1, 2, 3, 5])), bool(self.random.random() < 0.5)
        context = self._array(100 * self.index + self.episode)[0]
        return context, self._observation(), {"count": self.steps}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.left == 0:
            raise RuntimeError("step of an episode that has ended")
        self.left, self.steps = self.left - 1, self.steps + 1
        is_over, reward = self.left == 0, float(action[0]) + self.random.normal()
        flags = is_over and self.is_terminal, is_over and not self.is_terminal
        return self._observation(), reward, *flags, {"count": self.steps}

    def render(self) -> None:
        return None


class WholeBatch(Env):
    """Steps all of its slots or none."""

    def __init__(self, envs: list[RandomEnv]) -> None:
        self.envs, self.vector = envs, SyncVecEnv([lambda env=env: env for env in envs])
        for name in ("backend", "batch_size", "action_space", "observation_space", "context_space"):
            setattr(self, name, getattr(self.vector, name))

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        return self.vector.reset(mask=mask, seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.vector.step(action)

    def render(self) -> None:
        return None


def act(env: Env, observation: Any) -> Any:
    """An action that the last value of the observation decides."""
    return env.backend.clip(observation[..., 3:], -1.0, 1.0)


def recorded_space(env: Env) -> Any:
    count = BoxSpace(env.backend, 0, 100, "int32", shape=())
    seen = BoxSpace(env.backend, -1e3, 1e3, "float32", shape=())
    options: dict[str, Any] = {} if env.batch_size is None else {"env_index": True}
    return transition_space(
        env, context=True, episode_id=True, step=True, info={"count": count}, extras={"seen": seen}, **options
    )


def buffers_for(replay_mode: str, env: Env, folder: Path | None) -> list[ReplayBuffer]:
    def make(name: str, **options: Any) -> ReplayBuffer:
        return ReplayBuffer.create(recorded_space(env), cache_path=folder and folder / name, **options)

    if replay_mode == "per_env":
        return [make(f"env_{slot}") for slot in range(SLOTS)]
    if replay_mode == "interleaved":
        return [make("lanes", lanes=SLOTS)]
    return [make("one", keep_episodes=env.batch_size is None)]


def run(env: Env, steps: int, mode: str) -> None:
    """Step by the policy; where the environment does not restart, reset what has ended with a mask."""
    _, observation, _ = env.reset(seed=0)
    for _ in range(steps):
        result = env.step(act(env, observation), extras={"seen": observation[..., 3]})
        observation, _, terminated, truncated, _ = result
        if mode == "disabled":
            ended = terminated | truncated
            if env.batch_size is None and ended:
                _, observation, _ = env.reset()
            elif env.batch_size is not None and bool(ended.any()):
                _, first, _ = env.reset(mask=ended)
                observation = env.update_observation_post_reset(observation, first, ended)


def rows_of(buffer: ReplayBuffer) -> Episode:
    columns = buffer.backend.map_fn_over_arrays(
        buffer.get_at(...), lambda array: buffer.backend.to_numpy(array).tolist()
    )
    columns |= {f"{name}/{key}": value for name in ("info", "extras") for key, value in columns.pop(name).items()}
    return [{key: column[index] for key, column in columns.items()} for index in range(len(buffer))]


def episodes_of(replay_mode: str, buffers: list[ReplayBuffer]) -> list[list[Episode]]:
    """The episodes of each slot, by the buffers' own account of them; without the open one."""
    slots: list[list[Episode]] = [[] for _ in range(SLOTS)]
    if replay_mode == "shared":  # which keeps no episodes: by the numbers that the recorder gave
        found: dict[tuple[int, int], Episode] = {}
        for row in rows_of(buffers[0]):
            found.setdefault((row["env_index"], row["episode_id"]), []).append(row)
        for (slot, _), episode in found.items():
            if episode[-1]["terminated"] or episode[-1]["truncated"]:
                slots[slot].append(episode)
    for index, buffer in enumerate(buffers if replay_mode != "shared" else []):
        rows, segments = rows_of(buffer), buffer.get_segments() or []
        assert buffer.cut_episodes() == []
        assert buffer.verify() == []
        for start, stop in sorted(segments):
            slots[index if len(buffers) > 1 else start % buffer.lanes].append(rows[start : stop : buffer.lanes])
    for episode in (episode for slot in slots for episode in slot):
        assert [row.pop("step") for row in episode] == list(range(len(episode)))
        assert len({row.pop("episode_id") for row in episode}) == 1  # numbered over all slots, in the order of time
        for row in episode:
            row.pop("env_index", None)
    return slots


def wanted(slot: int, number: int, backend: ComputeBackend) -> Episode:
    """What the environment of a slot does in the episode with this number."""
    env = RandomEnv(slot, backend)
    env.episode = number - 1
    buffer = buffers_for("one", env, None)[0]
    recorder = ReplayBufferCollectionWrapper(env, buffer)
    _, observation, _ = recorder.reset()
    done = False
    while not done:
        extras = {"seen": observation[3]}
        observation, _, terminated, truncated, _ = recorder.step(act(env, observation), extras=extras)
        done = terminated or truncated
    rows = rows_of(buffer)
    return [{key: row[key] for key in row if key not in ("step", "episode_id")} for row in rows]


ENVS: dict[str, Callable[[ComputeBackend], Env]] = {
    "single": lambda backend: RandomEnv(0, backend),
    "sync": lambda backend: SyncVecEnv([lambda i=i: RandomEnv(i, backend) for i in range(SLOTS)]),
    "whole": lambda backend: WholeBatch([RandomEnv(i, backend) for i in range(SLOTS)]),
}
SETTINGS = [
    ("single", "one"),
    *((kind, way) for kind in ENVS if kind != "single" for way in ("per_env", "shared", "interleaved")),
]
PLACES = [(NUMPY, "memory"), (NUMPY, "disk"), *((backend, "memory") for backend in BACKENDS[1:2])]
REFUSED = {
    ("inside", "next_step"): "over a recorder of 3 slots, which would record steps of slots that restart",
    ("outside", "next_step", "interleaved"): "all lanes advance together: restart in the step that ends the episode",
}


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("mode", ["disabled", "same_step", "next_step"])
@pytest.mark.parametrize(("kind", "replay_mode"), SETTINGS)
@pytest.mark.parametrize(("backend", "place"), PLACES, ids=str)
def test_every_mode_records_the_same_episodes(
    backend: ComputeBackend, kind: str, replay_mode: str, mode: Any, order: str, place: str, tmp_path: Path
) -> None:
    below = ENVS[kind](backend)
    buffers = buffers_for(replay_mode, below, tmp_path if place == "disk" else None)

    def recorder(env: Env) -> Env:
        return ReplayBufferCollectionWrapper(env, buffers if len(buffers) > 1 else buffers[0], episodes="ignore")

    def make() -> Env:
        if order == "inside":
            return AutoresetWrapper(recorder(below), mode)
        return recorder(AutoresetWrapper(below, mode))

    refusal = REFUSED.get((order, mode)) or REFUSED.get((order, mode, replay_mode))
    if refusal is not None and not (kind == "single" and mode == "next_step"):
        with pytest.raises(ValueError, match=refusal):
            make()
        return
    run(make(), 80, mode)
    slots = episodes_of(replay_mode, buffers)
    for slot, episodes in enumerate(slots if kind != "single" else slots[:1]):
        numbers = [int(episode[0]["obs"][1]) for episode in episodes]
        if kind == "whole" and mode == "next_step":
            assert (np.diff(numbers) > 0).all()  # some are begun twice, so that no ended episode is stepped
        else:
            assert numbers == list(range(1, len(numbers) + 1))
        assert episodes == [wanted(slot, number, backend) for number in numbers]
        assert len(episodes) >= 15
        assert {len(episode) for episode in episodes} >= {1, 2}
        assert {episode[-1]["terminated"] for episode in episodes} == {True, False}


@pytest.mark.parametrize(
    ("mode", "replay_mode"),
    [
        *((mode, way) for mode in ("same_step", "next_step") for way in ("per_env", "shared")),
        ("same_step", "interleaved"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
def test_each_environment_of_a_batch_may_restart_by_itself(
    backend: ComputeBackend, mode: Any, replay_mode: str
) -> None:
    env = SyncVecEnv([lambda i=i: AutoresetWrapper(RandomEnv(i, backend), mode) for i in range(SLOTS)])
    buffers = buffers_for(replay_mode, env, None)
    recorder = ReplayBufferCollectionWrapper(env, buffers if len(buffers) > 1 else buffers[0], episodes="ignore")
    run(recorder, 60, mode)
    for slot, episodes in enumerate(episodes_of(replay_mode, buffers)):
        assert len(episodes) >= 10
        assert episodes == [wanted(slot, number + 1, backend) for number in range(len(episodes))]
    recorder.close()


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_steps_of_the_slots_that_are_ready_first(mode: Any) -> None:
    env = AsyncVecEnv([lambda i=i: AutoresetWrapper(RandomEnv(i), mode) for i in range(SLOTS)])
    buffers = [ReplayBuffer.create(transition_space(env)) for _ in range(SLOTS)]
    recorder = ReplayBufferCollectionWrapper(env, buffers)
    observation = recorder.reset(seed=0)[1]
    recorder.step_async(act(env, observation))
    for _ in range(100_000):  # the worker of a slot may get little of a busy processor
        found, *_, info = recorder.step_wait(min_envs=1)
        recorder.step_async(act(env, found), index=info["env_index"])
        if min(len(buffer.get_segments() or []) for buffer in buffers) >= 5:
            break
    recorder.step_wait()
    for slot, buffer in enumerate(buffers):
        rows = buffer.get_at(...)
        for number, (start, stop) in enumerate(buffer.get_segments() or [], 1):
            truth = wanted(slot, number, NUMPY)
            for key in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
                assert rows[key][start:stop].tolist() == [row[key] for row in truth]
        assert number >= 5
    recorder.close()


def test_a_reset_by_the_caller_takes_the_place_of_the_restart() -> None:
    env = AutoresetWrapper(SyncVecEnv([lambda i=i: RandomEnv(i) for i in range(SLOTS)]), "next_step")
    buffers = [ReplayBuffer.create(transition_space(env)) for _ in range(SLOTS)]
    recorder = ReplayBufferCollectionWrapper(env, buffers)
    observation, is_ended, resets = recorder.reset(seed=0)[1], np.zeros(SLOTS, bool), 0
    lengths: list[list[int]] = [[0] for _ in range(SLOTS)]
    for step in range(60):
        slots = is_ended if step % 2 else np.arange(SLOTS) == step % SLOTS  # what has ended, or in the middle
        if slots.any():
            first = recorder.reset(mask=slots)[1]
            observation = recorder.update_observation_post_reset(observation, first, slots)
            resets += np.count_nonzero(slots)
            is_ended = is_ended & ~slots
        before = is_ended
        observation, _, terminated, truncated, _ = recorder.step(act(env, observation))
        is_ended = terminated | truncated
        for slot in range(SLOTS):
            if before[slot]:
                assert observation[slot, 2] == 0
            elif observation[slot, 2] == 1:
                lengths[slot].append(1)
            else:
                lengths[slot][-1] += 1
    for slot, buffer in enumerate(buffers):
        found = [stop - start for start, stop in buffer.get_segments() or []]
        assert found == lengths[slot][1 : len(found) + 1]
        assert len(buffer) == sum(lengths[slot])
        assert buffer.cut_episodes() == []
    assert resets > 30


def test_snapshots_of_a_restart(tmp_path: Path) -> None:
    env = AutoresetWrapper(RandomEnv(), "next_step")
    buffer = ReplayBuffer.create(transition_space(env))
    recorder = ReplayBufferCollectionWrapper(env, buffer, dump_on_reset_boundary=True, dump_path=tmp_path / "dumped")
    observation, done = recorder.reset()[1], False
    while not done:
        observation, _, terminated, truncated, _ = recorder.step(act(env, observation))
        done = terminated or truncated
    assert not (tmp_path / "dumped").exists()
    recorder.step(act(env, observation))
    assert len(ReplayBuffer.load_from(tmp_path / "dumped", backend=NUMPY)) == len(buffer)


def test_a_recorder_is_found_under_other_layers() -> None:
    below = SyncVecEnv([RandomEnv] * SLOTS)
    recorder = ReplayBufferCollectionWrapper(below, ReplayBuffer.create(transition_space(below), lanes=SLOTS))
    with pytest.raises(ValueError, match=r"mode='same_step', or record around it"):
        AutoresetWrapper(FrameStackWrapper(recorder, obs_stack_size=1), "next_step")
    AutoresetWrapper(FrameStackWrapper(recorder, obs_stack_size=1), "same_step")
