"""Writers that are killed at random instants, and what is then found. Run as a program, so that it may fork.

    python tests/data/kill_loop.py --kills 100 --seed 0 [--storage npz] [--then boot]

Each writer goes on where the last one was killed, does a stream of operations that follows from its seed, and sends a
byte up a pipe when one has returned. The oracle does the same operations on a list: what is found must be the state
after all that were acknowledged, or after one more. Where that one more drops the oldest samples to make room, some of
them may be gone already.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np
from buffers import Model, check_hashes, hashed, hashed_space, one_hashed

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.replay_buffer._counters import COUNTER_NAMES
from unienv_data.storages.registry import storage_by_name
from unienv_interface.backends import NumpyComputeBackend

PAYLOAD = 5000
LOAD = {"backend": NumpyComputeBackend}


class Operations:
    """A stream of operations that depends on its seed and on what the buffer holds."""

    def __init__(self, seed: int, model: Model, folder: Path, first: int) -> None:
        self._random, self.model, self._folder, self._next = random.Random(seed), model, folder, first
        self.dumped: Model | None = None

    def next(self) -> Callable[[ReplayBuffer | None], None]:
        """An operation, to be done on a buffer or, with None, only on the model."""
        kind = self._random.choices(
            ["append", "end", "extend", "set", "remove", "front", "clear", "dump", "flush"],
            [10, 6, 10, 4, 4, 2, 0.3, 0.5, 1],
        )[0]
        if self.model.is_open and kind in ("extend", "dump"):
            kind = "end"
        if not self.model.samples and kind in ("set", "remove", "front"):
            kind = "append"
        return getattr(self, f"_{kind}")()

    def _fresh(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def _append(self) -> Any:
        (value,) = self._fresh(1)

        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.append(one_hashed(0, value, PAYLOAD))
            self.model.is_open = True
            self.model.add([value])

        return act

    def _end(self) -> Any:
        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.mark_segment_end()
            self.model.end()

        return act

    def _extend(self) -> Any:
        values = self._fresh(self._random.choice([1, 2, 5, 12, 30]))

        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.extend(hashed(0, values[0], len(values), PAYLOAD))
            self.model.add(values)
            self.model.end()

        return act

    def _set(self) -> Any:
        count = len(self.model.samples)
        indices = self._random.sample(range(count), min(count, self._random.choice([1, 3, 8])))
        values = self._fresh(len(indices))

        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.set_at(indices, hashed(0, values[0], len(values), PAYLOAD))
            for index, value in zip(indices, values, strict=True):
                self.model.samples[index] = value

        return act

    def _remove(self, front: bool = False) -> Any:
        count = len(self.model.samples)
        some = self._random.sample(range(count), min(count, self._random.choice([1, 2, 5])))
        indices = list(range(len(some))) if front else some

        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.remove_at(indices)
            self.model.remove(set(indices))

        return act

    def _front(self) -> Any:
        return self._remove(front=True)

    def _clear(self) -> Any:
        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.clear()
            self.model.remove(set(range(len(self.model.samples))))
            self.model.end()

        return act

    def _dump(self) -> Any:
        def act(buffer: ReplayBuffer | None) -> None:
            if buffer is not None:
                buffer.dumps(self._folder / "copy")
            self.dumped = copy.deepcopy(self.model)

        return act

    def _flush(self) -> Any:
        return lambda buffer: None if buffer is None else buffer.flush()


def write_until_killed(folder: Path, operations: Operations, pipe: int) -> None:
    with ReplayBuffer.load_from(folder / "buffer", read_only=False, **LOAD) as buffer:
        os.write(pipe, b"o")  # opened: what was half done is whole
        while True:
            operations.next()(buffer)
            os.write(pipe, b".")


def found_in(path: Path) -> tuple[list[int], list[tuple[int, int]] | None]:
    """The samples and episodes in a folder, all rows checked; opened to write if a reader is told to."""
    try:
        buffer = ReplayBuffer.load_from(path, **LOAD)
        rows = buffer.get_at(...)
    except StorageCorruptedError as error:
        if "read_only=False" not in str(error):
            raise
        buffer = ReplayBuffer.load_from(path, read_only=False, **LOAD)
        rows = buffer.get_at(...)
    with buffer:
        findings = buffer.verify()
        assert findings == [], findings
        return [which for _, which in check_hashes(rows)], buffer.get_segments()


def is_state(found: tuple[list[int], Any], before: Model, after: Model) -> bool:
    if found in ((before.samples, before.segments()), (after.samples, after.segments())):
        return True
    # room was being made for what was not acknowledged
    partly = copy.deepcopy(before)
    dropped = len(before.samples) - len(found[0])
    gone = set(before.samples[:dropped])
    if dropped < 0 or gone & set(after.samples):
        return False
    partly.remove(set(range(dropped)))
    return found == (partly.samples, partly.segments())


def run(
    kills: int, seed: int, capacity: int | None, folder: Path, storage: str = "packed", then: str | None = None
) -> int:
    """Kill so many writers of one buffer; the number of operations that were acknowledged.

    After a kill the machine may boot ("boot"), or the folder be copied, every other time to another machine ("copy").
    """
    chance = random.Random(seed)
    model = Model(capacity)
    ReplayBuffer.create(
        storage_by_name(storage),
        hashed_space(PAYLOAD),
        capacity=capacity,
        cache_path=folder / "buffer",
        maintain_segment_metadata=True,
    ).close()
    dumped, acknowledged, first = None, 0, 1
    for kill in range(kills):
        receiver, sender = os.pipe()
        # numbers far apart, so that no writer uses those of another
        operations = Operations(chance.getrandbits(32), copy.deepcopy(model), folder, first)
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(folder, operations, sender)
            finally:
                os._exit(1)
        os.close(sender)
        if kill % 4:
            os.read(receiver, 1)
            opened = True
        else:
            opened = False  # this one may be killed while it opens the buffer
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the writer failed by itself, status {status}"
        count = 0
        while chunk := os.read(receiver, 1 << 16):
            count += chunk.count(b".")
            opened = opened or b"o" in chunk
        os.close(receiver)
        for _ in range(count):
            operations.next()(None)
        dumped = operations.dumped or dumped
        before = copy.deepcopy(operations.model)
        operations.next()(None)
        if then == "copy":
            _copy(folder / "buffer")
        if then == "boot" or (then == "copy" and kill % 2):
            _boot(folder / "buffer", chance)
        found = found_in(folder / "buffer")
        if not is_state(found, before, operations.model):
            raise AssertionError(
                f"kill {kill} of seed {seed}: found {found}, wanted {before.samples, before.segments()} or "
                f"{operations.model.samples, operations.model.segments()}"
            )
        if dumped is not None:
            copied, states = found_in(folder / "copy"), (operations.dumped or dumped, dumped)
            dumped = next((state for state in states if copied == (state.samples, state.segments())), None)
            assert dumped is not None, f"kill {kill} of seed {seed}: the copy is {copied}"
        model = _as_found(found, before, operations.model)
        acknowledged += count
        first += 1_000_000
    return acknowledged


def _copy(path: Path) -> None:
    copied = path.with_name("other machine")
    shutil.copytree(path, copied)
    shutil.rmtree(path)
    copied.rename(path)


def _boot(path: Path, chance: random.Random) -> None:
    """Have the writer's machine another boot id than this one."""
    with open(path / "header.bin", "r+b") as file:
        if any(file.read()[-8:]):
            return  # closed in order, and not opened again before the kill
        file.seek(64 + 8 * COUNTER_NAMES.index("boot"))
        file.write(chance.getrandbits(31).to_bytes(8, "little"))


def _as_found(found: tuple[list[int], Any], before: Model, after: Model) -> Model:
    """The model of what is there, to go on from."""
    for state in (after, before):
        if found == (state.samples, state.segments()):
            if state is before and found == (after.samples, after.segments()) and before.is_open != after.is_open:
                continue
            return copy.deepcopy(state)
    partly = copy.deepcopy(before)
    partly.remove(set(range(len(before.samples) - len(found[0]))))
    return partly


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", default="packed")
    parser.add_argument("--then", choices=["boot", "copy"])
    arguments = parser.parse_args()
    total, per_buffer = 0, 10 if arguments.then else 25
    for number in range(-(-arguments.kills // per_buffer)):
        folder = Path(tempfile.mkdtemp(prefix="kills"))
        try:
            capacity, count = (None, 7, 40, 1)[number % 4], min(per_buffer, arguments.kills - number * per_buffer)
            total += run(count, arguments.seed + number, capacity, folder, arguments.storage, arguments.then)
        finally:
            shutil.rmtree(folder)
    print(f"{arguments.kills} kills, {total} operations acknowledged, none lost")
    return 0


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main())
