"""Writers of a buffer with lanes that are killed at random instants. Run as a program, so that it may fork.

    python tests/data/kill_lanes.py --kills 40 --seed 0

As `kill_loop.py`, for vector steps, ends of episodes by lane, dropping the oldest steps, snapshots and flushes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np
from buffers import hashed, hashed_space
from kill_loop import LOAD, found_in
from lane_model import LaneModel

from unienv_data import ReplayBuffer

LANES, PAYLOAD = 4, 700
Operation = Callable[[ReplayBuffer | None], None]


class Operations:
    """A stream of operations that depends on its seed and on what the buffer holds."""

    def __init__(self, seed: int, model: LaneModel, folder: Path, first: int) -> None:
        self._random, self.model, self._folder, self._next = random.Random(seed), model, folder, first
        self.dumped: LaneModel | None = None

    def next(self) -> Operation:
        """An operation, to be done on a buffer or, with None, only on the model."""
        kind = self._random.choices(["extend", "end", "drop", "dump", "flush"], [20, 4, 1, 0.5, 1])[0]
        return self._extend() if kind == "drop" and not self.model.samples else getattr(self, f"_{kind}")()

    def _flags(self) -> list[bool]:
        return [self._random.random() < 0.3 for _ in range(LANES)]

    def _extend(self) -> Operation:
        self._next += LANES
        first, ended = self._next - LANES, self._flags()

        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.extend_lanes(hashed(0, first, LANES, PAYLOAD), np.array(ended))
            self.model.extend(list(range(first, first + LANES)), ended)

        return act

    def _end(self) -> Operation:
        ended = self._flags()

        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.mark_segment_end(np.array(ended))
            self.model.end(ended)

        return act

    def _drop(self) -> Operation:
        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.remove_at(np.arange(LANES))
            self.model.drop(1)

        return act

    def _dump(self) -> Operation:
        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.dumps(self._folder / "copy")
            self.dumped = self.model.copy()

        return act

    def _flush(self) -> Operation:
        return lambda buffer: None if buffer is None else buffer.flush()


def write_until_killed(folder: Path, operations: Operations, pipe: int) -> None:
    with ReplayBuffer.load_from(folder / "buffer", read_only=False, **LOAD) as buffer:
        while True:
            operations.next()(buffer)
            os.write(pipe, b".")


def state_found(found: tuple[list[int], object], before: LaneModel, after: LaneModel) -> LaneModel | None:
    """The model of what is there, if it is a state that may be there."""
    room_made = before.copy()
    room_made.drop(1)  # for what was not acknowledged
    states = [after, before, *([room_made] if len(after.samples) == after.capacity else [])]
    return next((state for state in states if found == state.state()), None)


def run(kills: int, seed: int, capacity: int | None, folder: Path) -> int:
    """Kill so many writers of one buffer; the number of operations that were acknowledged."""
    chance, model = random.Random(seed), LaneModel(LANES, capacity)
    ReplayBuffer.create(hashed_space(PAYLOAD), capacity=capacity, cache_path=folder / "buffer", lanes=LANES).close()
    dumped, acknowledged, first = None, 0, 1
    for kill in range(kills):
        receiver, sender = os.pipe()
        operations = Operations(chance.getrandbits(32), model.copy(), folder, first)
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(folder, operations, sender)
            finally:
                os._exit(1)
        os.close(sender)
        wanted = chance.randrange(40)  # some are killed while they open the buffer
        count = 0
        while count < wanted:
            count += len(os.read(receiver, wanted - count))
        time.sleep(chance.random() * 0.002)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the writer failed by itself, status {status}"
        while chunk := os.read(receiver, 1 << 16):
            count += len(chunk)
        os.close(receiver)
        for _ in range(count):
            operations.next()(None)
        dumped, before = operations.dumped or dumped, operations.model.copy()
        operations.next()(None)
        found = found_in(folder / "buffer")
        state = state_found(found, before, operations.model)
        if state is None:
            wanted_states = f"{before.state()} or {operations.model.state()}"
            raise AssertionError(f"kill {kill} of seed {seed}: found {found}, wanted {wanted_states}")
        if dumped is not None:
            copied = found_in(folder / "copy")
            states = [state for state in (operations.dumped, dumped) if state is not None]
            assert copied in [state.state() for state in states], f"kill {kill} of seed {seed}: the copy is {copied}"
            dumped = next(state for state in states if copied == state.state())
        model, acknowledged, first = state.copy(), acknowledged + count, first + 1_000_000
    return acknowledged


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    total, per_buffer = 0, 20
    for number in range(-(-arguments.kills // per_buffer)):
        folder = Path(tempfile.mkdtemp(prefix="kills"))
        try:
            total += run(per_buffer, arguments.seed + number, (40, None, 4)[number % 3], folder)
        finally:
            shutil.rmtree(folder)
    print(f"{arguments.kills} kills, {total} operations acknowledged, none lost")
    return 0


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main())
