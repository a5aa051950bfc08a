"""Writers of frames of two cameras that are killed at random instants, and what is then found. Run as a program.

    python tests/data/record_frames.py FOLDER RULE KILLS SEED

RULE is a video codec, or an image format. Each writer goes on where the last one was killed, and sends a byte up a pipe
when a step has returned; sample n has frame n.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))

from frames import frame

from unienv_data import Image, ReplayBuffer, Video
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

SHAPE, DEPTH = (24, 32, 3), (24, 32)
NP = NumpyComputeBackend


def space() -> DictSpace:
    cameras = {
        "cam_1": BoxSpace(NP, 0, 255, NP.uint8, shape=SHAPE),
        "cam_2": BoxSpace(NP, 0, 255, NP.uint8, shape=SHAPE),
        "depth": BoxSpace(NP, 0, 65535, NP.uint16, shape=DEPTH),
        "state": BoxSpace(NP, -1e9, 1e9, NP.float32, shape=(3,)),
    }
    return DictSpace(NP, {"obs": DictSpace(NP, cameras), "n": BoxSpace(NP, 0, 2**40, NP.int64, shape=())})


def rules(kind: str) -> dict[str, Any]:
    if kind in ("png", "webp"):
        return {"obs/cam_*": Image(kind), "obs/depth": Image("png")}
    return {"obs/cam_*": Video(kind), "obs/depth": Video("ffv1")}


def sample(number: int) -> dict[str, Any]:
    frames = {"cam_1": frame(number, SHAPE), "cam_2": frame(number + 7, SHAPE), "depth": frame(number, DEPTH, "uint16")}
    state = np.full(3, number, np.float32)
    return {"obs": {**frames, "state": state}, "n": np.int64(number)}


def samples(numbers: Any) -> dict[str, Any]:
    found = [sample(int(number)) for number in numbers]
    obs = {key: np.stack([one["obs"][key] for one in found]) for key in found[0]["obs"]}
    return {"obs": obs, "n": np.array([one["n"] for one in found])}


def create(folder: Path, kind: str, **options: Any) -> ReplayBuffer:
    return ReplayBuffer.create(space(), cache_path=folder, columns=rules(kind), keep_episodes=True, **options)


def assert_same(found: Any, wanted: Any) -> None:
    assert found["n"].tolist() == wanted["n"].tolist()
    for key in wanted["obs"]:
        assert np.array_equal(found["obs"][key], wanted["obs"][key]), key


def write_until_killed(folder: Path, length: int, pipe: int) -> None:
    buffer = ReplayBuffer.load_from(folder, backend=NP, read_only=False)
    number = len(buffer)
    while True:
        buffer.append(sample(number))
        number += 1
        if number % length == 0:
            buffer.mark_segment_end()
        os.write(pipe, b".")


def run(folder: Path, kind: str, kills: int, seed: int) -> int:
    """Kill so many writers of one buffer, the frames of which are compared each time; how many samples it has."""
    chance, there = random.Random(seed), 0
    create(folder, kind).close()
    for _ in range(kills):
        length, steps, delay = chance.choice([3, 10, 40]), chance.randrange(50), chance.random() * 0.02
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(folder, length, sender)
            finally:
                os._exit(1)
        os.close(sender)
        count = 0
        while count < steps and (chunk := os.read(receiver, 1)):
            count += len(chunk)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the writer failed by itself, status {status}"
        while chunk := os.read(receiver, 1 << 16):
            count += len(chunk)
        os.close(receiver)
        with ReplayBuffer.load_from(folder, backend=NP) as buffer:
            assert there + count <= len(buffer) <= there + count + 1
            first = max(0, there - 20)  # those before were compared after an earlier kill
            there = len(buffer)
            if there > first:
                assert_same(buffer.get_at(slice(first, there)), samples(range(first, there)))
            assert buffer.verify() == []
    with ReplayBuffer.load_from(folder, backend=NP, read_only=False) as buffer:
        buffer.flush()
        assert_same(buffer.get_at(...), samples(range(there)))
    return there


if __name__ == "__main__":
    found = run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    sys.stdout.write(f"{sys.argv[3]} kills, {found} samples, none lost\n")
