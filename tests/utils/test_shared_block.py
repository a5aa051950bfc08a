"""SharedBlock."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from unienv_interface.utils import shared_block
from unienv_interface.utils.shared_block import SharedBlock

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def test_a_new_block_is_zeroed_and_its_arrays_overlap() -> None:
    block = SharedBlock.create(64)
    assert not block.array(np.uint8, (64,)).any()
    block.array("<i4", (2, 2), offset=8)[1, 1] = 7
    assert block.array("<i4", (16,))[5] == 7
    with pytest.raises(TypeError, match="buffer is too small"):
        block.array(np.uint8, (2,), offset=63)
    block.close()


def test_arrays_outlive_close_and_close_may_be_repeated() -> None:
    block = SharedBlock.create(16)
    array = block.array(np.uint8, (16,))
    array[3] = 9
    block.close()
    block.close()
    del block
    gc.collect()
    assert array[3] == 9


def test_a_block_of_nothing_is_a_block() -> None:
    block = SharedBlock.create(0)
    assert block.array(np.uint8, (0,)).size == 0
    block.close()


def test_growing_keeps_what_is_there() -> None:
    block = SharedBlock.create(16)
    small = block.array(np.uint8, (16,))
    small[:] = 3
    block.grow(8)  # never less
    assert block.size == 16
    block.grow(100_000)
    large = block.array(np.uint8, (100_000,))
    assert (large[:16] == 3).all()
    assert not large[16:].any()
    large[5] = 4
    assert small[5] == 4
    block.close()


def work(block: SharedBlock, orders: Connection) -> None:
    block.array(np.uint8, (16,))[1] = 1
    orders.send("small")
    size = orders.recv()
    block.map(size)
    array = block.array(np.uint8, (size,))
    array[-1] = array[-2] + 1
    orders.send("large")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_see_what_the_other_writes_and_how_it_grows(method: str) -> None:
    ctx: Any = multiprocessing.get_context(method)
    block = SharedBlock.create(16)
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=work, args=(block, theirs), daemon=True)
    process.start()
    assert ours.recv() == "small"
    assert block.array(np.uint8, (16,))[1] == 1
    block.grow(10_000)
    array = block.array(np.uint8, (10_000,))
    array[-2] = 41
    ours.send(10_000)
    assert ours.recv() == "large"
    assert array[-1] == 42
    process.join()
    for connection in (ours, theirs, process, block):
        connection.close()


def test_memory_that_cannot_be_had_is_an_error_that_says_how_much_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    make_file = shared_block._unnamed_file
    monkeypatch.setattr(shared_block, "_unnamed_file", lambda: opened.append(make_file()) or opened[-1])
    with pytest.raises(OSError, match=f"cannot reserve {2**60} bytes of shared memory") as caught:
        SharedBlock.create(2**60)
    assert caught.value.errno == errno.ENOMEM
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    block = SharedBlock.create(16)
    with pytest.raises(OSError, match="cannot reserve"):
        block.grow(2**60)
    assert block.array(np.uint8, (16,)).sum() == 0
    block.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_block_has_no_name_and_its_descriptors_go_with_it() -> None:
    def files() -> list[str]:
        gc.collect()
        return sorted(os.listdir("/proc/self/fd"))

    before = files()
    block = SharedBlock.create(4096)
    array = block.array(np.uint8, (4096,))
    assert os.readlink(f"/proc/self/fd/{block.fd}") == "/memfd:unienv (deleted)"
    assert not os.get_inheritable(block.fd)
    block.close()
    del block, array
    assert files() == before
    # the same without memfd_create, as on macOS
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "memfd_create")
        patch.delattr(os, "posix_fallocate")
        block = SharedBlock.create(100)
        assert block.array(np.uint8, (100,)).sum() == 0
        assert os.fstat(block.fd).st_nlink == 0
    block.close()
