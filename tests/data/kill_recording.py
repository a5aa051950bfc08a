"""Processes that record and are killed, or interrupted, in the middle. Run as a program, so that it may fork.

    python tests/data/kill_recording.py kill --times 12 --mode interleaved
    python tests/data/kill_recording.py interrupt

The recording process logs every step that has returned up a pipe: the sum of all rewards so far, which tells the
steps apart. What is found afterwards must hold every one of those steps, whole, in episodes that do not mix.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np
from recording_envs import TallyEnv, full_space, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env

SLOTS = 3
Paths = list[Path]


def environment(mode: str) -> Env:
    return TallyEnv(2) if mode == "shared" else vector("sync", SLOTS)


def open_buffers(mode: str, env: Env, folder: Path, *, read_only: bool) -> list[ReplayBuffer]:
    """The buffers of a mode in a folder, which are made where there are none."""
    found = []
    for slot in range(SLOTS if mode == "per_env" else 1):
        path = folder / f"buffer_{slot}"
        if path.exists():
            found.append(ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=read_only))
        else:
            lanes = SLOTS if mode == "interleaved" else 1
            found.append(
                ReplayBuffer.create(full_space(env), cache_path=path, lanes=lanes, maintain_segment_metadata=True)
            )
    return found


def record(mode: str, folder: Path, pipe: int, seed: int) -> None:
    """Record for ever."""
    env, chance = environment(mode), np.random.default_rng(seed)
    buffers = open_buffers(mode, env, folder, read_only=False)
    wrapper = ReplayBufferCollectionWrapper(env, buffers)
    wrapper.reset()
    steps = 0
    try:
        while True:
            _, _, terminated, truncated, _ = wrapper.step(chance.random(env.action_space.shape or (), np.float32))
            steps += 1
            os.write(pipe, struct.pack("<q", steps))
            done = np.atleast_1d(terminated) | np.atleast_1d(truncated)
            if env.batch_size is None and done[0]:
                wrapper.reset()
            elif env.batch_size is not None and done.any():
                wrapper.reset(mask=done)
    except KeyboardInterrupt:
        for buffer in buffers:
            buffer.close()


def check(mode: str, folder: Path, before: int, acknowledged: int) -> int:
    """Look at what is there: so many steps more than before, or one more; returns how many there are in all."""
    env = environment(mode)
    buffers = open_buffers(mode, env, folder, read_only=True)
    stride, counts = (SLOTS if mode == "interleaved" else 1), []
    for buffer in buffers:
        assert buffer.verify() == []
        rows, segments = buffer.get_at(...), buffer.get_segments()
        assert segments is not None
        counts.append(len(buffer) // stride)
        for start, stop in segments:
            check_episode(_part(rows, slice(start, stop, stride)))
        for start, stop in set(bounds(buffer)) - set(segments):
            check_episode(_part(rows, slice(start, stop, stride)))
        buffer.close()
    for count in counts:
        assert before + acknowledged <= count <= before + acknowledged + 1, (before, acknowledged, counts)
    # of buffers of their own some may have the step that was not acknowledged, and the others not
    return min(counts)


def bounds(buffer: ReplayBuffer) -> list[tuple[int, int]]:
    """The episode, open or closed, of every sample."""
    numbers = np.arange(buffer._counters.tail, buffer._counters.head)
    start, stop = buffer._state.segments.bounds_of(numbers, buffer._counters.tail, buffer._counters.head)
    return list(zip((start - numbers[:1]).tolist(), (stop - numbers[:1]).tolist(), strict=True))


def _part(rows: Any, index: slice) -> Any:
    return {key: _part(value, index) if isinstance(value, dict) else value[index] for key, value in rows.items()}


def check_episode(rows: Any) -> None:
    """The rows of one episode, and of no other, without a gap."""
    count = len(rows["step"])
    assert rows["step"].tolist() == list(range(count)), rows["step"]
    assert len(set(rows["episode_id"].tolist())) == 1
    assert np.array_equal(rows["obs"][1:], rows["next_obs"][:-1])
    assert np.array_equal(rows["obs"][:, 2], np.arange(count))
    assert np.array_equal(rows["obs"][:, 2] + 1, rows["info"]["steps"])
    assert len({tuple(row) for row in rows["obs"][:, :2].tolist()}) == 1
    assert not rows["done"][:-1].any()
    assert np.allclose(rows["action"].sum(axis=-1), rows["reward"])


def kill(mode: str, times: int, folder: Path) -> None:
    chance, recorded, total = random.Random(0), 0, 0
    for number in range(times):
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(receiver)
                record(mode, folder, sender, number)
            finally:
                os._exit(1)
        os.close(sender)
        wanted, data = chance.randrange(1, 60), b""
        while len(data) < 8 * wanted:
            data += os.read(receiver, 8 * wanted - len(data))
        time.sleep(chance.random() * 0.002)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"recording failed by itself, status {status}"
        while chunk := os.read(receiver, 1 << 16):
            data += chunk
        os.close(receiver)
        acknowledged = len(data) // 8
        if mode == "per_env":  # a step that was not acknowledged may be in some buffers: each is looked at by itself
            shutil.copytree(folder, kept := folder.parent / f"{folder.name}-{number}")
            check(mode, kept, 0, acknowledged)
            shutil.rmtree(kept)
            shutil.rmtree(folder)
            folder.mkdir()
        else:
            recorded = check(mode, folder, recorded, acknowledged)
        total += acknowledged
    print(f"{times} kills, {total} steps acknowledged, none lost")


def interrupt(folder: Path) -> None:
    """Ctrl-C: what was recorded is there, and closed in order."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receiver)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            record("interleaved", folder, sender, 0)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(sender)
    data = os.read(receiver, 8 * 20)
    os.kill(child, signal.SIGINT)
    while chunk := os.read(receiver, 1 << 16):
        data += chunk
    os.close(receiver)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"it has failed, status {status}"
    check("interleaved", folder, 0, len(data) // 8)
    print("interrupted, nothing lost")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kill", "interrupt"])
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--mode", choices=["shared", "per_env", "interleaved"], default="interleaved")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recording") as temporary:
        folder = Path(temporary) / "buffers"
        folder.mkdir()
        if arguments.what == "kill":
            kill(arguments.mode, arguments.times, folder)
        else:
            interrupt(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
