"""Several processes at one buffer. Run as a program, as it forks.

python tests/data/process_play.py torn --seconds 2
python tests/data/process_play.py writers --seconds 2
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np
from buffers import PAYLOAD, check_hashes, hashed, hashed_space, one_hashed

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend

RING = 48


# -- one writer as fast as it can, readers that must never see a mixed row -----------------------------------


def write_on(folder: Path) -> None:
    """Append, extend, overwrite and remove until killed."""
    chance = random.Random(0)
    with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend, read_only=False) as buffer:
        which = 1
        while True:
            for _ in range(chance.choice([1, 3, 10])):
                buffer.append(one_hashed(0, which))
                which += 1
            buffer.mark_segment_end()
            count = chance.choice([1, 5, 20])
            buffer.extend(hashed(0, which, count))
            which += count
            if chance.random() < 0.1 and len(buffer) > 4:
                buffer.set_at([0, 2], hashed(1, which, 2))
                buffer.remove_at([len(buffer) // 2])


def read_on(folder: Path, seconds: float, seed: int) -> int:
    """Read random samples until the time is up; how many."""
    rng, reads, deadline = np.random.default_rng(seed), 0, time.monotonic() + seconds
    newest = 0
    with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend) as buffer:
        while time.monotonic() < deadline:
            length = len(buffer)
            if not length:
                continue
            size = min(length, 16)
            # removing makes it shorter, so that an index may be out of range by now
            try:
                found = check_hashes(buffer.get_at(rng.integers(0, length, size)))
                _check_order(check_hashes(buffer.get_at(slice(0, size))))
                for start, stop in buffer.get_segments() or []:
                    assert 0 <= start < stop, (start, stop)
            except IndexError:
                continue
            reads += 2 * size
            newest = max(newest, *(which for _, which in found))
    assert newest > 0, "nothing new was seen"
    return reads


def _check_order(found: list[tuple[int, int]]) -> None:
    """Samples lie in the order they were written, but for those that were overwritten in place."""
    plain = [which for who, which in found if who == 0]
    assert plain == sorted(set(plain)), f"not in order: {plain}"


def torn(seconds: float, readers: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "buffer"
        ReplayBuffer.create(hashed_space(), capacity=RING, cache_path=folder, maintain_segment_metadata=True).close()
        fork = multiprocessing.get_context("fork")
        writer = fork.Process(target=write_on, args=(folder,), daemon=True)
        writer.start()
        with fork.Pool(readers) as pool:
            counts = pool.starmap(read_on, [(folder, seconds, seed) for seed in range(readers)])
        assert writer.is_alive()
        writer.kill()
        writer.join()
        print(f"{sum(counts)} reads by {readers} readers, none torn")


# -- several writers, some of them killed ------------------------------------------------------------------


def write_segments(buffer: ReplayBuffer, who: int, acks: Any) -> None:
    """Write episodes until killed; each is acknowledged with its first number and its length."""
    chance, which = random.Random(who), 1
    while True:
        count = chance.choice([1, 2, 7])
        buffer.extend(hashed(who, which, count, 300))
        acks.send_bytes(struct.pack("<qq", which, count))
        which += count
        if chance.random() < 0.02:
            buffer.set_at(0, buffer.get_at(0))  # the oldest never changes: nothing is dropped


def writers(seconds: float, count: int, start_method: str, on_disk: bool) -> None:
    """Each acknowledged episode is there once, whole and in one piece; one writer is killed every so often."""
    context: Any = multiprocessing.get_context(start_method)
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "buffer" if on_disk else None
        buffer = ReplayBuffer.create(
            hashed_space(300), cache_path=folder, multiprocessing=True, maintain_segment_metadata=True
        )
        running: list[tuple[Any, int, Any]] = []
        done: list[tuple[int, int]] = []
        names = iter(range(1, 10_000))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            while len(running) < count:
                receiver, sender = context.Pipe(duplex=False)
                who = next(names)
                process = context.Process(target=write_segments, args=(buffer, who, sender), daemon=True)
                process.start()
                sender.close()
                running.append((process, who, receiver))
            time.sleep(chance.random() * (0.1 if start_method == "fork" else 0.8))
            done.append(_kill(running.pop(chance.randrange(count))))
        done += [_kill(entry) for entry in running]
        _check_segments(buffer, dict(done))
        buffer.extend(hashed(0, 1, 3, 300))
        buffer.close()
        if folder is not None:
            with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend) as again:
                assert len(again) == len(buffer)
                assert again.verify() == []
        print(f"{len(done)} writers killed, {sum(last for _, last in done)} samples acknowledged, each there once")


def _kill(entry: tuple[Any, int, Any]) -> tuple[int, int]:
    """Kill a writer; who it was and how many samples it has acknowledged."""
    process, who, receiver = entry
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"a writer failed by itself, {process.exitcode}"
    acknowledged = 0
    with receiver, contextlib.suppress(EOFError, OSError):
        while True:
            acknowledged += struct.unpack("<qq", receiver.recv_bytes())[1]
    return who, acknowledged


def _check_segments(buffer: ReplayBuffer, acknowledged: dict[int, int]) -> None:
    found: dict[int, list[int]] = {who: [] for who in acknowledged}
    segments = buffer.get_segments()
    assert segments is not None
    for start, stop in segments:
        rows = check_hashes(buffer.get_at(slice(start, stop)))
        assert len({who for who, _ in rows}) == 1, f"a mixed episode: {rows}"
        found[rows[0][0]] += [which for _, which in rows]
    for who, samples in found.items():
        assert samples == list(range(1, len(samples) + 1)), f"writer {who}: a hole or a duplicate"
        assert len(samples) >= acknowledged[who], f"writer {who}: {len(samples)} of {acknowledged[who]}"
    assert sum(map(len, found.values())) == len(buffer)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["torn", "writers"])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--start-method", default="fork")
    parser.add_argument("--on-disk", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "torn":
        torn(arguments.seconds, arguments.processes)
    else:
        writers(arguments.seconds, arguments.processes, arguments.start_method, arguments.on_disk)
    return 0


if __name__ == "__main__":
    assert PAYLOAD > 3 * 4096 - 1000
    sys.exit(main())
