"""Samplers whose batches other processes fetch; a program of its own, since where tests run there are threads.

python sampler_play.py same|faults|leaves|resume --start-method fork
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import number_space, numbers, read

from unienv_data import BatchBase, MultiprocessingSampler, PrioritizedSampler, ReplayBuffer, StepSampler
from unienv_data.base.sampling import STRUCTURED
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.vec_env import WorkerDied
from unienv_interface.space import BoxSpace, DictSpace, TextSpace

NUMPY = NumpyComputeBackend
LENGTH, LONG = 100, 1200


class Playing(BatchBase):
    """A view over a buffer that has metadata, and in which `act` happens to batches with certain samples."""

    is_mutable = False

    def __init__(self, batch: BatchBase, act: Callable[[int], object] = lambda number: None) -> None:
        metadata = {"twice": BoxSpace(NUMPY, -(2**31), 2**31 - 1, "int32", shape=()), "name": TextSpace(NUMPY, 9)}
        super().__init__(batch.single_space, DictSpace(NUMPY, metadata))
        self.batch, self.act = batch, act

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def sample_numbers(self) -> range:
        return self.batch.sample_numbers

    def get_at(self, idx: Any) -> Any:
        found = self.batch.get_at(idx)
        for value in np.atleast_1d(found["number"]).tolist():
            self.act(value)
        return found

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        found = self.get_at(idx)
        names = np.array([f"is {value}" for value in found["number"].tolist()], object)
        return found, {"twice": 2 * found["number"], "name": names}


def shared_buffer(length: int = LENGTH) -> ReplayBuffer:
    buffer = ReplayBuffer.create(number_space(), capacity=length, multiprocessing=True)
    buffer.extend(numbers(range(length)))
    return buffer


def plain(batch: Any) -> Any:
    """A batch as lists, to be compared."""
    if isinstance(batch, tuple):
        return [plain(part) for part in batch]
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in sorted(batch.items())}
    return batch.tolist() if isinstance(batch, np.ndarray) else batch


def everything(sampler: Any) -> Any:
    """Some batches in every form, and an epoch in every form."""
    found: list[Any] = []
    for form in ("sample", "sample_with_metadata", "sample_flat", "sample_flat_with_metadata"):
        found += [plain(getattr(sampler, form)()) for _ in range(3)]
    for form in ("epoch_iter", "epoch_iter_with_metadata", "epoch_flat_iter", "epoch_flat_iter_with_metadata"):
        found += [plain(batch) for batch in getattr(sampler, form)()]
    return found


# -- the same batches --------------------------------------------------------------------------------------


def same(ctx: Any) -> None:
    factor = 1
    data = Playing(shared_buffer(), lambda number: number * factor)  # what only cloudpickle can send
    expected = everything(StepSampler(data, 16, seed=3))
    quick = ctx.get_start_method() == "fork"
    for workers, buffers in ((0, 8), (1, 1), (1, 4), (3, 8)) if quick else ((2, 3),):
        with MultiprocessingSampler(StepSampler(data, 16, seed=3), workers, buffers, ctx) as sampler:
            assert everything(sampler) == expected, (workers, buffers)
            assert sampler.sampled_space.contains(sampler.sample())
            sampler.manual_seed(3)
            assert everything(sampler) == expected
    held_batches_stay(data, ctx)
    states_can_be_exchanged(data, ctx)
    if quick:
        forks_go_their_own_ways(data, ctx)
    prioritized(ctx)
    private_data_that_grows(ctx)
    print("the same")


def held_batches_stay(data: Any, ctx: Any) -> None:
    with MultiprocessingSampler(StepSampler(data, 16, seed=1), 2, 3, ctx) as sampler:
        held = [sampler.sample() for _ in range(10)]
        columns = [sampler.sample()["number"] for _ in range(3)]  # the rest of the batch is gone
        before = plain((*held, *columns))
        for _ in range(30):
            sampler.sample()
        for _ in sampler.epoch_iter():
            pass
        assert plain((*held, *columns)) == before
        pool: Any = sampler._pool
        del held, columns
        for _ in range(5):
            sampler.sample()  # and it comes through shared memory again
        sampler.take_back()
        deadline = time.monotonic() + 10
        while len(pool.blocks._free) < 3 and time.monotonic() < deadline:
            pool._receive_all(0.01)  # what was cancelled is fetched to its end first
        assert sorted(pool.blocks.take() for _ in range(3)) == [0, 1, 2]
        for block in range(3):
            pool.blocks.give_back(block)
        last = sampler.sample()
        before = plain(last)
    assert plain(last) == before  # after close too


def states_can_be_exchanged(data: Any, ctx: Any) -> None:
    expected = StepSampler(data, 16, seed=4)
    batches, epoch = [plain(expected.sample()) for _ in range(12)], list(map(plain, expected.epoch_iter()))
    given_up = plain(next(expected.epoch_iter()))
    with MultiprocessingSampler(StepSampler(data, 16, seed=4), 2, 5, ctx) as first:
        assert [plain(first.sample()) for _ in range(5)] == batches[:5]
        iterator = first.epoch_iter()
        assert [plain(next(iterator)) for _ in range(2)] == epoch[:2]
        state = json.loads(json.dumps(first.state_dict(), default=np.ndarray.tolist))
        assert list(map(plain, iterator)) == epoch[2:]
        abandoned = first.epoch_iter()
        assert plain(next(abandoned)) == given_up
        del abandoned
        assert [plain(first.sample()) for _ in range(7)] == batches[5:]
    for workers in (0, 1, 3) if ctx.get_start_method() == "fork" else (0,):
        with MultiprocessingSampler(StepSampler(data, 16), workers, 3, ctx) as again:
            again.load_state_dict(state)
            assert list(map(plain, again.epoch_iter())) == epoch[2:]
            assert [plain(again.sample()) for _ in range(7)] == batches[5:]
    alone = StepSampler(data, 5)
    alone.load_state_dict(state)
    rest = [value for batch in alone.epoch_iter() for value in read(batch)]
    assert rest == [value for batch in epoch[2:] for value in batch["number"]]


def forks_go_their_own_ways(data: Any, ctx: Any) -> None:
    """A fork copies neither threads nor workers, but where a sampler is."""
    reference = StepSampler(data, 16, seed=5)
    expected = [plain(reference.sample()) for _ in range(8)]
    epoch = list(map(plain, reference.epoch_iter()))

    def go_on(sampler: Any, iterator: Any) -> None:
        assert [plain(sampler.sample()) for _ in range(6)] == expected[2:]
        if isinstance(sampler, MultiprocessingSampler) and os.getpid() != parent:
            expect(RuntimeError, "begun in another process", lambda: next(iterator))
        else:
            assert list(map(plain, iterator)) == epoch[1:]
        sampler.close()

    parent = os.getpid()
    threaded = StepSampler(data, 16, seed=5, prefetch=3)
    for sampler in (threaded, MultiprocessingSampler(StepSampler(data, 16, seed=5), 2, 4, ctx)):
        assert [plain(sampler.sample()) for _ in range(2)] == expected[:2]
        iterator = sampler.epoch_iter()
        assert plain(next(iterator)) == epoch[0]
        child = os.fork()
        if not child:
            status = 1
            try:
                go_on(sampler, iterator)
                status = 0
            finally:
                os._exit(status)
        go_on(sampler, iterator)
        assert os.waitpid(child, 0)[1] == 0


def prioritized(ctx: Any) -> None:
    data = shared_buffer()
    with MultiprocessingSampler(StepSampler(data, 8, sampler=PrioritizedSampler(seed=0)), 2, 4, ctx) as sampler:
        batch, metadata = sampler.sample_with_metadata()
        assert read(batch) == metadata["index"].tolist() == metadata["number"].tolist()
        space: Any = sampler.sampled_metadata_space
        assert space.contains(metadata)


def private_data_that_grows(ctx: Any) -> None:
    data = ReplayBuffer.create(number_space(), capacity=10)
    data.extend(numbers(range(10)))
    with MultiprocessingSampler(StepSampler(data, 8, seed=0), 1, 1, ctx) as sampler:
        sampler.sample()
        data.extend(numbers([10]))
        sampler.sample()  # was under way
        expect(RuntimeError, "make the replay buffer with multiprocessing=True", sampler.sample)
    shared = shared_buffer(10)
    with MultiprocessingSampler(StepSampler(shared, 8, seed=0), 1, 1, ctx) as sampler:
        sampler.sample()
        shared.extend(numbers(range(100, 110)))
        sampler.sample()
        assert min(read(sampler.sample())) >= 100


# -- faults --------------------------------------------------------------------------------------------------


class OddError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(lambda: (one, two))


def expect(kind: type[BaseException], text: str, call: Callable[[], object]) -> float:
    """Have an error of this kind with this text within a second; how long it took."""
    start = time.monotonic()
    with pytest.raises(kind, match=re.escape(text)):
        call()
    taken = time.monotonic() - start
    assert taken < 1.0, taken
    return taken


def raising(kind: Callable[[], BaseException]) -> Callable[[int], None]:
    def act(number: int) -> None:
        if number == 42:
            raise kind()

    return act


def ending(end: Callable[[], object], marker: Path, times: int) -> Callable[[int], None]:
    """End the process at sample 42, the first so many times."""

    def act(number: int) -> None:
        if number == 42 and len(marker.read_bytes()) < times:
            with marker.open("ab") as file:
                file.write(b".")
            end()

    return act


def epoch_with_errors(sampler: Any, errors: type[BaseException]) -> tuple[list[int], list[str]]:
    """The samples of an epoch that goes on after errors, and their texts."""
    iterator, values, texts = sampler.epoch_iter(), [], []
    for call in range(40):
        start = time.monotonic()
        try:
            values += read(next(iterator))
        except StopIteration:
            return values, texts
        except errors as error:
            texts.append(str(error))
        # but for the start of workers, which takes as long as their imports
        if call and (errors is not WorkerDied or sampler.mp_ctx.get_start_method() == "fork"):
            assert time.monotonic() - start < 1.0
    raise AssertionError("the epoch does not end")


def faults(ctx: Any) -> None:
    buffer = shared_buffer()
    errors_are_raised_in_place(buffer, ctx)
    with tempfile.TemporaryDirectory() as folder:
        deaths_are_told(buffer, ctx, Path(folder))
    idle_deaths_are_told(buffer, ctx)
    hanging_workers_are_ended(buffer, ctx)
    workers_that_cannot_start(buffer, ctx)
    print("all told")


def errors_are_raised_in_place(buffer: ReplayBuffer, ctx: Any) -> None:
    cases: list[tuple[Any, type[BaseException], str]] = [
        (lambda: ValueError("forty-two"), ValueError, "forty-two"),
        (lambda: OddError(1, 2), Exception, "OddError"),
        (lambda: StopIteration(), RuntimeError, "StopIteration while a batch was fetched"),
        (lambda: SystemExit(3), SystemExit, "in its worker process"),
    ]
    for make, kind, text in cases:
        data = Playing(buffer, raising(make))
        with MultiprocessingSampler(StepSampler(data, 10, seed=0), 2, 4, ctx) as sampler:
            values, texts = epoch_with_errors(sampler, kind)
            assert len(texts) == 1
            assert text in texts[0], texts
            if kind is ValueError:
                assert "a batch of 10 samples (" in texts[0]  # which samples
                assert "in act" in texts[0]  # and the traceback there
            assert len(set(values)) == len(values) == 90
            assert 42 not in values


def deaths_are_told(buffer: ReplayBuffer, ctx: Any, folder: Path) -> None:
    ends: dict[str, Callable[[], object]] = {
        "SIGKILL (killed, or out of memory)": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "exit code 7": lambda: os._exit(7),
    }
    for times in (1, 2):
        for text, end in ends.items() if ctx.get_start_method() == "fork" else list(ends.items())[:1]:
            marker = folder / f"{times}"
            marker.write_bytes(b"")
            data = Playing(buffer, ending(end, marker, times))
            with MultiprocessingSampler(StepSampler(data, 10, seed=0), 2, 4, ctx) as sampler:
                values, texts = epoch_with_errors(sampler, WorkerDied)
                # one whose fetch ends two workers is given up; everything else comes, in order
                assert len(texts) == times, texts
                assert all(text in told and "a batch of 10 samples (" in told for told in texts), texts
                assert len(values) == len(set(values)) == (100 if times == 1 else 90)
                expected = [
                    value for batch in StepSampler(data.batch, 10, seed=0).epoch_iter() for value in read(batch)
                ]
                assert [value for value in expected if value in set(values)] == values


def idle_deaths_are_told(buffer: ReplayBuffer, ctx: Any) -> None:
    expected = StepSampler(buffer, 10, seed=0)
    with MultiprocessingSampler(StepSampler(buffer, 10, seed=0), 1, 2, ctx) as sampler:
        assert plain(sampler.sample()) == plain(expected.sample())
        pool: Any = sampler._pool
        kill_idle(pool)
        expect(WorkerDied, "died while it had nothing to do: exit code -9, SIGKILL", sampler.sample)
        for _ in range(6):
            assert plain(sampler.sample()) == plain(expected.sample())
        pool._start = cannot_start
        kill_idle(pool)
        text = "no other worker could be started: no more processes"
        expect(WorkerDied, text, sampler.sample)
        assert plain(sampler.sample()) == plain(expected.sample())  # it had come before
        for _ in range(2):  # and no call waits for ever
            expect(WorkerDied, text, sampler.sample)


def kill_idle(pool: Any) -> None:
    """Kill the only worker once it has done all it was asked for."""
    (worker,) = pool._workers.values()
    while worker.todo:
        pool._receive_all(0.01)
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.join()


def cannot_start() -> None:
    raise OSError("no more processes")


def hanging_workers_are_ended(buffer: ReplayBuffer, ctx: Any) -> None:
    def hang(number: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)

    sampler = MultiprocessingSampler(StepSampler(Playing(buffer, hang), 10, seed=0), 2, 4, ctx)
    sampler._prefetcher._fill(sampler.sampler.draw, STRUCTURED)
    workers = [worker.process for worker in sampler._running_pool()._workers.values()]
    start = time.monotonic()
    sampler.close()
    assert time.monotonic() - start < 2.0
    sampler.close()
    assert not any(worker.is_alive() for worker in workers)
    expect(RuntimeError, "the sampler is closed", sampler.sample)


class Fragile(Playing):
    """Something that can be sent but not received."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def workers_that_cannot_start(buffer: ReplayBuffer, ctx: Any) -> None:
    if ctx.get_start_method() == "fork":
        return  # nothing is sent
    with MultiprocessingSampler(StepSampler(Fragile(buffer), 10, seed=0), 1, 2, ctx) as sampler:
        for _ in range(3):
            with pytest.raises(WorkerDied, match="died when it was started"):
                sampler.sample()


# -- what is left behind -------------------------------------------------------------------------------------


def leaves(ctx: Any) -> None:
    """Nothing: no process, no descriptor, no shared memory; also when close is never called, and when we are killed."""
    buffer = shared_buffer()
    with MultiprocessingSampler(StepSampler(buffer, 10, seed=0), 2, 4, ctx) as sampler:
        sampler.sample()  # what multiprocessing keeps open from now on
    before = open_files()
    for _ in range(3):
        with MultiprocessingSampler(StepSampler(buffer, 10, seed=0), 2, 4, ctx) as sampler:
            batch = sampler.sample()
            next(sampler.epoch_iter())
        forgotten = MultiprocessingSampler(StepSampler(buffer, 10, seed=0), 1, 2, ctx)
        forgotten.sample()
        workers = [worker.process for worker in forgotten._running_pool()._workers.values()]
        del forgotten, batch
        gc.collect()
        assert not any(worker.is_alive() for worker in workers)
        del workers
    assert not multiprocessing.active_children()
    assert open_files() == before, (open_files(), before)
    for how in ("exit", "kill"):
        child = subprocess.run(
            [sys.executable, "-W", "error", __file__, how, "--start-method", ctx.get_start_method()],
            capture_output=True,
            text=True,
            timeout=30,
            env=os.environ,
        )
        assert child.returncode == (0 if how == "exit" else -signal.SIGKILL), child.stderr
        assert not child.stderr, child.stderr
        for pid in map(int, child.stdout.split()):
            await_end(pid)
    print("nothing left")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def await_end(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state in "ZX":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def die(ctx: Any, *, killed: bool) -> None:
    """End without a close, with workers at work."""
    sampler = MultiprocessingSampler(StepSampler(shared_buffer(), 10, seed=0), 2, 4, ctx)
    sampler.sample()
    print(*(worker.process.pid for worker in sampler._running_pool()._workers.values()), flush=True)
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)


# -- an epoch that is killed and resumed ---------------------------------------------------------------------


def trainer(folder: Path, batch_size: int, workers: int, ctx: Any) -> None:
    """Go on with the epoch whose state is in the folder; after each batch, say what was in it and save the state."""
    data = ReplayBuffer.load_from(folder / "data", backend=NUMPY)
    sampler = MultiprocessingSampler(StepSampler(data, batch_size, seed=7), workers, 4, ctx)
    saved = folder / "state.json"
    if saved.exists():
        sampler.load_state_dict(json.loads(saved.read_text()))
    for batch in sampler.epoch_iter():
        state = json.dumps(sampler.state_dict(), default=np.ndarray.tolist)
        (folder / "new.json").write_text(state)
        with (folder / "seen").open("a") as seen:  # one line: batch and state are saved together or not at all
            seen.write(json.dumps([read(batch), state]) + "\n")
    print("over", flush=True)


def resume(ctx: Any) -> None:
    """Kill a trainer again and again in the middle of an epoch: every sample comes once all the same."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ReplayBuffer.create(number_space(), cache_path=folder / "data") as buffer:
            buffer.extend(numbers(range(LONG)))
        (folder / "seen").touch()
        kills = 0
        for attempt in range(60):
            arguments = ["--folder", name, "--batch-size", str(rng.integers(3, 60)), "--workers", str(attempt % 3)]
            child = subprocess.Popen(
                [sys.executable, __file__, "trainer", *arguments, "--start-method", ctx.get_start_method()],
                stdout=subprocess.PIPE,
                text=True,
            )
            lines = len(seen_lines(folder))
            target = lines + int(rng.integers(1, 12))
            while child.poll() is None and len(seen_lines(folder)) < target:
                time.sleep(0.001)
            if child.poll() is None:
                child.kill()
                kills += 1
            out, _ = child.communicate()
            lines_now = seen_lines(folder)
            (folder / "seen").write_text("".join(lines_now))  # without one that is half written
            if lines_now:
                (folder / "state.json").write_text(json.loads(lines_now[-1])[1])
            if "over" in out:
                break
        values = [value for line in seen_lines(folder) for value in json.loads(line)[0]]
        assert len(values) == LONG, len(values)
        assert sorted(values) == list(range(LONG))
        assert kills >= 2, kills
        expected = [value for index in StepSampler(_Range(LONG), 11, seed=7).epoch_iter() for value in index.tolist()]
        assert values == expected
        print(f"{kills} kills, each sample once")


class _Range(BatchBase):
    def __init__(self, length: int) -> None:
        super().__init__(BoxSpace(NUMPY, 0, length, "int64", shape=()))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def get_at(self, idx: Any) -> Any:
        return idx


def seen_lines(folder: Path) -> list[str]:
    return [line for line in (folder / "seen").read_text().splitlines(keepends=True) if line.endswith("\n")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["same", "faults", "leaves", "resume", "exit", "kill", "trainer"])
    parser.add_argument("--start-method", default="fork")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    ctx = multiprocessing.get_context(options.start_method)
    if options.what == "trainer":
        trainer(options.folder, options.batch_size, options.workers, ctx)
    elif options.what in ("exit", "kill"):
        die(ctx, killed=options.what == "kill")
    else:
        {"same": same, "faults": faults, "leaves": leaves, "resume": resume}[options.what](ctx)


if __name__ == "__main__":
    main()
