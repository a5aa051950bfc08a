"""Ctrl-C at every point of what changes a buffer: it stays sound, and what comes after it is right."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from buffers import contents, number, number_space, numbers
from interrupter import Interrupter, interrupt

from unienv_data import ReplayBuffer
from unienv_data.replay_buffer import _journal, _lanes, _locks, _segments, _state, _writer
from unienv_data.storages import _checks, packed
from unienv_data.storages.parquet import ParquetStorage

OURS = (_journal, _lanes, _locks, _segments, _state, _writer, _checks, packed)
MOST_POINTS = 2000
ACTS: dict[str, Callable[[ReplayBuffer], None]] = {
    "append": lambda buffer: buffer.append(number(10)),
    "extend": lambda buffer: buffer.extend(numbers([10, 11, 12])),
    "end": lambda buffer: buffer.mark_segment_end(),
    "set": lambda buffer: buffer.set_at([1, 6], numbers([1, 6])),
    "remove": lambda buffer: buffer.remove_at(7),
    "remove oldest": lambda buffer: buffer.remove_at([0, 1]),
    "clear": lambda buffer: buffer.clear(),
}


def _made(name: str, path: Path | None) -> ReplayBuffer:
    """Two closed episodes, 0 to 4 and 5 to 9; before `end` the second one is open."""
    buffer = ReplayBuffer.create(number_space(), capacity=12, maintain_segment_metadata=True, cache_path=path)
    buffer.extend(numbers(range(5)))
    for value in range(5, 10):
        buffer.append(number(value))
    if name != "end":
        buffer.mark_segment_end()
    return buffer


# What is moved within a buffer goes by way of a journal only on disk.
@pytest.mark.parametrize(("name", "is_on_disk"), [(name, on) for name in ACTS for on in {name == "remove", True}])
def test_an_interrupt_anywhere(name: str, is_on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(1, MOST_POINTS):
        with _made(name, tmp_path / str(at) if is_on_disk else None) as buffer:
            with contextlib.suppress(KeyboardInterrupt), Interrupter(OURS, at, interrupt) as points:
                ACTS[name](buffer)
            buffer.mark_segment_end()
            last = len(buffer)
            buffer.append(number(20))
            buffer.append(number(21))
            buffer.mark_segment_end()
            values, segments = contents(buffer), buffer.get_segments()
            assert segments is not None
            assert values[-2:] == [20, 21], f"point {at}"
            assert values == sorted(values), f"point {at}"
            assert segments[-1] == (min(last, 10), min(last, 10) + 2), f"point {at}: {segments}"
            assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(segments)), segments
            assert buffer.verify() == [], f"point {at}"
        if points.count < at:
            break
    assert 1 < at < MOST_POINTS - 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")], ids=["Ctrl-C", "EIO"])
@pytest.mark.parametrize("name", ["set", "remove"])
def test_a_flush_of_a_durable_edit_that_does_not_end_well(
    name: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading does not wait for an edit that nobody is making; after a flush that has failed, nothing is written."""
    sync, fails_at, count = os.fsync, 0, 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        sync(descriptor)
        count += 1
        if count == fails_at:
            raise error

    monkeypatch.setattr(os, "fsync", fsync)
    for at in range(1, 50):
        with ReplayBuffer.create(
            number_space(), capacity=12, durable=True, maintain_segment_metadata=True, cache_path=tmp_path / str(at)
        ) as buffer:
            buffer.extend(numbers(range(10)))
            fails_at, count = at, 0
            try:
                ACTS[name](buffer)
            except type(error):
                is_over = False
            else:
                is_over = True
            fails_at = 0
            assert contents(buffer) in (list(range(10)), [value for value in range(10) if value != 7])
            assert buffer.verify() == []
            if not is_over and isinstance(error, OSError) and at > 1:  # the first is that of the journal alone
                with pytest.raises(OSError, match="a flush has failed"):
                    buffer.append(number(20))
                buffer._writer._failure, buffer._writer._is_refused = None, False
        if is_over:
            break
    assert 3 < at < 49


def test_a_handler_may_copy_a_buffer_that_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the thread that it runs on top of."""
    buffer = ReplayBuffer.create(number_space(), capacity=12)
    write, copies = type(buffer.storage).write, []

    def interrupted(*arguments: Any) -> None:
        copies.append(copy.copy(buffer))
        write(*arguments)

    monkeypatch.setattr(type(buffer.storage), "write", interrupted)
    buffer.extend(numbers(range(5)))
    assert contents(copies[0]) == list(range(5))


def test_a_handler_that_writes_is_refused_and_one_that_reads_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On top of a write of the same thread, to wait for its end would be to wait for ever."""
    buffer = ReplayBuffer.create(number_space(), capacity=12, maintain_segment_metadata=True)
    buffer.extend(numbers(range(5)))
    write, seen = type(buffer.storage).write, []
    attempts: list[Callable[[], Any]] = [
        lambda: buffer.append(number(9)),
        lambda: buffer.extend(numbers([9])),
        lambda: buffer.set_at(0, number(9)),
        lambda: buffer.remove_at(0),
        buffer.mark_segment_end,
        buffer.clear,
        buffer.flush,
        buffer.close,
    ]

    def interrupted(*arguments: Any) -> None:
        for attempt in attempts:
            with pytest.raises(RuntimeError, match="in the middle of another write to the buffer"):
                attempt()
        seen.append((contents(buffer), buffer.get_segments(), len(buffer)))
        write(*arguments)

    monkeypatch.setattr(type(buffer.storage), "write", interrupted)
    buffer.extend(numbers([5, 6]))
    assert seen == [([0, 1, 2, 3, 4], [(0, 5)], 5)]
    monkeypatch.undo()
    assert contents(buffer) == list(range(7))


def test_a_handler_reads_in_the_middle_of_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer.create(number_space(), cache_path=tmp_path / "a")
    buffer.extend(numbers(range(5)))
    write, seen = type(buffer.storage).write_raw_rows, []

    def interrupted(*arguments: Any) -> None:
        seen.append(contents(buffer))
        write(*arguments)
        seen.append(contents(buffer))

    monkeypatch.setattr(type(buffer.storage), "write_raw_rows", interrupted)
    buffer.set_at(2, number(7))
    assert seen == [[0, 1, 2, 3, 4], [0, 1, 7, 3, 4]]


def test_an_edit_that_fails_without_a_flush_is_no_failed_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplayBuffer.create(ParquetStorage, number_space(), durable=True, cache_path=tmp_path / "a") as buffer:
        buffer.extend(numbers(range(5)))
        with monkeypatch.context() as patch:
            patch.setattr(ParquetStorage, "set", lambda *arguments: os.listdir(tmp_path / "nowhere"))
            with pytest.raises(FileNotFoundError):
                buffer.set_at(2, number(7))
        buffer.append(number(5))
        assert contents(buffer) == list(range(6))
