"""Writers that are no relatives of each other, that are killed in the middle of a write, and that are stopped there."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, hashed, hashed_space, number, number_space, numbers
from process_play import _check_segments
from test_replay_buffer_processes import HERE, SOURCE
from unrelated_writer import PAYLOAD

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend

LOAD: dict[str, Any] = {"backend": NumpyComputeBackend}
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE), str(HERE.parent)])}


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process that has nothing of this one but its environment, and whose output is read here."""
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


# -- no relatives --------------------------------------------------------------------------------------------


class Writers:
    """Processes that write to one folder, each under a number of its own, and what they have acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, dict[int, subprocess.Popen[str]]()
        self.acknowledged: dict[int, int] = {}

    def start(self, *arguments: str) -> int:
        who = len(self.acknowledged) + 1
        self.acknowledged[who] = 0
        self.running[who] = start(str(HERE / "unrelated_writer.py"), str(self.folder), str(who), *arguments)
        return who

    def hear(self, who: int, episodes: int | None = None) -> None:
        """Wait for so many episodes of a writer; without a number, for all up to its end."""
        output: Any = self.running[who].stdout
        while episodes is None or episodes > 0:
            line = output.readline()
            if not line.endswith("\n"):
                break
            self.acknowledged[who] += int(line.split()[1])
            episodes = None if episodes is None else episodes - 1

    def await_death(self, who: int) -> None:
        self.hear(who)
        process = self.running.pop(who)
        process.stdout.close()  # type: ignore[union-attr]
        assert process.wait(60) == -signal.SIGKILL, f"writer {who} failed by itself"

    def kill(self) -> None:
        for who, process in list(self.running.items()):
            process.kill()
            self.await_death(who)


def write_unrelated(folder: Path, deaths: int) -> Writers:
    """Three writers at a time; one of them dies in the middle of a write so often, and another one joins."""
    ReplayBuffer.create(
        hashed_space(PAYLOAD), cache_path=folder, multiprocessing=True, maintain_segment_metadata=True
    ).close()
    writers = Writers(folder)
    try:
        steady = [writers.start(), writers.start()]
        for seed in range(deaths):
            writers.await_death(writers.start("--die", str(seed)))
        joined = writers.start()
        for who in (*steady, joined):
            writers.hear(who, 3)
    finally:
        writers.kill()
    return writers


def check_unrelated(writers: Writers, deaths: int) -> None:
    with ReplayBuffer.load_from(writers.folder, **LOAD) as reader:
        found = reader.verify()
        assert found == []
    with ReplayBuffer.load_from(writers.folder, read_only=False, multiprocessing=True, **LOAD) as buffer:
        assert len(writers.acknowledged) == deaths + 3
        assert min(writers.acknowledged.values()) > 0
        _check_segments(buffer, writers.acknowledged)
        buffer.extend(hashed(0, 1, 3, PAYLOAD))
        assert buffer.verify() == []


def test_three_unrelated_writers_one_of_which_dies_and_is_started_again(tmp_path: Path) -> None:
    check_unrelated(write_unrelated(tmp_path / "buffer", 2), 2)


@pytest.mark.soak
def test_unrelated_writers_die_a_hundred_times(tmp_path: Path) -> None:
    for part in range(5):
        check_unrelated(write_unrelated(tmp_path / str(part), 20), 20)


# -- stopped in the middle -----------------------------------------------------------------------------------

STOPPED = """
import os, signal, sys
from buffers import numbers
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
buffer = ReplayBuffer.load_from(
    sys.argv[1], backend=NumpyComputeBackend, read_only=False, multiprocessing=sys.argv[2] == "True"
)
storage = type(buffer.storage)
write = storage.write_raw_rows
def stop(*arguments):
    os.kill(os.getpid(), signal.SIGSTOP)
    write(*arguments)
storage.write_raw_rows = stop
buffer.set_at([1, 3], numbers([11, 13]))
print("done", flush=True)
signal.pause()
"""
READS: list[Callable[[ReplayBuffer], Any]] = [
    lambda buffer: buffer.get_at([0, 1]),
    lambda buffer: buffer.get_windows_at(np.array([1]), np.array([-1, 0])),
    lambda buffer: buffer.get_segments(),
    lambda buffer: buffer.verify(),
]


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_readers_do_not_wait_for_ever_for_a_writer_that_is_stopped(multiprocessing: bool, tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    with ReplayBuffer.create(
        number_space(), capacity=8, cache_path=path, multiprocessing=multiprocessing, maintain_segment_metadata=True
    ) as buffer:
        buffer.extend(numbers(range(5)))
    options: dict[str, Any] = {"read_only": False, "multiprocessing": True} if multiprocessing else {}
    with ReplayBuffer.load_from(path, **LOAD) as reader, ReplayBuffer.load_from(path, **options, **LOAD) as other:
        assert reader.edit_timeout == other.edit_timeout == 30.0
        reader.edit_timeout = other.edit_timeout = 0.05
        with start("-c", STOPPED, str(path), str(multiprocessing)) as writer:
            try:
                _, status = os.waitpid(writer.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                for buffer, read in itertools.product([reader, other], READS):
                    with pytest.raises(TimeoutError, match=rf"buffer: its writer \(pid {writer.pid}\).* for 0.05 s"):
                        read(buffer)
                writer.send_signal(signal.SIGCONT)
                assert writer.stdout is not None
                assert writer.stdout.readline() == "done\n"
                assert contents(reader) == contents(other) == [0, 11, 2, 13, 4]
            finally:
                writer.kill()
    with ReplayBuffer.load_from(path, read_only=False, **LOAD) as again:
        again.append(number(5))
        assert contents(again) == [0, 11, 2, 13, 4, 5]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(seconds: float) -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=8)
    with pytest.raises(ValueError, match=f"edit_timeout is {seconds}, it must be a number of seconds above 0"):
        buffer.edit_timeout = seconds


def test_a_close_that_cannot_repair_gives_back_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, options = tmp_path / "buffer", {"read_only": False, "backend": NumpyComputeBackend}
    buffer = ReplayBuffer.create(number_space(), cache_path=path, multiprocessing=True)
    buffer.extend(numbers([1, 2]))
    buffer._counters.writer = os.getpid()  # as after a write that has failed

    def fail(*arguments: Any) -> bool:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(type(buffer.storage), "forget_rows", fail)
        with pytest.raises(OSError, match="allocate memory"):
            buffer.close()
    with ReplayBuffer.load_from(path, **options) as again:
        assert contents(again) == [1, 2]
