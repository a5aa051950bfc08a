"""Discarding the episode under way while it is recorded."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_envs import TallyEnv, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import NumpyComputeBackend

NUMPY = NumpyComputeBackend
ACTION = np.zeros(2, np.float32)


class LongEnv(TallyEnv):
    """Episodes of ten steps; the observation is [index, episode, step]."""

    @property
    def length(self) -> int:
        return 10


def recorder(path: Path | None = None, capacity: int | None = None) -> ReplayBufferCollectionWrapper:
    env = LongEnv()
    space = transition_space(env, episode_id=True)
    buffer = ReplayBuffer.create(space, capacity=capacity, cache_path=path, keep_episodes=True)
    return ReplayBufferCollectionWrapper(env, buffer)


def record(wrapper: ReplayBufferCollectionWrapper, steps: int) -> None:
    wrapper.reset()
    for _ in range(steps):
        wrapper.step(ACTION)


def episodes(buffer: ReplayBuffer) -> list[tuple[int, int]]:
    """The episode and the last step of each run of samples, which must be whole and in order; a ring cuts the first."""
    found = buffer.get_column("obs").get_at(...)
    runs = [list(group) for _, group in itertools.groupby(found.tolist(), key=lambda row: row[1])]
    for number, run in enumerate(runs):
        first = 0 if number else int(run[0][2])
        assert [row[2] for row in run] == list(range(first, first + len(run)))
    return [(int(run[0][1]), int(run[-1][2]) + 1) for run in runs]


@pytest.mark.parametrize("capacity", [None, 24])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_what_is_discarded_was_never_recorded(place: str, capacity: int | None, tmp_path: Path) -> None:
    wrapper = recorder(tmp_path / "b" if place == "disk" else None, capacity)
    (buffer,) = wrapper.replay_buffers
    record(wrapper, 10)
    record(wrapper, 4)
    assert wrapper.discard_episode() == 4
    assert (episodes(buffer), buffer.get_segments()) == ([(1, 10)], [(0, 10)])
    with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
        wrapper.step(ACTION)
    assert wrapper.discard_episode() == 0
    record(wrapper, 10)
    assert wrapper.discard_episode() == 0  # it has ended
    record(wrapper, 3)
    wrapper.reset()
    assert wrapper.discard_episode() == 0  # the reset has ended it
    assert episodes(buffer) == [(1, 10), (3, 10), (4, 3)][-len(episodes(buffer)) :]
    record(wrapper, 9)
    wrapper.discard_episode()
    record(wrapper, 2)
    wrapper.close()
    assert episodes(buffer)[-3:] == [(3, 10), (4, 3), (7, 2)][-len(episodes(buffer)) :]
    assert buffer.get_segments()[-1] == (len(buffer) - 2, len(buffer))
    ids = buffer.get_column("episode_id").get_at(...)
    assert len(set(ids.reshape(-1).tolist())) == len(episodes(buffer))
    assert buffer.verify() == []
    if place == "disk":
        seen = episodes(buffer)
        buffer.close()
        with ReplayBuffer.load_from(tmp_path / "b", backend=NUMPY) as loaded:
            assert episodes(loaded) == seen
            assert loaded.verify() == []


def test_an_episode_longer_than_the_ring() -> None:
    wrapper = recorder(capacity=6)
    record(wrapper, 9)
    assert wrapper.discard_episode() == 6
    assert len(wrapper.replay_buffers[0]) == 0
    record(wrapper, 3)
    assert episodes(wrapper.replay_buffers[0]) == [(2, 3)]


def test_slots_with_buffers_of_their_own() -> None:
    env = vector("sync", 3)
    space = transition_space(TallyEnv())
    buffers = [ReplayBuffer.create(space, keep_episodes=True) for _ in range(3)]
    wrapper = ReplayBufferCollectionWrapper(env, buffers)
    wrapper.reset()
    wrapper.step(np.zeros((3, 2), np.float32))
    before = [len(buffer) if buffer.has_open_segment else 0 for buffer in buffers]
    assert wrapper.discard_episode(np.array([False, True, False])) == before[1]
    assert len(buffers[0]) == 1
    wrapper.discard_episode()
    assert not any(buffer.has_open_segment for buffer in buffers)
    with pytest.raises(RuntimeError, match="Call reset"):
        wrapper.step(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("mode", ["interleaved", "shared"])
def test_samples_that_lie_side_by_side_are_refused_by_name(mode: str) -> None:
    space = transition_space(TallyEnv())
    options: Any = {"lanes": 3} if mode == "interleaved" else {"keep_episodes": False}
    buffer = ReplayBuffer.create(space, **options)
    wrapper = ReplayBufferCollectionWrapper(vector("sync", 3), buffer, mode, episodes="ignore")  # type: ignore[arg-type]
    wrapper.reset()
    wrapper.step(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match=f"replay_mode='{mode}' the samples of 3 slots lie side by side.*per_env"):
        wrapper.discard_episode()
    with pytest.raises(TypeError, match="lanes" if mode == "interleaved" else "does not keep episodes"):
        buffer.discard_open_segment()
    assert len(buffer) == 3


def test_a_buffer_without_episodes_is_refused() -> None:
    env = LongEnv()
    wrapper = ReplayBufferCollectionWrapper(env, ReplayBuffer.create(transition_space(env), keep_episodes=False))
    record(wrapper, 2)
    with pytest.raises(ValueError, match="keep_episodes=True"):
        wrapper.discard_episode()


_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_collection_discard import record, recorder
wrapper = recorder(Path(sys.argv[2]), int(sys.argv[3]) or None)
print("go", flush=True)
kept = 0
while True:
    record(wrapper, 7)
    wrapper.discard_episode()
    record(wrapper, 10)
    kept += 1
    sys.stdout.write(f"{kept}\\n")
    sys.stdout.flush()
"""


def test_a_kill_leaves_whole_episodes_and_at_most_one_open(tmp_path: Path) -> None:
    chance = random.Random(0)
    for attempt, capacity in enumerate((0, 64, 0, 64)):
        folder = tmp_path / str(attempt)
        command = [sys.executable, "-c", _PROGRAM, str(Path(__file__).parent), str(folder), str(capacity)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            acknowledged = 0
            for _ in range(chance.randrange(2, 60)):
                line = child.stdout.readline()
                acknowledged = int(line) if line.strip().isdigit() else acknowledged
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
        acknowledged = max([acknowledged, *(int(word) for word in rest[:-1] if word.isdigit())])
        with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False) as buffer:  # which finishes what was begun
            assert buffer.verify() == []
            segments: Any = buffer.get_segments()
            assert capacity or len(segments) >= acknowledged
            obs = buffer.get_column("obs").get_at(...)
            for start, stop in segments[1:]:
                assert obs[start:stop, 2].tolist() == list(range(10)), "a closed episode that is not whole"
            last = segments[-1][1] if segments else 0
            assert len({*obs[last:, 1].tolist()}) <= 1, "samples of a discarded episode beside another"
            assert obs[last:, 2].tolist() == list(range(len(obs) - last))
