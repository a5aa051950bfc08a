"""What an append of frames does not wait for: what is made ahead, once, or by a thread that lets the others run."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from frames import frame

from unienv_data import ReplayBuffer, Video
from unienv_data.base.mapped import MappedFile, populate_pages
from unienv_data.storages import _checks, row_memory
from unienv_data.storages._raw_frames import RawFrames
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

pytest.importorskip("av")

SHAPE = (48, 64, 3)


def create(folder: Path) -> ReplayBuffer:
    camera = BoxSpace(NumpyComputeBackend, 0, 255, np.uint8, shape=SHAPE)
    state = BoxSpace(NumpyComputeBackend, -1, 1, np.float32, shape=(14,))
    space = DictSpace(NumpyComputeBackend, {"cam": camera, "state": state})
    return ReplayBuffer.create(space, columns={"cam": Video("ffv1")}, cache_path=folder)


def append(buffer: ReplayBuffer, number: int) -> None:
    buffer.append({"cam": frame(number, SHAPE), "state": np.zeros(14, np.float32)})


def test_the_first_piece_of_raw_frames_is_there_before_the_first_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, never = RawFrames.make, threading.Event()

    def make_slowly(self: RawFrames, number: int) -> None:
        never.wait(0.1)
        make(self, number)

    monkeypatch.setattr(RawFrames, "make", make_slowly)
    with create(tmp_path / "a"):
        assert list((tmp_path / "a").rglob("raw-0"))
    with ReplayBuffer.load_from(tmp_path / "a", backend=NumpyComputeBackend, read_only=False):
        assert list((tmp_path / "a").rglob("raw-0"))


def test_pages_of_rows_beside_frames_are_populated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    populated: list[str] = []

    def populate(items: np.ndarray, start: int, stop: int, path: Path) -> None:
        if "raw-" not in str(path):
            populated.append(path.name)

    with create(tmp_path / "a") as buffer:
        monkeypatch.setattr(row_memory, "populate_pages", populate)
        for number in range(8):
            append(buffer, number)
    assert populated == ["rows.bin"]


def test_the_constants_of_checksums_are_there_before_the_first_frame(tmp_path: Path) -> None:
    _checks._constants.cache_clear()
    with create(tmp_path / "a") as buffer:
        computed = _checks._constants.cache_info().misses
        append(buffer, 0)
        assert _checks._constants.cache_info().misses == computed


def test_other_threads_run_while_pages_are_populated(tmp_path: Path) -> None:
    """With no switch of threads but where the GIL is released, a thread runs between the two looks at its count."""
    count, stop = [0], threading.Event()

    def work() -> None:
        while not stop.wait(1e-4):
            count[0] += 1

    interval, thread = sys.getswitchinterval(), threading.Thread(target=work)
    sys.setswitchinterval(1000.0)
    thread.start()
    try:
        for attempt in range(20):
            path = tmp_path / str(attempt)
            file = MappedFile.create(path, np.uint8, 64 * 2**20)
            file.reserve(0, file.length)
            items = file.map(file.length)
            before = count[0]
            populate_pages(items, 0, len(items), path)
            after = count[0]
            file.close()
            path.unlink()
            if after > before:
                break
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert after > before
