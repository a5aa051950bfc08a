"""Writers of observations stored once that are killed at random instants. Run as a program, so that it may fork.

    python tests/data/kill_shared_next_obs.py --kills 40 --seed 0

Each writer goes on where the last one was killed and sends a byte up a pipe when an operation has returned. What is
found must be what was acknowledged, or one operation more, value for value.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np
from transition_play import Play, same, spaces_of

from unienv_data import ReplayBuffer
from unienv_data.storages.shared_next_obs import SharedNextObsSpace
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import concatenate

NUMPY, CAPACITY = NumpyComputeBackend, 40
_AT_MOST = 120  # transitions of a writer


def write(folder: Path, steps: list[tuple[Any, bool]], pipe: int) -> None:
    with ReplayBuffer.load_from(folder, backend=NUMPY, read_only=False) as buffer:
        for value, ended in steps:
            buffer.append(value)
            if ended:
                buffer.mark_segment_end()
            os.write(pipe, b".")


def kill_one(folder: Path, steps: list[tuple[Any, bool]], chance: random.Random) -> int:
    """Have a writer go on and kill it; how many operations it has acknowledged."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        try:
            write(folder, steps, sink)
        finally:
            os._exit(0)
    os.close(sink)
    wanted, count = chance.choice([1, 5, 60]), 0
    while count < wanted and (read := len(os.read(source, wanted - count))):
        count += read
    time.sleep(chance.random() * 0.002)  # so that the kill comes at any instant of an operation
    os.kill(child, signal.SIGKILL)
    while rest := len(os.read(source, 4096)):
        count += rest
    os.close(source)
    os.waitpid(child, 0)
    return count


def found_after(folder: Path, steps: list[tuple[Any, bool]], acknowledged: int) -> int:
    """How many transitions were written, once those that are there are known to be the newest of them."""
    with ReplayBuffer.load_from(folder, backend=NUMPY) as buffer:
        assert buffer.verify() == []
        written = buffer.sample_numbers.stop
        assert written in (acknowledged, acknowledged + 1), (written, acknowledged)
        # a writer that was killed had made room for one more
        assert len(buffer) >= min(written, CAPACITY) - 1, (len(buffer), written)
        if len(buffer):
            wanted = [value for value, _ in steps[written - len(buffer) : written]]
            same(buffer.get_at(...), concatenate(buffer.single_space, wanted))
    return written


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, play = random.Random(options.seed), Play("mixed", 1, options.seed)
    steps: list[tuple[Any, bool]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name) / "buffer", 0
        ReplayBuffer.create(
            SharedNextObsSpace(NUMPY, spaces_of("mixed")),
            cache_path=folder,
            capacity=CAPACITY,
            maintain_segment_metadata=True,
        ).close()
        for _ in range(options.kills):
            steps += [play.step() for _ in range(written + _AT_MOST - len(steps))]
            written = found_after(folder, steps, written + kill_one(folder, steps[written:], chance))
    print(f"{options.kills} kills, nothing lost of {written} transitions")


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
