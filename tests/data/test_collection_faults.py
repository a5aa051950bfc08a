"""Recording when something goes wrong: environments that fail, workers that die, full disks, kills and Ctrl-C."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import numpy as np
import pytest
from recording_envs import Log, TallyEnv, buffers_for, check_recording, vector
from test_replay_buffer_processes import HERE, run

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface import AsyncVecEnv
from unienv_interface.space.spaces import BoxSpace

ACTION = np.zeros(2, np.float32)


class Failing(TallyEnv):
    """Raises at the steps it is told to, after it has moved."""

    fails_at: tuple[int, ...] = ()

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.total in self.fails_at:
            raise ArithmeticError("the simulation has diverged")
        return result


def test_after_a_step_that_fails_the_environment_has_to_be_reset() -> None:
    env = Failing(4)  # episodes of 2, 4, 1, 3 steps
    env.fails_at = (2,)
    buffer = buffers_for("shared", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    wrapper.step(ACTION)
    with pytest.raises(ArithmeticError):
        wrapper.step(ACTION)
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step(ACTION)
    wrapper.reset()
    wrapper.step(ACTION)
    assert buffer.get_segments() == [(0, 1)]
    assert buffer.get_at(...)["obs"].tolist() == [[4, 1, 0], [4, 2, 0]]


@pytest.mark.parametrize("mode", ["per_env", "interleaved"])
def test_what_a_failing_step_has_left_is_an_episode_of_its_own(mode: str) -> None:
    """By its number, too, also where it was the first step of the episode and some slots were recorded already."""
    env: Any = vector("sync", 2)
    space = transition_space(env, episode_id=True, info={"tag": BoxSpace(env.backend, 0, 9, "float32", shape=())})
    options: dict[str, Any] = {"keep_episodes": True} if mode == "per_env" else {"lanes": 2}
    buffers = [
        ReplayBuffer.create(space, **{"keep_episodes": False, **options}) for _ in range(2 if mode == "per_env" else 1)
    ]
    wrapper = ReplayBufferCollectionWrapper(env, buffers, mode)  # type: ignore[arg-type]
    step, flags = env.step, [True, False]
    env.step = lambda action: (*step(action)[:4], {"tag": np.ones(2, np.float32), "_tag": np.array(flags)})
    wrapper.reset()
    with pytest.raises(KeyError, match="info/tag"):
        wrapper.step(np.zeros((2, 2), np.float32))
    flags[1] = True
    wrapper.reset()
    wrapper.step(np.zeros((2, 2), np.float32))
    wrapper.reset()
    for buffer in buffers:
        ids = buffer.get_at(...)["episode_id"]
        of_each = [ids[start : stop : buffer.lanes].tolist() for start, stop in buffer.get_segments() or ()]
        assert all(len(set(own)) == 1 for own in of_each)
        assert len({own[0] for own in of_each}) == len(of_each)


@pytest.mark.parametrize("before", [0, 1])
def test_a_step_interrupted_by_ctrl_c_is_not_joined_to_the_next(before: int) -> None:
    """Whether its row was written or not, and whether it was the first of its episode or not."""
    env = Failing(4)
    buffer = buffers_for("shared", env)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    for _ in range(before):
        wrapper.step(ACTION)
    append = buffer.append

    def interrupted(value: Any) -> None:
        append(value)
        raise KeyboardInterrupt

    buffer.append = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        wrapper.step(ACTION)
    buffer.append = append  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step(ACTION)
    wrapper.reset()
    wrapper.step(ACTION)
    assert buffer.get_segments() == [(0, before + 1)]
    assert buffer.get_at(-1)["obs"].tolist() == [4, 2, 0]


@pytest.mark.parametrize("mode", ["per_env", "interleaved"])
def test_a_full_disk_leaves_no_hole_in_an_episode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = vector("sync", 3)
    buffers = buffers_for(mode, env)
    wrapper = ReplayBufferCollectionWrapper(env, buffers)
    second = wrapper.replay_buffers[-1]
    wrapper.reset()
    wrapper.step(np.zeros((3, 2), np.float32))
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(second.storage, "reserved", (0, 0))
        patch.setattr(second.storage, "reserve", full)
        with pytest.raises(OSError, match="No space left"):
            wrapper.step(np.zeros((3, 2), np.float32))
    with pytest.raises(RuntimeError, match="reset of slots"):
        wrapper.reset(mask=np.array([True, False, False]))
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step(np.zeros((3, 2), np.float32))
    wrapper.reset()
    wrapper.step(np.zeros((3, 2), np.float32))
    for buffer in wrapper.replay_buffers:
        rows, stride = buffer.get_at(...), buffer.lanes
        for start, stop in buffer.get_segments() or []:
            steps = rows["obs"][start:stop:stride, 2]
            assert np.array_equal(steps, np.arange(len(steps)))
        assert rows["obs"][-stride:, 2].tolist() == [0] * stride


def test_a_failing_reset_and_a_step_that_nobody_waits_for() -> None:
    env = vector("sync", 2)
    wrapper = ReplayBufferCollectionWrapper(env, buffers_for("interleaved", env))
    wrapper.reset()
    wrapper.step_async(np.zeros((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step(np.zeros((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="reset while a step is under way: call step_wait first"):
        wrapper.reset()
    wrapper.step_wait()
    with pytest.raises(TypeError):
        wrapper.reset(seed="seven")
    with pytest.raises(RuntimeError, match="Cannot call step"):
        wrapper.step(np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("mode", ["per_env", "interleaved"])
def test_a_worker_that_is_restarted(mode: str) -> None:
    """The slots of a worker that has died are truncated where they were; no transition leads into the new episode."""
    factories = [lambda: TallyEnv(0), lambda: TallyEnv(2, dies_at=2), lambda: TallyEnv(2)]
    method = "spawn" if "jax" in sys.modules else "fork"
    context = multiprocessing.get_context(method)
    env = AsyncVecEnv(factories, num_workers=3, on_worker_error="restart", ctx=context)
    buffers = _without_infos(mode, env)
    with ReplayBufferCollectionWrapper(env, buffers, mode) as wrapper:  # type: ignore[arg-type]
        log = Log(wrapper)
        log.reset(wrapper.reset())
        restarts = 0
        for step in range(6):
            action = np.full((3, 2), step / 10, np.float32)
            result = wrapper.step(action)
            restarts += int("restarted" in result[4])
            done = log.step(action, result)
            if done.any():
                log.reset(wrapper.reset(mask=done), done)
        assert restarts >= 1
        for rows in log.order:
            for row in rows:
                del row["info"]
                assert row["obs"][:2] == row["next_obs"][:2], "a transition from one episode to another"
        check_recording(mode, wrapper.replay_buffers, log)


def _without_infos(mode: str, env: Any) -> Any:
    space = transition_space(env, done=True, context=True, env_index=True, episode_id=True, step=True)
    if mode == "per_env":
        return [ReplayBuffer.create(space, keep_episodes=True) for _ in range(env.batch_size)]
    return ReplayBuffer.create(space, keep_episodes=False, lanes=env.batch_size if mode == "interleaved" else 1)


@pytest.mark.parametrize("mode", ["shared", "interleaved"])
def test_every_step_that_has_returned_survives_a_kill(mode: str) -> None:
    assert "6 kills" in run(str(HERE / "kill_recording.py"), "kill", "--mode", mode, "--times", "6")


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["shared", "per_env", "interleaved"])
def test_every_step_that_has_returned_survives_many_kills(mode: str) -> None:
    assert "300 kills" in run(str(HERE / "kill_recording.py"), "kill", "--mode", mode, "--times", "300")


def test_ctrl_c_keeps_what_was_recorded() -> None:
    assert "nothing lost" in run(str(HERE / "kill_recording.py"), "interrupt")
