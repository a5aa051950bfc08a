"""A buffer on a disk that fills up. Run as a program with a folder on a small disk, or with a limit to file sizes.

python tests/data/disk_full.py FOLDER [--fills 20] [--limit BYTES]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import os
import re
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from buffers import check_hashes, hashed, hashed_space, one_hashed
from power_cut import batch, number_in, space_of

from unienv_data import FrameStackedBatch, ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import DictSpace, DynamicBoxSpace

PAYLOAD = 20_000
FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


def fill(buffer: ReplayBuffer, which: int) -> tuple[int, OSError]:
    """Write until there is no room; the number of the sample that did not fit, and the error."""
    while True:
        try:
            if which % 3:
                buffer.append(one_hashed(0, which, PAYLOAD))
                which += 1
                buffer.mark_segment_end()
            else:
                buffer.extend(hashed(0, which, 4, PAYLOAD))
                which += 4
        except OSError as error:
            return which, error


def check_error(error: OSError, folder: Path) -> None:
    assert error.errno in FULL, error
    assert str(error.filename).startswith(str(folder)), error
    assert re.search(r"\d+ bytes are needed", str(error)), error


def growing(folder: Path, fills: int, make_room: Any, take_room: Any) -> None:
    path, which = folder / "growing", 0
    buffer = ReplayBuffer.create(hashed_space(PAYLOAD), cache_path=path, maintain_segment_metadata=True)
    for turn in range(fills):
        take_room()
        which, error = fill(buffer, which)
        check_error(error, path)
        assert [number for _, number in check_hashes(buffer.get_at(...))] == list(range(which))
        try:
            buffer.remove_at([1])
        except OSError as no_room:  # the journal found none: nothing has happened
            check_error(no_room, path)
            assert len(buffer) == which
        else:
            buffer.clear()
            which = 0
        if turn % 4 == 3:
            del buffer, error  # whose traceback would keep the buffer alive
            buffer = ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False)
            assert len(buffer) == which
        make_room()
        buffer.mark_segment_end()
        buffer.extend(hashed(0, which, 2, PAYLOAD))
        assert check_hashes(buffer.get_at([-1]))[0][1] == which + 1
        assert buffer.verify() == []
        buffer.clear()
        which = 0
        if turn % 4 == 1:  # gives back the room that the files have taken; else there would soon be none to make
            buffer.close()
            buffer = ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False)
            assert len(buffer) == 0
    buffer.close()
    shutil.rmtree(path)


def ring(folder: Path, take_room: Any) -> None:
    """A ring that fitted when it was made, on a disk that somebody else has filled since."""
    path = folder / "ring"
    buffer = ReplayBuffer.create(hashed_space(PAYLOAD), capacity=250, cache_path=path)
    take_room()
    which, error = fill(buffer, 0)
    check_error(error, path)
    assert [number for _, number in check_hashes(buffer.get_at(...))] == list(range(which))
    assert buffer.verify() == []
    assert buffer.storage.verify() == []  # also of slots that were never written, which are holes
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as reader:
        assert reader.storage.verify() == []
    buffer.close()
    shutil.rmtree(path)


def heap(folder: Path) -> None:
    """Values without a fixed size, which lie in a file of their own."""
    path, backend = folder / "heap", NumpyComputeBackend
    space = DictSpace(backend, {"a": DynamicBoxSpace(backend, 0, 255, (1,), (400_000,), "uint8")})
    buffer = ReplayBuffer.create(space, cache_path=path)
    count = 0
    value = {"a": (hashed(0, 0, 1, 300_000)["large"][0] + 0)}
    while True:
        try:
            buffer.append(value)
        except OSError as error:
            check_error(error, path)
            break
        count += 1
    assert len(buffer) == count
    for index in (0, count - 1):
        assert buffer.get_at(index)["a"].tobytes() == value["a"].tobytes()
    del buffer
    shutil.rmtree(path)


def holes(folder: Path, ballast: Path) -> None:
    """Episodes until nothing is free. Files have holes then; on a tmpfs, to read those through a mapping takes room."""
    path, backend = folder / "holes", NumpyComputeBackend
    for leaves, capacity, shared in itertools.product(("small", "shared", "shared blocks"), (None, 24), (False, True)):
        options: dict[str, Any] = {"capacity": capacity, "keep_episodes": True, "multiprocessing": shared}
        buffer = ReplayBuffer.create(space_of(leaves), cache_path=path, **options)
        buffer.extend(batch(list(range(5)), leaves))
        fill_with_zeros(ballast)
        number = 5
        try:
            while number < 5000:
                buffer.extend(batch([number], leaves))
                number += 1
        except OSError as error:
            check_error(error, path)
        assert number < 5000
        kept = list(range(number))[-(capacity or number) :]
        for windows in (FrameStackedBatch(buffer, 3), FrameStackedBatch(buffer, 1, postfetch_horizon=5)):
            windows.get_at_with_metadata(...)
        assert buffer.verify() == []
        buffer.close()
        with ReplayBuffer.load_from(path, backend=backend, read_only=False, multiprocessing=shared) as again:
            found = [number_in(again.get_at(index), leaves) for index in range(len(again))]
            assert found == kept[len(kept) - len(found) :]
            assert len(found) in (len(kept), len(kept) - 1)  # of a ring the oldest had gone for what found no room
            assert again.verify() == []
        ballast.unlink()
        shutil.rmtree(path)


def fill_with_zeros(ballast: Path) -> None:
    with open(ballast, "wb", buffering=0) as file:
        for size in (2**16, 2**12, 2**9, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fills", type=int, default=20)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    ballast = folder / "ballast"
    if arguments.limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def take_room() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.limit, resource.RLIM_INFINITY))

        def make_room() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    else:

        def take_room() -> None:
            free = shutil.disk_usage(folder).free
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, free * 2 // 3))

        def make_room() -> None:
            ballast.unlink()

    growing(folder, arguments.fills, make_room, take_room)
    if arguments.limit is None:
        ring(folder, take_room)
        make_room()
        heap(folder)
        holes(folder, ballast)
    print(f"filled {arguments.fills} times, nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
