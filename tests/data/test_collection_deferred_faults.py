"""Steps that are yet to be written, with threads, forks and signals at any point."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from deferred_play import MODES, Recording, contents
from interrupter import Interrupter, interrupt
from recording_envs import as_rows, buffers_for, vector
from test_replay_buffer_processes import HERE, run

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper
from unienv_data.replay_buffer import _deferred, _lanes, _recording, _segments, _state, _writer
from unienv_data.storages import packed
from unienv_interface.space import row_layout

OURS = (_deferred, _recording, _writer, _segments, _lanes, _state, packed, row_layout)
TIMEOUT, MOST_POINTS = 60, 5000


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four steps, and however often buffers are looked at, no step is written as it comes."""
    monkeypatch.setattr(_deferred, "_MOST_STEPS", 4)
    monkeypatch.setattr(_recording, "_FEW_STEPS", 0)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# -- signals -------------------------------------------------------------------------------------------------


def _play(recording: Recording) -> None:
    """Steps over several blocks, with looks at a buffer in between."""
    recording.step(4)
    assert len(recording.buffers[0])
    recording.step(6)
    assert len(recording.buffers[-1])


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("mode", MODES)
def test_an_interrupt_anywhere_loses_no_step_and_writes_none_twice(mode: str) -> None:
    for at in range(1, MOST_POINTS):
        recording = Recording(mode, 2)
        recording.step(3)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(OURS, at, interrupt) as points:
            _play(recording)
        _check(recording, at)
        if points.count < at:  # it was over before
            break
        recording.reset()
        recording.step(5)
        _check(recording, at)
    assert 100 < at < MOST_POINTS - 1


def _check(recording: Recording, at: int) -> None:
    """Every step that has returned is there, once and in order; the one that has not, once or not at all."""
    for place, buffer in enumerate(recording.buffers):
        rows = as_rows(buffer)
        slots = range(recording.slots) if len(recording.buffers) == 1 else [place]
        for slot in slots:
            times = [row["obs"][1:] for row in rows if row["obs"][0] == slot]
            assert times == sorted(times), f"point {at}: out of order, {times}"
            assert len(set(map(tuple, times))) == len(times), f"point {at}: written twice, {times}"
            assert 0 <= len(times) - recording.returned <= recording.interrupted, f"point {at}: {times}"


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("mode", MODES)
def test_a_handler_may_look_anywhere(mode: str) -> None:
    """It sees whole steps, all but those that are being written, and disturbs nothing."""
    plain = Recording(mode, 2, is_direct=True)
    plain.step(13)
    wanted = [contents(buffer) for buffer in plain.buffers]
    for at in range(1, MOST_POINTS):
        recording, seen = Recording(mode, 2), []
        recording.step(3)
        rows = len(recording.buffers[0]) // recording.returned
        with Interrupter(OURS, at, lambda: seen.append(len(recording.buffers[0]))) as points:  # noqa: B023 - at once
            _play(recording)
        assert [contents(buffer) for buffer in recording.buffers] == wanted, f"point {at}"
        if points.count < at:
            break
        assert seen[0] in range(3 * rows, 13 * rows + 1, rows)
    assert 100 < at < MOST_POINTS - 1


# -- threads -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("few", [0, 10])
@pytest.mark.parametrize("mode", MODES)
def test_a_thread_looks_while_another_steps(mode: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recording, "_FEW_STEPS", few)
    recording, plain = Recording(mode, 2), Recording(mode, 2, is_direct=True)
    is_over, failures = threading.Event(), []

    def look() -> None:
        last = 0
        while not is_over.is_set():
            for buffer in recording.buffers:
                count = len(buffer)
                if count < last - 2 or (count and buffer[count - 1]["obs"].shape != (3,)):
                    failures.append((count, last))
            last = len(recording.buffers[0])

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for steps in range(1, 301):
            recording.step()
            if steps % 7 == 0:  # whoever looks after a step sees it
                assert len(recording.buffers[-1]) == steps * (2 if len(recording.buffers) == 1 else 1)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert not failures
    plain.step(300)
    assert [contents(buffer) for buffer in recording.buffers] == [contents(buffer) for buffer in plain.buffers]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("few", [0, 10])
def test_two_environments_are_recorded_into_one_buffer_at_once(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recording, "_FEW_STEPS", few)
    env = vector("sync", 2)
    buffer: ReplayBuffer = buffers_for("shared", env, infos=False, capacity=2000)
    failures: list[BaseException] = []

    def play(reward: float) -> None:
        try:
            wrapper = ReplayBufferCollectionWrapper(vector("sync", 2), buffer)
            wrapper.reset()
            for _ in range(300):
                _, _, terminated, truncated, _ = wrapper.step(np.full((2, 2), reward, np.float32))
                if (terminated | truncated).any():
                    wrapper.reset(mask=terminated | truncated)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=play, args=(reward,)) for reward in (0.0, 1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not failures
    assert len(buffer) == 2 * 2 * 300
    for reward in (0.0, 1.0):
        for slot in range(2):
            times = [row["obs"][1:] for row in as_rows(buffer) if row["action"][0] == reward and row["obs"][0] == slot]
            assert len(times) == 300
            assert times == sorted(times)


@pytest.mark.usefixtures("hasty", "few_at_once")
def test_snapshots_while_another_thread_steps(tmp_path: Any) -> None:
    recording = Recording("interleaved", 2)
    is_over, failures = threading.Event(), []

    def step() -> None:
        try:
            while not is_over.is_set() and recording.returned < 500:
                recording.step()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        counts = []
        for number in range(10):
            recording.buffers[0].dumps(tmp_path / str(number))
            counts.append(ReplayBuffer.get_length_from_path(tmp_path / str(number)))
    finally:
        is_over.set()
        thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert not failures
    assert counts == sorted(counts)


# -- forks ---------------------------------------------------------------------------------------------------


def test_forked_processes() -> None:
    """In a program of its own: with JAX in it, as this one may be, a process must not be forked."""
    assert run(str(HERE / "deferred_fork.py")) == "a child has the steps, too\na child does not hang\n"
