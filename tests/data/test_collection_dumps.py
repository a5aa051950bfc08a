"""Dumps at the end of episodes and at resets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_envs import TallyEnv, as_rows, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env

SLOTS = 3


def act(wrapper: Env, times: int = 1) -> Any:
    shape = (2,) if wrapper.batch_size is None else (wrapper.batch_size, 2)
    for _ in range(times):
        result = wrapper.step(np.zeros(shape, np.float32))
    return result[2] | result[3]


def length(path: Path) -> int | None:
    return ReplayBuffer.get_length_from_path(path)


def make(env: Env, count: int = 1, **options: Any) -> list[ReplayBuffer]:
    return [ReplayBuffer.create(transition_space(env), **{"keep_episodes": False, **options}) for _ in range(count)]


@pytest.mark.parametrize("flag", ["dump_on_episode_end", "dump_on_reset_boundary"])
def test_a_path_is_needed(flag: str) -> None:
    env = TallyEnv()
    with pytest.raises(ValueError, match="dump_path must be provided"):
        ReplayBufferCollectionWrapper(env, make(env), **{flag: True})


def test_one_environment_dumps_when_an_episode_ends(tmp_path: Path) -> None:
    env = TallyEnv(0)  # three steps, then five
    buffers = make(env, keep_episodes=True)
    wrapper = ReplayBufferCollectionWrapper(env, buffers, dump_on_episode_end=True, dump_path=tmp_path / "a")
    wrapper.reset()
    act(wrapper, 2)
    assert not (tmp_path / "a").exists()
    act(wrapper)
    assert (tmp_path / "a" / "metadata.json").exists()
    with ReplayBuffer.load_from(tmp_path / "a", backend=NumpyComputeBackend) as copy:
        assert as_rows(copy) == as_rows(buffers[0])
        assert copy.get_segments() == [(0, 3)]
    wrapper.reset()
    act(wrapper, 4)
    assert length(tmp_path / "a") == 3
    act(wrapper)
    assert length(tmp_path / "a") == 8
    wrapper.dump_path = str(tmp_path / "b")
    wrapper.reset()
    act(wrapper, 2)
    assert (length(tmp_path / "a"), length(tmp_path / "b")) == (8, 10)


def test_a_reset_dumps_what_it_cuts_short(tmp_path: Path) -> None:
    env = TallyEnv(0)
    wrapper = ReplayBufferCollectionWrapper(env, make(env), dump_on_reset_boundary=True, dump_path=tmp_path / "a")
    wrapper.reset()
    assert not (tmp_path / "a").exists()  # there is nothing yet that could take the place of an earlier recording
    act(wrapper, 2)
    wrapper.reset()
    assert length(tmp_path / "a") == 2


def test_per_env_dumps_the_slots_concerned_each_to_its_folder(tmp_path: Path) -> None:
    env = vector("sync", SLOTS)  # the first episodes have 3, 4 and 5 steps
    buffers = make(env, SLOTS, keep_episodes=True)
    options = {"dump_on_episode_end": True, "dump_on_reset_boundary": True, "dump_path": tmp_path}
    wrapper = ReplayBufferCollectionWrapper(env, buffers, **options)
    folders = [tmp_path / f"env_{slot}" for slot in range(SLOTS)]
    wrapper.reset()
    act(wrapper, 2)
    assert [length(folder) for folder in folders] == [None, None, None]
    done = act(wrapper)
    assert done.tolist() == [True, False, False]
    assert [length(folder) for folder in folders] == [3, None, None]
    wrapper.reset(mask=np.array([True, False, True]))
    assert [length(folder) for folder in folders] == [3, None, 3]
    act(wrapper)
    assert [length(folder) for folder in folders] == [3, 4, 3]
    wrapper.reset()
    assert [length(folder) for folder in folders] == [4, 4, 4]
    for folder, buffer in zip(folders, buffers, strict=True):
        with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend) as copy:
            assert as_rows(copy) == as_rows(buffer)
            assert copy.get_segments() == buffer.get_segments()


@pytest.mark.parametrize("lanes", [1, SLOTS], ids=["shared", "interleaved"])
def test_one_buffer_of_a_batch_is_dumped_once(lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = vector("sync", SLOTS)
    (buffer,) = make(env, lanes=lanes)
    wrapper = ReplayBufferCollectionWrapper(env, buffer, dump_on_episode_end=True, dump_path=tmp_path / "a")
    dumps: list[Any] = []
    dump = buffer.dumps
    monkeypatch.setattr(buffer, "dumps", lambda path: (dumps.append(path), dump(path)))
    wrapper.reset()
    act(wrapper, 3)
    assert dumps == [tmp_path / "a"]
    assert length(tmp_path / "a") == 3 * SLOTS
    with ReplayBuffer.load_from(tmp_path / "a", backend=NumpyComputeBackend) as copy:
        assert as_rows(copy) == as_rows(buffer)
        if lanes > 1:
            assert copy.get_segments() == [(0, 7)]
            assert copy.has_open_segment


def test_a_dump_to_its_own_place_is_a_flush(tmp_path: Path) -> None:
    env = TallyEnv(0)
    (buffer,) = make(env, cache_path=tmp_path / "a")
    wrapper = ReplayBufferCollectionWrapper(env, buffer, dump_on_episode_end=True, dump_path=tmp_path / "a")
    wrapper.reset()
    act(wrapper, 3)
    assert length(tmp_path / "a") == 3
    wrapper.reset()
    act(wrapper)
    assert length(tmp_path / "a") == 4
    assert buffer.verify() == []


def test_a_dump_removes_nothing_but_the_buffer_that_it_replaces(tmp_path: Path) -> None:
    """Such as other dumps, the very buffer that is dumped, or what a user keeps beside it."""
    env = TallyEnv()
    wrapper = ReplayBufferCollectionWrapper(env, make(env), dump_on_reset_boundary=True, dump_path=tmp_path / "a")
    wrapper.reset()
    act(wrapper)
    wrapper.reset()
    live = ReplayBuffer.create(transition_space(env), cache_path=tmp_path / "a" / "live", keep_episodes=False)
    wrapper.set_replay_buffers(live)
    act(wrapper)
    with pytest.raises(FileExistsError, match=r"a/live does not belong to the replay buffer in .*a, and a dump would"):
        wrapper.reset()
    wrapper.dump_path = tmp_path / "b"
    wrapper.reset()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    act(wrapper)
    with pytest.raises(FileExistsError, match=r"b/notes.txt does not belong"):
        wrapper.reset()
    assert (length(tmp_path / "b"), len(live), length(tmp_path / "a" / "live")) == (1, 2, 2)
