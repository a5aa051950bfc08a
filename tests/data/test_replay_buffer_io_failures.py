"""The operating system refuses: any call fails at the n-th time, once or from then on, in any operation."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from power_cut import Recording, number_in

from unienv_data import ReplayBuffer
from unienv_data.base import mapped
from unienv_interface.backends import NumpyComputeBackend

LOAD: dict[str, Any] = {"backend": NumpyComputeBackend}
CALLS: dict[str, tuple[Any, int]] = {
    "pwrite": (os, errno.EIO),
    "write": (os, errno.EIO),
    "fsync": (os, errno.EIO),
    "ftruncate": (os, errno.EIO),
    "posix_fallocate": (os, errno.ENOSPC),
    "mmap": (mmap, errno.ENOMEM),
    "replace": (os, errno.EIO),
    "rename": (os, errno.EIO),
    "pread": (os, errno.EIO),
    "open": (os, errno.EMFILE),
}


class Failing:
    """A system call that fails at the n-th time, once or from then on."""

    def __init__(self, call: Callable[..., Any], code: int, at: int, *, for_good: bool) -> None:
        self._call, self._code, self._at, self._for_good = call, code, at, for_good
        self.has_failed, self.is_off = False, False

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._at -= not self.is_off
        if self.is_off:
            return self._call(*args, **options)
        if self._at == 0 or (self._for_good and self._at < 0):
            self.has_failed = True
            raise OSError(self._code, os.strerror(self._code))
        return self._call(*args, **options)


def contents(buffer: ReplayBuffer, leaves: str) -> list[int | None]:
    return [number_in(buffer.get_at(index), leaves) for index in range(len(buffer))]


@pytest.fixture(autouse=True)
def syncs_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def attack(folder: Path, seed: int) -> bool:
    """Record, with a call that fails; whether it came to that."""
    chance = random.Random(seed)
    name = chance.choice(sorted(CALLS))
    where, code = CALLS[name]
    leaves, capacity = chance.choice(["small", "rows", "blocks", "heap"]), chance.choice([None, None, 24])
    lanes, shared = chance.choice([1, 1, 2]), chance.random() < 0.3
    recording = Recording(folder, leaves, capacity, lanes, chance.random() < 0.5, seed, shared=shared)
    what = f"seed {seed}, {name}, {leaves}, capacity {capacity}, lanes {lanes}, shared {shared}"
    for _ in range(chance.randrange(12)):
        recording.step()()
    acknowledged, is_half_made = recording.numbers, False
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(getattr(where, name), code, chance.randrange(1, 6), for_good=chance.random() < 0.5)
        patch.setattr(where, name, failing if name != "mmap" else _mmap_that(failing))
        for _ in range(14):
            if chance.random() < 0.15:
                reopen(recording, failing, shared=shared)
                continue
            if chance.random() < 0.1 and not (lanes == 1 and recording.buffer.has_open_segment):
                dump(recording, failing, acknowledged, what)
            do = recording.step()
            wanted = recording.states[-1]
            try:
                do()
            except (OSError, RuntimeError) as error:
                failing.is_off, is_refused = True, _is_refused(recording.buffer)
                try:
                    found = contents(recording.buffer, leaves)
                except OSError as half_changed:
                    is_half_made = is_refused and "half changed" in str(half_changed)
                    if not is_half_made:
                        raise AssertionError(f"{what}: {error!r}, then {half_changed!r}") from half_changed
                    break
                failing.is_off = False
                if found not in (acknowledged, wanted) and not _is_less(found, acknowledged, wanted):
                    raise AssertionError(f"{what}: {found}, wanted {acknowledged} or {wanted}") from error
                recording.numbers = acknowledged = found
                recording.is_open = recording.buffer.has_open_segment
                if is_refused:
                    break
            else:
                acknowledged = wanted
        failing.is_off = True
        if not is_half_made:
            found = contents(recording.buffer, leaves)
            assert found == acknowledged, f"{what}: {found}, acknowledged {acknowledged}"
        failing.is_off = False
    try:
        recording.buffer.close()
    except OSError:
        assert failing.has_failed, what
        recording.buffer._state.folder_lock.release()
    if is_half_made:  # what comes next finishes the change
        with ReplayBuffer.load_from(folder, read_only=False, **LOAD) as buffer:
            assert contents(buffer, leaves) == wanted, what
        acknowledged = wanted
    with ReplayBuffer.load_from(folder, **LOAD) as buffer:
        found = contents(buffer, leaves)
        assert found == acknowledged, f"{what}: {recording.log}: a reader finds {found}, acknowledged {acknowledged}"
        assert buffer.verify() == [], what
    with ReplayBuffer.load_from(folder, read_only=False, **LOAD) as buffer:
        assert contents(buffer, leaves) == acknowledged, what
        buffer.mark_segment_end()
        assert buffer.verify() == [], what
    return failing.has_failed


def reopen(recording: Recording, failing: Failing, *, shared: bool) -> None:
    """Close, which may fail and gives back the folder all the same; open to write, which may fail until it does not."""

    def load() -> ReplayBuffer:
        return ReplayBuffer.load_from(recording.path, read_only=False, multiprocessing=shared, **LOAD)

    with contextlib.suppress(OSError):
        recording.buffer.close()
    try:
        recording.buffer = load()
    except OSError:
        failing.is_off = True
        recording.buffer = load()
        failing.is_off = False


def dump(recording: Recording, failing: Failing, acknowledged: list[int], what: str) -> None:
    """Dump to another folder; when that has failed there is the copy from before, or none."""
    copy, wanted = recording.path.with_name(f"{recording.path.name}-copy"), [acknowledged]
    is_there = copy.exists()
    if is_there:
        failing.is_off = True
        with ReplayBuffer.load_from(copy, **LOAD) as before:
            wanted.append(contents(before, recording.leaves))
        failing.is_off = False
    with contextlib.suppress(OSError):
        recording.buffer.dumps(copy)
    failing.is_off = True
    if is_there or copy.exists():
        with ReplayBuffer.load_from(copy, **LOAD) as after:
            found = contents(after, recording.leaves)
            assert found in wanted, f"{what}: the copy is {found}, wanted {wanted}"
            assert after.verify() == [], what
    failing.is_off = False


def _mmap_that(failing: Failing) -> type[mmap.mmap]:
    class Mapping(mmap.mmap):
        def __new__(cls, *args: Any, **options: Any) -> Any:
            return failing(*args, **options)

    return Mapping


def _is_refused(buffer: ReplayBuffer) -> bool:
    try:
        buffer._writer.check()
    except OSError:
        return True
    return False


def _is_less(found: list[int | None], before: list[int], after: list[int]) -> bool:
    """Whether room was made for what was not written then."""
    dropped = len(before) - len(found)
    return dropped > 0 and found == before[dropped:] and not set(before[:dropped]) & set(after)


def run(folder: Path, count: int, seed: int) -> int:
    failed = 0
    for number in range(count):
        failed += attack(folder / f"recording{number}", seed + number)
        shutil.rmtree(folder / f"recording{number}")
        shutil.rmtree(folder / f"recording{number}-copy", ignore_errors=True)
    return failed


def test_a_hundred_recordings_with_failing_calls(tmp_path: Path) -> None:
    assert run(tmp_path, 100, seed=0) > 30


@pytest.mark.soak
def test_five_thousand_recordings_with_failing_calls(tmp_path: Path) -> None:
    assert run(tmp_path, 5000, seed=1000) > 1500


def test_the_library_calls_them_by_these_names() -> None:
    assert mapped.mmap is mmap
    assert mapped.os is os
