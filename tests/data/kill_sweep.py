"""A writer that is killed before every single line of code it runs in an operation. Run as a program, as it forks.

    python tests/data/kill_sweep.py --every 1

The oracle is that of `kill_loop`: what is found is the state before the operation, the one after, or for one that makes
room first, the one before without some of the oldest samples.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from buffers import Model, hashed, hashed_space, one_hashed
from kill_loop import LOAD, PAYLOAD, found_in, is_state

import unienv_data
from unienv_data import ReplayBuffer, SpaceStorage
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.packed import PackedStorage

CODE = os.path.dirname(unienv_data.__file__)
Act = Callable[[ReplayBuffer, Path], None]
Change = Callable[[Model], None]


def _add(values: range, *, ends: bool) -> Change:
    def change(model: Model) -> None:
        model.is_open = not ends
        model.add(list(values))
        if ends:
            model.end()

    return change


def _set(model: Model) -> None:
    for index, value in ((1, 50), (4, 51), (0, 52)):
        model.samples[index] = value


# what is done to a full ring of seven, and to the model of it
OPERATIONS: dict[str, tuple[Act, Change]] = {
    "append": (lambda buffer, _: buffer.append(one_hashed(0, 50, PAYLOAD)), _add(range(50, 51), ends=False)),
    "extend": (lambda buffer, _: buffer.extend(hashed(0, 50, 4, PAYLOAD)), _add(range(50, 54), ends=True)),
    "oversize": (lambda buffer, _: buffer.extend(hashed(0, 50, 9, PAYLOAD)), _add(range(50, 59), ends=True)),
    "set": (lambda buffer, _: buffer.set_at([1, 4, 0], hashed(0, 50, 3, PAYLOAD)), _set),
    "remove": (lambda buffer, _: buffer.remove_at([1, 3]), lambda model: model.remove({1, 3})),
    "remove new": (lambda buffer, _: buffer.remove_at([4, 5]), lambda model: model.remove({4, 5})),
    "remove front": (lambda buffer, _: buffer.remove_at([0, 1]), lambda model: model.remove({0, 1})),
    "clear": (lambda buffer, _: buffer.clear(), lambda model: model.remove(set(range(7)))),
    "flush": (lambda buffer, _: buffer.flush(), lambda model: None),
    "dump": (lambda buffer, folder: buffer.dumps(folder / "copy"), lambda model: None),
    "close": (lambda buffer, _: buffer.close(), lambda model: None),
}


# classes of storages, and their options
STORAGES: dict[str, tuple[type[SpaceStorage], dict[str, Any]]] = {
    "packed": (PackedStorage, {}),
    "dict": (DictStorage, {"storage_cls_map": {"large": PackedStorage, "*": PackedStorage}}),
    "flattened": (FlattenedStorage, {}),
}


def prepare(folder: Path, storage: str) -> Model:
    """A full ring that has wrapped, with two episodes."""
    model = Model(7)
    storage_cls, options = STORAGES[storage]
    with ReplayBuffer.create(
        storage_cls,
        hashed_space(PAYLOAD),
        capacity=7,
        cache_path=folder / "buffer",
        maintain_segment_metadata=True,
        **options,
    ) as buffer:
        for first, count in ((0, 3), (3, 2), (5, 5)):
            buffer.extend(hashed(0, first, count, PAYLOAD))
            model.add(list(range(first, first + count)))
            model.end()
        buffer.dumps(folder / "copy")
    return model


def killed_at(line: int, act: Callable[[], Any]) -> int:
    """Do something in a child that is killed before the given line of ours; how many lines it ran if it was not."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sender, str(_traced(line, act)).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(sender)
    _, status = os.waitpid(child, 0)
    text = os.read(receiver, 100)
    os.close(receiver)
    if os.WIFSIGNALED(status):
        return line
    assert status == 0, f"the writer failed by itself, status {status}"
    return int(text)


def _traced(line: int, act: Callable[[], Any], look: Callable[[], None] = lambda: None) -> int:
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            lines += 1
            look()
            if lines == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return lines


def sweep(name: str, every: int, offset: int, storage: str) -> int:
    """Kill a writer at every n-th line of an operation, and look; the number of kills."""
    act, change = OPERATIONS[name]
    with tempfile.TemporaryDirectory(prefix="sweep") as temporary:
        origin = Path(temporary) / "origin"
        origin.mkdir()
        before = prepare(origin, storage)
        after = copy.deepcopy(before)
        change(after)
        total = _one_kill(origin, Path(temporary) / "count", 0, act)
        lines = range(1 + offset % every, total + 1, every)
        for line in lines:
            folder = Path(temporary) / f"line{line}"
            _one_kill(origin, folder, line, act)
            check(folder, before, after, f"{name}, killed before line {line} of {total}")
            shutil.rmtree(folder)
        return len(lines)


def _one_kill(origin: Path, folder: Path, line: int, act: Act) -> int:
    """Copy a folder and kill a writer there; how many lines it ran if it was not killed."""
    shutil.copytree(origin, folder)

    def open_and_act() -> None:
        trace = sys.gettrace()
        sys.settrace(None)  # opening is not what is swept here
        buffer = ReplayBuffer.load_from(folder / "buffer", read_only=False, **LOAD)
        sys.settrace(trace)
        act(buffer, folder)

    return killed_at(line, open_and_act)


def check(folder: Path, before: Model, after: Model, what: str) -> None:
    found = found_in(folder / "buffer")
    assert is_state(found, before, after), f"{what}: found {found}, wanted {before.samples} or {after.samples}"
    copied = found_in(folder / "copy")
    assert copied == (before.samples, before.segments()), f"{what}: the copy is {copied}"
    with ReplayBuffer.load_from(folder / "buffer", read_only=False, **LOAD) as buffer:
        again = ([int(row) for row in buffer.get_at(...)["id"][:, 1]], buffer.get_segments())
        assert again == found, f"{what}: found {found}, and {again} once it was opened to write"
        buffer.mark_segment_end()
        buffer.extend(hashed(0, 90, 2, PAYLOAD))
        assert buffer.get_at([-2, -1])["id"][:, 1].tolist() == [90, 91], what
        assert buffer.verify() == [], what


def sweep_recovery(every: int, offset: int, storage: str) -> int:
    """Kill a writer in the middle of moving samples, and the next one at every n-th line of opening the buffer."""
    kills = 0
    for name in ("set", "remove"):
        act, change = OPERATIONS[name]
        with tempfile.TemporaryDirectory(prefix="sweep") as temporary:
            origin, half_done = Path(temporary) / "origin", Path(temporary) / "half"
            origin.mkdir()
            after = prepare(origin, storage)
            change(after)
            _one_kill(origin, half_done, _line_of_edit(origin, Path(temporary) / "watched", act), act)
            assert _is_half_done(half_done)

            def open_it(folder: Path) -> Callable[[], Any]:
                return lambda: ReplayBuffer.load_from(folder / "buffer", read_only=False, **LOAD)

            counted = Path(temporary) / "count"
            shutil.copytree(half_done, counted)
            total = killed_at(0, open_it(counted))
            for line in range(1 + offset % every, total + 1, every):
                folder = Path(temporary) / f"line{line}"
                shutil.copytree(half_done, folder)
                killed_at(line, open_it(folder))
                found = found_in(folder / "buffer")
                assert found == (after.samples, after.segments()), f"recovery of {name} at line {line}: {found}"
                shutil.rmtree(folder)
                kills += 1
    return kills


def _line_of_edit(origin: Path, folder: Path, act: Act) -> int:
    """The first line of an operation at which a reader is told that samples are half changed."""
    shutil.copytree(origin, folder)
    lines = found = 0
    with ReplayBuffer.load_from(folder / "buffer", read_only=False, **LOAD) as buffer:

        def look() -> None:
            nonlocal lines, found
            lines += 1
            found = found or lines * (buffer._counters.edit & 1)

        _traced(0, lambda: act(buffer, folder), look)
    return found


def _is_half_done(folder: Path) -> bool:
    from unienv_data.replay_buffer._counters import MappedHeader

    counters = MappedHeader.open(folder / "buffer" / "header.bin", writable=False)
    is_odd = bool(counters.counters.edit & 1)
    counters.close()
    return is_odd


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--storage", choices=STORAGES, default="packed")
    where = vars(parser.parse_args())
    kills = sum(sweep(name, **where) for name in OPERATIONS)
    kills += sweep_recovery(**where)
    print(f"{kills} kills, nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
