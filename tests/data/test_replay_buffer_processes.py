"""Kills, several processes, and who may write. What forks runs in a program of its own: here other threads run."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from buffers import contents, number, number_space, numbers, read

from unienv_data import ReplayBuffer
from unienv_data.replay_buffer._state import BufferState
from unienv_interface.backends import NumpyComputeBackend

NUMPY = NumpyComputeBackend
HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"


def run(*arguments: str, given: str | None = None) -> str:
    """The output of a Python program that must succeed."""
    # a folder in memory, where there is one: these programs sync at every turn
    folder = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    environment = {**os.environ, **folder, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE)])}
    result = subprocess.run(
        [sys.executable, "-W", "error", *arguments], input=given, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


# -- kills -------------------------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_in_a_hundred_kills() -> None:
    assert "100 kills" in run(str(HERE / "kill_loop.py"), "--kills", "100")


def test_nothing_is_lost_wherever_a_writer_is_killed() -> None:
    assert "nothing lost" in run(str(HERE / "kill_sweep.py"), "--every", "60", "--offset", "30")


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_in_a_thousand_kills() -> None:
    assert "1000 kills" in run(str(HERE / "kill_loop.py"), "--kills", "1000", "--seed", "1000")


@pytest.mark.soak
def test_nothing_is_lost_at_any_line() -> None:
    assert "nothing lost" in run(str(HERE / "kill_sweep.py"), "--every", "1")


# -- readers and writers -----------------------------------------------------------------------------------


def test_readers_see_no_torn_rows() -> None:
    assert "none torn" in run(str(HERE / "process_play.py"), "torn", "--seconds", "1.5")


@pytest.mark.parametrize(
    ("start_method", "place"),
    [("fork", "memory"), ("fork", "disk"), ("spawn", "memory"), pytest.param("spawn", "disk", marks=pytest.mark.soak)],
)
def test_writers_that_are_killed_leave_whole_episodes(start_method: str, place: str) -> None:
    seconds = "1" if start_method == "fork" else "2"
    on_disk = ["--on-disk"] if place == "disk" else []
    options = ["--seconds", seconds, "--start-method", start_method, *on_disk]
    assert "each there once" in run(str(HERE / "process_play.py"), "writers", *options)


@pytest.mark.soak
def test_readers_see_no_torn_rows_for_ten_minutes() -> None:
    run(str(HERE / "process_play.py"), "torn", "--seconds", "600", "--processes", "4")


@pytest.mark.soak
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_writers_leave_whole_episodes_for_five_minutes(place: str) -> None:
    on_disk = ["--on-disk"] if place == "disk" else []
    run(str(HERE / "process_play.py"), "writers", "--seconds", "300", "--processes", "4", *on_disk)


def extend_by(buffer: ReplayBuffer, values: list[int]) -> None:
    buffer.extend(numbers(values))


@pytest.mark.parametrize("capacity", [4, None])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_shared_buffer_goes_to_a_spawned_process(capacity: int | None, place: str, tmp_path: Path) -> None:
    path = {"cache_path": tmp_path / "buffer"} if place == "disk" else {}
    with ReplayBuffer.create(
        number_space(), capacity=capacity, multiprocessing=True, maintain_segment_metadata=True, **path
    ) as buffer:
        assert buffer.is_multiprocessing_safe
        buffer.extend(numbers([1, 2]))
        process = multiprocessing.get_context("spawn").Process(target=extend_by, args=(buffer, [3, 4, 5]))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert contents(buffer) == [1, 2, 3, 4, 5][-(capacity or 5) :]
        assert buffer.get_segments() == ([(0, 1), (1, 4)] if capacity else [(0, 2), (2, 5)])


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    with ReplayBuffer.create(number_space(), cache_path=tmp_path / "buffer") as buffer:
        threads = [threading.Thread(target=buffer.extend, args=(numbers([n] * 5),)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = contents(buffer)
        assert sorted(found) == sorted([n for n in range(20) for _ in range(5)])
        assert all(len(set(found[start : start + 5])) == 1 for start in range(0, 100, 5))


def test_a_buffer_in_memory_is_copied_when_it_is_pickled() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=4, maintain_segment_metadata=True)
    buffer.extend(numbers([0, 1, 2]))
    buffer.extend(numbers([3, 4]))
    copy = pickle.loads(pickle.dumps(buffer))
    copy.extend(numbers([9]))
    assert (contents(copy), copy.get_segments()) == ([2, 3, 4, 9], [(0, 1), (1, 3), (3, 4)])
    assert contents(buffer) == [1, 2, 3, 4]


def test_a_reader_is_pickled_as_its_path(tmp_path: Path) -> None:
    with ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / "a") as writer:
        writer.extend(numbers([1, 2]))
        with pytest.raises(TypeError, match="multiprocessing=True"):
            pickle.dumps(writer)
        with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as reader:
            data = pickle.dumps(reader)
        assert len(data) < 5000
        with pickle.loads(data) as copy:
            writer.append(number(3))
            assert contents(copy) == [1, 2, 3]


# -- one writer --------------------------------------------------------------------------------------------

HOLDER = """
import sys
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
buffer = ReplayBuffer.load_from(sys.argv[1], backend=NumpyComputeBackend, read_only=False)
print("open", flush=True)
sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that has the buffer open to write; a PermissionError if it is refused."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], text=True, env=environment, **pipes)
    assert process.stdout is not None
    if process.stdout.readline() != "open\n":
        raise PermissionError(process.communicate()[1])
    return process


@pytest.mark.parametrize("multiprocessing", [False, True])
def test_a_second_writer_is_refused_and_a_dead_one_is_not_waited_for(tmp_path: Path, multiprocessing: bool) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), capacity=4, cache_path=path).close()
    options: dict[str, Any] = {"backend": NUMPY, "read_only": False, "multiprocessing": multiprocessing}
    with hold(path) as holder:
        with pytest.raises(PermissionError, match=rf"another process \(pid {holder.pid}\)"):
            ReplayBuffer.load_from(path, **options)
        with ReplayBuffer.load_from(path, backend=NUMPY) as reader:
            assert len(reader) == 0
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with ReplayBuffer.load_from(path, **options) as writer:
            writer.append(number(1))
            with pytest.raises(PermissionError, match=rf"this process \(pid {os.getpid()}\) already"):
                ReplayBuffer.load_from(path, **{**options, "multiprocessing": False})
            writer.append(number(2))
            with pytest.raises(PermissionError, match="being written"):
                hold(path)  # asking a second time has not let go of the lock
    with ReplayBuffer.load_from(path, **options) as writer:
        assert contents(writer) == [1, 2]


def test_a_dropped_writer_lets_go(tmp_path: Path) -> None:
    writer = ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / "a")
    writer.append(number(1))
    del writer
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, read_only=False) as again:
        again.append(number(2))
        assert contents(again) == [1, 2]


def test_opening_and_dropping_leaves_no_descriptors(tmp_path: Path) -> None:
    with ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / "a") as buffer:
        buffer.extend(numbers([1]))
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert contents(ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY)) == [1]
        ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY, read_only=False).close()
        ReplayBuffer.create(number_space(), capacity=4, multiprocessing=True)
    assert len(os.listdir("/proc/self/fd")) == before


# -- growing elsewhere -------------------------------------------------------------------------------------


def _append_nonsense(buffer: ReplayBuffer) -> None:
    with pytest.raises(ValueError):
        buffer.append("nonsense")


LOOKS: dict[str, Callable[[ReplayBuffer], Any]] = {
    "flush": lambda buffer: buffer.flush(),
    "end": lambda buffer: buffer.mark_segment_end(),
    "append that fails": _append_nonsense,
    "set": lambda buffer: buffer.set_at(4500, number(4500)),
    "nothing": lambda buffer: None,
}


def _append(buffers: list[ReplayBuffer], start: int, stop: int) -> None:
    for buffer in buffers:
        for value in range(start, stop):
            buffer.append(number(value))


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["memory", "disk"])
def test_what_has_grown_in_another_process_is_read_as_it_is(is_on_disk: bool, tmp_path: Path) -> None:
    paths = [tmp_path / name if is_on_disk else None for name in LOOKS]
    buffers = [
        ReplayBuffer.create(number_space(), cache_path=path, multiprocessing=True, maintain_segment_metadata=True)
        for path in paths
    ]
    _append(buffers, 0, 10)
    process = multiprocessing.get_context("spawn").Process(target=_append, args=(buffers, 10, 5000))
    process.start()
    process.join()
    for look, buffer, path in zip(LOOKS.values(), buffers, paths, strict=True):
        with buffer:
            look(buffer)
            assert read(buffer.get_at([9, 3000, 4500])) == [9, 3000, 4500]
            assert read(buffer.get_at(4500)) == 4500
            assert contents(buffer) == list(range(5000))
            assert buffer.verify() == []
        if path is not None:
            with ReplayBuffer.load_from(path, backend=NUMPY) as again:
                assert again.verify() == []


def test_a_reader_that_opens_a_folder_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ReplayBuffer.create(number_space(), cache_path=tmp_path / "a")
    writer.extend(numbers(range(1000)))
    original = BufferState.open

    def after_more(*arguments: Any, **options: Any) -> BufferState:
        writer.extend(numbers(range(1000, 5000)))  # once its files are open, and before its counters are
        return original(*arguments, **options)

    monkeypatch.setattr(BufferState, "open", after_more)
    with writer, ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as reader:
        assert read(reader.get_at([3000, 4500])) == [3000, 4500]
        assert contents(reader) == list(range(5000))


# -- closing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_buffer_that_is_closed_beside_threads_that_append(shared: bool, is_on_disk: bool, tmp_path: Path) -> None:
    for attempt in range(10):
        path = tmp_path / str(attempt) if is_on_disk else None
        buffer = ReplayBuffer.create(number_space(), cache_path=path, multiprocessing=shared)
        begun, told = threading.Barrier(4), []

        def append(buffer: ReplayBuffer = buffer, begun: Any = begun, told: list[str] = told) -> None:
            try:
                buffer.append(number(0))
                begun.wait(60)
                while True:
                    buffer.append(number(0))
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=append, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        buffer.close()
        for thread in threads:
            thread.join(60)
        assert told == ["RuntimeError: the buffer is closed"] * 3


def test_a_copy_of_a_buffer_that_was_closed_is_closed(tmp_path: Path) -> None:
    buffer = ReplayBuffer.create(number_space(), cache_path=tmp_path / "a", multiprocessing=True)
    other = copy.copy(buffer)
    buffer.append(number(1))
    other.close()
    assert buffer.is_closed
    buffer.close()
    with ReplayBuffer.load_from(tmp_path / "a", backend=NUMPY) as again:
        assert contents(again) == [1]


@pytest.mark.parametrize("shared", [False, True])
def test_a_buffer_that_is_closed_beside_a_thread_that_appends(shared: bool, tmp_path: Path) -> None:
    for attempt in range(20):
        buffer = ReplayBuffer.create(number_space(), cache_path=tmp_path / str(attempt), multiprocessing=shared)
        begun, appended, raised = threading.Event(), 0, []

        def append(buffer: ReplayBuffer = buffer, begun: Any = begun, raised: list[str] = raised) -> None:
            nonlocal appended
            try:
                while True:
                    buffer.append(number(appended))
                    appended += 1
                    begun.set()
            except RuntimeError as error:
                raised.append(str(error))

        thread = threading.Thread(target=append)
        thread.start()
        assert begun.wait(60)
        buffer.close()
        thread.join(60)
        assert raised == ["the buffer is closed"]
        with ReplayBuffer.load_from(tmp_path / str(attempt), backend=NUMPY) as again:
            assert contents(again) == list(range(appended))
            assert again.verify() == []


FORK = """
import os, sys
from buffers import contents, number, number_space
from unienv_data import ReplayBuffer
buffer = ReplayBuffer.create(number_space(), capacity=4, cache_path=sys.argv[1])
buffer.append(number(1))
if os.fork() == 0:
    try:
        buffer.append(number(2))
    except PermissionError as error:
        assert f"pid {os.getppid()}" in str(error) and "multiprocessing=True" in str(error), error
        buffer.close()
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
buffer.append(number(3))
assert contents(buffer) == [1, 3]
buffer.close()
print("done")
"""


def test_a_fork_does_not_write_to_its_parents_buffer(tmp_path: Path) -> None:
    assert run("-c", FORK, str(tmp_path / "buffer")) == "done\n"


LINGERING = """
import os, sys, time
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
buffer = ReplayBuffer.load_from(sys.argv[1], backend=NumpyComputeBackend, read_only=False)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


def test_a_fork_that_is_left_over_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), capacity=4, cache_path=path).close()
    command = [sys.executable, "-c", LINGERING, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            with pytest.raises(PermissionError, match=f"pid {parent.pid}"):
                ReplayBuffer.load_from(path, backend=NUMPY, read_only=False)
            parent.kill()
            parent.wait()
            ReplayBuffer.load_from(path, backend=NUMPY, read_only=False).close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_leftover_temporary_files_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), capacity=4, cache_path=path).close()
    (path / ".metadata.json.123.tmp").write_text("half")
    ReplayBuffer.load_from(path, backend=NUMPY).close()
    assert (path / ".metadata.json.123.tmp").exists()
    ReplayBuffer.load_from(path, backend=NUMPY, read_only=False).close()
    assert not (path / ".metadata.json.123.tmp").exists()
