"""Ctrl-C at every point of what a recorder does: recordings stay sound, and what comes after it is recorded."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupter import Interrupter, press
from recording_envs import TallyEnv, tallies

import unienv_data
import unienv_interface
from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface import SyncVecEnv

# With the modules of the standard library whose code waits for threads.
OURS = (unienv_data, unienv_interface, concurrent.futures, contextlib, threading)
SLOTS = 2
MOST = 12
FIELDS: dict[str, Any] = {"done": True, "context": True, "episode_id": True, "step": True}
KINDS = ["one", "one, observations once", "batch", "per slot", "lanes", "lanes, observations once"]
PLACES = ["memory", "disk", "shared memory", "shared disk"]
# A file that was opened and not yet entered: Python closes it at once, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*_io[.].*:pytest.PytestUnraisableExceptionWarning")


class Recording:
    """A recorder after some steps, its buffers, and the steps that have returned."""

    def __init__(self, kind: str, place: str, folder: Path) -> None:
        self.kind, self.is_batch = kind, not kind.startswith("one")
        env: Any = SyncVecEnv(tallies(SLOTS)) if self.is_batch else TallyEnv(4)
        next_obs: Any = "shared" if kind.endswith("once") else True
        space = transition_space(env, next_obs=next_obs, **FIELDS)
        self.lanes = SLOTS if kind.startswith("lanes") else 1
        self.buffers = [
            ReplayBuffer.create(
                space,
                capacity=8,
                keep_episodes=kind != "batch",
                lanes=self.lanes,
                multiprocessing=place.startswith("shared"),
                cache_path=folder / str(slot) if place.endswith("disk") else None,
            )
            for slot in range(SLOTS if kind == "per slot" else 1)
        ]
        self.recorder = ReplayBufferCollectionWrapper(env, self.buffers, episodes="ignore")
        self.returned: list[tuple[float, ...]] = []  # the observations after each of the steps
        self.recorder.reset()
        self.step()

    def step(self) -> None:
        action = np.zeros((SLOTS, 2) if self.is_batch else 2, np.float32)
        _, observation, *_ = None, *self.recorder.step(action)
        self.returned += map(tuple, np.atleast_2d(observation).tolist())
        ended = np.atleast_1d(np.logical_or(*_[1:3]))
        if ended.any():
            self.recorder.reset(**({"mask": ended} if self.is_batch else {}))

    def check(self) -> None:
        """Transitions are of one episode each, and what has returned is there once, in its order."""
        found: list[tuple[float, ...]] = []
        for buffer in self.buffers:
            assert buffer.verify() == []
            rows = buffer.get_at(...)
            obs, after = rows["obs"], rows["next_obs"]
            assert np.array_equal(obs + np.array([0, 0, 1]), after), "a transition from one episode to another"
            assert np.array_equal(rows["step"], obs[:, 2])
            assert np.array_equal(rows["context"], 100 * obs[:, 0] + obs[:, 1])
            found += map(tuple, after.tolist())
            if not buffer.maintain_segment_metadata:
                continue
            ids = []
            for start, stop in buffer.get_segments() or []:
                own = slice(start, stop, self.lanes)
                assert len(np.unique(obs[own, :2], axis=0)) == 1, "two episodes in one"
                assert np.array_equal(np.diff(obs[own, 2]), np.ones(len(obs[own]) - 1)), "a hole in an episode"
                ids += np.unique(rows["episode_id"][own]).tolist()
            assert len(set(ids)) == len(ids), "one number for two episodes"
        assert len(set(found)) == len(found), "a transition twice"
        kept = [step for step in self.returned if step in found]
        assert kept == self.returned[-len(kept) :], "a step that has returned is missing"
        return len(found)

    def go_on(self) -> None:
        """Record more, at once where that is allowed and after a reset."""
        if getattr(self.recorder.env, "_closed", False):
            return
        if self.recorder._stepping is not None:
            self.recorder.step_wait()
        if self.recorder._resetting is not None:
            self.recorder.reset_wait()
        with contextlib.suppress(RuntimeError):  # the observation is not known
            self.step()
        self.check()
        self.recorder.reset()
        for _ in range(2):
            self.step()
        self.check()

    def close(self) -> None:
        self.recorder.close()
        for buffer in self.buffers:
            buffer.close()


def _reset_some(recording: Recording) -> None:
    recording.recorder.reset(**({"mask": np.array([False, True])} if recording.is_batch else {}))


def _steps_of_some(recording: Recording) -> None:
    recording.recorder.step_async(np.zeros((1, 2), np.float32), index=[1])
    recording.recorder.step_wait(min_envs=1)


def _step_and_reset_later(recording: Recording) -> None:
    recording.recorder.step_async(np.zeros((SLOTS, 2), np.float32))
    recording.recorder.step_wait()
    recording.recorder.reset_async()
    recording.recorder.reset_wait()


ACTS: dict[str, Callable[[Recording], Any]] = {
    "step": lambda recording: recording.step(),
    "steps": lambda recording: (recording.step(), recording.step(), recording.step()),
    "reset": lambda recording: recording.recorder.reset(),
    "reset of some": _reset_some,
    "step of some": _steps_of_some,
    "step and reset later": _step_and_reset_later,
    "close": lambda recording: recording.recorder.close(),
}


def kinds_with(name: str) -> list[str]:
    """The kinds of recordings in which there is such an act."""
    if name == "step and reset later":
        return [kind for kind in KINDS if not kind.startswith("one")]
    return ["batch", "per slot"] if name == "step of some" else KINDS


def interrupt_everywhere(act: Callable[[Recording], Any], kind: str, place: str, folder: Path, most: int) -> int:
    """Interrupt an act at about `most` of its points, each in a recording of its own; how many were interrupted."""
    counts, step, count = 0, 1, 0
    for at in itertools.count():
        if at and (at - 1) % step:
            continue
        recording = Recording(kind, place, folder)
        try:
            with Interrupter(OURS, at, press) as points:
                act(recording)
        except KeyboardInterrupt:
            count += 1
        if not at:
            counts = points.count
            step = max(1, counts // most)
        try:
            recording.check()
            recording.go_on()
            recording.close()
        except Exception as error:
            raise AssertionError(f"{kind}, {place}, point {at} of {counts}") from error
        shutil.rmtree(folder)
        folder.mkdir()
        if at > counts:
            return count
    raise AssertionError("unreachable")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ACTS)
def test_an_interrupt_anywhere(name: str, place: str, tmp_path: Path) -> None:
    first, kinds = list(ACTS).index(name) + 2 * PLACES.index(place), kinds_with(name)
    for kind in (kinds[first % len(kinds)], kinds[(first + 3) % len(kinds)]):
        assert interrupt_everywhere(ACTS[name], kind, place, tmp_path, MOST) > 3


@pytest.mark.soak
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in ACTS for kind in kinds_with(name)])
def test_an_interrupt_at_every_point(name: str, kind: str, place: str, tmp_path: Path) -> None:
    assert interrupt_everywhere(ACTS[name], kind, place, tmp_path, 10**9) > 3
