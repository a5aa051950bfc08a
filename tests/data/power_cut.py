"""Power cuts: folders as they may be found when only some of the pages written since the last sync reached the disk.

A recording is written while every `fsync` is watched, so that it is known what is durable of each file. At some line of
the library's code the folder is looked at as memory has it. A crash image takes each page of each file from the one or
the other, and each file's size as well. What a reader finds there is compared with the states that the recording went
through since what it promised last.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unienv_data
from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.replay_buffer import _counters
from unienv_data.storages.shared_next_obs import SharedNextObsSpace
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import concatenate
from unienv_interface.space.spaces import BoxSpace, DictSpace, DynamicBoxSpace

CODE = os.path.dirname(unienv_data.__file__)
PAGE = 4096
NUMPY = NumpyComputeBackend
#: How many bytes a sample has in its row, in a block of its own and in the heap.
LEAVES = {
    "tiny": (1, 0, 0),
    "small": (60, 0, 0),
    "rows": (900, 0, 0),
    "wide": (4000, 0, 0),
    "blocks": (40, 4200, 0),
    "heap": (200, 0, 600),
    "both": (40, 4200, 600),
}
#: The same of a storage that keeps each observation once; the block is one.
SHARED = {"shared": (60, 0, 0), "shared blocks": (40, 4200, 0)}

Files = dict[str, bytes]


# -- samples that follow from their number ----------------------------------------------------------------


def space_of(leaves: str) -> DictSpace:
    row, block, heap = {**LEAVES, **SHARED}[leaves]
    if leaves in SHARED:
        obs = {"row": BoxSpace(NUMPY, 0, 255, "uint8", shape=(row,))}
        if block:
            obs["block"] = BoxSpace(NUMPY, 0, 255, "uint8", shape=(block,))
        number = BoxSpace(NUMPY, 0, 2**40, "int64", shape=())
        return SharedNextObsSpace(NUMPY, {"id": number, "obs": obs, "next_obs": obs})
    spaces: dict[str, Any] = {
        "id": BoxSpace(NUMPY, 0, 2**40, "int64", shape=()),
        "row": BoxSpace(NUMPY, 0, 255, "uint8", shape=(row,)),
    }
    if block:
        spaces["block"] = BoxSpace(NUMPY, 0, 255, "uint8", shape=(block,))
    if heap:
        spaces["heap"] = DynamicBoxSpace(NUMPY, 0, 255, (1,), (heap,), "uint8")
    return DictSpace(NUMPY, spaces)


def sample(number: int, leaves: str) -> dict[str, Any]:
    row, block, heap = {**LEAVES, **SHARED}[leaves]
    if leaves in SHARED:
        before = -number if number % 5 == 0 else number - 1  # every fifth begins an episode
        obs, following = ({"row": _bytes_of(of, row), "block": _bytes_of(of, block)} for of in (before, number))
        if not block:
            del obs["block"], following["block"]
        return {"id": np.int64(number), "obs": obs, "next_obs": following}
    content: dict[str, Any] = {"id": np.int64(number), "row": _bytes_of(number, row)}
    if block:
        content["block"] = _bytes_of(number + 1, block)
    if heap:
        content["heap"] = _bytes_of(number + 2, heap - number % 50)
    return content


@functools.lru_cache(4096)
def _bytes_of(number: int, count: int) -> np.ndarray:
    return ((np.arange(count) * 7 + number * 31) % 251).astype(np.uint8)


def batch(numbers: list[int], leaves: str) -> dict[str, Any]:
    values = [sample(number, leaves) for number in numbers]
    if leaves in SHARED:
        return concatenate(space_of(leaves), values)
    columns: dict[str, Any] = {name: [value[name] for value in values] for name in values[0]}
    stacked = {name: np.stack(column) for name, column in columns.items() if name != "heap"}
    if "heap" in columns:
        stacked["heap"] = np.empty(len(numbers), object)
        stacked["heap"][:] = columns["heap"]
    return stacked


def number_in(value: dict[str, Any], leaves: str) -> int | None:
    """The number of a sample; None if it is not as it was written."""
    number = int(value["id"])
    wanted = sample(number, leaves)
    pairs = [(value[name], wanted[name]) for name in wanted]
    if leaves in SHARED:
        pairs = [(value[key][name], wanted[key][name]) for key in ("obs", "next_obs") for name in wanted[key]]
    return number if all(np.array_equal(one, other) for one, other in pairs) else None


# -- what a recording goes through ------------------------------------------------------------------------


class Recording:
    """Operations on a buffer, with the states, lists of numbers, that it had since it was durable last."""

    def __init__(
        self,
        path: Path,
        leaves: str,
        capacity: int | None,
        lanes: int,
        durable: bool,
        seed: int,
        *,
        shared: bool = False,
    ) -> None:
        self.leaves, self.capacity, self.lanes, self.durable = leaves, capacity, lanes, durable
        self.chance, self._last = random.Random(seed), 0
        self.path = path
        self.buffer = ReplayBuffer.create(
            space_of(leaves),
            capacity=capacity,
            cache_path=path,
            maintain_segment_metadata=True,
            durable=durable,
            lanes=lanes,
            multiprocessing=shared,
        )
        self.log: list[str] = []
        self._begin([])

    def _begin(self, numbers: list[int]) -> None:
        self.numbers, self.is_open = numbers, self.buffer.has_open_segment
        self.states = [numbers]  # the durable one, those after it, and the one that is being made
        self.first: dict[int, int] = {}  # of a number that was set, the one that was appended in its place

    def go_on_with(self, path: Path, buffer: ReplayBuffer) -> None:
        """Go on with a buffer that was opened to write; what is in it is durable."""
        self.path, self.buffer, self._last = path, buffer, self._last + 1000
        self.capacity, self.lanes, self.durable = buffer.capacity, buffer.lanes, buffer.is_durable
        self.log.append("open")
        found = [number_in(buffer.get_at(index), self.leaves) for index in range(len(buffer))]
        self._begin([-1 if number is None else number for number in found])

    def _new(self, count: int) -> list[int]:
        self._last += count
        return list(range(self._last - count + 1, self._last + 1))

    def step(self) -> Callable[[], None]:
        """The next operation, to be called; the state that it leads to is among the states already."""
        kinds = ["append", "extend", "end", "set", "remove", "front", "clear", "flush"]
        kind = self.chance.choices(kinds, [10, 6, 3, 3, 3, 1, 0.5, 2])[0]
        if self.lanes > 1:
            kind = "lanes" if kind in ("append", "extend") else kind
            kind = "front" if kind == "remove" else kind
        if self.leaves in SHARED:
            kind = {"set": "append", "remove": "front"}.get(kind, kind)
        if kind == "extend" and self.is_open:
            kind = "end"
        if kind in ("set", "remove", "front") and len(self.numbers) < self.lanes:
            kind = "lanes" if self.lanes > 1 else "append"
        after, act, is_durable = getattr(self, f"_{kind}")()
        if self.capacity is not None:
            after = after[-self.capacity :]
        self.states.append(after)
        self.log.append(kind)

        def do() -> None:
            act()
            self.numbers = after
            if is_durable:
                self.states = [after]

        return do

    def _append(self) -> Any:
        (number,) = self._new(1)
        self.is_open = True
        return [*self.numbers, number], lambda: self.buffer.append(sample(number, self.leaves)), False

    def _extend(self) -> Any:
        numbers = self._new(self.chance.choice([1, 3, 9, 20]))
        return [*self.numbers, *numbers], lambda: self.buffer.extend(batch(numbers, self.leaves)), self.durable

    def _lanes(self) -> Any:
        steps = self.chance.choice([1, 1, 3, 7])
        numbers = self._new(steps * self.lanes)
        ended = np.array([self.chance.random() < 0.2 for _ in numbers]).reshape(steps, self.lanes)
        values = batch(numbers, self.leaves)
        if steps == 1:
            ended = ended[0]
        else:
            values = {name: value.reshape(steps, self.lanes, *value.shape[1:]) for name, value in values.items()}
        is_durable = self.durable and bool(ended.any())
        return [*self.numbers, *numbers], lambda: self.buffer.extend_lanes(values, ended), is_durable

    def _end(self) -> Any:
        is_durable = self.durable and self.buffer.has_open_segment
        self.is_open = False
        return self.numbers, self.buffer.mark_segment_end, is_durable

    def _set(self) -> Any:
        places = self.chance.sample(range(len(self.numbers)), min(len(self.numbers), self.chance.choice([1, 3])))
        after, numbers = list(self.numbers), self._new(len(places))
        for place, number in zip(places, numbers, strict=True):
            after[place], self.first[number] = number, self.first.get(after[place], after[place])
        return after, lambda: self.buffer.set_at(places, batch(numbers, self.leaves)), self.durable

    def _remove(self) -> Any:
        places = set(self.chance.sample(range(len(self.numbers)), min(len(self.numbers), self.chance.choice([1, 3]))))
        after = [number for place, number in enumerate(self.numbers) if place not in places]
        return after, lambda: self.buffer.remove_at(sorted(places)), False

    def _front(self) -> Any:
        count = min(len(self.numbers), self.lanes * self.chance.choice([1, 2])) // self.lanes * self.lanes
        return self.numbers[count:], lambda: self.buffer.remove_at(list(range(count))), False

    def _clear(self) -> Any:
        self.is_open = False
        return [], self.buffer.clear, False

    def _flush(self) -> Any:
        return self.numbers, self.buffer.flush, True


# -- what is on the disk ----------------------------------------------------------------------------------


@contextmanager
def watched(path: Path) -> Iterator[Files]:
    """While this is entered: the files of a folder as they were when each was synced last."""
    durable: Files = read_files(path)

    def sync(fd: int) -> None:  # in the place of the real one, which would take most of the time
        name = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), path)
        if os.path.isfile(path / name):
            durable[name] = (path / name).read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        yield durable


def read_files(path: Path) -> Files:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def write_image(target: Path, durable: Files, present: Files, chance: random.Random) -> None:
    """A folder as it may be found after a power cut."""
    share = chance.choice([0.0, 0.2, 0.5, 0.8, 1.0, None])  # of pages that are present; None: all or nothing by file
    for name, new in present.items():
        if name not in durable and chance.random() < 0.5:
            continue
        old = durable.get(name, b"")
        of_file = chance.choice([0.0, 1.0]) if share is None else share
        size = len(chance.choice([old, new]))
        content = bytearray(size)
        for start in range(0, size, PAGE):
            source = new if chance.random() < of_file else old
            page = source[start : min(start + PAGE, size)]
            content[start : start + len(page)] = page
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


class Snapshot:
    """Takes the files of a folder when so many lines of the library have run."""

    def __init__(self, path: Path, durable: Files, line: int) -> None:
        self._path, self._durable, self._line = path, durable, line
        self.taken: tuple[Files, Files] | None = None

    def take(self) -> None:
        self.taken = (dict(self._durable), read_files(self._path))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this is entered, lines are counted."""
        old = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(old)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line" and self.taken is None:
            self._line -= 1
            if self._line == 0:
                self.take()
        return self._trace if self.taken is None else None


def cut(path: Path, seed: int, kinds: Sequence[str]) -> tuple[Recording, Files, Files]:
    """Record until the power is cut; the recording, and its files as they are durable and as they are in memory."""
    chance = random.Random(seed)
    lanes = chance.choice([1, 1, 1, 2, 3]) if set(kinds).isdisjoint(SHARED) else 1
    recording = Recording(
        path,
        leaves=chance.choice(kinds),
        capacity=chance.choice([None, None, 2 * lanes, 24, 60]),
        lanes=lanes,
        durable=chance.random() < 0.5,
        seed=seed,
        shared=chance.random() < 0.25,
    )
    with watched(path) as durable:
        recording.buffer.flush()
        return recording, *_record(recording, durable, chance)


def _record(recording: Recording, durable: Files, chance: random.Random) -> tuple[Files, Files]:
    """Go on until the power is cut; the files as they are durable and as they are in memory."""
    for _ in range(chance.randrange(20)):
        recording.step()()
    if chance.random() < 0.2:
        recording.buffer.close()
        buffer = _opened(recording.path, read_only=False, shared=chance.random() < 0.3)
        assert isinstance(buffer, ReplayBuffer), buffer
        recording.go_on_with(recording.path, buffer)
    for _ in range(chance.randrange(10)):
        recording.step()()
    if chance.random() < 0.6:
        recording.buffer.flush()
        recording.states = [recording.numbers]
        for _ in range(chance.randrange(4)):
            recording.step()()
    snapshot = Snapshot(recording.path, durable, chance.randrange(1, 250))
    if chance.random() < 0.7:
        do = recording.step()
        states = recording.states
        with snapshot.watching():
            do()
        if snapshot.taken is not None:
            recording.states = states
    if snapshot.taken is None:
        snapshot.take()
    assert snapshot.taken is not None
    recording.buffer._state.folder_lock.release()
    return snapshot.taken


def cut_again(recording: Recording, path: Path, chance: random.Random) -> tuple[Files, Files] | None:
    """Go on with what a power cut has left, until the next one, which may come while it is opened.

    The files as they are durable and as they are in memory; None if something in them is damaged.
    """
    with watched(path) as durable:
        snapshot = Snapshot(path, durable, chance.randrange(1, 1500))
        with snapshot.watching():
            buffer = _opened(path, read_only=False, shared=chance.random() < 0.3)
        if isinstance(buffer, str) or buffer.verify():
            return None
        recording.go_on_with(path, buffer)
        if snapshot.taken is not None and chance.random() < 0.5:
            buffer._state.folder_lock.release()
            return snapshot.taken
        return _record(recording, durable, chance)


# -- what must be found -----------------------------------------------------------------------------------


@contextmanager
def another_boot() -> Iterator[None]:
    """The machine has booted since."""
    boot = _counters._boot_number()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_counters, "_boot_number", lambda: boot + 1)
        patch.setattr(os, "fsync", lambda fd: None)
        yield


def check_image(folder: Path, recording: Recording, what: str) -> None:
    """Compare what is found after a power cut with what was promised."""
    leaves, states = recording.leaves, recording.states
    kept = set(states[0]).intersection(*states[1:])  # durable, and not dropped since
    what = f"{what} ({recording.log[-6:]}, {leaves}, {recording.capacity}, {recording.lanes}, {recording.durable})"
    with another_boot():
        findings, found = _look(folder, leaves, what)
        missing = sorted(kept - {number for number, is_right in found if is_right})
        assert not missing, (
            f"{what}: {len(missing)} durable samples are lost, {missing[:5]}, of {len(kept)}: {findings}"
        )
        if not findings:
            numbers = [number for number, is_right in found]
            assert _follows(numbers, states, recording.first), f"{what}: found {numbers}, and nothing is said; {states}"
        if findings:
            _check_repair(folder, kept, leaves, what)
        _check_writing(folder, recording, [number for number, _ in found], bool(findings), what)


def _check_repair(folder: Path, kept: set[int], leaves: str, what: str) -> None:
    """What was durable is in the repaired folder; there may be none if nothing was."""
    repaired = folder.with_name(f"{folder.name}-repaired")
    try:
        report = unienv_data.repair(folder, repaired)
    except StorageCorruptedError as error:
        if kept:
            raise AssertionError(f"{what}: {error}") from error
        return
    again, rest = _look(repaired, leaves, what)
    assert again == [], f"{what}: {report}, then {again}"
    missing = sorted(kept - {number for number, _ in rest})
    assert not missing, f"{what}: repair has lost {missing[:5]}, {report}"


def _opened(folder: Path, *, read_only: bool, shared: bool = False) -> ReplayBuffer | str:
    """The buffer, or why it is refused."""
    try:
        return ReplayBuffer.load_from(folder, backend=NUMPY, read_only=read_only, multiprocessing=shared)
    except StorageCorruptedError as error:
        return str(error)


def _look(folder: Path, leaves: str, what: str) -> tuple[list[str], list[tuple[int, bool]]]:
    """What verify says, and the numbers of the samples, each with whether it is called right."""
    buffer = _opened(folder, read_only=True)
    if isinstance(buffer, str):
        if "read_only=False" not in buffer:
            raise AssertionError(f"{what}: {buffer}")
        made = _opened(folder, read_only=False)
        if isinstance(made, ReplayBuffer):
            made.close()
        buffer = _opened(folder, read_only=True)
    assert isinstance(buffer, ReplayBuffer), f"{what}: {buffer}"
    with buffer:
        findings = buffer.verify()
        numbers = np.asarray(buffer.sample_numbers)
        states = buffer.storage.check_rows(buffer._state.slots(numbers), numbers)
        found = []
        for index, state in enumerate(states.tolist()):
            try:
                number = number_in(buffer.get_at(index), leaves)
            except (ValueError, IndexError):
                number = None
            is_called_right = state == 0
            if number is None:
                assert not is_called_right, f"{what}: sample {index} is wrong, and called right"
                assert findings, f"{what}: sample {index} is wrong, and nothing is said"
            found.append((-1 if number is None else number, is_called_right))
        return findings, found


def _follows(numbers: list[int], states: list[list[int]], first: dict[int, int]) -> bool:
    """Whether these are a state, without some of the oldest and newest, some of them before they were set."""
    if not set(numbers) <= {number for state in states for number in state}:
        return False
    found, length = [first.get(number, number) for number in numbers], len(numbers)
    for state in states:
        appended = [first.get(number, number) for number in state]
        if any(appended[start : start + length] == found for start in range(len(state) - length + 1)):
            return True
    return not numbers


def _check_writing(folder: Path, recording: Recording, found: list[int], has_findings: bool, what: str) -> None:
    """To write is refused with a way out, or goes on from what a reader finds, and what was wrong stays reported."""
    buffer = _opened(folder, read_only=False)
    if isinstance(buffer, str):
        assert has_findings, f"{what}: {buffer}"
        assert "unienv repair" in buffer, f"{what}: {buffer}"
        return
    with buffer:
        assert len(buffer) == len(found), f"{what}: {len(buffer)} samples to write, {len(found)} to read"
        if recording.lanes == 1:
            buffer.mark_segment_end()
            buffer.extend(batch([2**30], recording.leaves))
        assert bool(buffer.verify()) == has_findings or recording.capacity is not None, what


def run(
    folder: Path, images: int, seed: int, per_recording: int = 6, kinds: Sequence[str] = tuple(sorted(LEAVES))
) -> int:
    """Look at so many images of recordings; how many of them had something wrong that was reported."""
    total = 0
    for number in range(-(-images // per_recording)):
        path = folder / f"recording{number}"
        recording, durable, present = cut(path, seed + number, kinds)
        chance = random.Random(seed + number)
        for image in range(min(per_recording, images - total)):
            target = folder / f"image{number}-{image}"
            write_image(target, durable, present, chance)
            check_image(target, recording, f"seed {seed + number}, image {image}")
            total += 1
    return total


def run_in_turn(folder: Path, recordings: int, seed: int, cuts: int = 4) -> int:
    """Look at images of recordings of which each is cut several times, and goes on with what was found."""
    total = 0
    for number in range(recordings):
        chance = random.Random(seed + number)
        kinds = sorted(SHARED) if chance.random() < 0.2 else sorted(LEAVES)
        recording, *files = cut(folder / f"recording{number}", seed + number, kinds)
        with ExitStack() as boots:
            for turn in range(cuts):
                images = [folder / f"image{number}-{turn}-{image}" for image in range(3)]
                for image in images:
                    write_image(image, *files, chance)
                    check_image(
                        Path(shutil.copytree(image, f"{image}-looked-at")), recording, f"{image.name} of {seed}"
                    )
                    total += 1
                boots.enter_context(another_boot())
                found = next((image for image in images if _goes_on(image)), None)
                again = None if found is None else cut_again(recording, found, chance)
                if again is None:
                    break
                files = list(again)
        for path in folder.iterdir():
            shutil.rmtree(path)
    return total


def _goes_on(image: Path) -> bool:
    """Whether what is found can be written."""
    buffer = _opened(Path(shutil.copytree(image, f"{image}-tried")), read_only=False)
    if isinstance(buffer, str):
        return False
    buffer.close()
    return True
