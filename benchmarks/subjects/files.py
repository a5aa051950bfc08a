"""Buffers of a million transitions in files: writing and opening them, and batches of 256 from warm and cold ones."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Ready, Work, floor, ours, peer, unable

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.row_layout import RowLayout

from . import _page_cache
from ._child import peak_growth
from ._data import (
    BATCH,
    ROWS,
    filled,
    filled_rows,
    folder,
    index_stream,
    records_of,
    transition_space,
    transitions,
)
from ._peers import CPPRB, SB3, TIANSHOU, TORCHRL, cpprb_buffer, sb3_buffer, tianshou_buffer, torchrl_buffer

LARGE = 10 * 10**9  # bytes


def works() -> list[Work]:
    no_file = unable("stable-baselines3", "keeps its buffer in memory only")
    no_mapping = unable("tianshou", "keeps its buffer in memory only")
    dumps = (dump, write_bytes, write_bytes_synced, torchrl_dump, cpprb_dump, sb3_dump, tianshou_dump)
    return [
        Work("files", "dump", "ms", dumps, rounds=7),
        Work("files", "load", "ms", (load, torchrl_load, cpprb_load, sb3_load, tianshou_load), rounds=7),
        Work("files", "load of 10 GB", "ms", (load_large,)),
        Work("files", "load of 10 GB, memory", "MB", (load_large_memory,), rounds=1),
        Work("files", "length of 10 GB", "us", (length_of_large,)),
        Work("files", "get_at, warm", "us", (get_at, take_mapped, torchrl_mapped, cpprb_mapped, no_file, no_mapping)),
        Work("files", "get_at, cold", "ms", (get_at_cold, take_cold, torchrl_cold, no_file, no_mapping)),
    ]


@contextlib.contextmanager
def saved(save: Callable[[Path], object]) -> Iterator[Path]:
    """The path of a buffer that was saved."""
    with folder() as path:
        save(path / "buffer")
        yield path / "buffer"


def dumping(save: Callable[[Path], object], suffix: str = "") -> Iterator[Ready]:
    """Each time to a new path, which does not stay."""
    with folder() as path:
        numbers = itertools.count()
        target = path / "none"

        def next_target() -> None:
            nonlocal target
            target = path / f"buffer-{next(numbers)}{suffix}"

        def remove() -> None:
            shutil.rmtree(target) if target.is_dir() else target.unlink()

        yield Ready(lambda: save(target), next_target, remove)


# -- dump and load: ours -----------------------------------------------------------------------------------


@ours("unienv", "ReplayBuffer.dumps: synced, with checksums, replaced at once")
def dump() -> Iterator[Ready]:
    with filled() as buffer:
        yield from dumping(buffer.dumps)


def _load(path: Path) -> ReplayBuffer:
    return ReplayBuffer.load_from(path, backend=NumpyComputeBackend)


def _load_and_read_one(path: Path) -> None:
    with _load(path) as buffer:
        buffer.get_at(0)


@ours("unienv", "ReplayBuffer.load_from, one sample read")
def load() -> Iterator[Callable]:
    with saved(lambda path: filled(cache_path=path).close()) as path:
        yield lambda: _load_and_read_one(path)


def make_large(path: Path) -> None:
    """A buffer of 10 GB, of which all but a little are holes in a file."""
    space = transition_space()
    with ReplayBuffer.create(space, capacity=LARGE // RowLayout(space).nbytes, cache_path=path) as buffer:
        buffer.extend(transitions(1000))


@ours("unienv", "ReplayBuffer.load_from, one sample read")
def load_large() -> Iterator[Callable]:
    with saved(make_large) as path:
        yield lambda: _load_and_read_one(path)


@ours("unienv", "what load_from and a sample add to a process")
def load_large_memory() -> Iterator[Callable]:
    with saved(make_large) as path, saved(lambda path: filled(1000, cache_path=path).close()) as small:
        yield lambda: peak_growth(_load_and_read_one, [small], [path]) / 2**20


@ours("unienv", "ReplayBuffer.get_length_from_path")
def length_of_large() -> Iterator[Callable]:
    with saved(make_large) as path:
        yield lambda: ReplayBuffer.get_length_from_path(path)


# -- dump and load: floor and peers ------------------------------------------------------------------------


@floor("write", "the bytes of the rows to a file; not synced")
def write_bytes() -> Iterator[Ready]:
    yield from dumping(filled_rows().records.tofile)


@floor("write, synced", "the same, and fsync")
def write_bytes_synced() -> Iterator[Ready]:
    records = filled_rows().records

    def write(path: Path) -> None:
        with path.open("wb") as file:
            records.tofile(file)
            os.fsync(file.fileno())

    yield from dumping(write)


@peer("torchrl", "ReplayBuffer.dumps, LazyTensorStorage", *TORCHRL)
def torchrl_dump() -> Iterator[Ready]:
    yield from dumping(torchrl_buffer().dumps)


@peer("torchrl", "ReplayBuffer.loads into LazyMemmapStorage, one sample read", *TORCHRL)
def torchrl_load() -> Iterator[Callable]:
    from torchrl.data import LazyMemmapStorage

    with saved(torchrl_buffer().dumps) as path:

        def load() -> None:
            buffer = torchrl_buffer(storage=LazyMemmapStorage(ROWS), fill=False)
            buffer.loads(path)
            buffer[0]

        yield load


@peer("cpprb", "save_transitions, not safe", *CPPRB)
def cpprb_dump() -> Iterator[Ready]:
    buffer = cpprb_buffer()
    yield from dumping(lambda path: buffer.save_transitions(str(path), safe=False), ".npz")


@peer("cpprb", "load_transitions, not safe", *CPPRB)
def cpprb_load() -> Iterator[Callable]:
    with folder() as path:
        file = str(path / "buffer.npz")
        cpprb_buffer().save_transitions(file, safe=False)
        yield lambda: cpprb_buffer(fill=False).load_transitions(file)


@peer("stable-baselines3", "save_to_pkl", *SB3)
def sb3_dump() -> Iterator[Ready]:
    from stable_baselines3.common.save_util import save_to_pkl

    buffer = sb3_buffer()
    yield from dumping(lambda path: save_to_pkl(path, buffer), ".pkl")


@peer("stable-baselines3", "load_from_pkl", *SB3)
def sb3_load() -> Iterator[Callable]:
    from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

    with folder() as path:
        save_to_pkl(path / "buffer.pkl", sb3_buffer())
        yield lambda: load_from_pkl(path / "buffer.pkl")


@peer("tianshou", "save_hdf5", *TIANSHOU, "h5py")
def tianshou_dump() -> Iterator[Ready]:
    buffer = tianshou_buffer()
    yield from dumping(lambda path: buffer.save_hdf5(str(path)))


@peer("tianshou", "load_hdf5", *TIANSHOU, "h5py")
def tianshou_load() -> Iterator[Callable]:
    from tianshou.data import ReplayBuffer as TianshouBuffer

    with folder() as path:
        tianshou_buffer().save_hdf5(str(path / "buffer.hdf5"))
        yield lambda: TianshouBuffer.load_hdf5(str(path / "buffer.hdf5"))


# -- reading warm files ------------------------------------------------------------------------------------


@ours("unienv", "ReplayBuffer.get_at, load_from(read_only=True)")
def get_at() -> Iterator[Callable]:
    with saved(lambda path: filled(cache_path=path).close()) as path, _load(path) as buffer:
        index = index_stream(ROWS)
        yield lambda: buffer.get_at(index())


@floor("take", "numpy take of the rows, memory-mapped file")
def take_mapped() -> Iterator[Callable]:
    with saved(lambda path: filled(cache_path=path).close()) as path, _load(path) as buffer:
        records, index = records_of(buffer), index_stream(ROWS)
        yield lambda: records.take(index())


@peer("torchrl", "ReplayBuffer, LazyMemmapStorage", *TORCHRL)
def torchrl_mapped() -> Iterator[Callable]:
    from torchrl.data import LazyMemmapStorage

    with folder() as path:
        yield torchrl_buffer(storage=LazyMemmapStorage(ROWS, scratch_dir=path)).sample


@peer("cpprb", "ReplayBuffer(mmap_prefix=...)", *CPPRB)
def cpprb_mapped() -> Iterator[Callable]:
    with folder() as path:
        buffer = cpprb_buffer(mmap_prefix=str(path / "buffer"))
        yield lambda: buffer.sample(BATCH)


# -- reading cold files ------------------------------------------------------------------------------------


def reading_cold(path: Path, open_it: Callable[[], Any], close_it: Callable[[Any], object], read: Any) -> Ready:
    """Each batch is the first one that is read since the system forgot the files."""
    opened: Any = None

    def forget_and_open() -> None:
        nonlocal opened
        _page_cache.drop(path)
        opened = open_it()

    def close() -> None:
        nonlocal opened
        opened = close_it(opened)

    return Ready(lambda: read(opened), forget_and_open, close)


@ours("unienv", "ReplayBuffer.get_at, load_from(read_only=True)")
def get_at_cold() -> Iterator[Ready]:
    with saved(lambda path: filled(cache_path=path).close()) as path:
        index = index_stream(ROWS)
        yield reading_cold(
            path, lambda: _load(path), lambda buffer: buffer.close(), lambda buffer: buffer.get_at(index())
        )


@floor("take", "numpy take of the rows, np.memmap")
def take_cold() -> Iterator[Ready]:
    rows = filled_rows().records
    with saved(rows.tofile) as path:
        index = index_stream(ROWS)
        yield reading_cold(
            path.parent,
            lambda: np.memmap(path, rows.dtype, "r"),
            lambda _: None,
            lambda mapped: mapped.take(index()),
        )


@peer("torchrl", "TensorDict.load_memmap of a dumped buffer, at random indices", *TORCHRL)
def torchrl_cold() -> Iterator[Ready]:
    from tensordict import TensorDict

    with saved(torchrl_buffer().dumps) as path:
        index = index_stream(ROWS)
        yield reading_cold(
            path,
            lambda: TensorDict.load_memmap(path / "storage"),
            lambda _: None,
            lambda columns: columns[index()],
        )
