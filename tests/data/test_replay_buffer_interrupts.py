"""Ctrl-C at every point of what changes a buffer: it stays sound, and what comes after it is right."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import fcntl
import itertools
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers
from interrupter import Interrupter, press
from power_cut import batch, number_in, sample, space_of

import unienv_data
import unienv_interface
from unienv_data import ReplayBuffer
from unienv_data.replay_buffer._locks import SharedWriteLock
from unienv_data.storages.parquet import ParquetStorage
from unienv_interface.backends import NumpyComputeBackend

# With the modules of the standard library whose code waits for threads.
OURS = (unienv_data, unienv_interface, concurrent.futures, contextlib, threading)
MOST = 12
LOAD: dict[str, Any] = {"backend": NumpyComputeBackend}
# A file that was opened and not yet entered: Python closes it at once, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*_io[.].*:pytest.PytestUnraisableExceptionWarning")


# -- at every point of every verb ----------------------------------------------------------------------------


class Subject:
    """A buffer with two closed episodes of five samples each, or in two lanes, before an act.

    It is filled anew for each interrupt, so that what an earlier one has left would show as well.
    """

    def __init__(self, place: str, capacity: int | None, leaves: str, lanes: int, folder: Path) -> None:
        self.leaves, self.lanes, self.folder, self.path = leaves, lanes, folder, None
        if place.endswith("disk"):
            self.path = folder / "buffer"
        self.shared = place.startswith("shared")
        self.buffer = self.create(
            capacity=capacity,
            cache_path=self.path,
            multiprocessing=self.shared,
            maintain_segment_metadata=True,
            lanes=lanes,
        )

    def create(self, **options: Any) -> ReplayBuffer:
        return ReplayBuffer.create(space_of(self.leaves), **options)

    def sample(self, number: int) -> Any:
        return sample(number, self.leaves)

    def samples(self, *numbers: int) -> Any:
        return batch(list(numbers), self.leaves)

    def number_in(self, value: Any) -> int | None:
        return number_in(value, self.leaves)

    def add(self, *numbers: int) -> None:
        """Samples of the open episode, or of those of the lanes."""
        for first in range(0, len(numbers), self.lanes):
            if self.lanes == 1:
                self.buffer.append(self.sample(numbers[first]))
            else:
                self.buffer.extend_lanes(self.samples(*numbers[first : first + self.lanes]))

    def fill(self, *, is_open: bool = False) -> None:
        self.buffer.mark_segment_end()
        self.buffer.clear()
        for first in (0, 6):
            self.add(*range(first, first + 6))
            if not first or not is_open:
                self.buffer.mark_segment_end()

    def look(self, buffer: ReplayBuffer | None = None) -> Any:
        buffer = buffer or self.buffer
        samples = buffer.get_at(...)
        found = [
            self.number_in({name: column[index] for name, column in samples.items()}) for index in range(len(buffer))
        ]
        return found, buffer.get_segments(), buffer.has_open_segment, buffer.verify()

    def writes_after(self) -> list[Callable[[], Any]]:
        buffer = self.buffer
        return [
            lambda: self.add(20, 21),
            buffer.mark_segment_end,
            lambda: self.add(22, 23),
            lambda: buffer.set_at(0, self.sample(24)),
            lambda: buffer.remove_at([0] if self.lanes == 1 else [0, 1]),
        ]

    def go_on(self) -> Any:
        """What is found after some more writes."""
        for write in self.writes_after():
            write()
        return self.look()

    def reopen(self) -> None:
        """After a close, as another process would; in memory, where nothing is left, a new one."""
        if self.path is None:
            options: dict[str, Any] = {"capacity": self.buffer.capacity, "multiprocessing": self.shared}
            self.buffer = self.create(maintain_segment_metadata=True, lanes=self.lanes, **options)
        else:
            self.buffer = ReplayBuffer.load_from(self.path, read_only=False, multiprocessing=self.shared, **LOAD)


Act = Callable[[Subject], None]


def _extend_lanes(subject: Subject, steps: int) -> None:
    ended = np.zeros((steps, 2), bool)
    ended[0, 0] = ended[-1, 1] = True
    values = subject.samples(*range(12, 12 + 2 * steps))
    if steps > 1:
        values = {name: value.reshape(steps, 2, *value.shape[1:]) for name, value in values.items()}
    subject.buffer.extend_lanes(values, ended if steps > 1 else ended[0])


class Verb(NamedTuple):
    act: Act
    lanes: int = 1
    is_open: bool = False


VERBS = {
    "append": Verb(lambda subject: subject.add(12)),
    "extend": Verb(lambda subject: subject.buffer.extend(subject.samples(12, 13, 14))),
    "lanes": Verb(lambda subject: _extend_lanes(subject, 1), 2, True),
    "block of lanes": Verb(lambda subject: _extend_lanes(subject, 3), 2, True),
    "end": Verb(lambda subject: subject.buffer.mark_segment_end(), 1, True),
    "end lanes": Verb(lambda subject: subject.buffer.mark_segment_end([True, False]), 2, True),
    "set": Verb(lambda subject: subject.buffer.set_at([1, 8], subject.samples(15, 16))),
    "remove": Verb(lambda subject: subject.buffer.remove_at(8), 1, True),
    "remove older": Verb(lambda subject: subject.buffer.remove_at([2, 3])),
    "remove oldest": Verb(lambda subject: subject.buffer.remove_at([0, 1]), 2),
    "clear": Verb(lambda subject: subject.buffer.clear(), 1, True),
    "flush": Verb(lambda subject: subject.buffer.flush(), 2, True),
    "dumps": Verb(lambda subject: subject.buffer.dumps(subject.folder / "copy"), 2),
    "dumps to itself": Verb(lambda subject: subject.buffer.dumps(subject.path or subject.folder / "other")),
    "close": Verb(lambda subject: subject.buffer.close(), 2),
}
PLACES = ["memory", "disk", "shared memory", "shared disk"]
FORMS = list(itertools.product([12, None], ["small", "blocks", "heap"]))  # the ring of twelve is full


def interrupt_everywhere(
    verb: Verb, place: str, form: tuple[int | None, str], folder: Path, most: int, kind: type[Subject] = Subject
) -> int:
    """Interrupt an act at about `most` of its points, in turn; how many were interrupted."""
    (capacity, leaves), count = form, 0
    subject = kind(place, capacity, leaves, verb.lanes, folder)
    subject.fill(is_open=verb.is_open)
    before = subject.look()
    wanted = {False: [before, subject.go_on()]}
    subject.fill(is_open=verb.is_open)
    with Interrupter(OURS, 0, press) as points:
        verb.act(subject)
    if subject.buffer.is_closed:
        subject.reopen()
    wanted[True] = [subject.look(), subject.go_on()]
    step = max(1, points.count // most)
    for at in itertools.count(1 + len(place) % step, step):
        what = f"{place}, {form}, point {at}"
        subject.fill(is_open=verb.is_open)
        try:
            with Interrupter(OURS, at, press) as points:
                verb.act(subject)
        except KeyboardInterrupt:
            count += 1
        except Exception as error:
            raise AssertionError(what) from error
        if points.count < at:
            break
        _check_after(subject, wanted, what)
    subject.buffer.close()
    return count


def _check_after(subject: Subject, wanted: dict[bool, list[Any]], what: str) -> None:
    """The act has happened or has not, and what comes next is as if there had been no interrupt."""
    buffer = subject.buffer
    assert is_free(buffer), f"{what}: other writers wait for ever"
    if buffer._writer._is_closed:  # it goes on when it is closed once more
        with pytest.raises(RuntimeError, match="the buffer is closed"):
            subject.add(20, 21)
        buffer.close()
        is_lost = subject.path is None
        subject.reopen()
        if is_lost:
            return
    if (subject.folder / "copy").exists():
        with ReplayBuffer.load_from(subject.folder / "copy", **LOAD) as copied:
            assert subject.look(copied) == wanted[False][0], f"{what}: the copy is not whole"
    found = subject.look()
    try:
        has_happened = found != wanted[False][0]
        assert found == wanted[has_happened][0]
        assert subject.go_on() == wanted[has_happened][1]
    except Exception as error:
        raise AssertionError(f"{what}: {found}, wanted {wanted[False][0]} or {wanted[True][0]}") from error


def is_free(buffer: ReplayBuffer) -> bool:
    """Whether another process could take the lock among processes."""
    lock = buffer._state.write_lock
    if not isinstance(lock, SharedWriteLock) or sys.platform != "linux" or lock._file.fd < 0:
        return True
    fd = os.open(f"/proc/self/fd/{lock._file.fd}", os.O_RDWR)  # a lock of an open file meets our own as another's
    try:
        layout = struct.Struct("hhqqi4x")
        asked = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return layout.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK
    finally:
        os.close(fd)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", VERBS)
def test_an_interrupt_anywhere(name: str, place: str, tmp_path: Path) -> None:
    form = FORMS[(list(VERBS).index(name) + PLACES.index(place)) % len(FORMS)]
    assert interrupt_everywhere(VERBS[name], place, form, tmp_path, most=MOST) > 3


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("name", ["set", "remove"])
def test_an_edit_is_finished_however_often_ctrl_c_is_pressed(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject(place, 12, "small", 1, tmp_path)
    subject.fill()
    VERBS[name].act(subject)
    after, storage, presses = subject.look(), type(subject.buffer.storage), 0

    def write(*arguments: Any) -> None:
        nonlocal presses
        presses += 1
        press()
        written(*arguments)

    written = storage.write_raw_rows
    subject.fill()
    monkeypatch.setattr(storage, "write_raw_rows", write)
    with pytest.raises(KeyboardInterrupt):
        VERBS[name].act(subject)
    monkeypatch.undo()
    assert presses == 2
    assert subject.look() == after
    subject.buffer.close()


@pytest.mark.soak
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", VERBS)
def test_an_interrupt_at_every_point(name: str, place: str, form: tuple[int | None, str], tmp_path: Path) -> None:
    assert interrupt_everywhere(VERBS[name], place, form, tmp_path, most=10**9) > 3


# -- edits that are flushed ----------------------------------------------------------------------------------

DURABLE: dict[str, Callable[[ReplayBuffer], None]] = {
    "set": lambda buffer: buffer.set_at([1, 6], numbers([1, 6])),
    "remove": lambda buffer: buffer.remove_at(7),
}


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
                DURABLE[name](buffer)
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


@pytest.mark.parametrize("shared", [False, True], ids=["one process", "several"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_handler_that_writes_is_refused_and_one_that_reads_gets_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_disk: bool, shared: bool
) -> None:
    """On top of a write of the same thread, waiting for its end would be a deadlock."""
    buffer = ReplayBuffer.create(
        number_space(),
        capacity=12,
        maintain_segment_metadata=True,
        multiprocessing=shared,
        cache_path=tmp_path / "a" if on_disk else None,
    )
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

    def handler(*_: object) -> None:
        for attempt in attempts:
            with pytest.raises(RuntimeError, match="in the middle of another write to the buffer"):
                attempt()
        seen.append((contents(buffer), buffer.get_segments(), len(buffer)))

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        write(*arguments)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(type(buffer.storage), "write", interrupted)
            buffer.extend(numbers([5, 6]))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [([0, 1, 2, 3, 4], [(0, 5)], 5)]
    buffer.append(number(7))
    assert contents(buffer) == list(range(8))


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
