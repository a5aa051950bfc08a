"""Steps that are yet to be written, with threads, forks and signals at any point."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from deferred_play import MODES, Recording, contents
from interrupter import Interrupter, interrupt
from recording_envs import as_rows, buffers_for, vector
from test_replay_buffer_processes import HERE, run

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper
from unienv_data.replay_buffer import _deferred, _lanes, _recording, _segments, _state, _writer, replay_buffer
from unienv_data.storages import _row_memory, packed
from unienv_interface.space import row_layout

OURS = (_deferred, _recording, _writer, _segments, _lanes, _state, packed, _row_memory, row_layout)
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


# -- memory ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("mode", MODES)
def test_memory_that_is_not_to_be_had_is_an_error_of_the_step_that_wants_it(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_row_memory.RowMemory, "_generously", lambda _, length: length)
    recording = Recording(mode, 2, capacity=None)
    recording.step(8)
    with monkeypatch.context() as patch:
        patch.setattr(_row_memory, "check_memory", _refuse)
        with pytest.raises(MemoryError, match="no more"):
            recording.step(1)
        assert [len(buffer) for buffer in recording.buffers] == [16 // len(recording.buffers)] * len(recording.buffers)
    recording.reset()
    recording.step(5)
    assert sum(len(buffer) for buffer in recording.buffers) == 26


def _refuse(*_: Any) -> None:
    raise MemoryError("no more")


# -- signals -------------------------------------------------------------------------------------------------


def _play(recording: Recording) -> None:
    """Steps over several blocks, with looks at a buffer in between."""
    recording.step(4)
    assert len(recording.buffers[0])
    recording.step(6)
    assert len(recording.buffers[-1])


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("capacity", [1200, None], ids=["ring", "growing"])
@pytest.mark.parametrize("mode", MODES)
def test_an_interrupt_anywhere_loses_no_step_and_writes_none_twice(mode: str, capacity: int | None) -> None:
    for at in range(1, MOST_POINTS):
        recording = Recording(mode, 2, capacity=capacity)
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
    """Every step that has returned is there, once, in order and in its episode; one that has not, so or not at all."""
    for place, buffer in enumerate(recording.buffers):
        rows, segments, is_open = as_rows(buffer), buffer.get_segments(), False
        wanted = []
        slots = range(recording.slots) if len(recording.buffers) == 1 else [place]
        for slot in slots:
            numbers = [number for number, row in enumerate(rows) if row["obs"][0] == slot]
            times = [tuple(rows[number]["obs"][1:]) for number in numbers]
            assert times == sorted(set(times)), f"point {at}: {times}"
            assert 0 <= len(times) - recording.returned <= recording.interrupted, f"point {at}: {times}"
            for episode in sorted({time[0] for time in times}):
                first, *_, last = [n for n in numbers if rows[n]["obs"][1] == episode] * 2
                if last == numbers[-1] and not rows[last]["done"]:
                    is_open = True
                else:
                    wanted.append((first, last + 1))
        if buffer.is_segment_aware:
            assert segments == sorted(wanted), f"point {at}"
            assert buffer.has_open_segment == is_open, f"point {at}"


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
        rows, *_ = (len(buffer) // recording.returned for buffer in recording.buffers)
        with Interrupter(OURS, at, lambda: seen.extend(map(len, recording.buffers[::-1] * 2))) as points:  # noqa: B023
            _play(recording)
        assert [contents(buffer) for buffer in recording.buffers] == wanted, f"point {at}"
        if points.count < at:
            break
        assert all(count in range(3 * rows, 13 * rows + 1, rows) for count in seen)
    assert 100 < at < MOST_POINTS - 1


@pytest.mark.usefixtures("few_at_once")
def test_interrupts_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comes when steps were written and are not yet known to be, the second when that is looked into."""
    recording = Recording("per_env", 2)
    recording.step(3)
    add_all = _segments.SegmentIndex.add_all

    def interrupted(*arguments: Any) -> None:
        add_all(*arguments)
        monkeypatch.setattr(_segments.SegmentIndex, "add_all", add_all)
        monkeypatch.setattr(_state.BufferState, "recover", interrupted_again)
        raise KeyboardInterrupt

    recover = _state.BufferState.recover

    def interrupted_again(*arguments: Any) -> None:
        recover(*arguments)
        monkeypatch.setattr(_state.BufferState, "recover", recover)
        raise KeyboardInterrupt

    monkeypatch.setattr(_segments.SegmentIndex, "add_all", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            len(recording.buffers[0])
    _check(recording, 0)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("meanwhile", [len, lambda buffer: buffer.remove_at([])], ids=["looked at", "written to"])
def test_a_step_that_is_interrupted_once_it_is_staged_stays_in_its_episode(
    meanwhile: Callable[[ReplayBuffer], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording("per_env", 2)
    recording.step(1)
    add = _deferred.StepBlock.add

    def looked_at_and_interrupted(*arguments: Any) -> None:
        meanwhile(recording.buffers[0])  # as another thread may, just now
        add(*arguments)
        monkeypatch.setattr(_deferred.Share, "await_steps", lambda *_: interrupt())

    with monkeypatch.context() as monkeypatch:
        monkeypatch.setattr(_deferred.StepBlock, "add", looked_at_and_interrupted)
        with pytest.raises(KeyboardInterrupt):
            recording.step()
    recording.reset()
    recording.step(3)
    _check(recording, 0)
    assert recording.buffers[0].get_segments() == [(0, 2)]


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


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_has_returned_is_seen_wherever_another_thread_has_got_to(mode: str) -> None:
    for at in range(1, MOST_POINTS):
        recording = Recording(mode, 2)
        recording.step(3)
        seen, points = _seen_beside_one_who_looks(recording, at)
        rows = 2 if len(recording.buffers) == 1 else 1
        assert all(count >= returned * rows for returned, count in seen), f"point {at}: {seen}"
        if points < at:
            break
    assert 10 < at < MOST_POINTS - 1


def _seen_beside_one_who_looks(recording: Recording, at: int) -> tuple[list[tuple[int, int]], int]:
    """Steps at some point of another thread's look, and looks at each that follows: steps returned, and rows seen.

    Those who have to wait for it are waited for afterwards.
    """
    buffer = recording.buffers[0]
    turns, go_on = threading.Semaphore(0), threading.Semaphore(0)
    seen: list[tuple[int, int]] = []
    counted: list[int] = []
    others: list[threading.Thread] = []

    def stop() -> None:
        turns.release()
        assert go_on.acquire(timeout=TIMEOUT)

    def look_and_stop() -> None:
        with Interrupter((_deferred,), at, stop, and_after=True) as points:
            len(buffer)
        counted.append(points.count)
        turns.release()

    def look() -> None:
        returned = recording.returned
        seen.append((returned, len(buffer)))

    def meanwhile(action: Callable[[], None]) -> None:
        thread = threading.Thread(target=action)
        others.append(thread)
        thread.start()
        thread.join(0.002)  # it is over by then, or waits for the one that has stopped

    first = threading.Thread(target=look_and_stop)
    first.start()
    assert turns.acquire(timeout=TIMEOUT)
    meanwhile(lambda: recording.step(2))
    while not counted:
        meanwhile(look)
        go_on.release()
        assert turns.acquire(timeout=TIMEOUT)
    for thread in [first, *others]:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    return seen, counted[0]


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

    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            len(buffer)

    threads = [threading.Thread(target=play, args=(reward,)) for reward in (0.0, 1.0)]
    lookers = [threading.Thread(target=look) for _ in range(2)]
    for thread in [*lookers, *threads]:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    is_over.set()
    for thread in lookers:
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


def _run_in_thread(action: Callable[[], None]) -> list[BaseException]:
    """Do something in another thread and wait for it; what it has raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    return raised


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_step_while_another_thread_appends(is_direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording("shared", 2, is_direct=is_direct)
    buffer = recording.buffers[0]
    recording.step(12)
    append, row = _writer.BufferWriter.append, buffer[0]

    def after_a_step(*arguments: Any) -> None:
        assert not _run_in_thread(recording.step)
        append(*arguments)

    with monkeypatch.context() as monkeypatch:
        monkeypatch.setattr(_writer.BufferWriter, "append", after_a_step)
        buffer.append(row)
    with pytest.raises(RuntimeError, match="while a segment of append is open"):
        recording.step()
    assert as_rows(buffer)[-1]["obs"] == row["obs"].tolist()
    assert len(buffer) == 2 * 13 + 1


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_step_while_another_thread_closes(is_direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording("per_env", 2, is_direct=is_direct)
    recording.step(12)
    buffer, closed, failures = recording.buffers[0], replay_buffer._Closed, []

    def during_a_step() -> Any:
        thread = threading.Thread(target=lambda: failures.extend(_run_in_thread(recording.step)))
        thread.start()
        thread.join(0.05)  # where steps are deferred, it waits for this very call to return
        return closed()

    monkeypatch.setattr(replay_buffer, "_Closed", during_a_step)
    buffer.close()
    buffer.close()
    assert repr(buffer) == f"<{type(buffer).__name__}, closed>"
    assert buffer.capacity == 1200


# -- forks ---------------------------------------------------------------------------------------------------


def test_forked_processes() -> None:
    """In a program of its own: with JAX in it, as this one may be, a process must not be forked."""
    assert run(str(HERE / "deferred_fork.py")) == "a child has the steps, too\na child does not hang\na child goes on\n"
